"""The matrices of single heads: from the residual stream to queries, keys and values, and back to it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from headlens.errors import UnsupportedModelError
from headlens.weights.head_slicing import FUSED, SEPARATE, Matrix, find_layers, output_weight

# Beside those whose heads can be cut out: T5's, and one of which the features alone are known.
_SEPARATE, _FUSED = (*SEPARATE, ("q", "k", "v")), {**FUSED, "Phi3Attention": ("qkv_proj", False)}


@dataclass(frozen=True)
class HeadMatrices:
    """The weights of the heads of one attention module, without biases, for rows that are multiplied from the left.

    Args:
        query: (heads, d, k).
        key: (heads, d, k); what several heads share once for each of them.
        value: (heads, d, v), likewise.
        output: (heads, v, d).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor

    @cached_property
    def factors(self) -> dict[str, Tensor]:
        """The triangular factors (heads, k, k) of queries, keys, values and transposed outputs.

        Norms of products with a matrix do not change when its factor stands in its place on the outer side.
        """
        parts = {"query": self.query, "key": self.key, "value": self.value, "output": self.output.transpose(1, 2)}
        return {name: torch.linalg.qr(part, mode="r").R for name, part in parts.items()}


def inward_layers(module: nn.Module) -> tuple[Matrix, ...]:
    """Returns the layers of an attention module to queries, keys and values, or the one to all; none where unknown."""
    return find_layers(module, _SEPARATE, _FUSED)


def head_matrices(model: nn.Module, name: str, n_heads: int) -> HeadMatrices:
    """The matrices of the heads of an attention module, in single precision at least.

    Args:
        model: the model that holds the module.
        name: name of the module.
        n_heads: how many heads it has.

    Raises:
        UnsupportedModelError: if it is not known where they are, or their weights are not at hand (quantised).
    """
    module = model.get_submodule(name)
    layers = inward_layers(module)
    if not layers or any(p.is_meta for layer in layers for p in layer.parameters()):
        raise UnsupportedModelError(
            f"headlens finds no plain layers of queries, keys and values in {name} ({type(module).__name__}).",
            "Leave out --probes circuits, which reads the weights of single heads.",
        )
    output = _exact(output_weight(model, name))  # (d, heads x v)
    size = output.shape[1] // n_heads
    weights = [_exact(layer.weight.T if isinstance(layer, nn.Linear) else layer.weight) for layer in layers]
    if len(weights) == 1:
        together = _FUSED[type(module).__name__][1]
        query, key, value = _fused_parts(weights[0], n_heads, size, together=together)
    else:
        of_queries = weights[0].shape[1] // n_heads
        query, key = (_by_head(weight, of_queries) for weight in weights[:2])
        value = _by_head(weights[2], size)
    key, value = (part.repeat_interleave(n_heads // len(part), dim=0) for part in (key, value))
    return HeadMatrices(query, key, value, output.T.reshape(n_heads, size, -1))


def _fused_parts(weight: Tensor, n_heads: int, size: int, *, together: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (heads, d, size) of one matrix (d, features), each of the heads that it has.

    Args:
        weight: the matrix.
        n_heads: heads of queries.
        size: of a head.
        together: whether the features of a head in all three stand together.
    """
    if together:
        query, key, value = weight.view(len(weight), n_heads, 3, size).permute(2, 1, 0, 3)
        return query, key, value
    of_keys = (weight.shape[1] - n_heads * size) // 2
    query, key, value = (_by_head(part, size) for part in torch.split(weight, [n_heads * size, of_keys, of_keys], 1))
    return query, key, value


def _by_head(weight: Tensor, size: int) -> Tensor:
    """(d, heads x size) -> (heads, d, size)."""
    return weight.view(len(weight), -1, size).transpose(0, 1)


def _exact(weight: Tensor) -> Tensor:
    return weight.detach().to(torch.promote_types(weight.dtype, torch.float32)).contiguous()

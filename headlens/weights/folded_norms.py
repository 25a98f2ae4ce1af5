"""Which norms stand between the residual stream and the matrices of heads, and these matrices with their gains.

A norm centres its input (or not), divides it by a scale and multiplies it by a gain. All but the scale, which differs
from text to text, can be made part of the matrix behind it or before it. Where norms are shows when a model runs. One
that is on the stream itself, as between the layers of BERT, is part of no matrix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.weights.head_matrices import HeadMatrices, inward_layers
from headlens.weights.head_slicing import output_projection

# Names of norms of queries and of keys in an attention module.
_QUERY_NORMS, _KEY_NORMS = ("q_norm", "q_layernorm", "query_norm"), ("k_norm", "k_layernorm", "key_norm")


class _Event(NamedTuple):
    """Something that happened while a model ran: to a norm, or to a layer of an attention module.

    Args:
        kind: norm, queries, keys or output.
        name: of the norm, or of the attention module.
        read: its input.
        gave: its output.
    """

    kind: str
    name: str
    read: Tensor
    gave: Tensor


@dataclass(frozen=True)
class NormPlaces:
    """The norms of a model by what they stand next to; by name of the attention module.

    Args:
        queries: of what queries are made from.
        keys: of what keys and values are made from.
        outputs: of the output of attention, before it is added to the stream.
        last: behind the last layer; None if there is none.
    """

    queries: dict[str, nn.Module] = field(default_factory=dict)
    keys: dict[str, nn.Module] = field(default_factory=dict)
    outputs: dict[str, nn.Module] = field(default_factory=dict)
    last: nn.Module | None = None

    @property
    def beside(self) -> bool:
        """Whether norms stand beside the stream, as in most decoders, and not on it, as in BERT."""
        return bool(self.queries or self.outputs)

    def folded(self, name: str, module: nn.Module, matrices: HeadMatrices) -> HeadMatrices:
        """The matrices of the heads of an attention module with the gains of the norms next to them.

        Args:
            name: of the module.
            module: whose own norms of queries and keys are folded, too.
            matrices: of its heads.
        """
        query = _followed_by(_own(module, _QUERY_NORMS), matrices.query)
        key = _followed_by(_own(module, _KEY_NORMS), matrices.key)
        return HeadMatrices(
            _behind(self.queries.get(name), query),
            _behind(self.keys.get(name), key),
            _behind(self.keys.get(name), matrices.value),
            _followed_by(self.outputs.get(name), matrices.output),
        )

    def unembedding(self, weight: Tensor) -> Tensor:
        """The matrix from the stream to logits, (vocabulary, d), behind the last norm."""
        return _behind(self.last, weight.T).T


def find_norms(model: PreTrainedModel, lists: Mapping[str, str], tokens: Sequence[int]) -> NormPlaces:
    """Runs a model on a few tokens to see which numbers go from a norm straight into heads, or from heads into a norm.

    Args:
        model: an encoder, decoder or encoder-decoder of text.
        lists: of its attention modules by name the lists of layers that they are in.
        tokens: that it knows; which ones makes no difference.
    """
    events = _events(model, lists, tokens)
    gave = {event.gave.data_ptr(): event.name for event in events if event.kind == "norm"}
    within = tuple(f"{name}." for name in lists.values() if name)
    outside = {name for name in gave.values() if not name.startswith(within)}
    places = NormPlaces()
    for number, event in enumerate(events):
        if event.kind != "output":
            continue
        before = {e.kind: e for e in events[:number] if e.name == event.name}
        queries, keys = before["queries"].read, before["keys"].read
        following = next((e for e in events[number:] if e.kind == "norm"), None)
        if following is not None and following.read.data_ptr() == event.gave.data_ptr():
            places.outputs[event.name] = model.get_submodule(following.name)
        norm = gave.get(queries.data_ptr())
        if norm is not None and not _is_added(queries, event.gave, following):
            places.queries[event.name] = model.get_submodule(norm)
        same = keys.data_ptr() == queries.data_ptr()
        key_norm = gave.get(keys.data_ptr())
        if same and event.name in places.queries:
            places.keys[event.name] = places.queries[event.name]
        elif not same and key_norm in outside:
            places.keys[event.name] = model.get_submodule(key_norm)
    last = next((e.name for e in reversed(events) if e.name in outside and e.kind == "norm"), None)
    return replace(places, last=model.get_submodule(last)) if places.beside and last is not None else places


def _events(model: PreTrainedModel, modules: Iterable[str], tokens: Sequence[int]) -> list[_Event]:
    """What norms and the layers of attention modules read and gave, in order; none of it is freed before the end."""
    events: list[_Event] = []

    def note(kind: str, name: str, _module: nn.Module, read: tuple[Any, ...], gave: Any) -> None:
        if read and isinstance(gave, Tensor):
            events.append(_Event(kind, name, read[0], gave))

    with ExitStack() as undo, torch.no_grad():

        def watch(module: nn.Module, kind: str, name: str) -> None:
            undo.callback(module.register_forward_hook(partial(note, kind, name)).remove)

        for name, module in model.named_modules():
            if "norm" in type(module).__name__.lower() and not any(module.children()):
                watch(module, "norm", name)
        for name in modules:
            layers = inward_layers(model.get_submodule(name))
            watch(layers[0], "queries", name)
            watch(layers[-1], "keys", name)
            watch(output_projection(model, name), "output", name)
        inputs: dict[str, Any] = {"input_ids": torch.tensor([list(tokens)], device=model.device)}
        if model.config.is_encoder_decoder:
            inputs["decoder_input_ids"] = inputs["input_ids"]
        model(**inputs)
    return events


def _is_added(read: Tensor, gave: Tensor, following: _Event | None) -> bool:
    """Whether what attention gave is added to what it read, so that this is the stream itself."""
    if following is None or following.read.shape != read.shape or gave.shape != read.shape:
        return False
    return torch.allclose(following.read.float(), (read + gave).float(), rtol=1e-2, atol=1e-4)


def _own(module: nn.Module, names: Sequence[str]) -> nn.Module | None:
    return next((norm for name in names if isinstance(norm := getattr(module, name, None), nn.Module)), None)


def _behind(norm: nn.Module | None, matrix: Tensor) -> Tensor:
    """The matrix (…, d, outputs) of what a norm gives, as one of what it reads."""
    if norm is None:
        return matrix
    gain, centres = _linear_part(norm, matrix.shape[-2], matrix)
    scaled = gain[:, None] * matrix
    return scaled - scaled.mean(dim=-2, keepdim=True) if centres else scaled


def _followed_by(norm: nn.Module | None, matrix: Tensor) -> Tensor:
    """The matrix (heads, inputs, features) to what a norm gives, of one head at a time or of all of them side by side.

    A norm of another shape, such as one with a gain for each of several heads and features, is left out.
    """
    size = matrix.shape[-1]
    weight = getattr(norm, "weight", None)
    width = size if weight is None else weight.numel()
    if norm is None or any(norm.children()) or width % size or len(matrix) % (width // size):
        return matrix
    gain, centres = _linear_part(norm, width, matrix)
    by_head = gain.view(-1, size).repeat_interleave(len(matrix) * size // width, dim=0)
    return (matrix - matrix.mean(dim=-1, keepdim=True) if centres and width == size else matrix) * by_head[:, None]


def _linear_part(norm: nn.Module, size: int, like: Tensor) -> tuple[Tensor, bool]:
    """The gain of a norm, (size,), and whether it centres what it reads: from what it gives for signs and for ones."""
    signs = torch.ones(1, size, device=like.device, dtype=getattr(norm, "weight", like).dtype)
    ones = signs.clone()
    signs[:, 1::2] = -1
    with torch.no_grad():
        odd, even = ((norm(x) - norm(-x)) / 2 for x in (signs, ones))  # without its shift
    return (odd * signs)[0].to(like.dtype), bool(even.abs().max() < 1e-3 * odd.abs().max())

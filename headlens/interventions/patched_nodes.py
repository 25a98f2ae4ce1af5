"""Heads and MLPs of a decoder as nodes of a graph: what they give on another text put in their places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.attention.edits_and_observers import CallContext, Edit
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site, find_sites
from headlens.errors import UnsupportedModelError
from headlens.weights.shared_layer_masks import place_in_list

_ADVICE = "Give a decoder such as GPT-2, Llama, Qwen2 or Gemma 2, with all of its heads."


class PatchedNodes(Edit):
    """Keeps what heads and MLPs give on one text, and puts it in their places on another one of as many tokens.

        nodes = PatchedNodes(model)
        with nodes.open():
            model(**other)
            nodes.gates = torch.zeros(len(nodes.names))
            model(**inputs)

    Embeddings are no node. A node is patched as a whole, at all positions, whatever it reads; the nodes that are not
    read from what is there, so that they see the patched ones (interchange interventions; Mueller et al. 2025).

    Args:
        model: a decoder whose layers have an attention module and one named `mlp`.

    Attributes:
        names: of the nodes as MIB has them, layer by layer: `a0.h0`, `a0.h1`, ..., `m0`.
        gates: (nodes,), 0 for those that give what they give, 1 for those that are patched, in between a mixture if
            gates ask for gradients; None to keep what all of them give.

    Raises:
        UnsupportedModelError: if it is no such model, or lacks heads.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model, self.sites = model, find_sites(model)
        self.n_heads = self.sites[0].n_heads if self.sites else 0
        regular = all(s.stack == "decoder" and s.n_heads == self.n_heads and s.left is None for s in self.sites)
        mlps = [_mlp_beside(model, site) for site in self.sites]
        self._mlps = [mlp for mlp in mlps if mlp is not None]
        if not (regular and self.sites and len(self._mlps) == len(self.sites) == len(set(self._mlps))):
            raise UnsupportedModelError(
                f"{type(model).__name__} is no decoder whose layers have equally many heads and a module named mlp "
                "each, which are the nodes of MIB's graphs.",
                _ADVICE,
            )
        heads = range(self.n_heads)
        self.names = [
            name for site in self.sites for name in (*(f"a{site.layer}.h{head}" for head in heads), f"m{site.layer}")
        ]
        self.gates: Tensor | None = None
        self._kept: dict[str, Tensor] = {}

    @contextmanager
    def open(self) -> Iterator[None]:
        """Patches passes of the model inside `with`."""
        with ExitStack() as undo:
            for site, mlp in zip(self.sites, self._mlps, strict=True):
                undo.callback(mlp.register_forward_hook(partial(self._mlp_output, site.layer)).remove)
            undo.enter_context(AttentionSession(self.model, edits=[self]))
            yield

    def config(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """What MIB has to know of the model, where MLPs may read the stream that heads read ("parallel").

        Args:
            inputs: of a batch whose nodes were kept on another one: a pass shows what the first MLP reads.
        """
        seen: list[Tensor] = []
        # Without and with the heads of the first layer patched.
        gates = torch.zeros(2, len(self.names))
        gates[1, : self.n_heads] = 1.0
        with torch.no_grad(), self.open():
            watch = self._mlps[0].register_forward_pre_hook(lambda _, read: seen.append(read[0]))
            for self.gates in gates:
                self.model(**inputs)
            watch.remove()
        return {
            "n_layers": len(self.sites),
            "n_heads": self.n_heads,
            "parallel_attn_mlp": bool(torch.equal(*seen)),
            "d_model": int(seen[0].shape[-1]),
        }

    def output(self, context: CallContext, output: Tensor) -> Tensor:
        """The head outputs, (batch, query, heads, d), patched where gates say so."""
        start = context.site.layer * (self.n_heads + 1)
        return self._patched(str(context.site), output, slice(start, start + self.n_heads))

    def _mlp_output(self, layer: int, _module: nn.Module, _read: Any, output: Any) -> Tensor:
        if not isinstance(output, Tensor):
            raise UnsupportedModelError(f"The MLPs of {type(self.model).__name__} give several things.", _ADVICE)
        place = (layer + 1) * (self.n_heads + 1) - 1
        return self._patched(f"m{layer}", output[:, :, None], slice(place, place + 1))[:, :, 0]

    def _patched(self, name: str, output: Tensor, nodes: slice) -> Tensor:
        """Outputs of some nodes, (batch, position, nodes, d)."""
        if self.gates is None:
            self._kept[name] = output.detach()
            return output
        gates = self.gates[nodes, None].to(output)
        other = self._kept[name]
        return output + gates * (other - output) if gates.requires_grad else torch.where(gates > 0, other, output)


def _mlp_beside(model: nn.Module, site: Site) -> nn.Module | None:
    """The module `mlp` of the layer that an attention module is in."""
    layers, number = place_in_list(site.module)
    mlp = None if number is None else getattr(model.get_submodule(f"{layers}.{number}"), "mlp", None)
    return mlp if isinstance(mlp, nn.Module) else None


def importances_file(config: Mapping[str, Any], names: Sequence[str], scores: Sequence[float]) -> dict[str, Any]:
    """Scores of nodes as the JSON of a graph that MIB's evaluation reads (`Graph.from_json`), at level `node`.

    A node without a score, here `input`, is part of every circuit. No edge has a score of its own.

    Args:
        config: see `PatchedNodes.config`.
        names: of the nodes.
        scores: by how much the loss grows when the node is patched: the higher, the more it is needed.
    """
    nodes: dict[str, dict[str, Any]] = {"input": {"in_graph": True}}
    nodes |= {name: {"in_graph": True, "score": float(score)} for name, score in zip(names, scores, strict=True)}
    return {"cfg": dict(config), "nodes": nodes | {"logits": {"in_graph": True}}, "edges": {}}

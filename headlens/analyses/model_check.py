"""Whether a model can be looked into, and what is seen of it: the recipe of `headlens models check`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from torch import nn

from headlens.attention.sites import find_sites
from headlens.heads import STACKS
from headlens.models.checkpoint_weights import model_part
from headlens.models.loading import LoadedModel


@dataclass(frozen=True)
class StackFacts:
    """One stack of a model.

    Args:
        stack: its name.
        layers: how many it has.
        heads: of all layers.
        hidden_width: of its hidden states.
        shared_weights: whether one module computes several layers.
        first_module: the attention module of its first layer.
        layer_heads: of each layer, which differ where heads were cut out.
    """

    stack: str
    layers: int
    heads: int
    hidden_width: int | None
    shared_weights: bool
    first_module: str
    layer_heads: tuple[int, ...]


@dataclass(frozen=True)
class PartFacts:
    """One part of a model, such as its encoder, pooler or head.

    Args:
        part: name of its module, or where its weights would be.
        weights: how many tensors it has.
        state: `there`, `missing` (the checkpoint has none of them, so that they are random), `partly missing`, or
            `unused` (the checkpoint has them, the model has no place for them).
    """

    part: str
    weights: int
    state: str


@dataclass(frozen=True)
class ModelFacts:
    """What headlens sees of a model."""

    name: str
    model_class: str
    parameters: int
    embedding_width: int | None
    weight_hash: str
    revision: str | None
    tokenizer: str
    aligns_words: str
    longest_input: int | None
    longest_target: int | None
    stacks: tuple[StackFacts, ...]
    parts: tuple[PartFacts, ...]
    notes: tuple[str, ...]

    def facts(self) -> dict[str, str]:
        """Returns the model's properties as text by name, without those of its stacks."""
        return {
            "class": self.model_class,
            "parameters": f"{self.parameters:,}",
            **({} if self.embedding_width is None else {"embedding width": f"{self.embedding_width:,}"}),
            "weights": self.weight_hash[:16],
            "revision": self.revision or "local",
            "tokenizer": self.tokenizer,
            "words": self.aligns_words,
            "longest input": _tokens(self.longest_input),
            **({} if self.longest_target == self.longest_input else {"longest target": _tokens(self.longest_target)}),
        }

    def as_json(self) -> dict[str, Any]:
        """Returns all properties of the model, its stacks included, as JSON values."""
        return asdict(self)


def check_model(loaded: LoadedModel) -> ModelFacts:
    """Find the heads of a model and describe its tokenizer.

    Raises:
        UnsupportedModelError: if its attention cannot be reached.
    """
    sites = find_sites(loaded.model)
    stacks = []
    for stack in STACKS:
        sites_of_stack = [s for s in sites if s.stack == stack]
        if sites_of_stack:
            counts, first = tuple(s.n_heads for s in sites_of_stack), sites_of_stack[0]
            width = _hidden_width(loaded.model, first.module)
            stacks.append(StackFacts(stack, len(counts), sum(counts), width, first.shared, first.module, counts))
    tokenizer = loaded.tokenizer
    if tokenizer is None:
        kind, aligns = "none", "none is read, as there is no tokenizer"
    else:
        kind = type(tokenizer).__name__
        aligns = "aligned by character offsets" if tokenizer.is_fast else "aligned by matching pieces (slow tokenizer)"
    return ModelFacts(
        name=loaded.name,
        model_class=type(loaded.model).__name__,
        parameters=loaded.n_parameters,
        embedding_width=loaded.embedding_width,
        weight_hash=loaded.weight_hash,
        revision=loaded.revision,
        tokenizer=kind,
        aligns_words=aligns,
        longest_input=loaded.longest("source"),
        longest_target=loaded.longest("target"),
        stacks=tuple(stacks),
        parts=tuple(_parts(loaded)),
        notes=loaded.notes,
    )


def _hidden_width(model: nn.Module, attention: str) -> int | None:
    """Width of the hidden states around an attention module, by the nearest configuration; None where none says.

    Encoder and decoder that were put together have configurations of their own.
    """
    names = attention.split(".")
    around = [model.get_submodule(".".join(names[:end])) for end in range(len(names), -1, -1)]
    widths = (getattr(getattr(module, "config", None), "hidden_size", None) for module in around)
    return next((width for width in widths if isinstance(width, int)), None)


def _tokens(limit: int | None) -> str:
    return "no limit" if limit is None else f"{limit} tokens"


def _parts(loaded: LoadedModel) -> Iterator[PartFacts]:
    """The parts of a model in the order of its weights, then those of the checkpoint that it has no place for."""
    part = partial(model_part, loaded.model)
    parameters, lost = (
        Counter(part(name) for name, _ in loaded.model.named_parameters()),
        Counter(map(part, loaded.untrained)),
    )
    for name, number in parameters.items():
        missing = lost[name]
        yield PartFacts(name, number, "missing" if missing >= number else "partly missing" if missing else "there")
    yield from (PartFacts(name, number, "unused") for name, number in sorted(Counter(map(part, loaded.unused)).items()))

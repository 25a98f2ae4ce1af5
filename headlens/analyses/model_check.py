"""Whether a model can be looked into, and what is seen of it: the recipe of `headlens models check`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from headlens.attention.sites import find_sites
from headlens.heads import STACKS
from headlens.models.loading import LoadedModel


@dataclass(frozen=True)
class StackFacts:
    """One stack: how many layers and heads, and whether layers share their weights."""

    stack: str
    layers: int
    heads: int
    shared_weights: bool
    first_module: str


@dataclass(frozen=True)
class ModelFacts:
    """What headlens sees of a model."""

    name: str
    model_class: str
    parameters: int
    weight_hash: str
    revision: str | None
    tokenizer: str
    aligns_words: str
    longest_input: int | None
    stacks: tuple[StackFacts, ...]

    def facts(self) -> dict[str, str]:
        """Returns the model's properties as text by name, without those of its stacks."""
        return {
            "class": self.model_class,
            "parameters": f"{self.parameters:,}",
            "weights": self.weight_hash[:16],
            "revision": self.revision or "local",
            "tokenizer": self.tokenizer,
            "words": self.aligns_words,
            "longest input": "no limit" if self.longest_input is None else f"{self.longest_input} tokens",
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
        own = [s for s in sites if s.stack == stack]
        if own:
            total = sum(s.n_heads for s in own)
            stacks.append(StackFacts(stack, len(own), total, own[0].shared, own[0].module))
    tokenizer = loaded.tokenizer
    if tokenizer is None:
        kind, aligns = "none", "cannot read text; usable from Python only"
    else:
        kind = type(tokenizer).__name__
        aligns = "aligned by character offsets" if tokenizer.is_fast else "aligned by matching pieces (slow tokenizer)"
    return ModelFacts(
        name=loaded.name,
        model_class=type(loaded.model).__name__,
        parameters=loaded.n_parameters,
        weight_hash=loaded.weight_hash,
        revision=loaded.revision,
        tokenizer=kind,
        aligns_words=aligns,
        longest_input=loaded.max_length,
        stacks=tuple(stacks),
    )

"""Where the weights of a layer of heads are: the linear maps to queries, keys and values, and the one after them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from headlens.errors import UnsupportedModelError


@dataclass(frozen=True)
class Layout:
    """How a modeling file calls the projections, seen from its attention module.

    Args:
        families: the models whose files use these names.
        query, key, value: names of the projections into the heads.
        output: name of the projection out of them; `../` stands for the module around the attention module.
    """

    families: str
    query: str
    key: str
    value: str
    output: str


LAYOUTS = (
    Layout("BERT, RoBERTa, ELECTRA", "query", "key", "value", "../output.dense"),
    Layout("ALBERT", "query", "key", "value", "dense"),
    Layout("DistilBERT", "q_lin", "k_lin", "v_lin", "out_lin"),
    Layout("BART, Marian, M2M100, OPT", "q_proj", "k_proj", "v_proj", "out_proj"),
)
_HEAD_SIZES = ("attention_head_size", "head_dim")


@dataclass(frozen=True)
class HeadProjections:
    """The projections of one attention module, and the features of one head in each of them."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    output: nn.Linear
    head_size: int

    @property
    def inward(self) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
        """The projections into the heads, whose output features belong to heads: query, key and value."""
        return self.query, self.key, self.value

    @property
    def n_heads(self) -> int:
        """Number of heads that have weights in these projections."""
        return self.query.out_features // self.head_size


def projections(model: nn.Module, name: str) -> HeadProjections:
    """The projections of the attention module of this name.

    Raises:
        UnsupportedModelError: if they are not laid out in a known way: one matrix for queries, keys and values
            (ModernBERT, GPT-2), keys that several heads share (Llama), or layers that are not plain (quantised).
    """
    module = model.get_submodule(name)
    for layout in LAYOUTS:
        layers = [_linear(model, name, path) for path in (layout.query, layout.key, layout.value, layout.output)]
        present = [layer for layer in layers if layer is not None]
        sizes = [int(getattr(module, attribute)) for attribute in _HEAD_SIZES if hasattr(module, attribute)]
        if sizes and len(present) == len(layers):
            query, key, value, output = present
            parts = HeadProjections(query, key, value, output, sizes[0])
            if _fits(parts):
                return parts
    raise UnsupportedModelError(
        f"The heads of {name} ({type(module).__name__}) cannot be cut out: headlens finds no separate linear layers of "
        "queries, keys, values and output there, with as many features for each head.",
        f"It can for {', '.join(layout.families for layout in LAYOUTS)}.",
    )


def _linear(model: nn.Module, name: str, path: str) -> nn.Linear | None:
    place = f"{name}.{path}"
    if path.startswith("../"):  # seen from the module around the attention module
        place = ".".join([*name.split(".")[:-1], path[3:]])
    try:
        module = model.get_submodule(place)
    except AttributeError:
        return None
    # A subclass (quantised, with adapters) may keep its weights in another way.
    return module if type(module) is nn.Linear else None


def _fits(parts: HeadProjections) -> bool:
    widths = {layer.out_features for layer in parts.inward} | {parts.output.in_features}
    return len(widths) == 1 and parts.query.out_features % parts.head_size == 0

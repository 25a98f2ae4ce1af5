"""The heads on a page: numbers that a grid of layers and heads is coloured by, and a card for every head."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.pages.score_parts import ScoreParts
from headlens.plots.head_grid import by_model_and_stack, float_column, has_numbers, scatter_grid
from headlens.plots.style import DIVERGING, PALE, SEQUENTIAL
from headlens.visible_text import visible_text

LONGEST = 40  # tokens of a sentence whose attention a card shows
REMOVED = "removed"
_HEAD = ["stack", "layer", "head"]
_LOOKS = ("key", "title", "about", "diverging", "worse", "unit", "high", "pale")
_STEPS = 17  # colours of a scale, between which the page mixes
_NAMED = re.compile(r"\b([a-z]+)\.(\d+)\.(\d+)\b")  # a head in a sentence


@dataclass(frozen=True)
class HeadSeries:
    """A number for every head, of one run.

    Args:
        key: identifies the quantity; series of other runs or models with this key can be subtracted.
        title: its name.
        about: what it means, in a sentence.
        rows: columns `model, stack, layer, head`, and those named below.
        value: the column of the number.
        bounds: the columns of the ends of its interval, if it has one.
        diverging: whether 0 is in the middle of its colours.
        categories: of a number that stands for one of several: their names with their colours, the first one is 0; an
            empty colour is that of the page.
        letters: of such a series, the column of the letters that stand in its cells.
        unit: of the number; shares (`share`, `share of words`) and `points` are shown in per cent.
        worse: whether it is numbers above 0 that are bad: red, not blue.
        sure: of numbers with 0 in the middle of their colours, the column that is 1 where they are significant and 0
            where they are not, which is pale; without it, or where it is empty, their intervals tell.
        pale: what is said of those that are not, if that is not whether they are significant.
        lead: the column of what stands before the number on a card, such as the offset that it is the share of.
        high: the upper end of its colours, where no number is larger; None for the largest number.
        count: the column of the number of words, mentions or the like that it rests on.
        beside: columns of what it is to be compared with, such as that of uniform attention, by what that is called.
    """

    key: str
    title: str
    about: str
    rows: pd.DataFrame
    value: str
    bounds: tuple[str, str] | None = None
    diverging: bool = False
    categories: Mapping[str, str] = field(default_factory=dict)
    letters: str = ""
    unit: str = ""
    lead: str = ""
    worse: bool = False
    sure: str = ""
    pale: str = ""
    high: float | None = None
    count: str = ""
    beside: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class HeadWords:
    """Lines of text about some heads: columns `model, stack, layer, head, text`, the first line first."""

    title: str
    rows: pd.DataFrame


@dataclass(frozen=True)
class HeadShares:
    """Shares of every head by category: columns `model, stack, layer, head, category, share`, in the order shown."""

    title: str
    rows: pd.DataFrame


@dataclass(frozen=True)
class TokenGroups:
    """What tokens belong together: words, which special tokens are of their own.

    Args:
        words: of each token the number of its word; words count from 0, in their order.
        forms: the text of each word.
        special: of each token whether it is one of the tokenizer's special tokens.
        rarest: the numbers of the least frequent words of the sentence; empty where that is not known.
        texts: of each token whether it is of the first (0) or the second (1) of two texts; empty for one text.
    """

    words: Sequence[int]
    forms: Sequence[str]
    special: Sequence[bool]
    rarest: Sequence[int] = field(default_factory=list)
    texts: Sequence[int] = field(default_factory=list)

    def check(self, count: int) -> None:
        """Checks that these are groups of so many tokens.

        Raises:
            ValueError: if they are not.
        """
        kinds = ({*map(type, values)} for values in (self.words, self.forms, self.special))
        fits = len(self.words) == len(self.special) == count and set(self.words) == set(range(len(self.forms)))
        if not fits or not all(types <= {kind} for types, kind in zip(kinds, (int, str, bool), strict=True)):
            raise ValueError(f"words {self.words} do not fit {count} tokens and {len(self.forms)} forms")
        if not {*map(type, self.rarest)} <= {int} or not set(self.rarest) <= set(self.words):
            raise ValueError(f"the rarest words {self.rarest} are not among {len(self.forms)} words")
        if len(self.texts) not in (0, count) or not {(type(text), text) for text in self.texts} <= {(int, 0), (int, 1)}:
            raise ValueError(f"the texts {self.texts} of {count} tokens are not 0 and 1")


@dataclass(frozen=True)
class SentenceMap:
    """Attention on a sentence: weights (layers, heads, query, key), NaN for heads that there are not.

    Args:
        model: the model, or the name of the sentence.
        stack: encoder, decoder or cross.
        queries: tokens that attend.
        keys: tokens attended to.
        weights: (layers, heads, query, key).
        text: the sentence; empty where it is not known.
        state: which of several models or states of a model it is; 0 for the first.
        sentence: which of several sentences of the model it is; 0 for the first.
        query_groups: words and special tokens of the queries; None where they are not known.
        key_groups: those of the keys.
        scores: what the weights of some heads are made of, by layer; None where nobody asked for it.
    """

    model: str
    stack: str
    queries: Sequence[str]
    keys: Sequence[str]
    weights: npt.NDArray[np.floating]
    text: str = ""
    state: int = 0
    query_groups: TokenGroups | None = None
    key_groups: TokenGroups | None = None
    sentence: int = 0
    scores: Sequence[ScoreParts] | None = None


@dataclass(frozen=True)
class HeadFacts:
    """The facts of a run about single heads."""

    series: Sequence[HeadSeries] = ()
    words: Sequence[HeadWords] = ()
    shares: Sequence[HeadShares] = ()
    maps: Sequence[SentenceMap] = ()


@dataclass(frozen=True)
class PrunedPair:
    """A model before and after heads were pruned.

    Args:
        before: the whole model, as tables call it.
        after: the pruned one.
        heads: a row for each head of the whole model: stack, layer, head, name; `role_before` and `role_after`, the
            family of its strongest role, or `removed`; `confidence_before` and `confidence_after`.
    """

    before: str
    after: str
    heads: pd.DataFrame

    @property
    def removed(self) -> list[str]:
        """Names of the heads that were pruned."""
        return list(self.heads.loc[self.heads["role_after"] == REMOVED, "name"])


@dataclass
class _Model:
    """The data of a model on the page, in types of JSON."""

    name: str
    stacks: dict[str, list[int]] = field(default_factory=dict)  # layers and heads
    series: list[dict[str, Any]] = field(default_factory=list)
    words: list[dict[str, Any]] = field(default_factory=list)
    shares: list[dict[str, Any]] = field(default_factory=list)
    maps: list[dict[str, Any]] = field(default_factory=list)
    before: int | None = None  # number of the model that it was pruned from
    removed: list[str] = field(default_factory=list)
    first: list[Any] = field(default_factory=list)  # stack, layer and number of the head that is shown at first


def head_page(
    facts: Sequence[tuple[str, HeadFacts]], pruned: Sequence[PrunedPair] = (), findings: Sequence[str] = ()
) -> dict[str, Any]:
    """Returns everything the page needs to show heads, in types of JSON; empty without a series.

    Args:
        facts: of every run, with its label.
        pruned: models of which only some heads are left, beside the whole ones.
        findings: sentences that begin with a model; the first head that they name is shown at first.
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    models: dict[str, _Model] = {}
    for run, facts_of_run in facts:
        for series in facts_of_run.series:
            _add_series(models, run, series)
    # Cards are for heads that stand in the grid.
    for run, facts_of_run in facts:
        _add_cards(models, run, facts_of_run)
    for pair in pruned if models else ():
        if pair.before != pair.after:  # models of one name share a grid
            after, before = models[pair.after], models[pair.before]
            after.before, after.removed = list(models).index(pair.before), pair.removed
            # The last layer or head may be gone.
            after.stacks = {stack: list(size) for stack, size in before.stacks.items()}
    for name, model in models.items():
        own_findings = [text.removeprefix(name) for text in findings if text.startswith((f"{name},", f"{name}:"))]
        model.first = _first(model, own_findings)
    colours = {"sequential": SEQUENTIAL, "diverging": DIVERGING, "pale": PALE}
    scales = {name: [to_hex(colormaps[c](x)) for x in np.linspace(0, 1, _STEPS)] for name, c in colours.items()}
    return {"scales": scales, "models": [_visible(vars(model)) for model in models.values()]} if models else {}


def _visible(value: Any) -> Any:
    """Returns JSON data in which no text hides anything."""
    if isinstance(value, dict):
        return {key: _visible(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_visible(inner) for inner in value]
    return visible_text(value) if isinstance(value, str) else value


def _add_series(models: dict[str, _Model], run: str, series: HeadSeries) -> None:
    """Adds a number of the heads of every model that has one, and the place of these heads in the grid."""
    for name, rows in series.rows.groupby("model", sort=False):
        if not has_numbers(rows, series.value):
            continue
        model = models.setdefault(str(name), _Model(str(name)))
        parts = {part.stack: part.rows for part in by_model_and_stack(rows)}
        for stack, stack_part in parts.items():
            size = stack_part[["layer", "head"]].astype(int).max() + 1
            model.stacks[stack] = np.maximum(model.stacks.get(stack, 0), size).tolist()
        low, high = series.bounds or ("", "")
        numbers = {"values": series.value, "lows": low, "highs": high, "sure": series.sure}
        model.series.append(
            {name: getattr(series, name) for name in _LOOKS}
            | {name: _grids(parts, column) for name, column in numbers.items()}
            | {"run": run, "letters": _words(parts, series.letters), "leads": _words(parts, series.lead)}
            | {"categories": [[name, colour] for name, colour in series.categories.items()]}
            | {"counts": _grids(parts, series.count, digits=15)}
            | {"beside": [[what, _grids(parts, column)] for what, column in series.beside.items()]}
        )


def _add_cards(models: Mapping[str, _Model], run: str, facts: HeadFacts) -> None:
    """Adds what the cards of heads show: words, shares, and attention on sentences."""
    for words in facts.words:
        for model, rows in _in_grid(models, words.rows):
            texts = {name: [str(text) for text in lines["text"]] for name, lines in _by_head(rows)}
            model.words.append({"title": words.title, "run": run, "heads": texts})
    for shares in facts.shares:
        for model, rows in _in_grid(models, shares.rows):
            known = rows.assign(category=rows["category"].astype(str), share=float_column(rows, "share"))
            categories = known["category"].drop_duplicates().tolist()
            heads = {}
            for name, head_rows in _by_head(known):
                share = head_rows[np.isfinite(head_rows["share"])].set_index("category")["share"].to_dict()
                heads[name] = [float(f"{share.get(category, 0.0):.3g}") for category in categories]
            model.shares.append({"title": shares.title, "run": run, "categories": categories, "heads": heads})
    for sentence in facts.maps:
        if sentence.model in models and max(len(sentence.queries), len(sentence.keys)) <= LONGEST:
            sides = {"queries": [*sentence.queries], "keys": [*sentence.keys]}
            text = sentence.text or " ".join(sentence.queries)
            attention = {"text": text, "run": run, **sides, "heads": _bytes_by_head(sentence)}
            models[sentence.model].maps.append(attention)


def _words(parts: Mapping[str, pd.DataFrame], column: str) -> dict[str, list[list[str]]]:
    """Texts (layers, heads) of a column by stack."""
    texts = {stack: rows[column].astype(str).to_numpy(object) for stack, rows in parts.items() if column}
    return {stack: scatter_grid(parts[stack], values, empty="").tolist() for stack, values in texts.items()}


def _in_grid(models: Mapping[str, _Model], rows: pd.DataFrame) -> Iterator[tuple[_Model, pd.DataFrame]]:
    """Yields the rows of every model that has a grid of heads."""
    return (
        (models[str(name)], rows_of_model)
        for name, rows_of_model in rows.groupby("model", sort=False)
        if str(name) in models
    )


def _first(model: _Model, findings: Sequence[str]) -> list[Any]:
    """The first head of the model's grid that findings name, or that with the largest number; differences go first."""
    for name, layer, head in (mention for text in findings for mention in _NAMED.findall(text)):
        size = model.stacks.get(name, [0, 0])
        if int(layer) < size[0] and int(head) < size[1] and f"{name}.{layer}.{head}" not in model.removed:
            return [name, int(layer), int(head)]
    series = min(model.series, key=lambda one: (bool(one["categories"]), not one["diverging"]))
    sizes = {stack: np.abs(np.array(grid, np.float64)) for stack, grid in series["values"].items()}
    stack = max(sizes, key=lambda stack: np.nanmax(sizes[stack], initial=-1.0))
    layer, head = np.unravel_index(np.nanargmax(sizes[stack]), sizes[stack].shape)
    return [stack, int(layer), int(head)]


def _by_head(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yields the name of every head, such as `encoder.2.8`, with its rows."""
    for (stack, layer, head), head_rows in rows.astype({"layer": int, "head": int}).groupby(_HEAD, sort=False):
        yield f"{stack}.{layer}.{head}", head_rows


def _grids(parts: Mapping[str, pd.DataFrame], column: str, digits: int = 6) -> dict[str, list[list[float | None]]]:
    """Numbers (layers, heads) of a column by stack: more digits than the page shows, to round as figures do."""
    grids = {stack: scatter_grid(rows, float_column(rows, column)) for stack, rows in parts.items() if column}
    return {
        stack: [[float(f"{v:.{digits}g}") if np.isfinite(v) else None for v in row] for row in grid.astype(np.float64)]
        for stack, grid in grids.items()
    }


def _bytes_by_head(sentence: SentenceMap) -> dict[str, str]:
    """Weights (query, key) by the name of the head, a byte for each: the page shows no finer shades."""
    shades = np.rint(255 * np.clip(np.nan_to_num(sentence.weights), 0, 1)).astype(np.uint8)
    return {
        f"{sentence.stack}.{layer}.{head}": base64.b64encode(shades[layer, head].tobytes()).decode()
        for layer, head in np.argwhere(np.isfinite(sentence.weights).all((2, 3)))
    }

"""The heads on a page: numbers that a grid of layers and heads is coloured by, and a card for every head."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import to_hex

from headlens.plots.head_grid import by_model_and_stack, float_column, has_numbers, scatter_grid
from headlens.plots.style import DIVERGING, PALE, SEQUENTIAL

LONGEST = 40  # tokens of a sentence whose attention a card shows
REMOVED = "removed"
_HEAD = ["stack", "layer", "head"]
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
        lead: the column of what stands before the number on a card, such as the offset that it is the share of.
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
    """

    words: Sequence[int]
    forms: Sequence[str]
    special: Sequence[bool]
    rarest: Sequence[int] = field(default_factory=list)

    def check(self, count: int) -> None:
        """Checks that these are groups of so many tokens.

        Raises:
            ValueError: if they are not.
        """
        kinds = ({*map(type, values)} for values in (self.words, self.forms, self.special))
        fits = len(self.words) == len(self.special) == count and set(self.words) == set(range(len(self.forms)))
        if not fits or not all(own <= {kind} for own, kind in zip(kinds, (int, str, bool), strict=True)):
            raise ValueError(f"words {self.words} do not fit {count} tokens and {len(self.forms)} forms")
        if not {*map(type, self.rarest)} <= {int} or not set(self.rarest) <= set(self.words):
            raise ValueError(f"the rarest words {self.rarest} are not among {len(self.forms)} words")


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
    facts: Sequence[tuple[str, HeadFacts]],
    safe: Callable[[str], str],
    pruned: Sequence[PrunedPair] = (),
    findings: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns everything the page needs to show heads, in types of JSON; empty without a series.

    Args:
        facts: of every run, with its label.
        safe: makes text safe to be seen.
        pruned: models of which only some heads are left, beside the whole ones.
        findings: sentences that begin with a model; the first head that they name is shown at first.
    """
    page = _HeadPage(safe)
    for run, own in facts:
        for series in own.series:
            page.add_series(safe(run), series)
    # Cards are for heads that stand in the grid.
    for run, own in facts:
        page.add_cards(safe(run), own)
    if not page.models:
        return {}
    for pair in pruned:
        if pair.before != pair.after:  # models of one name share a grid
            after, before = page.models[pair.after], page.models[pair.before]
            after.before, after.removed = list(page.models).index(pair.before), pair.removed
            # The last layer or head may be gone.
            after.stacks = {stack: list(size) for stack, size in before.stacks.items()}
    for name, model in page.models.items():
        model.first = _first(
            model, [text.removeprefix(name) for text in findings if text.startswith((f"{name},", f"{name}:"))]
        )
    colours = {"sequential": SEQUENTIAL, "diverging": DIVERGING, "pale": PALE}
    return {
        "scales": {name: [to_hex(colormaps[c](x)) for x in np.linspace(0, 1, _STEPS)] for name, c in colours.items()},
        "models": [vars(model) for model in page.models.values()],
    }


class _HeadPage:
    """Collects the facts about heads by model.

    Args:
        safe: makes text safe to be seen.
    """

    def __init__(self, safe: Callable[[str], str]) -> None:
        self.safe = safe
        self.models: dict[str, _Model] = {}

    def add_series(self, run: str, series: HeadSeries) -> None:
        for name, rows in series.rows.groupby("model", sort=False):
            if not has_numbers(rows, series.value):
                continue
            model = self.models.setdefault(str(name), _Model(self.safe(str(name))))
            parts = {part.stack: part.rows for part in by_model_and_stack(rows)}
            for stack, own in parts.items():
                size = own[["layer", "head"]].astype(int).max() + 1
                model.stacks[stack] = np.maximum(model.stacks.get(stack, 0), size).tolist()
            low, high = series.bounds or ("", "")
            model.series.append(
                {
                    "key": series.key,
                    "title": self.safe(series.title),
                    "about": self.safe(series.about),
                    "run": run,
                    "diverging": series.diverging,
                    "worse": series.worse,
                    "values": _grids(parts, series.value),
                    "lows": _grids(parts, low),
                    "highs": _grids(parts, high),
                    "sure": _grids(parts, series.sure),
                    "categories": [[self.safe(name), colour] for name, colour in series.categories.items()],
                    "letters": self._words(parts, series.letters),
                    "unit": self.safe(series.unit),
                    "leads": self._words(parts, series.lead),
                }
            )

    def add_cards(self, run: str, facts: HeadFacts) -> None:
        """Adds what the cards of heads show: words, shares, and attention on sentences."""
        for words in facts.words:
            for model, rows in self._in_grid(words.rows):
                heads = {name: [self.safe(str(text)) for text in lines["text"]] for name, lines in _by_head(rows)}
                model.words.append({"title": self.safe(words.title), "run": run, "heads": heads})
        for shares in facts.shares:
            for model, rows in self._in_grid(shares.rows):
                categories = rows["category"].astype(str).drop_duplicates().tolist()
                known = rows.assign(category=rows["category"].astype(str), share=float_column(rows, "share"))
                by_head = {
                    name: own[np.isfinite(own["share"])].set_index("category")["share"].to_dict()
                    for name, own in _by_head(known)
                }
                rounded = {
                    name: [float(f"{own.get(category, 0.0):.3g}") for category in categories]
                    for name, own in by_head.items()
                }
                shown = {"title": self.safe(shares.title), "run": run, "categories": [*map(self.safe, categories)]}
                model.shares.append({**shown, "heads": rounded})
        for sentence in facts.maps:
            if sentence.model in self.models and max(len(sentence.queries), len(sentence.keys)) <= LONGEST:
                sides = {side: [self.safe(t) for t in getattr(sentence, side)] for side in ("queries", "keys")}
                text = self.safe(sentence.text) or " ".join(sides["queries"])
                attention = {"text": text, "run": run, **sides, "heads": _bytes_by_head(sentence)}
                self.models[sentence.model].maps.append(attention)

    def _words(self, parts: Mapping[str, pd.DataFrame], column: str) -> dict[str, list[list[str]]]:
        """Texts (layers, heads) of a column by stack."""
        return {
            stack: scatter_grid(rows, rows[column].astype(str).map(self.safe).to_numpy(object), empty="").tolist()
            for stack, rows in parts.items()
            if column
        }

    def _in_grid(self, rows: pd.DataFrame) -> Iterator[tuple[_Model, pd.DataFrame]]:
        """Yields the rows of every model that has a grid of heads."""
        for name, model_rows in rows.groupby("model", sort=False):
            if str(name) in self.models:
                yield self.models[str(name)], model_rows


def _first(model: _Model, findings: Sequence[str]) -> list[Any]:
    """The first head of the model's grid that findings name, or that with the largest number; differences go first."""
    for name, layer, head in (found for text in findings for found in _NAMED.findall(text)):
        size = model.stacks.get(name, [0, 0])
        if int(layer) < size[0] and int(head) < size[1] and f"{name}.{layer}.{head}" not in model.removed:
            return [name, int(layer), int(head)]
    series = min(model.series, key=lambda one: (bool(one["categories"]), not one["diverging"]))
    known = [
        (abs(value), [stack, layer, head])
        for stack, grid in series["values"].items()
        for layer, row in enumerate(grid)
        for head, value in enumerate(row)
        if value is not None
    ]
    return max(known, key=itemgetter(0))[1]


def _by_head(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yields the name of every head, such as `encoder.2.8`, with its rows."""
    for (stack, layer, head), head_rows in rows.astype({"layer": int, "head": int}).groupby(_HEAD, sort=False):
        yield f"{stack}.{layer}.{head}", head_rows


def _grids(parts: Mapping[str, pd.DataFrame], column: str) -> dict[str, list[list[float | None]]]:
    """Numbers (layers, heads) of a column by stack: four significant digits, which is what the page shows at most."""
    grids = {stack: scatter_grid(rows, float_column(rows, column)) for stack, rows in parts.items() if column}
    return {
        stack: [[float(f"{v:.4g}") if np.isfinite(v) else None for v in row] for row in grid.astype(np.float64)]
        for stack, grid in grids.items()
    }


def _bytes_by_head(sentence: SentenceMap) -> dict[str, str]:
    """Weights (query, key) by the name of the head, a byte for each: the page shows no finer shades."""
    return {
        f"{sentence.stack}.{layer}.{head}": base64.b64encode(
            np.rint(255 * np.clip(weights, 0, 1)).astype(np.uint8).tobytes()
        ).decode()
        for layer, heads in enumerate(sentence.weights)
        for head, weights in enumerate(heads)
        if np.isfinite(weights).all()
    }

"""The heads on a page: numbers that a grid of layers and heads is coloured by, and a card for every head."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import to_hex

from headlens.plots.head_grid import Grid, by_model_and_stack, float_column, has_numbers, scatter_grid
from headlens.plots.style import DIVERGING, PALE, SEQUENTIAL

LONGEST = 40  # tokens of a sentence whose attention a card shows
REMOVED = "removed"
_HEAD = ["stack", "layer", "head"]
_STEPS = 17  # colours of a scale, between which the page mixes


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
        categories: of a number that stands for one of several: their names with their colours, the first one is 0.
        letters: of such a series, the column of the letters that stand in its cells.
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
class SentenceMap:
    """Attention on a sentence: weights (layers, heads, query, key), NaN for heads that there are not."""

    model: str
    stack: str
    queries: Sequence[str]
    keys: Sequence[str]
    weights: npt.NDArray[np.floating]


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


def head_page(
    facts: Sequence[tuple[str, HeadFacts]], safe: Callable[[str], str], pruned: Sequence[PrunedPair] = ()
) -> dict[str, Any]:
    """Returns everything the page needs to show heads, in types of JSON; empty without a series.

    Args:
        facts: of every run, with its label.
        safe: makes text safe to be seen.
        pruned: models of which only some heads are left, beside the whole ones.
    """
    page = _HeadPage(safe)
    for run, head_facts in facts:
        for series in head_facts.series:
            page.add_series(safe(run), series)
    # Cards are for heads that stand in the grid.
    for run, head_facts in facts:
        for words in head_facts.words:
            page.add_words(safe(run), words)
        for shares in head_facts.shares:
            page.add_shares(safe(run), shares)
        for sentence in head_facts.maps:
            page.add_map(safe(run), sentence)
    if not page.models:
        return {}
    for pair in pruned:
        if pair.before != pair.after:  # models of one name share a grid
            page.add_removed(pair)
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
            values, lows, highs, letters = {}, {}, {}, {}
            for part in by_model_and_stack(rows):
                grid = _grid(part.rows, series.value)  # (layers, heads)
                size = model.stacks.get(part.stack, [0, 0])
                model.stacks[part.stack] = [max(a, b) for a, b in zip(size, grid.shape, strict=True)]
                values[part.stack] = _json_grid(grid)
                if series.bounds is not None:
                    lows[part.stack], highs[part.stack] = (_json_grid(_grid(part.rows, b)) for b in series.bounds)
                if series.letters:
                    words = part.rows[series.letters].astype(str).map(self.safe).to_numpy(object)
                    letters[part.stack] = scatter_grid(part.rows, words, empty="").tolist()
            model.series.append(
                {
                    "key": series.key,
                    "title": self.safe(series.title),
                    "about": self.safe(series.about),
                    "run": run,
                    "diverging": series.diverging,
                    "values": values,
                    "lows": lows,
                    "highs": highs,
                    "categories": [[self.safe(name), colour] for name, colour in series.categories.items()],
                    "letters": letters,
                }
            )

    def add_words(self, run: str, words: HeadWords) -> None:
        for model, rows in self._in_grid(words.rows):
            heads = {name: [self.safe(str(text)) for text in lines["text"]] for name, lines in _by_head(rows)}
            model.words.append({"title": self.safe(words.title), "run": run, "heads": heads})

    def add_shares(self, run: str, shares: HeadShares) -> None:
        for model, rows in self._in_grid(shares.rows):
            categories = rows["category"].astype(str).drop_duplicates().tolist()
            heads = {}
            for name, head_rows in _by_head(rows):
                pairs = zip(head_rows["category"].astype(str), head_rows["share"].astype(float), strict=True)
                finite = {category: share for category, share in pairs if np.isfinite(share)}
                heads[name] = [float(f"{finite.get(category, 0.0):.3g}") for category in categories]
            names = [self.safe(category) for category in categories]
            model.shares.append({"title": self.safe(shares.title), "run": run, "categories": names, "heads": heads})

    def add_map(self, run: str, sentence: SentenceMap) -> None:
        if sentence.model not in self.models or max(len(sentence.queries), len(sentence.keys)) > LONGEST:
            return
        heads = {}
        for layer, head in np.ndindex(*sentence.weights.shape[:2]):
            weights = sentence.weights[layer, head]  # (query, key)
            if np.isfinite(weights).all():
                # One byte per weight: the page shows no finer shades.
                steps = np.rint(255 * np.clip(weights, 0, 1)).astype(np.uint8)
                heads[f"{sentence.stack}.{layer}.{head}"] = base64.b64encode(steps.tobytes()).decode()
        self.models[sentence.model].maps.append(
            {
                "title": "Attention on a sentence",
                "run": run,
                "queries": [self.safe(t) for t in sentence.queries],
                "keys": [self.safe(t) for t in sentence.keys],
                "heads": heads,
            }
        )

    def add_removed(self, pair: PrunedPair) -> None:
        after, before = self.models[pair.after], self.models[pair.before]
        after.before, after.removed = list(self.models).index(pair.before), pair.removed
        # The last layer or head may be gone.
        after.stacks = {stack: list(size) for stack, size in before.stacks.items()}

    def _in_grid(self, rows: pd.DataFrame) -> Iterator[tuple[_Model, pd.DataFrame]]:
        """Yields the rows of every model that has a grid of heads."""
        for name, model_rows in rows.groupby("model", sort=False):
            if str(name) in self.models:
                yield self.models[str(name)], model_rows


def _by_head(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yields the name of every head, such as `encoder.2.8`, with its rows."""
    for (stack, layer, head), head_rows in rows.astype({"layer": int, "head": int}).groupby(_HEAD, sort=False):
        yield f"{stack}.{layer}.{head}", head_rows


def _grid(rows: pd.DataFrame, column: str) -> Grid:
    return scatter_grid(rows, float_column(rows, column)).astype(np.float64)


def _json_grid(grid: Grid) -> list[list[float | None]]:
    """Rounds to four significant digits, which is what the page shows at most; None where there is no number."""
    return [[float(f"{v:.4g}") if np.isfinite(v) else None for v in row] for row in grid]

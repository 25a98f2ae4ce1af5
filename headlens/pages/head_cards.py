"""What a page tells about every single head: numbers that a grid of layers and heads is coloured by, and a card."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import to_hex

from headlens.plots.head_grid import Grid, by_model_and_stack, float_column, scatter_grid
from headlens.plots.style import DIVERGING, PALE, SEQUENTIAL

LONGEST = 40  # tokens of a sentence whose attention a card shows
REMOVED = "removed"
_STEPS = 17  # colours of a scale, between which the page mixes


@dataclass(frozen=True)
class HeadSeries:
    """A number for every head, of one run.

    Args:
        key: what it is; series of other runs or models with this key can be subtracted.
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
    """What a run tells about single heads."""

    series: Sequence[HeadSeries] = ()
    words: Sequence[HeadWords] = ()
    shares: Sequence[HeadShares] = ()
    maps: Sequence[SentenceMap] = ()


@dataclass(frozen=True)
class PrunedPair:
    """A model and what is left of it.

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
        """Names of the heads that went."""
        return list(self.heads.loc[self.heads["role_after"] == REMOVED, "name"])


@dataclass
class _Model:
    """What the page knows of a model; everything in it can be written as JSON."""

    name: str
    stacks: dict[str, list[int]] = field(default_factory=dict)
    series: list[dict[str, Any]] = field(default_factory=list)
    words: list[dict[str, Any]] = field(default_factory=list)
    shares: list[dict[str, Any]] = field(default_factory=list)
    maps: list[dict[str, Any]] = field(default_factory=list)
    before: int | None = None  # number of the model that it was pruned from
    removed: list[str] = field(default_factory=list)


def head_page(
    facts: Sequence[tuple[str, HeadFacts]], shown: Callable[[str], str], pruned: Sequence[PrunedPair] = ()
) -> dict[str, Any]:
    """Everything the page needs to show heads, in types of JSON; empty without a series.

    Args:
        facts: of every run, with its label.
        shown: makes text safe to be seen.
        pruned: models with what they were before.
    """
    models: dict[str, _Model] = {}
    for label, own in facts:
        for series in own.series:
            _add_series(models, series, label, shown)
    # Cards are for heads that stand in the grid.
    for label, own in facts:
        for words in own.words:
            _add_words(models, words, label, shown)
        for shares in own.shares:
            _add_shares(models, shares, label, shown)
        for found in own.maps:
            _add_map(models, found, label, shown)
    if not models:
        return {}
    for pair in pruned:
        if pair.before != pair.after:  # models of one name share a grid
            _add_removed(models, pair)
    scales = {"sequential": SEQUENTIAL, "diverging": DIVERGING, "pale": PALE}
    return {
        "scales": {name: _colours(colours) for name, colours in scales.items()},
        "models": [vars(model) for model in models.values()],
    }


def _colours(name: str) -> list[str]:
    return [to_hex(colormaps[name](place)) for place in np.linspace(0, 1, _STEPS)]


def _add_series(models: dict[str, _Model], series: HeadSeries, label: str, shown: Callable[[str], str]) -> None:
    for model, rows in _by_model(series.rows):
        if not np.isfinite(float_column(rows, series.value)).any():
            continue
        own = models.setdefault(model, _Model(shown(model)))
        values, lows, highs, letters = {}, {}, {}, {}
        for part in by_model_and_stack(rows):
            grid = _grid(part.rows, series.value)
            size = own.stacks.setdefault(part.stack, [0, 0])
            own.stacks[part.stack] = [max(a, b) for a, b in zip(size, grid.shape, strict=True)]
            values[part.stack] = _listed(grid)
            if series.bounds is not None:
                lows[part.stack], highs[part.stack] = (_listed(_grid(part.rows, name)) for name in series.bounds)
            if series.letters:
                words = part.rows[series.letters].astype(str).map(shown).to_numpy(object)
                letters[part.stack] = scatter_grid(part.rows, words, empty="").tolist()
        own.series.append(
            {
                "key": series.key,
                "title": shown(series.title),
                "about": shown(series.about),
                "run": shown(label),
                "diverging": series.diverging,
                "values": values,
                "lows": lows,
                "highs": highs,
                "categories": [[shown(name), colour] for name, colour in series.categories.items()],
                "letters": letters,
            }
        )


def _add_removed(models: dict[str, _Model], pair: PrunedPair) -> None:
    own, whole = models[pair.after], models[pair.before]
    own.before, own.removed = list(models).index(pair.before), pair.removed
    # The last layer or head may be gone.
    own.stacks = {stack: list(size) for stack, size in whole.stacks.items()}


def _by_model(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(str(name), own) for name, own in rows.groupby("model", sort=False)]


def _grid(rows: pd.DataFrame, column: str) -> Grid:
    return scatter_grid(rows, float_column(rows, column)).astype(np.float64)


def _listed(grid: Grid) -> list[list[float | None]]:
    """Four significant digits, which is what the page shows at most; None where there is no number."""
    return [[float(f"{v:.4g}") if np.isfinite(v) else None for v in row] for row in grid]


def _place(row: Mapping[Any, Any]) -> str:
    return f"{row['stack']}.{int(row['layer'])}.{int(row['head'])}"


def _add_words(models: dict[str, _Model], words: HeadWords, label: str, shown: Callable[[str], str]) -> None:
    for model, rows in _by_model(words.rows):
        if model in models:
            heads: dict[str, list[str]] = {}
            for row in rows.to_dict("records"):
                heads.setdefault(_place(row), []).append(shown(str(row["text"])))
            models[model].words.append({"title": shown(words.title), "run": shown(label), "heads": heads})


def _add_shares(models: dict[str, _Model], shares: HeadShares, label: str, shown: Callable[[str], str]) -> None:
    for model, rows in _by_model(shares.rows):
        if model in models:
            categories = list(dict.fromkeys(map(str, rows["category"])))
            index = {name: number for number, name in enumerate(categories)}
            heads: dict[str, list[float]] = {}
            for row in rows.to_dict("records"):
                own = heads.setdefault(_place(row), [0.0] * len(categories))
                share = float(row["share"])
                own[index[str(row["category"])]] = float(f"{share:.3g}") if np.isfinite(share) else 0.0
            models[model].shares.append(
                {
                    "title": shown(shares.title),
                    "run": shown(label),
                    "categories": [shown(c) for c in categories],
                    "heads": heads,
                }
            )


def _add_map(models: dict[str, _Model], found: SentenceMap, label: str, shown: Callable[[str], str]) -> None:
    if found.model not in models or max(len(found.queries), len(found.keys)) > LONGEST:
        return
    heads = {}
    for layer, head in np.ndindex(*found.weights.shape[:2]):
        weights = found.weights[layer, head]
        if np.isfinite(weights).all():
            steps = np.rint(255 * np.clip(weights, 0, 1)).astype(np.uint8)
            heads[f"{found.stack}.{layer}.{head}"] = base64.b64encode(steps.tobytes()).decode()
    models[found.model].maps.append(
        {
            "title": "Attention on a sentence",
            "run": shown(label),
            "queries": [shown(t) for t in found.queries],
            "keys": [shown(t) for t in found.keys],
            "heads": heads,
        }
    )

"""What is told of masks that were drawn from learned degrees."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pandas as pd
import pytest
from matplotlib import pyplot as plt

from headlens.analyses.masks.degree_figures import quality_by_degrees, quality_of_draws
from headlens.analyses.masks.degree_tables import degree_effects, draw_summary, draws_markdown, mask_words
from headlens.analyses.masks.study_figures import is_grid
from headlens.tables.mask_tables import GRID

VALUES = (0.81, 0.84, 0.78, 0.83)
NAMES = ("degrees:mu=1", "degrees:mu=10,kinds=neighbour+global+random")
KEY = {"model": "m", "task": "sst2", "metric": "accuracy", "layers": "all", "diagonal": True, "seed": 0}


def masks(*patterns: str) -> pd.DataFrame:
    rows = [
        KEY
        | {"pattern": pattern, "control": "kept", "value": 0.82, "ci_low": 0.7, "ci_high": 0.9}
        | dict.fromkeys(GRID, float(number))
        | {"sparsity": 0.5, "sparsity_texts": 0.3 + number / 10, "delta": 0.0, "delta_low": -0.1, "delta_high": 0.1}
        for number, pattern in enumerate(patterns)
    ]
    return pd.DataFrame(rows)


def draws() -> pd.DataFrame:
    """Four draws of two masks; of the first mask two draws differ from the mask that stays, one up and one down."""
    rows: list[dict[str, Any]] = []
    for name, shift in zip(NAMES, (0.0, 0.1), strict=True):
        for number, value in enumerate(VALUES):
            low, high = {0: (0.01, 0.02), 2: (-0.2, -0.1)}.get(number if not shift else -1, (-0.1, 0.1))
            rows.append(
                KEY | {"pattern": name, "draw": number, "value": value - shift, "delta_low": low, "delta_high": high}
            )
    return pd.DataFrame(rows)


def test_mean_and_spread_of_draws() -> None:
    first, second = draw_summary(draws(), masks("full", *NAMES))
    assert (first["pattern"], second["pattern"]) == NAMES
    assert (first["draws"], first["different"], second["different"]) == (4, 2, 0)
    for row, shift in ((first, 0.0), (second, 0.1)):
        own = [value - shift for value in VALUES]
        assert row["mean"] == pytest.approx(sum(own) / 4)
        assert row["sd"] == pytest.approx(statistics.stdev(own))
        assert (row["lowest"], row["highest"]) == pytest.approx((min(own), max(own)))
        assert (row["value"], row["ci_low"], row["ci_high"]) == (0.82, 0.7, 0.9)


def test_in_words_and_drawn() -> None:
    text = draws_markdown(draws(), masks("full", *NAMES))
    assert f"| sst2 | accuracy | {NAMES[0]}, seed 0 | 4 | 0.815 | 0.0265 | 0.780 to 0.840 | 2 |" in text
    assert mask_words(KEY | {"pattern": "p", "layers": "0-1", "diagonal": False}) == (
        "p, layers 0-1, no diagonal, seed 0"
    )
    figure = quality_of_draws(draws(), masks("full", *NAMES))
    assert figure is not None
    labels = {text.get_text() for axes in figure.axes for text in axes.get_yticklabels()}
    assert any(NAMES[0] in label for label in labels)
    plt.close(figure)
    assert quality_of_draws(draws()[:0], masks("full")) is None


def test_every_seed_stands_beside_its_own_model_without_a_mask() -> None:
    """And the title speaks of single seeds, not of their means."""
    both = [frame.assign(seed=seed, value=frame["value"] - seed / 10) for frame in (masks("full", *NAMES), draws())
            for seed in (0, 1)]  # fmt: skip
    figure = quality_of_draws(pd.concat(both[2:]), pd.concat(both[:2]).assign(n=300))
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes] == ["seed 0", "seed 1"]
    for axes, level in zip(figure.axes, (0.82, 0.72), strict=True):
        dashed = [line.get_xdata() for line in axes.lines if "no mask" in str(line.get_label())]
        assert [float(xs[0]) for xs in dashed] == pytest.approx([level])  # type: ignore[index]
        points = next(line for line in axes.lines if "median" in str(line.get_label()))
        assert [*map(float, points.get_xdata())] == pytest.approx([level] * 2)  # type: ignore[arg-type]
    title = figure.get_suptitle()
    assert "95 % intervals" in title
    assert "means of" not in title


def test_learned_degrees_of_all_kinds_are_no_grid() -> None:
    """Their mean degrees, however many kinds they have, are no settings that were varied."""
    table = masks(*NAMES, "degrees:mu=2,kinds=neighbour+global+random", "degrees:mu=3", "degrees:mu=4")
    assert degree_effects(table).empty
    assert not is_grid(table)
    full = masks("full").drop(columns=GRID)
    figure = quality_by_degrees(pd.concat([full, table]))
    assert figure is not None
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words == ["learned degrees, by μ", "no mask"]
    plt.close(figure)
    assert not math.isnan(draw_summary(draws(), masks("full", *NAMES))[0]["sd"])

"""Tables of learned masks against loops over positions, and the sparsities of the paper."""

from __future__ import annotations

import math
from collections import Counter

import pandas as pd
import pytest
import torch

from headlens.analyses.dam.figures import known_positions
from headlens.attention.sites import Site
from headlens.attention_masks.learned_mask import LearnedAttentionMask, LearnedMaskOptions
from headlens.learning.mask_learning import LearnedMask
from headlens.tables.mask_tables import CLASSES, HEADS_OF_MASKS, POSITIONS_OF_MASKS

SITES = [Site("encoder", layer, 2, f"layer{layer}") for layer in range(2)]


def learned(options: LearnedMaskOptions) -> LearnedMask:
    mask = LearnedAttentionMask(SITES, options)
    with torch.no_grad():
        torch.manual_seed(0)
        mask.alpha.normal_()
    return LearnedMask.of("made", mask)


def class_of(i: int, j: int, n: int, window: int) -> str:
    if {i, j} & {0, n - 1}:
        return "special"
    if i == j:
        return "diagonal"
    return "neighbourhood" if abs(i - j) <= window else "rest"


@pytest.mark.parametrize("structured", [False, True])
@pytest.mark.parametrize("per_layer", [False, True])
@pytest.mark.parametrize(
    ("window", "longest", "diagonal"), [(1, None, True), (3, 8, False), (1, 5, True), (2, 4, False)]
)
def test_positions_by_class_and_offset(
    structured: bool, per_layer: bool, window: int, longest: int | None, diagonal: bool
) -> None:
    n = 8
    mask = learned(LearnedMaskOptions(n, structured=structured, per_layer=per_layer, diagonal=diagonal))
    lengths = Counter({longest or n: 1, 3: 3} | ({4: 1} if longest != 4 else {}))  # one text is the longest
    found = mask.positions(window, None if longest is None else lengths)
    assert found.columns.tolist() == [name for name in POSITIONS_OF_MASKS.names if name != "penalty"]
    assert len(found) == (4 if per_layer else 2) * (len(CLASSES) + n - 2)

    def having(i: int, j: int) -> float:
        """The share of the texts that the parameter of a position is learned from: pairs, or offsets between ends."""
        has = [
            any(abs(a - b) == abs(i - j) for a in range(1, m - 1) for b in range(1, m - 1))
            if structured
            else max(i, j) < m
            for m, count in ({n: 1} if longest is None else lengths).items()
            for _ in range(count)
        ]
        return sum(has) / len(has)

    for row in found.to_dict("records"):
        layer = 0 if pd.isna(row["layer"]) else row["layer"]
        assert pd.isna(row["layer"]) != per_layer
        own = [
            (
                float(mask.probabilities[layer, row["head"], i, j]),
                bool(mask.file.allowed[layer, row["head"], i, j]),
                having(i, j),
            )
            for i in range(n)
            for j in range(n)
            if max(i, j) < (longest or n) - structured
            and not (structured and class_of(i, j, n, 1) == "special")
            and (diagonal or i != j)
            and (
                class_of(i, j, n, window) == row["class"]
                or (row["class"] == "offset" and abs(i - j) == row["offset"] and class_of(i, j, n, 1) != "special")
            )
        ]
        assert row["positions"] == len(own)
        if not own:
            assert math.isnan(row["p"])
            assert math.isnan(row["kept"])
            continue
        assert row["p"] == pytest.approx(math.fsum(p for p, _, _ in own) / len(own), rel=1e-6)
        assert row["kept"] == pytest.approx(sum(k for _, k, _ in own) / len(own), rel=1e-9)
        assert row["texts"] == pytest.approx(sum(share for *_, share in own) / len(own), rel=1e-9)
    shown = [
        [
            max(i, j) < (longest or n) - structured
            and not (structured and class_of(i, j, n, 1) == "special")
            and (diagonal or i != j)
            for j in range(n)
        ]
        for i in range(n)
    ]
    assert known_positions(found.assign(mask="made"), "made", n).tolist() == shown
    if not structured and diagonal and longest is None:
        classes = found[found["class"] != "offset"].groupby(["layer", "head"], dropna=False)["positions"].sum()
        assert set(classes) == {n * n}


def test_classes_without_positions_have_no_row() -> None:
    assert learned(LearnedMaskOptions(3)).positions(2)["class"].unique().tolist() == ["special", "diagonal", "offset"]


def test_sparsity_is_the_share_of_masked_positions() -> None:
    mask = learned(LearnedMaskOptions(6, structured=True, per_layer=True, diagonal=False))
    found = mask.sparsities()
    assert found.columns.tolist() == [name for name in HEADS_OF_MASKS.names if name != "penalty"]
    assert found["layer"].tolist() == [0, 0, 1, 1, pd.NA]
    for row in found.to_dict("records")[:-1]:
        own = mask.file.allowed[row["layer"], row["head"]]
        assert row["sparsity"] == pytest.approx(sum(not bool(k) for k in own.flatten()) / 36)
    assert found["sparsity"].iloc[-1] == pytest.approx(found["sparsity"].iloc[:-1].mean())
    assert not found["diagonal"].any()


def test_special_rows_count_as_in_the_table_of_the_paper() -> None:
    """A structured mask of the two neighbours alone is Star at n = 128 with one more end: 96.1 % less 1.5."""
    mask = LearnedAttentionMask(SITES, LearnedMaskOptions(128, structured=True))
    with torch.no_grad():
        mask.alpha.fill_(-1.0)[..., :2] = 1.0
    found = LearnedMask.of("made", mask).sparsities()["sparsity"]
    both_ends = 4 * 128 - 4
    window = 126 + 2 * 125
    assert found.tolist() == pytest.approx([1 - (both_ends + window) / 128**2] * 3)
    star = 1 - (128 + 2 * 127 + 2 * 127 - 2) / 128**2
    assert star == pytest.approx(0.961, abs=5e-4)
    assert star - found.iloc[0] == pytest.approx(0.0153, abs=5e-4)

import math
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from headlens.plots.role_colours import COLOURS, families, family, legend_handles, short

# Machado et al. (2009), severity 1, on linear RGB.
_VISION = {
    "normal": np.eye(3),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
}
_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


@pytest.mark.parametrize(
    ("role", "name", "word"),
    [
        ("positional(-1)", "positional", "−1"),
        ("positional(+2)", "positional", "+2"),
        ("syntactic(nsubj head->dep)", "syntactic", "nsubj\n↓"),
        ("syntactic(nsubj:pass dep->head)", "syntactic", "nsubj:pass\n↑"),
        ("syntactic(nsubj)", "syntactic", "nsubj"),
        ("rare", "rare", "rare"),
        ("separator", "separator", "sep"),
        ("broad", "broad", "broad"),
        ("self", "self", "self"),
        ("monotone", "other", "monotone"),
        ("", "none", ""),
        (" ", "none", ""),
        (math.nan, "none", ""),
        (None, "none", ""),
        ("odd(", "other", "odd("),
    ],
)
def test_family_and_short_name(role: object, name: str, word: str) -> None:
    assert family(role) == name
    assert short(role) == word


def test_families_of_a_column() -> None:
    assert families(pd.Series(["rare", None, "self"])) == ["rare", "none", "self"]


def test_legend_has_fixed_order() -> None:
    labels = [handle.get_label() for handle in legend_handles({"none", "rare", "positional"})]
    assert labels == ["positional", "rare", "no role"]


def _lab(colour: str, vision: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """CIELAB of a colour as it is seen, for white of D65."""
    channels = np.array(to_rgb(colour))
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    xyz = _XYZ @ np.clip(vision @ linear, 0, 1) / [0.95047, 1.0, 1.08883]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize(("vision", "least"), [("normal", 16.0), ("deuteranopia", 8.0), ("protanopia", 8.0)])
def test_families_can_be_told_apart_by_their_colours(vision: str, least: float) -> None:
    seen = {name: _lab(colour, _VISION[vision]) for name, colour in COLOURS.items()}
    apart = {(a, b): float(np.linalg.norm(seen[a] - seen[b])) for a, b in combinations(seen, 2)}
    assert {pair: round(size, 1) for pair, size in apart.items() if size < least} == {}

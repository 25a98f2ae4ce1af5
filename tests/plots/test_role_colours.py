import math

import pandas as pd
import pytest

from headlens.plots.role_colours import families, family, legend_handles, short


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

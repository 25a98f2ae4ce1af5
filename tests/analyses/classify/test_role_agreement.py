"""Agreement of the roles of two models: against scikit-learn's κ, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

import headlens
from headlens.analyses.classify.role_agreement import COLUMNS, agreement_notes, role_agreement

ROLES = ["", "sink", "syntactic(obj dep->head)", "syntactic(det dep->head)", "positional(-1)"]
FAMILIES = ["none", "sink", "syntactic", "syntactic", "positional"]


def table(model: str, roles: list[int], stack: str = "encoder") -> pd.DataFrame:
    place = {"stack": stack, "layer": [i // 4 for i in range(len(roles))], "head": [i % 4 for i in range(len(roles))]}
    return pd.DataFrame({"model": model, **place, "role": [ROLES[i] for i in roles]})


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=40))
def test_kappa_is_that_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    one, other = ([own[side] for own in pairs] for side in (0, 1))
    (row,) = role_agreement(pd.concat([table("a", one), table("b", other).sample(frac=1, random_state=0)])).to_dict(
        "records"
    )
    first, second = ([FAMILIES[i] for i in roles] for roles in (one, other))
    assert row["same"] == sum(a == b for a, b in zip(first, second, strict=True))
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert np.isnan([row["kappa"], row["ci_low"], row["ci_high"]]).all()
    else:
        assert row["kappa"] == pytest.approx(cohen_kappa_score(first, second), abs=1e-12)
        assert row["ci_low"] <= row["kappa"] <= row["ci_high"]


def test_the_interval_covers_what_it_should() -> None:
    """Heads drawn from a known table: about 95 of 100 intervals hold its κ."""
    generator = np.random.default_rng(0)
    joint = np.array([[0.4, 0.1], [0.1, 0.4]])
    held = 0
    for number in range(100):
        draws = generator.choice(4, size=144, p=joint.ravel())
        both = pd.concat([table(f"a{number}", (draws // 2).tolist()), table("b", (draws % 2).tolist())])
        (row,) = role_agreement(both).to_dict("records")
        held += row["ci_low"] <= 0.6 <= row["ci_high"]
    assert held >= 88


def test_stacks_and_models() -> None:
    three = [table(name, roles) for name, roles in (("a", [0, 1, 2, 4]), ("b", [0, 1, 3, 1]), ("c", [0]))]
    found = role_agreement(pd.concat([*three, table("a", [1, 1], "cross"), table("b", [1, 1], "cross")]))
    assert list(found.columns) == COLUMNS
    assert found[["model", "other_model", "stack", "heads", "same"]].to_numpy().tolist() == [
        ["a", "b", "encoder", 4, 3],
        ["a", "b", "cross", 2, 2],
    ]
    first, second = agreement_notes(found)
    assert first.startswith(
        "a and b, encoder: 3 of 4 heads of the same place have the same role, or none, Cohen's κ 0."
    )
    assert second == "a and b, cross: 2 of 2 heads of the same place have the same role, or none."
    assert role_agreement(pd.concat([table("a", [1]), table("b", [1])])).empty


def test_two_models_on_the_command_line(tmp_path: Path) -> None:
    result = headlens.classify(["demo", "demo"], limit=60, figures=False)
    (row,) = result.tables["agreement"].to_dict("records")
    assert (row["heads"], row["same"], row["kappa"]) == (72, 72, 1.0)
    assert any("72 of 72 heads of the same place" in note for note in result.notes)

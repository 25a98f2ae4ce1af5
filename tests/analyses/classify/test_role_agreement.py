"""Agreement of the roles of two models: against scikit-learn's κ, and what is said of it."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from saved import build, save
from sklearn.metrics import cohen_kappa_score
from tiers import rest_slow_rows
from transformers import PreTrainedTokenizerBase

import headlens
from headlens.analyses.classify.overviews import roles_agree, roles_compared
from headlens.roles.role_agreement import agreement_notes, role_agreement
from headlens.roles.role_rules import role_records
from headlens.runs.reading import RecordedRun
from headlens.tables.classify_tables import AGREEMENT

ROLES = ["", "sink", "syntactic(obj dep->head)", "syntactic(det dep->head)", "positional(-1)"]
FAMILIES = ["none", "sink", "syntactic", "syntactic", "positional"]


def table(model: str, roles: list[int], stack: str = "encoder") -> pd.DataFrame:
    place = {"stack": stack, "layer": [i // 4 for i in range(len(roles))], "head": [i % 4 for i in range(len(roles))]}
    return pd.DataFrame({"model": model, **place, "role": [ROLES[i] for i in roles]})


def standard_error(one: list[str], other: list[str]) -> float:
    """Of κ by the infinitesimal jackknife: how much κ changes as one head after the other counts a little more."""
    same = np.array(one)[:, None] == np.array(other)
    n = len(same)

    def kappa(weights: np.ndarray) -> complex:
        chance = weights @ same @ weights
        return (weights @ same.diagonal() - chance) / (1 - chance)

    # Slopes by an imaginary step, which takes no difference of nearly equal numbers.
    even, step = np.full(n, 1 / n), 1e-30
    slopes = [kappa(even + 1j * step * (unit - even)).imag / step for unit in np.eye(n)]
    return math.sqrt(math.fsum(slope**2 for slope in slopes)) / n


@settings(max_examples=settings().max_examples // 2)
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
        half = NormalDist().inv_cdf(0.975) * standard_error(first, second)
        assert row["ci_low"] == pytest.approx(max(row["kappa"] - half, -1), abs=1e-6)
        assert row["ci_high"] == pytest.approx(min(row["kappa"] + half, 1), abs=1e-6)


def test_where_both_roles_are_as_frequent_kappa_varies_twice_as_much_as_a_share() -> None:
    """Half of the agreement is chance, whatever the heads do: κ is 2 p - 1, where p is the share that agrees."""
    one, other = [0] * 10 + [1] * 10, [0] * 8 + [1] * 2 + [0] * 2 + [1] * 8
    (row,) = role_agreement(pd.concat([table("a", one), table("b", other)])).to_dict("records")
    half = NormalDist().inv_cdf(0.975) * 2 * math.sqrt(0.8 * 0.2 / 20)
    assert [row["kappa"], row["ci_low"], row["ci_high"]] == pytest.approx([0.6, 0.6 - half, 0.6 + half])


@pytest.mark.parametrize(("tables", "least"), rest_slow_rows([(25, 22), (100, 88)]))
def test_the_interval_covers_what_it_should(tables: int, least: int) -> None:
    """Heads drawn from a known table: about 95 of 100 intervals hold its κ."""
    generator = np.random.default_rng(0)
    joint = np.array([[0.4, 0.1], [0.1, 0.4]])
    held = 0
    for number in range(tables):
        draws = generator.choice(4, size=144, p=joint.ravel())
        both = pd.concat([table(f"a{number}", (draws // 2).tolist()), table("b", (draws % 2).tolist())])
        (row,) = role_agreement(both).to_dict("records")
        held += row["ci_low"] <= 0.6 <= row["ci_high"]
    assert held >= least


def test_stacks_and_models() -> None:
    three = [table(name, roles) for name, roles in (("a", [0, 1, 2, 4]), ("b", [0, 1, 3, 1]), ("c", [0]))]
    found = role_agreement(pd.concat([*three, table("a", [1, 1], "cross"), table("b", [1, 1], "cross")]))
    assert list(found.columns) == AGREEMENT.names
    assert found[["model", "other_model", "stack", "heads", "same"]].to_numpy().tolist() == [
        ["a", "b", "encoder", 4, 3],
        ["a", "b", "cross", 2, 2],
    ]
    first, second = agreement_notes(found)
    assert first.startswith(
        "a and b, encoder: 2 of 4 heads in the same position have the same role, 1 have none in either, Cohen's κ 0."
    )
    assert second == "a and b, cross: 2 of 2 heads in the same position have the same role, 0 have none in either."
    assert role_agreement(pd.concat([table("a", [1]), table("b", [1])])).empty


def test_models_of_another_shape_are_not_compared() -> None:
    """Layer 1 of 2 is not layer 1 of 3."""
    found = role_agreement(pd.concat([table("a", [0, 1] * 4), table("b", [0, 1] * 6), table("c", [0, 1] * 4)]))
    assert found[["model", "other_model", "heads"]].to_numpy().tolist() == [["a", "c", 8]]


def test_of_many_pairs_the_lowest_and_the_highest_are_told() -> None:
    same, other = [0, 1, 2, 4] * 2, [1, 0, 4, 2] * 2
    models = [table(name, roles) for name, roles in (("a", same), ("b", same), ("c", other), ("d", [1] * 8))]
    found = role_agreement(pd.concat(models))
    assert len(found) == 6
    (note,) = agreement_notes(found)
    assert "for 6 pairs" in note
    assert "ranges from -0.33 (a and c, encoder) to 1.00 (a and b, encoder)" in note
    (silent,) = agreement_notes(found.assign(kappa=np.nan))
    assert "κ" not in silent


def scored(model: str, rows: list[tuple[str, str, int, float]]) -> pd.DataFrame:
    records = [(model, stack, role, 8, held, 1, 2, value, 2 * value) for stack, role, held, value in rows]
    names = ["model", "stack", "role", "heads", "held", "layer", "head", "value", "score"]
    return pd.DataFrame(records, columns=names)


def test_roles_of_several_models_stand_below_each_other() -> None:
    """Those that the most models hold come first, and those that none holds are left out."""
    one = scored("one", [("cross", "rare", 1, 0.6), ("encoder", "sink", 1, 0.7), ("encoder", "rare", 2, 0.8)])
    two = scored("two", [("encoder", "rare", 1, 0.9), ("encoder", "broad", 0, 0.1), ("encoder", "sink", 0, 0.2)])
    three = scored("three", [("encoder", "broad", 0, 0.1)])
    records = role_records(pd.concat([one, two, three]))
    told = [(r["stack"], r["role"], r["model"], r["held by"], r["best head"]) for r in records]
    assert told == [
        ("encoder", "rare", "one", "2 of 8", "encoder.1.2"),
        ("encoder", "rare", "two", "1 of 8", "encoder.1.2"),
        ("encoder", "sink", "one", "1 of 8", "encoder.1.2"),
        ("encoder", "sink", "two", "0 of 8", "encoder.1.2"),
        ("cross", "rare", "one", "1 of 8", "cross.1.2"),
    ]
    assert [records[0][name].text for name in ("its value", "score")] == ["0.800", "1.600"]


def test_a_model_whose_heads_attend_evenly_has_a_best_head_only_of_roles_that_some_hold() -> None:
    one = scored("one", [("encoder", "rare", 1, 0.6), ("encoder", "sink", 1, 0.7)])
    two = scored("two", [("encoder", "rare", 0, 0.9), ("encoder", "sink", 1, 0.2)])
    records = role_records(pd.concat([one, two]), [("two", "encoder"), ("one", "cross")])
    best = {(r["model"], r["role"]): r["best head"] for r in records}
    assert best.pop(("two", "rare")) == "none (even)"
    assert set(best.values()) == {"encoder.1.2"}


def recorded(label: str, tables: dict[str, pd.DataFrame]) -> RecordedRun:
    return RecordedRun(Path("runs") / label, label, {"command": "classify", "status": "finished"}, tables)


def test_runs_are_compared_as_models_of_one_run_are() -> None:
    runs = [
        recorded(
            name,
            {
                "roles": scored("marian", [("encoder", "rare", 1, 0.6)]),
                "heads": table("marian", roles).replace("", np.nan),
            },
        )
        for name, roles in (("en-de", [0, 1, 2, 4]), ("en-fr", [0, 1, 3, 1]))
    ]
    compared, agree = roles_compared(runs), roles_agree(runs)
    assert [row[2].text for row in compared.rows] == ["en-de: marian", "en-fr: marian"]
    (row,) = agree.rows
    assert [cell.text for cell in row[:5]] == ["en-de: marian", "en-fr: marian", "encoder", "4", "3"]
    assert roles_compared(runs[:1]).rows == roles_agree(runs[:1]).rows == ()
    old = recorded("old", {"heads": table("marian", [0, 1]).drop(columns="role")})
    assert roles_agree([*runs[:1], old]).rows == ()


@pytest.mark.slow
def test_several_models_on_the_command_line() -> None:
    result = headlens.classify(["demo", "demo", "demo"], limit=60, figures=False)
    check_same_models(result, ["MiniLM-L6", "demo", "demo (2)"], 72)


@pytest.mark.slow
def test_several_small_models(tmp_path: Path, wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    model = build("BertModel", len(wordpiece_tokenizer), num_attention_heads=4, max_position_embeddings=90)
    with torch.no_grad():
        for layer in model.encoder.layer:  # heads that do not spread their attention evenly
            layer.attention.self.query.weight *= 40
    path = save(model, tmp_path / "tiny", wordpiece_tokenizer)
    least: Any = {"min_sentences": 1, "min_tokens": 1, "limit": 8, "frequency": "none", "similarity": "off"}
    once = headlens.classify(path, figures=False, **least).tables["heads"]
    # Which half of the heads have, and the others have not.
    least["broad"] = round(float(once["entropy_norm"].median()), 6)
    result = headlens.classify([path] * 3, figures=False, **least)
    check_same_models(result, result.tables["heads"]["model"].unique().tolist(), 8)


def check_same_models(result: Any, names: list[str], heads: int) -> None:
    assert len(names) == 3
    agreement = result.tables["agreement"]
    assert agreement["model"].tolist() == [names[0], names[0], names[1]]
    assert agreement["other_model"].tolist() == [names[1], names[2], names[2]]
    assert (agreement[["heads", "same", "kappa"]] == [heads, heads, 1.0]).all(axis=None)
    assert sum("heads in the same position have the same role" in note for note in result.notes) == 3
    roles = result.tables["roles"]
    assert (roles.groupby("role")["model"].agg(list).map(lambda own: own == names)).all()
    assert (roles.groupby("role")["held"].agg(set).map(len) == 1).all()


def test_a_role_that_is_reached_but_not_significantly_says_so() -> None:
    one = scored("one", [("encoder", "syntactic", 2, 0.7), ("encoder", "rare", 1, 0.6)])
    two = scored("two", [("encoder", "syntactic", 0, 0.56), ("encoder", "rare", 0, 0.2)])
    held = {(r["role"], r["model"]): r["held by"] for r in role_records(pd.concat([one, two]))}
    assert held["syntactic", "two"] == "0 of 8 (n.s.)"
    assert held["rare", "two"] == "0 of 8"

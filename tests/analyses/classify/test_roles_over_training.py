"""Roles by step, counted again with pandas, and what of them is drawn and said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_runs import classify_tables

from headlens.analyses.classify.findings import classify_findings
from headlens.analyses.classify.metric_declarations import registered_declarations
from headlens.analyses.classify.overviews import roles_agree, roles_of_checkpoints
from headlens.analyses.classify.report import classify_figures
from headlens.analyses.classify.roles_over_training import of_last_checkpoint, roles_by_step, roles_over_training
from headlens.runs.reading import RecordedRun

DECLARED = registered_declarations()[0]  # drawing all takes long
STEPS = {"m@step0": 0, "m@step10": 10, "m@step1000": 1000}
ROLES = {
    "m@step0": ["", "", "", "", "", ""],
    "m@step10": ["previous", "", "", "rare; syntactic(nsubj dep->head); syntactic(obj head->dep)", "", ""],
    "m@step1000": ["previous; rare", "previous", "previous", "syntactic(nsubj dep->head)", "", ""],
}


@pytest.fixture
def heads() -> pd.DataFrame:
    frames = []
    for seed, (model, roles) in enumerate(ROLES.items()):
        strongest = [text.partition(";")[0] for text in roles]
        even = {"entropy_norm": 0.999} if model == "m@step0" else {}
        frames.append(classify_tables(model, seed)["heads"].assign(roles=roles, role=strongest, **even))
    return pd.concat(frames, ignore_index=True)


def probes(models: list[str]) -> pd.DataFrame:
    """Of two heads the second is farther above its control, but only the first one holds the role at step 10."""
    rows = [
        (model, "encoder", 0, head, "induction", 0.2 + 0.1 * number + 0.3 * head, 0.1, 0.5, head)
        for number, model in enumerate(models)
        for head in (0, 1)
    ]
    names = ["model", "stack", "layer", "head", "probe", "score", "control", "p_holm", "above"]
    frame = pd.DataFrame(rows, columns=names)
    frame["holds"] = (frame["model"] == "m@step10") & (frame["head"] == 0)
    more = dict.fromkeys(("second_score", "second_control", "most"), 0.1)
    return frame.assign(ci_low=frame["score"] - 0.05, ci_high=frame["score"] + 0.05, **more)


def test_heads_are_counted_for_every_role_that_they_hold(heads: pd.DataFrame) -> None:
    records = roles_by_step(heads, STEPS)
    assert [(row["step"], row["stack"], row["heads"]) for row in records] == [(s, "encoder", 6) for s in STEPS.values()]
    for row, (_, rows) in zip(records, heads.groupby("model", sort=False), strict=True):
        assert row["previous"] == rows["roles"].str.contains("previous").sum()
        assert row["rare"] == rows["roles"].str.contains("rare").sum()
        assert row["syntactic"] == rows["roles"].str.contains("syntactic").sum()
        assert row["no role"] == (rows["roles"] == "").sum()
        assert row["confidence"] == pytest.approx(rows["confidence"].mean())
        assert row["entropy"] == pytest.approx(rows["entropy_norm"].mean())
    assert roles_by_step(heads, {}) == []


def test_what_is_drawn(heads: pd.DataFrame) -> None:
    figure = roles_over_training(heads, STEPS, probes(list(STEPS)))
    assert figure is not None
    counts, means, best = figure.axes
    lines = {str(line.get_label()): line for line in counts.lines}
    for name in ("previous", "rare", "syntactic"):
        expected = [heads[heads["model"] == model]["roles"].str.contains(name).sum() for model in STEPS]
        np.testing.assert_array_equal(lines[name].get_xydata(), list(zip(STEPS.values(), expected, strict=True)))
    # Step 0 has its place on an axis that is logarithmic behind the first step.
    assert (counts.get_xscale(), means.get_xscale()) == ("symlog", "symlog")
    low, high = counts.get_xlim()
    assert low < 0
    assert high > 1000
    assert "hollow: nearly all heads attend evenly" in lines
    drawn = {str(line.get_label()): np.asarray(line.get_ydata()) for line in (*means.lines, *best.lines)}
    by_step = heads.groupby("model", sort=False)
    np.testing.assert_allclose(drawn["mean confidence"], by_step["confidence"].mean())
    np.testing.assert_allclose(drawn["mean entropy"], by_step["entropy_norm"].mean())
    # The one that holds the role, and elsewhere the one that is farthest above its control.
    np.testing.assert_allclose(drawn["best head, induction"], [0.5, 0.3, 0.7])
    np.testing.assert_allclose(drawn["its control, induction"], 0.1)


def test_other_figures_show_both_ends(heads: pd.DataFrame) -> None:
    drawn = dict(classify_figures({"heads": heads}, declarations=[DECLARED], steps=STEPS))
    assert next(iter(drawn)) == "over_training"
    titles = [axes.get_title(loc="left") for axes in drawn["functions"].axes]
    assert any("m@step0" in title for title in titles)
    assert any("m@step1000" in title for title in titles)
    assert not any("m@step10" in title.split() for title in titles)
    assert next(classify_figures({"heads": heads}))[0] == "functions"


def test_what_is_said_first(heads: pd.DataFrame) -> None:
    first, *others = classify_findings({"heads": heads}, (), STEPS)
    assert first == (
        "Over the training (3 checkpoints): heads with a role: 0 of 6 at update 0, 4 of 6 at update 1,000; the role "
        "previous differs most between the two: 0 and 3 heads; 4 of 6 have another strongest role at the end than at "
        "the beginning. This is one training: it does not show that another seed would give the same."
    )
    assert all(sentence.startswith("m@step1000, encoder: ") for sentence in others)
    assert not any("Over the training" in sentence for sentence in classify_findings({"heads": heads}))
    assert set(of_last_checkpoint({"heads": heads}, STEPS)["heads"]["model"]) == {"m@step1000"}
    assert of_last_checkpoint({"heads": heads}, {})["heads"] is heads


def test_the_page_has_a_row_for_every_step_and_compares_both_ends(heads: pd.DataFrame) -> None:
    record = {"command": "classify", "models": [{"model": model, "name": model} for model in STEPS]}
    run = RecordedRun(Path("run"), "run", record, {"heads": heads})
    table = roles_of_checkpoints([run])
    names = [column.name for column in table.columns]
    assert [row[names.index("step")].text for row in table.rows] == ["0", "10", "1000"]
    assert [row[names.index("previous")].text for row in table.rows] == ["0", "1", "3"]
    assert [[cell.text for cell in row[:2]] for row in roles_agree([run]).rows] == [["m@step0", "m@step1000"]]
    alone = RecordedRun(Path("run"), "run", {**record, "models": record["models"][:1]}, {"heads": heads})  # type: ignore[index]
    assert not roles_of_checkpoints([alone]).rows

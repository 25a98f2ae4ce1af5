"""Verdicts on what sweeps take away: families, tables of older versions, and sentences that give the bound."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from headlens.analyses.masks.options import StudyRequest
from headlens.analyses.prune.options import PenaltySweepOptions
from headlens.analyses.report.registry import report_of
from headlens.analyses.sparsefinder.options import MetricOptions
from headlens.errors import InputError, OptionError
from headlens.findings.verdicts import (
    SWEEP_VERDICT,
    bound_text,
    check_margin,
    chosen_text,
    counts_text,
    foremost,
    known_verdicts,
    margin_of,
    not_apart,
    taken_away_text,
    tied,
    with_family_verdicts,
)
from headlens.learning.sweep import COMPARED, Baseline, compared_with
from headlens.pages.page_tables import PageTable
from headlens.runs.reading import RecordedRun
from headlens.statistics.bootstrap import Draws
from headlens.statistics.non_inferiority import share_loss_p
from headlens.statistics.paired_tests import mcnemar
from headlens.tables.mask_tables import MASK_TRAININGS, SWEEP_OF_MASKS
from headlens.tables.prune_tables import SWEEP
from headlens.tables.sparsefinder_tables import METRICS
from headlens.tables.table_check import check_table
from headlens.tasks.catalogue import find_task

UNDECIDED = {"delta": -0.02, "delta_low": -0.084, "delta_high": 0.04, "p_value": 0.5, "p_margin": 0.4}
SMALL = {"delta": 0.0, "delta_low": -0.004, "delta_high": 0.004, "p_value": 1.0, "p_margin": 0.001}
LARGE = {"delta": -0.2, "delta_low": -0.3, "delta_high": -0.1, "p_value": 1e-6, "p_margin": 1.0}
NOTHING: dict[str, float] = {}
# What claims that nothing is lost.
CLAIMS = ("no loss", "not significant", "as good", "equally", "costs nothing", "free")


def sweep(*rows: dict[str, Any], columns: list[str] | tuple[str, ...] = ()) -> pd.DataFrame:
    about = {"metric": "accuracy", "margin": 0.01, "n_to_decide": 900.0, "model": "m", "task": "sst2", "n": 500}
    told = [
        about | {"value": 0.8 + row["delta"]} | row if "delta" in row else about | {"margin": np.nan} | row
        for row in rows
    ]
    table = pd.DataFrame(told)
    return table.reindex(columns=list(columns) or [*dict.fromkeys([*table.columns, *SWEEP_VERDICT])])


def test_families_are_corrected_apart_and_a_baseline_has_no_verdict() -> None:
    table = sweep(NOTHING, SMALL, UNDECIDED, LARGE, SMALL | {"metric": "loss", "p_margin": 0.03})
    found = with_family_verdicts(table)
    assert list(found.columns) == list(table.columns)
    assert list(found["verdict"].fillna("")) == ["", "not needed", "not decided", "needed", "not needed"]
    assert found["p_margin_holm"].tolist()[1:] == pytest.approx([0.003, 0.8, 1.0, 0.03]), "three of one metric, and one"
    assert found["n_to_decide"].notna().tolist() == [False, False, True, False, False]
    assert found.loc[0, list(SWEEP_VERDICT)].isna().all()
    apart = with_family_verdicts(
        sweep(SMALL | {"p_margin": 0.03}, SMALL | {"p_margin": 0.03}).assign(seed=[0, 1]), ["seed"]
    )
    assert apart["verdict"].tolist() == ["not needed"] * 2
    together = with_family_verdicts(sweep(SMALL | {"p_margin": 0.03}, SMALL | {"p_margin": 0.03}))
    assert together["verdict"].tolist() == ["not decided"] * 2
    silent = with_family_verdicts(sweep(LARGE | {"margin": np.nan, "p_value": 0.02}, UNDECIDED | {"margin": np.nan}))
    assert silent["verdict"].isna().all()
    assert silent["p_holm"].tolist() == pytest.approx([0.04, 0.5]), (
        "a model that guesses has no verdict, but is corrected"
    )
    assert with_family_verdicts(sweep(NOTHING))["verdict"].isna().all()
    assert with_family_verdicts(sweep(NOTHING).iloc[:0]).empty


def test_comparisons_are_those_of_the_statistics() -> None:
    task = find_task("sst2").task
    rng = np.random.default_rng(0)
    whole = np.stack([rng.integers(0, 2, 400), rng.integers(0, 2, 400), np.zeros(400)], 1).astype(float)
    less = whole.copy()
    less[:30, 1] = 1 - less[:30, 1]
    keys = list(map(str, range(400)))
    baseline = Baseline(records=whole.tolist(), keys=keys)
    found = compared_with(
        baseline,
        task,
        "accuracy",
        less,
        Draws.of(keys, 100, 0),
        partial(margin_of, "accuracy", requested=0.05, tests=3),
    )
    assert tuple(found) == COMPARED
    right = [records[:, 0] == records[:, 1] for records in (less, whole)]
    lost, gained = int((right[1] & ~right[0]).sum()), int((right[0] & ~right[1]).sum())
    assert found["p_value"] == pytest.approx(mcnemar(*right))
    assert found["p_margin"] == pytest.approx(share_loss_p(gained, lost, 400, 0.05))
    assert found["margin"] == 0.05
    level = float(right[1].mean()) - 0.05
    for chance, margin in ((None, 0.01), (level, 0.005)):  # a tenth of what is above guesses at most
        usual = partial(margin_of, "accuracy", guesses=chance)
        found = compared_with(baseline, task, "accuracy", less, Draws.of(keys, 100, 0), usual)
        assert found["margin"] == pytest.approx(margin)


@pytest.mark.parametrize(("theirs", "ours", "tested"), [(1, 1, False), (1, 0, False), (None, 1, True), (1, None, True)])
def test_two_models_that_always_say_the_same_are_not_tested(theirs: int | None, ours: int | None, tested: bool) -> None:
    task, keys = find_task("sst2").task, list(map(str, range(40)))
    column = task.columns.index("predicted")

    def records(said: int | None) -> np.ndarray:
        made = np.tile([0.0, 1.0], 20)[:, None].repeat(len(task.columns), 1)
        made[:, column] = np.arange(40) % 3 == 0 if said is None else said
        return made

    baseline = Baseline(records=records(theirs).tolist(), keys=keys)
    found = compared_with(
        baseline, task, "accuracy", records(ours), Draws.of(keys, 100, 0), partial(margin_of, "accuracy")
    )
    guesses = replace(baseline, lacks_skill=True)
    silent = compared_with(
        guesses, task, "accuracy", records(ours), Draws.of(keys, 100, 0), partial(margin_of, "accuracy")
    )
    assert silent["delta"] == found["delta"]
    assert math.isnan(silent["margin"])
    assert math.isnan(silent["p_margin"])
    assert np.isfinite(found["delta"])
    assert [np.isfinite(found["margin"]), np.isfinite(found["p_margin"])] == [tested, tested]


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ([100.0, 300.0, 200.0], "about 200 examples would decide half of these)"),
        ([100.0, np.nan, 200.0], "about 200 examples would decide half of these)"),
        (
            [100.0, np.nan, np.nan],
            "about 100 examples would decide 1 of these; how many the others need cannot be told)",
        ),
        ([np.nan] * 3, "3 not decided."),
    ],
)
def test_half_of_what_is_open_is_not_half_of_what_is_known(numbers: list[float], told: str) -> None:
    rows = pd.DataFrame({"n_to_decide": numbers}).assign(metric="f1", margin=0.01, verdict="not decided")
    text = counts_text(rows)
    assert text.removesuffix(".").endswith(told.removesuffix("."))
    assert text.startswith("With a margin of 1 point, corrected for all 3 heads: 3 not decided")
    alone = counts_text(rows.assign(verdict="not needed"))
    assert alone == "With a margin of 1 point, each head alone, corrected for all 3 heads: 3 not needed."


def test_older_tables_are_told_by_their_intervals() -> None:
    table = sweep(NOTHING, SMALL, UNDECIDED, LARGE).drop(columns=["margin", *SWEEP_VERDICT], errors="ignore")
    found = known_verdicts(table)
    assert found["verdict"].tolist() == ["not needed", "not decided", "needed"]
    assert found["margin"].tolist() == [0.01] * 3
    assert known_verdicts(table.drop(columns="delta")).empty
    assert known_verdicts(table.iloc[:1]).empty


def test_the_most_that_is_not_needed_is_told_or_else_what_is_not_decided() -> None:
    found = with_family_verdicts(sweep(SMALL, SMALL, UNDECIDED, LARGE)).assign(share=[0.1, 0.2, 0.5, 0.9])
    assert foremost(found, "share")["share"] == 0.2
    assert foremost(found, "share")["alike"] == 1
    assert foremost(found.assign(share=0.2), "share")["alike"] == 2
    assert foremost(found.iloc[2:], "share")["share"] == 0.5
    assert foremost(pd.concat([found.iloc[3:], found.iloc[3:].assign(share=0.8)]), "share")["share"] == 0.8


def test_how_many_lose_is_told_with_the_one_that_is_chosen() -> None:
    rows = with_family_verdicts(sweep(LARGE, UNDECIDED, UNDECIDED, SMALL)).assign(share=[0.9, 0.8, 0.3, 0.2])

    def told(found: pd.DataFrame) -> str:
        return chosen_text(foremost(found, "share"), found, "masks", most="sparsest", least="densest")

    text = "1 of 4 masks loses significantly, 2 are not decided, 1 loses less than the margin"
    assert told(rows) == f"{text}: ", "equal is not better"
    assert told(rows.assign(delta=[-0.2, -0.02, -0.02, 0.003])) == f"{text} (1 measured better): "
    assert told(rows[:3]) == "1 of 3 masks loses significantly, 2 are not decided; of these, the sparsest: "
    assert told(rows[1:3]) == "none of 2 masks loses significantly, 2 are not decided; of these, the sparsest: "
    assert told(rows.iloc[[0, 0]]) == "both masks lose significantly; of these, the densest: "
    worse = rows.iloc[[0, 0]].assign(value=[0.7, 0.6])
    looks = {"most": "sparsest", "least": "densest", "only": "not random"}
    both = "both masks lose significantly; of these, the better of the 2 densest that are not random: "
    assert chosen_text(foremost(worse, "share"), worse, "masks", **looks) == both
    assert told(worse) == "both masks lose significantly; of these, the better of the 2 densest: "
    assert told(rows.iloc[[0, 0, 0]].assign(value=[0.7, 0.6, 0.7])).endswith("the best of the 3 densest: ")
    assert told(rows[:1]) == ""
    # A small loss may be below the margin and significant; of an accuracy it is a negative change.
    small = rows[rows["verdict"] == "not needed"].assign(p_holm=0.001)
    for metric, change in (("accuracy", -0.004), ("accuracy", 0.004), ("loss", 0.004), ("loss", -0.004)):
        lost = (metric == "loss") == (change > 0)
        both = pd.concat([small.assign(delta=change), small.assign(p_holm=0.4)]).assign(metric=metric)
        begin = (
            "1 of 2 masks loses significantly (1 of them less than the margin), 1 other loses less than the margin"
            if lost
            else "none of 2 masks loses significantly, 2 lose less than the margin"
        )
        assert told(both).startswith(begin), "numbers that add up"
        # The one that is told may be of either group of those below the margin.
        last = "; of all 2 below the margin, the sparsest: " if lost else "; of these, the sparsest: "
        assert told(both).removesuffix(" (1 measured better)").endswith(last)
        told_of = taken_away_text(both.iloc[0].to_dict(), "a mask", 2, "masks")
        assert ("loses significantly, but less than the margin" in told_of) == lost
        assert ("is significantly better" in told_of) != lost


def test_where_interval_and_test_disagree_the_p_value_is_told() -> None:
    """Four examples gained and none lost: an interval without 0, and a p-value of .125."""
    row = SMALL | {"delta": 0.04, "delta_low": 0.002, "delta_high": 0.097, "p_holm": 0.125, "verdict": "not needed"}
    about = {"metric": "accuracy", "value": 0.861, "margin": 0.01, "task": "sst2", "n": 101}
    told = taken_away_text(row | about, "2 heads pruned", 1, "sets")
    assert (
        "a change of 0.040 [0.002, 0.097], p (Holm) 0.12, which decides on a change, not the interval, n = 101." in told
    )
    assert "p (Holm)" not in taken_away_text(row | about | {"p_holm": 0.01}, "2 heads pruned", 1, "sets")


def test_masks_that_lose_significantly_below_the_margin_are_counted() -> None:
    """The means of one seed lost the corrected p-value on their way to the sentence: "none of 2 masks"."""
    small = SMALL | {"delta": -0.004, "delta_high": -0.001, "p_value": 1e-6}
    text = " ".join(report_of("masks").findings(recorded("masks", masks(small, SMALL))))
    assert "1 of 2 masks in all layers loses significantly (1 of them less than the margin), 1 other loses less" in text


@pytest.mark.parametrize(
    ("command", "of"),
    [("prune", "pruned models"), ("masks", "masks in all layers"), ("sparsefinder", "graphs")],
)
def test_a_sentence_on_one_of_several_says_how_many_lose(command: str, of: str) -> None:
    made, _ = TAKEN[command]
    told = report_of(command).findings(recorded(command, made(LARGE, LARGE, UNDECIDED)))
    assert [text for text in told if text.startswith(f"m: 2 of 3 {of} lose significantly, 1 is not decided: whether ")]


def prune(*rows: dict[str, Any]) -> dict[str, pd.DataFrame]:
    named = [
        {
            "run": f"penalty-{n}" if n else "unpruned",
            "penalty": n or np.nan,
            "init": "trained",
            "removed": "h " * n,
            "heads_encoder": 8 - 2 * n,
        }
        for n in range(len(rows) + 1)
    ]
    table = sweep(*(name | row for name, row in zip(named, (NOTHING, *rows), strict=True)), columns=SWEEP.names)
    return {"sweep": with_family_verdicts(table)}


def dam(*rows: dict[str, Any]) -> dict[str, pd.DataFrame]:
    named = [
        {"run": "plain"},
        *({"run": f"penalty-{n}", "penalty": n, "sparsity_texts": 0.5} for n in range(len(rows))),
    ]
    table = sweep(
        *(name | row for name, row in zip(named, (NOTHING, *rows), strict=True)), columns=SWEEP_OF_MASKS.names
    )
    return {"sweep": with_family_verdicts(table)}


def masks(*rows: dict[str, Any]) -> dict[str, pd.DataFrame]:
    about = {"layers": "all", "control": "kept", "seed": 0}
    named = [
        about | {"pattern": "full"},
        *(about | {"pattern": f"window:{n}", "sparsity_texts": 0.5} for n in range(len(rows))),
    ]
    table = sweep(
        *(name | row for name, row in zip(named, (NOTHING | {"value": 0.8}, *rows), strict=True)),
        columns=MASK_TRAININGS.names,
    )
    return {"masks": with_family_verdicts(table, ["seed"])}


def sparsefinder(*rows: dict[str, Any]) -> dict[str, pd.DataFrame]:
    about = {"stack": "encoder", "parameter": "threshold", "value_of_parameter": 1.5, "window": 3, "global_tokens": 0}
    named = [about | {"method": "entmax"}, *(about | {"method": "distance", "task_sparsity": 0.5} for _ in rows)]
    table = sweep(
        *(name | row for name, row in zip(named, (NOTHING, *rows), strict=True)), columns=["model", *METRICS.names[1:]]
    )
    return {"metrics": with_family_verdicts(table, ["stack"])}


Tables = Callable[..., dict[str, pd.DataFrame]]
TAKEN = {
    "prune": (prune, "2 of 8 heads pruned (λ = 1)"),
    "train-dam": (dam, "50.0% of text positions masked (penalty-0)"),
    "masks": (masks, "50% of text positions masked (window:0 in all layers)"),
    "sparsefinder": (
        sparsefinder,
        "50.0% of the pairs left out (Sparsefinder, distance, threshold 1.5, window of 3 keys)",
    ),
}


def recorded(command: str, tables: dict[str, pd.DataFrame]) -> RecordedRun:
    return RecordedRun(Path("run"), "run", {"command": command}, tables)


@pytest.mark.parametrize("command", TAKEN)
def test_sentences_give_the_bound_and_claim_nothing(command: str) -> None:
    made, what = TAKEN[command]
    text = report_of(command).findings(recorded(command, made(UNDECIDED)))[-1]
    assert text == (
        f"m: whether sst2 needs the {what} is not decided for a margin of 1 point: accuracy 0.780 instead of "
        "0.800, a change of -0.020 [-0.084, 0.040], n = 500; may lose up to 8.4 points; about 900 evaluation examples "
        "would decide, if the change is as measured."
    )
    assert not [claim for claim in CLAIMS if claim in text]
    text = report_of(command).findings(recorded(command, made(SMALL)))[-1]
    assert text.startswith(f"m: sst2 with {what} loses less than the margin of 1 point: accuracy 0.800")
    text = report_of(command).findings(recorded(command, made(LARGE)))[-1]
    assert text.startswith(f"m: sst2 with {what} loses significantly: accuracy 0.600")
    corrected = report_of(command).findings(recorded(command, made(LARGE, LARGE)))
    assert any("(corrected for 2 " in text for text in corrected)


@pytest.mark.parametrize("command", TAKEN)
def test_page_tables_have_differences_and_verdicts(command: str) -> None:
    made, _ = TAKEN[command]
    (table,) = report_of(command).overviews([recorded(command, made(UNDECIDED, LARGE))])
    assert isinstance(table, PageTable)
    names = [column.name for column in table.columns]
    shown = [[cell.text for cell in row] for row in table.rows]
    assert [row[names.index("verdict")] for row in shown] == ["", "not decided", "needed"]
    assert [row[names.index("examples that would decide")] for row in shown] == ["", "about 900", ""]
    assert any("-0.020" in cell for cell in shown[1])


@pytest.mark.parametrize("command", TAKEN)
def test_tables_with_half_of_the_columns_are_refused(command: str) -> None:
    made, _ = TAKEN[command]
    ((name, table),) = made(UNDECIDED).items()
    schema = report_of(command).tables[name]
    filled = table.fillna({column.name: 0 for column in schema.columns if not column.optional})
    for damaged, message in (
        (filled.drop(columns="margin"), "no column margin"),
        (filled.assign(verdict="maybe"), "column verdict"),
        (filled.assign(p_margin="x"), "column p_margin"),
    ):
        with pytest.raises(InputError, match=message):
            check_table(schema, damaged, Path("table.csv"))
    check_table(schema, filled, Path("table.csv"))
    check_table(schema, filled.drop(columns=list(SWEEP_VERDICT)), Path("table.csv"))


def test_means_of_seeds_are_over_trainings_and_have_no_verdict() -> None:
    tables = [masks(row)["masks"].assign(seed=seed) for seed, row in enumerate((UNDECIDED, LARGE))]
    table = pd.concat(tables, ignore_index=True)
    *_, text = report_of("masks").findings(recorded("masks", {"masks": table}))
    assert "not decided" not in text
    assert "] (over trainings, on these very examples)." in text
    assert "may lose" not in text, "an interval over trainings says nothing of other examples"
    (page,) = report_of("masks").overviews([recorded("masks", {"masks": table})])
    assert "verdict" not in [column.name for column in page.columns]


@pytest.mark.parametrize("command", ["prune", "train-dam", "masks", "sparsefinder"])
def test_a_model_with_one_answer_for_all_is_told_with_its_verdict(command: str) -> None:
    """A training that learned nothing is no knowledge of what was taken away."""
    made, _ = TAKEN[command]
    tables = made(UNDECIDED | {"same_answer": True})
    assert (
        report_of(command)
        .findings(recorded(command, tables))[-1]
        .endswith(" It gives the same answer to all examples.")
    )
    nearly = made(UNDECIDED | {"same_answer": False, "answer_share": 0.9859})
    assert report_of(command).findings(recorded(command, nearly))[-1].endswith("same answer to 98.5 % of the examples.")
    other = made(UNDECIDED | {"same_answer": False, "answer_share": 0.94})
    assert "same answer" not in " ".join(report_of(command).findings(recorded(command, other)))


def test_graphs_are_no_finding_for_a_model_that_has_one_answer_without_any() -> None:
    (made, _), report = TAKEN["sparsefinder"], report_of("sparsefinder")
    tables = {"metrics": made(UNDECIDED)["metrics"].assign(verdict=None, same_answer=True)}
    (told,) = report.findings(recorded("sparsefinder", tables))
    assert "the model gives the same answer to all" in told
    assert told.endswith("nothing can be measured about predicted graphs with accuracy.")


@pytest.mark.parametrize("margin", [0.0, -1.0, np.nan, np.inf])
def test_margins_that_cannot_be(margin: float) -> None:
    for options, name in (
        (PenaltySweepOptions, "loss_margin"),
        (MetricOptions, "loss_margin"),
        (StudyRequest, "margin"),
    ):
        with pytest.raises(OptionError, match=rf"{name.replace('_', '-')} .* is (out of range|not a finite number)"):
            options(**{name: margin})


def test_what_is_not_told_apart_from_the_foremost() -> None:
    rows = pd.DataFrame({"value": [5.0, 5.0, 4.0, 3.0, 2.0], "low": [4, 4, 3, 2, np.nan], "high": [6, 6, 4, 3.9, 9]})
    names = ("value", "low", "high")
    assert [not_apart(rows, place, names) for place in range(5)] == [1, 1, 3, 1, 0]
    assert tied(1) == ""
    assert tied(2) == " (2 heads tie)"
    assert tied(1, near=1) == " (the intervals of 1 other head overlap with its own)"
    assert tied(2, "methods", 3) == " (2 methods tie; the intervals of 3 other methods overlap with its own)"


def test_a_bound_of_nothing_has_no_sign() -> None:
    for metric, words in (("accuracy", "may lose up to 0 points"), ("loss", "may rise by up to 0")):
        assert bound_text({"metric": metric, "delta_low": 0.0, "delta_high": 0.0}).startswith(words)


@pytest.mark.parametrize(
    ("metric", "baseline", "guesses", "size"),
    [
        ("accuracy", 0.9, 0.5, 0.01),
        ("accuracy", 0.53, 0.5, 0.003),
        ("accuracy", 0.4, 0.5, 0.01),
        ("bleu", 30.0, None, 1.0),
        ("bleu", 1.4, None, 0.14),
        ("pearson", 0.05, 0.0, 0.005),
        ("loss", 2.0, 5.0, 0.02),
        ("loss", 5.49, 5.61, 0.012),
        ("loss", 5.7, 5.61, 0.057),
        ("loss", 2.0, None, 0.02),
        ("perplexity", math.exp(5.49), math.exp(5.61), math.exp(5.49) * math.expm1(0.012)),
        ("perplexity", math.exp(2.0), math.exp(5.0), math.exp(2.0) * math.expm1(0.02)),
        ("logit_difference", 0.303, 0.0, 0.0303),
        ("logit_difference", 3.0, 0.0, 0.1),
    ],
)
def test_usual_margins_are_small_beside_what_a_model_can(
    metric: str, baseline: float, guesses: float | None, size: float
) -> None:
    assert margin_of(metric, baseline, guesses=guesses).size == pytest.approx(size)
    assert margin_of(metric, baseline, 0.02, guesses=guesses).size == 0.02


@pytest.mark.parametrize(("replaced", "size"), [(0.9, 0.01), (0.85, 0.005), (0.95, 0.005), (0.8, 0.01), (None, 0.01)])
def test_of_what_differs_between_texts_no_more_than_a_tenth_is_small(replaced: float | None, size: float) -> None:
    assert margin_of("accuracy", 0.9, replaced=replaced).size == pytest.approx(size)
    assert margin_of("accuracy", 0.9, 0.02, replaced=replaced).size == 0.02


@pytest.mark.parametrize(
    ("metric", "margin", "point"),
    [("accuracy", 1.0, "0.01"), ("f1", 5.0, "0.01"), ("matthews", 2.0, "0.01"), ("bleu", 100.0, "1"), ("loss", 5.0, ""),
     ("accuracy", 0.05, ""), ("bleu", 5.0, ""), ("logit_difference", 3.0, ""), ("accuracy", None, "")],
)  # fmt: skip
def test_a_margin_that_nothing_can_lose_is_refused(metric: str, margin: float | None, point: str) -> None:
    if not point:
        check_margin(metric, margin)
        return
    with pytest.raises(OptionError, match=rf"{metric} is between 0 and 1.*\nA point is --margin {point}, and"):
        check_margin(metric, margin)

"""A model before and after pruning, from two classifications."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made_runs import change_record, classify_tables, write_classification
from scipy import stats

from headlens.analyses.classify.overviews import roles_before_after
from headlens.analyses.report.registry import report_of
from headlens.files import write_csv
from headlens.findings.before_after import pruned_findings, pruned_pairs
from headlens.pages.head_cards import head_page
from headlens.runs.reading import RecordedRun, read_recorded

GONE = ((0, 0), (1, 0), (1, 2))  # positional, without a role, without a role


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of a whole model and of a pruned one, in which the head for rare words has no role any more."""
    folder = tmp_path_factory.mktemp("written")
    write_classification(folder / "whole")
    write_classification(folder / "small", "small", seed=1, removed=GONE)
    rewrite(folder / "small", lambda heads: heads.replace({"role": {"rare": ""}}))
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy, which a test may change."""
    return Path(shutil.copytree(written, tmp_path / "runs"))


def rewrite(folder: Path, change: Any) -> None:
    path = folder / "heads.csv"
    changed = change(pd.read_csv(path))
    write_csv(changed, path)
    change_record(folder, {"rows": {path.name: len(changed)}})


def runs(folder: Path) -> list[RecordedRun]:
    return [read_recorded(folder / name, name) for name in ("whole", "small")]


def test_what_went_and_what_became_of_the_rest(folder: Path) -> None:
    (pair,) = pruned_pairs(runs(folder))
    assert (pair.before, pair.after) == ("demo", "small")
    assert pair.removed == ["encoder.0.0", "encoder.1.0", "encoder.1.2"]
    went, roles, confidence = pruned_findings(pair)
    assert went == (
        "small, encoder: 3 of the 6 heads of demo were removed. The heads left, by their earlier role: 0 of 1 "
        "positional, 1 of 1 syntactic, 1 of 1 rare, 1 of 3 without one."
    )
    assert roles == (
        "small, encoder: of the 3 remaining heads, 1 has a different role than before: encoder.1.1 (rare, then no "
        "role)."
    )
    before, after = (classify_tables(seed=seed)["heads"]["confidence"][[1, 2, 4]] for seed in (0, 1))
    change = after - before
    interval = stats.ttest_1samp(change, 0).confidence_interval()
    most = change.abs().idxmax()
    assert confidence == (
        f"small, encoder: the confidence of the heads that are left changed by {change.mean():.3f} on average (95% "
        f"interval over heads [{interval.low:.3f}, {interval.high:.3f}]), most on this text that of "
        f"encoder.{most // 3}.{most % 3} from {before[most]:.3f} to {after[most]:.3f}."
    )


def test_equal_changes_are_told_as_ties(folder: Path) -> None:
    (pair,) = pruned_pairs(runs(folder))
    heads = pair.heads.assign(confidence_before=0.5, confidence_after=0.25)
    confidence = pruned_findings(replace(pair, heads=heads))[-1]
    assert "changed by -0.250 on average, most on this text that of encoder.0.1 (3 heads tie) from 0.500" in confidence
    ends = {"confidence_ci_low_before": 0.3, "confidence_ci_high_before": 0.7, "confidence_ci_low_after": 0.0}
    for high, overlap in ((0.3, True), (0.29, False)):
        known = heads.assign(**ends, confidence_ci_high_after=high)
        told = pruned_findings(replace(pair, heads=known))[-1]
        assert told.endswith("to 0.250 (their intervals overlap)." if overlap else "to 0.250.")


def test_roles_before_by_roles_after(folder: Path) -> None:
    table = roles_before_after(runs(folder))
    assert table in report_of("classify").overviews(runs(folder))
    assert [column.name for column in table.columns[3:]] == [
        *("role before", "heads", "removed", "then syntactic", "then no role")
    ]
    assert [[cell.text for cell in row[3:]] for row in table.rows] == [
        ["positional", "1", "1", "0", "0"],
        ["syntactic", "1", "0", "1", "0"],
        ["rare", "1", "0", "0", "1"],
        ["no role", "3", "2", "0", "1"],
    ]


def test_the_grid_has_the_heads_that_went(folder: Path) -> None:
    found = runs(folder)
    facts = [(run.label, report_of("classify").heads(run)) for run in found]
    whole, small = head_page(facts, pruned_pairs(found))["models"]
    assert (whole["before"], whole["removed"]) == (None, [])
    assert (small["before"], small["removed"]) == (0, ["encoder.0.0", "encoder.1.0", "encoder.1.2"])
    # Without its last head, layer 1 alone would say nothing of its width.
    assert small["stacks"] == {"encoder": [2, 3]}


def test_models_of_one_name_share_a_grid(folder: Path) -> None:
    write_classification(folder / "same", "demo", seed=1, removed=GONE)
    found = [read_recorded(folder / name, name) for name in ("whole", "same")]
    pairs = pruned_pairs(found)
    assert len(pairs) == 1
    (model,) = head_page([(run.label, report_of("classify").heads(run)) for run in found], pairs)["models"]
    assert (model["before"], model["removed"]) == (None, [])


def test_one_head_or_none_left(tmp_path: Path) -> None:
    every = [(layer, head) for layer in range(2) for head in range(3)]
    write_classification(tmp_path / "whole")
    write_classification(tmp_path / "small", "small", removed=every[1:])
    (pair,) = pruned_pairs(runs(tmp_path))
    went, roles, confidence = pruned_findings(pair)
    assert "5 of the 6 heads" in went
    assert roles == "small, encoder: of the 1 remaining head, none has a different role than before."
    assert confidence.endswith("the confidence of the heads that are left did not change.")
    decoder = pair.heads.assign(stack="decoder", role_after="removed")
    both = pd.concat([pair.heads, decoder])
    assert pruned_findings(type(pair)("demo", "small", both))[3:] == [
        "small, decoder: 6 of the 6 heads of demo were removed."
    ]


def test_heads_that_are_silent_at_one_depth_count_as_removed(folder: Path) -> None:
    rewrite(folder / "small", lambda _: classify_tables("small")["heads"])
    (pair,) = pruned_pairs(runs(folder))
    assert pair.removed == ["encoder.0.0", "encoder.1.0", "encoder.1.2"]


@pytest.mark.parametrize(
    ("record", "change"),
    [
        ({"corpus": {"sha256": "other"}}, None),
        ({"models": [{"model": "small"}]}, None),
        ({"models": [{"model": "small", "heads_removed": ["encoder.0.0"]}]}, None),
        ({"models": "small"}, None),
        ({"command": "sparsefinder"}, None),
        ({}, lambda heads: heads.assign(tokens=999)),
    ],
)
def test_models_that_are_not_the_same(folder: Path, record: dict[str, Any], change: Any) -> None:
    if change:
        rewrite(folder / "small", change)
    whole, small = runs(folder)
    small = RecordedRun(small.folder, small.label, {**small.record, **record}, small.tables)
    assert pruned_pairs([whole, small]) == []
    assert roles_before_after([whole, small]).rows == ()

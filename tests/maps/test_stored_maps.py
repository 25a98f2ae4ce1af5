"""Maps of sentences in a run folder, with what the view of attention shows beside the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headlens.analyses.attend.report import REPORT
from headlens.errors import InputError
from headlens.maps.stored_maps import LABELS, SCORES, read_maps, write_maps
from headlens.pages.head_cards import SentenceMap, TokenGroups
from headlens.pages.score_parts import ScoreParts
from headlens.runs.folder import RunFolder
from headlens.runs.reading import RecordedRun

WEIGHTS = np.full((1, 2, 3, 3), 1 / 3, np.float32)
GROUPS = TokenGroups([0, 1, 1], ["[CLS]", "tricycle"], [True, False, False])
VECTORS = np.arange(10, dtype=np.float32).reshape(1, 5, 2)
PARTS = ScoreParts(0, [1], 0.5, VECTORS[:, :2], VECTORS[:, 2:], shared_by=2).fitted(WEIGHTS[0, 1:, :2])
MAPS = [
    SentenceMap("1", "encoder", tuple("abc"), tuple("abc"), WEIGHTS, "A text.", 0, GROUPS, GROUPS),
    SentenceMap("1", "encoder", tuple("abc"), tuple("abc"), WEIGHTS / 2, "A text.", 1, GROUPS, None),
    SentenceMap("a.state1", "cross", tuple("ab"), tuple("abc"), WEIGHTS[:, :, :2], scores=[PARTS]),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with RunFolder.create(tmp_path / "run", command="attend", model="m") as run:
        run.start({})
        write_maps(run, MAPS)
        run.finish({})
    return tmp_path / "run"


def recorded(folder: Path, **facts: Any) -> RecordedRun:
    return RecordedRun(folder, "run", {"command": "attend", "models": [{"model": "m"}], **facts}, {})


def test_they_come_back_as_they_were(folder: Path) -> None:
    for read, written in zip(read_maps(recorded(folder), str), MAPS, strict=True):
        assert np.array_equal(read.weights, written.weights)
        assert (read.scores is None) == (written.scores is None)
        same = {"weights": 0, "scores": 0}
        assert {**vars(read), **same} == {**vars(written), **same}
        for ours, theirs in zip(read.scores or (), written.scores or (), strict=True):
            assert all(np.array_equal(value, getattr(theirs, name)) for name, value in vars(ours).items())


def test_the_view_has_all_states_and_cards_the_first(folder: Path) -> None:
    run = recorded(folder, states=["m without encoder.0.1", "m"])
    view = REPORT.attention(run)
    assert view is not None
    assert view.states == ["m without encoder.0.1", "m"]
    assert [own.state for own in view.sentences["1"]] == [0, 1]
    assert [own.state for own in REPORT.heads(run).maps] == [0, 0]


def test_states_that_do_not_fit_are_not_shown(folder: Path, tmp_path: Path) -> None:
    assert REPORT.attention(recorded(folder)) is None
    assert REPORT.attention(recorded(folder, states="x")) is None
    assert REPORT.attention(recorded(tmp_path)) is None


def test_runs_of_earlier_versions_have_tokens_alone(folder: Path) -> None:
    path = folder / LABELS
    labels = {"1": {"encoder": {"queries": list("abc"), "keys": list("abc")}}}
    path.write_text(json.dumps(labels), encoding="utf-8")
    view = REPORT.attention(recorded(folder))
    assert view is not None
    assert view.states == ["m"]
    assert view.maps[0].query_groups is None


def test_scores_whose_file_was_deleted_are_not_shown(folder: Path) -> None:
    (folder / SCORES).unlink()
    assert [read.scores for read in read_maps(recorded(folder), str)] == [None, None, []]


@pytest.mark.parametrize(
    "change",
    [{"layer": 1}, {"heads": [0, 1]}, {"heads": ["x"]}, {"off": []}, {"scaling": "x"}, {"more": 1}, {"shared_by": 0}],
)
def test_broken_scores_are_refused(folder: Path, change: dict[str, Any]) -> None:
    labels = json.loads((folder / LABELS).read_text(encoding="utf-8"))
    labels["a.state1"]["cross"]["scores"][0] |= change
    (folder / LABELS).write_text(json.dumps(labels), encoding="utf-8")
    with pytest.raises(InputError, match="do not hold attention on sentences"):
        read_maps(recorded(folder), str)


@pytest.mark.parametrize(
    "change",
    [
        {"query_groups": {"words": [0, 1], "forms": ["a", "b"], "special": [False, False]}},
        {"key_groups": {"words": [0, 1, 2], "forms": ["a"], "special": [False] * 3}},
        {"key_groups": {"words": [0]}},
        {"key_groups": 3},
        {"key_groups": {"words": [0, True, 2], "forms": ["a", "b", "c"], "special": [False] * 3}},
        {"key_groups": {"words": [0, 1, 2], "forms": ["a", "b", 3], "special": [False] * 3}},
        {"key_groups": {"words": [0, 1, 2], "forms": ["a", "b", "c"], "special": [0, 1, "x"]}},
        {"key_groups": {"words": [0, 1, 2], "forms": ["a", "b", "c"], "special": [False] * 3, "texts": [0, 1]}},
        {"key_groups": {"words": [0, 1, 2], "forms": ["a", "b", "c"], "special": [False] * 3, "texts": [0, 1, 2]}},
        {"state": "x"},
        {"state": float("inf")},
        {"state": None},
    ],
)
def test_broken_labels_are_refused(folder: Path, change: dict[str, Any]) -> None:
    labels = json.loads((folder / LABELS).read_text(encoding="utf-8"))
    labels["1"]["encoder"] |= change
    (folder / LABELS).write_text(json.dumps(labels), encoding="utf-8")
    with pytest.raises(InputError, match="do not hold attention on sentences"):
        read_maps(recorded(folder), str)

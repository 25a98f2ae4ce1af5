"""A corpus in parts, each a run of its own, and their sums: the tables of one run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from headlens.errors import OptionError
from headlens.runs.checkpoint import packed, unpacked
from headlens.runs.corpus_pass import parse_shard
from headlens.runs.processes import Processes

Headlens = Callable[..., Any]
EDITS: dict[str, Callable[[dict[str, Any], dict[str, Any]], object]] = {
    "no counts": lambda record, _: record.pop("encoding"),
    "counts of another kind": lambda record, _: record.update(annotation=[1]),
    "identity of another kind": lambda record, _: record.update(identity=["the corpus"]),
    "a sum of another name": lambda _, arrays: arrays.update({"statistics|x": arrays.pop(next(iter(arrays)))}),
}
FEW = ("--limit", 12, "--no-figures", "--relevance")
LIGHT = ("--limit", 5, "--no-figures", "--similarity", "off", "--frequency", "none", "--relations", "nsubj")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first test that needs parts leaves them for the others."""
    return tmp_path_factory.mktemp("parts")


def run_parts(headlens: Headlens, model: Path, folder: Path, count: int, options: tuple[object, ...]) -> list[Path]:
    """Runs of all parts that are not in the folder yet."""
    folders = [folder / f"part-{number}" for number in range(1, count + 1)]
    for number, part in enumerate(folders, 1):
        if not part.is_dir():
            done = headlens("classify", model, *options, "--shard", f"{number}/{count}", "--out", part)
            assert done.code == 0, done.err
            assert f"for part {number}/{count} of the sentences only" in done.out + done.err
    return folders


@pytest.fixture
def parts(headlens: Headlens, tiny_bert: Path, kept: Path, tmp_path: Path) -> list[Path]:
    return [shutil.copytree(own, tmp_path / own.name) for own in run_parts(headlens, tiny_bert, kept, 3, FEW)]


def merged(headlens: Headlens, *words: object) -> Any:
    return headlens("classify", *words, "--no-figures")


@pytest.mark.slow
@pytest.mark.parametrize(("count", "options"), [(2, LIGHT), (3, FEW)])
def test_parts_add_up_to_the_whole(
    headlens: Headlens, tiny_bert: Path, tmp_path: Path, count: int, options: tuple[object, ...]
) -> None:
    parts = run_parts(headlens, tiny_bert, tmp_path, count, options)
    whole, one = tmp_path / "whole", tmp_path / "one"
    named = [word for part in reversed(parts) for word in ("--merge", part)]
    done = merged(headlens, "--config", parts[0] / "run.json", *named, "--out", whole)
    assert done.code == 0, done.err
    assert headlens("classify", tiny_bert, *options, "--out", one).code == 0
    tables = sorted(path.name for path in one.glob("*.csv"))
    assert tables == sorted(path.name for path in whole.glob("*.csv"))
    for name in tables:
        own, expected = pd.read_csv(whole / name), pd.read_csv(one / name)
        # Batches differ, and with them where float32 rounds.
        pd.testing.assert_frame_equal(own, expected, rtol=1e-5, atol=1e-7, check_exact=False)
    record, expected_record = (json.loads((folder / "run.json").read_text()) for folder in (whole, one))
    assert record["arguments"]["shard"] is None
    for name in ("encoding", "annotation"):
        assert record["models"][0][name] == expected_record["models"][0][name]
    assert sum(len(pd.read_csv(part / "heads.csv")) for part in parts) == count * len(pd.read_csv(one / "heads.csv"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "more", "problem"),
    [
        ([0, 1], (), "--merge: the part 3/3 is missing."),
        ([0, 1, 1], (), "are the same part."),
        ([0, 1, 2], ("--data-args", "level=word"), "was run with different options: level was 'token' and is 'word'."),
        ([0, 1, 2], ("--stability", 3), "was run with different options: stability was 0 and is 3."),
    ],
)
def test_parts_that_do_not_go_together(
    headlens: Headlens, tiny_bert: Path, parts: list[Path], which: list[int], more: Any, problem: str, tmp_path: Path
) -> None:
    named = [word for number in which for word in ("--merge", parts[number])]
    done = merged(headlens, tiny_bert, *FEW, *more, *named, "--out", tmp_path / "whole")
    assert done.code == 2
    assert problem in done.err
    assert not (tmp_path / "whole").exists()


@pytest.mark.slow
def test_what_is_no_part(headlens: Headlens, tiny_bert: Path, parts: list[Path], tmp_path: Path) -> None:
    assert headlens("classify", tiny_bert, *FEW, "--out", tmp_path / "one").code == 0
    for folder in (tmp_path / "one", tmp_path):
        done = merged(headlens, tiny_bert, *FEW, "--merge", folder, "--out", tmp_path / "whole")
        assert done.code == 2
        assert "holds no run of headlens classify --shard" in done.err.replace("\n", " ")
    record = parts[1] / "run.json"
    record.write_text(record.read_text().replace('"finished"', '"interrupted"'))
    named = [word for part in parts for word in ("--merge", part)]
    done = merged(headlens, tiny_bert, *FEW, *named, "--out", tmp_path / "whole")
    assert done.code == 2
    assert "has not finished" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["gone", "cut", "other", *EDITS])
def test_damaged_sums_and_those_of_something_else(
    headlens: Headlens, tiny_bert: Path, parts: list[Path], damage: str, tmp_path: Path
) -> None:
    sums = parts[1] / "sums-classify-0.npz"
    named: list[object] = [word for part in parts for word in ("--merge", part)]
    if damage == "gone":
        sums.unlink()
    elif damage == "cut":
        sums.write_bytes(sums.read_bytes()[:-300])
    elif damage in EDITS:
        record, arrays = unpacked(sums.read_bytes())
        EDITS[damage](record, arrays)
        sums.write_bytes(packed(record, arrays))
    else:
        other = shutil.copytree(tiny_bert, tmp_path / "other" / tiny_bert.name)
        weights = other / "model.safetensors"
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(bytes(data))
        for part in parts:
            record = part / "run.json"
            record.write_text(record.read_text().replace(str(tiny_bert), str(other)))
        tiny_bert = other
    done = merged(headlens, tiny_bert, *FEW, *named, "--out", tmp_path / "whole")
    assert done.code == 2
    assert "sums-" in done.err
    expected = {
        "gone": "cannot be read",
        "cut": "cannot be read",
        "other": "the weights of the model changed since this part was run",
    }
    assert expected.get(damage, "part-2/sums-classify-0.npz cannot be read") in done.err.replace("\n", " ")


@pytest.mark.slow
def test_sums_that_another_headlens_kept_are_not_added(
    headlens: Headlens, tiny_bert: Path, parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics may keep other sums in another release, and those that it lacks would be of a part of the corpus."""
    monkeypatch.setattr("headlens.runs.run._SUMS", "another")
    named: list[object] = [word for part in parts for word in ("--merge", part)]
    done = merged(headlens, tiny_bert, *FEW, *named, "--out", tmp_path / "whole")
    assert done.code == 2
    assert "the way in which headlens keeps sums changed since this part was run" in done.err.replace("\n", " ")


@pytest.mark.parametrize("text", ["", "2", "0/3", "4/3", "a/b", "1/-3", "1/3/5", "1/0", "1/9999999", "١/٣x"])
def test_no_part_of_a_corpus(text: str) -> None:
    with pytest.raises(OptionError, match="is not a valid part of a corpus"):
        parse_shard(text)


def test_parts_are_counted_from_one() -> None:
    assert parse_shard("2/5") == Processes(1, 5)


@pytest.mark.slow
def test_parts_of_two_models_and_of_draws(headlens: Headlens, tiny_bert: Path, tmp_path: Path) -> None:
    asked = (tiny_bert, tiny_bert, "--limit", 60, "--no-figures", "--stability", 5, "--thresholds", "min-tokens=1")
    named: list[object] = []
    for number in (1, 2):
        folder = tmp_path / f"part-{number}"
        assert headlens("classify", *asked, "--shard", f"{number}/2", "--out", folder).code == 0
        named += ["--merge", folder]
    for more, name in ((named, "whole"), ([], "one")):
        done = headlens("classify", *asked, *more, "--out", tmp_path / name)
        assert done.code == 0, done.err
    tables = [pd.read_csv(tmp_path / name / "heads.csv") for name in ("whole", "one")]
    assert len(set(tables[0]["model"])) == 2
    # Distances are roots, near 0 between heads of random weights, and make more of the rounding.
    pd.testing.assert_frame_equal(*tables, rtol=1e-5, atol=1e-5, check_exact=False)


@pytest.mark.slow
def test_plans_of_parts(headlens: Headlens, tiny_bert: Path, tmp_path: Path) -> None:
    plans = []
    for more in ((), ("--shard", "2/4")):
        done = headlens("classify", tiny_bert, "--limit", 60, "--stability", 7, *more, "--dry-run", "--json")
        assert done.code == 0, done.err
        plans.append(json.loads(done.out))
        assert any("7 draws of --stability" in note for note in plans[-1]["notes"])
    whole, part = ([work["tokens"] for work in plan["work"]] for plan in plans)
    assert part == pytest.approx([tokens / 4 for tokens in whole], rel=0.1)
    done = headlens("classify", tiny_bert, "--merge", tmp_path / "none", "--dry-run")
    assert done.code == 2
    assert "holds no run of headlens classify --shard" in done.err.replace("\n", " ")

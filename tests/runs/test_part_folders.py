"""Runs of parts of a corpus are merged where every part is there once, of the same options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headlens.errors import InputError, OptionError
from headlens.metrics.accumulator import Accumulator
from headlens.runs.corpus_pass import PassState, fill_from_parts, parse_shard, part_folders, sums_file

ARGUMENTS = {"corpus": "demo", "limit": 4, "device": "cpu"}
CORPUS = {"the corpus": "abc"}


def part(folder: Path, shard: str | None, status: str = "finished", command: str = "classify", **more: Any) -> Path:
    folder.mkdir()
    record = {"command": command, "status": status, "arguments": {**ARGUMENTS, "shard": shard, **more}}
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


def state_of(number: float) -> PassState:
    totals = Accumulator()
    totals.add("mass", "encoder.0", {"n": torch.tensor([number])})
    totals.commit()
    return PassState({"statistics": totals}, batches=1, complete=True)


def test_parts_stand_in_their_order(tmp_path: Path) -> None:
    folders = [part(tmp_path / f"{n}", f"{n}/3", device="cuda") for n in (3, 1, 2)]
    assert part_folders(folders, "classify", ARGUMENTS) == [folders[1], folders[2], folders[0]]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([("1/2", {}), (None, {})], "holds no run of headlens classify --shard"),
        ([("1/2", {}), ("2/2", {"command": "relevance"})], "holds no run of headlens classify --shard"),
        ([("1/2", {}), ("2/2", {"status": "running"})], "this part has not finished"),
        ([("1/2", {}), ("2/2", {"limit": 5})], "was run with different options"),
        ([("1/2", {}), ("1/2", {})], "are the same part"),
        ([("1/3", {}), ("3/3", {})], "the part 2/3 is missing"),
        ([("1/2", {}), ("2/3", {})], "parts of 2 and of 3"),
    ],
)
def test_what_is_no_whole_is_refused(tmp_path: Path, parts: list[tuple[str | None, Any]], said: str) -> None:
    folders = [part(tmp_path / str(number), shard, **more) for number, (shard, more) in enumerate(parts)]
    with pytest.raises(InputError, match=said):
        part_folders(folders, "classify", ARGUMENTS)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "/", "1/0", "a/b", "1/1234567"])
def test_what_is_no_part(text: str) -> None:
    with pytest.raises(OptionError, match="is not a valid part"):
        parse_shard(text)


def test_sums_of_parts_add_up(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / sums_file("pass")).write_bytes(state_of(number).dump(CORPUS))
    folders, merged = [tmp_path / "1", tmp_path / "2"], state_of(0)
    fill_from_parts(folders, merged, "pass", CORPUS)
    np.testing.assert_array_equal(merged.totals["statistics"].of("mass")["encoder.0"]["n"], [3.0])
    assert (merged.batches, merged.complete) == (2, True)
    with pytest.raises(InputError, match="the corpus changed since this part was run"):
        fill_from_parts(folders, merged, "pass", {"the corpus": "abd"})
    (folders[1] / sums_file("pass")).write_bytes(b"no archive")
    with pytest.raises(InputError, match=r"2/sums-pass\.npz: cannot be read|sums-pass\.npz cannot be read"):
        fill_from_parts(folders, merged, "pass", CORPUS)

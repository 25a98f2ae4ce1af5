"""The table of families and commands in docs/models.md is what commands do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from family_matrix import BEGIN, COMMANDS, END, FAMILIES, Outcome, matrix, outcomes
from transformers import PreTrainedTokenizerBase

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"
CHEAP = ("models check", "attend", "compact", "compact --stock")


def written() -> dict[str, dict[str, str]]:
    """What the page says: by family and command `yes`, or why not."""
    page = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    reasons = dict(re.findall(r"^(\d+)\. (.+)$", page, re.M))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]
    commands = [cell.strip("`") for cell in rows[0][1:]]
    return {
        name: {c: reasons.get(cell.strip("()"), cell) for c, cell in zip(commands, cells, strict=True)}
        for name, *cells in rows[2:]
    }


def check(name: str, folder: Path, tokenizer: PreTrainedTokenizerBase, commands: Sequence[str]) -> None:
    for command, found in outcomes(name, folder, tokenizer, commands).items():
        assert found.code in (0, 2), found.output
        assert (found.reason if found.code else "yes") == written()[name][command], f"{command}: {found.output}"


@pytest.mark.parametrize("name", ["BERT", "Llama", "BLOOM"])
def test_three_families(name: str, tmp_path: Path, wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    check(name, tmp_path, wordpiece_tokenizer, CHEAP)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_all_families(name: str, tmp_path: Path, wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    check(name, tmp_path, wordpiece_tokenizer, tuple(COMMANDS))


def test_the_page_has_all_of_them() -> None:
    assert list(written()) == list(FAMILIES)
    assert len(FAMILIES) >= 40
    assert all(list(row) == list(COMMANDS) for row in written().values())


def test_reasons_stand_once_below_the_table() -> None:
    rows = {"A": Outcome(0), "B": Outcome(2, "No heads."), "C": Outcome(2, "No heads.")}
    text = matrix({name: dict.fromkeys(COMMANDS, outcome) for name, outcome in rows.items()})
    assert text.count("No heads.") == 1
    first = [line.split(" | ")[1] for line in text.splitlines() if line[:3] in ("| A", "| B", "| C")]
    assert first == ["yes", "(1)", "(1)"]

"""`masks` with everything around it: fixed patterns, how sparse they are, their pictures, and files of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from headlens.errors import OptionError
from headlens.experiments.reporter import Reporter
from headlens.experiments.requests import Place
from headlens.experiments.run import open_run
from headlens.interventions.attention_mask import FILE, PatternMask
from headlens.interventions.pattern_specs import parse_pattern
from headlens.interventions.patterns import Pattern, masked, sparsity
from headlens.report.masks import write_masks

# Shares masked at n = 128 with and without the diagonal, in per cent, as printed: Shi et al. 2021, last table.
PAPER = {
    "strided": (70.4, 71.2),
    "fixed": (72.7, 73.4),
    "longformer": (88.7, 89.5),
    "logsparse": (89.8, 90.6),
    "bigbird": (93.2, 93.9),
    "star": (96.1, 96.9),
}
_PAPER_LENGTH = 128
LONGEST = 2048
SPARSITY_COLUMNS = [
    *("mask", "layer", "head", "diagonal", "n", "sparsity"),
    *("masked", "allowed", "paper_sparsity", "pattern"),
]


@dataclass(frozen=True)
class MasksRequest:
    """What `headlens masks` is asked for.

    Args:
        pattern: in words; none for those of the SparseBERT paper.
        length: n, for which they are counted, drawn and written.
        no_diagonal: whether the files that are written are without the diagonal; the table has both.
        figures: whether figures are drawn; `headlens report` draws them later from the tables.
        place: where the run goes.

    Raises:
        OptionError: for a length out of range, a pattern that there is none, or no pattern whose file is asked for.
    """

    pattern: tuple[str, ...] = ()
    length: int = _PAPER_LENGTH
    no_diagonal: bool = False
    figures: bool = True
    place: Place = field(default_factory=Place)

    def __post_init__(self) -> None:
        if not 1 <= self.length <= LONGEST:
            raise OptionError(f"--length {self.length} is out of range.", f"Give 1 to {LONGEST} tokens.")
        if self.no_diagonal and not self.pattern:
            raise OptionError(
                "--no-diagonal is about the files of patterns, and none is asked for.",
                "Name patterns with --pattern; the table has both in any case.",
            )
        self.chosen()

    def chosen(self) -> dict[str, Pattern]:
        """The patterns by name."""
        return {text.strip(): parse_pattern(text) for text in self.pattern or PAPER}


@dataclass(frozen=True)
class MasksRun:
    """What a run gave: the folder, the table as written, what to know about it."""

    folder: Path
    files: list[Path]
    table: pd.DataFrame
    notes: list[str]

    def summary(self) -> dict[str, Any]:
        """The result in short, for `--json`."""
        rows = self.table.astype(object).where(self.table.notna(), None)
        return {"out": str(self.folder), "sparsity": rows.to_dict("records"), "notes": self.notes}


def run_masks(request: MasksRequest, reporter: Reporter | None = None) -> MasksRun:
    """Count the patterns, write table, pictures and mask files.

    Raises:
        InputError: whatever is wrong with what was asked for.
    """
    patterns = request.chosen()
    with open_run("masks", "patterns", request, reporter) as run:
        table = sparsity_table(patterns, request.length)
        notes = _notes(table)
        if run.folder is not None:
            write_masks(run.folder, {"sparsity": table}, figures=request.figures)
            for name, pattern in zip(_files(request.pattern), patterns.values(), strict=False):
                mask = PatternMask(pattern).of_length(request.length)
                with run.file(name) as path:
                    (mask.without_diagonal() if request.no_diagonal else mask).save(path)
            run.folder.finish({"notes": notes})
        return MasksRun(run.path, run.files, table, notes)


def sparsity_table(patterns: dict[str, Pattern], n: int) -> pd.DataFrame:
    """How sparse patterns are with and without the diagonal: columns `SPARSITY_COLUMNS`, two rows each.

    `layer` and `head` are empty, for patterns are the same in all. Counts are of the n × n positions; `paper_sparsity`
    is what Shi et al. (2021) print for such a pattern at n = 128.

    Args:
        patterns: by name.
        n: tokens.
    """
    rows = []
    for name, pattern in patterns.items():
        for diagonal in (True, False):
            count = masked(pattern, n, diagonal=diagonal)
            printed = PAPER.get(name, ()) if n == _PAPER_LENGTH else ()
            rows.append(
                {
                    "mask": name,
                    "layer": None,
                    "head": None,
                    "diagonal": diagonal,
                    "n": n,
                    "sparsity": sparsity(pattern, n, diagonal=diagonal),
                    "masked": count,
                    "allowed": n * n - count,
                    "paper_sparsity": round(printed[not diagonal] / 100, 4) if printed else float("nan"),
                    "pattern": str(pattern),
                }
            )
    return pd.DataFrame(rows)[SPARSITY_COLUMNS]


def _files(texts: Sequence[str]) -> list[str]:
    """A file name for every pattern that was named: `mask.safetensors` of a single one."""
    if len(texts) < 2:
        return [FILE] * len(texts)
    return [f"{re.sub(r'[^a-z0-9]+', '-', text.strip().lower())}.safetensors" for text in texts]


def _notes(table: pd.DataFrame) -> list[str]:
    if table["paper_sparsity"].isna().all():
        return []
    return [
        "The paper prints no parameters. Those shown give its sparsities to the digit but for longformer, where no "
        "window without gaps does, and bigbird, whose keys are drawn."
    ]

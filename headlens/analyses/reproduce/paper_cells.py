"""The rows of a run's table that a cell of a paper's table is about, and their number."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
import pandas as pd

from headlens.files import read_csv
from headlens.nested_text import conform, parse_json
from headlens.pages.formatting import NOTHING
from headlens.statistics.intervals import mean_interval

ENDS = ("ci_low", "ci_high")
_NAMED = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class ComparedColumn:
    """A column of a paper's table, and where the numbers of our run for it are.

    Args:
        name: as the table has it.
        value: a column of the file of the table, or a text of several, such as `{heads_encoder}/{heads_cross}`.
        where: cells of the rows of the file that count, by column; an empty text for an empty cell, `*` in a text for
            anything, `{NAME}` at its beginning for the folder of a step.
        pick: of several rows the `first`, the one with the `largest` or `smallest` value, the `mean` of their values,
            the mean over `seeds` with Student's t interval, or their `count`.
        scale: what our numbers are multiplied by, such as 100 where the paper has percents.
        digits: decimals.
        interval: whether the file's interval is one of this value.
        step, file: of the numbers, where they are not those of the table.
        needs: what is missing for numbers of ours, with cells of `where` as `{NAME}`; empty if nothing is.
        steps: runs over which the number is a mean, with the metric of each, and the interval of independent numbers;
            `STEP/TASK` of runs that have several tasks.
        against: another column; agreement says whether differences from it have the paper's sign.
    """

    name: str
    value: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)
    pick: Literal["first", "largest", "smallest", "mean", "seeds", "count"] = "first"
    scale: float = 1.0
    digits: int = 1
    interval: bool = True
    step: str = ""
    file: str = ""
    needs: str = ""
    steps: Mapping[str, str] = field(default_factory=dict)
    against: str = ""


def step_and_task(name: str) -> tuple[str, dict[str, str]]:
    """Returns the step that `STEP` or `STEP/TASK` names, and the cells of its rows that are about the task."""
    step, _, task = name.partition("/")
    return step, {"task": task} if task else {}


def measured_number(rows: pd.DataFrame, column: ComparedColumn) -> dict[str, Any]:
    """Returns our number of a cell and the ends of its interval, as far as there are any."""
    if column.pick == "count":
        return {"ours": float(len(rows))}
    if "{" in column.value:
        texts = {str(name): _text(cell) for name, cell in rows.iloc[0].items()}
        # Names alone: a recipe is somebody's file, and Python's formats can ask for any width and attribute.
        ours = _NAMED.sub(lambda name: texts[name[1]], column.value)
        return {"ours": ours.replace(f"/{NOTHING}", "")}
    values = rows[column.value].astype(float)
    if column.pick == "mean":
        return {"ours": float(values.mean()) * column.scale}
    if column.pick == "seeds" and len(rows) > 1:
        if rows["seed"].duplicated().any():
            raise ValueError(f"several rows of a seed would be one {column.name!r}")
        ends = mean_interval(values) if column.interval else (float(values.mean()), math.nan, math.nan)
        return {name: end * column.scale for name, end in zip(("ours", *ENDS), ends, strict=True)}
    places = {"largest": values.argmax, "smallest": values.argmin}
    chosen = rows.iloc[int(places[column.pick]()) if column.pick in places else 0]
    sources = {"ours": column.value} | ({end: end for end in ENDS} if column.interval else {})
    return {
        name: float(chosen[source]) * column.scale
        for name, source in sources.items()
        if source in chosen and not pd.isna(chosen[source])
    }


def named_cells(text: str, cells: Mapping[str, Any]) -> str:
    """Returns a text with cells in place of `{NAME}`; what names none of them stays."""
    return _NAMED.sub(lambda name: str(cells.get(name[1], name[0])), text)


def _text(cell: Any) -> str:
    """Returns a cell as part of a text: counts without decimals, truth values as yes and no."""
    if isinstance(cell, bool | np.bool_):
        return "yes" if cell else "no"
    return published_cell_text(cell, 0) if isinstance(cell, float) else str(cell)


def mean_of(numbers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean of independent numbers of ours, with its interval if each has one.

    Variances of independent numbers add up, so half the width is the root of the sum of squares of theirs, divided by
    how many there are.
    """
    values = [number["ours"] for number in numbers]
    mean = fmean(values)
    ends = {}
    for end, sign in zip(ENDS, (-1, 1), strict=True):
        halves = [number.get(end, math.nan) - value for number, value in zip(numbers, values, strict=True)]
        ends[end] = mean + sign * math.hypot(*halves) / len(numbers)
    return {"ours": mean, **ends}


def read_frame(path: Path) -> pd.DataFrame:
    """Reads a table of a run; of a JSON file one row, of run.json a row for each model, with all arguments."""
    if not path.is_file():
        return pd.DataFrame()
    if path.suffix != ".json":
        return read_csv(path)
    content = conform(parse_json(path.read_text(encoding="utf-8")), dict[str, Any], path.name)
    shared, models = content.get("arguments", content), content.get("models") or [{}]
    rows = [{**conform(shared, dict[str, Any]), **conform(model, dict[str, Any])} for model in models]
    texts = [{k: ", ".join(map(str, v)) if isinstance(v, list) else v for k, v in row.items()} for row in rows]
    return pd.DataFrame(texts)


def matching(frame: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    """Returns the rows of a table that have the cells of `where`, see `ComparedColumn`."""
    for name, value in where.items():
        if name not in frame:
            return frame.iloc[:0]
        cells = frame[name]
        if value == "":
            frame = frame[cells.isna()]
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            close = pd.to_numeric(cells, errors="coerce").map(lambda cell, v=value: math.isclose(cell, v, rel_tol=1e-9))
            frame = frame[close.astype(bool)]
        else:
            frame = frame[cells.notna() & cells.astype(str).str.fullmatch(_expression(str(value)), case=False)]
    return frame


def _expression(text: str) -> str:
    """Returns a regular expression: `*` stands for anything, `{NAME}` at the beginning for the folder of a step.

    Of several texts with `|` between them any will do.
    """
    folder, name, rest = "", _NAMED.match(text), text
    if name:
        folder, rest = rf"(?:.*[\\/])?{re.escape(name[1])}", text[name.end() :]
    return folder + "(?:" + "|".join(".*".join(map(re.escape, one.split("*"))) for one in rest.split("|")) + ")"


def published_cell_text(cell: Any, digits: int) -> str:
    """Returns a cell for readers, numbers with so many decimals."""
    if pd.isna(cell):
        return NOTHING
    return cell if isinstance(cell, str) else f"{float(cell):.{digits}f}"

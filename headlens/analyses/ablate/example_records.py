"""What a model did on every single example, so that anything can be computed from it afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.analyses.ablate.task_examples import Chosen, Examples
from headlens.tasks.task import Floats, Task

RANKING, EVALUATION = "ranking", "evaluation"
Arrays = Mapping[str, npt.NDArray[Any]]


def example_table(examples: Examples, intact: Floats, ranked_on: Chosen | None = None) -> pd.DataFrame:
    """A row for every example: its place, its id, the part it belongs to, and the record of the whole model.

    Args:
        examples: n of them.
        intact: (n, k), see `Task.columns`.
        ranked_on: which examples heads were chosen on, (n,); None without pruning.
    """
    part = "" if ranked_on is None else np.where(ranked_on, RANKING, EVALUATION)
    table = record_table(examples.task, [p.example.id for p in examples.prepared], intact)
    table.insert(list(table).index("id") + 1, "part", part)
    return table


def record_table(task: Task, ids: Sequence[str], records: Floats) -> pd.DataFrame:
    """A row for every example: its place, its id and its record (n, k)."""
    keys = {"task": task.name, "example": range(len(ids)), "id": list(ids)}
    return pd.DataFrame(keys | dict(zip(task.columns, records.T, strict=True)))


def write_arrays(arrays: Arrays, path: Path) -> None:
    """Write arrays as one compressed .npz file, the same bytes for the same arrays."""
    with path.open("wb") as file:  # given a path, numpy would choose the suffix
        np.savez_compressed(file, allow_pickle=False, **dict(arrays))

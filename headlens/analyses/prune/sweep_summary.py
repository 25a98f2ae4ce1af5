"""What a sweep over λ gave: how many heads are left where, and what the task is like then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from headlens.analyses.prune.sweep_runs import gated_runs
from headlens.heads import STACKS
from headlens.plots.head_grid import Grid, float_column

UNPRUNED = "unpruned"
TRAINED, SCRATCH = "trained", "scratch"
Key = tuple[str, ...]


def sweep_stacks(sweep: pd.DataFrame) -> list[str]:
    """The stacks that the models of a sweep have."""
    return [stack for stack in STACKS if np.isfinite(float_column(sweep, f"heads_{stack}")).any()]


def count_heads_left(sweep: pd.DataFrame, stacks: Sequence[str] = STACKS) -> Grid:
    """How many heads each row has left in some stacks together; those that a model lacks count as none."""
    counts: Grid = np.nansum([float_column(sweep, f"heads_{stack}") for stack in stacks], axis=0)
    return counts


def is_unpruned(sweep: pd.DataFrame) -> pd.Series[bool]:
    """Returns which rows of `sweep.csv` are those of the unpruned model."""
    return sweep["run"].astype(str) == UNPRUNED


def main_rows(sweep: pd.DataFrame) -> pd.DataFrame:
    """The row of the main metric of every run: its first."""
    return sweep.drop_duplicates(["model", "run", "init"])


def architectures(sweep: pd.DataFrame) -> list[Key]:
    """What the rows of a run and of the same architecture trained from scratch have in common, and no others.

    Their names may differ: λ and the heads that are left tell which belong together; of several such runs the first
    belongs to the first.
    """
    counts = [sweep[f"heads_{stack}"].astype(str) for stack in STACKS if f"heads_{stack}" in sweep]
    removed = [sweep["removed"].fillna("").astype(str)] if "removed" in sweep else []
    parts = [sweep["model"].astype(str), sweep["penalty"].astype(str), *counts, *removed]
    table = pd.concat(parts, axis=1, ignore_index=True)
    keyed = table.assign(init=sweep["init"], metric=sweep["metric"])
    nth = keyed.groupby([*keyed.columns], dropna=False)
    return [tuple(map(str, row)) for row in table.assign(nth=nth.cumcount()).itertuples(index=False)]


def gated_stacks(sweep: pd.DataFrame, gates: pd.DataFrame | None) -> list[Key]:
    """The stacks that had gates, for every row; for those of the unpruned model none.

    Where `gates.csv` does not know the run, they are those of the run whose architecture it has, or all that lost heads
    in any run of the model.
    """
    runs = [] if gates is None else gated_runs(gates)
    known = {(stacks_of_run.model, stacks_of_run.run): tuple(stacks_of_run.stacks) for stacks_of_run in runs}
    keys, names = architectures(sweep), list(zip(sweep["model"].astype(str), sweep["run"].astype(str), strict=True))
    twins = {key: known[name] for key, name in zip(keys, names, strict=True) if name in known}
    lost = {str(model): _lost(rows) for model, rows in sweep.groupby("model", sort=False)}
    candidates = [_first(known.get(name), twins.get(key), lost[name[0]]) for key, name in zip(keys, names, strict=True)]
    return [
        () if unpruned else stacks_of_run
        for unpruned, stacks_of_run in zip(is_unpruned(sweep), candidates, strict=True)
    ]


def _first(*candidates: Key | None) -> Key:
    return next((candidate for candidate in candidates if candidate), ())


def _lost(rows: pd.DataFrame) -> Key:
    """The stacks in which some run has fewer heads than another; all stacks where there is none."""
    counts: Mapping[str, Grid] = {stack: float_column(rows, f"heads_{stack}") for stack in sweep_stacks(rows)}
    stacks = tuple(stack for stack, heads_left in counts.items() if np.nanmin(heads_left) < np.nanmax(heads_left))
    return stacks or tuple(counts)

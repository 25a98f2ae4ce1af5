"""The runs of a sweep over λ: in order, with their names, what their gates were when, and how many heads they left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.heads import STACKS
from headlens.plots.head_grid import Grid, float_column

PENALTY_LETTERS = 8
_LETTERS = 24  # of the name of a run or model
UNPRUNED = "unpruned"
Key = tuple[str, ...]


class GatedRun(NamedTuple):
    """The gates of one run.

    Args:
        model: whose heads have them.
        run: its name.
        penalty: λ; NaN where it is not known.
        label: its λ, with its name where that alone does not tell it from the others of the model.
        rows: of `gates.csv`.
        several: whether there are runs of several models.
    """

    model: str
    run: str
    penalty: float
    label: str
    rows: pd.DataFrame
    several: bool = False

    @property
    def name(self) -> str:
        """Its label, below the name of its model where there are several."""
        return f"{shortened(self.model)}\n{self.label}" if self.several else self.label

    @property
    def stacks(self) -> list[str]:
        """The stacks with gates, in the order encoder, decoder, cross."""
        return [stack for stack in STACKS if (self.rows["stack"] == stack).any()]

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """The updates at which gates were logged, ascending."""
        return np.unique(self.rows["step"].to_numpy(np.int64))

    def at(self, step: float) -> pd.DataFrame:
        """The rows of the last update that is not after `step`, or of the first one."""
        steps = self.steps
        step_before = steps[max(0, int(np.searchsorted(steps, step, side="right")) - 1)]
        at_step: pd.DataFrame = self.rows[self.rows["step"] == step_before]
        return at_step

    @property
    def last(self) -> pd.DataFrame:
        """Rows of `gates.csv` at the last update of the run, one for each head."""
        return self.at(np.inf)


def gated_runs(gates: pd.DataFrame) -> list[GatedRun]:
    """Split `gates.csv` by run: models in order of appearance, runs of each by λ from weak to strong."""
    rows = gates.assign(model=_words(gates, "model"), run=_words(gates, "run"), step=float_column(gates, "step"))
    runs = []
    for (model, run), rows_of_run in rows[rows["step"].notna()].groupby(["model", "run"], sort=False):
        known = float_column(rows_of_run, "penalty")
        penalty = float(next(iter(known[np.isfinite(known)]), np.nan))
        runs.append(GatedRun(str(model), str(run), penalty, "", rows_of_run))
    models = list(dict.fromkeys(run.model for run in runs))
    runs.sort(key=lambda run: (models.index(run.model), np.isnan(run.penalty), run.penalty))
    penalties = {model: [run.penalty for run in runs if run.model == model] for model in models}
    return [
        run._replace(label=penalty_label(run.run, run.penalty, penalties[run.model]), several=len(models) > 1)
        for run in runs
    ]


def penalty_label(run: str, penalty: float, others: Sequence[float]) -> str:
    """The λ of a run, with its name where others of the model have the same λ, or its name alone where it has none."""
    if np.isnan(penalty):
        return shortened(run)
    return f"λ = {penalty:.4g}" + (f", {shortened(run)}" if list(others).count(penalty) > 1 else "")


def penalty_text(run: str, penalty: float) -> str:
    """λ in at most `PENALTY_LETTERS` letters, or the beginning of the name of a run that has none."""
    return f"{penalty:.3g}" if np.isfinite(penalty) else shortened(run)[:PENALTY_LETTERS]


def shortened(name: str) -> str:
    """A name in one line of at most some letters; not yet safe to draw."""
    line = " ".join(name.split())
    return line if len(line) <= _LETTERS else line[: _LETTERS - 1] + "…"


def open_heads(rows: pd.DataFrame) -> int:
    """How many heads are left: their gate is not 0."""
    return int((float_column(rows, "gate") > 0).sum())


def snapshots(runs: Sequence[GatedRun], most: int = 5) -> list[int]:
    """Some updates that show how gates close: the first, the last, and between them some about equally far apart.

    Half of the distance between two updates is time, half is by how much gates moved.
    """
    steps = np.unique(np.concatenate([run.steps for run in runs])) if runs else np.array([], np.int64)
    if len(steps) <= most:
        return [int(step) for step in steps]
    moved = np.mean([np.interp(steps, run.steps, _moved(run)) for run in runs], axis=0)
    way = (steps - steps[0]) / (steps[-1] - steps[0]) + moved / (moved[-1] or 1.0)
    nearest = [int(np.abs(way - goal).argmin()) for goal in np.linspace(way[0], way[-1], most)]
    return [int(steps[place]) for place in sorted({*nearest, len(steps) - 1})]


def _moved(run: GatedRun) -> Grid:
    """The total change of gates up to each logged update."""
    table = run.rows.assign(gate=float_column(run.rows, "gate")).pivot_table(
        index="step", columns=["stack", "layer", "head"], values="gate", dropna=False
    )
    sizes = np.nan_to_num(np.abs(np.diff(table.reindex(run.steps).to_numpy(np.float64), axis=0)))
    distance: Grid = np.concatenate([[0.0], np.cumsum(sizes.sum(axis=1))])
    return distance


def _words(frame: pd.DataFrame, column: str) -> pd.Series:
    return frame[column].fillna("").astype(str) if column in frame else pd.Series("", index=frame.index)


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
    known: dict[Key, Key] = {(run.model, run.run): tuple(run.stacks) for run in runs}
    keys, names = architectures(sweep), list(zip(sweep["model"].astype(str), sweep["run"].astype(str), strict=True))
    twins = {key: known[name] for key, name in zip(keys, names, strict=True) if name in known}
    lost: dict[str, Key] = {}
    for model, rows in sweep.groupby("model", sort=False):
        counts = {stack: float_column(rows, f"heads_{stack}") for stack in sweep_stacks(rows)}
        # All stacks where none lost heads.
        fewer = tuple(stack for stack, left in counts.items() if np.nanmin(left) < np.nanmax(left))
        lost[str(model)] = fewer or tuple(counts)
    return [
        () if unpruned else known.get(name) or twins.get(key) or lost[name[0]]
        for unpruned, key, name in zip(is_unpruned(sweep), keys, names, strict=True)
    ]

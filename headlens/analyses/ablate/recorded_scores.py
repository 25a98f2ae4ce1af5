"""What heads are worth as another run measured it: their relevance, or the gates that a training left open."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.errors import OptionError, counted
from headlens.heads import KEY_COLUMNS, Head
from headlens.models.loading import LoadedModel
from headlens.plots.head_grid import float_column
from headlens.relevance_propagation.shares import described, requested_rule
from headlens.runs.reading import read_recorded
from headlens.tables.prune_tables import GATES
from headlens.tables.relevance_tables import RELEVANCE
from headlens.tables.table_check import check_table
from headlens.tables.table_schema import TableSchema


@dataclass(frozen=True)
class RecordedScores(ABC):
    """What the heads of a model are worth, as another run measured it.

    Args:
        worth: of every head, higher for more.
        measured: on what and how, in words.

    Attributes:
        schema: of the table that is read; its name is that of the option, too.
        did: what the run did, in words.
        runs: which runs have that table.
        command: that measures a model.
        number: what is known of a head.
        complete: a run that knows it of all heads.
    """

    worth: Mapping[Head, float]
    measured: str
    schema: ClassVar[TableSchema]
    did: ClassVar[str]
    runs: ClassVar[str]
    command: ClassVar[str]
    number: ClassVar[str]
    complete: ClassVar[str]

    @classmethod
    def of(cls, folder: Path, loaded: LoadedModel, heads: tuple[Head, ...]) -> Self:
        """Reads the run that measured a model.

        Args:
            folder: of the run.
            loaded: the model; the run's has the same weights.
            heads: all that may be pruned.

        Raises:
            InputError: if the folder is no finished run with such a table, or the table is damaged.
            OptionError: if it measured no model with these weights, or not all of the heads.
        """
        name = cls.schema.name
        run, option = read_recorded(folder, folder.name), f"--strategy-args {name} {folder}"
        if not run.finished or name not in run.tables:
            raise OptionError(f"{option} is not a finished run that {cls.did}.", f"Name a run of {cls.runs}.")
        check_table(cls.schema, run.tables[name], folder / f"{name}.csv")
        same = [model for model in run.models if run.weights_of(model) == loaded.weight_hash]
        if not same:
            raise OptionError(
                f"{option} measured {', '.join(run.models)}, whose weights are not those of {loaded.name}.",
                f"Measure this model: {cls.command} {loaded.name}.",
            )
        table = run.tables[name]
        numbers, how = cls.read(table[table["model"] == same[0]])
        worth = {head: number for head, number in numbers.items() if np.isfinite(number)}
        if missing := [head for head in heads if head not in worth]:
            raise OptionError(
                f"{option} has no {cls.number} of {counted(len(missing), 'head')} of {len(heads)}, such as "
                f"{missing[0]}.",
                f"Name a run {cls.complete}, or leave --strategy-args {name} out.",
            )
        return cls(worth, how + (f" on {run.corpus_name}" if run.corpus_name else ""))

    @staticmethod
    @abstractmethod
    def read(rows: pd.DataFrame) -> tuple[dict[Head, float], str]:
        """What heads are worth by the rows of one model, and how that was measured."""

    def __call__(self, removed: frozenset[Head]) -> Mapping[Head, float]:
        """The worth of the heads that are left, which is that in the whole model."""
        return {head: number for head, number in self.worth.items() if head not in removed}


def by_head(rows: pd.DataFrame, numbers: npt.NDArray[np.float64]) -> dict[Head, float]:
    """The mean of the numbers of each head, in the order of the rows."""
    found: dict[Head, list[float]] = {}
    for (stack, layer, head), number in zip(rows[KEY_COLUMNS].itertuples(index=False), numbers.tolist(), strict=True):
        found.setdefault(Head(stack, int(layer), int(head)), []).append(number)
    return {head: float(np.mean(values)) for head, values in found.items()}


class RecordedRelevance(RecordedScores):
    """The relevance of heads by the size of `raw`, whatever its sign."""

    schema, number = RELEVANCE, "raw relevance"
    did, runs = "measured relevance", "headlens relevance, or of headlens classify --relevance"
    command, complete = "headlens relevance", "that measured all heads that the task uses"

    @staticmethod
    def read(rows: pd.DataFrame) -> tuple[dict[Head, float], str]:
        """The sizes by the rule that was asked for."""
        _, chosen = requested_rule(rows)
        sizes = np.abs(float_column(chosen, "raw"))
        return by_head(chosen, sizes), described(chosen)


class RecordedGates(RecordedScores):
    """The L0 gates of a sweep: how open they are after the last update, on average over its penalties."""

    schema, number = GATES, "gate"
    did, runs = "trained gates", "headlens prune"
    command, complete = "headlens prune", "with gates in all stacks that the task uses"

    @staticmethod
    def read(rows: pd.DataFrame) -> tuple[dict[Head, float], str]:
        """Mean probabilities of open gates, which tell closed ones apart; the gates where these are not known."""
        last = rows[rows["step"] == rows.groupby("run", sort=False)["step"].transform("max")]
        known = float_column(last, "p_open")
        opened = known if np.isfinite(known).all() else float_column(last, "gate")
        return by_head(last, opened), f"the last update, {counted(last['run'].nunique(), 'training run')}"

"""The trainings of a sweep: followed, measured and remembered, so that an interrupted sweep goes on with the next."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from transformers import PreTrainedModel

from headlens.errors import ResumeError, read_errors
from headlens.files import atomic_path
from headlens.findings.result_notes import cluster_notes, left_out_notes
from headlens.findings.verdicts import UNCORRECTED, margin_of
from headlens.learning.hyperparameters import TrainingOptions
from headlens.learning.loop import TrainingData
from headlens.learning.training_run import CheckpointFolder, measure, save_checkpoint
from headlens.learning.training_set import TrainingCallbacks, TrainingSet
from headlens.models.loading import LoadedModel, tokenizer_of
from headlens.nested_text import conform, parse_json
from headlens.pages.formatting import DIFFERENCE
from headlens.runs.processes import DeferredSignals
from headlens.runs.run import FinishedRun, Run
from headlens.statistics.bootstrap import Draws
from headlens.statistics.non_inferiority import Margin
from headlens.tasks.evaluation import EvaluationOptions, paired_comparison
from headlens.tasks.reader import Reader
from headlens.tasks.skill import skill_of
from headlens.tasks.task import Floats, Task

Record = dict[str, Any]
Kept = TypeVar("Kept")
MODELS = "models"  # folder of the checkpoints
COMPARED = (*DIFFERENCE, *UNCORRECTED)


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What others are compared with, as JSON can hold it.

    Args:
        records: of every example, (examples, k).
        keys: of the examples for the bootstrap.
        lacks_skill: whether the model is not significantly better than guesses, see `skill_of`.
    """

    records: list[list[float]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    lacks_skill: bool = False


@dataclass(frozen=True, kw_only=True)
class TrainedResult(Baseline):
    """A model that was measured, also as a baseline of others; everything in it can be written as JSON.

    Args:
        metrics: rows, with `COMPARED` where there is a baseline.
        notes: what to know about them.
    """

    metrics: list[Record] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Trainings:
    """What all trainings of one sweep share.

    Args:
        run: the sweep, under way.
        training: says how many tokens are measured together, and with which seed.
        longest: a limit of tokens of what is measured on, below the model's own.
        margin: the smallest loss of a metric that matters; None for the usual one.
        tests: how many trainings are compared with one baseline.
    """

    run: Run
    training: TrainingOptions
    longest: int | None = None
    margin: float | None = None
    tests: int = 1

    def remembered(self, name: str, make: Callable[[], Kept], kind: type[Kept]) -> Kept:
        """What was kept of a training that has finished, or what it gives now; the same in all processes.

        The state of a training that is done is large, and goes.

        Args:
            name: unique in the sweep.
            make: trains; only what the first process gives counts.
            kind: a dataclass of what can be written as JSON.

        Raises:
            ResumeError: if what was kept cannot be read.
        """
        run, path = self.run, self.run.kept(f"{name}.json")
        if run.processes.share(path.is_file()):
            with read_errors(path, "cannot be read", "Start again with --overwrite.", ResumeError):
                outcome = cast("Kept", conform(parse_json(path.read_text(encoding="utf-8")), kind))
        else:
            outcome = run.processes.share(make())
            if run.writes:
                with atomic_path(path) as temporary:
                    temporary.write_text(json.dumps(vars(outcome), default=vars), encoding="utf-8")
            run.processes.gather(None)
        if run.writes:
            shutil.rmtree(self._state(name), ignore_errors=True)
        return outcome

    @contextmanager
    def followed(
        self, name: str, text: str, data: TrainingData, training: TrainingOptions | None = None
    ) -> Iterator[TrainingCallbacks]:
        """Progress of a training, and where its state is kept until it is remembered as a whole.

        Args:
            name: unique in the sweep.
            text: description for the user.
            data: what is learned from.
            training: that of this one, where it differs.
        """
        processes = self.run.processes
        total = TrainingCallbacks(processes=processes.count).updates(data, training or self.training)
        with DeferredSignals() as signals, self.run.reporter.progress(f"{text} (updates)", total) as advance:
            checkpoint = CheckpointFolder(self._state(name), signals, processes, tell=self.run.tell)
            yield TrainingCallbacks(checkpoint, advance, processes.count)

    def compared(
        self, loaded: LoadedModel, training_set: TrainingSet, model: PreTrainedModel, baseline: Baseline | None = None
    ) -> TrainedResult:
        """The metrics that are reported, and what to know about them; in the first process, which speaks for all.

        Each metric also less that of a baseline on the same examples, with a paired interval and p-value.

        Args:
            loaded: gives the model's name and its tokenizer.
            training_set: what it was trained on.
            model: what is measured.
            baseline: what it is compared with; None leaves differences out.
        """
        if not self.run.writes or training_set.held is None:
            return TrainedResult()
        options = EvaluationOptions(self.training.batch_tokens, self.longest, seed=self.training.seed)
        result = measure(self.run, replace(loaded, model=model), training_set.task, training_set.held, options)
        assert result.evaluation is not None
        records, keys = result.evaluation.records, result.evaluation.keys
        rows: list[Any] = result.metrics[result.metrics["metric"].isin(training_set.task.reported)].to_dict("records")
        for row in rows:
            metric = row["metric"]
            row["chance"] = training_set.task.chance(records, metric, result.evaluation.labels)
            row["same_answer"] = training_set.task.constant(records, metric)
            row["answer_share"] = training_set.task.answer_share(records, metric)
            if baseline is not None:
                row.update(self.difference(training_set.task, metric, records, keys, baseline, row["chance"]))
        limit = Reader.of(loaded, training_set.task.labels, self.longest).limit_text
        left_out = left_out_notes(result.evaluation.counts, training_set.held.name, limit)
        notes = [*left_out, *result.notes, *cluster_notes(keys)]
        lacks_skill = skill_of(training_set.task, records, result.evaluation.labels).lacking
        return TrainedResult(
            metrics=rows, notes=notes, records=records.tolist(), keys=list(keys), lacks_skill=lacks_skill
        )

    def difference(
        self,
        task: Task,
        metric: str,
        records: Floats,
        keys: Sequence[str],
        baseline: Baseline,
        chance: float | None,
    ) -> dict[str, float]:
        """Computes `compared_with` of a metric; nothing if examples differ.

        Args:
            task: of the records.
            metric: its name.
            records: of every example, (examples, k).
            keys: of the examples.
            baseline: what they are compared with.
            chance: what guesses give of the metric on these examples; None where that is not known.
        """
        # Models read different examples only if a checkpoint was exchanged while the run was interrupted.
        if tuple(baseline.keys) != tuple(keys):
            return {}
        draws = Draws.of(keys, EvaluationOptions().replicates, self.training.seed)
        tested = partial(margin_of, metric, requested=self.margin, tests=self.tests, guesses=chance)
        return compared_with(baseline, task, metric, records, draws, tested)

    def saved(self, loaded: LoadedModel, model: PreTrainedModel, name: str) -> str:
        """Save a model with the tokenizer of the one that it came from; its folder, below that of the run."""
        place = f"{MODELS}/{name}"
        if self.run.writes:
            with self.run.reporter.status("saving"):
                save_checkpoint(self.run, model, tokenizer_of(loaded), place)
        return place

    def _state(self, name: str) -> Path:
        return self.run.kept(f"training-{name}")


def compared_with(
    baseline: Baseline,
    task: Task,
    metric: str,
    records: Floats,
    draws: Draws,
    tested: Callable[[float], Margin],
) -> dict[str, float]:
    """Computes a metric less that of a baseline, paired by example, and whether the loss is below a margin: `COMPARED`.

    Of two models that give every example the same answer, and beside a model that guesses, no test of the loss says
    anything: it is NaN.

    Args:
        baseline: records of the same examples.
        task: of the records.
        metric: its name.
        records: of every example, (examples, k).
        draws: of the examples.
        tested: gives the margin, from the metric of the baseline, see `headlens.findings.verdicts.margin_of`.
    """
    theirs = np.array(baseline.records, dtype=np.float64).reshape(records.shape)
    margin = tested(task.value(theirs, metric=metric))
    paired = paired_comparison(task, metric, theirs, draws, margin).of(records)
    values = (paired.delta, paired.low, paired.high, paired.p_value, paired.p_margin, margin.size, paired.n_to_decide)
    compared = dict(zip(COMPARED, values, strict=True))
    silent = baseline.lacks_skill or (task.constant(theirs, metric) and task.constant(records, metric))
    return compared | dict.fromkeys(UNCORRECTED, np.nan) if silent else compared


def run_name(strength: float) -> str:
    """The name of a run in tables and folders, from its λ."""
    short = f"{strength:.10g}"
    return f"penalty-{short if float(short) == strength else repr(strength)}"


def notes_once(known: Iterable[str], notes: Iterable[tuple[str, Iterable[str]]]) -> list[str]:
    """The notes of several models; those of the first, such as what guessing gives, are not repeated.

    Args:
        known: notes of the first.
        notes: of the others, by name.
    """
    first = list(dict.fromkeys(known))
    return first + [f"{name}: {note}" for name, run_notes in notes for note in run_notes if note not in first]


def training_notes(notes: Sequence[tuple[str, list[str]]]) -> list[str]:
    """The notes of trainings that stand beside each other; a note that all of them have appears once.

    Args:
        notes: of each, by name.
    """
    known = [run_notes for _, run_notes in notes if run_notes]
    common = [note for note in known[0] if all(note in other for other in known)] if known else []
    return notes_once(common, notes)


@dataclass(frozen=True)
class SweepRun(FinishedRun):
    """What a sweep gave.

    Args:
        main: which tables tell the result in short; none for all.
    """

    main: tuple[str, ...] = ("sweep",)

    def summary(self) -> dict[str, Any]:
        """Returns the folder, the rows of the main tables and the notes as a dictionary, which `--json` prints."""
        main_tables = {name: self.tables[name].astype(object) for name in self.main or self.tables}
        rows = {name: table.where(table.notna(), None).to_dict("records") for name, table in main_tables.items()}
        return {"out": str(self.folder), **rows, "notes": self.notes}

"""Fine-tuning under attention masks: one training for every mask and seed, measured under the mask, and remembered."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
import torch
from transformers import PreTrainedModel

from headlens.attention.kept import keeping
from headlens.errors import OptionError
from headlens.experiments.fine_tune import freeze_unused
from headlens.experiments.gate_outcome import Record, remembered
from headlens.experiments.interrupts import Deferred
from headlens.experiments.lesson import Lesson
from headlens.experiments.lesson_data import Opened
from headlens.experiments.mask_cases import Case
from headlens.experiments.masked import read_layers
from headlens.experiments.prune import How, alike
from headlens.experiments.run import Run
from headlens.experiments.training_keeper import TrainingKeeper
from headlens.experiments.training_run import measure
from headlens.interventions.attention_mask import AttentionMask
from headlens.interventions.masking import MaskEdit
from headlens.models.loading import LoadedModel
from headlens.tasks.evaluation import EvaluationOptions
from headlens.training.loop import Trainer
from headlens.training.objectives import moved
from headlens.training.options import TrainingOptions

MASKS_COLUMNS = [
    *("pattern", "layers", "diagonal", "degree_global", "degree_random", "degree_neighbour", "sparsity", "task"),
    *("metric", "seed", "value", "ci_low", "ci_high", "control", "n", "model"),
]


def under(model: PreTrainedModel, case: Case) -> AbstractContextManager[None]:
    """Inside, a model runs under the mask of a case."""
    source = case.source
    return nullcontext() if source is None else keeping(model, MaskEdit(source, read_layers(case.layers)))


def fine_tuned(
    loaded: LoadedModel, lesson: Lesson, case: Case, training: TrainingOptions, how: How | None = None
) -> PreTrainedModel:
    """A copy of a model that was trained under a mask; it does not hold it.

    Args:
        loaded: a model with the head that the task needs; it stays as it is.
        lesson: what it is trained on.
        case: the mask, and the seed.
        training: length, step size, rhythm; the seed is that of the case.
        how: progress, and what is kept for going on after an interruption.

    Raises:
        OptionError: if the mask does not fit the model.
    """
    how, training = how or How(), replace(training, seed=case.seed)
    model = copy.deepcopy(loaded.model)
    network = lesson.task.network(model)
    torch.manual_seed(case.seed)
    with under(model, case):
        freeze_unused(network.eval(), lesson.objective, moved(lesson.data.batch((0,), 0), loaded.device))
        Trainer(training, lesson.objective, keeper=how.keeper, progress=how.progress).fit(network, lesson.data)
    model.eval()
    return model


@dataclass(frozen=True)
class CaseOutcome:
    """What one training gave; everything in it can be written as JSON.

    Args:
        run: its name.
        metrics: of the model under its mask on what was held out, a row each.
        notes: what to know about them.
    """

    run: str
    metrics: list[Record] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class MaskStudy:
    """All trainings of a run.

    Args:
        run: under way.
        opened: gives the model with a head, and what it is taught, for a seed.
        training: of every training.
        n: tokens for which sparsities are counted.
        longest: a limit of tokens of what is measured on, below the model's own.
    """

    run: Run
    opened: Callable[[int], Opened]
    training: TrainingOptions
    n: int = 128
    longest: int | None = None

    def table(self, wanted: list[Case]) -> tuple[pd.DataFrame, list[str]]:
        """`masks.csv`, and what to know about it.

        Raises:
            OptionError: if a mask does not fit the model.
        """
        rows, opened, seed = [], None, None
        notes: list[str] = []
        known: list[str] = []
        for case in wanted:
            if opened is None or case.seed != seed:
                opened, seed = self.opened(case.seed), case.seed
                self._check(opened, wanted)
                notes += [*opened.notes, *(f"New weights, random before training: {name}." for name in opened.fresh)]
            outcome = self._remembered(opened, case)
            # What holds of the first, such as what guessing gives, is told of all.
            known = known or outcome.notes
            notes += [note if note in known else f"{case.name}: {note}" for note in outcome.notes]
            rows += [self._row(case, own) for own in outcome.metrics]
        return pd.DataFrame(rows, columns=MASKS_COLUMNS), list(dict.fromkeys(notes))

    def _check(self, opened: Opened, wanted: list[Case]) -> None:
        """What is wrong with a mask is told before anything is trained."""
        for case in wanted:
            source = case.source
            if isinstance(source, AttentionMask) and source.length < self.n:
                raise OptionError(
                    f"The mask {case.pattern} is for {source.length} tokens, fewer than --length {self.n}.",
                    f"Give --length {source.length}.",
                )
            with under(opened.loaded.model, case):
                pass

    def _remembered(self, opened: Opened, case: Case) -> CaseOutcome:
        found = remembered(self.run, case.name, lambda: self._trained(opened, case), CaseOutcome)
        if self.run.writes:
            shutil.rmtree(self.run.kept(f"training-{case.name}"), ignore_errors=True)
        return found

    def _trained(self, opened: Opened, case: Case) -> CaseOutcome:
        with self._followed(opened.lesson, case) as how:
            model = fine_tuned(opened.loaded, opened.lesson, case, self.training, how)
        if not self.run.writes or opened.lesson.held is None:
            return CaseOutcome(case.name)
        options = EvaluationOptions(self.training.batch_tokens, self.longest, seed=self.training.seed)
        with under(model, case):
            lesson = opened.lesson
            assert lesson.held is not None
            found = measure(self.run, alike(opened.loaded, model), lesson.task, lesson.held, options)
        rows: list[Any] = found.metrics[found.metrics["metric"].isin(lesson.metrics)].to_dict("records")
        return CaseOutcome(case.name, rows, found.notes)

    @contextmanager
    def _followed(self, lesson: Lesson, case: Case) -> Iterator[How]:
        processes = self.run.processes
        total = How(processes=processes.count).updates(lesson.data, self.training)
        with Deferred() as signals, self.run.reporter.progress(f"{case.name} (updates)", total) as advance:
            yield How(
                TrainingKeeper(self.run.kept(f"training-{case.name}"), signals, processes), advance, processes.count
            )

    def _row(self, case: Case, measured: Record) -> Record:
        own = {k: measured[k] for k in ("task", "metric", "value", "ci_low", "ci_high", "n", "model")}
        return {
            "pattern": case.pattern,
            "layers": case.layers or "all",
            "diagonal": case.diagonal != "dropped",
            **case.degrees(),
            "sparsity": case.sparsity(self.n),
            "seed": case.seed,
            "control": case.diagonal,
            **own,
        }

"""Masks for several strengths of the penalty: one training each, measured, saved, and remembered."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np
import pandas as pd
from transformers import PreTrainedModel

from headlens.analyses.dam.figures import NO_DIAGONAL
from headlens.analyses.dam.report import PLAIN
from headlens.attention_masks.named_masks import UNMASKED
from headlens.findings.verdicts import with_family_verdicts
from headlens.learning.hyperparameters import TrainingOptions
from headlens.learning.mask_learning import (
    MASKS,
    LearnedMask,
    MaskLearningOptions,
    learn_mask,
    load_mask,
    save_mask,
    trains_weights,
    unmasked,
)
from headlens.learning.sweep import Baseline, Record, TrainedResult, Trainings, run_name
from headlens.learning.training_set import TrainingSet
from headlens.models.loading import LoadedModel
from headlens.runs.run import Run
from headlens.tables.mask_tables import IMPORTANCE, SWEEP_OF_MASKS


@dataclass(frozen=True)
class MaskOutcome(TrainedResult):
    """What one run gave; only models that others are compared with have records and keys.

    Args:
        run: its name, such as `penalty-0.1`; `plain` for the model as it was, `unmasked` for the same training
            without a mask.
        penalty: λ; None without a mask.
        sparsity: share of masked positions of all heads, of the layers that are masked.
        log: rows of the training's log.
        mask: the file of the mask, below the folder of the run.
        checkpoint: the folder of the model, there too.
        diagonal: whether a token may look at itself.
        importance: mean P by class of positions over the training, see `LearnedMaskResult`, a row each.
    """

    run: str
    penalty: float | None = None
    sparsity: float = 0.0
    log: list[Record] = field(default_factory=list)
    mask: str | None = None
    checkpoint: str | None = None
    diagonal: bool = True
    importance: list[Record] = field(default_factory=list)


@dataclass(frozen=True)
class DamSweep:
    """All runs of one sweep.

    Args:
        run: under way.
        loaded: the model.
        training_set: what it is trained on further.
        lambdas: strengths of the penalty.
        options: of every mask.
        training: of every run.
        controls: whether each mask is learned without the diagonal, too.
        margin: the smallest loss of a metric that matters; None for the usual one.
    """

    run: Run
    loaded: LoadedModel
    training_set: TrainingSet
    lambdas: tuple[float, ...]
    options: MaskLearningOptions
    training: TrainingOptions
    controls: bool = False
    margin: float | None = None

    @property
    def trainings(self) -> Trainings:
        """Settings shared by all training runs of the sweep: the run, its training options and the mask's length."""
        tests = len(set(self.lambdas)) * (1 + self.controls)
        return Trainings(self.run, self.training, self.options.mask.longest, self.margin, tests)

    def outcomes(self) -> list[MaskOutcome]:
        """The model as it was, the same training without a mask unless the mask alone is trained, then every run.

        Runs with a mask are compared with the last of those without one, and as controls without the diagonal also with
        the same run with it.
        """
        remembered = self.trainings.remembered
        outcomes = [remembered(PLAIN, self._plain, MaskOutcome)]
        if trains_weights(self.loaded, self.training_set, self.options):
            outcomes.append(remembered(UNMASKED, self._unmasked, MaskOutcome))
        baseline = outcomes[-1]
        for strength in dict.fromkeys(self.lambdas):
            name = run_name(strength)
            outcomes.append(remembered(name, partial(self._learned, name, strength, baseline), MaskOutcome))
            if self.controls:
                name += NO_DIAGONAL
                outcomes.append(remembered(name, partial(self._control, name, outcomes[-1], baseline), MaskOutcome))
        return outcomes

    def tables(self, outcomes: list[MaskOutcome]) -> dict[str, pd.DataFrame]:
        """Builds the tables `sweep`, `sparsity`, `positions`, `importance` and `log` from all training runs.

        Args:
            outcomes: of each training run.
        """
        masks = [(o, load_mask(self.run.path / MASKS / o.run)) for o in outcomes if o.mask]
        lengths, places = self.training_set.text_lengths(), (self.options.window, self.training_set.learned_lengths)
        of_texts = {o.run: m.sparsity_of(lengths) for o, m in masks}
        fields = ("run", "penalty", "sparsity", "mask", "checkpoint", "diagonal")
        rows = [
            row | {k: getattr(o, k) for k in fields} | {"sparsity_texts": of_texts.get(o.run, 0.0)}
            for o in outcomes
            for row in o.metrics
        ]
        importance, log = (
            [{"run": o.run, "penalty": o.penalty, **row} for o in outcomes for row in getattr(o, name)]
            for name in ("importance", "log")
        )
        sweep = SWEEP_OF_MASKS.frame(rows)
        return {
            "sweep": with_family_verdicts(sweep),
            "sparsity": pd.concat([_with_penalty(o, m.sparsities()) for o, m in masks], ignore_index=True),
            "positions": pd.concat([_with_penalty(o, m.positions(*places)) for o, m in masks], ignore_index=True),
            "importance": IMPORTANCE.frame(importance),
            "log": pd.DataFrame(log),
        }

    def _plain(self, name: str = PLAIN, model: PreTrainedModel | None = None) -> MaskOutcome:
        measured = self.trainings.compared(self.loaded, self.training_set, model or self.loaded.model)
        return MaskOutcome(name, **vars(measured))

    def _unmasked(self) -> MaskOutcome:
        with self.trainings.followed(UNMASKED, "no mask", self.training_set.data) as callbacks:
            model = unmasked(self.loaded, self.training_set, self.options, self.training, callbacks)
        plain = self._plain(UNMASKED, model)
        return replace(plain, checkpoint=self.trainings.saved(self.loaded, model, UNMASKED))

    def _control(self, name: str, compared: MaskOutcome, baseline: Baseline) -> MaskOutcome:
        """Measures the same mask without the diagonal, also as a difference from the run with it."""
        assert compared.penalty is not None
        options = replace(self.options, mask=replace(self.options.mask, diagonal=False))
        outcome = replace(self, options=options)._learned(name, compared.penalty, baseline)
        records, keys = np.array(outcome.records, np.float64), outcome.keys
        rows = []
        for row in outcome.metrics:
            difference = self.trainings.difference(
                self.training_set.task, row["metric"], records, keys, compared, row["chance"]
            )
            rows.append(row | {f"diagonal_{name}": value for name, value in difference.items()})
        return replace(outcome, metrics=rows, records=[], keys=[])

    def _learned(self, name: str, strength: float, baseline: Baseline) -> MaskOutcome:
        words = f"λ {strength:g}{', no diagonal' if name.endswith(NO_DIAGONAL) else ''}"
        with self.trainings.followed(name, words, self.training_set.data) as callbacks:
            result = learn_mask(self.loaded, self.training_set, strength, self.options, self.training, callbacks)
        with result.hardened():
            measured = self.trainings.compared(self.loaded, self.training_set, result.model, baseline)
        mask = f"{MASKS}/{name}/mask.safetensors"
        learned = LearnedMask.of(name, result.mask)
        if self.run.writes:
            with self.run.reporter.status("saving"):
                save_mask(self.run.path / mask, learned, result)
        checkpoint = self.trainings.saved(self.loaded, result.model, name)
        log, importance = (cast("list[Any]", t.to_dict("records")) for t in (result.log, result.importance))
        saved = learned.sparsity, log, mask, checkpoint, self.options.mask.diagonal, importance
        # Controls are compared with it.
        recorded = measured if self.controls else replace(measured, records=[], keys=[])
        return MaskOutcome(name, strength, *saved, **vars(recorded))


def _with_penalty(outcome: MaskOutcome, frame: pd.DataFrame) -> pd.DataFrame:
    frame.insert(1, "penalty", outcome.penalty)
    return frame

"""A sweep over strengths of the penalty: one training each, measured, saved, and remembered."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from transformers import PreTrainedModel

from headlens.analyses.classify.analysis import Frequencies, classify_heads
from headlens.analyses.classify.options import ClassifyOptions, Thresholds
from headlens.analyses.prune.gate_training import from_scratch, gated_heads, train_gates
from headlens.analyses.prune.options import GateOptions, PenaltySweepOptions
from headlens.analyses.prune.outcome import OF_SCRATCH, PenaltyOutcome
from headlens.analyses.prune.sweep_runs import UNPRUNED
from headlens.analyses.training.sweep import MODELS, Baseline, Trainings, run_name
from headlens.analyses.training.training_set import TrainingSet
from headlens.attention.sites import find_sites
from headlens.corpora.sentence import Corpus
from headlens.errors import NoHeadsError, OptionError, counted
from headlens.files import output_errors
from headlens.heads import KEY_COLUMNS, Head
from headlens.models.loading import LoadedModel
from headlens.runs.run import Run
from headlens.training.hyperparameters import TrainingOptions

# λ between which --target-heads searches.
LEAST, MOST = 1e-4, 1e2


@dataclass(frozen=True)
class RoleCorpus:
    """Sentences on which the roles of heads are looked at, and from where on a head has one."""

    corpus: Corpus
    frequencies: Frequencies
    thresholds: Thresholds = field(default_factory=Thresholds)


@dataclass(frozen=True)
class GateSweep:
    """All runs of one sweep.

    Args:
        run: under way.
        loaded: the model, trained.
        lesson: what it is trained on further.
        options: of the sweep.
        gates: of every run.
        training: of every run.
        scratch: of the models from random weights.
        longest: see `TrainingSet.of_task`.
        roles: where roles are looked at; None leaves them out.
    """

    run: Run
    loaded: LoadedModel
    lesson: TrainingSet
    options: PenaltySweepOptions
    gates: GateOptions
    training: TrainingOptions
    scratch: TrainingOptions
    longest: int | None = None
    roles: RoleCorpus | None = None

    @property
    def trainings(self) -> Trainings:
        """Run folder, training options and length limit that all trainings of the sweep share."""
        return Trainings(self.run, self.training, self.longest)

    def outcomes(self) -> list[PenaltyOutcome]:
        """The model as it was, then every run.

        Raises:
            OptionError: if more heads are to be left than there are.
        """
        gated = len(gated_heads(self.loaded, self.lesson, self.gates))
        target = self.options.target_heads
        if target is not None and target >= gated:
            raise OptionError(
                f"--target-heads {target}: of {counted(gated, 'head')} with gates, some have to go.",
                f"Give a number from 1 to {gated - 1}.",
            )
        unpruned = self.trainings.remembered(UNPRUNED, self._unpruned, PenaltyOutcome)
        baseline = Baseline(unpruned.records, unpruned.keys)

        def of(strength: float) -> PenaltyOutcome:
            make = partial(self._pruned, strength, baseline)
            return self.trainings.remembered(run_name(strength), make, PenaltyOutcome)

        def left(outcome: PenaltyOutcome) -> int:
            return gated - len(outcome.removed)

        if target is None:
            reported = outcomes = [of(strength) for strength in self.options.strengths]
        else:
            outcomes = search(of, left, target, self.options.most_runs)
            reported = [nearest(outcomes, left, target)]
        if not self.options.from_scratch:
            return [unpruned, *outcomes]
        return self._with_scratch([unpruned, *outcomes], [unpruned, *reported], baseline)

    def _unpruned(self) -> PenaltyOutcome:
        model = self.loaded.model
        measured = self.trainings.compared(self.loaded, self.lesson, model)
        roles = self._roles(model)
        return PenaltyOutcome(
            UNPRUNED, metrics=measured.metrics, roles=roles, notes=measured.notes, **vars(measured.as_baseline)
        )

    def _pruned(self, strength: float, baseline: Baseline) -> PenaltyOutcome:
        name = run_name(strength)
        with self.trainings.followed(name, f"λ {strength:g}", self.lesson.data) as callbacks:
            pruned = train_gates(self.loaded, self.lesson, strength, self.gates, self.training, callbacks)
        measured = self.trainings.compared(self.loaded, self.lesson, pruned.model, baseline)
        return PenaltyOutcome(
            name,
            strength,
            removed=[str(h) for h in pruned.removed],
            values={str(h): v for h, v in pruned.values.items()},
            gates=pruned.gates.to_dict("records"),  # type: ignore[arg-type]
            log=pruned.log.to_dict("records"),  # type: ignore[arg-type]
            metrics=measured.metrics,
            checkpoint=self.trainings.saved(self.loaded, pruned.model, name),
            roles=self._roles(pruned.model),
            notes=measured.notes,
        )

    def _with_scratch(
        self, outcomes: Sequence[PenaltyOutcome], reported: Sequence[PenaltyOutcome], baseline: Baseline
    ) -> list[PenaltyOutcome]:
        """The outcomes, the wanted ones with a model from random weights; those with the same heads share it."""
        heads = sum(s.n_heads for s in find_sites(self.loaded.model))
        trained: dict[frozenset[str], PenaltyOutcome] = {}
        completed = []
        for outcome in outcomes:
            shape, of_scratch = frozenset(outcome.removed), {}
            if outcome in reported and len(shape) < heads:
                scratch = trained[shape] = trained.get(shape) or self._scratch(outcome, baseline)
                of_scratch = {name: getattr(scratch, name) for name in OF_SCRATCH}
            completed.append(replace(outcome, **of_scratch))
        return completed

    def _scratch(self, outcome: PenaltyOutcome, baseline: Baseline) -> PenaltyOutcome:
        name = f"{outcome.run}-scratch"

        def make() -> PenaltyOutcome:
            text = f"{outcome.run} from random weights"
            with self.trainings.followed(name, text, self.lesson.data, self.scratch) as callbacks:
                model = from_scratch(self.loaded, self.lesson, outcome.heads, self.scratch, callbacks)
            measured = self.trainings.compared(self.loaded, self.lesson, model, baseline)
            return replace(
                outcome,
                scratch=measured.metrics,
                scratch_checkpoint=self.trainings.saved(self.loaded, model, name),
                scratch_notes=measured.notes,
            )

        return self.trainings.remembered(name, make, PenaltyOutcome)

    def _roles(self, model: PreTrainedModel) -> dict[str, list[str]]:
        if not self.run.writes or self.roles is None:
            return {}
        with self.run.reporter.status("roles of the heads"):
            options = ClassifyOptions(similarity="off", seed=self.training.seed, thresholds=self.roles.thresholds)
            try:
                classification = classify_heads(
                    replace(self.loaded, model=model), self.roles.corpus, options, self.roles.frequencies
                )
            except NoHeadsError:  # a strong penalty
                return {}
        rows = classification.tables["heads"].rows
        columns = (rows[name] for name in (*KEY_COLUMNS, "role", "roles"))
        return {str(Head(*key)): [str(role), str(roles)] for *key, role, roles in zip(*columns, strict=True)}


def forget_models(folder: Path) -> None:
    """Remove the models of an earlier sweep, whose penalties may have been others."""
    with output_errors(folder):
        for pattern in ("penalty-*", f"{UNPRUNED}-scratch"):
            for place in (folder / MODELS).glob(pattern):
                shutil.rmtree(place)


def search(
    of: Callable[[float], PenaltyOutcome], left: Callable[[PenaltyOutcome], int], target: int, most: int
) -> list[PenaltyOutcome]:
    """Bisect log λ until a run leaves as many heads as wanted, enough runs were made, or no other λ is left.

    Args:
        of: the run with a λ.
        left: how many heads it leaves.
        target: how many there should be.
        most: runs.

    Returns:
        The runs, by λ.
    """
    low, high, outcomes = math.log(LEAST), math.log(MOST), list[PenaltyOutcome]()
    tried = set[float]()
    for _ in range(most):
        middle = (low + high) / 2
        strength = float(f"{math.exp(middle):.3g}")
        if strength in tried:  # λ has three digits: no other lies between
            break
        tried.add(strength)
        outcomes.append(of(strength))
        count = left(outcomes[-1])
        if count == target:
            break
        low, high = (middle, high) if count > target else (low, middle)
    return sorted(outcomes, key=lambda o: o.penalty or 0.0)


def nearest(outcomes: Sequence[PenaltyOutcome], left: Callable[[PenaltyOutcome], int], target: int) -> PenaltyOutcome:
    """The run whose number of heads is nearest to what is wanted; of two, the one with more."""
    return min(outcomes, key=lambda o: (abs(left(o) - target), -left(o)))

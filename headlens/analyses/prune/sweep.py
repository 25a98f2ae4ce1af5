"""A sweep over strengths of the penalty: one training each, measured, saved, remembered, and all of them as tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pandas as pd
from transformers import PreTrainedModel

from headlens.analyses.prune.options import PruneRequest
from headlens.analyses.prune.sweep_runs import UNPRUNED
from headlens.attention.sites import Site, find_sites
from headlens.corpora.sentence import Corpus
from headlens.errors import NoHeadsError, OptionError, counted
from headlens.findings.verdicts import with_family_verdicts
from headlens.heads import KEY_COLUMNS, STACKS, Head, Stack
from headlens.interventions.compacting import can_cut
from headlens.learning.gate_training import from_scratch, gated_heads, train_gates
from headlens.learning.sweep import (
    COMPARED,
    Baseline,
    Record,
    TrainedResult,
    Trainings,
    run_name,
)
from headlens.learning.training_set import TrainingSet
from headlens.models.loading import LoadedModel
from headlens.pages.formatting import DIFFERENCE
from headlens.roles.head_roles import Frequencies, classify_heads
from headlens.roles.role_options import ClassifyOptions
from headlens.roles.role_rules import too_little_notes
from headlens.runs.run import Run
from headlens.tables.prune_tables import GATES, ROLES_KEPT, SCRATCH, SWEEP, TRAINED

# What an outcome has of the model from random weights, which runs with the same heads share.
OF_SCRATCH = ("scratch", "scratch_checkpoint", "scratch_notes")
_MEASURED = ("metric", "value", "ci_low", "ci_high", "n", "chance", "same_answer", "answer_share")
# λ between which --target-heads searches.
LEAST, MOST = 1e-4, 1e2


@dataclass(frozen=True)
class PenaltyOutcome(TrainedResult):
    """What one run of a sweep gave; only the model as it was has records and keys, which others are compared with.

    Args:
        run: its name, such as `penalty-0.1`; `unpruned` for the model as it was.
        penalty: λ; None for the model as it was.
        removed: heads whose gates are closed.
        values: the gate of every gated head, by its name.
        gates: rows of `gates.csv` without run and penalty.
        log: rows of the training's log.
        checkpoint: its folder, below that of the run; None for the model as it was.
        roles: role and roles of every head, by its name; empty where roles were not asked for.
        scratch: metrics of a model of the same shape that was trained from random weights; empty where there is none.
        scratch_checkpoint: its folder.
        scratch_notes: what to know about its metrics.
    """

    run: str
    penalty: float | None = None
    removed: list[str] = field(default_factory=list)
    values: dict[str, float] = field(default_factory=dict)
    gates: list[Record] = field(default_factory=list)
    log: list[Record] = field(default_factory=list)
    checkpoint: str | None = None
    roles: dict[str, list[str]] = field(default_factory=dict)
    scratch: list[Record] = field(default_factory=list)
    scratch_checkpoint: str | None = None
    scratch_notes: list[str] = field(default_factory=list)

    @property
    def left(self) -> int:
        """Heads with gates that are not closed."""
        return len(self.values) - len(self.removed)

    @property
    def between(self) -> int:
        """Gates that are neither closed nor 1."""
        return sum(0.0 < value < 1.0 for value in self.values.values())


def gate_tables(
    model: str, task: str, kind: str, sites: Sequence[Site], gated: Sequence[Stack], outcomes: Sequence[PenaltyOutcome]
) -> dict[str, pd.DataFrame]:
    """The tables of a sweep: `gates`, `sweep`, `log`, and `roles` where they were asked for.

    Args:
        model: what tables call it.
        task: its name.
        kind: "mean" or "sum", what λ multiplies.
        sites: all layers of the model as it was.
        gated: the stacks that have gates.
        outcomes: of all runs, the model as it was first.
    """
    heads = [h for s in sites for h in s.heads]
    about: list[tuple[Record, PenaltyOutcome]] = [({"run": o.run, "penalty": o.penalty}, o) for o in outcomes]
    keys = {"model": model, "task": task, "penalty_kind": kind}
    rows = [record | keys | row for record, o in about for row in _measured(o, heads, gated)]
    sweep = SWEEP.frame(rows).astype({f"heads_{s}": "Int64" for s in STACKS})
    tables = {
        # Update 0 is before training.
        "gates": GATES.frame(r | row | keys for r, o in about for row in o.gates),
        "sweep": with_family_verdicts(sweep),
        # Its loss has the penalty in it.
        "log": pd.DataFrame([record | row for record, o in about for row in o.log]),
    }
    if any(o.roles for o in outcomes):
        before = next(o for o in outcomes if o.run == UNPRUNED).roles
        pruned = [(record, o) for record, o in about if o.run != UNPRUNED]
        known = [h for h in heads if str(h) in before]
        roles = [record | keys | _role(o, h, *before[str(h)]) for record, o in pruned for h in known]
        tables["roles"] = ROLES_KEPT.frame(roles)
    return tables


def _measured(outcome: PenaltyOutcome, heads: Sequence[Head], gated: Sequence[Stack]) -> Iterator[Record]:
    """A record for each kind of initial weights and metric."""
    total = Counter(h.stack for h in heads)
    left = Counter(h.stack for h in heads if str(h) not in outcome.removed)
    counts: Record = {
        **{f"heads_{s}": left[s] if total[s] else None for s in STACKS},
        "n_heads": sum(n for s, n in total.items() if s in gated),
        **{f"total_{s}": total[s] for s in STACKS},
        "between": outcome.between,
        "removed": " ".join(outcome.removed),
    }
    for init, metrics, checkpoint in (
        (TRAINED, outcome.metrics, outcome.checkpoint),
        (SCRATCH, outcome.scratch, outcome.scratch_checkpoint),
    ):
        for row in metrics:
            # What a model from scratch lacks is more than heads: whether these are needed it does not tell.
            # Nor does one that lacks none, but of which gates scale heads.
            compared = COMPARED if init == TRAINED and outcome.removed else DIFFERENCE
            measured = {k: row[k] for k in (*_MEASURED, *compared) if k in row}
            yield counts | measured | {"init": init, "checkpoint": checkpoint}


def _role(outcome: PenaltyOutcome, head: Head, role: str, roles: str) -> Record:
    """The role of a head in the model as it was, and what it is where others are gone."""
    is_kept = str(head) not in outcome.removed
    after = outcome.roles.get(str(head), [None])[0] if is_kept else None
    return head._asdict() | {"role": role, "roles": roles, "kept": is_kept, "role_pruned": after}


@dataclass(frozen=True)
class GateSweep:
    """All runs of one sweep.

    Args:
        run: under way.
        request: penalties, gates, and trainings of every run and of the models from random weights.
        loaded: the model, trained.
        training_set: what it is trained on further.
        roles: the sentences on which roles are looked at, and frequencies of words; None leaves roles out.
    """

    run: Run
    request: PruneRequest
    loaded: LoadedModel
    training_set: TrainingSet
    roles: tuple[Corpus, Frequencies] | None = None

    @property
    def trainings(self) -> Trainings:
        """Run folder, training options and length limit that all trainings of the sweep share."""
        sweep = self.request.sweep
        tests = len(sweep.strengths) or sweep.most_runs
        longest = self.request.training_set.longest
        return Trainings(self.run, self.request.training.of_loop(), longest, sweep.loss_margin, tests)

    def outcomes(self) -> list[PenaltyOutcome]:
        """The model as it was, then every run.

        Raises:
            OptionError: if more heads are to be left than there are, or models without heads cannot be built.
        """
        gated = len(gated_heads(self.loaded, self.training_set, self.request.resolved_gates))
        target = self.request.sweep.target_heads
        if target is not None and target >= gated:
            raise OptionError(
                f"--target-heads {target}: of {counted(gated, 'head')} with gates, at least one has to be pruned.",
                f"Give a number from 1 to {gated - 1}.",
            )
        if self.request.sweep.from_scratch and not can_cut(self.loaded.model):
            raise OptionError(
                "--from-scratch: heads of this architecture cannot be cut out of the weights, so no model without them "
                "can be trained.",
                "Leave it out.",
            )
        make = partial(self._measured, self.loaded.model)
        unpruned = baseline = self.trainings.remembered(UNPRUNED, make, PenaltyOutcome)

        def of(strength: float) -> PenaltyOutcome:
            make = partial(self._pruned, strength, baseline)
            return self.trainings.remembered(run_name(strength), make, PenaltyOutcome)

        if target is None:
            reported = outcomes = [of(strength) for strength in self.request.sweep.strengths]
        else:
            outcomes = search(of, target, self.request.sweep.most_runs)
            reported = [nearest(outcomes, target)]
        if not self.request.sweep.from_scratch:
            return [unpruned, *outcomes]
        return self._with_scratch([unpruned, *outcomes], [unpruned, *reported], baseline)

    def _measured(self, model: PreTrainedModel, baseline: Baseline | None = None) -> PenaltyOutcome:
        """Measures a model and names the roles of its heads; the outcome has the name of the unpruned model."""
        measured = self.trainings.compared(self.loaded, self.training_set, model, baseline)
        roles, role_notes = self._roles(model)
        return PenaltyOutcome(UNPRUNED, roles=roles, **vars(replace(measured, notes=[*measured.notes, *role_notes])))

    def _pruned(self, strength: float, baseline: Baseline) -> PenaltyOutcome:
        name = run_name(strength)
        with self.trainings.followed(name, f"λ {strength:g}", self.training_set.data) as callbacks:
            gates, training = self.request.resolved_gates, self.request.training.of_loop()
            pruned = train_gates(self.loaded, self.training_set, strength, gates, training, callbacks)
        return replace(
            self._measured(pruned.model, baseline),
            run=name,
            penalty=strength,
            records=[],
            keys=[],
            removed=[str(h) for h in pruned.removed],
            values={str(h): v for h, v in pruned.values.items()},
            gates=pruned.gates.to_dict("records"),  # type: ignore[arg-type]
            log=pruned.log.to_dict("records"),  # type: ignore[arg-type]
            checkpoint=self.trainings.saved(self.loaded, pruned.model, name),
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
            gone = [Head.parse(head) for head in outcome.removed]
            if outcome in reported and len(shape) < heads and can_cut(self.loaded.model, gone):
                scratch = trained[shape] = trained.get(shape) or self._scratch(outcome, baseline)
                of_scratch = {name: getattr(scratch, name) for name in OF_SCRATCH}
            completed.append(replace(outcome, **of_scratch))
        return completed

    def _scratch(self, outcome: PenaltyOutcome, baseline: Baseline) -> PenaltyOutcome:
        name, training = f"{outcome.run}-scratch", self.request.training.scratch()
        gone = [Head.parse(head) for head in outcome.removed]

        def make() -> PenaltyOutcome:
            text, data = f"{outcome.run} from random weights", self.training_set.data
            with self.trainings.followed(name, text, data, training) as callbacks:
                model = from_scratch(self.loaded, self.training_set, gone, training, callbacks)
            measured = self.trainings.compared(self.loaded, self.training_set, model, baseline)
            place = self.trainings.saved(self.loaded, model, name)
            added: Record = {"scratch": measured.metrics, "scratch_checkpoint": place, "scratch_notes": measured.notes}
            return replace(outcome, **added)

        return self.trainings.remembered(name, make, PenaltyOutcome)

    def _roles(self, model: PreTrainedModel) -> tuple[dict[str, list[str]], list[str]]:
        """Strongest role and all roles by head, and a note where too little was read for any."""
        if not self.run.writes or self.roles is None:
            return {}, []
        corpus, frequencies = self.roles
        with self.run.reporter.status("roles of the heads"):
            seed, thresholds = self.request.training.seed, self.request.thresholds
            options = ClassifyOptions(similarity="off", seed=seed, thresholds=thresholds)
            try:
                classification = classify_heads(replace(self.loaded, model=model), corpus, options, frequencies)
            except NoHeadsError:  # a strong penalty
                return {}, []
        rows, read = classification.tables["heads"].rows, classification.encoding
        columns = (rows[name] for name in (*KEY_COLUMNS, "role", "roles"))
        roles = {str(Head(*key)): [str(role), str(roles)] for *key, role, roles in zip(*columns, strict=True)}
        return roles, too_little_notes(read.sentences, read.tokens, thresholds)


def search(of: Callable[[float], PenaltyOutcome], target: int, most: int) -> list[PenaltyOutcome]:
    """Bisect log λ until a run leaves as many heads as wanted, enough runs were made, or no other λ is left.

    Args:
        of: the run with a λ.
        target: how many heads it should leave.
        most: runs.

    Returns:
        The runs, by λ.
    """
    low, high, outcomes = math.log(LEAST), math.log(MOST), dict[float, PenaltyOutcome]()
    for _ in range(most):
        middle = (low + high) / 2
        strength = float(f"{math.exp(middle):.3g}")
        if strength in outcomes:  # λ has three digits: no other lies between
            break
        outcomes[strength] = of(strength)
        count = outcomes[strength].left
        if count == target:
            break
        low, high = (middle, high) if count > target else (low, middle)
    return sorted(outcomes.values(), key=lambda o: o.penalty or 0.0)


def nearest(outcomes: Sequence[PenaltyOutcome], target: int) -> PenaltyOutcome:
    """The run whose number of heads is nearest to what is wanted; of two, the one with more."""
    return min(outcomes, key=lambda o: (abs(o.left - target), -o.left))

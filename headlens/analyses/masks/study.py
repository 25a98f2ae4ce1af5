"""Fine-tuning under attention masks: one training for every mask and seed, measured under the mask, and remembered."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import PreTrainedModel

from headlens.analyses.dam.learning import MaskLearningOptions, learn_mask, made_mask
from headlens.analyses.dam.sweep import MASKS, save_mask
from headlens.analyses.dam.tables import LearnedMask
from headlens.analyses.masks.cases import MaskCase
from headlens.analyses.masks.options import DegreeOptions
from headlens.analyses.masks.text_graphs import Books, StudyTexts, study_texts
from headlens.analyses.training.open_training_set import OpenedTraining
from headlens.analyses.training.sweep import Baseline, Record, Trainings, told_of_trainings
from headlens.analyses.training.training_set import TrainingCallbacks, TrainingSet
from headlens.corpora.parsers import Parser
from headlens.errors import OptionError, counted
from headlens.interventions.attention_mask import FILE, AttentionMask
from headlens.interventions.importance_mask import FiledMask
from headlens.interventions.learned_mask import LearnedAttentionMask, Scope
from headlens.interventions.mask_distributions import GumbelDegrees
from headlens.models.loading import LoadedModel
from headlens.pages.formatting import DIFFERENCE
from headlens.runs.model_mask import under_source
from headlens.runs.run import Run
from headlens.training.hyperparameters import TrainingOptions

MASKS_COLUMNS = [
    *("pattern", "layers", "diagonal", "degree_global", "degree_random", "degree_neighbour", "sparsity", "task"),
    *("metric", "seed", "value", "ci_low", "ci_high", "control", "n", "model", "sparsity_texts", *DIFFERENCE, "chance"),
]
DEGREES_COLUMNS = [
    *("model", "stack", "layer", "head", "pattern", "layers", "diagonal", "seed"),
    *("degree", "p", "chosen"),
]
_DEGREES = (
    "μ multiplies the expected share of positions that are open in a text of {n} tokens, the mean of the texts. Models "
    "with learned degrees are measured as they were trained, under the degrees that are left; --mask trains anew under "
    "their files."
)

_UNSETTLED = 0.1  # share of the heads from which on a note is due


def under(
    model: PreTrainedModel, case: MaskCase, books: Books, tell: Callable[[str], None] = lambda _: None
) -> AbstractContextManager[None]:
    """Inside, a model runs under the mask of a case; graphs are in the books, and `tell` gets what is to be known."""
    source = case.source(books)
    return nullcontext() if source is None else under_source(model, source, case.layers, tell)


def fine_tuned(
    loaded: LoadedModel,
    lesson: TrainingSet,
    case: MaskCase,
    training: TrainingOptions,
    callbacks: TrainingCallbacks | None = None,
    books: Books | None = None,
) -> PreTrainedModel:
    """A copy of a model that was trained under a mask; it does not hold it.

    Args:
        loaded: a model with the head that the task needs; it stays as it is.
        lesson: what it is trained on.
        case: the mask, and the seed.
        training: length, step size, rhythm; the seed is that of the case.
        callbacks: progress, and what is kept for going on after an interruption.
        books: graphs of the texts, by words, for masks that are graphs.

    Raises:
        OptionError: if the mask does not fit the model.
    """
    model = copy.deepcopy(loaded.model)
    torch.manual_seed(case.seed)
    with under(model, case, books or {}):
        lesson.teach(model, replace(training, seed=case.seed), callbacks)
    return model


@dataclass(frozen=True)
class CaseOutcome:
    """What one training gave; everything in it can be written as JSON.

    Args:
        run: its name.
        metrics: of the model under its mask on what was held out, a row each, with `DIFFERENCE` from the model
            without one of the same seed.
        notes: what to know about them.
        mask: the file of a mask that was learned, below the folder of the run.
        degrees: of the heads of that mask, see `degree_rows`.
        records: without a mask, of every example.
        keys: of these examples.
    """

    run: str
    metrics: list[Record] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    mask: str | None = None
    degrees: list[Record] = field(default_factory=list)
    records: list[list[float]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class MaskStudy:
    """All trainings of a run.

    Args:
        run: under way.
        opened: gives the model with a head, and what it is taught, for a seed.
        training: of every training.
        n: tokens for which sparsities are counted.
        longest: a limit of tokens of what is measured on, below the model's own.
        parser: of the texts, for graphs; None without trees.
        degrees: how degrees are learned.
    """

    run: Run
    opened: Callable[[int], OpenedTraining]
    training: TrainingOptions
    n: int = 128
    longest: int | None = None
    parser: Parser | None = None
    degrees: DegreeOptions = field(default_factory=DegreeOptions)

    @property
    def trainings(self) -> Trainings:
        """Settings shared by all training runs of the study: the run, its training options and the longest input."""
        return Trainings(self.run, self.training, self.longest)

    def tables(self, planned: list[MaskCase]) -> tuple[dict[str, pd.DataFrame], list[str]]:
        """`masks`, where degrees are learned also `degrees`, and what to know about them.

        Raises:
            OptionError: if a mask does not fit the model.
        """
        rows, opened, texts, seed = [], None, None, None
        baseline: Baseline | None = None
        degrees: list[Record] = []
        notes: list[str] = []
        notes_of_cases: list[tuple[str, list[str]]] = []
        for case in planned:
            if opened is None or texts is None or case.seed != seed:
                opened, seed, baseline = self.opened(case.seed), case.seed, None
                # The texts are the same for all seeds.
                texts = texts or study_texts(self.run, opened, {c.graph for c in planned if c.graph}, self.parser)
                self._check(opened, planned, texts)
                notes += [*opened.notes, *(f"New weights, random before training: {name}." for name in opened.fresh)]
            train = partial(self._trained, opened, case, texts, baseline)
            outcome = self.trainings.remembered(case.name, train, CaseOutcome)
            if case.whole:
                baseline = Baseline(outcome.records, outcome.keys)
            notes_of_cases.append((case.words, outcome.notes))
            # What guessing without reading gives, of the metric for which that is known.
            task, records = opened.lesson.task, None if baseline is None else baseline.records
            chance = {task.metrics[0]: task.chance(np.array(records, np.float64))} if records else {}
            rows += [row | {"chance": chance.get(row["metric"])} for row in self._rows(case, outcome, texts)]
            about = {"model": opened.loaded.short_name, "stack": "encoder"} | _key(case)
            degrees += [about | row for row in outcome.degrees]
            if (share := unsettled(outcome.degrees) if outcome.degrees else 0.0) > _UNSETTLED:
                settling = f"{share:.0%} of the heads have not settled on a degree; more updates let them."
                notes.append(f"{case.words}: {settling}")
        notes += told_of_trainings(notes_of_cases)
        if texts is not None and texts.books:
            notes.append(
                f"Graphs differ from text to text: what any mask hides is the mean over {counted(texts.count, 'text')} "
                f"of {texts.mean_length:.1f} tokens on average."
            )
        if any(case.layers is not None for case in planned):
            notes.append("What is masked is a share of the positions in the layers that a mask holds in.")
        if len({case.seed for case in planned}) == 2:
            notes.append("Intervals over two seeds say little; three seeds or more tell how far they differ.")
        tables = {"masks": pd.DataFrame(rows, columns=MASKS_COLUMNS)}
        if any(case.strength is not None for case in planned):
            tables["degrees"] = degrees_table(degrees)
            notes.append(_DEGREES.format(n=round(texts.mean_length) if texts else self.n))
        return tables, list(dict.fromkeys(notes))

    def _check(self, opened: OpenedTraining, planned: list[MaskCase], texts: StudyTexts) -> None:
        """What is wrong with a mask is told before anything is trained."""
        for case in planned:
            source = case.source(texts.books)
            if isinstance(source, FiledMask) and source.length < self.n:
                raise OptionError(
                    f"The mask {case.pattern} is for {source.length} tokens, fewer than --length {self.n}.",
                    f"Give --length {source.length}.",
                )
            if isinstance(source, FiledMask):
                source.block(texts.longest)
            if case.strength is not None:
                made_mask(opened.lesson.task.network(opened.loaded.model), *self._dam(case, texts))
            with under(opened.loaded.model, case, texts.books):
                pass

    def _trained(
        self, opened: OpenedTraining, case: MaskCase, texts: StudyTexts, baseline: Baseline | None
    ) -> CaseOutcome:
        """A model trained under a mask, or together with degrees, and measured under the mask that is left."""
        loaded, lesson, learned = opened.loaded, opened.lesson, None
        with self.trainings.followed(case.name, case.words, lesson.data) as callbacks:
            if case.strength is None:
                model = fine_tuned(loaded, lesson, case, self.training, callbacks, texts.books)
            else:
                dam, scope = self._dam(case, texts)
                training = replace(self.training, seed=case.seed)
                learned = learn_mask(loaded, lesson, case.strength, dam, training, callbacks, scope)
                model = learned.model
        told: list[str] = []
        with under(model, case, texts.books, told.append) if learned is None else learned.hardened():
            measured = self.trainings.compared(loaded, lesson, model, baseline)
        compared_with = vars(measured.as_baseline) if case.whole else {}
        outcome = CaseOutcome(case.name, measured.metrics, [*measured.notes, *told], **compared_with)
        if learned is None:
            return outcome
        place = f"{MASKS}/{case.name}/{FILE}"
        if self.run.writes:
            save_mask(self.run.path / place, LearnedMask.of(case.name, learned.mask), learned)
        return replace(outcome, mask=place, degrees=degree_rows(learned.mask))

    def _dam(self, case: MaskCase, texts: StudyTexts) -> tuple[MaskLearningOptions, Scope]:
        longest = max(self.n, texts.longest)
        dam = self.degrees.dam(longest, case.layers, diagonal=case.diagonal == "kept")
        return dam, self.degrees.scope(round(texts.mean_length))

    def _rows(self, case: MaskCase, outcome: CaseOutcome, texts: StudyTexts) -> list[Record]:
        learned = AttentionMask.load(self.run.path / outcome.mask) if outcome.mask and self.run.writes else None
        degrees = case.degrees()
        if outcome.degrees:
            degrees["degree_neighbour"] = mean_degree(outcome.degrees)
        masked = {
            "sparsity": case.sparsity(self.n, learned),
            "sparsity_texts": case.sparsity_of_texts(texts.lengths, texts.books, learned),
            "control": case.diagonal,
        }
        names = ("task", "metric", "value", "ci_low", "ci_high", "n", "model")
        return [
            _key(case) | degrees | masked | {k: row[k] for k in names} | {k: row[k] for k in DIFFERENCE if k in row}
            for row in outcome.metrics
        ]


def _key(case: MaskCase) -> Record:
    return {
        "pattern": case.pattern,
        "layers": case.layers or "all",
        "diagonal": case.diagonal != "dropped",
        "seed": case.seed,
    }


def degree_rows(mask: LearnedAttentionMask) -> list[dict[str, Any]]:
    """The distribution of the degree of every head: layer, head, degree, p, and which degree is chosen in the end.

    Heads are None where those of a layer share a distribution.
    """
    assert isinstance(mask.law, GumbelDegrees)
    alpha = mask.alpha.detach().cpu()
    masses, degrees = mask.law.distribution(alpha), mask.law.kept(alpha).sum(dim=-1) - 1
    return [
        {
            "layer": site.layer,
            "head": head if mask.scope.per_head else None,
            "degree": degree,
            "p": float(p),
            "chosen": degree == int(degrees[row, head]),
        }
        for row, site in enumerate(mask.sites)
        for head in range(alpha.shape[1])
        if not mask.scope.per_head or head in {h.head for h in site.heads}
        for degree, p in enumerate(masses[row, head])
    ]


def unsettled(rows: Sequence[Mapping[str, Any]]) -> float:
    """The share of heads of which no degree has a probability above 1/2."""
    highest = pd.DataFrame(rows).groupby(["layer", "head"], dropna=False)["p"].max()
    return float((highest <= 0.5).mean())


def mean_degree(rows: Sequence[Mapping[str, Any]]) -> float:
    """The mean of the degrees that were chosen."""
    return fmean(row["degree"] for row in rows if row["chosen"])


def degrees_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Builds the table `degrees.csv` from its rows, with nullable integers for layer, head, seed and degree."""
    frame = pd.DataFrame(rows, columns=DEGREES_COLUMNS)
    return frame.astype({name: pd.Int64Dtype() for name in ("layer", "head", "seed", "degree")})

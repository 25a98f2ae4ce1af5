"""Fine-tuning under attention masks: one training for every mask and seed, measured under the mask, and remembered."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby
from operator import attrgetter

import pandas as pd
import torch
from transformers import PreTrainedModel

from headlens.analyses.masks.cases import MaskCase
from headlens.analyses.masks.degree_tables import UNSETTLED, unsettled, unsettled_spans
from headlens.analyses.masks.learned_tables import (
    degree_rows,
    degrees_table,
    mean_chosen,
    mean_degrees,
    span_rows,
)
from headlens.analyses.masks.options import StudyRequest
from headlens.analyses.masks.study_figures import SHARES, means
from headlens.analyses.masks.text_graphs import Books, StudyTexts, study_texts
from headlens.attention.attach_edit import attach_edit
from headlens.attention_masks.attention_mask import FILE, MaskSource
from headlens.attention_masks.attention_mask_edit import MaskEdit, zeroed_scores
from headlens.attention_masks.importance_mask import FiledMask
from headlens.attention_masks.learned_mask import LearnedMaskOptions, Scope, SettledMask
from headlens.attention_masks.mask_distributions import AdaptiveSpan, GumbelDegrees
from headlens.attention_masks.model_mask import LEFT_ALONE, mask_edit, stack_layers
from headlens.attention_masks.named_masks import LearnedDegrees, LearnedInRun, LearnedSpans, Removal, ZeroedScores
from headlens.corpora.parsers import make_parser
from headlens.errors import OptionError, counted
from headlens.files import atomic_path
from headlens.findings.verdicts import with_family_verdicts
from headlens.interventions.edited_model import EditedModel
from headlens.interventions.removed_layers import remove_layers, without_attention
from headlens.learning.hyperparameters import TrainingOptions
from headlens.learning.mask_learning import (
    MASKS,
    LearnedMask,
    LearnedMaskResult,
    MaskLearningOptions,
    learn_mask,
    made_mask,
    save_mask,
)
from headlens.learning.open_training_set import OpenedTraining
from headlens.learning.sweep import Baseline, Record, TrainedResult, Trainings, notes_once, training_notes
from headlens.learning.training_set import TrainingCallbacks, TrainingSet
from headlens.models.loading import LoadedModel
from headlens.runs.run import Run
from headlens.tables.mask_tables import DEGREES, DRAWS, MASK_TRAININGS, SPANS
from headlens.tasks.evaluation import EvaluationOptions
from headlens.tasks.example_sources import MemoryExamples
from headlens.tasks.task import Task
from headlens.tasks.test_set_predictions import write_predictions

PREDICTIONS = "predictions"  # folder of the predictions for test sets, of each model in one of its own

_DEGREES = (
    "μ multiplies the expected share of positions that are open in a text of {n} tokens, the mean length. Models "
    "with learned degrees are measured as they were trained, under the degrees that are left; --mask trains a new "
    "model under the saved mask files."
)
_SPANS = (
    "μ multiplies the mean span as a share of {n} tokens. Models with learned spans are measured as they were trained: "
    "beyond the span, weights fall to 0 over {ramp}, and only positions without any weight count as masked; --mask "
    "trains a new model under the saved mask files, which keep every position with any weight fully open."
)
_RANDOM_FILES = (
    "Random keys are drawn for the length of each text; the mask files hold those of {n} tokens, and shorter texts "
    "see fewer of them."
)
_ZEROED = (
    "zero: what is masked has the score 0 and keeps a weight, taking M ⊙ QKᵀ literally; the share that is masked is "
    "that of these scores."
)
_KINDS = (
    "The penalty counts a position once for each kind of connections that opens it; what is masked is what no kind "
    "opens."
)

_TABLES = {schema.name: schema for schema in (MASK_TRAININGS, DEGREES, SPANS, DRAWS)}


@contextmanager
def under(
    model: PreTrainedModel, case: MaskCase, books: Books, learned: MaskSource | None = None
) -> Iterator[MaskEdit | None]:
    """Runs a model inside `with` under the mask of a case, or without the attention that it takes away.

    A model without some of its layers is another model, see `fine_tuned`.

    Args:
        model: the model.
        case: the mask, and in which layers it holds.
        books: graphs of the texts, by words.
        learned: the mask that was learned, which knows its layers; None before.

    Yields:
        The edit that masks; None where there is none.
    """
    if case.mask == Removal("attention"):
        stack, layers = stack_layers(model, case.layers, flag=f"--{case.mask}")
        with without_attention(model, layers, stack):
            yield None
    elif (source := case.source(books, learned)) is None:
        yield None
    else:
        edit = MaskEdit(source) if source is learned else mask_edit(model, source, case.layers)
        with zeroed_scores(model, edit) if isinstance(case.mask, ZeroedScores) else attach_edit(model, edit):
            yield edit


def fine_tuned(
    loaded: LoadedModel,
    training_set: TrainingSet,
    case: MaskCase,
    training: TrainingOptions,
    callbacks: TrainingCallbacks | None = None,
    books: Books | None = None,
) -> PreTrainedModel:
    """A copy of a model that was trained under a mask, which it does not hold, or that lost layers before.

    Args:
        loaded: a model with the head that the task needs; it stays as it is.
        training_set: what it is trained on.
        case: the mask, and the seed.
        training: length, step size, rhythm; the seed is that of the case.
        callbacks: progress, and what is kept for going on after an interruption.
        books: graphs of the texts, by words, for masks that are graphs.

    Raises:
        OptionError: if the mask does not fit the model.
    """
    model = _copied(loaded.model, case)
    torch.manual_seed(case.seed)
    with under(model, case, books or {}):
        training_set.teach(model, replace(training, seed=case.seed), callbacks)
    return model


def _copied(model: PreTrainedModel, case: MaskCase) -> PreTrainedModel:
    """A copy of a model, without the layers that a case takes away."""
    model = copy.deepcopy(model)
    if case.mask == Removal("layers"):
        stack, layers = stack_layers(model, case.layers, flag=f"--{case.mask}")
        remove_layers(model, layers or (), stack)
    return model


@dataclass(frozen=True)
class CaseOutcome(TrainedResult):
    """What one training gave; only models without a mask, which others of the seed are compared with, have records.

    Args:
        run: its name.
        mask: the file of a mask that was learned, below the folder of the run.
        degrees: of the heads of that mask, see `degree_rows`.
        spans: of the heads of that mask, see `span_rows`.
        shares: that it masks, of n tokens and of the texts.
        further: records of the further tasks that the model is measured on, in their order.
        draws: the metrics under masks that were drawn from the degrees, a row of draws.csv each; differences
            are from the mask that was learned.
    """

    run: str
    mask: str | None = None
    degrees: list[Record] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    further: list[Baseline] = field(default_factory=list)
    draws: list[Record] = field(default_factory=list)
    spans: list[Record] = field(default_factory=list)


@dataclass(frozen=True)
class MaskStudy:
    """All trainings of a run.

    Args:
        run: under way.
        opened: gives the model with a head, and what it is taught, for a seed.
        study: how models are trained, and how degrees and spans are learned.
        n: tokens for which sparsities are counted.
        tests: how many trainings of a seed are compared with the one without a mask.
        test_sets: what each model makes predictions for, by the names of tasks.
    """

    run: Run
    opened: Callable[[int], OpenedTraining]
    study: StudyRequest
    n: int
    tests: int = 1
    test_sets: Mapping[str, MemoryExamples] = field(default_factory=dict)

    @cached_property
    def trainings(self) -> Trainings:
        """Settings shared by all training runs of the study: the run, its training options and the longest input."""
        study = self.study
        return Trainings(self.run, study.training.of_loop(), study.training_set.longest, study.margin, self.tests)

    def tables(self, planned: list[MaskCase]) -> tuple[dict[str, pd.DataFrame], list[str]]:
        """`masks`, where degrees or spans are learned also `degrees`, `draws` and `spans`, and what to know about them.

        Raises:
            OptionError: if a mask does not fit the model.
        """
        records: dict[str, list[Record]] = {name: [] for name in _TABLES}
        notes: list[str] = []
        notes_of_cases: list[tuple[str, list[str]]] = []
        texts: StudyTexts | None = None
        baseline: CaseOutcome | None
        for seed, seed_cases in groupby(planned, attrgetter("seed")):
            opened, baseline = self.opened(seed), None
            if texts is None:  # they are the same for all seeds
                parser = make_parser(self.study.parser, keep_words=False)
                texts = study_texts(self.run, opened, {case.graph for case in planned if case.graph}, parser)
            self._check(opened, planned, texts)
            notes += [*opened.notes, *(f"New weights, random before training: {name}." for name in opened.fresh)]
            for case in seed_cases:
                train = partial(self._trained, opened, case, texts, baseline)
                outcome = self.trainings.remembered(case.name, train, CaseOutcome)
                if case.whole:
                    baseline = outcome
                notes_of_cases.append((case.words, outcome.notes))
                records["masks"] += self._rows(case, outcome, texts)
                about = {"model": opened.loaded.short_name, "stack": "encoder"} | _key(case)
                for name in ("degrees", "spans", "draws"):
                    records[name] += [about | row for row in getattr(outcome, name)]
                notes += [f"{case.words}: {text}" for text in _settling(outcome)]
        notes += training_notes(notes_of_cases)
        notes += [] if texts is None else self._notes(planned, texts)
        filled = {name: records[name] for name in records if records[name] or name == "masks"}
        tables = {name: _TABLES[name].frame(rows) for name, rows in filled.items()}
        tables["masks"] = with_family_verdicts(tables["masks"], ["task", "seed"])
        for metric, rows in means(tables["masks"]).groupby("metric", sort=False):
            if agreeing := int(rows["seeds_agree"].sum()):
                where = f"in {agreeing} of {counted(len(rows), 'row')}, which have intervals over examples"
                notes.append(f"{metric}: all seeds have the same value or difference {where}.")
        tables |= {"degrees": degrees_table(records["degrees"])} if "degrees" in tables else {}
        return tables, list(dict.fromkeys(notes))

    def _notes(self, planned: list[MaskCase], texts: StudyTexts) -> Iterator[str]:
        """What to know about the numbers of all trainings."""
        if texts.books:
            yield (
                f"Graphs differ from text to text: sparsity is the mean over {counted(texts.count, 'text')} "
                f"of {texts.mean_length:.1f} tokens on average."
            )
        if texts.causal:
            yield "Shares of masked positions are of those up to each query's own: later ones this model never sees."
        if any(case.layers is not None for case in planned):
            yield "Sparsity is the share of masked positions in the layers to which a mask applies."
        masks = [case.mask for case in planned]
        if any(isinstance(mask, ZeroedScores) for mask in masks):
            yield _ZEROED
        if len({case.seed for case in planned}) == 2:
            yield "Intervals over two seeds say little; use three or more seeds to see how much they differ."
        if any(isinstance(mask, LearnedSpans) for mask in masks):
            ramp = counted(self.study.spans.span_ramp, "token")
            yield _SPANS.format(n=texts.longest - 1, ramp=ramp)
        if any(isinstance(mask, LearnedDegrees) for mask in masks):
            yield _DEGREES.format(n=round(texts.mean_length))
            if len(self.study.degrees.degree_kinds) > 1:
                yield _KINDS
            if "random" in self.study.degrees.degree_kinds:
                yield _RANDOM_FILES.format(n=max(self.n, texts.longest))

    def _check(self, opened: OpenedTraining, planned: list[MaskCase], texts: StudyTexts) -> None:
        """Raises errors in masks before anything is trained."""
        for case in planned:
            source = case.source(texts.books)
            if isinstance(source, FiledMask):
                if source.length < self.n:
                    raise OptionError(
                        f"The mask {case.mask} is for {source.length} tokens, fewer than --length {self.n}.",
                        f"Give --length {source.length}.",
                    )
                source.block(texts.longest)
            if isinstance(case.mask, LearnedInRun):
                made_mask(
                    opened.training_set.task.network(opened.loaded.model), *learning(case, self.study, texts, self.n)
                )
            if case.mask == Removal("layers"):
                _copied(opened.loaded.model, case)
            with under(opened.loaded.model, case, texts.books):
                pass

    def _trained(
        self, opened: OpenedTraining, case: MaskCase, texts: StudyTexts, baseline: CaseOutcome | None
    ) -> CaseOutcome:
        """A model trained under a mask, or together with degrees, and measured under the mask that is left."""
        loaded, training_set, learned = opened.loaded, opened.training_set, None
        with self.trainings.followed(case.name, case.words, training_set.data) as callbacks:
            if not isinstance(case.mask, LearnedInRun):
                model = fine_tuned(loaded, training_set, case, self.trainings.training, callbacks, texts.books)
            else:
                options, scope = learning(case, self.study, texts, self.n)
                training = replace(self.trainings.training, seed=case.seed)
                learned = learn_mask(loaded, training_set, case.mask.strength, options, training, callbacks, scope)
                model = learned.model
        source = None if learned is None else SettledMask.kept(learned.mask)
        with under(model, case, texts.books, source) as edit, spanned(case, training_set, learned):
            outcome = self._measured(opened, case.name, model, baseline)
            notes = outcome.notes + self._predicted(replace(loaded, model=model), training_set.task, case, texts)
        measured = replace(outcome, notes=notes + [LEFT_ALONE] * (edit is not None and edit.left_alone))
        outcome = measured if case.whole else replace(measured, records=[], keys=[], further=[])
        if learned is None or source is None:
            return outcome
        place = f"{MASKS}/{case.name}/{FILE}"
        if self.run.writes:
            save_mask(self.run.path / place, LearnedMask.of(case.name, learned.mask), learned)
        outcome = replace(outcome, mask=place, shares=self._shares(case, texts, source))
        if isinstance(case.mask, LearnedSpans):
            return replace(outcome, spans=span_rows(learned.mask, learned.log))
        return replace(
            outcome,
            degrees=degree_rows(learned.mask),
            draws=list(self._drawn(opened, case, texts, learned, measured)),
        )

    def _measured(
        self, opened: OpenedTraining, name: str, model: PreTrainedModel, baseline: CaseOutcome | None
    ) -> CaseOutcome:
        """What a model achieves on everything that is measured on, its rows one after the other."""
        none = [None] * len(opened.training_set.measured_on)
        baselines = none if baseline is None else [baseline, *baseline.further]
        parts = [
            self.trainings.compared(opened.loaded, replace(opened.training_set, task=task, held=held), model, before)
            for (task, held), before in zip(opened.training_set.measured_on, baselines, strict=True)
        ]
        first, further = parts[0], parts[1:]
        named = [
            (task.name, [*held.notes, *part.notes])
            for (task, held), part in zip(opened.training_set.further, further, strict=True)
        ]
        told = {"metrics": [row for part in parts for row in part.metrics], "notes": notes_once(first.notes, named)}
        others = [Baseline(records=part.records, keys=part.keys, lacks_skill=part.lacks_skill) for part in further]
        return CaseOutcome(name, further=others, **vars(first) | told)

    def _predicted(self, loaded: LoadedModel, task: Task, case: MaskCase, texts: StudyTexts) -> list[str]:
        """Writes the predictions for the test sets, and returns what to know about them."""
        if not self.run.writes:
            return []
        # Masks are made for the texts of the study: longer rows of a test set are cut.
        options = EvaluationOptions(self.trainings.training.batch_tokens, texts.longest, warn=self.run.warn)
        place = self.run.path / PREDICTIONS / case.name
        with self.run.reporter.status(f"{case.words}: predicting"):
            return write_predictions(task, loaded, self.test_sets, options, lambda name: atomic_path(place / name))

    def _drawn(
        self,
        opened: OpenedTraining,
        case: MaskCase,
        texts: StudyTexts,
        learned: LearnedMaskResult,
        baseline: CaseOutcome,
    ) -> Iterator[Record]:
        """The metrics under masks that are drawn from learned degrees, compared with those under the mask that stays.

        The model is the one that learned the degrees, which saw a draw of them in every update.
        """
        numbers = range(self.study.degrees.draws)
        with self.run.reporter.progress(f"{case.words} (draws)", len(numbers)) as advance:
            for number in numbers:
                source = SettledMask.drawn(learned.mask, case.seed * 100_003 + number)
                with under(learned.model, case, texts.books, source):
                    measured = self._measured(opened, case.name, learned.model, baseline)
                degrees = mean_degrees(learned.mask, source.values)
                masked = dict(zip(SHARES, self._shares(case, texts, source), strict=True))
                for row in measured.metrics:
                    yield {"draw": number} | degrees | masked | {k: row[k] for k in DRAWS.names if k in row}
                advance(1)

    def _shares(self, case: MaskCase, texts: StudyTexts, learned: MaskSource | None = None) -> list[float]:
        """Share of positions that a case masks, of n tokens and of the texts."""
        of_texts = case.sparsity_of_texts(texts.lengths, texts.books, learned, causal=texts.causal)
        return [case.sparsity(self.n, learned, causal=texts.causal), of_texts]

    def _rows(self, case: MaskCase, outcome: CaseOutcome, texts: StudyTexts) -> list[Record]:
        shares = dict(zip(SHARES, outcome.shares or self._shares(case, texts), strict=True))
        about = _key(case) | case.degrees() | mean_chosen(outcome.degrees) | shares | {"control": case.diagonal}
        return [row | about for row in outcome.metrics]


def _settling(outcome: CaseOutcome) -> Iterator[str]:
    """Yields what to know about degrees or spans that were still on their way at the end of a training."""
    if outcome.degrees and (share := unsettled(pd.DataFrame(outcome.degrees))) > UNSETTLED:
        yield f"{share:.0%} of the degrees have not settled; more updates would let them settle."
    if outcome.spans and (share := unsettled_spans(pd.DataFrame(outcome.spans))) > UNSETTLED:
        mean = pd.DataFrame(outcome.spans)[["span", "change"]].mean()
        yield (
            f"{share:.0%} of the spans have not settled: since the last update that was logged before the last third "
            f"of them (of few updates: since the start) their mean went from {mean['span'] - mean['change']:.1f} to "
            f"{mean['span']:.1f} tokens. More updates may change them further."
        )


def learning(case: MaskCase, study: StudyRequest, texts: StudyTexts, n: int) -> tuple[MaskLearningOptions, Scope]:
    """How the degrees or spans of a case are learned, and the heads and positions that count.

    Args:
        case: says in which layers the mask holds, and whether a token may look at itself; its seed is that of random
            keys.
        study: has the options of degrees and of spans.
        texts: the longest is the largest span; the density is counted for one of the mean length.
        n: the least number of tokens that the mask is made for.
    """
    longest, diagonal = max(n, texts.longest), case.diagonal == "kept"
    mask = LearnedMaskOptions(longest, structured=True, per_layer=True, form="renormalised", diagonal=diagonal)
    if isinstance(case.mask, LearnedSpans):
        span = AdaptiveSpan(largest=texts.longest - 1, ramp=case.mask.ramp)
        return MaskLearningOptions(mask, span, "mean", layers=case.layers), Scope()
    assert isinstance(case.mask, LearnedDegrees)
    mask = replace(mask, connections=case.mask.kinds, seed=case.seed)
    law = GumbelDegrees(largest=study.degrees.largest_degree, kinds=len(case.mask.kinds))
    scope = Scope(per_head=study.degrees.degrees_of == "heads", counted=round(texts.mean_length))
    return MaskLearningOptions(mask, law, "mean", layers=case.layers), scope


def spanned(
    case: MaskCase, training_set: TrainingSet, learned: LearnedMaskResult | None
) -> AbstractContextManager[object]:
    """Multiplies weights inside `with` by the numbers of a learned mask, where these are not 0 and 1 alone."""
    if learned is None or not isinstance(case.mask, LearnedSpans):
        return nullcontext()
    return EditedModel(training_set.task.network(learned.model), learned.mask).eval().opened()


def _key(case: MaskCase) -> Record:
    return {
        "pattern": str(case.mask),
        "layers": case.layers or "all",
        "diagonal": case.keeps_diagonal,
        "seed": case.seed,
    }

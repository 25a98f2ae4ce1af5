"""Attention that looks only where a method predicts, and a task meanwhile (Treviso et al. 2022, section 5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import MODEL_FOR_MASKED_LM_MAPPING, PreTrainedModel

from headlens.analyses.sparsefinder.fitting import FittedSite
from headlens.analyses.sparsefinder.measures import allowed_pairs
from headlens.analyses.sparsefinder.options import MetricOptions, ParameterGrid
from headlens.analyses.sparsefinder.pareto_points import key_of, predictor_of
from headlens.analyses.sparsefinder.predictors import Predictor, QueryKeyVectors
from headlens.attention.attach_edit import attach_edit
from headlens.attention.edits_and_observers import AttentionCall, CallContext, Edit, Observer
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site
from headlens.corpora.sentence import Corpus
from headlens.errors import OptionError
from headlens.findings.verdicts import margin_of
from headlens.learning.sweep import Baseline, compared_with
from headlens.learning.training_set import given_pairs, given_texts
from headlens.models.loading import LoadedModel
from headlens.options import build
from headlens.statistics.bootstrap import Draws
from headlens.tables.sparsefinder_tables import GOLD
from headlens.tasks.catalogue import find_task
from headlens.tasks.evaluation import Estimate, EvaluationOptions, evaluate
from headlens.tasks.example_sources import MemoryExamples, SourceCounts, TaskSource, gather
from headlens.tasks.open_task import open_examples
from headlens.tasks.skill import skill_of
from headlens.tasks.task import Task, TaskBatch
from headlens.tasks.task_heads import classifier_names
from headlens.tasks.task_options import DEFAULT_TASK, LOWER_IS_BETTER, TaskData
from headlens.tasks.translation import Translation, read_while_writing

_TEXT = ("mlm", "translation", "translation-loss")


class Sparsity:
    """Sparsity of attention while a model runs: for each head a mean over texts, then over heads, as of recall."""

    def __init__(self) -> None:
        # By site the sum over texts of the share of pairs that are looked at, and the number of texts: (heads,) each.
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}
        self._pending: dict[str, tuple[Tensor, Tensor]] = {}  # the same of a pass that has not returned yet

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Discards the counts of the block if it fails, because it is repeated in parts where memory was too small."""
        before = dict(self._sums)
        try:
            yield
        except BaseException:
            self._sums = before
            raise

    def commit(self) -> None:
        """Adds the counts of the pass that has returned to the sums over all texts."""
        for site, (shares, texts) in self._pending.items():
            before = self._sums.get(site, (0, 0))
            self._sums[site] = before[0] + shares, before[1] + texts
        self._pending = {}

    def add(self, site: Site, kept: Tensor, allowed: Tensor, heads: int) -> None:
        """Counts the pairs of one call, until `commit`; the calls of a pass that failed before are forgotten.

        Args:
            site: of the call.
            kept: pairs that are looked at, bool, `(batch, heads or 1, query, key)`.
            allowed: pairs that could be looked at, broadcastable to these.
            heads: how many the site has.
        """
        allowed = allowed.expand(-1, -1, *kept.shape[-2:])
        looked_at, possible = ((pairs & allowed).sum(dim=(2, 3)).double() for pairs in (kept, allowed))
        # Texts without a possible pair are NaN, and do not count.
        shares, texts = (x.expand(-1, heads).nansum(dim=0).cpu() for x in (looked_at / possible, possible > 0))
        if str(site) in self._pending:
            self._pending = {}
        self._pending[str(site)] = shares, texts

    @property
    def mean(self) -> float:
        """Mean over all heads of all sites, which have equal weight; NaN if nothing was counted."""
        heads = [1 - shares / texts for shares, texts in self._sums.values()]
        return float(torch.cat(heads).nanmean()) if heads else float("nan")


class PredictedGraphEdit(Edit):
    """Lets queries look only where their site's predictor says, within what the model's own mask allows.

    A query of which no pair is predicted looks at its own place (in cross attention: the source token in its place,
    or the last one), so that no weight is left for the rest.

    Args:
        predictors: by site, such as `encoder.0`; other sites stay as they are.
        written: whether the model writes texts token by token, of which nobody declares the tokens. With a cache, a
            query is seen without those before it, which is enough for predictors that are `pairwise`.
    """

    edits_mask = True

    def __init__(self, predictors: Mapping[str, Predictor], *, written: bool = False) -> None:
        self.predictors = dict(predictors)
        self.written = written
        self._before = 0
        self._sparsity: Sparsity | None = None

    @contextmanager
    def counting(self, sparsity: Sparsity) -> Iterator[None]:
        """Adds the pairs that are looked at to `sparsity` inside, own places of queries without a predicted key too."""
        self._sparsity = sparsity
        try:
            yield
        finally:
            self._sparsity = None

    def check(self, sites: Sequence[Site]) -> None:
        """Raises OptionError if there is a predictor for a site that the model does not have."""
        names = {str(site) for site in sites}
        if missing := sorted(set(self.predictors) - names):
            raise OptionError(f"There is no {missing[0]} in this model.", f"It has: {', '.join(sorted(names))}.")

    def mask(self, context: CallContext, mask: Tensor | None) -> Tensor | None:
        """Returns the additive mask: `(batch, heads or 1, query, key)`.

        Raises:
            OptionError: where nobody declared which tokens are padding, or queries are missing that a predictor needs.
        """
        stack = context.site.stack
        if stack == "decoder":
            # Attention to a source comes later in the layer; nothing there tells how long the text is already.
            self._before = context.key.shape[2] - context.query.shape[2]
        predictor = self.predictors.get(str(context.site))
        if predictor is None:
            return mask
        before = 0 if stack == "encoder" else self._before
        if before and not predictor.pairwise:
            raise OptionError(
                f"{context.site}: these graphs cannot be predicted for one query alone.",
                "Generate text without a cache.",
            )
        real_queries, real_keys = tokens_of(context, mask, written=self.written)
        query, key = context.query.float(), context.key_of_heads.float()
        vectors = QueryKeyVectors(query, key, real_queries, real_keys, before, causal=stack == "decoder")
        inside = allowed_pairs(real_queries, real_keys)
        graph = predictor.graph(vectors) & inside
        mask = torch.zeros((), dtype=context.query.dtype, device=inside.device) if mask is None else mask
        allowed = inside & _open(mask)
        alone = ~(graph & allowed).any(dim=-1, keepdim=True)
        n, m = graph.shape[2:]
        # The key in the place of every query, or the last one: (batch, query).
        places = torch.arange(before, before + n, device=graph.device).minimum(real_keys.sum(dim=1, keepdim=True) - 1)
        in_place = (places[..., None] == torch.arange(m, device=graph.device))[:, None]
        # What padding looks at means nothing, but it has to look somewhere, too.
        kept = graph | (alone & in_place) | ~real_queries[:, None, :, None]
        if self._sparsity is not None:
            self._sparsity.add(context.site, kept, allowed, context.query.shape[1])
        return torch.where(kept, mask, torch.finfo(mask.dtype).min)


class WeightSparsity(Edit, Observer):
    """Counts the pairs that attention itself gives weight, among those that the model's mask allows.

    It changes nothing: as an edit it learns which pairs are allowed, as an observer of the same model it sees the
    weights.

    Args:
        sites: names of those whose pairs are counted.
        sparsity: where they are counted.
    """

    edits_mask = True

    def __init__(self, sites: Sequence[str], sparsity: Sparsity) -> None:
        self.sites = frozenset(sites)
        self.sparsity = sparsity
        self._allowed: dict[Site, Tensor] = {}

    def mask(self, context: CallContext, mask: Tensor | None) -> Tensor | None:
        """Returns the mask unchanged and records which pairs it allows: bool, `(batch, heads or 1, query, key)`."""
        if str(context.site) in self.sites:
            pairs = allowed_pairs(*tokens_of(context, mask, written=False))
            self._allowed[context.site] = pairs if mask is None else pairs & _open(mask)
        return mask

    def observe(self, call: AttentionCall) -> None:
        """Adds the sparsity of this call's attention weights: which of the allowed pairs have a weight above 0."""
        pairs = self._allowed.pop(call.site, None)
        if pairs is not None:
            assert call.weights is not None
            self.sparsity.add(call.site, call.weights > 0, pairs, call.weights.shape[1])


def tokens_of(context: CallContext, mask: Tensor | None, *, written: bool) -> tuple[Tensor, Tensor]:
    """Returns which queries and keys are tokens: bool, `(batch, query)` and `(batch, key)`.

    Args:
        context: the call.
        mask: its additive mask.
        written: whether texts are written, so that nobody knows the tokens, see `PredictedGraphEdit`.

    Raises:
        OptionError: where nobody declared which tokens are padding, and the mask does not tell.
    """
    if context.queries is not None and context.keys is not None:
        return context.queries.real.bool(), context.keys.real.bool()
    if not written:
        raise OptionError(
            f"{context.site}: it was not declared which tokens are padding, so no graph can be predicted.",
            "Declare them with session.batch(...).",
        )
    (batch, _, n, _), m = context.query.shape, context.key.shape[2]
    keys = torch.ones(batch, m, dtype=torch.bool, device=context.query.device)
    if mask is not None:
        # A key is padding if no query of any head may look at it.
        keys = keys & _open(mask).any(dim=2).any(dim=1)
    return keys if context.site.stack == "encoder" else keys.new_ones(batch, n), keys


def _open(mask: Tensor) -> Tensor:
    """Where an additive mask lets queries look; a bias may be added to the lowest number, so half of it divides."""
    return mask > torch.finfo(mask.dtype).min / 2


def opened_task(
    options: MetricOptions,
    loaded: LoadedModel,
    held_out: Corpus,
    counts: SourceCounts,
    *,
    pairs: bool,
    offline: bool,
    limit: int | None = None,
) -> tuple[Task, MemoryExamples] | None:
    """Finds the task and its examples; None for no task.

    `auto` is filling in masks for models with such a head, the loss of the translations for those that translate, and
    the bundled paraphrases for encoders without a head.

    Args:
        options: the name of the task, and where its examples come from.
        loaded: the model.
        held_out: the sentences that nothing was learned from.
        counts: filled with what is left out of the examples.
        pairs: whether they have translations.
        offline: never ask the hub.
        limit: most examples of a task that the held-out sentences are not the data of; None for all.

    Raises:
        OptionError: if there is no such task.
        CorpusError: if its data cannot be read.
    """
    name = suited_task(loaded, pairs=pairs) if options.task == "auto" else options.task
    if name is None or name == "none":
        return None
    if name in _TEXT and not (options.data or options.labels):
        task = Translation(tokenizer=options.bleu_tokenizer) if name == "translation" else find_task(name).task
        return task, given_texts(held_out, loaded) if name == "mlm" else given_pairs(held_out)
    data = build(TaskData, {**vars(options), "task": name, "limit": limit})
    task, source = open_examples(data, offline=offline, known=classifier_names(loaded))
    return task, gather(source, counts)


def suited_task(loaded: LoadedModel, *, pairs: bool) -> str | None:
    """Chooses the task for `auto`; None where the model can be asked nothing."""
    model = loaded.model
    if model.config.is_encoder_decoder:
        return "translation-loss" if pairs else None
    masked_lm_classes: Any = MODEL_FOR_MASKED_LM_MAPPING
    if isinstance(model, masked_lm_classes.get(type(model.config), ())):
        return "mlm"
    return DEFAULT_TASK if model.base_model is model and not getattr(model.config, "is_decoder", False) else None


@contextmanager
def _writing(model: PreTrainedModel, *, cached: bool) -> Iterator[None]:
    """Lets the model write texts with a cache that grows, or read them anew for every token."""
    config = getattr(model, "generation_config", None) or SimpleNamespace()  # of a model that writes nothing
    # A cache of fixed size would have places for keys that there are not yet.
    settings = {"use_cache": cached, "cache_implementation": None}
    before = {name: getattr(config, name, None) for name in settings}
    try:
        vars(config).update(settings)
        yield
    finally:
        vars(config).update(before)


@contextmanager
def _weights_counted(model: PreTrainedModel, sites: Sequence[str], sparsity: Sparsity) -> Iterator[None]:
    """Adds the pairs that attention gives weight to `sparsity` inside."""
    weights = WeightSparsity(sites, sparsity)
    with attach_edit(model, weights), AttentionSession(model, observers=[weights]):
        yield


@dataclass(frozen=True)
class CurvePointResult(Baseline):
    """Metrics of a task at a point of a curve, and how sparse attention was.

    Only attention that is not restricted, which others are compared with, has records, keys and whether it lacks skill.

    Args:
        metrics: all metrics of the task, by name.
        sparsity: of attention while it was measured: of the graphs on its texts, with the own places of queries
            without a predicted key, in a model whose lower layers were restricted, too. A mean over texts, of those
            that the model writes as they are in the end.
        samples: of the metric that is drawn, in bootstrap samples of the examples, the same ones at all points.
        differences: from attention that is not restricted, `COMPARED` by metric; none of that itself.
        answer_shares: share of the examples that get the most frequent answer, by metric.
        chances: what guesses made without reading give, by metric; of attention that is not restricted alone.
    """

    metrics: Mapping[str, Estimate]
    sparsity: float
    samples: list[float] = field(default_factory=list)
    differences: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    answer_shares: Mapping[str, float] = field(default_factory=dict)
    chances: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class RestrictedTask:
    """Measures a model on a task, as it is and over predicted graphs.

    Args:
        loaded: the model, whose attention is sparse.
        task: what is measured.
        source: its examples.
        grid: that points are of.
        fitted: what was learned, by site.
        stacks: those whose queries look only where is predicted.
        options: of the evaluation.
        margin: the smallest loss of a metric that matters; None for the usual one.
        tests: how many points are compared with attention that is not restricted.
    """

    loaded: LoadedModel
    task: Task
    source: TaskSource
    grid: ParameterGrid
    fitted: Mapping[str, FittedSite]
    stacks: tuple[str, ...]
    options: EvaluationOptions
    margin: float | None = None
    tests: int = 1

    @property
    def metric(self) -> str:
        """The metric that is drawn: the first of the task's metrics of which more is better."""
        return next(name for name in self.task.metrics if name not in LOWER_IS_BETTER)

    def measured(self, point: Mapping[Any, Any], baseline: Baseline | None = None) -> CurvePointResult:
        """Measures the task at a point of a curve, and how sparse attention was.

        Points are those of `headlens.analyses.sparsefinder.pareto_points.POINT`.

        Args:
            point: method, value of its parameter, window, global tokens.
            baseline: attention that is not restricted, with which others are compared; None compares with nothing.

        Raises:
            OptionError: if the model or its graphs are not for this task.
        """
        fitted = {site: learned for site, learned in self.fitted.items() if site.partition(".")[0] in self.stacks}
        sparsity, model, options = Sparsity(), self.loaded.model, self.options
        with ExitStack() as stack:
            if point["method"] == GOLD:
                cached, counting = True, partial(_weights_counted, model, tuple(fitted), sparsity)
            else:
                place = key_of(point)
                predictors = {site: predictor_of(*place, self.grid, learned) for site, learned in fitted.items()}
                cached = all(predictor.pairwise for predictor in predictors.values())
                restricted = PredictedGraphEdit(predictors, written=True)
                stack.enter_context(attach_edit(model, restricted))
                counting = partial(restricted.counting, sparsity)
            stack.enter_context(_writing(model, cached=cached))
            if self.task.generates:
                # Beams that are given up, and what follows an end, are no part of the texts.
                options = replace(options, seen=lambda ids, batch: self._read_again(ids, batch, counting, sparsity))
            else:
                options = replace(options, seen=lambda _, __: sparsity.commit())
                stack.enter_context(counting())
            evaluation = evaluate(self.task, self.loaded, self.source, options)
        records, keys = evaluation.records, evaluation.keys
        result = CurvePointResult(
            evaluation.metrics,
            sparsity.mean,
            evaluation.samples(self.metric, options).tolist(),
            answer_shares={name: self.task.answer_share(records, name) for name in evaluation.metrics},
        )
        if point["method"] == GOLD:
            chances = {name: self.task.chance(records, name, evaluation.labels) for name in evaluation.metrics}
            lacks_skill = skill_of(self.task, records, evaluation.labels).lacking
            return replace(result, chances=chances, records=records.tolist(), keys=list(keys), lacks_skill=lacks_skill)
        differences: dict[str, dict[str, float]] = {}
        if baseline is not None:
            draws = Draws.of(keys, options.replicates, options.seed)
            compared = partial(compared_with, baseline, self.task, records=records, draws=draws)
            for name in evaluation.metrics:
                chance = self.task.chance(records, name, evaluation.labels)
                tested = partial(margin_of, name, requested=self.margin, tests=self.tests, guesses=chance)
                differences[name] = compared(name, tested=tested)
        return replace(result, differences=differences)

    def _read_again(
        self, ids: Tensor, batch: TaskBatch, counting: Callable[[], AbstractContextManager[None]], sparsity: Sparsity
    ) -> None:
        """Reads the texts that were written once more, as the model read them while writing, and counts their pairs."""
        texts = read_while_writing(ids, batch.reader)
        inputs = {**batch.inputs, **texts}
        rows = max(1, self.options.batch_tokens // texts["decoder_input_ids"].shape[1])
        # Without scores of words, which would take more memory than all the rest.
        network: Any = self.loaded.model.base_model
        with torch.inference_mode(), counting(), sparsity.whole():
            for begin in range(0, len(ids), rows):
                network(**{name: tensor[begin : begin + rows] for name, tensor in inputs.items()}, use_cache=False)
                sparsity.commit()

"""A task while attention looks only where a method predicts (Treviso et al. 2022, section 5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import MODEL_FOR_MASKED_LM_MAPPING, PreTrainedModel

from headlens.analyses.sparsefinder.fitting import FittedSite
from headlens.analyses.sparsefinder.options import MetricOptions, ParameterGrid
from headlens.analyses.sparsefinder.pareto_points import GOLD, key_of, predictor_of
from headlens.analyses.sparsefinder.predicted_graph_edit import PredictedGraphEdit, Sparsity, WeightSparsity
from headlens.analyses.training.training_set import given_pairs, given_texts
from headlens.attention.attach_edit import attach_edit
from headlens.attention.session import AttentionSession
from headlens.corpora.sentence import Corpus
from headlens.models.loading import LoadedModel
from headlens.tasks.catalogue import find_task
from headlens.tasks.evaluation import Estimate, EvaluationOptions, evaluate
from headlens.tasks.example_sources import MemoryExamples, SourceCounts, TaskSource, gather
from headlens.tasks.open_task import open_examples
from headlens.tasks.task import Task, TaskBatch
from headlens.tasks.task_heads import classifier_names
from headlens.tasks.task_options import DEFAULT_TASK, LOWER_IS_BETTER, TaskData
from headlens.tasks.translation import Translation, read_while_writing

_TEXT = ("mlm", "translation", "translation-loss")


def opened_task(
    options: MetricOptions,
    loaded: LoadedModel,
    held_out: Corpus,
    counts: SourceCounts,
    *,
    pairs: bool,
    offline: bool,
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

    Raises:
        OptionError: if there is no such task.
        CorpusError: if its data cannot be read.
    """
    name = _suited(loaded, pairs=pairs) if options.task == "auto" else options.task
    if name is None or name == "none":
        return None
    if name in _TEXT and not (options.data or options.labels):
        task = Translation(tokenizer=options.bleu_tokenizer) if name == "translation" else find_task(name).task
        return task, given_texts(held_out, loaded) if name == "mlm" else given_pairs(held_out)
    data = TaskData(
        name,
        options.data,
        options.columns,
        options.data_split,
        labels=options.labels,
        skip_broken=options.skip_broken,
        bleu_tokenizer=options.bleu_tokenizer,
    )
    task, source = open_examples(data, offline=offline, known=classifier_names(loaded))
    return task, gather(source, counts)


def _suited(loaded: LoadedModel, *, pairs: bool) -> str | None:
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
    config: Any = getattr(model, "generation_config", None)
    if config is None:
        yield
        return
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
class CurvePointResult:
    """Metrics of a task at a point of a curve, and how sparse attention was.

    Args:
        metrics: all metrics of the task, by name.
        sparsity: of attention while it was measured: of the graphs on its texts, with the own places of queries
            without a predicted key, in a model whose lower layers were restricted, too. A mean over texts, of those
            that the model writes as they are in the end.
        samples: of the metric that is drawn, in bootstrap samples of the examples, the same ones at all points.
    """

    metrics: Mapping[str, Estimate]
    sparsity: float
    samples: list[float] = field(default_factory=list)


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
    """

    loaded: LoadedModel
    task: Task
    source: TaskSource
    grid: ParameterGrid
    fitted: Mapping[str, FittedSite]
    stacks: tuple[str, ...]
    options: EvaluationOptions

    @property
    def metric(self) -> str:
        """The metric that is drawn: the first of the task's metrics of which more is better."""
        return next(name for name in self.task.metrics if name not in LOWER_IS_BETTER)

    def measured(self, point: Mapping[Any, Any]) -> CurvePointResult:
        """Measures the task at a point of a curve, and how sparse attention was.

        Points are those of `headlens.analyses.sparsefinder.pareto_points.POINT`.

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
        samples = evaluation.samples(self.metric, options).tolist()
        return CurvePointResult(evaluation.metrics, sparsity.mean, samples)

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

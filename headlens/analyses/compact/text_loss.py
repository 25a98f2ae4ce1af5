"""What a decoder loses without heads: loss and perplexity of text, of each shape of what is left; and its cache."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from transformers import PreTrainedModel

from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites
from headlens.corpora.sentence import Corpus
from headlens.corpora.text import as_written
from headlens.heads import Head
from headlens.interventions.gates import HeadGates
from headlens.models.loading import LoadedModel
from headlens.statistics.bootstrap import Draws
from headlens.statistics.paired_tests import PairedComparison
from headlens.tasks.evaluation import Evaluation, EvaluationOptions, evaluate, paired_comparison
from headlens.tasks.example_sources import MemoryExamples
from headlens.tasks.examples import TextExample
from headlens.tasks.language_modeling import CausalLM
from headlens.tasks.task_heads import check_head

LOSS, PERPLEXITY = "loss", "perplexity"


@dataclass(frozen=True)
class TextLoss:
    """A decoder on a text that is measured with different heads gone.

    Args:
        task: the prediction of next tokens.
        source: the text.
        options: batches and bootstrap.
    """

    task: CausalLM
    source: MemoryExamples
    options: EvaluationOptions

    @classmethod
    def of(cls, loaded: LoadedModel, corpus: Corpus, options: EvaluationOptions) -> TextLoss:
        """The sentences of a corpus as texts for a decoder.

        Args:
            loaded: the model.
            corpus: whose first sides are read.
            options: batches and bootstrap.

        Raises:
            OptionError: if the model does not predict next tokens.
        """
        task = CausalLM()
        check_head(loaded, task)
        texts = (TextExample(str(number), (as_written(example.source).text,)) for number, example in enumerate(corpus))
        return cls(task, MemoryExamples(tuple(texts), corpus.name), options)

    def evaluate(self, loaded: LoadedModel, gates: Mapping[Head, float] | None = None) -> MeasuredText:
        """Reads the text with a model, some of whose heads may have gates."""
        if not gates:
            return MeasuredText(evaluate(self.task, loaded, self.source, self.options), self.options)
        with AttentionSession(loaded.model, edits=[HeadGates(gates)]):
            return self.evaluate(loaded)


@dataclass(frozen=True)
class MeasuredText:
    """What a model did on a text.

    Args:
        evaluation: its records and metrics.
        options: of the bootstrap.
    """

    evaluation: Evaluation
    options: EvaluationOptions

    @cached_property
    def cells(self) -> dict[str, float]:
        """Loss and perplexity with their intervals over texts, as columns."""
        cells = dict[str, float]()
        for name in (LOSS, PERPLEXITY):
            estimate = self.evaluation.metrics[name]
            cells |= {name: estimate.value, f"{name}_low": estimate.ci_low, f"{name}_high": estimate.ci_high}
        return cells

    def beside(self, other: MeasuredText) -> PairedComparison:
        """The loss less that of another model on the same text, paired by example."""
        own = self.evaluation
        draws = Draws.of(own.keys, self.options.replicates, self.options.seed)
        return paired_comparison(own.task, LOSS, other.evaluation.records, draws).of(own.records)

    def compared(self, other: MeasuredText) -> dict[str, float]:
        """Computes the same as `beside`, as columns of a table."""
        found = self.beside(other)
        return {"loss_delta": found.delta, "loss_delta_low": found.low, "loss_delta_high": found.high}


def cache_bytes_per_token(model: PreTrainedModel, inputs: Mapping[str, Any]) -> float:
    """The bytes by which the keys and values that a decoder keeps grow with a token, over all layers.

    One token is read with the cache on, and the tensors that the model kept are counted; keys of another text (of an
    encoder) do not grow and do not count. Layers with a sliding window keep no more than the window.

    Args:
        model: the model.
        inputs: a batch that it reads.

    Returns:
        The bytes; NaN for a model that keeps no cache: an encoder, or a decoder whose first layer has no heads left.
    """
    if all(site.stack != "decoder" for site in find_sites(model)) or getattr(model.config, "use_cache", None) is False:
        return float("nan")
    first = {
        key: value[:1, :1] if key.startswith("decoder_") or not model.config.is_encoder_decoder else value[:1]
        for key, value in inputs.items()
        if isinstance(value, torch.Tensor)
    }
    body: Any = model.base_model
    with torch.inference_mode():
        cache: Any = getattr(body(**first, use_cache=True), "past_key_values", None)
    cache = getattr(cache, "self_attention_cache", cache)
    if cache is None:
        return float("nan")
    kept = [t for layer in cache.layers for t in (getattr(layer, "keys", None), getattr(layer, "values", None))]
    return float(sum(t.numel() * t.element_size() for t in kept if t is not None))


def gates_of(removed: Collection[Head], scales: Mapping[Head, float]) -> dict[Head, float]:
    """Gates that stand for a model without some heads: 0 for these, and the factors of the others."""
    return {**scales, **dict.fromkeys(removed, 0.0)}

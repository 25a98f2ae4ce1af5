"""How a smaller model compares with the masked one and the original: outputs, size, speed, and loss of text."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import PreTrainedModel

from headlens.analyses.compact.options import CompactRequest
from headlens.analyses.compact.text_loss import MeasuredText, TextLoss, cache_bytes_per_token, gates_of
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site, find_sites
from headlens.corpora.encoded_corpus import EncodingCounts
from headlens.corpora.sentence import Corpus
from headlens.errors import CorpusError, SelfCheckError
from headlens.heads import Head
from headlens.interventions.compacting import (
    Compaction,
    settings_or_none,
)
from headlens.interventions.gates import HeadGates
from headlens.metrics.accumulator import Array
from headlens.models.loading import LoadedModel, load, quiet
from headlens.planning.speed import operations_of, seconds_of
from headlens.runs.corpus_pass import CorpusReader
from headlens.runs.progress import Advance
from headlens.runs.run import Run
from headlens.statistics.intervals import geometric_mean_interval
from headlens.weights.shared_layer_masks import silent_heads

Inputs = dict[str, Any]
# Of the largest output, or of 1 where that is less.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


@dataclass(frozen=True)
class Difference:
    """How far the outputs of two models are apart.

    Args:
        largest: the largest difference of two numbers.
        output: the largest output.
        tolerance: the share of the output (of 1 where that is less) that is allowed.
    """

    largest: float
    output: float
    tolerance: float

    def check(self) -> None:
        """Refuse a model that computes something else than the masked one.

        Raises:
            SelfCheckError: if the difference is larger than allowed, or no number.
        """
        if not self.largest <= self.tolerance * max(1.0, self.output):
            raise SelfCheckError(
                f"The compacted model differs from the masked one: {self}.", "Nothing was written; please report it."
            )

    def __str__(self) -> str:
        return (
            f"outputs differ by at most {self.largest:.2g}, the largest output being {self.output:.3g}; "
            f"{self.tolerance * max(1.0, self.output):.2g} is the tolerance"
        )


def model_inputs(loaded: LoadedModel, corpus: Corpus, batch_tokens: int, counts: EncodingCounts) -> list[Inputs]:
    """Batches of a corpus for the whole model; where there is no target side, its decoder reads the source.

    Args:
        loaded: the model.
        corpus: what it reads, held in memory as numbers.
        batch_tokens: tokens of a batch, padding included.
        counts: filled with what became of the sentences.

    Raises:
        CorpusError: if there is no sentence that the model can read.
    """
    examples = iter(corpus)
    first = next(examples, None)
    reader = None if first is None else CorpusReader.of(loaded, first)
    batches = [] if reader is None else list(reader.batches(chain([first], examples), batch_tokens, counts))  # type: ignore[list-item]
    if reader is None or not batches:
        raise CorpusError(f"{corpus.name} has no sentence that {loaded.name} can read.", "Give shorter sentences.")
    further = {"use_cache": False} if loaded.model.config.is_encoder_decoder else reader.arguments
    return [{**_complete(loaded.model, batch.inputs), **further} for batch in batches]


def _complete(model: PreTrainedModel, inputs: Mapping[str, torch.Tensor]) -> Inputs:
    if not model.config.is_encoder_decoder or "decoder_input_ids" in inputs:
        return dict(inputs)
    table: Any = model.get_decoder().get_input_embeddings()
    ids = inputs["input_ids"].clamp(max=table.num_embeddings - 1)
    return {**inputs, "decoder_input_ids": ids, "decoder_attention_mask": inputs["attention_mask"]}


def difference_to_masked(
    model: PreTrainedModel,
    small: PreTrainedModel,
    removed: Collection[Head],
    inputs: Sequence[Inputs],
    scales: Mapping[Head, float] | None = None,
) -> Difference:
    """Compare what a smaller model computes with what the original does with the removed heads gated to 0.

    Outputs at padding are nobody's: no token reads them, and rounding may grow there beyond what any tolerance allows.

    Args:
        model: the original, which may have lost some of the heads before.
        small: without them.
        removed: the heads.
        inputs: batches, see `model_inputs`.
        scales: what the outputs of other heads are multiplied by; None for nothing.
    """
    masked, part = _body(model), _body(small)
    values = gates_of(removed, scales or {})
    gates = HeadGates({h: values[h] for s in find_sites(masked) for h in s.heads if h in values})
    sizes = [(0.0, 0.0)]
    with AttentionSession(masked, edits=[gates]), torch.inference_mode():
        for batch in inputs:
            # Which outputs are those of tokens, by their first two dimensions.
            mask = batch.get("decoder_attention_mask", batch.get("attention_mask"))
            real: Any = ... if mask is None else mask.bool()
            expected, computed = (m(**batch)[0][real].double() for m in (masked, part))
            sizes.append((float((expected - computed).abs().max()), float(expected.abs().max())))
    # numpy's, since NaN is the largest of all there.
    difference, output = np.max(sizes, axis=0)
    return Difference(float(difference), float(output), TOLERANCE[model.dtype])


def _body(model: PreTrainedModel) -> PreTrainedModel:
    """The model without its task head, which costs the same before and after."""
    body = model.base_model
    assert isinstance(body, PreTrainedModel)
    return body


def seconds_per_forward(
    models: Sequence[PreTrainedModel], inputs: Sequence[Inputs], rounds: int, advance: Advance = lambda _: None
) -> Array:
    """Wall time of a forward pass, the mean over the batches: (rounds, models).

    The models take turns at every batch, so that whatever else the machine does hits all of them; the first round
    warms up and does not count.
    """
    spent = np.zeros((rounds + 1, len(models)))
    with torch.inference_mode():
        for number in range(rounds + 1):
            for turn, batch in enumerate(inputs):
                for offset in range(len(models)):
                    which = (turn + number + offset) % len(models)
                    body = _body(models[which])
                    spent[number, which] += seconds_of(partial(body, **batch), body.device)
            advance(1)
    seconds: Array = spent[1:] / len(inputs)
    return seconds


def model_size(model: PreTrainedModel) -> dict[str, int]:
    """How large a model is: its heads, its parameters, and the bytes of its weights, shared ones once.

    Of weights that several depths share, the heads count at each depth; `masked` of them are silent.
    """
    tensors = {t.data_ptr() or id(t): t for t in model.state_dict().values()}.values()
    return {
        "heads": sum(s.n_heads for s in find_sites(model)),
        "masked": sum(map(len, silent_heads(model))),
        "parameters": sum(p.numel() for p in model.parameters()),
        "weight_bytes": sum(t.numel() * t.element_size() for t in tensors),
    }


def compact_table(
    name: str, states: Sequence[str], sizes: Sequence[dict[str, int]], seconds: Array, operations: Sequence[int]
) -> pd.DataFrame:
    """`compact.csv`: a row for each state of the model, the first being the original.

    Args:
        name: of the model.
        states: what the rows are called.
        sizes: for each.
        seconds: (rounds, states), see `seconds_per_forward`.
        operations: of a forward pass, for each.
    """
    rows = []
    for i, (state, size) in enumerate(zip(states, sizes, strict=True)):
        mean, low, high = geometric_mean_interval(seconds[:, i])
        # Ratios within a round, since its models ran side by side.
        gain = geometric_mean_interval(seconds[:, 0] / seconds[:, i])
        times = {"seconds_per_forward": mean, "ci_low": low, "ci_high": high}
        speed = {"speedup": gain[0], "speedup_low": gain[1], "speedup_high": gain[2]}
        counts = {"operations": operations[i], "theoretical_speedup": operations[0] / operations[i]}
        rows.append({"model": name, "state": state, **size, **times, **speed, **counts})
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class ModelComparison:
    """What is compared: the saved model, read again, with the masked model and the original."""

    request: CompactRequest
    run: Run
    loaded: LoadedModel
    inputs: list[Inputs]
    done: Compaction
    factors: Mapping[Site, float]

    def of(self, folder: Path, text: TextLoss | None) -> tuple[Difference, pd.DataFrame, list[MeasuredText]]:
        """The self-check, the table, and what both models did on a text."""
        # What was saved is loaded as the original was.
        kind: Any = str(self.loaded.model.dtype).removeprefix("torch.")
        options = replace(self.request.model_options, dtype=kind, revision=None, offline=True)
        small = load(str(folder), options)
        with self.run.reporter.status("comparing with the masked model"):
            difference = self._difference(small.model)
        difference.check()
        if settings_or_none(small.model) is not None:
            with self.run.reporter.status("comparing with plain from_pretrained"), quiet():
                plain: Any = type(self.loaded.model).from_pretrained(folder, dtype=self.loaded.model.dtype)
                difference = max(difference, self._difference(plain.to(self.loaded.device).eval()), key=_largest)
            difference.check()
        rounds, inputs = self.request.measure.rounds, self.inputs
        models = (self.loaded.model, small.model)
        with self.run.reporter.progress("timing", rounds + 1) as advance:
            seconds = seconds_per_forward(models, inputs, rounds, advance)
        middle = inputs[len(inputs) // 2]
        sizes, operations = [model_size(m) for m in models], [operations_of(_body(m), middle) for m in models]
        states = ["original", "stock" if self.request.stock else "compacted"]
        table = compact_table(self.loaded.short_name, states, sizes, seconds, operations)
        table["tokens_per_second"] = sum(map(tokens_read, inputs)) / len(inputs) / table["seconds_per_forward"]
        table["cache_bytes_per_token"] = [cache_bytes_per_token(m, inputs[0]) for m in models]
        losses = []
        if text is not None:
            with self.run.reporter.status(f"reading {text.source.name}"):
                losses = [text.evaluate(self.loaded), text.evaluate(replace(small, name=self.loaded.name))]
            rows = [losses[0].cells, losses[1].cells | losses[1].compared(losses[0])]
            table = table.join(pd.DataFrame(rows))
        return difference, table, losses

    def _difference(self, small: PreTrainedModel) -> Difference:
        scales = {head: factor for site, factor in self.factors.items() for head in site.heads}
        return difference_to_masked(self.loaded.model, small, self.done.heads.removed, self.inputs, scales)


def _largest(difference: Difference) -> float:
    return math.inf if math.isnan(difference.largest) else difference.largest


def output_layer_note(model: PreTrainedModel, batch: Inputs, operations: Sequence[int]) -> list[str]:
    """Says what the output layer, which is not timed, makes of the speed-up; nothing of models without one.

    Args:
        model: the original.
        batch: over which operations were counted.
        operations: of the original and of the smaller model, without that layer.
    """
    layer: Any = model.get_output_embeddings()
    if layer is None:
        return []
    tokens = batch["decoder_input_ids" if "decoder_input_ids" in batch else "input_ids"].numel()
    head = 2 * tokens * layer.weight.numel()
    before, after = (number + head for number in operations)
    return [
        "Times, speed-ups and tokens per second are those of the model without its output layer, which costs the same "
        f"before and after: with it, which then has {head / before:.0%} of all operations, the theoretical speed-up is "
        f"{before / after:.2f}."
    ]


def tokens_read(batch: Mapping[str, Any]) -> int:
    """How many tokens of a batch are not padding, those of both sides."""
    names = ("attention_mask", "decoder_attention_mask")
    return sum(int(batch[name].sum()) for name in names if batch.get(name) is not None)

"""Likelihood of tokens: masked tokens of a sentence, and reference translations under teacher forcing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from headlens.corpora.batches import IGNORED, padded
from headlens.corpora.encoded_corpus import Masking
from headlens.corpora.encoding import EncodedExample, SentenceEncoder
from headlens.corpora.sentence import Example, Sentence
from headlens.corpora.text import split_words
from headlens.errors import OptionError
from headlens.statistics import weighted_means
from headlens.tasks.examples import LabelCounts, TaskExample, texts_of
from headlens.tasks.reader import Reader, TokenRow
from headlens.tasks.task import Floats, HeadKind, PreparedExample, Task, TaskBatch, require_output


class Likelihood(Task):
    """Base of tasks that predict tokens; all metrics are per token, not per example.

    Records are sums over the predicted tokens of an example: `nll` (nats), `tokens`, `correct`.
    """

    metrics = ("accuracy", "loss", "perplexity")
    reported = ("accuracy", "loss")  # perplexity is the exponential of the loss
    columns = ("nll", "tokens", "correct")
    learned = "mlm"  # the task on which `headlens train` teaches what is measured

    def statistic(self, metric: str, records: Floats, weights: Floats) -> Floats:
        """Computes accuracy, loss (nats per token) or perplexity under every weighting, (replicates,)."""
        nll, tokens, correct = (weights @ records).T
        if metric == "accuracy":
            return weighted_means.ratio(correct, tokens)
        loss = weighted_means.ratio(nll, tokens)
        with np.errstate(over="ignore"):  # infinity says enough
            return np.exp(loss) if metric == "perplexity" else loss

    def chance(self, records: Floats, metric: str | None = None, labels: LabelCounts | None = None) -> float | None:
        """Returns what predicting every token by its frequency gives, which no other constant prediction exceeds.

        The loss is the entropy of the frequencies (Cover and Thomas 2006, theorem 5.4.3), the accuracy that of the
        most frequent token.
        """
        del records
        if not labels:
            return None
        counts = np.fromiter(labels.values(), np.float64)
        shares = counts / counts.sum()
        loss = -float((shares * np.log(shares)).sum())
        return {"accuracy": float(shares.max()), "loss": loss, "perplexity": math.exp(loss)}[metric or self.metrics[0]]

    def finer(self, records: Floats) -> float:
        """Returns the negative mean loss per token in nats, which ranks models whose accuracy is equal."""
        return -float(records[:, 0].sum() / max(records[:, 1].sum(), 1.0))

    def targets(self, prepared: Sequence[PreparedExample], reader: Reader, device: torch.device) -> dict[str, Tensor]:
        """Returns ids of the tokens to predict as `labels`, -100 at all other places: (rows, length)."""
        del reader
        return {"labels": padded([row.labels for p in prepared for row in p.rows], IGNORED).to(device)}

    def units(self, batch: TaskBatch) -> int:
        """Returns the number of tokens whose labels count, over which the model's loss is the mean."""
        return int((batch.labels["labels"] != IGNORED).sum())

    def read(self, outputs: Any, batch: TaskBatch) -> Floats:
        """Computes the records `nll` (nats), `tokens` and `correct` from the language model's logits, (n, 3)."""
        logits, labels = self._predictions(outputs, batch)
        predicted = labels != IGNORED  # (rows, length)
        examples = batch.example_of_row[predicted.nonzero()[:, 0].cpu()]
        # Few tokens of a row are predicted: only their logits are normalised.
        logits, labels = logits[predicted], labels[predicted]  # (tokens, vocabulary), (tokens,)
        surprise = torch.logsumexp(logits, dim=-1) - logits.gather(1, labels[:, None])[:, 0]
        tokens = torch.stack([surprise, torch.ones_like(surprise), logits.argmax(-1) == labels], dim=1)
        return torch.zeros(len(batch), 3, dtype=torch.float64).index_add_(0, examples, tokens.double().cpu()).numpy()

    def losses(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Computes the cross-entropy in nats, summed over the predicted tokens of an example: (n,)."""
        rows = -row_log_likelihoods(*self._predictions(outputs, batch))
        return rows.new_zeros(len(batch)).index_add(0, batch.example_of_row.to(rows.device), rows)

    def _predictions(self, outputs: Any, batch: TaskBatch) -> tuple[Tensor, Tensor]:
        """Returns logits, (rows, length, vocabulary), and the tokens that they are to predict, (rows, length)."""
        labels = batch.labels["labels"]
        return language_logits(outputs, labels, self.name, self.learned), labels


def row_log_likelihoods(logits: Tensor, labels: Tensor) -> Tensor:
    """Sums log-probabilities in nats over the predicted tokens of every row, (rows,).

    Args:
        logits: (rows, length, vocabulary).
        labels: ids of the tokens, -100 where none is predicted, (rows, length).
    """
    surprise = cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
    return -surprise.view_as(labels).sum(dim=1)


def language_logits(outputs: Any, labels: Tensor, task: str, learned: str, first: int = 0) -> Tensor:
    """Returns the logits of a language model from a position on, (rows, length - first, vocabulary).

    Args:
        outputs: of the model, which may have been asked for these logits alone, see `Task.inputs`.
        labels: (rows, length).
        task: name of the task, for errors.
        learned: name of the task that such models are trained on.
        first: the position.

    Raises:
        OptionError: if the outputs have none, or rows or length differ from those of the labels.
    """
    # Models with a second head for pre-training give the attribute another name.
    name = "prediction_logits" if hasattr(outputs, "prediction_logits") else "logits"
    logits = require_output(outputs, name, 3, task, "a language-model head", learned)
    if logits.shape[1] == labels.shape[1]:
        logits = logits[:, first:]
    if logits.shape[:2] != labels[:, first:].shape:
        raise OptionError(
            f"The model's logits have the shape {tuple(logits.shape)} for labels {tuple(labels.shape)}.",
            "Give a model with a language-model head.",
        )
    return logits


@dataclass(frozen=True)
class MaskedLM(Likelihood):
    """Masked tokens of a sentence; which ones depends on the sentence and the seed alone.

    A sentence whose text holds mask tokens has no known answer and is left out.

    Args:
        name: name of the task.
        share: share of a sentence's tokens that are masked.
        seed: another seed masks other tokens.
    """

    name: str = "mlm"
    share: float = 0.15
    seed: int = 0
    head: ClassVar[HeadKind] = "masked-lm"

    def prepare(self, example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
        """Tokenises and masks a sentence as one row, with the masked tokens as labels.

        Raises:
            OptionError: if the tokenizer has no mask token.
        """
        masking = Masking(reader.mask_id, self.share, self.seed)
        plain = encoded(example.id, texts_of(example)[0], reader)
        masked = None if plain is None else masking.mask(plain)
        if plain is None or masked is None or masked is plain:
            return ()
        pairs = zip(plain.source.ids, masked.source.ids, strict=True)
        labels = tuple(old if new != old else IGNORED for old, new in pairs)
        return (TokenRow(masked.source.ids, reader.one_segment(len(labels)), labels),)


def encoded(key: str, text: str, reader: Reader) -> EncodedExample | None:
    """Returns the tokens of a text, with the word of every token; None if it is too long or has none."""
    sentence = Sentence(text, tuple(split_words(text)), key)
    return SentenceEncoder(reader.tokenizer, reader.limit).encode(Example(sentence)) if sentence.words else None


def decoder_inputs(labels: Tensor, reader: Reader) -> dict[str, Tensor]:
    """Returns a decoder's input under teacher forcing: the start token, then all labels but the last.

    Args:
        labels: ids of the target text, -100 behind its end, (rows, length).
        reader: reader of the model, for its start token and padding.

    Returns:
        `decoder_input_ids` and `decoder_attention_mask`, (rows, length) each.
    """
    assert reader.decoder_start_id is not None
    ids = labels.roll(1, dims=1)
    ids[:, 0] = reader.decoder_start_id
    return {
        "decoder_input_ids": ids.masked_fill(ids == IGNORED, reader.pad_id),
        "decoder_attention_mask": (labels != IGNORED).long(),
    }


class TranslationTask(Task):
    """Base of tasks on translations, for encoder-decoders."""

    head: ClassVar[HeadKind] = "seq2seq-lm"

    def prepare(self, example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
        """Tokenises the source as one row with the tokens of its translation as labels; no row if either is too long.

        Raises:
            OptionError: if the model is no encoder-decoder.
        """
        if reader.decoder_start_id is None:
            raise OptionError("Translation needs an encoder-decoder.", "Give a translation model, such as Marian's.")
        source, reference = texts_of(example)
        row, labels = reader.sequence(source), reader.target(reference)
        if row is None or not labels or len(labels) > (reader.target_limit or len(labels)):
            return ()
        # One text has no segments to tell apart, and `generate` refuses them for most models.
        return (TokenRow(row.ids, labels=labels),)


@dataclass(frozen=True)
class TranslationLoss(TranslationTask, Likelihood):
    """How likely a reference translation is to a model under teacher forcing, in one forward pass.

    Args:
        name: name of the task.
    """

    name: str = "translation-loss"
    metrics = ("loss", "perplexity", "accuracy")
    learned = "translation"

    def collate(self, prepared: Sequence[PreparedExample], reader: Reader, device: torch.device | str) -> TaskBatch:
        """Gathers prepared examples as a batch whose inputs hold those of the decoder."""
        batch = super().collate(prepared, reader, device)
        return replace(batch, inputs=batch.inputs | decoder_inputs(batch.labels["labels"], reader))

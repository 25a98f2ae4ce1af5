"""Words that a model has to fill in: masked language models, and translations it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from headlens.corpora.collate import IGNORED, padded
from headlens.corpora.encoding import SentenceEncoder
from headlens.corpora.masking import Masking
from headlens.corpora.sentence import Example
from headlens.corpora.text import plain_sentence
from headlens.errors import OptionError
from headlens.statistics import weighted_means as statistics
from headlens.tasks.examples import TaskExample, TextExample
from headlens.tasks.model_outputs import taken, token_records
from headlens.tasks.reader import Reader, TokenRow
from headlens.tasks.task import Floats, HeadKind, PreparedExample, Task, TaskBatch


class Likelihood(Task):
    """Records: `nll` (nats, summed over the tokens asked for), `tokens`, `correct`."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics, accuracy first; all are computed per token, not per example."""
        return "accuracy", "loss", "perplexity"

    @property
    def reported(self) -> tuple[str, ...]:
        """Perplexity tells no more than the loss."""
        return "accuracy", "loss"

    @property
    def columns(self) -> tuple[str, ...]:
        """Sums over the tokens of an example."""
        return "nll", "tokens", "correct"

    def statistic(self, metric: str, records: Floats, weights: Floats) -> Floats:
        """Compute accuracy, loss (nats per token) or perplexity under every weighting, (replicates,)."""
        nll, tokens, correct = (weights @ records).T
        if metric == "accuracy":
            return statistics.ratio(correct, tokens)
        loss = statistics.ratio(nll, tokens)
        return np.exp(loss) if metric == "perplexity" else loss

    def finer(self, records: Floats) -> float:
        """Minus the mean loss per token."""
        return -float(records[:, 0].sum() / max(records[:, 1].sum(), 1.0))

    def targets(self, prepared: Sequence[PreparedExample], reader: Reader, device: torch.device) -> dict[str, Tensor]:
        """Ids, -100 where nothing is asked for, (rows, length)."""
        del reader
        return {"labels": padded([row.labels for p in prepared for row in p.rows], IGNORED).to(device)}

    def units(self, batch: TaskBatch) -> int:
        """Return the number of tokens whose labels count, over which the model's loss is the mean."""
        return int((batch.labels["labels"] != IGNORED).sum())

    def read(self, outputs: Any, batch: TaskBatch) -> Floats:
        """Compute the records `nll` (nats), `tokens` and `correct` from the language model's logits, (n, 3)."""
        return token_records(self._logits(outputs, batch), batch.labels["labels"])

    def losses(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Cross-entropy in nats, summed over the tokens of an example."""
        logits, labels = self._logits(outputs, batch), batch.labels["labels"]
        surprise = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none"
        )
        return surprise.view_as(labels).sum(dim=1)

    def _logits(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Return the language model's logits, (rows, length, vocabulary).

        Raises:
            OptionError: if the outputs have none, or rows or length differ from those of the labels.
        """
        labels = batch.labels["labels"]
        # Models with a second head for pre-training call them otherwise.
        name = "prediction_logits" if hasattr(outputs, "prediction_logits") else "logits"
        logits = taken(outputs, name, 3, self.name, "a language-model head")
        if logits.shape[:2] != labels.shape:
            raise OptionError(
                f"The model's logits have the shape {tuple(logits.shape)} for labels {tuple(labels.shape)}.",
                "Give a model with a language-model head.",
            )
        return logits


@dataclass(frozen=True)
class MaskedLM(Likelihood):
    """Masked tokens of a sentence; which ones depends on the sentence and the seed alone.

    A sentence that brings its own mask tokens has no answer and is left out.

    Args:
        name: of the task.
        share: of a sentence's tokens that are masked.
        seed: another seed masks other tokens.
    """

    name: str = "mlm"
    share: float = 0.15
    seed: int = 0
    head: ClassVar[HeadKind] = "masked-lm"

    def prepare(self, example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
        """One row with mask tokens, and what they were.

        Raises:
            OptionError: if the tokenizer has no mask token.
        """
        assert isinstance(example, TextExample)
        mask_id = reader.tokenizer.mask_token_id
        if mask_id is None:
            raise OptionError(
                f"{type(reader.tokenizer).__name__} has no mask token.", "Give a masked language model, such as BERT."
            )
        sentence = plain_sentence(example.texts[0], example.id)
        whole = SentenceEncoder(reader.tokenizer, reader.limit).encode(Example(sentence)) if sentence.words else None
        masked = None if whole is None else Masking(int(mask_id), self.share, self.seed).mask(whole)
        if whole is None or masked is None or masked is whole:
            return ()
        pairs = zip(whole.source.ids, masked.source.ids, strict=True)
        labels = tuple(old if new != old else IGNORED for old, new in pairs)
        segments = (0,) * len(labels) if "token_type_ids" in reader.tokenizer.model_input_names else ()
        return (TokenRow(masked.source.ids, segments, labels),)


def decoder_inputs(labels: Tensor, reader: Reader) -> dict[str, Tensor]:
    """What a decoder reads under teacher forcing: the start, then all labels but the last; (rows, length) each."""
    assert reader.decoder_start_id is not None
    ids = labels.roll(1, dims=1)
    ids[:, 0] = reader.decoder_start_id
    return {
        "decoder_input_ids": ids.masked_fill(ids == IGNORED, reader.pad_id),
        "decoder_attention_mask": (labels != IGNORED).long(),
    }


@dataclass(frozen=True)
class TranslationLoss(Likelihood):
    """How likely a translation is to a model that is shown it word by word (teacher forcing): one forward pass each.

    Args:
        name: of the task.
    """

    name: str = "translation-loss"
    head: ClassVar[HeadKind] = "seq2seq-lm"

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics: loss, the main metric, then perplexity and accuracy, each per token."""
        return "loss", "perplexity", "accuracy"

    def prepare(self, example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
        """Tokenise the source as one row with the tokens of its translation as labels; no row if either is too long.

        Raises:
            OptionError: if the model is no encoder-decoder.
        """
        return translation_row(example, reader)

    def collate(self, prepared: Sequence[PreparedExample], reader: Reader, device: torch.device | str) -> TaskBatch:
        """A batch with the decoder's inputs."""
        batch = super().collate(prepared, reader, device)
        inputs = batch.inputs | decoder_inputs(batch.labels["labels"], reader)
        return TaskBatch(inputs, batch.labels, prepared, reader)

    def arguments(self, model: Any) -> dict[str, Any]:
        """Decoders of pairs keep no cache."""
        del model
        return {"use_cache": False}


def translation_row(example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
    """A source, with its translation as labels; nothing if a side is too long.

    Raises:
        OptionError: if the model is no encoder-decoder.
    """
    assert isinstance(example, TextExample)
    if reader.decoder_start_id is None:
        raise OptionError("Translation needs an encoder-decoder.", "Give a translation model, such as Marian's.")
    source, reference = example.texts
    row, labels = reader.sequence(source), reader.target(reference)
    if row is None or not labels or not reader.fits(len(labels)):
        return ()
    # One text has no segments to tell apart, and `generate` refuses them for most models.
    return (TokenRow(row.ids, labels=labels),)

"""Translations that a model writes itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headlens.corpora.collate import IGNORED
from headlens.errors import OptionError
from headlens.tasks.examples import TaskExample, TextExample
from headlens.tasks.masked import TranslationLoss, decoder_inputs, translation_row
from headlens.tasks.reader import Reader, TokenRow
from headlens.tasks.task import Floats, HeadKind, Task, TaskBatch
from headlens.tasks.translation_metrics import BLEU_COLUMNS, CHRF_COLUMNS, bleu, bleu_counts, chrf, chrf_counts

# The column that tells of translations without an end.
CUT = "cut"


@dataclass(frozen=True)
class Translation(Task):
    """Beam search, compared with one reference.

    Records are counts that add up over sentences, so that BLEU and chrF of any sample are exactly sacreBLEU's, and
    whether a translation was `cut`: it had no end within the tokens that it may have. The loss of training is that of
    `TranslationLoss`, whose batches have labels.

    Args:
        name: of the task.
        beams: width of the beam.
        max_tokens: most tokens of a translation; one that is not done by then is scored as it is.
        tokenizer: sacreBLEU's, such as `13a`, `zh`, `intl`.
    """

    name: str = "translation"
    beams: int = 4
    max_tokens: int = 256
    tokenizer: str = "13a"
    head: ClassVar[HeadKind] = "seq2seq-lm"
    generates: ClassVar[bool] = True

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics: corpus BLEU, the main metric, and chrF, both from 0 to 100."""
        return "bleu", "chrf"

    @property
    def reported(self) -> tuple[str, ...]:
        """Names of the metrics that studies of many models report: both BLEU and chrF."""
        return self.metrics

    @property
    def columns(self) -> tuple[str, ...]:
        """Counts of n-grams; 1 for translations that were cut."""
        return *BLEU_COLUMNS, *CHRF_COLUMNS, CUT

    @property
    def differentiable(self) -> Task:
        """With the reference shown word by word."""
        return TranslationLoss(f"{self.name}-loss")

    def prepare(self, example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
        """Tokenises the source as one row with the tokens of the reference translation as labels.

        Returns:
            One row, or none if the source or the reference is longer than the model reads.

        Raises:
            OptionError: if the model is no encoder-decoder.
        """
        return translation_row(example, reader)

    def run(self, model: PreTrainedModel, batch: TaskBatch) -> Tensor:
        """Generates a translation of every source by beam search, without gradients.

        Returns:
            Token ids, (n, length), with the token that the decoder starts from and padding behind shorter translations.
        """
        generate: Any = model.generate
        most = self.most_tokens(batch.reader)
        with torch.inference_mode():
            written: Tensor = generate(**batch.inputs, num_beams=self.beams, do_sample=False, max_new_tokens=most)
        return written

    def most_tokens(self, reader: Reader) -> int:
        """Of a translation: `max_tokens`, or what the model reads if that is less."""
        return self.max_tokens if reader.limit is None else min(self.max_tokens, reader.limit - 1)

    def texts(self, outputs: Tensor, batch: TaskBatch) -> list[str]:
        """Decodes generated token ids, (n, length), to translations as text.

        Special tokens and white space around a translation are left out.
        """
        found: list[str] = batch.reader.tokenizer.batch_decode(
            outputs, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return [text.strip() for text in found]

    def read(self, outputs: Any, batch: TaskBatch) -> Floats:
        """Computes the records from generated token ids, (n, length).

        Returns:
            (n, 29): the 10 counts of BLEU, the 18 counts of chrF, and 1 for a translation that was cut, else 0.

        Raises:
            OptionError: if the outputs are no ids of that shape, or sacreBLEU has no such tokenizer.
        """
        if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) != len(batch):
            raise OptionError("Translations are read from generated ids.", "Use the task's own `run`.")
        rows = []
        texts, cut = self.texts(outputs, batch), self._cut(outputs, batch.reader)
        for text, example, endless in zip(texts, batch.examples, cut, strict=True):
            assert isinstance(example, TextExample)
            reference = example.texts[1]
            rows.append([*bleu_counts(text, reference, self.tokenizer), *chrf_counts(text, reference), endless])
        return np.array(rows, dtype=np.float64)

    def _cut(self, ids: Tensor, reader: Reader) -> list[bool]:
        """Whether a translation is as long as it may be without an end before its last token."""
        # Behind the token that a decoder starts from. Many models are made to write the end as the last token.
        written, most = ids[:, 1:], self.most_tokens(reader)
        ended = _ends(written[:, : most - 1], reader).any(dim=1)
        return [written.shape[1] >= most and not end for end in ended.tolist()]

    def statistic(self, metric: str, records: Floats, weights: Floats) -> Floats:
        """Computes corpus BLEU or chrF under every weighting of the examples.

        Args:
            metric: "bleu" or "chrf".
            records: counts of every example, (n, 29).
            weights: how often each example counts, (replicates, n).

        Returns:
            0 to 100, (replicates,); 0 for a weighting that counts no example.
        """
        counts = weights @ records
        split = len(BLEU_COLUMNS)
        return bleu(counts[:, :split]) if metric == "bleu" else chrf(counts[:, split:-1])


def read_while_writing(ids: Tensor, reader: Reader) -> dict[str, Tensor]:
    """What a decoder had read when its texts were done: as if each was the reference, up to its end.

    Args:
        ids: of written texts, (n, length), with the token that the decoder starts from.
        reader: of the model.

    Returns:
        As `decoder_inputs`, (n, length - 1) each.
    """
    ends = _ends(ids[:, 1:], reader).int()
    return decoder_inputs(ids[:, 1:].masked_fill(ends.cumsum(dim=1) > ends, IGNORED), reader)


def _ends(ids: Tensor, reader: Reader) -> Tensor:
    """Where a text is over: bool."""
    ends = [i for i in (reader.tokenizer.eos_token_id, reader.tokenizer.pad_token_id) if i is not None]
    return torch.isin(ids, ids.new_tensor(ends))

"""Translations that a model writes itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headlens.errors import OptionError
from headlens.tasks.base import Floats, HeadKind, Task, TaskBatch
from headlens.tasks.examples import TaskExample, TextExample
from headlens.tasks.masked import TranslationLoss, translation_row
from headlens.tasks.overlap import BLEU_COLUMNS, CHRF_COLUMNS, bleu, bleu_counts, chrf, chrf_counts
from headlens.tasks.reader import Reader, TokenRow


@dataclass(frozen=True)
class Translation(Task):
    """Beam search, compared with one reference.

    Records are counts that add up over sentences, so that BLEU and chrF of any sample are exactly sacreBLEU's. The
    loss of training is that of `TranslationLoss`, whose batches have labels.

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
        """Both from 0 to 100."""
        return "bleu", "chrf"

    @property
    def columns(self) -> tuple[str, ...]:
        """Counts of n-grams."""
        return *BLEU_COLUMNS, *CHRF_COLUMNS

    @property
    def differentiable(self) -> Task:
        """With the reference shown word by word."""
        return TranslationLoss(f"{self.name}-loss")

    def prepare(self, example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
        """One row."""
        return translation_row(example, reader)

    def run(self, model: PreTrainedModel, batch: TaskBatch) -> Tensor:
        """Ids of translations, (n, length)."""
        limit = self.max_tokens if batch.reader.limit is None else min(self.max_tokens, batch.reader.limit - 1)
        generate: Any = model.generate
        with torch.inference_mode():
            written: Tensor = generate(**batch.inputs, num_beams=self.beams, do_sample=False, max_new_tokens=limit)
        return written

    def texts(self, outputs: Tensor, batch: TaskBatch) -> list[str]:
        """Translations as text."""
        found: list[str] = batch.reader.tokenizer.batch_decode(
            outputs, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return [text.strip() for text in found]

    def read(self, outputs: Any, batch: TaskBatch) -> Floats:
        """(n, 28), from ids."""
        if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) != len(batch):
            raise OptionError("Translations are read from generated ids.", "Use the task's own `run`.")
        rows = []
        for text, example in zip(self.texts(outputs, batch), batch.examples, strict=True):
            assert isinstance(example, TextExample)
            reference = example.texts[1]
            rows.append([*bleu_counts(text, reference, self.tokenizer), *chrf_counts(text, reference)])
        return np.array(rows, dtype=np.float64)

    def statistic(self, metric: str, records: Floats, weights: Floats) -> Floats:
        """(replicates,); 0 without any example."""
        counts = weights @ records
        split = len(BLEU_COLUMNS)
        return bleu(counts[:, :split]) if metric == "bleu" else chrf(counts[:, split:])

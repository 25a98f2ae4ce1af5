"""One of several candidates: which ending follows (SWAG), or which candidate is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from headlens.errors import OptionError
from headlens.statistics import weighted_means
from headlens.tasks.classification import class_numbers, is_right
from headlens.tasks.examples import TaskExample, TextExample
from headlens.tasks.reader import Reader, TokenRow
from headlens.tasks.task import Floats, HeadKind, PreparedExample, Task, TaskBatch, record_columns, require_output


class ChoiceTask(Task):
    """Base of tasks that choose one of several candidates; the metric is the share of right choices.

    Records: `label`, `predicted` and `margin`, the score of the right candidate above the best other one.
    """

    metrics = ("accuracy",)
    columns = ("label", "predicted", "margin")

    candidates: int  # of every example, one of which is right

    def right(self, records: Floats, metric: str) -> Floats:
        """Returns 1 for every example whose right candidate is chosen, else 0, (n,)."""
        del metric
        return is_right(records)

    def chance(self, records: Floats) -> float | None:
        """Returns the expected accuracy of uniformly random choice, one over the number of candidates."""
        del records
        return 1 / self.candidates

    def finer(self, records: Floats) -> float:
        """Returns the mean margin of the right candidate, which ranks models whose accuracy is equal."""
        return float(records[:, 2].mean())

    def statistic(self, metric: str, records: Floats, weights: Floats) -> Floats:
        """Computes the accuracy of the choices under every weighting, (replicates,)."""
        del metric
        return weighted_means.mean(is_right(records), weights)


def chosen_records(scores: Tensor, batch: TaskBatch) -> Floats:
    """Computes the records `label`, `predicted` and `margin`, (n, 3), from scores of candidates, (n, candidates)."""
    labels = class_numbers(batch.prepared, scores.device)
    right = scores.gather(1, labels[:, None])[:, 0]
    # Without the right candidate, whose score becomes the lowest.
    best_other = scores.scatter(1, labels[:, None], -torch.inf).amax(dim=1)
    return record_columns(labels, scores.argmax(dim=1), right - best_other)


@dataclass(frozen=True)
class MultipleChoice(ChoiceTask):
    """Which of some endings follows, from a model with a multiple-choice head.

    Texts of an example are the first sentence, then the endings, each with what all of them begin with; its label is
    the index of the right ending.

    Args:
        name: name of the task.
        candidates: number of endings of every example.
    """

    name: str = "swag"
    candidates: int = 4
    head: ClassVar[HeadKind] = "multiple-choice"

    def prepare(self, example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
        """Tokenises the first sentence with each ending as one row; no row is returned if one is too long."""
        assert isinstance(example, TextExample)
        first, *endings = example.texts
        return reader.whole_rows([(first, ending) for ending in endings])

    def collate(self, prepared: Sequence[PreparedExample], reader: Reader, device: torch.device | str) -> TaskBatch:
        """Gathers prepared examples as a batch whose inputs are (n, candidates, length)."""
        flat = super().collate(prepared, reader, device)  # inputs (n * candidates, length)
        inputs = {name: tensor.view(-1, self.candidates, tensor.shape[1]) for name, tensor in flat.inputs.items()}
        return TaskBatch(inputs, flat.labels, prepared, reader)

    def targets(self, prepared: Sequence[PreparedExample], reader: Reader, device: torch.device) -> dict[str, Tensor]:
        """Returns the index of the right ending of every example as `labels`, (n,)."""
        del reader
        return {"labels": class_numbers(prepared, device)}

    def losses(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Computes the cross-entropy over the endings of every example in nats, (n,)."""
        return cross_entropy(self._logits(outputs, batch), batch.labels["labels"], reduction="none")

    def read(self, outputs: Any, batch: TaskBatch) -> Floats:
        """Computes the records `label`, `predicted` and `margin` (in logits) from the model's outputs, (n, 3)."""
        return chosen_records(self._logits(outputs, batch), batch)

    def _logits(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Returns the logits of the endings of every example, (n, candidates).

        Raises:
            OptionError: if the outputs have none, or logits of another shape.
        """
        logits = require_output(outputs, "logits", 2, self.name, "a multiple-choice head")
        if logits.shape != (len(batch), self.candidates):
            raise OptionError(
                f"The task {self.name} has {self.candidates} endings, but the model's scores have the shape "
                f"{tuple(logits.shape)} for {len(batch)} examples.",
                "Give a model with a multiple-choice head.",
            )
        return logits

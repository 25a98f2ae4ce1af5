"""One of several: which ending follows (SWAG), or which candidate is right."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from headlens.errors import OptionError
from headlens.statistics import weighted_means as statistics
from headlens.tasks.classification import label_of
from headlens.tasks.examples import TaskExample, TextExample
from headlens.tasks.model_outputs import columns, taken
from headlens.tasks.reader import Reader, TokenRow
from headlens.tasks.task import Floats, HeadKind, PreparedExample, Task, TaskBatch


class ChoiceTask(Task):
    """Records: `label`, `predicted` and `margin`, the score of the right one above the best other one."""

    @property
    @abstractmethod
    def options(self) -> int:
        """Number of candidates of every example, one of which is right."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics: accuracy alone, the share of examples whose right candidate is chosen."""
        return ("accuracy",)

    @property
    def columns(self) -> tuple[str, ...]:
        """What was right, what was chosen, by how much."""
        return "label", "predicted", "margin"

    def right(self, records: Floats, metric: str) -> Floats | None:
        """Return 1 for every example whose right candidate is chosen, else 0, (n,)."""
        del metric
        right: Floats = (records[:, 0] == records[:, 1]).astype(np.float64)
        return right

    def chance(self, records: Floats) -> float | None:
        """Return the expected accuracy of uniformly random choice, one over the number of candidates."""
        del records
        return 1 / self.options

    def finer(self, records: Floats) -> float:
        """Return the mean margin of the right candidate, which ranks models whose accuracy is equal."""
        return float(records[:, 2].mean())

    def statistic(self, metric: str, records: Floats, weights: Floats) -> Floats:
        """Compute the accuracy of the choices under every weighting, (replicates,)."""
        del metric
        return statistics.mean((records[:, 0] == records[:, 1]).astype(np.float64), weights)


def chosen_records(scores: Tensor, batch: TaskBatch) -> Floats:
    """Compute the records `label`, `predicted` and `margin`, (n, 3), from the scores of candidates, (n, candidates)."""
    labels = torch.tensor([int(label_of(p)) for p in batch.prepared], device=scores.device)
    right = scores.gather(1, labels[:, None])[:, 0]
    best_other = scores.scatter(1, labels[:, None], -torch.inf).amax(dim=1)
    return columns(labels, scores.argmax(dim=1), right - best_other)


@dataclass(frozen=True)
class MultipleChoice(ChoiceTask):
    """Which of some endings follows, from a model with a multiple-choice head.

    Texts of an example are the first sentence, then the endings, each with what all of them begin with; its label is
    the index of the right ending.

    Args:
        name: of the task.
        choices: endings of every example.
    """

    name: str = "swag"
    choices: int = 4
    head: ClassVar[HeadKind] = "multiple-choice"

    @property
    def options(self) -> int:
        """Number of endings of every example, `choices`."""
        return self.choices

    def prepare(self, example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
        """A row for every ending; none if one is too long."""
        assert isinstance(example, TextExample)
        first, *endings = example.texts
        rows = [reader.sequence(first, ending) for ending in endings]
        found = tuple(row for row in rows if row is not None)
        return found if len(found) == len(rows) else ()

    def collate(self, prepared: Sequence[PreparedExample], reader: Reader, device: torch.device | str) -> TaskBatch:
        """A batch with inputs (n, choices, length)."""
        flat = super().collate(prepared, reader, device)
        inputs = {name: tensor.view(-1, self.choices, tensor.shape[1]) for name, tensor in flat.inputs.items()}
        return TaskBatch(inputs, flat.labels, prepared, reader)

    def targets(self, prepared: Sequence[PreparedExample], reader: Reader, device: torch.device) -> dict[str, Tensor]:
        """Return the index of the right ending of every example as `labels`, (n,)."""
        del reader
        return {"labels": torch.tensor([int(label_of(p)) for p in prepared], device=device)}

    def losses(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Compute the cross-entropy over the endings of every example in nats, (n,)."""
        return torch.nn.functional.cross_entropy(self._logits(outputs, batch), batch.labels["labels"], reduction="none")

    def read(self, outputs: Any, batch: TaskBatch) -> Floats:
        """Compute the records `label`, `predicted` and `margin` (in logits) from the model's outputs, (n, 3)."""
        return chosen_records(self._logits(outputs, batch), batch)

    def _logits(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Return the logits of the endings of every example, (n, choices).

        Raises:
            OptionError: if the outputs have none, or logits of another shape.
        """
        logits = taken(outputs, "logits", 2, self.name, "a multiple-choice head")
        if logits.shape != (len(batch), self.choices):
            raise OptionError(
                f"The task {self.name} has {self.choices} endings, but the model's scores have the shape "
                f"{tuple(logits.shape)} for {len(batch)} examples.",
                "Give a model with a multiple-choice head.",
            )
        return logits

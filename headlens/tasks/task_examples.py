"""A task's examples as one model reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.attention.session import AttentionSession
from headlens.errors import OptionError, counted
from headlens.memory import SplitWhenOutOfMemory
from headlens.models.checkpoint_weights import require_trained
from headlens.models.loading import LoadedModel
from headlens.statistics.seeding import generator_of
from headlens.tasks.evaluation import budget_batches, no_examples_error, prepare_all, token_count, with_repeated_told
from headlens.tasks.example_sources import DataSummary, SourceCounts, TaskSource, fingerprint
from headlens.tasks.reader import Reader
from headlens.tasks.task import Floats, PreparedExample, Task

Chosen = npt.NDArray[np.bool_]
RANKING, EVALUATION = "ranking", "evaluation"


@dataclass(frozen=True)
class Examples:
    """Examples in the order of their source, numbered from 0.

    Args:
        task: the task they belong to.
        reader: the model's.
        prepared: the examples; `index` is their place here.
        summary: how many rows of the source were read and left out.
    """

    task: Task
    reader: Reader
    prepared: tuple[PreparedExample, ...]
    summary: DataSummary

    @classmethod
    def of(
        cls, task: Task, source: TaskSource, loaded: LoadedModel, advance: Callable[[int], None] = lambda _: None
    ) -> Examples:
        """Read a source.

        Raises:
            CorpusError: broken data, or no example that the model can read.
            ModelError: no tokenizer.
            OptionError: as in `Task.notes`.
        """
        reader, counts = Reader.of(loaded, task.labels, outputs=task.outputs), SourceCounts()
        task.notes(reader)  # what cannot be measured is refused before anything is read
        prepared = []
        for example in with_repeated_told(prepare_all(task, source, reader, counts), counts, source.name):
            prepared.append(example)
            advance(1)
        if not prepared:
            raise no_examples_error(source, reader, counts)
        summary = DataSummary.of(source.name, counts, fingerprint(p.example for p in prepared))
        return cls(task, reader, tuple(prepared), summary)

    def __len__(self) -> int:
        return len(self.prepared)

    @property
    def notes(self) -> list[str]:
        """What to know about the numbers of the classes, and about how the data was read."""
        measured = self.task.notes(self.reader, Counter(map(self.task.trait, self.prepared)))
        return [*filter(None, [self.reader.order.note]), *self.summary.notes, *measured]

    @property
    def keys(self) -> list[str]:
        """What examples are drawn by, the same for all models; questions about one paragraph go together."""
        return [p.example.key for p in self.prepared]

    def ask_shortest(self, loaded: LoadedModel, warn: Callable[[str], None] = lambda _: None) -> None:
        """Run the shortest example, which shows at once whether a model's outputs are what the task reads.

        Args:
            loaded: the model, with the head that the task needs.
            warn: called when memory does not suffice for the example at once.

        Raises:
            InputError: where the task cannot be asked, or reads weights that were never trained.
        """
        model = loaded.model

        def run(prepared: Sequence[PreparedExample]) -> Floats:
            batch = self.task.collate(prepared, self.reader, model.device)
            return self.task.read(self.task.run(model, batch), batch)

        shortest = min(self.prepared, key=lambda p: p.length)
        with AttentionSession(self.task.network(model)):
            SplitWhenOutOfMemory(model.device, run, np.add, token_count, warn)([shortest])
        if loaded.untrained:
            task = self.task.differentiable
            batch = task.collate([shortest], self.reader, model.device)
            losses = task.losses(task.network(model)(**task.inputs(model, batch)), batch)
            advice = "Give a model that was trained for it, or train one: headlens train MODEL --task"
            name = self.task.name
            require_trained(model, loaded.untrained, losses, f"The task {name}", f"{advice} {name}.")

    def part(self, chosen: Chosen) -> Examples:
        """A subset of the examples, renumbered from 0."""
        selected = [p for p, is_chosen in zip(self.prepared, chosen, strict=True) if is_chosen]
        return replace(self, prepared=tuple(replace(p, index=i) for i, p in enumerate(selected)))

    def batches(self, batch_tokens: int, rank: int = 0, count: int = 1) -> Iterator[list[PreparedExample]]:
        """This process's share of the examples in batches of similar length, every time the same."""
        return budget_batches(self.prepared[rank::count], batch_tokens)


def ranking_part(keys: Sequence[str], share: float, seed: int) -> Chosen:
    """Which examples heads are ranked on; the others are for evaluation.

    Every example is drawn by itself, from its key and the seed, so that all models are ranked on the same ones.

    Args:
        keys: of the examples; equal ones go together.
        share: that is to be ranked on, about.
        seed: another seed draws others.

    Raises:
        OptionError: if nothing is left for one of the parts.
    """
    if not 0 < share < 1:
        raise OptionError(
            f"--strategy-args rank-split {share} leaves nothing to rank or to evaluate on.", "0.5 is the usual choice."
        )
    chosen = np.array([generator_of(key, seed).random() < share for key in keys])
    if not 1 < chosen.sum() < len(keys) - 1:
        raise OptionError(
            f"{counted(len(keys), 'example')} cannot be split into one part for ranking heads and one for evaluation.",
            "Give more --data.",
        )
    return chosen


def example_table(examples: Examples, intact: Floats, ranked_on: Chosen | None = None) -> pd.DataFrame:
    """A row for every example: its place, its id, the part it belongs to, and the record of the whole model.

    Args:
        examples: n of them.
        intact: (n, k), see `Task.columns`.
        ranked_on: which examples heads were chosen on, (n,); None without pruning.
    """
    part = "" if ranked_on is None else np.where(ranked_on, RANKING, EVALUATION)
    table = record_table(examples.task, [p.example.id for p in examples.prepared], intact)
    table.insert(list(table).index("id") + 1, "part", part)
    return table


def record_table(task: Task, ids: Sequence[str], records: Floats) -> pd.DataFrame:
    """A row for every example: its place, its id and its record (n, k)."""
    keys = {"task": task.name, "example": range(len(ids)), "id": list(ids)}
    return pd.DataFrame(keys | dict(zip(task.columns, records.T, strict=True)))

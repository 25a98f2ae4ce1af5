"""A task without each of a model's heads: one pass over its examples that can be interrupted and shared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import add

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headlens.analyses.ablate.head_records import HeadRecords
from headlens.analyses.ablate.options import Mode
from headlens.analyses.ablate.replay.head_ablation import BATCH_TOKENS, Replay
from headlens.analyses.ablate.replay.head_sweep import SweepRecords, concatenate_records, sweep_batch
from headlens.analyses.ablate.replay.replacement import HeadMeans
from headlens.analyses.ablate.task_examples import Examples
from headlens.attention.edits_and_observers import BatchTokens, real_tokens
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site, find_sites
from headlens.errors import OptionError, SelfCheckError
from headlens.heads import Head
from headlens.interventions.gates import HeadGates
from headlens.memory import SplitWhenOutOfMemory
from headlens.runs.checkpoint import Checkpoint
from headlens.runs.processes import ALONE, DeferredSignals, Processes
from headlens.tasks.evaluation import token_count
from headlens.tasks.task import PreparedExample, Task, TaskBatch

Means = Mapping[Site, Tensor]
WHOLE = 4096  # tokens of a batch that goes through a model once
Sweep = Callable[[TaskBatch], SweepRecords]


@dataclass(frozen=True)
class TaskSweep:
    """How examples go through a model without each of its heads.

    Args:
        mode: what a head's output is replaced by, see `headlens.analyses.ablate.replay.head_ablation.Replay`.
        batch_tokens: tokens of a batch, padding included; None for what suits the device: small batches on a processor,
            where a sweep fills its passes with heads.
        progress: called with the number of this process's examples that are done; with 0 before the first is swept.
        seen: called with the records after every batch, of which those done so far are there.
        warn: called with what the user should know at once.
        keeper: where records are kept, so that an interrupted sweep can go on; None keeps nothing.
        processes: with whom the examples are shared.
    """

    mode: Mode = "zero"
    batch_tokens: int | None = None
    progress: Callable[[int], None] = lambda _: None
    warn: Callable[[str], None] = lambda _: None
    keeper: Checkpoint | None = None
    processes: Processes = ALONE
    seen: Callable[[HeadRecords], None] = lambda _: None

    def run(self, model: PreTrainedModel, examples: Examples, heads: Sequence[Head] | None = None) -> HeadRecords:
        """Records of all examples, in all processes.

        Args:
            model: in evaluation mode.
            examples: of a task it can do.
            heads: which are taken out; None for all that the task comes by.

        Raises:
            OptionError: if the task or the model cannot be swept in this mode.
            ModelError: if memory does not suffice for a single example.
            SelfCheckError: if something else was taken out, or nothing.
            OutputError: if what was kept belongs to something else, or cannot be written.
        """
        chosen = task_heads(model, examples.task) if heads is None else heads
        records = HeadRecords(chosen, len(examples), len(examples.task.columns))
        if self.keeper is not None:
            self.keeper.restore(records)
        tokens = self.batch_tokens or suitable_tokens(model, examples.task, len(records.heads))
        shard = list(examples.batches(tokens, self.processes.rank, self.processes.count))
        if not all(records.has([p.index for p in batch]) for batch in shard):
            with self._opened(model, examples, shard, records.heads) as sweep:
                self._fill(model, examples, shard, records, sweep)
        else:
            self.progress(sum(map(len, shard)))
        if self.processes.count > 1:
            for part in self.processes.gather(records.dump()):
                records.take(part)
        return records

    def _fill(
        self,
        model: PreTrainedModel,
        examples: Examples,
        batches: Sequence[Sequence[PreparedExample]],
        records: HeadRecords,
        sweep: Sweep,
    ) -> None:
        def run(prepared: Sequence[PreparedExample]) -> SweepRecords:
            return sweep(examples.task.collate(prepared, examples.reader, model.device))

        in_parts = SplitWhenOutOfMemory(
            model.device, run, lambda a, b: concatenate_records([a, b]), token_count, self.warn
        )
        with DeferredSignals() as signals:
            self.progress(0)
            for batch in batches:
                places = [p.index for p in batch]
                if not records.has(places):
                    records.put(places, in_parts(batch))
                self.progress(len(batch))
                self.seen(records)
                self._keep(records, signals)
            self._keep(records, signals, always=True)

    def _keep(self, records: HeadRecords, signals: DeferredSignals, *, always: bool = False) -> None:
        if self.keeper is not None and (always or signals.noted is not None or self.keeper.due):
            self.keeper.save(records)
        signals.obey()

    @contextmanager
    def _opened(
        self,
        model: PreTrainedModel,
        examples: Examples,
        batches: Sequence[Sequence[PreparedExample]],
        heads: Sequence[Head],
    ) -> Iterator[Sweep]:
        """A function that sweeps a batch."""
        task = examples.task
        if task.generates:
            yield lambda batch: _written(model, task, batch, heads, self.mode)
            return
        network = task.network(model)
        means = head_means(network, examples, batches, self) if self.mode == "mean" else None
        with Replay(network, self.mode, means) as replay:

            def sweep(batch: TaskBatch) -> SweepRecords:
                inputs = {**batch.inputs, **task.arguments(model)}
                return sweep_batch(replay, inputs, lambda outputs: task.read(outputs, batch), heads)

            yield sweep


def suitable_tokens(model: PreTrainedModel, task: Task, heads: int) -> int:
    """Tokens of a batch where nobody says."""
    if task.generates or not heads:
        return WHOLE
    return BATCH_TOKENS.get(model.device.type, BATCH_TOKENS["other"])


def task_heads(model: PreTrainedModel, task: Task) -> tuple[Head, ...]:
    """The heads that a task's outputs come by: those of an encoder alone where only that is run."""
    return tuple(h for s in find_sites(task.network(model)) for h in s.heads)


def head_means(
    network: PreTrainedModel, examples: Examples, batches: Sequence[Sequence[PreparedExample]], sweep: TaskSweep
) -> dict[Site, Tensor]:
    """Mean outputs of heads over the real tokens of the examples of all processes."""
    task, means = examples.task, HeadMeans()
    with AttentionSession(network, observers=[means]) as session, torch.inference_mode():

        def run(prepared: Sequence[PreparedExample]) -> int:
            batch = task.collate(prepared, examples.reader, network.device)
            with session.batch(_tokens(network, batch.inputs)):
                network(**batch.inputs, **task.arguments(network))
            return len(prepared)

        in_parts = SplitWhenOutOfMemory(network.device, run, add, token_count, sweep.warn)
        for prepared in batches:
            in_parts(prepared)
    sums, rank = means.sums, sweep.processes.rank
    others = [part for number, part in enumerate(sweep.processes.gather(sums)) if number != rank]
    return means.means(others)


def _tokens(network: PreTrainedModel, inputs: Mapping[str, Tensor]) -> BatchTokens:
    """Finds the real tokens of a batch, (batch, tokens) for each stack, by the attention masks of its inputs."""
    source, target = (
        real_tokens(inputs.get(f"{side}attention_mask"), inputs.get(f"{side}input_ids")) for side in ("", "decoder_")
    )
    decoder_only = {s.stack for s in find_sites(network)} == {"decoder"}
    return BatchTokens(decoder=source) if decoder_only else BatchTokens(source, target)


def _written(model: PreTrainedModel, task: Task, batch: TaskBatch, heads: Sequence[Head], mode: Mode) -> SweepRecords:
    """A batch of a task whose outputs are written token by token: a whole run for every head."""
    if mode not in ("zero", "keep-only"):
        raise OptionError(
            f"The task {task.name} generates token by token, and there heads can only be set to zero.",
            f"Use --mode zero, or a task scored in a single pass, such as {task.differentiable.name}.",
        )
    without = {}
    for head in heads:
        with AttentionSession(model, edits=[HeadGates(dict.fromkeys(_gone(model, head, mode), 0.0))]):
            without[head] = task.read(task.run(model, batch), batch)
    return SweepRecords(task.read(task.run(model, batch), batch), without)


def _gone(model: PreTrainedModel, head: Head, mode: Mode) -> list[Head]:
    if mode == "zero":
        return [head]
    return [h for s in find_sites(model) for h in s.heads if h[:2] == head[:2] and h != head]


def check_effect(records: HeadRecords, *, counts: bool = False) -> list[Head]:
    """The heads whose removal changed nothing at all.

    Args:
        records: of a sweep.
        counts: whether they are nothing but counts, as of written texts, which a poor model may leave at 0.

    Raises:
        SelfCheckError: if that is so for every head of a model that has some, unless records are mere counts: nothing
            was taken out.
    """
    idle = [head for head, record in records.items() if (record == records.intact).all()]
    if idle and len(idle) == len(records.heads) and not counts:
        raise SelfCheckError(
            "Removing heads changed nothing for any example: the model does not use the changed outputs.",
            "Please report the model.",
        )
    return idle

"""A task without each of a model's heads: one pass over its examples that can be interrupted and shared."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headlens.analyses.ablate.stand_ins import (
    BestConstants,
    FromOtherExamples,
    StandIns,
    mean_outputs,
    other_examples,
)
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site, find_sites
from headlens.errors import ModelError, OptionError, SelfCheckError
from headlens.heads import Head
from headlens.interventions.gates import HeadGates
from headlens.memory import SplitWhenOutOfMemory, attempt
from headlens.pages.formatting import digits_of
from headlens.replay.direct_path import Receiver, senders
from headlens.replay.head_ablation import BATCH_TOKENS, Replay
from headlens.replay.modes import WITH_PAIRS, Mode
from headlens.replay.nested_tensors import rows_of
from headlens.runs.checkpoint import IDENTITY, Checkpoint, packed, unpacked
from headlens.runs.processes import ALONE, DeferredSignals, Processes
from headlens.runs.progress import LONG
from headlens.tasks.evaluation import token_count
from headlens.tasks.task import Floats, PreparedExample, Task, TaskBatch
from headlens.tasks.task_examples import Examples
from headlens.tasks.task_options import FEW_EXAMPLES
from headlens.weights.head_slicing import zeroed_places

WHOLE = 4096  # tokens of a batch that goes through a model once
Batches = Sequence[Sequence[PreparedExample]]
# Records of a batch, with all heads and without each: (1 + heads, examples, columns).
Sweep = Callable[[TaskBatch], Floats]
_MOST = 3  # heads, or groups of heads with the same change, that are shown while a sweep goes on


class HeadRecords:
    """Records of a task's examples, filled batch by batch; kept for --resume.

    Args:
        heads: which are taken out.
        examples: how many.
        columns: numbers of a record.

    `intact` is (examples, columns), with all heads, `without` (heads, examples, columns) without each head, or with it
    alone in its layer; `there` tells which examples are there, (examples,); `others` are heads that were left in.
    """

    def __init__(self, heads: Sequence[Head], examples: int, columns: int) -> None:
        self.heads = tuple(heads)
        self.others: tuple[Head, ...] = ()
        # With all heads, then without each.
        self._records = np.full((1 + len(self.heads), examples, columns), np.nan)
        self.intact: Floats = self._records[0]
        self.without: Floats = self._records[1:]
        self.there = np.zeros(examples, np.bool_)

    def has(self, places: Sequence[int]) -> bool:
        """Whether these examples are there."""
        return bool(self.there[list(places)].all())

    def put(self, places: Sequence[int], records: Floats) -> None:
        """Stores the records of a batch.

        Args:
            places: indices of the batch's examples.
            records: of these examples, with all heads and without each, (1 + heads, examples, columns).
        """
        self._records[:, list(places)] = records
        self.there[list(places)] = True

    def items(self) -> Iterator[tuple[Head, Floats]]:
        """All heads with their records."""
        return zip(self.heads, self.without, strict=True)

    def dump(self, identity: Mapping[str, str] | None = None) -> bytes:
        """The records that are filled, as the content of an .npz file."""
        record = {IDENTITY: dict(identity or {}), "heads": [str(h) for h in self.heads]}
        done = self._records[:, self.there]
        return packed(record, {"places": np.flatnonzero(self.there), "intact": done[0], "without": done[1:]})

    def take(self, content: bytes) -> None:
        """Add what `dump` gave, here or in another process."""
        _, arrays = unpacked(content)
        self._records[:, arrays["places"]] = np.concatenate([arrays["intact"][None], arrays["without"]])
        self.there[arrays["places"]] = True


@dataclass(frozen=True)
class TaskSweep:
    """How examples go through a model without each of its heads.

    Args:
        mode: what a head's output is replaced by, see `headlens.replay.head_ablation.Replay`.
        batch_tokens: tokens of a batch, padding included; None for what suits the device: small batches on a processor,
            where a sweep fills its passes with heads.
        progress: called with the number of this process's examples that are done; with 0 before the first is swept.
        seen: called with the records after every batch, of which those done so far are there.
        seed: of the other examples of the mode `resample`, and of the halves of `optimal`.
        changed: the examples with their changed texts, for the modes `counterfactual` and `path`, see
            `changed_examples`; for `denoise` the originals of changed ones.
        receiver: for the mode `path`, see `Replay`.
        warn: called with what the user should know at once.
        checkpoint: where records are kept, so that an interrupted sweep can go on; None keeps nothing.
        processes: the processes that share the examples.
    """

    mode: Mode = "zero"
    batch_tokens: int | None = None
    progress: Callable[[int], None] = lambda _: None
    warn: Callable[[str], None] = lambda _: None
    checkpoint: Checkpoint | None = None
    processes: Processes = ALONE
    seen: Callable[[HeadRecords], None] = lambda _: None
    seed: int = 0
    changed: Examples | None = None
    receiver: Receiver | None = None

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
        if self.mode == "path" and heads is None:
            chosen = senders(chosen, self.receiver)
        records = HeadRecords(chosen, len(examples), len(examples.task.columns))
        if self.checkpoint is not None:
            self.checkpoint.restore(records)
        tokens = self.batch_tokens or suitable_tokens(model, examples.task, len(records.heads))
        shard = list(examples.batches(tokens, self.processes.rank, self.processes.count))
        if all(records.has([p.index for p in batch]) for batch in shard):
            self.progress(sum(map(len, shard)))
        else:
            with ExitStack() as stack:
                sweep = self._sweep(stack, model, examples, shard, records.heads)

                def run(prepared: Sequence[PreparedExample]) -> Floats:
                    return sweep(examples.task.collate(prepared, examples.reader, model.device))

                self._fill(SplitWhenOutOfMemory(model.device, run, _joined, token_count, self.warn), shard, records)
        if self.processes.count > 1:
            for part in self.processes.gather(records.dump()):
                records.take(part)
        return records

    def _fill(
        self, sweep: Callable[[Sequence[PreparedExample]], Floats], batches: Batches, records: HeadRecords
    ) -> None:
        with DeferredSignals() as signals:
            self.progress(0)
            for number, batch in enumerate(batches, 1):
                places = [p.index for p in batch]
                if not records.has(places):
                    records.put(places, sweep(batch))
                self.progress(len(batch))
                self.seen(records)
                must_save = number == len(batches) or signals.noted is not None
                if self.checkpoint is not None and (must_save or self.checkpoint.due):
                    self.checkpoint.save(records)
                signals.obey()

    def _sweep(
        self, stack: ExitStack, model: PreTrainedModel, examples: Examples, batches: Batches, heads: Sequence[Head]
    ) -> Sweep:
        """A function that sweeps a batch as long as `stack` is open."""
        task = examples.task
        if task.generates:
            return lambda batch: _written(model, task, batch, heads, self.mode)
        network = task.network(model)
        means = None
        if self.mode == "mean":
            means = mean_outputs(network, examples, batches, self.warn, self.processes)
        stand_ins = self._stand_ins(network, examples)
        replay = stack.enter_context(Replay(network, self.mode, means, receiver=self.receiver))

        def sweep(batch: TaskBatch) -> Floats:
            inputs = task.inputs(model, batch)
            instead = None if stand_ins is None else partial(stand_ins, replay, batch.prepared)
            return sweep_batch(replay, inputs, lambda outputs: task.read(outputs, batch), heads, instead)

        return sweep

    def _stand_ins(self, network: PreTrainedModel, examples: Examples) -> StandIns | None:
        if self.mode == "resample":
            return FromOtherExamples(network, examples, other_examples(examples, self.seed))
        if self.mode in WITH_PAIRS:
            if self.changed is None:
                raise OptionError(f"--mode {self.mode} needs changed texts.", "Give them with --pairs.")
            return FromOtherExamples(network, examples, self.changed.prepared)
        return BestConstants.fitted(network, examples, self.seed) if self.mode == "optimal" else None


def _joined(first: Floats, second: Floats) -> Floats:
    return np.concatenate([first, second], axis=1)


def sweep_batch(
    replay: Replay,
    inputs: Mapping[str, Any],
    read: Callable[[Any], Floats],
    heads: Sequence[Head],
    instead: Callable[[Mapping[Site, int]], Mapping[Site, Tensor]] | None = None,
) -> Floats:
    """Records of a batch, with all heads and without each: (1 + heads, examples, k).

    Where memory does not suffice, fewer heads are run together.

    Args:
        replay: open.
        inputs: of the model.
        read: records of all examples of the batch, (examples, k), from the model's outputs.
        heads: which are taken out.
        instead: what stands in their places, by site, given the number of queries; for modes that ask for it.

    Raises:
        torch.OutOfMemoryError: if memory does not suffice for the batch without a single head.
    """
    intact, without = replay.run(inputs), dict[Head, Floats]()
    if instead is not None:
        replay.instead_of(instead({site: output.shape[1] for site, output in intact.head_outputs.items()}))
    first = read(intact.outputs)

    def add_heads() -> bool:
        for variant in intact.variants([head for head in heads if head not in without]):
            without[variant.head] = read(variant.outputs)
        return True

    while attempt(replay.model.device, add_heads) is None:
        if replay.tokens < (rows := rows_of(inputs)):
            raise torch.OutOfMemoryError(f"out of memory for a batch of {rows} examples without one head")
        replay.tokens //= 2
    return np.stack([first, *(without[head] for head in heads)])


def suitable_tokens(model: PreTrainedModel, task: Task, heads: int) -> int:
    """Tokens of a batch where the options do not say how many."""
    if task.generates or not heads:
        return WHOLE
    return BATCH_TOKENS.get(model.device.type, BATCH_TOKENS["other"])


def task_heads(model: PreTrainedModel, task: Task) -> tuple[Head, ...]:
    """The heads that a task's outputs come by: those of an encoder alone where only that is run."""
    return tuple(h for s in find_sites(task.network(model)) for h in s.heads)


def _written(model: PreTrainedModel, task: Task, batch: TaskBatch, heads: Sequence[Head], mode: Mode) -> Floats:
    """A batch of a task whose outputs are written token by token: a whole run for every head."""
    if mode not in ("zero", "keep-only"):
        raise OptionError(
            f"The task {task.name} generates token by token, and there heads can only be set to zero.",
            f"Use --mode zero, or a task scored in a single pass, such as {task.differentiable.name}.",
        )
    records = [task.read(task.run(model, batch), batch)]
    for head in heads:
        others = [h for s in find_sites(model) for h in s.heads if h[:2] == head[:2] and h != head]
        gone = [head] if mode == "zero" else others
        with AttentionSession(model, edits=[HeadGates(dict.fromkeys(gone, 0.0))]):
            records.append(task.read(task.run(model, batch), batch))
    return np.stack(records)


def check_effect(records: HeadRecords, *, counts: bool = False, constant: bool = False) -> list[Head]:
    """The heads whose removal changed nothing at all.

    Args:
        records: of a sweep.
        counts: whether they are nothing but counts, as of written texts, which a poor model may leave at 0.
        constant: whether the model gives every example the same answer.

    Raises:
        ModelError: if that is so for every head of a model that has some and gives every example the same answer: what
            it says does not come from its heads.
        SelfCheckError: if its answers differ, unless records are mere counts: nothing was taken out.
    """
    idle = [head for head, record in records.items() if (record == records.intact).all()]
    if idle and len(idle) == len(records.heads) + len(records.others) and not counts:
        if constant:
            raise ModelError(
                "The model gives every example exactly the same answer, with all heads and without any of them: what "
                "it answers does not come from its heads, as where the weights of its classifier are 0.",
                "Train it on the task first, with headlens train.",
            )
        raise SelfCheckError(
            "Removing heads changed nothing for any example: the model does not use the changed outputs.",
            "Please report the model.",
        )
    return idle


def zeroed_heads(model: PreTrainedModel, task: Task) -> list[Head]:
    """The heads that cannot change anything a task reads: their weights in the output projection are 0."""
    network = task.network(model)
    sites = [(s, tuple(s.heads)) for s in find_sites(network)]
    return [heads[place] for s, heads in sites for place in zeroed_places(network, s.module, len(heads))]


@dataclass
class InterimHeads:
    """Shows which heads change a metric most on the examples done so far: after a tenth of these, and after half.

    A sweep that is over in `LONG` seconds tells nothing, nor do fewer than `FEW_EXAMPLES` examples.

    Args:
        task: whose records they are.
        metric: of the task.
        mode: how heads are taken out.
        total: number of examples of this process.
        tell: called with the sentence.
        clock: seconds from any start.
    """

    task: Task
    metric: str
    mode: Mode
    total: int
    tell: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._start = self.clock()
        self._left = [0.1, 0.5]  # shares of the examples after which it is shown

    def __call__(self, records: HeadRecords) -> None:
        """Looks at the records, and shows the heads if it is time."""
        done = int(records.there.sum())
        passed = [share for share in self._left if done >= max(share * self.total, FEW_EXAMPLES)]
        self._left = self._left[len(passed) :]
        if passed and done < self.total and self.clock() - self._start >= passed[-1] * LONG:
            changes = self._changes(records)
            self.tell(f"preliminary, after {done:,} of {self.total:,} examples, short ones first: {changes}")

    def _changes(self, records: HeadRecords) -> str:
        value = self.task.value(records.intact[records.there], metric=self.metric)
        deltas = {h: self.task.value(r[records.there], metric=self.metric) - value for h, r in records.items()}
        # What is not defined for so few examples is not above 0.
        changed = sorted((head for head in deltas if abs(deltas[head]) > 0), key=lambda head: -abs(deltas[head]))
        preposition = {"keep-only": "with only", "zero": "without"}.get(self.mode, "by replacing")
        if not changed:
            return f"{self.metric} does not change {preposition} any single head"
        alike: dict[str, list[Head]] = {}
        digits = digits_of([0.0, deltas[changed[0]]])
        for head in changed:
            alike.setdefault(f"{deltas[head]:+.{digits}f}", []).append(head)
        changes = (
            f"{equal_heads[0]} ({delta})" if len(equal_heads) == 1 else f"{len(equal_heads)} heads ({delta} each)"
            for delta, equal_heads in list(alike.items())[:_MOST]
        )
        return f"{self.metric} changes most {preposition} {', '.join(changes)}"

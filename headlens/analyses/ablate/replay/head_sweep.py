"""What a model does without each of its heads, example by example."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headlens.analyses.ablate.options import Mode
from headlens.analyses.ablate.replay.baseline_pass import BaselinePass
from headlens.analyses.ablate.replay.head_ablation import Replay
from headlens.analyses.ablate.replay.nested_tensors import part, rows_of
from headlens.attention.sites import Site
from headlens.errors import SelfCheckError
from headlens.heads import Head
from headlens.memory import SplitWhenOutOfMemory, attempt

Inputs = Mapping[str, Any]
# The model's outputs for a batch, and the batch, to numbers about each example: (rows, k).
Read = Callable[[Any, Inputs], Tensor]
Records = npt.NDArray[np.float64]


@dataclass(frozen=True)
class HeadSweepOptions:
    """How heads are taken out.

    Args:
        mode: what a head's output is replaced by (`headlens.analyses.ablate.replay.head_ablation.Replay`).
        means: for the mode `mean`, (heads, d) by site.
        tokens: rows times positions of one pass, halved where memory does not suffice; None for what suits the device.
        heads: which; None for all.
    """

    mode: Mode = "zero"
    means: Mapping[Site, Tensor] | None = None
    tokens: int | None = None
    heads: tuple[Head, ...] | None = None


@dataclass(frozen=True)
class SweepRecords:
    """Numbers about the same examples in the same order, with all heads and without each.

    Args:
        intact: (examples, k).
        without: (examples, k) for each head that was taken out; the head that was left alone for `keep-only`.
    """

    intact: Records
    without: dict[Head, Records]


def sweep(
    model: PreTrainedModel,
    batches: Iterable[Inputs],
    read: Read,
    options: HeadSweepOptions | None = None,
    progress: Callable[[int], None] | None = None,
) -> SweepRecords:
    """Run batches with all heads and without each; what is held grows with the records alone.

    Args:
        model: in evaluation mode.
        batches: what the model takes, examples on the first axis, on the model's device; without labels.
        read: gives the numbers to keep, (rows, k); it must give the same for an example whatever else is in the batch.
        options: how heads are taken out.
        progress: called with the examples done after every batch.

    Raises:
        ModelError: if memory does not suffice for a single example.
        SelfCheckError: if a replay goes wrong, or `read` gives something else than a row for each example.
    """
    options = options or HeadSweepOptions()
    parts = []
    with Replay(model, options.mode, options.means, tokens=options.tokens) as replay:
        for inputs in batches:
            parts.append(_in_parts(replay, inputs, read, options.heads))
            if progress is not None:
                progress(len(parts[-1].intact))
    return concatenate_records(parts)


def _in_parts(replay: Replay, inputs: Inputs, read: Read, heads: Sequence[Head] | None) -> SweepRecords:
    rows = rows_of(inputs)

    def run(numbers: Sequence[int]) -> SweepRecords:
        chunk = part(inputs, numbers[0], numbers[-1] + 1, rows)
        return sweep_batch(replay, chunk, lambda outputs: _checked(read(outputs, chunk), len(numbers)), heads)

    tokens = max((v.numel() // rows for v in inputs.values() if isinstance(v, Tensor)), default=1)
    run_in_parts = SplitWhenOutOfMemory(
        replay.model.device, run, _joined, lambda numbers: len(numbers) * tokens, _say_nothing
    )
    return run_in_parts(range(rows))


def sweep_batch(
    replay: Replay, inputs: Inputs, read: Callable[[Any], Records], heads: Sequence[Head] | None = None
) -> SweepRecords:
    """One batch of a sweep, for callers that keep what is done so far.

    Where memory does not suffice, fewer heads are run together.

    Args:
        replay: open.
        inputs: of the model.
        read: records of all examples of the batch, (examples, k), from the model's outputs.
        heads: which; None for all.

    Raises:
        torch.OutOfMemoryError: if memory does not suffice for the batch without a single head.
    """
    intact = replay.run(inputs)
    first = read(intact.outputs)
    ablated = [h for s in intact.sites for h in s.heads] if heads is None else list(heads)
    without: dict[Head, Records] = {}
    while len(without) < len(ablated):
        left = [h for h in ablated if h not in without]
        if attempt(replay.model.device, partial(_add, intact, left, read, without)) is None:
            _halve(replay, rows_of(inputs))
    return SweepRecords(first, without)


def concatenate_records(parts: Sequence[SweepRecords]) -> SweepRecords:
    """The batches of a corpus one after another.

    Raises:
        SelfCheckError: if they do not have the same heads.
    """
    if not parts:
        return SweepRecords(np.zeros((0, 0)), {})
    heads = set(parts[0].without)
    if any(set(p.without) != heads for p in parts):
        raise SelfCheckError("The batches of a sweep passed through different layers.")
    without = {h: np.concatenate([p.without[h] for p in parts]) for h in parts[0].without}
    return SweepRecords(np.concatenate([p.intact for p in parts]), without)


def _add(
    intact: BaselinePass, heads: Sequence[Head], read: Callable[[Any], Records], without: dict[Head, Records]
) -> bool:
    for variant in intact.variants(heads):
        without[variant.head] = read(variant.outputs)
    return True


def _checked(outputs: Tensor, examples: int) -> Records:
    if outputs.dim() != 2 or outputs.shape[0] != examples:
        raise SelfCheckError(
            f"A batch of {examples} examples gave records of the shape {tuple(outputs.shape)}.",
            "Give (examples, k).",
        )
    array: Records = outputs.detach().double().cpu().numpy()
    return array


def _joined(first: SweepRecords, second: SweepRecords) -> SweepRecords:
    return concatenate_records([first, second])


def _halve(replay: Replay, rows: int) -> None:
    if replay.tokens < rows:
        raise torch.OutOfMemoryError(f"out of memory for a batch of {rows} examples without one head")
    replay.tokens //= 2


def _say_nothing(_: str) -> None:
    pass

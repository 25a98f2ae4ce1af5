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

from headlens.attention.intact import Intact
from headlens.attention.replaced import Mode
from headlens.attention.replay import Replay
from headlens.attention.rows import part, rows_of
from headlens.attention.sites import Site
from headlens.errors import ModelError, SelfCheckError
from headlens.heads import Head
from headlens.models.memory import free, is_out_of_memory

Inputs = Mapping[str, Any]
# The model's outputs for a batch, and the batch, to numbers about each example: (rows, k).
Read = Callable[[Any, Inputs], Tensor]
Records = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SweepOptions:
    """How heads are taken out.

    Args:
        mode: what a head's output is replaced by (`headlens.attention.replay.Replay`).
        means: for the mode `mean`, (heads, d) by site.
        tokens: rows times positions of one pass, halved where memory does not suffice; None for what suits the device.
        heads: which; None for all.
    """

    mode: Mode = "zero"
    means: Mapping[Site, Tensor] | None = None
    tokens: int | None = None
    heads: tuple[Head, ...] | None = None


@dataclass(frozen=True)
class Swept:
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
    options: SweepOptions | None = None,
    progress: Callable[[int], None] | None = None,
) -> Swept:
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
    options = options or SweepOptions()
    parts = []
    with Replay(model, options.mode, options.means, tokens=options.tokens) as replay:
        for inputs in batches:
            parts.append(sweep_batch(replay, inputs, read, options.heads))
            if progress is not None:
                progress(len(parts[-1].intact))
    return joined(parts)


def sweep_batch(replay: Replay, inputs: Inputs, read: Read, heads: Sequence[Head] | None = None) -> Swept:
    """One batch of a sweep, for callers that keep what is done so far; `replay` has to be open."""
    swept = _tried(partial(_start, replay, inputs, read), replay)
    if swept is None:
        rows = rows_of(inputs)
        if rows < 2:
            raise ModelError(
                f"{replay.model.device} has no memory for a single example.", "Use --device cpu or --dtype bfloat16."
            )
        halves = [part(inputs, 0, rows // 2, rows), part(inputs, rows // 2, rows, rows)]
        return joined([sweep_batch(replay, half, read, heads) for half in halves])
    intact, first = swept
    wanted = [h for s in intact.sites for h in s.heads] if heads is None else list(heads)
    without: dict[Head, Records] = {}
    while len(without) < len(wanted):
        left = [h for h in wanted if h not in without]
        if _tried(partial(_add, intact, left, read, inputs, without), replay) is None:
            _halve(replay, rows_of(inputs))
    return Swept(first, without)


def joined(parts: Sequence[Swept]) -> Swept:
    """The batches of a corpus one after another.

    Raises:
        SelfCheckError: if they do not have the same heads.
    """
    if not parts:
        return Swept(np.zeros((0, 0)), {})
    heads = set(parts[0].without)
    if any(set(p.without) != heads for p in parts):
        raise SelfCheckError("The batches of a sweep came by different layers.")
    without = {h: np.concatenate([p.without[h] for p in parts]) for h in parts[0].without}
    return Swept(np.concatenate([p.intact for p in parts]), without)


def _start(replay: Replay, inputs: Inputs, read: Read) -> tuple[Intact, Records]:
    intact = replay.run(inputs)
    return intact, _records(read, intact.outputs, inputs)


def _add(intact: Intact, heads: Sequence[Head], read: Read, inputs: Inputs, without: dict[Head, Records]) -> bool:
    for variant in intact.variants(heads):
        without[variant.head] = _records(read, variant.outputs, inputs)
    return True


def _records(read: Read, outputs: Any, inputs: Inputs) -> Records:
    with torch.no_grad():
        found = read(outputs, inputs)
    if found.dim() != 2 or found.shape[0] != rows_of(inputs):
        raise SelfCheckError(
            f"A batch of {rows_of(inputs)} examples was read as numbers of the shape {tuple(found.shape)}.",
            "Give (examples, k).",
        )
    array: Records = found.detach().double().cpu().numpy()
    return array


def _tried(run: Callable[[], Any], replay: Replay) -> Any:
    """What a function gives; None when memory did not suffice."""
    try:
        return run()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # Outside of the handler, whose exception keeps the failed pass's tensors alive.
    free(replay.model.device)
    return None


def _halve(replay: Replay, rows: int) -> None:
    if replay.tokens < rows:
        raise ModelError(
            f"{replay.model.device} has no memory for a batch of {rows} examples without one head.",
            "Use smaller batches (--batch-tokens), --device cpu or --dtype bfloat16.",
        )
    replay.tokens //= 2

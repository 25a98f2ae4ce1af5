"""A batch after its intact pass, and its replays without one head each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headlens.analyses.ablate.replay.activation_cache import ActivationCache
from headlens.analyses.ablate.replay.cls_only import ClsOnlyLayer
from headlens.analyses.ablate.replay.nested_tensors import part, repeated, repeated_later, rows_of, tensors
from headlens.analyses.ablate.replay.partial_forward import PartialForward, RestartPoint
from headlens.analyses.ablate.replay.replacement import check_removed
from headlens.attention.finite_values import FiniteValues
from headlens.attention.sites import Site
from headlens.errors import OptionError, SelfCheckError
from headlens.heads import Head
from headlens.memory import is_out_of_memory

if TYPE_CHECKING:
    from headlens.analyses.ablate.replay.head_ablation import Replay


@dataclass(frozen=True, eq=False)
class Variant:
    """The batch once more, without a head.

    Args:
        head: which was taken out, or is the only one left in its layer (`keep-only`).
        outputs: what the model gave; tensors may share memory with those of other heads.
    """

    head: Head
    outputs: Any


class BaselinePass:
    """A batch after its intact pass; what it holds goes with it.

    Args:
        replay: whose model ran.
        inputs: of the batch.
        recording: of the pass.
        outputs: of the model.
    """

    def __init__(self, replay: Replay, inputs: Mapping[str, Any], recording: ActivationCache, outputs: Any) -> None:
        self.outputs = outputs
        self._replay = replay
        self._inputs = inputs
        self._recording = recording
        self._rows = rows_of(inputs)
        self._calls = recording.finish(replay.sites, replay.modules)
        values = FiniteValues(replay.model)
        for site, call in self._calls.items():
            values.note_site(site, call.output)
        values.check(outputs)
        self.shortcut: ClsOnlyLayer | None = None

    @property
    def sites(self) -> list[Site]:
        """The sites the batch came by: all, but for an encoder that runs alone."""
        return list(self._calls)

    def variants(self, heads: Sequence[Head] | None = None) -> Iterator[Variant]:
        """The batch without each of its heads, layer by layer; by default of all.

        Raises:
            OptionError: for a head that the batch does not come by.
            SelfCheckError: if something else was taken out, or too much computed again.
        """
        ablated = [h for s in self.sites for h in s.heads] if heads is None else heads
        known = {h for s in self.sites for h in s.heads}
        for head in ablated:
            if head not in known:
                raise OptionError(f"There is no head {head}.", f"The layers are {', '.join(map(str, self.sites))}.")
        for site in self.sites:
            yield from self._of_site(site, [h for h in ablated if h[:2] == (site.stack, site.layer)])

    def only_first_position(self) -> bool | None:
        """Whether nobody looks at anything but the first position of the last layer; None if there is no other.

        Asked of the model, by running the last layer for its first position alone: if the outputs are the same, in
        shape and in number, the others do not matter.
        """
        if {s.stack for s in self.sites} != {"encoder"} or not (shortcut := ClsOnlyLayer.of(self._recording)):
            return False
        if self._calls[self.sites[-1]].output.shape[1] < 2:
            return None
        self.shortcut = shortcut
        try:
            self.check(self.sites[0], self._rows)
        except (SelfCheckError, RuntimeError, IndexError) as error:
            if is_out_of_memory(error):
                raise
            return False
        finally:
            self.shortcut = None
        return True

    def use_shortcut(self) -> None:
        """From now on, run the last layer for its first position alone."""
        self.shortcut = ClsOnlyLayer.of(self._recording)

    def check(self, site: Site, examples: int = 1) -> None:
        """Raise SelfCheckError if a replay from a site, with nothing taken out, does not give the intact outputs.

        One example is enough to find a replay that goes wrong, at a small part of what the batch would cost.

        Args:
            site: where it starts.
            examples: how many of the batch it runs.
        """
        ratio = self._recording.rows // self._rows
        fit = partial(part, first=0, stop=examples * ratio, rows=self._recording.rows)
        inputs, expected = (part(v, 0, examples, self._rows) for v in (self._inputs, self.outputs))
        call = self._calls[site]
        start = RestartPoint(call.record, fit(call.output), _nothing, fit, partial(self._replay.arriving, site))
        outputs = self._play(start, inputs)
        for ours, theirs, largest in zip(tensors(outputs), tensors(expected), self._replay.largest, strict=True):
            if ours.shape != theirs.shape or not close(ours, theirs, largest):
                raise SelfCheckError(
                    f"Run again from {site} with no head removed, the model gave different outputs than before.",
                    "Please report the model; does it draw random numbers in evaluation mode?",
                )

    def _of_site(self, site: Site, heads: Sequence[Head]) -> Iterator[Variant]:
        size = max(1, self._replay.tokens // max(1, self._calls[site].output.shape[:2].numel()))
        for first in range(0, len(heads), size):
            chunk = heads[first : first + size]
            # Where their weights are: models that lost heads number the others as before.
            outputs = self._without(site, [site.heads.index(h) for h in chunk])
            for i, head in enumerate(chunk):
                rows = part(outputs, i * self._rows, (i + 1) * self._rows, len(chunk) * self._rows)
                yield Variant(head, rows)

    def _without(self, site: Site, heads: Sequence[int]) -> Any:
        call, times = self._calls[site], len(heads)
        start = RestartPoint(
            record=call.record,
            outputs=self._replay.changed(site, call, heads),
            check=partial(check_removed, heads=heads, mode=self._replay.mode),
            fit=partial(repeated_later, times=times, rows=self._recording.rows),
            arrives=partial(self._replay.arriving, site),
        )
        return self._play(start, repeated(self._inputs, times, self._rows))

    def _play(self, start: RestartPoint, inputs: Mapping[str, Any]) -> Any:
        playing = PartialForward(self._recording, start, self.shortcut)
        result = self._replay.run_with(playing, inputs)
        playing.finish()
        FiniteValues(self._replay.model).check(result)
        return result


def close(ours: Tensor, theirs: Tensor, largest: float) -> bool:
    """Whether numbers agree but for rounding.

    That is 7e-5 of the largest in single precision, 4e-10 in double; in half precision, where a pass in another batch
    rounds the hidden states of all layers otherwise, 9e-2 (bfloat16) and 3e-2 (float16).

    Args:
        ours: of any shape.
        theirs: of the same.
        largest: magnitude of such numbers in general: those of one example may all be small.
    """
    if not theirs.numel():
        return True
    precision = torch.finfo(theirs.dtype)
    tolerance = precision.eps ** (0.5 if precision.bits < 32 else 0.6) * largest
    return bool((ours - theirs).abs().max() <= tolerance)


def _nothing(*_: object, **__: object) -> None:
    pass

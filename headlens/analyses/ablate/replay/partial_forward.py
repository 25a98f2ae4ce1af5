"""A pass that starts in the middle: what came before is taken from a recording."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headlens.analyses.ablate.replay.activation_cache import ActivationCache, Arguments, Forward, Keywords
from headlens.analyses.ablate.replay.cls_only import ClsOnlyLayer
from headlens.errors import SelfCheckError


@dataclass(frozen=True, eq=False)
class RestartPoint:
    """Where a pass goes on, and with what.

    Args:
        record: number of the attention call's record.
        outputs: of its heads, (rows of this pass, query, heads, d).
        check: told what the model made of them, in the same shape.
        fit: brings what the intact pass gave to the rows of this one.
        arrives: what the model itself makes of head outputs on their way to the output projection.
    """

    record: int
    outputs: Tensor
    check: Callable[[Tensor], None]
    fit: Callable[[Any], Any]
    arrives: Callable[[Tensor], Tensor] = lambda outputs: outputs


class PartialForward:
    """Follows a pass over repeated inputs up to one attention call, and leaves the model alone after it.

    Args:
        recording: of the intact pass.
        start: the attention call.
        shortcut: for the last layer, if only its first position is looked at.

    Attributes:
        depth: how many attention calls are left out.
    """

    def __init__(self, recording: ActivationCache, start: RestartPoint, shortcut: ClsOnlyLayer | None = None) -> None:
        self._records = recording.records
        self._shortcut = shortcut
        # Attention calls to come, and all positions of the last layer's input once it runs for the first alone.
        self.depth = sum(r.attends for r in recording.records[: start.record])
        self._left = sum(r.attends for r in recording.records[start.record + 1 :])
        self._all: Tensor | None = None
        self._target = start.record
        self._outputs = start.outputs if shortcut is None or self._left else start.outputs[:, :1].contiguous()
        self._arrives = start.arrives
        self._check = start.check
        self._fit = start.fit
        self._at = 0
        self._arrived = False

    @property
    def reached(self) -> bool:
        """Whether the attention call is over, so that everything runs as usual."""
        return self._at > self._target

    def call(self, module: nn.Module, forward: Forward, args: Arguments, kwargs: Keywords) -> Any:
        """Run a module, or give what it gave in the intact pass."""
        if self._is_last_layer(module):
            self._all = args[0]
            args = (args[0][:, :1], *args[1:])
        if self.reached:
            if not self._arrived:
                self._look_at(args, kwargs)
            return forward(*args, **kwargs)
        record = self._records[self._at]
        if record.module is not module or record.attends:
            raise _out_of_step(module)
        if record.kept and record.stop <= self._target:
            self._at = record.stop
            return self._fit(record.output if self._all is None else record.output[:, :1])
        self._at += 1
        return forward(*args, **kwargs)

    def attend(self, module: nn.Module) -> Tensor | None:
        """The head outputs to use, if it is the turn of this call."""
        if self.reached:
            return None
        if self._at != self._target or self._records[self._at].module is not module:
            raise _out_of_step(module)
        self._at += 1
        return self._outputs

    def attend_short(self, query: Tensor, mask: Tensor | None, kwargs: Mapping[str, Any]) -> Tensor | None:
        """The head outputs of a call after that one, if it is for the first position alone."""
        self._left -= 1
        if self._all is None or self._shortcut is None:
            return None
        return self._shortcut.attend(query, self._all, mask, kwargs)

    def finish(self) -> None:
        """Raise SelfCheckError if the outputs were not asked for, or never seen again."""
        if not self._arrived:
            raise SelfCheckError("The model did not use the head outputs it was given.", "Please report the model.")

    def _is_last_layer(self, module: nn.Module) -> bool:
        if self._shortcut is None or self._all is not None:
            return False
        if self.reached:
            return self._left == 1 and module is self._shortcut.layer.module
        return self._records[self._at] is self._shortcut.layer and not self._left

    def _look_at(self, args: Arguments, kwargs: Keywords) -> None:
        """The first module after attention, the output projection, must get the outputs that were given."""
        expected = self._arrives(self._outputs)
        for value in (*args, *kwargs.values()):
            if isinstance(value, Tensor) and value.shape == self._outputs.flatten(2).shape:
                arrived = value.view(self._outputs.shape)
                if value.data_ptr() == expected.data_ptr() or torch.equal(arrived, expected):
                    self._check(arrived)
                    self._arrived = True
                    return
        raise SelfCheckError(
            "The head outputs that were given did not arrive at the output projection.", "Please report the model."
        )


def _out_of_step(module: nn.Module) -> SelfCheckError:
    return SelfCheckError(
        f"{type(module).__name__} was not called in the same order as in the intact pass.",
        "The model does not behave the same way for the same inputs.",
    )

"""Applying the rules while a model runs, and undoing everything after."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from headlens.attention.install import put
from headlens.errors import UnsupportedModelError
from headlens.relevance_propagation.epsilon_rule import (
    Arguments,
    Function,
    GradientRules,
    Keywords,
    PlainGradient,
    is_active,
)
from headlens.relevance_propagation.op_rules import FUNCTIONS, IN_PLACE, OpKind, arrange_arguments, whole_kind


class Tracer(TorchFunctionMode):
    """Looks every torch function up that the model calls; inside `with` and in this thread only.

    A mode of torch sees functions wherever they are called from: RoBERTa's and ELECTRA's activation functions are no
    modules of the model, so that hooks would miss them. Nothing is patched.

    Args:
        model: for the names of modules in messages.
        rules: what to do, or `PlainGradient` for nothing.
    """

    def __init__(self, model: nn.Module, rules: PlainGradient) -> None:
        super().__init__()
        self.model = model
        self.rules = rules
        # Inside an attention function, and inside modules that have a rule as a whole, nothing is looked up.
        self.paused = False
        # By identity, tensors in whose place stands the result of an operation in place. What still reads them would
        # read their old numbers. They are held so that their identity stays their own.
        self._replaced: dict[int, Any] = {}

    def start(self, rules: PlainGradient) -> None:
        """Begin a pass with rules of its own."""
        self.rules, self.paused = rules, False
        self._replaced.clear()

    def __torch_function__(
        self, func: Function, types: Sequence[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> Any:
        """Called by torch in place of `func`."""
        del types
        kwargs = kwargs or {}
        kind = FUNCTIONS.get(func)
        if kind is OpKind.LOOK_UP:
            return self.rules.ledger.enter(func(*args, **kwargs))
        if self.paused or not isinstance(self.rules, GradientRules):
            return func(*args, **kwargs)
        values = list(_flat((*args, *kwargs.values())))
        if any(id(value) in self._replaced for value in values):
            raise self._refusal(func, "which reads a tensor that was changed in place")
        if kind is None:
            # What gives no number that relevance could pass through (shapes, masks, indices) needs no rule.
            result = func(*args, **kwargs)
            if any(map(is_active, _flat((result,)))):
                raise self._refusal(func, "")
            return result
        if not any(map(is_active, values)):
            return func(*args, **kwargs)
        try:
            placed, settings = arrange_arguments(func, args, kwargs)
            if func in IN_PLACE:
                self._replaced[id(args[0])] = args[0]
            return self.rules.apply(kind, IN_PLACE.get(func, func), placed, settings)
        except LookupError as error:
            raise self._refusal(func, f"{error}") from None

    def _refusal(self, func: Function, why: str) -> UnsupportedModelError:
        name = resolve_name(func) or getattr(func, "__name__", repr(func))
        because = f" ({why})" if why else ""
        return UnsupportedModelError(
            f"There is no relevance rule for {name}{because}, which is called by {self._caller()}.",
            "The rules gradxact and taylor need none; headlens/relevance_propagation/op_rules.py lists the "
            "operations that have one.",
        )

    def _caller(self) -> str:
        """Class and path of the innermost module that is running."""
        names = {id(module): name for name, module in self.model.named_modules()}
        running = list(_running(sys._getframe(1)))
        inside = next((m for m in running if id(m) in names), self.model)
        path = f"{type(inside).__name__} at {names[id(inside)] or 'the top'}"
        # RoBERTa and ELECTRA keep activation functions that no walk over their modules meets.
        return path if not running or running[0] is inside else f"{type(running[0]).__name__} in {path}"


def _running(frame: FrameType | None) -> Iterator[nn.Module]:
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            yield owner
        frame = frame.f_back


def _flat(args: Arguments) -> Iterator[Any]:
    for value in args:
        yield from value if isinstance(value, list | tuple) else (value,)


@contextmanager
def kept_as_a_whole(model: nn.Module, tracer: Tracer) -> Iterator[None]:
    """Applies to modules that are one function of several operations the rule of their row inside `with`."""
    with ExitStack() as undo:
        for module in model.modules():
            if (kind := whole_kind(module)) is not None:
                _wrap(module, kind, tracer, undo)
        yield


def _wrap(module: nn.Module, kind: OpKind, tracer: Tracer, undo: ExitStack) -> None:
    original = module.forward

    def forward(x: Tensor) -> Any:
        before, tracer.paused = tracer.paused, True
        try:
            rules = tracer.rules
            if not isinstance(rules, GradientRules) or not is_active(x):
                return original(x)
            return rules.keep(x, original) if kind is OpKind.SCALE else rules.activate(x, original)
        finally:
            tracer.paused = before

    put(module, "forward", forward, undo)

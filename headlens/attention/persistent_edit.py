"""An edit that stays with a model: in plain passes, and in all sessions and replays of the model or of its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.attention.contract import BatchTokens, CallContext, Edit
from headlens.attention.install import put
from headlens.attention.padding import named_arguments, real_tokens
from headlens.attention.sites import find_sites
from headlens.heads import Stack

_ATTRIBUTE = "_headlens_standing"


class PersistentEdit(Edit):
    """Wraps an edit, which is told the tokens of every pass.

    What is declared with `session.batch` comes first. Where nothing is, padding is what the attention masks say that
    the model was called with: (batch, tokens), of multiple choice (n, choices, tokens).

    Args:
        model: the model.
        edit: what stays with it.
    """

    edits_mask = True

    def __init__(self, model: PreTrainedModel, edit: Edit) -> None:
        self.edit = edit
        self.edits_mask = edit.edits_mask
        self._stacks = _stacks_inside(model)
        self._running: nn.Module | None = None
        self._tokens = BatchTokens()
        self._open: Callable[[], AbstractContextManager[Any]] | None = None
        self._applied: ExitStack | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of the model gets None; see `headlens.attention.attach_edit.keep_as`.
        return type(None), ()

    def attach(self, model: PreTrainedModel, undo: ExitStack) -> None:
        """Be found on all modules of a model and follow its passes, until `undo` is closed."""
        for module in model.modules():
            put(module, _ATTRIBUTE, self, undo)
        for part in self._stacks:
            undo.callback(part.register_forward_pre_hook(_begin, with_kwargs=True).remove)
            undo.callback(part.register_forward_hook(_end, always_call=True).remove)

    def apply(self, opened: Callable[[], AbstractContextManager[Any]]) -> None:
        """Apply the edit to plain passes.

        Args:
            opened: makes the session that does so.
        """
        applied = ExitStack()
        applied.enter_context(opened())
        self._open, self._applied = opened, applied

    def rest(self) -> None:
        """Leave plain passes alone."""
        if self._applied is not None:
            applied, self._applied = self._applied, None
            applied.close()

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Inside, another session or replay applies the edit."""
        if self._applied is None or self._open is None:
            yield
            return
        self.rest()
        try:
            yield
        finally:
            self.apply(self._open)

    def begin(self, part: nn.Module, given: Mapping[str, Any]) -> None:
        """A model, or a model within it, starts to run; the outermost one's masks count."""
        if self._running is not None and self._running is not part:
            return
        self._running = part
        stacks = self._stacks[part]
        first, second = (
            real_tokens(given.get(f"{side}attention_mask"), given.get(f"{side}input_ids")) for side in ("", "decoder_")
        )
        self._tokens = BatchTokens(first, second) if "encoder" in stacks else BatchTokens(decoder=first)

    def end(self, part: nn.Module) -> None:
        """Ends the pass of a model, or of a model within it, that returned or raised; only the outermost counts."""
        if part is self._running:
            self._running = None

    def mask(self, context: CallContext, mask: Tensor | None) -> Tensor | None:
        """What the edit makes of the mask."""
        return self.edit.mask(self._known(context), mask)

    def output(self, context: CallContext, output: Tensor) -> Tensor:
        """What the edit makes of the head outputs."""
        return self.edit.output(self._known(context), output)

    def _known(self, context: CallContext) -> CallContext:
        """The call with the tokens of the pass where nobody declared any."""
        if context.queries is not None:
            return context
        queries, keys = self._tokens.of(context.site)
        shapes = [(t.shape[0], t.shape[2]) for t in (context.query, context.key)]
        if any(t is None or t.shape != shape for t, shape in zip((queries, keys), shapes, strict=True)):
            return context
        return replace(context, queries=queries, keys=keys)


def standing_of(model: nn.Module) -> PersistentEdit | None:
    """What stays with a model or with the model it is a part of; None where nothing does."""
    found: PersistentEdit | None = getattr(model, _ATTRIBUTE, None)
    return found


def standing_edits(model: nn.Module) -> tuple[Edit, ...]:
    """Returns the persistent edit of a model as edits for a session: one edit, or none where it has none."""
    found = standing_of(model)
    return () if found is None else (found,)


@contextmanager
def set_aside(model: nn.Module) -> Iterator[None]:
    """Inside, whoever asks applies the standing edit of a model."""
    found = standing_of(model)
    if found is None:
        yield
        return
    with found.set_aside():
        yield


def _stacks_inside(model: nn.Module) -> dict[nn.Module, frozenset[Stack]]:
    """The stacks in the model and in every model within it that has any."""
    sites = [(s.stack, model.get_submodule(s.module)) for s in find_sites(model)]
    parts = ((p, set(p.modules())) for p in model.modules() if isinstance(p, PreTrainedModel))
    found = {p: frozenset(stack for stack, module in sites if module in inside) for p, inside in parts}
    return {p: stacks for p, stacks in found.items() if stacks}


def _begin(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    # Plain functions that look for what is to be told: a copy of the model takes its hooks along, but nothing else.
    found = standing_of(part)
    if found is not None:
        found.begin(part, named_arguments(part, args, kwargs))


def _end(part: nn.Module, *_: object) -> None:
    found = standing_of(part)
    if found is not None:
        found.end(part)

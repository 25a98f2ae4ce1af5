"""An edit that stays with a model: in plain passes, and in all sessions and replays of the model or of its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.attention.edits_and_observers import BatchTokens, CallContext, Edit, named_arguments, real_tokens
from headlens.attention.install import put
from headlens.attention.sites import find_sites
from headlens.heads import Stack

_ATTRIBUTE = "_headlens_standing"


class PersistentEdit(Edit):
    """Wraps an edit that stays with a model, and gives it the tokens of every pass.

    Tokens declared with `session.batch` come first. Without any, padding is known from the attention masks that the
    model is called with: (batch, tokens), for multiple choice (n, choices, tokens).

    Args:
        model: the model.
        edit: the edit that stays with it.
        make_session: makes the session that applies it to plain passes.
    """

    def __init__(
        self, model: PreTrainedModel, edit: Edit, make_session: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        self.edit, self.edits_mask, self._make_session = edit, edit.edits_mask, make_session
        self._stacks = _stacks_inside(model)
        self._running: nn.Module | None = None
        self._tokens = BatchTokens()
        # The open session that applies the edit to plain passes; None while another session does.
        self._open_session: ExitStack | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of the model gets None; see `headlens.attention.attach_edit.keep_as`.
        return type(None), ()

    def attach(self, model: PreTrainedModel, undo: ExitStack) -> None:
        """Sets this edit on all modules of a model and follows its passes, until `undo` is closed."""
        for module in model.modules():
            put(module, _ATTRIBUTE, self, undo)
        for part in self._stacks:
            undo.callback(part.register_forward_pre_hook(_begin, with_kwargs=True).remove)
            undo.callback(part.register_forward_hook(_end, always_call=True).remove)

    def apply(self) -> None:
        """Applies the edit to plain passes."""
        with ExitStack() as open_session:
            open_session.enter_context(self._make_session())
            self._open_session = open_session.pop_all()

    def rest(self) -> None:
        """Stops applying the edit to plain passes."""
        if self._open_session is not None:
            open_session, self._open_session = self._open_session, None
            open_session.close()

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Leaves plain passes without the edit inside `with`, where another session or replay applies it."""
        if self._open_session is None:
            yield
            return
        self.rest()
        try:
            yield
        finally:
            self.apply()

    def begin(self, part: nn.Module, arguments: Mapping[str, Any]) -> None:
        """Takes the tokens of a pass from the arguments of the outermost model that runs, this one or one within it."""
        if self._running not in (None, part):
            return
        self._running = part
        first, second = (
            real_tokens(arguments.get(f"{side}attention_mask"), arguments.get(f"{side}input_ids"))
            for side in ("", "decoder_")
        )
        self._tokens = BatchTokens(first, second) if "encoder" in self._stacks[part] else BatchTokens(decoder=first)

    def end(self, part: nn.Module) -> None:
        """Ends the pass of a model, or of a model within it, that returned or raised; only the outermost counts."""
        if part is self._running:
            self._running = None

    def mask(self, context: CallContext, mask: Tensor | None) -> Tensor | None:
        """The mask after the edit: additive, broadcastable to (batch, heads, query, key)."""
        return self.edit.mask(self._with_tokens(context), mask)

    def output(self, context: CallContext, output: Tensor) -> Tensor:
        """The head outputs after the edit: (batch, query, heads, d)."""
        return self.edit.output(self._with_tokens(context), output)

    def _with_tokens(self, context: CallContext) -> CallContext:
        """The call with the tokens of the pass, unless its session has declared some."""
        if context.queries is not None:
            return context
        queries, keys = self._tokens.of(context.site)
        shapes = [(t.shape[0], t.shape[2]) for t in (context.query, context.key)]
        if any(t is None or t.shape != shape for t, shape in zip((queries, keys), shapes, strict=True)):
            return context
        return replace(context, queries=queries, keys=keys)


def persistent_edit_of(model: nn.Module) -> PersistentEdit | None:
    """The persistent edit of a model, or of the model that it is a part of; None where there is none."""
    return getattr(model, _ATTRIBUTE, None)


def persistent_edits(model: nn.Module) -> tuple[Edit, ...]:
    """Returns the persistent edit of a model as edits for a session: one edit, or none where it has none."""
    edit = persistent_edit_of(model)
    return () if edit is None else (edit,)


def set_aside(model: nn.Module) -> AbstractContextManager[None]:
    """Leaves plain passes of a model without its persistent edit inside `with`, where the caller applies it."""
    edit = persistent_edit_of(model)
    return nullcontext() if edit is None else edit.set_aside()


def _stacks_inside(model: nn.Module) -> dict[nn.Module, frozenset[Stack]]:
    """The stacks that have heads, for the model and for every model within it that has any."""
    sites = [(s.stack, model.get_submodule(s.module)) for s in find_sites(model)]
    parts = ((p, set(p.modules())) for p in model.modules() if isinstance(p, PreTrainedModel))
    stacks_of = {p: frozenset(stack for stack, module in sites if module in inside) for p, inside in parts}
    return {p: stacks for p, stacks in stacks_of.items() if stacks}


def _begin(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    # Hooks are plain functions that look up the edit: a copy of the model has the hooks, too, but no edit.
    edit = persistent_edit_of(part)
    if edit is not None:
        edit.begin(part, named_arguments(part, args, kwargs))


def _end(part: nn.Module, *_: object) -> None:
    edit = persistent_edit_of(part)
    if edit is not None:
        edit.end(part)

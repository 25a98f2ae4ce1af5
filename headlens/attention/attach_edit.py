"""Attaching an edit to a model, so that it holds in plain passes, sessions, replays and copies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from transformers import PreTrainedModel

from headlens.attention.edits_and_observers import Edit
from headlens.attention.persistent_edit import PersistentEdit, persistent_edit_of
from headlens.attention.session import AttentionSession


@contextmanager
def attach_edit(model: PreTrainedModel, edit: Edit) -> Iterator[None]:
    """Applies an edit whenever the model runs inside `with`: alone, in training, in sessions and replays, in parts.

        with attach_edit(model, MaskEdit(PatternMask(Window(3)))):
            model(**inputs)

    In sessions it comes before their own edits. The tokens of a pass are those declared with `session.batch`; without
    any, padding is known from the attention masks that the model is called with.

    Args:
        model: a model that is in no session.
        edit: the edit that stays with it.

    Raises:
        OptionError: if the edit does not fit the model.
        RuntimeError: if an edit stays with the model already, or it is in a session.
    """
    with ExitStack() as undo:
        edit.check(AttentionSession(model).sites)
        _keep(model, edit, undo)
        yield


def keep_as(copy: PreTrainedModel, original: PreTrainedModel) -> PreTrainedModel:
    """Attaches the persistent edit of a model to a copy of it, for as long as the copy lives.

    Args:
        copy: a copy of the model, which may have lost heads.
        original: the model.
    """
    persistent = persistent_edit_of(original)
    if persistent is not None:
        # Never closed: what it would undo goes with the copy.
        _keep(copy, persistent.edit, ExitStack())
    return copy


def _keep(model: PreTrainedModel, edit: Edit, undo: ExitStack) -> None:
    if persistent_edit_of(model) is not None:
        raise RuntimeError("another edit is already attached to this model")
    persistent = PersistentEdit(model, edit, partial(AttentionSession, model))
    with ExitStack() as steps:  # undone at once if one of them fails
        persistent.attach(model, steps)
        steps.callback(persistent.rest)
        persistent.apply()
        undo.push(steps.pop_all())

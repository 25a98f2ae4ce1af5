"""Models with an edit that stays with them, whatever is done with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from transformers import PreTrainedModel

from headlens.attention.contract import Edit
from headlens.attention.persistent_edit import PersistentEdit, standing_of
from headlens.attention.session import AttentionSession


@contextmanager
def attach_edit(model: PreTrainedModel, edit: Edit) -> Iterator[None]:
    """Inside, an edit holds whenever the model runs: by itself, in training, in sessions and replays, and in its parts.

        with attach_edit(model, MaskEdit(PatternMask(Window(3)))):
            model(**inputs)

    In sessions it comes before their own edits. The tokens of a pass are those declared with `session.batch`, and
    otherwise what the attention masks that the model was called with say of padding.

    Args:
        model: in no session.
        edit: what stays with it.

    Raises:
        OptionError: if the edit does not fit the model.
        RuntimeError: if an edit stays with the model already, or it is in a session.
    """
    with ExitStack() as undo:
        session = AttentionSession(model)
        edit.check(session.sites)
        _keep(model, edit, undo)
        yield


def keep_as(copy: PreTrainedModel, original: PreTrainedModel) -> PreTrainedModel:
    """Let the edit that stays with a model stay with a copy of it too, for as long as the copy lives.

    Args:
        copy: of the model, which may have lost heads.
        original: the model.
    """
    standing = standing_of(original)
    if standing is not None:
        # Never closed: what it would undo goes with the copy.
        _keep(copy, standing.edit, ExitStack())
    return copy


def _keep(model: PreTrainedModel, edit: Edit, undo: ExitStack) -> None:
    if standing_of(model) is not None:
        raise RuntimeError("an edit stays with this model already")
    standing = PersistentEdit(model, edit)
    with ExitStack() as own:
        standing.attach(model, own)
        own.callback(standing.rest)
        standing.apply(partial(AttentionSession, model))
        undo.push(own.pop_all())

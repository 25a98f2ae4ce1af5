"""The states of one or two models whose attention is shown side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headlens.analyses.attend.options import AttendRequest
from headlens.attention_masks.mask_options import MaskOptions
from headlens.attention_masks.model_mask import mask_source, under_mask
from headlens.corpora.sentence import Example
from headlens.heads import Head, parse_heads
from headlens.maps.sentence_attention import collect_attention
from headlens.models.loading import LoadedModel
from headlens.pages.attention_page import AttentionView
from headlens.pages.head_cards import SentenceMap
from headlens.pages.score_parts import ROOM
from headlens.runs.run import model_label

_NAMED = 3  # heads that the name of a state lists


@dataclass(frozen=True)
class AttentionState:
    """A model in a state: under a mask or not, with all its heads or without some.

    Args:
        name: of the state.
        model: name of the model, which two of its states share.
        loaded: the model.
        mask: the mask that it runs under.
        without: the heads that it runs without.
    """

    name: str
    model: str
    loaded: LoadedModel
    mask: MaskOptions
    without: Sequence[Head] = ()


def states_of(request: AttendRequest, models: Sequence[LoadedModel]) -> list[AttentionState]:
    """Returns the states of a request: what was asked for, and beside a changed model the same model as it is.

    Args:
        request: whose mask and heads they have.
        models: one model, or two to be compared.

    Raises:
        OptionError: if heads or mask cannot be read.
    """
    without, source = parse_heads(request.without), mask_source(request.mask)
    change = "" if source is None else f" under {source.name}"
    if source is not None and request.mask.layers is not None:
        change += f" in layers {request.mask.layers}"
    if without:
        more = len(without) - _NAMED
        change += f" without {', '.join(map(str, without[:_NAMED]))}" + (f" and {more} more" if more > 0 else "")
    names: list[str] = []
    for loaded in models:
        names.append(model_label(loaded, names))
    states = [
        AttentionState(name + change, name, loaded, request.mask, without)
        for name, loaded in zip(names, models, strict=True)
    ]
    if change and len(models) == 1:
        states.append(AttentionState(names[0], names[0], models[0], MaskOptions()))
    return states


def attention_of_states(
    states: Sequence[AttentionState], examples: Sequence[Example], request: AttendRequest, tell: Callable[[str], None]
) -> list[SentenceMap]:
    """Runs sentences in every state; their maps are named by their numbers, from 1.

    Args:
        states: see `states_of`.
        examples: the sentences.
        request: whose selection of a stack, and level of tokens or words, they have.
        tell: called with what the reader should know of a mask.

    Raises:
        InputError: if a sentence or the selection does not fit a model.
    """
    maps, selection, room = list[SentenceMap](), request.selection, ROOM // len(states)
    for number, state in enumerate(states):
        with under_mask(state.loaded.model, state.mask, tell):
            sentences = collect_attention(
                *(state.loaded, examples, selection), level=request.level, without=state.without, score_room=room
            )
        maps += [m for i, collected in enumerate(sentences, 1) for m in collected.sentence_maps(str(i), number)]
    return maps


def view_of(states: Sequence[AttentionState], maps: Sequence[SentenceMap]) -> AttentionView:
    """Returns the view of sentences in their states."""
    return AttentionView([state.name for state in states], maps, len({state.model for state in states}) == 1)

"""Attention on sentences, to be looked at token by token: the data of the view, and a page of its own for it.

Weights are kept as bytes of their square roots, all heads of a sentence together and packed by zlib: a head that gives
nearly everything to one token keeps what it gives to the others, which a step of 1/255 of the weight itself would lose.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from headlens.errors import OptionError, counted
from headlens.heads import STACKS
from headlens.pages.head_cards import SentenceMap, TokenGroups
from headlens.pages.self_contained import LARGE_PAGE, notebook_frame, script_data, self_contained_page, template_part
from headlens.visible_text import visible_text

LARGEST = 50_000_000  # bytes of weights on a page; a browser is slow to open more
_HERE = "headlens.pages"
_ROUNDING, _OF_ROWS = 1e-3, 1e-2  # of half precision: of a weight, and of what a row adds up to


@dataclass(frozen=True)
class AttentionView:
    """Attention on sentences, in one state or several side by side.

    Args:
        states: names of the states: of models, or of one model with all its heads and without some.
        maps: of all sentences, states and stacks; `model` is the name of the sentence.
        one_model: whether the states are those of one model, so that heads of the same number are the same heads.
    """

    states: Sequence[str]
    maps: Sequence[SentenceMap]
    one_model: bool = True

    @property
    def sentences(self) -> dict[str, list[SentenceMap]]:
        """The maps of each sentence, by its name."""
        by_name: dict[str, list[SentenceMap]] = {}
        for sentence_map in self.maps:
            by_name.setdefault(sentence_map.model, []).append(sentence_map)
        return by_name


def attention_data(view: AttentionView, room: int = LARGEST) -> dict[str, Any]:
    """Returns what the script of the view shows, in types of JSON.

    Args:
        view: the sentences; those that come after `room` is used up are left out, and the page tells how many.
        room: bytes of packed weights.
    """
    shown: list[dict[str, Any]] = []
    for maps in view.sentences.values():
        packed = [_packed(sentence_map) for sentence_map in maps]
        room -= sum(len(own["weights"]) + sum(parts["size"] for parts in own["scores"] or ()) for own in packed)
        if room >= 0:
            shown.append({"text": visible_text(_text(maps[0])), "maps": packed})
    left_out, states = len(view.sentences) - len(shown), [*map(visible_text, view.states)]
    return {"states": states, "linked": view.one_model, "sentences": shown, "left_out": left_out}


def size_notes(page: str, view: AttentionView) -> list[str]:
    """Returns what the reader should know of the size of a page, beginning with its size in MB where it is large."""
    if (size := len(page.encode())) <= LARGE_PAGE:
        return []
    shown, several = len(attention_data(view)["sentences"]), len(view.sentences)
    shortened = "" if shown == several else f", and shows only {shown} of {counted(several, 'sentence')}"
    return [f"attention.html is {size / 1e6:.1f} MB{shortened}: fewer or shorter sentences give a smaller page."]


class AttentionPage(str):
    """A page as HTML, to be written to a file, which a notebook displays."""

    __slots__ = ("caption",)
    caption: str

    def __new__(cls, html: str, caption: str = "") -> Self:
        """Makes a page of its text, with a caption for readers who do not see it."""
        page = super().__new__(cls, html)
        page.caption = caption
        return page

    def __repr__(self) -> str:
        """Its caption and size, in place of all of the text."""
        return visible_text(f"attention page of {self.caption} ({len(self.encode()) / 1e6:.1f} MB of HTML)")

    def _repr_html_(self) -> str:
        return notebook_frame(self, self.caption)


def attention_page(
    tokens: Sequence[str],
    weights: Any,
    keys: Sequence[str] | None = None,
    *,
    second_text: int | None = None,
    stack: str = "encoder",
    title: str = "",
) -> str:
    """Returns the interactive page of `headlens attend` for attention weights of one's own, as HTML.

        page = headlens.attention_page(tokens, torch.stack(outputs.attentions)[:, 0])
        Path("mine.html").write_text(page, encoding="utf-8")

    A notebook displays the page.

    Args:
        tokens: labels of the queries.
        weights: (layers, heads, query, key), (heads, query, key) of one layer, or (query, key) of one head, as an
            array or a tensor; a head that is not there is NaN throughout. Rows that do not add up to 1 are shown as
            they are, and the page says so.
        keys: labels of the keys; None where these are the queries.
        second_text: where the tokens are of two texts, the number of the first token of the second one; attention can
            then be limited to that from one text to the other.
        stack: what the heads are called: encoder, decoder or cross.
        title: of the page; empty for the tokens.

    Raises:
        OptionError: if the shape is none of these or does not fit the tokens, a weight is below 0, above 1 or NaN, or
            there is no such token or stack.
    """
    if stack not in STACKS:
        raise OptionError(f"stack {stack!r} is unknown.", f"Choose one of {', '.join(STACKS)}.")
    for name, words in (("tokens", tokens), ("keys", () if keys is None else keys)):
        if not isinstance(words, Iterable):
            raise OptionError(f"{name} {words!r} is no list of labels.", "Give one for each token, as words.")
    array = _array_of(weights)
    labels = [*map(str, tokens)], [*map(str, tokens if keys is None else keys)]
    if not 2 <= array.ndim <= 4 or array.shape[-2:] != tuple(map(len, labels)) or not array.size:
        raise OptionError(
            f"The weights have the shape {array.shape}, and there are {len(labels[0])} x {len(labels[1])} labels.",
            "Give (layers, heads, query, key), (heads, query, key) or (query, key), and a label for each.",
        )
    whole = array[(None,) * (4 - array.ndim)]
    given = whole[~np.asarray(np.isnan(whole).all((2, 3)))]  # (heads, query, key)
    if not (given >= 0).all() or given.max(initial=0) > 1 + _ROUNDING:
        advice = "Give them after the softmax; a head that is not there is NaN throughout."
        raise OptionError("Attention weights are from 0 to 1, and these are not, or are NaN.", advice)
    groups = None
    if second_text is not None:
        if keys is not None or second_text not in range(1, len(labels[0])):
            raise OptionError(
                f"second_text {second_text!r} is not the number of a token with others before it.",
                f"Give a number from 1 to {len(labels[0]) - 1}, and no keys of their own.",
            )
        of_texts = [int(place >= second_text) for place in range(len(labels[0]))]
        groups = TokenGroups([*range(len(of_texts))], labels[0], [False] * len(of_texts), texts=of_texts)
    sums = given.sum(-1)
    notes = []
    if sums.size and np.abs(sums - 1).max() > _OF_ROWS:
        notes.append(
            f"Weights of a token add up to between {sums.min():.3g} and {sums.max():.3g}, not to 1. They are shown as "
            "they are."
        )
    title = str(title or "")
    text = title or " ".join(labels[0])
    own = SentenceMap(text, stack, *labels, whole, text, query_groups=groups, key_groups=groups)
    return AttentionPage(page_of_view(text, AttentionView([title or "attention"], [own]), notes=notes), text)


def _array_of(weights: Any) -> npt.NDArray[np.float32]:
    try:
        if "complex" in str(getattr(weights, "dtype", "")):
            raise TypeError("complex numbers")
        return np.asarray(weights.detach().float().cpu() if hasattr(weights, "detach") else weights, dtype=np.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError(f"The weights are no array of numbers: {error}.", "Stack layers and heads first.") from error


def page_of_view(
    title: str, view: AttentionView, measuring: Mapping[str, int] | None = None, notes: Sequence[str] = ()
) -> str:
    """Returns a page of its own with the view, as HTML.

    Args:
        title: what it shows.
        view: the sentences.
        measuring: given where a server measures sentences that are typed in the page: `limit`, the letters that a
            sentence may have, and `translated`, whether a translation goes with each.
        notes: what readers should know before they look.
    """
    policy, data = "" if measuring is None else "; connect-src 'self'", attention_data(view) | {"measuring": measuring}
    looks: dict[str, Any] = {
        "style": view_style(),
        "script": view_script(),
        "more_policy": policy,
        "wide": True,
        "notes": notes,
    }
    return self_contained_page(_HERE, "attention.html", **looks, title=title, command="attend", data=script_data(data))


def view_style() -> str:
    """Returns the style of all pages, and of the view."""
    return template_part(_HERE, "page.css") + template_part(_HERE, "attention.css")


def view_script() -> str:
    """Returns the script of all pages, and of the view of attention, which a page includes once, before its own."""
    return "".join(
        template_part(_HERE, f"{name}.js") for name in ("scroll", "attention_weights", "attention_scores", "attention")
    )


def _text(sentence_map: SentenceMap) -> str:
    groups = sentence_map.key_groups
    return sentence_map.text or " ".join(sentence_map.keys if groups is None else groups.forms)


def _packed(sentence_map: SentenceMap) -> dict[str, Any]:
    """A stack of a sentence in types of JSON; weights (layers, heads, query, key) as packed bytes."""
    layers, heads = sentence_map.weights.shape[:2]
    missing = np.isnan(sentence_map.weights).any((2, 3))
    roots = np.sqrt(np.clip(np.nan_to_num(sentence_map.weights), 0, 1))
    groups = {
        side: None if made is None else vars(made) | {"forms": [*map(visible_text, made.forms)]}
        for side, made in (("query_groups", sentence_map.query_groups), ("key_groups", sentence_map.key_groups))
    }
    sides = {"queries": [*map(visible_text, sentence_map.queries)], "keys": [*map(visible_text, sentence_map.keys)]}
    shape = {"layers": layers, "heads": heads, "missing": np.argwhere(missing).tolist()}
    packed: dict[str, Any] = {
        "weights": _packed_bytes(np.rint(255 * roots).astype(np.uint8)),
        "scores": None if sentence_map.scores is None else [],
    }
    for parts in sentence_map.scores or ():
        arrays = {
            name: _packed_bytes(getattr(parts, name).astype("<f4")) for name in ("queries", "keys", "rest", "sums")
        }
        packed["scores"].append(
            vars(parts) | {"d": parts.queries.shape[2], "size": sum(map(len, arrays.values()))} | arrays
        )
    return {"state": sentence_map.state, "stack": sentence_map.stack, **sides, **groups, **shape, **packed}


def _packed_bytes(array: npt.NDArray[Any]) -> str:
    return base64.b64encode(zlib.compress(array.tobytes(), 9)).decode()

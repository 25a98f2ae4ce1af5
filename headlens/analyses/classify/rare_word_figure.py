"""Attention of the best rare-words head on example sentences, with the rarest word marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.heads import Head
from headlens.pages.formatting import percent_texts
from headlens.pages.head_cards import SentenceMap, TokenGroups
from headlens.plots import style
from headlens.plots.axis_labels import font_family, token_label
from headlens.plots.cell_drawing import Scale, bar_beside, draw_cells
from headlens.plots.head_grid import Grid, by_model_and_stack, float_column, head_name
from headlens.plots.style import PALE, VERMILION
from headlens.roles.even_attention import even_heads, is_even
from headlens.roles.role_rules import above_null

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAP, _WORDS, _LEGEND = 2.05, 1.1, 0.2  # inches: height of a map, of the words around it, and of the legend
_LETTERS = 14  # of a word
_SIZE = 5.5  # points


@dataclass(frozen=True)
class WordMap:
    """Attention of a head on a sentence, word by word, without special tokens.

    Args:
        weights: (query words, key words); to a word the sum over its pieces, from it the mean.
        queries: words that attend.
        keys: words attended to.
        rarest: places of the least frequent words among the keys.
    """

    weights: Grid
    queries: list[str]
    keys: list[str]
    rarest: list[int]

    @property
    def pointed(self) -> npt.NDArray[np.intp]:
        """Returns the key word that each query word attends to most, (query words,)."""
        return np.asarray(self.weights.argmax(axis=1), np.intp)

    @property
    def hits(self) -> int:
        """Returns how many query words attend most to a least frequent word."""
        return int(np.isin(self.pointed, self.rarest).sum())


def rare_word_figures(heads: pd.DataFrame, maps: Sequence[SentenceMap]) -> Iterator[tuple[str, Figure | None]]:
    """Draws for every model and stack the head that points at the rarest word most often, on the kept sentences.

    After Voita et al. (2019), figure 6.

    Args:
        heads: rows of `heads.csv`.
        maps: of the sentences; those without a rarest word are left out.

    Yields:
        Name of the figure, numbered where there are several, and the figure; nothing without such a sentence, and
        nothing where no head is above uniform attention.
    """
    titled_maps = []
    for part in by_model_and_stack(heads):
        # What a head that attends evenly points at is noise.
        shares = np.where(even_heads(part.rows), np.nan, float_column(part.rows, "rare_top1"))
        if not np.isfinite(shares).any() or is_even(part.rows):
            continue
        best = part.rows.iloc[int(np.nanargmax(shares))]
        highest = part.rows.iloc[int(np.nanargmax(float_column(part.rows, "rare_top1")))]
        share, null = best["rare_top1"], best.get("rare_top1_null", np.nan)
        if not above_null(share, null):
            continue
        head = Head(best["stack"], int(best["layer"]), int(best["head"]))
        maps_here = [word_map(m, head) for m in maps if (m.model, m.stack) == (part.model, part.stack)]
        if known := [sentence for sentence in maps_here if sentence is not None]:
            own, uniform, most = percent_texts(*map(float, (share, null, highest["rare_top1"])))
            title = f"Attention to rare words: {head} of {part.model}\n{own} at the rarest word"
            more = above_null(best.get("rare_top1_ci_low", share), null)
            above = "" if more else "not shown to be above "
            compared = f"{above}uniform attention {uniform if more else f'({uniform})'}"
            title += "" if np.isnan(null) else f"; {compared}"
            # Tables of measures name it.
            if highest["rare_top1"] > share:
                title += f". {head_name(highest)} has {most}, but attends evenly"
            # The best of many need not be a head for rare words.
            if not any("rare" in str(roles).split("; ") for roles in part.rows.get("roles", ())):
                title += ". No head holds the role"
            titled_maps.append((title, known))
    for number, (title, sentences) in enumerate(titled_maps, 1):
        yield "rare_words" if len(titled_maps) == 1 else f"rare_words_{number}", _drawn(title, sentences)


def word_map(sentence_map: SentenceMap, head: Head) -> WordMap | None:
    """Returns the attention of a head on a sentence by words; None where its rarest word is not known.

    A head that the model does not have any more has none, either.
    """
    queries, keys = sentence_map.query_groups, sentence_map.key_groups
    if queries is None or keys is None or not keys.rarest:
        return None
    layers, heads, *_ = sentence_map.weights.shape
    if head.layer >= layers or head.head >= heads:
        return None
    weights = np.asarray(sentence_map.weights[head.layer, head.head], np.float64)
    to_words = weights @ _membership(keys)  # (query tokens, key words)
    pieces = _membership(queries)
    by_word = (pieces / pieces.sum(axis=0)).T @ to_words
    from_words, at_words = _words(queries), _words(keys)
    shown = by_word[np.ix_(from_words, at_words)]
    if not shown.size or not np.isfinite(shown).all():
        return None
    rarest = [at_words.index(place) for place in keys.rarest if place in at_words]
    return WordMap(shown, [queries.forms[i] for i in from_words], [keys.forms[i] for i in at_words], rarest)


def _membership(groups: TokenGroups) -> Grid:
    """Which token is a piece of which word: 1 or 0, (tokens, words)."""
    return np.asarray(np.array(groups.words)[:, None] == np.arange(len(groups.forms)), np.float64)


def _words(groups: TokenGroups) -> list[int]:
    """The words of the text, by number: special tokens are none."""
    words: list[int] = np.setdiff1d(np.arange(len(groups.forms)), np.compress(groups.special, groups.words)).tolist()
    return words


def _drawn(title: str, sentences: Sequence[WordMap]) -> Figure:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    width = style.page_width()
    lines, abreast = (len(sentences), 1) if style.in_column() else (1, len(sentences))
    figure = style.constrained_figure(width, 0.3 + _LEGEND + (_MAP + _WORDS) * lines, title)
    grid = figure.subplots(lines, abreast, squeeze=False)
    high = max(float(sentence.weights.max()) for sentence in sentences) or 1.0
    scale = Scale("attention weight", high=high, colours=PALE)
    for axes, sentence in zip(grid.flat, sentences, strict=True):
        _draw(axes, sentence, scale)
        heading = f"{sentence.hits} of {len(sentence.queries)} words point at the rarest"
        style.heading(axes, heading, (width - 1.0) / abreast - 0.5)
    bar_beside(figure, scale, grid, _MAP + _WORDS, shrink=0.6 / lines, aspect=25)
    handles = [
        Patch(fill=False, edgecolor=VERMILION, label="the rarest word"),
        Line2D([], [], ls="", marker="o", markersize=2, color=style.INK, label="the word attended to most"),
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=2, **style.legend_looks())
    return figure


def _draw(axes: Axes, sentence: WordMap, scale: Scale) -> None:
    from matplotlib.patches import Rectangle

    style.dress(axes, "attended word", "attending word")
    draw_cells(axes, sentence.weights, **scale.limits)
    inks = [scale.ink(float(weight)) for weight in sentence.weights.max(axis=1)]
    down, across = (np.arange(len(words)) + 0.5 for words in (sentence.queries, sentence.keys))
    axes.scatter(sentence.pointed + 0.5, down, s=4, c=inks, linewidths=0, zorder=3)
    font: dict[str, Any] = {"fontsize": _SIZE, "fontfamily": font_family()}
    axes.set_xticks(across, [token_label(word, _LETTERS) for word in sentence.keys], rotation=90, **font)
    axes.set_yticks(down, [token_label(word, _LETTERS) for word in sentence.queries], **font)
    for place in sentence.rarest:
        box = Rectangle((place, 0), 1, len(sentence.queries), fill=False, edgecolor=VERMILION, linewidth=1.2)
        axes.add_patch(box)
        axes.get_xticklabels()[place].set(fontweight="bold", color=VERMILION)
    axes.invert_yaxis()

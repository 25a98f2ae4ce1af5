"""Attention maps of one sentence: heads of a layer on one sheet, of one model or of two, or one head large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from headlens.maps.map_figures import MapBlock, draw_blocks
from headlens.pages.head_cards import SentenceMap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ABREAST = 6  # maps of a model in one line, where two models are compared


def drawn_names(states: Sequence[str], models: int) -> list[str]:
    """Returns the names of the states that are drawn: of every model the first, changed as it was asked for."""
    return list(states[:models])


def layer_figures(
    maps: Sequence[SentenceMap],
    models: Sequence[str],
    layer: int | None = None,
    head: int | None = None,
    heads: Sequence[int] = (),
) -> Iterator[tuple[str, Figure | None]]:
    """Draws a figure for each sentence, stack and layer, of all heads, of some, or of one, large.

    Args:
        maps: of sentences, whose `model` is the number of the sentence, and whose `state` that of the model; of the
            states of one model only the first is drawn.
        models: the names of their states, for the titles; the maps of two stand on one figure, in lines of their own.
        layer: the only layer that is drawn; None for all.
        head: the only head that is drawn; None for all.
        heads: the only heads that are drawn; none for all.

    Yields:
        Name of the figure, and the figure; None where all heads were cut out of the model.
    """
    selected = heads if head is None else (head,)
    together: dict[tuple[str, str], list[SentenceMap]] = {}
    for sentence_map in maps:
        if sentence_map.state < len(models):
            together.setdefault((sentence_map.model, sentence_map.stack), []).append(sentence_map)
    for (sentence, stack), both in together.items():
        for number in range(max(len(sentence_map.weights) for sentence_map in both)) if layer is None else (layer,):
            blocks = []
            for sentence_map in (sentence_map for sentence_map in both if number < len(sentence_map.weights)):
                weights, name = sentence_map.weights[number], f"{models[sentence_map.state]}, " if len(both) > 1 else ""
                # Of heads that were cut out of the model there is nothing to draw.
                drawn = [h for h in selected or range(len(weights)) if not np.isnan(weights[h]).all()]
                titles = [f"{name}{stack}.{number}.{h}" for h in drawn]
                blocks.append(MapBlock(weights[drawn], sentence_map.queries, sentence_map.keys, titles))
            title = f"Attention of {' and '.join(models)} in sentence {sentence}: {stack}, layer {number}"
            most = max(len(block.titles) for block in blocks)
            across = most if len(both) > 1 and most <= _ABREAST else None
            name = f"sentence{sentence}_{stack}_layer{number}" + ("" if head is None else f"_head{head}")
            yield name, draw_blocks([block for block in blocks if block.titles], title, across)

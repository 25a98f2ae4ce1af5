"""What clusters hold: parts of speech of the queries and keys of each, for the heads that tell most."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headlens.heads import KEY_COLUMNS, Head
from headlens.plots.axis_labels import FAMILY
from headlens.plots.cell_drawing import BAR_SLOT, Scale, add_bar
from headlens.plots.style import MISSING, TICK_SIZE, dress, heading, headline, in_column, new_figure, page_width

_HEADS = 3
_SIDES = {"query": "queries", "key": "keys"}
# inches
_LEFT, _TOP, _TITLE, _NAMES, _GAP, _ROW = 0.45, 0.32, 0.30, 0.55, 0.15, 0.15


def cluster_pictures(clusters: pd.DataFrame, heads: pd.DataFrame) -> Figure | None:
    """How often each part of speech is among the queries and the keys of each cluster.

    Three heads of a model, those whose clusters tell most about parts of speech, a row of panels each.

    Args:
        clusters: rows of `clusters.csv`.
        heads: rows of `heads.csv`, for `information`.

    Returns:
        The figure, or None where no part of speech is known. Clusters that hold nothing are grey.
    """
    known = heads.dropna(subset="information").nlargest(_HEADS, "information")
    if known.empty or clusters.empty:
        return None
    tags = clusters.groupby("tag")["count"].sum().sort_values(ascending=False, kind="stable").index.tolist()
    groups = sorted(set(clusters["cluster"]))
    inside = len(groups) * _ROW
    slot = _TITLE + inside + 0.12
    # in a column the keys stand below the queries
    abreast = 1 if in_column() else 2
    lines = len(known) * 2 // abreast
    width, height = page_width(), _TOP + lines * slot + _NAMES
    across = (width - _LEFT - BAR_SLOT - 0.1) / abreast - _GAP
    figure = new_figure(width, height)
    headline(figure, "What clusters hold")
    scale = Scale("share of the cluster")
    for number, row in enumerate(known.to_dict("records")):
        own = clusters[
            (clusters[["model", *KEY_COLUMNS]] == [row["model"], *(row[k] for k in KEY_COLUMNS)]).all(axis=1)
        ]
        name = str(Head(row["stack"], int(row["layer"]), int(row["head"])))
        for place, (side, words) in enumerate(_SIDES.items()):
            line, column = divmod(number * 2 + place, abreast)
            left = _LEFT + column * (across + _GAP)
            low = height - _TOP - line * slot - _TITLE - inside
            axes = figure.add_axes((left / width, low / height, across / width, inside / height))
            _shares(axes, own[own["side"] == side], groups, tags, scale)
            said = f"{name}: {words}" if place == 0 else words
            heading(
                axes, said + (f" (tells {row['information']:.0%} of the part of speech)" if place == 0 else ""), across
            )
            if column:
                axes.set_yticklabels([])
            if line < lines - 1:
                axes.set_xticklabels([])
    add_bar(figure, scale, BAR_SLOT, _TOP + _TITLE)
    return figure


def _shares(axes: Axes, rows: pd.DataFrame, groups: list[int], tags: list[str], scale: Scale) -> None:
    table = rows.pivot_table(index="cluster", columns="tag", values="share", fill_value=0.0)
    # A cluster that holds nothing has no shares: it is left grey.
    values = table.reindex(columns=tags, fill_value=0.0).reindex(index=groups).to_numpy(np.float64)
    dress(axes)
    axes.set_facecolor(MISSING)
    axes.pcolormesh(
        np.ma.masked_invalid(values), cmap=scale.map, vmin=scale.low, vmax=scale.high, edgecolors="white", linewidth=0.3
    )
    axes.invert_yaxis()
    places = np.arange(len(tags)) + 0.5
    axes.set_xticks(places, [tag.lower() for tag in tags], rotation=90, fontsize=TICK_SIZE, fontfamily=FAMILY)
    axes.set_yticks(np.arange(len(groups)) + 0.5, [str(group) for group in groups], fontsize=TICK_SIZE)
    axes.tick_params(length=0)

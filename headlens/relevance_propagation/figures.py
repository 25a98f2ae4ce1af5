"""The figures of relevance, from its table."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from headlens.pages.command_report import Caption, Figures
from headlens.relevance_propagation.intervals_figure import raw_map, relevance_intervals, relevance_map
from headlens.relevance_propagation.scatter_figure import rule_agreement
from headlens.relevance_propagation.shares import rules_of_table


def relevance_figures(tables: Mapping[str, pd.DataFrame]) -> Figures:
    """Draw every figure one after the other, so that only one is in memory.

    Args:
        tables: `relevance`, if there: rows of the CSV file, of one model or several.

    Yields:
        Name of the figure, and the figure; None where there is nothing to draw.
    """
    if "relevance" not in tables:
        return
    relevance = tables["relevance"]
    yield "relevance", relevance_map(relevance)
    yield "relevance_raw", raw_map(relevance)
    yield "relevance_intervals", relevance_intervals(relevance)
    if len(rules_of_table(relevance)) > 1:
        yield "rule_agreement", rule_agreement(relevance)


CAPTIONS = {
    "relevance": Caption(
        "Relevance",
        "How much every head contributes to the target, as a share of what its layer as a whole contributes: the "
        "shares of a layer add up to 1, and do not compare layers. Blue heads work in the direction of their layer, "
        "red ones against it, white ones neither. A layer with a red triangle works against the target as a whole (the "
        "95 % interval of its sum is below 0): `raw` says what its heads do. Below each share is half the width of "
        "its 95 % bootstrap interval; heads whose interval contains 0 are pale, and so are layers of which it is not "
        "decided whether they serve the target or oppose it, and those whose heads cancel on average, where shares "
        "mean nothing. Grey heads have no share, as those of their layer cancel or give 0. "
        "The rules taylor and alpha-beta give magnitudes, which do not tell what works against the target: their "
        "colours begin at 0.",
    ),
    "relevance_raw": Caption(
        "Contributions",
        "How much every head contributes to the target, in units of the output (`raw`), with half the width of the "
        "95 % bootstrap interval: blue for the target, red against it, except for the rules taylor and alpha-beta, "
        "which give magnitudes. These numbers, unlike shares, compare heads of "
        "different layers. Heads whose interval contains 0 are pale.",
    ),
    "relevance_intervals": Caption(
        "Relevance with intervals",
        "One panel per layer, one dot per head with its 95 % bootstrap interval over the examples, blue above 0 and "
        "red below it: in the direction of the layer's sum, or against it. Layers named in red work against the target "
        "as a whole (the 95 % interval of their sum is below 0); where heads cancel, shares mean nothing, and where "
        "it is not decided whether the layer serves the target, a share above 0 may be one against it. The dashed line "
        "is an equal share for every head; open dots are heads whose interval contains 0. Triangles with numbers "
        "stand for shares beyond the axis, which occur where the heads of a layer nearly cancel.",
    ),
    "rule_agreement": Caption(
        "Relevance under other rules",
        "Every dot is a head: its share of the layer's relevance under the rule that was asked for, and under another "
        "one. On the dashed line both are the same. Spearman's correlation is 1 where both put the heads in the same "
        "order; the lower it is, the more the result depends on the choice of rule. It is that within layers, the mean "
        "over them, since shares of layers do not compare: the table has that of `raw` over all heads. Triangles mark "
        "values beyond the axes.",
    ),
}
RELEVANCE_SOURCES = {"relevance": ("relevance",), "rule_agreement": ("relevance",)}

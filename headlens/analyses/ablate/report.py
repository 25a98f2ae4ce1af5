"""The figures of `headlens ablate`, from the tables it wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from headlens.analyses.ablate import overviews, ranking_overviews, worth_over_training
from headlens.analyses.ablate.ablation_findings import findings_of
from headlens.analyses.ablate.figures import KEEP_ONLY, ablation_map, pruning_curve, side_by_side
from headlens.analyses.ablate.interactions_figure import interactions_map
from headlens.findings import layer_smoothness
from headlens.models.names import first_and_last, recorded_steps
from headlens.pages.command_report import Caption, CommandReport, Figures
from headlens.pages.page_tables import PageTable
from headlens.plots.curves import FRAMED
from headlens.plots.head_grid import rows_of_models
from headlens.plots.style import named_after
from headlens.runs.reading import RecordedRun
from headlens.tables.every_table import TABLES


def ablation_figures(tables: Mapping[str, pd.DataFrame], models: Sequence[Mapping[str, Any]] = ()) -> Figures:
    """Draw every figure one after the other, so that only one is in memory.

    Args:
        tables: `ablation`, `smoothness`, `pruning` and `interactions`, as far as there: rows of the CSV files, of one
            model or several.
        models: what run.json says of them; of checkpoints of one training the first and the last are drawn, and all
            of them over the training.

    Yields:
        Name of the figure, and the figure; None where there is nothing to draw.
    """
    if "ablation" in tables and (steps := recorded_steps(models)):
        yield worth_over_training.NAME, worth_over_training.worth_over_training(tables["ablation"], models)
        tables = rows_of_models(tables, first_and_last(steps))
    if "ablation" in tables:
        yield "ablation", ablation_map(tables["ablation"])
        if (beside := side_by_side(tables["ablation"])) is not None:
            yield "side_by_side", beside
        if (tables["ablation"]["mode"] == KEEP_ONLY).any():
            yield "keep_only", ablation_map(tables["ablation"], keep_only=True)
    if layer_smoothness.NAME in tables:
        yield layer_smoothness.NAME, layer_smoothness.smoothness_figure(tables[layer_smoothness.NAME])
    if "pruning" in tables:
        yield "pruning", pruning_curve(tables["pruning"])
    if "interactions" in tables:
        yield "interactions", interactions_map(tables["interactions"], tables["pruning"])


def _overviews(runs: Sequence[RecordedRun]) -> list[PageTable]:
    of_heads = (
        overviews.worth_of_checkpoints,
        overviews.needed_heads,
        overviews.restoring_heads,
        overviews.damage_by_layer,
        overviews.heads_alone,
    )
    makers = *of_heads, layer_smoothness.smoothness_overview, overviews.pruned_models, overviews.pruned_by_stack
    compared = (
        ranking_overviews.pruning_areas,
        ranking_overviews.compared_rankings,
        ranking_overviews.stable_rankings,
        ranking_overviews.interacting_pairs,
        ranking_overviews.measured_circuits,
    )
    return [table for make in (*makers, *compared) if (table := make(runs)).rows]


CAPTIONS = {
    worth_over_training.NAME: worth_over_training.CAPTION,
    "ablation": Caption(
        "Single heads",
        "How much the task's metric changes when a single head is removed, or its output replaced in the way that the "
        "title of the figure tells. Red: the metric is worse then; blue: it is better, as where the output on the "
        "original text restores it (denoising); white: no change on these examples; hatched: no head, or on grey one "
        "that was not ablated, as attribution ranked others above. Only heads with a dot changed significantly, after "
        "Holm's correction for the number of heads; all others are pale. A pale or white cell does not show that a "
        "head is dispensable (see `verdict`). Below each change is half the width of its paired "
        "95 % interval (a score interval for accuracy and exact match, else the bootstrap's).",
    ),
    "side_by_side": Caption(
        "Models side by side",
        "The same changes in the same colours, without numbers, so that models or the stacks of one can be compared: "
        "all panels share one scale. A dot marks changes that are significant after Holm's correction.",
    ),
    "keep_only": Caption(
        "Each head as the only one in its layer",
        "How much the metric changes when all heads of a layer but one are removed: a white cell "
        "is no change on these examples, which does not show that the head is enough (see `verdict`; Michel et al. "
        "2019).",
    ),
    layer_smoothness.NAME: layer_smoothness.SMOOTHNESS_CAPTION,
    "pruning": Caption(
        "Pruning many heads",
        "The metric against the number of heads pruned, by how they were chosen, with 95 % intervals. Heads were "
        "chosen on one part of the examples, and the values are those of the other part. The dashed line with its band "
        "is the whole model, a dotted one the chance level on the same examples; each random order is one point. Where "
        "controls were drawn, bars in the colour of a strategy are the range of random sets with as many heads in "
        "every layer as its own, and crosses random sets of other heads. "
        f"{FRAMED}",
    ),
    "interactions": Caption(
        "Pairs of heads",
        "By how much the Shapley value of a head for minus the loss of an example (a sum where it predicts several "
        "tokens) is larger where the other head always is there than where it is gone, on average over which others "
        "are there (Shapley interaction index; Grabisch and Roubens 1999). Red, below 0: each stands in for the other. "
        "Blue, above 0: each needs the other. A dot marks pairs that are significant after "
        "Holm's correction for all pairs of the model (t-test over examples).",
    ),
}

REPORT = CommandReport(
    "ablate",
    tables=TABLES["ablate"],
    needed=("ablation",),
    figures=lambda run: named_after("", ablation_figures(run.tables, run.model_facts), run.mask_name),
    captions=CAPTIONS,
    sources={name: (name,) for name in ("ablation", layer_smoothness.NAME, "pruning", "interactions")}
    | dict.fromkeys(("side_by_side", "keep_only", worth_over_training.NAME), ("ablation",)),
    overviews=_overviews,
    heads=overviews.ablation_heads,
    findings=lambda run: findings_of(run.tables, run.model_facts),
)

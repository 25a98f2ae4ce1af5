"""`headlens sparsefinder`: which attention weights entmax will leave at zero."""

from __future__ import annotations

from typing import Any

from .command import analysis
from .screen import Screen


@analysis("Analyses")
def sparsefinder(run: Any, _: Any, screen: Screen) -> None:
    """Predict which attention weights of an entmax model will be zero, and measure how good the predictions are.

    Examples: headlens sparsefinder · headlens sparsefinder runs/entmax/model --corpus en_ewt-ud-test.conllu
    """
    from headlens.analyses.sparsefinder.report import method_areas, task_tables

    screen.findings("sparsefinder", run)
    for (model, stack), rows in method_areas(run.tables["areas"]):
        screen.table(f"Methods by area under the recall-sparsity curve, {model}, {stack}", rows)
    for title, graphs in task_tables(run.tables["metrics"]) if "metrics" in run.tables else ():
        screen.table(title, graphs)

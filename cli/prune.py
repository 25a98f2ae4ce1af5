"""`headlens prune`: gates that close heads while the task is learned."""

from __future__ import annotations

from typing import Any

from headlens.errors import counted

from .command import analysis
from .screen import Screen


@analysis("Models")
def prune(run: Any, _: Any, screen: Screen) -> None:
    """Prune heads with learned gates: a penalty closes the gates of heads that contribute least.

    Examples: headlens prune · headlens prune ./my-classifier --task sst2 --data train.tsv --dev-data dev.tsv
    """
    from headlens.analyses.prune.results_table import (
        interval_text,
        minus_unpruned,
        result_digits,
        results_table,
        stacks_text,
        verdict_text,
    )
    from headlens.analyses.prune.sweep_runs import sweep_stacks

    screen.findings("prune", run)
    results = results_table(run.tables["sweep"])
    stacks = sweep_stacks(run.tables["sweep"])
    of = f" ({stacks_text(stacks)})" if len(stacks) > 1 else ""
    for (model, task, metric), group in results.groupby(["model", "task", "metric"], sort=False):
        on = f"{counted(int(group['n'].max()), 'example')} of {task}"
        digits = result_digits(group)
        rows = [
            {
                "run": row["run"],
                "heads": row["heads"],
                "from trained": interval_text(row, "trained", digits),
                "difference from unpruned": minus_unpruned(row, "trained", digits),
                "verdict": verdict_text(row),
                "from scratch": interval_text(row, "scratch", digits),
            }
            for row in group.to_dict("records")
        ]
        lacking = {
            "from scratch": group["scratch"].isna().all(),
            "difference from unpruned": group["trained_delta"].isna().all(),
            "verdict": group["verdict"].isna().all(),
        }
        shown = [{k: v for k, v in row.items() if not lacking.get(k)} for row in rows]
        screen.table(f"{model}: heads left{of}, and {metric} on {on} with 95 % intervals", shown)

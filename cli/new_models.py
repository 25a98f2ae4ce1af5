"""What the commands that make another model say of themselves in the help, and what they show of a run."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Any

from headlens.analyses.training.options import FineTuneRequest

from .command import analysis
from .screen import Screen, bounds

if TYPE_CHECKING:
    import pandas as pd


@analysis("Models")
def compact(run: Any, _: Any, screen: Screen) -> str:
    """Cut attention heads out of a model: a smaller, faster checkpoint, equal to the model with these heads at 0.

    Example: headlens compact demo --heads encoder.3.1,encoder.4.0 --out small
    """
    table: pd.DataFrame = run.table
    rows = []
    for row in table.to_dict("records"):
        mean, low, high = (1000 * row[name] for name in ("seconds_per_forward", "ci_low", "ci_high"))
        gain = f"{row['speedup']:.2f} ({row['speedup_low']:.2f} to {row['speedup_high']:.2f})"
        rows.append(
            {
                "state": row["state"],
                "heads": row["heads"],
                "parameters": f"{row['parameters']:,}",
                "MB": f"{row['weight_bytes'] / 1e6:.1f}",
                "ms per forward": f"{mean:.1f} ({low:.1f} to {high:.1f})",
                "speed-up": "" if row["state"] == "original" else gain,
            }
        )
    screen.table(f"{table['model'].iloc[0]} before and after", rows)
    screen.notes([f"Self-check against the model with these heads at 0: {run.difference}."])
    return shlex.join(["headlens", "classify", str(run.folder)])


@analysis("Models")
def prune(run: Any, _: Any, screen: Screen) -> None:
    """Prune heads with learned gates: training closes the gates of heads that the model does not need.

    Examples: headlens prune · headlens prune ./my-classifier --task sst2 --data train.tsv --dev-data dev.tsv
    """
    from headlens.analyses.prune.results_table import interval_text, minus_unpruned, result_digits, results_table

    results = results_table(run.tables["sweep"])
    for (model, task, metric), group in results.groupby(["model", "task", "metric"], sort=False):
        digits = result_digits(group)
        rows = [
            {
                "run": row["run"],
                "heads": row["heads"],
                "from trained": interval_text(row, "trained", digits),
                "difference from unpruned": minus_unpruned(row, "trained", digits),
                "from scratch": interval_text(row, "scratch", digits),
            }
            for row in group.to_dict("records")
        ]
        lacking = {
            "from scratch": group["scratch"].isna().all(),
            "difference from unpruned": group["trained_delta"].isna().all(),
        }
        kept = [{k: v for k, v in row.items() if not lacking.get(k)} for row in rows]
        screen.table(f"{model}: heads left, and {metric} on {task} with 95 % intervals", kept)


@analysis("Models")
def train(run: Any, request: Any, screen: Screen) -> str:
    """Train a model on labelled examples of a task, on masked language modelling, or on translation.

    Example: headlens train bert-base-uncased --task sst2 --data train.tsv --dev-data dev.tsv
    """
    evaluations, log = run.state.evaluations, run.state.log
    title, rows = ("Evaluations on held-out data", evaluations) if evaluations else ("Training", log)
    screen.table(title, list(rows[-8:]))
    metrics: pd.DataFrame = run.metrics
    if len(metrics):
        lines = [
            {"metric": row["metric"], "value": row["value"], "95 % CI": bounds(row, 3), "examples": row["n"]}
            for row in metrics.to_dict("records")
        ]
        screen.table(f"{metrics['task'].iloc[0]} on {metrics['data'].iloc[0]}", lines)
    following = ["headlens", "classify", str(run.folder / "model")]
    if isinstance(request, FineTuneRequest) and request.dev_data is not None:
        following = ["headlens", "ablate", str(run.folder / "model"), *request.data.as_options(request.dev_data)]
    return shlex.join([*following, *request.mask.as_options()])


@analysis("Models")
def train_dam(run: Any, _: Any, screen: Screen) -> None:
    """Learn which positions attention needs: train a model together with sparse attention masks.

    Examples: headlens train-dam · headlens train-dam new:bert-small --task mlm --corpus books.txt --steps 5000
    """
    from headlens.analyses.dam.results_table import baseline_of
    from headlens.pages.formatting import DIFFERENCE, difference_text

    sweep: pd.DataFrame = run.tables["sweep"]
    for (model, task, metric), group in sweep.groupby(["model", "task", "metric"], sort=False):
        difference = f"difference from {baseline_of(group)}"
        rows = [
            {
                "run": row["run"],
                "masked": "" if math.isnan(row["penalty"]) else f"{row['sparsity']:.1%}",
                "masked in texts": "" if math.isnan(row["penalty"]) else f"{row['sparsity_texts']:.1%}",
                str(metric): row["value"],
                "95 % CI": bounds(row, 3),
                difference: "" if math.isnan(row["delta"]) else difference_text(*(row[name] for name in DIFFERENCE)),
            }
            for row in group.to_dict("records")
        ]
        screen.table(f"Learned masks of {model}, and {task} under them", rows)

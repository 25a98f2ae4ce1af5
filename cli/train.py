"""`headlens train`: a task from its examples, language and translation models from text."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from headlens.errors import counted

from .command import analysis
from .screen import Screen, bounds

if TYPE_CHECKING:
    import pandas as pd


_LAST = 8  # rows of a table of a training on the console


@analysis("Models")
def train(run: Any, request: Any, screen: Screen) -> str:
    """Train a model on labelled examples of a task, on masked language modelling, or on translation.

    Example: headlens train bert-base-uncased --task sst2 --data train.tsv --dev-data dev.tsv
    """
    from headlens.analyses.training.options import FineTuneRequest, TrainRequest

    evaluations, log = run.state.evaluations, run.state.log
    title, rows = ("Evaluations on held-out data", evaluations) if evaluations else ("Training", log)
    metrics: pd.DataFrame = run.metrics
    if evaluations and len(metrics):
        title += f", {counted(int(metrics['n'].iloc[0]), 'example')}"
    screen.table(title if len(rows) <= _LAST else f"{title}, the last {_LAST} of {len(rows)}", list(rows[-_LAST:]))
    for (task, data), part in metrics.groupby(["task", "data"], sort=False) if len(metrics) else ():
        lines = [
            {"metric": row["metric"], "value": row["value"], "95 % CI": bounds(row, 3), "examples": row["n"]}
            for row in part.to_dict("records")
        ]
        screen.table(f"{task} on {data}", lines)
    following = ["headlens", "classify", str(run.folder / "model")]
    if isinstance(request, FineTuneRequest) and request.dev_data is not None:
        following = ["headlens", "ablate", str(run.folder / "model"), *request.data.as_options(request.dev_data)]
    elif isinstance(request, TrainRequest) and request.corpus_options.target:
        # Without them it would read sentences of the demo in what may be another language.
        text, target = (
            (request.dev, request.dev_target) if request.dev else (request.corpus, request.corpus_options.target)
        )
        following += ["--corpus", text, "--target", str(target)]
    return shlex.join([*following, *request.mask.as_options()])

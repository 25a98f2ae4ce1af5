"""`headlens train`: a task from its examples, language and translation models from text."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from headlens.errors import counted
from headlens.options import DEMO, declared_options
from headlens.tasks.task_options import TaskData

from .command import analysis
from .next_steps import next_step
from .screen import Screen, bounds

if TYPE_CHECKING:
    import pandas as pd


_LAST = 8  # rows of a table of a training on the console
_OTHER_TEXT = ("corpus", "target", "split", "limit")
_HERE = "CHECKPOINTS"


@analysis("Models")
def train(run: Any, request: Any, screen: Screen) -> str:
    """Train a model on labelled examples of a task, on masked language modelling, or on translation.

    Example: headlens train bert-base-uncased --task sst2 --data train.tsv --dev-data dev.tsv
    """
    from headlens.analyses.training.options import FineTuneRequest

    evaluations, log = run.state.evaluations, run.state.log
    title, rows = ("Evaluations on held-out data", evaluations) if evaluations else ("Training", log)
    metrics: pd.DataFrame = run.metrics
    # Of a training on text, what is translated is a part of what the loss is measured on.
    if evaluations and len(metrics) and isinstance(request, FineTuneRequest):
        title += f", {counted(int(metrics['n'].iloc[0]), 'example')}"
    screen.table(title if len(rows) <= _LAST else f"{title}, the last {_LAST} of {len(rows)}", list(rows[-_LAST:]))
    for (task, data), part in metrics.groupby(["task", "data"], sort=False) if len(metrics) else ():
        lines = [
            {"metric": row["metric"], "value": row["value"], "95 % CI": bounds(row, 3), "examples": row["n"]}
            for row in part.to_dict("records")
        ]
        screen.table(f"{task} on {data}", lines)
    if request.training.save_every:
        return _over_training(run, request)
    model = str(run.folder / "model")
    if isinstance(request, FineTuneRequest):
        if request.dev_data is None:
            return next_step("classify", request, model, without=("limit",))
        held_out = request.data.as_options(request.dev_data)
        return next_step("ablate", request, model, *held_out, without=tuple(declared_options(TaskData)))
    return next_step("classify", request, model, *_text(request), without=_OTHER_TEXT)


def _text(request: Any) -> list[str]:
    """Of a language model the text it learned, or was measured on: the demo may be in another language."""
    text, target = (request.dev, request.dev_target) if request.dev else (request.corpus, request.corpus_options.target)
    read = ["--corpus", text] if text != DEMO else []
    return read + (["--target", str(target)] if target else [])


def _over_training(run: Any, request: Any) -> str:
    """The roles of all checkpoints; the pattern of their names is left to the shell, whatever the folder is called."""
    from headlens.analyses.training.options import FineTuneRequest
    from headlens.learning.training_run import SAVED

    read = () if isinstance(request, FineTuneRequest) else _text(request)
    pattern = f"{shlex.quote(f'{run.folder}/{SAVED}')}*"
    command = next_step("classify", request, _HERE, *read, without=_OTHER_TEXT)
    return command.replace(_HERE, pattern, 1)

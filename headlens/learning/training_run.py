"""What all trainings do around the loop: state, best checkpoint, log, curve, the folder of the model.

The state is kept so that no kill costs more than the last minutes.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import pandas as pd
from safetensors.torch import load_model, save_model
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.errors import ResumeError
from headlens.files import atomic_path, output_errors, write_json
from headlens.findings.result_notes import few_example_notes, record_notes
from headlens.interventions.compacting import save_compacted
from headlens.learning.loop import Trainer, TrainingData, TrainingState
from headlens.learning.training_set import TrainingCallbacks
from headlens.models.loading import LoadedModel, quiet, tokenizer_of
from headlens.models.names import training_step
from headlens.nested_text import parse_json
from headlens.pages.formatting import number_text
from headlens.runs.processes import ALONE, DeferredSignals, Processes
from headlens.runs.run import Run
from headlens.tasks.evaluation import Evaluation, EvaluationOptions, evaluate, repeated_notes
from headlens.tasks.example_sources import MemoryExamples
from headlens.tasks.reader import Reader
from headlens.tasks.task import Task
from headlens.tasks.task_examples import record_table

EVERY = 60.0  # seconds; more where saving takes more than a twentieth of that
MODEL = "model"  # the folder of the checkpoint
SAVED = "checkpoints/checkpoint-"  # folders of the model after so many updates, as Trainer of transformers names them
_BEST = "model.safetensors"
_HASHES = "sha256.json"


@dataclass
class CheckpointFolder:
    """A folder per state: the newest that is whole counts; the one before is kept, lest a disk spoils the newest.

    Args:
        path: folder that holds the states.
        signals: notes signals to stop.
        processes: that train together; the first decides when to save.
        tell: called with what the user should know.
    """

    path: Path
    signals: DeferredSignals
    processes: Processes = ALONE
    tell: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        self._next = time.monotonic() + EVERY

    @property
    def found(self) -> Path | None:
        """Path of the newest state whose files are those that were written; None while there is none.

        Raises:
            ResumeError: if there are states, but all of them are damaged.
        """
        return self.processes.share(self._newest() if self.processes.first else None)

    def _newest(self) -> Path | None:
        states = self._states()
        complete = next((state for state in states if _is_whole(state)), None)
        if states and complete is None:
            message = f"{states[0]} cannot be resumed from: its files have changed since they were written."
            raise ResumeError(message, "Start again with --overwrite.")
        if complete is not None and complete != states[0]:
            self.tell(f"{states[0]} is damaged; training continues from {complete.name}, the state before.")
        return complete

    def _states(self) -> list[Path]:
        """The folders of states, the newest first."""
        return sorted(self.path.glob("state-*"), reverse=True)

    def due(self) -> bool:
        """Whether it is time to save, or a signal waits; the same in all processes."""
        waiting = any(self.processes.gather(self.signals.noted is not None))
        return self.processes.share(waiting or time.monotonic() >= self._next)

    @contextmanager
    def saving(self) -> Iterator[Path]:
        """A folder that becomes the newest state when the block ends well.

        Raises:
            OutputError: if it cannot be written.
        """
        begun, before = time.monotonic(), self._states()
        number = int(before[0].name.removeprefix("state-")) + 1 if before else 0
        fresh = self.path / ".fresh"
        try:
            with output_errors(self.path):
                if self.processes.first:
                    shutil.rmtree(fresh, ignore_errors=True)
                    self.path.parent.mkdir(exist_ok=True)  # but not the folder of the run, which somebody removed
                    self.path.mkdir(exist_ok=True)
                    fresh.mkdir()
                self.processes.gather(None)
                yield fresh
                self.processes.gather(None)
                if self.processes.first:
                    write_json(_hashes(fresh), fresh / _HASHES)
                    fresh.rename(self.path / f"state-{number:09}")
                    for state in before[1:]:
                        shutil.rmtree(state)
                self.processes.gather(None)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)  # on a full disk the record of the run needs the room
            raise
        now = time.monotonic()
        self._next = now + max(EVERY, 20 * (now - begun))

    def obey(self) -> None:
        """Act on a signal that waits, in all processes if one got it."""
        self.signals.obey()


def _hashes(folder: Path) -> dict[str, str]:
    """The hashes of the files of a state by name, without the file that holds them."""
    hashes = {}
    for path in sorted(folder.iterdir()):
        if path.name != _HASHES:
            with path.open("rb") as file:
                hashes[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


def _is_whole(state: Path) -> bool:
    with suppress(OSError, ValueError):
        return bool(parse_json((state / _HASHES).read_text(encoding="utf-8")) == _hashes(state))
    return False


def fit(
    run: Run,
    trainer: Trainer,
    network: nn.Module,
    data: TrainingData,
    main: str = "loss",
    *,
    higher_is_better: bool = False,
    chance: float = math.nan,
) -> tuple[TrainingState, int | None, list[str]]:
    """Train, or go on with it; afterwards the network has the weights of the best evaluation, if there was any.

    Args:
        run: under way.
        trainer: with options, objective and evaluation; what keeps and shows the training is added.
        network: what is trained, in place; the model or a part of it.
        data: examples.
        main: the metric by which one evaluation is better than another.
        higher_is_better: whether it should be large.
        chance: the main metric of the best guesses made without reading; NaN if that is not known.

    Returns:
        Where training stands, the update of those weights if they are of an evaluation, and notes.
    """
    best = run.kept("best")
    better = partial(score, main=main, higher_is_better=higher_is_better)
    total = TrainingCallbacks(processes=run.processes.count).updates(data, trainer.options)
    with DeferredSignals() as signals, run.reporter.progress("training (updates)", total) as advance:
        state = replace(
            trainer,
            better=better,
            on_best=lambda model: _keep_best(run, model, best),
            checkpoint=CheckpointFolder(run.kept("training"), signals, run.processes, tell=run.tell),
            progress=advance,
            logged=lambda state: write_log(run, state),
        ).fit(network, data)
    if not state.evaluations:
        return state, None, []
    load_model(network, best / _BEST)
    saved, note = checkpoint_note(state.evaluations, main, higher_is_better=higher_is_better, chance=chance)
    return state, saved, [note, *chance_notes(state.evaluations, chance)]


def checkpoint_note(
    evaluations: Sequence[Mapping[str, float]], main: str, *, higher_is_better: bool = False, chance: float = math.nan
) -> tuple[int, str]:
    """Returns the update whose weights were kept, the first of those that are equally good, and what to say of it."""
    scores = [score(evaluation, main, higher_is_better=higher_is_better) for evaluation in evaluations]
    equal, evaluation = scores.count(max(scores)), evaluations[scores.index(max(scores))]
    one = "the one" if equal == 1 else f"the first of {equal}"
    which = f"{'highest' if higher_is_better else 'lowest'} held-out {main} ({number_text(evaluation[main])})"
    than = "" if math.isnan(chance) else f"; chance level, predicting by frequency, {number_text(chance)}"
    note = f"The checkpoint is that of update {int(evaluation['step'])}, {one} with the {which}{than}."
    if len(evaluations) > 1:
        note += (
            f" The same examples chose it among {len(evaluations)} evaluations: what it achieves on them is optimistic."
        )
    return int(evaluation["step"]), note


def chance_notes(evaluations: Sequence[Mapping[str, float]], loss: float) -> list[str]:
    """The note that even the lowest held-out loss is above that of predicting by frequency; nothing is tested.

    Args:
        evaluations: with the `loss` of each.
        loss: that of predicting by frequency; NaN if it is not known.
    """
    losses = [evaluation["loss"] for evaluation in evaluations]
    if not (lowest := min(losses)) > loss:
        return []
    # Nobody who has learned nothing yet is that sure: predicting all tokens alike costs the logarithm of their number.
    diverged = lowest > 5 * loss or (len(losses) > 1 and losses[-1] > losses[0])
    advice = (
        "it rises, or is far above what knowing nothing costs: give a lower --learning-rate"
        if diverged
        else "train it further, with more --epochs or --steps or a higher --learning-rate (weights that begin at "
        "random take about 1e-3), or hold out more"
    )
    return [
        f"The held-out loss of the model ({number_text(lowest)}) is above that of predicting by the "
        f"frequencies in what was held out ({number_text(loss)}; of little text, this is lower than of more): {advice}."
    ]


def score(evaluation: Mapping[str, float], main: str = "loss", *, higher_is_better: bool = False) -> float:
    """A score of an evaluation, higher for better; -inf for a metric without a value."""
    value = evaluation[main] if higher_is_better else -evaluation[main]
    return -math.inf if math.isnan(value) else value


def _keep_best(run: Run, model: nn.Module, folder: Path) -> None:
    """Keep the weights of the best evaluation so far, whole or not at all."""
    if run.processes.first:
        with atomic_path(folder / _BEST) as fresh:
            save_model(model, str(fresh))


def write_log(run: Run, state: TrainingState) -> None:
    """Write `log.csv` and `evaluations.csv` as far as training has come, in the process that writes."""
    for name, rows in (("log", state.log), ("evaluations", state.evaluations)):
        if rows and run.folder is not None:
            run.folder.table(name, pd.DataFrame(rows))


@dataclass(frozen=True, eq=False)
class TaskResult:
    """A model on a task.

    Args:
        metrics: with 95 % intervals over examples, see `headlens.tasks.evaluation.estimate`, a row each.
        examples: what the model did on every example, a row each.
        notes: what the reader should know of them.
        evaluation: where the rows come from; None where nothing was measured.
    """

    metrics: pd.DataFrame = field(default_factory=pd.DataFrame)
    examples: pd.DataFrame = field(default_factory=pd.DataFrame)
    notes: list[str] = field(default_factory=list)
    evaluation: Evaluation | None = None


def measure(
    run: Run, loaded: LoadedModel, task: Task, source: MemoryExamples, options: EvaluationOptions
) -> TaskResult:
    """Run a model over a task's examples."""
    with run.reporter.progress(f"evaluating {task.name}", len(source.examples), None) as advance:
        done = 0

        def progress(total: int) -> None:
            nonlocal done
            advance(total - done)
            done = total

        evaluation = evaluate(task, loaded, source, replace(options, progress=progress, warn=run.warn))
    keys = {"model": loaded.short_name, "task": task.name, "data": source.name}
    rows = [
        {**keys, "metric": name, "n": len(evaluation.records), **asdict(e)} for name, e in evaluation.metrics.items()
    ]
    examples = record_table(task, evaluation.ids, evaluation.records)
    advice = "Give more to evaluate on, with --dev-data, or --dev for text."
    known = few_example_notes(len(evaluation.records), purpose="how well the model does", advice=advice)
    known += repeated_notes(evaluation.counts, len(evaluation.records), source.name)
    known += record_notes(task, evaluation.records, labels=evaluation.labels)
    notes = [*known, *task.notes(Reader.of(loaded), evaluation.traits)]
    examples.insert(0, "model", loaded.short_name)
    return TaskResult(pd.DataFrame(rows), examples, notes, evaluation)


def save_checkpoint(run: Run, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: str = MODEL) -> None:
    """Save model and tokenizer as a folder below that of the run, which appears as a whole."""
    place, fresh = run.path / folder, run.kept(".checkpoint")
    with output_errors(place), quiet():
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(fresh, ignore_errors=True)
        save_compacted(model, fresh)
        tokenizer.save_pretrained(fresh)
        if place.exists():
            shutil.rmtree(place)
        fresh.rename(place)


def save_update(run: Run, loaded: LoadedModel, step: int) -> None:
    """Save a model as it is after so many updates; a process that does not write does nothing."""
    if run.writes:
        save_checkpoint(run, loaded.model, tokenizer_of(loaded), f"{SAVED}{step}")


def saved_updates(folder: Path) -> list[Path]:
    """The folders that `save_update` wrote below that of a run, in the order of their steps."""
    steps = {path: training_step(path.name) for path in folder.glob(f"{SAVED}*")}
    known = {step: path for path, step in steps.items() if step is not None}
    return [known[step] for step in sorted(known)]

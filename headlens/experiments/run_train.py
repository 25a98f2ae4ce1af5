"""`train` with everything around it: corpus and model by name, a run folder with checkpoint, log and curve."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors.torch import load_model, save_model
from torch import nn

from headlens.corpora.sentence import Corpus
from headlens.corpora.sources import CorpusOptions, open_corpus, refuse_unused
from headlens.corpora.summary import CorpusSummary, summarise
from headlens.errors import OptionError
from headlens.experiments.interrupts import Deferred
from headlens.experiments.reporter import Reporter
from headlens.experiments.requests import Place
from headlens.experiments.run import Run, open_run
from headlens.experiments.train import (
    TextOptions,
    Trainable,
    evaluation,
    loaded_model,
    new_model,
    objective_of,
    read_data,
    split,
)
from headlens.experiments.training_keeper import TrainingKeeper
from headlens.interventions.compacting import save_compacted
from headlens.models.loading import DEMO, ModelOptions, choose_device, quiet
from headlens.report.files import output_errors
from headlens.report.training import training_curve
from headlens.training.architectures import PREFIX
from headlens.training.loop import Trainer
from headlens.training.options import TrainingOptions
from headlens.training.parallel_text import ParallelText
from headlens.training.state import TrainingState

MODEL = "model"  # the folder of the checkpoint
_BEST = "model.safetensors"


@dataclass(frozen=True)
class TrainRequest:
    """What `headlens train` is asked for.

    Args:
        model: a checkpoint by name, or `new:NAME` for random weights.
        corpus: what it is trained on.
        corpus_options: how that is read.
        dev: what it is evaluated on; None holds out a part of the corpus.
        dev_target: translations of `dev`.
        text: what is learned of the text.
        training: length, step size, rhythm.
        model_options: how the model is loaded, and the device.
        figures: whether the curve is drawn.
        place: where the run goes.
    """

    model: str = DEMO
    corpus: str = DEMO
    corpus_options: CorpusOptions = field(default_factory=lambda: CorpusOptions(split="train"))
    dev: str | None = None
    dev_target: str | None = None
    text: TextOptions = field(default_factory=TextOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)
    model_options: ModelOptions = field(default_factory=ModelOptions)
    figures: bool = True
    place: Place = field(default_factory=Place)


@dataclass(frozen=True)
class TrainRun:
    """What a run gave."""

    folder: Path
    files: list[Path]
    state: TrainingState
    notes: list[str]

    def summary(self) -> dict[str, Any]:
        """The result in short, for `--json`."""
        return {
            "out": str(self.folder),
            "model": str(self.folder / MODEL),
            "steps": self.state.step,
            "log": self.state.log[-1:],
            "evaluations": self.state.evaluations[-1:],
            "notes": self.notes,
        }


def run_train(request: TrainRequest, reporter: Reporter | None = None) -> TrainRun:
    """Read the corpus, make or load the model, train it, write the run folder.

    Raises:
        InputError: whatever is wrong with what was asked for.
    """
    refuse_unused(request.corpus_options, request.corpus, request.corpus_options.target, request.dev)
    if request.dev_target is not None and request.dev is None:
        raise OptionError("--dev-target names translations of --dev, which is not given.", "Give both or neither.")
    with open_run("train", request.model.removeprefix(PREFIX), request, reporter) as run:
        corpus = open_corpus(request.corpus, request.corpus_options)
        with run.reporter.progress(f"reading {corpus.name}", None) as advance:
            summary = summarise(corpus, advance)
        corpus, dev = _held_out(request, corpus, summary)
        trainable = _trainable(request, run, corpus)
        state, notes = _train(request, run, trainable, corpus, dev)
        if run.folder is not None:
            _write(request, run, trainable, state, summary, notes)
        return TrainRun(run.path, run.files, state, notes)


def _held_out(request: TrainRequest, corpus: Corpus, summary: CorpusSummary) -> tuple[Corpus, Corpus | None]:
    if request.dev is None:
        return split(corpus, request.text.dev_share, summary.sentences)
    return corpus, open_corpus(request.dev, _dev_options(request))


def _dev_options(request: TrainRequest) -> CorpusOptions:
    own = request.corpus_options
    return CorpusOptions(request.dev_target, own.column, own.target_column, own.split, None, own.offline)


def _trainable(request: TrainRequest, run: Run, corpus: Corpus) -> Trainable:
    seed = request.training.seed
    if not request.model.startswith(PREFIX):
        return loaded_model(run.load(request.model, request.model_options), request.text, seed)
    folder = run.kept("vocabulary")
    with run.reporter.status("learning a vocabulary"), output_errors(folder):
        if run.processes.first:
            folder.mkdir(parents=True, exist_ok=True)
        run.processes.gather(None)
        own = folder / str(run.processes.rank)
        own.mkdir(exist_ok=True)
        made = new_model(request.model.removeprefix(PREFIX), corpus, request.text, seed, own)
    moved: nn.Module = made.model
    moved.to(choose_device(request.model_options.device))
    return made


def _train(
    request: TrainRequest, run: Run, trainable: Trainable, corpus: Corpus, dev: Corpus | None
) -> tuple[TrainingState, list[str]]:
    seed, text = request.training.seed, request.text
    with run.reporter.status("tokenizing"):
        data = read_data(trainable, corpus, text, seed)
        held = None if dev is None else read_data(trainable, dev, text, seed)
    notes = []
    if isinstance(data, ParallelText) and data.left_out:
        notes.append(f"{data.left_out} pairs were left out: a side is empty or longer than {text.longest} tokens.")
    best = run.kept("best")
    with Deferred() as signals, run.reporter.progress("training (updates)", None) as advance:
        trainer = Trainer(
            request.training,
            objective_of(text),
            evaluate=None if held is None else evaluation(held, request.training.batch_tokens),
            better=lambda found: -found["loss"],
            on_best=lambda model: _keep_best(run, model, best),
            keeper=TrainingKeeper(run.kept("training"), signals, run.processes),
            progress=advance,
        )
        state = trainer.fit(trainable.model, data)
    if (best / _BEST).exists():
        _restore_best(trainable.model, best)
        lowest = min(state.evaluations, key=lambda row: row["loss"])
        notes.append(f"The checkpoint is that of update {int(lowest['step'])}, the best on what was held out.")
    return state, notes


def _keep_best(run: Run, model: nn.Module, folder: Path) -> None:
    """Keep the weights of the best evaluation so far, whole or not at all."""
    if not run.processes.first:
        return
    with output_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        fresh = folder / ".fresh.safetensors"
        save_model(model, str(fresh))
        fresh.replace(folder / _BEST)


def _restore_best(model: nn.Module, folder: Path) -> None:
    load_model(model, folder / _BEST)


def _write(
    request: TrainRequest,
    run: Run,
    trainable: Trainable,
    state: TrainingState,
    summary: CorpusSummary,
    notes: list[str],
) -> None:
    assert run.folder is not None
    log, evaluations = pd.DataFrame(state.log), pd.DataFrame(state.evaluations)
    run.folder.table("log", log)
    if len(evaluations):
        run.folder.table("evaluations", evaluations)
    _save(run, trainable)
    if request.figures and (figure := training_curve(log, evaluations)) is not None:
        run.folder.figure("training", figure)
    facts = {
        "model": Path(request.model).name,
        "name": request.model,
        "parameters": sum(p.numel() for p in trainable.model.parameters()),
        "device": str(trainable.model.device),
        "steps": state.step,
    }
    run.folder.finish({"models": [facts], "corpus": asdict(summary), "notes": notes + run.warnings})


def _save(run: Run, trainable: Trainable) -> None:
    """The checkpoint as a folder that appears as a whole."""
    place, fresh = run.path / MODEL, run.kept("checkpoint")
    with output_errors(place), quiet():
        shutil.rmtree(fresh, ignore_errors=True)
        save_compacted(trainable.model, fresh)
        trainable.tokenizer.save_pretrained(fresh)
        if place.exists():
            shutil.rmtree(place)
        fresh.rename(place)

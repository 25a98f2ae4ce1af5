"""`train`: a task from its examples, or language and translation models from text; a folder with checkpoint and log."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from headlens.analyses.training.options import FineTuneRequest, TrainRequest
from headlens.analyses.training.report import ONLY_TRAINING, CurveFacts, training_curve
from headlens.attention.model_normalizer import attention_name, attention_notes, entmax_record, switch_as_asked
from headlens.attention.normalizers import parse_normalizer
from headlens.corpora.sentence import Corpus, summarise
from headlens.corpora.sources import refuse_unused
from headlens.errors import counted
from headlens.findings.result_notes import embedded_notes, left_out_notes, were
from headlens.learning import text_training
from headlens.learning.alphas_figure import ALPHAS, alpha_histograms
from headlens.learning.learned_alphas import alpha_notes, alpha_table
from headlens.learning.loop import Trainer, TrainingState
from headlens.learning.new_models import PREFIX, hints_at_new, is_new, new_model, wordpiece_tokenizer
from headlens.learning.objectives import NEXT
from headlens.learning.open_training_set import (
    read_examples,
    read_further,
    read_text,
    seen_notes,
    seen_sentence_notes,
)
from headlens.learning.sweep import notes_once
from headlens.learning.training_run import (
    MODEL,
    SAVED,
    TaskResult,
    fit,
    measure,
    save_checkpoint,
    save_update,
    saved_updates,
    write_log,
)
from headlens.learning.training_set import TaskForward, TaskRows, freeze_unused, task_evaluation
from headlens.learning.training_text import ParallelText
from headlens.models.loading import LoadedModel, choose_device, tokenizer_of
from headlens.models.names import training_step
from headlens.pages.formatting import number_text
from headlens.runs.progress import Reporter
from headlens.runs.run import Run, open_run
from headlens.tasks.evaluation import EvaluationOptions
from headlens.tasks.example_sources import MemoryExamples, SourceCounts, fingerprint
from headlens.tasks.examples import TextExample, texts_of
from headlens.tasks.reader import Reader
from headlens.tasks.task import Task
from headlens.tasks.task_heads import ModelWithHead, with_task_head
from headlens.tasks.test_set_predictions import read_test_sets, write_predictions
from headlens.tasks.translation import Translation

_FEW_TOKENS, _SAYS_LITTLE = 30, ", too few to tell models or updates apart: hold out more"
_LONGEST = 512  # tokens that a model with random weights reads


def run_training(request: TrainRequest | FineTuneRequest, reporter: Reporter | None = None) -> TrainRun:
    """Trains the model on text or on the examples of a task, and writes the run folder.

    Raises:
        InputError: whatever is wrong with what was asked for.
    """
    return run_train(request, reporter) if isinstance(request, TrainRequest) else run_fine_tune(request, reporter)


def run_fine_tune(request: FineTuneRequest, reporter: Reporter | None = None) -> TrainRun:
    """Read the data, put the head on the model, train it, evaluate it, write the run folder.

    Raises:
        InputError: whatever is wrong with what was asked for.
    """
    training, offline = request.training, request.model_options.offline
    counts, dev_counts = SourceCounts(), SourceCounts()
    with open_run("train", request.model.removeprefix(PREFIX), request, reporter, mask=request.mask) as run:
        run.set_aside(f"{SAVED}*")
        with run.reporter.status("reading data"):
            learned, all_counts = request.data.for_training(), (counts, dev_counts)
            task, train, dev = read_examples(learned, request.dev_data, request.dev_share, all_counts, offline=offline)
            further = read_further(request.also_on, request.data, offline=offline)
            test_sets = read_test_sets(request.predict, request.data, offline=offline)
        loaded = _load(request, run, train)
        held_out = {} if dev is None else {"what is held out": fingerprint(dev.examples)}
        held_out |= {f"what is held out of {other.name}": fingerprint(held.examples) for other, held in further}
        run.depend_on(loaded, {"the data": fingerprint(train.examples), **held_out})
        headed = with_task_head(loaded, task, training.seed)
        loaded = replace(loaded, model=headed.model)
        switch_as_asked(loaded.model, request.attention)
        task_forward = TaskForward.of(task, loaded, request.longest)
        with run.reporter.status("tokenizing"):
            rows = TaskRows.of(task_forward, train, counts)
            dev_rows = None if dev is None else TaskRows.of(task_forward, dev, dev_counts)
        with run.masked(loaded, request.mask):
            network = task.network(loaded.model)
            freeze_unused(network, task_forward, rows.batch((0,), 0))
            evaluate = None if dev_rows is None else task_evaluation(dev_rows, training.batch_tokens)
            trainer = Trainer(training, task_forward, evaluate, save=partial(save_update, run, loaded))
            state, saved, notes = fit(
                run, trainer, network, rows, task.metrics[0], higher_is_better=task.higher_is_better
            )
            seen = seen_notes(train, dev, named=request.dev_data is not None)
            notes = [*_notes(request.model, headed, rows, dev_rows), *seen, *notes]
            if run.folder is None:
                return TrainRun(run.path, run.files, state, notes)
            # The final model on what was held out, as if it was loaded again.
            options = EvaluationOptions(training.batch_tokens, request.longest, seed=training.seed)
            measured_on = (*([] if dev_rows is None else [(task, dev_rows.examples)]), *further)
            measured = _measured(run, loaded, measured_on, options)
            with run.reporter.status("predicting"):
                notes += write_predictions(task, loaded, test_sets, replace(options, warn=run.warn), run.file)
        facts = _facts(rows, dev_rows) | {"checkpoint": saved, ONLY_TRAINING: _dropout(loaded.model)}
        return _write(request, run, loaded, state, measured, notes, facts)


def _measured(
    run: Run, loaded: LoadedModel, measured_on: Sequence[tuple[Task, MemoryExamples]], options: EvaluationOptions
) -> TaskResult:
    """What the model achieves on each of several held-out parts; a note on one of the later ones names its task."""
    results = [measure(run, loaded, task, held, options) for task, held in measured_on]
    if not results:
        return TaskResult()
    notes, (_, *further) = results[0].notes, measured_on
    for (task, held), result in zip(further, results[1:], strict=True):
        assert result.evaluation is not None
        left_out = left_out_notes(
            result.evaluation.counts, held.name, Reader.of(loaded, (), options.max_length).limit_text
        )
        notes = notes_once(notes, [(task.name, [*held.notes, *left_out, *result.notes])])
    tables = ([r.metrics for r in results], [r.examples for r in results])
    metrics, examples = (pd.concat(frames, ignore_index=True) for frames in tables)
    return TaskResult(metrics, examples, notes)


def _load(request: FineTuneRequest, run: Run, examples: MemoryExamples) -> LoadedModel:
    if not is_new(request.model):
        with hints_at_new(request.model):
            return run.load(request.model, request.model_options)
    with run.reporter.status("learning a vocabulary"):
        texts = (text for example in examples.examples for text in texts_of(example))
        tokenizer = wordpiece_tokenizer(texts, request.vocabulary, _LONGEST)
        name = request.model.removeprefix(PREFIX)
        model: Any = new_model(name, "mlm", tokenizer, _LONGEST, request.training.seed)
    return LoadedModel(request.model, model.eval().to(choose_device(request.model_options.device)), tokenizer, None)


def _fresh_notes(model: str, parts: Sequence[str]) -> list[str]:
    if is_new(model):
        return ["All weights were random before training."]
    return [f"New weights, random before training: {', '.join(parts)}."] if parts else []


def _known_of_held_out(data: text_training.TextData | None, batch_tokens: int) -> tuple[float, list[str]]:
    """The loss of predicting by frequency, NaN where nothing is held out, and notes on what else should be known."""
    if data is None:
        return math.nan, []
    tokens, follow = (text_training.predicted(data, batch_tokens, name) for name in ("labels", NEXT))
    few = _SAYS_LITTLE * (tokens.total() < _FEW_TOKENS)
    notes = [f"Held-out losses are means over {counted(tokens.total(), 'token')}{few}."]
    if follow:
        share, rows = max(follow.values()) / follow.total(), counted(follow.total(), "held-out row")
        notes.append(f"Of {rows}, the same answer on next sentences is right for {share:.3f} (chance level).")
    return text_training.chance_loss(tokens), notes


def _dropout(model: torch.nn.Module) -> list[str]:
    """Returns a word if the model has dropout in training."""
    # Some models have no modules for it, but modules with a rate, such as `attention_dropout`.
    rates = (
        value
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, float) and "dropout" in f"{type(module).__name__}.{name}".lower()
    )
    return ["dropout"] if max(rates, default=0.0) > 0 else []


def _notes(model: str, headed: ModelWithHead, rows: TaskRows, held_out: TaskRows | None) -> list[str]:
    summaries = [part.summary for part in (rows, held_out) if part is not None]
    notes = [*headed.notes, *_fresh_notes(model, headed.fresh)]
    notes += dict.fromkeys(note for summary in summaries for note in summary.notes)
    for summary in summaries:
        notes += left_out_notes(summary, summary.name, rows.task_forward.reader.limit_text)
    if held_out is not None and math.isfinite(chance := held_out.chance_loss):
        loss = f"loss ({name})" if (name := rows.task_forward.task.loss_name) else "loss"
        notes.append(f"The best constant prediction has a held-out {loss} of {number_text(chance)} (chance level).")
    if held_out is None:
        notes.append("Nothing was held out, so nothing was evaluated: name held-out examples with --dev-data.")
    return notes


def _facts(rows: TaskRows, held_out: TaskRows | None) -> dict[str, Any]:
    """Returns what run.json records of a fine-tuning besides the model: the task, the data and the class labels."""
    task = rows.task_forward.task
    order = rows.task_forward.reader.order.places or range(len(task.labels))
    names = dict(zip(order, task.labels, strict=True)) if task.head == "sequence-classification" else {}
    return {
        "task": vars(task),
        "data": asdict(rows.summary),
        "dev_data": None if held_out is None else asdict(held_out.summary),
        "labels": [names[number] for number in sorted(names)],
        "loss": task.loss_name,
        **_chance_fact(math.nan if held_out is None else held_out.chance_loss),
    }


def _chance_fact(loss: float) -> dict[str, float]:
    """Returns what run.json records of the loss of guessing; nothing where that is not known."""
    return {"chance_loss": loss} if math.isfinite(loss) else {}


def _write(
    request: TrainRequest | FineTuneRequest,
    run: Run,
    loaded: LoadedModel,
    state: TrainingState,
    measured: TaskResult,
    notes: list[str],
    facts: Mapping[str, Any],
) -> TrainRun:
    """Tables, figure, checkpoint and run.json of either kind of training; for the process that writes."""
    assert run.folder is not None
    alphas = alpha_table(loaded)
    notes = [*notes, *measured.notes, *attention_notes(loaded.model), *alpha_notes(alphas), *_saved_note(run.path)]
    model, data = Path(request.model).name, str((facts.get("corpus") or facts["data"])["name"])
    for name, table in (("metrics", measured.metrics), ("examples", measured.examples)):
        if len(table):
            run.folder.table(name, table)
    write_log(run, state)
    if request.figures:
        tables = pd.DataFrame(state.log), pd.DataFrame(state.evaluations)
        run.folder.figure("training", training_curve(*tables, model, data, CurveFacts.of(facts)))
    if alphas is not None:
        run.folder.table(ALPHAS, alphas)
        if request.figures:
            run.folder.figure(ALPHAS, alpha_histograms(alphas))
    save_checkpoint(run, loaded.model, tokenizer_of(loaded))
    record = {
        "model": model,
        "name": request.model,
        "parameters": loaded.n_parameters,
        "device": str(loaded.device),
        "steps": state.step,
        "attention": attention_name(loaded.model),
        **entmax_record(loaded.model),
    }
    run.folder.finish({"models": [record], **facts, "notes": notes + run.warnings})
    return TrainRun(run.path, run.files, state, notes, measured.metrics)


def _saved_note(folder: Path) -> list[str]:
    """Where the model lies as it was during the training; nothing where it was not saved then."""
    if not (saved := saved_updates(folder)):
        return []
    steps = f"updates {training_step(saved[0].name)} to {training_step(saved[-1].name)}"
    return [f"The model as it was during the training: {counted(len(saved), 'checkpoint')}, {steps}, in checkpoints/."]


def run_train(request: TrainRequest, reporter: Reporter | None = None) -> TrainRun:
    """Read the corpus, make or load the model, train it, write the run folder.

    Raises:
        InputError: whatever is wrong with what was asked for.
    """
    if request.attention is not None:
        parse_normalizer(request.attention)
    refuse_unused(request.corpus_options, request.corpus, request.corpus_options.target, request.dev)
    training, text, options = request.training, request.text, request.model_options
    target = request.corpus_options.target_column or request.corpus_options.target
    translation = Translation.of_target(target, text.bleu_tokenizer)
    with open_run("train", request.model.removeprefix(PREFIX), request, reporter, mask=request.mask) as run:
        run.set_aside(f"{SAVED}*")
        corpus, dev, summary = read_text(
            run, request.corpus, request.corpus_options, text.dev_share, (request.dev, request.dev_target)
        )
        hashes = {} if dev is None else {"what is held out": summarise(dev).sha256}
        with hints_at_new(request.model):
            given = None if is_new(request.model) else run.load(request.model, options)
        run.depend_on(given, {"the corpus": summary.sha256, **hashes})
        fresh: tuple[str, ...] = ()
        if given is None:
            loaded = text_training.made_new(run, request.model, corpus, text, training.seed, options.device)
        else:
            loaded, fresh = text_training.loaded_model(given, text, training.seed)
        switch_as_asked(loaded.model, request.attention)
        if request.bleu:  # what cannot be measured is refused before anything is learned
            reader = Reader.of(loaded)
            translation = replace(translation, tokenizer=translation.bleu_tokenizer(reader))
            translation.notes(reader)
        with run.masked(loaded, request.mask):
            with run.reporter.status("tokenizing"):
                data = text_training.read_data(loaded, corpus, text, training.seed)
                unknown = text_training.unknown_text_notes(loaded, data, corpus.name)
                held_out = None if dev is None else text_training.read_data(loaded, dev, text, training.seed)
            evaluate = None if held_out is None else text_training.evaluation(held_out, training.batch_tokens)
            chance, of_tokens = _known_of_held_out(held_out, training.batch_tokens)
            save = partial(save_update, run, loaded)
            trainer = Trainer(training, text_training.objective_of(text), evaluate, save=save)
            state, saved, notes = fit(run, trainer, loaded.model, data, chance=chance)
            if isinstance(data, ParallelText) and data.left_out:
                longest = text_training.block_length(loaded, text.longest)
                left_out = f"{counted(data.left_out, 'pair')} {were(data.left_out)} left out"
                notes.insert(0, f"{left_out}: a side is empty or longer than {longest} tokens.")
            if run.folder is None:
                return TrainRun(run.path, run.files, state, notes)
            measured = (
                TaskResult() if dev is None or not request.bleu else _translated(request, run, loaded, translation, dev)
            )
        notes = [
            *seen_sentence_notes(corpus, dev, named=request.dev is not None),
            *unknown,
            *_fresh_notes(request.model, fresh),
            *embedded_notes(request.corpus, summary.sentences),
            *of_tokens,
            *notes,
        ]
        task = {"task": vars(translation)} if request.bleu else {}
        facts: dict[str, Any] = {"corpus": asdict(summary), **task, "checkpoint": saved}
        facts |= _chance_fact(chance)
        facts[ONLY_TRAINING] = [*text_training.beyond_tokens(text), *_dropout(loaded.model)]
        return _write(request, run, loaded, state, measured, notes, facts)


def _translated(
    request: TrainRequest, run: Run, loaded: LoadedModel, translation: Translation, dev: Corpus
) -> TaskResult:
    """What the model's own translations of held-out sentences are worth."""
    pairs = ((e.source.text, e.target.text) for e in islice(dev, request.bleu) if e.target is not None)
    examples = tuple(TextExample(str(number), pair) for number, pair in enumerate(pairs, 1))
    options = EvaluationOptions(request.training.batch_tokens, seed=request.training.seed)
    return measure(run, loaded, translation, MemoryExamples(examples, dev.name), options)


@dataclass(frozen=True)
class TrainRun:
    """What a run gave.

    Args:
        folder: of the run.
        files: in it.
        state: where training stands at the end, with log and evaluations.
        notes: what the reader should know.
        metrics: the final evaluation with intervals, a row per metric; may be empty.
    """

    folder: Path
    files: list[Path]
    state: TrainingState
    notes: list[str]
    metrics: pd.DataFrame = field(default_factory=pd.DataFrame)

    def summary(self) -> dict[str, Any]:
        """Returns folder, steps, last log entry and evaluation, metrics and notes as a dictionary for `--json`."""
        return {
            "out": str(self.folder),
            "model": str(self.folder / MODEL),
            "checkpoints": [str(path) for path in saved_updates(self.folder)],
            "steps": self.state.step,
            "log": self.state.log[-1:],
            "evaluations": self.state.evaluations[-1:],
            "metrics": self.metrics.to_dict("records"),
            "notes": self.notes,
        }

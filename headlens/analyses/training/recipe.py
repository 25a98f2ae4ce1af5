"""`train`: a task from its examples, or language and translation models from text; a folder with checkpoint and log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

from headlens.analyses.notes import embedded_notes, left_out_notes
from headlens.analyses.training.open_training_set import seen_notes
from headlens.analyses.training.options import FineTuneRequest, TrainRequest
from headlens.analyses.training.task_training import (
    TaskForward,
    TaskLoss,
    TaskRows,
    freeze_unused,
    hold_out,
    task_evaluation,
)
from headlens.analyses.training.text_training import (
    Trainable,
    evaluation,
    loaded_model,
    made_new,
    objective_of,
    read_data,
)
from headlens.analyses.training.training_run import (
    TaskResult,
    TrainingRecipe,
    TrainRun,
    fit,
    measure,
    save_checkpoint,
    trained_model_record,
    write_training,
)
from headlens.attention.model_normalizer import attention_notes, switch_as_asked
from headlens.attention.normalizers import parse_normalizer
from headlens.corpora.corpus_summary import CorpusSummary, summarise
from headlens.corpora.sentence import Corpus
from headlens.corpora.sources import open_corpus, refuse_unused, split_corpus
from headlens.errors import OptionError
from headlens.models.loading import LoadedModel, choose_device
from headlens.runs.model_mask import under_mask
from headlens.runs.progress import Reporter
from headlens.runs.run import Run, open_run
from headlens.tasks.evaluation import EvaluationOptions
from headlens.tasks.example_sources import MemoryExamples, SourceCounts, fingerprint, gather
from headlens.tasks.examples import TaskExample, TextExample, texts_of
from headlens.tasks.open_task import open_examples
from headlens.tasks.task import Task
from headlens.tasks.task_heads import ModelWithHead, with_task_head
from headlens.tasks.translation import Translation
from headlens.training.architectures import PREFIX, is_new, masked_model
from headlens.training.parallel_text import ParallelText
from headlens.training.state import TrainingState
from headlens.training.vocabularies import wordpiece_tokenizer

_LONGEST = 512  # tokens that a model with random weights reads


@dataclass(frozen=True)
class _Parts:
    """Examples to train on, examples held out for evaluation (or None), and the counts from reading both."""

    train: MemoryExamples
    dev: MemoryExamples | None
    counts: tuple[SourceCounts, SourceCounts]


def run_fine_tune(request: FineTuneRequest, reporter: Reporter | None = None) -> TrainRun:
    """Read the data, put the head on the model, train it, evaluate it, write the run folder.

    Raises:
        InputError: whatever is wrong with what was asked for.
    """
    with open_run("train", request.model.removeprefix(PREFIX), request, reporter) as run:
        with run.reporter.status("reading data"):
            task, parts = _read(request)
        loaded = _load(request, run, parts.train)
        held_out = {} if parts.dev is None else {"what is held out": fingerprint(parts.dev.examples)}
        run.depend_on(loaded, {"the data": fingerprint(parts.train.examples), **held_out})
        headed = with_task_head(loaded, task, request.training.seed)
        loaded = replace(loaded, model=headed.model)
        switch_as_asked(loaded.model, request.attention)
        asker = TaskForward.of(task, loaded, request.longest)
        with run.reporter.status("tokenizing"):
            rows = TaskRows.of(asker, parts.train, parts.counts[0])
            held_out_rows = None if parts.dev is None else TaskRows.of(asker, parts.dev, parts.counts[1])
        with run.masked(loaded, request.mask):
            state, notes = fit(run, _recipe(request, loaded, rows, held_out_rows), request.training)
            notes = [*_notes(headed, rows, held_out_rows), *seen_notes(parts.train, parts.dev), *notes]
            if run.folder is None:
                return TrainRun(run.path, run.files, state, notes)
            measured = TaskResult() if held_out_rows is None else _measured(request, run, loaded, held_out_rows)
        notes += [*measured.notes, *attention_notes(loaded.model)]
        _write(request, run, loaded, state, measured)
        facts = _facts(request, loaded, state, rows, held_out_rows)
        run.folder.finish({**facts, "notes": notes + run.warnings})
        return TrainRun(run.path, run.files, state, notes, measured.metrics)


def _read(request: FineTuneRequest) -> tuple[Task, _Parts]:
    offline, counts, dev_counts = request.model_options.offline, SourceCounts(), SourceCounts()
    task, source = open_examples(request.data.for_training(), offline=offline)
    train = gather(source, counts)
    if request.dev_data is None:
        train, dev = hold_out(train, request.dev_share)
    else:
        dev = gather(open_examples(request.data.held_out(request.dev_data), offline=offline)[1], dev_counts)
    return task, _Parts(train, dev, (counts, dev_counts))


def _load(request: FineTuneRequest, run: Run, examples: MemoryExamples) -> LoadedModel:
    if not request.model.startswith(PREFIX):
        return run.load(request.model, request.model_options)
    with run.reporter.status("learning a vocabulary"):
        tokenizer = wordpiece_tokenizer(_texts(examples.examples), request.vocabulary, _LONGEST)
        name = request.model.removeprefix(PREFIX)
        model: Any = masked_model(name, tokenizer, _LONGEST, request.training.seed)
    return LoadedModel(request.model, model.eval().to(choose_device(request.model_options.device)), tokenizer, None)


def _texts(examples: Sequence[TaskExample]) -> Iterator[str]:
    for example in examples:
        yield from texts_of(example)


def _recipe(request: FineTuneRequest, loaded: LoadedModel, rows: TaskRows, held_out: TaskRows | None) -> TrainingRecipe:
    task, objective = rows.asker.task, TaskLoss(rows.asker)
    network = task.network(loaded.model)
    freeze_unused(network, objective, rows.batch((0,), 0))
    return TrainingRecipe(
        network,
        rows,
        objective,
        None if held_out is None else task_evaluation(held_out, request.training.batch_tokens),
        task.metrics[0],
        task.higher_is_better,
    )


def _notes(headed: ModelWithHead, rows: TaskRows, held_out: TaskRows | None) -> list[str]:
    notes = []
    if headed.fresh:
        notes.append(f"New weights, random before training: {', '.join(headed.fresh)}.")
    for part in (rows, held_out):
        if part is not None:
            notes += left_out_notes(part.summary.too_long, part.summary.name, part.asker.reader.limit)
    if held_out is None:
        notes.append("Nothing was held out, so nothing was measured: name examples with --dev-data.")
    return notes


def _measured(request: FineTuneRequest, run: Run, loaded: LoadedModel, held_out: TaskRows) -> TaskResult:
    """The final model on what was held out, as if it was loaded again."""
    training = request.training
    options = EvaluationOptions(training.batch_tokens, request.longest, seed=training.seed)
    return measure(run, loaded, held_out.asker.task, held_out.examples, options)


def _write(request: FineTuneRequest, run: Run, loaded: LoadedModel, state: TrainingState, measured: TaskResult) -> None:
    assert run.folder is not None
    assert loaded.tokenizer is not None
    write_training(run, state, measured, figures=request.figures)
    save_checkpoint(run, loaded.model, loaded.tokenizer)


def _facts(
    request: FineTuneRequest, loaded: LoadedModel, state: TrainingState, rows: TaskRows, held_out: TaskRows | None
) -> dict[str, Any]:
    """Returns what run.json records of a fine-tuning: the model, the task, the data and the class labels."""
    task = rows.asker.task
    order = rows.asker.reader.classes or range(len(task.labels))
    names = dict(zip(order, task.labels, strict=True)) if task.head == "sequence-classification" else {}
    return {
        "models": [trained_model_record(request.model, loaded.model, state)],
        "task": vars(rows.asker.task),
        "data": asdict(rows.summary),
        "dev_data": None if held_out is None else asdict(held_out.summary),
        "labels": [names[number] for number in sorted(names)],
    }


def run_train(request: TrainRequest, reporter: Reporter | None = None) -> TrainRun:
    """Read the corpus, make or load the model, train it, write the run folder.

    Raises:
        InputError: whatever is wrong with what was asked for.
    """
    if request.attention is not None:
        parse_normalizer(request.attention)
    refuse_unused(request.corpus_options, request.corpus, request.corpus_options.target, request.dev)
    if request.dev_target is not None and request.dev is None:
        raise OptionError("--dev-target names translations of --dev, which is not given.", "Give both or neither.")
    if request.bleu and request.text.task != "translation":
        raise OptionError(f"--bleu is not for --task {request.text.task}.", "It scores translations.")
    with open_run("train", request.model.removeprefix(PREFIX), request, reporter) as run:
        corpus = open_corpus(request.corpus, request.corpus_options)
        with run.reporter.progress(f"reading {corpus.name}", None) as advance:
            summary = summarise(corpus, advance)
        corpus, dev = _held_out(request, corpus, summary)
        hashes = {} if dev is None else {"what is held out": summarise(dev).sha256}
        trainable = _trainable(request, run, corpus, {"the corpus": summary.sha256, **hashes})
        switch_as_asked(trainable.model, request.attention)
        with under_mask(trainable.model, request.mask, run.tell):
            state, notes = _train(request, run, trainable, corpus, dev)
            if run.folder is None:
                return TrainRun(run.path, run.files, state, notes)
            measured = _translated(request, run, trainable, dev) if request.bleu and dev is not None else TaskResult()
        notes = embedded_notes(request.corpus, summary.sentences) + notes
        notes += [*measured.notes, *attention_notes(trainable.model)]
        write_training(run, state, measured, figures=request.figures)
        save_checkpoint(run, trainable.model, trainable.tokenizer)
        facts = [trained_model_record(request.model, trainable.model, state)]
        task = {"task": vars(Translation())} if request.bleu else {}
        run.folder.finish({"models": facts, "corpus": asdict(summary), **task, "notes": notes + run.warnings})
        return TrainRun(run.path, run.files, state, notes, measured.metrics)


def _held_out(request: TrainRequest, corpus: Corpus, summary: CorpusSummary) -> tuple[Corpus, Corpus | None]:
    if request.dev is None:
        return split_corpus(corpus, request.text.dev_share, summary.sentences)
    return corpus, open_corpus(request.dev, request.corpus_options.held_out(request.dev_target))


def _trainable(request: TrainRequest, run: Run, corpus: Corpus, hashes: Mapping[str, str]) -> Trainable:
    seed = request.training.seed
    loaded = None if is_new(request.model) else run.load(request.model, request.model_options)
    run.depend_on(loaded, hashes)
    if loaded is None:
        return made_new(run, request.model, corpus, request.text, seed, request.model_options.device)
    return loaded_model(loaded, request.text, seed)


def _train(
    request: TrainRequest, run: Run, trainable: Trainable, corpus: Corpus, dev: Corpus | None
) -> tuple[TrainingState, list[str]]:
    seed, text = request.training.seed, request.text
    with run.reporter.status("tokenizing"):
        data = read_data(trainable, corpus, text, seed)
        held_out = None if dev is None else read_data(trainable, dev, text, seed)
    recipe = TrainingRecipe(
        trainable.model,
        data,
        objective_of(text),
        None if held_out is None else evaluation(held_out, request.training.batch_tokens),
    )
    state, notes = fit(run, recipe, request.training)
    if isinstance(data, ParallelText) and data.left_out:
        left = f"{data.left_out} pairs were left out: a side is empty or longer than {text.longest} tokens."
        notes = [left, *notes]
    return state, notes


def _translated(request: TrainRequest, run: Run, trainable: Trainable, dev: Corpus) -> TaskResult:
    """What the model's own translations of held-out sentences are worth."""
    pairs = ((e.source.text, e.target.text) for e in islice(dev, request.bleu) if e.target is not None)
    examples = tuple(TextExample(str(number), pair) for number, pair in enumerate(pairs, 1))
    loaded = LoadedModel(request.model, trainable.model, trainable.tokenizer, None)
    options = EvaluationOptions(request.training.batch_tokens, seed=request.training.seed)
    return measure(run, loaded, Translation(), MemoryExamples(examples, dev.name), options)


def run_training(request: TrainRequest | FineTuneRequest, reporter: Reporter | None = None) -> TrainRun:
    """Trains the model on text or on the examples of a task, and writes the run folder.

    Raises:
        InputError: whatever is wrong with what was asked for.
    """
    return run_train(request, reporter) if isinstance(request, TrainRequest) else run_fine_tune(request, reporter)

"""`train` with everything around it: corpus and model by name, a run folder with checkpoint, log and curve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import islice

from headlens.analyses.notes import embedded_notes
from headlens.analyses.training.new_models import made_new
from headlens.analyses.training.options import TrainRequest
from headlens.analyses.training.text_training import Trainable, evaluation, loaded_model, objective_of, read_data
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
from headlens.models.loading import LoadedModel
from headlens.runs.model_mask import under_mask
from headlens.runs.progress import Reporter
from headlens.runs.run import Run, open_run
from headlens.tasks.evaluation import EvaluationOptions
from headlens.tasks.example_sources import MemoryExamples
from headlens.tasks.examples import TextExample
from headlens.tasks.translation import Translation
from headlens.training.architectures import PREFIX, is_new
from headlens.training.parallel_text import ParallelText
from headlens.training.state import TrainingState


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

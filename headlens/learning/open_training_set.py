"""The training set that options name, read for a model, and whether what is held out stands in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from transformers import PreTrainedModel

from headlens.corpora.corpus_options import CorpusOptions
from headlens.corpora.sentence import Corpus, CorpusSummary, summarise
from headlens.corpora.sources import WrittenCorpus, open_corpus, split_corpus
from headlens.errors import CorpusError, OptionError, counted
from headlens.findings.result_notes import embedded_notes, left_out_notes
from headlens.findings.training_data import training_data_notes
from headlens.findings.verdicts import check_margin
from headlens.learning.text_training import TextData, loaded_model, unknown_text_notes
from headlens.learning.training_options import TEXT, TextOptions, TextTask, TrainingSetOptions
from headlens.learning.training_set import TaskRows, TrainingSet, hold_out
from headlens.models.loading import LoadedModel
from headlens.runs.run import Run
from headlens.tasks.classification import OwnClassification
from headlens.tasks.example_sources import MemoryExamples, SourceCounts, fingerprint, gather
from headlens.tasks.examples import TextExample, texts_of, words_of
from headlens.tasks.open_task import open_examples, suited_data, tells_task
from headlens.tasks.task import Task
from headlens.tasks.task_heads import classifier_names, with_task_head
from headlens.tasks.task_options import AUTO, TaskData
from headlens.tasks.translation import Translation

# So many examples are looked for, of at least so many words; fewer words stand everywhere.
_MOST, _FEWEST_WORDS = 200, 4
_WORTH_TELLING = 0.1


@dataclass(frozen=True)
class OpenedTraining:
    """A model and what it is taught.

    Args:
        loaded: the model, with the head that the task needs.
        training_set: what it is taught.
        notes: what to know about the data.
        sha256: over the content of what is learned from.
        fresh: parts of the model that began random.
    """

    loaded: LoadedModel
    training_set: TrainingSet
    notes: list[str] = field(default_factory=list)
    sha256: str = ""
    fresh: tuple[str, ...] = ()

    @property
    def untrained(self) -> list[str]:
        """What to know where a model should have learned the task before."""
        parts = ", ".join(self.fresh)
        return [f"The model was not trained for this task: {parts} began random. Train it first."] if parts else []


def open_training_set(
    options: TrainingSetOptions, run: Run, loaded: LoadedModel, seed: int, margin: float | None, *, offline: bool
) -> OpenedTraining:
    """Returns the model with the head that the task needs, its training set, and what to know about both.

    A margin is refused that the task's metric cannot lose.

    Raises:
        InputError: whatever is wrong with the data.
    """
    given, options = options, suited_training_set(options, loaded.model, offline=offline)
    of_text = options.data.task in TEXT
    with tells_task(given.named_data, options.data.task, loaded.model):
        opened = (_text if of_text else _examples)(options, run, loaded, seed, offline=offline)
    check_margin(opened.training_set.task.metrics[0], margin)
    if opened.training_set.held is None:
        source = options.corpus if of_text else "+".join(options.data.data) or options.data.task
        raise CorpusError("too few examples to hold some out.", "Name some with --dev-data or --dev.", path=source)
    held_out = {"what is held out": fingerprint(opened.training_set.held.examples)}
    run.depend_on(loaded, {"the data": opened.sha256, **held_out})
    return replace(opened, notes=[*opened.notes, *_trained_on_it(options, loaded, opened.sha256, of_text=of_text)])


def _trained_on_it(options: TrainingSetOptions, loaded: LoadedModel, sha256: str, *, of_text: bool) -> list[str]:
    """A note where the model was trained before on what it is measured on."""
    advice = f"Name others with {'--dev' if of_text else '--dev-data'}."
    if (named := options.dev if of_text else options.dev_data) is not None:
        return training_data_notes(loaded.name, (named,), None, advice)
    data = options.training_data
    sources = (options.corpus,) if of_text else data.data or (data.task,)
    return training_data_notes(loaded.name, sources, options.split if of_text else data.data_split, advice, sha256)


def suited_training_set(
    options: TrainingSetOptions, model: PreTrainedModel, *, offline: bool = False
) -> TrainingSetOptions:
    """Returns the options with the task that fits a model, where none is named; its data may be named either way.

    Raises:
        OptionError: if something is named that the task would not look at.
        UnsupportedModelError: as in `suited_data`.
    """
    if options.data.task != AUTO:
        return options
    given = options.named_data
    task = suited_data(given, model, learns=True, offline=offline).task
    with tells_task(given, task, model):
        return options.of_task(task)


def read_examples(
    learned: TaskData,
    dev_data: str | None,
    share: float,
    counts: tuple[SourceCounts, SourceCounts],
    *,
    offline: bool,
    known: Sequence[str] = (),
) -> tuple[Task, MemoryExamples, MemoryExamples | None]:
    """The task, the training examples and the held-out examples; None for the latter where too few are left.

    Args:
        learned: names what is learned.
        dev_data: what is measured on; None holds a share of the former out.
        share: how much of it.
        counts: filled with what is left out of either.
        offline: never ask the hub.
        known: classes of the model, see `open_examples`.

    Raises:
        CorpusError: if what is measured on has classes that what is learned has not.
    """
    task, source = open_examples(learned, offline=offline, known=known)
    given = gather(source, counts[0])
    if dev_data is None:
        train, held_out = hold_out(given, share)
        return task, _with_unlearned(task, train), held_out
    other, source = open_examples(learned.held_out(dev_data), offline=offline, known=task.labels)
    if unknown := [name for name in other.labels if name not in task.labels]:
        message = f"its labels {', '.join(unknown)} are not among the classes that are learned"
        advice = "Spell them the same way, or give training examples of every class."
        raise CorpusError(f"{message}: {', '.join(task.labels)}.", advice, path=source.name)
    return task, _with_unlearned(task, given), gather(source, counts[1])


def read_further(sources: Sequence[str], data: TaskData, *, offline: bool) -> tuple[tuple[Task, MemoryExamples], ...]:
    """Other tasks with the same classes, and their held-out examples, with notes on what was left out of them.

    Args:
        sources: each `TASK=SOURCE`.
        data: the task of the model, and how its data is read.
        offline: never ask the hub.

    Raises:
        OptionError: for a task with other classes, or one that is measured already.
        CorpusError: broken data.
    """
    further: list[tuple[Task, MemoryExamples]] = []
    for text in sources:
        named = data.of_same_classes(text, "--data-args also-on")
        if named.task in (data.task, *(task.name for task, _ in further)):
            message = f"--data-args also-on {text}: the model is evaluated on {named.task} already."
            raise OptionError(message, "Write TASK=SOURCE with another task, such as mnli-mm=FILE for mnli.")
        counts = SourceCounts()
        task, source = open_examples(named, offline=offline)
        held_out = gather(source, counts)
        notes = (*held_out.notes, *left_out_notes(counts, held_out.name, None))
        further.append((task, replace(held_out, notes=notes)))
    return tuple(further)


def _with_unlearned(task: Task, learned: MemoryExamples) -> MemoryExamples:
    """Adds a note on classes that the data or the model has, and no example to learn from."""
    if not isinstance(task, OwnClassification):
        return learned
    learned_labels = {example.label for example in learned.examples if isinstance(example, TextExample)}
    missing = [name for number, name in enumerate(task.labels) if number not in learned_labels]
    note = f"No training example has the class {', '.join(missing)}."
    return replace(learned, notes=(*learned.notes, note)) if missing else learned


def read_text(
    run: Run, source: str, options: CorpusOptions, share: float, dev: tuple[str | None, str | None]
) -> tuple[Corpus, Corpus | None, CorpusSummary]:
    """What of a corpus is learned, what is measured on, and a summary of the whole.

    Args:
        run: under way; shows progress.
        source: names the corpus.
        options: how it is read.
        share: of it that is held out where nothing else is named for that.
        dev: what is measured on, with its translations.
    """
    corpus = WrittenCorpus(open_corpus(source, options))
    with run.reporter.progress(f"reading {corpus.name}", None) as advance:
        summary = summarise(corpus, advance)
    if dev[0] is None:
        return *split_corpus(corpus, share, summary.sentences), summary
    return corpus, WrittenCorpus(open_corpus(dev[0], options.held_out(dev[1]))), summary


def _examples(
    options: TrainingSetOptions, run: Run, loaded: LoadedModel, seed: int, *, offline: bool
) -> OpenedTraining:
    with run.reporter.status("reading data"):
        counts = SourceCounts(), SourceCounts()
        learned, known = options.training_data, classifier_names(loaded)
        task, train, held_out = read_examples(
            learned, options.dev_data, options.share, counts, offline=offline, known=known
        )
        headed = with_task_head(loaded, task, seed)
        loaded = replace(loaded, model=headed.model)
        training_set = TrainingSet.of_task(loaded, task, train, held_out, options.longest, counts[0])
    assert isinstance(training_set.data, TaskRows)
    summary = training_set.data.summary
    notes = left_out_notes(summary, summary.name, training_set.data.task_forward.reader.limit_text)
    notes += [] if held_out is None else left_out_notes(counts[1], held_out.name, None)
    notes += dict.fromkeys((*headed.notes, *summary.notes, *(held_out.notes if held_out else ())))
    notes += seen_notes(train, held_out, named=options.dev_data is not None)
    return OpenedTraining(loaded, training_set, notes, summary.sha256, headed.fresh)


def _text(options: TrainingSetOptions, run: Run, loaded: LoadedModel, seed: int, *, offline: bool) -> OpenedTraining:
    data = options.data
    translation = Translation.of_target(options.target_column or data.target, data.bleu_tokenizer)
    alike = {name: getattr(options, name) for name in ("longest", "mask_share", "label_smoothing", "next_sentence")}
    tokenizer = translation.tokenizer if data.task == "translation" else None
    text = TextOptions(cast("TextTask", data.task), bleu_tokenizer=tokenizer, **alike)
    loaded, fresh = loaded_model(loaded, text, seed)
    corpus_options, dev = options.corpus_options(offline=offline), (options.dev, options.dev_target)
    corpus, held_out, summary = read_text(run, options.corpus, corpus_options, options.share, dev)
    notes = embedded_notes(options.corpus, summary.sentences)
    notes += seen_sentence_notes(corpus, held_out, named=options.dev is not None)
    with run.reporter.status("tokenizing"):
        training_set = TrainingSet.of_text(loaded, corpus, held_out, text, seed)
        assert isinstance(training_set.data, TextData)
        notes += unknown_text_notes(loaded, training_set.data, corpus.name)
    return OpenedTraining(loaded, training_set, notes, summary.sha256, fresh)


def seen_notes(learned: MemoryExamples, held_out: MemoryExamples | None, *, named: bool = False) -> list[str]:
    """Notes on held-out examples that occur, word for word, in the training data.

    SST-2's phrases are parts of one another, for example: held out of them, a tenth is no new text. Case and spaces do
    not count; every text of an example has to be there.

    Args:
        learned: what is trained on.
        held_out: what is measured on.
        named: whether the user named it, and it is no part of the training data.

    Returns:
        A note if they are a tenth or more of those looked for, else nothing.
    """
    long = [e for e in (held_out.examples if held_out else ()) if words_of(e) >= _FEWEST_WORDS]
    if not long:
        return []
    chosen = long[:: -(-len(long) // _MOST)]
    learned_from = _plain([text for example in learned.examples for text in texts_of(example)])
    seen = sum(all(_plain([text]) in learned_from for text in texts_of(example)) for example in chosen)
    if seen < _WORTH_TELLING * len(chosen):
        return []
    total = len(held_out.examples) if held_out else 0
    advice = "Take them out of one of the two" if named else "Name others with --dev-data"
    return [_seen_text(counted(len(chosen), "example"), total, seen, ", alone or inside of longer texts", advice)]


def seen_sentence_notes(learned: Corpus, held_out: Corpus | None, *, named: bool) -> list[str]:
    """The same as `seen_notes` of text, of which whole sentences are looked for, so that none has to be in memory.

    Args:
        learned: what is trained on.
        held_out: what is measured on.
        named: whether the user named it, and it is no part of the training data.
    """
    texts = [example.source.text for example in held_out or ()]
    long = [_plain([text]) for text in texts if len(text.split()) >= _FEWEST_WORDS]
    if not long:
        return []
    chosen = long[:: -(-len(long) // _MOST)]
    found = set(chosen).intersection(_plain([example.source.text]) for example in learned)
    seen = sum(text in found for text in chosen)
    if seen < _WORTH_TELLING * len(chosen):
        return []
    advice = "Take them out of one of the two" if named else "Name others with --dev"
    return [_seen_text(counted(len(chosen), "sentence"), len(texts), seen, "", advice)]


def _seen_text(checked: str, total: int, seen: int, where: str, advice: str) -> str:
    """What is said of so many texts that were seen, of those checked, of all that are measured on."""
    return (
        f"Of {checked} that {'was' if checked.startswith('1 ') else 'were'} checked (of the {total} that are measured "
        f"on, at most {_MOST} of {_FEWEST_WORDS} words or more), {seen} {'occurs' if seen == 1 else 'occur'} word for "
        f"word in the training data{where}: the results are too optimistic. {advice}."
    )


def _plain(texts: Sequence[str]) -> str:
    """Texts on lines of their own, with a space around every word."""
    return "\n".join(f" {' '.join(text.casefold().split())} " for text in texts)

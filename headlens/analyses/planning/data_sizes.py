"""How much there is to read: counted where it is on this machine, from a list of known data sets elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from headlens.analyses.planning.counted import DATA
from headlens.analyses.planning.model_sizes import PlannedModel
from headlens.corpora.corpus_options import CorpusOptions
from headlens.corpora.corpus_summary import summarise
from headlens.corpora.sentence import Corpus
from headlens.corpora.sources import open_corpus
from headlens.errors import CorpusError
from headlens.runs.progress import Reporter, SilentReporter
from headlens.tasks.catalogue import find_task
from headlens.tasks.example_sources import SourceCounts
from headlens.tasks.examples import texts_of, words_of
from headlens.tasks.open_task import open_examples
from headlens.tasks.task_options import TaskData

HUB = "hub:"
_SAMPLE = 200  # texts that say how many tokens a word has
_PIECES = 1.3  # tokens of a word of English, for BERT's vocabulary, where no tokenizer can be asked
_SPECIAL = 2.0  # tokens of an example besides its words


@dataclass(frozen=True)
class DataSize:
    """How large a corpus or the data of a task is.

    Args:
        name: as the command has it.
        examples: sentences, pairs or examples; None where nobody knows.
        words: of a mean example, all its texts together; of translations those of one side.
        pieces: tokens of a word.
        source: where the numbers come from, in words.
    """

    name: str
    examples: int | None
    words: float | None
    pieces: float
    source: str

    @property
    def length(self) -> int:
        """Tokens of a mean example; 32 where nobody knows."""
        return 32 if self.words is None else max(4, round(self.words * self.pieces + _SPECIAL))

    @property
    def tokens(self) -> float | None:
        """Number of tokens of all examples together; None where the number of examples is not known."""
        return None if self.examples is None else float(self.examples * self.length)

    def part(self, share: float) -> DataSize:
        """Returns the size of a share of the examples, at least one of them."""
        left = None if self.examples is None else max(1, round(self.examples * share))
        return DataSize(self.name, left, self.words, self.pieces, self.source)

    def split(self, share: float) -> tuple[DataSize, DataSize]:
        """What is learned from, and the share that is held out of it."""
        return self.part(1 - share), self.part(share)


def corpus_size(
    spec: str, options: CorpusOptions, model: PlannedModel | None = None, reporter: Reporter | None = None
) -> DataSize:
    """The size of a corpus. What is here is read from beginning to end; a data set of the hub is not.

    Args:
        spec: as `open_corpus` takes it.
        options: how it is read.
        model: whose tokens are counted.
        reporter: shows progress.

    Raises:
        InputError: see `open_corpus`.
    """
    corpus = open_corpus(spec, options)
    if spec.startswith(HUB):
        return _of_hub(spec.removeprefix(HUB), options.split, options.limit)
    with (reporter or SilentReporter()).progress(f"reading {corpus.name}", None) as advance:
        summary = summarise(corpus, advance)
    words = summary.words / summary.sentences / (2 if _paired(corpus) else 1)
    sample = ((example.source.text, len(example.source.words)) for example in corpus)
    return DataSize(corpus.name, summary.sentences, words, _pieces(model, sample), "counted")


def task_size(data: TaskData, model: PlannedModel | None = None, *, offline: bool = False) -> DataSize:
    """The size of a task's examples, likewise.

    Args:
        data: as a command names it.
        model: whose tokens are counted.
        offline: never ask the hub.

    Raises:
        InputError: see `open_task`.
    """
    entry = find_task(data.task)
    _, source = open_examples(data, offline=offline)
    sets = [spec for spec in data.data or (f"{HUB}{entry.dataset}",) if spec.startswith(HUB)]
    if sets and not (entry.default and not data.data):
        return _of_hub(sets[0].removeprefix(HUB), data.data_split or entry.split, data.limit)
    examples = list(source.read(SourceCounts()))
    if not examples:
        raise CorpusError("there is no example.", "Look at its columns.", path=source.name)
    words = sum(map(words_of, examples)) / len(examples) / (2 if entry.task.generates else 1)
    sample = ((text, len(text.split())) for example in examples for text in texts_of(example))
    return DataSize(source.name, len(examples), words, _pieces(model, sample), "counted")


def _of_hub(name: str, split: str, limit: int | None) -> DataSize:
    known = DATA.get(name, {}).get(split)
    if known is None:
        return DataSize(f"{name}:{split}", limit, None, _PIECES, "not fetched, and its size is not known")
    examples = known.examples if limit is None else min(limit, known.examples)
    return DataSize(f"{name}:{split}", examples, known.words, _PIECES, "its size as headlens knows it")


def _paired(corpus: Corpus) -> bool:
    first = next(iter(corpus), None)
    return first is not None and first.target is not None


def _pieces(model: PlannedModel | None, sample: Iterable[tuple[str, int]]) -> float:
    """Tokens of a word, in the first of some texts and their numbers of words."""
    if model is None or model.tokenizer is None:
        return _PIECES
    first = list(islice(sample, _SAMPLE))
    words = sum(count for _, count in first)
    tokens = sum(len(model.tokenizer.encode(text, add_special_tokens=False)) for text, _ in first)
    return tokens / words if words else _PIECES


def updates(tokens: float, epochs: float, batch: int) -> int:
    """Updates of a training by epochs.

    Args:
        tokens: of an epoch.
        epochs: passes over the data.
        batch: tokens of an update.
    """
    return max(1, math.ceil(tokens * epochs / batch))

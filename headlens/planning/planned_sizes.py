"""The sizes of models and data of a plan: counted where they are on this machine, not known of data elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from headlens.attention.sites import find_sites
from headlens.corpora.corpus_options import CorpusOptions
from headlens.corpora.sentence import CorpusSummary, summarise
from headlens.corpora.sources import open_corpus
from headlens.errors import CorpusError
from headlens.hub_access import hub_answers, only_cache
from headlens.learning.new_models import PREFIX, shape_of
from headlens.models.checkpoint_files import CheckpointFiles
from headlens.models.loading import LoadedModel, choose_device, load, local_or_hub, of_revision, quiet
from headlens.models.loading_errors import explained
from headlens.models.model_options import ModelOptions
from headlens.models.tokenizer_loading import load_tokenizer
from headlens.options import DEMO
from headlens.runs.progress import Reporter
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
class PlannedModel:
    """A model that a command would read or train.

    Args:
        name: as the command has it.
        model: its weights are its own, or random where `source` says so; on the device.
        tokenizer: None where it is not on this machine.
        source: where its shape comes from, in words.
        loaded: the model itself, where that is on this machine.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    source: str
    loaded: LoadedModel | None = None

    @property
    def parameters(self) -> int:
        """Number of parameters of the model; shared ones are counted once."""
        return sum(p.numel() for p in self.model.parameters())

    @property
    def weight_bytes(self) -> int:
        """Size of the model's parameters in bytes; shared ones are counted once."""
        return sum(p.numel() * p.element_size() for p in self.model.parameters())

    @property
    def stacks(self) -> dict[str, list[int]]:
        """Numbers of heads of the layers, by stack."""
        heads: dict[str, list[int]] = {}
        for site in find_sites(self.model):
            heads.setdefault(site.stack, []).append(site.n_heads)
        return heads

    @property
    def heads(self) -> int:
        """Number of attention heads in all layers of all stacks."""
        return sum(map(sum, self.stacks.values()))


def planned_model(
    name: str, options: ModelOptions | None = None, *, vocabulary: int = 8000, longest: int = 128
) -> PlannedModel:
    """The model of a name. Nothing large is fetched: of a model on the hub that is not here, only its configuration.

    Args:
        name: as `load` takes it, or `new:NAME` as `headlens train` does.
        options: how it is loaded.
        vocabulary: of a new model.
        longest: of a new model.

    Raises:
        InputError: see `load`, and if the hub cannot be asked for a model that is not here.
    """
    unversioned, options = of_revision(name, options or ModelOptions())
    if name.startswith(PREFIX):
        shape = shape_of(name.removeprefix(PREFIX), vocabulary, longest)
        return PlannedModel(name, _random(shape, options), None, "a new model")
    if name == DEMO or (unversioned == name and isinstance(local_or_hub(name), Path)):
        loaded = load(name, options)
        return PlannedModel(loaded.name, loaded.model, loaded.tokenizer, "the model itself", loaded)
    config, tokenizer = _from_hub(unversioned, options)
    return PlannedModel(name, _random(config, options), tokenizer, "its configuration; weights not fetched")


def _from_hub(name: str, options: ModelOptions) -> tuple[PreTrainedConfig, PreTrainedTokenizerBase | None]:
    with explained(name, options), quiet():
        offline = options.offline or not hub_answers()
        files = CheckpointFiles(name, options.revision or "main", offline, options.trust_remote_code)
        with only_cache(enabled=offline):
            return transformers.AutoConfig.from_pretrained(name, **files.trusting), load_tokenizer(files)


def _random(config: PreTrainedConfig, options: ModelOptions) -> PreTrainedModel:
    """A model of that shape, of the type and on the device of the options."""
    kind: Any = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModel
    with quiet():
        model: PreTrainedModel = kind.from_config(config)
    dtype = torch.float32 if options.dtype == "auto" else getattr(torch, options.dtype)
    placed: PreTrainedModel = model.eval().to(device=choose_device(options.device), dtype=dtype)
    return placed


@dataclass(frozen=True)
class DataSize:
    """How large a corpus or the data of a task is.

    Args:
        name: as the command has it.
        examples: sentences, pairs or examples; None where nobody knows.
        words: of a mean example, all its texts together; of translations those of one side.
        pieces: tokens of a word.
        source: where the numbers come from, in words.
        summary: of a corpus that was read.
        paired: whether that holds pairs.
    """

    name: str
    examples: int | None
    words: float | None
    pieces: float
    source: str
    summary: CorpusSummary | None = None
    paired: bool = False

    @property
    def length(self) -> int:
        """Tokens of a mean example; 32 where that is not known."""
        return 32 if self.words is None else max(4, round(self.words * self.pieces + _SPECIAL))

    @property
    def tokens(self) -> float | None:
        """Number of tokens of all examples together; None where the number of examples is not known."""
        return None if self.examples is None else float(self.examples * self.length)

    def part(self, share: float) -> DataSize:
        """Returns the size of a share of the examples, at least one of them."""
        left = None if self.examples is None else max(1, round(self.examples * share))
        return replace(self, examples=left)

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
    with (reporter or Reporter()).progress(f"reading {corpus.name}", None) as advance:
        summary = summarise(corpus, advance)
    first = next(iter(corpus), None)
    two_sided = first is not None and first.target is not None
    words = summary.words / summary.sentences / (2 if two_sided else 1)
    sample = ((example.source.text, len(example.source.words)) for example in corpus)
    pieces = _pieces(model, sample)
    return DataSize(corpus.name, summary.sentences, words, pieces, "counted", summary, two_sided)


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
    sets = [spec for spec in data.data or (f"{HUB}{entry.dataset}",) if spec.startswith(HUB)]
    _, source = open_examples(data, offline=offline, read_classes=not sets)
    if sets and not (entry.default and not data.data):
        return _of_hub(sets[0].removeprefix(HUB), data.data_split or entry.split, data.limit)
    examples = list(source.read(SourceCounts()))
    if not examples:
        raise CorpusError("there is no example.", "Check its columns.", path=source.name)
    words = sum(map(words_of, examples)) / len(examples) / (2 if entry.task.generates else 1)
    sample = ((text, len(text.split())) for example in examples for text in texts_of(example))
    return DataSize(source.name, len(examples), words, _pieces(model, sample), "counted")


def _of_hub(name: str, split: str, limit: int | None) -> DataSize:
    return DataSize(f"{name}:{split}", limit, None, _PIECES, "not downloaded, and its size is unknown")


def _pieces(model: PlannedModel | None, sample: Iterable[tuple[str, int]]) -> float:
    """Tokens of a word, in the first of some texts and their numbers of words."""
    if model is None or model.tokenizer is None:
        return _PIECES
    first = list(islice(sample, _SAMPLE))
    words = sum(count for _, count in first)
    tokens = sum(len(model.tokenizer.encode(text, add_special_tokens=False)) for text, _ in first)
    return tokens / words if words else _PIECES

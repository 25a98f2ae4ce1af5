"""The model and the batches that are measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import AutoModel, BertConfig

from headlens.corpora.batches import Batch
from headlens.corpora.conllu import ConlluCorpus
from headlens.corpora.sentence import ROOT, Example, Sentence, Word
from headlens.models.loading import LoadedModel, load
from headlens.runs.corpus_pass import CorpusReader

PROJECT = Path(__file__).resolve().parents[1]
TREEBANK = PROJECT.parent / "shared" / "data" / "ud_english_ewt" / "en_ewt-ud-test.conllu"
DEMO = PROJECT / "headlens" / "corpora" / "data" / "demo.conllu"


@dataclass(frozen=True)
class Work:
    """What one round works through.

    Args:
        name: sentences, or joined.
        reader: the model and the way into it.
        examples: the corpus.
        batch_tokens: tokens of a batch.
    """

    name: str
    reader: CorpusReader
    examples: tuple[Example, ...]
    batch_tokens: int

    def batches(self, times: int = 1) -> Iterator[Batch]:
        """The corpus, several times over."""
        return self.reader.batches((e for _ in range(times) for e in self.examples), self.batch_tokens)


def loaded_model(name: str, device: str) -> LoadedModel:
    """The demo model, or a BERT-base with random weights that reads the same text; with sdpa attention."""
    demo = load("demo")
    if name == "bert-base-random":
        torch.manual_seed(0)
        config = BertConfig(vocab_size=demo.model.config.vocab_size)
        demo = replace(demo, name=name, model=AutoModel.from_config(config))
    demo.model.set_attn_implementation("sdpa")
    demo.model.eval().to(device)
    return demo


def sentences(corpus: Path | None, most: int) -> list[Example]:
    """As many sentences, spread over the whole treebank."""
    found = list(ConlluCorpus(corpus or (TREEBANK if TREEBANK.exists() else DEMO)))
    step = max(1, len(found) // most)
    return found[::step][:most]


def joined(examples: Iterable[Example], reader: CorpusReader, limit: int = 512) -> list[Example]:
    """Sentences side by side, as many as go into `limit` tokens; their trees stay as they are."""
    found: list[Example] = []
    held: list[Sentence] = []
    room = limit - 2
    for example in examples:
        encoded = reader.encoder.encode(example)
        size = limit if encoded is None else len(encoded.source) - 2
        if size > room and held:
            found.append(Example(_side_by_side(held)))
            held, room = [], limit - 2
        if size <= room:
            held.append(example.source)
            room -= size
    # The rest is shorter than the others.
    return found or [Example(_side_by_side(held))]


def _side_by_side(parts: list[Sentence]) -> Sentence:
    words: list[Word] = []
    text = ""
    for part in parts:
        shift, first = len(text), len(words)
        for word in part.words:
            head = word.head if word.head in (None, ROOT) else word.head + first
            words.append(replace(word, start=word.start + shift, end=word.end + shift, head=head))
        text += part.text + " "
    return Sentence(text.rstrip(), tuple(words))

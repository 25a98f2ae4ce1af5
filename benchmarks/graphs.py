"""What a training step under masks costs beside a plain one, and how fast graphs are made; prints markdown tables.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE python benchmarks/graphs.py

CPU time of this process; rounds in which every contender makes one update of a classifier, in turn; medians. Masks are
made anew in every step, as with new batches. Graphs are made of the words of a treebank, whose trees are there: what a
parser takes comes on top.
"""

from __future__ import annotations

import argparse
import copy
import time
from contextlib import ExitStack
from typing import Any

import inputs as corpora
import numpy as np
import torch
from dam import Step, print_table, stepper
from transformers import BertConfig, BertForSequenceClassification

from headlens.attention.attach_edit import attach_edit
from headlens.attention_masks.attention_mask import AnyMaskSource, PatternMask
from headlens.attention_masks.attention_mask_edit import MaskEdit
from headlens.attention_masks.patterns import parse_pattern
from headlens.corpora.alignment import Alignment
from headlens.corpora.encoding import EncodedSequence, SentenceEncoder, TokenKind
from headlens.corpora.sentence import Sentence
from headlens.corpora.sources import open_corpus
from headlens.corpora.word_graphs import GraphCache, GraphOptions, GraphWords, word_graph
from headlens.models.loading import load, tokenizer_of

KINDS = ("syntax", "lexical", "neighbour", "random")


def random_text(length: int, seed: int) -> EncodedSequence:
    """Words of one or two tokens between special ones."""
    rng = np.random.default_rng(seed)
    units = np.cumsum(rng.random(length - 2) < 0.8)
    units -= units.min()
    _, units = np.unique(units, return_inverse=True)
    words = int(units.max()) + 1
    kinds = (int(TokenKind.SPECIAL), *[0] * (length - 2), int(TokenKind.SPECIAL))
    alignment = Alignment((-1, *map(int, units), -1), tuple(range(words)), words, 0, 0)
    ids = (101, *map(int, rng.integers(1000, 30000, length - 2)), 102)
    return EncodedSequence(ids, kinds, ((0, 0),) * length, alignment, Sentence("", ()))


def book(texts: list[EncodedSequence]) -> GraphCache:
    found = GraphCache()
    for number, text in enumerate(texts):
        words = GraphWords(np.zeros(text.n_units, dtype=np.int64), str(number))
        found.add(text, word_graph(words, GraphOptions("random")))
    return found


def steps(rows: int, length: int, undo: ExitStack) -> dict[str, Step]:
    texts = [random_text(length, seed) for seed in range(rows)]
    ids = torch.tensor([text.ids for text in texts])
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.arange(rows) % 2}
    config = load("demo").model.config.to_dict() | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = BertForSequenceClassification(BertConfig(**config)).train()
    masks: dict[str, AnyMaskSource | None] = {
        "plain": None,
        "fixed pattern (bigbird)": PatternMask(parse_pattern("bigbird")),
        "graph of each text": book(texts),
    }

    def made(source: AnyMaskSource | None) -> Step:
        own: Any = copy.deepcopy(model)
        if source is not None:
            undo.enter_context(attach_edit(own, MaskEdit(source)))
        return stepper(own, lambda: own(**given).loss, {})

    return {name: made(source) for name, source in masks.items()}


def print_speed(sentences: int) -> None:
    loaded = load("demo")
    encoder = SentenceEncoder(tokenizer_of(loaded))
    corpus = open_corpus(str(corpora.TREEBANK if corpora.TREEBANK.exists() else corpora.DEMO))
    encoded = [e.source for _, e in zip(range(sentences), map(encoder.encode, corpus), strict=False) if e is not None]
    weight: Any = loaded.model.get_input_embeddings()
    embeddings = weight.weight.detach().double().numpy()
    tokens = sum(map(len, encoded))
    print(f"\nGraphs of {len(encoded)} sentences, {tokens} tokens\n\n| graph | tokens a second |\n|---|---|")
    for kind in KINDS:
        begun, found = time.process_time(), GraphCache()
        for number, own in enumerate(encoded):
            words = GraphWords.of(own, str(number), embeddings=embeddings if kind == "lexical" else None)
            found.add(own, word_graph(words, GraphOptions(kind)))  # type: ignore[arg-type]
        print(f"| {kind} | {tokens / (time.process_time() - begun):,.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sentences", type=int, default=1000)
    options = parser.parse_args()
    torch.manual_seed(0)
    for rows, length in ((16, 128), (32, 32)):
        with ExitStack() as undo:
            title = f"A step of a MiniLM classifier (6 x 12), {rows} x {length} tokens"
            print_table(title, steps(rows, length, undo), options.rounds)
    print_speed(options.sentences)


if __name__ == "__main__":
    main()

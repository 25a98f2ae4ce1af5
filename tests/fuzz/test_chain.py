"""Odd sentences from reading to the tensors a model gets: nothing crashes, and all counts add up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzz.damage import ODD_CELLS, fuzzing
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from headlens.corpora.annotations import AnnotationCounts, Annotator
from headlens.corpora.batches import Batch, collate, token_budget_batches
from headlens.corpora.conllu import ConlluCorpus
from headlens.corpora.encoded_corpus import EncodingCounts, encode_corpus
from headlens.corpora.encoding import EncodedExample, SentenceEncoder
from headlens.corpora.frequency import file_frequency
from headlens.corpora.sentence import ROOT, Example
from headlens.corpora.text import TextCorpus, plain_sentence
from headlens.errors import CorpusError

LIMIT = 24
RELATIONS = ("nsubj", "obj")
PARTS = st.one_of(
    st.sampled_from([c for c in ODD_CELLS if len(c) < 100]),
    st.sampled_from(["the", "cannot", "gonna", "don't", "10,000.50", "[SEP]", "[CLS]", "[PAD]", "##ing", "[UNK]", "…"]),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8),
)
LINES = st.lists(st.lists(PARTS, max_size=12).map(" ".join), min_size=1, max_size=4)


def frequency(word: str) -> float:
    return len(word) % 5 / 7


def chain(
    tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example], way: Any
) -> tuple[list[Batch], EncodingCounts, AnnotationCounts]:
    """What a pass over a corpus does before its model runs; annotations are checked on the way."""
    encoder = SentenceEncoder(tokenizer, LIMIT, long_sentences=way)
    counts, annotation, batches = EncodingCounts(), AnnotationCounts(), []
    for rows in token_budget_batches(encode_corpus(examples, encoder, counts), 64):
        batch = collate(rows, pad_id=0, device="cpu")
        tokens = Annotator(RELATIONS, frequency).annotate(batch, annotation, decoder_only=False).encoder
        assert tokens is not None
        assert tokens.rarity is not None
        assert tokens.arcs is not None
        assert tokens.sampled is not None
        assert tokens.rarity.shape == (len(rows), max(row.source.n_units for row in rows))
        assert bool((tokens.sampled < tokens.real.sum(1)).all())
        units = tokens.arcs[:, 1:3]
        assert bool(((units >= 0) & (units < tokens.n_words[tokens.arcs[:, 0], None])).all())
        batches.append(batch)
    return batches, counts, annotation


def check_counts(
    examples: Sequence[Example], batches: Sequence[Batch], counts: EncodingCounts, annotation: AnnotationCounts
) -> None:
    rows: list[EncodedExample] = [row for batch in batches for row in batch.examples]
    assert counts.sentences == len(rows)
    assert counts.tokens == sum(len(r.source) for r in rows) == sum(int(b.source.real.sum()) for b in batches)
    assert counts.words == sum(len(r.source.sentence.words) for r in rows)
    assert counts.unaligned_words == sum(r.source.unit_of_word.count(-1) for r in rows)
    assert all(1 <= len(r.source) <= LIMIT for r in rows)
    windows = sum("[" in r.source.sentence.id for r in rows)
    assert len(examples) == len(rows) - windows + counts.windowed + counts.too_long + counts.empty
    assert annotation.trees + annotation.no_tree == len(rows)
    wanted = [w for r in rows for w in r.source.sentence.words if w.relation in RELATIONS and w.head != ROOT]
    assert sum(annotation.arcs.values()) + annotation.lost_arcs == len(wanted)
    if not counts.too_long and not counts.empty:
        total = sum(len(e.source.words) for e in examples)
        assert counts.words + counts.words_too_long == total


def check_tensors(batches: Sequence[Batch], vocabulary: int) -> None:
    for batch in batches:
        ids, mask = batch.inputs["input_ids"], batch.inputs["attention_mask"]
        assert ids.shape == mask.shape == batch.source.real.shape
        assert int(ids.min()) >= 0
        assert int(ids.max()) < vocabulary
        assert torch.equal(mask.bool(), batch.source.real)
        assert bool((batch.source.word[~batch.source.real] == -1).all())


@fuzzing(300)
@given(LINES, st.sampled_from(["skip", "window"]))
def test_any_text(
    tmp_path_factory: pytest.TempPathFactory, wordpiece_tokenizer: PreTrainedTokenizerBase, lines: list[str], way: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "chain.txt"
    path.write_bytes("\n".join(lines).encode())
    examples = list(TextCorpus(path))
    batches, counts, annotation = chain(wordpiece_tokenizer, examples, way)
    check_counts(examples, batches, counts, annotation)
    check_tensors(batches, len(wordpiece_tokenizer))


FORMS = PARTS.map(lambda part: "".join(c for c in part if c not in "\t\n\r").strip(" ") or "x")


@st.composite
def treebanks(draw: st.DrawFn) -> str:
    """Trees over odd forms; some are a multiword token of one word."""
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        for i, form in enumerate(draw(st.lists(FORMS, min_size=1, max_size=14)), 1):
            head = draw(st.integers(1, i - 1)) if i > 1 else 0
            relation = draw(st.sampled_from([*RELATIONS, "dep"])) if head else "root"
            surface = draw(st.sampled_from([None] * 7 + ["zum"]))
            rows += [] if surface is None else [f"{i}-{i}\t{surface}" + "\t_" * 8]
            misc = draw(st.sampled_from(["_", "_", "SpaceAfter=No"]))
            rows.append(f"{i}\t{form}\t_\t_\t_\t_\t{head}\t{relation}\t_\t{misc}")
        rows.append("")
    return "\n".join(rows)


@fuzzing(250)
@given(treebanks(), st.sampled_from(["skip", "window"]))
def test_any_tree(
    tmp_path_factory: pytest.TempPathFactory, wordpiece_tokenizer: PreTrainedTokenizerBase, text: str, way: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "chain.conllu"
    path.write_bytes(text.encode())
    examples = list(ConlluCorpus(path))
    batches, counts, annotation = chain(wordpiece_tokenizer, examples, way)
    check_counts(examples, batches, counts, annotation)
    check_tensors(batches, len(wordpiece_tokenizer))
    assert annotation.no_tree == 0


@fuzzing(100)
@given(LINES)
def test_any_text_and_every_tokenizer(any_tokenizer: PreTrainedTokenizerBase, lines: list[str]) -> None:
    examples = [Example(plain_sentence(line, str(i))) for i, line in enumerate(lines)]
    batches, counts, annotation = chain(any_tokenizer, examples, "window")
    check_counts(examples, batches, counts, annotation)


@fuzzing(300)
@given(
    st.lists(
        st.tuples(
            PARTS,
            st.sampled_from(["\t", "\t", " ", ""]),
            st.sampled_from(["1", "2.5", "", "x", "-1", "nan", "1e400", "٣"]),
        )
    )
)
def test_any_list_of_frequencies(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]]) -> None:
    path: Path = tmp_path_factory.getbasetemp() / "list.tsv"
    path.write_bytes("\n".join(map("".join, rows)).encode())
    try:
        found = file_frequency(path)
    except CorpusError as error:
        refused = error
    else:
        assert 0.999 < sum(n / found.total for n in found.counts.values()) < 1.001
        return
    assert refused.path == path
    assert refused.advice

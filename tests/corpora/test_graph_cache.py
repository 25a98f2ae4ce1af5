"""Graphs of many texts: masks of batches against those of single texts, and the file that holds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graph_masks import token_mask
from hypothesis import given
from hypothesis import strategies as st

from headlens.corpora.alignment import Alignment
from headlens.corpora.batches import padded
from headlens.corpora.encoding import EncodedSequence, TokenKind
from headlens.corpora.sentence import Sentence
from headlens.corpora.word_graphs import GraphCache, GraphOptions, GraphWords, word_graph
from headlens.errors import OptionError


def text(words: int, number: int) -> EncodedSequence:
    """Words of one to three tokens between special ones, with a token outside all words at the end."""
    units = (-1, *(u for u in range(words) for _ in range(1 + (u + number) % 3)), -1, -1)
    special = int(TokenKind.SPECIAL)
    kinds = (special, *[0] * (len(units) - 2), special)
    alignment = Alignment(units, tuple(range(words)), words, 0, 1)
    ids = (1, *(100 * number + n + 10 for n in range(len(units) - 2)), 2)
    return EncodedSequence(ids, kinds, ((0, 0),) * len(units), alignment, Sentence("", ()))


def graph(words: int, number: int) -> np.ndarray:
    return word_graph(GraphWords(np.zeros(words, dtype=np.int64), str(number)), GraphOptions("random", 1.5))


def book(sizes: list[int]) -> tuple[GraphCache, list[EncodedSequence]]:
    found, texts = GraphCache("random", {"degree": 1.5}), [text(size, n) for n, size in enumerate(sizes)]
    for n, (size, own) in enumerate(zip(sizes, texts, strict=True)):
        found.add(own, graph(size, n))
    return found, texts


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.booleans())
def test_masks_of_a_batch_are_those_of_its_texts(sizes: list[int], left: bool) -> None:
    found, texts = book(sizes)
    ids, real = padded([t.ids for t in texts], 0), padded([[1] * len(t) for t in texts], 0).bool()
    if left:
        lengths = [len(t) for t in texts]
        ids, real = (
            torch.stack([row.roll(row.numel() - n) for row, n in zip(x, lengths, strict=True)]) for x in (ids, real)
        )
    rows = found.rows(ids, real)
    assert rows.shape == (len(texts), ids.shape[1], ids.shape[1])
    for n, (size, own) in enumerate(zip(sizes, texts, strict=True)):
        inside = torch.where(real[n])[0]
        expected = token_mask(graph(size, n), own)
        assert (rows[n][inside][:, inside].numpy() == expected).all()


@given(st.lists(st.integers(0, 9), max_size=5))
def test_a_file_holds_all_of_it(tmp_path_factory: pytest.TempPathFactory, sizes: list[int]) -> None:
    found, texts = book(sizes)
    path = tmp_path_factory.mktemp("books") / "graphs.npz"
    found.save(path)
    read = GraphCache.load(path)
    assert (read.name, dict(read.about), len(read)) == ("random", {"degree": 1.5}, len(found))
    assert read.sha256 == found.sha256
    assert all(t.ids in read for t in texts)
    assert (99,) not in read
    assert read.sparsity() == found.sparsity()


def test_sparsity_is_what_is_counted() -> None:
    sizes = [1, 4, 7, 0]
    found, _ = book(sizes)
    masks = [token_mask(graph(size, n), text(size, n)) for n, size in enumerate(sizes)]
    assert found.sparsity() == pytest.approx(np.mean([1 - mask.mean() for mask in masks]))
    assert GraphCache().sparsity() == 0
    for diagonal, below in ((True, 0), (False, -1)):
        seen = [np.tril(mask, below).sum() / np.tri(len(mask)).sum() for mask in masks]
        assert found.sparsity(diagonal=diagonal, causal=True) == pytest.approx(np.mean([1 - share for share in seen]))
    without = [(mask & ~np.eye(len(mask), dtype=bool)).mean() for mask in masks]
    assert found.sparsity(diagonal=False) == pytest.approx(np.mean([1 - share for share in without]))


def test_the_order_of_texts_does_not_count() -> None:
    one, other = GraphCache(), GraphCache()
    for n in (0, 1, 2):
        one.add(text(4, n), graph(4, n))
        other.add(text(4, 2 - n), graph(4, 2 - n))
    assert one.sha256 == other.sha256
    other.add(text(5, 3), graph(5, 3))
    assert one.sha256 != other.sha256


def test_a_text_that_is_not_there() -> None:
    found, texts = book([3])
    ids = torch.tensor([texts[0].ids])
    assert found.rows(ids, torch.ones_like(ids)).shape[0] == 1
    with pytest.raises(OptionError, match=r"A text of \d+ tokens has no graph"):
        found.rows(ids + 1, torch.ones_like(ids))


def test_a_broken_file(tmp_path: Path) -> None:
    path = tmp_path / "graphs.npz"
    for content in (b"", b"PK\x03\x04 no", b"text"):
        path.write_bytes(content)
        with pytest.raises(OptionError, match=r"graphs\.npz cannot be read as graphs"):
            GraphCache.load(path)
    np.savez(path, lengths=np.zeros(2))
    with pytest.raises(OptionError, match="cannot be read as graphs"):
        GraphCache.load(path)


@pytest.mark.parametrize(
    ("word", "edge", "words"),
    [(10**9, (0, 1), "far more words than tokens"), (1, (0, 7), "an edge refers to words that do not exist")],
)
def test_graphs_of_words_that_are_not_there_are_refused(tmp_path: Path, word: int, edge: Any, words: str) -> None:
    about = np.frombuffer(b'{"name": "random", "about": {}}', np.uint8)
    arrays = {"ids": [1, 2, 3], "words": [0, 1, word], "edges": [edge], "lengths": [3], "counts": [1]}
    np.savez(tmp_path / "graphs.npz", about=about, **{name: np.array(value) for name, value in arrays.items()})
    with pytest.raises(OptionError, match=f"cannot be read as graphs: .*{words}"):
        GraphCache.load(tmp_path / "graphs.npz")

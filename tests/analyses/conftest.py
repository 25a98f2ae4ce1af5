"""A small WordPiece, whose vocabulary does not outweigh the tiny models that analyses are tried on."""

from __future__ import annotations

import string

import pytest
from found_once import programs_found_once  # noqa: F401
from made_tasks import WORDS
from small_vocabulary import minilm, pieces_of, with_pieces
from transformers import PreTrainedTokenizerBase

COMMON = 800  # of the most frequent words and endings
OWN_WORDS = "cats dog dogs mice birds teachers love chase sleep unbelievable"  # which tests have whole


@pytest.fixture(scope="session")
def minilm_tokenizer() -> PreTrainedTokenizerBase:
    """MiniLM's with all its 30,522 entries, for MiniLM itself and for what is known of its pieces."""
    return minilm()


@pytest.fixture(scope="session")
def wordpiece_tokenizer(
    minilm_tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory
) -> PreTrainedTokenizerBase:
    """MiniLM's with its special tokens, ASCII characters and most frequent words: rare words have more pieces."""
    pieces = pieces_of(minilm_tokenizer)
    characters = {c for c in string.printable if not c.isspace() and not c.isupper()}
    kept = characters | {f"##{c}" for c in characters}
    kept |= {piece for word in (*WORDS, *OWN_WORDS.split()) for piece in minilm_tokenizer.tokenize(word)}
    first = pieces.index("the")
    return with_pieces(
        minilm_tokenizer, kept | set(pieces[first : first + COMMON]), tmp_path_factory.mktemp("wordpiece")
    )

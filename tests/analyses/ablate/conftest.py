"""A saved model for sentiments, and a table of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_judges import judge
from made_tasks import sentiment_table
from saved import save
from transformers import PreTrainedTokenizerBase


@pytest.fixture
def model(wordpiece_tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> str:
    return save(judge(wordpiece_tokenizer).model, tmp_path / "judge", wordpiece_tokenizer)


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "dev.tsv"
    path.write_text(sentiment_table(24), encoding="utf-8")
    return str(path)

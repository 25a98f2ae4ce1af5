"""Conversations as text: the tokens of the chat template, whoever writes the table."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerBase

from headlens.corpora.chat import ChatTemplate
from headlens.corpora.corpus_options import CorpusOptions
from headlens.corpora.encoding import SentenceEncoder
from headlens.corpora.sources import open_corpus
from headlens.errors import CorpusError, OptionError
from headlens.tasks.example_sources import DataOptions, SourceCounts
from headlens.tasks.open_task import open_task

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "<|turn|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
)
TALKS = [
    [{"role": "user", "content": "She took the cat."}, {"role": "assistant", "content": "The cats sleep."}],
    [{"role": "user", "content": "A long day"}],
]
Save = Callable[..., str]


@pytest.fixture
def saved(bytebpe_tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> Save:
    """Saves a tokenizer with a chat template, which begins every text with its first token."""

    def save(template: str | None = TEMPLATE, around: str = "<s> $A") -> str:
        tokenizer: Any = copy.deepcopy(bytebpe_tokenizer)
        tokenizer.add_special_tokens({"bos_token": "<s>", "additional_special_tokens": ["<|turn|>", "<|end|>"]})
        special = [(name, tokenizer.convert_tokens_to_ids(name)) for name in ("<s>", "<|end|>")]
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=around, special_tokens=special)
        tokenizer.chat_template = template
        place = str(tmp_path / f"chat-{len(list(tmp_path.glob('chat-*')))}")
        tokenizer.save_pretrained(place)
        return place

    return save


def table(path: Path, rows: list[Any] = TALKS) -> Path:
    path.write_text("".join(json.dumps({"messages": row, "id": n}) + "\n" for n, row in enumerate(rows)), "utf-8")
    return path


@pytest.mark.parametrize("around", ["<s> $A", "$A"])
def test_a_conversation_has_the_tokens_of_its_template(saved: Save, tmp_path: Path, around: str) -> None:
    name = saved(around=around)
    tokenizer = ChatTemplate(name).tokenizer
    encoder = SentenceEncoder(tokenizer)
    corpus = open_corpus(str(table(tmp_path / "a.jsonl")), CorpusOptions(chat=name))
    for example, talk in zip(corpus, TALKS, strict=True):
        encoded = encoder.encode(example)
        assert encoded is not None
        expected = tokenizer.apply_chat_template(talk, tokenize=True, return_dict=False)
        assert list(encoded.source.ids) == expected
        assert expected.count(tokenizer.bos_token_id) == 1
        words = [example.source.text[word.start : word.end] for word in example.source.words]
        said = [part for message in talk for part in (message["role"], *message["content"].replace(".", " .").split())]
        assert words == said, "special tokens are no words"


def test_conversations_come_from_other_tables_and_columns(saved: Save, tmp_path: Path) -> None:
    name = saved()
    pd.DataFrame({"talk": TALKS}).to_parquet(tmp_path / "b.parquet")
    first = [e.source.text for e in open_corpus(str(table(tmp_path / "a.jsonl")), CorpusOptions(chat=name))]
    options = CorpusOptions(chat=name, column="talk")
    assert [e.source.text for e in open_corpus(str(tmp_path / "b.parquet"), options)] == first
    task, source = open_task("causal-lm", table(tmp_path / "c.jsonl"), DataOptions(chat=name))
    assert task.name == "causal-lm"
    assert [example.texts[0] for example in source.read(SourceCounts())] == first  # type: ignore[attr-defined]
    plain = tmp_path / "d.jsonl"
    plain.write_text('{"messages": "A plain text"}\n')
    assert [e.source.text for e in open_corpus(str(plain), CorpusOptions(chat=name))] == ["A plain text"]


def test_what_cannot_be_read_as_a_conversation(saved: Save, tmp_path: Path) -> None:
    name, system = saved(), [{"role": "system", "content": "Be kind."}]
    talks = str(table(tmp_path / "a.jsonl", [*TALKS, system]))
    with pytest.raises(CorpusError, match=r"(?s):3: the chat template of .* refuses the conversation: no system"):
        list(open_corpus(talks, CorpusOptions(chat=name)))
    with pytest.raises(CorpusError, match=r"(?s)'messages' holds a conversation, not text.*--data-args chat=MODEL"):
        list(open_corpus(talks, CorpusOptions(column="messages")))
    with pytest.raises(CorpusError, match=r"(?s)'messages' holds a conversation.*--data-args chat=MODEL"):
        list(open_task("causal-lm", talks)[1].read(SourceCounts()))
    with pytest.raises(OptionError, match="there is no tokenizer"):
        open_corpus(talks, CorpusOptions(chat=str(tmp_path)))
    ends = saved(around="<s> $A <|end|>")
    with pytest.raises(CorpusError, match="adds tokens to what its chat template writes"):
        list(open_corpus(talks, CorpusOptions(chat=ends)))
    with pytest.raises(OptionError, match="has no chat template"):
        open_corpus(talks, CorpusOptions(chat=saved(template=None)))

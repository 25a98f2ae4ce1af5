"""The bundled sentences themselves."""

from collections import Counter
from pathlib import Path

from headlens.tasks.catalogue import PARAPHRASES
from headlens.tasks.example_sources import SourceCounts
from headlens.tasks.examples import TextExample
from headlens.tasks.open_task import open_task
from headlens.tasks.task_options import DEFAULT_TASK


def words(text: str) -> set[str]:
    return {word.strip(".,;'").lower() for word in text.split()}


def test_no_sentence_occurs_twice() -> None:
    task, source = open_task()
    assert task.name == DEFAULT_TASK == "paraphrase"
    assert source.name == "paraphrases"
    examples = [e for e in source.read(SourceCounts()) if isinstance(e, TextExample)]
    assert len(examples) == 222
    texts = Counter(text for e in examples for text in e.texts)
    assert max(texts.values()) == 1
    assert all(text[0].isupper() and text[-1] == "." and "  " not in text for text in texts)
    assert Counter(e.label for e in examples) == {0: 111, 1: 111}


def test_words_in_common_are_no_guide() -> None:
    examples = [e for e in open_task()[1].read(SourceCounts()) if isinstance(e, TextExample)]
    right = 0.0
    for example in examples:
        shared = [len(words(example.texts[0]) & words(text)) for text in example.texts[1:]]
        label = int(example.label or 0)
        right += 0.5 if shared[0] == shared[1] else float(shared[label] > shared[1 - label])
    assert right / len(examples) < 0.6


def test_what_a_reader_should_know_stands_beside_it() -> None:
    text = (Path(PARAPHRASES).parent / "README.md").read_text(encoding="utf-8")
    assert "with an AI model" in text
    assert "222" in text
    assert "Apache-2.0" in text

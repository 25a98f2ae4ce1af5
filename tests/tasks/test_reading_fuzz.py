"""Whatever is in a file: examples, or an error that says where."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headlens.corpora.table import json_array, unquoted
from headlens.errors import InputError
from headlens.tasks.catalogue import CATALOGUE
from headlens.tasks.example_sources import SourceCounts
from headlens.tasks.open_task import open_task

PIECES = [
    "sentence",
    "label",
    "sentence1",
    "\t",
    ",",
    "\n",
    '"',
    "1",
    "-",
    "{",
    "}",
    "[",
    "]",
    ":",
    '"data"',
    "\\ud800",
]
PIECES += ['{"text": "a"}', '"paragraphs"', "null", "\xe4", "\ufeff", "NaN", " ", '"answers"', '"context"', "1e999"]
PIECES += [
    "['a']",
    "{'text': ['a']}",
    "array(",
    ";",
    "(",
    "'",
    "endings",
    "answers",
    "context",
    "question",
    "translation",
]
CONTENT = st.lists(st.sampled_from(PIECES), max_size=25).map("".join)


def outcome(path: Path, task: str) -> tuple[int, SourceCounts, str]:
    """How many examples there are, or the error."""
    counts = SourceCounts()
    try:
        return len(list(open_task(task, path)[1].read(counts))), counts, ""
    except InputError as error:
        return 0, counts, str(error)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=CONTENT | st.text(max_size=40), task=st.sampled_from(sorted(CATALOGUE)))
@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl", "json"])
def test_any_content(tmp_path: Path, kind: str, content: str, task: str) -> None:
    path = tmp_path / f"s.{kind}"
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    found, counts, error = outcome(path, task)
    if error:
        assert str(path) in error or "s: no examples" in error
    else:
        assert 0 < found == counts.rows - counts.unlabelled


@given(st.text(alphabet='a"', max_size=8))
def test_quoting_is_taken_off_once(text: str) -> None:
    assert unquoted('"' + text.replace('"', '""') + '"') == text
    if not text.startswith('"'):
        assert unquoted(text) == text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(gaps=st.lists(st.sampled_from(["", "\n", " \n\n", "\r\n"]), min_size=1, max_size=6))
def test_lines_of_elements(tmp_path: Path, gaps: list[str]) -> None:
    text = "["
    expected = []
    for number, gap in enumerate(gaps):
        text += gap
        expected.append(text.count("\n") + 1)
        text += '{"a":\n' + str(number) + "}" + ("," if number < len(gaps) - 1 else "")
    (tmp_path / "a.json").write_bytes(f"{text}]".encode())
    found = list(json_array(tmp_path / "a.json"))
    assert [line for line, _ in found] == expected
    assert [row["a"] for _, row in found] == list(range(len(gaps)))

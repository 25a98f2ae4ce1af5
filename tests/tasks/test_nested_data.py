"""Data of tasks whose cells hold lists and mappings, labels as pandas writes them, and what separates the cells."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headlens.errors import CorpusError, InputError
from headlens.tasks.classification import ChoiceTask
from headlens.tasks.example_sources import SourceCounts
from headlens.tasks.examples import AnswerSpan, Question, TaskExample, TextExample
from headlens.tasks.open_task import DataOptions, open_task

CONTEXT = "The Denver Broncos won the [best] game."
BRONCOS, BOTH = AnswerSpan("Denver Broncos", 4), (AnswerSpan("Denver Broncos", 4), AnswerSpan("Broncos", 11))
BARE = (AnswerSpan("Denver Broncos"), AnswerSpan("Broncos"))


def read(task: str, path: Path, **options: Any) -> list[TaskExample]:
    return list(open_task(task, path, DataOptions(**options))[1].read(SourceCounts()))


def write(path: Path, rows: list[dict[str, Any]], separator: str = ",") -> Path:
    pd.DataFrame(rows).to_csv(path, index=False, sep=separator)
    return path


def asked(path: Path, answers: Any) -> Path:
    row = {"id": "x", "question": "Who?", "context": CONTEXT, "answers": answers}
    if path.suffix == ".jsonl":
        path.write_text(json.dumps(row), encoding="utf-8")
        return path
    return write(path, [row], "," if path.suffix == ".csv" else "\t")


ANSWERS: dict[str, tuple[Any, tuple[AnswerSpan, ...]]] = {
    "lists": ({"text": ["Denver Broncos"], "answer_start": [4]}, (BRONCOS,)),
    "several": ({"text": ["Denver Broncos", "Broncos"], "answer_start": [4, 11]}, BOTH),
    "whole floats": ({"text": ["Denver Broncos"], "answer_start": [4.0]}, (BRONCOS,)),
    "one text": ({"text": "Denver Broncos", "answer_start": 4}, (BRONCOS,)),
    "one text in lists of one": ({"text": "Denver Broncos", "answer_start": [4]}, (BRONCOS,)),
    "objects": ([{"text": "Denver Broncos", "answer_start": 4}, {"text": "Broncos", "answer_start": 11}], BOTH),
    "texts": (["Denver Broncos", "Broncos"], BARE),
    "no starts": ({"text": ["Denver Broncos", "Broncos"], "answer_start": None}, BARE),
    "none": ({"text": [], "answer_start": []}, ()),
    "an empty list": ([], ()),
}


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("name", ["s.csv", "s.tsv", "s.jsonl"])
def test_answers_as_json_writes_them(tmp_path: Path, kind: str, name: str) -> None:
    answers, spans = ANSWERS[kind]
    expected = [Question("x", "Who?", CONTEXT, spans)]
    for task in ("squad", "squad2") if spans else ("squad2",):
        assert read(task, asked(tmp_path / name, json.dumps(answers))) == expected
    if answers and name != "s.jsonl":
        with pytest.raises(CorpusError, match=r"(looks like a list or a mapping, but is not JSON|holds .* not)"):
            read("squad2", asked(tmp_path / name, str(answers)))


@pytest.mark.parametrize(
    "answers", [[], {"text": [], "answer_start": []}, None, "", {"text": [""], "answer_start": [0]}]
)
def test_questions_without_answers_have_no_label_but_in_squad_2(tmp_path: Path, answers: Any) -> None:
    rows = [{"id": "x", "question": "Who?", "context": CONTEXT, "answers": "Denver Broncos"}]
    rows.append({"id": "y", "question": "Why?", "context": CONTEXT, "answers": answers})
    path = tmp_path / "s.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    for task, left in (("squad", 1), ("squad2", 2)):
        counts = SourceCounts()
        assert len(list(open_task(task, path)[1].read(counts))) == left
        assert counts.unlabelled == 2 - left


@pytest.mark.parametrize("shown", [str, repr, lambda cells: repr(np.array(cells, dtype=object))])
def test_answers_as_python_and_numpy_show_them_are_refused(tmp_path: Path, shown: Callable[[Any], str]) -> None:
    """The advice is tried: the rows as JSON lines, or such cells as JSON."""
    answers = ["Denver Broncos", "Broncos"]
    with pytest.raises(CorpusError, match=r"'answers' looks like a list or a mapping, but is not JSON") as told:
        read("squad", asked(tmp_path / "s.csv", shown(answers)))
    expected = [Question("x", "Who?", CONTEXT, BARE)]
    frame, column = pd.DataFrame([{"id": "x", "question": "Who?", "context": CONTEXT, "answers": answers}]), "answers"
    assert "frame.to_json('data.jsonl', orient='records', lines=True)" in str(told.value)
    frame.to_json(tmp_path / "data.jsonl", orient="records", lines=True)
    assert read("squad", tmp_path / "data.jsonl") == expected
    assert "frame[column] = frame[column].map(json.dumps)" in str(told.value)
    frame[column] = frame[column].map(json.dumps)
    frame.to_csv(tmp_path / "s.csv", index=False)
    assert read("squad", tmp_path / "s.csv") == expected


@pytest.mark.parametrize("plain", ["Denver Broncos", " Denver Broncos ", "[best]", "the [best]"])
def test_a_plain_text_is_one_answer(tmp_path: Path, plain: str) -> None:
    """Also one in brackets, where it stands in the context like this."""
    expected = [Question("x", "Who?", CONTEXT, (AnswerSpan(plain.strip()),))]
    assert read("squad", asked(tmp_path / "s.csv", plain)) == expected


def test_the_answer_that_is_learned_stands_in_the_context(tmp_path: Path) -> None:
    """A model is shown the first answer; one that is written otherwise would point nowhere."""
    spans = (AnswerSpan("Broncos"), AnswerSpan("the broncos"))
    path = asked(tmp_path / "s.jsonl", ["the broncos", "Broncos"])
    assert read("squad", path) == [Question("x", "Who?", CONTEXT, spans)]


BAD_ANSWERS: dict[str, tuple[Any, str]] = {
    "cut off": (
        "{'text': ['Denver Bron",
        "'answers' looks like a list or a mapping, but is not JSON",
    ),
    "of Java": ("[Denver Broncos]", "'answers' looks like a list or a mapping, but is not JSON"),
    "of Spark": ("Row(text=['Denver Broncos'])", "'answers' looks like a list or a mapping, but"),
    "too many starts": ({"text": ["Broncos"], "answer_start": [11, 12]}, "1 text of answers, but 2 starts"),
    "one start for two": ({"text": ["Denver", "Broncos"], "answer_start": 4}, "2 texts of answers, but 1 start"),
    "another start": ({"text": "Broncos", "answer_start": 4}, "question x: the answer 'Broncos' is not at character 4"),
    "a start that is true": (
        {"text": "Broncos", "answer_start": True},
        "the start True of an answer is not a position",
    ),
    "no text": ({"answer_start": [4]}, "'text' is missing or not a text"),
    "numbers": ([4], "answers are not a list of texts"),
    "elsewhere": ("Paris", "question x: the answer 'Paris' is not in its context"),
    "in other words": ("Denver Broncos; 4", "question x: the answer 'Denver Broncos; 4' is not in its context"),
}


@pytest.mark.parametrize("kind", BAD_ANSWERS)
@pytest.mark.parametrize("name", ["s.csv", "s.jsonl"])
def test_answers_that_are_refused(tmp_path: Path, kind: str, name: str) -> None:
    answers, message = BAD_ANSWERS[kind]
    line = 2 if name == "s.csv" else 1
    with pytest.raises(CorpusError, match=rf"{name}:{line}: {message}"):
        read("squad", asked(tmp_path / name, answers if isinstance(answers, str) else json.dumps(answers)))


PAIR = {"de": "Hallo, du", "en": "Hello"}


@pytest.mark.parametrize("cell", [json.dumps(PAIR)])
@pytest.mark.parametrize("more", [{}, {"id": "0"}])
@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
def test_translations_in_one_cell(tmp_path: Path, cell: str, more: dict[str, str], name: str) -> None:
    rows = [{**more, "translation": cell}]
    path = write(tmp_path / name, rows, "," if name == "t.csv" else "\t")
    assert read("translation", path) == [TextExample("1", ("Hallo, du", "Hello"))]
    swapped = {"source": "translation.en", "target": "translation.de"}
    assert read("translation", path, columns=swapped) == [TextExample("1", ("Hello", "Hallo, du"))]


def test_translations_in_a_cell_that_lack_a_language(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"t\.csv:2: which columns are source, target"):
        read("translation", write(tmp_path / "t.csv", [{"translation": json.dumps({"de": "Hallo"})}]))
    for cell in (str(PAIR), "{'de': 'Hal"):
        with pytest.raises(CorpusError, match=r"t\.csv:2: 'translation' looks like a .* mapping, but is not JSON"):
            read("translation", write(tmp_path / "t.csv", [{"translation": cell}]))
    later = write(tmp_path / "t.csv", [{"translation": json.dumps(PAIR)}, {"translation": "Hallo"}])
    with pytest.raises(CorpusError, match=r"t\.csv:3: there is no column 'translation.de'"):
        read("translation", later)


ENDINGS = ["a.", "b, c.", "d.", "it's e."]


@pytest.mark.parametrize("columns", [("sent1", "sent2"), ("ctx_a", "ctx_b")])
def test_endings_in_one_cell(tmp_path: Path, columns: tuple[str, str]) -> None:
    expected = [TextExample("1", ("He sits.", *(f"She {ending}" for ending in ENDINGS)), 2)]
    texts = dict(zip(columns, ("He sits.", "She"), strict=True))
    path = write(tmp_path / "w.csv", [{**texts, "endings": json.dumps(ENDINGS), "label": 2}])
    assert read("swag", path) == expected
    (tmp_path / "w.jsonl").write_text(json.dumps({**texts, "endings": ENDINGS, "label": "2"}))
    assert read("swag", tmp_path / "w.jsonl") == expected


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (ENDINGS[:3], "'endings' holds 3 elements, not a list of 4 texts"),
        ([*ENDINGS, "f."], "'endings' holds 5 elements, not a list of 4 texts"),
        ([*ENDINGS[:3], 4], "'endings' holds int, not text"),
        ([*ENDINGS[:3], ["a."]], "'endings' holds list, not text"),
        ('["a.", "b.", "c.", "\\ud83d"]', "'endings' contains half a character"),
        ("a. b. c. d.", "'endings' holds str, not a list of 4 texts"),
        ({"text": ENDINGS}, "'endings' holds dict, not a list of 4 texts"),
        ("['a.', 'b.", "'endings' looks like a list or a mapping, but"),
    ],
)
def test_endings_that_are_refused(tmp_path: Path, cell: Any, message: str) -> None:
    row = {
        "sent1": "He sits.",
        "sent2": "She",
        "endings": cell if isinstance(cell, str) else json.dumps(cell),
        "label": 1,
    }
    with pytest.raises(CorpusError, match=rf"w\.csv:2: {message}"):
        read("swag", write(tmp_path / "w.csv", [row]))


def test_lists_are_no_texts(tmp_path: Path) -> None:
    """Where one column holds all texts, each role would be given all of them."""
    message = r"s\.csv:2: '{}' holds a list or mapping written out as text"
    for cell in (["A man."], {"en": "A man."}, np.array(["A", "B"], dtype=object)):
        with pytest.raises(CorpusError, match=message.format("sentence1")):
            read("rte", write(tmp_path / "s.csv", [{"sentence1": repr(cell), "sentence2": "B.", "label": 1}]))
    with pytest.raises(CorpusError, match=message.format("text")):
        read("mlm", write(tmp_path / "s.csv", [{"text": str(["A man."])}]))
    row = {"question": "Q?", "context": str([["title", ["A man."]]]), "answers": "man"}
    with pytest.raises(CorpusError, match=message.format("context")):
        read("squad", write(tmp_path / "s.csv", [row]))
    kept = write(tmp_path / "s.csv", [{"sentence": "[applause]", "label": 1}, {"sentence": '("Wow!")', "label": 1}])
    assert [e.texts for e in read("sst2", kept) if isinstance(e, TextExample)] == [("[applause]",), ('("Wow!")',)]


@pytest.mark.parametrize("label", ["1.0", " 1.00 ", "1.", 1.0])
@pytest.mark.parametrize("name", ["s.csv", "s.tsv", "s.jsonl"])
def test_whole_floats_are_classes(tmp_path: Path, label: Any, name: str) -> None:
    (tmp_path / "s.jsonl").write_text(json.dumps({"sentence": "A", "label": label}))
    (tmp_path / "s.csv").write_text(f"sentence,label\nA,{label}\n")
    (tmp_path / "s.tsv").write_text(f"sentence\tlabel\nA\t{label}\n")
    assert read("sst2", tmp_path / name) == [TextExample("1", ("A",), 1)]


def test_a_column_with_a_gap_as_pandas_writes_it(tmp_path: Path) -> None:
    path = write(tmp_path / "s.csv", [{"sentence": "A", "label": 1}, {"sentence": "B"}, {"sentence": "C", "label": 0}])
    assert "A,1.0" in path.read_text()
    counts = SourceCounts()
    found = list(open_task("sst2", path)[1].read(counts))
    assert found == [TextExample("1", ("A",), 1), TextExample("3", ("C",), 0)]
    assert counts.unlabelled == 1
    hidden = write(tmp_path / "s.csv", [{"sentence": "A", "label": 1.0}, {"sentence": "B", "label": -1.0}])
    assert read("sst2", hidden) == [TextExample("1", ("A",), 1)]


@pytest.mark.parametrize("label", ["1.5", "0.9", "2.0", "1,0", "1e0", "['1']", "[1]", "['positive']", "{'label': 1}"])
def test_labels_that_are_no_class(tmp_path: Path, label: str) -> None:
    with pytest.raises(CorpusError, match=r"s\.csv:2: 'label' has the unknown label"):
        read("sst2", write(tmp_path / "s.csv", [{"sentence": "A", "label": label}]))


@pytest.mark.parametrize("separator", [";", "\t", ","])
def test_what_separates_a_csv(tmp_path: Path, separator: str) -> None:
    texts = ["Good, really; yes.", "A 'film'.", 'No; "no", he said.', '"So."']
    path = write(tmp_path / "s.csv", [{"id": 0, "sentence": text, "label": 1} for text in texts], separator)
    assert [e.texts for e in read("sst2", path) if isinstance(e, TextExample)] == [(text,) for text in texts]
    named = write(tmp_path / "r.csv", [{"review; long": "Good", "stars": 1}], separator)
    assert read("sst2", named, columns={"text": "review; long", "label": "stars"}) == [TextExample("1", ("Good",), 1)]
    pairs = write(tmp_path / "p.csv", [{"source": "Hallo, du", "target": "Hello; you"}], separator)
    assert read("translation", pairs) == [TextExample("1", ("Hallo, du", "Hello; you"))]


def test_semicolons_without_a_header(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text('Hallo;"Hello; there"\nJa, ja;Yes\n')
    assert read("translation", tmp_path / "p.csv")[0] == TextExample("1", ("Hallo", "Hello; there"))
    (tmp_path / "c.csv").write_text("gj04;0;*;Cats the.\n")
    assert read("cola", tmp_path / "c.csv") == [TextExample("1", ("Cats the.",), 0)]
    (tmp_path / "m.csv").write_text("One; two\nthree\n")
    assert read("mlm", tmp_path / "m.csv")[0] == TextExample("1", ("One; two",))


def test_columns_that_are_not_known_are_listed_apart(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"which columns are text, label.*\n.*Columns: review, stars"):
        read("sst2", write(tmp_path / "s.csv", [{"review": "A", "stars": 1}], ";"))


@pytest.mark.parametrize("line", ["Hallo, du;Hello", "Hallo;Hello, you", "1;2,3", 'a;"b, c"'])
def test_commas_or_semicolons(tmp_path: Path, line: str) -> None:
    (tmp_path / "p.csv").write_text(f"{line}\n")
    message = r"p\.csv:1: commas or semicolons may separate its columns.\nName the columns in the first row"
    with pytest.raises(CorpusError, match=message):
        read("translation", tmp_path / "p.csv")


@pytest.mark.parametrize(
    ("task", "content"), [("mlm", "One, two\n"), ("mlm", "id,review\n1,A\n"), ("translation", "Hallo, du, Hello\n")]
)
def test_texts_are_not_cut_at_commas(tmp_path: Path, task: str, content: str) -> None:
    (tmp_path / "m.csv").write_text(content)
    message = r"m\.csv:1: \d columns where there should be \d.\nCorrect the line, or name the columns in the first row"
    with pytest.raises(CorpusError, match=message):
        read(task, tmp_path / "m.csv")


CELLS = st.sampled_from(["", "a", str([*"abcd"]), "[]", "['a']", "0", "1.0", "3", "-1", "{}", "[", '"', "\u200b"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.sampled_from(["swag", "paraphrase"]), st.sampled_from([",", "\t", "json"]))
def test_examples_of_a_choice_have_all_candidates(tmp_path: Path, data: st.DataObject, name: str, kind: str) -> None:
    """Whatever is in a file: a label that is one of the candidates, of which there are as many as the task has."""
    task, source = open_task(name)
    assert isinstance(task, ChoiceTask)
    columns = data.draw(st.sampled_from(source.layouts))
    rows = [{column: data.draw(CELLS) for column in columns} for _ in range(3)]
    if kind == "json":
        path = tmp_path / "w.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        path = write(tmp_path / "w.csv", rows, kind)
    try:
        found = read(name, path)
    except InputError:
        return
    for example in found:
        assert isinstance(example, TextExample)
        assert len(example.texts) == 1 + task.candidates
        assert example.label in range(task.candidates)


@pytest.mark.parametrize("lacking", ["context", "question"])
def test_articles_without_a_part(tmp_path: Path, lacking: str) -> None:
    asked = {"question": "Who?", "answers": []}
    paragraph = {"context": CONTEXT, "qas": [asked]}
    (paragraph if lacking == "context" else asked)[lacking] = None
    (tmp_path / "s.json").write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    with pytest.raises(CorpusError, match=rf"row 1: '{lacking}' is missing or not a text"):
        read("squad2", tmp_path / "s.json")


@pytest.mark.parametrize("labels", [[-1, 1, 1, -1] * 3, ["-1", "1"] * 5, [-1.0, 1.0] * 6])
def test_classes_that_look_like_no_label(tmp_path: Path, labels: list[Any]) -> None:
    path = write(tmp_path / "s.csv", [{"sentence": f"A {n}", "label": label} for n, label in enumerate(labels)])
    with pytest.raises(CorpusError, match="labels are -1 and 1, and -1 is what data sets write for no label") as caught:
        read("sst2", path)
    assert "Write 0 and 1" in caught.value.advice
    rows = [{"sentence": f"A {n}", "label": label} for n, label in enumerate([-1, 1] * 6 + [0])]
    mixed = write(tmp_path / "t.csv", rows)
    assert len(read("sst2", mixed)) == 7

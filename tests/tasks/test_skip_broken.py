"""Rows that cannot be read: refused with their line, or left out as they are asked to be, and counted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headlens.errors import CorpusError
from headlens.findings.result_notes import left_out_notes
from headlens.tasks.example_sources import DataSummary, SourceCounts
from headlens.tasks.examples import Question, TextExample
from headlens.tasks.open_task import DataOptions, open_examples, open_task
from headlens.tasks.task_options import TaskData

SKIP = DataOptions(skip_broken=True)
QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
SNLI = "index\tcaptionID\tpairID\tsentence1\tsentence2\tlabel1\tgold_label"


def sentences(rows: int, broken: Sequence[int] = ()) -> str:
    """A file of SST-2 whose rows, counted from 1, are cut off where they are to be broken; they stand a line lower."""
    lines = ["cut off" if row in broken else f"sentence {row}\t{row % 2}" for row in range(1, rows + 1)]
    return "\n".join(["sentence\tlabel", *lines, ""])


def kept(task: str, path: Path, options: DataOptions = SKIP) -> tuple[list[str], SourceCounts]:
    """The ids of the examples that are read, and the counts."""
    counts = SourceCounts()
    return [example.id for example in open_task(task, path, options)[1].read(counts)], counts


def test_questions_that_a_line_break_cuts_in_two(tmp_path: Path) -> None:
    rows = [
        QQP,
        "1\t2\t3\tWhy?\tHow?\t0",
        '2\t3\t4\tIs this "',
        "\tWas that one?\t0",
        *["3\t4\t5\tWho?\tWhich?\t1"] * 6,
    ]
    path = tmp_path / "qqp.tsv"
    path.write_text("\n".join(rows))
    with pytest.raises(
        CorpusError, match=r"qqp\.tsv:3: 4 columns .* 6\.\nCorrect the line\. Or .* --data-args skip-broken\."
    ) as found:
        kept("qqp", path, DataOptions())
    assert (found.value.path, found.value.line) == (path, 3)
    found_ids, counts = kept("qqp", path)
    assert found_ids == ["1", *"456789"]
    first = ("qqp.tsv:3: 4 columns where there should be 6.", "qqp.tsv:4: 3 columns where there should be 6.")
    assert counts == SourceCounts(rows=9, broken=2, first_broken=first)
    assert left_out_notes(counts, "qqp", "5 tokens")[:1] == [
        f"Left out by --data-args skip-broken: 2 of 9 rows. {first[0]} {first[1]}"
    ]
    assert left_out_notes(DataSummary.of("qqp", counts, ""), "qqp", None) == left_out_notes(counts, "qqp", None)
    assert asdict(DataSummary.of("qqp", counts, ""))["first_broken"] == first
    assert left_out_notes(SourceCounts(rows=4), "qqp", None) == []


def test_rows_with_the_labels_of_five_annotators(tmp_path: Path) -> None:
    """GLUE's SNLI has the label of one in the header; the gold label is the last in either kind of row."""
    path = tmp_path / "train.tsv"
    one, five = "1\tc\tp\tA.\tB.\tneutral\tneutral", "2\tc\tp\tC.\tD." + 2 * "\tneutral" + 4 * "\tentailment"
    path.write_text("\n".join([SNLI, one, five]))
    found = list(open_task("snli", path)[1].read(SourceCounts()))
    assert found == [TextExample("1", ("A.", "B."), 1), TextExample("2", ("C.", "D."), 0)]
    path.write_text("\n".join([SNLI, one, f"{one}\tneutral", five]))
    with pytest.raises(CorpusError, match=r"train\.tsv:3: 8 columns where there should be 7"):
        kept("snli", path, DataOptions())
    assert kept("snli", path)[0] == ["1", "3"]
    # Another order, in which the last cell is not what most have chosen, and five who do not agree.
    mixed = [["neutral", "entailment", "neutral", "neutral", "neutral", "entailment"], [*"nneec-"]]
    path.write_text("\n".join([SNLI, one, *("\t".join(["3", "c", "p", "A.", "B.", *labels]) for labels in mixed)]))
    assert kept("snli", path)[1].first_broken == ("train.tsv:3: 11 columns where there should be 7.",)
    assert kept("snli", path)[1].unlabelled == 1


BROKEN: dict[str, tuple[str, str, str, str]] = {
    "too long": ("sst2", "s.csv", "sentence,label\nA,1\nB,b,1\nC,0\n", "s.csv:3: 3 columns where there should be 2."),
    "broken JSON": ("sst2", "s.jsonl", '{"sentence": "A", "label": 1}\n{"sent', "s.jsonl:2: broken JSON:"),
    "no object": ("sst2", "s.jsonl", '{"sentence": "A", "label": 1}\n3', "s.jsonl:2: not a JSON object."),
    "first": ("sst2", "s.jsonl", '{\n{"sentence": "A", "label": 1}', "s.jsonl:1: broken JSON:"),
    "label": ("sst2", "s.tsv", "sentence\tlabel\nA\t1\nB\tgood\n", "s.tsv:3: 'label' has the unknown label 'good'."),
    "score": (
        "stsb",
        "s.csv",
        "sentence1,sentence2,score\nA,B,1\nC,D,6\n",
        "s.csv:3: 'score' has the unknown score '6'.",
    ),
    "column": (
        "sst2",
        "s.jsonl",
        '{"sentence": "A", "label": 1}\n{"label": 1}',
        "s.jsonl:2: there is no column 'sentence'.",
    ),
    "nested": ("sst2", "s.csv", "sentence,label\nA,1\n['B'],1\n", "s.csv:3: 'sentence' holds a list"),
    "endings": (
        "swag",
        "s.jsonl",
        "\n".join(json.dumps({"sent1": "A", "sent2": "", "endings": e, "label": 1}) for e in ([*"abcd"], [*"abc"])),
        "s.jsonl:2: 'endings' holds 3 elements",
    ),
    "an array": (
        "sst2",
        "s.json",
        '[{"sentence": "A", "label": 1},\n{"sentence": "A", "label": 7}]',
        "s.json:2: 'label'",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_everything_that_may_be_wrong_with_a_row(tmp_path: Path, kind: str) -> None:
    task, name, content, message = BROKEN[kind]
    (tmp_path / name).write_text(content)
    with pytest.raises(CorpusError, match="Or leave such rows out with --data-args skip-broken"):
        kept(task, tmp_path / name, DataOptions())
    counts = kept(task, tmp_path / name)[1]
    assert counts.broken == len(counts.first_broken) == 1
    assert counts.first_broken[0].startswith(message)


@pytest.mark.parametrize(
    ("name", "content", "skippable"),
    [
        ("s.csv", "review,label\nA film,1\nB film,0\n", False),
        ("s.tsv", "review\tlabel\nA film\t1\nB film\t0\n", False),
        ("s.jsonl", '{"sentence": "A", "label": 1}\n{"label": 0}\n', True),
    ],
)
@pytest.mark.parametrize("skip", [False, True])
def test_a_column_that_no_row_has_is_no_broken_row(
    tmp_path: Path, name: str, content: str, *, skippable: bool, skip: bool
) -> None:
    (tmp_path / name).write_text(content)
    options = DataOptions(columns={"text": "sentence"}, skip_broken=skip)
    if skippable and skip:
        assert kept("sst2", tmp_path / name, options)[1].broken == 1
        return
    with pytest.raises(CorpusError, match="there is no column 'sentence'") as caught:
        kept("sst2", tmp_path / name, options)
    assert ("skip-broken" in caught.value.advice) == skippable
    assert "Columns: " in caught.value.advice


def test_questions_of_an_article_one_by_one(tmp_path: Path) -> None:
    """A question whose answer stands elsewhere goes, and not the whole article with it."""
    asked = [
        {"id": f"q{n}", "question": "Who?", "answers": [{"text": "Cats", "answer_start": n}]} for n in [1, 2, *[0] * 6]
    ]
    article = {"paragraphs": [{"context": "Cats sleep.", "qas": asked}]}
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"data": [article]}))
    counts = SourceCounts()
    found = list(open_task("squad", path, SKIP)[1].read(counts))
    assert [question.id for question in found if isinstance(question, Question)] == ["q0"] * 6
    assert (counts.rows, counts.broken) == (8, 2)
    assert (
        counts.first_broken[0] == "s.json: row 1: question q1: the answer 'Cats' is not at character 1 of its context."
    )


@pytest.mark.parametrize("name", ["s.csv", "s.tsv", "s.json"])
def test_files_that_are_broken_are_not_rows(tmp_path: Path, name: str) -> None:
    content = {"s.csv": 'sentence,label\n"A,1\n', "s.tsv": "sentence\tlabel\nA\0\t1\n", "s.json": '[{"sentence": "A"'}
    (tmp_path / name).write_text(content[name])
    with pytest.raises(CorpusError, match=rf"{name}(:\d)?: ") as found:
        kept("sst2", tmp_path / name)
    assert "skip-broken" not in str(found.value)


@pytest.mark.parametrize(
    ("rows", "broken", "left_out"), [(40, 10, True), (44, 11, False), (20, 6, False), (1200, 12, True)]
)
def test_how_many_may_be_left_out(tmp_path: Path, rows: int, broken: int, *, left_out: bool) -> None:
    path = tmp_path / "s.tsv"
    path.write_text(sentences(rows, range(5, 5 + broken)))
    if left_out:
        found, counts = kept("sst2", path)
        assert (len(found), counts.broken, len(counts.first_broken)) == (rows - broken, broken, 3)
        assert left_out_notes(counts, "s", None)[0].endswith(" s.tsv:8: 1 column where there should be 2. …")
        return
    message = (
        rf"s\.tsv: {broken} of {rows} rows cannot be read\. The first: s\.tsv:6: 1 column where there should be 2\.\n"
        r"--data-args skip-broken leaves out 1% of the rows \(in small files up to 10\), but no more than 25% of them: "
        r"correct the file\."
    )
    with pytest.raises(CorpusError, match=message):
        kept("sst2", path)


def test_nothing_but_broken_rows(tmp_path: Path) -> None:
    path = tmp_path / "s.tsv"
    path.write_text(sentences(2, [1, 2]))
    with pytest.raises(CorpusError, match=r"s\.tsv: 2 of 2 rows cannot be read\. The first: s\.tsv:2: 1 column"):
        kept("sst2", path)


def test_limits(tmp_path: Path) -> None:
    """The rows that are read count, of every file: 11 of the first 20, though not of all 2000."""
    first, second = tmp_path / "a.tsv", tmp_path / "b.tsv"
    first.write_text(sentences(5, [2]))
    second.write_text(sentences(2000, range(2, 13)))
    assert kept("sst2", second)[1].broken == 11
    with pytest.raises(CorpusError, match="11 of 20 rows cannot be read"):
        kept("sst2", second, DataOptions(limit=9, skip_broken=True))
    data = TaskData("sst2", (str(first), str(second)), skip_broken=True)
    counts = SourceCounts()
    assert len(list(open_examples(data)[1].read(counts))) == 4 + 1989
    assert (counts.rows, counts.broken) == (2005, 12)
    assert [place.partition(" ")[0] for place in counts.first_broken] == [
        "a.tsv:3:",
        "b.tsv:3:",
        "b.tsv:4:",
        "b.tsv:5:",
    ]
    with pytest.raises(CorpusError, match=r"b\.tsv: 11 of 20 rows cannot be read"):
        list(open_examples(TaskData("sst2", data.data, limit=13, skip_broken=True))[1].read(SourceCounts()))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.integers(1, 30), max_size=12), st.integers(1, 40))
def test_the_others_are_as_they_were(tmp_path: Path, broken: set[int], limit: int) -> None:
    """What is left is what a file without the broken rows has, in order and with the same ids."""
    (tmp_path / "s.tsv").write_text(sentences(30, [*broken]))
    whole = [str(row) for row in range(1, 31) if row not in broken]
    try:
        found, counts = kept("sst2", tmp_path / "s.tsv", DataOptions(limit=limit, skip_broken=True))
    except CorpusError:
        rows = int(whole[limit - 1]) if limit <= len(whole) else 30
        assert len([row for row in broken if row <= rows]) > min(10, rows / 4)
        return
    assert found == whole[:limit]
    assert counts.rows == counts.broken + len(found)
    read = int(found[-1]) if limit <= len(whole) else 30
    assert counts.broken == len([row for row in broken if row <= read])

"""Tables: TSV, CSV and JSON lines."""

import csv
import gzip
import io
import json
import logging
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlens.corpora.corpus_options import CorpusOptions
from headlens.corpora.sources import open_corpus
from headlens.corpora.table import TableCorpus, list_names, text_cell
from headlens.corpora.text import plain_sentence
from headlens.errors import CorpusError

ROW: dict[str, Any] = {
    "text": "Hello",
    "empty": None,
    "label": 3,
    "list": ["a"],
    "translation": {"de": "Hallo", "deep": {"er": "tief"}},
    "a.b": "dotted",
    "half": "\ud83d",
}


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("text", "Hello"),
        ("empty", ""),
        ("translation.de", "Hallo"),
        ("translation.deep.er", "tief"),
        ("a.b", "dotted"),
    ],
)
def test_text(column: str, text: str) -> None:
    assert text_cell(ROW, column, "file") == text


@pytest.mark.parametrize("column", ["Text", "translation.fr", "text.en", "translation.de.x", ""])
def test_unknown_column(column: str) -> None:
    with pytest.raises(CorpusError) as caught:
        text_cell(ROW, column, "file", 7)
    assert str(caught.value) == (
        f"file:7: there is no column {column!r}.\n"
        "Columns: text, empty, label, list, translation.de, translation.deep.er, a.b, half."
    )


@pytest.mark.parametrize(("column", "kind"), [("label", "int"), ("list", "list"), ("translation", "dict")])
def test_no_text(column: str, kind: str) -> None:
    with pytest.raises(CorpusError, match=rf"file:7: '{column}' holds {kind}, not text\.\nChoose a column of text: t"):
        text_cell(ROW, column, "file", 7)


def test_half_a_character() -> None:
    with pytest.raises(CorpusError, match=r"file: 'half' contains half a character(.|\n)*come in pairs"):
        text_cell(ROW, "half", "file")


def test_names_that_would_flood_the_screen() -> None:
    assert list_names(["", "a", " ", "b" * 41]) == f"(one without a name), a, (one without a name), {'b' * 40}…"
    assert list_names(map(str, range(31))).endswith(", 29, …")
    assert list_names(map(str, range(30))).endswith(", 29")
    assert list_names([]) == "none"


def test_names_of_deep_rows() -> None:
    row: dict[str, object] = {"end": 1}
    for _ in range(5000):
        row = {"x": row}
    with pytest.raises(CorpusError, match=r"Columns: x\.x\.x\.x\.x\.x\.x\.x\.$"):
        text_cell(row, "text", "file")


SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
ROWS = [("One cat.", "Eine Katze.", "0"), ("Two, dogs", "Zwei Hunde", "1")]
TSV = "text\tde\tlabel\nOne cat.\tEine Katze.\t0\nTwo, dogs\tZwei Hunde\t1\n"
CSV = 'text,de,label\nOne cat.,Eine Katze.,0\n"Two, dogs",Zwei Hunde,1\n'
JSONL = '{"text": "One cat.", "de": "Eine Katze.", "label": 0}\n{"text": "Two, dogs", "de": "Zwei Hunde", "label": 1}\n'


def save(folder: Path, name: str, data: str | bytes) -> Path:
    raw = data.encode() if isinstance(data, str) else data
    path = folder / name
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return path


def read(path: Path, column: str = "text", target: str | None = None) -> list[tuple[str, str, str | None]]:
    return [(e.source.id, e.source.text, e.target and e.target.text) for e in TableCorpus(path, column, target)]


@pytest.mark.parametrize(("name", "data", "first"), [("a.tsv", TSV, 2), ("a.csv", CSV, 2), ("a.jsonl", JSONL, 1)])
@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_every_kind(tmp_path: Path, name: str, data: str, first: int, packed: str, line_end: str) -> None:
    path = save(tmp_path, name + packed, "\ufeff" + data.replace("\n", line_end))
    assert TableCorpus(path, "text").name == "a"
    assert read(path) == [(str(first + i), text, None) for i, (text, _, _) in enumerate(ROWS)]
    assert read(path, "text", "de") == [(str(first + i), text, de) for i, (text, de, _) in enumerate(ROWS)]


@pytest.mark.parametrize("mark", [";", "\t"])
def test_a_csv_of_semicolons_or_tabs(tmp_path: Path, mark: str) -> None:
    rows = "\n".join(mark.join(row) for row in [("text", "de", "label"), *ROWS])
    assert read(save(tmp_path, "a.csv", rows), "text", "de") == [("2", *ROWS[0][:2]), ("3", *ROWS[1][:2])]
    bare = "\n".join(mark.join(row) for row in ROWS)
    assert read(save(tmp_path, "a.csv", bare), "1", "2") == [("1", *ROWS[0][:2]), ("2", *ROWS[1][:2])]


def test_quotation_marks_between_tabs_are_text_unless_doubled(tmp_path: Path) -> None:
    rows = 'text\tlabel\n"So," he said.\t1\n"So."\t1\n"He said ""so""."\t1\n'
    texts = ['"So," he said.', '"So."', 'He said "so".']
    assert [text for _, text, _ in read(save(tmp_path, "a.csv", rows))] == texts
    assert [text for _, text, _ in read(save(tmp_path, "a.tsv", rows))] == [*texts[:2], 'He said "so".']


def test_the_text_of_a_csv_of_one_column_is_not_cut(tmp_path: Path) -> None:
    assert read(save(tmp_path, "a.csv", "Yes; no\nTabs\tand more\n"), "1") == [
        ("1", "Yes; no", None),
        ("2", "Tabs and more", None),
    ]
    known = save(tmp_path, "a.csv", "text,a;b\tc\nYes; no,1\n")
    assert read(known) == [("2", "Yes; no", None)]
    with pytest.raises(
        CorpusError, match=r"a\.csv:1: commas or semicolons may separate its columns\.\nName the columns"
    ):
        read(save(tmp_path, "a.csv", "Hallo, du;Hello\n"), "1", "2")


def test_upper_case_ending_and_ndjson(tmp_path: Path) -> None:
    assert read(save(tmp_path, "a.TSV", TSV)) == read(save(tmp_path, "a.tsv", TSV))
    assert read(save(tmp_path, "a.ndjson", JSONL)) == read(save(tmp_path, "a.jsonl", JSONL))


def test_quotation_marks(tmp_path: Path) -> None:
    commas = save(tmp_path, "a.csv", 'x,text\n1,"She said ""no"", and\nleft"\n\n2,plain "as is"\n3,end')
    assert read(commas) == [
        ("2", 'She said "no", and left', None),
        ("5", 'plain "as is"', None),
        ("6", "end", None),
    ]
    tabs = save(tmp_path, "a.tsv", 'text\tx\n"open quote\t1\n\nclosed"\t2\n')
    assert read(tabs) == [("2", '"open quote', None), ("4", 'closed"', None)]


def test_without_a_header(tmp_path: Path) -> None:
    path = save(tmp_path, "a.tsv", "One\tEins\nTwo\tZwei\n")
    assert read(path, "1", "2") == [("1", "One", "Eins"), ("2", "Two", "Zwei")]
    assert read(path, "2") == [("1", "Eins", None), ("2", "Zwei", None)]
    with pytest.raises(CorpusError, match=r"a\.tsv:1: there is no column '3'\.\nColumns: 1, 2\. Without a header"):
        read(path, "3")
    assert read(save(tmp_path, "b.tsv", "1\tx\nOne\ty\n"), "1") == [("2", "One", None)]


def test_blank_and_null_cells_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = save(tmp_path, "a.jsonl", '{"a": "x", "b": "y"}\n\n{"a": null, "b": "y"}\n{"a": " ", "b": ""}\n')
    with caplog.at_level(logging.WARNING):
        assert read(path, "a") == [("1", "x", None)]
        assert not caplog.records
        assert read(path, "a", "b") == [("1", "x", "y")]
    assert [r.getMessage() for r in caplog.records] == ["a: skipped 1 pair in which one side is empty"]


def test_path_in_json(tmp_path: Path) -> None:
    path = save(tmp_path, "a.jsonl", '{"translation": {"en": "One", "de": "Eins"}}\n')
    assert read(path, "translation.en", "translation.de") == [("1", "One", "Eins")]


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl"])
@pytest.mark.parametrize("data", ["", "\n", "\n\r\n"])
def test_empty_file(tmp_path: Path, name: str, data: str) -> None:
    assert read(save(tmp_path, name, data)) == []


@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_header_only(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, name, "text\n")
    assert read(path) == []
    with pytest.raises(CorpusError, match="no column 'other'"):
        read(path, "other")


FAULTS = {
    "unknown column, tsv": ("a.tsv", "a\tb\n1\t2\n", 1, r"there is no column 'text'\.\nColumns: a, b\."),
    "unknown column, csv": ("a.csv", "\na,b\n1,2\n", 2, r"there is no column 'text'\.\nColumns: a, b\."),
    "unknown column, jsonl": ("a.jsonl", '{"text": "x"}\n{"a": 1}\n', 2, r"there is no column 'text'\.\nColumns: a\."),
    "row too short": ("a.tsv", "text\tb\nx\ty\nx\n", 3, r"1 column where the first row has 2\."),
    "row too long": ("a.csv", 'text,b\n"x\n\ny",z\n\n1,2,3\n', 6, r"3 columns where the first row has 2\."),
    "open quote": (
        "a.csv",
        'text,b\nx,y\n"x,y\nx,y\n',
        3,
        r"broken CSV: a quotation mark that is never closed\.(.|\n)*written twice",
    ),
    "text after a quote": ("a.csv", 'text\n"x" y\n', 2, r"broken CSV: text after a closing quotation mark"),
    "huge cell": ("a.csv", f"text\nx\n{'y' * 200_000}\n", 3, r"broken CSV: a cell of more than 131,072 characters"),
    "no JSON": ("a.jsonl", '{"text": "x"}\n\n{"text": x}\n', 3, r"broken JSON: Expecting value\.\nCorrect the line"),
    "two objects": ("a.jsonl", '{"text": "x"} {"text": "y"}\n', 1, r"broken JSON: Extra data"),
    "too deep": ("a.jsonl", "[" * 200_000 + "\n", 1, r"broken JSON: nested too deeply\."),
    "endless number": ("a.jsonl", '{"text": "x"}\n{"n": ' + "9" * 5000 + "}\n", 2, r"broken JSON: Exceeds the limit"),
    "no object": ("a.jsonl", '["text"]\n', 1, r"not a JSON object\.\nWrite \{…\} on every line"),
    "whole file as a list": ("a.jsonl", '[{"text": "x"},\n{"text": "y"}]\n', 1, r"broken JSON: "),
    "no text": ("a.jsonl", '{"text": "x"}\n{"text": 3}\n', 2, r"'text' holds int, not text\."),
    "half a character": ("a.jsonl", '{"text": "\\ud83d"}\n', 1, r"half a character"),
    "not UTF-8": ("a.csv", b"text\nx\nf\xfcr\n", 3, r"not UTF-8: byte 0xfc at byte 2"),
    "NUL": ("a.tsv", "text\nx\0\n", 2, r"a NUL character"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_with_file_and_line(tmp_path: Path, name: str) -> None:
    file, data, line, message = FAULTS[name]
    path = save(tmp_path, file, data)
    with pytest.raises(CorpusError, match=message) as caught:
        read(path)
    assert (caught.value.path, caught.value.line) == (path, line)
    assert caught.value.advice


def test_unknown_target_column(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no column 'fr'"):
        read(save(tmp_path, "a.tsv", TSV), "text", "fr")


def test_unknown_kind(tmp_path: Path) -> None:
    with pytest.raises(
        CorpusError, match=r"a table of unknown type '\.xls'\.\nName it \.tsv, \.csv, \.jsonl, \.ndjson"
    ):
        read(save(tmp_path, "a.xls", TSV))


cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=12)
tables = st.lists(st.tuples(cells, cells), max_size=6)


@given(tables)
def test_csv_and_json_as_python_writes_them(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    wanted = [t for text, _ in rows if (t := plain_sentence(text, "").text)]
    target = io.StringIO()
    csv.writer(target).writerows([("text", "other"), *rows])
    assert [text for _, text, _ in read(save(folder, "p.csv", target.getvalue()))] == wanted
    objects = "".join(f"{json.dumps({'text': text, 'other': other})}\n" for text, other in rows)
    assert [text for _, text, _ in read(save(folder, "p.jsonl", objects))] == wanted


@given(st.sampled_from(["a.tsv", "a.csv", "a.jsonl"]), st.integers(0, 200), st.binary(max_size=3), st.integers(0, 3))
def test_broken_files(tmp_path_factory: pytest.TempPathFactory, name: str, at: int, new: bytes, removed: int) -> None:
    data = {"a.tsv": TSV, "a.csv": CSV + '"x\ny",z,1\n', "a.jsonl": JSONL}[name].encode()
    at %= len(data)
    data = data[:at] + new + data[at + removed :]
    path = save(tmp_path_factory.getbasetemp(), name, data)
    refused = None
    try:
        read(path, "text", "de")
    except CorpusError as error:
        refused = error
    if refused is not None:
        assert refused.path == path
        assert refused.line in range(1, data.count(b"\n") + 2)


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("name", "columns", "count"),
    [
        ("sst2_glue/test.tsv", ("sentence", None), 872),
        ("rte_glue/dev.tsv", ("sentence1", "sentence2"), 277),
        ("cola/in_domain_dev.tsv", ("4", None), 527),
    ],
)
def test_glue(name: str, columns: tuple[str, str | None], count: int) -> None:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"needs {name} in ../shared/data")
    assert len(read(path, *columns)) == count


@pytest.mark.parametrize(("name", "header"), [("a.tsv", "text\t\ttext\n"), ("a.csv", 'text,"",text\n')])
def test_columns_of_one_name(tmp_path: Path, name: str, header: str) -> None:
    path = save(tmp_path, name, header + header)
    with pytest.raises(CorpusError, match=rf"{name}:1: 2 columns are called 'text'\.\nGive the columns names"):
        read(path)
    with pytest.raises(CorpusError, match=r"there is no column 'de'\.\nColumns: text, \(one without a name\), text\."):
        read(path, "de")


def test_carriage_returns_as_line_ends(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"a\.csv:1: broken CSV: a carriage return outside of quotes"):
        read(save(tmp_path, "a.csv", "text,x\ra,1\r"))


@pytest.mark.parametrize("cell", ["['the', 'old']", '["the", "old"]', "{'text': 'the old'}", "['the'\n 'old']"])
def test_lists_that_are_written_as_text_are_no_sentences(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "s.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["sentence"], ["A cat."], [cell]])
    with pytest.raises(CorpusError, match=r"'sentence' holds a list or mapping written out as text"):
        list(open_corpus(str(path), CorpusOptions(column="sentence")))


def texts(path: Path) -> list[str]:
    return [example.source.text for example in TableCorpus(path, "text")]


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_tabs_as_pandas_writes_them(tmp_path: Path, name: str, quoting: Any) -> None:
    cells = ['the film is "bad"', '"all of it"', 'a "b" c', '"', "plain", "it's", 'the "film', '""']
    pd.DataFrame({"text": cells, "label": 1}).to_csv(tmp_path / name, sep="\t", index=False, quoting=quoting)
    assert texts(tmp_path / name) == cells


def test_bare_quotation_marks_between_tabs_stay(tmp_path: Path) -> None:
    cells = ['" the movie is bad', 'the "good" film', '"a whole one"', 'at the end "', '"two" and "three"']
    (tmp_path / "a.tsv").write_text("\n".join(["text\tlabel", *(f"{cell}\t1" for cell in cells)]))
    assert texts(tmp_path / "a.tsv") == cells


SAID = ["the dog sees", 'it\'s a "b"', "café ☺", "a\\b", 'say "no"', "so it's"]


@pytest.mark.parametrize("form", ["{!r}", "np.bytes_({!r})"])
@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl"])
def test_bytes_that_are_written_as_text_are_refused(tmp_path: Path, name: str, form: str) -> None:
    """The advice is tried: what it says writes what is read."""
    frame = pd.DataFrame({"text": [form.format(text.encode()) for text in SAID], "label": range(len(SAID))})

    def write(frame: pd.DataFrame) -> None:
        if name == "a.jsonl":
            frame.to_json(tmp_path / name, orient="records", lines=True)
        else:
            frame.to_csv(tmp_path / name, sep="\t" if name == "a.tsv" else ",", index=False)

    write(frame)
    with pytest.raises(CorpusError, match="'text' holds bytes as Python shows them") as told:
        texts(tmp_path / name)
    (line,) = re.findall(r"frame\['text'\] = .*\)", str(told.value))
    frame["text"] = [text.encode() for text in SAID]
    exec(line, {"frame": frame})
    write(frame)
    assert texts(tmp_path / name) == SAID


def test_a_single_text_that_looks_like_bytes_stays(tmp_path: Path) -> None:
    cells = ["b'two'", "b' is a letter", "one more", "and one", "b"]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": cell}) for cell in cells))
    assert texts(tmp_path / "a.jsonl") == cells

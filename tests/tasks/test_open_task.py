"""Data of tasks in the layouts that it comes in: small files in every real format."""

import gzip
import json
import re
import socket
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from headlens.errors import CorpusError, HeadlensError, OptionError
from headlens.tasks.catalogue import CATALOGUE
from headlens.tasks.example_parsers import parse_columns
from headlens.tasks.example_sources import MemoryExamples, SourceCounts, gather, split
from headlens.tasks.examples import AnswerSpan, Question, TaskExample, TextExample, words_of
from headlens.tasks.open_task import DataOptions, open_examples, open_task
from headlens.tasks.task_options import TaskData

SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": "Cats",
            "paragraphs": [
                {
                    "context": "Cats sleep. Dogs bark.",
                    "qas": [
                        {"id": "q1", "question": " Who sleeps?", "answers": [{"text": "Cats", "answer_start": 0}]},
                        {
                            "id": "q2",
                            "question": "Who flies?",
                            "is_impossible": True,
                            "answers": [],
                            "plausible_answers": [{"text": "Dogs", "answer_start": 12}],
                        },
                    ],
                }
            ],
        }
    ],
}
ROW_ANSWERS = {"text": ["Cats"], "answer_start": [0]}
SWAG_HEADER = "video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label"
# Task, name of the file, its content, and the first example.
FILES: dict[str, tuple[str, str, str, TaskExample]] = {
    "causal-lm": ("causal-lm", "text.txt", "A film. \n\nIt ends.\n", TextExample("1", ("A film. ",))),
    "blimp": (
        "minimal-pairs",
        "agreement.jsonl",
        '{"sentence_good": "Cats sleep.", "sentence_bad": "Cats sleeps.", "UID": "agreement"}\n',
        TextExample("1", ("Cats sleeps.", "Cats sleep."), 1),
    ),
    "multiblimp": (
        "minimal-pairs",
        "de.tsv",
        "sen\twrong_sen\nEr geht.\tEr gehst.\n",
        TextExample("1", ("Er geht.", "Er gehst."), 0),
    ),
    "cloze": (
        "cloze",
        "c.csv",
        "context,good,bad\nIt rains,hard,desk\n",
        TextExample("1", ("It rains", "hard", "desk"), 0),
    ),
    "ioi": (
        "logit-difference",
        "ioi.tsv",
        "prompt\tright\twrong\nAnn and Bob met, and Bob saw\tAnn\tBob\n",
        TextExample("1", ("Ann and Bob met, and Bob saw", "Ann", "Bob")),
    ),
    "sst2": ("sst2", "dev.tsv", 'sentence\tlabel\na "fine" film \t1\n', TextExample("1", ('a "fine" film ',), 1)),
    "classification": (
        "classification",
        "reviews.csv",
        "text,label\na film,good\na flop,bad\n",
        TextExample("1", ("a film",), 1),
    ),
    "cola": ("cola", "in_domain_dev.tsv", "gj04\t0\t*\tCats the.\n", TextExample("1", ("Cats the.",), 0)),
    "cola-glue": ("cola", "c.tsv", "sentence\tlabel\nCats the.\tunacceptable\n", TextExample("1", ("Cats the.",), 0)),
    "mrpc": (
        "mrpc",
        "msr_paraphrase_test.txt",
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\t"So," he said.\tHe said so.\n',
        TextExample("1", ('"So," he said.', "He said so."), 1),
    ),
    "rte": ("rte", "dev.tsv", "sentence1\tsentence2\tlabel\tidx\nA.\tB.\t1\t0\n", TextExample("1", ("A.", "B."), 1)),
    "rte-glue": (
        "rte",
        "dev.tsv",
        "index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\tnot_entailment\n",
        TextExample("1", ("A.", "B."), 1),
    ),
    "stsb": (
        "stsb",
        "sts-dev.csv",
        'main-news\theadlines\t2016\t0281\t4.200\tHe said "no, no"\tHe\'s against\thttp://a\thttp://b\n',
        TextExample("1", ('He said "no, no"', "He's against"), 4.2),
    ),
    "stsb-glue": (
        "similarity",
        "dev.tsv",
        "index\tgenre\tsentence1\tsentence2\tscore\n0\tnews\tA.\tB.\t5\n",
        TextExample("1", ("A.", "B."), 5.0),
    ),
    "qqp": (
        "qqp",
        "dev.tsv",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tWhy?\tHow?\t0\n",
        TextExample("1", ("Why?", "How?"), 0),
    ),
    "qnli": (
        "qnli",
        "dev.tsv",
        "index\tquestion\tsentence\tlabel\n0\tWhy?\tSo.\tentailment\n",
        TextExample("1", ("Why?", "So."), 0),
    ),
    "mnli": (
        "mnli",
        "dev_matched.tsv",
        "index\tpromptID\tsentence1\tsentence2\tlabel1\tgold_label\n0\t1\tA.\tB.\tneutral\tcontradiction\n",
        TextExample("1", ("A.", "B."), 2),
    ),
    "taxinli": (
        "mnli",
        "taxinli10k.tsv",
        'prem\thyp\tlabel\tannotated_label\n"""Oh,"" he said."\tHe spoke.\tentailment\tneutral\n',
        TextExample("1", ('"Oh," he said.', "He spoke."), 0),
    ),
    "conjnli": (
        "mnli-mm",
        "conj_dev.tsv",
        '\ufeffPremise\tHypothesis\tLabel\n"A" and B.\tB.\tneutral\n',
        TextExample("1", ('"A" and B.', "B."), 1),
    ),
    "snli": (
        "snli",
        "snli.jsonl",
        json.dumps({"gold_label": "neutral", "sentence1": "A.", "sentence2": "B.", "captionID": "x"}),
        TextExample("1", ("A.", "B."), 1),
    ),
    "swag": (
        "swag",
        "val.csv",
        f'{SWAG_HEADER}\nv,1,"He sits. She",He sits.,She,gold,"eats, too.",runs.,sings.,naps.,2\n',
        TextExample("1", ("He sits.", "She eats, too.", "She runs.", "She sings.", "She naps."), 2),
    ),
    "squad": (
        "squad2",
        "train-v2.0.json",
        json.dumps(SQUAD),
        Question("q1", " Who sleeps?", "Cats sleep. Dogs bark.", (AnswerSpan("Cats", 0),)),
    ),
    "squad-rows": (
        "squad",
        "squad.jsonl",
        json.dumps(
            {"id": "x", "question": "Who?", "context": "Cats.", "answers": {"text": ["Cats"], "answer_start": [0]}}
        ),
        Question("x", "Who?", "Cats.", (AnswerSpan("Cats", 0),)),
    ),
    "mlm": ("mlm", "wiki.txt", " \nOne tab\there.\n", TextExample("2", ("One tab\there.",))),
    "mlm-rows": ("mlm", "texts.json", '[{"text": "One."}]', TextExample("1", ("One.",))),
    "translation": ("translation", "pairs.tsv", "Hallo\tHello\n", TextExample("1", ("Hallo", "Hello"))),
    "translation-rows": (
        "translation-loss",
        "pairs.jsonl",
        json.dumps({"translation": {"de": "Hallo", "en": "Hello"}}),
        TextExample("1", ("Hallo", "Hello")),
    ),
}


def read(task: str, path: Path, **options: Any) -> tuple[list[TaskExample], SourceCounts]:
    counts = SourceCounts()
    return list(open_task(task, path, DataOptions(**options))[1].read(counts)), counts


def write(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("zipped", [False, True])
def test_original_layouts(tmp_path: Path, kind: str, zipped: bool) -> None:
    task, name, content, expected = FILES[kind]
    path = write(tmp_path, name, content)
    if zipped:
        path = tmp_path / f"{name}.gz"
        path.write_bytes(gzip.compress(content.encode()))
    found, _ = read(task, path)
    assert found[0] == expected
    assert open_task(task, path)[1].name == name.rpartition(".")[0]


def test_every_task_has_a_file_here() -> None:
    assert {task for task, *_ in FILES.values()} | {"paraphrase"} == set(CATALOGUE)


def test_questions_without_answers(tmp_path: Path) -> None:
    found, counts = read("squad2", write(tmp_path, "s.json", json.dumps(SQUAD)))
    assert found[1] == Question("q2", "Who flies?", "Cats sleep. Dogs bark.", ())
    assert counts.rows == 2


def test_examples_without_labels_are_counted(tmp_path: Path) -> None:
    labels = ["-", "neutral", "", "-1", "2", None]
    rows = [json.dumps({"sentence1": "A", "sentence2": "B", "gold_label": label}) for label in labels]
    rows.append(json.dumps({"sentence1": "A", "sentence2": " ", "gold_label": "neutral"}))
    found, counts = read("snli", write(tmp_path, "s.jsonl", "\n".join(rows)))
    assert [e.id for e in found] == ["2", "5"]
    assert counts == SourceCounts(rows=7, unlabelled=5)


@pytest.mark.parametrize("label", ["Contradiction", " contradiction ", "2", 2, 2.0])
def test_labels_by_name_or_number(tmp_path: Path, label: Any) -> None:
    row = json.dumps({"premise": "A", "hypothesis": "B", "label": label})
    assert read("mnli", write(tmp_path, "s.jsonl", row))[0] == [TextExample("1", ("A", "B"), 2)]


def test_columns_of_ones_own(tmp_path: Path) -> None:
    path = write(tmp_path, "s.csv", 'id,says,"gut, schlecht"\n1,"Nice, really",positive\n')
    found, _ = read("sst2", path, columns={"text": "says", "label": "gut, schlecht"})
    assert found == [TextExample("1", ("Nice, really",), 1)]
    mixed = write(tmp_path, "m.tsv", "sentence\tmine\nA\t0\n")
    assert read("sst2", mixed, columns={"label": "mine"})[0] == [TextExample("1", ("A",), 0)]


def test_columns_by_number(tmp_path: Path) -> None:
    path = write(tmp_path, "s.tsv", "1\tA film\tx\n0\tAnother\ty\n")
    found, _ = read("sst2", path, columns={"text": "2", "label": "1"})
    assert found == [TextExample("1", ("A film",), 1), TextExample("2", ("Another",), 0)]


@pytest.mark.parametrize("codes", [("de", "en"), ("deu", "eng"), ("zh_Hant", "pt-BR")])
def test_languages_above_pairs_are_no_pair(tmp_path: Path, codes: tuple[str, str]) -> None:
    path = write(tmp_path, "p.csv", f"{codes[0]},{codes[1]}\nHallo,Hello\n")
    with pytest.raises(CorpusError, match=f"look like a header row.*\n.*source={codes[0]},target={codes[1]}"):
        read("translation", path)
    named = read("translation", path, columns={"source": codes[0], "target": codes[1]})[0]
    assert named == [TextExample("1", ("Hallo", "Hello"))]
    assert len(read("translation", path, columns={"source": "1", "target": "2"})[0]) == 2
    assert len(read("translation", write(tmp_path, "q.tsv", "Ja\tYes\nHallo\tHello\n"))[0]) == 2


def test_parallel_files(tmp_path: Path) -> None:
    source, target = write(tmp_path, "a.en", "One\n\nTwo\n"), write(tmp_path, "a.de", "Eins\nx\nZwei\n")
    found, counts = read("translation", source, target=target)
    assert [e.texts for e in found if isinstance(e, TextExample)] == [("One", "Eins"), ("Two", "Zwei")]
    assert counts == SourceCounts(rows=3, unlabelled=1)
    with pytest.raises(CorpusError, match=r"a\.de:4: ends before line 4, unlike a\.en\+a\.de"):
        read("translation", write(tmp_path, "a.en", "1\n2\n3\n4\n"), target=target)
    with pytest.raises(OptionError, match="The task rte has no translations"):
        read("rte", source, target=target)


@pytest.mark.parametrize("name", ["a.conllu", "a.CONLL.gz", "a.pdf", "a.docx"])
def test_lines_of_what_is_no_plain_text_are_no_sentences(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, name, "1	One\t_\n")
    said = "a treebank, whose lines are words" if "conll" in name.lower() else f"a {Path(name).suffix} file"
    for found in ({}, {"target": write(tmp_path, "a.de", "Eins\n")}):
        with pytest.raises(CorpusError, match=rf"is {re.escape(said)}, not plain text\.\nSave its sentences one a"):
            read("translation" if found else "mlm", path, **found)
    with pytest.raises(CorpusError, match="not plain text"):
        read("translation", write(tmp_path, "a.en", "One\n"), target=path)
    for plain in ("a.txt", "a.en", "a"):
        assert len(read("mlm", write(tmp_path, plain, "One\n"))[0]) == 1


def test_texts_of_some_words(tmp_path: Path) -> None:
    """Words of all texts together count; the limit is of what is left, in every file."""
    rows = ["a b c\td\tentailment", "a\tb\tentailment", "a b\tc d\tneutral", "a  b \tc\t-", "a\tb c d e\tneutral"]
    path = write(tmp_path, "pairs.tsv", "\n".join(["sentence1\tsentence2\tgold_label", *rows]))
    found, counts = read("snli", path, min_words=4)
    assert [e.id for e in found] == ["1", "3", "5"]
    assert counts == SourceCounts(rows=5, unlabelled=1, too_short=1)
    assert [e.id for e in read("snli", path, min_words=4, limit=2)[0]] == ["1", "3"]
    both = open_examples(TaskData("snli", (str(path), str(path)), min_words=5, limit=2))[1]
    assert [e.id for e in both.read(SourceCounts())] == ["pairs:5", "pairs:5"]
    with pytest.raises(CorpusError, match="4 examples with fewer than 9 words"):
        read("snli", path, min_words=9)


def test_words_of_questions() -> None:
    assert words_of(Question("1", "Who came?", "Nobody came  in.", ())) == 5


def test_limits_and_parts(tmp_path: Path) -> None:
    path = write(tmp_path, "s.tsv", "sentence\tlabel\n" + "A\t1\n" * 5)
    assert len(read("sst2", path, limit=3)[0]) == 3
    with pytest.raises(OptionError, match="--limit 0 is not a positive number"):
        read("sst2", path, limit=0)
    whole = gather(open_task("sst2", path)[1])
    first, rest = split(whole, [[3, 0], range(1, 3)])
    assert [e.id for e in first.examples] == ["4", "1"]
    assert isinstance(rest, MemoryExamples)
    assert rest.name == "s"
    assert len(list(rest.read(SourceCounts()))) == 2


ERRORS: dict[str, tuple[str, str, str, str]] = {
    "unknown label": (
        "sst2",
        "s.tsv",
        "sentence\tlabel\nA\t1\nB\tgood\n",
        r"s.tsv:3: 'label' has the unknown label 'good'.\nLabels: 0 (negative), 1 (positive).",
    ),
    "a number too high": ("rte", "s.tsv", "sentence1\tsentence2\tlabel\nA\tB\t2\n", "s.tsv:2: 'label' has the unknown"),
    "unknown score": (
        "stsb",
        "s.tsv",
        "sentence1\tsentence2\tscore\nA\tB\t5.1\n",
        r"s.tsv:2: 'score' has the unknown score '5.1'.\nScores are numbers from 0 to 5.",
    ),
    "no score": ("stsb", "s.tsv", "sentence1\tsentence2\tscore\nA\tB\tnan\n", "s.tsv:2: 'score' has the unknown score"),
    "missing column": (
        "rte",
        "s.tsv",
        "premise\tlabel\nA\t1\n",
        r"s.tsv:2: which columns are text, second, label?\nName them with --columns text=COLUMN,second=COLUMN,"
        "label=COLUMN. Columns: premise, label.",
    ),
    "short row": ("sst2", "s.tsv", "sentence\tlabel\nA\t1\nB\n", "s.tsv:3: 1 column where there should be 2."),
    "long row": ("sst2", "s.tsv", "sentence\tlabel\nA\t1\tx\n", "s.tsv:2: 3 columns where there should be 2."),
    "short row without header": ("cola", "s.tsv", "gj04\t0\t*\tA\ngj04\t0\n", "s.tsv:2: 2 columns where there should"),
    "twice": ("sst2", "s.tsv", "sentence\tlabel\tlabel\nA\t1\t0\n", "s.tsv:1: 2 columns are called 'label'."),
    "broken CSV": ("sst2", "s.csv", 'sentence,label\n"A,1\n', "s.csv:2: broken CSV: a quotation mark that is never"),
    "broken JSON line": ("sst2", "s.jsonl", '{"sentence": "A", "label": 1}\n{\n', "s.jsonl:2: broken JSON: Expecting"),
    "broken JSON": ("squad", "s.json", '{"data": [\n{"paragraphs": }]}', "s.json:2: broken JSON: Expecting value."),
    "no JSON array": ("squad", "s.json", '{"questions": []}', "s.json: not an array of objects."),
    "element": (
        "sst2",
        "s.json",
        '[{"sentence": "A", "label": 1},\n\n 3]',
        "s.json:3: element 2 is not a JSON object.",
    ),
    "label in a JSON array": (
        "sst2",
        "s.json",
        '[\n{"sentence": "A", "label": 1},\n{"sentence": "A",\n"label": 7}]',
        "s.json:3: 'label' has the unknown label 7.",
    ),
    "not text": ("sst2", "s.jsonl", '{"sentence": 1, "label": 1}', "s.jsonl:1: 'sentence' holds int, not text."),
    "a column gone": ("sst2", "s.jsonl", '{"sentence": "A", "label": 1}\n{"sentence": "A"}', "s.jsonl:2: there is no"),
    "empty": ("sst2", "s.tsv", "", "s.tsv: no examples: it is empty."),
    "only a header": ("sst2", "s.tsv", "sentence\tlabel\n", "s.tsv: no examples: it is empty."),
    "only unlabelled": (
        "rte",
        "s.tsv",
        "sentence1\tsentence2\tlabel\nA\tB\t-1\n",
        "s.tsv: no examples: none of its 1",
    ),
    "kind": ("sst2", "s.xml", "<a/>", "s.xml: a table of unknown type '.xml'."),
    "SQuAD without paragraphs": (
        "squad",
        "s.json",
        '{"data": [{"paragraphs": 3}]}',
        "row 1: 'paragraphs' is",
    ),
    "a start that is none": (
        "squad",
        "s.jsonl",
        '{"question": "Q", "context": "A b", "answers": [{"text": "b", "answer_start": 1}]}',
        "s.jsonl:1: question 1: the answer 'b' is not at character 1 of its context.",
    ),
    "a start that is no place": (
        "squad",
        "s.jsonl",
        '{"question": "Q", "context": "A b", "answers": [{"text": "b", "answer_start": -1}]}',
        "s.jsonl:1: the start -1 of an answer is not a position.",
    ),
    "answers": (
        "squad",
        "s.jsonl",
        '{"question": "Q", "context": "A", "answers": 3}',
        "answers are not a list of texts",
    ),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_errors_say_where(tmp_path: Path, kind: str) -> None:
    task, name, content, message = ERRORS[kind]
    path = write(tmp_path, name, content)
    with pytest.raises(CorpusError, match=re.escape(message).replace(r"\\n", "\n")):
        read(task, path)


def test_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "s.tsv").write_bytes(b"sentence\tlabel\nA\t1\nB\xe4\t0\n")
    with pytest.raises(CorpusError, match=r"s\.tsv:3: not UTF-8: byte 0xe4 at byte 2"):
        read("sst2", tmp_path / "s.tsv")


def test_missing_files_and_columns(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"nope\.tsv: no such file"):
        read("sst2", tmp_path / "nope.tsv")
    path = write(tmp_path, "s.tsv", "sentence\tlabel\nA\t1\n")
    with pytest.raises(OptionError, match=r"--columns txt=…: there is no such role.\nRoles: text, label"):
        read("sst2", path, columns={"txt": "sentence"})
    with pytest.raises(CorpusError, match=r"there is no column 'word'.\nColumns: sentence, label"):
        read("sst2", path, columns={"text": "word"})


@pytest.mark.parametrize("text", ["", "text", "text=", "=a", "text=a,text=b", "text=a,,label=b"])
def test_columns_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(OptionError, match=r"not understood.\nWrite ROLE=COLUMN"):
        parse_columns(text)
    assert parse_columns("text = a, label=b c") == {"text": "a", "label": "b c"}


@pytest.fixture
def no_network(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("a test asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("no_network")
def test_data_sets_in_folders_and_files(tmp_path: Path) -> None:
    rows = pd.DataFrame({"premise": ["A", "C"], "hypothesis": ["B", "D"], "label": [2, -1], "idx": [0, 1]})
    (tmp_path / "set").mkdir()
    rows.to_parquet(tmp_path / "set" / "validation.parquet")
    for place, split_name in ((tmp_path / "set", None), (tmp_path / "set" / "validation.parquet", "any")):
        found, counts = read("snli", place, split=split_name)
        assert found == [TextExample("1", ("A", "B"), 2)]
        assert counts.unlabelled == 1
    with pytest.raises(
        CorpusError, match=r"there is no split 'validation_matched'.\nChoose one with --data-args split: validation"
    ):
        read("mnli", tmp_path / "set")
    rows.assign(label=[2, 9]).to_parquet(tmp_path / "wrong.parquet")
    with pytest.raises(CorpusError, match=r"wrong\.parquet: row 2: 'label' has the unknown label 9"):
        read("snli", tmp_path / "wrong.parquet")


@pytest.mark.usefixtures("no_network")
def test_questions_as_datasets_has_them(tmp_path: Path) -> None:
    answers = [ROW_ANSWERS, {"text": [], "answer_start": []}]
    frame = pd.DataFrame(
        {"id": ["x", "y"], "question": ["Q?", "R?"], "context": ["Cats.", "Cats."], "answers": answers}
    )
    frame.to_parquet(tmp_path / "validation.parquet")
    found, _ = read("squad2", tmp_path)
    assert found == [Question("x", "Q?", "Cats.", (AnswerSpan("Cats", 0),)), Question("y", "R?", "Cats.", ())]


@pytest.mark.usefixtures("no_network")
def test_the_hub_is_asked_for_what_is_not_here() -> None:
    assert open_task("sst2")[1].name == "nyu-mll/glue:sst2:validation"
    assert open_task("mnli", "hub:me/mine", DataOptions(split="test"))[1].name == "me/mine:test"
    with pytest.raises(HeadlensError, match="hub:nyu-mll/glue:sst2: not in the local cache, and offline mode is on"):
        gather(open_task("sst2", options=DataOptions(offline=True))[1])
    with pytest.raises(OptionError, match="hub: names no data set"):
        open_task("sst2", "hub:")


def test_several_files_one_after_the_other(tmp_path: Path) -> None:
    """Each in a layout of its own, with one limit for all, and ids that tell the files apart."""
    (tmp_path / "a.jsonl").write_text(
        "".join(
            json.dumps({"sentence1": "A.", "sentence2": b, "gold_label": g}) + "\n"
            for b, g in [("B.", "neutral"), ("C.", "-")]
        )
    )
    (tmp_path / "b.tsv").write_text("Premise\tHypothesis\tLabel\nD.\tE.\tentailment\nF.\tG.\tcontradiction\n")
    files = (str(tmp_path / "a.jsonl"), str(tmp_path / "b.tsv"))
    task, source = open_examples(TaskData("snli", files))
    counts = SourceCounts()
    assert [(e.id, e.label) for e in source.read(counts) if isinstance(e, TextExample)] == [
        ("a:1", 1.0),
        ("b:1", 0.0),
        ("b:2", 2.0),
    ]
    assert (task.name, source.name) == ("snli", "a+b")
    assert counts == SourceCounts(rows=4, unlabelled=1)
    first = open_examples(TaskData("snli", files, limit=2))[1]
    assert [e.id for e in first.read(SourceCounts())] == ["a:1", "b:1"]
    assert len(list(open_examples(TaskData("snli", files[1:], limit=1))[1].read(SourceCounts()))) == 1
    assert open_examples(TaskData("paraphrase"))[1].name == "paraphrases"
    with pytest.raises(OptionError, match="--limit 0 is out of range"):
        open_examples(TaskData("snli", files, limit=0))
    (tmp_path / "b.tsv").rename(tmp_path / "a.tsv")
    alike = open_examples(TaskData("snli", (files[0], str(tmp_path / "a.tsv"))))[1]
    assert [e.id for e in alike.read(SourceCounts())] == ["a.jsonl:1", "a.tsv:1", "a.tsv:2"]
    assert alike.name == "a.jsonl+a.tsv"
    for rows, reason in (
        ("", "it is empty"),
        ("D.\tE.\t-\nF.\tG.\t-\nH.\tI.\t-\n", "none of its 3 rows has a label and text"),
        ("D.\tE.\tneutral\n", "1 example with fewer than 3 words"),
    ):
        (tmp_path / "c.tsv").write_text("Premise\tHypothesis\tLabel\n" + rows)
        (tmp_path / "d.tsv").write_text("Premise\tHypothesis\tLabel\nD d d.\tE.\tentailment\nD.\tE.\tneutral\n")
        both = (str(tmp_path / "d.tsv"), str(tmp_path / "c.tsv"))
        with pytest.raises(CorpusError, match=f"c.tsv: no examples: {reason}"):
            list(open_examples(TaskData("snli", both, min_words=3))[1].read(SourceCounts()))

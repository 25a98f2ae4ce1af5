"""CoNLL-U: what is read, what is refused and where, and that what is written can be read again."""

import gzip
import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from saved import read_conllu

from headlens.corpora.conllu import ConlluCorpus, write_conllu
from headlens.corpora.sentence import ROOT, Sentence, Word
from headlens.corpora.text import plain_sentence
from headlens.errors import CorpusError, OutputError
from headlens.files import TEMPORARY

ENGLISH = """\
# sent_id = en-1
# text = I don't.
1	I	I	PRON	PRP	_	4	nsubj	_	_
2-3	don't	_	_	_	_	_	_	_	SpaceAfter=No
2	do	do	AUX	VBP	_	4	aux	_	_
3	n't	not	PART	RB	_	4	advmod	_	_
3.1	know	know	VERB	VB	_	_	_	0:root	CopyOf=-1
4	.	.	PUNCT	.	_	0	root	_	SpaceAfter=No

"""
GERMAN = """\
1-2	Zum	_	_	_	_	_	_	_	_
1	zu	zu	ADP	_	_	3	case	_	_
2	dem	der	DET	_	_	3	det	_	_
3	Haus	Haus	NOUN	_	_	0	root	_	Gloss=house|SpaceAfter=No
4	!	!	PUNCT	_	_	3	punct	_	_
"""


def save(folder: Path, text: str | bytes, name: str = "bank.conllu") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def read(folder: Path, text: str | bytes) -> list[Sentence]:
    return list(read_conllu(save(folder, text)))


def row(*columns: object) -> str:
    """A line from id, form, head and relation."""
    number, form, head, relation = columns
    return f"{number}\t{form}\t_\tNOUN\t_\t_\t{head}\t{relation}\t_\t_\n"


def spans(sentence: Sentence) -> list[tuple[str, str]]:
    return [(w.form, sentence.text[w.start : w.end]) for w in sentence.words]


def test_words_inside_a_multiword_token_have_spans_of_their_own(tmp_path: Path) -> None:
    (sentence,) = read(tmp_path, ENGLISH)
    assert sentence == Sentence(
        "I don't.",
        (
            Word("I", 0, 1, 3, "nsubj", "PRON"),
            Word("do", 2, 4, 3, "aux", "AUX"),
            Word("n't", 4, 7, 3, "advmod", "PART"),
            Word(".", 7, 8, ROOT, "root", "PUNCT"),
        ),
        "en-1",
    )


def test_words_that_do_not_spell_their_token_share_its_span(tmp_path: Path) -> None:
    (sentence,) = read(tmp_path, GERMAN)
    assert sentence.text == "Zum Haus!"
    assert [(w.start, w.end) for w in sentence.words] == [(0, 3), (0, 3), (4, 8), (8, 9)]
    assert [w.head for w in sentence.words] == [2, 2, ROOT, 2]
    assert sentence.id == "1"


@pytest.mark.parametrize("text", [ENGLISH + GERMAN, "\n\n" + ENGLISH + "\n \n" + GERMAN + "\n\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_line_ends_byte_order_mark_and_blank_lines(tmp_path: Path, text: str, mark: bytes, line_end: bytes) -> None:
    plain = read(tmp_path, ENGLISH + GERMAN)
    assert read(tmp_path, mark + text.encode().replace(b"\n", line_end)) == plain
    assert [s.id for s in plain] == ["en-1", "2"]


def test_gzipped(tmp_path: Path) -> None:
    path = save(tmp_path, gzip.compress(ENGLISH.encode()), "bank.conllu.gz")
    corpus = ConlluCorpus(path)
    assert corpus.name == "bank"
    assert [e.source for e in corpus] == [e.source for e in corpus] == read(tmp_path, ENGLISH)


def test_sentence_without_a_tree(tmp_path: Path) -> None:
    (sentence,) = read(tmp_path, row(1, "Hello", "_", "_") + row(2, "there", "_", "_"))
    assert not sentence.has_tree
    assert [(w.head, w.relation) for w in sentence.words] == [(None, None)] * 2


def test_comments_alone_are_no_sentence(tmp_path: Path) -> None:
    assert [s.id for s in read(tmp_path, "# newdoc\n\n" + GERMAN + "\n# end\n")] == ["1"]
    assert read(tmp_path, "") == []


def test_space_inside_a_form(tmp_path: Path) -> None:
    (sentence,) = read(tmp_path, row(1, "10 000", 2, "nummod") + row(2, "euros", 0, "root"))
    assert spans(sentence) == [("10 000", "10 000"), ("euros", "euros")]


def test_disagreeing_text_comment_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wrong = "# text = something else\n" + GERMAN + "\n"
    with caplog.at_level(logging.WARNING):
        sentences = read(tmp_path, ENGLISH + wrong + wrong)
    assert [s.text for s in sentences] == ["I don't.", "Zum Haus!", "Zum Haus!"]
    (record,) = caplog.records
    assert "bank.conllu:10: the text comment differs" in record.getMessage()


def test_gzipped_writing(tmp_path: Path) -> None:
    sentences = read(tmp_path, ENGLISH + GERMAN)
    write_conllu(sentences, tmp_path / "copy.conllu.gz")
    assert gzip.decompress((tmp_path / "copy.conllu.gz").read_bytes()).startswith(
        b"# sent_id = en-1\n# text = I don't."
    )
    assert list(read_conllu(tmp_path / "copy.conllu.gz")) == sentences


A, B = row(1, "a", 0, "root"), row(2, "b", 1, "obj")
FAULTS = {
    "nine columns": (A + B.replace("\t_\n", "\n"), 2, r"9 columns instead of 10"),
    "spaces for tabs": ("# c\n" + A.replace("\t", " "), 2, r"1 column instead of 10"),
    "no id": (A + row("x", "b", 1, "obj"), 2, r"'x' is not a word id"),
    "empty id": (A + row("", "b", 1, "obj"), 2, r"'' is not a word id"),
    "underscore as id": (A + row("_", "b", 1, "obj"), 2, r"'_' is not a word id"),
    "id of foreign digits": (A + row("２", "b", 1, "obj"), 2, r"is not a word id"),
    "id of thousands of digits": (A + row("9" * 5000, "b", 1, "obj"), 2, r"2: '9{40}…' is not a word id"),
    "range backwards": (A + row("3-2", "bc", "_", "_"), 2, r"'3-2' is not a word id"),
    "no form": (A + row(2, "", 1, "obj"), 2, r"the word form is empty"),
    "id left out": (A + row(3, "c", 1, "obj"), 2, r"id 3 where 2 was expected"),
    "id twice": (A + row(1, "c", 1, "obj"), 2, r"id 1 where 2 was expected"),
    "id 0": (row(0, "a", 0, "root"), 1, r"id 0 where 1 was expected"),
    "two sentences without a blank line": (A + B + A, 3, r"id 1 where 3 was expected"),
    "range too early": (A + row("3-4", "bc", "_", "_") + B, 2, r"id 3-4 where 2 was expected"),
    "range in a range": (
        row("1-2", "ab", "_", "_") + A + row("2-3", "bc", "_", "_") + B,
        3,
        r"id 2-3 where 2 was expected",
    ),
    "range without its words": (A + row("2-3", "bc", "_", "_") + B, 2, r"multiword token 2-3 extends beyond the last"),
    "head is no number": (A + row(2, "b", "one", "obj"), 2, r"head 'one' is not a number"),
    "head of thousands of digits": (A + row(2, "b", "9" * 5000, "obj"), 2, r"2: head '9{40}…' is not a number"),
    "head is empty": (A + row(2, "b", "", "obj"), 2, r"head '' is not a number"),
    "head below 0": (A + row(2, "b", -1, "obj"), 2, r"head '-1' is out of range"),
    "head too high": (A + row(2, "b", 3, "obj"), 2, r"head 3 is out of range \(the sentence has 2 words\)"),
    "no relation": (A + row(2, "b", 1, "_"), 2, r"a head but no relation"),
    "no root": (row(1, "a", 2, "obj") + row(2, "b", 1, "obj"), 1, r"no root"),
    "two roots": (A + row(2, "b", 0, "root"), 2, r"2 roots; word 1 is already one"),
    "cycle": (A + row(2, "b", 3, "obj") + row(3, "c", 2, "obj"), 2, r"word 2 is part of a cycle"),
    "its own head": (A + row(2, "b", 2, "obj"), 2, r"word 2 is part of a cycle"),
    "heads for some words only": (A + row(2, "b", "_", "_"), 2, r"no head here, while other words"),
    "heads for some words only, first": (row(1, "a", "_", "_") + row(2, "b", 0, "root"), 1, r"no head here"),
    "not UTF-8": (A.encode() + b"2\tgr\xfcn\t_\t_\t_\t_\t1\tobj\t_\t_\n", 2, r"not UTF-8: byte 0xfc at byte 5 of"),
    "NUL": (A + B.replace("b", "\0"), 2, r"a NUL character"),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("lines_before", [0, 10])
def test_faults_with_file_and_line(tmp_path: Path, name: str, lines_before: int) -> None:
    text, line, message = FAULTS[name]
    before = (ENGLISH + "\n" * 10).encode().splitlines(keepends=True)[:lines_before]
    path = save(tmp_path, b"".join(before) + (text.encode() if isinstance(text, str) else text))
    sentences = read_conllu(path)
    if before:
        assert next(sentences).id == "en-1"
    with pytest.raises(CorpusError, match=message) as caught:
        next(sentences)
    assert (caught.value.path, caught.value.line) == (path, line + lines_before)
    assert str(caught.value).startswith(f"{path}:{line + lines_before}: ")
    assert caught.value.advice


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"gone\.conllu: no such file"):
        list(read_conllu(tmp_path / "gone.conllu"))


def test_written_form() -> None:
    sentence = Sentence(
        "Zum Haus!",
        (
            Word("zu", 0, 3, 2, "case", "ADP"),
            Word("dem", 0, 3, 2, "det", "DET"),
            Word("Haus", 4, 8, ROOT, "root", "NOUN"),
            Word("!", 8, 9, 2, "punct", None),
        ),
        "s 1",
    )
    target = io.StringIO()
    write_conllu([sentence], target)
    assert target.getvalue() == (
        "# sent_id = s 1\n"
        "# text = Zum Haus!\n"
        "1-2\tZum\t_\t_\t_\t_\t_\t_\t_\t_\n"
        "1\tzu\t_\tADP\t_\t_\t3\tcase\t_\t_\n"
        "2\tdem\t_\tDET\t_\t_\t3\tdet\t_\t_\n"
        "3\tHaus\t_\tNOUN\t_\t_\t0\troot\t_\tSpaceAfter=No\n"
        "4\t!\t_\t_\t_\t_\t3\tpunct\t_\t_\n"
        "\n"
    )


GOOD = Word("a", 0, 1, ROOT, "root")
UNWRITABLE = {
    "no words": Sentence("a", (), "s1"),
    "text outside of words": Sentence("a b", (GOOD,), "s1"),
    "two spaces": Sentence("a  b", (GOOD, Word("b", 3, 4, 0, "obj")), "s1"),
    "out of order": Sentence("a b", (Word("b", 2, 3, 1, "obj"), GOOD), "s1"),
    "two roots": Sentence("a b", (GOOD, Word("b", 2, 3, ROOT, "root")), "s1"),
    "heads for some": Sentence("a b", (GOOD, Word("b", 2, 3)), "s1"),
    "tab in a form": Sentence("a\tb", (Word("a\tb", 0, 3, ROOT, "root"),), "s1"),
    "line end in a form": Sentence("a\nb", (Word("a\nb", 0, 3, ROOT, "root"),), "s1"),
    "relation without a head": Sentence("a", (Word("a", 0, 1, None, "root"),), "s1"),
    "empty relation": Sentence("a", (Word("a", 0, 1, ROOT, ""),), "s1"),
    "NUL": Sentence("\0", (Word("\0", 0, 1, ROOT, "root"),), "s1"),
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_what_conllu_cannot_hold(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, "as before")
    with pytest.raises(CorpusError, match="sentence 's1' cannot be written as CoNLL-U"):
        write_conllu([Sentence("a", (GOOD,)), UNWRITABLE[name]], path)
    assert path.read_text() == "as before"
    assert [p.name for p in tmp_path.iterdir()] == ["bank.conllu"]


def test_a_file_that_is_being_written_has_a_temporary_name(tmp_path: Path) -> None:
    """By which a run folder finds it, if the process was killed; two processes do not share it."""
    seen: list[list[str]] = []

    def sentences() -> Iterator[Sentence]:
        seen.append([path.name for path in tmp_path.glob(TEMPORARY)])
        yield plain_sentence("A cat.", "1")

    write_conllu(sentences(), tmp_path / "a.conllu")
    write_conllu(sentences(), tmp_path / "a.conllu")
    assert [len(names) for names in seen] == [1, 1]
    assert seen[0] != seen[1]
    assert [path.name for path in tmp_path.iterdir()] == ["a.conllu"]
    with pytest.raises(OutputError, match="Cannot write"):
        write_conllu(sentences(), tmp_path / "a.conllu" / "b.conllu")

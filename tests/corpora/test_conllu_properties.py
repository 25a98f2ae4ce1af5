"""CoNLL-U: random trees survive writing and reading; broken files are refused with a line of theirs."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saved import read_conllu
from tiers import rest_slow

from headlens.corpora.conllu import write_conllu
from headlens.corpora.sentence import ROOT, Sentence, Word
from headlens.errors import CorpusError

FORMS = st.text(st.characters(categories=["L", "M", "N", "P", "S"]), min_size=1, max_size=6)
SEED = """\
# sent_id = a
# text = Er geht zum Hof, don't.
1\tEr\ter\tPRON\t_\t_\t2\tnsubj\t_\t_
2\tgeht\tgehen\tVERB\t_\t_\t0\troot\t_\t_
3-4\tzum\t_\t_\t_\t_\t_\t_\t_\t_
3\tzu\tzu\tADP\t_\t_\t5\tcase\t_\t_
4\tdem\tder\tDET\t_\t_\t5\tdet\t_\t_
5\tHof\tHof\tNOUN\t_\t_\t2\tobl\t_\tSpaceAfter=No
6\t,\t,\tPUNCT\t_\t_\t2\tpunct\t_\t_
6.1\tnull\t_\t_\t_\t_\t_\t_\t2:dep\t_
7-8\tdon't\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
7\tdo\tdo\tAUX\t_\t_\t2\tdep\t_\t_
8\tn't\tnot\tPART\t_\t_\t7\tadvmod\t_\t_
9\t.\t.\tPUNCT\t_\t_\t2\tpunct\t_\t_

1\ta\t_\t_\t_\t_\t_\t_\t_\t_
2\tb\t_\t_\t_\t_\t_\t_\t_\t_
"""


@st.composite
def sentences(draw: st.DrawFn) -> Sentence:
    """Random trees over random tokens, some of them multiword tokens that their words spell or do not spell."""
    text, spans, forms = "", [], []
    for surface in draw(st.lists(FORMS, min_size=1, max_size=7)):
        start = len(text)
        kind = draw(st.sampled_from(["word", "word", "spelt", "shared"]))
        if kind == "shared":
            parts = draw(st.lists(FORMS, min_size=2, max_size=3).filter(lambda p: len("".join(p)) != len(surface)))  # noqa: B023
            forms += parts
            spans += [(start, start + len(surface))] * len(parts)
        elif kind == "spelt" and len(surface) > 1:
            forms += [surface[:1], surface[1:]]
            spans += [(start, start + 1), (start + 1, start + len(surface))]
        else:
            forms.append(surface)
            spans.append((start, start + len(surface)))
        text += surface + draw(st.sampled_from(["", " "]))
    heads = draw(heads_of_a_tree(len(forms))) if draw(st.booleans()) else [None] * len(forms)
    relations = st.sampled_from(["nsubj", "obj", "nsubj:pass", "dep"])
    words = tuple(
        Word(f, s, e, h, None if h is None else draw(relations), draw(st.sampled_from([None, "NOUN"])))
        for f, (s, e), h in zip(forms, spans, heads, strict=True)
    )
    return Sentence(text.rstrip(" "), words, draw(st.sampled_from(["a-1", "x y"])))


@st.composite
def heads_of_a_tree(draw: st.DrawFn, length: int) -> list[int]:
    """Hang every word, in random order, on one that hangs already."""
    order = draw(st.permutations(range(length)))
    heads = [ROOT] * length
    for i in range(1, length):
        heads[order[i]] = order[draw(st.integers(0, i - 1))]
    return heads


@given(st.lists(sentences(), min_size=1, max_size=4))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, given_sentences: list[Sentence]) -> None:
    path = tmp_path_factory.getbasetemp() / "round.conllu"
    write_conllu(given_sentences, path)
    assert list(read_conllu(path)) == given_sentences


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    """The seed with a few bytes, columns or lines taken out, doubled or exchanged."""
    lines = SEED.encode().split(b"\n")
    for _ in range(draw(st.integers(1, 4))):
        i = draw(st.integers(0, len(lines) - 1))
        kind = draw(st.sampled_from(["byte", "column", "column", "drop", "double", "swap"]))
        if kind == "byte":
            at = draw(st.integers(0, len(lines[i])))
            lines[i] = lines[i][:at] + draw(st.binary(max_size=3)) + lines[i][at + draw(st.integers(0, 2)) :]
        elif kind == "column":
            columns = lines[i].split(b"\t")
            odd = st.sampled_from([b"", b"_", b"0", b"1", b"9", b"-1", b"2-1", b"3-4", b"1.1", b"x", b" ", b"99999"])
            columns[draw(st.integers(0, len(columns) - 1))] = draw(odd)
            lines[i] = b"\t".join(columns)
        elif kind == "drop":
            del lines[i]
        elif kind == "double":
            lines.insert(i, lines[i])
        else:
            j = draw(st.integers(0, len(lines) - 1))
            lines[i], lines[j] = lines[j], lines[i]
        lines = lines or [b""]
    return b"\n".join(lines)


def check_broken(path: Path, content: bytes) -> None:
    """Reading gives sound sentences or a `CorpusError` within the file; anything else fails the test."""
    path.write_bytes(content)
    refused, read = None, []
    try:
        read.extend(read_conllu(path))
    except CorpusError as error:
        refused = error
    if refused is not None:
        assert refused.path == path
        assert refused.line in range(1, content.count(b"\n") + 2)
    for sentence in read:
        assert sentence.words
        assert all(0 <= w.start < w.end <= len(sentence.text) for w in sentence.words)
        assert sentence.has_tree or all(w.head is None for w in sentence.words)


@given(mutations())
def test_broken_files_are_read_or_refused_with_a_line(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    check_broken(tmp_path_factory.getbasetemp() / "mutated.conllu", content)


@pytest.mark.parametrize("first", rest_slow(range(3)))
def test_every_byte_replaced_or_left_out(tmp_path: Path, first: int) -> None:
    """A third of all places each time."""
    data = SEED.encode()
    for at in range(first, len(data), 3):
        for new in (b"", b"\t", b"\n", b"0"):
            check_broken(tmp_path / "broken.conllu", data[:at] + new + data[at + 1 :])


def test_every_beginning_of_a_file(tmp_path: Path) -> None:
    for end in range(0, len(SEED), 3):
        check_broken(tmp_path / "cut.conllu", SEED.encode()[:end])

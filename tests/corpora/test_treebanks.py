"""Real treebanks, which stand beside the repository where there are any."""

import io
from itertools import islice
from pathlib import Path

import pytest
from saved import read_conllu
from tiers import rest_slow

from headlens.corpora.conllu import ConlluCorpus, write_conllu

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
COUNTS = {
    "ud_english_ewt/en_ewt-ud-train.conllu": 12_544,
    "ud_english_ewt/en_ewt-ud-dev.conllu": 2_001,
    "ud_english_ewt/en_ewt-ud-test.conllu": 2_077,
    "ud_english_pud/en_pud-ud-test.conllu": 1_000,
    "ud_german_pud/de_pud-ud-test.conllu": 1_000,
    "ud_french_pud/fr_pud-ud-test.conllu": 1_000,
}
pytestmark = [
    pytest.mark.shared_data,
    pytest.mark.skipif(not DATA.is_dir(), reason="needs the treebanks beside the repository"),
]


def naive_blocks(path: Path) -> list[list[list[str]]]:
    """The rows of every sentence, by splitting the file at empty lines."""
    blocks = path.read_text(encoding="utf-8").strip().split("\n\n")
    return [[line.split("\t") for line in b.split("\n") if not line.startswith("#")] for b in blocks]


@pytest.mark.parametrize("name", rest_slow(list(COUNTS), list(COUNTS)[4:5]))
def test_every_sentence_is_read(name: str, caplog: pytest.LogCaptureFixture) -> None:
    blocks = naive_blocks(DATA / name)
    count = 0
    for sentence, rows in zip(read_conllu(DATA / name), blocks, strict=True):
        count += 1
        words = [r for r in rows if r[0].isdigit()]
        assert [w.form for w in sentence.words] == [r[1] for r in words]
        assert [(w.head, w.relation) for w in sentence.words] == [(int(r[6]) - 1, r[7]) for r in words]
        assert sentence.has_tree
        ranged = {i for r in rows if "-" in r[0] for i in range(*(int(x) + k for k, x in enumerate(r[0].split("-"))))}
        for number, word in enumerate(sentence.words, 1):
            if number not in ranged:
                assert sentence.text[word.start : word.end] == word.form
            assert 0 <= word.start < word.end <= len(sentence.text)
        assert [w.start for w in sentence.words] == sorted(w.start for w in sentence.words)
    assert count == COUNTS[name]
    assert not caplog.records


@pytest.mark.parametrize("name", rest_slow([n for n in COUNTS if "pud" in n]))
def test_real_sentences_are_written_and_read_back(name: str, tmp_path: Path) -> None:
    sentences = list(islice(read_conllu(DATA / name), 300))
    write_conllu(sentences, tmp_path / "copy.conllu")
    assert list(read_conllu(tmp_path / "copy.conllu")) == sentences
    handle = io.StringIO()
    write_conllu(sentences[:1], handle)
    assert handle.getvalue().startswith(f"# sent_id = {sentences[0].id}\n# text = {sentences[0].text}\n")


def test_german_zum() -> None:
    examples = ConlluCorpus(DATA / "ud_german_pud" / "de_pud-ud-test.conllu")
    sentence = next(
        e.source for e in examples if e.source.text.startswith("Neue Bestellungen der Royal Navy zum Erhalt")
    )
    words = {i: (w.form, sentence.text[w.start : w.end]) for i, w in enumerate(sentence.words[:8])}
    assert words[5] == ("zu", "zum")
    assert words[6] == ("dem", "zum")
    assert words[7] == ("Erhalt", "Erhalt")
    assert (
        (sentence.words[5].start, sentence.words[5].end) == (33, 36) == (sentence.words[6].start, sentence.words[6].end)
    )


def test_every_zum_is_two_words_in_one_span() -> None:
    path = DATA / "ud_german_pud" / "de_pud-ud-test.conllu"
    pairs = [
        (one.form, two.form)
        for sentence in read_conllu(path)
        for one, two in zip(sentence.words, sentence.words[1:], strict=False)
        if sentence.text[one.start : one.end] == "zum" and (one.start, one.end) == (two.start, two.end)
    ]
    assert len(pairs) == sum(line.split("\t")[1:2] == ["zum"] for line in path.read_text("utf-8").splitlines())
    assert set(pairs) == {("zu", "dem")}

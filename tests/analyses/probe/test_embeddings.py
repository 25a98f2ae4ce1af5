"""Word embeddings of a probe: those of a model, and those of a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from saved import Memory, build, sentence
from torch.nn.functional import normalize
from transformers import PreTrainedTokenizerBase

from headlens.analyses.probe.embeddings import FileEmbeddings, InputEmbeddings, open_embeddings
from headlens.corpora.encoding import EncodedSequence
from headlens.corpora.sentence import Example
from headlens.errors import CorpusError, ModelError
from headlens.models.loading import LoadedModel
from headlens.runs.corpus_pass import CorpusReader

# The last word has no token of its own: it shares that of the word before.
TEXT = sentence("the unbelievable cats isn't sleeping .")
CORPUS = Memory([Example(TEXT)])


@pytest.fixture
def loaded(wordpiece_tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    return LoadedModel("tiny", build("BertModel", len(wordpiece_tokenizer)).eval(), wordpiece_tokenizer, None)


@pytest.fixture
def row(loaded: LoadedModel) -> EncodedSequence:
    example = CorpusReader.of(loaded, Example(TEXT)).encoder.encode(Example(TEXT))
    assert example is not None
    return example.source


def test_vectors_of_a_model_are_means_over_the_tokens_of_a_word(loaded: LoadedModel, row: EncodedSequence) -> None:
    vectors = open_embeddings("model", loaded.model, [CORPUS])(row)
    table = loaded.model.get_input_embeddings().weight.detach()
    assert vectors.shape == (row.n_units, table.shape[1])
    several = 0
    for unit in range(row.n_units):
        ids = [token for token, own in zip(row.ids, row.units, strict=True) if own == unit]
        several += len(ids) > 1
        torch.testing.assert_close(vectors[unit], normalize(table[ids].mean(dim=0), dim=0))
    assert several


def test_a_model_without_a_table_is_refused(loaded: LoadedModel) -> None:
    loaded.model.set_input_embeddings(torch.nn.Identity())
    with pytest.raises(ModelError, match="no table of input embeddings") as refused:
        InputEmbeddings.of(loaded.model)
    assert "embeddings=FILE" in refused.value.advice


def read(text: str, folder: Path) -> FileEmbeddings:
    path = folder / "vectors.txt"
    path.write_text(text, encoding="utf-8")
    return FileEmbeddings.read(path, [CORPUS])


def test_words_of_a_file_are_looked_up_as_they_are_and_in_lower_case(row: EncodedSequence, tmp_path: Path) -> None:
    found = read("cats 3 4\n. . . 5 6\nthe 0 -2\nunused nothing at-all\n", tmp_path)
    assert set(found.vectors) == {"cats", "the"}
    unit_of = dict(zip((word.form for word in TEXT.words), row.unit_of_word, strict=True))
    vectors = found(row)
    torch.testing.assert_close(vectors[unit_of["cats"]], torch.tensor([0.6, 0.8]))
    torch.testing.assert_close(vectors[unit_of["the"]], torch.tensor([0.0, -1.0]))
    others = [unit for form, unit in unit_of.items() if form not in ("cats", "the")]
    assert (vectors[others] == 0).all()
    assert found.note() == f"2 of {len(unit_of)} different words of the treebanks have a vector, of 2 numbers."


def test_a_first_line_of_two_counts_is_no_vector(tmp_path: Path) -> None:
    assert read("2 3\ncats 1 2 3\n", tmp_path).dimensions == 3
    assert read("cats 1\n", tmp_path).dimensions == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no vector"),
        ("cats\n", ":1: not WORD NUMBER NUMBER …: 'cats'"),
        ("the 1 2\ncats 1\n", ":2: 1 number after a word, not 2: 'cats 1'"),
        ("cats 1 x\n", ":1: not a number: could not convert string to float: 'x'"),
        ("cats 1 nan\n", ":1: a number is not finite"),
        ("dogs 1 2\n", "a vector for none of the words"),
    ],
)
def test_what_is_no_file_of_vectors_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError) as refused:
        read(text, tmp_path)
    assert message in str(refused.value)
    assert "WORD NUMBER NUMBER" in refused.value.advice


def test_a_file_that_is_not_there_is_refused(loaded: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no such file"):
        open_embeddings(str(tmp_path / "none.txt"), loaded.model, [CORPUS])

"""Word embeddings without context, for the second probe of Clark et al. (2019, section 5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from headlens.corpora.encoding import EncodedSequence
from headlens.corpora.sentence import Corpus
from headlens.corpora.text import Line, open_text
from headlens.errors import CorpusError, ModelError, counted

MODEL = "model"
_HEADER = 2  # numbers in the first line of a file of word2vec or fastText: of words, and of dimensions
_ADVICE = "Write one WORD NUMBER NUMBER … per line, separated by single spaces, as many numbers in each (GloVe)."
# From a sentence to the vectors of its units, (units, d), each of length 1; 0 for a unit without a vector.
WordEmbeddings = Callable[[EncodedSequence], Tensor]


@dataclass(frozen=True)
class InputEmbeddings:
    """The vectors that a model begins with, before positions are added: of a unit the mean over its tokens.

    Args:
        table: (vocabulary, d), float32.
    """

    table: Tensor

    @classmethod
    def of(cls, model: PreTrainedModel) -> InputEmbeddings:
        """Takes them from a model.

        Raises:
            ModelError: if its vectors do not depend on the token alone.
        """
        table = getattr(model.get_input_embeddings(), "weight", None)
        if not isinstance(table, Tensor) or table.ndim != 2:
            advice = "Give a file of word vectors: --data-args embeddings=FILE."
            raise ModelError("The model has no table of input embeddings.", advice)
        return cls(table.detach().float().cpu())

    def __call__(self, row: EncodedSequence) -> Tensor:
        """Returns the vectors of the units of a sentence."""
        units, ids = torch.tensor(row.units), torch.tensor(row.ids)
        inside = units >= 0
        # The direction of a mean is that of a sum.
        sums = torch.zeros(row.n_units, self.table.shape[1]).index_add_(0, units[inside], self.table[ids[inside]])
        return functional.normalize(sums, dim=-1)


@dataclass(frozen=True)
class FileEmbeddings:
    """Vectors of words from a file: of a unit of several words their mean, without those that the file lacks.

    Args:
        vectors: by word, (d,).
        dimensions: d.
        words: different words of the corpora.
    """

    vectors: dict[str, Tensor]
    dimensions: int
    words: frozenset[str]

    @classmethod
    def read(cls, path: str | Path, corpora: Iterable[Corpus]) -> FileEmbeddings:
        """Reads the vectors of the words of some corpora; a word is looked up as it is, then in lower case.

        Raises:
            CorpusError: if a line has another number of columns than the first, or a vector is none; if the file has
                no vector, or none of these words.
        """
        forms = {word.form for corpus in corpora for example in corpus for word in example.source.words}
        wanted, vectors, dimensions = forms | {form.lower() for form in forms}, dict[str, Tensor](), 0
        for line in open_text(path):
            columns = line.text.rstrip(" ").count(" ")
            if line.number == 1 and columns == _HEADER - 1 and line.text.replace(" ", "").isdigit():
                continue
            dimensions = dimensions or columns
            # Some words of GloVe have spaces in them.
            if not 0 < dimensions <= columns:
                found = f"{counted(columns, 'number')} after a word, not {dimensions}"
                problem = "not WORD NUMBER NUMBER …" if not columns else found
                raise CorpusError(f"{problem}: {line.text[:40]!r}", _ADVICE, path=path, line=line.number)
            word, *numbers = line.text.rstrip(" ").rsplit(" ", dimensions)
            if word in wanted:
                vectors[word] = _vector(numbers, line, path)
        if not vectors:
            problem = "has no vector." if not dimensions else "has a vector for none of the words of the treebanks."
            raise CorpusError(problem, _ADVICE, path=path)
        return cls(vectors, dimensions, frozenset(forms))

    def note(self) -> str:
        """Says how many of the words have a vector."""
        known = sum(self._vector_of(word) is not None for word in self.words)
        words = counted(len(self.words), "different word")
        return f"{known} of {words} of the treebanks have a vector, of {self.dimensions} numbers."

    def __call__(self, row: EncodedSequence) -> Tensor:
        """Returns the vectors of the units of a sentence."""
        sums = torch.zeros(row.n_units, self.dimensions)
        for word, unit in zip(row.sentence.words, row.unit_of_word, strict=True):
            vector = self._vector_of(word.form)
            if unit >= 0 and vector is not None:
                sums[unit] += vector
        return functional.normalize(sums, dim=-1)

    def _vector_of(self, form: str) -> Tensor | None:
        return self.vectors.get(form, self.vectors.get(form.lower()))


def _vector(numbers: list[str], line: Line, path: str | Path) -> Tensor:
    try:
        vector = torch.tensor([float(number) for number in numbers])
    except ValueError as error:
        raise CorpusError(f"not a number: {error}", _ADVICE, path=path, line=line.number) from error
    if not vector.isfinite().all():
        raise CorpusError("a number is not finite.", _ADVICE, path=path, line=line.number)
    return vector


def open_embeddings(spec: str, model: PreTrainedModel, corpora: Iterable[Corpus]) -> WordEmbeddings:
    """Returns the word embeddings that an option names.

    Args:
        spec: `model`, or a file.
        model: whose input embeddings `model` means.
        corpora: those whose words need vectors.

    Raises:
        InputError: if there are none, or the file cannot be read.
    """
    return InputEmbeddings.of(model) if spec == MODEL else FileEmbeddings.read(spec, corpora)

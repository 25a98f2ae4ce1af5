"""Data sets by name, through the `datasets` package."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headlens.corpora.sentence import Example
from headlens.corpora.text import plain_sentence
from headlens.errors import CorpusError


@dataclass(frozen=True)
class HubCorpus:
    """A data set of the Hugging Face hub, or a local folder of data files, streamed.

    Args:
        dataset: name or folder, with a configuration after a colon ("nyu-mll/glue:sst2").
        column: the column of sentences.
        split: which part.
        target_column: the column of translations.
    """

    dataset: str
    column: str
    split: str = "test"
    target_column: str | None = None

    @property
    def name(self) -> str:
        """Name, configuration and split."""
        return f"{self.dataset}:{self.split}"

    def __iter__(self) -> Iterator[Example]:
        """Read from the start; rows with blank text are left out.

        Raises:
            CorpusError: no such data set or no network; no such split or column.
        """
        for number, row in enumerate(self._rows(), start=1):
            source = plain_sentence(self._cell(row, self.column, number), str(number))
            target = None
            if self.target_column is not None:
                target = plain_sentence(self._cell(row, self.target_column, number), str(number))
            if source.words and (target is None or target.words):
                yield Example(source, target)

    def _rows(self) -> Iterator[dict[str, Any]]:
        import datasets  # noqa: PLC0415 - costs a second, and few corpora come from the hub

        path, _, configuration = self.dataset.partition(":")
        try:
            splits = datasets.load_dataset(path, configuration or None, streaming=True)
        except (OSError, ValueError, RuntimeError) as error:
            raise CorpusError(
                f"hub:{self.dataset} cannot be loaded: {_first_line(error)}",
                "Check the name and the network; a folder with data files works offline.",
            ) from error
        if self.split not in splits:
            raise CorpusError(f"hub:{self.dataset} has no split {self.split!r}.", f"Splits: {', '.join(splits)}.")
        yield from splits[self.split]

    def _cell(self, row: dict[str, Any], column: str, number: int) -> str:
        if column not in row:
            raise CorpusError(f"hub:{self.dataset} has no column {column!r}.", f"Columns: {', '.join(row)}.")
        value = row[column]
        if not isinstance(value, str):
            raise CorpusError(f"hub:{self.dataset}, row {number}: {column!r} holds {type(value).__name__}, not text.")
        return value


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

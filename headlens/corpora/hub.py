"""Data sets by name, through the `datasets` package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headlens.corpora.cells import text_cell
from headlens.corpora.sentence import Example, Sentence
from headlens.corpora.text import full_examples, plain_sentence
from headlens.errors import CorpusError

# Kinds of single files that `datasets` reads, and the name of its reader.
READERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv", ".arrow": "arrow"}
ADVICE = "Check the name and the network; a local file or a folder with data files works offline."


@dataclass(frozen=True)
class HubCorpus:
    """A data set of the Hugging Face hub, a local folder of data files or a single one, streamed.

    Args:
        dataset: name, with a configuration after a colon ("nyu-mll/glue:sst2"); or a folder, also one that
            `save_to_disk` wrote; or a file `.parquet`, `.json`, `.jsonl`, `.csv`, `.arrow`, which has any split.
        column: the column of sentences; a path for columns in columns ("translation.en").
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
        """Read from the start; rows with blank or null text are left out (pairs so lost are logged).

        Raises:
            CorpusError: no such data set or no network; no such split or column; broken data.
        """
        return full_examples(self._pairs(), self.name)

    def _pairs(self) -> Iterator[tuple[Sentence, Sentence | None]]:
        for number, row in enumerate(self._rows(), start=1):
            target = None if self.target_column is None else self._sentence(row, self.target_column, number)
            yield self._sentence(row, self.column, number), target

    def _sentence(self, row: Mapping[str, Any], column: str, number: int) -> Sentence:
        return plain_sentence(text_cell(row, column, f"hub:{self.dataset}"), str(number))

    def _rows(self) -> Iterator[Mapping[str, Any]]:
        try:
            splits = self._splits()
        except (OSError, ValueError, RuntimeError) as error:
            raise self._unreadable("cannot be loaded", error) from error
        if self.split not in splits:
            raise CorpusError(f"hub:{self.dataset} has no split {self.split!r}.", f"Splits: {', '.join(splits)}.")
        try:
            yield from splits[self.split]
        except Exception as error:  # what streaming raises is pyarrow's, fsspec's or the network library's
            raise self._unreadable("cannot be read to its end", error) from error

    def _splits(self) -> Mapping[str, Any]:
        import datasets  # noqa: PLC0415 - costs a second, and few corpora come from the hub

        local = Path(self.dataset)
        if local.is_file():
            reader = READERS.get(local.suffix.lower(), "json")
            files = {self.split: str(local)}
            return dict(datasets.load_dataset(reader, data_files=files, streaming=True))
        if (local / "dataset_dict.json").is_file():
            return dict(datasets.load_from_disk(str(local)))
        if (local / "state.json").is_file():
            return {self.split: datasets.load_from_disk(str(local))}
        if not local.is_dir() and self.dataset.startswith((".", "/", "~")):
            raise FileNotFoundError("no such file or folder")
        path, _, configuration = self.dataset.partition(":")
        return dict(datasets.load_dataset(path, configuration or None, streaming=True))

    def _unreadable(self, what: str, error: Exception) -> CorpusError:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return CorpusError(f"hub:{self.dataset} {what}: {reason}", ADVICE)

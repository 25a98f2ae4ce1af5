"""Data sets of the Hugging Face hub and local data files, through the `datasets` package."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from headlens.corpora.broken_rows import sound
from headlens.corpora.sentence import Example
from headlens.corpora.table import cell_examples
from headlens.corpora.text import file_stem
from headlens.errors import CorpusError
from headlens.files import full_disk
from headlens.hub_access import FULL_CACHE, hub_answers, only_cache
from headlens.unchanged_files import unchanged

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
        split: part of the data set.
        target_column: the column of translations.
        offline: never ask the hub; use what is in its local cache.
    """

    dataset: str
    column: str
    split: str = "test"
    target_column: str | None = None
    offline: bool = False

    @property
    def name(self) -> str:
        """Name, configuration and split; of a file, its name without its ending."""
        return file_stem(self.dataset) if Path(self.dataset).is_file() else f"{self.dataset}:{self.split}"

    def __iter__(self) -> Iterator[Example]:
        """Reads the rows from the start; rows with blank or null text are left out (pairs so lost are logged).

        Raises:
            CorpusError: no such data set or no network; no such split or column; broken data.
        """
        return sound(self.readings())

    def readings(self) -> Iterator[Example | CorpusError]:
        """Reads the rows from the start; yields what is wrong with a row that cannot be read."""
        return cell_examples(enumerate(self.rows(), 1), self.column, self.target_column, self.place, self.name)

    @property
    def place(self) -> str:
        """Location of the data set in error messages: its path if it exists locally, else `hub:` and its name."""
        return self.dataset if Path(self.dataset).exists() else f"hub:{self.dataset}"

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """Yields rows as they are, whatever columns they have; errors as when sentences are read."""
        with unchanged(self.dataset):
            part = self._part
            with self._told("cannot be read completely"):
                yield from part

    def class_names(self, column: str) -> tuple[str, ...]:
        """Returns the names of a column of classes (`ClassLabel`) in the order of their numbers; empty for others.

        Raises:
            CorpusError: as when sentences are read.
        """
        return tuple(getattr((self._part.features or {}).get(column), "names", ()))

    @cached_property
    def _part(self) -> Any:
        """The split, loaded once; it is read from the start any number of times."""
        path = Path(self.dataset)
        with self._told("cannot be loaded"):
            splits = _from_file(path, self.split) if path.exists() else self._from_hub()
        if self.split not in splits:
            advice = f"Choose one with --split: {', '.join(splits)}."
            raise CorpusError(f"there is no split {self.split!r}.", advice, path=self.place)
        return splits[self.split]

    def _from_hub(self) -> Mapping[str, Any]:
        import datasets  # noqa: PLC0415 - costs a second, and few corpora come from the hub

        if self.dataset.startswith((".", "/", "~")):
            raise CorpusError("no such file or folder.", "Check the spelling.", path=self.place)
        path, _, configuration = self.dataset.partition(":")
        offline = self.offline or datasets.config.HF_HUB_OFFLINE
        unreachable = not offline and not Path(path).is_dir() and not hub_answers()
        try:
            with only_cache(enabled=offline or unreachable):
                return dict(datasets.load_dataset(path, configuration or None, streaming=True))
        except ConnectionError as error:
            reason = "offline mode is on" if offline else "the hub cannot be reached"
            advice = f"Leave out --offline, unset HF_DATASETS_OFFLINE. {ADVICE}" if offline else ADVICE
            raise CorpusError(f"not in the local cache, and {reason}.", advice, path=self.place) from error

    @contextmanager
    def _told(self, problem: str) -> Iterator[None]:
        """Turns what `datasets` raises into an error with its first line, and keeps what it logs off the screen."""
        from datasets import logging  # noqa: PLC0415

        verbosity = logging.get_verbosity()
        logging.set_verbosity(logging.CRITICAL)
        try:
            yield
        except CorpusError:
            raise
        except Exception as error:  # pyarrow's, fsspec's, the network library's or that of `datasets`
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            local = Path(self.dataset).is_file()
            advice = "The file is damaged, or not of the kind that its name suggests." if local else ADVICE
            advice = FULL_CACHE if full_disk(error) is not None else advice
            raise CorpusError(f"{problem}: {reason}", advice, path=self.place) from error
        finally:
            logging.set_verbosity(verbosity)


def _from_file(path: Path, split: str) -> Mapping[str, Any]:
    """Loads the splits of a file, of a folder that `save_to_disk` wrote, or of a folder with data files."""
    import datasets  # noqa: PLC0415

    if path.is_file():
        reader = READERS.get(path.suffix.lower(), "json")
        # `datasets` takes a pattern: "a[1].json" would be no file, "b*.json" several.
        return dict(datasets.load_dataset(reader, data_files={split: glob.escape(str(path))}, streaming=True))
    if (path / "dataset_dict.json").is_file():
        return dict(datasets.load_from_disk(str(path)))
    if (path / "state.json").is_file():
        return {split: datasets.load_from_disk(str(path))}
    return dict(datasets.load_dataset(str(path), streaming=True))

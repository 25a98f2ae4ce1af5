"""Names that data sets of `datasets` and files with its metadata give to the numbers of their classes."""

from __future__ import annotations

from pathlib import Path

from headlens.corpora.hub import HubCorpus, _from_file
from headlens.tasks.row_readers import HubRows, RowSource


class FeaturedCorpus(HubCorpus):
    """A data set of which the features of the columns are asked."""

    def class_names(self, column: str) -> tuple[str, ...]:
        """Returns the names of a column of classes (`ClassLabel`) in the order of their numbers; empty for others.

        Raises:
            CorpusError: as in `rows`.
        """
        path = Path(self.dataset)
        with self._told("cannot be loaded"):
            splits = _from_file(path, self.split) if path.exists() else self._from_hub()
            return tuple(getattr((splits[self.split].features or {}).get(column), "names", ()))


def class_features(rows: RowSource, column: str) -> tuple[str, ...]:
    """Returns the names that the source of rows gives to the numbers of a column; empty where it gives none."""
    if not isinstance(rows, HubRows):
        return ()
    return FeaturedCorpus(rows.dataset, "", rows.split, offline=rows.offline).class_names(column)

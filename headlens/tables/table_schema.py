"""How a table is declared: its columns with kind, unit and meaning, from which it is written, read and documented."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import pandas as pd

Kind = Literal["index", "count", "number", "share", "word", "truth"]


@dataclass(frozen=True)
class TableColumn:
    """A column of a table.

    Args:
        name: as the first line of the file has it. A part in capitals stands for several names: `area_METHOD`.
        about: what a cell is, and what it is not, in a sentence.
        unit: of the numbers.
        kind: `index`, a whole number from 0, never empty, such as a layer; `count`, a whole number not below 0;
            `number`; `share`, a number from 0 to 1; `word`; `truth`. All but an index may be empty.
        words: those that are allowed, of which one has to be there unless the column is optional; none for any.
        filled: whether a word is never empty, though any is allowed.
        optional: whether tables may lack it, such as those of earlier versions; a name stands for a group of columns
            that are there together or not at all.
    """

    name: str
    about: str
    unit: str = ""
    kind: Kind = "number"
    words: tuple[str, ...] = ()
    filled: bool = False
    optional: bool | str = False

    def but(self, about: str = "", **changes: Any) -> TableColumn:
        """Returns the column with another sentence, or other fields."""
        return replace(self, about=about or self.about, **changes)


index, count = partial(TableColumn, kind="index"), partial(TableColumn, kind="count")
number, share = partial(TableColumn, kind="number"), partial(TableColumn, kind="share")
word, truth = partial(TableColumn, kind="word"), partial(TableColumn, kind="truth")


@dataclass(frozen=True)
class TableSchema:
    """A kind of table.

    Args:
        name: of the file, without `.csv`.
        about: what a row is.
        columns: in the order in which they are written.
        identity: names of the columns that tell one row from another, as far as a table has them; none where rows may
            be alike.
    """

    name: str
    about: str
    columns: tuple[TableColumn, ...]
    identity: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of the columns in the order of the file."""
        return list(names_of(self.columns))

    @property
    def words(self) -> list[str]:
        """Names of the columns of words, whose cells stay text even where they look like numbers or truth values."""
        return [column.name for column in self.columns if column.kind == "word"]

    def frame(self, rows: Iterable[Any]) -> pd.DataFrame:
        """Makes the table from its rows; cells that they lack are empty, and what is no column is left out."""
        return pd.DataFrame(list(rows), columns=self.names)


def names_of(columns: Iterable[TableColumn]) -> tuple[str, ...]:
    """Returns the names of columns in their order."""
    return tuple(column.name for column in columns)


def optional(*columns: TableColumn, group: bool | str = True) -> tuple[TableColumn, ...]:
    """Returns columns that tables may lack, each by itself or, with the name of a group, all together."""
    return tuple(replace(column, optional=group) for column in columns)

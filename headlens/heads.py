"""An attention head, and a table with rows about heads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.errors import OptionError, counted
from headlens.options import StackName

Stack: TypeAlias = StackName
STACKS: tuple[Stack, ...] = get_args(Stack)
KEY_COLUMNS = ["stack", "layer", "head"]
# Layers, or heads of a layer; a larger number is damage, and would take all memory for what there is one of for each.
MOST_HEADS = 4096
_NUMBER = re.compile(r"[0-9]{1,9}")


class Head(NamedTuple):
    """One attention head; layers and heads count from 0, everywhere.

    With shared weights (ALBERT) `layer` is the depth: the same weights are another head at every depth.
    """

    stack: Stack
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.stack}.{self.layer}.{self.head}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Read `encoder.3.1`.

        Raises:
            OptionError: if `text` is not `STACK.LAYER.HEAD`.
        """
        parts = text.strip().split(".")
        if len(parts) != 3 or parts[0] not in STACKS or not all(_NUMBER.fullmatch(p) for p in parts[1:]):
            raise OptionError(
                f"{text!r} is not the name of a head.",
                f"Write STACK.LAYER.HEAD, such as encoder.3.1; stacks: {', '.join(STACKS)}.",
            )
        stack: Stack = parts[0]
        return cls(stack, int(parts[1]), int(parts[2]))


@dataclass(frozen=True)
class HeadTable:
    """Tidy rows about heads: columns `stack, layer, head`, then one column per quantity.

    A table has one row per head (`heads.csv`) or several (`syntax.csv`: one per relation and direction).
    Rows stand in the order encoder, decoder, cross; then layer; then head; then as they were made.
    """

    rows: pd.DataFrame

    def __post_init__(self) -> None:
        missing = [c for c in KEY_COLUMNS if c not in self.rows.columns]
        if missing:
            raise ValueError(f"a head table needs the columns {KEY_COLUMNS}; missing: {missing}")
        places = self.rows["stack"].map({s: i for i, s in enumerate(STACKS)})
        order = np.lexsort((self.rows["head"], self.rows["layer"], places))
        first = KEY_COLUMNS + [c for c in self.rows.columns if c not in KEY_COLUMNS]
        in_order = (order[1:] > order[:-1]).all()
        ordered = self.rows if in_order else self.rows.iloc[order]
        object.__setattr__(self, "rows", ordered[first].reset_index(drop=True))

    @classmethod
    def from_columns(cls, heads: Sequence[Head], **columns: Sequence[object] | npt.NDArray[np.generic]) -> HeadTable:
        """Make a table from heads and columns of the same length."""
        keys = {k: [h[i] for h in heads] for i, k in enumerate(KEY_COLUMNS)}
        return cls(pd.DataFrame({**keys, **columns}))

    @property
    def heads(self) -> list[Head]:
        """The heads of the table, each once, in order."""
        keys = self.rows[KEY_COLUMNS].drop_duplicates()
        return [Head(s, int(layer), int(head)) for s, layer, head in keys.itertuples(index=False)]

    @property
    def stacks(self) -> list[Stack]:
        """The stacks that occur, in the order encoder, decoder, cross."""
        present = set(self.rows["stack"])
        return [s for s in STACKS if s in present]

    def grid(self, column: str, stack: Stack) -> npt.NDArray[np.float64]:
        """One column of one stack as a matrix (layers, heads); NaN where there is no such head.

        Raises:
            ValueError: if the table has no head of the stack, or more than one row for a head.
        """
        part = self.rows[self.rows["stack"] == stack]
        if part.empty:
            raise ValueError(f"the table has no {stack} heads; its stacks: {', '.join(self.stacks) or 'none'}")
        if part.duplicated(KEY_COLUMNS).any():
            raise ValueError("a grid needs one row per head")
        matrix = part.pivot_table(index="layer", columns="head", values=column, dropna=False)
        shape = range(int(part["layer"].max()) + 1), range(int(part["head"].max()) + 1)
        return matrix.reindex(index=shape[0], columns=shape[1]).to_numpy(np.float64)

    def join(self, *others: HeadTable) -> HeadTable:
        """The columns of several tables, by head; a head that one of the others lacks gets empty cells.

        Raises:
            ValueError: if one of the others has several rows for a head, or two tables have a column of one name.
        """
        heads = pd.MultiIndex.from_frame(self.rows[KEY_COLUMNS])
        parts = [self.rows]
        for other in others:
            rows = other.rows.drop(columns=KEY_COLUMNS)
            if len(rows) != len(heads) or not (other.rows[KEY_COLUMNS] == self.rows[KEY_COLUMNS]).all(axis=None):
                rows.index = pd.MultiIndex.from_frame(other.rows[KEY_COLUMNS], names=KEY_COLUMNS)
                rows = rows.reindex(heads).reset_index(drop=True)
            parts.append(rows)
        joined = pd.concat(parts, axis=1)
        if not joined.columns.is_unique:
            twice = ", ".join(map(str, joined.columns[joined.columns.duplicated()]))
            raise ValueError(f"several tables have the columns {twice}")
        return HeadTable(joined)

    def with_model(self, model: str) -> pd.DataFrame:
        """The rows as written to a CSV: `model` in front."""
        frame = self.rows.copy()
        frame.insert(0, "model", model)
        return frame


def layers_text(counts: Sequence[int]) -> str:
    """The heads of the layers of a stack in words, such as `12 heads in each of 6 layers, 72 in all`.

    Args:
        counts: heads of each layer, which differ where some were cut out.
    """
    low, high = min(counts), max(counts)
    each = counted(high, "head") if low == high else f"{low} to {high} heads"
    return (
        f"{each} in each of {len(counts)} layers, {sum(counts):,} in all" if len(counts) > 1 else f"{each} in 1 layer"
    )


def parse_heads(names: Sequence[str]) -> list[Head]:
    """Heads by name, each once.

    Raises:
        OptionError: if a name is none of a head.
    """
    return list(dict.fromkeys(Head.parse(name) for name in names))

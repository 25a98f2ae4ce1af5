"""Tables are refused with the file, line and column that is wrong, and declared columns are those that are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from headlens.errors import InputError
from headlens.files import read_csv
from headlens.tables.table_check import check_table
from headlens.tables.table_schema import TableSchema, count, index, number, optional, share, truth, word

COLUMNS = (
    index("layer", "Layer."),
    number("share", "Share."),
    word("model", "Model."),
    word("stack", "Stack.", words=("encoder", "cross")),
)
SCHEMA = TableSchema("heads", "A head.", COLUMNS)
GOOD = pd.DataFrame({"model": ["a", "b"], "stack": ["encoder", "cross"], "layer": [0, 1], "share": [0.5, None]})
KINDS = TableSchema(
    "kinds",
    "A row.",
    (
        share("p", "A share."),
        count("n", "A count."),
        word("model", "A model.", filled=True),
        truth("kept", "Whether it is kept."),
    ),
)
MADE = pd.DataFrame({"model": ["a", "b"], "p": [0.5, None], "n": [0, 7], "kept": [True, None]})
MADE = MADE.assign(more=[None, 1.5], roles=["none", "1"], drawn=[True, False])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layer": [0, -1]}, "3: column layer holds '-1'; expected a whole number from 0 to 4096."),
        ({"layer": [0.5, 1]}, "2: column layer holds '0.5'; expected a whole number from 0 to 4096."),
        ({"layer": [0, None]}, "3: column layer is empty; expected a whole number from 0 to 4096."),
        ({"layer": [0, 10**12]}, "3: column layer holds '1000000000000'; expected a whole number from 0 to 4096."),
        ({"layer": ["x", "y"]}, "2: column layer holds 'x'; expected a whole number from 0 to 4096."),
        ({"share": [0.5, -np.inf]}, "3: column share holds '-inf'; expected a finite number."),
        ({"share": [0.5, "abc"]}, "3: column share holds 'abc'; expected a finite number."),
        ({"stack": ["encoder", "upper"]}, "3: column stack holds 'upper'; expected one of encoder, cross."),
        ({"stack": [None, "cross"]}, "2: column stack is empty; expected one of encoder, cross."),
    ],
)
def test_cells_that_cannot_be(change: dict[str, Any], words: str) -> None:
    path = Path("run/heads.csv")
    check_table(SCHEMA, GOOD, path)
    with pytest.raises(InputError) as found:
        check_table(SCHEMA, GOOD.assign(**change), path)
    assert found.value.message == f"run/heads.csv:{words}"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"p": [0.5, -0.1]}, "3: column p holds '-0.1'; expected a number from 0 to 1."),
        ({"n": [1.5, 1]}, "2: column n holds '1.5'; expected a whole number of at least 0."),
        ({"model": ["a", None]}, "3: column model is empty; expected a word."),
        ({"kept": [True, "Fals"]}, "3: column kept holds 'Fals'; expected True or False."),
        # what nobody declared
        ({"more": ["\x000.5", 1.5]}, "2: column more holds '\\x000.5'; expected a number or truth value."),
        ({"more": [1.5, np.inf]}, "3: column more holds 'inf'; expected a finite number."),
        ({"drawn": ["x", "False"]}, "2: column drawn holds 'x'; expected a number or truth value."),
    ],
)
def test_cells_of_another_kind(change: dict[str, Any], words: str) -> None:
    check_table(KINDS, MADE, Path("x.csv"))
    with pytest.raises(InputError) as found:
        check_table(KINDS, MADE.assign(**change), Path("x.csv"))
    assert found.value.message == f"x.csv:{words}"


def test_the_line_is_that_of_an_editor(tmp_path: Path) -> None:
    """Quoted cells go on over lines, and blank lines are no rows."""
    path = tmp_path / "heads.csv"
    path.write_text('model,stack,layer,share\n"a\nb",encoder,0,\n\n"c\nd",cross,x,\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"heads\.csv:5: column layer holds 'x'"):
        check_table(SCHEMA, read_csv(path), path)


def test_missing_columns_are_named() -> None:
    with pytest.raises(InputError, match=r"^x\.csv: no column layer, model\."):
        check_table(SCHEMA, GOOD.drop(columns=["layer", "model"]), Path("x.csv"))


def test_a_row_is_there_once() -> None:
    schema = TableSchema("x", "A head.", COLUMNS[::2], ("model", "layer"))
    twice = pd.DataFrame({"model": ["a", "b", "a"], "layer": [0, 0, 0]})
    check_table(schema, twice.iloc[:2], Path("x.csv"))
    with pytest.raises(InputError, match=r"^x\.csv:4: a row for a, 0 appears twice\."):
        check_table(schema, twice, Path("x.csv"))


def test_later_columns_tell_rows_apart_where_they_are() -> None:
    kind = word("kind", "What earlier versions lack.", optional=True)
    schema = TableSchema("x", "A row.", (COLUMNS[0], kind), ("layer", "kind"))
    check_table(schema, pd.DataFrame({"layer": [0, 1]}), Path("x.csv"))
    table = pd.DataFrame({"layer": [0, 0, 0], "kind": ["global", "random", "global"]})
    check_table(schema, table.iloc[:2], Path("x.csv"))
    with pytest.raises(InputError, match=r"^x\.csv:4: a row for 0, global appears twice\."):
        check_table(schema, table, Path("x.csv"))


def test_an_empty_table_is_fine() -> None:
    check_table(SCHEMA, GOOD.iloc[:0], Path("x.csv"))


def test_columns_of_a_group_are_there_together_or_not_at_all() -> None:
    later = optional(number("delta", "A difference."), word("verdict", "Verdict.", words=("yes",)), group="verdict")
    schema = TableSchema("x", "A row.", (COLUMNS[0], *later, number("chance", "Chance.", optional=True)))
    check_table(schema, pd.DataFrame({"layer": [0]}), Path("x.csv"))
    table = pd.DataFrame({"layer": [0, 1], "delta": [0.5, None], "verdict": ["yes", None]})
    check_table(schema, table, Path("x.csv"))
    with pytest.raises(InputError, match=r"^x\.csv: no column verdict\."):
        check_table(schema, table.drop(columns="verdict"), Path("x.csv"))
    with pytest.raises(InputError, match=r"^x\.csv:2: column verdict holds 'no'; expected one of yes\."):
        check_table(schema, table.assign(verdict="no"), Path("x.csv"))
    with pytest.raises(InputError, match=r"^x\.csv:3: column chance holds 'inf'; expected a finite number\."):
        check_table(schema, table.assign(chance=[0.5, np.inf]), Path("x.csv"))


def test_a_table_is_made_from_its_rows() -> None:
    made = TableSchema("x", "A head.", COLUMNS).frame({"layer": n, "share": 0.5, "other": 1} for n in range(2))
    assert list(made.columns) == ["layer", "share", "model", "stack"]
    assert made["layer"].tolist() == [0, 1]
    assert made["model"].isna().all()

"""Heads and tables about them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from headlens.errors import OptionError
from headlens.heads import Head, HeadTable, layers_text

HEADS = [Head("cross", 0, 1), Head("encoder", 1, 0), Head("decoder", 0, 0), Head("encoder", 0, 1)]


def test_a_head_reads_what_it_writes() -> None:
    for head in HEADS:
        assert Head.parse(str(head)) == head
    assert Head.parse(" encoder.11.3 ") == Head("encoder", 11, 3)


@pytest.mark.parametrize(
    "text",
    ["", "3.1", "encoder", "encoder.3", "encoder.3.x", "encoder.-1.0", "Encoder.0.0", "encoder.0.0.0", "encoder.².0"],
)
def test_what_is_no_head(text: str) -> None:
    with pytest.raises(OptionError, match=r"is not the name of a head\.\nWrite STACK.LAYER.HEAD, such as encoder.3.1"):
        Head.parse(text)


def test_rows_stand_in_the_order_of_stacks_layers_and_heads() -> None:
    table = HeadTable.from_columns(HEADS, value=[1, 2, 3, 4])
    assert [str(h) for h in table.heads] == ["encoder.0.1", "encoder.1.0", "decoder.0.0", "cross.0.1"]
    assert table.rows["value"].tolist() == [4, 2, 3, 1]
    assert table.stacks == ["encoder", "decoder", "cross"]


def test_rows_of_one_head_keep_their_order() -> None:
    table = HeadTable.from_columns([HEADS[1], HEADS[3]] * 3, value=range(6))
    assert table.rows["value"].tolist() == [1, 3, 5, 0, 2, 4]
    assert table.heads == [HEADS[3], HEADS[1]]


def test_keys_come_first_and_must_be_there() -> None:
    frame = pd.DataFrame({"value": [1], "head": [0], "layer": [0], "stack": ["encoder"]})
    assert list(HeadTable(frame).rows) == ["stack", "layer", "head", "value"]
    with pytest.raises(ValueError, match=r"missing: \['layer'\]"):
        HeadTable(frame.drop(columns="layer"))


def test_grid() -> None:
    grid = HeadTable.from_columns(HEADS, value=[1.0, 2.0, 3.0, 4.0]).grid("value", "encoder")
    np.testing.assert_array_equal(grid, [[np.nan, 4.0], [2.0, np.nan]])


def test_grid_of_empty_cells() -> None:
    grid = HeadTable.from_columns(HEADS, value=[np.nan] * 4).grid("value", "encoder")
    assert grid.shape == (2, 2)
    assert np.isnan(grid).all()


def test_grid_needs_one_row_per_head() -> None:
    with pytest.raises(ValueError, match="one row per head"):
        HeadTable.from_columns(HEADS * 2, value=range(8)).grid("value", "encoder")


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([12] * 6, "12 heads in each of 6 layers, 72 in all"),
        ([12, 0, 1], "0 to 12 heads in each of 3 layers, 13 in all"),
        ([1, 1], "1 head in each of 2 layers, 2 in all"),
        ([4], "4 heads in 1 layer"),
    ],
)
def test_heads_of_layers_in_words(counts: list[int], words: str) -> None:
    assert layers_text(counts) == words


@pytest.mark.parametrize(("heads", "stacks"), [([Head("encoder", 0, 0)], "encoder"), ([], "none")])
def test_grid_of_an_absent_stack(heads: list[Head], stacks: str) -> None:
    with pytest.raises(ValueError, match=f"the table has no cross heads; its stacks: {stacks}$"):
        HeadTable.from_columns(heads, value=np.ones(len(heads))).grid("value", "cross")


def test_join() -> None:
    left = HeadTable.from_columns(HEADS, a=[1, 2, 3, 4])
    right = HeadTable.from_columns(HEADS[:2], b=[10.0, 20.0])
    rows = left.join(right).rows
    assert rows["a"].tolist() == [4, 2, 3, 1]
    np.testing.assert_array_equal(rows["b"], [np.nan, 20, np.nan, 10])
    alike = HeadTable.from_columns(HEADS, c=range(4))
    rows = left.join(alike, right, HeadTable.from_columns(HEADS[::-1], d=range(4))).rows
    assert rows[["a", "c", "d"]].to_numpy().tolist() == [[4, 3, 0], [2, 1, 2], [3, 2, 1], [1, 0, 3]]
    np.testing.assert_array_equal(rows["b"], [np.nan, 20, np.nan, 10])
    with pytest.raises(ValueError, match="unique"):
        left.join(HeadTable.from_columns(HEADS[:1] * 2, b=[1, 2]))
    with pytest.raises(ValueError, match="several tables have the columns c"):
        left.join(alike, alike)


def test_model_comes_first() -> None:
    table = HeadTable.from_columns(HEADS, value=range(4))
    assert list(table.with_model("bert")) == ["model", "stack", "layer", "head", "value"]
    assert "model" not in table.rows

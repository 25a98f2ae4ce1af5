"""Tables for papers: what they say, and that they are no wider than their place, measured with Computer Modern."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import get_data_path
from matplotlib.ft2font import FT2Font

from headlens.pages.formatting import slug
from headlens.pages.latex_tables import latex_table
from headlens.pages.page_tables import Cell, interval_cell, number_cell, page_table

LEVELS = {"model": "m", "task": "sst2", "metric": "accuracy", "mode": "zero"}


def ablated(head: str, change: float) -> dict[str, Any]:
    """A row of the widest table that there is: fifteen columns."""
    ends = (change - 0.05, change, change + 0.05, 0.0)
    return LEVELS | {
        "head": head, "all heads": number_cell(0.748), "value": number_cell(0.748 + change),
        "change": number_cell(change), "95 % CI": interval_cell(ends, (-1.0, 1.0)), "p (Holm)": 0.035 - change / 10,
        "significant": "yes", "n": 208, "verdict": "needed" if change < 0 else "not decided",
        "margin": number_cell(0.01), "examples that would decide": Cell("about 1,600" if change > 0 else ""),
    }  # fmt: skip


ABLATED = [ablated("encoder.5.9", -0.077), ablated("encoder.10.11", 0.018)]


def head_of(tex: str) -> list[str]:
    line = tex.split("\\toprule\n")[1].split("\n", maxsplit=1)[0].removesuffix(r" \\")
    plain = re.sub(r"\\shortstack\[.\]\{([^}]*)\}", r"\1", line)
    return [cell.replace(r"\\", " ").replace("\\", "") for cell in plain.split(" & ")]


def inches(tex: str) -> float:
    """Width of the table in `\\footnotesize`, whose letters are 6.25 % wider than those of the 10 point font there."""
    font = FT2Font(f"{get_data_path()}/fonts/ttf/cmr10.ttf")
    font.set_size(8, 72)

    def points(text: str) -> float:
        plain = re.sub(r"\$[^$]*\$", "M", text.replace("\\%", "%").replace("\\_", "_"))
        return sum(1.0625 * font.load_char(ord(letter)).linearHoriAdvance / 65536 for letter in plain)

    kinds = re.findall(r"p\{(\d+)pt\}|[lr]", tex.split("\\begin{tabular}{@{}")[1].split("@{}}", maxsplit=1)[0])
    body = tex.split("\\toprule\n")[1].split("\\bottomrule", maxsplit=1)[0].replace("\\midrule\n", "")
    rows = []
    for line in body.strip().split("\n"):
        cells = [re.sub(r"\\shortstack\[.\]\{(.*)\}", r"\1", cell) for cell in line.removesuffix(r" \\").split(" & ")]
        parts = [re.sub(r"\{\\raggedright (.*)\\par\}", r"\1", cell) for cell in cells]
        pieces = [
            re.split(r"\\\\|\\allowbreak\{\}" + (r"|\s" if k else ""), c) for c, k in zip(parts, kinds, strict=True)
        ]
        rows.append([max(map(points, piece)) for piece in pieces])
    columns = [max(column) for column in zip(*rows, strict=True)]
    assert all(float(kind) >= width for kind, width in zip(kinds, columns, strict=True) if kind)
    wide = [float(kind or width) for kind, width in zip(kinds, columns, strict=True)]
    return (sum(wide) + 6 * (len(wide) - 1)) / 72


def test_a_table_of_a_paper() -> None:
    records = [{"head": "encoder.0.1", "change": -0.25, "n": 3}, {"head": "a_b", "change": 0.5, "n": 12}]
    table = page_table("Heads needed", records, "All of 50 % (dot, line; tick: none).")
    assert latex_table(table).splitlines() == [
        r"% needs \usepackage{booktabs}; made for 7 inches",
        r"\begin{table*}",
        r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
        r"\caption{Heads needed. All of 50 \%.}",
        r"\label{tab:heads-needed}",
        r"\begin{tabular}{@{}lrr@{}}",
        r"\toprule",
        r"head & change & n \\",
        r"\midrule",
        r"encoder.0.1 & $-$0.250 & 3 \\",
        r"a\_b & 0.500 & 12 \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table*}",
    ]
    assert slug("Best head, of every relation!") == "best-head-of-every-relation"
    assert slug("?") == "table"
    assert r"\caption{Do they agree?}" in latex_table(page_table("Do they agree?", records))


def test_what_is_the_same_in_every_row_is_said_in_the_caption_and_details_stay_in_the_files() -> None:
    table = page_table("Losses", ABLATED, "`value` is without the head.")
    full, column = (latex_table(table, width) for width in ("full", "column"))
    whole = ["head", "value", "change [95 % CI]", "p (Holm)", "verdict", "examples that would decide"]
    assert head_of(full) == whole
    assert head_of(column) == [whole[0], whole[2], whole[3], whole[4]]
    same = "model m, task sst2, metric accuracy, mode zero, all heads 0.748, significant yes, n 208, margin 0.010"
    for tex, environment in ((full, "table*"), (column, "table")):
        assert f"\\begin{{{environment}}}\n" in tex
        assert f"The same in all rows: {same}.}}" in tex
        assert r"$-$0.077 [$-$0.127, $-$0.027]" in tex
    assert "left out" not in full
    assert r"\caption{Losses. value is without the head. The same" in full
    # What would be said of columns that are not there is a remark.
    assert r"\caption{Losses. The same" in column
    assert column.splitlines()[2] == "% of the whole table: value is without the head."
    assert column.splitlines()[1] == "% left out, see the CSV files of the run: value, examples that would decide"
    assert (inches(full) < 7, inches(column) < 3.3) == (True, True)


def test_of_one_row_the_settings_are_said_in_the_caption() -> None:
    tex = latex_table(page_table("Losses", ABLATED[:1]))
    assert head_of(tex) == ["head", "all heads", "value", "change [95 % CI]", "p (Holm)", "sig.", "n", "verdict"]
    assert "The same in all rows: model m, task sst2, metric accuracy, mode zero, margin 0.010.}" in tex


def test_values_are_never_left_out_for_settings() -> None:
    names = ("model", "task", "data", "metric", "n")
    row = {**dict.fromkeys(names, "a-rather-long-word"), "value": 0.5, "95 % CI": Cell("0.25 to 0.75")}
    one = latex_table(page_table("What the model achieves", [row]), "column")
    assert head_of(one) == ["n", "value [95 % CI]"]
    assert "metric a-rather-long-word" in one
    two = [row | dict.fromkeys(names, f"a-rather-long-word-{number}") for number in range(2)]
    assert head_of(latex_table(page_table("What models achieve", two), "column")) == [
        "model",
        "metric",
        "value [95 % CI]",
    ]


def test_rows_stay_told_apart_and_take_the_page_where_a_column_has_no_room() -> None:
    """Without patterns a table of masks would be numbers of nobody."""
    rows: list[dict[str, Any]] = [
        {"folder": f"run{number}", "pattern": f"a-pattern-of-{word}", "control": control, "value": 0.5}
        | {"95 % CI": Cell("0.25 to 0.75"), "delta": 0.1, "delta_low": 0.0, "delta_high": 0.2, "seeds": number}
        for number, (word, control) in enumerate(product(("one-kind", "others"), ("kept", "dropped", "random")))
    ]
    tex = latex_table(page_table("Masks", rows), "column")
    assert "\\begin{table*}\n" in tex
    assert head_of(tex)[:4] == ["folder", "pattern", "control", "value [95 % CI]"]
    for row in rows:  # the run says less than the pattern
        del row["delta"], row["delta_low"], row["delta_high"]
    tex = latex_table(page_table("Masks", rows), "column")
    assert "\\begin{table}\n" in tex
    assert head_of(tex)[:3] == ["pattern", "control", "value [95 % CI]"]
    assert "wider" not in tex
    heads = [{"head": letter * 200, "value": 0.5} for letter in "xy"]
    assert "% wider than that: every column is needed" in latex_table(page_table("t", heads), "column")


@pytest.mark.parametrize(
    ("row", "name", "cell"),
    [
        ({"value": 0.5, "ci_low": 0.25, "ci_high": 0.75}, "value [95 % CI]", "0.500 [0.250, 0.750]"),
        ({"delta": 0.5, "delta_low": 0.25, "delta_high": 0.75}, "delta [95 % CI]", "0.500 [0.250, 0.750]"),
        ({"value": 0.5, "95 % interval": Cell("0.4 to 0.6")}, "value [95 % interval]", "0.500 [0.4, 0.6]"),
        ({"value": 0.5, "95 % CI": Cell("0.50 [0.4, 0.6]")}, "value [95 % CI]", "0.50 [0.4, 0.6]"),
        ({"value": 0.5, "95 % CI": Cell("range 0.4 to 0.6")}, "value [95 % CI]", "0.500 [range 0.4, 0.6]"),
        # In brackets already, but without the value.
        ({"value": 0.5, "95 % CI": Cell("[0.4, 0.6]")}, "value [95 % CI]", "0.500 [0.4, 0.6]"),
        ({"value": -0.5, "95 % CI of it": Cell("[-0.6, -0.4]")}, "value [95 % CI of it]", r"$-$0.500 [$-$0.6, $-$0.4]"),
    ],
)
def test_intervals_stand_behind_their_values(row: Mapping[str, Any], name: str, cell: str) -> None:
    """Also where a row has none."""
    empty = {name: Cell("") if isinstance(value, Cell) else None for name, value in row.items()}
    records = [{"head": "a", **row}, {"head": "b", **empty, next(iter(row)): 0.75}]
    tex = latex_table(page_table("t", records))
    assert head_of(tex) == ["head", name]
    assert [line for line in tex.splitlines() if line[:1] in "ab"] == [rf"a & {cell} \\", r"b & 0.750 \\"]


@given(
    st.lists(st.sampled_from(["margin", "n", "verdict", "of its stack", "share", "p", "heads"]), unique=True),
    st.lists(st.sampled_from(["random-by-layer (importance), mean of 5", "runs/a/penalty-0.001@least=0.2", "none"]),
             min_size=2, max_size=3, unique=True),
    st.sampled_from(["full", "column"]),
)  # fmt: skip
def test_no_table_is_wider_than_its_place(names: list[str], words: list[str], width: str) -> None:
    rows = [
        {"strategy": word, "value": 0.5, "95 % CI": Cell("0.25 to 0.75")}
        | {name: Cell(f"0.{row}{place}31", "1") for place, name in enumerate(names)}
        for row, word in enumerate(words)
    ]
    tex = latex_table(page_table("t", rows), width)
    assert inches(tex) <= {"full": 7.0, "column": 3.3}[width]
    assert len(head_of(tex)) <= {"full": 10, "column": 7}[width]
    assert head_of(tex)[:1] == ["strategy"]


def test_files_are_named_after_what_a_table_is() -> None:
    """Not after what was found."""
    table = page_table("Losses (none is significant)", ABLATED, name="Losses")
    assert r"\label{tab:losses}" in latex_table(table)
    assert r"\label{tab:losses-2}" in latex_table(table, label="losses-2")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex (apt-get install texlive-latex-base)")
@pytest.mark.parametrize("records", [ABLATED, [{"x": "50 % ↑ ~^|<>{}", "y": -1.5}]])
def test_latex_reads_it(records: list[dict[str, Any]], tmp_path: Path) -> None:
    document = "\\documentclass[twocolumn]{article}\\usepackage[utf8]{inputenc}\\usepackage{booktabs}\\begin{document}"
    tables = "".join(latex_table(page_table("A_b & c", records, "λ = 3."), width) for width in ("full", "column"))
    (tmp_path / "a.tex").write_text(f"{document}\n{tables}\\end{{document}}\n", encoding="utf-8")
    done = subprocess.run(["pdflatex", "-halt-on-error", "a.tex"], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]

"""Hostile cells in tables: what is written of them is well-formed LaTeX, Markdown, HTML and console text."""

from __future__ import annotations

import html
import io
from typing import Any

from analyses.report.test_page import Elements
from fuzz.damage import ODD_CELLS, ODD_VALUES, fuzzing
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from headlens.pages.latex_tables import latex_table
from headlens.pages.page_tables import page_table, summary_table
from headlens.pages.self_contained import visible

CELLS = [*ODD_CELLS, "\\", "\\end{tabular}", "$x$", "%", "&", "a_b^c~d", "}{", "</td>", "<script>", "]]>", "|", "`a`"]
VALUES = st.sampled_from([*CELLS, *(v for v in ODD_VALUES if not isinstance(v, list | dict))]) | st.text(max_size=9)


@fuzzing(60)
@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=3), st.text(max_size=9), st.sampled_from(CELLS))
def test_any_cells(rows: list[Any], title: str, name: str) -> None:
    records = [{"first": a, name: b} for a, b in rows]
    table = page_table(title, records)
    text = latex_table(table)
    text.encode()
    plain = text.replace("\\\\", "").replace("\\{", "").replace("\\}", "")
    assert plain.count("{") == plain.count("}")
    assert text.count("\\begin{") == text.count("\\end{") == 2
    body = text.split("\\midrule\n")[1].split("\\bottomrule")[0]
    assert body.count("\\\\\n") == body.count("\n") == len(rows)
    head = text.split("\\toprule\n")[1].split("\\midrule")[0].replace("\\&", "").count("&")
    assert all(line.replace("\\&", "").count("&") == head for line in body.split("\n")[:-1])
    # What is far too wide for a page is left out, and the first lines say so.
    assert (head == len(table.columns) - 1) == ("% left out" not in text)
    assert table.markdown().count("\n") == len(rows) + 1
    console = Console(file=io.StringIO(), width=200)
    for shown in (table.console(), summary_table(title, records)):
        console.print(shown)
    page = f"<td>{html.escape(visible(rows[0][0]))}</td>"
    assert Elements(page).open == []
    page.encode()

"""Tables for papers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headlens.pages.latex import latex, latex_table, slug
from headlens.pages.page_tables import page_table


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("50 % of a_b & c", r"50 \% of a\_b \& c"),
        ("-0.25 [-0.3, -0.2]", "$-$0.25 [$-$0.3, $-$0.2]"),
        ("BERT-base 3-4 10.5-11", "BERT-base 3-4 10.5-11"),
        ("0.1–0.2", "0.1--0.2"),
        ("nsubj ↑", r"nsubj $\uparrow$"),
        (r"\input{x}", r"\textbackslash{}input\{x\}"),
        ("p < 0.05", r"p \textless{} 0.05"),
    ],
)
def test_what_latex_would_read_as_a_command_is_spelled(text: str, shown: str) -> None:
    assert latex(text) == shown


@given(st.text(st.characters(codec="ascii")))
@example("->")
def test_no_command_of_anybody_else(text: str) -> None:
    """Every brace and backslash is ours: with our words taken out, nothing is left that LaTeX would read."""
    found = latex(text)
    for ours in (r"\textbackslash{}", r"\textasciitilde{}", r"\textasciicircum{}", r"\textless{}", r"\textgreater{}",
                 r"\textbar{}", "$-$", r"$\rightarrow$", r"\&", r"\%", r"\$", r"\#", r"\_", r"\{", r"\}"):  # fmt: skip
        found = found.replace(ours, "")
    assert not set(found) & set("\\&%$#_{}~^")


def test_a_table() -> None:
    records = [{"head": "encoder.0.1", "change": -0.25, "n": 3}, {"head": "a_b", "change": 0.5, "n": 12}]
    assert latex_table(page_table("Heads needed", records, "All of 50 % (dot, line; tick: none).")).splitlines() == [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        r"\caption{Heads needed. All of 50 \%.}",
        r"\label{tab:heads-needed}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"head & change & n \\",
        r"\midrule",
        r"encoder.0.1 & $-$0.250 & 3 \\",
        r"a\_b & 0.500 & 12 \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    assert slug("Best head, of every relation!") == "best-head-of-every-relation"
    assert slug("?") == "table"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex (apt-get install texlive-latex-base)")
def test_latex_reads_it(tmp_path: Path) -> None:
    table = latex_table(page_table("A_b & c", [{"x": "50 % ↑ ~^|<>{}", "y": -1.5}], "λ = 3."))
    document = "\\documentclass{article}\\usepackage[utf8]{inputenc}\\usepackage{booktabs}\\begin{document}"
    (tmp_path / "a.tex").write_text(f"{document}\n{table}\\end{{document}}\n", encoding="utf-8")
    done = subprocess.run(["pdflatex", "-halt-on-error", "a.tex"], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]

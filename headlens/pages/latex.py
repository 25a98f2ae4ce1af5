"""Tables for papers: LaTeX with booktabs, from the tables of a page."""

from __future__ import annotations

import re

from headlens.pages.page_tables import PageTable

# What LaTeX reads as a command, and letters that its oldest engines lack.
_SPELLED = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": "--",
    "−": "$-$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "→": r"$\rightarrow$",
    "λ": r"$\lambda$",
    "μ": r"$\mu$",
    "×": r"$\times$",
    "\n": " ",
    "\t": " ",
}
# What a page says of its pictures of intervals, which a table of a paper lacks.
_PICTURED = re.compile(r" \((?:dot|tick)\b[^)]*\)")
_NEGATIVE = re.compile(r"-(?=\d)")


def latex(text: str) -> str:
    """A text as LaTeX shows it; signs of negative numbers become minus signs."""
    text = text.replace("->", "→")
    found, at = [], 0
    for match in _NEGATIVE.finditer(text):
        # A hyphen within a word or a range is none.
        if match.start() and text[match.start() - 1] not in " [(,":
            continue
        found += [_spelled(text[at : match.start()]), "$-$"]
        at = match.end()
    return "".join([*found, _spelled(text[at:])])


def _spelled(text: str) -> str:
    return "".join(_SPELLED.get(letter, letter) for letter in text)


def latex_table(table: PageTable) -> str:
    r"""A table with its caption, to be included by `\input`; it needs the package booktabs.

    Args:
        table: of a page; numbers are rounded as there.
    """
    lines = [
        "% needs \\usepackage{booktabs}",
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{latex(table.title)}. {latex(_PICTURED.sub('', table.about))}}}".replace(". }", ".}"),
        f"\\label{{tab:{slug(table.title)}}}",
        f"\\begin{{tabular}}{{{''.join('r' if column.numeric else 'l' for column in table.columns)}}}",
        "\\toprule",
        " & ".join(latex(column.name) for column in table.columns) + r" \\",
        "\\midrule",
        *(" & ".join(latex(cell.text) for cell in row) + r" \\" for row in table.rows),
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def slug(title: str) -> str:
    """A title as a file name and a label: small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "table"

"""Tables for papers: LaTeX that fits the width of a page or of a column."""

from __future__ import annotations

import re
from dataclasses import replace

from headlens.pages.formatting import escaped_latex, slug, typeset
from headlens.pages.page_tables import Column, PageTable
from headlens.plots.style import COLUMN_WIDTH, FULL_WIDTH
from headlens.visible_text import visible_text

# Of a table by its width: the environment, the most columns, and inches.
_ON_PAPER = {"full": ("table*", 10, FULL_WIDTH), "column": ("table", 7, COLUMN_WIDTH)}
# Of letters of Computer Modern in `\footnotesize`, in points.
_WIDTHS = {
    **dict.fromkeys("abcdefghknopqrsuvxyz", 4.3), **dict.fromkeys("0123456789", 4.25),
    **dict.fromkeys(" .,;:'()[]ijl|-!", 2.8), "t": 3.3,
}  # fmt: skip
_WIDEST = 7.1
_BETWEEN, _WORDS = 6.0, 0.22  # between two columns; the share of the width that a column of words has
# Columns of settings, which a table of one row has above it, too.
_SETTINGS = {"folder", "run", "model", "task", "data", "metric", "mode", "rule", "target", "layers", "margin"}
# What is left to the CSV files where there is no room, the least important first.
_DETAILS = (
    "examples that would decide", "margin", "n", "seeds", "selection split", "parameters", "theoretical speed-up",
    "weights, MB", "significant", "uniform attention", "uniform", "second control", "second score", "of the other",
    "density", "effect_per_percent", "sparsity", "masked, %", "unit", "its layer", "all heads", "control",
)  # fmt: skip
_SHORT = {"baseline": "base", "significant": "sig.", "theoretical speed-up": "theor. speed-up", "direction": "dir."}
_INTERVAL = re.compile(r"95 % (?:CI|interval)\b.*")
_LOW, _HIGH = re.compile(r"(?:^|_)(?:ci_)?low"), re.compile(r"(?:.*_)?(?:ci_)?high")
_BREAKS = r"(?<=[/@])"  # where a line of a cell may end that has no space
# What the sentence about a table says of its pictures of intervals, which a table of a paper lacks.
_PICTURED = re.compile(r" \((?:dot|tick)\b[^)]*\)")


def latex_table(table: PageTable, width: str = "full", label: str = "") -> str:
    r"""Returns a table with its caption for a paper, for `\input`; it needs the package booktabs.

    Intervals stand behind their values. What is the same in every row is said in the caption, and columns that have
    no room are left out, as a remark in the file says.

    Args:
        table: the table.
        width: `full` for the text of a page, `column` for one of two columns, where the table has room in it.
        label: behind `tab:`; by default that of the title.
    """
    whole = _without_settings(_with_intervals_inside(table))
    for place in dict.fromkeys((width, "full")):  # what a column has no room for takes the page
        environment, most, inches = _ON_PAPER[place]
        points = 72 * inches
        shown = _fitting(whole, most, points)
        if _fits(shown, most, points):
            break
    left_out = ", ".join(column.name for column in whole.columns if column not in shown.columns)
    same = ", ".join(f"{name} {cell.text}" for name, cell in shown.same if cell.text)
    about = _PICTURED.sub("", table.about).replace("`", "")
    title = escaped_latex(table.title)
    # What is said of columns that are not there would be false below the table.
    caption = " ".join(
        [title if title.endswith("?") else f"{title}.", *([] if left_out else [escaped_latex(about)])]
        + [f"The same in all rows: {escaped_latex(same)}."] * bool(same)
    )
    room = _column_widths(shown, points)
    folded = [
        not column.numeric and max((_points(row[n].text) for row in shown.rows), default=0) > room[n]
        for n, column in enumerate(shown.columns)
    ]
    kinds = [
        f"p{{{room[n]:.0f}pt}}" if folded[n] else "r" if column.numeric else "l"
        for n, column in enumerate(shown.columns)
    ]
    lines = [
        f"% needs \\usepackage{{booktabs}}; made for {inches:g} inches",
        *([] if _fits(shown, most, points) else ["% wider than that: every column is needed to tell the rows apart"]),
        *([f"% left out, see the CSV files of the run: {visible_text(left_out, '')}"] if left_out else []),
        *([f"% of the whole table: {visible_text(about, '')}"] if left_out and about else []),
        f"\\begin{{{environment}}}",
        "\\centering\\footnotesize\\setlength{\\tabcolsep}{3pt}",
        f"\\caption{{{caption.strip()}}}",
        f"\\label{{tab:{label or slug(table.name or table.title)}}}",
        f"\\begin{{tabular}}{{@{{}}{''.join(kinds)}@{{}}}}",
        "\\toprule",
        " & ".join(map(_head, shown.columns, room)) + r" \\",
        "\\midrule",
        *(" & ".join(map(_cell, (cell.text for cell in row), folded)) + r" \\" for row in shown.rows),
        "\\bottomrule",
        "\\end{tabular}",
        f"\\end{{{environment}}}",
    ]
    return "\n".join(lines) + "\n"


def _with_intervals_inside(table: PageTable) -> PageTable:
    """Returns a table with every interval in the column of its value, such as `0.846 [0.812, 0.871]`."""
    columns, rows, gone = list(table.columns), [list(row) for row in table.rows], set[int]()
    for place in range(1, len(columns)):
        value, names = place - 1, [column.name for column in table.columns[place : place + 2]]
        if place in gone or not columns[value].numeric:
            continue
        if _INTERVAL.fullmatch(names[0]):
            ends = [place]
        elif len(names) == 2 and _LOW.search(names[0]) and _HIGH.fullmatch(names[1]):
            ends = [place, place + 1]
        else:
            continue
        gone.update(ends)
        name = "95 % CI" if len(ends) == 2 else names[0]
        columns[value] = Column(f"{columns[value].name} [{name}]", numeric=True)
        for row in rows:
            texts, text = [row[n].text.replace(" to ", ", ") for n in ends], row[value].text
            # Some intervals begin with their value already, and some have brackets.
            bracketed = texts[0] if texts[0].startswith("[") else f"[{', '.join(texts)}]"
            whole = texts[0] if "[" in texts[0][1:] else f"{text} {bracketed}"
            row[value] = replace(row[value], text=whole if all(texts) else text)
    return replace(table, columns=tuple(columns), rows=tuple(map(tuple, rows))).without(gone)


def _without_settings(table: PageTable) -> PageTable:
    """Returns a table without what is the same in every row, which goes to `same`; of one row without its settings."""
    settings = [n for n, column in enumerate(table.columns) if column.name in _SETTINGS]
    if len(table.rows) != 1 or len(settings) == len(table.columns):
        return table.narrowed()
    same = tuple((table.columns[n].name, table.rows[0][n]) for n in settings)
    return replace(table.without(settings), same=same)


def _fitting(table: PageTable, most: int, points: float) -> PageTable:
    """Returns a table with so many columns at most that fit so many points, as far as its rows stay told apart."""
    while not _fits(table, most, points) and (gone := _least(table)) is not None:
        table = table.without([gone])
    return table


def _fits(table: PageTable, most: int, points: float) -> bool:
    room = points - _BETWEEN * (len(table.columns) - 1)
    return len(table.columns) <= most and sum(_column_widths(table, points)) <= room


def _least(table: PageTable) -> int | None:
    """The place of the column that is missed least; None where all others are needed.

    Values with intervals are, and the columns in front of them that tell rows apart.
    """
    names = [column.name for column in table.columns]
    values = [n for n, name in enumerate(names) if name.endswith("]")]
    keys = range(values[0] if values else len(names))
    # A value says little beside its difference from another, which has the interval.
    least = (*_DETAILS, "value") if values else _DETAILS
    details = [names.index(name) for name in least if name in names[1:]]
    # What a difference is from is part of it.
    plain = [n for n, name in enumerate(names) if n and n not in values and name not in _SETTINGS | {"from"}]
    settings = [n for n, name in enumerate(names) if name in _SETTINGS - {"model", "metric"}]

    def told_apart(gone: int | None = None) -> int:
        return len({tuple(row[n].text for n in keys if n != gone) for row in table.rows})

    ordered = (*reversed(settings), *details, *reversed(plain))
    return next((gone for gone in ordered if told_apart(gone) == told_apart()), None)


def _column_widths(table: PageTable, points: float) -> list[float]:
    """Returns how many points every column is wide; words have lines of at most a share of all points."""
    widths = []
    for place, column in enumerate(table.columns):
        cells = [row[place].text for row in table.rows]
        parts = cells if column.numeric else [part for cell in cells for part in re.split(rf"{_BREAKS}|\s", cell)]
        least = max(map(_points, [*_words(column), *parts]), default=0.0)
        whole = max(map(_points, cells), default=0.0)
        widths.append(max(least, min(whole, _WORDS * points)))
    return widths


def _words(column: Column) -> list[str]:
    """Returns the words of the name of a column, an interval in brackets as one of them."""
    return re.findall(r"\[[^]]*\]|\S+", _SHORT.get(column.name, column.name).replace("_", " "))


def _points(text: str) -> float:
    """Returns about how wide a text is."""
    return sum(_WIDTHS.get(letter, _WIDEST) for letter in typeset(text))


def _head(column: Column, points: float) -> str:
    """Returns the name of a column in lines that are no wider than its cells, as far as words allow."""
    lines: list[str] = []
    for word in _words(column):
        if lines and _points(f"{lines[-1]} {word}") <= points:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    shown = r"\\".join(map(escaped_latex, lines))
    return shown if len(lines) < 2 else f"\\shortstack[{'r' if column.numeric else 'l'}]{{{shown}}}"


def _cell(text: str, folded: bool) -> str:  # noqa: FBT001
    """Returns a cell, in several lines where its column is narrower than its words."""
    if not folded:
        return escaped_latex(text)
    lines = r"\allowbreak{}".join(map(escaped_latex, re.split(_BREAKS, text)))
    return f"{{\\raggedright {lines}\\par}}"

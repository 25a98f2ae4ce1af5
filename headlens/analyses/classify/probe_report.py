"""What `headlens classify --probes` tells: a sentence for each probe, a map of all heads, a table of the best ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.errors import counted
from headlens.pages.command_report import Caption
from headlens.pages.formatting import share_text, shown_of, value_text
from headlens.pages.page_tables import PageTable, page_table
from headlens.plots.cell_drawing import Scale
from headlens.plots.head_grid import StackRows, head_name
from headlens.plots.heatmaps import Cells, interval_map
from headlens.plots.style import of_no_corpus
from headlens.runs.reading import RecordedRun, labelled_records
from headlens.tables.classify_tables import PROBES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BEST = 3  # heads of a probe in the table
# What a head gives its weight to, what is compared with that, and the second comparison.
_WORDS = {
    "previous": ("the previous token", "even attention", "two tokens back"),
    "duplicate": ("earlier copies of the same token", "without copies", "without the gaps between them"),
    "induction": ("what followed earlier copies of the same token", "without copies", "without the gaps between them"),
    "sink": ("the first token", "even attention", "the second token"),
}
_OF_OTHERS = (
    "previous",
    "duplicate",
)  # what is left out of their weights: those on the first token and on the query's own
# Controls that are alike for all heads: what a score means is seen beside them alone.
_LEVELS = {"previous": "even attention", "sink": "even attention", "query-retrieval": "random order"}
_MEASURED = {
    "retrieval": (
        "{score} of the answer's tokens looked at as they are generated ({control} of the answer to another question); "
        "it attends most to the answer at {second_score} of these steps ({second_control} to the other answer)"
    ),
    "query-retrieval": (
        "nDCG@10 {score} of the right document ({control} in a random order; {second_control} with an empty question)"
    ),
}
PROBE_CAPTION = Caption(
    "Roles on prompts",
    "The weight that every head gives, on prompts of random tokens, to the previous token, to earlier copies of the "
    "same token (of these two as a share of its weight on tokens other than itself and the first), to what followed "
    "earlier copies (induction) and to the first token (sink). On prompts that end in a "
    "question: how many of the answer's tokens it looks at as they are generated (retrieval), and how well it ranks "
    "the document that has the answer (query-retrieval, nDCG@10). Below each is half the width of its 95 % interval "
    "where there is room; layer 0 is at the bottom. A dot: the head passes the probe, as its score is above both "
    "controls by 0.1, significantly after Holm's correction for all heads. Heads without a dot are pale.",
)

PROBE_COLUMNS = (
    "Score and second score are each compared with the control behind them, the second one in a comparison that the "
    "sentence on the probe names; most: the share of queries whose most attended token is the one in question, or of "
    "questions whose document is first; holds: whether both are above their controls by 0.1, and significantly so "
    "after Holm's correction for all heads."
)


def holds_role(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Which rows of probes.csv are of a head that passes the probe."""
    return (rows["holds"].astype(str) == "True").to_numpy(bool)


def probe_sentences(probes: pd.DataFrame) -> list[str]:
    """Sentences on every probe of every model: the best head with both controls, and how many heads pass it.

    Args:
        probes: rows of probes.csv.
    """
    sentences = []
    for (model, probe), rows in probes.groupby(["model", "probe"], sort=False):
        best, held = best_probed(rows).iloc[0], int(holds_role(rows).sum())
        sentences.append(f"{model}: {_sentence(str(probe), best, held, len(rows))}")
    return sentences


def best_probed(rows: pd.DataFrame) -> pd.DataFrame:
    """The row of the best head of one model and probe: of those that pass the probe, if any do; none of no rows."""
    held = rows[holds_role(rows)]
    return _best(held if len(held) else rows).head(1)


def _sentence(probe: str, row: Mapping[Any, Any] | pd.Series[Any], held: int, heads: int) -> str:
    if probe in _MEASURED:
        names = ("score", "control", "second_score", "second_control")
        measured = _MEASURED[probe].format(**{name: f"{row[name]:.2f}" for name in names})
    else:
        measured = _weights_text(probe, row)
    role = f"the probe {probe} on prompts made for it"
    if held:
        passes = "passes" if held == 1 else "pass"
        return f"{counted(held, 'head')} of {heads} {passes} {role}, most of all {head_name(row)}: {measured}."
    return f"none of {heads} heads passes {role}; nearest is {head_name(row)} with {measured}."


def _weights_text(probe: str, row: Mapping[Any, Any] | pd.Series[Any]) -> str:
    target, control, second = _WORDS[probe]
    weight = float(row.get("weight", np.nan))
    of_others = probe in _OF_OTHERS and not np.isclose(weight, row["score"])
    rest = " on tokens other than itself and the first" * of_others
    measured = f"{share_text(row['score'])} % of its weight{rest} to {target} ({share_text(row['control'])} % {control}"
    again = f"{share_text(row['second_score'])} % against " if row["second_score"] != row["score"] else ""
    whole = f", and {share_text(weight)} % of all its weight" * (of_others and bool(np.isfinite(weight)))
    return f"{measured}; {again}{share_text(row['second_control'])} % {second}){whole}"


def probe_map(probes: pd.DataFrame) -> Figure | None:
    """The score of every head on every probe.

    Args:
        probes: rows of probes.csv, of one model or several.
    """
    if probes.empty:
        return None
    several = len(probes["model"].unique()) > 1
    titles = probes["probe"].astype(str)
    named = probes["model"].astype(str) + ": " + titles if several else titles
    cells = Cells(
        "score",
        holds_role,
        "Dot: the head passes the probe (above both controls by 0.1, significantly).",
        _with_level,
        unsure=lambda rows: ~holds_role(rows),
        pale="Pale: it does not.",
    )
    title = "Roles on prompts" + ("" if several else f", {probes['model'].iloc[0]}")
    with of_no_corpus():
        return interval_map(probes.assign(model=named), cells, Scale("score of the role", 0.0, 1.0), title)


def _with_level(part: StackRows) -> str:
    """Returns the title of a probe's panel, and below it the control of its heads where they share it."""
    probe, controls = part.rows["probe"].iloc[0], part.rows["control"]
    ends = dict.fromkeys(f"{end:.2f}" for end in (controls.min(), controls.max()))  # layers with windows see less
    return part.name + (f"\n{_LEVELS[probe]}: {' to '.join(ends)}" if probe in _LEVELS else "")


def probe_overview(runs: Sequence[RecordedRun]) -> PageTable:
    """The best heads of every probe, with both controls."""
    records = labelled_records(runs, PROBES.name, head_probe_records)
    shown = shown_of(_BEST, len(records))
    about = f"The heads of every probe that are farthest above both controls ({shown}). {PROBE_COLUMNS}"
    return page_table("Roles on prompts", records, about)


def _best(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of probes.csv, those farthest above both controls first."""
    return rows.sort_values("above", ascending=False, kind="stable")


def head_probe_records(probes: pd.DataFrame) -> list[dict[str, Any]]:
    """The best heads of every probe and model, as rows of a short table.

    Args:
        probes: rows of probes.csv.
    """
    return [
        {
            "model": row["model"],
            "probe": row["probe"],
            "head": head_name(row),
            "score": value_text(row["score"], row["ci_low"], row["ci_high"]),
            "control": f"{row['control']:.3f}",
            "second score": f"{row['second_score']:.3f}",
            "second control": f"{row['second_control']:.3f}",
            "most": f"{row['most']:.3f}",
            "p (Holm)": f"{row['p_holm']:.3g}",
            "holds": "yes" if str(row["holds"]) == "True" else "no",
        }
        for _, rows in probes.groupby(["model", "probe"], sort=False)
        for row in _best(rows).head(_BEST).to_dict("records")
    ]

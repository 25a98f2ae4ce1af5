"""What `headlens classify` tells about single heads, and about all of them in a few sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from headlens.analyses.attend.stored_maps import read_maps
from headlens.analyses.classify.metric_declarations import declarations_of
from headlens.analyses.classify.syntax_figure import is_marked
from headlens.analyses.relevance.head_cards import relevance_findings, relevance_series
from headlens.errors import counted
from headlens.heads import Head
from headlens.pages.head_cards import HeadFacts, HeadSeries, HeadShares, HeadWords
from headlens.pages.page_tables import number_text
from headlens.plots.head_grid import by_model_and_stack, float_column
from headlens.plots.role_colours import ARROWS, COLOURS, FAMILIES, NONE, families, short
from headlens.runs.reading import RecordedRun

_RELATIONS = 6  # lines of a card
_KEYS = ["model", "stack", "layer", "head"]


def classification_facts(run: RecordedRun) -> HeadFacts:
    """Roles, measures, relations, offsets, and attention on a sentence."""
    heads = run.tables["heads"] if "heads" in run.tables else pd.DataFrame(columns=[*_KEYS, "role", "roles"])
    codes = np.array([FAMILIES.index(name) for name in families(heads["role"])], np.float64)
    roled = heads.assign(code=codes, letters=[short(role).replace("\n", "") for role in heads["role"]])
    about = "The strongest role of the head, if it holds one; letters give the offset or the relation."
    categories = {"no role" if name == NONE else name: COLOURS[name] for name in FAMILIES}
    series = [HeadSeries("role", "role", about, roled, "code", categories=categories, letters="letters")]
    for column in (column for metric in declarations_of(run) for column in metric.columns if column.title):
        if column.name in heads:
            _, *bounds = column.names
            known = (bounds[0], bounds[1]) if bounds and set(bounds) <= set(heads) else None
            series.append(HeadSeries(column.name, column.title, column.about, heads, column.name, known))
    if "syntax" in run.tables:
        series += _best_margin(run.tables["syntax"])
    if "relevance" in run.tables:
        series += relevance_series(run.tables["relevance"])
    texts = [HeadWords("Roles", _lines(heads, [_spelled(roles) for roles in heads["roles"]]))]
    if "syntax" in run.tables:
        texts.append(HeadWords("Relations: accuracy, beside the best fixed offset's", _relations(run)))
    shares = []
    if "positions" in run.tables:
        offsets = run.tables["positions"].rename(columns={"offset": "category"})
        shares.append(HeadShares("Where the most attended token stands", offsets))
    return HeadFacts(series, texts, shares, read_maps(run, str))


def classify_findings(run: RecordedRun) -> list[str]:
    """The roles, the most positional head, the head that follows a relation best, the most relevant one."""
    sentences = []
    for part in by_model_and_stack(run.tables["heads"]) if "heads" in run.tables else ():
        count = pd.Series(families(part.rows["role"])).value_counts()
        counts_text = ", ".join(f"{count[name]} {name}" for name in FAMILIES if name != NONE and name in count)
        sentences.append(
            f"{part.name}: of {counted(len(part.rows), 'head')} "
            + (
                f"{counts_text} by their strongest role; {count.get(NONE, 0)} hold none."
                if counts_text
                else "none holds a role."
            )
        )
        shares = float_column(part.rows, "positional_share")
        if np.isfinite(shares).any():
            best = part.rows.iloc[int(np.nanargmax(shares))]
            sentences.append(
                f"{part.name}: the most positional head is {_name(best)}: {np.nanmax(shares):.0%} of the tokens attend "
                f"most to {_where(best['positional_offset'])}."
            )
    for part in by_model_and_stack(run.tables["syntax"]) if "syntax" in run.tables else ():
        sentences += _syntactic(part.name, part.rows)
    return sentences + relevance_findings(run)


def _syntactic(name: str, rows: pd.DataFrame) -> list[str]:
    sure = rows[is_marked(rows["significant"]) & is_marked(rows["syntactic"])]
    if sure.empty:
        return [f"{name}: no head follows a relation significantly better than a fixed offset, by the margin."]
    best = sure.iloc[int(np.argmax(float_column(sure, "accuracy") - float_column(sure, "baseline")))]
    heads = len(sure.drop_duplicates(["layer", "head"]))
    return [
        f"{name}: {counted(heads, 'head')} {'follows' if heads == 1 else 'follow'} some relation significantly better "
        f"than the best fixed offset. Farthest above it is {_name(best)} with {best['relation']} {best['direction']}: "
        f"{best['accuracy']:.1%} [{best['ci_low']:.1%}, {best['ci_high']:.1%}] of {int(best['n']):,} cases, the "
        f"offset {best['baseline']:.1%}."
    ]


def _where(offset: Any) -> str:
    """A commonest offset in words; heads that have no single one lack it."""
    known = {-1: "the previous token", 0: "themselves", 1: "the next token"}
    return "one offset" if pd.isna(offset) else known.get(int(offset), f"the token at {int(offset):+d}")


def _name(row: pd.Series[Any]) -> str:
    return str(Head(row["stack"], int(row["layer"]), int(row["head"])))


def _spelled(roles: Any) -> str:
    return "none" if pd.isna(roles) or not roles else str(roles)


def _lines(rows: pd.DataFrame, texts: Sequence[str]) -> pd.DataFrame:
    return rows[_KEYS].assign(text=list(texts))


def _best_margin(syntax: pd.DataFrame) -> list[HeadSeries]:
    gain = float_column(syntax, "accuracy") - float_column(syntax, "baseline")
    known = syntax.assign(gain=gain)[np.isfinite(gain)]
    if known.empty:
        return []
    best = known.groupby(_KEYS, sort=False)["gain"].max().reset_index()
    about = "Accuracy of the head's best relation, less that of the best fixed offset for this relation."
    return [HeadSeries("margin", "best relation above its offset", about, best, "gain", diverging=True)]


def _relations(run: RecordedRun) -> pd.DataFrame:
    syntax = run.tables["syntax"]
    gain = float_column(syntax, "accuracy") - float_column(syntax, "baseline")
    known = syntax.assign(gain=gain)[np.isfinite(gain) & np.isfinite(float_column(syntax, "n"))]
    known = known.sort_values("gain", ascending=False, kind="stable")
    known = known.groupby(_KEYS, sort=False).head(_RELATIONS)
    texts = [
        f"{row['relation']} {ARROWS.get(str(row['direction']), row['direction'])} {number_text(row['accuracy'])} "
        f"[{number_text(row['ci_low'])}, {number_text(row['ci_high'])}], offset {number_text(row['baseline'])}, "
        f"n {int(row['n'])}" + (", significant" if sure else "")
        for row, sure in zip(known.to_dict("records"), is_marked(known["significant"]), strict=True)
    ]
    return _lines(known, texts)

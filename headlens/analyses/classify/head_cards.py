"""What `headlens classify` tells about single heads, and about all of them in a few sentences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from headlens.analyses.attend.stored_maps import read_maps
from headlens.analyses.classify.metric_declarations import declarations_of
from headlens.analyses.classify.options import Thresholds
from headlens.analyses.classify.syntax_figure import gain, is_marked
from headlens.analyses.relevance.overviews import relevance_findings, relevance_series
from headlens.errors import counted
from headlens.pages.head_cards import HeadFacts, HeadSeries, HeadShares, HeadWords
from headlens.pages.page_tables import number_text
from headlens.plots.head_grid import by_model_and_stack, float_column, head_name
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
    spelled = heads["roles"].astype(object).where(heads["roles"].notna() & (heads["roles"] != ""), "none")
    texts = [HeadWords("Roles", heads[_KEYS].assign(text=spelled.astype(str)))]
    if "syntax" in run.tables:
        syntax = run.tables["syntax"].assign(gain=gain(run.tables["syntax"]))
        known_gains = syntax[np.isfinite(syntax["gain"])]
        if len(known_gains):
            best = known_gains.groupby(_KEYS, sort=False)["gain"].max().reset_index()
            about = "Accuracy of the head's best relation, less that of the best fixed offset for this relation."
            series.append(HeadSeries("margin", "best relation above its offset", about, best, "gain", diverging=True))
        texts.append(HeadWords("Relations: accuracy, beside the best fixed offset's", _relations(known_gains)))
    if "relevance" in run.tables:
        series += relevance_series(run.tables["relevance"])
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
        roles = ", ".join(f"{count[name]} {name}" for name in FAMILIES if name != NONE and name in count)
        held = f"{roles} by their strongest role; {count.get(NONE, 0)} hold none." if roles else "none holds a role."
        if not roles and _read_too_little(run, part.model):
            held = "none is given a role, for too little text was read; the notes say how much."
        sentences.append(f"{part.name}: of {counted(len(part.rows), 'head')} {held}")
        shares = float_column(part.rows, "positional_share")
        if np.isfinite(shares).any():
            best = part.rows.iloc[int(np.nanargmax(shares))]
            sentences.append(
                f"{part.name}: the most positional head is {head_name(best)}: {np.nanmax(shares):.0%} of the tokens "
                f"attend most to {_where(best['positional_offset'])}."
            )
    for part in by_model_and_stack(run.tables["syntax"]) if "syntax" in run.tables else ():
        sure = part.rows[is_marked(part.rows["significant"]) & is_marked(part.rows["syntactic"])]
        if sure.empty:
            least = "no head follows a relation significantly better than a fixed offset, by the margin."
            sentences.append(f"{part.name}: {least}")
            continue
        best = sure.iloc[int(np.argmax(gain(sure)))]
        heads = len(sure.drop_duplicates(["layer", "head"]))
        sentences.append(
            f"{part.name}: {counted(heads, 'head')} {'follows' if heads == 1 else 'follow'} some relation "
            f"significantly better than the best fixed offset. Farthest above it is {head_name(best)} with "
            f"{best['relation']} {best['direction']}: {best['accuracy']:.1%} [{best['ci_low']:.1%}, "
            f"{best['ci_high']:.1%}] of {int(best['n']):,} cases, the offset {best['baseline']:.1%}."
        )
    return sentences + relevance_findings(run)


def _read_too_little(run: RecordedRun, model: str) -> bool:
    """Whether a run recorded that a model read less than roles need."""
    read = run.encoding_of(model)
    pairs = [(read.get(n), run.argument(f"min_{n}", getattr(Thresholds, f"min_{n}"))) for n in ("sentences", "tokens")]
    return any(isinstance(n, int) and isinstance(least, int) and n < least for n, least in pairs)


def _where(offset: Any) -> str:
    """A commonest offset in words; heads that have no single one lack it."""
    known = {-1: "the previous token", 0: "themselves", 1: "the next token"}
    return "one offset" if pd.isna(offset) else known.get(int(offset), f"the token at {int(offset):+d}")


def _relations(syntax: pd.DataFrame) -> pd.DataFrame:
    """The relations that a head follows best, in words: rows of syntax.csv with the `gain` above the offset."""
    known = syntax[np.isfinite(float_column(syntax, "n"))].sort_values("gain", ascending=False, kind="stable")
    known = known.groupby(_KEYS, sort=False).head(_RELATIONS)
    texts = [
        f"{row['relation']} {ARROWS.get(str(row['direction']), row['direction'])} {number_text(row['accuracy'])} "
        f"[{number_text(row['ci_low'])}, {number_text(row['ci_high'])}], offset {number_text(row['baseline'])}, "
        f"n {int(row['n'])}" + (", significant" if sure else "")
        for row, sure in zip(known.to_dict("records"), is_marked(known["significant"]), strict=True)
    ]
    return known[_KEYS].assign(text=texts)

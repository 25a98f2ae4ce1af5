"""What `headlens classify` tells about single heads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from headlens.analyses.attend.stored_maps import read_maps
from headlens.analyses.classify.metric_declarations import declarations_of
from headlens.analyses.classify.syntax_figure import gain, is_marked
from headlens.analyses.relevance.overviews import relevance_series
from headlens.pages.attention_page import AttentionView
from headlens.pages.formatting import share_text
from headlens.pages.head_cards import HeadFacts, HeadSeries, HeadShares, HeadWords
from headlens.plots.head_grid import float_column
from headlens.plots.role_colours import ARROWS, COLOURS, FAMILIES, NONE, families, short
from headlens.runs.reading import RecordedRun

_RELATIONS = 6  # lines of a card
_KEYS = ["model", "stack", "layer", "head"]


def classification_facts(run: RecordedRun) -> HeadFacts:
    """Roles, measures, relations, offsets, and attention on a sentence."""
    heads = run.tables["heads"] if "heads" in run.tables else pd.DataFrame(columns=[*_KEYS, "role", "roles"])
    codes = np.array([FAMILIES.index(name) for name in families(heads["role"])], np.float64)
    roled = heads.assign(code=codes, letters=[short(role).replace("\n", "") for role in heads["role"]])
    about = "The strongest role of the head, if it holds one; the letters stand for the offset or the relation."
    categories = {"no role" if name == NONE else name: "" if name == NONE else COLOURS[name] for name in FAMILIES}
    series = [HeadSeries("role", "role", about, roled, "code", categories=categories, letters="letters")]
    for column in (column for metric in declarations_of(run) for column in metric.columns if column.title):
        if column.name in heads:
            _, *bounds = column.names
            known = (bounds[0], bounds[1]) if bounds and set(bounds) <= set(heads) else None
            declared = (column.name, column.title, column.about)
            rows, lead = (heads.assign(lead=_offsets(heads, column.offset)), "lead") if column.offset else (heads, "")
            series.append(HeadSeries(*declared, rows, column.name, known, unit=column.unit, lead=lead))
    spelled = heads["roles"].astype(object).where(heads["roles"].notna() & (heads["roles"] != ""), "none")
    texts = [HeadWords("Roles", heads[_KEYS].assign(text=spelled.astype(str)))]
    if "syntax" in run.tables:
        syntax = run.tables["syntax"].assign(gain=gain(run.tables["syntax"]))
        known_gains = syntax[np.isfinite(syntax["gain"])]
        if len(known_gains):
            best = known_gains.groupby(_KEYS, sort=False)["gain"].max().reset_index()
            about = "Accuracy on the head's best relation, minus that of the best fixed offset for this relation."
            series.append(
                HeadSeries(
                    "margin",
                    "best relation, gain over fixed offset",
                    about,
                    best,
                    "gain",
                    diverging=True,
                    unit="points",
                )
            )
        texts.append(HeadWords("Relations with the largest gain over the best fixed offset", _relations(known_gains)))
    if "relevance" in run.tables:
        series += relevance_series(run.tables["relevance"])
    shares = []
    if "positions" in run.tables:
        offsets = run.tables["positions"].rename(columns={"offset": "category"})
        shares.append(HeadShares("Position of the most attended token", offsets))
    return HeadFacts(series, texts, shares, read_maps(run, str))


def _offsets(heads: pd.DataFrame, name: str) -> list[str]:
    """Offsets as a card tells them: with their sign, empty where there is none."""
    return [f"{n:+.0f}".replace("-", "−") if np.isfinite(n) else "" for n in float_column(heads, name)]


def shown_attention(run: RecordedRun) -> AttentionView | None:
    """Returns the view of the sentences that the run keeps, of each of its models."""
    maps = read_maps(run, str)
    models = list(dict.fromkeys(own.model for own in maps))
    beside = [replace(own, model=str(own.sentence), state=models.index(own.model)) for own in maps]
    return AttentionView(models, beside, len(models) == 1) if maps else None


def _relations(syntax: pd.DataFrame) -> pd.DataFrame:
    """The relations that a head follows best, in words: rows of syntax.csv with the `gain` above the offset."""
    known = syntax[np.isfinite(float_column(syntax, "n"))].sort_values("gain", ascending=False, kind="stable")
    known = known.groupby(_KEYS, sort=False).head(_RELATIONS)
    texts = [
        f"{row['relation']} {ARROWS.get(str(row['direction']), row['direction'])} {share_text(row['accuracy'])} % "
        f"[{share_text(row['ci_low'])}, {share_text(row['ci_high'])}] of {int(row['n']):,} cases, "
        f"a fixed offset {share_text(row['baseline'])} %" + (", significant" if sure else "")
        for row, sure in zip(known.to_dict("records"), is_marked(known["significant"]), strict=True)
    ]
    return known[_KEYS].assign(text=texts)

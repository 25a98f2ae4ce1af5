"""The report of `headlens probe`: its scores, the figure of its weights, and captions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from headlens.analyses.probe.tables import DISTANCES, EMBEDDED, PROBE, UNIFORM
from headlens.errors import counted
from headlens.pages.command_report import Caption, CommandReport, Figures
from headlens.pages.formatting import DIFFERENCE, difference_text, value_text
from headlens.pages.head_cards import HeadFacts, HeadSeries
from headlens.pages.page_tables import PageTable, page_table
from headlens.plots.heatmaps import centred_scale, paired_maps
from headlens.plots.style import DIVERGING, named_after
from headlens.runs.reading import RecordedRun, labelled_records
from headlens.tables.every_table import TABLES
from headlens.tables.probe_tables import DIRECTIONS

Row = Mapping[Any, Any]
_EMBEDDED = tuple(f"embedded_{name}" for name in DIFFERENCE)
_PANELS = dict(zip(DIRECTIONS, ("dependent to governor", "governor to dependent"), strict=True))
_ABOUT = (
    "The share of held-out words whose governor is found (unlabelled attachment score), with 95 % bootstrap "
    "intervals over sentences. Neither the root nor punctuation is scored. Uniform attention: the same probe, learned "
    "from the attention of a head that gives the same weight to every token it may see. Attention and embeddings: the "
    "weight of every head depends on the word embeddings of both words; distances and embeddings: the same with the "
    "distance between two words in place of attention."
)


def probe_records(scores: pd.DataFrame) -> list[dict[str, Any]]:
    """Lists the probe and its baselines as rows of a short table.

    Args:
        scores: rows of `probe.csv`.
    """
    columns: dict[str, tuple[str, Sequence[str]]] = {"probe − baseline": (PROBE, DIFFERENCE)}
    if EMBEDDED in set(scores["method"]):
        columns = {"probe − this": (PROBE, DIFFERENCE), "with embeddings − this": (EMBEDDED, _EMBEDDED)}
    return [
        {"model": row["model"], "method": f"{row['method']}{_offset(row)}", "words": row["words"]}
        | {"UAS": value_text(row["uas"], row["ci_low"], row["ci_high"])}
        | {
            name: "" if row["method"] == method else difference_text(*(row[n] for n in numbers))
            for name, (method, numbers) in columns.items()
        }
        for row in scores.to_dict("records")
    ]


def _not_better(other: Mapping[str, Any], baseline: str) -> str:
    """How a probe that is not shown to be better than a baseline compares with it."""
    if pd.isna(other["delta_low"]):
        return f"not tested, on so few sentences, whether better than {baseline}"
    return f"{'significantly worse' if other['delta_high'] < 0 else 'not significantly better'} than {baseline}"


def _offset(row: Mapping[Any, Any]) -> str:
    return "" if pd.isna(row["baseline_offset"]) else f" ({row['baseline_offset']:+.0f})"


def probe_figures(tables: Mapping[str, pd.DataFrame]) -> Figures:
    """Draws the weights of all heads in both directions, on one scale.

    Args:
        tables: `probe_weights`, if there.

    Yields:
        Name of the figure, and the figure; None where there is nothing to draw.
    """
    if "probe_weights" in tables:
        weights = tables["probe_weights"]
        both = pd.DataFrame({"weight": pd.concat([weights[name] for name in DIRECTIONS])})
        scale = centred_scale("weight in the probe", both, "weight", DIVERGING)
        title = "Weights of the attention probe" + "".join(
            f"\n{model}: {_not_better(other, other['method'] + _offset(other))}"
            for model, _, other, _ in _compared(tables)
            if not other["delta_low"] > 0
        )
        yield "probe_weights", paired_maps(weights, _PANELS, [scale], title)


def _compared(tables: Mapping[str, pd.DataFrame]) -> Iterator[tuple[str, Row, Row, Sequence[Row]]]:
    """Yields of every model its probe, the better baseline, and all baselines in that order."""
    for model, rows in tables["probe"].groupby("model", sort=False) if "probe" in tables else ():
        probes = rows[rows["method"] == PROBE].to_dict("records")
        baselines = rows[~rows["method"].isin([PROBE, EMBEDDED, DISTANCES])]
        others = baselines.sort_values("uas", ascending=False, kind="stable").to_dict("records")
        if probes and others:
            yield str(model), probes[0], others[0], others


def probe_findings(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """Says how many governors the attention of all heads finds, and how many more than the better baseline."""
    findings = []
    for model, probe, other, others in _compared(tables):
        share = value_text(*(100 * probe[name] for name in ("uas", "ci_low", "ci_high")), digits=1)
        gain = value_text(*(100 * other[name] for name in DIFFERENCE[:3]), digits=1)
        baseline = f"{other['method']}{_offset(other)}"
        sentences = probe.get("sentences", math.nan)  # older runs lack it
        of = "" if math.isnan(sentences) else f" of {counted(int(sentences), 'held-out sentence')}"
        unclear = "" if other["delta_low"] > 0 else f"{_not_better(other, baseline)}: "
        findings.append(
            f"{model}: {unclear}the attention of all heads together finds the governor of {share} % of "
            f"{probe['words']:.0f} words{of} (difference from {baseline}: {gain} percentage points)."
        )
        even = next((row for row in others if row["method"] == UNIFORM), None)
        if even is not None and even is not other and not even["delta_low"] > 0:
            difference = value_text(*(100 * even[name] for name in DIFFERENCE[:3]), digits=1)
            findings[-1] += f" It is {_not_better(even, 'the same probe on uniform attention')} ({difference})."
    return [*findings, *_embedded_findings(tables.get("probe", pd.DataFrame(columns=["model", "method"])))]


def _embedded_findings(scores: pd.DataFrame) -> Iterator[str]:
    """Says how many governors attention and word embeddings find together, and either of them without the other."""
    for model, rows in scores.groupby("model", sort=False):
        by_method = {row["method"]: row for row in rows.to_dict("records")}
        if EMBEDDED not in by_method:
            continue
        share = value_text(*(100 * by_method[EMBEDDED][name] for name in ("uas", "ci_low", "ci_high")), digits=1)
        gains = [
            f"{value_text(*(100 * by_method[method][name] for name in _EMBEDDED[:3]), digits=1)} to {words}"
            for method, words in ((PROBE, "attention alone"), (DISTANCES, "distances and embeddings"))
        ]
        yield (
            f"{model}: attention and word embeddings together find the governor of {share} %; difference in percentage "
            f"points: {', '.join(gains)}."
        )


def _overviews(runs: Sequence[RecordedRun]) -> list[PageTable]:
    records = labelled_records(runs, "probe", probe_records)
    return [page_table("Governors found by the attention probe", records, _ABOUT)] if records else []


def _heads(run: RecordedRun) -> HeadFacts:
    if "probe_weights" not in run.tables:
        return HeadFacts()
    about = (
        "Weight of the head's attention between the two words in the probe; similar heads share what one could have."
    )
    weights = run.tables["probe_weights"]
    return HeadFacts(
        [HeadSeries(name, f"probe, {words}", about, weights, name, diverging=True) for name, words in _PANELS.items()]
    )


REPORT = CommandReport(
    "probe",
    tables=TABLES["probe"],
    needed=("probe", "probe_weights"),
    figures=lambda run: named_after(run.corpus_name, probe_figures(run.tables)),
    captions={
        "probe_weights": Caption(
            "Weights of the attention probe",
            "How much the attention of each head counts where the probe looks for the governor of a word: on the left "
            "attention from the word to a candidate, on the right from the candidate to the word. Blue: attention "
            "speaks for the candidate; red: against it. A weight multiplies attention from 0 to 1, and depends on the "
            "other heads: one of two similar heads may have a weight near 0.",
        )
    },
    sources={"probe_weights": ("probe_weights",)},
    overviews=_overviews,
    heads=_heads,
    findings=lambda run: probe_findings(run.tables),
)

"""What a reader of relevance looks for first: single heads, and whether the rules agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from headlens.findings.verdicts import not_apart, tied
from headlens.pages.formatting import by_sign, number_text, shown_of, value_text
from headlens.pages.head_cards import HeadFacts, HeadSeries, HeadWords
from headlens.pages.page_tables import PageTable, interval_cell, number_cell, page_table
from headlens.plots.head_grid import by_model_and_stack, float_column, head_name
from headlens.plots.heatmaps import holds_zero, limit
from headlens.relevance_propagation.shares import (
    NO_PREDICTION,
    OPPOSES,
    SERVES,
    UNSIGNED,
    UNSIGNED_RULES,
    UNTESTED,
    Marks,
    even_shares,
    gives_magnitudes,
    layer_signs,
    layer_sums,
    of_rule,
    positive_sums,
    requested_rule,
    rules_of_table,
)
from headlens.runs.reading import RecordedRun, run_label, tables_of

MOST = 10  # heads of a model's stack
_BOUNDS = ("ci_low", "ci_high")
_RAW_BOUNDS = ("raw_low", "raw_high")
_RAW = ("raw", *_RAW_BOUNDS)
_REMAINDER = ("remainder", "remainder_low", "remainder_high")
_FEW = " in these few examples, which have no intervals and tell little of others"
OPPOSED = (
    "Positive shares of a layer that add up to more than 1 are those of heads that others work against: a share may be "
    "large because little is left of the layer."
)
_SPELLED = {"magnitude": "its magnitude", "raw magnitude": "magnitude of raw"}
_SHARES = "all heads (shares, not comparable between layers)"


def top_heads(runs: Sequence[RecordedRun]) -> PageTable:
    """The largest shares of a layer in every model and stack, under the rule that was asked for."""
    largest = []
    for run, relevance in tables_of(runs, "relevance"):
        rule, rows = requested_rule(relevance)
        largest += [(run, rule, largest_shares(part.rows)) for part in by_model_and_stack(rows)]
    bounds = [float_column(rows, name) for *_, rows in largest for name in ("relevance", "ci_low", "ci_high")]
    end = limit(*bounds) if bounds else 1.0
    low = min(0.0, max(-end, min((float(np.nanmin(b, initial=0.0)) for b in bounds), default=0.0)))
    top = ((run, rule, row) for run, rule, rows in largest for row in rows.to_dict("records"))
    records = [run_label(run, runs) | _record(row, rule, (low, end)) for run, rule, row in top]
    about = (
        "The largest positive shares of a layer's relevance in every model and stack "
        f"({shown_of(MOST, len(records))}), of layers that serve the target and of heads whose share and `raw` are "
        "above 0, significantly so where there is an interval: that does "
        f"not hold 0. Shares have 95 % bootstrap intervals (dot, line; from {number_text(low)} to {number_text(end)}) "
        f"against the equal share 1 / heads (tick). A layer may contribute next to nothing. {OPPOSED}"
    )
    title = shares_title(*(rows for *_, rows in largest))
    return page_table(title, records, about, name="Largest positive shares of their layer")


def shares_title(*parts: pd.DataFrame) -> str:
    """Returns the title of a table of `largest_shares`, of one part or several."""
    return f"Largest positive shares of their layer, of {_chosen(*parts)} (not comparable between layers)"


def _chosen(*parts: pd.DataFrame) -> str:
    """Of which heads `largest_shares` are: the interval decides where there is one."""
    heads = "heads whose" if all(map(gives_magnitudes, parts)) else "heads in layers that serve the target whose"
    shares, raws = (any(_tested(rows, name) for rows in parts) for name in ("ci_low", "raw_low"))
    if shares == raws:
        return f"{heads} share and raw are {'significantly ' * shares}above 0"
    asked = "above 0 and raw significantly so" if raws else "significantly above 0 and raw above 0"
    return f"{heads} share is {asked}"


def _tested(rows: pd.DataFrame, name: str) -> bool:
    """Whether some of the heads have an interval; without any, there are too few examples."""
    return bool(np.isfinite(float_column(rows, name)).any())


def largest_shares(rows: pd.DataFrame, most: int = MOST) -> pd.DataFrame:
    """The heads of one model and stack with the largest shares above 0, with `even` and `positive`.

    Left out are heads of layers that do not serve the target as a whole, and heads whose share or `raw` is not above 0,
    or has an interval that is not: a share is a mean of ratios, which also is above 0 where head and layer work against
    the target. Where some have intervals, those without, of layers that cancel in most examples, are left out as well.
    """
    shares, raw, *lows = (float_column(rows, name) for name in ("relevance", "raw", "ci_low", "raw_low"))
    signs = layer_signs(rows).astype(str)
    serves: Marks = np.isin(signs, (SERVES, UNSIGNED)) | (np.equal(signs, UNTESTED) & (layer_sums(rows) > 0))
    rows = rows.assign(relevance=shares, raw=raw, even=even_shares(rows), positive=positive_sums(rows))
    if gives_magnitudes(rows):  # of shares, too, which are of magnitudes
        lows, raw = lows[:1], np.abs(raw)
    for low, name in zip(lows, ("ci_low", "raw_low"), strict=False):
        serves &= (low > 0) | (not _tested(rows, name))
    return rows[serves & (shares > 0) & ~(raw <= 0)].sort_values("relevance", ascending=False, kind="stable").head(most)


def largest_heads(rows: pd.DataFrame, most: int = MOST) -> pd.DataFrame:
    """The heads of one model and stack whose `raw` relevance is largest in size; `share` is that of the sum.

    Shares of a layer do not compare layers: a head can have most of a layer that contributes next to nothing.
    """
    numbers: dict[str, Any] = {name: float_column(rows, name) for name in _RAW}  # a file may hold words there
    numbers["its_layer"] = layer_signs(rows)
    size = np.abs(numbers["raw"])
    order = np.argsort(-size, kind="stable")[: min(most, int((size > 0).sum()))]
    return rows.assign(**numbers, share=size / (np.nansum(size) or 1.0)).iloc[order]


def largest_record(row: Mapping[Any, Any]) -> dict[str, Any]:
    """A row of `largest_heads` as a table shows it."""
    low, high = (float(row.get(name, np.nan)) for name in _RAW[1:])
    interval = interval_cell((low, float(row["raw"]), high, 0.0)) if np.isfinite([low, high]).all() else ""
    shown = {"head": head_name(row), "raw": number_cell(row["raw"]), "95 % CI": interval}
    share = value_text(row["relevance"], *(float(row.get(name, np.nan)) for name in _BOUNDS))
    shown |= {"magnitude of its stack": f"{row['share']:.1%}", "share of its layer": share}
    return shown | {"its layer": row["its_layer"]}


def largest_heads_table(runs: Sequence[RecordedRun]) -> PageTable:
    """The heads of every model and stack with the largest contributions, whatever layer they are in."""
    records = [
        run_label(run, runs) | {"model": part.model} | largest_record(row) | {"rule": rule}
        for run, relevance in tables_of(runs, "relevance")
        for rule, rows in [requested_rule(relevance)]
        for part in by_model_and_stack(rows)
        for row in largest_heads(part.rows).to_dict("records")
    ]
    about = (
        "The heads of every model and stack that contribute most to the output, whatever their layer "
        f"({shown_of(MOST, len(records))}): `raw` in units of the output, negative against it, and its magnitude as a "
        "share of the summed magnitudes of the heads "
        "of its stack. `share of its layer` is a mean over examples of ratios, in another order perhaps; its sign "
        "differs from that of `raw` where the layer works against the target, and may do so elsewhere."
    )
    return page_table("Largest contributions across layers", records, about)


def shown_correlations(correlations: pd.DataFrame) -> list[dict[Any, Any]]:
    """Rows of `correlations.csv` with the column `over` in words, over all heads those of `raw` in place of shares.

    Shares of a layer do not compare heads of different layers. Runs of before have no others: these say so. With a rule
    that gives magnitudes alone, magnitudes alone are compared.
    """
    without = correlations[["rule", "other_rule"]].isin(UNSIGNED_RULES).any(axis=1)
    correlations = correlations[~without | correlations["of"].astype(str).str.contains("magnitude")]
    raw, over_heads = correlations["of"].astype(str).str.startswith("raw"), correlations["scope"] == "heads"
    shown = correlations[raw | ~over_heads] if raw.any() else correlations
    over = {"heads": "all heads" if raw.any() else _SHARES, "layers": "within layers"}
    shown = shown.assign(over=shown["scope"].map(over))
    groups = shown.groupby(["stack", "other_rule"], sort=False, dropna=False)
    return [row for _, rows in groups for row in rows.to_dict("records")]


def rule_agreement_table(runs: Sequence[RecordedRun]) -> PageTable:
    """Rank correlations between the relevance of heads under different rules."""
    tables = tables_of(runs, "correlations")
    records = [
        run_label(run, runs) | _correlation(row)
        for run, rows_of_run in tables
        for row in shown_correlations(rows_of_run)
    ]
    about = (
        "Spearman's correlation between the relevance of heads under two rules, with 95 % intervals (dot, line; from "
        "−1 to 1, tick: 0): of shares within a layer, averaged over layers, and of `raw` over all heads of a stack. "
        "Intervals resample examples and keep the heads: they do not tell whether few heads are in the same order by "
        "chance. Rows with “magnitude” compare absolute values."
    )
    return page_table("Agreement of rules", records, about)


def relevance_series(relevance: pd.DataFrame) -> list[HeadSeries]:
    """Returns contributions and shares of relevance by head, two series of the page for every rule."""
    series = []
    for rule in rules_of_table(relevance):
        rows, signed = of_rule(relevance, rule), rule not in UNSIGNED_RULES
        raw = "Contribution to the target in units of the output, which compares heads of different layers"
        raw += ": blue for the target, red against it." if signed else ": magnitudes, which have no sign."
        share = "Share of what its layer contributes to the target; the shares of a layer add up to 1."
        if signed:
            share += (
                " Blue is in the direction of the layer, which may be against the target: the card of a head tells."
            )
            clear = np.isin(layer_signs(rows).astype(str), (SERVES, OPPOSES))
            rows = rows.assign(sure=np.where(holds_zero(rows) | ~clear, 0.0, 1.0))
        looks: dict[str, Any] = {"diverging": signed or bool((float_column(rows, "raw") < 0).any())}
        title = f"relevance ({rule})"
        series.append(
            HeadSeries(f"contribution {rule}", f"{title}, contribution", raw, rows, "raw", _RAW_BOUNDS, **looks)
        )
        looks |= {"unit": "share of its layer", "sure": "sure" if signed else ""}
        series.append(HeadSeries(f"relevance {rule}", title, share, rows, "relevance", _BOUNDS, **looks))
    return series


def layer_words(relevance: pd.DataFrame) -> list[HeadWords]:
    """Returns what the layer of every head does to the target as a whole, in words, for every rule that tells it."""
    words = []
    for rule in rules_of_table(relevance):
        rows = of_rule(relevance, rule)
        totals = zip(*(float_column(rows, f"layer_{name}") for name in _RAW), strict=True)
        does = [
            f"{sign}: {value_text(*total)} in units of the output" if np.isfinite(total[0]) else str(sign)
            for sign, total in zip(layer_signs(rows), totals, strict=True)
        ]
        if rule not in UNSIGNED_RULES:
            words.append(HeadWords(f"Its layer as a whole, by relevance ({rule})", rows.assign(text=does)))
    return words


def relevance_heads(run: RecordedRun) -> HeadFacts:
    """Relevance under every rule."""
    if "relevance" not in run.tables:
        return HeadFacts()
    return HeadFacts(relevance_series(run.tables["relevance"]), layer_words(run.tables["relevance"]))


def relevance_findings(run: RecordedRun) -> list[str]:
    """The head that contributes most, the one with the largest positive share of its layer, and what heads leave."""
    if "relevance" not in run.tables:
        return []
    rule, rows = requested_rule(run.tables["relevance"])
    findings = [note for note in run.notes if note.startswith(NO_PREDICTION)]
    for part in by_model_and_stack(rows):
        sentences = []
        few = not any(_tested(part.rows, name) for name in ("ci_low", "raw_low"))
        ordered = largest_heads(part.rows, len(part.rows))
        for row in ordered.head(1).to_dict("records"):
            near = not_apart(_magnitudes(ordered), 0, _RAW)
            most = "is among the heads that contribute most" if near else "contributes most"
            most += _FEW * few
            does = by_sign([row["raw"]], above=most, below=f"{most}, against the output")
            does = f"{most} in magnitude" if rule in UNSIGNED_RULES else does
            value = value_text(*(float(row[name]) for name in _RAW))
            sentences.append(
                f"{head_name(row)} {does} (rule {rule}): {value} in units of the output, {row['share']:.1%} of the "
                f"summed magnitudes of its stack's heads{tied(1, near=near, how='in magnitude, ')}."
            )
        ordered = largest_shares(part.rows, len(part.rows))
        for row in ordered[ordered["relevance"] > ordered["even"]].head(1).to_dict("records"):
            value = value_text(*(float(row[name]) for name in ("relevance", *_BOUNDS)))
            # Shares of other layers are of other sums.
            own = ordered[ordered["layer"] == row["layer"]]
            near = not_apart(own, 0, ("relevance", *_BOUNDS))
            largest = "one of the largest positive shares" if near else "the largest positive share"
            largest += f"{_FEW}," * few
            sentences.append(
                f"{head_name(row)} has {largest} of its layer's relevance, among {_chosen(ordered)}: "
                f"{value}{tied(1, near=near, how='in its layer, ')}; an equal share is {number_text(row['even'])}, all "
                f"positive shares of its layer add up to {number_text(row['positive'])}."
            )
        if sentences:
            findings.append(f"{part.name}: {' '.join(sentences)}")
    return findings + _sums(rows)


def _sums(rows: pd.DataFrame) -> list[str]:
    """The target as the sum of heads and the remainder, for a rule by which it is one."""
    known = rows[np.isfinite(float_column(rows, "remainder"))]
    if known.empty:
        return []
    remainder, low, high = (float(float_column(known, name)[0]) for name in _REMAINDER)
    heads = float(np.nansum(float_column(known, "raw")))
    return [
        f"The target is {number_text(heads + remainder)} on average. All heads together give {number_text(heads)} of "
        f"it themselves; the remainder, {value_text(remainder, low, high)}, is what all else gives: MLPs, embeddings, "
        "biases and, where there is one, the activation function behind the last layer."
    ]


def _magnitudes(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the magnitude of `raw`, and its interval, that of negative numbers turned round."""
    raw, *ends = (float_column(rows, name) * np.sign(float_column(rows, "raw")) for name in _RAW)
    return rows.assign(**dict(zip(_RAW, (raw, np.minimum(*ends), np.maximum(*ends)), strict=True)))


def _record(row: dict[Any, Any], rule: str, ends: tuple[float, float]) -> dict[str, Any]:
    value, low, high, even = (float(row[name]) for name in ("relevance", "ci_low", "ci_high", "even"))
    record = {"model": row["model"], "head": head_name(row), "relevance": number_cell(value)}
    record |= {"95 % CI": interval_cell((low, value, high, even), ends), "equal share": number_cell(even)}
    record |= {"its positive shares": number_cell(row["positive"])}
    return record | {"n": row.get("n"), "rule": rule, "target": row.get("target")}


def _correlation(row: dict[Any, Any]) -> dict[str, Any]:
    value, low, high = (float(row[name]) for name in ("spearman", "ci_low", "ci_high"))
    record = {"model": row["model"], "stack": row["stack"], "rule": row["rule"], "other rule": row["other_rule"]}
    record |= {"of": _SPELLED.get(str(row["of"]), row["of"]), "over": row["over"]}
    interval = interval_cell((low, value, high, 0.0), (-1.0, 1.0))
    return record | {"heads": row["n"], "Spearman": number_cell(value), "95 % CI over examples": interval}

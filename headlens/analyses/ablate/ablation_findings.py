"""What a run of `ablate` found, in sentences: the heads that are needed most, and the sets that can be pruned."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.analyses.ablate.figures import DENOISE, KEEP_ONLY, NONE, RANDOM, not_ablated, receiver_text, significant
from headlens.analyses.ablate.missed_heads import largest_bound
from headlens.analyses.ablate.overviews import Row, most_damage, most_restored, restored_text, without, worsening
from headlens.analyses.ablate.pruning_strategies import CONTROLS, RANDOM_SETS
from headlens.analyses.ablate.rankings import sets_have_no_verdicts
from headlens.analyses.ablate.worth_over_training import worth_sentences
from headlens.errors import counted
from headlens.findings.verdicts import (
    amount_text,
    chosen_text,
    counts_text,
    foremost,
    has_no_verdicts,
    known_verdicts,
    not_apart,
    taken_away_text,
    tied,
)
from headlens.findings.without_skill import no_skill_text, one_answer_text
from headlens.models.names import first_and_last, recorded_steps
from headlens.pages.formatting import compared_texts, deciding_text, difference_text, number_text, value_text
from headlens.plots.head_grid import float_column, has_numbers, head_name, rows_of_models
from headlens.statistics.non_inferiority import LEVEL
from headlens.tables.same_answers import answer_shares, same_answer_text
from headlens.tasks.task_options import FEW_EXAMPLES, LOWER_IS_BETTER, WRITTEN

_CONTROL_WORDS = {
    "random-by-layer": ("random set", "with as many heads in every layer"),
    "placebo": ("random set", "of as many other heads"),
}
_CHANGE = ("delta", "ci_low", "ci_high")
_NAMED = 3  # heads that are significant where another one has lost more


def findings_of(tables: Mapping[str, pd.DataFrame], models: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """The head that is needed most, how many are needed or not, and how many can be pruned.

    A head is not said to be needed where no change is significant.

    Args:
        tables: `ablation` and `pruning` as they are written; either may be missing.
        models: what run.json says of them; of checkpoints of one training the last is told in full.
    """
    ablation = tables.get("ablation", pd.DataFrame({"mode": [], "model": []}))
    if sentences := worth_sentences(ablation, models):
        tables = rows_of_models(tables, first_and_last(recorded_steps(models))[1:])
        ablation = tables["ablation"]
    silent = set[str]()  # models without verdicts
    for (model, mode), rows in ablation[ablation["mode"] != KEEP_ONLY].groupby(["model", "mode"], sort=False):
        if mode == DENOISE:
            sentences += [f"{model}: {_restored(rows)}"] * bool(rows["n"].iloc[0] >= FEW_EXAMPLES)
        elif has_no_verdicts(rows):
            answers = rows.get("baseline_answer_share", pd.Series([1.0])).iloc[0]
            why, subject = f"{_on_changed(rows)}.", "On the original ones, it"
            if not _no_difference(rows):
                silent.add(str(model))
                why, subject = _no_verdict(rows, answers, "examples", "heads"), "It"
            sentences.append(f"{model}: {why}{_without_any(rows[~not_ablated(rows)], subject)}")
        elif rows["n"].iloc[0] >= FEW_EXAMPLES and rows["delta"].notna().any():
            sentences.append(f"{model}: {_needed(rows)}")
    if "pruning" in tables:
        sentences += _sets_needed(tables["pruning"], silent)
    return sentences


def _no_verdict(rows: pd.DataFrame, answers: float, examples: str, what: str) -> str:
    """Why nothing is said of what heads are needed for: one answer to that share of the examples, or no skill."""
    # A table from somewhere else may have empty cells.
    n = int(np.nanmax([0, *float_column(rows, "n")]))
    metric, same = str(rows["metric"].iloc[0]), same_answer_text(answers)
    if same and str(rows["task"].iloc[0]) in WRITTEN:
        return f"the model gives {same} ({n:,} {examples}), so that {metric} does not tell what {what} are needed for."
    return (one_answer_text if answers >= 1 else no_skill_text)(metric, n, examples, what)


def _without_any(rows: pd.DataFrame, subject: str) -> str:
    """The metric of a model without verdicts, and whether it changes without single heads."""
    metric, baseline = rows["metric"].iloc[0], float(rows["baseline"].iloc[0])
    if not math.isfinite(baseline):
        return ""
    gone, heads, value = without(str(rows["mode"].iloc[0])), counted(len(rows), "head"), number_text(baseline)
    if not (rows["value"] != baseline).any():
        return f" {subject} has exactly the same {metric}, {value}, {gone} any one of {heads}."
    if rows["p_value"].isna().all():
        return f" {subject} has {metric} {value}; on so few examples no change is tested."
    sure, lost = int(significant(rows).sum()), int((significant(rows) & (worsening(rows) > 0)).sum())
    verb, taken = "changes" if sure < 2 else "change", "taken out" if gone == "without" else "replaced"
    ways = {sure: "to the worse", 0: "to the better"}.get(lost, f"{lost} of them to the worse") if sure else ""
    way = f" ({ways})" if ways else ""
    return (
        f" {subject} has {metric} {value}; {sure or 'none'} of {heads} {verb} it significantly when {taken} alone{way}."
    )


def _needed(rows: pd.DataFrame) -> str:
    """The effect of removing the heads of one model in one mode, in a sentence."""
    tests, others = len(rows), rows[not_ablated(rows)]
    rows = rows[~not_ablated(rows)]
    task, metric, baseline = (rows[name].iloc[0] for name in ("task", "metric", "baseline"))
    worst, worse, sure = most_damage(rows, 1), worsening(rows), significant(rows)
    among = f"of the {len(rows)} heads that were ablated, " if len(others) else ""
    better, counts = _better_without(rows, sure & (worse < 0)), counts_text(rows, tests)
    verdicts, gone = f" {counts}" if counts else "", without(mode := str(rows["mode"].iloc[0]))
    if counts and mode == "path":
        verdicts = f" Of the direct paths{receiver_text(rows)}, not of the heads: {counts[0].lower()}{counts[1:]}"
    if on_changed := _on_changed(rows):
        if counts and mode == "counterfactual":
            verdicts = f" Of what tells the two texts apart: {counts[0].lower()}{counts[1:]}"
        verdicts = f" {on_changed}.{verdicts}"
    verdicts += _missed(others)
    if worst.empty:
        intact = number_text(float(baseline))
        same = (rows["value"].dropna() == baseline).all()
        has = f"exactly the same {metric} as with all, {intact}," if same else f"{metric} {intact} or better"
        none = f"{gone} any one of {len(rows)} {'ablated ' * bool(among)}heads, {task} has {has} on these examples"
        return f"{none}.{better}{verdicts}"
    row, losing = worst.iloc[0], rows[sure & (worse > 0)]
    lost = len(losing)
    value, intact = compared_texts(row["value"], row["baseline"])
    change = f"{metric} {value} instead of {intact}, {_change_text(row)}"
    change += f"{deciding_text(row['ci_low'], row['ci_high'], row['p_holm'])}."
    alike = (worse == worse.max()).sum()
    if not lost:
        effect = f"is significantly needed for {task}" if better else f"changes {task} significantly"
        none = f"none of {len(rows)} {'ablated ' * bool(among)}heads {effect} on its own"
        return f"{none}; the largest loss is {gone} {head_name(row)}{tied(alike)}: {change}{better}{verdicts}"
    # Improvements, which are counted in a sentence of their own, may be significant, too.
    what = f"The loss {gone} {'each of ' * (lost > 1)}{counted(lost, 'head')}" if better else counted(lost, "head")
    significance = f"{what} of {len(rows)} {'is' if lost == 1 or better else 'are'} significant"
    if row.name not in losing.index:  # the largest change may be a few large ones
        names = [head_name(other) for other in losing.head(_NAMED).to_dict("records")]
        significance += f": {', '.join([*names, *['…'] * (lost > _NAMED)])}"
    significance += "."
    near = not_apart(rows, int(np.nanargmax(worse)), _CHANGE)
    most = f"{task} suffers most {gone}"
    if near and gone == "without":
        most = f"one of the heads that {task} suffers most without is"
    elif near:
        most = f"one of the largest losses is {gone}"
    which = f"{head_name(row)}{tied(alike, near=near)}"
    return f"{among}{most} {which}: {change} {significance}{better}{verdicts}"


def _on_changed(rows: pd.DataFrame) -> str:
    """What the model with all heads does on the changed texts of pairs; empty of other modes."""
    changed = float(rows["on_changed"].iloc[0]) if "on_changed" in rows else math.nan
    if not math.isfinite(changed):
        return ""
    return f"All heads on the changed texts: {rows['metric'].iloc[0]} {number_text(changed)}{_texts_apart(rows)}"


def _change_text(row: pd.Series[Any]) -> str:
    p_value = "below 0.001" if row["p_holm"] < 0.001 else format(row["p_holm"], ".3f")
    return f"a change of {value_text(row['delta'], row['ci_low'], row['ci_high'])}, Holm-corrected p {p_value}"


def _missed(others: pd.DataFrame) -> str:
    """What is known of heads that were not ablated, in a sentence; empty where all were."""
    if others.empty:
        return ""
    head, bound, _, alike = largest_bound(others)
    left_in = "was not ablated" if len(others) == 1 else "were not ablated"
    which = f"{counted(len(others), 'other head')} whose attribution is smaller in size {left_in}"
    if bound is None:
        return f" {which}."
    amount = amount_text(bound, str(others["metric"].iloc[0]))
    return (
        f" {which}; with 95 % confidence, none of them changes {others['metric'].iloc[0]} by more than {amount} on "
        f"these very examples, if effects add up (the bound of {head}{tied(alike)}); on others it may be more."
    )


def _texts_apart(rows: pd.DataFrame) -> str:
    """By how much the two texts of a pair differ for the model with all heads, and whether that is shown."""
    if not has_numbers(rows, "texts_delta"):  # of an older version
        return ""
    columns = ("texts_delta", "texts_low", "texts_high", "texts_p_value")
    difference = difference_text(*(float(rows[name].iloc[0]) for name in columns))
    tells = "; so it is not shown that there is anything to lose or to restore"
    return f", a difference of {difference}{tells * _no_difference(rows)}"


def _no_difference(rows: pd.DataFrame) -> bool:
    """Whether it is not shown that the two texts of a pair differ for the model with all heads."""
    return has_numbers(rows, "texts_delta") and not float_column(rows, "texts_p_value")[0] < LEVEL


def _restored(rows: pd.DataFrame) -> str:
    """Which head's output on the original text restores most, in a sentence."""
    metric, baseline, original = (rows[name].iloc[0] for name in ("metric", "baseline", "on_original"))
    changed, whole = compared_texts(baseline, original)
    begin = f"on the changed texts {metric} is {changed}, on the originals {whole}{_texts_apart(rows)}"
    lower = {str(metric)} <= LOWER_IS_BETTER
    if not (baseline > original if lower else baseline < original):
        return f"{begin}: the changed texts are no worse, so that there is nothing to restore."
    if _no_difference(rows):
        return f"{begin}."
    best = most_restored(rows, 1)
    if best.empty:
        return f"{begin}; no head's output on the original restores any of that on its own."
    row, better = best.iloc[0], -worsening(rows)
    place = int(np.nanargmax(better))
    near = not_apart(rows, place, _CHANGE)
    sure = int((significant(rows) & (better > 0)).sum())
    most = "one of the heads whose output on the original restores most is" if near else "most is restored by"
    value, _ = compared_texts(row["value"], row["baseline"])
    which = f"{head_name(row)}{tied((better == better.max()).sum(), near=near)}"
    return (
        f"{begin}; {most} {which}: {value}, {_change_text(row)}, "
        f"{restored_text(row)} of what the changed texts take away. {sure or 'None'} of {counted(len(rows), 'head')} "
        f"{'restores' if sure < 2 else 'restore'} some of it significantly."
    )


def _better_without(every: pd.DataFrame, better: npt.NDArray[np.bool_]) -> str:
    """How many heads make a model significantly better when removed, and the foremost one, compared with all heads."""
    if not better.any():
        return ""
    rows, place = every[better], int(np.argmin(np.where(better, worsening(every), np.inf)))
    row, near = every.iloc[place], not_apart(every, place, _CHANGE)
    value, _ = compared_texts(row["value"], row["baseline"])
    best, gone = f"{head_name(row)}{tied((rows['delta'] == row['delta']).sum(), near=near)}", without(str(row["mode"]))
    begin = f"{gone[0].upper()}{gone[1:]}"
    if len(rows) == 1:
        return f" {begin} {best}, {row['metric']} is significantly better: {value}."
    most = "among them" if near else f"most so {gone}"
    which = f"{begin} any one of {len(rows)} heads, {row['metric']} is significantly better, {most}"
    return f" {which} {best}: {value}."


def _sets_needed(pruning: pd.DataFrame, silent: Collection[str]) -> list[str]:
    """The most heads that a strategy takes out and that are shown not to be needed, or else what is not decided.

    Args:
        pruning: as it is written.
        silent: models of which it was said why they have no verdicts.
    """
    sentences = []
    for model, rows in pruning.groupby("model", sort=False):
        sets = rows[~rows["strategy"].isin([NONE, *RANDOM_SETS]) & (rows["n_pruned"] > 0)]
        chosen = known_verdicts(sets)
        if sets_have_no_verdicts(rows) and str(model) not in silent:
            answers = answer_shares(rows)[0] if "answer_share" in rows else 1.0  # of the whole model, the first row
            examples = "evaluation examples" + " or on all" * (not answers >= 1)
            sentences.append(f"{model}: {_no_verdict(sets, answers, examples, 'pruned heads')}")
        if len(chosen):
            row = foremost(chosen, "n_pruned")
            gone, left = int(row["n_pruned"]), int(row["n_heads"])
            as_many = chosen[chosen["n_pruned"] == gone]
            equal = (as_many["value"] == row["value"]) & (as_many["verdict"] == row["verdict"])
            pruned = f"{gone} of {gone + left} heads pruned ({', '.join(map(str, as_many[equal]['strategy']))})"
            different = chosen.drop_duplicates("removed") if "removed" in chosen else chosen
            sets_text = "sets of heads" if len(different) == len(chosen) else "different sets of heads"
            sentence = chosen_text(row, different, sets_text, most="largest", least="smallest")
            sentence += taken_away_text(row, pruned, len(chosen), "sets of heads")
            sentence += _other_strategies(as_many[~equal])
            sentences.append(f"{model}: {sentence}{_random_sets(rows, row)}")
    return sentences


def _other_strategies(rows: pd.DataFrame) -> str:
    """What other strategies reach with as many heads pruned, as the first was chosen on these examples."""
    texts = [f"{row['strategy']} {number_text(float(row['value']))}" for row in rows.to_dict("records")]
    others = "This strategy was picked on these examples; others with as many heads pruned"
    return f" {others}: {', '.join(texts)}." if texts else ""


def _random_sets(pruning: pd.DataFrame, chosen: Row) -> str:
    """What random sets of as many heads reach in a model: chance may do as well as the strategy that chose a set."""
    as_many = pruning[pruning["n_pruned"] == chosen["n_pruned"]].dropna(subset=["value"])
    kinds = {RANDOM: ("random order", "of as many heads"), **_CONTROL_WORDS}
    sentences = ""
    for name, (what, of) in kinds.items():
        drawn = as_many[as_many["strategy"] == name]
        if name in CONTROLS and len(drawn):
            drawn = drawn[drawn["control_of"] == chosen["strategy"]]
        if len(drawn) and "possible_sets" in drawn and (drawn["possible_sets"] == 1).all():
            sentences += f" The only set {of}: {number_text(float(drawn['value'].iloc[0]))}."
        elif len(drawn):
            low, high = compared_texts(drawn["value"].min(), drawn["value"].max())
            values = f"{low} to {high}" if low != high else f"{low} each" if len(drawn) > 1 else low
            sentences += f" {counted(len(drawn), what)} {of}: {values}."
    return sentences

"""Whether heads of several models, or of one model in several states, have the same roles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import norm

from headlens.analyses.classify.roles import role_family
from headlens.heads import STACKS
from headlens.pages.page_tables import number_cell
from headlens.plots.head_grid import head_name

MOST_NOTES = 3  # pairs of models that are told of one by one
COLUMNS = ["model", "other_model", "stack", "heads", "same", "kappa", "ci_low", "ci_high"]


def role_agreement(heads: pd.DataFrame) -> pd.DataFrame:
    """Compares the roles of heads of the same place, of every two models and stack by stack.

    Roles are compared by family (`syntactic` for any relation), "none" among them. `same` counts the heads with the
    same one; `kappa` is what of that is beyond chance (Cohen 1960), with its asymptotic 95 % interval (Fleiss et al.
    1969). It is empty where one of two models has a single role throughout.

    Args:
        heads: rows of heads.csv of several models.

    Returns:
        A row for every two models and stack of the same shape that have two heads in common at least. A layer of a
        model with fewer has no counterpart in one with more.
    """
    return pd.DataFrame(_rows(heads), columns=COLUMNS)


def _rows(heads: pd.DataFrame) -> Iterator[list[object]]:
    place = ["layer", "head"]
    of = {(m, s): rows for (m, s), rows in heads.groupby(["model", "stack"], sort=False)}
    for one, other in combinations(dict.fromkeys(heads["model"]), 2):
        for stack in STACKS:
            if (one, stack) not in of or (other, stack) not in of:
                continue
            if _shape(of[one, stack]) != _shape(of[other, stack]):
                continue
            both = of[one, stack][[*place, "role"]].merge(of[other, stack][[*place, "role"]], on=place)
            if len(both) < 2:
                continue
            one_role, other_role = (both[side].map(role_family) for side in ("role_x", "role_y"))
            yield [one, other, stack, len(both), int((one_role == other_role).sum()), *_kappa(one_role, other_role)]


def _shape(heads: pd.DataFrame) -> tuple[int, int]:
    """Returns how many layers a stack has, and how many heads a layer; heads that were cut out count but at the end."""
    return int(heads["layer"].max()) + 1, int(heads["head"].max()) + 1


def _kappa(one: pd.Series[str], other: pd.Series[str]) -> tuple[float, float, float]:
    """Cohen's κ with its interval; NaN where it is not defined."""
    from statsmodels.stats.inter_rater import cohens_kappa  # noqa: PLC0415 - takes a second, for two models alone

    names = sorted({*one, *other})
    if len(set(one)) == 1 or len(set(other)) == 1:
        return math.nan, math.nan, math.nan
    table = pd.crosstab(one, other).reindex(index=names, columns=names, fill_value=0)
    with np.errstate(invalid="ignore"):  # the root of a variance of 0, rounded to below it
        found = cohens_kappa(table.to_numpy())
    half = norm.ppf(0.975) * math.sqrt(max(found.var_kappa, 0.0))
    return float(found.kappa), float(max(found.kappa - half, -1)), float(min(found.kappa + half, 1))


def role_records(roles: pd.DataFrame) -> list[dict[str, Any]]:
    """Returns every role that some model holds with the heads that hold it and the best head, model by model.

    Args:
        roles: rows of roles.csv of several models.

    Returns:
        Records of a table: by stack, then the roles that the most models hold first; models in order of appearance.
    """
    held = roles.assign(models=roles["held"] > 0).groupby(["stack", "role"])[["models", "held"]].transform("sum")
    shown = roles.assign(
        place=[STACKS.index(stack) for stack in roles["stack"]], models=held["models"], all=held["held"]
    )
    order = {"place": True, "models": False, "all": False, "role": True}
    shown = shown[shown["models"] > 0].sort_values(list(order), ascending=list(order.values()), kind="stable")
    return [
        {
            "stack": row["stack"],
            "role": row["role"],
            "model": row["model"],
            "held by": f"{row['held']:.0f} of {row['heads']:.0f}",
            "best head": head_name(row),
            "its value": number_cell(row["value"]),
            "score": number_cell(row["score"]),
        }
        for row in shown.to_dict("records")
    ]


def agreement_notes(agreement: pd.DataFrame) -> list[str]:
    """Returns what the table says in sentences, one for each of its rows; of many of them the lowest and highest κ."""
    several = len(set(agreement["stack"])) > 1
    if len(agreement) > MOST_NOTES:
        known = agreement.dropna(subset="kappa").sort_values("kappa", kind="stable")
        ends = [
            f"{row['kappa']:.2f} ({row['model']} and {row['other_model']}, {row['stack']})"
            for row in (known.iloc[[0, -1]].to_dict("records") if len(known) else [])
        ]
        told = f" Cohen's κ ranges from {ends[0]} to {ends[1]}." if ends else ""
        return [f"agreement.csv compares the roles of heads in the same position, for {len(agreement)} pairs.{told}"]
    notes = []
    for row in agreement.to_dict("records"):
        where = f", {row['stack']}" if several else ""
        interval = f"[{row['ci_low']:.2f}, {row['ci_high']:.2f}]"
        beyond = "" if pd.isna(row["kappa"]) else f", Cohen's κ {row['kappa']:.2f} {interval}"
        notes.append(
            f"{row['model']} and {row['other_model']}{where}: {row['same']} of {row['heads']} heads in the same "
            f"position have the same role, or none{beyond}."
        )
    return notes

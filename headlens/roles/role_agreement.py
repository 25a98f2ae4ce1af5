"""Whether heads of several models, or of one model in several states, have the same roles (Cohen's kappa)."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pandas as pd
from scipy.special import ndtri

from headlens.heads import STACKS
from headlens.roles.role_rules import role_family
from headlens.tables.classify_tables import AGREEMENT

MOST_NOTES = 3  # pairs of models that are told of one by one


def role_agreement(heads: pd.DataFrame) -> pd.DataFrame:
    """Compares the roles of heads of the same place, of every two models and stack by stack.

    Roles are compared by family (`syntactic` for any relation), "none" among them. `same` counts the heads with the
    same one; `kappa` is what of that is beyond chance (Cohen 1960), with its asymptotic 95 % interval (Fleiss et al.
    1969). It is empty where one of two models has a single role throughout. `with_role` counts the heads that have a
    role in one model at least.

    Args:
        heads: rows of heads.csv of several models.

    Returns:
        A row for every two models and stack of the same shape that have two heads in common at least. A layer of a
        model with fewer has no counterpart in one with more.
    """
    place, rows = ["layer", "head"], []
    of = {(m, s): stack_rows[[*place, "role"]] for (m, s), stack_rows in heads.groupby(["model", "stack"], sort=False)}
    # How many layers a stack has, and how many heads a layer; heads that were cut out count but at the end.
    shapes = {key: stack_rows[place].max().to_list() for key, stack_rows in of.items()}
    for (one, other), stack in product(combinations(dict.fromkeys(heads["model"]), 2), STACKS):
        if (one, stack) in of and shapes[one, stack] == shapes.get((other, stack)):
            both = of[one, stack].merge(of[other, stack], on=place)
            if len(both) >= 2:
                roles = [both[side].map(role_family) for side in ("role_x", "role_y")]
                with_role = int(((roles[0] != "none") | (roles[1] != "none")).sum())
                numbers = (len(both), int((roles[0] == roles[1]).sum()), *_kappa(*roles), with_role)
                rows.append([one, other, stack, *numbers])
    return AGREEMENT.frame(rows)


def _kappa(one: pd.Series[str], other: pd.Series[str]) -> tuple[float, float, float]:
    """Cohen's κ with its interval; NaN where it is not defined."""
    from statsmodels.stats.inter_rater import cohens_kappa

    names = sorted({*one, *other})
    if len(set(one)) == 1 or len(set(other)) == 1:
        return math.nan, math.nan, math.nan
    table = pd.crosstab(one, other).reindex(index=names, columns=names, fill_value=0)
    with np.errstate(invalid="ignore"):  # the root of a variance of 0, rounded to below it
        kappa = cohens_kappa(table.to_numpy())
    half = ndtri(0.975) * math.sqrt(max(kappa.var_kappa, 0.0))
    return float(kappa.kappa), float(max(kappa.kappa - half, -1)), float(min(kappa.kappa + half, 1))


def agreement_notes(agreement: pd.DataFrame) -> list[str]:
    """Returns what the table says in sentences, one for each of its rows; of many of them the lowest and highest κ."""
    several = len(set(agreement["stack"])) > 1
    if len(agreement) > MOST_NOTES:
        known = agreement.dropna(subset="kappa").sort_values("kappa", kind="stable")
        ends = [
            f"{row['kappa']:.2f} ({row['model']} and {row['other_model']}, {row['stack']})"
            for row in (known.iloc[[0, -1]].to_dict("records") if len(known) else [])
        ]
        kappa_range = f" Cohen's κ ranges from {ends[0]} to {ends[1]}." if ends else ""
        return [
            f"agreement.csv compares the roles of heads in the same position, for {len(agreement)} pairs.{kappa_range}"
        ]
    notes = []
    for row in agreement.to_dict("records"):
        where = f", {row['stack']}" if several else ""
        if not row.get("with_role", row["heads"]):
            notes.append(f"{row['model']} and {row['other_model']}{where}: no head has a role in either of them.")
            continue
        interval = f"[{row['ci_low']:.2f}, {row['ci_high']:.2f}]"
        beyond = "" if pd.isna(row["kappa"]) else f", Cohen's κ {row['kappa']:.2f} {interval}"
        without = row["heads"] - row.get("with_role", row["heads"])
        notes.append(
            f"{row['model']} and {row['other_model']}{where}: {row['same'] - without} of {row['heads']} heads in the "
            f"same position have the same role, {without} have none in either{beyond}."
        )
    return notes

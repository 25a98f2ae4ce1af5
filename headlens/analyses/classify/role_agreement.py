"""Whether the heads of two models, or of one model on two states, have the same roles."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pandas as pd

from headlens.analyses.classify.roles import role_family
from headlens.heads import STACKS
from headlens.statistics.seeding import generator_of

_DRAWS = 2000
COLUMNS = ["model", "other_model", "stack", "heads", "same", "kappa", "ci_low", "ci_high"]


def role_agreement(heads: pd.DataFrame) -> pd.DataFrame:
    """Compares the roles of heads of the same place, of every two models and stack by stack.

    Roles are compared by family (`syntactic` for any relation), "none" among them. `same` counts the heads with the
    same one; `kappa` is what of that is beyond chance (Cohen 1960), with a 95 % bootstrap interval over heads. It is
    empty where both models have one and the same role throughout.

    Args:
        heads: rows of heads.csv of several models.

    Returns:
        A row for every two models and stack that have two heads in common at least.
    """
    return pd.DataFrame(_rows(heads), columns=COLUMNS)


def _rows(heads: pd.DataFrame) -> Iterator[list[object]]:
    place = ["layer", "head"]
    of = {(m, s): rows for (m, s), rows in heads.groupby(["model", "stack"], sort=False)}
    for one, other in combinations(dict.fromkeys(heads["model"]), 2):
        for stack in STACKS:
            if (one, stack) not in of or (other, stack) not in of:
                continue
            both = of[one, stack][[*place, "role"]].merge(of[other, stack][[*place, "role"]], on=place)
            if len(both) < 2:
                continue
            roles = np.stack([both[side].map(role_family).to_numpy() for side in ("role_x", "role_y")])
            generator = generator_of(f"{one}|{other}|{stack}", 0)
            drawn = [_kappa(roles[:, generator.integers(len(both), size=len(both))]) for _ in range(_DRAWS)]
            known = [kappa for kappa in drawn if not np.isnan(kappa)]
            ends = np.quantile(known, [0.025, 0.975]) if known else [np.nan, np.nan]
            yield [one, other, stack, len(both), int((roles[0] == roles[1]).sum()), _kappa(roles), *ends]


def _kappa(roles: np.ndarray[tuple[int, ...], np.dtype[np.object_]]) -> float:
    """Cohen's κ of two rows of names; NaN where both have one and the same throughout."""
    names, codes = np.unique(roles.astype(str), return_inverse=True)
    one, other = (np.bincount(row, minlength=len(names)) / roles.shape[1] for row in codes.reshape(roles.shape))
    chance = float(one @ other)
    same = float((roles[0] == roles[1]).mean())
    return float("nan") if chance == 1 else (same - chance) / (1 - chance)


def agreement_notes(agreement: pd.DataFrame) -> list[str]:
    """Returns what the table says in sentences, one for each of its rows."""
    several = len(set(agreement["stack"])) > 1
    notes = []
    for row in agreement.to_dict("records"):
        where = f", {row['stack']}" if several else ""
        interval = f"[{row['ci_low']:.2f}, {row['ci_high']:.2f}]"
        beyond = "" if pd.isna(row["kappa"]) else f", Cohen's κ {row['kappa']:.2f} {interval}"
        notes.append(
            f"{row['model']} and {row['other_model']}{where}: {row['same']} of {row['heads']} heads of the same place "
            f"have the same role, or none{beyond}."
        )
    return notes

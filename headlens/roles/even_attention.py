"""Heads that spread their attention evenly, so that no head of their stack is named as the best at anything."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.errors import counted
from headlens.plots.head_grid import by_model_and_stack, float_column

Marks = npt.NDArray[np.bool_]
# From which share of the normalised entropy of uniform attention on a head attends evenly: what it gives to a token
# differs from token to token as little as in a model that was not trained.
EVEN = 0.99
NEARLY_ALL, SOME = 0.9, 0.1  # of the heads of a stack
EVEN_HEADS = "none (even)"  # instead of the name of the best head of an even stack
ROUNDING = 1e-6  # of shares of float32 weights


def is_even(heads: pd.DataFrame) -> bool:
    """Whether all heads of a stack, or nearly all, spread their attention evenly: rows of heads.csv."""
    return len(heads) > 0 and int(even_heads(heads).sum()) >= NEARLY_ALL * len(heads)


def even_models(heads: pd.DataFrame | None) -> list[str]:
    """Returns the models in which all stacks are even; empty for no rows of heads.csv."""
    parts = [] if heads is None or heads.empty else by_model_and_stack(heads)
    others = {part.model for part in parts if not is_even(part.rows)}
    return sorted({part.model for part in parts} - others)


def even_stacks(heads: pd.DataFrame | None) -> list[tuple[str, str]]:
    """Returns model and name of the stacks that are even: which of their heads comes first in anything is chance."""
    parts = [] if heads is None or heads.empty else by_model_and_stack(heads)
    return [(part.model, part.stack) for part in parts if is_even(part.rows)]


def without_even(syntax: pd.DataFrame, even: Collection[tuple[str, str]]) -> pd.DataFrame:
    """Returns rows of syntax.csv with no accuracy in even stacks, so that none of their heads is the best."""
    return syntax.assign(accuracy=np.where(in_stacks(syntax, even), np.nan, float_column(syntax, "accuracy")))


def even_note(stacks: Sequence[tuple[str, str]], then: str = "no head is named") -> str:
    """Returns the line that titles get about even stacks, and what follows of it; empty for none."""
    names = "; ".join(f"{model}, {stack}" for model, stack in stacks)
    return f"\n{names}: attention is nearly even, {then}" if names else ""


def in_stacks(rows: pd.DataFrame, stacks: Collection[tuple[str, str]]) -> Marks:
    """Which rows of a table are of one of the stacks: pairs of model and name."""
    return np.array([key in stacks for key in zip(rows["model"].astype(str), rows["stack"], strict=True)], bool)


def even_sentence(heads: pd.DataFrame) -> str:
    """The first sentence on a stack with such heads."""
    even, roled = int(even_heads(heads).sum()), int((heads["roles"].fillna("") != "").sum())
    all_heads = f"all {counted(even, 'head')}" if even > 1 else "the only head"
    who = all_heads if even == len(heads) else f"{even} of {counted(len(heads), 'head')}"
    spread = "spreads its" if len(heads) == 1 else "spread their"
    of_uniform = " of that of uniform attention" * bool((most_entropy(heads) < 1 - ROUNDING).any())
    start = f"{who} {spread} attention evenly (entropy ≥ {100 * EVEN:.0f} %{of_uniform})"
    if not is_even(heads):
        of_them = int((even_heads(heads) & (heads["roles"].fillna("") != "")).sum())
        return f"{start}; {of_them or 'none'} of them {'has' if of_them <= 1 else 'have'} a role."
    if roled:
        return f"{start}; {counted(roled, 'head')} {'has' if roled == 1 else 'have'} a role, see heads.csv."
    learned = "it has learned" if len(heads) == 1 else "they have learned"
    nobody = "it has no role" if len(heads) == 1 else "no head has a role"
    return f"{start}: what {learned}, if anything, shows in small differences of weights, and {nobody}."


def even_heads(heads: pd.DataFrame) -> Marks:
    """Which heads spread their attention evenly: rows of heads.csv."""
    return float_column(heads, "entropy_norm") >= EVEN * most_entropy(heads)


def most_entropy(heads: pd.DataFrame) -> npt.NDArray[np.float64]:
    """The normalised entropy of uniform attention: below 1 between words, which differ in their tokens."""
    return np.fmin(float_column(heads, "entropy_norm_null"), 1.0)


def uniform_heads(heads: pd.DataFrame) -> Marks:
    """Which heads give all tokens the same weight, but for rounding, as the null head does: rows of heads.csv.

    Of their tokens, which all tie, the first one counts as the most attended; the null head shares the ties instead.
    Shared counts of a head would be no whole numbers, as its exact tests need, and of weights in half precision, which
    tie often, they would be others than of the same weights in single precision.
    """
    # Between words others may have more.
    return np.abs(float_column(heads, "entropy_norm") - most_entropy(heads)) < ROUNDING


def has_even(heads: pd.DataFrame) -> bool:
    """Whether so many heads of a stack spread their attention evenly that it is to be said first."""
    return len(heads) > 0 and int(even_heads(heads).sum()) >= SOME * len(heads)

"""Whether the best head of a relation follows it, in words."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.plots.head_grid import float_column

Marks = npt.NDArray[np.bool_]
CAUSAL = "decoder"  # the stack whose heads cannot look at what comes later

# What is not said by the words alone.
_EXPLAINED = {
    "no (n.s.)": "above the baseline by the margin, but not significantly",
    "no (uniform)": "not above uniform attention",
    "no (ceiling)": "the baseline is so high that no head can be above it by the margin",
    "no (later)": "the other word mostly stands to the right, where a causal head cannot look",
    "too few": "too few instances to tell",
}


def verdicts(best: pd.DataFrame, min_instances: int) -> list[str]:
    """Whether each head follows its relation: `yes`, `no`, `too few` instances, or why it does not.

    `no (n.s.)` is above the margin, but not significantly; `no (uniform)` is not above uniform attention. No head can
    be syntactic where it is `no (ceiling)`, as the baseline and the margin are above 1, and hardly one where it is
    `no (later)`, as the other word mostly stands where a causal head cannot look.
    """
    syntactic, significant = is_marked(best["syntactic"]), is_marked(best["significant"])
    few, ceiling = float_column(best, "n") < min_instances, float_column(best, "needed") > 1
    kinds = ["too few", "no (ceiling)", "no (later)", "no", "no (n.s.)", "yes"]
    tests = [few, ~syntactic & ceiling, ~syntactic & mostly_later(best), ~syntactic, ~significant, is_syntactic(best)]
    return [str(word) for word in np.select(tests, kinds, "no (uniform)")]


def explained_verdicts(shown: Iterable[str]) -> list[str]:
    """Returns a sentence on the verdicts among those shown that are no plain yes or no; nothing without any."""
    known = set(shown)
    parts = [f"{verdict}: {why}" for verdict, why in _EXPLAINED.items() if verdict in known]
    return [f"{'; '.join(parts)}."] if parts else []


def mostly_later(syntax: pd.DataFrame) -> Marks:
    """Which rows are of heads of a causal stack in a relation whose most frequent offset lies to the right."""
    return (syntax["stack"] == CAUSAL).to_numpy() & (float_column(syntax, "baseline_offset") > 0)


def is_syntactic(syntax: pd.DataFrame) -> Marks:
    """Which rows are above the margin, significantly above the offset, and above uniform attention, where known."""
    uniform = float_column(syntax, "ci_low") <= float_column(syntax, "accuracy_null")
    return is_marked(syntax["syntactic"]) & is_marked(syntax["significant"]) & ~uniform


def is_marked(column: pd.Series) -> Marks:
    """A column of truth values as booleans; empty cells are false; text from a file counts by its word."""
    return np.array([str(v).strip().lower() in {"true", "1", "1.0"} for v in column], bool)

"""What is said of models that do no better than guesses, or give one answer to everything: before all other things."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from headlens.plots.curves import VALUES
from headlens.statistics.intervals import wilson
from headlens.statistics.paired_tests import exceeds_chance
from headlens.tables.same_answers import answer_shares, same_answer_text
from headlens.tasks.task_options import LOWER_IS_BETTER

REPRODUCED = "A step of headlens reproduce "  # how the note of one begins that is not in the setting of the paper
# How notes of `headlens.findings.result_notes` begin that say of a model that it is no better than guessing.
_NO_SKILL = re.compile(
    r"(?:(?P<model>.+): )?(?:The (?:loss of the )?model is (?:not significantly better|significantly worse) "
    r"|Whether the model is better than .+ is not tested: )"
)


def skill_first(notes: Iterable[str], sentences: Sequence[str]) -> list[str]:
    """Puts before the sentences on a run those of its notes that say what else should be known first.

    These are that a model is no better than guessing, and that the setting of a paper's study is another one.

    Args:
        notes: of the run; of several models, or of one that was changed in several ways, they begin with its name.
        sentences: those that say of a model that it has one answer for everything say enough, and what is said of none
            of the models, such as one of many penalties, stays a note.
    """
    constant = {text.partition(":")[0] for text in sentences if ": the model gives the same answer to" in text}
    notes = list(notes)
    first = [note for note in notes if note.startswith(REPRODUCED)]
    for note in notes:
        if begins := _NO_SKILL.match(note):
            model = begins["model"]
            named = model is not None and any(text.startswith((f"{model}:", f"{model},")) for text in sentences)
            if (named and model not in constant) or (model is None and not constant):
                first.append(note)
    return [*first, *sentences]


def within_guesses(rows: pd.DataFrame) -> bool:
    """Whether no row is significantly above what guessing gives, as far as that is known; not of losses.

    Shares of right answers are compared by the exact test of `headlens.tasks.skill`, which is stricter than their
    interval; other metrics by whether their interval reaches down to the guesses.
    """
    if "chance" not in rows or "metric" not in rows or set(rows["metric"]) & LOWER_IS_BETTER:
        return False
    columns = rows.reindex(columns=[*VALUES, "chance", "n"]).astype(float)
    # What has no interval, as where no resample differs, is no better than guesses if it has no more than they have.
    no_more = columns[VALUES[0]] <= columns["chance"]
    known = columns[np.isfinite(columns["chance"]) & (np.isfinite(columns[VALUES[1]]) | no_more)]
    return len(known) > 0 and not any(_exceeds_guesses(*row) for row in known.itertuples(index=False))


def _exceeds_guesses(value: float, low: float, high: float, chance: float, n: float) -> bool:
    """Whether a value is significantly above a chance level, by the test that its interval belongs to."""
    if n > 0 and 0 <= value <= 1:
        right = round(value * n)
        ends = wilson(np.array(right), np.array(n))
        if np.allclose([right / n, *map(float, ends)], [value, low, high], rtol=0, atol=1e-9):
            return exceeds_chance(right, round(n), chance)
    return low > chance


def one_answer_text(metric: str, n: int, examples: str, what: str) -> str:
    """What is said instead of a verdict where a model gives one answer to everything, with and without what is removed.

    Args:
        metric: of the task.
        n: how many examples there are.
        examples: their name.
        what: is removed.
    """
    answer = f"the model gives the same answer to all {n:,} {examples}"
    return f"{answer}, so that nothing can be measured about {what} with {metric}."


def no_skill_text(metric: str, n: int, examples: str, what: str) -> str:
    """What is said instead of a verdict where a model is no better than guesses; arguments as in `one_answer_text`."""
    guesses = f"the model is not shown to be better than guessing on {n:,} {examples}"
    return f"{guesses}, so that {metric} does not tell what {what} are needed for."


def gives_one_answer(row: Mapping[Any, Any]) -> bool:
    """Whether a row of a sweep tells that its model gives one answer to everything; older tables do not tell."""
    return str(row.get("same_answer")) == "True"


def one_answer_after(row: Mapping[Any, Any]) -> str:
    """The sentence about one answer to all examples or nearly all, to stand behind a metric; empty for other models."""
    same = same_answer_text(answer_shares(pd.DataFrame([row]))[0])
    return f" It gives {same}." if same else ""

"""The tables of `headlens reproduce`: numbers and claims of a paper beside ours."""

from __future__ import annotations

from headlens.tables.shared_columns import METRIC, interval, of_metric
from headlens.tables.table_schema import TableSchema, count, number, word

_SOURCE = word("source", "Where it is printed: `paper` or `slides`; empty for cells without a number.")
_NOT_RUN = word("not_run", "What our number needs that was not there; empty where there is a number.")
_TABLE = word("table", "Title of the paper's table.")
_COLUMN = word("column", "Name of the column in that table.")

COMPARISON = TableSchema(
    "comparison",
    "A cell of a table of the paper.",
    (
        _TABLE,
        word("row", "Label of the row in that table."),
        _COLUMN,
        word("published", "The number as it is published, or a text of several; empty for none."),
        word("ours", "Our number in the units of the paper, or a text of several; empty where not run."),
        *interval("our number, over examples, or over seeds where it is a mean over these"),
        _SOURCE,
        _NOT_RUN,
        word("agreement", "How our number stands to the published one, in words; empty without both."),
        word(
            "scale",
            "Scale of our run: `full`, the paper's setting; `card`, a smaller one; `small`, bundled data and models.",
        ),
    ),
)
COLUMN_AGREEMENT = TableSchema(
    "agreement",
    "A column of a table of the paper that has published numbers.",
    (
        _TABLE,
        _COLUMN,
        count("published", "Published numbers.", "cells"),
        count("cells", "Cells that have a published number and ours.", "cells"),
        count("agreeing", "Those that are the same, or have the published number in our interval.", "cells"),
        count("pairs", "Pairs of rows that differ in print.", "pairs"),
        count("same_order", "Those that stand in the same order with us.", "pairs"),
        count("signs", "Differences from the baseline row or column that are not 0 in print."),
        count("same_sign", "Those that have the same sign with us."),
        word("agreement", "The same in words."),
    ),
)
CLAIMS = TableSchema(
    "claims",
    "A claim of the paper and a run that it is asked of.",
    (
        word("claim", "The sentence."),
        _SOURCE.but("Where it is printed: `paper` or `slides`."),
        word("reading", "How it is measured here, and what in that is ours."),
        word(
            "step",
            "Name of the run, as `STEP/TASK` of one with several tasks; empty where the claim needs what is not there.",
        ),
        METRIC,
        word("verdict", "Whether the claim holds, by the whole interval, or `not run here`."),
        of_metric(
            "difference",
            "The number that decides: one side of the claim minus the other, mean over seeds or heads, or a "
            "statistic minus what chance gives.",
        ),
        *interval("the difference, over seeds or heads, or as the run gives it"),
        count("trainings", "Differences that it is the mean over: trainings, or heads of one.", "differences"),
        _NOT_RUN,
        number("p_value", "The p-value as the run gives it; empty for claims that an interval decides."),
    ),
)
REPRODUCE = (COMPARISON, COLUMN_AGREEMENT, CLAIMS)

"""Columns that many tables have."""

from __future__ import annotations

from functools import partial

from headlens.heads import KEY_COLUMNS, STACKS
from headlens.statistics.non_inferiority import NEEDED, NOT_DECIDED, NOT_NEEDED
from headlens.tables.table_schema import TableColumn, count, index, number, optional, truth, word

of_metric = partial(number, unit="of the metric")

VERDICTS = (NEEDED, NOT_NEEDED, NOT_DECIDED)
ALL = "all"  # stacks

MODEL = word("model", "Short name of the model; with parent folders where others of the run are called alike.")
STACK = word("stack", "Which attention the head belongs to.", words=STACKS)
LAYER = index("layer", "Number of the layer, from 0; layers that share their weights count one by one.")
HEAD = index("head", "Number of the head in its layer, from 0, as in the original of a compacted model.")
KV_GROUP = count(
    "kv_group",
    "Number of the head of keys and values that the head shares with others, from 0, as in the original; empty where "
    "it has its own, and absent where all have.",
    optional=True,
)  # in every table about heads, see `every_table`
HEAD_KEYS = (STACK, LAYER, HEAD)
MODEL_HEAD = (MODEL, *HEAD_KEYS)
HEAD_IDENTITY = ("model", *KEY_COLUMNS)
STACK_OR_ALL = STACK.but(f"The stack that the row is about; `{ALL}` for all of them together.", words=(ALL, *STACKS))

TASK = word("task", "Name of the task.")
METRIC = word("metric", "Name of the metric.")
N = count("n", "How many examples were measured.", "examples")
VALUE = of_metric("value", "The metric on all examples.")


def interval(of: str, names: tuple[str, str] = ("ci_low", "ci_high"), unit: str = "") -> tuple[TableColumn, ...]:
    """Returns the columns with the ends of a 95 % interval.

    Args:
        of: what the interval is of, and over what, in words.
        names: of the columns.
        unit: of the numbers.
    """
    return tuple(
        number(name, f"{end} end of the 95 % interval of {of}; empty where there is none.", unit)
        for end, name in zip(("Lower", "Upper"), names, strict=True)
    )


ESTIMATE = (VALUE, *interval("the value, over examples", unit="of the metric"))


def paired_difference(of: str, before: str = "", unit: str = "of the metric") -> tuple[TableColumn, ...]:
    """Returns the columns of a paired difference and its p-value.

    Args:
        of: what differs from what, in words.
        before: what names of columns begin with.
        unit: of the difference.
    """
    delta = number(f"{before}delta", f"{of}; empty where nothing is compared.", unit)
    ends = interval("that difference, paired by example", (f"{before}delta_low", f"{before}delta_high"), unit)
    about = "Two-sided p-value of the hypothesis that there is no difference, not corrected for multiple tests."
    return delta, *ends, number(f"{before}p_value", about)


P_HOLM = number("p_holm", "`p_value` corrected for all rows of its family (Holm 1979).")
# At the end of tables of many comparisons, after their p-values.
VERDICT = optional(
    number("p_margin", "One-sided p-value of the hypothesis that the loss is the margin or more."),
    number("p_margin_holm", "`p_margin` corrected for all rows of its family (Holm 1979)."),
    of_metric("margin", "The smallest loss that matters."),
    word(
        "verdict",
        "Whether what was taken away is needed: `needed` if the loss is significant, `not needed` if it is shown to be "
        "below the margin; empty where nothing can be decided: for a model with one answer to everything, or one that "
        "is not significantly better than guesses made without reading.",
        words=VERDICTS,
    ),
    number(
        "n_to_decide",
        "About how many examples would decide, if the change is as measured; only where the verdict is `not decided`.",
        "examples",
    ),
    group="verdict",
)
SWEEP_VERDICT = (P_HOLM.but(optional="verdict"), *VERDICT)
CHANCE = of_metric(
    "chance",
    "The metric of the best guesses made without reading, on the same examples; empty where unknown.",
    optional=True,
)
SAME_ANSWER = truth("same_answer", "Whether the model gives the same answer to all examples.", optional=True)
ANSWER_SHARE = number(
    "answer_share",
    "Share of the examples that get the most frequent answer of the model; empty for losses and other metrics that do "
    "not count answers.",
    optional=True,
)
# At the end of sweeps.
COMPARED = (*SWEEP_VERDICT, CHANCE, SAME_ANSWER, ANSWER_SHARE)

ROLE = word("role", "The strongest role of the head; empty for none.")
ROLES = word("roles", "All roles that the head holds, the strongest first, with `; ` between them.")
RUN = word("run", "Name of the training run.")
PENALTY = number("penalty", "λ, the strength of the penalty; empty for a model without any.")
STEP = count("step", "Number of the update of the weights; 0 is before training.", "updates")
EPOCH = number("epoch", "How often all of the data had been seen by then.", "epochs", optional=True)
# Of a training's log.
LOG = (
    STEP,
    EPOCH,
    number("loss", "Mean training loss since the row before, with the penalty if there is one.", "of the task's loss"),
    number("learning_rate", "Step size of this update.", optional=True),
)

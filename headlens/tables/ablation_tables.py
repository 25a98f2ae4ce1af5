"""The tables of `headlens ablate`, and the answers of a model to every example, which `train` writes, too."""

from __future__ import annotations

from headlens.tables import shared_columns as shared
from headlens.tables.classify_tables import SMOOTHNESS
from headlens.tables.table_schema import TableSchema, count, index, number, optional, word

_HEADS = "heads"
_DELTA, *_, _P_VALUE = shared.paired_difference("The metric without the head minus that with all heads")

ABLATION = TableSchema(
    "ablation",
    "A head that was taken out, or with the mode `keep-only` left as the only one of its layer.",
    (
        *(shared.MODEL, shared.TASK, shared.METRIC.but(filled=True)),
        word("mode", "What took the place of the head's output, see `--mode`, or `keep-only`."),
        *(*shared.HEAD_KEYS, shared.N),
        number("baseline", "The metric with all heads.", "of the metric"),
        shared.VALUE.but("The metric without the head."),
        _DELTA,
        *shared.interval("`delta`, paired by example", unit="of the metric"),
        _P_VALUE,
        shared.P_HOLM.but("`p_value` corrected for the number of heads (Holm 1979)."),
        *shared.VERDICT,
        shared.ANSWER_SHARE.but(
            "Share of the examples that get the most frequent answer of the model with all heads; empty for losses and "
            "other metrics that do not count answers.",
            name="baseline_answer_share",
        ),
        *optional(
            number(
                "on_changed",
                "The metric of all heads on the changed texts of `--pairs`, against the answers of the data; for the "
                "mode `counterfactual`.",
                "of the metric",
            ),
            number(
                "kept",
                "(value − on_changed) / (baseline − on_changed): 1 where the head's output on the changed text makes "
                "no difference, 0 where it makes all of it (Zhang and Nanda 2024); empty where the texts do not.",
            ),
            group="counterfactual",
        ),
    ),
    ("model", "mode", "stack", "layer", "head"),
)
PRUNING = TableSchema(
    "pruning",
    "A set of heads that was pruned, measured on the examples that it was not chosen on; the first is the whole model.",
    (
        *(shared.MODEL, shared.TASK, shared.METRIC.but(filled=True)),
        word("strategy", "How the heads were chosen; `none` for the whole model."),
        number("seed", "Seed of a random order; empty for strategies that draw nothing."),
        index("n_pruned", "How many heads were pruned.", _HEADS),
        index("n_heads", "How many heads are left.", _HEADS),
        *shared.ESTIMATE,
        number(
            "parameters",
            "Parameters of the pruned model, shared ones counted once; empty where heads are only set to 0.",
        ),
        number(
            "speedup",
            "Floating-point operations of the whole model as a multiple of those of the pruned one: a bound, not a "
            "time.",
            "times",
        ),
        word("removed", "Names of the pruned heads, with spaces between them.", optional=True),
        *optional(
            *shared.paired_difference("The metric of the pruned model minus that of the whole one"),
            shared.N,
            number("ranking_value", "The metric on the examples that the heads were chosen on.", "of the metric"),
            group="delta",
        ),
        shared.P_HOLM.but(
            "`p_value` corrected for the rows that are no random orders, or for these (Holm 1979).", optional=True
        ),
        *shared.VERDICT,
        shared.CHANCE,
        shared.ANSWER_SHARE,
    ),
    ("model", "strategy", "seed", "n_pruned"),
)
EXAMPLES = TableSchema(
    "examples",
    "An example of the task, and what the whole model did on it.",
    (
        shared.MODEL,
        *optional(
            shared.TASK,
            count("example", "Place of the example among those that were read, from 0."),
            word("id", "Identifier of the example in its data."),
            word(
                "part",
                "Whether heads were chosen (`ranking`) or measured (`evaluation`) on it; empty without pruning, and "
                "absent from what `train` writes.",
            ),
            number(
                "RECORD",
                "The numbers that metrics of this kind of task are computed from: `label` (or `gold`) and `predicted`, "
                "counted from 0, or a score; `nll`, the negative log-likelihood in nats; `margin`, the score of the "
                "right candidate above the best other one; `tokens` and `correct`, sums over predicted tokens; `exact` "
                "and `f1` of an answer; counts of n-grams of translations.",
            ),
        ),
    ),
)
ABLATE = (ABLATION, EXAMPLES, SMOOTHNESS, PRUNING)

"""The tables of `headlens train` and `headlens compact`, and the alphas that heads learn."""

from __future__ import annotations

from headlens.tables import shared_columns as shared
from headlens.tables.ablation_tables import EXAMPLES
from headlens.tables.table_schema import TableSchema, count, number, optional, word

LOG_OF_TRAINING = TableSchema("log", "An update of the weights that was logged.", shared.LOG, ("step",))
EVALUATIONS = TableSchema(
    "evaluations",
    "An evaluation on held-out data.",
    (
        *(shared.STEP, shared.EPOCH),
        number("loss", "Mean loss, without label smoothing.", "of the task's loss", optional=True),
        number(
            "METRIC",
            "A metric of the task, or of text: `accuracy`, the share of tokens guessed right, `perplexity`, and "
            "`next_sentence`, the share of rows told right.",
            "of the metric",
            optional=True,
        ),
    ),
    ("step",),
)
METRICS_OF_MODEL = TableSchema(
    "metrics",
    "A metric of the final model on held-out data.",
    (
        *(shared.MODEL, shared.TASK),
        word("data", "Name of the data that it was measured on."),
        *(shared.METRIC, shared.N, *shared.ESTIMATE),
    ),
    ("model", "task", "data", "metric"),
)
ALPHAS = TableSchema(
    "alphas",
    "A head of a model that learned the α of its entmax.",
    (*shared.MODEL_HEAD, number("alpha", "α, from 1 (softmax) to 2 (sparsemax); it was 1.5 before training.")),
    shared.HEAD_IDENTITY,
)
TRAIN = (LOG_OF_TRAINING, EVALUATIONS, METRICS_OF_MODEL, EXAMPLES, ALPHAS)

_TIMES = "times that of the original"
COMPACT_STATES = TableSchema(
    "compact",
    "A state of the model: the original, and the one without the heads that were cut out.",
    (
        shared.MODEL,
        word("state", "`original`; `compacted`, or `stock` for one that transformers loads by itself."),
        number("heads", "Heads; those of shared weights count at every depth.", "heads"),
        count("masked", "Those of them that are silent, as they could not be cut out.", "heads", optional=True),
        number("parameters", "Parameters, shared ones counted once."),
        number("weight_bytes", "Size of the weights, shared ones counted once.", "bytes"),
        number("seconds_per_forward", "Time of a forward pass, geometric mean over rounds.", "seconds"),
        *optional(*shared.interval("that time, over rounds", unit="seconds")),
        number("speedup", "Time of the original as a multiple of this one's, measured side by side.", _TIMES),
        *shared.interval("the speed-up, over rounds", ("speedup_low", "speedup_high"), _TIMES),
        *optional(
            count("operations", "Floating-point operations of a forward pass over the middle batch."),
            number("theoretical_speedup", "Operations of the original as a multiple of this one's: a bound.", _TIMES),
        ),
    ),
    ("model", "state"),
)
COMPACT = (COMPACT_STATES,)

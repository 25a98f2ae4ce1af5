"""The tables of `headlens train` and `headlens compact`, and the alphas that heads learn."""

from __future__ import annotations

from headlens.tables import shared_columns as shared
from headlens.tables.ablation_tables import EXAMPLES
from headlens.tables.table_schema import TableSchema, count, number, optional, truth, word

LOG_OF_TRAINING = TableSchema("log", "An update of the weights that was logged.", shared.LOG, ("step",))
EVALUATIONS = TableSchema(
    "evaluations",
    "An evaluation on held-out data.",
    (
        *(shared.STEP, shared.EPOCH),
        number("loss", "Mean loss, without label smoothing.", "of the task's loss", optional=True),
        shared.of_metric(
            "METRIC",
            "A metric of the task, or of text: `accuracy`, the share of tokens guessed right, `perplexity`, and "
            "`next_sentence`, the share of rows told right.",
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
# Of a decoder on text.
_TEXT = (
    number("loss", "Mean negative log-likelihood of a token of the text.", "nats"),
    *shared.interval("the loss, over texts", ("loss_low", "loss_high"), "nats"),
    number("perplexity", "The loss as a power of e."),
    *shared.interval("the perplexity, over texts", ("perplexity_low", "perplexity_high")),
    number("loss_delta", "The loss minus that of the original; empty for the original.", "nats"),
    *shared.interval("that difference, paired by text", ("loss_delta_low", "loss_delta_high"), "nats"),
)
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
        number(
            "seconds_per_forward",
            "Time of a forward pass over a batch without the task head, the mean of all, geometric mean over rounds.",
            "seconds",
        ),
        *optional(*shared.interval("that time, over rounds", unit="seconds")),
        number("speedup", "Time of the original as a multiple of this one's, measured side by side.", _TIMES),
        *shared.interval("the speed-up, over rounds", ("speedup_low", "speedup_high"), _TIMES),
        *optional(
            count("operations", "Floating-point operations of such a pass over the middle batch."),
            number("theoretical_speedup", "Operations of the original as a multiple of this one's: a bound.", _TIMES),
            number(
                "tokens_per_second",
                "Tokens that such a pass reads per second, padding left out; nothing is generated.",
                "tokens per second",
            ),
            number(
                "cache_bytes_per_token",
                "By how much the keys and values that a decoder keeps grow with a token, over all layers; empty for "
                "models that keep none. A sliding window ends the growth of its layer.",
                "bytes",
            ),
        ),
        *optional(*_TEXT, group="text"),
    ),
    ("model", "state"),
)
SHAPES = TableSchema(
    "shapes",
    "A shape that as many heads of a ranking can be cut in, measured with these heads at 0 and without rescaling; of "
    "decoders.",
    (
        shared.MODEL,
        word(
            "shape",
            "`even`: as many heads of every group that shares keys, in every layer; `groups`: whole groups, as many in "
            "every layer; `uneven`: the least important heads wherever they are.",
            words=("even", "groups", "uneven"),
        ),
        truth("chosen", "Whether the model was written in this shape."),
        count("n_removed", "Heads that go.", "heads"),
        *_TEXT,
        word("removed", "Names of these heads, the least important first, with spaces between them.", filled=True),
    ),
    ("model", "shape"),
)
COMPACT = (COMPACT_STATES, SHAPES)

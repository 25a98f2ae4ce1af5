"""The tables of `headlens sparsefinder`."""

from __future__ import annotations

from headlens.tables import shared_columns as shared
from headlens.tables.table_schema import TableSchema, count, index, number, optional, share, truth, word
from headlens.tables.training_tables import ALPHAS

GOLD = "entmax"  # what attention itself leaves, as if it were a method
SPARSE_EXAMPLE = 0.5  # as sparse as a graph has to be to be an example, if any is
METHODS = (
    *("distance", "bucket", "cluster", "routing", "lsh", "bigbird", "longformer", "random", "window"),
    *("block_v1", "block_v2", "block_bigbird", "block_longformer"),
)
MEASURES = (
    number("recall", "Share of the pairs with weight that are predicted; empty where a head has none."),
    number("sparsity", "Share of the pairs that attention allows and that are not predicted."),
    number("exact", "Share of queries all of whose keys with weight are predicted."),
    number("mass", "Share of the weight that is on predicted pairs."),
)
_METHOD = word(
    "method", f"How pairs of queries and keys are predicted; `{GOLD}`: those that have weight.", words=(GOLD, *METHODS)
)
_WINDOW = count(
    "window", "Keys around the query that are predicted, too, its own place among them; 0 for none.", "tokens"
)
_GLOBAL = count("global_tokens", "First tokens that see all and are seen by all, too.", "tokens")
POINT = (
    _METHOD,
    word("parameter", "Name of the parameter of the method; `none` without one."),
    number("value_of_parameter", "Its value; empty without one."),
    _WINDOW,
    _GLOBAL,
)
_TASK_SPARSITY = number("task_sparsity", "Sparsity of the predicted graphs on the texts of the task.")
_TASK = shared.TASK.but("Name of the task that was measured over the predicted graphs; empty where none was.")
_CLUSTERS = count("clusters", "Number of clusters that were counted.", "clusters", optional=True)

PARETO = TableSchema(
    "pareto",
    "A head, a stack or all of them, and a point: a method with its parameters.",
    (
        shared.MODEL,
        shared.STACK_OR_ALL,
        *(
            column.but(kind="number", optional=True)
            for column in (
                shared.LAYER.but("Number of the layer, from 0; empty for means over all heads."),
                shared.HEAD.but("Number of the head in its layer, from 0; empty for means over all heads."),
            )
        ),
        *(column if column is _METHOD else column.but(optional=True) for column in POINT),
        *MEASURES,
        truth("on_curve", "Whether no other point of the method has as much recall at as much sparsity."),
        *(
            _TASK,
            shared.METRIC.but("Name of the metric that is drawn; empty where no task was measured."),
            *shared.ESTIMATE,
        ),
        *(_TASK_SPARSITY, shared.CHANCE, shared.ANSWER_SHARE),
        word("attention", "What attention the model has, and whether it was switched.", optional=True),
    ),
    (*shared.HEAD_IDENTITY, "method", "value_of_parameter", "window", "global_tokens"),
)
METRICS = TableSchema(
    "metrics",
    "A point and a metric of the task.",
    (
        *(shared.MODEL, shared.STACK_OR_ALL, *POINT, *optional(*MEASURES)),
        *(shared.TASK, _TASK_SPARSITY, shared.METRIC, *shared.ESTIMATE),
        *optional(*shared.paired_difference("The metric minus that of attention itself"), group="difference"),
        *shared.SWEEP_VERDICT,
        shared.N.but(optional=True),
        *(shared.CHANCE, shared.SAME_ANSWER, shared.ANSWER_SHARE),
    ),
    ("model", "stack", "method", "value_of_parameter", "window", "global_tokens", "metric"),
)
HEADS_SPARSITY = TableSchema(
    "heads",
    "A head.",
    (
        *shared.MODEL_HEAD,
        number("sparsity", "Share of the pairs that attention allows and that have no weight."),
        *optional(
            number("area_METHOD", "Area under the curve of recall over sparsity of this method, 0 to 1."),
            number(
                "information",
                "Share of the entropy of parts of speech that the cluster of a token tells, corrected for chance; "
                "empty without parts of speech.",
            ),
        ),
    ),
    shared.HEAD_IDENTITY,
)
CLUSTERS = TableSchema(
    "clusters",
    "A part of speech in a cluster of a head, of queries or of keys.",
    (
        *shared.MODEL_HEAD,
        index("cluster", "Number of the cluster, from 0."),
        word("side", "Whether queries or keys are counted.", words=("query", "key")),
        word("tag", "Part of speech; `special` for special tokens, `unknown` for words without one."),
        number("count", "Such tokens that are nearest to the centroid of the cluster.", "tokens"),
        number("share", "The same as a share of the cluster and side.", "share of tokens"),
        _CLUSTERS,
    ),
    (*shared.HEAD_IDENTITY, "cluster", "side", "tag"),
)
POS_PAIRS = TableSchema(
    "pos_pairs",
    "A head and the parts of speech of a query and of a key.",
    (
        *shared.MODEL_HEAD,
        word("query_tag", "Part of speech of the query, or `special` or `unknown`."),
        word("key_tag", "Part of speech of the key, or `special` or `unknown`."),
        count("pairs", "Pairs of such tokens that attention allows.", "pairs"),
        count("gold", "Those that have weight.", "pairs"),
        count("predicted", "Those that are predicted, by clusters.", "pairs"),
        count("found", "Those that are both.", "pairs"),
        number("weight", "Sum of their weights, of which each query has 1.", "queries"),
        _CLUSTERS,
        *optional(
            share("gold_share", "Share of the pairs that have weight."),
            share("predicted_share", "Share of the pairs that are predicted."),
        ),
    ),
    (*shared.HEAD_IDENTITY, "query_tag", "key_tag"),
)
ANTECEDENTS = TableSchema(
    "antecedents",
    "A head and a mention with an antecedent in its sentence.",
    (
        *shared.MODEL_HEAD,
        index("sentence", "Number of the sentence, from 0."),
        word("mention", "Head word of the mention."),
        word("antecedent", "Head word of its nearest antecedent."),
        count("distance", "How many tokens before the mention it begins.", "tokens"),
        number("weight", "Largest attention weight from a token of the mention to one of the antecedent."),
        share("gold", "1 where that weight is above 0, else 0."),
        share("predicted", "1 where such a pair is predicted, by clusters, else 0."),
        _CLUSTERS,
    ),
)
EXAMPLES_OF_HEADS = TableSchema(
    "examples",
    "A query and a key of a sentence, and a head that is drawn.",
    (
        *shared.MODEL_HEAD,
        index("query", "Place of the query, from 0.", "tokens"),
        index("key", "Place of the key, from 0.", "tokens"),
        word("query_token", "The token of the query."),
        word("key_token", "The token of the key."),
        number("weight", "Attention weight from query to key."),
        number("predicted", "1 where the pair is predicted, else 0."),
        number("restricted", "Attention weight over the predicted pairs alone."),
        _METHOD,
        *optional(*POINT[2:], *MEASURES[:2]),
    ),
    (*shared.HEAD_IDENTITY, "query", "key"),
)
TIMES = TableSchema(
    "times",
    "A method with its parameter, windows left out.",
    (
        *(shared.MODEL, shared.STACK, *POINT[:2], POINT[2].but(optional=True), _GLOBAL.but(optional=True)),
        number(
            "cpu_seconds",
            "Time that all cores worked on predicting the graphs of all sentences and heads, and on nothing else.",
            "seconds",
        ),
    ),
    ("model", "stack", "method", "value_of_parameter", "global_tokens"),
)
AREAS = TableSchema(
    "areas",
    "A method and a quality, whose curve over sparsity the numbers are about.",
    (
        *(shared.MODEL, shared.STACK_OR_ALL, _METHOD),
        word("quality", "`recall`, or the metric of the task."),
        number("area", "Area under the curve."),
        *shared.interval("the area, over sentences or examples"),
        number(
            "share",
            "The area above the straight line between full attention and the empty graph as a share of that of "
            "attention itself: normalised area under the curve; empty where attention itself has hardly more. Of "
            "recall, the line is what random graphs have; of a metric of a task, it is no chance level.",
        ),
        *shared.interval("the share, over sentences or examples", ("share_ci_low", "share_ci_high")),
        number("at_90", "The quality at a sparsity of 0.9, on the curve; empty without a point that is as sparse."),
        count("points", "Points of the method that were measured, which the area is of.", "points", optional=True),
    ),
    ("model", "stack", "method", "quality"),
)
SPARSEFINDER = (
    *(PARETO, AREAS, HEADS_SPARSITY, METRICS, TIMES),
    *(CLUSTERS, POS_PAIRS, ANTECEDENTS, EXAMPLES_OF_HEADS, ALPHAS),
)

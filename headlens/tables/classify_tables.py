"""The tables of `headlens classify`, and of how smoothly numbers of heads vary over depth."""

from __future__ import annotations

from functools import partial

from headlens.options import PROBE_NAMES
from headlens.tables import shared_columns as shared
from headlens.tables.circuit_tables import CIRCUITS
from headlens.tables.relevance_tables import RELEVANCE
from headlens.tables.table_schema import TableSchema, count, index, number, optional, share, truth, word

DIRECTIONS = ("dep->head", "head->dep")
REACH = 8  # of positions.csv, whose ends hold all that is farther
RELATION_REACH = 63  # of relation_offsets.csv
SMOOTHNESS_STATISTICS = {"depth_correlation": "correlation over depth", "morans_i": "Moran's I"}


def offsets_to(farthest: int) -> tuple[str, ...]:
    """Returns the names of all offsets up to the farthest, and of the two tails beyond."""
    return (f"<-{farthest}", *map(str, range(-farthest, farthest + 1)), f">{farthest}")


_RELATION = (
    word("relation", "Name of the dependency relation."),
    word(
        "direction",
        "From which word to which: from the dependent to its head (its governor in the tree), or back.",
        words=DIRECTIONS,
    ),
)
_attention = partial(share, unit="share of attention")
_OFFSET = word("offset", "Place of the key less that of the query; the ends hold all beyond.", "tokens")

# Those of the metrics stand before `relevance`, or at the end.
HEADS = TableSchema(
    "heads",
    "A head.",
    (
        *shared.MODEL_HEAD,
        number(
            "relevance",
            "Share of the head in what its layer contributes to the output, as in relevance.csv: not comparable "
            "between layers; empty without `--relevance`.",
            "share of its layer",
        ),
        shared.ROLE,
        shared.ROLES,
        *optional(
            word(
                "nearest",
                "The strongest role of the head, or for a head without one the role whose threshold it comes nearest "
                "to; empty where uniform attention has as much, or the head spreads its attention evenly.",
            ),
            number(
                "nearest_score",
                "The head's number as a share of the threshold of `nearest`; above baselines, as a share of the "
                "margin.",
                "share of the threshold",
            ),
            word(
                "roles_by_weight",
                "Those of `roles` that the head holds by its weights alone: the norms of what it reads are below the "
                "threshold.",
            ),
            number("similarity_x", "First coordinate of the map on which heads that attend alike are near."),
            number("similarity_y", "Second coordinate of that map (classical scaling of distances)."),
            count("similarity_cluster", "Number of its cluster of heads that attend alike, from 1."),
            count("similarity_leaf", "Place of the head in the order of the clustering, from 0."),
            number(
                "role_stability",
                "Share of resamples of the sentences in which the head has the same `role`; with `--stability` alone.",
                "share of resamples",
            ),
        ),
    ),
    shared.HEAD_IDENTITY,
)
POSITIONS = TableSchema(
    "positions",
    "A head and an offset, special tokens left out.",
    (
        *shared.MODEL_HEAD,
        _OFFSET.but(words=offsets_to(REACH)),
        count("count", "Queries whose most attended token is there.", "tokens", optional=True),
        number("share", "The same as a share of the queries.", "share of tokens"),
        number(
            "share_null",
            "What a head with uniform attention has; ties count as what is expected of them.",
            "share of tokens",
            optional=True,
        ),
    ),
    (*shared.HEAD_IDENTITY, "offset"),
)
SYNTAX = TableSchema(
    "syntax",
    "A head, a dependency relation and a direction.",
    (
        *shared.MODEL_HEAD,
        *_RELATION,
        number("n", "How many instances of the relation there are.", "instances"),
        number("correct", "Instances whose other word gets most attention.", "instances", optional=True),
        number("accuracy", "`correct` as a share of `n`; empty without instances.", "share of instances"),
        *shared.interval("the accuracy (Wilson's)", unit="share of instances"),
        number("baseline_offset", "The most frequent offset of the other word.", "words", optional=True),
        number("baseline", "Share that always choosing this offset has right.", "share of instances"),
        *optional(
            number("p_value", "One-sided p-value of the head being better than the offset (McNemar's exact test)."),
            number("p_holm", "`p_value` corrected for all rows of the model with instances (Holm 1979)."),
        ),
        truth("syntactic", "Whether the accuracy reaches `needed`, on enough instances."),
        truth("significant", "Whether it is syntactic and `p_holm` is below 0.05."),
        *optional(
            number(
                "accuracy_null",
                "Accuracy of a head with the same weight for every token; empty where it is not known.",
                "share of instances",
            ),
            number("needed", "The accuracy that is asked: the baseline and the margin.", "share of instances"),
            word(
                "verdict",
                "Whether the head follows the relation: `yes`, `too few` instances, `no`, or why it does not: `no "
                "(n.s.)` is not significant, `no (uniform)` not above uniform attention, `no (ceiling)` asks for more "
                "than 1, `no (later)` mostly stands where a causal head cannot look.",
            ),
        ),
    ),
    (*shared.HEAD_IDENTITY, "relation", "direction"),
)
SIMILARITY = TableSchema(
    "similarity",
    "Two different heads of a stack; every pair stands there both ways round.",
    (
        *shared.MODEL_HEAD,
        index("other_layer", "Layer of the other head."),
        index("other_head", "Number of the other head in its layer."),
        number(
            "js_divergence",
            "Mean Jensen–Shannon divergence of the attention of both, over queries; ln 2 at most.",
            "nats",
            optional=True,
        ),
        share("js_distance", "Its square root, which is a distance.", "square root of nats"),
        count("tokens", "Queries that it is the mean over.", "tokens", optional=True),
    ),
    (*shared.HEAD_IDENTITY, "other_layer", "other_head"),
)
RELATION_OFFSETS = TableSchema(
    "relation_offsets",
    "A relation, a direction and an offset that occurs.",
    (
        shared.MODEL,
        shared.STACK.but("The stack that read the text; trees are the same in all of its layers."),
        *_RELATION,
        word(
            "offset",
            "Place of the other word less that of the word; the ends hold all beyond.",
            "words",
            words=offsets_to(RELATION_REACH),
        ),
        count("n", "Instances at this offset.", "instances"),
        share("share", "The same as a share of the relation and direction.", "share of instances"),
    ),
    ("model", "stack", "relation", "direction", "offset"),
)
PARTS_OF_SPEECH = TableSchema(
    "pos",
    "A head and two parts of speech (universal tags; `other` is whatever has none, such as special tokens).",
    (
        *shared.MODEL_HEAD,
        *optional(
            word("from", "Part of speech of the queries."),
            word("to", "Part of speech of the keys."),
            number("weight", "Mean attention weight from the one to the other; over `to` it sums to 1."),
            count("n", "Queries of that part of speech.", "tokens"),
        ),
    ),
)
SCORES_OF_ROLES = TableSchema(
    "roles",
    "A stack and a role, and the head that is best at it on this text, on which it was chosen.",
    (
        shared.MODEL,
        shared.STACK,
        shared.ROLE.but("The role; relations and directions count as a role each, positional heads as one."),
        count("heads", "Heads that have a number for the role.", "heads"),
        count("held", "Heads that hold it.", "heads"),
        shared.LAYER.but("Layer of the best head, of those that hold the role if any do; the first of equal ones."),
        shared.HEAD.but("Number of that head in its layer."),
        number("value", "The number that the role is decided by, of that head.", "of the role"),
        number("score", "The same as in `nearest_score` of heads.csv.", "share of the threshold"),
        *optional(
            number("needed", "The threshold; above baselines the largest of them and the margin."),
            number("null", "What a head with uniform attention has; empty where it is not known."),
            count(
                "above_threshold",
                "Heads that pass the threshold on enough instances (syntactic roles: significantly), whatever the null "
                "head has.",
                "heads",
            ),
        ),
    ),
    ("model", "stack", "role"),
)
AGREEMENT = TableSchema(
    "agreement",
    "Two models and a stack of the same shape, of which heads of the same place are compared.",
    (
        shared.MODEL,
        *optional(
            shared.MODEL.but("The other model.", name="other_model"),
            shared.STACK,
            count("heads", "Heads that both have.", "heads"),
            count("same", "Heads with the same role, or with none, in both; relations count as one role."),
            number("kappa", "Cohen's κ, agreement beyond chance; empty where a model has a single role throughout."),
            *shared.interval("κ (asymptotic, over heads)"),
            count("with_role", "Heads with a role in one of the models at least.", "heads"),
        ),
    ),
)
SMOOTHNESS = TableSchema(
    "smoothness",
    "A statistic of how smoothly a quantity varies over depth, or how far that of two models differs.",
    (
        shared.MODEL.but(filled=True),
        shared.MODEL.but(
            "The model whose correlation was subtracted; empty in rows about one model.", name="other_model"
        ),
        shared.STACK,
        word("quantity", "The column of heads that varies.", filled=True),
        word(
            "statistic",
            "The correlation of heads of the same number in neighbouring layers, or Moran's I over the grid of heads.",
            words=tuple(SMOOTHNESS_STATISTICS),
        ),
        count("layers", "Layers with heads; empty for differences.", "layers"),
        count("heads", "Heads with a number; empty for differences.", "heads"),
        number("value", "The statistic, from −1 to 1, or the difference; empty where it is not defined."),
        *shared.interval("the value (jackknife over head numbers)"),
        number("expected", "Its mean over permutations of the heads; empty for differences."),
        share("p_value", "Two-sided p-value of the permutation test, not corrected."),
    ),
    ("model", "other_model", "stack", "quantity", "statistic"),
)
PROBES = TableSchema(
    "probes",
    "A head and a role that shows on prompts that are made for it; with `--probes` alone.",
    (
        *shared.MODEL_HEAD,
        word("probe", "The role that is asked for.", words=PROBE_NAMES),
        count(
            "n",
            "How many prompts of each kind were read; of retrieval, how many facts the model was asked for and gave.",
            "prompts",
        ),
        _attention(
            "score",
            "Mean over queries and prompts of the weight that the role is about: on the previous token or on earlier "
            "copies of the same token, both as a share of the weight on tokens other than the query and the first; on "
            "what followed earlier copies; on the first token. Retrieval: the share of the answer's "
            "tokens that the head looks at as they are generated (Wu et al. 2024); query-retrieval: nDCG@10 of the "
            "document that answers the question.",
        ),
        *shared.interval("the score, over prompts", unit="share of attention"),
        _attention(
            "control",
            "What the score is compared with: the same places where no token occurs twice (duplicate, induction), even "
            "attention (previous, sink), hits in the answer to another question (retrieval), or a random order "
            "(query-retrieval).",
        ),
        _attention(
            "second_score",
            "The score of the second comparison: with random gaps between the copies (duplicate, induction), the share "
            "of steps that copy whose most attended token is in the answer (retrieval), or the same again.",
        ),
        _attention(
            "second_control",
            "What that is compared with: the places where it would be without gaps (duplicate, induction), two tokens "
            "back (previous), the second token (sink), that share of the answer to another question (retrieval), or "
            "documents ranked with an empty question (query-retrieval).",
        ),
        number("above", "The smaller of both differences, score less control.", "share of attention"),
        _attention("chance", "What even attention, or a random order, gives."),
        share(
            "most",
            "Share of queries whose most attended token is there, or of questions whose document is ranked first.",
            "share of tokens",
        ),
        _attention(
            "weight",
            "The same mean of weights of which nothing is left out; empty for retrieval and query-retrieval.",
        ),
        number("p_value", "One-sided p-value of being above both controls (Student's t over prompts, the larger one)."),
        number("p_holm", "`p_value` corrected for all heads of the model (Holm 1979)."),
        truth("holds", "Whether the head passes the probe: `p_holm` below 0.05, and `above` at least 0.1."),
        number(
            "stability",
            "Spearman's correlation between the scores of the heads on one half of the prompts and on the other.",
        ),
        *optional(
            share(
                "copying",
                "Induction and retrieval: share of queries at which the head's output raises, of all tokens of the "
                "repeated block (or of the answer), the logit of the one that follows the most; even guessing has one "
                "over their number. Empty where the way to the logits is not known.",
                "share of tokens",
            ),
            share("rate", "Sink alone: share of the prompts whose score is above 0.3.", "share of prompts"),
            _attention("first_four", "Sink alone: mean weight on the first four tokens."),
            group="copying",
        ),
    ),
    (*shared.HEAD_IDENTITY, "probe"),
)
CLASSIFY = (
    *(HEADS, POSITIONS, SYNTAX, RELATION_OFFSETS, PARTS_OF_SPEECH, SIMILARITY, SCORES_OF_ROLES, AGREEMENT, SMOOTHNESS),
    PROBES,
    *CIRCUITS,
    RELEVANCE,
)

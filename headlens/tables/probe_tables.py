"""The tables of `headlens probe`."""

from __future__ import annotations

from headlens.tables.shared_columns import HEAD_IDENTITY, MODEL, MODEL_HEAD, interval, paired_difference
from headlens.tables.table_schema import TableSchema, count, number, optional, share, word

METHODS = ("attention probe", "right-branching", "best offset", "uniform attention")
EMBEDDED_METHODS = ("attention and embeddings", "distances and embeddings")
DIRECTIONS = ("dep_to_head", "head_to_dep")  # columns of the weights: u and w of the paper

SCORES = TableSchema(
    "probe",
    "The probe or one of its baselines.",
    (
        MODEL,
        word("method", "What finds governors.", words=(*METHODS, *EMBEDDED_METHODS)),
        count("words", "Held-out words that are scored: neither roots nor punctuation.", "words"),
        share("uas", "Unlabelled attachment score: words whose governor is found.", "share of words"),
        *interval("the score, over sentences", unit="share of words"),
        number(
            "baseline_offset",
            "Place of the governor less that of the word that a baseline always chooses; empty for others.",
            "words",
        ),
        *paired_difference("Score of the probe minus this one", unit="share of words"),
        count("sentences", "Held-out sentences.", "sentences", optional=True),
        *optional(
            *paired_difference("Score of attention and embeddings minus this one", "embedded_", "share of words"),
            group="embedded",
        ),
    ),
    ("model", "method"),
)
WEIGHTS = TableSchema(
    "probe_weights",
    "A head.",
    (
        *MODEL_HEAD,
        number(
            DIRECTIONS[0],
            "What the probe multiplies the head's attention from a word to a candidate by; similar heads share a "
            "weight.",
        ),
        number(DIRECTIONS[1], "The same for attention from a candidate to the word."),
    ),
    HEAD_IDENTITY,
)
PROBE = (SCORES, WEIGHTS)

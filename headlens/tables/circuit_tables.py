"""The tables of `headlens classify --probes circuits`: what the weights of heads do, without any text."""

from __future__ import annotations

from headlens.tables.shared_columns import HEAD_IDENTITY, LAYER, MODEL, MODEL_HEAD, STACK
from headlens.tables.table_schema import TableSchema, count, index, number, share, word

COMPOSITION_KINDS = {"Q": "queries", "K": "keys", "V": "values"}
_KIND = word("kind", "What of the head reads what the other writes: queries, keys or values.", words=("Q", "K", "V"))
_OTHER = (
    STACK.but("Which attention the earlier head belongs to.", name="other_stack"),
    index("other_layer", "Layer of the earlier head."),
)
_RANDOM = "From 0 to this: what 95 % of heads with random weights have, whatever their sign."

HEAD_CIRCUITS = TableSchema(
    "circuits",
    "A head; from its weights alone, with `--probes circuits`.",
    (
        *MODEL_HEAD,
        number(
            "copying",
            "Sum of the eigenvalues of embedding, values, output projection and unembedding in a row, over the sum of "
            "their magnitudes (Elhage et al. 2021): 1 for a head that raises the logit of what it attends to, −1 for "
            "one that lowers it.",
        ),
        share("copying_random", _RANDOM),
        share(
            "copying_top",
            "Of the most frequent tokens of the corpus, at most 1,000, the share whose own logit the head raises the "
            "most among them.",
            "share of tokens",
        ),
        number(
            "matching",
            "The same sum over embedding, queries, keys and embedding: 1 for a head whose queries look for their own "
            "token.",
        ),
        share("matching_random", _RANDOM),
    ),
    HEAD_IDENTITY,
)
SINGULAR_DIRECTIONS = TableSchema(
    "circuit_directions",
    "A head, one of its two matrices, one of the leading singular directions of that, and a sign.",
    (
        *MODEL_HEAD,
        word(
            "circuit",
            "OV: values and output projection, from what is attended to to what is written; QK: queries and keys.",
            words=("OV", "QK"),
        ),
        index("direction", "Number of the direction, from 0, the largest singular value first."),
        word("sign", "Both directions of a pair are turned together: + or −.", words=("+", "-")),
        share("share", "Squared singular value as a share of the sum of all."),
        word("from_tokens", "Tokens whose embeddings are nearest: to what is read (OV), to queries (QK)."),
        word("to_tokens", "Tokens nearest to what is written, by their unembedding (OV), or to keys (QK)."),
    ),
    (*HEAD_IDENTITY, "circuit", "direction", "sign"),
)
COMPOSITION = TableSchema(
    "composition",
    "A head, what of it reads, and one of the five earlier heads that write most into that.",
    (
        *MODEL_HEAD,
        _KIND,
        *_OTHER,
        index("other_head", "Number of the earlier head in its layer."),
        number(
            "composition",
            "Frobenius norm of the product of the two heads' matrices over the product of their norms, minus what "
            "random directions give (Elhage et al. 2021).",
        ),
        share("random", "What was subtracted: one over the square root of the width of the residual stream."),
    ),
    (*HEAD_IDENTITY, "kind", "other_stack", "other_layer", "other_head"),
)
LAYER_COMPOSITION = TableSchema(
    "layer_composition",
    "A layer, what of its heads reads, and an earlier layer.",
    (
        MODEL,
        STACK.but("Which attention the later heads belong to."),
        LAYER.but("Layer of the later heads."),
        _KIND,
        *_OTHER,
        count("pairs", "Pairs of heads.", "pairs"),
        number("mean", "Mean of `composition` over these pairs."),
        number("largest", "The largest of them."),
    ),
    ("model", "stack", "layer", "kind", "other_stack", "other_layer"),
)
CIRCUITS = (HEAD_CIRCUITS, SINGULAR_DIRECTIONS, COMPOSITION, LAYER_COMPOSITION)

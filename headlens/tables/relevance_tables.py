"""The tables of `headlens relevance`."""

from __future__ import annotations

from headlens.tables.shared_columns import HEAD_IDENTITY, MODEL, MODEL_HEAD, STACK_OR_ALL, interval
from headlens.tables.table_schema import TableSchema, count, number, optional, truth, word

_SHARE, _OUTPUT = "share of its layer", "of the output"
_RULE = word("rule", "The rule by which relevance was propagated.")

RELEVANCE = TableSchema(
    "relevance",
    "A head and a rule.",
    (
        *MODEL_HEAD,
        number(
            "relevance",
            "Mean share of the head in the sum over its layer, negative for a head that works against its layer; it "
            "does not compare layers, and is empty where the heads of the layer cancel in every example.",
            _SHARE,
        ),
        *interval("the relevance, over examples", unit=_SHARE),
        number(
            "raw",
            "Mean contribution of the head to the target, which does compare layers; `taylor` and `alpha-beta` give "
            "magnitudes.",
            _OUTPUT,
            optional=True,
        ),
        _RULE,
        *optional(
            word("target", "The output whose relevance was propagated."),
            number("signed", "Mean share of the head in the sum of magnitudes over its layer, with its sign.", _SHARE),
            *interval("`signed`", ("signed_low", "signed_high"), _SHARE),
            count("n", "Examples in the mean of `relevance`.", "examples"),
            count("cancelled", "Examples left out of it, as the heads of the layer cancel.", "examples"),
            count("negative", "Examples in it whose layer has a negative sum.", "examples"),
            *interval("`raw`", ("raw_low", "raw_high"), _OUTPUT),
            number("layer_raw", "Mean of the sum over the layer, the same for all of its heads.", _OUTPUT),
            *interval("`layer_raw`", ("layer_raw_low", "layer_raw_high"), _OUTPUT),
            truth("same_output", "Whether the model has the same output for all examples."),
            number(
                "remainder",
                "Mean of the target without the `raw` of all heads, the same for all of them: what MLPs, embeddings, "
                "biases and, where there is one, the activation function behind the last layer give; for the rule "
                "`logit-attribution` alone.",
                _OUTPUT,
            ),
            *interval("`remainder`", ("remainder_low", "remainder_high"), _OUTPUT),
            truth(
                "even_output", "Whether the model finds all answers (nearly) equally probable, and so predicts nothing."
            ),
            truth("few_answers", "Whether the model (nearly) always gives the same answer, or one of few."),
        ),
    ),
    (*HEAD_IDENTITY, "rule"),
)
CORRELATIONS = TableSchema(
    "correlations",
    "Two rules, and how well they agree on the order of the heads.",
    (
        MODEL,
        STACK_OR_ALL,
        _RULE.but("The rule that was asked for."),
        _RULE.but("The rule that it is compared with.", name="other_rule"),
        word("of", "What is compared: `relevance` or `raw`, or absolute values: `magnitude`, `raw magnitude`."),
        word("scope", "`heads`: over all heads; `layers`: within layers, the mean over these."),
        number("n", "Heads with a number under both rules.", "heads"),
        number("spearman", "Spearman's correlation, from −1 to 1; empty where it does not exist."),
        *interval("the correlation, over examples"),
    ),
    ("model", "stack", "rule", "other_rule", "of", "scope"),
)
RELEVANCE_RUN = (RELEVANCE, CORRELATIONS)

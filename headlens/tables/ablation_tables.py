"""The tables of `headlens ablate`, and the answers of a model to every example, which `train` writes, too."""

from __future__ import annotations

from headlens.tables import shared_columns as shared
from headlens.tables.classify_tables import SMOOTHNESS
from headlens.tables.table_schema import TableColumn, TableSchema, count, index, number, optional, share, truth, word

_HEADS = "heads"
_OF_EXAMPLE = "of the loss of an example"
_OTHER = {
    "stack": "Which attention the other head belongs to.",
    "layer": "Number of its layer, from 0.",
    "head": "Number of the other head in its layer, from 0.",
}
_DELTA, *_, _P_VALUE = shared.paired_difference("The metric without the head minus that with all heads")

_TEXTS_P_VALUE = number(
    "texts_p_value",
    "The p-value of the hypothesis that the whole model has the same metric on a text and its changed one.",
)
ABLATION = TableSchema(
    "ablation",
    "A head that was taken out, or with the mode `keep-only` left as the only one of its layer.",
    (
        *(shared.MODEL, shared.TASK, shared.METRIC.but(filled=True)),
        word("mode", "What took the place of the head's output, see `--mode`, or `keep-only`."),
        *(*shared.HEAD_KEYS, shared.N),
        shared.of_metric("baseline", "The metric with all heads."),
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
            shared.of_metric(
                "on_changed",
                "The metric of all heads on the changed texts of `--pairs`, against the answers of the data; for the "
                "modes `counterfactual` and `path`.",
            ),
            number(
                "kept",
                "The share (value − on_changed) / (baseline − on_changed): 1 where the head's output on the changed "
                "text makes no difference, 0 where it makes all of it (Zhang and Nanda 2024); empty where the texts "
                "do not differ significantly.",
            ),
            *shared.interval("`kept`, over examples", ("kept_low", "kept_high")),
            group="counterfactual",
        ),
        *optional(
            shared.of_metric(
                "texts_delta",
                "For the modes with `--pairs`, the metric of all heads on the texts that outputs are taken from, minus "
                "that on those that they are put into.",
            ),
            *shared.interval("`texts_delta`, paired by example", ("texts_low", "texts_high"), "of the metric"),
            _TEXTS_P_VALUE,
            group="pairs",
        ),
        *optional(
            shared.of_metric(
                "on_original",
                "The metric of all heads on the texts of the data; for the mode `denoise`, whose `baseline` is that on "
                "the changed texts.",
            ),
            number(
                "restored",
                "The share (value − baseline) / (on_original − baseline): 1 where the head's output on the original "
                "text restores all that the changed text takes away, 0 where it restores nothing; empty where the "
                "changed texts do not make the metric significantly worse.",
            ),
            *shared.interval("`restored`, over examples", ("restored_low", "restored_high")),
            group="denoise",
        ),
        *optional(
            word(
                "receiver",
                "For the mode `path`, what gets the changed output: `outputs`, what the model gives, or a head, with "
                "the letters of its queries, keys or values where these alone do. Other heads give what they gave "
                "without the change; MLPs and norms are computed anew.",
            ),
            group="path",
        ),
        *optional(
            number(
                "attribution",
                "With `--strategy-args confirm`, by how much the loss of the task grows without the head to first "
                "order, on these examples: the loss of an example, a sum where it predicts several tokens.",
                _OF_EXAMPLE,
            ),
            truth(
                "confirmed",
                "Whether the head was ablated, being one of those whose attribution is largest in size; for the "
                "others, all columns of the ablation are empty.",
            ),
            shared.of_metric(
                "subset_effect",
                "Of a head that was not ablated, the mean change of the metric by random subsets of such heads with "
                "it, minus that by subsets without it.",
            ),
            shared.of_metric(
                "subset_bound",
                "Upper end of the one-sided 95 % interval of the size of that effect (Welch's test); the largest of "
                "them bounds what was missed on these examples, if effects add up.",
            ),
            group="confirm",
        ),
    ),
    ("model", "mode", "stack", "layer", "head"),
)
RANKINGS = TableSchema(
    "rankings",
    "A head and a strategy that scores all heads once, on the examples that heads are chosen on; with several such "
    "strategies.",
    (
        shared.MODEL,
        word("strategy", "How heads are scored."),
        *shared.HEAD_KEYS,
        number(
            "worth",
            "What the head is worth, higher for more: the loss of the metric without it (ranked), the size of its "
            "gradient or relevance (importance, by layer; relevance), by how much the loss of an example, a sum "
            "where it predicts several tokens, grows without it, to first order (attribution) or on average over "
            "orders in which heads go (shapley), the mean norm of what it adds (norm), 1 minus the normalised entropy "
            "of its attention (entropy), or the probability that its gate is open (gates).",
        ),
        number("rank", "Its rank, 1 for the head that is worth most; equal ones share the mean of their ranks."),
        number("se", "Standard error of a Shapley value, over examples.", _OF_EXAMPLE),
        count("n", "How many examples the scores are from.", "examples"),
    ),
    ("model", "strategy", "stack", "layer", "head"),
)
INTERACTIONS = TableSchema(
    "interactions",
    "A pair of heads, of those with the largest Shapley values, and how they interact; with `--strategy-args "
    "interactions=N`.",
    (
        shared.MODEL,
        *shared.HEAD_KEYS,
        *(column.but(_OTHER[column.name], name=f"other_{column.name}") for column in shared.HEAD_KEYS),
        number(
            "interaction",
            "Shapley interaction index of the pair for minus the loss (Grabisch and Roubens 1999): by how much the "
            "Shapley value of one is larger where the other always is there than where it is gone. Below 0, each "
            "stands in for the other; above 0, each needs the other. The loss of an example is a sum where it predicts "
            "several tokens.",
            _OF_EXAMPLE,
        ),
        number("se", "Its standard error, over examples.", _OF_EXAMPLE),
        number(
            "p_value",
            "Two-sided p-value of the hypothesis that it is 0 (t-test over examples), not corrected for multiple "
            "tests; empty for fewer than ten independent ones.",
        ),
        shared.P_HOLM.but("`p_value` corrected for the pairs of the model (Holm 1979)."),
        number("value", "Shapley value of the head.", _OF_EXAMPLE),
        number("other_value", "Shapley value of the other head.", _OF_EXAMPLE),
        count("n", "How many examples it is from.", "examples"),
    ),
    ("model", "stack", "layer", "head", "other_stack", "other_layer", "other_head"),
)
AGREEMENT_OF_RANKINGS = TableSchema(
    "ranking_agreement",
    "Two strategies and how alike they rank the heads; with several strategies that score all heads once.",
    (
        shared.MODEL,
        word("strategy", "One of the strategies."),
        word("other_strategy", "The other one."),
        number("spearman", "Spearman's correlation of the ranks, from −1 to 1."),
        *shared.interval("the correlation (bootstrap over heads, not over examples)"),
        count("heads", "How many heads are ranked.", _HEADS),
        number(
            "corrected",
            "The correlation as it would be on endless examples (Spearman 1904): that of one strategy on one half of "
            "the examples with the other on the other half, over the root of the product of both reliabilities; may be "
            "above 1, and is empty where one of these is hardly above 0.",
            optional=True,
        ),
    ),
    ("model", "strategy", "other_strategy"),
)


def _controlled(name: str, strategy: str, of: str) -> tuple[TableColumn, ...]:
    """The columns that compare a strategy with random sets of one kind."""
    about = f"of a seed of random sets of {of} (`{strategy}`)"
    return optional(
        shared.of_metric(f"{name}_low", f"The lowest area {about}; empty where there are none for some number."),
        shared.of_metric(f"{name}_high", f"The highest area {about}."),
        number(f"better_than_{name}", "How many of their areas are worse.", "seeds"),
        number(f"equal_to_{name}", "How many of their areas are the same.", "seeds"),
        group=name,
    )


RANKING_VARIANCE = TableSchema(
    "ranking_variance",
    "Where the variance of ranks of heads comes from; with several strategies that score all heads once, and at least "
    "ten independent examples.",
    (
        shared.MODEL,
        word("strategy", f"One of the strategies, or `{shared.ALL}` for all of them together."),
        word(
            "source",
            "Of all strategies together: `heads`, what is common to all of them; `strategy`, what differs between "
            "them whatever the examples; `examples`, what would change with other examples, and other random orders. "
            "Of one: `examples` likewise, or `orders`, what would change with other random orders on the same "
            "examples.",
            words=("heads", "strategy", "examples", "orders"),
        ),
        share("share", "Share of the variance of ranks that comes from there; empty where it cannot be divided."),
        number(
            "correlation", "Mean Spearman's correlation between two halves, of the examples or of the rounds of orders."
        ),
        share(
            "reliability",
            "That of all examples, or all rounds, by the formula of Spearman and Brown; 0 where halves do not agree "
            "(correlation not above 0).",
        ),
        share("low", "The 2.5 % quantile of the reliability over random divisions, which is no confidence limit."),
        share("high", "The 97.5 % quantile of it."),
        count("n", "How many examples heads are ranked on.", "examples"),
        count("splits", "How many random divisions there are.", "divisions"),
    ),
    ("model", "strategy", "source"),
)
PRUNING_AREAS = TableSchema(
    "pruning_areas",
    "A strategy and the area under its curve: a number of our own, not the CPR or CMD of circuits.",
    (
        shared.MODEL,
        word("strategy", "How the heads were chosen."),
        shared.METRIC.but(filled=True),
        shared.of_metric(
            "area",
            "Mean of the metric over numbers of pruned heads from none to the most, by trapezoids between those that "
            "were measured; of random orders the mean.",
        ),
        shared.of_metric("random_low", "The lowest area of a random order."),
        shared.of_metric("random_high", "The highest area of a random order."),
        number("better_than", "How many of the random orders have a worse area.", "orders"),
        number("equal_to", "How many of them have the same area.", "orders"),
        count("orders", "How many random orders there are.", "orders"),
        count("most", "The most heads that are pruned.", _HEADS),
        word("control_of", "Of a control, the strategy beside whose sets its sets were drawn.", optional=True),
        *optional(
            *shared.interval(
                "the area, over examples (bootstrap); heads stay those that were chosen", unit="of the metric"
            ),
            word("compared_with", "The strategy that was named first of those that choose heads."),
            *shared.paired_difference("The area minus that of `compared_with`"),
            shared.P_HOLM.but("`p_value` corrected for the strategies of the model (Holm 1979)."),
            group="ci_low",
        ),
        *_controlled("by_layer", "random-by-layer", "as many heads in every layer"),
        *_controlled("placebo", "placebo", "heads that the strategy does not choose"),
    ),
    ("model", "strategy", "control_of"),
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
            shared.of_metric("ranking_value", "The metric on the examples that the heads were chosen on."),
            group="delta",
        ),
        shared.P_HOLM.but(
            "`p_value` corrected for the rows that are no random orders or sets, or for those of one kind (Holm 1979).",
            optional=True,
        ),
        *shared.VERDICT,
        shared.CHANCE,
        shared.ANSWER_SHARE,
        *optional(
            word("control_of", "Of a control, the strategy beside whose set this one was drawn."),
            number(
                "possible_sets",
                "Of a control, how many different sets it was drawn from, that of the strategy among them if it is one "
                "of these, counted up to a million; with 1 it is the strategy's own.",
                "sets",
            ),
            group="control_of",
        ),
    ),
    ("model", "strategy", "control_of", "seed", "n_pruned"),
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
                "and `f1` of an answer; counts of n-grams of translations; `written`, the same number for the same "
                "translation or answer; `longer`, by how many tokens the right candidate is longer.",
            ),
        ),
    ),
)
_RANKING = word(
    "ranking",
    "How nodes are scored, by how much the loss grows when one is patched: to first order (`attribution`), or measured "
    "(`patching`); or `random`.",
)
_SEED = number("seed", "Seed of a random order; empty for scores.")
MIB = TableSchema(
    "mib",
    "A circuit: a share of the heads and MLPs, all others patched with what they give on the changed texts; with "
    "`--strategy-args mib=DIR`.",
    (
        *(shared.MODEL, shared.TASK, shared.METRIC.but(filled=True), _RANKING, _SEED),
        word(
            "order", "Whether nodes are ranked by their scores or by the size of these.", words=("signed", "absolute")
        ),
        number("share", "The share of the nodes that is kept."),
        count("nodes", "How many nodes are kept: the share of all nodes, rounded down.", "nodes"),
        count("heads", "How many of them are heads.", _HEADS),
        count("mlps", "How many of them are MLPs.", "MLPs"),
        shared.VALUE.but("The metric of the circuit."),
        number(
            "faithfulness",
            "The share (value − corrupted) / (full − corrupted); empty where the changed texts make the metric no "
            "worse.",
        ),
        shared.of_metric("full", "The metric of the whole model."),
        shared.of_metric("corrupted", "The metric of the whole model on the changed texts."),
        word("circuit", "Names of the nodes that are kept, with spaces between them: `a0.h1` a head, `m0` an MLP."),
        shared.N,
        *optional(_TEXTS_P_VALUE),
    ),
    ("model", "ranking", "seed", "order", "share"),
)
MIB_AREAS = TableSchema(
    "mib_areas",
    "A ranking of heads and MLPs and one of the circuit metrics of MIB (Mueller et al. 2025).",
    (
        *(shared.MODEL, shared.TASK, shared.METRIC.but(filled=True), _RANKING, _SEED),
        word(
            "measure",
            "`CPR`, the area below the faithfulness of circuits with nodes ranked by their scores (higher is better), "
            "or `CMD`, that of its distance from 1 with nodes ranked by size (lower is better).",
            words=("CPR", "CMD"),
        ),
        number("area", "By trapezoids over the shares .001 to 1; empty where faithfulness is."),
        *shared.interval("the area, over examples (bootstrap); circuits stay those that were chosen"),
        shared.N,
    ),
    ("model", "ranking", "seed", "measure"),
)
ABLATE = (
    *(ABLATION, EXAMPLES, SMOOTHNESS, PRUNING, PRUNING_AREAS),
    *(RANKINGS, AGREEMENT_OF_RANKINGS, RANKING_VARIANCE, INTERACTIONS, MIB, MIB_AREAS),
)

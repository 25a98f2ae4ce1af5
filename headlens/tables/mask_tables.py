"""The tables of `headlens masks` and `headlens train-dam`."""

from __future__ import annotations

from headlens.tables import shared_columns as shared
from headlens.tables.table_schema import TableSchema, count, number, optional, share, truth, word

CLASSES = ("special", "diagonal", "neighbourhood", "rest")  # of positions
_POSITIONS, _TEXTS, _TOKENS = "share of positions", "share of positions of texts", "tokens"

# A layer or head that is a number, but empty where all have the same mask.
_LAYER = shared.LAYER.but(
    "Number of the layer, from 0; empty where all layers share the mask, and in rows about all heads.", kind="number"
)
_HEAD = shared.HEAD.but("Number of the head in its layer, from 0; empty where all heads share the mask.", kind="number")
_MASK = word("mask", "Name of the mask: the pattern as it was given, or the training run.")
_PATTERN = word(
    "pattern", "The mask in words, as `--pattern` takes it; `full` for none, else what is learned or removed."
)
_LAYERS = word("layers", "In which layers the mask holds, such as `6-11`; `all` for all.")
_SEED = number("seed", "Seed of the training, of new weights and of random positions.")
_DIAGONAL = truth(
    "diagonal", "Whether a token may look at itself: not where the diagonal was dropped, or a mask has none."
)
_CONTROL = word(
    "control",
    "What becomes of the diagonal: `kept` as it is in the mask, which may have none; "
    "`dropped`, masked too; `random`, as many other positions masked instead.",
)
_SPARSITY = number(
    "sparsity",
    "Share of the n × n positions that are masked; in a decoder of those up to each query's own.",
    _POSITIONS,
)
_SPARSITY_TEXTS = _SPARSITY.but(
    "Share of the positions of the texts that are masked, at their lengths: the mean over texts.",
    name="sparsity_texts",
    unit=_TEXTS,
)
GRID = ["degree_global", "degree_random", "degree_neighbour"]
_DEGREES = tuple(
    number(name, f"{what}; empty for masks that have no degrees of this kind.", _TOKENS)
    for name, what in zip(
        GRID, ("Global tokens", "Random keys of each query", "Neighbours to each side that a query sees"), strict=True
    )
)
_STUDY = (shared.MODEL, shared.TASK, shared.METRIC)

SPARSITY = TableSchema(
    "sparsity",
    "A mask with or without the diagonal, or a head under it.",
    (
        _MASK.but(filled=True),
        *(_LAYER, _HEAD, _DIAGONAL),
        count("n", "Number of tokens for which positions are counted.", _TOKENS),
        _SPARSITY,
        *optional(
            count("masked", "Masked positions.", "positions"),
            count("allowed", "Positions that may be attended to.", "positions"),
            number(
                "paper_sparsity",
                "Sparsity that Shi et al. (2021) print for such a pattern; empty for others.",
                _POSITIONS,
            ),
        ),
        _PATTERN,
        truth(
            "causal", "Whether only positions up to each query's own count, as a decoder sees no others.", optional=True
        ),
    ),
    ("mask", "layer", "head", "diagonal", "n"),
)
MASK_TRAININGS = TableSchema(
    "masks",
    "A training run and a metric.",
    (
        *(_PATTERN, _LAYERS, _DIAGONAL.but(optional=True), *_DEGREES),
        _SPARSITY.but(
            "Share of the n × n positions that are masked, in the layers that are; in a decoder of those up to each "
            "query's own; empty for graphs of texts."
        ),
        *(
            shared.TASK,
            shared.METRIC,
            _SEED,
            *shared.ESTIMATE,
            _CONTROL,
            shared.N.but(optional=True),
            shared.MODEL,
            _SPARSITY_TEXTS,
        ),
        *optional(*shared.paired_difference("The metric minus that of the same training without a mask")),
        shared.CHANCE,
        *shared.SWEEP_VERDICT,
        shared.SAME_ANSWER,
        shared.ANSWER_SHARE,
    ),
    ("model", "task", "metric", "pattern", "layers", "control", "seed"),
)
DEGREES = TableSchema(
    "degrees",
    "A degree that a head, or all heads of a layer, may have, and its probability at the end of training.",
    (
        *(shared.MODEL, shared.STACK.but(words=(), optional=True), _LAYER, _HEAD, _PATTERN, _LAYERS, _DIAGONAL, _SEED),
        number("degree", "The degree: how many tokens of its kind are seen.", _TOKENS),
        number("p", "Its learned probability; those of a head and kind sum to 1."),
        truth("chosen", "Whether it is the median, which the final mask has.", optional=True),
        word("kind", "What is counted: `neighbour` (to each side), `global` or `random`.", optional=True),
    ),
    ("model", "pattern", "layers", "diagonal", "seed", "layer", "head", "degree", "kind"),
)
SPANS = TableSchema(
    "spans",
    "A head that learned how far it looks.",
    (
        *(shared.MODEL, shared.STACK.but(words=()), shared.LAYER, shared.HEAD, _PATTERN, _LAYERS, _DIAGONAL, _SEED),
        number("span", "Distance up to which weights are unchanged.", _TOKENS),
        number("reach", "Largest distance at which a key still has weight.", _TOKENS),
        number(
            "change",
            "How much the span changed since the last update that was logged before the last third of them; of few "
            "updates, since the start.",
            _TOKENS,
            optional=True,
        ),
    ),
    ("model", "pattern", "layers", "diagonal", "seed", "layer", "head"),
)
DRAWS = TableSchema(
    "draws",
    "A mask drawn from learned degrees, and a metric of the model that learned them.",
    (
        *(*_STUDY, _PATTERN, _LAYERS, _DIAGONAL, _SEED),
        number("draw", "Number of the draw, from 0."),
        *(column.but(f"Mean over heads: {column.about[0].lower()}{column.about[1:]}") for column in _DEGREES),
        *(_SPARSITY, _SPARSITY_TEXTS, *shared.ESTIMATE, shared.N),
        *shared.paired_difference("The metric minus that under the mask that stays"),
    ),
    ("model", "task", "metric", "pattern", "layers", "diagonal", "seed", "draw"),
)
EFFECTS = TableSchema(
    "effects",
    "A kind of degree in a grid of BigBird patterns: least squares over its trainings, with an intercept for each "
    "seed.",
    (
        *(*_STUDY, _LAYERS),
        word("kind", "The degree: `global`, `random` or `neighbour`."),
        number("effect", "What one token more of it is worth.", "of the metric per token"),
        *shared.interval("the effect (Student's t, over trainings)", unit="of the metric per token"),
        number("p_value", "Two-sided p-value of the hypothesis that the effect is 0, not corrected."),
        number("density", "Share of the positions of texts that one token more opens.", _TEXTS),
        shared.of_metric(
            "effect_per_percent",
            "What one per cent of the positions is worth when spent on this kind.",
        ),
        number("n", "Trainings that were regressed on.", "trainings"),
        number("r_squared", "R² of the regression, around the mean of all trainings."),
    ),
    ("model", "task", "metric", "layers", "kind"),
)
OVER_TASKS = TableSchema(
    "over_tasks",
    "A model under a mask, over the tasks of several runs of `headlens masks`.",
    (
        *(shared.MODEL, _PATTERN, _LAYERS, _CONTROL),
        _SPARSITY.but("Share of the n × n positions that are masked, mean over the tasks; empty for graphs of texts."),
        _SPARSITY_TEXTS.but("Share of the positions of the texts that are masked, mean over the tasks."),
        shared.of_metric("TASK", "The main metric of this task, mean over seeds."),
        number("average", "Mean of the main metrics of all tasks; empty where one is missing."),
        *shared.interval("the average, over seeds; for one seed over examples"),
        count("seeds", "Seeds that all tasks have.", "seeds"),
        *shared.paired_difference("The average minus that without a mask")[:3],
    ),
)
MASK_STUDY = (SPARSITY, MASK_TRAININGS, DEGREES, SPANS, DRAWS, EFFECTS)

_RUN = shared.RUN.but(
    "Name of the training run; `plain` for the model as it was, `unmasked` for a training without a mask."
)
SWEEP_OF_MASKS = TableSchema(
    "sweep",
    "A training run and a metric.",
    (
        *(_RUN, shared.PENALTY),
        _SPARSITY.but("Share of the n × n positions that are masked, in the layers that are."),
        *(_SPARSITY_TEXTS, shared.METRIC.but(filled=True), *shared.ESTIMATE),
        *optional(*shared.paired_difference("The metric minus that without a mask"), group="difference"),
        *(shared.MODEL, shared.TASK, shared.N.but(optional=True)),
        word("mask", "File of the mask below the folder of the run; empty without a mask."),
        *optional(
            word("checkpoint", "Folder of the model below that of the run; empty for the plain one."),
            _DIAGONAL,
            *shared.paired_difference(
                "The metric without the diagonal minus that of the same run with it", "diagonal_"
            ),
        ),
        *shared.COMPARED,
    ),
    ("run", "metric"),
)
HEADS_OF_MASKS = TableSchema(
    "sparsity",
    "A head under the mask of a training run; the last row of a mask is about all of its heads.",
    optional(
        _MASK,
        shared.PENALTY,
        _LAYER,
        _HEAD,
        _DIAGONAL,
        shared.N.but("Number of tokens of the mask.", unit=_TOKENS),
        _SPARSITY,
    ),
)
_CLASS = word(
    "class",
    "The first that fits: `special`, the first and last row and column; `diagonal`; `neighbourhood`, at most as far "
    "apart as the window; `rest`",
    words=CLASSES,
)
POSITIONS_OF_MASKS = TableSchema(
    "positions",
    "A head under the mask of a training run, and a class of positions.",
    (
        *(_MASK, shared.PENALTY, *optional(_LAYER, _HEAD)),
        _CLASS.but(
            f"{_CLASS.about}; or `offset`: those with one distance that are not special.", words=(*CLASSES, "offset")
        ),
        number("offset", "Distance of the positions; empty for classes.", _TOKENS),
        count("positions", "Positions of the class that are learned.", "positions", optional=True),
        number("p", "Mean probability that such a position stays; empty where none is learned."),
        *optional(
            number("kept", "Share of them that the final mask keeps.", _POSITIONS),
            _DIAGONAL,
            share(
                "texts",
                "Share of the training texts that such a position is learned from, the mean over positions: those that "
                "have it, in the structured form its distance. The smaller it is, the less the texts decide: a penalty "
                "lowers `p`, and under λ = 0 it stays near 1/2.",
                "share of texts",
            ),
        ),
    ),
)
IMPORTANCE = TableSchema(
    "importance",
    "An update of a training run, and a class of positions.",
    (
        *(_RUN, shared.PENALTY, shared.STEP),
        _CLASS.but(f"{_CLASS.about}."),
        share("p", "Mean probability that such a position stays, over all heads.", "probability"),
    ),
)
LOG_OF_MASKS = TableSchema(
    "log",
    "An update of a training run that was logged.",
    optional(
        *(_RUN, shared.PENALTY, *shared.LOG),
        _SPARSITY.but("Share of the n × n positions that the final mask would mask."),
        number("undecided", "Share of the learned numbers with a probability between 0.1 and 0.9."),
        number("temperature", "Temperature of the noise that masks are drawn with."),
    ),
)
DAM = (SWEEP_OF_MASKS, HEADS_OF_MASKS, POSITIONS_OF_MASKS, IMPORTANCE, LOG_OF_MASKS)

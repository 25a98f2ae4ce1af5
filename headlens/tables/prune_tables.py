"""The tables of `headlens prune`."""

from __future__ import annotations

from headlens.heads import STACKS
from headlens.tables import shared_columns as shared
from headlens.tables.table_schema import TableColumn, TableSchema, count, number, optional, truth, word

TRAINED, SCRATCH = "trained", "scratch"  # values of `init`
_RUN = shared.RUN.but("Name of the training run; `unpruned` for the model as it was.")
_HEADS = tuple(
    count(f"heads_{stack}", f"Heads left in the stack {stack}; empty where the model has none.", "heads")
    for stack in STACKS
)
_CHECKPOINT = word("checkpoint", "Folder of the model below that of the run; empty for the unpruned one.")

GATES = TableSchema(
    "gates",
    "A head at an update of a training run.",
    (
        *(_RUN, shared.PENALTY, shared.STEP, *shared.HEAD_KEYS),
        number("log_alpha", "The learned parameter of the gate, log α.", optional=True),
        number("p_open", "Probability that a gate that is drawn is not 0.", optional=True),
        number("gate", "The gate at evaluation, from 0 (closed) to 1 (open)."),
        shared.MODEL,
    ),
    ("model", "run", "step", "stack", "layer", "head"),
)
SWEEP = TableSchema(
    "sweep",
    "A training run and a metric, of a model pruned from a trained one or of the same architecture from random "
    "weights.",
    (
        *(_RUN.but(filled=True), shared.PENALTY),
        word(
            "init",
            "Whether the weights came from the trained model or were random before training.",
            words=(TRAINED, SCRATCH),
        ),
        *_HEADS,
        *(shared.METRIC, *shared.ESTIMATE, shared.MODEL.but(filled=True), shared.TASK),
        *optional(
            shared.N,
            count("n_heads", "Heads of the stacks with gates in the model as it was.", "heads"),
            *(
                column.but(f"Heads of the stack {stack} in the model as it was; 0 for none.", name=f"total_{stack}")
                for column, stack in zip(_HEADS, STACKS, strict=True)
            ),
            count("between", "Gates that are neither closed nor 1.", "gates"),
            word("removed", "Names of the heads whose gates are closed, with spaces between them."),
            word("penalty_kind", "What λ multiplies: the `mean` over layers of the penalty, or its `sum`."),
            _CHECKPOINT,
        ),
        *optional(*shared.paired_difference("The metric minus that of the unpruned model"), group="difference"),
        *shared.COMPARED,
    ),
    ("model", "run", "init", "metric"),
)
LOG_OF_RUNS = TableSchema(
    "log", "An update of a training run that was logged.", (*optional(_RUN, shared.PENALTY), *optional(*shared.LOG))
)
ROLES_KEPT = TableSchema(
    "roles",
    "A head and a training run.",
    (
        *(_RUN, shared.PENALTY, shared.MODEL, *shared.HEAD_KEYS),
        shared.ROLE.but("The strongest role of the head in the model as it was; empty for none."),
        shared.ROLES.but(
            "All its roles in the model as it was, the strongest first, with `; ` between them.", optional=True
        ),
        truth("kept", "Whether the head is left in the run."),
        shared.ROLE.but(
            "The strongest role in the pruned model; empty for none and for pruned heads.",
            name="role_pruned",
            optional=True,
        ),
    ),
    ("model", "run", "stack", "layer", "head"),
)


def _trained(init: str, what: str) -> tuple[TableColumn, ...]:
    value = shared.of_metric(init, f"The metric of the model {what}; empty where there is none.")
    return value, *shared.interval(f"`{init}`, over examples", (f"{init}_low", f"{init}_high"), "of the metric")


RESULTS = TableSchema(
    "results",
    "An architecture and a metric, from most heads to fewest, as in table 2 of Voita et al. (2019).",
    (
        *(shared.MODEL, shared.TASK, shared.METRIC),
        *optional(
            _RUN.but("Name of the run that left these heads, the pruned one."),
            shared.PENALTY,
            word("heads", "Heads left, encoder/decoder/cross, of the stacks that the models have."),
            *_HEADS,
            *_trained(TRAINED, "pruned from the trained one"),
            *_trained(SCRATCH, "of this architecture trained from random weights"),
            shared.N,
            *shared.paired_difference("`trained` minus the metric of the unpruned model", f"{TRAINED}_"),
            *shared.paired_difference("`scratch` minus the metric of the unpruned model", f"{SCRATCH}_"),
            shared.P_HOLM.but("`trained_p_value` corrected for all pruned models (Holm 1979)."),
            *(column for column in shared.VERDICT if not column.name.startswith("p_")),
        ),
    ),
)
PRUNE = (SWEEP, RESULTS, GATES, ROLES_KEPT, LOG_OF_RUNS)

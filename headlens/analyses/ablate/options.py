"""The options of `headlens ablate`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headlens.analyses.ablate.pruning_strategies import CONTROLS, STRATEGY_ENTRIES
from headlens.attention_masks.mask_options import MaskOptions
from headlens.errors import OptionError
from headlens.models.model_options import ModelOptions
from headlens.models.names import in_training_order, steps_of_one_training
from headlens.option_values import names, share, whole_numbers
from headlens.options import DEMO, FEWEST_REPLICATES, HEADS, PRUNING, STATISTICS, TASK, Checked, CommandOptions, option
from headlens.replay.modes import WITH_PAIRS, Mode, ReplacementMode
from headlens.shared_options import BATCH_TOKENS, FIGURES, MARGIN, ONE_OR_TWO_OR_STEPS, PREDICTED, SEED, OutputOptions
from headlens.tasks.task_options import TaskData

STRATEGIES = tuple(STRATEGY_ENTRIES)


def _strategies(given: Any) -> tuple[str, ...]:
    every = [name for name in STRATEGIES if name not in (*CONTROLS, "gates")]
    return tuple(dict.fromkeys(one for name in names(given) for one in (every if name == "all" else [name])))


@dataclass(frozen=True)
class AblationOptions(Checked):
    """How heads are removed, and how the task is then evaluated.

    `keep_only` is the other direction of Michel et al. (2019), section 3.3.

    Raises:
        OptionError: if a number is out of range.
    """

    mode: ReplacementMode = option(
        "zero",
        "What replaces a head's output: 0; its mean over the data; its output under uniform attention, on another "
        "example, or on the text of --pairs (counterfactual: wherever it leads; path: by the direct path alone; "
        "denoise: the original's in the changed text); or a constant, fitted to the "
        "other half of the examples, that costs little.",
        HEADS,
        former={"keep-only": "--keep-only"},
    )
    pairs: str | None = option(
        None,
        "Changed texts for --mode counterfactual, path or denoise, one for each example of the data and in the same "
        "layout, of as many tokens each.",
        HEADS,
        metavar="FILE",
    )
    receiver: str | None = option(
        None,
        "For --mode path: the head that gets the changed output, such as decoder.5.1, or its queries, keys or values "
        "alone (decoder.5.1.q, .k, .v, .kv).",
        HEADS,
        metavar="HEAD",
        shown="what the model gives",
        group="strategy-args",
    )
    confirm: int | None = option(
        None,
        "With --mode zero: ablate only the N heads whose attribution (gradients, for all heads at once) is largest in "
        "size; random subsets of the others bound what that misses.",
        HEADS,
        metavar="N",
        at_least=1,
        shown="all heads",
        group="strategy-args",
    )
    subsets: int = option(
        32,
        "With confirm: random subsets of the other heads, each with a quarter of them.",
        HEADS,
        metavar="N",
        at_least=8,
        group="strategy-args",
        needs="confirm",
    )
    mib: Path | None = option(
        None,
        "With --mode counterfactual, of a decoder: also measure circuits of heads and MLPs as MIB does (CPR, CMD), and "
        "write the scores of these nodes to DIR/attribution and DIR/patching.",
        HEADS,
        metavar="DIR",
        shown="not measured",
        group="strategy-args",
    )
    keep_only: bool = option(False, "Also measure each head as the only one kept in its layer (others at 0).", HEADS)
    metric: str | None = option(None, "Metric of the task.", TASK, metavar="NAME", shown="its main metric")
    replicates: int = option(
        10_000,
        "Bootstrap samples, for the intervals of all metrics except accuracy and exact match.",
        STATISTICS,
        metavar="N",
        at_least=FEWEST_REPLICATES,
    )
    margin: float | None = option(None, MARGIN)
    seed: int = option(0, SEED)
    batch_tokens: int | None = option(None, replace(BATCH_TOKENS, shown="256 on a CPU, 8192 elsewhere"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.mode in WITH_PAIRS) != (self.pairs is not None):
            raise OptionError(
                f"--pairs and --mode {', '.join(WITH_PAIRS)} belong together: heads get outputs on changed texts.",
                "Give both, or neither.",
            )
        if self.receiver is not None and self.mode != "path":
            raise OptionError("--strategy-args receiver is for --mode path.", "Give --mode path, or leave it out.")
        if self.mib is not None and self.mode != "counterfactual":
            raise OptionError(
                "--strategy-args mib patches heads and MLPs with what they give on changed texts.",
                "Give --mode counterfactual --pairs FILE, or leave mib out.",
            )
        if self.confirm is not None and self.modes != ["zero"]:
            raise OptionError(
                "--strategy-args confirm ranks heads by gradients towards outputs of 0: it is for --mode zero alone.",
                "Leave --mode and --keep-only out, or confirm.",
            )

    @property
    def modes(self) -> list[Mode]:
        """Modes of the ablation sweeps, in the order they are run: `mode`, then `keep-only` if it is asked for."""
        return [self.mode, "keep-only"] if self.keep_only else [self.mode]


@dataclass(frozen=True)
class PruneOptions(Checked):
    """Which numbers of heads are pruned, and how the heads are chosen.

    Strategies choose heads `ranked` by the damage of single heads; by `importance`, once, or anew after every removal
    (`importance-steps`); `greedy`; by a `beam` search; by `relevance`, as another run measured it if `relevance` names
    one; by the `norm` of what they add; by the `entropy` of their attention; by the `gates` of another run; at
    `random`. Controls of each are random sets of as many heads in every layer (`random-by-layer`), and of heads
    that it does not choose (`placebo`).

    Raises:
        OptionError: if there is no such strategy, a number is out of range, or a run of relevance is not asked for.
    """

    prune: tuple[int, ...] = option(
        (),
        "Also prune these numbers of heads at once, such as 3,10,20,30.",
        PRUNING,
        metavar="NUMBERS",
        parse=whole_numbers,
        shown="no pruning",
    )
    strategies: tuple[str, ...] = option(
        ("ranked", "importance", "random"),
        f"Strategies for choosing the heads to prune: {', '.join(STRATEGIES)}; or all, which leaves out gates and the "
        f"random controls of each, {' and '.join(CONTROLS)}.",
        PRUNING,
        metavar="NAMES",
        parse=_strategies,
        needs="prune",
    )
    beam: int = option(
        3, "Beam width: sets of heads kept at each step.", PRUNING, metavar="N", at_least=1, group="strategy-args"
    )
    orders: int = option(
        5,
        "Number of random orders, and of random sets beside each set of a strategy.",
        PRUNING,
        metavar="N",
        at_least=1,
        group="strategy-args",
    )
    rounds: int = option(
        1,
        "For the strategy shapley: random orders of the heads for each example (and their reverses), at most; fewer "
        "where the largest standard error is 5 % of the largest value.",
        PRUNING,
        metavar="N",
        at_least=1,
        group="strategy-args",
    )
    interactions: int | None = option(
        None,
        "For the strategy shapley: also measure how the N heads with the largest values interact, pair by pair; a pair "
        "takes 8 passes over the examples used to choose heads, in each of the rounds.",
        PRUNING,
        metavar="N",
        at_least=2,
        shown="not measured",
        group="strategy-args",
    )
    rank_split: float = option(
        0.5,
        "Share of the examples used to choose heads; the pruned models are evaluated on the rest.",
        PRUNING,
        metavar="0…1",
        parse=share,
        group="strategy-args",
    )
    relevance: Path | None = option(
        None,
        "For the strategy relevance: a run of headlens relevance, or of classify --relevance, on this model.",
        PRUNING,
        metavar="RUN",
        shown="measured on the examples used to choose heads",
        group="strategy-args",
    )
    gates: Path | None = option(
        None,
        "For the strategy gates: a run of headlens prune on this model.",
        PRUNING,
        metavar="RUN",
        shown="none",
        group="strategy-args",
    )

    def __post_init__(self) -> None:
        for name in self.strategies:  # a configuration file may hold any
            if name not in STRATEGIES:
                raise OptionError(f"Unknown strategy {name!r}.", f"--strategies can be {', '.join(STRATEGIES)}, all.")
        super().__post_init__()
        if self.prune and not self.strategies:
            raise OptionError("--strategies is empty.", f"Choose from {', '.join(STRATEGIES)}, or all.")
        if self.interactions is not None and not (self.prune and "shapley" in self.strategies):
            raise OptionError(
                "--strategy-args interactions applies to the strategy shapley, which was not requested.",
                "Give --prune 3,10,20,30 --strategies shapley too.",
            )
        drawn = [name for name in self.strategies if STRATEGY_ENTRIES[name].pools]
        if self.prune and drawn and all(STRATEGY_ENTRIES[name].seeded for name in self.strategies):
            raise OptionError(
                f"--strategies {','.join(drawn)} draws random sets beside those of other strategies, and none was "
                "requested.",
                "Name one that chooses heads, too: --strategies ranked,random-by-layer.",
            )
        by_relevance = any(STRATEGY_ENTRIES[name].scored_by == "relevance" for name in self.strategies)
        if self.relevance is not None and not (self.prune and by_relevance):
            raise OptionError(
                "--strategy-args relevance applies to the strategy relevance, which was not requested.",
                "Give --prune 3,10,20,30 --strategies relevance too.",
            )
        if (self.gates is not None) != (bool(self.prune) and "gates" in self.strategies):
            raise OptionError(
                "--strategies gates and --strategy-args gates=RUN belong together: heads are pruned by gates that "
                "headlens prune trained.",
                "Give both, with --prune, or neither.",
            )


@dataclass(frozen=True)
class AblateRequest:
    """What `headlens ablate` is asked for."""

    models: tuple[str, ...] = option((DEMO,), ONE_OR_TWO_OR_STEPS)
    data: TaskData = field(default_factory=TaskData)
    options: AblationOptions = field(default_factory=AblationOptions)
    pruning: PruneOptions = field(default_factory=PruneOptions)
    predict: tuple[str, ...] = option((), PREDICTED)
    mask: MaskOptions = field(default_factory=MaskOptions)
    model_options: ModelOptions = field(default_factory=ModelOptions)
    figures: bool = option(True, FIGURES)
    place: OutputOptions = field(default_factory=OutputOptions)

    def __post_init__(self) -> None:
        object.__setattr__(self, "models", in_training_order(self.models))
        if not 1 <= len(self.models) <= 2 and not steps_of_one_training(self.models):
            raise OptionError(
                f"{len(self.models)} models were given.",
                "Give one model, two to compare, or checkpoints of one training, such as RUN/checkpoints/checkpoint-*.",
            )
        if self.pruning.prune and self.options.mode in ("path", "denoise"):
            raise OptionError(
                f"--prune ranks heads by their loss when taken out, which --mode {self.options.mode} does not measure.",
                "Leave --prune out, or give another --mode.",
            )
        if self.pruning.prune and self.options.confirm is not None and "ranked" in self.pruning.strategies:
            raise OptionError(
                "--strategies ranked goes by the loss without every single head, and with --strategy-args confirm most "
                "are not ablated.",
                "Name others, such as --strategies attribution,random, or leave confirm out.",
            )
        if len(self.models) > 1 and self.options.mib is not None:
            raise OptionError(
                "--strategy-args mib writes the circuits of one model, but several were given.", "Give one."
            )
        written = () if self.options.mib is None else self.options.mib.glob("*/importances.json")
        if (found := next(iter(written), None)) and not (self.place.overwrite or self.place.resume):
            raise OptionError(f"{found} exists already.", "Name another folder for mib, or give --overwrite.")
        if len(self.models) > 1 and self.predict:
            raise OptionError("--predict writes the predictions of one model, but several were given.", "Give one.")
        if len(self.models) > 1 and any(label.partition("=")[0].strip() == "model" for label in self.data.labels):
            raise OptionError(
                "--labels model=… names the outputs of one model, but several were given.",
                "Run them one after the other: headlens report shows both runs on one page.",
            )


COMMAND = CommandOptions(
    "ablate",
    (AblateRequest,),
    "run_ablate",
    first=("task", "data", "text", "label", "metric", "limit", "mode", "prune", "strategies", "device"),
)

"""The options of `headlens sparsefinder`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import headlens.shared_options as common
from headlens.corpora.corpus_options import CorpusOptions, LongSentences
from headlens.errors import OptionError
from headlens.models.model_options import ModelOptions
from headlens.option_values import names, numbers, whole_numbers
from headlens.options import CORPUS, DEMO, MODEL, TASK, BleuTokenizer, Checked, CommandOptions, build, flag_of, option
from headlens.shared_options import OutputOptions

if TYPE_CHECKING:
    from headlens.corpora.sentence import Example

_PROJECTIONS, _GRAPHS, _EXAMPLES = "Projections", "Graphs", "Heads on a sentence"
_LEARNED: dict[str, Any] = {"panel": _PROJECTIONS, "group": "projections"}
_METHODS: dict[str, Any] = {"panel": _GRAPHS, "group": "methods"}
_WHOLE_NUMBERS: dict[str, Any] = {"metavar": "LIST", "parse": whole_numbers, **_METHODS}
# What is tried where nothing is named, and --thorough not given; and so much of bundled data is read.
SENTENCES, EXAMPLES = 300, 100
SHORT: dict[str, Any] = {
    "windows": (0, 3, 9, 27),
    "thresholds": (1.0, 2.5, 5.0),
    "groups": (2, 8, 20),
    "points": 2,
}
_FEW_SIZES = (
    "Few sizes were tried ({names}): curves are coarse, and the best of a method may be missed. "
    "Intervals are over sentences or examples, for the points tried alone: a finer grid (--thorough tries all sizes of "
    "the paper) can move the area of a method by more than its interval."
)
_FEW_DATA = "Of the bundled data a part was read, so that intervals are wide; --thorough reads all."
_CLUSTERS = 8  # that parts of speech are counted in, where nothing is said


def _check(values: Sequence[float], holds: Callable[[Any], bool], message: str, advice: str) -> None:
    """Refuses the first value that cannot be meant, with a message that has its place in braces."""
    for value in values:
        if not holds(value):
            raise OptionError(message.format(value), advice)


@dataclass(frozen=True)
class ParameterGrid(Checked):
    """Parameters of all methods that are tried (Treviso et al. 2022, section 5), each once however often it is named.

    `windows` are keys of the window, the query's own among them; `thresholds` are t of `distance`; `groups` are β of
    `bucket`, clusters of `cluster` and `routing`, hashes of `lsh`, tokens of `longformer`, keys of `random`, both of
    `bigbird`. Global tokens see all and are seen by all; they are added to the graphs of methods by content, which are
    `distance`, `bucket`, `cluster`, `routing` and `lsh`. With `block_size` there are methods of whole blocks, too:
    `groups` are clusters of `block_v1` and `block_v2`, and random blocks of `block_bigbird`; its global tokens, and
    those of `block_longformer`, are as many as of the methods of tokens, and windows as wide, made up to whole blocks.

    Raises:
        OptionError: if a number cannot be meant.
    """

    windows: tuple[int, ...] = option(
        (0, *range(1, 28, 2)),
        "Window sizes in keys, including the query's own position: odd numbers, 0 for no window; 3 is what --mask "
        "window:1 has, one key to each side.",
        shown="0,3,9,27",
        **_WHOLE_NUMBERS,
    )
    thresholds: tuple[float, ...] = option(
        tuple(0.5 * n for n in range(1, 11)),
        "Distance thresholds below which a pair is predicted.",
        **_METHODS,
        shown="1,2.5,5",
        metavar="LIST",
        parse=numbers,
        at_least=0,
    )
    groups: tuple[int, ...] = option(
        tuple(range(2, 21, 2)),
        "Numbers of clusters, buckets, hashes, global tokens and random keys to try; even numbers.",
        shown="2,8,20",
        **_WHOLE_NUMBERS,
    )
    block_size: int | None = option(
        None,
        "Also try graphs of whole blocks of N tokens: both versions of Sparsefinder on blocks, BigBird's random "
        "blocks, and Longformer's global blocks.",
        **_METHODS,
        metavar="N",
        shown="no blocks",
        at_least=1,
    )
    top: int = option(
        1,
        "Number of clusters to which each query and key is assigned, also for the unprojected queries and keys "
        "(Routing).",
        **_METHODS,
        metavar="K",
        at_least=1,
    )
    rounds: int = option(4, "Number of hashing rounds (Reformer).", **_METHODS, metavar="N", at_least=1)
    global_tokens: tuple[int, ...] = option(
        (0,),
        "Number of initial tokens added as global tokens to the graphs of content-based methods: 0 for none, 0,1 to "
        "try both.",
        **_WHOLE_NUMBERS,
        at_least=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.windows and self.thresholds and self.groups and self.global_tokens):
            raise OptionError(
                "--methods windows, thresholds, groups and global-tokens each need at least one number.",
                "For example 0, 2, 8 and 0.",
            )
        window = "--methods windows {}: a window is centred on the query, so its size must be odd."
        _check(self.windows, lambda n: n == 0 or (n > 0 and n % 2 == 1), window, "Give odd numbers, or 0.")
        groups = "--methods groups {}: hashes come in pairs."
        _check(self.groups, lambda n: n >= 2 and n % 2 == 0, groups, "Give even numbers.")


@dataclass(frozen=True)
class FitOptions(Checked):
    """Options of learning the projections of queries and keys.

    The norm that is clipped is that of a site's projections, of all its heads together. The seed is that of the first
    weights and the negatives, and of clusters, hashes and random keys.

    Raises:
        OptionError: if a number is out of range.
    """

    dimensions: int = option(
        4,
        "Dimensions to which queries and keys are projected.",
        **_LEARNED,
        metavar="R",
        at_least=1,
    )
    shared: bool = option(True, "Whether queries and keys share one projection.", **_LEARNED, flags=("separate",))
    margin: float = option(
        1.0,
        "Margin of the loss: how much closer attended keys should be than others.",
        **_LEARNED,
        above=0,
    )
    epochs: int = option(3, "Passes over the sentences.", _PROJECTIONS, metavar="N", at_least=1)
    learning_rate: float = option(1e-3, "Learning rate of Adam.", **_LEARNED, above=0)
    clip: float = option(1.0, "Gradients are clipped to this norm.", **_LEARNED, above=0)
    seed: int = option(0, common.SEED)


@dataclass(frozen=True)
class MetricOptions(Checked):
    """The task that is measured while attention is restricted to predicted graphs, and the source of its examples.

    Every point of a method's curve costs a pass over the data.

    Raises:
        OptionError: if a number is out of range, or data is given for no task.
    """

    task: str = option(
        "auto",
        "Task to evaluate under the predicted graphs: one of ablate, none, or auto for what suits the model.",
        TASK,
        metavar="NAME",
    )
    data: tuple[str, ...] = option((), common.EXAMPLE_SOURCES)
    columns: tuple[str, ...] = option((), common.EXAMPLE_COLUMNS)
    data_split: str | None = option(None, common.EXAMPLE_SPLIT)
    labels: tuple[str, ...] = option((), common.CLASS_LABELS)
    skip_broken: bool = option(False, common.SKIP_BROKEN)
    bleu_tokenizer: BleuTokenizer | None = option(None, common.BLEU_TOKENIZER)
    # `margin` is that of projections
    loss_margin: float | None = option(None, common.MARGIN, group="methods")
    points: int = option(
        4,
        "Number of points on each method's curve at which the task is evaluated.",
        TASK,
        metavar="N",
        shown="2",
        at_least=1,
        group="methods",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        given = next((name for name in ("data", "columns", "data_split", "labels") if getattr(self, name)), None)
        if self.task in {"auto", "none"} and given is not None:
            why = "no task" if self.task == "auto" else "--task none measures nothing"
            raise OptionError(f"{flag_of(self, given)} is given, but {why}.", "Name a task with --task.")
        if self.task not in {"auto", "none"}:
            from headlens.tasks.catalogue import find_task

            find_task(self.task)


@dataclass(frozen=True)
class ShownOptions(Checked):
    """Heads that are drawn, and on which sentence; by default heads that need predicting, on one that was held out.

    Raises:
        OptionError: if a text has no words or is missing, or a name is none of a head.
    """

    text: str | None = option(None, "A sentence for which heads are drawn.", _EXAMPLES, shown="a held-out sentence")
    target_text: str | None = option(
        None, "Translation of --text, for decoder and cross-attention.", _EXAMPLES, shown="", needs="text"
    )
    heads: tuple[str, ...] = option(
        (),
        "Heads to draw, comma-separated: STACK.LAYER.HEAD, from 0.",
        _EXAMPLES,
        metavar="HEADS",
        parse=names,
        shown="up to three heads of different layers for which the method that is drawn improves most over windows and "
        "global tokens",
    )
    drawn: Literal["distance", "bucket", "cluster"] = option(
        "distance", "Method whose predicted pairs are drawn.", _EXAMPLES, group="methods"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads:
            from headlens.heads import parse_heads

            parse_heads(self.heads)
        _ = self.example

    @property
    def example(self) -> Example | None:
        """The sentence on which heads are drawn, with its translation; None without `--text`."""
        from headlens.corpora.text import sentence_examples

        if self.text is None:
            return None
        return sentence_examples([self.text], [] if self.target_text is None else [self.target_text])[0]


@dataclass(frozen=True)
class SparsefinderRequest(Checked):
    """Options of `headlens sparsefinder`: a corpus, of which a part is held out, and what is tried on it.

    Without `attention` the model keeps its own entmax; the demo model is switched to entmax15.

    Raises:
        OptionError: if a number is out of range.
    """

    model: str = option(DEMO, common.MODEL_NAME)
    corpus: str = option(DEMO, common.CORPUS_SOURCE)
    corpus_options: CorpusOptions = field(default_factory=CorpusOptions)
    parser: str = option("gold", common.PARSER)
    dev: str | None = option(None, common.HELD_OUT_TEXT)
    dev_target: str | None = option(None, common.HELD_OUT_TARGET)
    dev_share: float = option(
        0.2,
        "Share of the corpus held out for evaluation if --dev is not given.",
        CORPUS,
        group="data-args",
        above=0,
        at_most=0.9,
    )
    long_sentences: LongSentences = option("skip", common.LONG_SENTENCES)
    attention: str | None = option(
        None,
        "Switch the model to entmax15, sparsemax or entmax:ALPHA without training.",
        MODEL,
        metavar="NAME",
        shown="the model's own; for the demo model entmax15",
    )
    thorough: bool = option(
        False,
        "Where they are not named: the paper's windows (0 and the odd numbers to 27), thresholds (0.5 to 5 in steps of "
        "0.5) and groups (even numbers from 2 to 20), four points of each curve on the task instead of two, and all of "
        f"bundled data instead of {SENTENCES} sentences and {EXAMPLES} examples.",
        _GRAPHS,
    )
    grid: ParameterGrid = field(default_factory=ParameterGrid)
    fit: FitOptions = field(default_factory=FitOptions)
    clusters: int | None = option(
        None,
        "Number of clusters (one of groups) in which parts of speech are counted.",
        **_METHODS,
        metavar="N",
        shown="8, or the closest value in groups",
    )
    metric: MetricOptions = field(default_factory=MetricOptions)
    batch_tokens: int = option(2048, common.BATCH_TOKENS)
    model_options: ModelOptions = field(default_factory=ModelOptions)
    shown: ShownOptions = field(default_factory=ShownOptions)
    figures: bool = option(True, common.FIGURES)
    place: OutputOptions = field(default_factory=OutputOptions)

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> SparsefinderRequest:
        """Returns the request for the values of options by name; what is not named is short unless it is thorough.

        Raises:
            OptionError: for a value that cannot be meant.
        """
        few = {**SHORT, "limit": SENTENCES} if values.get("corpus", DEMO) == DEMO else SHORT
        short = {} if values.get("thorough") else {n: v for n, v in few.items() if values.get(n) is None}
        return build(cls, {**values, **short})

    def __post_init__(self) -> None:
        from headlens.attention.normalizers import parse_normalizer

        super().__post_init__()
        if self.clusters is not None and self.clusters not in self.grid.groups:
            known = ", ".join(map(str, self.grid.groups))
            raise OptionError(
                f"--methods clusters {self.clusters} is not one of --methods groups.", f"Choose one of {known}."
            )
        if self.attention is not None and parse_normalizer(self.attention) is None:
            raise OptionError("softmax leaves no weight at exactly zero.", "Give --attention entmax15 or sparsemax.")

    def few_notes(self, *, bundled: bool, task: bool) -> list[str]:
        """What is only tried in part, whether somebody said so or nobody said more.

        Args:
            bundled: whether the examples of the task are a part of the bundled ones.
            task: whether there is a task, for which `points` are tried.
        """
        if self.thorough:
            return []
        names = [*self._short, *["points"] * (task and self.metric.points <= SHORT["points"])]
        of_data = bundled or (self.corpus == DEMO and self.corpus_options.limit == SENTENCES)
        return [_FEW_SIZES.format(names=", ".join(names))] * bool(names) + [_FEW_DATA] * of_data

    @property
    def coarse_grid(self) -> bool:
        """Whether recall is only measured at few points of methods."""
        return not self.thorough and bool(self._short)

    @property
    def _short(self) -> list[str]:
        """Names of the sizes of which no more are tried than where nothing is named."""
        tried = vars(self.grid)
        return [name for name, few in SHORT.items() if name in tried and len(tried[name]) <= len(few)]

    @property
    def examples(self) -> int | None:
        """Most examples of a task that was not named, from bundled data; None for all."""
        return None if self.thorough or self.metric.task != "auto" else EXAMPLES

    @property
    def counted_clusters(self) -> int:
        """Number of clusters for parts of speech: `--methods clusters`, or what is nearest to 8 in its `groups`."""
        return self.clusters or min(self.grid.groups, key=lambda count: abs(count - _CLUSTERS))


COMMAND = CommandOptions(
    "sparsefinder",
    (SparsefinderRequest,),
    "run_sparsefinder",
    SparsefinderRequest.from_options,
    first=("corpus", "parser", "dev", "attention", "task", "data", "device"),
)

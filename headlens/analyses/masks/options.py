"""The options of `headlens masks`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from headlens.attention_masks.mask_options import read_layers
from headlens.attention_masks.named_masks import (
    ImportanceShare,
    KeepOrder,
    LearnedDegrees,
    LearnedSpans,
    NamedMask,
    Removal,
    check_connections,
    parse_named_mask,
)
from headlens.errors import OptionError
from headlens.learning.hyperparameters import LoopOptions
from headlens.learning.training_options import TrainingSetOptions
from headlens.models.model_options import ModelOptions
from headlens.option_values import names, numbers, positive_shares
from headlens.options import (
    DEMO,
    MASK,
    Checked,
    CommandOptions,
    DeclaredOption,
    Option,
    build,
    declared_options,
    option,
)
from headlens.shared_options import ALSO_ON, FIGURES, MARGIN, PREDICTED, OutputOptions
from headlens.tasks.task_options import task_name

if TYPE_CHECKING:
    from headlens.attention_masks.patterns import Pattern

# Shares masked at n = 128 with and without the diagonal, in per cent, as printed: Shi et al. 2021, last table.
PAPER = {
    "strided": (70.4, 71.2),
    "fixed": (72.7, 73.4),
    "longformer": (88.7, 89.5),
    "logsparse": (89.8, 90.6),
    "bigbird": (93.2, 93.9),
    "star": (96.1, 96.9),
}
# Of these, those with the least, a middling and the largest share masked: trained under where nothing is named.
FEW = ("strided", "longformer", "star")
PAPER_LENGTH = 128
LONGEST = 2048
# What a grid calls the degrees, and what the pattern does.
KINDS = {"global": "tokens", "random": "keys", "neighbour": "window"}
_FORM = "Write a grid such as 'global=0,1 random=0,2 neighbour=1,3'."
STUDY = "Training under masks"  # panel of the help
_STRENGTHS: dict[str, Any] = {"panel": STUDY, "metavar": "NUMBERS", "parse": numbers, "at_least": 0}
_DEGREES: dict[str, Any] = {"panel": STUDY, "group": "law", "needs": "learn_degrees"}
_LAYERS: dict[str, Any] = {"panel": STUDY, "metavar": "LAYERS"}
_RULES: dict[str, Any] = {"panel": STUDY, "group": "mask-rules"}
_TASK = Option(
    "Train models under every pattern on this task: sst2, rte, mlm or any other of train.",
    STUDY,
    "NAME",
    parse=task_name,
    shown="none, only count and draw patterns",
)


@dataclass(frozen=True)
class DegreeOptions(Checked):
    """How degrees are learned: a training for each weight μ of the expected density.

    `degrees_of` says whether each of the heads has a distribution, or all heads of each of the layers share one.

    Raises:
        OptionError: if a number cannot be.
    """

    learn_degrees: tuple[float, ...] = option(
        (),
        "Learn how many neighbours every head needs, for these strengths μ of the penalty on open positions, such as "
        "0.1,1,10; --law degree-kinds learns other kinds of connections, too.",
        **_STRENGTHS,
    )
    largest_degree: int = option(16, "Largest degree that can be learned.", **_DEGREES, metavar="N", at_least=1)
    degrees_of: Literal["heads", "layers"] = option(
        "heads",
        "Whether each head has a degree of its own, or all heads of a layer share one.",
        **_DEGREES,
    )
    degree_kinds: tuple[str, ...] = option(
        LearnedDegrees.kinds,
        "Kinds of connections whose degrees are learned: neighbour, global, random, or several, comma-separated; "
        "each kind is penalised for the positions that it opens.",
        **_DEGREES,
        metavar="NAMES",
        parse=names,
    )
    draws: int = option(
        0,
        "Also evaluate the model under this many masks drawn from the learned degrees: shows how far one draw "
        "differs from another.",
        **_DEGREES,
        metavar="N",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_connections(self.degree_kinds)
        if self.draws < 0 or self.draws == 1:
            raise OptionError(f"--law draws {self.draws} is too few to tell how far draws differ.", "Give 2 or more.")

    @property
    def masks(self) -> tuple[LearnedDegrees, ...]:
        """The masks that are learned, one for every μ."""
        return tuple(LearnedDegrees(strength, self.degree_kinds) for strength in self.learn_degrees)


@dataclass(frozen=True)
class SpanOptions(Checked):
    """How adaptive attention spans are learned (Sukhbaatar et al. 2019): a training for each weight μ of the mean span.

    Raises:
        OptionError: if a number cannot be.
    """

    learn_spans: tuple[float, ...] = option(
        (),
        "Learn how far every head looks, its adaptive attention span, for these strengths μ of the penalty on the mean "
        "span as a share of the longest text, such as 0.1,1,10.",
        **_STRENGTHS,
    )
    span_ramp: int = option(
        LearnedSpans.ramp,
        "Tokens beyond a span over which weights fall to 0.",
        STUDY,
        metavar="N",
        group="law",
        at_least=1,
        needs="learn_spans",
    )

    @property
    def masks(self) -> tuple[LearnedSpans, ...]:
        """The masks that are learned, one for every μ."""
        return tuple(LearnedSpans(strength, self.span_ramp) for strength in self.learn_spans)


@dataclass(frozen=True)
class StudyRequest(Checked):
    """What is trained under masks.

    `gold` is no parser: graphs connect words of texts, and there are no trees. Seeds count from that of the training.

    Raises:
        OptionError: for no seed at all, or layers that cannot be read.
    """

    model: str = option(DEMO, "Checkpoint to train under the masks; needs --task.", "", metavar="MODEL", argument=True)
    mask: tuple[str, ...] = option(
        (),
        "A mask.safetensors to train under as well; such as a mask learned by train-dam; can be repeated.",
        STUDY,
        metavar="FILE",
    )
    keep: tuple[float, ...] = option(
        (),
        "For every --mask learned by train-dam: train under masks that keep these shares of the positions in every "
        "sentence and head, ranked by learned importance, such as 0.1,0.3, instead of the positions with P > 1/2.",
        **_RULES,
        metavar="SHARES",
        parse=positive_shares,
        shown="P > 1/2",
        needs="mask",
    )
    keep_order: tuple[KeepOrder, ...] = option(
        ("most",),
        "Which positions keep keeps first: the most important, the least important, or random ones; several, such as "
        "most,least,random, train one model each.",
        **_RULES,
        metavar="ORDERS",
        parse=names,
        needs="keep",
    )
    grid: str | None = option(
        None,
        "Also train under BigBird patterns of all these degrees, such as 'global=0,1 random=0,2 neighbour=1,3'; a "
        "regression estimates the effect of each kind.",
        STUDY,
        metavar="DEGREES",
    )
    graph: tuple[str, ...] = option(
        (),
        "Also train under a graph over the words of each text: syntax, lexical, neighbour or random; all with the same "
        "number of edges, or lexical:degree=4, lexical:nearest=2,vectors=spacy, lexical:threshold=0.5; can be "
        "repeated.",
        STUDY,
        metavar="GRAPH",
    )
    degrees: DegreeOptions = field(default_factory=DegreeOptions)
    spans: SpanOptions = field(default_factory=SpanOptions)
    parser: str = option(
        "gold",
        "Parser that provides words and trees for --graph: spacy:MODEL, stanza:LANG, stanza:LANG@DIR, or conllu:FILE.",
        STUDY,
        metavar="PARSER",
        shown="words only, no trees",
        needs="graph",
    )
    layers: tuple[str, ...] = option(
        (),
        "Layers in which the masks apply: 6-11, first:3, last:3, all; can be repeated, with one training run for each.",
        **_LAYERS,
        shown="all",
    )
    drop_attention: tuple[str, ...] = option(
        (),
        "Also train without any attention in these layers, such as last:3; the residual stream and the feed-forward "
        "network stay; can be repeated.",
        **_LAYERS,
    )
    drop_layers: tuple[str, ...] = option(
        (),
        "Also train with these layers removed altogether, such as last:3; can be repeated.",
        **_LAYERS,
    )
    zero_scores: bool = option(
        False,
        "Also train under each pattern, mask file and graph with M ⊙ QKᵀ taken literally: a masked score is 0, so "
        "its key still gets some weight; called zero:PATTERN.",
        **_RULES,
    )
    seeds: int = option(
        1, "Number of training runs of each, with seeds from --seed upwards.", STUDY, metavar="N", at_least=1
    )
    controls: bool = option(
        True,
        "Also train each without the diagonal, and full attention with the same number of random positions masked; "
        "where nothing is named to train under, only with --thorough.",
        STUDY,
        flags=("--controls/--no-controls",),
    )
    thorough: bool = option(
        False,
        "Where nothing is named to train under: all patterns of the SparseBERT paper instead of three, and the "
        "controls of --controls.",
        STUDY,
    )
    also_on: tuple[str, ...] = option((), ALSO_ON)
    predict: tuple[str, ...] = option((), PREDICTED, group="data-args", excludes="graph")
    margin: float | None = option(None, MARGIN)
    training_set: TrainingSetOptions = field(default_factory=TrainingSetOptions)
    training: LoopOptions = field(default_factory=lambda: LoopOptions(batch_tokens=512))
    model_options: ModelOptions = field(default_factory=ModelOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        from headlens.corpora.parsers import make_parser
        from headlens.corpora.word_graphs import parse_graph

        for flag, texts in ("--layers", self.layers), ("--drop-attention", self.drop_attention):
            for text in texts:
                read_layers(text, flag=flag)
        if any(read_layers(text, flag="--drop-layers") is None for text in self.drop_layers):
            raise OptionError("--drop-layers all leaves no model.", "Name some of its layers, such as last:3.")
        if self.grid is not None:
            parse_grid(self.grid)
        graphs = [parse_graph(text) for text in self.graph]
        kinds = [graph.kind for graph in graphs]
        if any(graph.vectors == "spacy" for graph in graphs) and not self.parser.startswith("spacy:"):
            raise OptionError(
                "--graph lexical:vectors=spacy: this needs a spaCy model.", "Name one: --parser spacy:en_core_web_md."
            )
        if "syntax" in kinds and self.parser == "gold":
            raise OptionError("--graph syntax needs dependency trees.", "Name a parser: --parser spacy:en_core_web_sm.")
        make_parser(self.parser, keep_words=False)
        for text in self.mask:
            parse_named_mask(text)

    @property
    def masks(self) -> tuple[NamedMask, ...]:
        """Masks of files that are trained under; with `keep` a part of each, for every order and share."""
        if not self.keep:
            return tuple(map(parse_named_mask, self.mask))
        return tuple(ImportanceShare(*parts) for parts in product(self.mask, self.keep_order, self.keep))

    @property
    def removed(self) -> tuple[tuple[Removal, str | None], ...]:
        """What is trained with something taken out of the model, and the layers that it is taken from; None for all."""
        attention = [None if text.strip() == "all" else text.strip() for text in self.drop_attention]
        layers = [text.strip() for text in self.drop_layers]
        return *((Removal("attention"), text) for text in attention), *((Removal("layers"), text) for text in layers)

    @property
    def names_cases(self) -> bool:
        """Whether anything but patterns is named that models are trained under, or without."""
        return bool(self.graph or self.mask or self.degrees.masks or self.spans.masks or self.removed)


@dataclass(frozen=True)
class MasksRequest(Checked):
    """What `headlens masks` is asked for: patterns, by default those of the SparseBERT paper, and what is trained.

    The table has patterns with and without the diagonal; `no_diagonal` is about the files that are written.

    Raises:
        OptionError: for a length out of range, a pattern that there is none, or no pattern whose file is asked for.
    """

    OVERRIDES: ClassVar[tuple[DeclaredOption, ...]] = (DeclaredOption("task", str | None, None, _TASK),)

    pattern: tuple[str, ...] = option(
        (),
        "A pattern such as 'window:3|global:1' or bigbird:keys=3; written to a file as well, can be repeated. The "
        "pattern full masks nothing: with --task, only the diagonal is tested.",
        MASK,
        metavar="PATTERN",
        shown="those of the SparseBERT paper, without files",
    )
    length: int = option(PAPER_LENGTH, "Length in tokens at which patterns are counted and drawn.", MASK, metavar="N")
    no_diagonal: bool = option(
        False, "Also mask the diagonal, so that no token attends to itself.", MASK, group="mask-rules", needs="pattern"
    )
    study: StudyRequest | None = None
    figures: bool = option(True, FIGURES)
    place: OutputOptions = field(default_factory=OutputOptions)

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> MasksRequest:
        """Returns the request for the values of options by name; models are trained where a task is named.

        Raises:
            OptionError: if something is said of trainings, and there is none.
        """
        if values.get("task") is not None:
            return build(cls, values, study=build(StudyRequest, values))
        for name, declared in declared_options(StudyRequest).items():
            if declared.option.panel != "Model" and values.get(name) not in (None, declared.default, [], MISSING):
                # Quoted, as it may be empty: `headlens masks "$MODEL"` of a variable that is not set.
                given = f"{declared.option.metavar} {values[name]!r}" if declared.option.argument else declared.flag
                raise OptionError(f"{given} only applies when models are trained under masks.", "Give --task as well.")
        return build(cls, values, study=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.length <= LONGEST:
            raise OptionError(f"--length {self.length} is out of range.", f"Give 1 to {LONGEST} tokens.")
        self.chosen()

    def chosen(self) -> dict[str, Pattern]:
        """The patterns that are counted, by name; those of the SparseBERT paper where no mask at all is named."""
        from headlens.attention_masks.patterns import parse_pattern

        grid = parse_grid(self.study.grid) if self.study is not None and self.study.grid is not None else ()
        others = self.study is not None and self.study.names_cases
        patterns = (*self.pattern, *grid) or (() if others else tuple(PAPER))
        return {text: parse_pattern(text) for text in map(str.strip, patterns)}


def parse_grid(text: str) -> tuple[str, ...]:
    """BigBird patterns with every combination of degrees.

    Args:
        text: such as `global=0,1 random=0,2 neighbour=1,3`; a kind that is not named has the degree 0.

    Raises:
        OptionError: if it cannot be read.
    """
    degrees: dict[str, tuple[int, ...]] = {}
    for part in text.replace(";", " ").split():
        kind, equals, values = part.partition("=")
        if kind not in KINDS or not equals:
            raise OptionError(f"--grid: {part!r} is not a degree.", f"{_FORM} Kinds: {', '.join(KINDS)}.")
        if kind in degrees:
            raise OptionError(f"--grid: {kind} is given twice.", _FORM)
        if not all(value.isdecimal() for value in values.split(",")):
            raise OptionError(f"--grid: {part!r} needs whole numbers of 0 or more.", _FORM)
        degrees[kind] = tuple(dict.fromkeys(map(int, values.split(","))))
    if not degrees:
        raise OptionError("--grid is empty.", _FORM)
    combined = product(*([f"{name}={n}" for n in degrees.get(kind, (0,))] for kind, name in KINDS.items()))
    return tuple("bigbird:" + ",".join(parts) for parts in combined)


COMMAND = CommandOptions(
    "masks",
    (MasksRequest,),
    "run_masks",
    MasksRequest.from_options,
    first=("task", "data", "text", "label", "mask", "pattern", "length", "grid", "graph", "learn_degrees"),
)

"""Options that several commands share, each with its help line and its group."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from .config import load_config, load_run

MODEL, CORPUS, STATISTICS, ROLES, RELEVANCE, OUTPUT = "Model", "Corpus", "Statistics", "Roles", "Relevance", "Output"
TRAINING = "Training"
TASK = "Task"
HEADS = "Heads"
MASK = "Attention mask"
PRUNING = "Pruning"
# All of headlens.tasks.catalogue, which takes seconds to import.
TaskName = Literal[
    "mlm",
    "translation",
    "sst2",
    "cola",
    "mrpc",
    "qqp",
    "stsb",
    "mnli",
    "mnli-mm",
    "qnli",
    "rte",
    "snli",
    "squad",
    "squad2",
    "swag",
    "similarity",
    "paraphrase",
    "translation-loss",
]


def share(given: str | float) -> float:
    """Read a number from 0 to 1; NaN, which compares with nothing, is none."""
    number = _number(given)
    if not 0 <= number <= 1:
        raise typer.BadParameter(f"{given} is not a number from 0 to 1.")
    return number


def amount(given: str | float) -> float:
    """Read a number of at least 0, and finite."""
    number = _number(given)
    if not 0 <= number < math.inf:
        raise typer.BadParameter(f"{given} is not a finite number of 0 or more.")
    return number


def _number(given: str | float) -> float:
    try:
        return float(given)
    except (TypeError, ValueError) as error:  # a TOML file may give anything
        raise typer.BadParameter(f"{given!r} is not a number.") from error


class Device(StrEnum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"


class DType(StrEnum):
    """Floating-point type of the model."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Level(StrEnum):
    """What attends to what."""

    token = "token"  # noqa: S105 - not a password
    word = "word"


ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="Hugging Face id, local folder, or 'demo' (MiniLM, embedded).")
]
DeviceOption = Annotated[Device, typer.Option(help="Where to compute; auto: CUDA, MPS, CPU.", rich_help_panel=MODEL)]
DTypeOption = Annotated[
    DType, typer.Option("--dtype", help="Type of the weights; auto: float32.", rich_help_panel=MODEL)
]
RevisionOption = Annotated[
    str | None, typer.Option(help="Branch, tag or commit on the hub.", show_default="main", rich_help_panel=MODEL)
]
OfflineOption = Annotated[bool, typer.Option("--offline", help="Never ask the hub.", rich_help_panel=MODEL)]
PickleOption = Annotated[
    bool,
    typer.Option(
        "--allow-pickle", help="Load checkpoints that are not safetensors; can run any code.", rich_help_panel=MODEL
    ),
]
RemoteCodeOption = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.", rich_help_panel=MODEL)
]
CorpusOption = Annotated[
    str,
    typer.Option(
        metavar="SOURCE",
        help="demo, FILE.conllu, FILE.txt, FILE.tsv|csv|jsonl (with --column), hub:NAME.",
        rich_help_panel=CORPUS,
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Translations, or second sentences of pairs, line by line.", rich_help_panel=CORPUS
    ),
]
ColumnOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Column with the sentences.", rich_help_panel=CORPUS)
]
TargetColumnOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Column with the translations, or second sentences.", rich_help_panel=CORPUS),
]
SplitOption = Annotated[str, typer.Option(metavar="NAME", help="Split of a hub data set.", rich_help_panel=CORPUS)]
ParserOption = Annotated[
    str,
    typer.Option(
        metavar="PARSER",
        help="Where trees come from: gold, spacy:MODEL, stanza:LANG or stanza:LANG@DIR.",
        rich_help_panel=CORPUS,
    ),
]
LimitOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Read only the first N sentences or examples.", rich_help_panel=CORPUS),
]
LongSentencesOption = Annotated[
    Literal["skip", "window"],
    typer.Option(
        help="Sentences longer than the model reads: leave them out, or cut them between words.", rich_help_panel=CORPUS
    ),
]
BatchTokensOption = Annotated[
    int, typer.Option(min=1, metavar="N", help="Tokens of a batch, padding included.", rich_help_panel=MODEL)
]
SweepTokensOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Tokens of a batch, padding included.",
        show_default="256 on a CPU, 8192 elsewhere",
        rich_help_panel=MODEL,
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Run folder.", show_default="runs/<command>-<model>-<time>", rich_help_panel=OUTPUT
    ),
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace the run in that folder.", rich_help_panel=OUTPUT)
]
ResumeOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Go on with the interrupted run in that folder, with the options it began with.",
        callback=load_run,
        is_eager=True,
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Take options from a TOML file, or from the run.json of a run to repeat it.",
        callback=load_config,
        is_eager=True,
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
FiguresOption = Annotated[
    bool,
    typer.Option(
        "--figures/--no-figures", help="Draw figures; `headlens report` can do so later.", rich_help_panel=OUTPUT
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the summary as JSON and nothing else.", rich_help_panel=OUTPUT)
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=OUTPUT)]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print only errors; files are written.", rich_help_panel=OUTPUT)
]

RelationsOption = Annotated[
    str,
    typer.Option(metavar="NAMES", help="Dependency relations, comma-separated UD names.", rich_help_panel=STATISTICS),
]
MarginOption = Annotated[
    float,
    typer.Option(
        parser=amount, metavar="NUMBER", help="By how much a syntactic head beats the baseline.", rich_help_panel=ROLES
    ),
]
MarginKindOption = Annotated[
    Literal["absolute", "relative"],
    typer.Option(help="Added to the baseline, or a share of it.", rich_help_panel=ROLES),
]
MinInstancesOption = Annotated[int, typer.Option(min=1, help="Rarer relations give no role.", rich_help_panel=ROLES)]
PositionalOption = Annotated[
    float,
    typer.Option(
        parser=share, metavar="0…1", help="Share of one offset that makes a head positional.", rich_help_panel=ROLES
    ),
]
DiagonalOption = Annotated[
    float, typer.Option(parser=share, metavar="0…1", help="Share of offset 0 for the role self.", rich_help_panel=ROLES)
]
RareOption = Annotated[
    float,
    typer.Option(
        parser=share, metavar="0…1", help="Share of words that point at the rarest one.", rich_help_panel=ROLES
    ),
]
SeparatorOption = Annotated[
    float,
    typer.Option(
        parser=share, metavar="0…1", help="Attention mass on separators and end of sentence.", rich_help_panel=ROLES
    ),
]
BroadOption = Annotated[
    float, typer.Option(parser=share, metavar="0…1", help="Normalised entropy of a broad head.", rich_help_panel=ROLES)
]
BaselineCorpusOption = Annotated[
    str | None,
    typer.Option(
        metavar="SOURCE",
        help="Where the baseline's word offsets are chosen.",
        show_default="the corpus itself",
        rich_help_panel=STATISTICS,
    ),
]
ExcludeSelfOption = Annotated[
    bool,
    typer.Option("--exclude-self", help="Syntax: look at the most attended other word.", rich_help_panel=STATISTICS),
]
LevelOption = Annotated[
    Level,
    typer.Option(help="What attends to what; syntax and rare words always compare words.", rich_help_panel=STATISTICS),
]
FrequencyOption = Annotated[
    str, typer.Option(metavar="LIST", help="wordfreq:LANG, corpus, FILE or none.", rich_help_panel=STATISTICS)
]
TargetFrequencyOption = Annotated[
    str, typer.Option(metavar="LIST", help="The same for the target side.", rich_help_panel=STATISTICS)
]
SimilarityOption = Annotated[
    Literal["sample", "all", "off"],
    typer.Option(help="Head distances from one query token a sentence, from all, or none.", rich_help_panel=STATISTICS),
]
KernelOption = Annotated[
    Literal["fast", "eager"],
    typer.Option(help="fast, or the model's own attention bit for bit, slower.", rich_help_panel=MODEL),
]
SeedOption = Annotated[
    int, typer.Option(min=0, max=2**32 - 1, help="Of everything that is drawn at random.", rich_help_panel=STATISTICS)
]
RuleOption = Annotated[
    Literal["epsilon", "attnlrp", "alpha-beta", "gradxact", "taylor"],
    typer.Option(help="How relevance is passed back; alpha-beta is slow.", rich_help_panel=RELEVANCE),
]
RelevanceTargetOption = Annotated[
    str,
    typer.Option(
        metavar="TARGET",
        help="Where relevance starts: auto, predicted, class:LABEL, masked, positions, similarity, embedding.",
        rich_help_panel=RELEVANCE,
    ),
]
MaskShareOption = Annotated[
    float, typer.Option(help="Share of the tokens that are masked, for masked.", rich_help_panel=RELEVANCE)
]
GuessedShareOption = Annotated[
    float, typer.Option(help="Share of the tokens that are to be guessed, for mlm.", rich_help_panel=TRAINING)
]
ReplicatesOption = Annotated[
    int, typer.Option(min=1, metavar="N", help="Bootstrap samples for intervals.", rich_help_panel=RELEVANCE)
]
BootstrapOption = Annotated[
    int, typer.Option(min=1, metavar="N", help="Bootstrap samples for intervals.", rich_help_panel=STATISTICS)
]
ModeOption = Annotated[
    Literal["zero", "mean", "uniform"],
    typer.Option(
        help="What a head's output is replaced by: 0, its mean over the data, or that of even attention.",
        rich_help_panel=HEADS,
    ),
]
KeepOnlyOption = Annotated[
    bool, typer.Option("--keep-only", help="Also: each head alone in its layer.", rich_help_panel=HEADS)
]
MetricOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Metric of the task.", show_default="its main one", rich_help_panel=TASK),
]
PruneOption = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBERS",
        help="Also prune so many heads at once: 3,10,20,30.",
        show_default="no pruning",
        rich_help_panel=PRUNING,
    ),
]
StrategiesOption = Annotated[
    str,
    typer.Option(
        metavar="NAMES",
        help="How heads are chosen: ranked, importance, importance-steps, greedy, beam, random; or all.",
        rich_help_panel=PRUNING,
    ),
]
BeamOption = Annotated[
    int, typer.Option(min=1, metavar="N", help="Sets of heads that a beam keeps.", rich_help_panel=PRUNING)
]
OrdersOption = Annotated[int, typer.Option(min=1, metavar="N", help="Random orders.", rich_help_panel=PRUNING)]
RankSplitOption = Annotated[
    float,
    typer.Option(
        parser=share,
        metavar="0…1",
        help="Share of the examples that heads are chosen on; the others are evaluated.",
        rich_help_panel=PRUNING,
    ),
]
TaskOption = Annotated[
    TaskName,
    typer.Option(
        metavar="NAME",
        help="mlm, translation, translation-loss, or a task with --data: sst2, cola, mrpc, qqp, stsb, mnli, mnli-mm, "
        "qnli, rte, snli, squad, squad2, swag, similarity, paraphrase.",
        rich_help_panel=TASK,
    ),
]
DataOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SOURCE",
        help="Examples with answers: FILE.tsv|csv|jsonl|json (also .gz) or hub:NAME; given twice, one after the other.",
        show_default="that of the task",
        rich_help_panel=TASK,
    ),
]
ColumnsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ROLE=NAME",
        help="Columns that are not called as in the task's data sets, comma-separated: text=review,label=stars.",
        show_default=False,
        rich_help_panel=TASK,
    ),
]
DataSplitOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Split of a hub data set.",
        show_default="train to train, else the task's",
        rich_help_panel=TASK,
    ),
]
VocabularyOption = Annotated[
    int, typer.Option(metavar="N", help="Pieces of a new model's own vocabulary.", rich_help_panel=TRAINING)
]
LongestOption = Annotated[
    int | None,
    typer.Option(
        min=4,
        metavar="N",
        help="Tokens of a block, of a side of a pair, or of an example.",
        show_default="128; of an example what the model reads",
        rich_help_panel=TRAINING,
    ),
]
SmoothingOption = Annotated[float, typer.Option(help="Label smoothing of translation.", rich_help_panel=TRAINING)]
BleuOption = Annotated[
    int,
    typer.Option(
        min=0, metavar="N", help="Held-out pairs to translate at the end, for BLEU and chrF.", rich_help_panel=TRAINING
    ),
]
DevShareOption = Annotated[
    float,
    typer.Option(
        help="Share of the text or data that is held out without --dev, --dev-data.", rich_help_panel=TRAINING
    ),
]
EpochsOption = Annotated[float, typer.Option(help="Passes over the corpus.", rich_help_panel=TRAINING)]
StepsOption = Annotated[
    int | None, typer.Option(metavar="N", help="Updates, instead of --epochs.", rich_help_panel=TRAINING)
]
AccumulateOption = Annotated[int, typer.Option(metavar="N", help="Batches of an update.", rich_help_panel=TRAINING)]
LearningRateOption = Annotated[float, typer.Option(help="The highest.", rich_help_panel=TRAINING)]
WarmupOption = Annotated[
    float, typer.Option(help="Updates until then; below 1 a share of all.", rich_help_panel=TRAINING)
]
ScheduleOption = Annotated[
    Literal["linear", "constant", "inverse-sqrt"], typer.Option(help="What follows.", rich_help_panel=TRAINING)
]
WeightDecayOption = Annotated[float, typer.Option(help="Of AdamW, on matrices.", rich_help_panel=TRAINING)]
ClipOption = Annotated[float, typer.Option(help="Largest norm of a gradient; 0: any.", rich_help_panel=TRAINING)]
PrecisionOption = Annotated[
    Literal["no", "bf16", "fp16"], typer.Option(help="Type of the forward pass.", rich_help_panel=TRAINING)
]
LogEveryOption = Annotated[int, typer.Option(metavar="N", help="Updates per row of log.csv.", rich_help_panel=TRAINING)]
EvaluateEveryOption = Annotated[
    int, typer.Option(metavar="N", help="Updates between evaluations; 0: every epoch.", rich_help_panel=TRAINING)
]
PatienceOption = Annotated[
    int,
    typer.Option(
        metavar="N", help="Evaluations without a better one before the end; 0: any.", rich_help_panel=TRAINING
    ),
]
HeadsOption = Annotated[
    str | None,
    typer.Option(
        metavar="HEADS",
        help="Heads to cut out, comma-separated: STACK.LAYER.HEAD, from 0.",
        show_default=False,
        rich_help_panel=HEADS,
    ),
]
HeadsFileOption = Annotated[
    Path | None,
    typer.Option(
        "--from",
        "--from-file",
        metavar="FILE",
        help="Where they are listed: a pruning.csv, a table with a column 'removed', or a plain list.",
        show_default=False,
        rich_help_panel=HEADS,
    ),
]
WhereOption = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN=VALUE",
        help="Which rows of that table, comma-separated: strategy=greedy,n_pruned=10.",
        show_default=False,
        rich_help_panel=HEADS,
    ),
]
StockOption = Annotated[
    bool,
    typer.Option(
        "--stock",
        help="Keep the shape, with zeros for the heads, so that from_pretrained reads it.",
        rich_help_panel=OUTPUT,
    ),
]
RoundsOption = Annotated[
    int, typer.Option(min=2, metavar="N", help="How often the corpus is run to time it.", rich_help_panel=STATISTICS)
]

MaskOption = Annotated[
    str | None,
    typer.Option(
        metavar="MASK",
        help="Where queries may look: a mask.safetensors or its folder, or a pattern such as 'window:3|global:1', "
        "strided, star.",
        show_default="everywhere",
        rich_help_panel=MASK,
    ),
]
MaskLayersOption = Annotated[
    str | None,
    typer.Option(
        metavar="LAYERS",
        help="Layers in which the mask holds: 6-11, or 0,2,4-6.",
        show_default="all",
        rich_help_panel=MASK,
    ),
]
NoDiagonalOption = Annotated[
    bool, typer.Option("--no-diagonal", help="No token looks at itself.", rich_help_panel=MASK)
]
DropRandomOption = Annotated[
    bool,
    typer.Option(
        "--drop-random",
        help="The control: as many random positions as the diagonal has are masked instead.",
        rich_help_panel=MASK,
    ),
]
MaskSeedOption = Annotated[int, typer.Option(min=0, help="Of the positions of --drop-random.", rich_help_panel=MASK)]
DevOption = Annotated[
    str | None,
    typer.Option(
        metavar="SOURCE",
        help="Text that the model is evaluated on.",
        show_default="a part of the corpus",
        rich_help_panel=CORPUS,
    ),
]
DevTargetOption = Annotated[
    str | None, typer.Option(metavar="FILE", help="Translations of --dev.", rich_help_panel=CORPUS)
]
DevDataOption = Annotated[
    str | None,
    typer.Option(
        metavar="SOURCE",
        help="Examples that the model is evaluated on.",
        show_default="a part of the data",
        rich_help_panel=TASK,
    ),
]


def rules(text: str) -> tuple[Any, ...]:
    """Rules of a comma-separated option; none for `none`."""
    return () if text.strip() == "none" else names(text)


def names(text: str) -> tuple[str, ...]:
    """Split a comma-separated option."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def whole_numbers(option: str, text: str | int | None) -> tuple[int, ...]:
    """Split a comma-separated option into whole numbers; a single one may come from a file as a number."""
    try:
        return tuple(int(part) for part in names("" if text is None else str(text)))
    except ValueError as error:
        raise typer.BadParameter(f"{option} {text!r} is no list of whole numbers. Write 3,10,20,30.") from error

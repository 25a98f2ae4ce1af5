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
    """Device that the model runs on; `auto` leaves the choice to headlens."""

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
    """Unit of queries and keys in attention maps: subword tokens, or whole words."""

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
        help="Where trees come from: gold, spacy:MODEL, stanza:LANG, stanza:LANG@DIR, or conllu:FILE by text.",
        rich_help_panel=CORPUS,
    ),
]
LimitOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Read only the first N sentences or examples.", rich_help_panel=CORPUS),
]
MinWordsOption = Annotated[
    int,
    typer.Option(
        min=0, metavar="N", help="Leave out examples of fewer words, all texts together.", rich_help_panel=CORPUS
    ),
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
DryRunOption = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Write nothing: tell what would be done, how large it is, and about how much time and memory it takes.",
        rich_help_panel=OUTPUT,
    ),
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=OUTPUT)]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print only errors; files are written.", rich_help_panel=OUTPUT)
]

# Runs that differ in their seed alone are asked the same.
SEED_HELP = "Of everything that is drawn at random, but for the words that are masked to measure."
SeedOption = Annotated[int, typer.Option(min=0, max=2**32 - 1, help=SEED_HELP, rich_help_panel=STATISTICS)]


def parse_rules(text: str) -> tuple[Any, ...]:
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

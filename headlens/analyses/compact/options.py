"""The options of `headlens compact`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headlens.corpora.corpus_options import CorpusOptions
from headlens.models.model_options import ModelOptions
from headlens.option_values import names
from headlens.options import CORPUS, DEMO, HEADS, OUTPUT, STATISTICS, Checked, CommandOptions, option
from headlens.shared_options import BATCH_TOKENS, CORPUS_SOURCE, MODEL_NAME, OutputOptions

Shape = Literal["auto", "even", "groups", "uneven"]


@dataclass(frozen=True)
class MeasureOptions:
    """How outputs and times of the model before and after are compared."""

    batch_tokens: int = option(2048, BATCH_TOKENS)
    rounds: int = option(7, "Number of timed passes over the corpus.", STATISTICS, metavar="N", at_least=2)
    data: tuple[str, ...] = option(
        (),
        "Text on which the loss and the perplexity of a decoder are measured: FILE.txt|tsv|csv|jsonl or hub:NAME.",
        CORPUS,
        metavar="SOURCE",
        shown="the bundled sentences",
    )


@dataclass(frozen=True)
class CompactRequest(Checked):
    """What `headlens compact` is asked for.

    Heads have the numbers of the original model; one that was compacted before may lose more heads.
    """

    model: str = option(DEMO, MODEL_NAME)
    heads: tuple[str, ...] = option(
        (),
        "Heads to cut out, comma-separated: STACK.LAYER.HEAD, counted from 0.",
        HEADS,
        metavar="HEADS",
        parse=names,
        shown="",
        excludes="from_file",
    )
    from_file: Path | None = option(
        None,
        "File that lists the heads to cut out: a pruning.csv, a table with a column 'removed', or a plain list.",
        HEADS,
        metavar="FILE",
        flags=("--from", "--from-file"),
        shown="",
    )
    where: tuple[str, ...] = option(
        (),
        "Row to use in the table of --from, as comma-separated conditions: strategy=greedy,n_pruned=10; can be "
        "repeated.",
        HEADS,
        metavar="COLUMN=VALUE",
        shown="",
        needs="from_file",
    )
    remove: int | None = option(
        None,
        "How many heads to cut, the least important of the ranking in --from: an ablation.csv, another table with a "
        "row for each head, or a plain list in that order.",
        HEADS,
        metavar="N",
        at_least=1,
        shown="",
        needs="from_file",
    )
    by: str | None = option(
        None,
        "Column of --from by which heads are ranked; the smallest go first.",
        HEADS,
        metavar="COLUMN",
        shown="what the metric loses without the head",
        needs="remove",
    )
    shape: Shape = option(
        "auto",
        "even: as many heads of every group that shares keys, in every layer, so that plain from_pretrained loads the "
        "model; groups: whole groups, as many in every layer; uneven: any heads.",
        HEADS,
        shown="even for --remove where heads share keys; else as the heads are",
    )
    rescale: bool = option(
        False,
        "Multiply what is left of each layer by the factor that brings it nearest, in least squares over --corpus, to "
        "what the whole layer gives.",
        OUTPUT,
    )
    stock: bool = option(
        False,
        "Keep the original shape, with zeros in place of the heads, so that plain from_pretrained can load it.",
        OUTPUT,
    )
    corpus: str = option(DEMO, CORPUS_SOURCE)
    corpus_options: CorpusOptions = field(default_factory=lambda: CorpusOptions(limit=200))
    measure: MeasureOptions = field(default_factory=MeasureOptions)
    model_options: ModelOptions = field(default_factory=ModelOptions)
    place: OutputOptions = field(default_factory=OutputOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "where", names(",".join(self.where)))


COMMAND = CommandOptions(
    "compact",
    (CompactRequest,),
    "run_compact",
    first=(
        *("heads", "from_file", "where", "remove", "by", "shape", "rescale", "stock"),
        *("corpus", "data", "limit", "rounds", "device"),
    ),
)

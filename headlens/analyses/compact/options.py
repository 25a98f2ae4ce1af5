"""The options of `headlens compact`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from headlens.corpora.corpus_options import CorpusOptions
from headlens.models.model_options import ModelOptions
from headlens.option_values import names
from headlens.options import DEMO, HEADS, OUTPUT, STATISTICS, Checked, CommandOptions, option
from headlens.shared_options import BATCH_TOKENS, CORPUS_SOURCE, MODEL_NAME, OutputOptions


@dataclass(frozen=True)
class MeasureOptions:
    """How outputs and times of the model before and after are compared."""

    batch_tokens: int = option(2048, BATCH_TOKENS)
    rounds: int = option(7, "Number of timed passes over the corpus.", STATISTICS, metavar="N", at_least=2)


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
    first=("heads", "from_file", "where", "stock", "corpus", "limit", "rounds", "device"),
)

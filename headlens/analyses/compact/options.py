"""The options of `headlens compact`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headlens.corpora.corpus_options import CorpusOptions
from headlens.errors import OptionError
from headlens.models.model_options import ModelOptions
from headlens.option_values import names
from headlens.options import DEMO, HEADS, OUTPUT, STATISTICS, Checked, CommandOptions, option
from headlens.shared_options import BATCH_TOKENS, CORPUS_SOURCE, MODEL_NAME, OutputOptions

Shape = Literal["auto", "even", "groups", "uneven"]
_DIGITS = 9  # of a number of heads


@dataclass(frozen=True)
class MeasureOptions:
    """How outputs and times of the model before and after are compared."""

    batch_tokens: int = option(2048, BATCH_TOKENS, group="data-args")
    rounds: int = option(
        7, "Number of timed passes over the corpus.", STATISTICS, metavar="N", at_least=2, group="data-args"
    )


@dataclass(frozen=True)
class CompactRequest(Checked):
    """What `headlens compact` is asked for.

    Heads have the numbers of the original model; one that was compacted before may lose more heads.
    """

    model: str = option(DEMO, MODEL_NAME)
    heads: tuple[str, ...] = option(
        (),
        "Heads to cut out: STACK.LAYER.HEAD,…, or how many of a ranking in --from.",
        HEADS,
        metavar="HEADS",
        parse=names,
        shown="",
    )
    from_file: Path | None = option(
        None,
        "Run folder or file with the heads (pruning.csv, a list), or for --heads N a ranking (ablation.csv); the least "
        "important head of a list that is a ranking stands first.",
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
    rank_by: str | None = option(
        None,
        "Column of --from that ranks heads, the smallest number first.",
        HEADS,
        metavar="COLUMN",
        shown="what the metric loses without the head",
        group="strategy-args",
    )
    shape: Shape = option(
        "auto",
        "even: as many heads out of every group that shares keys, in every layer, so that plain from_pretrained loads "
        "the model; groups: whole groups, as many in every layer; uneven: any heads; auto: even for a ranking where "
        "heads share keys, else as the heads are.",
        HEADS,
        group="strategy-args",
    )
    rescale: bool = option(
        False,
        "Multiply what is left of each layer by one number, fitted to what the whole layer gives on half of --corpus.",
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
        if self.heads and self.from_file is not None and self.remove is None:
            raise OptionError(
                "--heads and --from cannot be combined.", "Give one of them, or with a ranking in --from --heads N."
            )
        if self.remove is not None and self.from_file is None:
            raise OptionError(
                f"--heads {self.remove} is a number of heads, but none are ranked.", "Name a ranking with --from."
            )
        if self.rank_by is not None and self.remove is None:
            raise OptionError(
                "--strategy-args rank-by is for a ranking.", "Say how many of its heads to cut out with --heads N."
            )

    @property
    def remove(self) -> int | None:
        """How many heads of a ranking go; None where they are listed by name."""
        only = self.heads[0] if len(self.heads) == 1 else ""
        return int(only) if only.isdecimal() and len(only) < _DIGITS else None


COMMAND = CommandOptions(
    "compact",
    (CompactRequest,),
    "run_compact",
    first=(
        *("heads", "from_file", "where", "rescale", "stock"),
        *("corpus", "limit", "device"),
    ),
)

"""The options of `headlens classify`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from headlens import shared_options
from headlens.attention_masks.mask_options import MaskOptions
from headlens.corpora.corpus_options import CorpusOptions
from headlens.errors import OptionError
from headlens.models.model_options import ModelOptions
from headlens.models.names import in_training_order
from headlens.option_values import names
from headlens.options import (
    CIRCUITS_PROBE,
    CORPUS,
    DEMO,
    PROBE_NAMES,
    RELEVANCE,
    ROLES,
    STATISTICS,
    CommandOptions,
    option,
)
from headlens.relevance_propagation.relevance_options import RelevanceOptions
from headlens.roles.role_options import ClassifyOptions
from headlens.shared_options import OutputOptions

_BASELINE = "Corpus from which the offsets of the baseline are taken."
_ALIGNMENTS = "Gold word alignments, one line per pair: 0-0 1-2, possible links 1?2 or 1p2 (Pharaoh format)."
_SHARD = "Read only one part of the sentences, such as 2/5, and keep its sums for --merge."
_MERGE = (
    "Run folder of one part (--shard); give the option once per part: their sums are added up, and no text is read."
)


@dataclass(frozen=True)
class ClassifyRequest:
    """What `headlens classify` is asked for.

    Relevance is measured in a pass of its own. The syntactic baseline is chosen on the corpus itself where no
    `baseline_corpus` is named.
    """

    models: tuple[str, ...] = option((DEMO,), shared_options.SEVERAL_MODELS)
    corpus: str = option(DEMO, shared_options.CORPUS_SOURCE)
    corpus_options: CorpusOptions = field(default_factory=CorpusOptions)
    parser: str = option("gold", shared_options.PARSER)
    frequency: str = option("wordfreq:en", shared_options.FREQUENCY)
    target_frequency: str = option(
        "none", "Word frequencies for the target side.", STATISTICS, metavar="LIST", group="data-args"
    )
    baseline_corpus: str | None = option(
        None, _BASELINE, STATISTICS, metavar="SOURCE", shown="the corpus itself", group="data-args"
    )
    alignments: str | None = option(None, _ALIGNMENTS, CORPUS, metavar="FILE", shown="")
    shard: str | None = option(None, _SHARD, CORPUS, metavar="I/N", shown="all")
    merge: tuple[Path, ...] = option((), _MERGE, CORPUS, metavar="DIR")
    options: ClassifyOptions = field(default_factory=ClassifyOptions)
    probes: tuple[str, ...] = option(
        (),
        f"Also measure roles on prompts made for them, each with two controls: {', '.join(PROBE_NAMES)}; or "
        f"{CIRCUITS_PROBE}: what the weights of heads copy, read and write.",
        ROLES,
        metavar="NAMES",
        parse=names,
        shown="none",
    )
    relevance: bool = option(False, "Also measure the relevance of heads.", RELEVANCE)
    relevance_options: RelevanceOptions = field(default_factory=RelevanceOptions)
    mask: MaskOptions = field(default_factory=MaskOptions)
    model_options: ModelOptions = field(default_factory=ModelOptions)
    figures: bool = option(True, shared_options.FIGURES)
    place: OutputOptions = field(default_factory=OutputOptions)

    def __post_init__(self) -> None:
        known = (*PROBE_NAMES, CIRCUITS_PROBE)
        if unknown := [name for name in self.probes if name not in known]:
            raise OptionError(f"--probes {unknown[0]}: unknown.", f"Choose from {', '.join(known)}.")
        if self.mask.given and (on_prompts := [name for name in self.probes if name != CIRCUITS_PROBE]):
            raise OptionError(
                f"--probes {on_prompts[0]} does not go with a mask, which may close the very places that heads are "
                "compared with, and changes what even attention gives.",
                f"Leave out --mask, or --probes but for {CIRCUITS_PROBE}, which reads the weights alone.",
            )
        if not self.models:
            raise OptionError("No model was given.", "Give one, or several to compare.")
        object.__setattr__(self, "models", in_training_order(self.models))
        if self.alignments is not None and self.parser not in ("gold", "none"):
            raise OptionError(
                f"--alignments and --parser {self.parser}: the parser's words may differ from those that the links "
                "count.",
                "Give trees as a treebank (--corpus FILE.conllu), or leave one of the two out.",
            )


_FIRST = ("corpus", "target", "column", "limit", "parser", "frequency", "relations", "relevance", "mask", "device")
COMMAND = CommandOptions("classify", (ClassifyRequest,), "run_classify", first=_FIRST)

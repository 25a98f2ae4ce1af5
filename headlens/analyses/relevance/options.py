"""The options of `headlens relevance`."""

from __future__ import annotations

from dataclasses import dataclass, field

from headlens.attention_masks.mask_options import MaskOptions
from headlens.corpora.corpus_options import CorpusOptions
from headlens.models.model_options import ModelOptions
from headlens.option_values import names_or_none
from headlens.options import DEMO, RELEVANCE, CommandOptions, option
from headlens.relevance_propagation.relevance_options import ReadingOptions, RelevanceOptions, Rule
from headlens.shared_options import (
    CORPUS_SOURCE,
    FIGURES,
    MODEL_NAME,
    OutputOptions,
)


@dataclass(frozen=True)
class RelevanceRequest:
    """What `headlens relevance` is asked for."""

    model: str = option(DEMO, MODEL_NAME)
    corpus: str = option(DEMO, CORPUS_SOURCE)
    corpus_options: CorpusOptions = field(default_factory=CorpusOptions)
    reading: ReadingOptions = field(default_factory=ReadingOptions)
    options: RelevanceOptions = field(default_factory=RelevanceOptions)
    compare: tuple[Rule, ...] = option(
        ("taylor",),
        "Further rules to compare the ranking of heads with, comma-separated, or none.",
        RELEVANCE,
        metavar="RULES",
        parse=names_or_none,
    )
    mask: MaskOptions = field(default_factory=MaskOptions)
    model_options: ModelOptions = field(default_factory=ModelOptions)
    figures: bool = option(True, FIGURES)
    place: OutputOptions = field(default_factory=OutputOptions)


COMMAND = CommandOptions(
    "relevance",
    (RelevanceRequest,),
    "run_relevance",
    first=("corpus", "target", "limit", "rule", "relevance_target", "compare", "mask", "device"),
)

"""The options of `headlens relevance`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from headlens.corpora.corpus_options import CorpusOptions, LongSentences
from headlens.errors import OptionError
from headlens.models.model_options import ModelOptions
from headlens.option_values import names_or_none
from headlens.options import DEMO, RELEVANCE, CommandOptions, option
from headlens.runs.mask_options import MaskOptions
from headlens.runs.output_options import OutputOptions
from headlens.shared_options import (
    BATCH_TOKENS,
    BATCH_TOKENS_SHOWN,
    CORPUS_SOURCE,
    FIGURES,
    LONG_SENTENCES,
    MODEL_NAME,
    SEED,
)

Rule = Literal["epsilon", "attnlrp", "alpha-beta", "gradxact", "taylor"]
RULES: tuple[Rule, ...] = get_args(Rule)


@dataclass(frozen=True)
class RelevanceOptions:
    """The rule by which relevance is passed back, see `RelevanceSession`, and where it starts, see `choose_target`.

    Raises:
        OptionError: if there is no such rule, or a number is out of range.
    """

    rule: Rule = option("epsilon", "Rule for propagating relevance; alpha-beta is slow.", RELEVANCE)
    relevance_target: str = option(
        "auto",
        "Target at which relevance starts: auto, predicted, class:LABEL, masked, positions, similarity, embedding.",
        RELEVANCE,
        metavar="TARGET",
    )
    mask_share: float = option(0.15, "Share of tokens to mask, for the target masked.", RELEVANCE)
    replicates: int = option(1000, "Bootstrap samples for intervals.", RELEVANCE, metavar="N", at_least=1)

    def __post_init__(self) -> None:
        check_rules("--rule", (self.rule,))
        if self.replicates < 1:
            raise OptionError(f"--replicates {self.replicates} is not a positive number.", "1000 is usual.")


@dataclass(frozen=True)
class ReadingOptions:
    """How a corpus goes through the model; the seed is that of masking and of the bootstrap."""

    batch_tokens: int | None = option(None, BATCH_TOKENS, shown=BATCH_TOKENS_SHOWN)
    seed: int = option(0, SEED)
    long_sentences: LongSentences = option("skip", LONG_SENTENCES)


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


def check_rules(name: str, rules: tuple[str, ...]) -> None:
    """Refuse what is no rule.

    Raises:
        OptionError: naming the rules there are.
    """
    for rule in rules:
        if rule not in RULES:
            raise OptionError(f"{name} {rule} is not a rule.", f"Rules: {', '.join(RULES)}.")


COMMAND = CommandOptions(
    "relevance",
    (RelevanceRequest,),
    "run_relevance",
    first=("corpus", "target", "limit", "rule", "relevance_target", "replicates", "compare", "mask", "device"),
)

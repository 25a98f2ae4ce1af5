"""The options of relevance: its rule, where it starts, and how a corpus is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from headlens.corpora.corpus_options import LongSentences
from headlens.errors import OptionError
from headlens.options import FEWEST_REPLICATES, RELEVANCE, Checked, option
from headlens.shared_options import (
    BATCH_TOKENS,
    BATCH_TOKENS_SHOWN,
    LONG_SENTENCES,
    SEED,
)

Rule = Literal["epsilon", "attnlrp", "alpha-beta", "gradxact", "taylor", "logit-attribution"]
RULES: tuple[Rule, ...] = get_args(Rule)


@dataclass(frozen=True)
class RelevanceOptions(Checked):
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
    mask_share: float = option(0.15, "Share of tokens to mask, for the target masked.", RELEVANCE, command_line=False)
    replicates: int = option(
        1000, "Bootstrap samples for intervals.", RELEVANCE, metavar="N", at_least=FEWEST_REPLICATES
    )


@dataclass(frozen=True)
class ReadingOptions:
    """How a corpus goes through the model; the seed is that of masking and of the bootstrap."""

    batch_tokens: int | None = option(None, BATCH_TOKENS, shown=BATCH_TOKENS_SHOWN)
    seed: int = option(0, SEED)
    long_sentences: LongSentences = option("skip", LONG_SENTENCES)


def check_rules(name: str, rules: tuple[str, ...]) -> None:
    """Refuse what is no rule.

    Raises:
        OptionError: naming the rules there are.
    """
    for rule in rules:
        if rule not in RULES:
            raise OptionError(f"{name} {rule} is not a rule.", f"Rules: {', '.join(RULES)}.")

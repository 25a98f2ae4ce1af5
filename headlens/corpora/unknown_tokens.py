"""How much of a text is unknown to a tokenizer: told from 1 % on, and refused where most of it is."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from headlens.errors import CorpusError
from headlens.languages import case_note

TOLD = 0.01  # share of unknown tokens from which a note tells of them
_EARLY = 5000  # tokens after which text that is nearly all unknown is refused at once
_NEARLY_ALL = 0.9


@dataclass
class UnknownTokens:
    """Counts of the tokens of a text.

    Args:
        tokens: tokens that stand for text.
        unknown: how many of these are the unknown token of the vocabulary.
    """

    tokens: int = 0
    unknown: int = 0

    def add(self, ids: Iterable[int], unknown_id: int | None, special: Collection[int]) -> None:
        """Counts the tokens of one sequence; `special` ids stand for no text."""
        text = [i for i in ids if i not in special]
        self.tokens += len(text)
        self.unknown += 0 if unknown_id is None else text.count(unknown_id)

    def notes(self, tokenizer: PreTrainedTokenizerBase) -> list[str]:
        """Returns what the reader of a table should know: one note where a hundredth or more is unknown."""
        if not self.unknown or self.unknown < TOLD * self.tokens:
            return []
        told = f"{self._told('the text')} unknown to the model's tokenizer, which maps all of them to the same token."
        return [f"{told} {case_note(tokenizer)}".strip()]

    def check(self, allowed: float, name: str, tokenizer: PreTrainedTokenizerBase, *, complete: bool = True) -> None:
        """Refuses text of which too much is unknown.

        Args:
            allowed: share from which on it is refused; 1 refuses nothing.
            name: name of the text.
            tokenizer: what read it; the error tells if it writes other letters than its vocabulary has.
            complete: whether it was read to its end; before that only what is nearly all unknown is refused.

        Raises:
            CorpusError: with the share, and what to do.
        """
        limit = allowed if complete else max(allowed, _NEARLY_ALL)
        enough = self.tokens >= (1 if complete else _EARLY)
        if allowed < 1 and enough and self.unknown and self.unknown >= limit * self.tokens:
            raise CorpusError(
                f"{self._told(name)} unknown to the model's tokenizer: it cannot read this text.",
                (case_note(tokenizer) or "Give text in the language and script of the model.")
                + " --max-unknown 1 measures it anyway.",
            )

    def _told(self, name: str) -> str:
        share = self.unknown / self.tokens
        return f"{share:.1%} of the tokens of {name} ({self.unknown:,} of {self.tokens:,}) are"

"""Options of reading a corpus."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from headlens.options import option
from headlens.shared_options import CHAT, LIMIT, SENTENCE_COLUMN, SKIP_BROKEN, SPLIT, TARGET_COLUMN, TARGET_FILE

LongSentences = Literal["skip", "window"]


@dataclass(frozen=True)
class CorpusOptions:
    """Translations, columns, split and limit of a corpus; `offline`, an option of the model, holds for it, too."""

    target: str | None = option(None, TARGET_FILE)
    column: str | None = option(None, SENTENCE_COLUMN)
    target_column: str | None = option(None, TARGET_COLUMN)
    split: str = option("test", SPLIT)
    limit: int | None = option(None, LIMIT)
    skip_broken: bool = option(False, SKIP_BROKEN)
    offline: bool = False
    chat: str | None = option(None, CHAT)

    def held_out(self, target: str | None) -> CorpusOptions:
        """Returns the options of a held-out corpus, which is read alike, but all of it.

        Args:
            target: translations of the held-out corpus.
        """
        return replace(self, target=target, limit=None)

"""The options of reading a corpus."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from headlens.options import LIMIT, SENTENCE_COLUMN, SPLIT, TARGET_COLUMN, TARGET_FILE, option

LongSentences = Literal["skip", "window"]


@dataclass(frozen=True)
class CorpusOptions:
    """Translations, columns, split and limit of a corpus; `offline`, an option of the model, holds for it, too."""

    target: str | None = option(None, TARGET_FILE)
    column: str | None = option(None, SENTENCE_COLUMN)
    target_column: str | None = option(None, TARGET_COLUMN)
    split: str = option("test", SPLIT)
    limit: int | None = option(None, LIMIT)
    offline: bool = False

    def held_out(self, target: str | None) -> CorpusOptions:
        """How text of its own that is measured on is read: alike, and all of it.

        Args:
            target: its translations.
        """
        return replace(self, target=target, limit=None)

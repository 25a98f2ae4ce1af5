"""Plain text: one sentence a line, and the splitter that finds words where no parser does."""

from __future__ import annotations

import logging
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from headlens.corpora.sentence import Example, Sentence, Word
from headlens.corpora.text_files import file_stem, open_text
from headlens.errors import OptionError, counted

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TextCorpus:
    """A UTF-8 file (also `.gz`) with one sentence a line; blank lines are skipped.

    Words are those of `split_words`, without trees. A sentence's id is its line number.
    """

    path: str | Path

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return file_stem(self.path)

    def __iter__(self) -> Iterator[Example]:
        """Read from the start; errors as in `open_text`."""
        return (Example(row) for row in self.rows() if row.words)

    def rows(self) -> Iterator[Sentence]:
        """Every line, blank ones too (as sentences without words), so that two files stay in step."""
        return (plain_sentence(line.text, str(line.number)) for line in open_text(self.path))


def plain_sentence(text: str, identifier: str) -> Sentence:
    """A sentence of raw text with the words of `split_words`.

    Control characters count as spaces, runs of white space become one space, the ends are trimmed.
    """
    text = " ".join(_controls().sub(" ", text).split())
    return Sentence(text, tuple(split_words(text)), identifier)


def split_words(text: str) -> Iterator[Word]:
    """Words and punctuation of a text, with their spans and without a tree.

    Letters, digits and combining marks of any script make a word, together with single apostrophes and hyphens
    inside it ("don't", "well-known"), points and commas between digits ("1,000.5") and the invisible joiners of
    Persian or Indic scripts. Any other character that is not white space is a word of its own, a run of the
    same one ("...", "--") a single word. Scripts that write no spaces between words (Chinese, Thai) are not
    split: use a parser for them.
    """
    return (Word(match[0], match.start(), match.end()) for match in _word_pattern().finditer(text))


def full_examples(pairs: Iterable[tuple[Sentence, Sentence | None]], name: str) -> Iterator[Example]:
    """Examples from rows of a file, without the blank ones.

    A pair with one empty side is no translation: it is skipped, and how many there were is logged at the end.
    """
    skipped = 0
    for source, target in pairs:
        if source.words and (target is None or target.words):
            yield Example(source, target)
        elif target is not None and (source.words or target.words):
            skipped += 1
    if skipped:
        logger.warning("%s: skipped %s of which one side is empty", name, counted(skipped, "pair"))


@cache
def _controls() -> re.Pattern[str]:
    return re.compile(_character_class("Cc"))


@cache
def _word_pattern() -> re.Pattern[str]:
    letter = rf"(?:[^\W_]|{_character_class('Mn', 'Mc', 'Me')}|[\u200c\u200d\u00ad])"
    inner = r"(?:['’\-\u2010\u2011]|(?<=\d)[.,](?=\d))"
    return re.compile(rf"[^\W_]{letter}*(?:{inner}[^\W_]{letter}*)*|(\S)\1*")


def _character_class(*categories: str) -> str:
    """A regular expression's class of all characters of these Unicode categories; `re` itself knows none."""
    codes = [c for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c)) in categories]
    return "[" + "".join(f"\\U{c:08x}" for c in codes) + "]"


def given_examples(texts: Sequence[str], translations: Sequence[str] = ()) -> list[Example]:
    """Given sentences, with or without their translations; they have words, but no trees.

    Raises:
        OptionError: if a sentence has no words or the numbers of sentences and translations differ.
    """
    if translations and len(translations) != len(texts):
        raise OptionError(
            f"--target-text: {len(translations)} translations for {len(texts)} sentences.",
            "Give one translation for each sentence.",
        )
    sources = [plain_sentence(t, f"sentence-{i}") for i, t in enumerate(texts, 1)]
    targets = [plain_sentence(t, f"target-{i}") for i, t in enumerate(translations, 1)]
    if not all(s.words for s in [*sources, *targets]):
        raise OptionError("--text: a sentence has no words.", "Give some text.")
    return [Example(s, targets[i] if targets else None) for i, s in enumerate(sources)]

"""How answers are compared: SQuAD's official rules (Rajpurkar et al. 2016, 2018)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(text: str) -> str:
    """Lower case, without ASCII punctuation and English articles, single spaces."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def compare(predicted: str, answers: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 of words, each the best over the answers that count as right.

    Without any answer the right prediction is the empty one; so it is where normalising leaves nothing of them.
    """
    wanted = [text for text in answers if normalized(text)] or [""]
    return max(_exact(predicted, w) for w in wanted), max(_f1(predicted, w) for w in wanted)


def _exact(predicted: str, wanted: str) -> float:
    return float(normalized(predicted) == normalized(wanted))


def _f1(predicted: str, wanted: str) -> float:
    ours, theirs = normalized(predicted).split(), normalized(wanted).split()
    if not ours or not theirs:
        return float(ours == theirs)
    shared = (Counter(ours) & Counter(theirs)).total()
    return 2 * shared / (len(ours) + len(theirs))

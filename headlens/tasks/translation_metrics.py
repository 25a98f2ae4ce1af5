"""How much of a translation is in its reference: BLEU and chrF from counts that add up over sentences."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from headlens.errors import OptionError

Floats = npt.NDArray[np.float64]
WORDS, CHARACTERS = 4, 6  # longest n-grams of BLEU and chrF
BLEU_COLUMNS = (*(f"bleu_match_{n + 1}" for n in range(WORDS)), *(f"bleu_total_{n + 1}" for n in range(WORDS)))
BLEU_COLUMNS = (*BLEU_COLUMNS, "written_words", "reference_words")
CHRF_COLUMNS = tuple(f"chrf_{part}_{n + 1}" for n in range(CHARACTERS) for part in ("written", "reference", "match"))
BETA = 2.0  # chrF weighs recall so many times as much as precision


def bleu_counts(written: str, reference: str, tokenizer: str = "13a") -> list[float]:
    """Matching and all n-grams and the lengths, as in `BLEU_COLUMNS`, by sacreBLEU.

    Raises:
        OptionError: if sacreBLEU has no such tokenizer.
    """
    score = _bleu(tokenizer).sentence_score(written, [reference])
    return [*map(float, score.counts), *map(float, score.totals), float(score.sys_len), float(score.ref_len)]


@cache
def _bleu(tokenizer: str) -> Any:
    from sacrebleu.metrics.bleu import BLEU  # noqa: PLC0415 - only translations need it

    if tokenizer not in BLEU.TOKENIZERS:
        raise OptionError(f"sacreBLEU has no tokenizer {tokenizer!r}.", f"It has {', '.join(BLEU.TOKENIZERS)}.")
    return BLEU(tokenize=tokenizer, effective_order=True)


def bleu(counts: Floats) -> Floats:
    """BLEU of a corpus (Papineni et al. 2002), smoothed as sacreBLEU does by default.

    Args:
        counts: sums over its sentences, (replicates, 10).

    Returns:
        0 to 100, (replicates,).
    """
    matches, totals, lengths = counts[:, :WORDS], counts[:, WORDS : 2 * WORDS], counts[:, 2 * WORDS :]
    # The k-th length of n-grams without a match counts as 1 / 2^k of one.
    missing = np.cumsum((matches == 0) & (totals > 0), axis=1)
    smoothed = np.where(matches == 0, 0.5**missing, matches)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(totals > 0, smoothed / totals, 0.0)
        brevity = np.exp(np.minimum(0.0, 1 - lengths[:, 1] / lengths[:, 0]))
        found = 100 * brevity * np.exp(np.log(precision).mean(axis=1))
    return np.where(matches.any(axis=1), found, 0.0)


def chrf_counts(written: str, reference: str) -> list[float]:
    """Character n-grams of both, white space left out, and those they share, as in `CHRF_COLUMNS`."""
    texts = ["".join(text.split()) for text in (written, reference)]
    found: list[float] = []
    for n in range(1, CHARACTERS + 1):
        ours, theirs = (Counter(text[i : i + n] for i in range(len(text) - n + 1)) for text in texts)
        # As in sacreBLEU, n-grams longer than the reference do not count against a translation.
        found += [float(ours.total()) if theirs else 0.0, float(theirs.total()), float((ours & theirs).total())]
    return found


def chrf(counts: Floats) -> Floats:
    """chrF2 of a corpus (Popović 2015), as sacreBLEU computes it.

    Args:
        counts: sums over its sentences, (replicates, 18).

    Returns:
        0 to 100, (replicates,).
    """
    written, reference, match = np.moveaxis(counts.reshape(-1, CHARACTERS, 3), -1, 0)  # (replicates, 6) each
    both = (written > 0) & (reference > 0)
    orders = np.maximum(both.sum(axis=1), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(both, match / written, 0.0).sum(axis=1) / orders
        recall = np.where(both, match / reference, 0.0).sum(axis=1) / orders
        found = (1 + BETA**2) * precision * recall / (BETA**2 * precision + recall)
    return 100 * np.where(precision + recall > 0, found, 0.0)

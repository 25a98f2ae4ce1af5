"""BLEU and chrF of summed counts are sacreBLEU's of the corpus."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, CHRF

from headlens.errors import OptionError
from headlens.tasks.translation import BLEU_COLUMNS, CHRF_COLUMNS, bleu, bleu_counts, chrf, chrf_counts

WORDS = st.lists(
    st.sampled_from(["der", "Hund", "läuft", "schnell", "nach", "Hause", ".", "1,000", "don't"]), max_size=9
)
SENTENCES = WORDS.map(" ".join)
PAIRS = st.lists(st.tuples(SENTENCES, SENTENCES), min_size=1, max_size=6)


def sums(pairs: list[tuple[str, str]]) -> tuple[float, float]:
    words = np.array([bleu_counts(*pair) for pair in pairs]).sum(axis=0, keepdims=True)
    characters = np.array([chrf_counts(*pair) for pair in pairs]).sum(axis=0, keepdims=True)
    assert words.shape == (1, len(BLEU_COLUMNS))
    assert characters.shape == (1, len(CHRF_COLUMNS))
    return float(bleu(words)[0]), float(chrf(characters)[0])


@settings(max_examples=150)
@given(PAIRS)
def test_against_sacrebleu(pairs: list[tuple[str, str]]) -> None:
    written, references = [p[0] for p in pairs], [[p[1] for p in pairs]]
    expected = BLEU().corpus_score(written, references).score, CHRF().corpus_score(written, references).score
    assert sums(pairs) == pytest.approx(expected, abs=1e-9)


def test_known_values() -> None:
    assert sums([("the cat sat on the mat .", "the cat sat on the mat .")]) == pytest.approx((100, 100))
    assert sums([("", "a cat")]) == (0, 0)
    assert sums([("a b c d e", "v w x y z")])[0] == 0


def test_other_tokenizers() -> None:
    assert bleu_counts("猫坐着", "猫坐着", "char")[0] == 3
    with pytest.raises(OptionError, match=r"sacreBLEU has no tokenizer 'moses'\.\nIt has none, zh, 13a"):
        bleu_counts("a", "a", "moses")

"""Units of words and tokens, against sets of characters and a naive search for components."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from saved import joined, sentence
from transformers import PreTrainedTokenizerBase

from headlens.corpora.alignment import Span, align
from headlens.corpora.annotations import AnnotationCounts, Annotator
from headlens.corpora.batches import collate
from headlens.corpora.encoded_corpus import EncodingCounts, encode_corpus
from headlens.corpora.encoding import EncodedExample, SentenceEncoder, TokenKind
from headlens.corpora.sentence import OUTSIDE, ROOT, Example, Sentence, Word
from headlens.corpora.sources import demo_corpus


def brute_force(words: Sequence[Span], tokens: Sequence[Span], special: Sequence[bool]) -> tuple[list[int], list[int]]:
    """Units of tokens and words: grow sets of nodes that share a character until nothing changes."""
    nodes = {("w", i): set(range(*span)) for i, span in enumerate(words)}
    nodes |= {("t", i): set(range(*span)) for i, (span, s) in enumerate(zip(tokens, special, strict=True)) if not s}
    label = {node: k for k, node in enumerate(nodes)}
    changed = True
    while changed:
        changed = False
        for a in nodes:
            for b in nodes:
                if nodes[a] & nodes[b] and label[a] != label[b] and "w" in (a[0], b[0]):
                    label[a] = label[b] = min(label[a], label[b])
                    changed = True
    both = {k for (side, _), k in label.items() if side == "w"} & {k for (s, _), k in label.items() if s == "t"}
    in_order = sorted(both, key=lambda k: min(i for (s, i), other in label.items() if s == "w" and other == k))
    number = {k: u for u, k in enumerate(in_order)}
    of_token = [number.get(label.get(("t", i), -1), -1) for i in range(len(tokens))]
    filled = list(of_token)
    for i, (start, end) in enumerate(tokens):
        if start == end and not special[i]:
            after = [u for u in of_token[i + 1 :] if u >= 0]
            before = [u for u in of_token[:i] if u >= 0]
            filled[i] = after[0] if after else before[-1] if before else -1
    return filled, [number.get(label["w", i], -1) for i in range(len(words))]


@st.composite
def spans(draw: st.DrawFn, most_shared: int) -> list[Span]:
    """Intervals from left to right, with gaps, empty ones, and some that repeat or overlap the one before."""
    found: list[Span] = []
    at = 0
    for _ in range(draw(st.integers(0, 8))):
        at = max(0, at + draw(st.integers(-most_shared, 2)))
        start = max(at, found[-1][0] if found else 0)
        at = start + draw(st.integers(0, 4))
        found.append((start, at))
    return found


@given(spans(2), spans(1), st.data())
def test_agrees_with_sets_of_characters(words: list[Span], tokens: list[Span], data: st.DataObject) -> None:
    special = data.draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
    result = align(words, tokens, special)
    of_token, of_word = brute_force(words, tokens, special)
    assert list(result.unit_of_token) == of_token
    assert list(result.unit_of_word) == of_word
    assert result.n_units == max(of_word, default=-1) + 1
    assert result.unaligned_words == of_word.count(-1)
    assert result.unaligned_tokens == sum(u == -1 and not s for u, s in zip(of_token, special, strict=True))
    assert result.merged_words == sum(u >= 0 and of_word.count(u) > 1 for u in of_word)


@pytest.mark.parametrize(
    ("words", "tokens", "of_token", "of_word"),
    [
        pytest.param([(0, 3), (4, 7)], [(0, 2), (2, 3), (4, 7)], [0, 0, 1], [0, 1], id="pieces"),
        pytest.param([(0, 3), (3, 5)], [(0, 5)], [0], [0, 0], id="gonna"),
        pytest.param([(0, 3), (0, 3), (4, 8)], [(0, 1), (1, 3), (4, 8)], [0, 0, 1], [0, 0, 1], id="zum"),
        pytest.param([(0, 2), (3, 5)], [(0, 2), (3, 3), (3, 5)], [0, 1, 1], [0, 1], id="lone space"),
        pytest.param([(0, 2)], [(0, 2), (3, 3)], [0, 0], [0], id="space at the end"),
        pytest.param([(0, 1)], [(0, 1)] * 4, [0] * 4, [0], id="bytes of one character"),
        pytest.param([(0, 2), (3, 5), (6, 8)], [(0, 2), (6, 8)], [0, 1], [0, -1, 1], id="word without token"),
        pytest.param([(0, 2)], [(0, 2), (3, 6)], [0, -1], [0], id="text without word"),
        pytest.param([(0, 1), (1, 2), (2, 3)], [(0, 2), (1, 3)], [0, 0], [0, 0, 0], id="chain"),
        pytest.param([(0, 1), (1, 2)], [(0, 2), (0, 1)], [0, 0], [0, 0], id="long token before a short one"),
        pytest.param([], [(0, 2)], [-1], [], id="no words"),
        pytest.param([(0, 2)], [(2, 2)], [-1], [-1], id="only blanks"),
    ],
)
def test_cases(words: list[Span], tokens: list[Span], of_token: list[int], of_word: list[int]) -> None:
    result = align(words, tokens, [False] * len(tokens))
    assert (list(result.unit_of_token), list(result.unit_of_word)) == (of_token, of_word)


def test_special_tokens_belong_to_no_unit_and_are_not_counted() -> None:
    result = align([(0, 2)], [(0, 0), (0, 2), (0, 2)], [True, False, True])
    assert result.unit_of_token == (-1, 0, -1)
    assert result.unaligned_tokens == 0


def test_words_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="order"):
        align([(4, 6), (0, 2)], [], [])


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="zip"):
        align([(0, 2)], [(0, 2)], [])


def test_work_grows_with_length_only() -> None:
    def steps(n: int) -> int:
        """The instructions that Python runs, which other work on the machine doesn't change as it does the time."""
        words, tokens = [(4 * i, 4 * i + 3) for i in range(n)], [(0, 4 * n)] * n  # each touches every word
        count = 0

        def counting(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
            nonlocal count
            frame.f_trace_opcodes = True
            count += event == "opcode"
            return counting

        before = sys.gettrace()
        sys.settrace(counting)
        try:
            align(words, tokens, [False] * n)
        finally:
            sys.settrace(before)
        return count

    assert 100 < steps(2_000) < 12 * steps(200)  # quadratic: 100 times


WORDS = [
    "the",
    "cat",
    "gonna",
    "isn't",
    "antidisestablishmentarianism",
    "10,000",
    "“naïve”",
    "漢字",
    "\u200b",
    "👩\u200d👧",
    "!",
]


def encoded(
    tokenizer: PreTrainedTokenizerBase, sentences: Sequence[Sentence], limit: int, **options: Any
) -> tuple[list[EncodedExample], EncodingCounts]:
    counts = EncodingCounts()
    encoder = SentenceEncoder(tokenizer, limit, long_sentences="window", **options)
    return list(encode_corpus(map(Example, sentences), encoder, counts)), counts


@st.composite
def trees(draw: st.DrawFn) -> Sentence:
    """A tree over random words with one space or none between them; some are two words on one span."""
    text, spans, forms = "", [], []
    for form in draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=25)):
        for _ in range(draw(st.sampled_from([1, 1, 1, 2]))):
            spans.append((len(text), len(text) + len(form)))
            forms.append(form)
        text += form + draw(st.sampled_from([" ", " ", ""]))
    heads = [ROOT, *(draw(st.integers(0, i - 1)) for i in range(1, len(forms)))]
    words = (Word(f, a, b, h, "dep") for f, (a, b), h in zip(forms, spans, heads, strict=True))
    return Sentence(text, tuple(words), "s")


def naive_windows(tokenizer: PreTrainedTokenizerBase, whole: Sentence, limit: int) -> tuple[list[list[int]], list[int]]:
    """Indices of the words of every window, and those of no window, by trying one word more at a time."""
    encoder = SentenceEncoder(tokenizer, 10**6)
    long = encoder.encode(Example(whole))
    assert long is not None
    units = long.source.unit_of_word
    groups: list[list[int]] = []
    for i, word in enumerate(whole.words):
        overlaps = any(w.end > word.start for w in whole.words[:i])
        known = next((u for u in reversed(units[:i]) if u >= 0), None)
        if groups and (overlaps or (units[i] >= 0 and units[i] == known)):
            groups[-1].append(i)
        else:
            groups.append([i])
    windows, lost = [], []
    while groups:
        sizes = []
        for n in range(1, len(groups) + 1):
            first, last = groups[0][0], groups[n - 1][-1] + 1
            begin = whole.words[first].start if first else 0
            end = whole.words[last].start if last < len(whole.words) else len(whole.text)
            sizes.append(len(tokenizer(whole.text[begin:end].rstrip(), verbose=False)["input_ids"]))
        fitting = next((n for n, size in enumerate(sizes) if size > limit), len(groups))
        taken, groups = groups[: max(fitting, 1)], groups[max(fitting, 1) :]
        (windows if fitting else [lost]).extend([[i for group in taken for i in group]] if fitting else [])
        lost += [] if fitting else taken[0]
    return windows, lost


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=settings().max_examples // 2)
@given(trees(), st.integers(4, 14))
def test_against_trying_every_number_of_words(
    any_tokenizer: PreTrainedTokenizerBase, whole: Sentence, limit: int
) -> None:
    examples, counts = encoded(any_tokenizer, [whole], limit)
    assert all(len(e.source) <= limit for e in examples)
    long = SentenceEncoder(any_tokenizer, 10**6).encode(Example(whole))
    assert long is not None
    if len(long.source) <= limit and all(kind & TokenKind.SPECIAL for kind in long.source.kinds):
        assert (examples, counts.empty) == ([], 1), "nothing of the text became a token"
        return
    if len(long.source) <= limit:
        assert [e.source.sentence for e in examples] == [whole]
        assert (counts.windowed, counts.too_long) == (0, 0)
        return
    windows, lost = naive_windows(any_tokenizer, whole, limit)
    found = [e.source.sentence for e in examples]
    assert [s.id for s in found] == [f"s[{w[0] + 1}-{w[-1] + 1}]" for w in windows]
    for window, indices in zip(found, windows, strict=True):
        check_window(window, whole, indices)
    expected = (int(bool(windows)), int(not windows), len(lost) if windows else 0, len(windows))
    assert (counts.windowed, counts.too_long, counts.words_too_long, counts.sentences) == expected


def check_window(window: Sentence, whole: Sentence, indices: list[int]) -> None:
    assert len(window.words) == len(indices)
    for word, i in zip(window.words, indices, strict=True):
        original = whole.words[i]
        assert (word.form, word.relation) == (original.form, original.relation)
        assert window.text[word.start : word.end] == whole.text[original.start : original.end]
        head = original.head
        if head == ROOT:
            assert word.head == ROOT
        else:
            assert word.head == (indices.index(head) if head in indices else OUTSIDE)


def test_only_arcs_inside_a_window_are_measured(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    """Counts of the demo corpus as one sentence a block, against a count of heads by hand."""
    whole = joined([e.source for e in list(demo_corpus())[:12]])
    examples, counts = encoded(wordpiece_tokenizer, [whole], 24)
    batch = collate(examples, pad_id=0, device="cpu")
    annotation = AnnotationCounts()
    tokens = Annotator(("nsubj", "obj", "det")).annotate(batch, annotation, decoder_only=False)
    inside = outside = at = 0
    for example in examples:
        n = len(example.source.sentence.words)
        for word in whole.words[at : at + n]:
            if word.relation in {"nsubj", "obj", "det", "nsubj:pass"} and word.head is not None:
                inside += at <= word.head < at + n
                outside += not at <= word.head < at + n
        at += n
    assert at == len(whole.words)
    assert outside > 0
    assert (sum(annotation.arcs.values()), annotation.lost_arcs) == (inside, outside)
    assert tokens.encoder is not None
    assert tokens.encoder.arcs is not None
    assert len(tokens.encoder.arcs) == inside
    assert int(tokens.encoder.arcs[:, 1:3].min()) >= 0
    assert (counts.windowed, annotation.trees, annotation.no_tree) == (1, len(examples), 0)


def test_windows_are_the_same_every_time(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    whole = joined([e.source for e in list(demo_corpus())[:30]])
    first, second = (encoded(wordpiece_tokenizer, [whole], 40)[0] for _ in range(2))
    assert first == second
    assert all(30 < len(e.source) <= 40 for e in first[:-1])


def test_few_attempts(wordpiece_tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = joined([e.source for e in list(demo_corpus())[:60]])
    attempts = []
    encode = SentenceEncoder.encode
    monkeypatch.setattr(SentenceEncoder, "encode", lambda s, e: attempts.append(e) or encode(s, e))
    examples, _ = encoded(wordpiece_tokenizer, [whole], 128)
    assert len(attempts) <= 2 * len(examples) + 1


def test_a_word_that_is_too_long_is_left_out_and_counted(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    long_word = "x1" * 30
    examples, counts = encoded(wordpiece_tokenizer, [sentence(f"a cat {long_word} sold it"), sentence(long_word)], 12)
    assert [e.source.sentence.text for e in examples] == ["a cat", "sold it"]
    assert (counts.windowed, counts.words_too_long, counts.too_long, counts.sentences) == (1, 1, 1, 2)


def test_words_that_share_a_token_stay_together(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    """`cannot` is one token of MiniLM's, and two words here."""
    spans = [(0, 1), (2, 5), (5, 8), (9, 12)]
    whole = Sentence("I cannot see", tuple(Word("w", a, b) for a, b in spans))
    examples, _ = encoded(wordpiece_tokenizer, [whole], 4)
    assert [e.source.sentence.text for e in examples] == ["I cannot", "see"]
    examples, _ = encoded(wordpiece_tokenizer, [whole], 3)
    assert [e.source.sentence.text for e in examples] == ["I", "cannot", "see"]


def test_text_between_words_goes_with_the_word_before(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    whole = Sentence("- a (b) cat ; sold .", tuple(Word("w", a, b) for a, b in [(2, 3), (8, 11), (14, 18)]))
    examples, counts = encoded(wordpiece_tokenizer, [whole], 7)
    assert [e.source.sentence.text for e in examples] == ["- a (b)", "cat ; sold ."]
    assert counts.unaligned_tokens == 6


def test_pairs_are_left_out(marian_tokenizer: PreTrainedTokenizerBase) -> None:
    counts = EncodingCounts()
    encoder = SentenceEncoder(marian_tokenizer, 12, marian_tokenizer.pad_token_id, long_sentences="window")
    long = Example(sentence("a cat sold it " * 9), sentence("it"))
    assert list(encode_corpus([long], encoder, counts)) == []
    assert (counts.too_long, counts.windowed) == (1, 0)
    alone = SentenceEncoder(marian_tokenizer, 12, None, long_sentences="window")
    assert len(list(encode_corpus([long], alone, counts))) > 1


def test_the_default_leaves_long_sentences_out(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    counts = EncodingCounts()
    corpus = [Example(sentence("cat " * 9 + "x"))]
    assert list(encode_corpus(corpus, SentenceEncoder(wordpiece_tokenizer, 8), counts)) == []
    assert counts == EncodingCounts(too_long=1)


def test_rare_words_are_those_of_the_window(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    whole = sentence("a b c d e f g h i j")
    frequency = {c: float(i) for i, c in enumerate("abcdefghij", 1)}
    examples, _ = encoded(wordpiece_tokenizer, [whole], 7)
    annotator = Annotator(frequency=lambda word: frequency[word])
    tokens = annotator.annotate(collate(examples, pad_id=0, device="cpu"), AnnotationCounts(), decoder_only=False)
    assert tokens.encoder is not None
    assert torch.equal(tokens.encoder.rarity, torch.tensor([[2, 1, 0, 0, 0]] * 2))


def test_a_very_long_line_takes_time_in_proportion(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    examples, counts = encoded(wordpiece_tokenizer, [sentence(" ".join(["cat"] * 10_000))], 512)
    assert (counts.words, len(examples)) == (10_000, -(-10_000 // 510))

"""Trees in units, rare words and sampled tokens of batches; units written down by hand."""

import random
import zlib
from collections import Counter
from dataclasses import replace

import pytest
import torch
from tiers import rest_slow
from transformers import PreTrainedTokenizerBase

from headlens.attention.edits_and_observers import Tokens
from headlens.corpora.alignment import Alignment
from headlens.corpora.annotations import AnnotationCounts, Annotator
from headlens.corpora.batches import Batch, collate
from headlens.corpora.encoded_corpus import EncodingCounts, encode_corpus
from headlens.corpora.encoding import EncodedExample, EncodedSequence, SentenceEncoder
from headlens.corpora.sentence import ROOT, Example, Link, Sentence, Word
from headlens.corpora.sources import demo_corpus

RELATIONS = ("nsubj", "obj", "amod", "nsubj:pass")
# Units: She | doesn't (does and n't are one) | (a word that no token touches) | un-believ-able | cats
UNITS = (0, 1, 1, -1, 2, 3)
TREE = [(4, "nsubj"), (5, "aux"), (5, "advmod"), (5, "det"), (5, "amod"), (ROOT, "root")]


def sentence(tree: list[tuple[int, str]] | None = None, text: str = "She doesn't _ unbelievable cats") -> Sentence:
    spans = [(0, 3), (4, 8), (8, 11), (12, 13), (14, 26), (27, 31)]
    heads = tree or [(None, None)] * len(spans)
    words = tuple(Word(text[a:b], a, b, head, label) for (a, b), (head, label) in zip(spans, heads, strict=True))
    return Sentence(text, words, "1")


def sequence(given: Sentence, padding: int = 0) -> EncodedSequence:
    """[CLS] She doesn't un believ able cats [SEP], and more [SEP] if wanted."""
    units = (-1, 0, 1, 2, 2, 2, 3, *[-1] * (1 + padding))
    spans = ((0, 0), (0, 3), (4, 11), (14, 16), (16, 22), (22, 26), (27, 31), *[(0, 0)] * (1 + padding))
    alignment = Alignment(units, UNITS, 4, unaligned_words=1, unaligned_tokens=0)
    return EncodedSequence(tuple(range(len(units))), (1, *[0] * 6, *[1] * (1 + padding)), spans, alignment, given)


def batch(*rows: EncodedSequence, targets: tuple[EncodedSequence, ...] = ()) -> Batch:
    examples = [EncodedExample(r, targets[i] if targets else None) for i, r in enumerate(rows)]
    return collate(examples, pad_id=0, device="cpu")


def annotate(annotator: Annotator, given: Batch) -> tuple[Tokens, AnnotationCounts]:
    counts = AnnotationCounts()
    tokens = annotator.annotate(given, counts, decoder_only=False)
    assert tokens.encoder is not None
    return tokens.encoder, counts


def arcs(tree: list[tuple[int, str]]) -> tuple[list[list[int]], AnnotationCounts]:
    tokens, counts = annotate(Annotator(RELATIONS), batch(sequence(sentence(tree))))
    assert tokens.arcs is not None
    return tokens.arcs.tolist(), counts


def named(*entities: tuple[str, ...]) -> Sentence:
    """She | doesn't | _ | unbelievable | cats, with the entities that every word stands for."""
    plain = sentence()
    return replace(plain, words=tuple(replace(w, entities=e) for w, e in zip(plain.words, entities, strict=True)))


def test_mentions_and_what_baselines_find() -> None:
    given = named(("a",), ("b",), ("b",), ("a",), ("a", "b"), ("b",))
    given = replace(given, words=(*given.words[:5], replace(given.words[5], form="She")))
    tokens, counts = annotate(Annotator(words=True), batch(sequence(given)))
    assert tokens.mentions is not None
    # The mention at the word without a token is lost; both words of one unit are one mention. At the third unit the
    # nearest earlier mention is of b; the fourth spells the first, which is of a.
    assert tokens.mentions.tolist() == [
        [0, 0, 0, 0, 0, 0],
        [0, 1, 1, 0, 0, 0],
        [0, 2, 0, 1, 0, 0],
        [0, 2, 1, 1, 1, 0],
        [0, 3, 1, 1, 1, 0],
    ]
    assert counts.lost_mentions == 1


@pytest.mark.slow
def test_single_mentions_count_for_the_nearest_mention_alone(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    """On the bundled treebank, against itself without the entities that are mentioned once."""
    sentences = [example.source for example in demo_corpus()]
    times = Counter(entity for s in sentences for w in s.words for entity in w.entities)

    def in_chains(word: Word) -> Word:
        return replace(word, entities=tuple(entity for entity in word.entities if times[entity] > 1))

    chains = [replace(s, words=tuple(map(in_chains, s.words))) for s in sentences]
    encoder = SentenceEncoder(wordpiece_tokenizer)
    rows, nearest = [], []
    for given in (sentences, chains):
        examples = list(encode_corpus(map(Example, given), encoder, EncodingCounts()))
        mentions = annotate(Annotator(words=True), collate(examples, pad_id=0, device="cpu"))[0].mentions
        assert mentions is not None
        asked = mentions[mentions[:, 3] == 1]
        rows.append(asked[:, [0, 1, 3, 5]].tolist())
        nearest.append(int(asked[:, 4].sum()))
    assert rows[0] == rows[1]
    assert len(rows[0]) > 290
    # Of the 294 mentions that have an antecedent the nearest mention is one for 200 without single mentions.
    assert nearest[0] < 0.45 * len(rows[0]) < 0.65 * len(rows[1]) < nearest[1]


def test_mentions_against_looking_at_every_unit_before(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    """On the first sentences of the bundled treebank, joined by fours so that entities and words recur."""
    given = [example.source for example in demo_corpus()][:200]
    joined: list[Example] = []
    for first in range(0, len(given), 4):
        text, words = "", []
        for part in given[first : first + 4]:
            shift = len(text)
            words += [replace(w, start=w.start + shift, end=w.end + shift, head=None) for w in part.words]
            text += part.text + " "
        joined.append(Example(Sentence(text, tuple(words), str(first))))
    examples = list(encode_corpus(joined, SentenceEncoder(wordpiece_tokenizer), EncodingCounts()))
    tokens, _ = annotate(Annotator(words=True), collate(examples, pad_id=0, device="cpu"))
    assert tokens.mentions is not None
    assert tokens.forms is not None
    expected = []
    for number, example in enumerate(examples):
        row, forms = example.source, tokens.forms[number].tolist()
        entities: dict[str, int] = {}
        pairs = [
            (unit, entities.setdefault(name, len(entities)))
            for word, unit in zip(row.sentence.words, row.unit_of_word, strict=True)
            for name in word.entities
            if unit >= 0
        ]
        for unit, entity in dict.fromkeys(pairs):
            mentioned = [u for u, _ in pairs if u < unit]
            same = [u for u in range(unit) if forms[u] == forms[unit] and forms[unit] >= 0]
            hits = [bool(units) and (max(units), entity) in pairs for units in (mentioned, same)]
            expected.append([number, unit, entity, any((u, entity) in pairs for u in mentioned), *hits])
    assert tokens.mentions.tolist() == expected
    assert sum(row[4] for row in expected) > 20
    assert sum(row[5] for row in expected) > 20


def test_the_same_word_of_an_antecedent() -> None:
    given = named(("a",), (), (), (), ("b",), ("a",))
    given = replace(given, text="She doesn't _ unbelievable she ", words=given.words)
    tokens, _ = annotate(Annotator(words=True), batch(sequence(given)))
    assert tokens.mentions is not None
    assert tokens.mentions[:, 3:].tolist() == [[0, 0, 0], [0, 0, 0], [1, 0, 0]]


def test_two_texts_name_their_entities_apart() -> None:
    given = named(("a",), (), (), (), ("a",), ("a",))
    tokens, _ = annotate(Annotator(words=True), batch(replace(sequence(given), between=(11, 12))))
    assert tokens.mentions is not None
    assert tokens.mentions[:, 1:4].tolist() == [[0, 0, 0], [2, 1, 0], [3, 1, 1]]


def test_without_entities_nothing_is_listed() -> None:
    tokens, _ = annotate(Annotator(words=True), batch(sequence(sentence())))
    assert tokens.mentions is None


def test_links_join_units() -> None:
    """`doesn't` is one unit, the blank word none."""
    links = (Link(1, 0, sure=False), Link(2, 0, sure=True), Link(3, 1, sure=True), Link(5, 5, sure=False))
    pair = EncodedExample(sequence(sentence()), sequence(sentence()), links)
    counts = AnnotationCounts()
    tokens = Annotator().annotate(collate([pair], pad_id=0, device="cpu"), counts, decoder_only=False)
    assert tokens.decoder is not None
    assert tokens.decoder.links is not None
    assert tokens.decoder.links.tolist() == [[0, 1, 0, 1], [0, 3, 3, 0]]
    assert (counts.links, counts.lost_links) == (2, 1)


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        ((11, 14), [-1, 0, 0, 1, 1, 1, 1, -1]),
        ((14, 15), [-1, 0, 0, -1, 1, 1, 1, -1]),
        ((0, 3), [-1] * 8),
        (None, [-1] * 8),
    ],
)
def test_tokens_of_two_texts(between: tuple[int, int] | None, expected: list[int]) -> None:
    tokens, counts = annotate(Annotator(pairs=True), batch(replace(sequence(sentence()), between=between)))
    assert tokens.segment is not None
    assert tokens.segment.tolist() == [expected]
    assert (counts.pairs, counts.no_pair) == (int(1 in expected), int(1 not in expected))


def test_arcs_join_units() -> None:
    tree = [(5, "nsubj"), (5, "obj"), (5, "aux"), (5, "det"), (5, "amod"), (ROOT, "root")]
    found, counts = arcs(tree)
    assert found == [[0, 0, 3, 0], [0, 1, 3, 1], [0, 2, 3, 2]]
    assert counts == AnnotationCounts(arcs={"nsubj": 1, "obj": 1, "amod": 1}, trees=1)


def test_arcs_inside_a_unit_or_without_a_token_are_lost() -> None:
    tree = [(5, "nsubj"), (2, "obj"), (5, "obj"), (5, "amod"), (3, "obj"), (ROOT, "root")]
    found, counts = arcs(tree)
    assert found == [[0, 0, 3, 0], [0, 1, 3, 1]]
    assert counts == AnnotationCounts(arcs={"nsubj": 1, "obj": 1}, lost_arcs=3, trees=1)


def test_subtypes_and_other_names() -> None:
    tree = [(5, "nsubjpass"), (5, "dobj"), (5, "obj:x"), (5, "det"), (5, "AMOD"), (ROOT, "nsubj")]
    found, counts = arcs(tree)
    # A subtype that is asked for itself is no instance of its relation, as obj:x is.
    assert found == [[0, 0, 3, 3], [0, 1, 3, 1], [0, 1, 3, 1], [0, 2, 3, 2]]
    assert counts.arcs == {"nsubj:pass": 1, "obj": 2, "amod": 1}
    assert counts.labels == {"nsubjpass": 1, "dobj": 1, "obj:x": 1, "det": 1, "amod": 1}


def test_sentences_of_a_batch_and_those_without_a_tree() -> None:
    rows = [sequence(sentence()), sequence(sentence(TREE)), sequence(sentence(TREE), padding=2)]
    tokens, counts = annotate(Annotator(RELATIONS), batch(*rows))
    assert tokens.arcs is not None
    assert tokens.arcs.tolist() == [[1, 0, 2, 0], [1, 2, 3, 2], [2, 0, 2, 0], [2, 2, 3, 2]]
    assert counts == AnnotationCounts(arcs={"nsubj": 2, "amod": 2}, trees=2, no_tree=1)


def test_no_arcs_have_the_shape_of_arcs() -> None:
    tokens, counts = annotate(Annotator(("vocative",)), batch(sequence(sentence(TREE))))
    assert tokens.arcs is not None
    assert (tokens.arcs.shape, tokens.arcs.dtype) == ((0, 4), torch.int64)
    assert counts == AnnotationCounts(trees=1)


def test_nothing_is_added_that_was_not_asked_for() -> None:
    given = batch(sequence(sentence(TREE)))
    tokens, counts = annotate(Annotator(sample=False), given)
    assert tokens.arcs is tokens.rarity is tokens.sampled is None
    assert tokens.word is given.source.word
    assert counts == AnnotationCounts()


def test_rarity() -> None:
    frequencies = {"She": 0.5, "doesn't": 0.3, "unbelievable": 0.01, "cats": 0.02}
    long = sentence(TREE)
    tokens, counts = annotate(Annotator(frequency=frequencies.__getitem__), batch(sequence(long)))
    assert tokens.rarity is not None
    assert tokens.rarity.tolist() == [[0, 0, 0, 0]]  # four units are too few
    assert counts.rare_sentences == 0
    # With "does" and "n't" apart there are five.
    frequencies |= {"does": 0.3, "n't": 0.4}
    apart = Alignment((-1, 0, 1, 2, 3, 3, 4, -1), (0, 1, 2, -1, 3, 4), 5, unaligned_words=1, unaligned_tokens=0)
    row = replace(sequence(long), alignment=apart)
    tokens, counts = annotate(Annotator(frequency=frequencies.__getitem__), batch(row, sequence(long)))
    assert tokens.rarity is not None
    assert tokens.rarity.tolist() == [[0, 0, 0, 2, 1], [0, 0, 0, 0, 0]]
    assert counts.rare_sentences == 1


def test_sides_and_stacks() -> None:
    source, target = sequence(sentence(TREE)), sequence(sentence(), padding=1)
    annotator = Annotator(("nsubj",), frequency=lambda _: 0.1, target_frequency=None)
    counts = AnnotationCounts()
    pair = annotator.annotate(batch(source, targets=(target,)), counts, decoder_only=False)
    assert pair.encoder is not None
    assert pair.decoder is not None
    assert (pair.encoder.shape, pair.decoder.shape) == ((1, 8), (1, 9))
    assert pair.encoder.rarity is not None
    assert pair.decoder.rarity is None
    assert counts == AnnotationCounts(arcs={"nsubj": 1}, trees=1, no_tree=1)
    alone = annotator.annotate(batch(source), counts, decoder_only=True)
    assert alone.encoder is None
    assert alone.decoder is not None


def test_sampled_token_depends_on_the_text_alone() -> None:
    rows = [sequence(sentence(TREE, text=f"She doesn't _ unbelievable ca{i:02}"), padding=i % 3) for i in range(40)]
    wanted = {r.sentence.text: zlib.crc32(r.sentence.text.encode()) % len(r) for r in rows}
    assert len(set(wanted.values())) > 4
    for size in (1, 7, 40):
        random.Random(size).shuffle(rows)
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            tokens, _ = annotate(Annotator(), batch(*part))
            assert tokens.sampled is not None
            assert tokens.sampled.tolist() == [wanted[r.sentence.text] for r in part]
            assert tokens.real.gather(1, tokens.sampled[:, None]).all()


def test_another_seed_samples_other_tokens() -> None:
    rows = [sequence(sentence(TREE, text=f"She doesn't _ unbelievable ca{i:02}")) for i in range(40)]
    found = [annotate(Annotator(seed=seed), batch(*rows))[0].sampled for seed in (0, 1, 1, 2**32 - 1)]
    assert all(f is not None for f in found)
    same = [[torch.equal(a, b) for b in found if b is not None] for a in found if a is not None]
    assert same == [[i == j or {i, j} == {1, 2} for j in range(4)] for i in range(4)]


def _relation(word: Word) -> str | None:
    """The one of `RELATIONS` that a word of the treebank has, its subtype first."""
    label = word.relation or ""
    return next((name for name in (label, label.split(":")[0]) if name in RELATIONS), None)


@pytest.mark.parametrize("size", rest_slow([1, 16]))
def test_against_the_words_of_the_demo(wordpiece_tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    """Arcs found again by characters: tokens of both units lie over the two words."""
    encoder = SentenceEncoder(wordpiece_tokenizer)
    examples = list(encode_corpus(list(demo_corpus())[:48], encoder, EncodingCounts()))
    counts, found = AnnotationCounts(), 0
    for start in range(0, len(examples), size):
        part = examples[start : start + size]
        tokens = Annotator(RELATIONS).annotate(collate(part, pad_id=0, device="cpu"), counts, decoder_only=False)
        assert tokens.encoder is not None
        assert tokens.encoder.arcs is not None
        for row, dependent, head, relation in tokens.encoder.arcs.tolist():
            source = part[row].source
            words = source.sentence.words
            assert any(
                source.unit_of_word[i] == dependent
                and source.unit_of_word[w.head or 0] == head
                and _relation(w) == RELATIONS[relation]
                for i, w in enumerate(words)
            )
            found += 1
    wanted = sum(_relation(w) is not None for e in examples for w in e.source.sentence.words)
    assert found == sum(counts.arcs.values()) > 0
    assert found + counts.lost_arcs == wanted

"""Prompts that ask for one fact of a long text (a needle in a haystack), and for one document of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from headlens.corpora.alignment import tokenize
from headlens.corpora.sources import demo_corpus
from headlens.errors import OptionError

# Beginning of a sentence and the answer that ends it: nothing that a model could know otherwise.
NEEDLES = (
    ("The best way to the lighthouse is", "the yellow ferry from the old harbour"),
    ("The best thing to bring to the winter fair is", "a red lantern with two spare candles"),
    ("The best place to hide the silver key is", "below the third step of the cellar stairs"),
    ("The best time to visit the glass museum is", "late on a Thursday when the choir sings"),
    ("The best food for a tired mountain goat is", "warm oats with a spoon of honey"),
    ("The best tool to open the green box is", "the bent fork in the kitchen drawer"),
    ("The best gift for the new captain is", "a brass compass and a woollen hat"),
    ("The best way to calm the parrot is", "to read old train tables aloud"),
    ("The best place to plant the blue roses is", "behind the bakery near the stone well"),
    ("The best way to win the river race is", "to follow the swans along the left bank"),
    ("The best material for the puppet theatre is", "thin birch wood covered with silk"),
    ("The best day to repair the clock tower is", "the first Monday after the spring flood"),
)
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
LONGEST = 1024  # tokens of a prompt
_SHORTEST = 128  # tokens of sentences around a fact; among fewer there is nothing to search
_MOST_UNKNOWN = 0.1
_AFTER = 8  # tokens that an answer may be longer than the needle
_EMPTY = "N/A"  # the question that asks for nothing (Zhang et al. 2025)


@dataclass(frozen=True)
class NeedleRun:
    """A prompt that holds a fact, another fact that is not asked for, and a question at its end.

    Args:
        ids: tokens of the prompt.
        needle: places of the answer in it.
        decoy: places of the answer to another question.
        group: number of the fact: runs of one group are not independent.
    """

    ids: tuple[int, ...]
    needle: range
    decoy: range
    group: int

    @property
    def answer(self) -> tuple[int, ...]:
        """Tokens of the answer, as they stand in the prompt."""
        return tuple(self.ids[place] for place in self.needle)

    @property
    def longest(self) -> int:
        """How many tokens are generated at most."""
        return len(self.needle) + _AFTER


@dataclass(frozen=True)
class DocumentRun:
    """A prompt of several documents and a question about one of them, and the same prompt with an empty question.

    Args:
        ids: tokens of the prompt.
        empty_ids: tokens of the prompt with the empty question.
        documents: places of every document, the same in both.
        query: places of the question, and of what stands around it.
        empty_query: the same of the empty question.
        gold: which document answers the question.
        group: number of the question: runs of one group are not independent.
    """

    ids: tuple[int, ...]
    empty_ids: tuple[int, ...]
    documents: tuple[range, ...]
    query: range
    empty_query: range
    gold: int
    group: int


def make_needle_runs(
    tokenizer: PreTrainedTokenizerBase, limit: int | None, depths: Sequence[float] = DEPTHS
) -> list[NeedleRun]:
    """Makes a prompt for every needle and depth, in sentences of the bundled English treebank.

    Args:
        tokenizer: of the model.
        limit: most tokens that the model reads, with its answer; None for any number.
        depths: where the needle stands, from 0 (first) to 1 (last).

    Raises:
        OptionError: if the model cannot read such prompts.
    """
    facts = [[f" {begin}", f" {answer}", "."] for begin, answer in NEEDLES]
    questions = [f"\nQuestion: What is {_thing(begin)}?\nAnswer: {begin}" for begin, _ in NEEDLES]
    around = max(
        _length(tokenizer, "".join((*fact, *fact, question))) for fact, question in zip(facts, questions, strict=True)
    )
    answer = max(_length(tokenizer, answer) for _, answer in NEEDLES)
    needed = around + answer + _AFTER
    haystack = _haystack(tokenizer, _SHORTEST + _room(tokenizer, limit, needed + _SHORTEST))
    runs = []
    for group, (fact, question) in enumerate(zip(facts, questions, strict=True)):
        decoy = facts[(group + 1) % len(facts)]
        for depth in depths:
            place = round(depth * len(haystack))
            # Half of the text away.
            away = (place + len(haystack) // 2) % (len(haystack) + 1)
            (before, first), (after, second) = sorted([(place, fact), (away, decoy)], key=lambda item: item[0])
            parts = [haystack[:before], first, haystack[before:after], second, haystack[after:], [question]]
            texts, starts = [text for part in parts for text in part], np.cumsum([0, *map(len, parts)])
            ids, places = _tokens(tokenizer, texts)
            # The answer is the second part of a fact.
            needle, other = places[starts[1] + 1], places[starts[3] + 1]
            if first is decoy:
                needle, other = other, needle
            runs.append(NeedleRun(ids, needle, other, group))
    return runs


def make_document_runs(tokenizer: PreTrainedTokenizerBase, limit: int | None, seed: int) -> list[DocumentRun]:
    """Makes a prompt for every needle as one of several documents in random order; equal seeds give equal prompts.

    Args:
        tokenizer: of the model.
        limit: most tokens that the model reads; None for any number.
        seed: of the order.

    Raises:
        OptionError: if the model cannot read such prompts.
    """
    rng = np.random.default_rng(seed)
    begin, end = "Here are some notes:", "\n\nWhich note answers the question? Question: "
    texts = [f" {begin} {answer}." for begin, answer in NEEDLES]
    questions = [f"What is {_thing(begin)}?" for begin, _ in NEEDLES]
    _room(tokenizer, limit, _length(tokenizer, "".join((begin, *texts, end, max(questions, key=len)))))
    runs = []
    for gold in range(len(NEEDLES)):
        order = rng.permutation(len(NEEDLES))
        documents = [f"\n-{texts[number]}" for number in order]
        ids, places = _tokens(tokenizer, [begin, *documents, end, questions[gold], "\nAnswer:"])
        empty_ids, empty = _tokens(tokenizer, [begin, *documents, end, _EMPTY, "\nAnswer:"])
        query, empty_query = (range(parts[-3].start, parts[-1].stop) for parts in (places, empty))
        answering = int(np.flatnonzero(order == gold)[0])
        runs.append(DocumentRun(ids, empty_ids, tuple(places[1:-3]), query, empty_query, answering, gold))
    return runs


def _thing(begin: str) -> str:
    """What is asked for: `the best gift` of `The best gift is`."""
    return begin[0].lower() + begin[1:].removesuffix(" is")


def _length(tokenizer: PreTrainedTokenizerBase, text: str) -> int:
    return len(tokenize(tokenizer, text).ids)


def _room(tokenizer: PreTrainedTokenizerBase, limit: int | None, needed: int) -> int:
    """How many tokens are left beside those that are needed.

    Raises:
        OptionError: if none are left, or the tokenizer does not know what is read.
    """
    room = min(limit or LONGEST, LONGEST) - needed
    if room < 0:
        raise OptionError(
            f"--probes: the model reads {limit} tokens, and retrieval needs {needed}.",
            "Leave retrieval and query-retrieval out.",
        )
    ids = np.array(tokenize(tokenizer, " ".join(begin for begin, _ in NEEDLES)).ids)
    unknown = float((ids == tokenizer.unk_token_id).mean())
    if unknown > _MOST_UNKNOWN:
        raise OptionError(
            f"--probes: retrieval reads English, and {unknown:.0%} of its tokens are unknown to this tokenizer.",
            "Leave retrieval and query-retrieval out.",
        )
    return room


def _haystack(tokenizer: PreTrainedTokenizerBase, room: int) -> list[str]:
    """Sentences that fill so many tokens, each behind a space."""
    sentences = []
    for example in demo_corpus():
        text = f" {example.source.text}"
        room -= _length(tokenizer, text)
        if room < 0:
            break
        sentences.append(text)
    return sentences


def _tokens(tokenizer: PreTrainedTokenizerBase, parts: Sequence[str]) -> tuple[tuple[int, ...], list[range]]:
    """Tokens of a text that is made of parts, and the places of every part; a token on a border is of the first."""
    text = "".join(parts)
    ids, spans = tokenize(tokenizer, text)
    special = set(tokenizer.all_special_ids)
    while ids and ids[-1] in special:  # what ends a text
        ids, spans = ids[:-1], spans[:-1]
    begin = next((i for i in (tokenizer.bos_token_id, tokenizer.eos_token_id) if i is not None), None)
    if begin is not None and ids[0] not in special:
        ids, spans = (begin, *ids), ((0, 0), *spans)
    ends = np.cumsum([len(part) for part in parts])
    # A token belongs where its first character does; those of no text to what comes before.
    of = np.searchsorted(ends, [start if stop > start else start - 1 for start, stop in spans], side="right")
    begins, stops = (np.searchsorted(of, range(len(parts)), side).tolist() for side in ("left", "right"))
    return ids, list(map(range, begins, stops))

"""From attention between tokens to attention between words (Clark et al. 2019, section 2).

`word_weights` works all of it out. `word_rows` gives the rows that are asked for only: a word stands at its first
token, where its other pieces are added to it, which touches few columns and rows, where a product with the matrix of
all words would touch everything for every word.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headlens.attention.edits_and_observers import Tokens
from headlens.metrics.batch_cache import once_per_batch
from headlens.metrics.reductions import at_once, exact_type, largest, row_chunks

# Words whose weights, added up in float32, differ by no more than this share may be equal: of a few pieces each sum is
# off by less than a hundredth of it.
_NEAR = 1e-5


class WordLevel(NamedTuple):
    """The words of a padded batch; special tokens and tokens of no word are words of their own.

    Args:
        tokens: the same facts about words as `Tokens` states about tokens; (batch, units).
        unit: number of the unit of each token, -1 for padding; (batch, length).
        of_word: unit of each word of the sentence; (batch, max words), -1 past the end.
        n_pieces: tokens of each unit; (batch, units).
    """

    tokens: Tokens
    unit: Tensor
    of_word: Tensor
    n_pieces: Tensor

    def membership(self, dtype: torch.dtype) -> Tensor:
        """1 where a token belongs to a unit; (batch, length, units)."""
        return (self.unit[:, :, None] == torch.arange(self.n_pieces.shape[1], device=self.unit.device)).to(dtype)


@once_per_batch
def word_level(tokens: Tokens) -> WordLevel:
    """Group the tokens of a batch into words."""
    unit = _units(tokens)
    slot = unit.clamp(min=0)
    shape = unit.shape[0], int(unit.max()) + 1

    def count(flag: Tensor) -> Tensor:
        zeros = torch.zeros(shape, dtype=torch.int64, device=unit.device)
        return zeros.scatter_add(1, slot, (flag & tokens.real).long())

    pieces = count(tokens.real)
    # Which word of the sentence a unit is; -1 for special tokens, tokens of no word and padding.
    none = torch.full(shape, -1, dtype=torch.int64, device=slot.device)
    words = none.scatter_reduce(1, slot, torch.where(tokens.real, tokens.word, -1), "amax")
    facts: dict[str, Any] = {name: count(getattr(tokens, name)) > 0 for name in ("cls", "sep", "bos", "eos")}
    grouped = replace(
        tokens,
        real=pieces > 0,
        special=(count(tokens.special) > 0) | (pieces == 0),
        punct=(count(tokens.punct) == pieces) & (pieces > 0),
        word=words,
        n_pieces=(tokens.n_pieces > 0).long(),
        segment=None,
        sampled=None,
        ids=None,
        **facts,
    )
    return WordLevel(grouped, unit, _unit_of_word(words, tokens.n_pieces.shape[1]), pieces)


def _units(tokens: Tokens) -> Tensor:
    """Number the units from left to right by their first token."""
    position = torch.arange(tokens.shape[1], device=tokens.word.device).expand(tokens.shape)
    inside = tokens.word >= 0
    slot = tokens.word.clamp(min=0)
    first_of_word = torch.full_like(position, tokens.shape[1]).scatter_reduce(
        1, slot, torch.where(inside, position, tokens.shape[1]), "amin"
    )
    first = torch.where(inside, first_of_word.gather(1, slot), position)
    number = ((first == position) & tokens.real).long().cumsum(1) - 1
    return torch.where(tokens.real, number.gather(1, first), -1)


def _unit_of_word(words: Tensor, n_words: int) -> Tensor:
    """The units of words, of the words of units: (batch, units) -> (batch, words)."""
    numbers = torch.arange(words.shape[1], device=words.device).expand_as(words)
    room = torch.full((words.shape[0], n_words + 1), -1, dtype=torch.int64, device=words.device)
    return room.scatter(1, torch.where(words >= 0, words, n_words), numbers)[:, :n_words]


def word_weights(weights: Tensor, queries: WordLevel, keys: WordLevel) -> Tensor:
    """Attention between words: to a word the sum over its pieces, from a word the mean over its pieces.

    In float64 where the device has it: adding pieces in float32 would round, and decide between near-equal words.

    Args:
        weights: (batch, heads, query, key).
        queries: the words that attend.
        keys: the words attended to.

    Returns:
        (batch, heads, query units, key units); rows of real units sum to 1.
    """
    weights = weights.to(exact_type(weights))
    to_words = torch.matmul(weights, keys.membership(weights.dtype)[:, None])
    sums = torch.matmul(queries.membership(weights.dtype).transpose(1, 2)[:, None], to_words)
    # Divided last: thirds do not add up to one, and would decide between equal words.
    return sums.div_(queries.n_pieces.clamp(min=1)[:, None, :, None])


class Places(NamedTuple):
    """Where the words of a padded batch stand.

    Args:
        first: first token of every word; (batch, words), 0 past the end.
        starts: whether a token is the first one of a word; (batch, length).
        sentence, word, token: the other pieces, ordered by sentence and token; (pieces,) each.
    """

    first: Tensor
    starts: Tensor
    sentence: Tensor
    word: Tensor
    token: Tensor


class GatherPlan(NamedTuple):
    """Which rows of a batch to fetch, and what to add to which of their columns.

    Args:
        row_of_word: row of every word that is asked for; (batch, words), -1 for others.
        sentence, word, token: of every row; (rows,) each.
        own: number of the token among the keys, in self-attention.
        piece: (3, n): row, sentence and token of the other pieces of the words that attend.
        added, into: the other pieces of the words attended to, and the first tokens of these words; (rows, most) each.
        known: 1 for each of them, 0 past the end; (rows, most).
        starts: 1 where a word begins; (rows, length). Where there is a single sentence, all four have one row for all.
    """

    row_of_word: Tensor
    sentence: Tensor
    word: Tensor
    token: Tensor
    own: Tensor
    piece: Tensor
    added: Tensor
    into: Tensor
    known: Tensor
    starts: Tensor

    def of(self, chosen: Tensor) -> GatherPlan:
        """Returns the plan of some of the rows, True in `chosen`, (rows,); the rows of words stay those of all."""
        number = chosen.cumsum(0) - 1  # of every row among those
        row, sentence, token = self.piece[:, chosen[self.piece[0]]]
        names = ["sentence", "word", "token", "own"]
        names += ["added", "into", "known", "starts"] if len(self.added) > 1 else []
        parts = {name: getattr(self, name)[chosen] for name in names}
        return self._replace(piece=torch.stack([number[row], sentence, token]), **parts)


@once_per_batch
def places(tokens: Tokens) -> Places:
    """Locates every word of a padded batch: its first token, and its further tokens in their order."""
    n_words = tokens.n_pieces.shape[1]
    position = torch.arange(tokens.shape[1], device=tokens.word.device).expand(tokens.shape)
    slot = torch.where(tokens.word >= 0, tokens.word, n_words)
    room = torch.full((tokens.shape[0], n_words + 1), tokens.shape[1], device=slot.device)
    first = room.scatter_reduce(1, slot, position, "amin")
    starts = (tokens.word >= 0) & (first.gather(1, slot) == position)
    sentence, token = ((tokens.word >= 0) & ~starts).nonzero(as_tuple=True)
    first = first[:, :n_words]
    return Places(first.where(first < tokens.shape[1], 0), starts, sentence, tokens.word[sentence, token], token)


@once_per_batch
def plan(queries: Tokens, keys: Tokens) -> GatherPlan:
    """Prepare `word_rows` for the words of arcs, repeated words, and all of sentences with rare words or links."""
    here, there = places(queries), places(keys)
    is_query = _wanted(queries, keys)
    sentence, word = is_query.nonzero(as_tuple=True)
    row_of_word = torch.full(is_query.shape, -1, device=is_query.device)
    row_of_word[sentence, word] = torch.arange(len(word), device=is_query.device)
    row = row_of_word[here.sentence, here.word]
    piece = torch.stack([row, here.sentence, here.token])[:, row >= 0]
    # The other pieces of the keys, those of every sentence in a line of their own.
    count = torch.bincount(there.sentence, minlength=len(keys.real))
    within = torch.arange(len(there.token), device=count.device) - (count.cumsum(0) - count)[there.sentence]
    added, into = torch.zeros((2, len(count), int(count.max())), dtype=torch.int64, device=count.device)
    added[there.sentence, within] = there.token
    into[there.sentence, within] = there.first[there.sentence, there.word]
    line = sentence if len(count) > 1 else slice(None)
    return GatherPlan(
        row_of_word=row_of_word,
        sentence=sentence,
        word=word,
        token=here.first[sentence, word],
        own=here.first[sentence, word] + queries.start,
        piece=piece,
        added=added[line],
        into=into[line],
        known=(torch.arange(added.shape[1], device=count.device) < count[:, None]).float()[line],
        starts=there.starts.float()[line],
    )


def _wanted(queries: Tokens, keys: Tokens) -> Tensor:
    """Words somebody asks about: (batch, words)."""
    there = queries.n_pieces > 0
    if queries.whole is not None:
        n_words = there.shape[1]
        inside = there.new_zeros(len(there), n_words + 1)
        there &= inside.scatter(1, torch.where(queries.word >= 0, queries.word, n_words), value=True)[:, :n_words]
    queried = torch.zeros_like(there)
    if queries.arcs is not None:
        for end in (1, 2):
            queried[queries.arcs[:, 0], queries.arcs[:, end]] = True
    if queries.are(keys) and keys.mentions is not None:
        queried[keys.mentions[:, 0], keys.mentions[:, 1]] = True
    if keys.rarity is not None:
        queried |= (keys.rarity > 0).any(1, keepdim=True)
    if queries.links is not None and (not queries.are(keys) or queries.segment is not None):
        linked = torch.zeros_like(there[:, 0])
        linked[queries.links[:, 0]] = True
        queried |= linked[:, None]
    if queries.are(keys) and keys.forms is not None:
        queried |= repeats(keys.forms).others > 0
    return queried & there


class Repeats(NamedTuple):
    """How often the form of a word occurs; (batch, words) each, 0 for what has no form.

    Args:
        others: other words of the sentence with this form.
        earlier: those of them that stand before the word.
    """

    others: Tensor
    earlier: Tensor


def repeats(forms: Tensor) -> Repeats:
    """Counts other occurrences of every word, see `Tokens.forms`; memory grows with the words, not with their pairs."""
    n_words = forms.shape[1]
    sentence = torch.arange(len(forms), device=forms.device)[:, None]
    slot = (sentence * (n_words + 1) + torch.where(forms >= 0, forms, n_words)).flatten()
    number = torch.zeros(len(forms) * (n_words + 1), dtype=torch.int64, device=forms.device)
    number.scatter_add_(0, slot, torch.ones_like(slot))
    order = slot.argsort(stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    earlier = (place - (number.cumsum(0) - number)[slot]).view_as(forms)
    return Repeats((number[slot].view_as(forms) - 1).where(forms >= 0, 0), earlier.where(forms >= 0, 0))


def word_rows(weights: Tensor, chosen: GatherPlan, heads: Tensor, kind: torch.dtype | None = None) -> Tensor:
    """Attention from words to words, each at its first token and 0 elsewhere.

    Sums over the pieces of both, by default in float64 where the device has it: adding pieces in float32 would round,
    and decide between near-equal words. Means over the pieces of the word that attends would point at the same word.

    Args:
        weights: (batch, heads, query, key).
        chosen: which rows.
        heads: numbers of the heads wanted.
        kind: type of the sums.

    Returns:
        (rows, heads, key).
    """
    kind = kind or exact_type(weights)
    _, n_heads, n_queries, n_keys = weights.shape
    flat = weights.reshape(-1, n_keys)

    def fetch(sentence: Tensor, token: Tensor) -> Tensor:
        place = (sentence[:, None] * n_heads + heads) * n_queries + token[:, None]
        return flat.index_select(0, place.flatten()).to(kind).view(len(token), len(heads), n_keys)

    rows = fetch(chosen.sentence, chosen.token)
    row, sentence, token = chosen.piece
    rows.index_add_(0, row, fetch(sentence, token))
    if len(weights) == 1:  # Whole columns are several times as fast.
        rows.index_add_(2, chosen.into[0], rows.index_select(2, chosen.added[0]))
    else:
        added, into = (
            p[:, None].expand(-1, len(heads), -1) for p in (chosen.added, chosen.into)
        )  # (rows, heads, most)
        rows.scatter_add_(2, into, rows.gather(2, added).mul_(chosen.known[:, None]))
    return rows.mul_(chosen.starts[:, None])


def pointed_at(weights: Tensor, chosen: GatherPlan, *, others: bool = False, allowed: Tensor | None = None) -> Tensor:
    """First token of the most attended word of every row, -1 where a head gives all words exactly 0; (rows, heads).

    The first one of several equal words wins.

    Args:
        weights: (batch, heads, query, key).
        chosen: which rows.
        others: leave attention of a word to itself out.
        allowed: tokens that a row may point at; (rows, key).
    """
    size = len(chosen.token) * weights.shape[3]
    # float32 is half the work, and only where it leaves two words near each other do exact sums decide between them. On
    # a GPU the question where that is would be waited for.
    rounded = weights.device.type == "cpu" and weights.dtype == torch.float32
    targets = []

    def candidates(chosen: GatherPlan, heads: Tensor, kind: torch.dtype | None, allowed: Tensor | None) -> Tensor:
        rows = word_rows(weights, chosen, heads, kind)
        if others:
            rows[torch.arange(len(rows), device=rows.device), :, chosen.own] = 0
        return rows if allowed is None else rows.mul_(allowed[:, None])

    for heads in row_chunks(torch.arange(weights.shape[1], device=weights.device), at_once(weights, size)):
        rows = candidates(chosen, heads, weights.dtype if rounded else None, allowed)
        weight, token = largest(rows)
        if rounded:
            second = largest(rows.scatter_(2, token[..., None], -1.0))[0]
            near = ((second >= weight * (1 - _NEAR)) & (weight > 0)).any(1)
            if near.any():
                some = None if allowed is None else allowed[near]
                token[near] = largest(candidates(chosen.of(near), heads, None, some))[1]
        targets.append(token.masked_fill_(weight <= 0, -1))
    return torch.cat(targets, dim=1)

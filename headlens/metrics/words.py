"""From attention between tokens to attention between words (Clark et al. 2019, section 2).

`word_weights` works all of it out. `pointed_at` only finds the most attended word of those that are asked for: most
words are a single token, whose weights are compared as they are, and sums are made of few columns and rows, where a
product with the matrix of all words would touch everything for every word.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headlens.attention.edits_and_observers import PARTS_OF_SPEECH, Tokens
from headlens.metrics.batch_cache import once_per_batch
from headlens.metrics.reductions import at_once, exact_type, largest, row_chunks

# What is no word, such as special tokens, receives attention, too; and words whose part of speech is unknown.
RECEIVERS = (*PARTS_OF_SPEECH, "other")
_NEARLY = 1 - 1e-6  # numbers that differ by no more are equal


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
    """Which rows of a batch to fetch, and which of their columns belong together.

    Args:
        row_of_word: row of every word that is asked for; (batch, words), -1 for others.
        sentence, word, token: of every row; (rows,) each.
        own_key: number of the token among the keys, in self-attention.
        several: the rows of words of several tokens; (n,).
        piece: (3, pieces): of the further tokens of these words their place in `several`, sentence and token.
        columns: of every row what is known of the words attended to.
    """

    row_of_word: Tensor
    sentence: Tensor
    word: Tensor
    token: Tensor
    own_key: Tensor
    several: Tensor
    piece: Tensor
    columns: KeyWords

    def of(self, chosen: Tensor) -> GatherPlan:
        """Returns the plan of some of the rows, by their numbers; only the fields by row are cut."""
        names = ("sentence", "word", "token", "own_key")
        parts = {name: getattr(self, name)[chosen] for name in names}
        return self._replace(columns=self.columns.of(chosen), **parts)


class KeyWords(NamedTuple):
    """Where the words attended to stand; of every sentence, of every row, or of all rows alike.

    Args:
        alone: 1 where the only token of a word stands; (lines, length).
        first: first token of every word of several tokens; (lines, words), 0 past the end.
        parts, slot: the tokens of these words, in order, and the place of the word in `first`, one behind them past the
            end; (lines, most) each.
        shared: whether there is one line for all rows, as of a single sentence.
    """

    alone: Tensor
    first: Tensor
    parts: Tensor
    slot: Tensor
    shared: bool

    def of(self, chosen: Tensor) -> KeyWords:
        """Returns some of the lines, or the same ones again, by their numbers; the only one stays that of all rows."""
        alone, first, parts, slot = (t if self.shared else t[chosen] for t in self[:4])
        return KeyWords(alone, first, parts, slot, self.shared)


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
    """Prepare `pointed_at` for the words of arcs, repeated words, and all of sentences with rare words or links."""
    query_places, key_places = places(queries), places(keys)
    is_query = _wanted(queries, keys)
    sentence, word = is_query.nonzero(as_tuple=True)
    row_of_word = torch.full(is_query.shape, -1, device=is_query.device)
    row_of_word[sentence, word] = torch.arange(len(word), device=is_query.device)
    row = row_of_word[query_places.sentence, query_places.word]
    several, number = torch.unique(row[row >= 0], return_inverse=True)
    return GatherPlan(
        row_of_word=row_of_word,
        sentence=sentence,
        word=word,
        token=query_places.first[sentence, word],
        own_key=query_places.first[sentence, word] + queries.start,
        several=several,
        piece=torch.stack([number, query_places.sentence[row >= 0], query_places.token[row >= 0]]),
        columns=_key_words(key_places).of(sentence),
    )


def _key_words(key_places: Places) -> KeyWords:
    """What is known of the words of every sentence."""
    n_sentences, n_words = key_places.first.shape
    # Words of several tokens, in order; each is named by all but the first of them.
    name, number = torch.unique(key_places.sentence * n_words + key_places.word, return_inverse=True)
    owner = name // max(1, n_words)
    begin = key_places.first.flatten()[name]
    slot, n_slots = _within(owner, n_sentences)
    first = begin.new_zeros(n_sentences, n_slots)
    first[owner, slot] = begin
    # Their first tokens before the others: sorting keeps the order of those of a sentence.
    sentence, order = torch.cat([owner, key_places.sentence]).sort(stable=True)
    within, most = _within(sentence, n_sentences)
    parts = begin.new_zeros(n_sentences, most)
    slots = torch.full_like(parts, n_slots)
    parts[sentence, within] = torch.cat([begin, key_places.token])[order]
    slots[sentence, within] = torch.cat([slot, slot[number]])[order]
    alone = key_places.starts.float()
    alone[owner, begin] = 0
    return KeyWords(alone, first, parts, slots, shared=n_sentences == 1)


def _within(sorted_owner: Tensor, owners: int) -> tuple[Tensor, int]:
    """The place of every item among those of its owner, and how many an owner has at most."""
    count = torch.bincount(sorted_owner, minlength=owners)
    place = torch.arange(len(sorted_owner), device=count.device) - (count.cumsum(0) - count)[sorted_owner]
    return place, int(count.max())


def _wanted(queries: Tokens, keys: Tokens) -> Tensor:
    """Words that metrics ask about: (batch, words)."""
    is_word = queries.n_pieces > 0
    if queries.whole is not None:
        n_words = is_word.shape[1]
        inside = is_word.new_zeros(len(is_word), n_words + 1)
        is_word &= inside.scatter(1, torch.where(queries.word >= 0, queries.word, n_words), value=True)[:, :n_words]
    queried = torch.zeros_like(is_word)
    if queries.arcs is not None:
        for end in (1, 2):
            queried[queries.arcs[:, 0], queries.arcs[:, end]] = True
    if queries.are(keys) and keys.mentions is not None:
        queried[keys.mentions[:, 0], keys.mentions[:, 1]] = True
    if keys.rarity is not None:
        queried |= (keys.rarity > 0).any(1, keepdim=True)
    if queries.links is not None and (not queries.are(keys) or queries.segment is not None):
        linked = torch.zeros_like(is_word[:, 0])
        linked[queries.links[:, 0]] = True
        queried |= linked[:, None]
    if queries.are(keys) and keys.forms is not None:
        queried |= repeats(keys.forms).others > 0
    return queried & is_word


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


@once_per_batch
def one_hot_upos(tokens: Tokens) -> Tensor:
    """1 where a token is of a part of speech, or of none; float, (batch, length, receivers), 0 for padding."""
    assert tokens.upos is not None
    part = torch.where(tokens.word >= 0, tokens.upos.gather(1, tokens.word.clamp(min=0)), -1)
    part = torch.where(part >= 0, part, len(PARTS_OF_SPEECH))
    return torch.nn.functional.one_hot(part, len(RECEIVERS)).float() * tokens.real[..., None]


def pointed_at(weights: Tensor, chosen: GatherPlan, *, others: bool = False, allowed: Tensor | None = None) -> Tensor:
    """First token of the most attended word of every row, -1 where a head gives all words exactly 0; (rows, heads).

    A word's weight is the sum over its tokens, from a word the sum over the tokens of that, which points where their
    mean does. The first one of several equal words wins: sums are made in float64 where the device has it, as rounded
    ones would decide between near-equal words.

    Args:
        weights: (batch, heads, query, key).
        chosen: which rows.
        others: leave attention of a word to itself out.
        allowed: tokens that a row may point at; (rows, key).
    """
    target = _targets(weights, chosen, None, others=others, allowed=allowed)
    if len(chosen.several):
        some = None if allowed is None else allowed[chosen.several]
        part = chosen.of(chosen.several)
        target[chosen.several] = _targets(weights, part, chosen.piece, others=others, allowed=some)
    return target


def _targets(
    weights: Tensor, chosen: GatherPlan, piece: Tensor | None, *, others: bool, allowed: Tensor | None
) -> Tensor:
    """First token of the most attended word of every row; `piece` has the further tokens of words of several."""
    _, n_heads, n_queries, n_keys = weights.shape
    flat = weights.reshape(-1, n_keys)

    def fetch(heads: Tensor, sentence: Tensor, token: Tensor) -> Tensor:
        place = (sentence[:, None] * n_heads + heads) * n_queries + token[:, None]
        return flat.index_select(0, place.flatten()).view(len(token), len(heads), n_keys)

    targets = []
    for heads in row_chunks(torch.arange(n_heads, device=flat.device), at_once(weights, len(chosen.token) * n_keys)):
        rows = fetch(heads, chosen.sentence, chosen.token)
        if piece is not None:
            number, sentence, token = piece
            kind = exact_type(rows)
            rows = rows.to(kind).index_add_(0, number, fetch(heads, sentence, token).to(kind))
        targets.append(_largest_word(rows, chosen, others=others, allowed=allowed))
    return torch.cat(targets, dim=1)


def _largest_word(rows: Tensor, chosen: GatherPlan, *, others: bool, allowed: Tensor | None) -> Tensor:
    """First token of the most attended word of every row, of (rows, heads, key); `rows` is changed."""
    alone, first, parts, slot, shared = chosen.columns
    kind = exact_type(rows)
    sums = rows.new_zeros(*rows.shape[:2], first.shape[1] + 1, dtype=kind)
    if shared:  # Whole columns are several times as fast.
        sums.flatten(0, 1).index_add_(1, slot[0], rows.flatten(0, 1).index_select(1, parts[0]).to(kind))
    else:
        slot, parts = (t[:, None].expand(-1, rows.shape[1], -1) for t in (slot, parts))
        sums.scatter_add_(2, slot, rows.gather(2, parts).to(kind))
    sums = sums[..., :-1]
    first = first.expand(len(rows), -1)
    if others:
        rows[torch.arange(len(rows), device=rows.device), :, chosen.own_key] = 0
        sums.masked_fill_((first == chosen.own_key[:, None])[:, None], 0)
    if allowed is not None:
        rows.mul_(allowed[:, None])
        sums.mul_(allowed.gather(1, first)[:, None])
    weight, token = largest(rows.mul_(alone[:, None]))
    weight = weight.to(kind)
    if first.shape[1]:
        most, place = largest(sums)
        begin = first.gather(1, place)
        better = (most > weight) | ((most == weight) & (begin < token))
        weight, token = torch.where(better, most, weight), torch.where(better, begin, token)
    return token.masked_fill_(weight <= 0, -1)


def tied_words(
    weights: Tensor, chosen: GatherPlan, keys: Tokens, *, others: bool = False, allowed: Tensor | None = None
) -> Tensor:
    """How the words that tie for the largest weight of a row share it; (rows, key), at the first tokens of words.

    As `pointed_at` compares them, for one head: each of n words gets 1/n; rows without any have 0 throughout.

    Args:
        weights: (batch, 1, query, key).
        chosen: which rows.
        keys: the tokens attended to.
        others: leave attention of a word to itself out.
        allowed: tokens that a row may point at; (rows, key).
    """
    rows = weights[chosen.sentence, 0, chosen.token].to(exact_type(weights))
    place, sentence, token = chosen.piece
    rows.index_add_(0, chosen.several[place], weights[sentence, 0, token].to(rows.dtype))
    n_words, first = keys.n_pieces.shape[1], places(keys).first[chosen.sentence]
    word = torch.where(keys.word >= 0, keys.word, n_words)[chosen.sentence]
    sums = rows.new_zeros(len(rows), n_words + 1).scatter_add_(1, word, rows)[:, :-1]
    if others:
        sums.scatter_(1, chosen.word[:, None], 0)
    if allowed is not None:
        sums.mul_(allowed.gather(1, first))
    return torch.zeros_like(rows).scatter_add_(1, first, equal_shares(sums))


def equal_shares(values: Tensor) -> Tensor:
    """What each of the largest of some numbers, none below 0, gets if they share 1; 0 throughout if all are 0.

    Numbers that differ by rounding are equal.
    """
    most = values.amax(-1, keepdim=True) if values.shape[-1] else values
    tied = ((values >= most * _NEARLY) & (most > 0)).to(values.dtype)
    return tied / tied.sum(-1, keepdim=True).clamp(min=1)


class WordsBySize(NamedTuple):
    """The words of every sentence of a batch by their number of tokens.

    Args:
        size: tokens of every word; (batch, words).
        largest: the two largest of them; (batch, 2).
        before: the largest in front of every word; (batch, words).
        ranked: number of tokens times number of words, plus number of the word, in order; (batch, words).
        first: first token of every word; (batch, words).
        runs_forward: whether all tokens of a word stand behind those of the words before.
    """

    size: Tensor
    largest: Tensor
    before: Tensor
    ranked: Tensor
    first: Tensor
    runs_forward: bool


@once_per_batch
def words_by_size(tokens: Tokens) -> WordsBySize:
    """Sorts the words of every sentence by their number of tokens, then by their place."""
    n_words, is_word = tokens.n_pieces.shape[1], tokens.word >= 0
    size = tokens.word.new_zeros(len(tokens.word), n_words + 1)
    size = size.scatter_add_(1, torch.where(is_word, tokens.word, n_words), is_word.long())[:, :-1]
    number = torch.arange(n_words, device=size.device)
    return WordsBySize(
        size=size,
        largest=torch.nn.functional.pad(size, (2, 0)).topk(2, 1).values,
        before=torch.nn.functional.pad(size, (1, 0)).cummax(1).values[:, :-1],
        ranked=(size * n_words + number).sort(1).values,
        first=places(tokens).first,
        runs_forward=bool((~is_word | (tokens.word == tokens.word.cummax(1).values)).all()),
    )


def most_tokens(
    words: WordsBySize, chosen: GatherPlan, queries: Tokens, weight: Tensor | None, *, others: bool
) -> tuple[Tensor, Tensor]:
    """What `tied_words` gives of the null head, without its weights and with no more columns than words that tie.

    Of words in front of a query those of most tokens get most; in a causal stack the query's own tokens, of which the
    first see fewer, are weighed beside them.

    Args:
        words: the words attended to.
        chosen: the rows.
        queries: the tokens that attend.
        weight: in a causal stack, of every key that a query sees; (batch, query). None elsewhere.
        others: leave attention of a word to itself out.

    Returns:
        First tokens of words, and how these share the row, 0 for what only fills a column; (rows, ties).
    """
    most, behind = words.largest[:, :1], torch.full_like(words.largest[:, :1], words.size.shape[1])
    if weight is not None:
        most, behind = words.before, torch.arange(words.size.shape[1], device=most.device).expand_as(words.size)
    elif others:  # the second largest where only the row's own word is as large as the largest
        most = most.where(words.size < most, words.largest[:, 1:])
        behind = behind.expand_as(most)
    n_words, sentence = max(1, words.size.shape[1]), chosen.sentence
    start, stop = (torch.searchsorted(words.ranked, most * n_words + end) for end in (0, behind))
    column = chosen.word.clamp(max=max(0, most.shape[1] - 1))
    start, stop, most = (t[sentence, column] for t in (start, stop.where(most > 0, start), most))
    place = start[:, None] + torch.arange(int((stop - start).max()) if len(start) else 0, device=start.device)
    tied = place < stop[:, None]
    word = words.ranked.flatten()[sentence[:, None] * n_words + place.clamp(max=n_words - 1)] % n_words
    if others:
        tied &= word != chosen.word[:, None]
    elif weight is not None:
        to_each, own = (t[sentence, chosen.word] for t in _given_by_words(queries, weight))
        largest = torch.maximum(most * to_each, own)
        is_own = (own >= largest * _NEARLY) & (own > 0)
        tied = torch.cat([tied & (most * to_each >= largest * _NEARLY)[:, None], is_own[:, None]], 1)
        word = torch.cat([word, chosen.word[:, None]], 1)
    share = tied.to(exact_type(tied))
    return words.first[sentence[:, None], word], share / share.sum(1, keepdim=True).clamp(min=1)


def _given_by_words(queries: Tokens, weight: Tensor) -> tuple[Tensor, Tensor]:
    """What words give to each token in front of them, and to their own, under a causal null head; (batch, words)."""
    is_word, n_words = queries.word >= 0, queries.n_pieces.shape[1]
    slot = torch.where(is_word, queries.word, n_words)
    number = is_word.long().cumsum(1)
    room = weight.new_zeros(len(weight), n_words + 1)
    begun = torch.full_like(room, number.shape[1] + 1, dtype=number.dtype).scatter_reduce(1, slot, number, "amin")
    own = (number - begun.gather(1, slot) + 1) * weight  # the first token sees one of them
    return room.scatter_add(1, slot, weight)[:, :-1], room.scatter_add(1, slot, own)[:, :-1]

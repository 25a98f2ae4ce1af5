"""From attention between tokens to attention between words (Clark et al. 2019, section 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headlens.attention.contract import Tokens
from headlens.metrics.batch_cache import once_per_batch


@dataclass(frozen=True, eq=False)
class WordLevel:
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
        units = torch.arange(self.n_pieces.shape[1], device=self.unit.device)
        return (self.unit[:, :, None] == units).to(dtype)


@once_per_batch
def word_level(tokens: Tokens) -> WordLevel:
    """Group the tokens of a batch into words."""
    unit = _units(tokens)
    n_units = int(unit.max()) + 1
    slot = unit.clamp(min=0)
    shape = (unit.shape[0], n_units)

    def count(flag: Tensor) -> Tensor:
        zeros = torch.zeros(shape, dtype=torch.int64, device=unit.device)
        return zeros.scatter_add(1, slot, (flag & tokens.real).long())

    pieces = count(tokens.real)
    words = word_of_unit(tokens, slot, shape)
    facts = {name: count(getattr(tokens, name)) > 0 for name in ("cls", "sep", "bos", "eos")}
    grouped = Tokens(
        real=pieces > 0,
        special=(count(tokens.special) > 0) | (pieces == 0),
        punct=(count(tokens.punct) == pieces) & (pieces > 0),
        word=words,
        n_words=tokens.n_words,
        n_pieces=(tokens.n_pieces > 0).long(),
        arcs=tokens.arcs,
        rarity=tokens.rarity,
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


def word_of_unit(tokens: Tokens, slot: Tensor, shape: tuple[int, int]) -> Tensor:
    """Which word of the sentence a unit is; -1 for special tokens, tokens of no word and padding."""
    none = torch.full(shape, -1, dtype=torch.int64, device=slot.device)
    return none.scatter_reduce(1, slot, torch.where(tokens.real, tokens.word, -1), "amax")


def _unit_of_word(words: Tensor, n_words: int) -> Tensor:
    """Invert `word_of_unit`: (batch, units) -> (batch, words)."""
    numbers = torch.arange(words.shape[1], device=words.device).expand_as(words)
    room = torch.full((words.shape[0], n_words + 1), -1, dtype=torch.int64, device=words.device)
    slot = torch.where(words >= 0, words, n_words)
    return room.scatter(1, slot, numbers)[:, :n_words]


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
    weights = weights.to(torch.float32 if weights.device.type == "mps" else torch.float64)
    to_words = torch.matmul(weights, keys.membership(weights.dtype)[:, None])
    sums = torch.matmul(queries.membership(weights.dtype).transpose(1, 2)[:, None], to_words)
    # Divided last: thirds do not add up to one, and would decide between equal words.
    return sums.div_(queries.n_pieces.clamp(min=1)[:, None, :, None])

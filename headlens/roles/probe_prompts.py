"""Prompts of random tokens on which roles of heads show: repeated, without repetition, and repeated at random gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from headlens.corpora.batches import Ids
from headlens.errors import OptionError

BLOCK, COPIES = 25, 4  # Olsson et al. 2022
_SHORTEST = 4  # tokens of a block; of fewer, most keys are targets
_EXTREME = 0.05  # of a vocabulary at both of its ends is left out
Places = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ProbePrompts:
    """Prompts of one length, in which the same places are looked at.

    Args:
        ids: (prompts, length).
        following: of every prompt, which keys are what followed the query's token at its earlier copies: (prompts,
            query, key).
        copies: which keys are earlier copies of the query's token.
        shifted: which keys stand where `following` would be if there were no gaps between copies.
        shifted_copies: the same of `copies`.
    """

    ids: Ids
    following: Places
    copies: Places
    shifted: Places
    shifted_copies: Places


@dataclass(frozen=True)
class PromptSets:
    """The prompts of all probes for one model.

    Args:
        first: how many tokens stand before the random ones: that for the beginning of texts, if there is one.
        last: how many stand after them.
        block: tokens that are repeated.
        repeated: the block four times.
        fresh: as many tokens, none of them twice; the places are those of `repeated`.
        gapped: the block again after gaps of random length.
    """

    first: int
    last: int
    block: int
    repeated: ProbePrompts
    fresh: ProbePrompts
    gapped: ProbePrompts


def common_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns ids of tokens that are neither special nor among the first or last twentieth of the vocabulary.

    Tokenizers number tokens about by frequency (the merges of byte-pair encoding, BERT's pieces), so that these are the
    most and the least frequent ones, which Olsson et al. (2022) leave out.
    """
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    ids = sorted(set(tokenizer.get_vocab().values()) - special)
    cut = int(_EXTREME * len(ids))
    return ids[cut : len(ids) - cut]


def make_prompts(
    tokenizer: PreTrainedTokenizerBase, limit: int | None, prompts: int, seed: int, *, causal: bool
) -> PromptSets:
    """Draws prompts that a model reads whole; equal seeds give equal prompts.

    Args:
        tokenizer: of the model.
        limit: most tokens that the model reads; None for any number.
        prompts: how many of each kind.
        seed: of the draws.
        causal: whether it is a decoder; the texts of others end in a token for that, too.

    Raises:
        OptionError: if the model reads fewer tokens than four short blocks, or has too few tokens.
    """
    begin = [tokenizer.cls_token_id, tokenizer.bos_token_id, *([tokenizer.eos_token_id] if causal else [])]
    first = [i for i in begin if i is not None][:1]
    end = [] if causal else [i for i in (tokenizer.sep_token_id, tokenizer.eos_token_id) if i is not None][:1]
    room = (limit or 10**6) - len(first) - len(end)
    block, ids = min(BLOCK, room // COPIES), np.array(common_ids(tokenizer))
    if block < _SHORTEST:
        raise OptionError(
            f"--probes: the model reads {limit} tokens, too few for {COPIES} copies of {_SHORTEST}.",
            "Leave --probes out, or give a model that reads longer texts.",
        )
    if len(ids) < COPIES * block:
        raise OptionError(
            f"--probes: the vocabulary has {len(ids)} tokens to draw from, and {COPIES * block} different ones are "
            "needed.",
            "Leave --probes out.",
        )
    rng = np.random.default_rng(seed)
    drawn = [rng.permutation(ids)[: COPIES * block] for _ in range(prompts)]
    starts = [number * block for number in range(COPIES)]
    whole = (len(first), len(end), block)
    # Three copies with two gaps take the room of four.
    gaps = [rng.integers(1, block // 2, size=2, endpoint=True) for _ in range(prompts)]
    apart = [[0, block + a, 2 * block + a + b] for a, b in gaps]
    return PromptSets(
        *whole,
        _placed([np.tile(d[:block], COPIES) for d in drawn], [starts] * prompts, first, end, block),
        _placed(drawn, [starts] * prompts, first, end, block),
        _placed([_gapped(d, places, block) for d, places in zip(drawn, apart, strict=True)], apart, first, end, block),
    )


def _gapped(drawn: Ids, starts: Sequence[int], block: int) -> Ids:
    """The first block at these places of a text, and other tokens, none of them twice, everywhere else."""
    text = np.array(drawn[block:], dtype=np.int64)
    made = np.resize(text, COPIES * block)  # places that copies take are overwritten
    taken = np.add.outer(starts, np.arange(block))
    made[np.setdiff1d(np.arange(COPIES * block), taken)] = text[: COPIES * block - 3 * block]
    for start in starts:
        made[start : start + block] = drawn[:block]
    return made


def _placed(
    texts: Sequence[Ids], starts: Sequence[Sequence[int]], first: list[int], end: list[int], block: int
) -> ProbePrompts:
    """Prompts with the places of their copies, whose starts are counted from the first random token."""
    length = len(first) + len(texts[0]) + len(end)
    shape = (len(texts), length, length)
    following, copies, shifted, shifted_copies = (np.zeros(shape, bool) for _ in range(4))
    for number, places in enumerate(starts):
        for copy, start in enumerate(places):
            for offset in range(block):
                query = len(first) + start + offset
                earlier = [len(first) + s + offset for s in places[:copy]]
                straight = [query - block * back for back in range(1, copy + 1)]
                copies[number, query, earlier] = True
                following[number, query, [key + 1 for key in earlier]] = True
                shifted_copies[number, query, straight] = True
                shifted[number, query, [key + 1 for key in straight]] = True
    # Where a place is both, as without gaps, there is nothing to compare.
    ids = np.array([[*first, *text, *end] for text in texts], dtype=np.int64)
    return ProbePrompts(ids, following, copies, shifted & ~following, shifted_copies & ~copies)

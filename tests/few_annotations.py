"""Annotations of tokens at random, of every kind that metrics know."""

from __future__ import annotations

import torch

from headlens.attention.edits_and_observers import Tokens


def annotated(tokens: Tokens, seed: int) -> Tokens:
    """With trees, rare and repeated words, parts of speech, mentions and sampled queries, all at random."""
    generator = torch.Generator().manual_seed(seed)
    words, arcs, mentions = tokens.n_pieces, list[list[int]](), list[list[int]]()

    def below(most: int) -> int:
        return int(torch.randint(most, (), generator=generator))

    for sentence, n_words in enumerate((words > 0).sum(1).tolist()):
        if n_words > 1:
            arcs += [[sentence, *torch.randperm(n_words, generator=generator)[:2].tolist(), below(2)] for _ in range(3)]
        mentions += [[sentence, word, below(2), below(2), below(2), below(2)] for word in range(n_words)]

    def of_words(lowest: int, most: int) -> torch.Tensor:
        values = torch.randint(lowest, most, words.shape, generator=generator)
        return values.where(words > 0, min(lowest, 0))

    return tokens.annotated(
        arcs=torch.tensor(arcs, dtype=torch.int64).view(-1, 4),
        mentions=torch.tensor(mentions, dtype=torch.int64).view(-1, 6),
        rarity=of_words(0, 3),
        forms=of_words(-1, 2),
        upos=of_words(-1, 17),
        sampled=torch.tensor([below(int(n)) for n in tokens.real.sum(1)]),
    )

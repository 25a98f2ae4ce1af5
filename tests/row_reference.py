"""What rows of weights say, from the weights themselves in float64: what the kernels of rows are compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from headlens.attention.edits_and_observers import Tokens
from headlens.attention.rows import RowFacts, Rows, RowStatistics


class RowsOfWeights(Rows):
    """The rows of weights (batch, heads, query, key) that add up to 1, of queries and keys of a batch."""

    def __init__(self, weights: Tensor, queries: Tokens, keys: Tokens, to_tokens: Tensor | None = None) -> None:
        self.map, self.queries, self.keys, self.to_tokens = weights.double(), queries, keys, to_tokens

    def fill(self, statistics: RowStatistics, facts: RowFacts) -> None:
        """Writes what there is memory for."""
        found = self.found(facts.query_parts, facts.key_parts)
        for name, value in found.items():
            room = getattr(statistics, name)
            if room is not None:
                room.copy_(value)

    def weights(self, sentence: Tensor, query: Tensor) -> Tensor:
        """Rows by their sentence and place."""
        return self.map[sentence, :, query].transpose(0, 1).float()

    def found(self, query_parts: Tensor | None = None, key_parts: Tensor | None = None) -> dict[str, Tensor]:
        """All statistics by the names of `RowStatistics`."""
        weights, keys = self.map, self.keys
        peak = weights.masked_fill(keys.special[:, None, None], 0).max(-1)
        away = torch.arange(weights.shape[3]) - torch.arange(weights.shape[2])[:, None]
        found = {
            "highest": weights.amax(-1),
            "between": weights.masked_fill((~keys.real | keys.separator)[:, None, None], 0).amax(-1),
            "peak": peak.values,
            "peak_key": peak.indices.masked_fill(peak.values <= 0, -1),
            "entropy": torch.special.entr(weights).sum(-1),
            "distance": (weights * away.abs()).sum(-1),
            "previous": (weights * (away == -1)).sum(-1),
            "itself": (weights * (away == 0)).sum(-1),
            "following": (weights * (away == 1)).sum(-1),
            "received": (weights * self.queries.real[:, None, :, None]).sum(2),
        }
        if self.to_tokens is not None:
            real = self.queries.real[:, None] * self.to_tokens.double()
            found["read"] = (weights * real[..., None]).sum(2)
        if query_parts is not None and key_parts is not None:
            found["parts"] = torch.einsum("bhqk,bqf,bkt->bhft", weights, query_parts.double(), key_parts.double())
        for name, of_words in self.word_sums().items():
            best = of_words.max(-1)
            found[name] = best.indices.masked_fill(best.values <= 0, -1)
        return found

    def word_sums(self) -> dict[str, Tensor]:
        """Weights between words, added up over the tokens of both, (batch, heads, word, word); of others alone, too."""
        sums = torch.einsum("bqu,bhqk,bkw->bhuw", member(self.queries), self.map, member(self.keys))
        return {"words": sums, "other_words": sums.masked_fill(torch.eye(*sums.shape[2:], dtype=torch.bool), 0)}


def member(tokens: Tokens) -> Tensor:
    """1 where a token belongs to a word; (batch, length, words)."""
    words = torch.arange(tokens.n_pieces.shape[1])
    return (tokens.word[:, :, None] == words).double()

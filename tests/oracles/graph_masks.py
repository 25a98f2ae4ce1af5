"""The mask of one text from its graph of words, the counterpart of `GraphCache`, which makes those of a batch."""

from __future__ import annotations

import numpy as np

from headlens.corpora.encoding import EncodedSequence, TokenKind
from headlens.corpora.word_graphs import Allowed


def token_mask(graph: Allowed, sequence: EncodedSequence) -> Allowed:
    """Expands a graph to a mask of tokens, True where a query may look: (n, n), symmetric.

    Tokens look at those of connected words and of their own word, special tokens at all and all at them. A token that
    belongs to no word looks at itself and the special ones.

    Args:
        graph: graph over the words, (m, m), see `word_graph`.
        sequence: the n tokens of the text.
    """
    unit = np.asarray(sequence.units, dtype=np.int64)
    special = (np.asarray(sequence.kinds) & int(TokenKind.SPECIAL)) > 0
    looped = graph | np.eye(len(graph), dtype=bool)
    mask = np.eye(len(unit), dtype=bool) | special[:, None] | special[None, :]
    inside = np.flatnonzero(unit >= 0)  # tokens of words
    mask[np.ix_(inside, inside)] |= looped[np.ix_(unit[inside], unit[inside])]
    return mask

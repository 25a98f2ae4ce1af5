"""Mentions and their antecedents: whether entmax looks from one to the other, and whether that is predicted."""

from __future__ import annotations

from collections import defaultdict

import pandas as pd
from torch import Tensor

from headlens.analyses.sparsefinder.predictors import Predictor
from headlens.analyses.sparsefinder.query_key_store import AntecedentPair, QueryKeyStore

ANTECEDENT_COLUMNS = ["head", "sentence", "mention", "antecedent", "distance", "weight", "gold", "predicted"]
_BATCH = 16


def antecedents(store: QueryKeyStore, site: str, predictor: Predictor) -> pd.DataFrame:
    """Whether each head looks, and is predicted to look, from each mention to its nearest antecedent.

    Of words of several tokens any pair of tokens counts.

    Args:
        store: collected sentences.
        site: such as `encoder.0`; cross-attention has no antecedents.
        predictor: whose graphs are asked.

    Returns:
        Columns `ANTECEDENT_COLUMNS`, a row for each head and mention that has an antecedent in its sentence: the number
        of the `sentence` from 0, the head words of both, how many tokens apart they begin, the largest `weight` of a
        pair of their tokens, whether it is above 0 (`gold`), and whether a pair is `predicted`, both 0 or 1.
    """
    by_batch: dict[int, list[AntecedentPair]] = defaultdict(list)
    for pair in store.antecedents(site):
        by_batch[pair.sentence // _BATCH].append(pair)
    rows = []
    for number, batch in enumerate(store.batches(site, _BATCH) if by_batch else ()):
        if number not in by_batch:
            continue
        graph = predictor.graph(batch).expand_as(batch.weights)
        for pair in by_batch[number]:
            weight, predicted = (_highest(pairs, pair) for pairs in (batch.weights, graph))
            told = (pair.sentence, pair.mention, pair.antecedent, pair.query[0] - pair.key[0])
            for head, value in enumerate(weight.tolist()):
                rows.append((head, *told, value, int(value > 0), int(predicted[head])))
    return pd.DataFrame(rows, columns=ANTECEDENT_COLUMNS)


def _highest(pairs: Tensor, pair: AntecedentPair) -> Tensor:
    """The highest number of the pairs of tokens of two words, `(heads,)`, of `(batch, heads, query, key)`."""
    (first, last), (key_first, key_last) = pair.query, pair.key
    return pairs[pair.sentence % _BATCH, :, first : last + 1, key_first : key_last + 1].amax(dim=(1, 2))

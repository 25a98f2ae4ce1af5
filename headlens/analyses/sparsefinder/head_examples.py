"""Heads on one sentence: where entmax looks, what is predicted, and where it looks then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import torch

from headlens.analyses.attend.analysis import batch_of_one
from headlens.analyses.sparsefinder.options import ShownOptions
from headlens.analyses.sparsefinder.predicted_graph_edit import PredictedGraphEdit
from headlens.analyses.sparsefinder.predictors import Predictor, QueryKeyVectors
from headlens.attention.capture import Capture
from headlens.attention.contract import AttentionCall, Edit, Observer
from headlens.attention.session import AttentionSession
from headlens.attention.sites import check_heads, find_sites
from headlens.corpora.annotations import AnnotationCounts, Annotator
from headlens.corpora.sentence import Example
from headlens.errors import OptionError
from headlens.heads import KEY_COLUMNS, Head, parse_heads
from headlens.models.loading import LoadedModel, tokenizer_of
from headlens.runs.corpus_reader import CorpusReader

EXAMPLE_COLUMNS = [
    *KEY_COLUMNS,
    *("query", "key", "query_token", "key_token", "weight", "predicted", "restricted"),
]


def check_shown(options: ShownOptions, loaded: LoadedModel, other: Example) -> None:
    """Refuse what cannot be drawn, before there is anything to draw.

    Args:
        options: which heads, and on what.
        loaded: the model.
        other: any sentence of the corpus, for want of a text.

    Raises:
        OptionError: if the model has no such head, or that reads translations and there is none.
        CorpusError: if it cannot read the sentence.
    """
    feed, heads = CorpusReader.of(loaded, options.example or other), parse_heads(options.heads)
    if options.example is not None:
        batch_of_one(feed, options.example)
    check_heads(heads, find_sites(loaded.model))
    stacks = {site.stack for site in feed.sites}
    for head in heads:
        if head.stack not in stacks:
            raise OptionError(f"{head} reads a translation.", "Give that of --text with --target-text.")


class _Vectors(Observer):
    """Keeps queries and keys of one sentence, by site."""

    def __init__(self) -> None:
        self.vectors: dict[str, QueryKeyVectors] = {}

    def observe(self, call: AttentionCall) -> None:
        """Keep one call."""
        assert call.queries is not None
        assert call.keys is not None
        real = call.queries.real.bool().cpu(), call.keys.real.bool().cpu()
        own = call.query.float().cpu(), call.key_of_heads.float().cpu()
        self.vectors[str(call.site)] = QueryKeyVectors(*own, *real, causal=call.site.stack == "decoder")


def example_heads(
    loaded: LoadedModel, example: Example, predictors: Mapping[str, Predictor], heads: Sequence[Head]
) -> pd.DataFrame:
    """Weights of some heads on a sentence, as they are and over predicted graphs.

    Args:
        loaded: the model.
        example: the sentence, with its translation for cross-attention and decoders.
        predictors: by site; each restricts its own site alone, so that what comes before stays as it is.
        heads: those that are shown.

    Returns:
        Columns `EXAMPLE_COLUMNS`, a row for each pair of a head; `predicted` is 0 or 1, `restricted` the weight then.
    """
    feed = CorpusReader.of(loaded, example)
    batch = next(feed.batches([example]))
    tokens = Annotator(()).annotate(batch, AnnotationCounts(), decoder_only=feed.decoder_only)

    def watched(edits: Sequence[Edit]) -> tuple[dict[str, torch.Tensor], dict[str, QueryKeyVectors]]:
        seen, vectors = Capture(), _Vectors()
        session = AttentionSession(feed.model, observers=[seen, vectors], edits=edits)
        with torch.inference_mode(), session, session.batch(tokens):
            feed.model(**batch.inputs, **feed.arguments)
        return {str(site): weights[0] for site, weights in seen.weights.items()}, vectors.vectors

    whole, vectors = watched([])
    sides = [batch.source, batch.source if batch.target is None else batch.target]
    words = [tokenizer_of(loaded).convert_ids_to_tokens(side.ids[0].tolist()) for side in sides if side.ids is not None]
    rows = []
    for head in heads:
        site = f"{head.stack}.{head.layer}"
        then, _ = watched([PredictedGraphEdit({site: predictors[site]})])
        graph = predictors[site].graph(vectors[site])
        own = graph[0, head.head if graph.shape[1] > 1 else 0]
        # what a decoder may not look at is not predicted either
        own = (own.tril() if head.stack == "decoder" else own).float()
        queries, keys = words[head.stack != "encoder"], words[head.stack == "decoder"]
        for i, query in enumerate(queries):
            for j, key in enumerate(keys):
                numbers = (float(t[i, j]) for t in (whole[site][head.head], own, then[site][head.head]))
                rows.append((head.stack, head.layer, head.head, i, j, query, key, *numbers))
    return pd.DataFrame(rows, columns=EXAMPLE_COLUMNS)

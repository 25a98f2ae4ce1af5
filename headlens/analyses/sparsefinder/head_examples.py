"""Heads on one sentence: where entmax looks, what is predicted, and where it looks over the prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

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

EXAMPLE_COLUMNS = [*KEY_COLUMNS, "query", "key", "query_token", "key_token", "weight", "predicted", "restricted"]


def check_shown(options: ShownOptions, loaded: LoadedModel, fallback: Example) -> None:
    """Refuses heads and sentences that cannot be drawn, before there is anything to draw.

    Args:
        options: which heads, and on what sentence.
        loaded: the model.
        fallback: any sentence of the corpus, for want of a text.

    Raises:
        OptionError: if the model has no such head, or that reads translations and there is none.
        CorpusError: if it cannot read the sentence.
    """
    reader, heads = CorpusReader.of(loaded, options.example or fallback), parse_heads(options.heads)
    if options.example is not None:
        batch_of_one(reader, options.example)
    check_heads(heads, find_sites(loaded.model))
    stacks = {site.stack for site in reader.sites}
    for head in heads:
        if head.stack not in stacks:
            raise OptionError(f"{head} reads a translation.", "Give that of --text with --target-text.")


class _Vectors(Observer):
    """Keeps queries and keys of one sentence, by site."""

    def __init__(self) -> None:
        self.vectors: dict[str, QueryKeyVectors] = {}

    def observe(self, call: AttentionCall) -> None:
        """Keeps the queries and keys of one call, in float32 on the processor."""
        assert call.queries is not None
        assert call.keys is not None
        vectors = call.query.float().cpu(), call.key_of_heads.float().cpu()
        real = call.queries.real.bool().cpu(), call.keys.real.bool().cpu()
        self.vectors[str(call.site)] = QueryKeyVectors(*vectors, *real, causal=call.site.stack == "decoder")


def example_heads(
    loaded: LoadedModel, example: Example, predictors: Mapping[str, Predictor], heads: Sequence[Head]
) -> pd.DataFrame:
    """Weights of some heads on a sentence, as they are and over predicted graphs.

    Args:
        loaded: the model.
        example: the sentence, with its translation for cross-attention and decoders.
        predictors: by site; each restricts its own site alone, so that what comes before stays as it is.
        heads: those that are drawn.

    Returns:
        Columns `EXAMPLE_COLUMNS`, a row for each pair of a head; `predicted` is 0 or 1, `restricted` the weight over
        the predicted graph.
    """
    reader = CorpusReader.of(loaded, example)
    batch = next(reader.batches([example]))
    tokens = Annotator(()).annotate(batch, AnnotationCounts(), decoder_only=reader.decoder_only)

    def run(*edits: Edit) -> tuple[dict[str, torch.Tensor], dict[str, QueryKeyVectors]]:
        """Weights `(heads, query, key)` and vectors by site."""
        capture, vectors = Capture(), _Vectors()
        session = AttentionSession(reader.model, observers=[capture, vectors], edits=edits)
        with torch.inference_mode(), session, session.batch(tokens):
            reader.model(**batch.inputs, **reader.arguments)
        return {str(site): weights[0] for site, weights in capture.weights.items()}, vectors.vectors

    intact, vectors = run()
    sides = [batch.source, batch.source if batch.target is None else batch.target]
    words = [tokenizer_of(loaded).convert_ids_to_tokens(side.ids[0].tolist()) for side in sides if side.ids is not None]
    rows = []
    for head in heads:
        site = f"{head.stack}.{head.layer}"
        restricted, _ = run(PredictedGraphEdit({site: predictors[site]}))
        weights = intact[site][head.head]
        # (query, key); a decoder's later keys are not predicted either
        graph = predictors[site].graph(vectors[site]).expand(-1, len(intact[site]), -1, -1)[0, head.head].float()
        graph = graph.tril() if head.stack == "decoder" else graph
        maps = torch.stack([weights, graph, restricted[site][head.head]], dim=-1).tolist()
        queries, keys = words[head.stack != "encoder"], words[head.stack == "decoder"]
        for (i, query), (j, key) in product(enumerate(queries), enumerate(keys)):
            rows.append((*head, i, j, query, key, *maps[i][j]))
    return pd.DataFrame(rows, columns=EXAMPLE_COLUMNS)

"""The tables of Sparsefinder: every point, the areas under curves, heads, what clusters contain, and examples.

Examples are heads on one sentence: where entmax looks, what is predicted, and where it looks over the prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch

from headlens.analyses.sparsefinder.contents import (
    antecedents,
    cluster_contents,
    information,
    pos_pairs,
)
from headlens.analyses.sparsefinder.options import ShownOptions, SparsefinderRequest
from headlens.analyses.sparsefinder.pareto_curves import areas, with_curves
from headlens.analyses.sparsefinder.pareto_points import (
    POINT,
    TIMES_COLUMNS,
    SparsitySweepResult,
    joined_sites,
    key_of,
    predictor_of,
)
from headlens.analyses.sparsefinder.predictors import Predictor, QueryKeyVectors, cluster_predictor
from headlens.analyses.sparsefinder.query_key_store import SPECIAL, UNKNOWN, QueryKeyStore
from headlens.analyses.sparsefinder.restricted_task import CurvePointResult, PredictedGraphEdit
from headlens.attention.capture import Capture
from headlens.attention.edits_and_observers import AttentionCall, Edit, Observer
from headlens.attention.session import AttentionSession
from headlens.attention.sites import check_heads, find_sites
from headlens.corpora.annotations import AnnotationCounts, Annotator
from headlens.corpora.sentence import Corpus, Example
from headlens.errors import OptionError
from headlens.findings.verdicts import with_family_verdicts
from headlens.heads import KEY_COLUMNS, Head, parse_heads
from headlens.maps.sentence_attention import batch_of_one, shown_examples
from headlens.models.loading import LoadedModel, tokenizer_of
from headlens.runs.corpus_pass import CorpusReader
from headlens.tables.sparsefinder_tables import AREAS, EXAMPLES_OF_HEADS, GOLD, METRICS, PARETO, SPARSE_EXAMPLE

_ESTIMATE = ["task", "metric", "value", "ci_low", "ci_high", "task_sparsity", "chance", "answer_share"]
# The point where no pair is predicted, so that queries look at their own places.
NOTHING = {"method": "window", "parameter": "window", "value_of_parameter": 0.0, "window": 0, "global_tokens": 0}
_EXAMPLES = 3  # heads that are drawn
_FIXED = ("window", "longformer")  # methods that know places alone


@dataclass(frozen=True)
class RestrictedTaskResult:
    """Metrics of a task over predicted graphs.

    Args:
        task: its name; empty without one.
        metric: the one that is drawn.
        results: by stack and point, see `key_of`.
        stacks: those that were restricted.
        notes: what the reader should know about the task.
    """

    task: str = ""
    metric: str = ""
    results: Mapping[tuple[Any, ...], CurvePointResult] = field(default_factory=dict)
    stacks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def examples(self) -> int:
        """How many examples of the task were measured, the same ones at all points."""
        return max((len(result.keys) for result in self.results.values()), default=0)


def head_table(pareto: pd.DataFrame, contents: pd.DataFrame) -> pd.DataFrame:
    """Makes a row for each head: how sparse it is, how well that is predicted, and what its clusters tell.

    Args:
        pareto: of all heads, see `SparsitySweep.run`.
        contents: see `cluster_contents`.

    Returns:
        Columns stack, layer, head, `sparsity` of entmax itself, `area_METHOD` under each method's curve of recall, and
        `information`, what the clusters tell about parts of speech, empty where nobody knows these.
    """
    by_head = {
        (*site, head): share
        for site, rows in contents.groupby(["stack", "layer"], sort=False)
        for head, share in information(rows).items()
    }
    heads = []
    for key, points in pareto.groupby(KEY_COLUMNS, sort=False):
        by_method = {f"area_{row.method}": row.area for row in areas(points).itertuples() if row.method != GOLD}
        gold = float(points.loc[points["method"] == GOLD, "sparsity"].iloc[0])
        head = dict(zip(KEY_COLUMNS, key, strict=True))
        heads.append({**head, "sparsity": gold, **by_method, "information": by_head.get(key)})
    return pd.DataFrame(heads).astype({"information": float})


@dataclass(frozen=True, eq=False)
class Findings:
    """Everything that was measured of a model.

    Args:
        request: says the parameters, and which heads are drawn on which sentence.
        loaded: the model.
        held_out: the sentences that were measured on.
        store: what was collected of these.
        swept: points of all heads, what was learned, and samples.
        points: points of stacks, see `of_stacks`.
        restricted: a task at some of these.
    """

    request: SparsefinderRequest
    loaded: LoadedModel
    held_out: Corpus
    store: QueryKeyStore
    swept: SparsitySweepResult
    points: pd.DataFrame
    restricted: RestrictedTaskResult

    def tables(self) -> dict[str, pd.DataFrame]:
        """Makes the tables by the names of their files.

        `pareto`, `areas`, `heads`, where they can be had `metrics`, `clusters`, `pos_pairs`, `antecedents` and
        `examples`; with blocks `times`.
        """
        count, fitted = self.request.counted_clusters, self.swept.fitted
        contents = joined_sites({s: cluster_contents(self.store, s, fits, count) for s, fits in fitted.items()})
        clusters = {
            site: cluster_predictor(fits.centroids[count], fits.projections, self.request.grid.top)
            for site, fits in fitted.items()
        }
        pairs, mentions = (
            joined_sites({site: measured(self.store, site, fits) for site, fits in clusters.items()})
            for measured in (pos_pairs, antecedents)
        )
        levels = with_curves(self._points_with_metric()), with_curves(self.swept.heads, KEY_COLUMNS)
        pareto = pd.concat(levels, ignore_index=True).reindex(columns=PARETO.names[1:-1])
        heads = head_table(self.swept.heads, contents)
        tables = {"pareto": pareto.astype({"layer": "Int64", "head": "Int64"}), "areas": self._areas(), "heads": heads}
        if self.restricted.results:
            tables["metrics"] = self._metrics()
        if self.request.grid.block_size is not None:
            by_layer = self.swept.times.groupby(["stack", *TIMES_COLUMNS[:-1]], sort=False, dropna=False)
            tables["times"] = by_layer["cpu_seconds"].sum().reset_index()
        if not set(contents["tag"]) <= {SPECIAL, UNKNOWN}:
            shares = {f"{name}_share": pairs[name] / pairs["pairs"] for name in ("gold", "predicted")}
            tables |= {"clusters": contents.assign(clusters=count), "pos_pairs": pairs.assign(clusters=count, **shares)}
        if len(mentions):
            tables["antecedents"] = mentions.assign(clusters=count)
        example = self.request.shown.example or next(iter(shown_examples(self.held_out, self.loaded)), None)
        if example is not None:
            drawn = parse_heads(self.request.shown.heads) or self._best(heads, example)
            tables["examples"] = pd.concat([self._example(example, head) for head in drawn], ignore_index=True)
        for table in tables.values():
            table.insert(0, "model", self.loaded.short_name)
        return tables

    def _metrics(self) -> pd.DataFrame:
        """All metrics of the points that the task was tried at."""
        # Of attention that is not restricted, on the same examples.
        chances = next((result.chances for result in self.restricted.results.values() if result.chances), {})
        rows = [
            {
                **point,
                "task": self.restricted.task,
                "task_sparsity": result.sparsity,
                "metric": name,
                **asdict(metric),
                **result.differences.get(name, {}),
                "n": self.restricted.examples,
                "chance": chances.get(name),
                "same_answer": result.answer_shares.get(name, np.nan) == 1,
                "answer_share": result.answer_shares.get(name),
            }
            for point in self.points.to_dict("records")
            if (result := self.restricted.results.get((point["stack"], *key_of(point)))) is not None
            for name, metric in result.metrics.items()
        ]
        return with_family_verdicts(pd.DataFrame(rows, columns=METRICS.names[1:]), ["stack"])

    def _points_with_metric(self) -> pd.DataFrame:
        """Points of stacks with the metric that is drawn, empty where the task was not tried."""
        if not self.restricted.results:
            return self.points.assign(**dict.fromkeys(_ESTIMATE[:2]), **dict.fromkeys(_ESTIMATE[2:], np.nan))
        metrics, keys = self._metrics(), ["stack", *POINT]
        drawn = metrics.loc[metrics["metric"] == self.restricted.metric, keys + _ESTIMATE]
        return self.points.merge(drawn, on=keys, how="left")

    def _areas(self) -> pd.DataFrame:
        """Areas under the curves of recall, and of the metric where it was tried, by stack."""
        tables = []
        for stack, points in self._points_with_metric().groupby("stack", sort=False):
            tables.append(areas(points, samples=self.swept.samples[str(stack)]).assign(stack=stack))
            if points["value"].notna().any():
                tables.append(self._metric_areas(str(stack), points))
        return pd.concat(tables, ignore_index=True)[AREAS.names[1:]]

    def _metric_areas(self, stack: str, points: pd.DataFrame) -> pd.DataFrame:
        """Areas under the curves of the metric; intervals are over examples, the sparsity being as it was counted."""
        metric, results = self.restricted.metric, self.restricted.results
        gold = points[points["method"] == GOLD].iloc[0].to_dict()
        dense, empty = (results[stack, *key_of(point)] for point in (gold, NOTHING))
        samples = np.full((len(dense.samples), len(points), 2), np.nan)  # (replicates, points, value and sparsity)
        for place, point in enumerate(points.to_dict("records")):
            if (result := results.get((stack, *key_of(point)))) is not None:
                samples[:, place, 0], samples[:, place, 1] = result.samples, result.sparsity
        ends = dense.metrics[metric].value, empty.metrics[metric].value
        sampled_ends = np.array(dense.samples), np.array(empty.samples)
        table = areas(points, "value", ends, "task_sparsity", samples, sampled_ends)
        return table.assign(stack=stack, quality=metric)

    def _best(self, heads: pd.DataFrame, example: Example) -> list[Head]:
        """The heads, of different layers, where the method that is drawn is ahead of places by most.

        A head that looks at neighbours or at the first token alone needs no predicting.
        """
        sites = {str(site) for site in CorpusReader.of(self.loaded, example).sites}
        heads = heads[(heads["stack"] + "." + heads["layer"].astype(str)).isin(sites)]
        ahead = heads[f"area_{self.request.shown.drawn}"] - heads[[f"area_{name}" for name in _FIXED]].max(axis=1)
        best = heads.assign(ahead=ahead).sort_values("ahead", ascending=False, kind="stable")
        best = best.drop_duplicates(["stack", "layer"]).head(_EXAMPLES)
        return [Head(*key) for key in best[KEY_COLUMNS].itertuples(index=False)]

    def _example(self, example: Example, head: Head) -> pd.DataFrame:
        """A head on a sentence, at the point that finds most with half of the pairs or fewer, or else the sparsest."""
        heads, method = self.swept.heads, self.request.shown.drawn
        points = heads[(heads[KEY_COLUMNS] == list(head)).all(axis=1) & (heads["method"] == method)]
        points = points[points["sparsity"] >= min(SPARSE_EXAMPLE, float(points["sparsity"].max()))]
        point = points.sort_values("recall", ascending=False, kind="stable").iloc[0].to_dict()
        site = f"{head.stack}.{head.layer}"
        predictor = predictor_of(*key_of(point), self.request.grid, self.swept.fitted[site])
        table = example_heads(self.loaded, example, {site: predictor}, [head])
        names = ("method", "value_of_parameter", "window", "global_tokens", "recall", "sparsity")
        return table.assign(**{name: point[name] for name in names})


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
            raise OptionError(f"{head} needs a translation.", "Give the translation of --text with --target-text.")


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
        Rows of examples.csv without model and point, one for each pair of a head; `predicted` is 0 or 1, `restricted`
        the weight over the predicted graph.
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
    return pd.DataFrame(rows, columns=EXAMPLES_OF_HEADS.names[1:11])

"""The tables of Sparsefinder: every point, the areas under curves, heads, clusters, and heads on a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from headlens.analyses.attend.analysis import shown_example
from headlens.analyses.sparsefinder.cluster_pos import information
from headlens.analyses.sparsefinder.head_examples import example_heads
from headlens.analyses.sparsefinder.measures import MEASURES
from headlens.analyses.sparsefinder.options import ParameterGrid, ShownOptions
from headlens.analyses.sparsefinder.pareto_curves import AREAS_COLUMNS, areas, with_curves
from headlens.analyses.sparsefinder.pareto_points import GOLD, POINT, predictor_of
from headlens.analyses.sparsefinder.query_key_store import SPECIAL, UNKNOWN
from headlens.analyses.sparsefinder.restricted_task import CurvePointResult
from headlens.analyses.sparsefinder.sweep import SparsitySweepResult
from headlens.corpora.sentence import Corpus, Example
from headlens.heads import KEY_COLUMNS, Head, parse_heads
from headlens.models.loading import LoadedModel
from headlens.runs.corpus_reader import CorpusReader

_ESTIMATE = ["task", "metric", "value", "ci_low", "ci_high", "task_sparsity"]
PARETO_COLUMNS = ["model", *KEY_COLUMNS, *POINT, *MEASURES, "on_curve", *_ESTIMATE]
METRICS_COLUMNS = ["stack", *POINT, *MEASURES, "task", "task_sparsity", "metric", "value", "ci_low", "ci_high"]
# The point where no pair is predicted, so that queries look at their own places.
NOTHING = {"method": "window", "parameter": "window", "value_of_parameter": 0.0, "window": 0, "global_tokens": 0}
_EXAMPLES = 3  # heads that are drawn
_FIXED = ("window", "longformer")  # methods that know places alone
_SPARSE = 0.5  # as sparse as a graph has to be to be an example


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


def key_of(point: Mapping[Any, Any]) -> tuple[Any, ...]:
    """Identifies a point among those of a stack: method, value of its parameter, window, global tokens."""
    value = point["value_of_parameter"]
    numbers = None if pd.isna(value) else float(value), int(point["window"]), int(point["global_tokens"])
    return str(point["method"]), *numbers


def head_table(pareto: pd.DataFrame, contents: pd.DataFrame) -> pd.DataFrame:
    """Makes a row for each head: how sparse it is, how well that is predicted, and what its clusters tell.

    Args:
        pareto: of all heads, see `SparsitySweep.run`.
        contents: see `all_contents`.

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
        loaded: the model.
        held_out: the sentences that were measured on.
        grid: the parameters.
        clusters: in which parts of speech are counted.
        swept: points of all heads, what was learned, and samples.
        points: points of stacks, see `of_stacks`.
        restricted: a task at some of these.
        contents: what clusters hold, see `all_contents`.
        shown: heads that are drawn on a sentence.
    """

    loaded: LoadedModel
    held_out: Corpus
    grid: ParameterGrid
    clusters: int
    swept: SparsitySweepResult
    points: pd.DataFrame
    restricted: RestrictedTaskResult
    contents: pd.DataFrame
    shown: ShownOptions = field(default_factory=ShownOptions)

    def tables(self) -> dict[str, pd.DataFrame]:
        """Makes the tables by the names of their files.

        `pareto`, `areas`, `heads`, where they can be had `metrics`, `clusters` and `examples`.
        """
        heads = head_table(self.swept.heads, self.contents)
        tables = {"pareto": self._pareto(), "areas": self._areas(), "heads": heads}
        if self.restricted.results:
            tables["metrics"] = self._metrics()
        if not set(self.contents["tag"]) <= {SPECIAL, UNKNOWN}:
            tables["clusters"] = self.contents.assign(clusters=self.clusters)
        example = self.shown.example or shown_example(self.held_out, self.loaded)
        if example is not None:
            drawn = parse_heads(self.shown.heads) or self._best(heads, example)
            tables["examples"] = pd.concat([self._example(example, head) for head in drawn], ignore_index=True)
        for table in tables.values():
            table.insert(0, "model", self.loaded.short_name)
        return tables

    def _metrics(self) -> pd.DataFrame:
        """All metrics of the points that the task was tried at."""
        rows = [
            {**point, "task": self.restricted.task, "task_sparsity": result.sparsity, "metric": name, **asdict(metric)}
            for point in self.points.to_dict("records")
            if (result := self.restricted.results.get((point["stack"], *key_of(point)))) is not None
            for name, metric in result.metrics.items()
        ]
        return pd.DataFrame(rows, columns=METRICS_COLUMNS)

    def _points_with_metric(self) -> pd.DataFrame:
        """Points of stacks with the metric that is drawn, empty where the task was not tried."""
        if not self.restricted.results:
            return self.points.assign(**dict.fromkeys(_ESTIMATE[:2]), **dict.fromkeys(_ESTIMATE[2:], np.nan))
        metrics, keys = self._metrics(), ["stack", *POINT]
        drawn = metrics.loc[metrics["metric"] == self.restricted.metric, keys + _ESTIMATE]
        return self.points.merge(drawn, on=keys, how="left")

    def _pareto(self) -> pd.DataFrame:
        levels = with_curves(self._points_with_metric()), with_curves(self.swept.heads, KEY_COLUMNS)
        table = pd.concat(levels, ignore_index=True).reindex(columns=PARETO_COLUMNS[1:])
        return table.astype({"layer": "Int64", "head": "Int64"})

    def _areas(self) -> pd.DataFrame:
        """Areas under the curves of recall, and of the metric where it was tried, by stack."""
        tables = []
        for stack, points in self._points_with_metric().groupby("stack", sort=False):
            tables.append(areas(points, samples=self.swept.samples[str(stack)]).assign(stack=stack))
            if points["value"].notna().any():
                tables.append(self._metric_areas(str(stack), points))
        return pd.concat(tables, ignore_index=True)[["stack", *AREAS_COLUMNS]]

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
        """The heads, of different layers, where predictions are ahead of places by most.

        A head that looks at neighbours or at the first token alone needs no predicting.
        """
        sites = {str(site) for site in CorpusReader.of(self.loaded, example).sites}
        heads = heads[(heads["stack"] + "." + heads["layer"].astype(str)).isin(sites)]
        ahead = heads["area_distance"] - heads[[f"area_{name}" for name in _FIXED]].max(axis=1)
        best = heads.assign(ahead=ahead).sort_values("ahead", ascending=False, kind="stable")
        best = best.drop_duplicates(["stack", "layer"]).head(_EXAMPLES)
        return [Head(*key) for key in best[KEY_COLUMNS].itertuples(index=False)]

    def _example(self, example: Example, head: Head) -> pd.DataFrame:
        """A head on a sentence, at the point of `distance` that finds most with half of the pairs or fewer."""
        heads = self.swept.heads
        points = heads[(heads[KEY_COLUMNS] == list(head)).all(axis=1) & (heads["method"] == "distance")]
        points = points[points["sparsity"] >= min(_SPARSE, float(points["sparsity"].max()))]
        point = points.sort_values("recall", ascending=False, kind="stable").iloc[0].to_dict()
        method, value, window, tokens = key_of(point)
        site = f"{head.stack}.{head.layer}"
        predictor = predictor_of(method, value, window, tokens, self.grid, self.swept.fitted[site])
        about = {"method": method, "value_of_parameter": value, "window": window, "global_tokens": tokens}
        table = example_heads(self.loaded, example, {site: predictor}, [head])
        return table.assign(**about, recall=point["recall"], sparsity=point["sparsity"])

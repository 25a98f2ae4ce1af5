"""The tables of Sparsefinder: every point, the areas under curves, heads, clusters, and heads on a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from headlens.analyses.attend.analysis import shown_example
from headlens.analyses.sparsefinder.head_examples import example_heads
from headlens.analyses.sparsefinder.head_table import head_table
from headlens.analyses.sparsefinder.measures import MEASURES
from headlens.analyses.sparsefinder.options import ParameterGrid, ShownOptions
from headlens.analyses.sparsefinder.pareto_curves import AREAS_COLUMNS, POINT, areas, with_curves
from headlens.analyses.sparsefinder.pareto_points import GOLD, predictor_of
from headlens.analyses.sparsefinder.query_key_store import SPECIAL, UNKNOWN
from headlens.analyses.sparsefinder.restricted_task import CurvePointResult
from headlens.analyses.sparsefinder.sweep import SparsitySweepResult
from headlens.corpora.sentence import Corpus, Example
from headlens.heads import KEY_COLUMNS, Head, parse_heads
from headlens.models.loading import LoadedModel
from headlens.runs.corpus_reader import CorpusReader

PARETO_COLUMNS = [
    *("model", *KEY_COLUMNS, "method", "parameter", "value_of_parameter", "window", "global_tokens"),
    *MEASURES,
    *("on_curve", "task", "metric", "value", "ci_low", "ci_high", "task_sparsity"),
]
METRICS_COLUMNS = [
    *("stack", *POINT, *MEASURES),
    *("task", "task_sparsity", "metric", "value", "ci_low", "ci_high"),
]
# The point where no pair is predicted, so that queries look at their own places.
NOTHING = {"method": "window", "parameter": "window", "value_of_parameter": 0.0, "window": 0, "global_tokens": 0}
_EXAMPLES = 3  # heads that are drawn
_FIXED = ("window", "longformer")  # methods that know places alone
_SPARSE = 0.5  # as sparse as a graph has to be to be an example


@dataclass(frozen=True)
class RestrictedTaskResult:
    """What a task was like over predicted graphs.

    Args:
        task: its name; empty without one.
        metric: the one that is drawn.
        tried: by stack and point, see `key_of`.
        stacks: those that were restricted.
        notes: what to know about it.
    """

    task: str = ""
    metric: str = ""
    tried: Mapping[tuple[Any, ...], CurvePointResult] = field(default_factory=dict)
    stacks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def key_of(point: Mapping[Any, Any]) -> tuple[Any, ...]:
    """What tells a point from the others of a stack: method, value of its parameter, window, global tokens."""
    value = point["value_of_parameter"]
    numbers = None if pd.isna(value) else float(value), int(point["window"]), int(point["global_tokens"])
    return str(point["method"]), *numbers


@dataclass(frozen=True, eq=False)
class Findings:
    """What was found out about a model.

    Args:
        loaded: the model.
        held: the sentences that were measured on.
        grid: the parameters.
        clusters: in which parts of speech are counted.
        swept: points of all heads, what was learned, and samples.
        points: points of stacks, see `of_stacks`.
        measured: a task at some of these.
        contents: what clusters hold, see `all_contents`.
        shown: heads that are drawn on a sentence.
    """

    loaded: LoadedModel
    held: Corpus
    grid: ParameterGrid
    clusters: int
    swept: SparsitySweepResult
    points: pd.DataFrame
    measured: RestrictedTaskResult
    contents: pd.DataFrame
    shown: ShownOptions = field(default_factory=ShownOptions)

    def tables(self) -> dict[str, pd.DataFrame]:
        """By the names of their files.

        `pareto`, `areas`, `heads`, where they can be had `metrics`, `clusters` and `examples`.
        """
        heads = head_table(self.swept.heads, self.contents)
        tables = {"pareto": self._pareto(), "areas": self._areas(), "heads": heads}
        if self.measured.tried:
            tables["metrics"] = self._metrics()
        if not set(self.contents["tag"]) <= {SPECIAL, UNKNOWN}:
            tables["clusters"] = self.contents.assign(clusters=self.clusters)
        examples = self._examples(heads)
        if examples is not None:
            tables["examples"] = examples
        return {name: _with_model(table, self.loaded.short_name) for name, table in tables.items()}

    def _metrics(self) -> pd.DataFrame:
        """All metrics of the points that the task was tried at."""
        rows = [
            {**point, "task": self.measured.task, "task_sparsity": tried.sparsity, "metric": name, **asdict(estimate)}
            for point in self.points.to_dict("records")
            if (tried := self.measured.tried.get((point["stack"], *key_of(point)))) is not None
            for name, estimate in tried.metrics.items()
        ]
        return pd.DataFrame(rows, columns=METRICS_COLUMNS)

    def _valued(self) -> pd.DataFrame:
        """Points with what the task was like, as far as it was tried."""
        own = ["task", "metric", "value", "ci_low", "ci_high", "task_sparsity"]
        if not self.measured.tried:
            return self.points.assign(**dict.fromkeys(own[:2]), **dict.fromkeys(own[2:], np.nan))
        found = self._metrics()
        keys = ["stack", *POINT]
        return self.points.merge(found.loc[found["metric"] == self.measured.metric, keys + own], on=keys, how="left")

    def _pareto(self) -> pd.DataFrame:
        whole = pd.concat([with_curves(self._valued()), with_curves(self.swept.heads, KEY_COLUMNS)], ignore_index=True)
        columns = PARETO_COLUMNS[1:]
        return whole.reindex(columns=columns).astype({"layer": "Int64", "head": "Int64"})

    def _areas(self) -> pd.DataFrame:
        """Areas under the curves of recall, and of the metric where it was tried, by stack."""
        found = []
        for stack, own in self._valued().groupby("stack", sort=False):
            found.append(areas(own, samples=self.swept.samples[str(stack)]).assign(stack=stack))
            if own["value"].notna().any():
                found.append(self._metric_areas(str(stack), own))
        return pd.concat(found, ignore_index=True)[["stack", *AREAS_COLUMNS]]

    def _metric_areas(self, stack: str, points: pd.DataFrame) -> pd.DataFrame:
        """Areas under the curves of the metric; intervals are over examples, the sparsity being as it was counted."""
        metric, found = self.measured.metric, self.measured.tried
        tried = [found.get((stack, *key_of(point))) for point in points.to_dict("records")]
        gold = points[points["method"] == GOLD].iloc[0].to_dict()
        at_ends = found[stack, *key_of(gold)], found[stack, *key_of(NOTHING)]
        samples = np.full((len(at_ends[0].samples), len(points), 2), np.nan)
        for place, own in enumerate(tried):
            if own is not None:
                samples[:, place, 0], samples[:, place, 1] = own.samples, own.sparsity
        whole, none = (end.metrics[metric].value for end in at_ends)
        ends_in_samples = np.array(at_ends[0].samples), np.array(at_ends[1].samples)
        table = areas(points, "value", (whole, none), "task_sparsity", samples, ends_in_samples)
        return table.assign(stack=stack, quality=metric)

    def _examples(self, heads: pd.DataFrame) -> pd.DataFrame | None:
        """Heads on a sentence, each at the point of `distance` that finds most with half of the pairs or fewer."""
        example = self.shown.example or shown_example(self.held, self.loaded)
        if example is None:
            return None
        chosen = parse_heads(self.shown.heads) or self._best(heads, example)
        return pd.concat([self._shown(example, head) for head in chosen], ignore_index=True)

    def _best(self, heads: pd.DataFrame, example: Example) -> list[Head]:
        """The heads, of different layers, where predictions are ahead of places by most.

        What looks at neighbours or at the first token alone needs no predicting.
        """
        there = {str(site) for site in CorpusReader.of(self.loaded, example).sites}
        heads = heads[(heads["stack"] + "." + heads["layer"].astype(str)).isin(there)]
        ahead = heads["area_distance"] - heads[[f"area_{name}" for name in _FIXED]].max(axis=1)
        best = heads.assign(ahead=ahead).sort_values("ahead", ascending=False, kind="stable")
        best = best.drop_duplicates(["stack", "layer"])
        return [Head(r["stack"], int(r["layer"]), int(r["head"])) for r in best.head(_EXAMPLES).to_dict("records")]

    def _shown(self, example: Example, head: Head) -> pd.DataFrame:
        rows = self.swept.heads
        own = rows[(rows[KEY_COLUMNS] == list(head)).all(axis=1) & (rows["method"] == "distance")]
        own = own[own["sparsity"] >= min(_SPARSE, float(own["sparsity"].max()))]
        point = own.sort_values("recall", ascending=False, kind="stable").iloc[0].to_dict()
        value, window, tokens = float(point["value_of_parameter"]), int(point["window"]), int(point["global_tokens"])
        site = f"{head.stack}.{head.layer}"
        predictor = predictor_of("distance", value, window, tokens, self.grid, self.swept.fitted[site])
        return example_heads(self.loaded, example, {site: predictor}, [head]).assign(
            method="distance",
            value_of_parameter=value,
            window=window,
            global_tokens=tokens,
            recall=point["recall"],
            sparsity=point["sparsity"],
        )


def _with_model(table: pd.DataFrame, name: str) -> pd.DataFrame:
    return table.assign(model=name)[["model", *(column for column in table if column != "model")]]

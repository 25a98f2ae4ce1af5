"""Every metric is declared once: what it measures reaches heads.csv, the page, a figure, and has an oracle."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import pandas as pd
import pytest
import torch
from handmade import Row, call, heads, observed, uniform
from naive_samples import make_seq
from saved import build
from tiers import rest_slow_rows
from torch import Tensor
from transformers import PreTrainedTokenizerBase

import headlens
from headlens.attention.sites import Site
from headlens.corpora.sources import demo_corpus
from headlens.errors import ExtensionError
from headlens.extensions import load_extension
from headlens.metrics import metric_registry
from headlens.metrics.accumulator import Array
from headlens.metrics.attention_view import CallView
from headlens.metrics.metric import Metric, MetricSettings, Statistics, Sums
from headlens.metrics.metric_column import MetricColumn
from headlens.metrics.metric_registry import refuse_collisions, registered_metrics
from headlens.models.loading import LoadedModel


def test_the_order_of_the_columns_is_that_of_the_registry() -> None:
    names = [metric.name for metric in registered_metrics()]
    assert names[:5] == ["confidence", "entropy", "positions", "mass", "rare"]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("metric", registered_metrics(), ids=lambda metric: metric.name)
def test_every_metric_has_words_and_an_oracle(metric: type[Metric]) -> None:
    for column in metric.columns:
        assert column.about.endswith("."), column.name
        assert column.unit
    file = Path(inspect.getfile(metric)).name
    assert (Path(__file__).parent / f"test_{file}").exists(), f"tests/metrics/test_{file} checks {metric.name}"
    assert metric.of(MetricSettings(("obj",))).name == metric.name


def test_a_metric_that_would_reach_no_table_cannot_be_defined() -> None:
    told = "The metric lost is not written to any table: declare its columns, or set own_table = True"
    with pytest.raises(TypeError, match=told):

        class Lost(Metric):
            name: ClassVar[str] = "lost"

            def measure(self, view: CallView) -> Mapping[str, Tensor]:
                raise NotImplementedError


COLUMN = MetricColumn("unmade", "Nothing.")


@pytest.mark.parametrize(
    "declared", [{"columns": (COLUMN,)}, {"own_table": True}, {"columns": (COLUMN,), "own_table": True}]
)
def test_a_metric_that_makes_nothing_of_its_sums_cannot_be_defined(declared: dict[str, Any]) -> None:
    """It would be told after a whole corpus only. Columns need `compute` also where there is a table beside them."""
    with pytest.raises(TypeError, match="The metric unmade makes nothing of its sums: define compute, or a table"):
        type("Unmade", (Metric,), {"name": "unmade", "measure": lambda self, view: {}, **declared})
    own = {"compute": lambda self, sums: {}} if "columns" in declared else {"table": lambda self, sums: None}
    assert type("Made", (Metric,), {"name": "unmade", "measure": lambda self, view: {}, **declared, **own})


@dataclass(frozen=True)
class Made(Metric):
    """Computes what it is told to."""

    computed: tuple[str, ...]
    name: ClassVar[str] = "made"
    columns: ClassVar[tuple[MetricColumn, ...]] = (MetricColumn("one", "A number.", "one", interval=True),)

    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        raise NotImplementedError

    def compute(self, sums: Sums) -> Mapping[str, Array]:
        return dict.fromkeys(self.computed, sums["n"])


@pytest.mark.parametrize(
    ("computed", "named"),
    [
        (("one",), "one_ci_high, one_ci_low"),
        (("one", "one_ci_low", "one_ci_high", "two"), "two"),
        (("three",), "three"),
    ],
)
def test_what_is_computed_is_what_is_declared(computed: tuple[str, ...], named: str) -> None:
    site = Site("encoder", 0, 2, "attention")
    with pytest.raises(ExtensionError, match=f"made does not compute the columns that it declares: .*{named}"):
        Made(computed).head_table({site: {"n": np.zeros(2)}})
    whole = Made(("one", "one_ci_low", "one_ci_high")).head_table({site: {"n": np.zeros(2)}})
    assert whole is not None
    assert len(whole.rows) == 2
    assert Made(("one",)).head_table({}) is None
    with pytest.raises(ExtensionError, match=r"The metric made computes one of shape \(2, 3\) and .* 2 heads\."):
        Made(("one", "one_ci_low", "one_ci_high")).head_table({site: {"n": np.zeros((2, 3))}})


@dataclass(frozen=True)
class Foreign(Made):
    """A metric of another package."""

    computed: tuple[str, ...] = ("one",)
    name: ClassVar[str] = "foreign"


class Point:
    """An entry point."""

    group = "headlens.metrics"
    dist = SimpleNamespace(name="my-metrics")

    def __init__(self, name: str, value: object) -> None:
        self.name, self.value = name, value

    def load(self) -> object:
        return self.value


def test_metrics_of_other_packages_are_measured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry_points(group: str) -> list[Point]:
        return [Point("foreign", Foreign)] if group == "headlens.metrics" else []

    monkeypatch.setattr(metric_registry, "entry_points", entry_points)
    metric_registry.registered_metrics.cache_clear()
    try:
        assert metric_registry.registered_metrics()[-1] is Foreign
    finally:
        metric_registry.registered_metrics.cache_clear()


def test_two_metrics_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Foreign, "name", "mass")
    monkeypatch.setattr(metric_registry, "entry_points", lambda group: [Point(group, Foreign)])
    metric_registry.registered_metrics.cache_clear()
    try:
        with pytest.raises(ExtensionError, match=r"Two metrics are called mass\.\nGive yours another name\."):
            metric_registry.registered_metrics()
    finally:
        metric_registry.registered_metrics.cache_clear()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "os.path:join",
            r"'extra' of headlens\.metrics names no metric \(os\.path:join\)\.\n.*Metric that",
        ),
        (
            "nothing_here:Metric",
            r"'extra' of headlens\.metrics \(nothing_here:Metric\) cannot be loaded: ModuleNotFoundError: No module "
            r"named 'nothing_here'\.\n.*package that",
        ),
        ("json:Metric", r"cannot be loaded: AttributeError: module 'json' has no attribute 'Metric'\."),
    ],
)
def test_an_entry_point_that_is_no_metric_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    monkeypatch.setattr(metric_registry, "entry_points", lambda group: [EntryPoint("extra", value, group)])
    metric_registry.registered_metrics.cache_clear()
    try:
        with pytest.raises(ExtensionError, match=message):
            metric_registry.registered_metrics()
    finally:
        metric_registry.registered_metrics.cache_clear()


def test_a_package_that_does_not_load_is_named() -> None:
    class Broken(Point):
        def load(self) -> object:
            raise ImportError("no")

    with pytest.raises(
        ExtensionError, match=r"ImportError: no\.\nMend the package my-metrics .* with pip uninstall my-metrics\."
    ):
        load_extension(cast("EntryPoint", Broken("peak", "my_metrics:Peak")))


@pytest.mark.parametrize("column", ["entropy", "confidence_ci_low", "role", "layer"])
def test_columns_are_filled_by_one_metric(column: str) -> None:
    class Second(Foreign):
        name: ClassVar[str] = "second"
        columns: ClassVar[tuple[MetricColumn, ...]] = (MetricColumn(column, "A number."),)

    with pytest.raises(ExtensionError, match=f"The metric second fills the column '{column}', which is that of "):
        refuse_collisions([*registered_metrics(), Second()])
    with pytest.raises(ExtensionError, match="Two metrics are called entropy"):
        refuse_collisions([*registered_metrics(), registered_metrics()[1]])


class Measured(Foreign):
    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        return {"n": view.weights.sum((0, 2, 3))}

    def compute(self, sums: Sums) -> Mapping[str, Array]:
        return dict.fromkeys(("one", "one_ci_low", "one_ci_high"), sums["n"])


class WrongMeasure(Foreign):
    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        return {"n": view.query.sum()}  # type: ignore[attr-defined]


class WrongCompute(Measured):
    def compute(self, sums: Sums) -> Mapping[str, Array]:
        return {"one": sums["missing"]}


class WrongTables(Measured):
    def more_tables(self, sums: Mapping[Site, Sums]) -> Mapping[str, pd.DataFrame]:
        raise ValueError(len(sums))


class WrongNotes(Measured):
    def notes(self, sums: Mapping[Site, Sums], sites: Sequence[Site]) -> list[str]:
        return [f"{sums}"[0], f"{1 / (len(sites) - len(sums))}"]


@dataclass(frozen=True)
class Given(Foreign):
    """Measures and computes what it is given."""

    measured: Any = None
    value: Any = 0.0

    def measure(self, view: CallView) -> Any:
        return {"n": view.weights.sum((0, 2, 3))} if self.measured is None else self.measured

    def compute(self, sums: Sums) -> Mapping[str, Array]:
        values = np.resize(self.value, sums["n"].shape) if self.measured is None else sums["n"]
        return dict.fromkeys(("one", "one_ci_low", "one_ci_high"), values)


def given_to(metric: Given) -> Statistics:
    """The statistics of a metric after two batches of two heads, the second of longer texts."""
    texts = [Row(heads(uniform(n), uniform(n)), make_seq(list(range(n)))) for n in (3, 4)]
    return observed([metric], [call([text]) for text in texts])


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        (Given(measured=3), "returns no sums in its measure, but int"),
        (Given(measured={"n": [1, 2]}), "returns no sums in its measure, but n: list"),
        (
            Given(measured={"n": torch.ones(2, dtype=torch.complex64)}),
            "returns no sums in its measure, but n: .*complex64",
        ),
        (Given(measured={"n": torch.tensor([1.0, math.inf])}), "computes infinity in the column one"),
        (Given(value=[0.5, -math.inf]), "computes infinity in the column one"),
        (Given(value=[1j, 2]), "computes complex numbers in the column one"),
        (Given(value=["a", "b"]), "computes one of shape .* and type <U1 for 2 heads"),
    ],
)
def test_what_a_metric_of_ones_own_gives_must_be_numbers(metric: Given, told: str) -> None:
    with pytest.raises(ExtensionError, match=f"The metric foreign {told}"):
        given_to(metric).head_tables()


def test_sums_of_another_shape_in_the_next_batch_are_told() -> None:
    class PerKey(Given):
        def measure(self, view: CallView) -> Any:
            return {"n": view.weights.sum((0, 2))}

    with pytest.raises(ExtensionError, match=r"The metric foreign measures n of shape \(2, 4\) after \(2, 3\)"):
        given_to(PerKey())


@pytest.mark.parametrize(("value", "empty"), [([0.5, math.nan], False), ([math.nan, math.nan], True)])
def test_nan_is_an_empty_cell_and_told_where_no_head_has_a_number(value: list[float], empty: bool) -> None:
    statistics = given_to(Given(value=value))
    assert statistics.head_tables()[0].rows["one"].isna().tolist() == np.isnan(value).tolist()
    assert ("one of the metric foreign: NaN for every head." in statistics.notes()) == empty


@pytest.mark.parametrize("declared", [{"name": None}, {"name": 3}, {"columns": ("one",)}])
def test_a_metric_without_what_it_needs_is_refused(declared: dict[str, Any]) -> None:
    bad = type("Bad", (Foreign,), declared)
    with pytest.raises(ExtensionError, match=r"The metric .*\.Bad has no name, or columns that are no MetricColumn"):
        refuse_collisions([*registered_metrics(), bad])


@pytest.fixture(scope="module")
def six_layers(wordpiece_tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    model = build("BertModel", len(wordpiece_tokenizer), num_hidden_layers=6, max_position_embeddings=128)
    return LoadedModel("tiny", model, wordpiece_tokenizer, None)


@pytest.mark.parametrize(
    ("metric", "told"),
    rest_slow_rows(
        [
            (WrongMeasure(), "measure: AttributeError: .*'query'"),
            (WrongCompute(), "compute: KeyError: 'missing'"),
            (WrongTables(), "more_tables: ValueError: 6"),
            (WrongNotes(), "notes: ZeroDivisionError: "),
        ],
        2,
    ),
)
def test_the_errors_of_a_metric_of_ones_own_tell_its_name(metric: Foreign, told: str, six_layers: LoadedModel) -> None:
    loaded = six_layers
    with pytest.raises(
        ExtensionError, match=rf"The metric foreign fails in its {told}.*\nFix that method; --debug"
    ) as raised:
        headlens.classify(loaded, demo_corpus(), metrics=[metric], limit=2)
    assert type(raised.value.__cause__).__name__ in told

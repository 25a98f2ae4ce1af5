"""What a metric declares appears in heads.csv, on the console, on the page and as a figure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar

import pandas as pd
import pytest
from made_runs import classify_tables
from saved import build, save
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from headlens.analyses.classify import recipe
from headlens.analyses.classify.metric_declarations import (
    MetricDeclaration,
    declarations_of,
    measure_records,
    registered_declarations,
)
from headlens.analyses.classify.options import ClassifyRequest
from headlens.analyses.classify.overviews import measures
from headlens.analyses.classify.recipe import run_classify
from headlens.analyses.classify.report import REPORT, classify_figures
from headlens.analyses.classify.report import classification_facts as head_facts
from headlens.analyses.report.registry import report_of_run
from headlens.corpora.corpus_options import CorpusOptions
from headlens.errors import InputError
from headlens.metrics.accumulator import Array
from headlens.metrics.attention_view import CallView
from headlens.metrics.metric import Metric, Sums
from headlens.metrics.metric_column import MetricColumn
from headlens.metrics.metric_registry import registered_metrics
from headlens.pages.page_tables import Cell
from headlens.plots.style import named_after
from headlens.roles.head_roles import head_columns
from headlens.roles.role_options import ClassifyOptions
from headlens.runs.reading import RecordedRun, read_recorded, titled_corpus
from headlens.shared_options import OutputOptions


@dataclass(frozen=True)
class Sharpness(Metric):
    """Sharpness of attention.

    Mean sum of squared attention weights.
    """

    name: ClassVar[str] = "sharpness"
    columns: ClassVar[tuple[MetricColumn, ...]] = (
        MetricColumn("sharpness", "Mean sum of squared attention weights.", "sharpness"),
    )

    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        squares = (view.weights**2).sum(-1) * view.queries.real[:, None]
        return {"squares": squares.sum((0, 2), dtype=view.sums_dtype), "n": view.queries.real.sum()}

    def compute(self, sums: Sums) -> Mapping[str, Array]:
        return {"sharpness": sums["squares"] / sums["n"]}


def test_the_contract_of_heads_csv() -> None:
    assert head_columns() == [
        *("tokens", "confidence", "confidence_all", "entropy", "entropy_norm", "positional_offset"),
        *("positional_share", "to_cls", "to_sep", "to_bos", "to_eos", "to_punct", "to_self", "to_prev", "to_next"),
        *("distance", "rare_top1", "rare_top2", "rare_chance", "relevance", "role", "roles"),
    ]


def test_every_registered_metric_reaches_page_and_figures() -> None:
    added = {"monotonicity": 0.5, "monotonicity_stays": 0.4, "distance": 2.0, "to_sink": 0.3, "to_first": 0.2}
    heads = classify_tables()["heads"].assign(**added, mass_left=0.4)
    run = RecordedRun(Path("folder"), "run", {"command": "classify"}, {"heads": heads})
    switches = {series.key for series in head_facts(run).series}
    figures = {name for name, figure in classify_figures({"heads": heads}) if figure is not None}
    rows = {record["measure"] for record in measure_records(heads, registered_declarations())}
    for metric in registered_metrics():
        titled = [column for column in metric.columns if column.title]
        assert {column.name for column in titled} <= switches
        assert not titled or titled[0].title in rows
        assert metric.own_table or titled
        if metric.drawn and metric.columns:
            assert metric.name in figures
            assert report_of_run(run).caption(metric.name).text == metric.caption
            assert report_of_run(run).drawn_from(metric.name) == ("heads",)


def test_titles_of_figures_do_not_say_that_any_head_does_it() -> None:
    told = {own.name: own for own in registered_declarations()}
    titles = [own.title for own in told.values()] + [caption.title for caption in REPORT.captions.values()]
    assert not any(title.startswith(("Heads that point", "Heads that find", "Syntactic heads")) for title in titles)
    assert "A head is compared with uniform attention" in told["rare"].caption
    assert "because" not in told["confidence"].caption
    assert "follows something" not in REPORT.captions["offsets"].text, "heads of untrained models follow nothing"


def test_the_records_of_measures() -> None:
    keys = {"model": "m", "stack": "encoder", "layer": [0, 0, 1], "head": [0, 1, 0]}
    heads = pd.DataFrame({**keys, "confidence": [0.1, 0.4, 0.7], "confidence_all": 1.0, "entropy_norm": float("nan")})
    (record,) = measure_records(heads, registered_declarations())
    assert record == {
        "model": "m",
        "stack": "encoder",
        "measure": "confidence",
        "unit": "share of weight on one token",
        "n": "",
        "mean": pytest.approx(0.4),
        "lowest": 0.1,
        "highest": 0.7,
        "head": "encoder.1.0",
        "baseline": "",
        "uniform": Cell(""),
    }
    (record,) = measure_records(heads.assign(confidence_null=0.25, entropy_norm=0.995), registered_declarations()[:1])
    assert (record["head"], record["uniform"].text) == ("", "0.250"), "no head is named where all attend evenly"
    (record,) = measure_records(heads.assign(confidence_null=[0.25, 0.25, 0.5]), registered_declarations()[:1])
    assert record["uniform"].text == "0.250 to 0.500", "layers with a window have their own"


def test_the_share_of_steps_that_stay_is_told_beside_monotonicity_which_counts_them() -> None:
    heads = pd.DataFrame({"model": "m", "stack": "cross", "layer": 0, "head": [0, 1], "monotonicity": [0.8, 0.9]})
    heads = heads.assign(monotonicity_null=0.535, monotonicity_stays=[0.6, 0.7], monotonicity_stays_null=0.071)
    all_steps, of_which = measure_records(heads, registered_declarations())
    assert (all_steps["measure"], all_steps["uniform"].text) == ("monotonicity", "0.535")
    assert of_which["measure"] == "monotonicity: steps that stay"
    assert (of_which["mean"], of_which["uniform"].text) == (pytest.approx(0.65), "0.071")


def test_a_panel_that_is_drawn_once_has_the_names_of_all_measures_that_are_the_same() -> None:
    heads = pd.DataFrame({"model": "m", "stack": "encoder", "layer": 0, "head": [0, 1], "to_cls": [0.2, 0.4]})
    (mass,) = (own for own in registered_declarations() if own.name == "mass")
    figure = mass.figure(heads.assign(to_bos=heads["to_cls"], to_sep=[0.3, 0.1]))
    assert figure is not None
    titles = [axes.get_title(loc="left") or axes.get_title() for axes in figure.axes]
    assert [" ".join(title.split()).replace("of- ", "of-") for title in titles if title] == [
        "m, encoder: to [CLS], also to the beginning-of-sentence token",
        "m, encoder: to [SEP]",
    ]


@pytest.mark.parametrize("name", ["confidence", "to_self", "entropy_norm", "rare_top1"])
def test_maps_of_measures_have_the_level_of_uniform_attention(name: str) -> None:
    heads = pd.DataFrame({"model": "m", "stack": "encoder", "layer": 0, "head": [0, 1], name: [0.2, 0.4]})
    heads = heads.assign(**{f"{name}_null": 0.07, "rare_chance": 0.1})
    (own,) = (own for own in registered_declarations() if name in {column.name for column in own.columns})
    figure = own.figure(heads)
    assert figure is not None
    title = figure.axes[0].get_title(loc="left") or figure.axes[0].get_title()
    chance = "chance level 0.100, " * (name == "rare_top1")
    assert f"({chance}uniform attention 0.070)" in " ".join(title.split())


def test_the_highest_head_stands_beside_the_better_baseline() -> None:
    keys = {"model": "m", "stack": "encoder", "layer": 0, "head": [0, 1], "coreference": [0.1, 0.6], "mentions": 300}
    heads = pd.DataFrame({**keys, "coreference_nearest": 0.3, "coreference_same_word": 0.5})
    (record,) = measure_records(heads, registered_declarations())
    assert (record["highest"], record["baseline"]) == (0.6, 0.5)
    (record,) = measure_records(heads.drop(columns="coreference_same_word"), registered_declarations())
    assert record["baseline"] == 0.3


@pytest.mark.parametrize(("n", "named"), [(2, ""), (29, ""), (30, "encoder.0.1")])
def test_the_highest_head_is_named_on_as_many_instances_as_roles_need(n: int, named: str) -> None:
    keys = {"model": "m", "stack": "encoder", "layer": 0, "head": [0, 1]}
    heads = pd.DataFrame({**keys, "same_word": [0.0, 1.0], "repeated_words": n})
    (record,) = measure_records(heads, registered_declarations())
    assert (record["n"], record["highest"], record["head"]) == (n, 1.0, named)
    (record,) = measure_records(heads, registered_declarations(), 2)
    assert record["head"] == "encoder.0.1"


def test_what_is_not_said_is_taken_from_the_docstring() -> None:
    declaration = MetricDeclaration.of(Sharpness)
    assert (declaration.title, declaration.heading) == ("Sharpness of attention", "Sharpness of attention")
    assert declaration.caption == "sharpness: Mean sum of squared attention weights."
    assert declaration.columns[0].panel == "sharpness"
    assert MetricDeclaration.of_record(json.loads(json.dumps(asdict(declaration)))) == declaration


def without_most_measures(tables: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """What the metric below is drawn from, and the roles: figures of all other measures are most of the time."""
    return {"heads": tables["heads"][["model", "stack", "layer", "head", "role", "roles", "nearest", "sharpness"]]}


@pytest.mark.slow
def test_a_metric_of_ones_own_is_measured_drawn_and_shown_again_later(
    tmp_path: Path, wordpiece_tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("BertModel", len(wordpiece_tokenizer), max_position_embeddings=120)
    monkeypatch.setattr(
        recipe, "classify_figures", lambda tables, *rest: classify_figures(without_most_measures(tables), *rest)
    )
    options = ClassifyOptions(metrics=(Sharpness(),), similarity="off")
    request = ClassifyRequest(
        (save(model, tmp_path / "model", wordpiece_tokenizer),),
        corpus_options=CorpusOptions(limit=5),
        frequency="none",
        options=options,
        place=OutputOptions(tmp_path / "run"),
    )
    result = run_classify(request)
    heads = result.tables["heads"]
    assert heads["sharpness"].between(0, 1).all()
    assert list(heads).index("sharpness") > list(heads).index("roles")
    assert (tmp_path / "run/figures/sharpness.png").exists()
    recorded = read_recorded(tmp_path / "run", "run")
    assert "metrics" not in recorded.record["arguments"]
    names = [metric.name for metric in registered_metrics()]
    assert [own["name"] for own in recorded.record["metrics"]] == [*names, "sharpness"]
    assert declarations_of(recorded) == [*registered_declarations(), MetricDeclaration.of(Sharpness)]
    assert report_of_run(recorded).caption("sharpness").title == "Sharpness of attention"
    assert "sharpness" in {series.key for series in head_facts(recorded).series}
    few = replace(recorded, tables=without_most_measures(recorded.tables))
    assert "sharpness" in {name for name, figure in REPORT.figures(few) if figure is not None}
    assert "sharpness" in {row[2].text for row in measures([recorded]).rows}


HEADS = classify_tables()["heads"]
SHARPNESS = asdict(MetricDeclaration.of(Sharpness))


@pytest.mark.parametrize(
    ("metrics", "problem"),
    [
        (7, "'int' object is not iterable"),
        (["sharpness"], "it does not hold name, title, heading, caption, columns, difference and nothing else"),
        ([{**SHARPNESS, "more": 1}], "it does not hold name"),
        ([{"name": "sharpness"}], "it does not hold name"),
        ([{**SHARPNESS, "title": 1}], "title is 1"),
        ([{**SHARPNESS, "columns": [{"name": "sharpness"}]}], "it does not hold name, about, title"),
        ([{**SHARPNESS, "columns": [{**SHARPNESS["columns"][0], "high": "1"}]}], "high is '1'"),
        (
            [{**SHARPNESS, "columns": [{**SHARPNESS["columns"][0], "colours": "mud"}]}],
            "matplotlib has no colour map 'mud'",
        ),
        ([{**SHARPNESS, "name": "../../sharpness"}], "'../../sharpness' is not the name of a metric"),
    ],
)
def test_a_run_with_other_things_in_place_of_declarations_is_refused(metrics: object, problem: str) -> None:
    record = json.loads(json.dumps({"command": "classify", "metrics": metrics}))
    run = RecordedRun(Path("folder"), "run", record, classify_tables())
    with pytest.raises(InputError) as caught:
        report_of_run(run)
    assert str(caught.value).startswith("folder/run.json: metrics does not hold declarations of metrics: ")
    assert problem in str(caught.value)


def test_runs_without_declarations_are_of_the_registered_metrics() -> None:
    assert declarations_of(RecordedRun(Path("folder"), "run", {"command": "classify"}, {})) == registered_declarations()


def test_declarations_of_runs_before_there_were_a_difference_and_offsets() -> None:
    (declared,) = (own for own in registered_declarations() if own.name == "positions")
    record = json.loads(json.dumps(asdict(declared)))
    assert MetricDeclaration.of_record(record) == declared
    del record["difference"]
    for column in record["columns"]:
        del column["offset"]
    earlier = MetricDeclaration.of_record(record)
    assert earlier.difference == ""
    assert [column.name for column in earlier.columns] == [column.name for column in declared.columns]


def test_a_card_tells_the_offset_of_any_column_that_declares_one() -> None:
    column = MetricColumn("aside", "Share beside the token.", "aside", offset="beside")
    declared = asdict(MetricDeclaration("aside", "", "Aside", "", (column,)))
    heads = HEADS.assign(aside=0.5, beside=[-2.0, float("nan"), *[1.0] * (len(HEADS) - 2)])
    record = {"command": "classify", "metrics": [json.loads(json.dumps(declared))]}
    facts = head_facts(RecordedRun(Path("folder"), "run", record, {"heads": heads}))
    (series,) = (own for own in facts.series if own.key == "aside")
    assert series.rows[series.lead].tolist()[:3] == ["−2", "", "+1"]


def test_figures_of_tokens_are_not_said_to_be_between_words() -> None:
    """Titles say it of a corpus at the level of words; pairs of texts and similarity are of tokens always."""
    corpus = titled_corpus("demo", None, "word")
    assert (corpus, titled_corpus("demo", None, "token")) == ("demo, between words", "demo")
    keys = {"model": "m", "stack": "encoder", "layer": [0, 0], "head": [0, 1]}
    heads = pd.DataFrame({**keys, "confidence": [0.1, 0.4], "to_pair": [0.2, 0.3], "pair_tokens": 50})
    drawn = dict(named_after(corpus, classify_figures({"heads": heads})))
    titles = {name: "".join(figure.get_suptitle().split()) for name, figure in drawn.items() if figure is not None}
    assert "betweenwords" in titles["confidence"]
    assert "pair" in titles
    assert "betweenwords" not in titles["pair"]

"""All recipes: every published cell is there, and every number of ours comes from the setting that its words name."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import cell_settings
import pandas as pd
import pytest
from cell_settings import problems
from possible_rows import possible_rows, request_of
from tiers import rest_slow, rest_slow_rows

from headlens.analyses.classify.metric_declarations import registered_declarations
from headlens.analyses.masks.recipe import study_cases
from headlens.analyses.report.registry import report_of
from headlens.analyses.reproduce.claims import Claim
from headlens.analyses.reproduce.paper_cells import matching, step_and_task
from headlens.analyses.reproduce.paper_recipe import PaperRecipe, Step, read_recipe, recipe_names
from headlens.analyses.reproduce.paper_tables import ComparedFigure, ComparedTable
from headlens.attention_masks.named_masks import FULL_ATTENTION
from headlens.errors import InputError
from headlens.tasks.task_options import CLASS_TASKS

PAPERS = recipe_names()
# The cells as they are printed, once more: a row of a table of ours, and its cells in the order of our columns.
PRINTED: dict[str, dict[str, dict[str, str]]] = {
    "song2020": {
        "MNLI, accuracy with heads pruned in order of their individual importance, per cent": {
            "0 heads pruned": "84.2 84.7",
            "3 heads pruned": "84.37 84.8",
            "10 heads pruned": "84.33 83.8",
            "20 heads pruned": "84.37 82.7",
            "30 heads pruned": "83.9 79.9",
        },
        "Configuration of BERT-base": {"BERT-base": "12_x_12 768 768 108 no"},
        "Configuration of ALBERT-base": {"ALBERT-base": "12_x_12 768 128 12 yes"},
    },
    "voita2019": {
        "Table 2, WMT": {
            "all heads": "48/48/48 29.6",
            "lambda 0.01": "14/31/30 29.62 29.47",
            "lambda 0.03": "12/21/25 29.36 28.95",
            "lambda 0.05": "8/13/15 29.06 28.56",
            "lambda 0.1": "5/9/12 28.90 28.41",
        },
        "Table 2, OpenSubtitles": {
            "all heads": "48/48/48 32.4",
            "lambda 0.01": "27/31/46 32.24 32.23",
            "lambda 0.03": "13/17/31 32.23 31.98",
            "lambda 0.1": "6/9/13 32.27 31.84",
        },
        "Table 1, WMT": {
            "nsubj, verb to subject": "35 45",
            "nsubj, subject to verb": "35 52",
            "obj, verb to object": "41 78",
            "obj, object to verb": "41 73",
            "amod, noun to adjective": "72 74",
            "amod, adjective to noun": "72 82",
            "advmod, verb to adverb": "46 48",
            "advmod, adverb to verb": "46 52",
        },
        "Table 1, OpenSubtitles": {
            "nsubj, verb to subject": "45 77",
            "nsubj, subject to verb": "45 70",
            "obj, verb to object": "46 61",
            "obj, object to verb": "46 84",
            "amod, noun to adjective": "80 81",
            "amod, adjective to noun": "80 81",
            "advmod, verb to adverb": "33 38",
            "advmod, adverb to verb": "33 42",
        },
        "WMT: thresholds from which a head has a role": {"threshold": "90 50 10"},
    },
    "sparsebert2021": {
        "Sparsity of fixed patterns": {
            "strided": "70.4 71.2",
            "fixed": "72.7 73.4",
            "longformer": "88.7 89.5",
            "logsparse": "89.8 90.6",
            "bigbird": "93.2 93.9",
            "star": "96.1 96.9",
        },
        "Sparsity of DAM, structured": {
            "lambda 0.0001": "90.4 91.2",
            "lambda 0.001": "- 91.6",
            "lambda 0.01": "- 91.7",
            "lambda 0.1": "92.7 93.5",
        },
        "Sparsity of DAM, unstructured": {
            "lambda 0.0001": "78.9",
            "lambda 0.001": "79.2",
            "lambda 0.01": "79.8",
            "lambda 0.1": "85.8",
        },
        "GLUE, development set, average under masks": {
            "strided": "79.5 80.2",
            "fixed": "79.7 79.6",
            "longformer": "80.1 80.1",
            "logsparse": "77.9 77.8",
            "bigbird": "79.4 79.5",
            "star": "78.9 78.6",
            "DAM, structured, lambda 0.0001": "80.5 80.9",
            "DAM, structured, lambda 0.1": "79.3 79.6",
        },
        "GLUE, development set, average under DAM without the diagonal, by penalty": {
            "DAM, structured, lambda 0.0001": "80.9",
            "DAM, structured, lambda 0.001": "80.3",
            "DAM, structured, lambda 0.01": "79.8",
            "DAM, structured, lambda 0.1": "79.6",
            "DAM, unstructured, lambda 0.0001": "82.0",
            "DAM, unstructured, lambda 0.001": "81.6",
            "DAM, unstructured, lambda 0.01": "81.3",
            "DAM, unstructured, lambda 0.1": "80.8",
        },
        "GLUE, development set": {
            "BERT-base": "85.4 85.8 88.2 91.5 92.9 62.1 88.8 90.4 69.0 83.8",
            "randomly dropped": "84.6 85.2 87.7 91.1 92.7 62.0 88.9 89.3 68.9 83.4",
            "without diagonal": "85.6 85.9 88.2 92.0 93.8 63.1 89.2 91.2 67.9 83.9",
        },
        "GLUE, test set": {
            "Devlin et al.": "84.6 83.4 71.2 90.5 93.5 52.1 85.8 88.9 66.4 79.6",
            "BERT-base": "84.8 84.1 71.3 90.9 93.4 52.3 85.3 88.3 66.9 79.7",
            "randomly dropped": "84.5 83.5 70.3 91.1 93.4 52.0 85.8 87.4 66.7 79.4",
            "without diagonal": "85.5 84.9 71.3 91.1 93.4 53.3 86.3 88.9 67.9 80.3",
        },
        "SWAG and SQuAD": {
            "Devlin et al.: BERT-base of other authors": "81.6 80.8 88.5",
            "BERT-base": "82.5 79.7 87.1 72.9 75.5",
            "randomly dropped": "81.6 79.7 87.0 71.5 74.2",
            "without diagonal": "83.5 80.3 87.9 73.2 75.9",
        },
    },
}
WINDOWS = ", ".join(map(str, (0, *range(1, 28, 2))))
THRESHOLDS = ", ".join(str(n / 2) for n in range(1, 11))
GROUPS = ", ".join(map(str, range(2, 21, 2)))


_FRAMES: list[pd.DataFrame] = []  # kept, so that no other frame has the id of one of them
_FITTING: dict[tuple[int, tuple[str, Any]], pd.DataFrame] = {}


def matching_once(rows: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    """Rows that fit, found once for what cells of the same table have in common, whatever recipe it is read from."""
    fitting = rows
    for item in sorted(where.items()):
        key = id(fitting), item
        if key not in _FITTING:
            _FRAMES.append(fitting)
            _FITTING[key] = matching(fitting, dict([item]))
        fitting = _FITTING[key]
    return fitting


@pytest.fixture(autouse=True)
def _remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_settings, "matching", matching_once)


@cache
def read_packaged(paper: str) -> tuple[PaperRecipe, str]:
    """A recipe and its text, which nothing changes: read once."""
    return read_recipe(paper)


def read(paper: str) -> PaperRecipe:
    return read_packaged(paper)[0]


def tables(paper: str) -> list[ComparedTable]:
    return [ComparedTable.of(table) for table in read(paper).tables]


def test_every_published_cell_is_in_a_recipe() -> None:
    printed = [(paper, title, rows) for paper, of in PRINTED.items() for title, rows in of.items()]
    for paper, title, rows in printed:
        # The shortest title that begins so.
        table = min((t for t in tables(paper) if t.title.startswith(title)), key=lambda t: len(t.title))
        assert [row.label for row in table.rows if row.published] == list(rows), title
        for row in table.rows:
            names = [column.name for column in table.columns]
            words = rows[row.label].replace("_", " ").split(" ") if "_" not in rows[row.label] else None
            cells = words or [word.replace("_", " ") for word in rows[row.label].split()]
            expected = {name: cell for name, cell in zip(names, cells, strict=False) if cell != "-"}
            assert set(row.published) == set(expected), (title, row.label)
            for name, cell in expected.items():
                given = row.published[name]
                assert given == cell if isinstance(given, str) else given == float(cell), (title, row.label, name)
            assert table.source == "paper"
    published = sum(bool(row.published) for paper in PAPERS for table in tables(paper) for row in table.rows)
    assert published == sum(len(rows) for _, _, rows in printed) + 3, "and the grids of Sparsefinder"


def test_the_grids_of_sparsefinder() -> None:
    grids = [table for table in tables("sparsefinder2022") if table.title.startswith("Parameters")]
    assert len(grids) == 3
    for grid in grids:
        (row,) = grid.rows
        assert list(row.published.values()) == [WINDOWS, THRESHOLDS, GROUPS, GROUPS, GROUPS]


def test_the_printed_averages_are_those_of_nine_columns_but_one() -> None:
    for title in ("GLUE, development set", "GLUE, test set"):
        (table,) = (table for table in tables("sparsebert2021") if table.title == title)
        for row in table.rows:
            *scores, average = map(float, row.published.values())
            of_eight = (sum(scores[:2]) / 2 + sum(scores[2:])) / 8
            exception = title == "GLUE, development set" and row.label == "without diagonal"
            assert average == pytest.approx(of_eight if exception else sum(scores) / 9, abs=0.051)
            assert exception == (abs(average - sum(scores) / 9) > 0.1)


@pytest.mark.parametrize("paper", PAPERS)
@pytest.mark.parametrize("part", rest_slow(["claims", "0", "1", "2", "3", "small"], ("claims", "1", "small")))
def test_every_number_comes_from_the_setting_that_its_words_name(paper: str, part: str) -> None:
    """The claims and the tables, every fourth by itself, since some are long; and all of the small setting."""
    recipe = read(paper)
    tables = recipe.tables[int(part) :: 4] if part.isdigit() else ()
    whole = replace(recipe, tables=tables, claims=recipe.claims if part == "claims" else ())
    assert list(problems(recipe.at("small") if part == "small" else whole)) == []


@pytest.mark.parametrize("paper", PAPERS)
def test_stand_ins_have_tables_of_their_own(paper: str) -> None:
    recipe = read(paper)
    whole, small = recipe.tables, recipe.at("small").tables
    assert recipe.small_tables
    assert {table["title"] for table in recipe.small_tables}.isdisjoint(table["title"] for table in whole)
    assert not any(table.get("small") for table in whole)
    for table in map(ComparedTable.of, small):
        if table.small:
            assert table.title.startswith("Stand-in: ")
            assert not any(row.published for row in table.rows)
    changed = {step.name for step in recipe.steps} - set(recipe.at("small").stand_ins)
    assert changed == ({"patterns"} if paper == "sparsebert2021" else set())


@pytest.mark.parametrize("paper", PAPERS)
def test_a_stand_in_is_not_announced_as_the_step_of_the_paper(paper: str) -> None:
    steps = [(step, step.at("small")) for step in read(paper).steps]
    other = [
        (step.why, small.why)
        for step, small in steps
        if small is not None and any(step.options.get(name) != small.options.get(name) for name in ("task", "model"))
    ]
    assert other
    assert [full for full, why in other if full == why] == []


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("paper", PAPERS)
def test_every_step_is_read_by_an_exhibit_or_by_another_step(paper: str, small: bool) -> None:
    """What nobody reads is not run."""
    recipe = read(paper).at("small") if small else read(paper)
    read_steps = {source.step for table in map(ComparedTable.of, recipe.tables) for source in table.sources()}
    read_steps |= {step_and_task(name)[0] for claim in map(Claim.of, recipe.claims) for name in claim.steps}
    read_steps |= {step for figure in map(ComparedFigure.of, recipe.figures) for step in figure.steps}
    references = set().union(*(step.references for step in recipe.steps))
    assert [step.name for step in recipe.steps if step.name not in read_steps | references] == []


@pytest.mark.parametrize("paper", PAPERS)
def test_every_figure_is_one_of_its_command(paper: str) -> None:
    recipe = read(paper)
    commands = {step.name: step.command for step in recipe.steps}
    of_metrics = {declaration.name for declaration in registered_declarations() if declaration.title}
    figures = list(map(ComparedFigure.of, recipe.figures))
    assert figures
    for step, _, name in (ours.partition("/") for figure in figures for ours in figure.figures):
        report = report_of(commands[step])
        known = {*report.captions, *of_metrics} if step and commands[step] == "classify" else {*report.captions}
        # The pictures of sentences have their numbers in their names.
        sentence = commands[step] == "attend" and re.fullmatch(r"sentence\d+_[a-z]+_layer\d+", name)
        assert sentence or any(name == stem or name.startswith(f"{stem}_") for stem in known), (step, name)


def parts(recipe: PaperRecipe, original: PaperRecipe) -> Iterator[PaperRecipe]:
    """The recipe with its claims alone and with each of its tables alone, first with what differs from the original."""
    steps = {step.name for step in recipe.steps if step not in original.steps}

    def far_from_changes(table: Mapping[str, Any]) -> int:
        return 0 if table not in original.tables else 2 - any(re.search(rf"\b{name}\b", str(table)) for name in steps)

    found = [replace(recipe, tables=()), *(replace(recipe, tables=(t,), claims=()) for t in recipe.tables)]
    return iter(sorted(found, key=lambda part: far_from_changes(part.tables[0]) if part.tables else 1))


def changed(paper: str, old: str, new: str, folder: Path) -> PaperRecipe:
    """A recipe with another text in all places of one."""
    text = read_packaged(paper)[1]
    assert old in text
    path = folder / f"{paper}.toml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return read_recipe(str(path))[0]


WRONG = [
    ("sparsebert2021", 'control = "dropped" }, published', 'control = "kept" }, published', "diagonal is"),
    ("sparsebert2021", "structured = true\ndiagonal = false", "structured = true", "diagonal is|never writes"),
    ("sparsebert2021", '{ mask = "star" }', '{ mask = "bigbird" }', "pattern is"),
    ("sparsebert2021", 'name = "QQP", step = "qqp"', 'name = "QQP", step = "qnli"', "task is|never writes"),
    ("sparsebert2021", 'where = { metric = "f1" }, scale', "scale", "metric is|several settings"),
    ("sparsebert2021", '"mnli/mnli-mm" = "accuracy", ', "", "task is"),
    ("sparsebert2021", 'where = { task = "mnli", metric', 'where = { task = "mnli-mm", metric', "task is"),
    ("sparsebert2021", 'where = { task = "mnli", metric = "accuracy" }', 'where = { metric = "accuracy" }',
     "several settings"),
    ("sparsebert2021", 'also-on = ["mnli-mm=hub:nyu-mll/glue:mnli"]\n', "", "never writes"),
    ("sparsebert2021", 'name = "SQuAD 1.1 EM", step = "squad", value = "value", where = { metric = "exact" }',
     'name = "SQuAD 1.1 EM", step = "squad", value = "value", where = { metric = "f1" }', "metric is"),
    ("sparsebert2021", 'lambdas = "0.0001,0.001,0.01,0.1"', 'lambdas = "0.0001,0.1"', "never writes"),
    ("sparsebert2021", 'pick = "seeds"', 'pick = "first"', "first seed alone"),
    ("sparsebert2021", "penalty-0.0001/mask.safetensors\" }", "penalty-0.1/mask.safetensors\" }", "penalty is"),
    ("song2020", 'prune = "3,10,20,30"', 'prune = "3,10,20"', "never writes"),
    ("song2020", "greedy,beam,random", "greedy,random", "never writes"),
    ("song2020", 'model = "albert", metric', 'model = "bert", metric', "model is"),
    ("song2020", 'task = "mnli"\nprune', 'task = "sst2"\nprune', "task is"),
    ("song2020", '"albert", other_model = "bert", stat', '"bert", other_model = "albert", stat', "has no rows"),
    ("song2020", '"albert", other_model = "", statistic = "d',
     '"bert", other_model = "", statistic = "d', "models is"),
    ("song2020", 'other_model = "", statistic = "depth_correlation" } }\nat_most = 0.3',
     'other_model = "", statistic = "morans_i" } }\nat_most = 0.3', "statistic is"),
    ("song2020", '= "", statistic = "depth_correlation"', '= ""', "rows of confidence would be one number"),
    ("song2020", "at_least = 0.3", "at_least = 0.2", "bound is"),
    ("song2020", 'confidence = "confidence", worth = "delta"', 'confidence = "delta"', "has no rows"),
    ("song2020", 'models = ["{bert}/model", "{albert}/model"]\ncorpus', 'models = ["{albert}/model"]\ncorpus',
     "has no rows"),
    ("voita2019", 'init = "scratch"', 'init = "trained"', "init is"),
    ("voita2019", "from-scratch = true\n", "", "never writes"),
    ("voita2019", 'step = "roles-subtitles"', 'step = "roles"', "OpenSubtitles, in one of the two"),
    ("voita2019", 'direction = "dep->head"', 'direction = "head->dep"', "direction is"),
    ("voita2019", 'metric = "bleu"', 'metric = "chrf"', "metric is"),
    ("breaking_bert2022", 'layers = "last:6" } },\n', 'layers = "last:3" } },\n', "never writes"),
    ("breaking_bert2022", 'layers = "first:6" } },\n', 'layers = "last:6" } },\n', "layers is"),
    ("breaking_bert2022", "neighbour=0,1,3,6", "neighbour=1,3,6", "never writes|has no rows"),
    ("breaking_bert2022", "draws = 5\n", "draws = 3\n", "draws is 3"),
    ("breaking_bert2022", "draws = 5\n", "", "has no rows"),
    ("breaking_bert2022", 'mu=0.3" }, pick = "largest"', 'mu=0.1" }, pick = "largest"', "mu is"),
    ("breaking_bert2022", 'pick = "smallest" }\nat', 'pick = "mean" }\nat', "pick is"),
    ("breaking_bert2022", 'drop-attention = ["last:6"]\n', "", "never writes|has no rows"),
    ("breaking_bert2022", '{ pattern = "drop-attention", layers = "last:6" } }\nat_most',
     '{ pattern = "drop-layers", layers = "last:6" } }\nat_most', "pattern is"),
    ("breaking_bert2022", 'layers = "last:3" } }\nat_most', 'layers = "last:6" } }\nat_most', "layers is"),
    ("breaking_bert2022", 'drop-layers", layers = "last:3" } },', 'drop-layers", layers = "last:6" } },',
     "layers is"),
    ("sparsefinder2022", 'where = { method = "lsh" }', 'where = { method = "bucket" }', "method is"),
    ("sparsefinder2022", 'parser = "spacy:en_core_web_sm"\n', "", "never writes"),
    ("sparsefinder2022", 'corpus = "demo"\ndim', 'corpus = "hub:Salesforce/wikitext"\ncolumn = "text"\ndim',
     "never writes"),
    ("sparsefinder2022", '"verbs", where = { query_tag = "VERB"', '"verbs", where = { query_tag = "NOUN"',
     "query_tag is"),
    ("sparsefinder2022", 'value = "gold_share", where = { key_tag = "AUX"',
     'value = "predicted_share", where = { key_tag = "AUX"', "value is"),
    ("sparsefinder2022", 'step = "en-fr"', 'step = "en-de"', "in one of the two"),
]  # fmt: skip


@pytest.mark.parametrize(("paper", "old", "new", "found"), rest_slow_rows(WRONG, WRONG[::6]))
def test_a_number_under_a_heading_that_is_not_its_own_is_found(
    paper: str, old: str, new: str, found: str, tmp_path: Path
) -> None:
    told = []
    for part in parts(changed(paper, old, new, tmp_path), read(paper)):
        told += problems(part)
        if any(re.search(found, problem) for problem in told):
            return
    pytest.fail(f"not found, but {told}")


@pytest.mark.parametrize(
    ("paper", "old", "new", "found"),
    rest_slow_rows([
        ("song2020", '"albert", other_model = "bert" }', '"albert", other_model = "" }', "other_model is"),
        ("song2020", '"confidence_all", statistic = "m', '"confidence", statistic = "m', "quantity is"),
        ("song2020", '"delta", statistic = "morans_i"', '"delta", statistic = "depth_correlation"', "statistic is"),
        ("breaking_bert2022", "draws = 2\n", "", "draws is"),
        ("breaking_bert2022", "draws = 2\n", "draws = 0\n", "never writes"),
        ("breaking_bert2022", 'drop-layers = ["last:3"]', 'drop-layers = ["last:2"]', "never writes"),
    ], 3),
)  # fmt: skip
def test_a_stand_in_under_a_heading_that_is_not_its_own_is_found(
    paper: str, old: str, new: str, found: str, tmp_path: Path
) -> None:
    told = list(problems(changed(paper, old, new, tmp_path).at("small")))
    assert any(re.search(found, problem) for problem in told), told


def test_the_cells_of_test_sets_name_the_files_that_the_steps_write() -> None:
    """The scores come from the server of GLUE; of every row and seed there is a file for it."""
    recipe = read("sparsebert2021")
    (table,) = (table for table in tables("sparsebert2021") if table.title == "GLUE, test set")
    written = {
        f"{step.name}/predictions/{case.name}/{submissions[name]}.tsv": case
        for step in recipe.steps
        if "predict" in step.options
        for case in study_cases(request_of(recipe, step).study, tuple(step.options["pattern"]))
        for name in [text.rpartition("=")[0] or step.options["task"] for text in step.options["predict"]]
        for submissions in [{"stsb": "STS-B", **{task.name: task.submission for task in CLASS_TASKS}}]
    }
    controls = {"Devlin et al.": "kept", "BERT-base": "kept", "randomly dropped": "random"}
    for row, column in product(table.rows, table.columns[:-1]):
        (source,) = table.sources_of(row, column)
        named = source.needs.removeprefix("GLUE's score of ")
        cases = [written[file] for file in fnmatch.filter(written, named)]
        assert [case.seed for case in cases] == [0, 1, 2], named
        assert all(case.mask == FULL_ATTENTION and case.layers is None for case in cases)
        assert {case.diagonal for case in cases} == {controls.get(row.label, "dropped")}
        assert Path(named).stem == column.name


def test_a_cell_without_a_step_is_no_recipe(tmp_path: Any) -> None:
    path = tmp_path / "own.toml"
    text = read_recipe("sparsebert2021")[1]
    path.write_text(text.replace('step = "patterns"\n', ""), encoding="utf-8")
    with pytest.raises(InputError, match="has no step and file, and does not say what it needs"):
        read_recipe(str(path))


def test_what_the_small_setting_leaves_as_it_is_may_fill_the_table_of_the_paper() -> None:
    small: PaperRecipe = read_recipe("sparsebert2021")[0].at("small")
    assert "patterns" not in small.stand_ins
    # What takes something of a stand-in is one itself.
    assert {"dam-structured", "mrpc"} <= set(small.stand_ins)


@pytest.mark.parametrize("paper", rest_slow(PAPERS, ("song2020", "voita2019")))
def test_a_smaller_setting_stands_beside_the_paper_in_tables_of_its_own(paper: str) -> None:
    recipe = read(paper)
    card = recipe.at("card")
    own = [table for table in map(ComparedTable.of, card.tables) if table.shown_scale == "card"]
    assert own
    assert [table for table in card.tables if table.get("scale") != "card"] == list(recipe.tables)
    cells = {table.title: [row.published for row in table.rows] for table in map(ComparedTable.of, recipe.tables)}
    for table in own:
        title = table.title.removeprefix("Smaller setting (--scale card) in place of: ")
        assert title != table.title
        assert [row.published for row in table.rows] == cells[title]
        assert {source.step for source in table.sources()} & {step.name for step in card.steps}
    # No number of a smaller step may stand under a heading of the paper.
    full = {step.name: step.options for step in recipe.steps}
    assert {step.name for step in card.steps if step.options != full[step.name]} <= set(card.stand_ins)
    for step in card.steps:
        request_of(card, step)
        assert step.references <= {other.name for other in card.steps}
    rows = [
        (step.name, *matching(possible_rows(card, step, source.file), source.where).shape)
        for table in own
        for source in table.sources()
        for step in card.steps
        if step.name == source.step
    ]
    assert any(count for _, count, _ in rows), "some cell has a row"


def test_steps_without_a_smaller_setting_are_left_out_if_they_need_a_gpu() -> None:
    spec = {"name": "a", "command": "train", "why": "b", "steps": 9, "model": "x"}
    assert Step.of({**spec, "gpu": True}).at("card") is None
    kept = Step.of(spec).at("card")
    assert kept is not None
    assert kept.options == {"steps": 9, "model": "x"}
    same = Step.of({**spec, "gpu": True, "card": {}}).at("card")
    assert same is not None
    assert (same.gpu, same.options) == (True, kept.options)
    other = Step.of({**spec, "gpu": True, "card": {"steps": 2, "model": "", "why": "c"}}).at("card")
    assert other == Step("a", "train", "c", {"steps": 2}, gpu=True)
    assert Step.of({**spec, "card": {"skip": True}}).at("card") is None

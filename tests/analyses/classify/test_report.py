from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest
from made_runs import classify_tables, relevance_tables
from matplotlib.figure import Figure
from tiers import rest_slow

from headlens.analyses.classify.overviews import best_rows, role_counts, roles_held
from headlens.analyses.classify.report import REPORT, classify_figures
from headlens.analyses.report.registry import report_of, report_of_run, reports
from headlens.errors import InputError
from headlens.findings.layer_smoothness import smoothness_table
from headlens.pages.command_report import Caption, CommandReport
from headlens.pages.page_tables import PageTable
from headlens.relevance_propagation.overviews import shares_title
from headlens.runs.reading import RecordedRun
from headlens.tables.classify_tables import SCORES_OF_ROLES

RELEVANCE = ["relevance", "relevance_raw", "relevance_intervals"]
ALL = [
    "functions",
    "confidence",
    "entropy",
    "mass",
    "rare",
    "same_word",
    "coreference",
    "pair",
    "alignment",
    "positions",
    "offsets",
    "best_heads",
    "syntax",
    "similarity",
]


def run(tables: Mapping[str, pd.DataFrame], label: str = "run", min_instances: int = 30) -> RecordedRun:
    record = {"command": "classify", "status": "finished", "arguments": {"min_instances": min_instances}}
    return RecordedRun(Path("folder") / label, label, record, tables)


def check(recorded: RecordedRun) -> None:
    report_of_run(recorded).check(recorded)


def column(table: PageTable, name: str) -> list[str]:
    place = [c.name for c in table.columns].index(name)
    return [row[place].text for row in table.rows]


def only_roles(tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Heads without measures: figures have their names, but hardly any is drawn."""
    return tables | {"heads": tables["heads"][["model", "stack", "layer", "head", "role", "roles", "nearest"]]}


@pytest.fixture(scope="module")
def drawn() -> dict[str, Figure | None]:
    """All figures, with those of relevance, which tests only look at."""
    return dict(classify_figures(with_relevance()))


def test_every_figure_is_drawn_and_has_a_caption(drawn: dict[str, Figure | None]) -> None:
    assert [name for name, _ in classify_figures(only_roles(classify_tables()))] == ALL
    assert all(drawn[name] is not None for name in ALL)
    report = report_of_run(run({}))
    assert all(report.caption(name).text.endswith(".") for name in ALL)
    assert REPORT.caption("syntax_2") == REPORT.caption("syntax")


@pytest.mark.parametrize(
    "missing", rest_slow([["syntax"], ["similarity"], ["positions"], ["heads"], list(classify_tables())], 2)
)
def test_what_is_there_is_drawn(missing: list[str]) -> None:
    tables = {name: frame for name, frame in only_roles(classify_tables()).items() if name not in missing}
    needs = {"offsets": "positions", "best_heads": "syntax", "syntax": "syntax", "similarity": "similarity"}
    expected = [name for name in ALL if needs.get(name, "heads") not in missing]
    if "heads" in missing:
        expected = [name for name in expected if name != "similarity"]
    assert [name for name, _ in classify_figures(tables)] == expected


def test_tables_without_rows_give_no_figure() -> None:
    tables = {name: frame.iloc[:0] for name, frame in classify_tables().items()}
    assert not [name for name, figure in classify_figures(tables) if figure is not None]


def test_two_models_have_a_map_of_relations_each() -> None:
    first, second = only_roles(classify_tables("one")), only_roles(classify_tables("two"))
    both = {name: pd.concat([first[name], second[name]]) for name in ("heads", "syntax")}
    assert [name for name, _ in classify_figures(both) if name.startswith("syntax")] == ["syntax_1", "syntax_2"]
    # One in which no head is above the offset takes no number.
    below = {"heads": both["heads"], "syntax": both["syntax"].assign(accuracy=0.0)}
    below["syntax"].loc[below["syntax"]["model"] == "two", "accuracy"] = 1.0
    assert [name for name, _ in classify_figures(below) if name.startswith("syntax")] == ["syntax"]


def with_relevance() -> dict[str, pd.DataFrame]:
    tables = classify_tables()
    relevance = relevance_tables(rules=("epsilon",))["relevance"]
    return tables | {"heads": tables["heads"].assign(relevance=relevance["relevance"]), "relevance": relevance}


def test_relevance_is_drawn_where_it_was_computed(drawn: dict[str, Figure | None]) -> None:
    assert list(drawn) == [*ALL, "relevance_roles", "confidence_relevance", *RELEVANCE]
    assert all(figure is not None for figure in drawn.values())
    assert all(report_of_run(run({})).caption(name).text.endswith(".") for name in drawn)
    assert REPORT.caption("relevance_intervals").title == "Relevance with intervals"


def test_relevance_without_heads_is_drawn_alone() -> None:
    tables = {"relevance": with_relevance()["relevance"]}
    assert [name for name, _ in classify_figures(tables)] == RELEVANCE


def test_the_most_relevant_heads_are_listed_where_it_was_computed() -> None:
    titles = [table.title for table in REPORT.overviews([run(with_relevance())])]
    assert titles[:3] == ["Roles", "Best head for every relation", "Measures"]
    shares = shares_title(with_relevance()["relevance"])
    assert titles[3:] == ["Heads that have a role", "Largest contributions across layers", shares]
    plain = [table.title for table in REPORT.overviews([run(classify_tables())])]
    assert not any(title.startswith("Largest positive shares") for title in plain)


def test_the_table_of_relevance_is_checked() -> None:
    tables = with_relevance()
    check(run(tables))
    with pytest.raises(
        InputError, match=r"folder/run/relevance\.csv:2: column relevance holds 'x'; expected a finite number"
    ):
        check(run(tables | {"relevance": tables["relevance"].assign(relevance="x")}))
    with pytest.raises(
        InputError, match=r"folder/run/heads\.csv:2: column relevance holds 'x'; expected a finite number"
    ):
        check(run(tables | {"heads": tables["heads"].assign(relevance="x")}))


def test_a_finished_run_needs_its_tables() -> None:
    tables = classify_tables()
    check(run(tables))
    del tables["positions"]
    with pytest.raises(InputError, match=r"folder/run/positions\.csv is missing, which every finished run of classify"):
        check(run(tables))


def test_tables_are_checked_for_the_columns_of_their_figures() -> None:
    tables = classify_tables()
    with pytest.raises(InputError, match=r"folder/run/heads\.csv: no column confidence\."):
        check(run(tables | {"heads": tables["heads"].drop(columns="confidence")}))


def test_every_column_that_is_asked_for_is_written() -> None:
    names = ["model", "stack", "relation", "direction", "offset", "n", "share"]
    more = {"roles": ["model", *SCORES_OF_ROLES.names[1:]], "relation_offsets": names}
    tables = with_relevance() | {name: pd.DataFrame(columns=columns) for name, columns in more.items()}
    tables["smoothness"] = smoothness_table(tables["heads"], ("confidence",), seed=0)
    for name, table in tables.items():
        assert {column.name for column in REPORT.tables[name].columns if not column.optional} <= set(table)


def test_other_commands_are_shown_with_the_pictures_they_have() -> None:
    assert "classify" in reports()
    assert report_of("models") == CommandReport("models")
    kind = report_of("attend")
    assert not kind.draws
    assert kind.caption("sentence1_encoder") == Caption(
        "sentence1 encoder", "figures/sentence1_encoder.png, as drawn by the run."
    )


def test_roles_are_counted_for_every_stack() -> None:
    table = role_counts([run(classify_tables())])
    assert [c.name for c in table.columns] == ["model", "stack", "heads", "positional", "syntactic", "rare", "no role"]
    assert [cell.text for cell in table.rows[0]] == ["demo", "encoder", "6", "1", "1", "1", "3"]


def test_best_heads_of_runs_stand_below_each_other() -> None:
    runs = [run(classify_tables("one"), "first"), run(classify_tables("two"), "second", min_instances=5)]
    table = best_rows(runs)
    assert column(table, "relation") == ["nsubj"] * 4 + ["obj"] * 4
    assert column(table, "run") == ["first", "second"] * 4
    assert column(table, "head") == ["encoder.0.1"] * 8
    assert column(table, "accuracy") == ["0.800"] * 8
    assert column(table, "95 % CI") == ["0.790–0.810"] * 8
    # obj has 12 instances: too few for the first run only; head->dep is not significant
    expected = [
        "yes",
        "yes",
        "no (n.s.)",
        "no (n.s.)",
        "too few",
        "yes",
        "too few",
        "no (n.s.)",
    ]
    assert column(table, "syntactic") == expected
    interval = table.rows[0][[c.name for c in table.columns].index("95 % CI")].interval
    assert interval == pytest.approx((0.79, 0.8, 0.81, 0.4))


def test_heads_with_roles_are_listed() -> None:
    table = roles_held([run(classify_tables())])
    assert column(table, "head") == ["encoder.0.0", "encoder.0.1", "encoder.1.1"]
    assert column(table, "roles") == ["positional(-1)", "syntactic(nsubj dep->head)", "rare"]
    assert roles_held([run({})]).rows == ()

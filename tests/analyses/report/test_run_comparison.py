from __future__ import annotations

from pathlib import Path
from typing import Any

from headlens.analyses.report.page import counts, differences, facts, flatten
from headlens.pages.page_tables import PageTable
from headlens.runs.reading import RecordedRun


def run(label: str = "run", **record: Any) -> RecordedRun:
    return RecordedRun(Path(label), label, record, {})


def rows(table: PageTable) -> dict[str, list[str]]:
    return {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}


def test_facts_are_named_by_their_path() -> None:
    record = {"a": {"b": [1, 2], "c": None}, "models": [{"dtype": "float32"}, {"dtype": "bfloat16"}], "ok": True}
    assert dict(flatten(record)) == {
        "a.b": "1, 2",
        "a.c": "—",
        "models.1.dtype": "float32",
        "models.2.dtype": "bfloat16",
        "ok": "yes",
    }


def test_times_memory_and_counts_have_units() -> None:
    table = rows(
        facts([run(wall_time_s=6.438, peak_memory_bytes=803_471_360, corpus={"relations": {"det": 521, "obj": 3}})])
    )
    assert table == {
        "wall_time_s": ["6.4 s"],
        "peak_memory_bytes": ["803 MB"],
        "corpus.relations": ["det 521, obj 3"],
    }


def test_facts_of_the_run_come_before_arguments_models_and_versions() -> None:
    record = {"versions": {"torch": "2"}, "models": [{"dtype": "x"}], "arguments": {"seed": 1}, "platform": "Linux"}
    assert list(rows(facts([run(**record)]))) == ["platform", "arguments.seed", "models.1.dtype", "versions.torch"]


def test_only_what_matters_and_differs_is_a_difference() -> None:
    shared = {"status": "finished", "platform": "Linux"}
    first = run("a", arguments={"corpus": "x", "out": "a", "seed": 1}, started="1", wall_time_s=1.0, **shared)
    second = run("b", arguments={"corpus": "y", "out": "b", "seed": 1, "limit": 3}, started="2", **shared)
    table = differences([first, second])
    assert [c.name for c in table.columns] == ["", "a", "b"]
    assert rows(table) == {"--corpus": ["x", "y"], "--limit": ["", "3"]}
    assert differences([first, first]).rows == ()


def test_options_that_only_one_command_has_are_no_difference() -> None:
    first = run("a", command="classify", arguments={"models": ["m"], "limit": 3, "min_instances": 30})
    second = run("b", command="ablate", arguments={"models": ["n"], "limit": 3, "keep_only": False})
    assert rows(differences([first, second])) == {"MODEL": ["m", "n"]}
    third = run("c", command="ablate", arguments={"models": ["n"], "limit": None, "keep_only": True})
    assert rows(differences([first, second, third])) == {
        "MODEL": ["m", "n", "n"],
        "--keep-only": ["", "no", "yes"],
        "--limit": ["3", "3", "—"],
    }


def test_what_follows_from_another_corpus_is_not_a_difference_of_its_own() -> None:
    def with_corpus(sha: str, words: int) -> RecordedRun:
        models = [{"model": "m", "encoding": {"words": words}, "annotation": {"arcs": {"obj": words}}}]
        return run(sha, models=models, corpus={"sha256": sha, "relations": {"obj": words}})

    assert list(rows(differences([with_corpus("a", 1), with_corpus("b", 2)]))) == ["corpus.sha256"]


def with_models(label: str, **dtypes: str) -> RecordedRun:
    return run(label, models=[{"model": name, "dtype": dtype} for name, dtype in dtypes.items()])


def test_models_are_compared_with_those_of_their_name() -> None:
    first, second = with_models("a", bert="f32", albert="bf16"), with_models("b", albert="bf16", bert="f16")
    assert rows(differences([first, second])) == {"models.1.dtype": ["f32", "f16"]}
    assert rows(facts([first, second]))["models.2.model"] == ["albert", "albert"]
    alone = with_models("c", albert="f16")
    assert rows(differences([first, alone])) == {
        "models.1.dtype": ["f32", ""],
        "models.1.model": ["bert", ""],
        "models.2.dtype": ["bf16", "f16"],
    }


def test_models_of_other_names_are_compared_by_their_place() -> None:
    first, second = with_models("a", bert="f32", x="1"), with_models("b", y="2", bert="f32")
    assert rows(differences([first, second])) == {"models.2.dtype": ["1", "2"], "models.2.model": ["x", "y"]}
    third = with_models("c", roberta="f32", z="1", more="3")
    assert rows(differences([first, third]))["models.1.model"] == ["bert", "roberta"]
    assert rows(differences([first, third]))["models.3.dtype"] == ["", "3"]
    assert rows(differences([first, second, third]))["models.1.model"] == ["bert", "bert", "roberta"]
    fourth = with_models("d", new="4", roberta="f32")
    assert rows(differences([first, third, fourth]))["models.1.model"] == ["bert", "roberta", "roberta"]
    assert rows(facts([with_models("e", m="1", n="2")]))["models.2.model"] == ["n"]
    assert rows(facts([run(models=[{"model": "m"}, {"model": "m"}])]))["models.2.model"] == ["m"]


def test_records_without_models_are_endured() -> None:
    odd = [run("a", models="x"), run("b", models=[1, {"model": "m"}]), run("c"), with_models("d", m="f32")]
    assert rows(facts(odd))["models.1.dtype"] == ["", "", "", "f32"]


def test_the_corpus_in_a_line() -> None:
    corpus = {"name": "demo", "sentences": 1258, "words": 4162, "trees": 0}
    assert counts(run(corpus=corpus)) == "demo: 1,258 sentences, 4,162 words"
    assert counts(run(corpus={"name": "demo", "words": "many"})) == "demo"
    assert counts(run()) == ""

"""The functions of `headlens`, one for every command: the same numbers, defaults and files as the command line."""

from __future__ import annotations

import dataclasses
import inspect
import json
import pkgutil
import re
import sys
import tempfile
from dataclasses import MISSING
from html import unescape
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from make_reference import keywords_stub
from matplotlib.figure import Figure
from saved import build, save
from small_vocabulary import small_wordpiece  # noqa: F401
from tiers import rest_slow
from transformers import PreTrainedTokenizerBase

import headlens
from headlens.analyses.commands import commands
from headlens.api import function_of
from headlens.errors import HeadlensError, InputError, OptionError, OutputError
from headlens.models.loading import LoadedModel
from headlens.options import CommandOptions
from headlens_cli.app import main

FUNCTIONS = {name.replace("-", "_"): command for name, command in commands().items()}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, wordpiece_tokenizer: PreTrainedTokenizerBase) -> str:
    """The folder of a tiny model, which takes a tenth of the time of the demo model."""
    model = build("BertModel", len(wordpiece_tokenizer), max_position_embeddings=128)
    return save(model, tmp_path_factory.mktemp("models") / "small", wordpiece_tokenizer)


@pytest.fixture(scope="module")
def classified(small: str) -> headlens.Result:
    return headlens.classify(small, limit=20, similarity="off")


def test_every_command_has_a_function() -> None:
    assert {name for name in FUNCTIONS if callable(getattr(headlens, name, None))} == set(FUNCTIONS)


def test_a_model_comes_with_its_tokenizer() -> None:
    model = build("BertModel")
    for given in (model, (model,), ["demo", model]):
        with pytest.raises(OptionError, match=r"is no model that headlens can read text with\.\nGive \("):
            headlens.classify(given)  # type: ignore[arg-type]


def test_a_corpus_may_be_a_list_of_sentences(small: str, tmp_path: Path) -> None:
    loaded = headlens.load(small)
    texts = ["The cat that I saw sleeps.", " ", "Dogs bark."]
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    read = headlens.classify(loaded, tmp_path / "texts.txt", similarity="off").tables["heads"]
    for kind in (list, iter):
        given = headlens.classify(loaded, kind(texts), similarity="off")
        pd.testing.assert_frame_equal(given.tables["heads"], read, obj=kind.__name__)
        assert given.summary["corpus"]["name"] == "texts"


def test_what_is_no_list_of_sentences_is_refused() -> None:
    for given, said in (
        (
            pd.DataFrame({"text": ["One."]}),
            r"corpus cannot be of the type DataFrame\.\nGive a list of sentences, such",
        ),
        (3, r"corpus cannot be of the type int\."),
        ([("One.", "Eins.")], r"a list whose item 0 is a tuple, not a text\.\nGive a list of sentences"),
    ):
        with pytest.raises(OptionError, match=said):
            headlens.classify("demo", given)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"--data cannot be a DataFrame\.\nWrite it to a file with to_csv"):
        headlens.ablate("demo", "classification", data=pd.DataFrame({"text": ["One."]}))


def test_no_folder_bears_the_name_of_a_function() -> None:
    # Importing it would put a module in the place of the function.
    assert not {module.name for module in pkgutil.iter_modules(headlens.__path__)} & set(headlens.__all__)


@pytest.mark.parametrize(("name", "command"), FUNCTIONS.items())
def test_options_and_defaults_are_those_of_the_command(name: str, command: CommandOptions) -> None:
    function = getattr(headlens, name)
    parameters = inspect.signature(function).parameters
    for option in command.options.values():
        if option.name in {"show", "models", "runs", "paper"} or option.default is MISSING:
            continue
        assert option.name in parameters, option.name
        if option.name not in {"heads", "text"}:
            assert parameters[option.name].default == option.default, option.name
        assert f"{option.name}: " in function.__doc__


def test_type_checkers_see_the_options_of_today() -> None:
    stub = Path(headlens.__file__).with_name("keywords.pyi").read_text(encoding="utf-8")
    assert stub == keywords_stub(), "Run: python docs/make_reference.py"


@pytest.mark.slow
def test_the_result_of_classify(classified: headlens.Result) -> None:
    assert list(classified.tables) == ["heads", "positions", "rare", "syntax", "pos", "relation_offsets", "roles"]
    assert repr(classified).startswith("headlens classify of small: heads (4 rows), positions (76 rows)")
    assert classified.findings
    assert classified.summary["roles"]
    assert isinstance(classified.plot("confidence"), Figure)
    told = r"classify has no figure 'confidense'\.\nDid you mean confidence\? There are functions, confidence"
    with pytest.raises(OptionError, match=told):
        classified.plot("confidense")
    for column, figure in {"confidence_all": "confidence", "role": "functions", "count": "offsets"}.items():
        assert classified.plot(column) is classified.figures[figure]
    page = classified._repr_html_()
    assert '<img alt="headlens classify of small" src="data:image/png;base64,' in page


def test_two_models_with_relevance_and_stability(small: str) -> None:
    result = headlens.classify([small, small], limit=2, similarity="off", relevance=True, stability=2)
    heads = result.tables["heads"]
    assert heads["model"].nunique() == 2
    assert heads["relevance"].notna().all()
    # Two sentences are too few for roles, and so for shares of draws that have the same.
    assert "role_stability" not in heads
    assert {"relevance", "syntax"} <= set(result.tables)


def test_a_notebook_shows_the_page_of_attend(small: str) -> None:
    result = headlens.attend(small, "A <b>cat</b>.", figures=False)
    shown = result._repr_html_()
    assert 'sandbox="allow-scripts"' in shown
    assert "<b>cat" not in shown


@pytest.mark.parametrize("command", rest_slow(["masks", "classify"]))
def test_a_result_is_saved(command: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The one figure of masks is drawn in a tenth of the time of those of classify."""
    if command == "masks":
        result, figure, table, column = headlens.masks(pattern=["star"], length=8), "patterns", "sparsity", "masked"
    else:
        result, figure, table, column = request.getfixturevalue("classified"), "functions", "heads", "confidence"
        assert {"functions", "confidence", "offsets"} <= set(result.figures)
        assert result.plot("confidence") is result.figures["confidence"]
    assert next(iter(result.figures)) == figure
    assert result.plot() is result.figures[figure]
    with pytest.raises(OptionError, match=rf"{command} has no figure 'nonsense'\.\nThere are {figure}"):
        result.plot("nonsense")
    assert '<img alt="headlens' in result._repr_html_()
    folder = result.save(tmp_path / "kept")
    read = headlens.Result.read(folder)
    assert (read.command, read.findings, read.notes, read.folder) == (command, result.findings, result.notes, folder)
    pd.testing.assert_series_equal(read.tables[table][column], result.tables[table][column], rtol=1e-12)
    assert read.plot().get_figwidth() == result.plot().get_figwidth()
    assert 0 < read.plot(width="column").get_figwidth() <= 3.4
    assert result.save(result.folder) == result.folder
    assert (folder / "figures" / f"{figure}.svg").exists()
    record = json.loads((folder / "run.json").read_text())
    assert (record["status"], record["command"]) == ("finished", command)
    assert f"figures/{figure}.png" in record["files"]
    written = pd.read_csv(folder / f"{table}.csv")
    pd.testing.assert_series_equal(written[column], result.tables[table][column], rtol=1e-12)
    with pytest.raises(OutputError, match="kept"):
        result.save(folder)
    assert result.save(folder, overwrite=True, figures=False) == folder
    assert not list((folder / "figures").glob("*"))


def test_the_function_gives_the_numbers_of_the_command(
    classified: headlens.Result, small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["classify", small, "--limit", "20", "--similarity", "off", "--out", str(tmp_path / "run"), "--no-figures"]
    monkeypatch.setattr(sys, "argv", ["headlens", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    typed = pd.read_csv(tmp_path / "run" / "heads.csv")
    pd.testing.assert_frame_equal(typed, pd.read_csv(classified.folder / "heads.csv"))


@pytest.mark.slow
def test_a_folder_is_kept_and_another_disappears(tmp_path: Path) -> None:
    kept = headlens.classify(limit=3, similarity="off", out=tmp_path / "run")
    assert kept.folder == tmp_path / "run"
    assert (tmp_path / "run" / "figures").is_dir()
    assert kept.save(tmp_path / "run") == tmp_path / "run"
    passing = headlens.attend(text="The cat sleeps.", layer=1)
    place = passing.folder
    assert list(passing.figures) == ["sentence1_encoder_layer1"]
    del passing
    assert not place.exists()


def test_attention_shows_itself_in_a_notebook(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    small = LoadedModel("small", build("BertModel", len(wordpiece_tokenizer)), wordpiece_tokenizer, None)
    result = headlens.attend(small, "</iframe> A cat & a <b>dog</b> sleep.", second=small)
    shown = result._repr_html_()
    (frame,) = re.findall(r'<iframe [^>]* sandbox="allow-scripts"[^>]* srcdoc="([^"]*)"></iframe>', shown)
    assert unescape(frame) == (result.folder / "attention.html").read_text(encoding="utf-8")
    assert shown.count("</iframe>") == 1
    assert "</iframe> A cat & a <b>dog</b> sleep.".replace("<", "\\u003c") in unescape(unescape(frame))


def test_sentences_alone_are_for_the_demo_model() -> None:
    result = headlens.attend("Cats sleep.", "Dogs")
    record = json.loads((result.folder / "run.json").read_text())
    assert (record["arguments"]["text"], record["arguments"]["model"]) == (["Cats sleep.", "Dogs"], "demo")
    assert not (result.folder / "figures").exists()  # they are drawn when they are asked for


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("classify", {"corpus": "nowhere.conllu"}),
        ("probe", {"corpus": "nowhere.conllu"}),
        ("ablate", {"task": "sst2", "data": "nowhere.tsv"}),
        ("sparsefinder", {"windows": (-1,)}),
    ],
)
def test_a_call_that_is_refused_leaves_no_folder(
    command: str, options: dict[str, Any], small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(HeadlensError):
        getattr(headlens, command)(small, **options)
    assert not list(tmp_path.glob("headlens-*"))


@pytest.mark.slow
def test_a_model_is_a_name_a_folder_a_pair_or_loaded(tmp_path: Path, wordpiece_tokenizer: Any) -> None:
    classified, loaded = headlens.classify(limit=20, similarity="off"), headlens.load("demo")
    pair = headlens.classify((loaded.model, loaded.tokenizer), limit=20, similarity="off")
    same = headlens.classify(loaded, headlens.open_corpus("demo"), limit=20, similarity="off")
    for result in (pair, same):
        numbers = [own.tables["heads"].drop(columns="model") for own in (result, classified)]
        pd.testing.assert_frame_equal(*numbers)
    folder = save(build("BertModel", len(wordpiece_tokenizer)), tmp_path / "tiny", wordpiece_tokenizer)
    two = headlens.classify([loaded, folder], limit=3, similarity="off")
    assert list(two.tables["heads"]["model"].unique()) == ["MiniLM-L6", "tiny"]


def test_a_given_model_stays_as_it_is(small: str) -> None:
    loaded = headlens.load(small)
    before = headlens.load(small).weight_hash
    result = headlens.compact(loaded, ["encoder.0.0"], limit=4, rounds=2)
    assert list(result.tables) == ["compact"]
    assert (result.folder / "model.safetensors").exists()
    fresh = headlens.LoadedModel(loaded.name, loaded.model, loaded.tokenizer, None)
    assert fresh.weight_hash == before
    assert sum(p.numel() for p in fresh.model.parameters()) == headlens.load(small).n_parameters
    assert headlens.masks(pattern=["star"], length=16).tables["sparsity"]["pattern"].eq("star").all()


def test_options_are_refused_as_on_the_command_line() -> None:
    with pytest.raises(OptionError, match=r"headlens\.classify: there is no option 'limt' of classify\.\nDid you mean"):
        headlens.classify(limt=3)
    with pytest.raises(OptionError, match=r"--similarity 'some' is unknown\.\nChoose one of sample, all, off"):
        headlens.classify(similarity="some")
    with pytest.raises(OptionError, match=r"--seeds only applies when models are trained under masks"):
        headlens.masks(seeds=2)


WRONG = [None, 3, b"x", {"a": 1}, "", "a\0b", "x" * 5000]


@pytest.mark.parametrize("given", WRONG, ids=repr)
def test_what_names_no_run_is_refused_with_the_right_call(given: Any, classified: headlens.Result) -> None:
    """Wherever a run is named: no function of Python is named in place of it."""
    for call, words in (
        (lambda: headlens.report(given), r'headlens\.report\("runs/a", "runs/b", out="runs/both"\)'),
        (lambda: headlens.report([given]), r'headlens\.report\("runs/a"'),
        (lambda: headlens.Result.read(given), r'headlens\.Result\.read\("runs/mine"\)'),
        (lambda: classified.save(given), r'result\.save\("runs/mine"\)'),
    ):
        with pytest.raises(OptionError, match=rf"(?s)names no folder\..*Write {words}"):
            call()


def test_runs_of_a_report_may_be_a_list() -> None:
    with pytest.raises(InputError, match=r"^a does not exist"):
        headlens.report(["a", "b"])
    with pytest.raises(OptionError, match="No run was given"):
        headlens.report([])


@pytest.mark.parametrize("width", ["3.3in", 3.3, None, ["column"], "", {}], ids=repr)
def test_a_width_that_there_is_not(width: Any, classified: headlens.Result) -> None:
    with pytest.raises(
        OptionError, match=r"(?s)width .* is unknown\..*\"full\" \(7 inches\), \"column\" \(3.3 inches\)"
    ):
        classified.plot("confidence", width=width)


@pytest.mark.parametrize("name", [3, ["confidence"], float("nan"), ""], ids=repr)
def test_what_names_no_figure(name: Any, classified: headlens.Result) -> None:
    with pytest.raises(OptionError, match=r"(?s)(is no name of a figure|has no figure '')\..*There are functions, "):
        classified.plot(name)


@pytest.mark.slow
def test_a_report_of_results(classified: headlens.Result, tmp_path: Path) -> None:
    page = headlens.report(classified, out=tmp_path / "page")
    assert (page.folder / "report.html").exists()
    assert "Roles of attention heads" in (page.folder / "report.html").read_text()


@pytest.mark.slow
def test_lists_are_given_as_text_or_as_sequences() -> None:
    typed = headlens.classify(limit=10, relations="nsubj,obj", similarity="off")
    listed = headlens.classify(limit=10, relations=["nsubj", "obj"], similarity="off")
    pd.testing.assert_frame_equal(typed.tables["syntax"], listed.tables["syntax"])


@pytest.mark.slow
def test_longer_commands_give_results_too() -> None:
    assert {"ablation", "examples"} <= set(headlens.ablate(limit=4).tables)
    assert {"relevance"} <= set(headlens.relevance(limit=4, replicates=100).tables)
    pruned = headlens.prune(steps=2, lambdas=[0.1])
    assert {"gates", "sweep"} <= set(pruned.tables)
    assert isinstance(pruned.plot(), Figure)
    learned = headlens.train_dam(steps=2, lambdas=[0.01])
    assert {"sparsity", "sweep"} <= set(learned.tables)
    trained = headlens.train(steps=2, limit=20)
    assert "log" in trained.tables
    assert headlens.classify(trained.folder / "model", limit=3).tables["heads"].shape[0] == 72
    found = headlens.sparsefinder(limit=20, epochs=1, windows="0,3", groups="2,4", thresholds="1", task="none")
    assert {"pareto", "areas"} <= set(found.tables)
    assert isinstance(found.plot(), Figure)


def test_a_command_without_a_function_of_its_own_gets_one(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    relevance = commands()["relevance"]
    made = function_of(dataclasses.replace(relevance, name="some-relevance"))
    assert made.__name__ == "some_relevance"
    assert "rule: Rule for propagating relevance" in (made.__doc__ or "")
    assert inspect.signature(made).parameters["rule"].default == "epsilon"
    result = function_of(relevance)(model=headlens.load(small), limit=3, replicates=100)
    assert len(result.tables["relevance"])
    monkeypatch.setitem(commands()._read, "some-relevance", relevance)
    assert headlens.some_relevance(model=small, limit=3, replicates=100).command == "relevance"
    monkeypatch.delattr(headlens, "some_relevance")


def test_a_copy_of_a_loaded_model_knows_what_the_model_knows(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    """Notes, random weights and languages that are not told go with it to commands that change the model."""
    model = build("BertForSequenceClassification", len(wordpiece_tokenizer))
    names = frozenset({"classifier.weight", "classifier.bias"})
    loaded = LoadedModel("tiny", model, wordpiece_tokenizer, None, names, notes=("Something to know.",))
    given: Any = headlens.api._model(loaded, copied=True)
    assert given.value.model is not model
    assert dataclasses.replace(given.value, model=model) == loaded

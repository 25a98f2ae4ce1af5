"""Options are declared once, and everything else follows from the declaration."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from built_commands import command_line

from headlens.analyses.classify.options import ClassifyRequest
from headlens.analyses.compact.options import CompactRequest
from headlens.analyses.dam.options import DamRequest
from headlens.analyses.masks.options import MasksRequest
from headlens.analyses.prune.options import PruneRequest
from headlens.analyses.relevance.options import RelevanceRequest
from headlens.analyses.report.options import ReportRequest
from headlens.analyses.sparsefinder.options import SparsefinderRequest
from headlens.analyses.training.options import FineTuneRequest, TrainRequest, train_request
from headlens.errors import OptionError
from headlens.learning.gate_options import START as GATE_START
from headlens.learning.gate_training import START
from headlens.option_values import amount, names, names_or_none, numbers, share, whole_numbers
from headlens.options import GROUPS, Given, build, declared_options
from headlens.shared_options import arguments

ROOT = Path(__file__).resolve().parents[1]


def requests() -> list[type]:
    """Every dataclass of options in the repository."""
    found = []
    for path in sorted((ROOT / "headlens").rglob("*options.py")):
        module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        own = [kind for _, kind in inspect.getmembers(module, inspect.isclass) if kind.__module__ == module.__name__]
        found += [kind for kind in own if is_dataclass(kind) and declared_options(kind)]
    return found


@pytest.mark.parametrize("request_class", requests(), ids=lambda kind: kind.__name__)
def test_every_option_is_declared_with_help_and_a_panel(request_class: type) -> None:
    for own in declared_options(request_class).values():
        assert own.option.help.endswith("."), own.name
        assert own.option.panel or own.option.argument, own.name


@pytest.mark.parametrize("request_class", requests(), ids=lambda kind: kind.__name__)
def test_no_field_of_a_request_is_left_out_of_the_options(request_class: type) -> None:
    # What is no option is a part of its own, or is told by another option.
    known = {"task", "offline", "resume", "study"}
    declared = declared_options(request_class)
    for own in fields(request_class):
        part = own.name in declared or "." in str(own.type) or str(own.type)[0].isupper()
        assert part or own.name in known, own.name


def test_every_declared_option_is_an_option_of_a_command() -> None:
    group: Any = command_line()
    known = {p.name for command in [group, *group.commands.values()] for p in command.params}
    declared = [own for kind in requests() for own in declared_options(kind).values() if own.option.command_line]
    assert {own.option.group.replace("-", "_") or own.name for own in declared} <= known
    assert {own.option.group for own in declared} == {"", *GROUPS}


@pytest.mark.parametrize(
    "request_class",
    [ClassifyRequest, CompactRequest, DamRequest, PruneRequest, RelevanceRequest, SparsefinderRequest, TrainRequest],
    ids=lambda kind: kind.__name__,
)
def test_what_run_json_holds_makes_the_same_request_again(request_class: type) -> None:
    request = build(request_class, {})
    assert build(request_class, arguments(request)) == request
    assert build(request_class, dict.fromkeys(declared_options(request_class))) == request


def test_the_defaults_of_parts_are_those_of_the_request() -> None:
    assert declared_options(CompactRequest)["limit"].default == 200
    assert declared_options(ClassifyRequest)["limit"].default is None
    assert declared_options(PruneRequest)["batch_tokens"].default == 512
    assert build(CompactRequest, {}).corpus_options.limit == 200
    assert build(CompactRequest, {"limit": 5, "from_file": "t.csv", "where": ["a=1,b=2", "c=3"]}).where == (
        "a=1",
        "b=2",
        "c=3",
    )


def test_an_option_that_two_parts_have_is_given_to_both() -> None:
    assert "Size n of the mask" in declared_options(DamRequest)["longest"].option.help
    request = build(DamRequest, {"longest": 64})
    assert request.dam.longest == request.training_set.longest == 64
    assert build(ClassifyRequest, {"offline": True}).corpus_options.offline


def test_a_request_may_word_an_option_otherwise() -> None:
    assert declared_options(ReportRequest)["out"].option.help == "Folder for the page and its figures."
    assert declared_options(MasksRequest)["task"].default is None
    assert MasksRequest.from_options({}).study is None
    study = MasksRequest.from_options({"task": "sst2", "data": ["train.tsv"], "seeds": 2}).study
    assert study is not None
    assert (study.training_set.data.task, study.training_set.data.data, study.seeds) == ("sst2", ("train.tsv",), 2)
    with pytest.raises(OptionError, match="--seeds only applies when models are trained"):
        MasksRequest.from_options({"seeds": 2})


def test_train_is_of_text_or_of_examples() -> None:
    assert isinstance(train_request({}), TrainRequest)
    assert isinstance(train_request({"task": "sst2", "longest": None}), FineTuneRequest)
    with pytest.raises(OptionError, match="--training-args bleu is not for --task sst2"):
        train_request({"task": "sst2", "bleu": 3})
    with pytest.raises(OptionError, match="--data-args min-words is not for --task mlm"):
        train_request({"min_words": 3})
    for given in ({}, {"corpus": "a.en", "target": "a.de"}, {"data": ("a.tsv",), "dev_data": "b.tsv"}):
        with pytest.raises(OptionError, match="--task translation-loss can only be evaluated, not trained on"):
            train_request({"task": "translation-loss", **given})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"positional": 2}, "--thresholds positional: 2 is not a number from 0 to 1"),
        ({"margin": "much"}, "--thresholds margin: 'much' is not a number"),
        ({"margin": -1}, "--thresholds margin: -1 is not a finite number of 0 or more"),
        ({"margin_kind": "both"}, "--thresholds margin-kind 'both' is unknown.\nChoose one of absolute, relative"),
        ({"min_instances": 0}, "--thresholds min-instances 0 is out of range.\nGive at least 1"),
        ({"seed": -1}, "--seed -1 is out of range.\nGive from 0 to 4294967295"),
    ],
)
def test_values_are_checked_in_python_too(values: Mapping[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        build(ClassifyRequest, values)


def test_lists_are_read_from_text_and_from_sequences() -> None:
    assert names(" a, b,,a ") == names(["a", "b"]) == ("a", "b")
    assert names_or_none("none") == ()
    assert whole_numbers("3,10") == whole_numbers([3, 10]) == (3, 10)
    assert whole_numbers(3) == (3,)
    assert numbers("0.5,1") == numbers((0.5, 1)) == (0.5, 1.0)
    assert share("0.5") == amount(0.5) == 0.5
    for read in (whole_numbers, numbers):
        with pytest.raises(ValueError, match="'x' is not a list of"):
            read("x")
    with pytest.raises(ValueError, match="nan is not a number from 0 to 1"):
        share("nan")


def test_numbers_and_paths_become_what_the_field_holds() -> None:
    read = build(ClassifyRequest, {"limit": np.int64(3), "seed": 4.0, "target": Path("b.txt"), "column": 3})
    told = arguments(read)
    assert [told[name] for name in ("limit", "seed", "target", "column")] == [3, 4, "b.txt", "3"]
    assert [type(told[name]) for name in ("limit", "seed", "target")] == [int, int, str]
    assert arguments(build(ClassifyRequest, {"corpus": Given("own", None)}))["corpus"].value is None


def test_gates_begin_where_the_options_say() -> None:
    assert GATE_START == START


def test_folders_are_given_as_text_or_as_paths() -> None:
    assert build(CompactRequest, {"out": "folder", "from_file": "list.txt"}).place.out == Path("folder")
    assert build(ReportRequest, {"runs": ["a", Path("b")]}).runs == (Path("a"), Path("b"))

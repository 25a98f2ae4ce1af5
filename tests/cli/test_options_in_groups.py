"""Options that the command line gives together: `--thresholds positional=0.5,sink=0.3`, or a file of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headlens.analyses.commands import commands
from headlens.errors import OptionError
from headlens_cli.command import values_of_group


def given(command: str, group: str, *texts: str) -> dict[str, Any]:
    return values_of_group(group, commands()[command].groups[group], texts)


def test_texts_are_what_their_options_are(tmp_path: Path) -> None:
    found = given("classify", "thresholds", "positional=0.5, min-tokens=10,margin-kind=relative")
    assert found == {"positional": "0.5", "min_tokens": 10, "margin_kind": "relative"}
    assert given("train-dam", "law", "temperature=1,straight-through=false") == {
        "temperature": 1.0,
        "straight_through": False,
    }
    (tmp_path / "own.toml").write_text("sink = 0.25\nmin-tokens = 10\n")
    both = given("prune", "thresholds", str(tmp_path / "own.toml"), "rare=0.4")
    assert both == {"sink": 0.25, "min_tokens": 10, "rare": "0.4"}


def test_a_value_may_have_commas() -> None:
    assert given("ablate", "mask-rules", "layers=0,2,4-6,keep=0.5") == {"layers": "0,2,4-6", "keep": "0.5"}


@pytest.mark.parametrize(
    ("command", "group", "texts", "message"),
    [
        ("classify", "thresholds", ("sinks=0.5",), "'sinks' is none of its names"),
        ("classify", "thresholds", ("sink",), "'sink' has no value"),
        ("classify", "thresholds", ("sink=1,sink=0",), "'sink' is given twice"),
        ("classify", "thresholds", ("sink=1", "sink=0"), "'sink' is given twice"),
        ("classify", "thresholds", ("sink=2",), "--thresholds sink: 2 is not a number from 0 to 1"),
        ("classify", "thresholds", ("min-tokens=1.5",), "--thresholds min-tokens=1.5 is not a whole number"),
        ("train-dam", "law", ("noise=often",), "--law noise 'often' is unknown"),
        ("train-dam", "law", ("straight-through=maybe",), "--law straight-through cannot be maybe"),
        ("train", "optimizer", ("warmup=x",), "--optimizer warmup=x is not a number"),
        ("train", "optimizer", ("nowhere.toml",), "nowhere.toml cannot be read"),
    ],
)
def test_what_is_none_is_refused(command: str, group: str, texts: tuple[str, ...], message: str) -> None:
    with pytest.raises(OptionError, match=message) as refused:
        given(command, group, *texts)
    assert refused.value.advice


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("classify", "--sink", "0.3"), "--sink is a part of --thresholds now: --thresholds sink=VALUE."),
        (("train", "--warmup", "10"), "--warmup is a part of --optimizer now: --optimizer warmup=VALUE."),
        (("train-dam", "--noise", "never"), "--noise is a part of --law now: --law noise=VALUE."),
        (("ablate", "--mask-layers", "1"), "--mask-layers is a part of --mask-rules now: --mask-rules layers=VALUE."),
    ],
)
def test_an_option_of_before_names_the_one_of_today(headlens: Any, words: tuple[str, ...], told: str) -> None:
    done = headlens(*words)
    assert done.code == 2
    assert told in " ".join(done.err.replace("│", " ").split())


def test_a_file_of_options_gives_them_as_ever(headlens: Any) -> None:
    Path("own.toml").write_text("[classify]\nsink = 2\n")
    done = headlens("classify", "demo", "--config", "own.toml")
    assert done.code == 2
    assert "own.toml: --thresholds sink: 2 is not a number from 0 to 1" in " ".join(done.err.split())

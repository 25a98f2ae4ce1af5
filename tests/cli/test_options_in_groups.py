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


def test_what_is_given_again_takes_the_place_of_the_first() -> None:
    assert given("classify", "thresholds", "sink=1,rare=1", "sink=0") == {"sink": "0", "rare": "1"}


def test_the_name_of_a_switch_turns_it_on() -> None:
    assert given("ablate", "mask-rules", "no-diagonal") == {"no_diagonal": True}
    mixed = given("masks", "mask-rules", "keep=0.1,0.3,zero-scores,keep-order=most,least")
    assert mixed == {"keep": "0.1,0.3", "zero_scores": True, "keep_order": "most,least"}
    assert given("classify", "data-args", "skip-broken,target-column=b") == {"skip_broken": True, "target_column": "b"}
    assert given("train-dam", "law", "straight-through=false,per-layer") == {
        "straight_through": False,
        "per_layer": True,
    }
    assert given("classify", "trust", "pickle") == {"allow_pickle": True}


def test_a_value_may_end_like_a_file(tmp_path: Path) -> None:
    assert given("prune", "data-args", "roles-target=de.toml") == {"roles_target": "de.toml"}
    (tmp_path / "trust.toml").write_text("pickle = true\n")
    with pytest.raises(OptionError, match="is none of its names"):
        given("classify", "trust", str(tmp_path / "trust.toml"))


def test_a_value_may_have_commas() -> None:
    assert given("ablate", "mask-rules", "layers=0,2,4-6,keep=0.5") == {"layers": "0,2,4-6", "keep": "0.5"}


@pytest.mark.parametrize(
    ("command", "group", "texts", "message"),
    [
        ("classify", "thresholds", ("sinks=0.5",), "'sinks' is none of its names"),
        ("classify", "thresholds", ("sink",), "'sink' has no value"),
        ("classify", "thresholds", ("sink=1,sink=0",), "'sink' is given twice"),
        ("classify", "thresholds", ("sink=2",), "--thresholds sink: 2 is not a number from 0 to 1"),
        ("classify", "thresholds", ("min-tokens=1.5",), "--thresholds min-tokens=1.5 is not a whole number"),
        ("train-dam", "law", ("noise=often",), "--law noise 'often' is unknown"),
        ("train-dam", "law", ("straight-through=maybe",), "--law straight-through cannot be maybe"),
        ("train", "training-args", ("warmup=x",), "--training-args warmup=x is not a number"),
        ("train", "training-args", ("nowhere.toml",), "nowhere.toml cannot be read"),
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
        (("train", "--warmup", "10"), "--warmup is a part of --training-args now: --training-args warmup=VALUE."),
        (("train-dam", "--noise", "never"), "--noise is a part of --law now: --law noise=VALUE."),
        (("train", "--longest", "9"), "--longest is a part of --data-args now: --data-args longest=VALUE."),
        (("classify", "--skip-broken"), "--skip-broken is a part of --data-args now: --data-args skip-broken."),
        (("train-dam", "--shared"), "--shared is a part of --law now: --law per-layer."),
        (("sparsefinder", "--separate"), "--separate is a part of --projections now: --projections shared=false."),
        (
            ("sparsefinder", "--learning-rate", "1"),
            "--learning-rate is a part of --projections now: --projections learning-rate=VALUE.",
        ),
        (("sparsefinder", "--windows", "3"), "--windows is a part of --methods now: --methods windows=VALUE."),
        (("attend", "--allow-pickle"), "--allow-pickle is a part of --trust now: --trust pickle."),
        (
            ("classify", "--exclude-self"),
            "--exclude-self is not on the command line: write exclude-self = true in a TOML file and name it with "
            "--config, or give exclude_self=True in Python.",
        ),
        (
            ("probe", "--l2", "1"),
            "--l2 is not on the command line: write l2 = 0.0001 in a TOML file and name it with --config, or give "
            "l2=0.0001 in Python.",
        ),
        (("ablate", "--mode", "keep-only"), "--mode keep-only is an option of its own now. Give --keep-only."),
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

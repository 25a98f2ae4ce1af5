"""What commands try where nothing is named: less, unless they are asked to be thorough."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from headlens.analyses.commands import commands
from headlens.analyses.masks.options import PAPER
from headlens.analyses.masks.recipe import study_cases
from headlens.analyses.sparsefinder.options import EXAMPLES, SENTENCES, SHORT, ParameterGrid


def asked(name: str, **values: Any) -> Any:
    return commands()[name].request(values)


def tried(request: Any) -> Mapping[str, Any]:
    return {name: (vars(request.grid) | vars(request.metric))[name] for name in SHORT}


def test_sparsefinder_tries_few_parameters_unless_they_are_named() -> None:
    full = vars(ParameterGrid()) | {"points": 4}
    request = asked("sparsefinder")
    assert tried(request) == SHORT
    assert set(SHORT["windows"]) <= set(full["windows"])
    assert (request.examples, request.corpus_options.limit) == (EXAMPLES, SENTENCES)
    request = asked("sparsefinder", thorough=True)
    assert tried(request) == {name: full[name] for name in SHORT}
    assert (request.examples, request.corpus_options.limit) == (None, None)


@pytest.mark.parametrize("name", SHORT)
def test_what_is_named_is_tried_as_it_is(name: str) -> None:
    full = {**vars(ParameterGrid()), "points": 4}[name]
    for thorough in (False, True):
        request = asked("sparsefinder", thorough=thorough, **{name: full})
        assert tried(request)[name] == full
    # A user's own text and task are read whole.
    request = asked("sparsefinder", corpus="text.txt", task="mlm", data=("text.txt",), **{name: full})
    assert (request.examples, request.corpus_options.limit) == (None, None)
    assert asked("sparsefinder", limit=7).corpus_options.limit == 7


@pytest.mark.parametrize(
    ("values", "patterns", "diagonals"),
    [
        ({}, {"strided", "longformer", "star"}, {"kept"}),
        ({"thorough": True}, set(PAPER), {"kept", "dropped", "random"}),
        ({"pattern": ("star",)}, {"star"}, {"kept", "dropped", "random"}),
        ({"pattern": ("star",), "controls": False}, {"star"}, {"kept"}),
        ({"grid": "global=1 neighbour=1"}, {"bigbird:tokens=1,keys=0,window=1"}, {"kept", "dropped", "random"}),
    ],
)
def test_masks_trains_under_few_patterns_where_none_is_named(
    values: dict[str, Any], patterns: set[str], diagonals: set[str]
) -> None:
    request = asked("masks", task="paraphrase", **values)
    cases = study_cases(request.study, request.pattern)
    assert {str(case.mask) for case in cases} == {"full", *patterns}
    assert {case.diagonal for case in cases} == diagonals
    assert set(request.chosen()) == (patterns if "pattern" in values or "grid" in values else set(PAPER))

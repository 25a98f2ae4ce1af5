"""Grids of degrees in words, and what is told of degrees that were learned."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
import torch

from headlens.analyses.masks.cases import MaskCase
from headlens.analyses.masks.degree_tables import unsettled
from headlens.analyses.masks.learned_tables import degree_rows, degrees_table, mean_chosen
from headlens.analyses.masks.options import DegreeOptions, StudyRequest, parse_grid
from headlens.analyses.masks.study import learning
from headlens.analyses.masks.text_graphs import StudyTexts
from headlens.attention.sites import Site
from headlens.attention_masks.learned_mask import LearnedAttentionMask, Scope
from headlens.attention_masks.mask_distributions import GumbelDegrees
from headlens.attention_masks.named_masks import LearnedDegrees
from headlens.attention_masks.patterns import BigBird, parse_pattern
from headlens.errors import OptionError


def test_a_grid_has_every_combination_once() -> None:
    found = [parse_pattern(text) for text in parse_grid("global=0,2 random=1; neighbour=1,3,3")]
    wanted = [BigBird(window, tokens, 1) for tokens in (0, 2) for window in (1, 3)]
    assert found == wanted
    assert parse_grid("neighbour=2") == ("bigbird:tokens=0,keys=0,window=2",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "--grid is empty"),
        ("window=1", "'window=1' is not a degree"),
        ("global", "'global' is not a degree"),
        ("global=1 global=2", "global is given twice"),
        ("random=x", "'random=x' needs whole numbers of 0 or more"),
        ("random=-1", "'random=-1' needs whole numbers of 0 or more"),
        ("random=1,", "'random=1,' needs whole numbers of 0 or more"),
    ],
)
def test_grids_that_cannot_be_read(text: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        parse_grid(text)


def test_names_of_what_is_learned() -> None:
    assert [str(m) for m in DegreeOptions((0.1, 1e-5, 3.0)).masks] == [
        "degrees:mu=0.1",
        "degrees:mu=1e-05",
        "degrees:mu=3",
    ]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"learn_degrees": (-1.0,)}, r"--learn-degrees -1\.0 is out of range"),
        ({"learn_degrees": (1.0,), "largest_degree": 0}, "--law largest-degree 0 is out of range"),
        ({"largest_degree": 8}, "--law largest-degree only applies together with --learn-degrees"),
        ({"degrees_of": "words"}, "--law degrees-of 'words' is unknown"),
        ({"degrees_of": "layers"}, "--law degrees-of only applies together with --learn-degrees"),
    ],
)
def test_options_that_cannot_be(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        DegreeOptions(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("shared", [False, True])
def test_what_is_told_of_a_mask(shared: bool) -> None:
    sites = [Site("encoder", layer, 2, "somewhere") for layer in range(3)]
    degrees = DegreeOptions((1.0,), 2, "layers" if shared else "heads")
    options, scope = learning(
        MaskCase(LearnedDegrees(1.0), layers="last:2"), StudyRequest(degrees=degrees), StudyTexts({6: 1}, {}), 9
    )
    mask = LearnedAttentionMask(sites, options.mask, options.law, scope=replace(scope, layers=(1, 2)))
    heads = 1 if shared else 2
    with torch.no_grad():
        mask.alpha.copy_(torch.tensor([0.0, 0.0, 0.0]).expand(2, heads, 3))
        mask.alpha[1, 0] = torch.tensor([0.0, 5.0, 0.0])
        mask.alpha[1, -1, 0] += 9.0
    rows = degree_rows(mask)
    assert {(row["layer"], row["head"]) for row in rows} == {
        (n, None if shared else h) for n in (1, 2) for h in range(heads)
    }
    for key in {(row["layer"], row["head"]) for row in rows}:
        own = [row for row in rows if (row["layer"], row["head"]) == key]
        assert [row["degree"] for row in own] == [0, 1, 2]
        assert sum(row["p"] for row in own) == pytest.approx(1.0)
        assert sum(row["chosen"] for row in own) == 1
    # All degrees alike: the median is 1; of layer 2 the degrees are 1 and 0, or 0 where heads share it.
    assert mean_chosen(rows) == {"degree_neighbour": pytest.approx(0.5 if shared else 0.75)}
    assert unsettled(pd.DataFrame(rows)) == 0.5
    assert list(degrees_table([{"model": "m", **row} for row in rows])["degree"]) == [0, 1, 2] * 2 * heads


def test_degrees_on_their_way_down_from_their_start_have_not_settled() -> None:
    def share(*p: float) -> float:
        rows = [{"layer": 0, "head": 0, "kind": "neighbour", "degree": n, "p": share} for n, share in enumerate(p)]
        return unsettled(pd.DataFrame(rows))

    assert share(0.1, 0.1, 0.8) == share(0.3, 0.3, 0.4) == 1.0
    assert share(0.05, 0.03, 0.92) == share(0.2, 0.6, 0.2) == 0.0
    other = [{"layer": 1, "head": 0, "kind": "global", "degree": n, "p": p} for n, p in enumerate((0.2, 0.8))]
    first = [{"layer": 0, "head": 0, "kind": "global", "degree": n, "p": p} for n, p in enumerate((0.7, 0.2, 0.1))]
    assert unsettled(pd.DataFrame(other + first)) == 0.5, "the largest number of each degree is its own"


def test_a_mask_of_learned_degrees_is_for_offsets_and_expected_density() -> None:
    case = MaskCase(LearnedDegrees(1.0), "dropped", "6-11")
    options, scope = learning(case, StudyRequest(degrees=DegreeOptions((1.0,), 4)), StudyTexts({11: 1, 13: 1}, {}), 30)
    assert isinstance(options.law, GumbelDegrees)
    assert (options.law.largest, options.penalty, options.layers) == (4, "mean", "6-11")
    assert (options.mask.longest, options.mask.diagonal) == (30, False)
    assert options.mask.structured
    assert options.mask.per_layer
    assert scope == Scope(None, per_head=True, counted=12)

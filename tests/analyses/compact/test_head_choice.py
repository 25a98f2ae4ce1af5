"""Which heads go of a ranking, by hand-made layers."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from headlens.analyses.compact.head_choice import (
    choice_of_list,
    choice_of_ranking,
    choose,
    ranked_on,
    read_ranking,
    shape_problem,
    tie_notes,
)
from headlens.analyses.compact.options import CompactRequest, Shape
from headlens.analyses.compact.shape_costs import ranking_notes
from headlens.analyses.compact.text_loss import TextLoss
from headlens.attention.sites import Site
from headlens.errors import OptionError
from headlens.files import write_json
from headlens.heads import Head, parse_heads
from headlens.tasks.evaluation import EvaluationOptions
from headlens.tasks.example_sources import MemoryExamples
from headlens.tasks.language_modeling import CausalLM

# Two layers of six heads; 0, 1, 2 and 3, 4, 5 share their keys.
GROUPED = [Site("decoder", layer, 6, f"layers.{layer}", shared_by=3) for layer in (0, 1)]
OWN_KEYS = [Site("decoder", layer, 4, f"layers.{layer}") for layer in (0, 1)]


def heads(*names: str) -> list[Head]:
    return [Head("decoder", *map(int, name.split("."))) for name in names]


def shuffled(sites: Sequence[Site], seed: int) -> list[Head]:
    ranking = [head for site in sites for head in site.heads]
    random.Random(seed).shuffle(ranking)
    return ranking


def test_the_least_important_of_every_group() -> None:
    first = heads("0.1", "0.0", "1.5", "0.4", "1.2", "1.4", "1.0", "0.5", "0.2", "0.3", "1.1", "1.3")
    assert choose(first, 4, "even", GROUPED) == heads("0.1", "1.5", "0.4", "1.2")
    assert set(choose(first, 8, "even", GROUPED)) == {*heads("0.1", "0.0", "0.4", "0.5", "1.2", "1.0", "1.5", "1.4")}
    assert choose(first, 5, "uneven", GROUPED) == first[:5]
    # Mean places: (1 + 0 + 8) / 3 and (9 + 3 + 7) / 3 in layer 0, (6 + 10 + 4) / 3 and (11 + 5 + 2) / 3 in layer 1.
    assert set(choose(first, 6, "groups", GROUPED)) == {*heads("0.0", "0.1", "0.2", "1.3", "1.4", "1.5")}


@pytest.mark.parametrize("seed", range(5))
def test_even_sets_are_the_best_of_all_even_sets(seed: int) -> None:
    """By brute force: of all sets that take one head of every group, the one with the smallest sum of places."""
    ranking = shuffled(GROUPED, seed)
    groups = [[h for h in ranking if h.layer == layer and h.head // 3 == g] for layer in (0, 1) for g in (0, 1)]
    best = min(itertools.product(*groups), key=lambda chosen: sum(map(ranking.index, chosen)))
    assert set(choose(ranking, 4, "even", GROUPED)) == set(best)


@pytest.mark.parametrize("shape", ["even", "groups"])
def test_heads_with_keys_of_their_own_go_by_layer(shape: Shape) -> None:
    ranking = shuffled(OWN_KEYS, 1)
    chosen = choose(ranking, 4, shape, OWN_KEYS)
    assert Counter(h.layer for h in chosen) == {0: 2, 1: 2}
    assert all(h in [r for r in ranking if r.layer == h.layer][:2] for h in chosen)


BAD: dict[str, tuple[int, Shape, str, str]] = {
    "no multiple": (5, "even", "--heads 5 does not go with shape=even: one head of every group makes 4", "4, 8"),
    "all of the groups": (12, "even", "leaves no head", "Keep at least one"),
    "no multiple of groups": (4, "groups", "a whole group of every layer makes 6", "Cut 6, or"),
    "more than there are": (13, "uneven", "leaves no head of 12", "Keep"),
}


@pytest.mark.parametrize(("n", "shape", "message", "advice"), BAD.values(), ids=BAD)
def test_numbers_that_a_shape_cannot_have(n: int, shape: Shape, message: str, advice: str) -> None:
    with pytest.raises(OptionError) as refused:
        choose(shuffled(GROUPED, 0), n, shape, GROUPED)
    assert message in str(refused.value)
    assert advice in str(refused.value)


def test_rankings_that_do_not_fit() -> None:
    ranking = shuffled(GROUPED, 0)
    with pytest.raises(OptionError, match="The ranking lacks 1 head, such as"):
        choose(ranking[1:], 4, "even", GROUPED)
    assert choose(ranking[1:], 4, "uneven", GROUPED) == ranking[1:5]
    with pytest.raises(OptionError, match=r"There is no head decoder\.2\.0"):
        choose([*ranking, Head("decoder", 2, 0)], 4, "even", GROUPED)
    with pytest.raises(OptionError, match="the ranking has 3 heads"):
        choose(ranking[:3], 4, "uneven", GROUPED)
    mixed = [GROUPED[0], Site("decoder", 1, 4, "layers.1", shared_by=2)]
    with pytest.raises(OptionError, match="differ in their numbers of heads"):
        choose([h for s in mixed for h in s.heads], 4, "even", mixed)


def test_the_default_is_even_where_keys_are_shared() -> None:
    ranking = shuffled(GROUPED, 2)
    grouped = choice_of_ranking(ranking, 4, "auto", GROUPED)
    assert grouped.shape == "even"
    assert list(grouped.others) == ["even", "uneven"]
    assert grouped.impossible == ("4 does not go with shape=groups: a whole group of every layer makes 6.",)
    own = choice_of_ranking(shuffled(OWN_KEYS, 2), 3, "auto", OWN_KEYS)
    assert (own.shape, list(own.others), len(own.impossible)) == ("uneven", ["uneven"], 1)
    assert own.heads == shuffled(OWN_KEYS, 2)[:3]


def test_named_heads_have_to_have_the_shape() -> None:
    one_each = heads("0.0", "0.5", "1.1", "1.3")
    assert choice_of_list(one_each, "even", GROUPED).heads == one_each
    with pytest.raises(OptionError, match=r"not shape=groups: of group 0 of decoder.0 1 of 3 heads go"):
        choice_of_list(one_each, "groups", GROUPED)
    whole = heads("0.0", "0.1", "0.2", "1.3", "1.4", "1.5")
    assert shape_problem("groups", whole, GROUPED) == ""
    with pytest.raises(OptionError, match=r"not shape=even: group 0 of decoder.0 loses 3 heads, group 1 of"):
        choice_of_list(whole, "even", GROUPED)
    with pytest.raises(OptionError, match=r"decoder.0 loses 1 group, decoder.1 0"):
        choice_of_list(whole[:3], "groups", GROUPED)
    assert shape_problem("even", heads("0.0", "1.3"), OWN_KEYS) == ""
    assert choice_of_list(whole[:1], "auto", GROUPED).shape == "auto"


TABLE = ["metric,mode,stack,layer,head,delta,confidence"]


def table(path: Path, *rows: str) -> Path:
    path.write_text("\n".join([*TABLE, *rows, ""]))
    return path


def test_the_sign_of_a_change_is_that_of_the_metric(tmp_path: Path) -> None:
    rows = ("decoder,0,0,0.3,0.1", "decoder,0,1,-0.2,0.7", "decoder,1,0,0.1,0.4")
    loss = table(tmp_path / "loss.csv", *(f"loss,zero,{row}" for row in rows))
    accuracy = table(tmp_path / "accuracy.csv", *(f"accuracy,zero,{row}" for row in rows))
    # A loss that grows is harm, an accuracy that grows is none.
    assert read_ranking(loss) == heads("0.1", "1.0", "0.0")
    assert read_ranking(accuracy) == heads("0.0", "1.0", "0.1")
    assert read_ranking(accuracy, by="confidence") == heads("0.0", "1.0", "0.1")
    assert read_ranking(loss, by="confidence") == heads("0.0", "1.0", "0.1")
    plain = tmp_path / "heads.txt"
    plain.write_text("decoder.0.1 decoder.1.0  # the least important first\ndecoder.0.0\n")
    assert read_ranking(plain) == parse_heads(["decoder.0.1", "decoder.1.0", "decoder.0.0"])


@pytest.mark.parametrize(
    ("n", "shape", "told"),
    [(1, "uneven", ""), (2, "uneven", ""), (3, "uneven", "1 head that stays ranks"), (2, "even", "2 heads that stay")],
)
def test_ties_that_the_order_of_the_model_decides_are_told(tmp_path: Path, n: int, shape: Shape, told: str) -> None:
    changes = {"0.0": 0.5, "0.1": 0.005, "1.0": 0.005, "1.1": 0.1}
    changes = changes if shape == "uneven" else dict.fromkeys(changes, 0.1)
    rows = (f"accuracy,zero,encoder,{name[0]},{name[2]},{change},1" for name, change in changes.items())
    path = table(tmp_path / "ablation.csv", *rows)
    sites = [Site("encoder", layer, 2, f"layers.{layer}") for layer in (0, 1)]
    choice = choice_of_ranking(read_ranking(path), n, shape, sites)
    request = CompactRequest(model="m", from_file=path, heads=(str(n),))
    notes = tie_notes(request, choice, sites)
    assert [note.startswith(told) for note in notes] == [True] * bool(told)


@pytest.mark.parametrize(("last", "told"), [(0.2, ["3 heads that stay"]), (0.3, [])])
def test_ties_between_groups_are_told(tmp_path: Path, last: float, told: list[str]) -> None:
    """In layer 0 both groups have the numbers 0.1, 0.1, 0.2 in another order; in layer 1 the second has larger ones."""
    numbers = {0: (0.1, 0.1, 0.2, 0.1, last, 0.1), 1: (0.1, 0.1, 0.1, 0.4, 0.5, 0.6)}
    rows = [f"loss,zero,decoder,{n},{head},{x},1" for n, of_layer in numbers.items() for head, x in enumerate(of_layer)]
    path = table(tmp_path / "ablation.csv", *rows)
    choice = choice_of_ranking(read_ranking(path), 6, "groups", GROUPED)
    notes = tie_notes(CompactRequest(model="m", from_file=path, heads=("6",)), choice, GROUPED)
    assert [note[: len("3 heads that stay")] for note in notes] == told


def test_tables_that_rank_nothing(tmp_path: Path) -> None:
    twice = table(tmp_path / "twice.csv", "loss,zero,decoder,0,0,1,1", "loss,mean,decoder,0,0,2,1")
    with pytest.raises(OptionError, match=r"several rows for decoder\.0\.0\.\n.* such as mode=zero\."):
        read_ranking(twice)
    others = table(tmp_path / "others.csv", "loss,mean,decoder,0,0,1,1", "loss,keep-only,decoder,0,0,2,1")
    with pytest.raises(OptionError, match="such as mode=mean"):
        read_ranking(others)
    assert read_ranking(twice, ("mode=mean",)) == heads("0.0")
    with pytest.raises(
        OptionError,
        match=r"has no column 'entropy'.*\nName one with .*rank-by=COLUMN: metric, mode",
    ):
        read_ranking(twice, ("mode=mean",), "entropy")
    with pytest.raises(OptionError, match="'zero' is no number to rank by"):
        read_ranking(twice, ("mode=zero",), "mode")
    empty = table(tmp_path / "empty.csv", "loss,zero,decoder,0,0,,1")
    with pytest.raises(OptionError, match="'' is no number"):
        read_ranking(empty)
    plain = tmp_path / "heads.txt"
    plain.write_text("decoder.0.0\n")
    with pytest.raises(OptionError, match=r"rank-by: .* is a plain list"):
        read_ranking(plain, by="confidence")
    bare = tmp_path / "bare.csv"
    bare.write_text("stack,layer,head,delta\ndecoder,0,0,1\n")
    with pytest.raises(OptionError, match="delta of no metric"):
        read_ranking(bare)


def test_the_text_of_a_ranking(tmp_path: Path) -> None:
    assert ranked_on(None) == ranked_on(tmp_path / "ablation.csv") == ""
    write_json({"command": "ablate", "models": [{"model": "a", "data": {"name": "sentences"}}]}, tmp_path / "run.json")
    assert ranked_on(tmp_path / "ablation.csv") == "sentences"


@pytest.mark.parametrize(
    ("name", "heads", "told"), [("a", ("2",), "Heads were ranked on a"), ("a", (), "The heads that go"), ("b", (), "")]
)
def test_heads_that_were_chosen_on_the_text_are_told(
    tmp_path: Path, name: str, heads: tuple[str, ...], told: str
) -> None:
    """Of a set of pruning.csv, which the next-step line of ablate names, nothing was said."""
    write_json({"command": "ablate", "models": [{"model": "m", "data": {"name": "a"}}]}, tmp_path / "run.json")
    text = TextLoss(CausalLM(), MemoryExamples((), name), EvaluationOptions())
    notes = ranking_notes(CompactRequest(model="m", from_file=tmp_path / "pruning.csv", heads=heads), text)
    assert [note.startswith(told) for note in notes] == [True] * bool(told)


def test_a_run_of_ablate_ranks_heads(tmp_path: Path) -> None:
    table = "stack,layer,head,metric,delta\nencoder,0,1,accuracy,-0.5\nencoder,0,0,accuracy,-0.1\n"
    (tmp_path / "ablation.csv").write_text(table, encoding="utf-8")
    (tmp_path / "examples.csv").write_text("example,delta\n1,2\n", encoding="utf-8")
    assert [str(head) for head in read_ranking(tmp_path)] == ["encoder.0.0", "encoder.0.1"]
    with pytest.raises(OptionError, match="folder without a table of heads that has stack, layer, head, entropy"):
        read_ranking(tmp_path, by="entropy")

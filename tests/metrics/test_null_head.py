"""The null head: uniform attention through the same code, with exact ties shared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from few_annotations import annotated
from handmade import Matrix, Row, Setting, call, measured, observed, uniform
from naive_samples import make_seq
from torch import Tensor

from headlens.attention.edits_and_observers import BatchTokens, CallContext, Tokens
from headlens.attention.sites import Site
from headlens.heads import Stack
from headlens.metrics.attention_view import CallView, EvenView, NullView
from headlens.metrics.coreference import Coreference
from headlens.metrics.mass import Mass
from headlens.metrics.metric import NULL, Metric, MetricSettings, Statistics
from headlens.metrics.metric_column import MetricColumn
from headlens.metrics.metric_registry import registered_metrics
from headlens.metrics.monotonicity import Monotonicity
from headlens.metrics.positions import Positions
from headlens.metrics.rare import RareWords
from headlens.metrics.same_word import SameWord
from headlens.metrics.syntax import Syntax
from headlens.metrics.word_alignment import WordAlignment
from headlens.roles.role_rules import ROLES


def drawn(seed: int) -> tuple[Row, list[list[int]]]:
    """A sentence of words of one to three tokens with everything annotated, and the tokens of its words."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 7))
    words = np.repeat(np.arange(n), rng.integers(1, 4, n))
    seq = make_seq([-1, *words.tolist(), -1], cls=[0], sep=[len(words) + 1])
    rarity = [0] * n
    rarity[int(rng.integers(n))] = 2
    arcs = [(i, int(rng.integers(n)), 0) for i in range(n)]
    mentions = [(0, 0, 0, 0, 0), (n - 1, 0, 1, 1, 0)]
    forms = rng.integers(0, 2, n).tolist()
    row = Row(uniform(len(seq)), seq, rarity=rarity, arcs=[a for a in arcs if a[0] != a[1]], forms=forms)
    row = Row(**{**vars(row), "mentions": mentions})
    return row, [[i for i, w in enumerate(seq.word) if w == own] for own in range(n)]


def tied_words(words: list[list[int]], length: int, *, causal: bool) -> list[list[int]]:
    """By word, the words that get the most of uniform attention: sums of its tokens, written out."""
    tied = []
    for own in words:
        seen = [range(t + 1) if causal else range(length) for t in own]
        sums = [sum(1 / len(keys) for keys in seen for k in word if k in keys) for word in words]
        tied.append([w for w, value in enumerate(sums) if value > max(sums) - 1e-9])
    return tied


def heads_that_choose(row: Row, words: list[list[int]], tied: list[list[int]]) -> Matrix:
    """As many heads as let every word point at each of its ties equally often: their mean is the expected value."""
    number, length = math.lcm(*map(len, tied)), len(row.queries)
    maps = np.zeros((number, length, length))
    maps[:, :, 0] = 1
    for head, (word, targets) in product(range(number), enumerate(tied)):
        for token in words[word]:
            maps[head, token] = np.eye(length)[words[targets[head % len(targets)]][0]]
    return maps


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize("seed", range(4))
def test_words_that_tie_share(seed: int, stack: Stack) -> None:
    row, words = drawn(seed)
    maps = heads_that_choose(row, words, tied_words(words, len(row.queries), causal=stack == "decoder"))
    for metric in (RareWords(), SameWord(), Coreference(), Syntax(("nsubj",))):
        sums = measured(metric, call([Row(**{**vars(row), "weights": maps})], Setting(stack)))
        for name in ("rare_top1.x", "rare_top2.x", "same_word.x", "coreference.x", "correct"):
            if name in sums:
                np.testing.assert_allclose(sums[f"{NULL}{name}"][0], sums[name].mean(0), atol=1e-6, err_msg=name)
        counts = [name for name in sums if name.endswith(".n") and not name.startswith(NULL)]
        for name in counts:
            assert sums[f"{NULL}{name}"][0] == sums[name][0]


@pytest.mark.parametrize("causal", [False, True])
def test_tokens_that_tie_share_an_offset(*, causal: bool) -> None:
    row, _ = drawn(1)
    length = len(row.queries)
    expected = np.zeros(19)
    for query in range(1, length - 1):
        keys = range(1, min(query + 1, length - 1) if causal else length - 1)
        for key in keys:
            expected[np.clip(key - query, -9, 9) + 9] += 1 / len(keys)
    sums = measured(Positions(), call([row], Setting("decoder" if causal else "encoder")))
    np.testing.assert_allclose(sums[f"{NULL}count"][0], expected, atol=1e-6)


def test_a_step_of_cross_attention_counts_all_pairs_of_places() -> None:
    target, source = make_seq([0, 1, 2]), make_seq([-1, 0, 1, 2, 3, -1], cls=[0], sep=[5])
    forward = [b >= a for a, b in product(range(4), repeat=2)]
    sums = measured(Monotonicity(), call([Row(uniform(3, 6), target, source)], Setting("cross")))
    assert sums[f"{NULL}monotonicity.x"][0] / sums[f"{NULL}monotonicity.n"][0] == pytest.approx(np.mean(forward))
    assert sums[f"{NULL}monotonicity_stays.x"][0] / sums[f"{NULL}monotonicity_stays.n"][0] == pytest.approx(1 / 4)


def test_a_linked_word_has_one_of_those_that_tie() -> None:
    target, source = make_seq([0, 1]), make_seq([0, 0, 1, 1, 2])
    row = Row(uniform(2, 5), target, source, links=[(0, 0, 1), (2, 1, 1)])
    sums = measured(WordAlignment(), call([row], Setting("cross")))
    # Both words of two tokens tie: right for the first word in half of the cases, never for the second.
    assert sums[f"{NULL}aligned.x"][0] / sums[f"{NULL}aligned.n"][0] == pytest.approx(1 / 4)


def test_weights_are_those_of_uniform_attention_over_what_is_seen() -> None:
    row, _ = drawn(2)
    length = len(row.queries)
    for stack, causal in (("encoder", False), ("decoder", True)):
        own = Row(**{**vars(row), "weights": uniform(length, causal=causal)})
        sums = measured(Mass(), call([own, drawn(3)[0]], Setting(stack)) if causal else call([own], Setting(stack)))
        if not causal:
            for name in ("first", "sep", "prev", "next", "self"):
                np.testing.assert_allclose(sums[f"{NULL}{name}"][0], sums[name][0], rtol=1e-6)
        else:
            seen = [1 / (q + 1) for r in (row, drawn(3)[0]) for q in range(len(r.queries))]
            assert sums[f"{NULL}first"][0] == pytest.approx(sum(seen))


def test_every_metric_has_a_null_or_says_why_not() -> None:
    """Also every column that a role is read from, and every one that has a chance level or an interval."""
    columns = {}
    for metric in registered_metrics():
        assert metric.has_null() != bool(metric.without_null), metric.name
        columns |= {column.name: column for column in metric.columns if metric.has_null()}
    rates = {"aer", "aer_written", "aer_reverse"}  # of errors
    for name, column in columns.items():
        if name not in rates and (column.chance or column.interval):
            assert column.null, name
    for name in (name for role in ROLES for name in role.columns):
        assert columns[name].null, name


@dataclass(frozen=True)
class Own(Metric):
    """A metric of somebody's own, without a null head."""

    name = "own"
    columns = (MetricColumn("own", "Weight on the first token."),)

    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        return {"x": view.received[:, :, 0].sum(0), "n": view.queries.real.sum()}

    def compute(self, sums: Mapping[str, Matrix]) -> Mapping[str, Matrix]:
        return {"own": sums["x"] / sums["n"]}


def test_a_metric_without_a_null_head_is_told_of() -> None:
    one = call([Row(uniform())])
    assert observed([Mass()], [one]).notes() == []
    (note,) = observed([Own()], [one]).notes()
    assert "uniform attention" in note
    assert "own" in note


def test_a_metric_of_weights_has_its_null_head_by_declaring_it() -> None:
    class WithNull(Own):
        name = "with_null"
        columns = (MetricColumn("own", "Weight on the first token.", null=True),)

    (table, null) = observed([WithNull()], [call([Row(uniform())] * 2)]).head_tables()
    assert table.rows["own"][0] == pytest.approx(null.rows["own_null"][0])


def drawn_tokens(lengths: tuple[int, ...], seed: int, *, left: bool = False) -> Tokens:
    """Words of one to four tokens between special ones, tokens of no word, padding on one side; with annotations."""
    generator = torch.Generator().manual_seed(seed)
    n = max(lengths)
    word, real = torch.full((len(lengths), n), -1), torch.zeros(len(lengths), n, dtype=torch.bool)
    flags = {name: real.clone() for name in ("cls", "sep", "punct")}
    for row, length in enumerate(lengths):
        begin = n - length if left else 0
        real[row, begin : begin + length] = True
        flags["cls"][row, begin] = True
        flags["sep"][row, begin + length - 1] = length > 1
        pieces = torch.randint(1, 5, (n,), generator=generator).mul(torch.rand(n, generator=generator) < 0.5).clamp(1)
        inside = torch.arange(n).repeat_interleave(pieces)[: max(0, length - 2)]
        word[row, begin + 1 : begin + 1 + len(inside)] = inside
        if length > 6:
            word[row, begin + 1 + length // 2] = -1
        flags["punct"][row] = real[row] & (torch.rand(n, generator=generator) < 0.2)
    n_words = max(1, int(word.max()) + 1)
    pieces = torch.stack([torch.bincount(w[w >= 0], minlength=n_words) for w in word])
    special = ~real | flags["cls"] | flags["sep"]
    none = torch.zeros_like(real)
    tokens = Tokens(
        real, special, flags["cls"], flags["sep"], none, none, flags["punct"], word, (pieces > 0).sum(1), pieces
    )
    return annotated(tokens, seed)


def null_sums(view: NullView) -> dict[str, Tensor]:
    """What all metrics of the stack make of a view of the null head."""
    metrics = [kind.of(MetricSettings(("nsubj", "obj"), exclude_self=own)) for kind in ALL for own in (False, True)]
    kept = view.earlier
    sums = {}
    for number, metric in enumerate(m for m in metrics if m.has_null() and view.site.stack in m.stacks):
        view.earlier = kept.setdefault(number, {})  # type: ignore[call-overload]
        sums |= {f"{metric.name}{number}.{name}": value for name, value in metric.null(view).items()}
    view.earlier = kept
    return sums


ALL = registered_metrics()
LENGTHS = [(1,), (2, 1), (3,), (7, 4), (40, 3, 17), (131, 64), (300, 12)]


@pytest.mark.parametrize("stack", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_counts_of_tokens_give_what_weights_give(lengths: tuple[int, ...], left: bool, stack: Stack) -> None:
    """All sums to the last digits of float64, and nobody asks for weights."""
    queries = drawn_tokens(lengths, 0, left=left)
    keys = drawn_tokens(tuple(reversed([n + 3 for n in lengths])), 1, left=left) if stack == "cross" else queries
    assert_counts_suffice(stack, queries, keys)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_counts_of_tokens_of_some_queries(stack: Stack) -> None:
    """A sentence in parts: sums of each, and what the last of them makes of all."""
    tokens = drawn_tokens((61,), 3)
    cuts = [0, 20, 21, 44, 61]
    cuts[1:-1] = [next(i for i in range(cut, 61) if tokens.word[0, i] != tokens.word[0, i - 1]) for cut in cuts[1:-1]]
    earlier = dict[Any, Any](), dict[Any, Any]()
    for start, stop in pairwise(cuts):
        place = {"start": start, "last": stop == 61}
        assert_counts_suffice(stack, tokens.queries_of(start, stop), tokens, earlier, **place)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_counts_of_tokens_of_pairs_of_texts(stack: Stack) -> None:
    tokens = drawn_tokens((29, 11), 4)
    generator = torch.Generator().manual_seed(0)
    segment = (torch.arange(29) > 6).long().where(~tokens.special, -1)
    tokens = replace(tokens, segment=segment, ids=torch.randint(0, 5, tokens.shape, generator=generator))
    assert_counts_suffice(stack, tokens, tokens)


def assert_counts_suffice(
    stack: Stack, queries: Tokens, keys: Tokens, earlier: tuple[Any, Any] | None = None, **place: Any
) -> None:
    nothing = torch.empty(len(queries.real), 1, 0, 0)
    tensors = nothing, nothing, nothing
    context = CallContext(Site(stack, 0, 1, "m"), *tensors, queries, keys, stack == "decoder", **place)
    counted, weighed = EvenView(context), NullView(context)
    counted.earlier, weighed.earlier = earlier or ({}, {})
    found, expected = null_sums(counted), null_sums(weighed)
    assert "token_weights" not in vars(counted)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        # Weights of 300 queries, added up one after the other, lose another digit.
        within = 1e-11 if keys.shape[1] > 200 else 1e-12
        torch.testing.assert_close(found[name], value, rtol=within, atol=within, msg=partial("{}: {}".format, name))


def test_words_whose_tokens_are_mixed_are_weighed() -> None:
    """Where a token of a word stands behind a later word, what precedes a query is not counted by words."""
    tokens = drawn_tokens((9,), 5)
    word = torch.tensor([[-1, 0, 1, 0, 1, 2, 3, 3, -1]])
    tokens = replace(tokens, word=word, n_pieces=torch.tensor([[2, 2, 1, 2]]), n_words=torch.tensor([4]))
    tokens = annotated(replace(tokens, arcs=None, mentions=None), 1)
    nothing = torch.empty(1, 1, 0, 0)
    context = CallContext(Site("decoder", 0, 1, "m"), nothing, nothing, nothing, tokens, tokens, causal=True)
    found, expected = null_sums(EvenView(context)), null_sums(NullView(context))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
def test_what_was_worked_out_ahead_is_added_unless_there_is_a_mask(
    masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens on a device have others on the processor, of which somebody looked ahead."""
    row, _ = drawn(3)
    plain = call([Row(**{**vars(row), "weights": uniform(len(row.queries))})])
    assert plain.keys is not None
    if masked:
        plain = replace(plain, allowed=torch.ones(1, 1, len(row.queries), len(row.queries)).tril().bool())
    expected = observed([Mass(), Own()], [plain]).totals.arrays()
    there = replace(plain.keys).beside(plain.keys)
    statistics = Statistics([Mass(), Own()], [plain.site])
    statistics.look_ahead(BatchTokens(encoder=plain.keys))
    if not masked:
        monkeypatch.setattr(Mass, "null", None)
    statistics.observe(replace(plain, queries=there, keys=there))
    statistics.commit()
    found = statistics.totals.arrays()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)

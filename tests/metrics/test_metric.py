"""All metrics together: batches, shards, padding and precision must not matter, and every stack is served."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any, Never

import naive_metrics
import naive_words
import numpy as np
import pandas as pd
import pytest
import torch
import zoo
from handmade import PROJECTION, Padding, Row, Setting, assert_same_sums, call, measured, observed, random_maps
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive_samples import Sample, Seq, make_seq
from tiers import rest_slow
from torch.utils._python_dispatch import TorchDispatchMode
from watching import run

from headlens.attention.edits_and_observers import PARTS_OF_SPEECH, BatchTokens, Tokens
from headlens.attention.kernels import blocked_softmax as core
from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites
from headlens.heads import STACKS, Head, HeadTable, Stack
from headlens.interventions.compacting import compact_model
from headlens.metrics.accumulator import Accumulator
from headlens.metrics.attention_view import CallView
from headlens.metrics.metric import Metric, MetricSettings, Statistics
from headlens.metrics.metric_registry import registered_metrics
from headlens.metrics.part_of_speech import PartOfSpeech
from headlens.metrics.rare import RareWords
from headlens.metrics.same_word import SameWord
from headlens.metrics.similarity import HeadSimilarity
from headlens.metrics.syntax import Syntax
from headlens.options import Level

RELATIONS = ("amod", "nsubj")
METRICS: tuple[Metric, ...] = tuple(metric.of(MetricSettings(RELATIONS)) for metric in registered_metrics())
TOKEN_METRICS = tuple(m for m in METRICS if not isinstance(m, RareWords | Syntax | SameWord | PartOfSpeech))
N_HEADS = 2
NAMES = [*PARTS_OF_SPEECH, ""]  # -1 is none


def sequence(rng: np.random.Generator) -> Seq:
    """Special tokens at the ends or not, words in one, two or four pieces, tokens of no word.

    Before the start token may stand another one, such as a language code: what starts a sentence need not be its first.
    """
    word = [-1] * rng.integers(3)
    special = list(range(len(word)))
    start = special[-1:]
    for unit in range(rng.integers(1, 6)):
        word += [unit] * rng.choice([1, 1, 2, 4]) + [-1] * (rng.random() < 0.2)
    end = [len(word)] * rng.integers(2)
    word += [-1] * len(end)
    kinds = {str(rng.choice(["cls", "bos"])): start, str(rng.choice(["sep", "eos"])): end}
    plain = [t for t in range(len(word)) if t not in special + end]
    return make_seq(word, **kinds, special=special, punct=[t for t in plain if rng.random() < 0.2])


def sixty_fourths(rng: np.random.Generator, n_queries: int, n_keys: int, *, causal: bool) -> Any:
    """Weights that float32 holds exactly, with many ties."""
    weights = np.zeros((N_HEADS, n_queries, n_keys))
    for head, query in np.ndindex(N_HEADS, n_queries):
        seen = query + 1 if causal else n_keys
        weights[head, query, :seen] = rng.multinomial(64, rng.dirichlet(np.full(seen, 0.3))) / 64
    return weights


def mentions_of(named: list[tuple[int, int]], forms: list[int]) -> list[tuple[int, ...]]:
    """Mentions with what the annotator says of them."""
    found = []
    for unit, entity in named:
        antecedents = [u for u, e in named if e == entity and u < unit]
        nearest = max((u for u, _ in named if u < unit), default=-1)
        same = max((u for u in range(unit) if forms[u] == forms[unit] >= 0), default=-1)
        found.append((unit, entity, int(bool(antecedents)), int(nearest in antecedents), int(same in antecedents)))
    return found


def corpus_of(stack: Stack, n: int, seed: int) -> tuple[Stack, list[Row]]:
    """Random sentences with trees and rare words."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        queries = sequence(rng)
        keys = sequence(rng) if stack == "cross" else queries
        weights = sixty_fourths(rng, len(queries), len(keys), causal=stack == "decoder")
        words = keys.n_words
        arcs = [(d, int(h), int(rng.integers(2))) for d, h in enumerate(rng.integers(0, words, words)) if d != h]
        ranks = rng.permutation([2, *rng.integers(0, 3, words - 1)]) if rng.random() < 0.7 else np.zeros(words)
        forms, upos = rng.integers(-1, min(3, words), words).tolist(), rng.integers(-1, 17, words).tolist()
        query_upos = rng.integers(-1, 17, queries.n_words).tolist() if stack == "cross" else upos
        sampled = int(rng.integers(len(queries)))
        segment, links = None, sorted({(int(rng.integers(words)), int(t)) for t in rng.integers(0, queries.n_words, 3)})
        if stack != "cross":
            cut = int(rng.integers(words + 1))
            segment = [-1 if w < 0 else int(w >= cut) for w in keys.word]
            links = [(s, t) for s, t in links if s < cut <= t]
        ids = rng.integers(0, 4, len(queries)).tolist()
        named = sorted(
            {(int(u), int(e)) for u, e in zip(rng.integers(0, words, 4), rng.integers(0, 2, 4), strict=True)}
        )
        gold = [(*link, int(rng.integers(2))) for link in links]
        sides = (arcs, ranks.tolist(), forms, upos, query_upos)
        values = rng.normal(size=(N_HEADS, len(keys), 2)) * rng.choice([0.01, 1], (N_HEADS, len(keys), 1))
        found.append(
            Row(
                weights,
                queries,
                keys,
                *sides,
                segment,
                ids if segment else None,
                gold,
                mentions_of(named, forms),
                values,
                sampled,
            )
        )
    return stack, found


# Each of them measures everything, several times.
FEWER = settings(max_examples=settings().max_examples // 2, suppress_health_check=[HealthCheck.function_scoped_fixture])
corpora = st.builds(corpus_of, st.sampled_from(STACKS), st.integers(2, 5), st.integers(0, 10**6))


def flat(statistics: Statistics | HeadSimilarity) -> dict[Any, Any]:
    totals = statistics.totals
    return {k: totals.of(k[0])[k[1]][k[2]] for k in totals}


# Float32 rows of different width are added up in another order by torch: the last of seven digits may differ.
ROUNDING = 1e-6


@FEWER
@given(corpus=corpora, level=st.sampled_from(["token", "word"]), data=st.data())
def test_batches_and_shards_of_any_size_and_order_add_up(
    corpus: tuple[Stack, list[Row]], level: Level, data: st.DataObject
) -> None:
    stack, rows = corpus
    shuffled = data.draw(st.permutations(rows))
    cuts = sorted({0, len(rows), *data.draw(st.lists(st.integers(0, len(rows)), max_size=3))})
    calls = [call(shuffled[a:b], Setting(stack)) for a, b in pairwise(cuts)]
    in_turn = flat(observed(METRICS, calls, level=level))
    assert_same_sums(flat(observed(METRICS, [call(rows, Setting(stack))], level=level)), in_turn, within=ROUNDING)
    merged = Accumulator()
    for shard in data.draw(st.permutations(calls)):
        merged.add_arrays(observed(METRICS, [shard], level=level).totals.arrays())
    assert_same_sums(in_turn, {k: merged.of(k[0])[k[1]][k[2]] for k in merged}, within=1e-12)


paddings = st.builds(
    Padding,
    queries=st.integers(0, 4),
    keys=st.integers(0, 4),
    words=st.integers(0, 3),
    garbage=st.sampled_from([0.0, 0.3, 1.0]),
)


@FEWER
@given(corpus=corpora, padding=paddings, level=st.sampled_from(["token", "word"]))
def test_padding_never_matters(corpus: tuple[Stack, list[Row]], padding: Padding, level: Level) -> None:
    stack, rows = corpus
    plain = [call([row], Setting(stack)) for row in rows]
    padded = call(rows, Setting(stack, padding=padding))
    assert_same_sums(
        flat(observed(METRICS, plain, level=level)), flat(observed(METRICS, [padded], level=level)), within=ROUNDING
    )
    sites = [padded.site]
    distances = [HeadSimilarity(sites), HeadSimilarity(sites)]
    for similarity, calls in zip(distances, (plain, [padded]), strict=True):
        for one in calls:
            similarity.observe(one)
            similarity.commit()
    assert_same_sums(flat(distances[0]), flat(distances[1]), within=ROUNDING)


@FEWER
@given(corpus=corpora)
def test_bfloat16_weights_are_read_as_they_are(corpus: tuple[Stack, list[Row]]) -> None:
    stack, rows = corpus
    low = call(rows, Setting(stack, dtype=torch.bfloat16))
    assert low.weights is not None
    high = dataclasses.replace(low, weights=low.weights.float())
    assert_same_sums(flat(observed(METRICS, [low])), flat(observed(METRICS, [high])), within=0)


@FEWER
@given(corpus=corpora)
def test_tables_against_naive_loops(corpus: tuple[Stack, list[Row]]) -> None:
    """Ties, tokens of no word and sentences without a word to point at, which models seldom give."""
    stack, rows = corpus
    samples = [
        Sample(
            stack,
            row.queries,
            row.keys or row.queries,
            row.weights[None],
            causal=stack == "decoder",
            arcs=[(d, h, RELATIONS[r]) for d, h, r in row.arcs or ()],
            rare1=[r == 2 for r in row.rarity or ()],
            rare2=[r >= 1 for r in row.rarity or ()],
            forms=() if stack == "cross" else row.forms or (),
            upos=[NAMES[number] for number in row.upos or ()],
            query_upos=[NAMES[number] for number in row.query_upos or ()],
            segment=row.segment or (),
            ids=row.ids or (),
            links=row.links or (),
            values=(row.values @ PROJECTION.numpy().T)[None],
            mentions=[] if stack == "cross" else [(unit, entity) for unit, entity, *_ in row.mentions or ()],
        )
        for row in rows
    ]
    tables = observed(METRICS, [call(rows, Setting(stack, padding=Padding(1, 2, 1)))]).tables()
    for head in range(N_HEADS):
        naive = naive_metrics.head_metrics(samples, 0, head) | naive_words.rare(samples, 0, head)
        naive |= naive_words.same_word(samples, 0, head)
        naive |= naive_words.coreference(samples, 0, head) | naive_metrics.norms(samples, 0, head)
        naive |= naive_words.text_pair(samples, 0, head) | naive_words.alignment(samples, 0, head)
        # No list of names, which would forget a metric; those left out have several rows for a head.
        for name in tables.keys() - {"pos", "positions", "syntax"}:
            own = tables[name].rows.iloc[head].to_dict()
            assert set(own) & set(naive), name
            for column in set(own) & set(naive):
                assert own[column] == pytest.approx(naive[column], abs=1e-6, nan_ok=True), column
        if "pos" in tables:
            own_pairs = tables["pos"].rows.query("head == @head").set_index(["from", "to"])["weight"].to_dict()
            pairs = naive_words.parts_of_speech(samples, 0, head)
            assert {pair for pair, weight in own_pairs.items() if weight} <= set(pairs)
            assert [own_pairs[pair] for pair in pairs] == pytest.approx(list(pairs.values()), abs=1e-6)
    if stack != "cross" and any(s.arcs for s in samples):
        expected = naive_words.model_syntax([samples])
        for row in tables["syntax"].rows.query("n > 0").to_dict("records"):
            key = (row["stack"], row["layer"], row["head"], row["relation"], row["direction"])
            assert (row["n"], row["correct"], row["baseline_offset"]) == (
                expected[key][0].n, expected[key][0].correct, expected[key][0].offset,
            )  # fmt: skip
            assert row["p_holm"] == pytest.approx(expected[key][1], abs=1e-9)


@pytest.mark.parametrize("level", ["token", "word"])
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
def test_every_metric_serves_every_stack(metric: Metric, stack: Stack, level: Level) -> None:
    rng = np.random.default_rng(1)
    seq = make_seq([-1, 0, 1, 1, 2, -1], cls=[0], sep=[5])
    weights = random_maps(rng, N_HEADS, 6, causal=stack == "decoder")
    row = Row(weights, seq, seq, [(0, 1, 0), (2, 1, 1)], [2, 0, 1], [0, 1, 0], [7, 15, 7], [7, 15, 7])
    if stack != "cross":
        row = dataclasses.replace(row, segment=[-1, 0, 1, 1, 1, -1], ids=[0, 5, 5, 6, 7, 1])
    row = dataclasses.replace(
        row, values=rng.normal(size=(N_HEADS, 6, 2)), links=[(0, 1, 1)], mentions=[(0, 0, 0, 0, 0), (2, 0, 1, 1, 1)]
    )
    calls = [call([row], Setting(stack, layer)) for layer in (0, 1)]
    if metric.name == "learned_sink":
        calls = [dataclasses.replace(own, to_tokens=torch.full((1, N_HEADS, 6), 0.5)) for own in calls]
    tables = observed([metric], calls, level=level).tables()
    if stack not in metric.stacks:
        assert tables == {}
        return
    table = tables[metric.name]
    assert isinstance(table, HeadTable)
    assert [str(h) for h in table.heads] == [f"{stack}.{layer}.{h}" for layer in (0, 1) for h in range(N_HEADS)]
    sums = measured(metric, calls[0], level=level)
    assert all(np.asarray(v).dtype in (np.int64, np.float64) for v in sums.values())


def test_names_of_metrics_differ() -> None:
    names = [m.name for m in METRICS]
    assert len(set(names)) == len(names)


def test_metrics_hold_parameters_only() -> None:
    for metric in METRICS:
        assert dataclasses.is_dataclass(metric)
        field = next((f.name for f in dataclasses.fields(metric)), "name")
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(metric, field, None)


def test_what_is_discarded_never_counts() -> None:
    rng = np.random.default_rng(2)
    seq = make_seq([-1, 0, 1, 2, 2, -1], cls=[0], sep=[5])
    one, other = (
        call([Row(random_maps(rng, N_HEADS, 6), seq, None, [(0, 1, 0)], [2, 1, 0], sampled=3)]) for _ in range(2)
    )
    for kind in (lambda: Statistics(METRICS, [one.site]), lambda: HeadSimilarity([one.site])):
        clean, disturbed = kind(), kind()
        clean.observe(one)
        clean.commit()
        disturbed.observe(other)
        disturbed.discard()
        disturbed.observe(one)
        disturbed.commit()
        disturbed.observe(other)
        disturbed.discard()
        disturbed.commit()
        assert_same_sums(flat(clean), flat(disturbed), within=0)


def out_of_memory(rows: torch.Tensor) -> Never:
    raise torch.OutOfMemoryError


def test_a_pass_whose_comparison_runs_out_of_memory_is_counted_by_no_observer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.ZOO["bert"].build()
    sites = find_sites(model)
    observers = [Statistics(TOKEN_METRICS, sites), HeadSimilarity(sites)]
    with AttentionSession(model, observers=observers) as session, session.batch(zoo.batch_tokens(zoo.ZOO["bert"])):
        with monkeypatch.context() as full:
            full.setattr("headlens.metrics.similarity.divergences_by_torch", out_of_memory)
            with pytest.raises(torch.OutOfMemoryError):
                run(model, zoo.padded(zoo.ZOO["bert"]))
        assert [list(o.totals) for o in observers] == [[], []]
        run(model, zoo.padded(zoo.ZOO["bert"]))
    n_tokens = sum(zoo.LENGTHS)
    assert observers[0].tables()["confidence"].rows["tokens"].unique().tolist() == [n_tokens]
    assert flat(observers[1])["similarity", "encoder", "tokens"] == n_tokens


def annotated(tokens: Tokens | None) -> Tokens | None:
    """With a tree, rare words, a sampled query, two texts with a gold link, and an entity."""
    if tokens is None:
        return None
    arcs = [(b, d, 0, d % 2) for b, n in enumerate(tokens.n_words.tolist()) for d in range(1, n)]
    ranks = torch.arange(tokens.n_pieces.shape[1]).clamp(max=2).expand_as(tokens.n_pieces) * (tokens.n_pieces > 0)
    sampled = torch.arange(len(arcs) + 1)[: len(tokens.real)]
    last = (tokens.n_words - 1).tolist()
    return dataclasses.replace(
        tokens,
        arcs=torch.tensor(arcs),
        rarity=ranks,
        sampled=sampled,
        segment=torch.where(tokens.word < 0, -1, (tokens.word > 0).long()),
        ids=torch.ones_like(tokens.word),
        links=torch.tensor([(b, 0, n, b % 2) for b, n in enumerate(last)]),
        mentions=torch.tensor([(b, word, b, int(word > 0), 0, 0) for b, n in enumerate(last) for word in {0, n}]),
    )


# Two layers of each stack, or one for a model of three.
FEWER = {"num_hidden_layers": 2}
FEW = {"marian": {"encoder_layers": 2, "decoder_layers": 1}, "t5": {"num_layers": 1, "num_decoder_layers": 1}}
IN_PARTS = ["bert", "albert", "llama", "marian", *(["t5"] if "t5" in zoo.ZOO else [])]


@pytest.mark.parametrize("name", rest_slow(IN_PARTS, ["albert"]))
def test_the_fast_kernel_in_parts_gives_the_same_sums(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = zoo.ZOO[name]
    model, declared = entry.build(**FEW.get(name, FEWER)), zoo.batch_tokens(entry)
    tokens = BatchTokens(annotated(declared.encoder), annotated(declared.decoder))
    found = []
    for kernel, most in (("eager", 1), ("fast", 10**6), ("fast", 1)):
        monkeypatch.setattr(core, "BLOCK", {"cpu": most, "other": most})
        observers = [Statistics(METRICS, find_sites(model)), HeadSimilarity(find_sites(model))]
        with AttentionSession(model, observers=observers, kernel=kernel) as session, session.batch(tokens):
            run(model, zoo.padded(entry))
        found.append([flat(o) for o in observers])
    for other in found[1:]:
        for expected, own in zip(found[0], other, strict=True):
            assert_same_sums(expected, own, within=1e-5)


@pytest.mark.parametrize(
    "name", rest_slow(["bert", "albert", "llama", "marian", "bert-pruned"], ["albert", "marian", "bert-pruned"])
)
def test_heads_of_several_layers_measured_together_give_the_same_sums(name: str) -> None:
    entry = zoo.ZOO[name.removesuffix("-pruned")]
    model, declared = entry.build(**FEW.get(name, FEWER)), zoo.batch_tokens(entry)
    if name.endswith("-pruned"):
        compact_model(model, [Head("encoder", 0, 1), Head("encoder", 1, 0), Head("encoder", 1, 3)])
    tokens = BatchTokens(annotated(declared.encoder), annotated(declared.decoder))
    sites = find_sites(model)
    per_layer = max(site.n_heads for site in sites) * zoo.padded(entry)["input_ids"].shape[0] * 8**2
    found = []
    for together in (0, 2 * per_layer, 10**9):
        watching = Statistics([*METRICS, Unknown()], sites, together=together)
        with AttentionSession(model, observers=[watching], kernel="eager") as session, session.batch(tokens):
            run(model, zoo.padded(entry))
        found.append(flat(watching))
    for other in found[1:]:
        assert_same_sums(found[0], other, within=1e-12)


class Unknown(Metric):
    """One of another package, which says nothing of its sums: as many as a layer has tokens."""

    name = "unknown"
    own_table = True

    def measure(self, view: CallView) -> dict[str, torch.Tensor]:
        return {"of tokens": view.queries.real.sum(0), "of heads": view.weights.amax((0, 2, 3)).double()}

    def table(self, sums: object) -> None:
        """Returns no table: the sums alone are looked at."""


def test_what_failed_while_calls_waited_is_forgotten() -> None:
    entry = zoo.ZOO["bert"]
    model, tokens = entry.build(), zoo.batch_tokens(entry)
    watching = Statistics(TOKEN_METRICS, find_sites(model), together=10**9)
    with AttentionSession(model, observers=[watching], kernel="eager") as session, session.batch(tokens):
        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(model.pooler if model.pooler is not None else model, "forward", out_of_memory_of_all)
            with pytest.raises(torch.OutOfMemoryError):
                run(model, zoo.padded(entry))
        run(model, zoo.padded(entry))
    assert watching.tables()["confidence"].rows["tokens"].unique().tolist() == [sum(zoo.LENGTHS)]


def out_of_memory_of_all(*_: object, **__: object) -> Never:
    raise torch.OutOfMemoryError


# What only looks at the same memory starts nothing on a GPU.
VIEWS = (
    "view",
    "detach",
    "slice",
    "select.int",
    "expand",
    "squeeze",
    "transpose",
    "resolve",
    "lift",
    "alias",
    "reshape",
)
VIEWS += ("unbind", "split", "as_strided", "permute", "diagonal", "unfold", "::t")


class Operations(TorchDispatchMode):
    """Counts operations that would be started on a device."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += not any(view in function.name() for view in VIEWS)
        return function(*args, **(kwargs or {}))


def test_operations_of_a_batch_hardly_grow_with_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    # Processors work on parts that fit their caches; other devices do not.
    monkeypatch.setattr("headlens.metrics.reductions._CHUNK", {"cpu": 2**40, "other": 2**40})
    entry = zoo.ZOO["bert"]
    declared = BatchTokens(annotated(zoo.batch_tokens(entry).encoder))
    numbers = {}
    for layers in (3, 12):
        model = dataclasses.replace(entry, settings={**entry.settings, "num_hidden_layers": layers}).build()
        observers = [Statistics(METRICS, find_sites(model), together=10**9), HeadSimilarity(find_sites(model))]
        with AttentionSession(model, kernel="eager"), Operations() as plain:
            run(model, zoo.padded(entry))
        session = AttentionSession(model, observers=observers, kernel="eager")
        with session, session.batch(declared):
            run(model, zoo.padded(entry))  # in which every module is checked once
            with Operations() as counted:
                run(model, zoo.padded(entry))
        numbers[layers] = counted.number - plain.number
    # Of every layer stay the rows that similarity keeps, whether its numbers are finite, and the joining.
    assert numbers[12] - numbers[3] < 9 * 12
    # The null head takes nearly as many again, once for all layers.
    assert numbers[12] < 1400


def test_what_is_not_committed_does_not_count() -> None:
    statistics = Statistics(METRICS, [])
    statistics.observe(call([Row(random_maps(np.random.default_rng(0), 1, 8))]))
    assert list(statistics.totals) == []
    assert statistics.tables() == {}


def test_rows_of_several_sites_stand_in_order() -> None:
    rng = np.random.default_rng(5)
    row = Row(random_maps(rng, N_HEADS, 8))
    calls = [call([row], Setting(stack, layer)) for stack, layer in [("cross", 0), ("encoder", 1), ("encoder", 0)]]
    rows = observed(METRICS, calls).tables()["positions"].rows
    assert pd.unique(rows["stack"]).tolist() == ["encoder", "cross"]
    assert rows["layer"].tolist() == [0] * 38 + [1] * 38 + [0] * 38

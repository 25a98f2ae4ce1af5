"""Kernels of rows against float64: in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zoo
from few_annotations import annotated
from row_reference import RowsOfWeights
from tiers import rest_slow
from torch import Tensor
from transformers import PreTrainedModel
from watching import run

from headlens.attention import session as session_module
from headlens.attention.edits_and_observers import BatchTokens, CallContext, Tokens
from headlens.attention.kernels import row_attention
from headlens.attention.kernels.row_attention import RowAttention, divergence_refusal, head_divergences
from headlens.attention.rows import RowNeeds
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site, find_sites
from headlens.metrics.metric import MetricSettings, Statistics
from headlens.metrics.metric_registry import registered_metrics
from headlens.metrics.row_view import room_for, row_facts
from headlens.metrics.similarity import HeadSimilarity

pytest.importorskip("triton", reason="Triton is not installed")
# The interpreter is numpy: it warns of what comes out of rows and keys that are not there, and is left out.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
ALL = RowNeeds(
    peak=True, entropy=True, places=True, received=True, norms=True, parts=True, words=True, other_words=True
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# A card multiplies float32 as three products of TF32, which lose a digit.
CARD = 10 if DEVICE == "cuda" else 1


@dataclass(frozen=True)
class Case:
    """A call: lengths of its sentences, and what is special about it."""

    lengths: tuple[int, ...]
    d: int = 32
    heads: int = 2
    key_heads: int = 2
    dtype: torch.dtype = torch.float32
    causal: bool = False
    window: int | None = None
    cap: float | None = None
    sink: bool = False
    keys: tuple[int, ...] | None = None  # in cross-attention
    sharp: float = 2.0
    bias: bool = False

    def __str__(self) -> str:
        told = {name: value for name, value in vars(self).items() if value not in (None, False)}
        return " ".join(f"{name}={value}" for name, value in told.items())


def tokens_of(lengths: tuple[int, ...], seed: int) -> Tokens:
    """[CLS], words of one to four tokens, [SEP], padding; parts of speech at random, some unknown."""
    generator = torch.Generator().manual_seed(seed)
    n = max(lengths)
    word = torch.full((len(lengths), n), -1)
    for row, length in enumerate(lengths):
        pieces = torch.randint(1, 5, (length,), generator=generator) * torch.randint(
            0, 2, (length,), generator=generator
        )
        inside = torch.arange(length).repeat_interleave(pieces.clamp(min=1))[: max(0, length - 2)]
        word[row, 1 : 1 + len(inside)] = inside
    real = torch.arange(n) < torch.tensor(lengths)[:, None]
    last = torch.arange(n) == torch.tensor(lengths)[:, None] - 1
    cls = real & (torch.arange(n) == 0)
    n_words = max(1, int(word.max()) + 1)
    pieces = torch.stack([torch.bincount(w[w >= 0], minlength=n_words) for w in word])
    none = torch.zeros_like(real)
    return Tokens(
        real=real, special=cls | last | ~real, cls=cls, sep=last & (n > 1), bos=none, eos=none, punct=none, word=word,
        n_words=(pieces > 0).sum(1), n_pieces=pieces,
        upos=torch.randint(-1, 17, pieces.shape, generator=generator),
    )  # fmt: skip


def call(case: Case) -> tuple[CallContext, Tensor | None, dict[str, Any]]:
    """The call of a case, its mask and arguments, on the device."""
    torch.manual_seed(0)
    queries = tokens_of(case.lengths, 0)
    keys = queries if case.keys is None else tokens_of(case.keys, 1)
    shapes = [(case.heads, queries), (case.key_heads, keys), (case.key_heads, keys)]
    query, key, value = (
        torch.randn(len(case.lengths), t.shape[1], h, case.d).to(case.dtype).transpose(1, 2) for h, t in shapes
    )
    away = torch.arange(queries.shape[1])[:, None] - torch.arange(keys.shape[1])
    open_ = keys.real[:, None, None].expand(-1, 1, queries.shape[1], -1)
    if case.window is not None:
        open_ = open_ & (away < case.window) & (away > -case.window)
    mask = None
    if not bool(open_.all()):
        if case.causal:
            open_ = open_ & (away >= 0)
        mask = torch.zeros(open_.shape, dtype=case.dtype).masked_fill(~open_, torch.finfo(case.dtype).min).to(DEVICE)
    kwargs: dict[str, Any] = {"scaling": case.sharp / math.sqrt(case.d), "softcap": case.cap}
    if case.sink:
        kwargs["s_aux"] = torch.randn(case.heads, device=DEVICE)
    if case.bias:
        kwargs["position_bias"] = torch.randn(1, case.heads, *away.shape, device=DEVICE)
    stack = "cross" if case.keys is not None else "decoder" if case.causal else "encoder"
    parts = (query.to(DEVICE), key.to(DEVICE), value.to(DEVICE), queries.to(DEVICE), keys.to(DEVICE))
    return CallContext(Site(stack, 0, case.heads, "m"), *parts, causal=case.causal), mask, kwargs


def by_torch(
    case: Case, context: CallContext, mask: Tensor | None, kwargs: dict[str, Any], kind: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights over tokens, the share that tokens get, and head outputs, in numbers of a type."""
    query, key, value = (t.to("cpu", kind) for t in (context.query, context.key, context.value))
    key, value = (t.repeat_interleave(case.heads // case.key_heads, 1) for t in (key, value))
    scores = query @ key.transpose(2, 3) * kwargs["scaling"]
    if case.cap is not None:
        scores = case.cap * torch.tanh(scores / case.cap)
    if mask is not None:
        scores = scores + mask.to("cpu", kind)
    if case.bias:
        scores = scores + kwargs["position_bias"].to("cpu", kind)
    if mask is None and case.causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[2:], dtype=torch.bool).tril(), -math.inf)
    weights, lse = scores.softmax(-1), scores.logsumexp(-1)
    share = torch.ones_like(lse)
    if case.sink:
        share = torch.sigmoid(lse - kwargs["s_aux"].to("cpu", kind)[:, None])
    return weights, share, ((weights * share[..., None]) @ value).transpose(1, 2)


def compare(case: Case) -> None:
    """All that the kernels give, against float64: of real queries, and where targets tie nearly, of the same weight."""
    context, mask, kwargs = call(case)
    queries, keys = context.queries, context.keys
    assert queries is not None
    assert keys is not None
    weights, share, expected_output = by_torch(case, context, mask, kwargs)
    # Where scores are so large that their rounding shows, as far again as torch's float32 is.
    rounded = by_torch(case, context, mask, kwargs, torch.float32)[0]
    more = max(1.0, 2 * float((rounded - weights).abs().max()) / 2e-6)
    output, rows = RowAttention().attend(context, mask, kwargs, causal=case.causal and mask is None)
    near = {torch.float32: 5e-6 * CARD * more, torch.float16: 2e-3, torch.bfloat16: 2e-2}[case.dtype]
    host, host_keys = queries.host or queries, keys.host or keys
    real = host.real[:, None]
    torch.testing.assert_close(
        output.double().cpu() * real[:, 0, :, None, None],
        expected_output * real[:, 0, :, None, None],
        atol=near,
        rtol=near,
    )
    if case.sink:
        assert rows.to_tokens is not None
        torch.testing.assert_close(rows.to_tokens.double().cpu() * real, share * real, atol=1e-6, rtol=1e-5)
    needs = ALL if case.keys is None else replace(ALL, places=False, other_words=False)
    facts = row_facts(needs, queries, keys)
    found = room_for(needs, queries, keys, case.heads)
    rows.fill(found, facts)
    reference = RowsOfWeights(weights, host, host_keys, share if case.sink else None)
    wanted = reference.found(*(None if t is None else t.cpu() for t in (facts.query_parts, facts.key_parts)))
    n = weights.shape[3]
    for name, value in wanted.items():
        room = getattr(found, name)
        if room is None:
            continue
        here = room.double().cpu()
        if name in ("peak_key", "words", "other_words"):
            continue
        limit = (
            2e-6
            * CARD
            * more
            * (n if name in ("distance", "parts", "received", "read") else 10 if name == "entropy" else 1)
        )
        counted = torch.ones(()) if name in ("received", "read", "parts") else real
        torch.testing.assert_close(
            here * counted, value * counted, atol=limit, rtol=1e-5 * CARD * more, msg=partial("{}: {}".format, name)
        )
    at = found.peak_key.long().cpu()
    assert bool((at < n).all())
    pointed = weights.gather(3, at.clamp(min=0)[..., None])[..., 0] * (at >= 0)
    torch.testing.assert_close(pointed * real, wanted["peak"] * real, atol=2e-6 * CARD * more, rtol=1e-5 * CARD * more)
    assert ((at == wanted["peak_key"]) | ~real).double().mean() > 0.99
    for name, sums in reference.word_sums().items():
        room = getattr(found, name)
        if room is not None:
            assert room.shape == wanted[name].shape
            target = room.long().cpu()
            pointed = sums.gather(3, target.clamp(min=0)[..., None])[..., 0] * (target >= 0)
            limit = 2e-6 * CARD * more * int(host.n_pieces.max())
            torch.testing.assert_close(pointed, sums.amax(-1), atol=limit, rtol=1e-5 * CARD * more)
            is_word = host.n_pieces[:, None] > 0
            # Weights that are all but 1 tie for words of several tokens.
            assert more > 1 or ((target == wanted[name]) | ~is_word).double().mean() > 0.99, name
    sentence, query = host.real.nonzero(as_tuple=True)
    chosen = rows.weights(sentence[::3].to(DEVICE), query[::3].to(DEVICE))
    torch.testing.assert_close(
        chosen.double().cpu(),
        weights[sentence[::3], :, query[::3]].transpose(0, 1),
        atol=2e-6 * CARD * more,
        rtol=1e-5 * CARD * more,
    )


FEW = [Case((5, 3)), Case((40,), causal=True, key_heads=1, cap=5.0, sink=True, dtype=torch.float16, d=48)]
CASES = [
    *FEW,
    *(Case((n,)) for n in (1, 2, 31, 32, 33, 64, 65, 128, 300)),
    *(Case((n, n // 2 + 1, 1), d=64) for n in (3, 70, 129)),
    *(Case((90, 17), d=d) for d in (16, 80, 128, 256)),
    *(Case((90, 17), causal=True, key_heads=1, heads=3, dtype=dtype) for dtype in (torch.float32, torch.float16)),
    *(Case((n, 17), causal=True, window=9) for n in (20, 130)),
    Case((100, 17), window=12, d=64, dtype=torch.float16),
    Case((130,), causal=True),
    *(Case((100, 17), cap=cap, sharp=cap / 8) for cap in (5.0, 50.0)),
    *(Case((100, 17), sink=True, causal=causal) for causal in (True, False)),
    *(Case((50, 20), keys=keys) for keys in ((70, 3), (8, 8), (300, 130))),
    Case((70, 20), bias=True),
    Case((70, 20), sharp=40.0),
]


@pytest.mark.parametrize("case", rest_slow(CASES, FEW), ids=str)
def test_kernels_against_float64(case: Case) -> None:
    if case.dtype == torch.bfloat16 and DEVICE == "cpu":
        pytest.skip("Triton's interpreter multiplies bfloat16 wrongly")
    compare(case)


def divergences(weights: Tensor) -> Tensor:
    """Jensen-Shannon divergences of heads in nats, from weights (heads, rows, key): means of Kullback-Leibler ones."""
    first, second = weights[:, None].double(), weights[None].double()
    mean = (first + second) / 2
    apart = [torch.xlogy(w, w / mean.clamp(min=1e-300)) for w in (first, second)]
    return (sum(apart) / 2).sum((2, 3))


@pytest.mark.parametrize("case", rest_slow([replace(case, heads=2 * case.heads) for case in CASES]), ids=str)
def test_how_alike_heads_are_against_float64(case: Case) -> None:
    """Of rows under padding, causal and other masks, of which no weights but those are made."""
    if case.heads % case.key_heads:
        case = replace(case, key_heads=1)
    context, mask, kwargs = call(case)
    assert context.queries is not None
    weights, *_ = by_torch(case, context, mask, kwargs)
    _, rows = RowAttention().attend(context, mask, kwargs, causal=case.causal and mask is None)
    host = context.queries.host or context.queries
    sentence, query = host.real.nonzero(as_tuple=True)
    step = -(-len(query) // 4)
    sentence, query = sentence[::step], query[::step]
    found = head_divergences(rows.weights(sentence.to(DEVICE), query.to(DEVICE))).cpu()
    expected = divergences(weights[sentence, :, query].transpose(0, 1))
    near = 2e-3 if case.dtype == torch.float16 or case.sharp > 10 else 2e-6
    torch.testing.assert_close(found, expected, rtol=near * CARD, atol=near * CARD)


@pytest.mark.parametrize(("heads", "rows", "keys"), [(1, 3, 5), (16, 1, 1), (17, 4, 30), (3, 9, 70)])
def test_divergences_of_many_heads(heads: int, rows: int, keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of heads and parts of weights that do not come out even; heads that are equal, and rows of zeros."""
    monkeypatch.setattr(row_attention, "_FEWEST_WEIGHTS", 48)
    monkeypatch.setattr(row_attention, "_MOST_PARTS", 4)
    weights = torch.randn(heads, rows, keys, generator=torch.Generator().manual_seed(0)).mul(3).softmax(2)
    weights[-1] = weights[0]
    weights[:, 0] = 0
    found = head_divergences(weights.to(DEVICE)).cpu()
    torch.testing.assert_close(found, divergences(weights), rtol=2e-6 * CARD, atol=1e-6 * CARD)
    assert found[0, -1] == 0


@pytest.mark.gpu
@pytest.mark.parametrize(("heads", "rows", "keys"), [(144, 104, 128), (12, 16, 512), (17, 3, 2048)])
def test_divergences_on_a_card(heads: int, rows: int, keys: int) -> None:
    weights = torch.randn(heads, rows, keys, generator=torch.Generator().manual_seed(0)).mul(3).softmax(2)
    found, expected = head_divergences(weights.to(DEVICE)).cpu(), divergences(weights)
    torch.testing.assert_close(found, expected, rtol=2e-6 * CARD, atol=1e-6 * CARD)


def test_a_kernel_of_divergences_serves_only_where_it_gives_the_numbers_of_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(0), device="cpu").softmax(2)
    if DEVICE == "cpu":
        assert divergence_refusal(rows, divergences) == "the device is a cpu"
    monkeypatch.setattr(row_attention, "available", lambda _: "")
    assert divergence_refusal(rows.to(DEVICE), lambda given: divergences(given.cpu()).to(DEVICE)) == ""
    assert divergence_refusal(rows, lambda given: divergences(given) + 0.01) == "torch gives other numbers"
    assert divergence_refusal(rows.double(), divergences) == "numbers of the type float64"
    errors = [torch.OutOfMemoryError("no memory"), ValueError("no such instruction")]

    def fail(_: Tensor) -> Tensor:
        raise errors.pop(0)

    monkeypatch.setattr(row_attention, "head_divergences", fail)
    with pytest.raises(torch.OutOfMemoryError):
        divergence_refusal(rows, divergences)
    assert divergence_refusal(rows, divergences) == "the kernel failed, ValueError"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    "case", [Case((300, 129), d=64), Case((257,), causal=True, key_heads=1, d=128), Case((65, 7), d=256)]
)
def test_kernels_on_a_card(case: Case, dtype: torch.dtype) -> None:
    compare(replace(case, dtype=dtype))


def observed(model: str, network: PreTrainedModel) -> tuple[dict[str, Any], AttentionSession]:
    """The sums of all metrics of a batch of a model of the zoo, its output, and the session that gave them."""
    entry, sites = zoo.ZOO[model], find_sites(network)
    metrics = [kind.of(MetricSettings(("nsubj", "obj"))) for kind in registered_metrics()]
    statistics, similarity = Statistics(metrics, sites), HeadSimilarity(sites)
    session = AttentionSession(network, observers=[statistics, similarity], kernel="fast")
    declared = zoo.batch_tokens(entry)
    tokens = [t and annotated(t, n) for n, t in enumerate((declared.encoder, declared.decoder))]
    with session, session.batch(BatchTokens(*tokens)), torch.inference_mode():
        output = run(network, zoo.padded(entry))
    return statistics.totals.arrays() | similarity.totals.arrays() | {"output": output}, session


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bert", "gpt2", "marian", "gemma2", "gpt-oss", "t5", "mistral", "modernbert"])
def test_a_session_with_these_kernels_gives_the_sums_of_one_without(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = zoo.ZOO[model].build("eager" if model in zoo.MORE_THAN_SOFTMAX else "sdpa").eval()
    expected, without = observed(model, network)
    for module in (row_attention, session_module):
        monkeypatch.setattr(module, "available", lambda _: "")
    found, session = observed(model, network)
    assert set(session.no_rows.values()) == {""}
    assert set(without.no_rows.values()) == {"the device is a cpu"}
    assert set(found) == set(expected)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-5, err_msg=key)


def test_why_a_call_needs_weights() -> None:
    context, mask, kwargs = call(Case((5, 3)))
    module = torch.nn.Module().eval()
    refusal = RowAttention().refusal
    assert "the device is a cpu" in refusal(module, context, mask, kwargs, causal=False) or DEVICE == "cuda"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"kwargs": {"unheard_of": 1}}, "the arguments unheard_of"),
        ({"dtype": torch.float64}, "numbers of the type float64"),
        ({"d": 272}, "heads of size 272"),
        ({"causal": True, "keys": (8, 8)}, "fewer queries than keys"),
        ({"training": True}, "training"),
        ({"gradients": True}, "gradients"),
    ],
)
def test_what_the_kernels_do_not_serve(change: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_attention, "available", lambda _: "")
    case = Case((5, 3), **{name: value for name, value in change.items() if name in Case.__match_args__})
    context, mask, kwargs = call(case)
    module = torch.nn.Module().train("training" in change)
    if "gradients" in change:
        context.query.requires_grad_()
    kwargs |= change.get("kwargs", {})
    assert why in RowAttention().refusal(module, context, mask, kwargs, causal="causal" in change)


def test_a_kernel_that_fails_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a compiler raises on a card refuses the module; want of memory is told, so that batches get smaller."""
    context, mask, kwargs = call(Case((5, 3)))
    module, errors = torch.nn.Module().eval(), [torch.OutOfMemoryError("no memory"), ValueError("no such instruction")]

    def fail(*_: Any, **__: Any) -> bool:
        raise errors.pop(0)

    monkeypatch.setattr(row_attention, "available", lambda _: "")
    monkeypatch.setattr(row_attention, "_agrees", fail)
    rows = RowAttention()
    with pytest.raises(torch.OutOfMemoryError):
        rows.refusal(module, context, mask, kwargs, causal=False)
    for _ in range(2):
        assert rows.refusal(module, context, mask, kwargs, causal=False) == "the kernel failed, ValueError"
    assert errors == []


@pytest.mark.parametrize("dtype", rest_slow([torch.float32, torch.float16]))
def test_rows_under_padding_are_those_without(dtype: torch.dtype) -> None:
    """A sentence beside a longer one: every statistic to the last digits of sums in another order."""
    padded, alone = Case((7, 70), dtype=dtype), Case((7,), dtype=dtype)
    found = []
    for case in (padded, alone):
        context, mask, kwargs = call(padded)
        queries = tokens_of(case.lengths, 0).to(DEVICE)
        if case is alone:
            context = replace(
                context, **{name: getattr(context, name)[:1, :, :7] for name in ("query", "key", "value")}
            )
            mask = None
        needs = replace(ALL, words=False, other_words=False, parts=False)
        _, rows = RowAttention().attend(context, mask, kwargs, causal=False)
        found.append(room_for(needs, queries, queries, case.heads))
        rows.fill(found[-1], row_facts(needs, queries, queries))
    for name, value in vars(found[1]).items():
        if value is not None and "norms" not in name and name != "read":
            torch.testing.assert_close(getattr(found[0], name)[:1, :, :7], value, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_kernels_compile_for_a_card_that_is_not_here() -> None:
    script = Path(__file__).with_name("compile_row_kernels.py")
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("ok") >= 20

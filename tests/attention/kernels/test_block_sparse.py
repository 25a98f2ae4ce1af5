"""Attention of blocks that a mask opens, against a dense mask; on the processor without a compiler, but the same."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from saved import build
from tiers import rest_slow
from torch import Tensor
from torch.nn.attention import flex_attention
from transformers import PreTrainedModel

from headlens.attention.attach_edit import attach_edit
from headlens.attention.kernels import block_sparse
from headlens.attention.kernels.block_sparse import BlockMap, block_sparse_attention, blocks_of
from headlens.attention_masks.attention_mask import AttentionMask, PatternMask
from headlens.attention_masks.attention_mask_edit import MaskEdit
from headlens.attention_masks.patterns import parse_pattern

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.fixture(scope="module", autouse=True)
def _not_traced() -> Iterator[None]:
    """Without a compiler flex_attention traces itself first, which takes most of a second every time."""
    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():  # where it is compiled, and has gradients
            patch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True, raising=False)
        yield


def dense(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor) -> Tensor:
    scores = (query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])).masked_fill(~allowed, -torch.inf)
    return scores.softmax(dim=-1) @ value


@settings(max_examples=settings().max_examples // 2)
@given(
    sizes=st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 13), st.integers(1, 13)),
    shared=st.tuples(st.booleans(), st.booleans()), size=st.sampled_from([1, 4, 8]),
    density=st.sampled_from([0.05, 0.5, 0.98, 1.0]), seed=st.integers(0, 9),
)  # fmt: skip
def test_blocks_by_loops_and_their_attention(
    sizes: tuple[int, int, int, int], shared: tuple[bool, bool], size: int, density: float, seed: int
) -> None:
    rows, heads, n, m = sizes
    generator = torch.Generator().manual_seed(seed)
    one = (1 if shared[0] else rows, 1 if shared[1] else heads)
    allowed = torch.rand(*one, n, m, generator=generator) < density
    allowed[..., 0] |= ~allowed.any(dim=-1)
    blocks = blocks_of(allowed, size)
    computed = total = 0
    for row in range(one[0]):
        for head in range(one[1]):
            for i in range(math.ceil(n / size)):
                part, full = set(), set()
                for j in range(math.ceil(m / size)):
                    own = allowed[row, head, i * size : (i + 1) * size, j * size : (j + 1) * size]
                    total += 1
                    computed += bool(own.any())
                    if own.any():
                        (full if own.numel() == size * size and own.all() else part).add(j)
                found = blocks.mask()
                for counts, order, expected in (
                    (found.kv_num_blocks, found.kv_indices, part),
                    (found.full_kv_num_blocks, found.full_kv_indices, full),
                ):
                    assert counts is not None
                    assert order is not None
                    assert set(order[row, head, i, : int(counts[row, head, i])].tolist()) == expected
    assert blocks.share == pytest.approx(computed / total)
    query, key, value = (torch.randn(rows, heads, length, 16, generator=generator) for length in (n, m, m))
    expected_output = dense(query, key, value, allowed)
    torch.testing.assert_close(block_sparse_attention(query, key, value, blocks), expected_output, rtol=1e-4, atol=1e-5)


def test_scaling() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 2, 12, 16, generator=generator) for _ in range(3))
    allowed = (torch.arange(12)[:, None] - torch.arange(12)).abs()[None, None] <= 2
    scaled = block_sparse_attention(query, key, value, blocks_of(allowed, 4), 0.5)
    torch.testing.assert_close(scaled, dense(query * 0.5 * 4, key, value, allowed), rtol=1e-4, atol=1e-5)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Texts of any length are computed in blocks of 4, on the processor, too; what was computed, as shares."""
    seen: list[float] = []

    def counted(query: Tensor, key: Tensor, value: Tensor, blocks: BlockMap, scaling: float | None = None) -> Tensor:
        seen.append(blocks.share)
        return block_sparse_attention(query, key, value, blocks, scaling)

    monkeypatch.setattr(block_sparse, "saves_time", lambda _: True)
    monkeypatch.setattr(block_sparse, "blocks_of", partial(blocks_of, size=4))
    monkeypatch.setattr(block_sparse, "block_sparse_attention", counted)
    return seen


def model_of(name: str = "BertModel", **more: Any) -> PreTrainedModel:
    return build(name, pad_token_id=1, max_position_embeddings=64, attn_implementation="sdpa", **more).eval()


IDS = torch.randint(2, 60, (3, 40), generator=torch.Generator().manual_seed(3))
PADDED = (torch.arange(40) < torch.tensor([[40], [31], [9]])).long()
WINDOW = PatternMask(parse_pattern("window:2"))
HEADS = AttentionMask(
    torch.stack([torch.eye(40).bool(), (torch.arange(40)[:, None] - torch.arange(40)).abs() <= 4])[None], ends=True
)


@pytest.mark.parametrize("source", rest_slow([WINDOW, HEADS], [WINDOW]), ids=["pattern", "heads"])
@pytest.mark.parametrize("name", ["BertModel", "AlbertModel", "RobertaModel"])
def test_models_under_masks(name: str, source: Any, calls: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(name, num_attention_heads=2)
    real = PADDED.bool()
    with torch.no_grad(), attach_edit(model, MaskEdit(source)):
        found = model(IDS, attention_mask=PADDED).last_hidden_state
        layers = model.config.num_hidden_layers
        assert len(calls) == layers
        assert max(calls) < 0.5
        monkeypatch.setattr(block_sparse, "saves_time", lambda _: False)
        expected = model(IDS, attention_mask=PADDED).last_hidden_state
    assert len(calls) == layers
    torch.testing.assert_close(found[real], expected[real], rtol=1e-4, atol=1e-5)


def test_masks_that_save_too_little_are_left_to_sdpa(calls: list[float]) -> None:
    model = model_of()
    for source in (PatternMask(parse_pattern("window:30")), PatternMask(parse_pattern("strided:stride=4"))):
        with torch.no_grad(), attach_edit(model, MaskEdit(source)):
            model(IDS, attention_mask=PADDED)
    assert not calls


@pytest.mark.parametrize("case", ["plain", "dropout", "autocast", "eager"])
def test_calls_that_are_left_alone(case: str, calls: list[float]) -> None:
    model = model_of(attention_probs_dropout_prob=0.1)
    if case == "eager":
        model.set_attn_implementation("eager")
    model.train(case == "dropout")
    precision = torch.autocast("cpu", torch.bfloat16) if case == "autocast" else nullcontext()
    held = nullcontext() if case == "plain" else attach_edit(model, MaskEdit(WINDOW))
    with held, precision, torch.no_grad():
        model(IDS, attention_mask=PADDED)
    assert not calls


def test_a_kernel_that_fails_is_said_once_and_sdpa_computes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, calls: list[float]
) -> None:
    def broken(*_: object, **__: object) -> Tensor:
        raise RuntimeError("no compiler")

    model = model_of()
    with torch.no_grad(), attach_edit(model, MaskEdit(WINDOW)):
        expected = model(IDS, attention_mask=PADDED).last_hidden_state
        monkeypatch.setattr(block_sparse, "block_sparse_attention", broken)
        with caplog.at_level(logging.WARNING):
            found = [model(IDS, attention_mask=PADDED).last_hidden_state for _ in range(2)]
    assert caplog.text.count("no compiler") == 1
    for own in found:
        torch.testing.assert_close(own[PADDED.bool()], expected[PADDED.bool()], rtol=1e-4, atol=1e-5)

    def full(*_: object, **__: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(block_sparse, "block_sparse_attention", full)
    with torch.no_grad(), attach_edit(model, MaskEdit(WINDOW)), pytest.raises(torch.OutOfMemoryError):
        model(IDS, attention_mask=PADDED)


@pytest.mark.gpu
@pytest.mark.parametrize("length", [512, 700, 1024])
def test_on_a_gpu(length: int) -> None:
    model = build("BertModel", pad_token_id=1, max_position_embeddings=1024, attn_implementation="sdpa").eval()
    model = model.cuda()
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, 60, (3, length), generator=generator).cuda()
    real = (torch.arange(length) < torch.tensor([[length], [length - 150], [length - 1]])).long().cuda()
    found = []
    for shortest in (block_sparse.SHORTEST, 10**6):
        with (
            pytest.MonkeyPatch.context() as patch,
            attach_edit(model, MaskEdit(PatternMask(parse_pattern("longformer")))),
        ):
            patch.setattr(block_sparse, "SHORTEST", shortest)
            model.zero_grad()
            states = model(ids, attention_mask=real).last_hidden_state[real.bool()]
            states.square().sum().backward()
            found.append([states, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    torch.testing.assert_close(*found, rtol=2e-2, atol=2e-2)

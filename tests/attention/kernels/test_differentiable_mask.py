"""Attention with a mask that is learned, against the same written out."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
import zoo
from tiers import rest_slow
from torch import Tensor
from watching import AddToMask, Watch, run

from headlens.attention.kernels import differentiable_mask as learned_mask
from headlens.attention.kernels.differentiable_mask import MaskedAttention
from headlens.attention.session import AttentionSession

SHAPES = [(1, 3, 5, 5), (2, 3, 5, 5), (2, 1, 5, 5), (1, 1, 5, 5), (1, 3, 5, 7), (2, 3, 5, 7)]


def inputs(shape: tuple[int, ...], dtype: torch.dtype = torch.float64, batch: int = 2) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    sizes = [(batch, 3, shape[2], 4), (batch, 3, shape[3], 4), (batch, 3, shape[3], 4), shape]
    return tuple(torch.randn(size, dtype=dtype).requires_grad_() for size in sizes)


def written_out(query: Tensor, key: Tensor, value: Tensor, added: Tensor, factor: float) -> Tensor:
    return torch.softmax(query @ key.mT * factor + added, dim=-1) @ value


# Small, since every number is changed; a block of 16 has one head of a sentence.
@pytest.mark.parametrize(
    "shape",
    rest_slow([(1, 3, 3, 3), (2, 3, 3, 3), (2, 1, 3, 3), (1, 1, 3, 3), (1, 3, 3, 4), (2, 3, 3, 4)], [(1, 3, 3, 4)]),
)
@pytest.mark.parametrize("block", rest_slow([1, 16, 2**18], [16]))
def test_gradients_by_finite_differences(shape: tuple[int, ...], block: int) -> None:
    with mock.patch.object(learned_mask, "BLOCK", block):
        assert torch.autograd.gradcheck(lambda *a: MaskedAttention.apply(*a, 0.6), inputs(shape))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("block", [1, 36, 75, 80, 2**18])
def test_equals_attention_written_out(shape: tuple[int, ...], block: int) -> None:
    """In single precision, with some positions masked by c = 1e4, whatever the blocks."""
    parts = inputs(shape, torch.float32, batch=4)
    with torch.no_grad():
        parts[3].sub_(1e4 * (torch.rand(parts[3].shape) < 0.4))
    if len(parts[3]) == 2:
        parts = (*parts[:3], parts[3].repeat(2, 1, 1, 1).detach().requires_grad_())
    outer = torch.randn(4, 3, shape[2], 4)
    with mock.patch.object(learned_mask, "BLOCK", block):
        found = MaskedAttention.apply(*parts, 0.5)
        ours = torch.autograd.grad(found, parts, outer)
    expected = written_out(*parts, 0.5)
    theirs = torch.autograd.grad(expected, parts, outer)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_rows_that_are_masked_throughout_attend_as_without_the_mask() -> None:
    """c takes the same from all scores of such a row: a softmax does not see it."""
    query, key, value, added = inputs((1, 3, 5, 5), torch.float32)
    lowered = added.detach().clone().requires_grad_()
    with torch.no_grad():
        lowered[:, :, 2] -= 1e4
    found, expected = (MaskedAttention.apply(query, key, value, m, 0.5) for m in (lowered, added))
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("name", ["bert", "albert", "marian", "distilbert", "bart", "modernbert"])
def test_models_give_the_same_as_with_eager_attention(name: str) -> None:
    """Outputs and the gradients of the mask, in padded batches; and the fast way was taken."""
    entry = zoo.ZOO[name]
    torch.manual_seed(1)
    amount = torch.randn(1, 1, 7, 7)
    found = {}
    for kernel in ("eager", "sdpa"):
        model, given = entry.build(kernel), zoo.padded(entry)
        own = amount.clone().requires_grad_()
        with (
            AttentionSession(model, edits=[AddToMask(own, "encoder.1")]),
            mock.patch.object(MaskedAttention, "apply", wraps=MaskedAttention.apply) as fast,
        ):
            outputs: Any = model(**given)[0]
            counted = outputs[given["attention_mask"].bool()] if entry.kind == "encoder" else outputs
            (gradient,) = torch.autograd.grad(counted.tanh().sum(), own)
        assert fast.call_count == (1 if kernel == "sdpa" else 0)
        found[kernel] = counted.detach(), gradient
    torch.testing.assert_close(found["sdpa"], found["eager"], rtol=1e-4, atol=1e-4)


def test_left_to_the_kernel_of_the_model() -> None:
    """Without gradients, with dropout, with grouped keys or position biases nothing is taken over."""
    with mock.patch.object(MaskedAttention, "apply", side_effect=AssertionError):
        model, given = zoo.ZOO["bert"].build("sdpa"), zoo.padded(zoo.ZOO["bert"])
        with AttentionSession(model, edits=[AddToMask(torch.zeros(1, 1, 7, 7))]):
            model(**given)
        learned = AddToMask(torch.zeros(1, 1, 7, 7, requires_grad=True))
        with AttentionSession(model, edits=[learned]):
            run(model, given)
        with AttentionSession(model.train(), edits=[learned]):
            model(**given)
        for name in ("llama", "t5"):
            if name in zoo.ZOO:
                entry = zoo.ZOO[name]
                own = AddToMask(torch.zeros(1, 1, 1, 1, requires_grad=True))
                other = entry.build("sdpa")
                with AttentionSession(other, edits=[own]):
                    other(**zoo.padded(entry))


def test_observers_see_the_weights_of_a_learned_mask() -> None:
    model, given = zoo.ZOO["bert"].build("sdpa"), zoo.padded(zoo.ZOO["bert"])
    watch = Watch()
    added = torch.zeros(1, 1, 7, 7)
    added[..., 3] = -1e4
    with AttentionSession(model, observers=[watch], edits=[AddToMask(added.requires_grad_())]):
        model(**given)
    assert all(float(c.weights[..., 3].detach().max()) < 1e-6 for c in watch.calls)


def test_numbers_below_the_lowest_are_raised() -> None:
    lowest = torch.finfo(torch.float32).min
    added = torch.tensor([float("-inf"), lowest, 0.5], requires_grad=True)
    found = learned_mask.floored(added, lowest)
    assert found.tolist() == [lowest, lowest, 0.5]
    (gradient,) = torch.autograd.grad(found.sum(), added)
    assert gradient.tolist() == [1.0, 1.0, 1.0]

"""Tensors that are copied when they are read, against copies made at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from headlens.replay.nested_tensors import LazyTensor, now

VIEWS: list[Callable[[Tensor], Tensor]] = [
    lambda t: t.reshape(t.shape[0], -1, 2),
    lambda t: t.transpose(1, 2),
    lambda t: t.permute(0, 2, 1),
    lambda t: t[:, :1],
    lambda t: t[:2],
    lambda t: t.reshape(t.shape[0], 1, -1),
]
READS: list[Callable[[Tensor], Tensor]] = [
    lambda t: t + 1,
    lambda t: torch.cat([t, t]),
    lambda t: t[0],
    lambda t: t.double().sum(dim=0),
    lambda t: t @ t.transpose(1, 2),
    lambda t: nn.functional.linear(t, torch.ones(3, t.shape[-1])),
]


def copies(tensor: Tensor, times: int) -> Tensor:
    return torch.cat([tensor] * times)


@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.lists(st.sampled_from(VIEWS), max_size=3),
    st.sampled_from(READS),
    st.sampled_from([torch.no_grad, torch.inference_mode]),
)
def test_what_is_read_is_what_copies_give(
    rows: int,
    times: int,
    views: list[Callable[[Tensor], Tensor]],
    read: Callable[[Tensor], Tensor],
    mode: Callable[[], AbstractContextManager[None]],
) -> None:
    tensor = torch.arange(float(rows * 32)).view(rows, 4, 8)
    with mode():
        later, copied = LazyTensor.repeat_of(tensor, times), copies(tensor, times)
        for view in views:
            later, copied = view(later), view(copied)
            assert later.shape == copied.shape
        found = read(later)
        assert not isinstance(found, LazyTensor)
        assert torch.equal(found, read(copied))


def test_views_copy_nothing_and_share_one_copy() -> None:
    made: list[Tensor] = []

    def make() -> Tensor:
        made.append(torch.ones(6, 4, 8))
        return made[-1]

    later = LazyTensor(torch.empty(6, 4, 8, device="meta"), make, torch.device("cpu"))
    heads = later.view(6, 4, 2, 4).transpose(1, 2)
    assert heads.shape == (6, 2, 4, 4)
    assert heads.device.type == "cpu"
    assert heads.dtype is torch.float32
    assert not made
    heads += 1
    assert len(made) == 1
    assert torch.equal(later + 0, torch.full((6, 4, 8), 2.0))
    assert now(later) is made[0]
    assert torch.equal(later[0], made[0][0])


def test_anything_else_stands_for_itself() -> None:
    tensor = torch.ones(2)
    assert now(tensor) is tensor
    assert now("text") == "text"

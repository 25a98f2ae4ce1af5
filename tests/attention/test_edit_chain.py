from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import zoo
from hypothesis import given
from hypothesis import strategies as st
from tiers import rest_slow
from torch import Tensor
from transformers import PreTrainedModel
from watching import Watch, run

from headlens.attention.edit_chain import edited_mask
from headlens.attention.edits_and_observers import CallContext, Edit
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site
from headlens.errors import OptionError

KERNELS = ["eager", "fast", "sdpa"]


class GivesMask(Edit):
    edits_mask = True

    def __init__(self, given: Any) -> None:
        self.given = given

    def mask(self, context: CallContext, mask: Tensor | None) -> Any:
        return self.given


class GivesOutput(Edit):
    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        self.change = change

    def output(self, context: CallContext, output: Tensor) -> Any:
        return self.change(output)


@cache
def bert(kernel: str) -> PreTrainedModel:
    """Which no test changes."""
    return zoo.ZOO["bert"].build(kernel)


def run_with(edit: Edit, kernel: Any, *, watched: bool = False) -> Tensor:
    """A batch of 3 sentences of up to 7 tokens through a BERT of 4 heads of 8 neurons."""
    entry = zoo.ZOO["bert"]
    model = bert("sdpa" if kernel == "sdpa" else "eager")
    observers = [Watch(needs_weights=kernel != "sdpa")] if watched else []
    with AttentionSession(model, edits=[edit], kernel=kernel, observers=observers):
        return run(model, zoo.padded(entry))


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (torch.zeros(1, 4, 7, 6), r"a float32 tensor of the shape \(1, 4, 7, 6\)"),
        (torch.zeros(1, 3, 7, 7), r"a float32 tensor of the shape \(1, 3, 7, 7\)"),
        (torch.zeros(2, 1, 1, 7), r"a float32 tensor of the shape \(2, 1, 1, 7\)"),
        (torch.zeros(1, 1, 1, 7, 7), r"a float32 tensor of the shape \(1, 1, 1, 7, 7\)"),
        (torch.ones(8, 8, dtype=torch.bool), r"a bool tensor of the shape \(8, 8\)"),
        (torch.ones(7, 7, dtype=torch.int64), r"a int64 tensor of the shape \(7, 7\)"),
        (torch.zeros(7, 7, dtype=torch.complex64), r"a complex64 tensor of the shape \(7, 7\)"),
        ([[0.0]], "list instead of a tensor"),
    ],
)
def test_a_mask_that_cannot_be_is_refused_with_edit_site_and_shapes(
    given: Any, shown: str, kernel: str, watched: bool
) -> None:
    message = rf"encoder\.0: the edit GivesMask gave {shown} for a mask; expected .*\(3, 4, 7, 7\) \(batch, heads"
    with pytest.raises(OptionError, match=message) as caught:
        run_with(GivesMask(given), kernel, watched=watched)
    assert "True where a query may look" in caught.value.advice


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda o: o.transpose(1, 2), r"a float32 tensor of the shape \(3, 4, 7, 8\)"),
        (lambda o: o.flatten(2), r"a float32 tensor of the shape \(3, 7, 32\)"),
        (lambda o: o[:1], r"a float32 tensor of the shape \(1, 7, 4, 8\)"),
        (lambda o: o.long(), r"a int64 tensor of the shape \(3, 7, 4, 8\)"),
        (lambda o: None, "NoneType instead of a tensor"),
    ],
)
def test_head_outputs_of_another_shape_are_refused(
    change: Callable[[Tensor], Any], shown: str, kernel: str, watched: bool
) -> None:
    message = rf"encoder\.0: the edit GivesOutput gave {shown} for head outputs; expected .*\(3, 7, 4, 8\) \(batch"
    with pytest.raises(OptionError, match=message) as caught:
        run_with(GivesOutput(change), kernel, watched=watched)
    assert "in the shape they came in" in caught.value.advice


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_boolean_mask_tells_where_a_query_may_look(kernel: str) -> None:
    allowed = torch.ones(7, 7, dtype=torch.bool).tril()
    lowest = torch.finfo(torch.float32).min
    expected = run_with(GivesMask(torch.zeros(7, 7).masked_fill(~allowed, lowest)), kernel)
    assert torch.allclose(run_with(GivesMask(allowed), kernel), expected, atol=1e-6)
    assert not torch.allclose(run_with(GivesMask(None), kernel), expected, atol=1e-3)


@given(st.lists(st.integers(1, 3), max_size=5), st.tuples(*[st.integers(1, 3)] * 4))
def test_a_mask_is_taken_if_it_broadcasts_to_the_scores(shape: list[int], scores: tuple[int, ...]) -> None:
    batch, heads, queries, keys = scores
    query, key = torch.zeros(batch, heads, queries, 2), torch.zeros(batch, heads, keys, 2)
    context = CallContext(Site("encoder", 0, heads, "module"), query, key, key, None, None, causal=False)
    mask = torch.zeros(shape)
    try:
        fits = mask.expand(scores).shape == scores
    except RuntimeError:
        fits = False
    if fits:
        assert edited_mask([GivesMask(mask)], context, None) is mask
        return
    with pytest.raises(OptionError):
        edited_mask([GivesMask(mask)], context, None)


def test_an_edit_after_a_wrong_one_is_not_asked() -> None:
    later = GivesMask(None)
    later.mask = lambda context, mask: pytest.fail("was asked")  # type: ignore[method-assign]
    query = torch.zeros(1, 1, 2, 2)
    context = CallContext(Site("encoder", 0, 1, "module"), query, query, query, None, None, causal=False)
    with pytest.raises(OptionError, match="GivesMask"):
        edited_mask([GivesMask(torch.zeros(5)), later], context, None)


@pytest.mark.parametrize("padding", rest_slow([True, False]))
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "opt", "marian", "t5"])
def test_an_edit_that_gives_no_mask_leaves_none_whatever_the_kernel(name: str, padding: bool) -> None:
    entry = zoo.ZOO[name]
    inputs = zoo.padded(entry) if padding else zoo.unpadded(entry)[0]
    outputs = {}
    for kernel in KERNELS:
        model = entry.build("sdpa" if kernel == "sdpa" else "eager")
        with AttentionSession(model, edits=[GivesMask(None)], kernel=kernel):
            outputs[kernel] = run(model, inputs)
    # Without a mask the first token of a decoder sees the others.
    assert entry.kind == "encoder" or not torch.allclose(outputs["eager"], run(entry.build(), inputs), atol=1e-2)
    for kernel in ("fast", "sdpa"):
        assert torch.allclose(outputs[kernel], outputs["eager"], atol=1e-4)

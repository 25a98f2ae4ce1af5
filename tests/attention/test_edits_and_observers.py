import pytest
import torch
import zoo

from headlens.attention.edits_and_observers import (
    BatchTokens,
    CallContext,
    Edit,
    Observer,
    copied_together,
    packed_bytes,
    places_of,
)
from headlens.attention.sites import Site

SITES = {s: Site(s, 0, 2, "module") for s in ("encoder", "decoder", "cross")}


def test_queries_and_keys_are_those_of_the_stack() -> None:
    source, target = zoo.tokens((5, 3)), zoo.tokens((4, 4))
    both = BatchTokens(encoder=source, decoder=target)
    assert both.of(SITES["encoder"]) == (source, source)
    assert both.of(SITES["decoder"]) == (target, target)
    assert both.of(SITES["cross"]) == (target, source)
    assert BatchTokens(decoder=target).of(SITES["cross"]) == (target, None)
    assert BatchTokens().of(SITES["encoder"]) == (None, None)


def test_tokens_move_as_a_whole_also_when_something_was_computed_from_them() -> None:
    tokens = zoo.tokens((5, 3))
    assert tokens.separator.tolist()[1] == [False, False, True, False, False]
    moved = tokens.to("meta")
    assert {t.device.type for t in moved.tensors().values()} == {"meta"}
    assert moved.host is tokens is moved.to("cpu")
    assert moved.to("meta") is moved
    assert moved.rows(slice(0, 1)).host is tokens.rows(slice(0, 1))
    again = moved.annotated(rarity=torch.ones(2, 3))
    assert again.rarity is not None
    assert again.rarity.device.type == "meta"
    assert again.host is not None
    assert torch.equal(again.host.rarity, torch.ones(2, 3))
    assert moved.shape == tokens.shape == (2, 5)


def test_tensors_that_share_memory_for_a_copy_keep_types_shapes_and_values() -> None:
    tensors = [
        torch.tensor([True, False, True]),
        torch.arange(6).view(2, 3).T,
        torch.zeros(0, 4, dtype=torch.int64),
        torch.tensor(1.5, dtype=torch.float64),
        torch.randn(2, 5).bfloat16(),
    ]
    copies = places_of(tensors, packed_bytes(tensors, pinned=False).clone())
    for copy, tensor in zip(copies, tensors, strict=True):
        torch.testing.assert_close(copy, tensor, rtol=0, atol=0)


def test_what_is_copied_together_stays_one_object_where_it_was_one() -> None:
    tokens = zoo.tokens((5, 3))
    first, (second, ids), number = copied_together((tokens, (tokens, tokens.word), 3), "meta")
    assert first is second
    assert first.host is tokens
    assert ids is first.word
    assert number == 3
    assert copied_together(first, "meta") is first


def test_an_edit_and_an_observer_do_nothing_until_told() -> None:
    tensor = torch.ones(1, 2, 3, 4)
    context = CallContext(SITES["encoder"], tensor, tensor, tensor, None, None, causal=False)
    edit = Edit()
    assert edit.mask(context, tensor) is tensor
    assert edit.mask(context, None) is None
    assert edit.output(context, tensor) is tensor
    edit.check([])
    with pytest.raises(TypeError, match="observe"):
        Observer()

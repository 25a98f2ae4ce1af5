"""Models under a mask against their own eager attention with a naive 4-D mask, and against attention with loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import zoo
from naive_masking import attention, float_mask
from tiers import rest_slow
from torch import Tensor
from watching import Watch

from headlens.attention.edits_and_observers import AttentionCall, BatchTokens, Tokens
from headlens.attention.session import AttentionSession
from headlens.attention_masks.attention_mask import AttentionMask, Controlled, PatternMask
from headlens.attention_masks.attention_mask_edit import MaskEdit
from headlens.attention_masks.patterns import Full, Global, Pattern, Star, Window
from headlens.errors import OptionError

NEAR = Window(1) | Global(1)


def near(i: int, j: int, n: int) -> bool:
    return abs(i - j) <= 1 or i == 0 or j == 0


def edit(pattern: Pattern = NEAR, **options: Any) -> MaskEdit:
    return MaskEdit(PatternMask(pattern), **options)


def run(model: Any, inputs: dict[str, Any], tokens: BatchTokens, *edits: MaskEdit, kernel: Any = "auto") -> Tensor:
    with AttentionSession(model, edits=edits, kernel=kernel) as session, session.batch(tokens), torch.no_grad():
        return model(**inputs)[0]


def watched(model: Any, inputs: dict[str, Any], tokens: BatchTokens, own: MaskEdit) -> list[AttentionCall]:
    watch = Watch()
    session = AttentionSession(model, edits=[own], observers=[watch])
    with session, session.batch(tokens), torch.no_grad():
        model(**inputs)
    return watch.calls


def compared(ours: Tensor, theirs: Tensor, lengths: tuple[int, ...]) -> float:
    """The largest difference on tokens."""
    return max(float((a[:n] - b[:n]).abs().max()) for a, b, n in zip(ours, theirs, lengths, strict=True))


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize(
    "name",
    rest_slow(
        ["bert", "albert", "albert-groups", "roberta", "bert-mlm", "marian-encoder", "gpt2"],
        ["bert", "albert", "marian-encoder", "gpt2"],
    ),
)
def test_outputs_are_those_of_eager_attention_with_the_mask_as_floats(name: str, kernel: str) -> None:
    entry = zoo.ZOO[name.removesuffix("-encoder")]
    model, plain = (entry.build(k) for k in (kernel, "eager"))
    inputs: dict[str, Any] = {"input_ids": zoo.ids(zoo.LENGTHS, 1), "attention_mask": zoo.real(zoo.LENGTHS)}
    if name.endswith("-encoder"):
        model, plain = model.get_encoder(), plain.get_encoder()
    causal = entry.kind == "decoder"
    stack = "decoder" if causal else "encoder"
    own = Tokens.only_real(inputs["attention_mask"])
    tokens = BatchTokens(decoder=own) if causal else BatchTokens(own)
    ours = run(model, inputs, tokens, edit(stack=stack))
    with torch.no_grad():
        theirs = plain(**inputs | {"attention_mask": float_mask(zoo.LENGTHS, near, causal=causal)})[0]
        unmasked = plain(**inputs)[0]
    assert compared(ours, theirs, zoo.LENGTHS) < 2e-5
    assert compared(ours, unmasked, zoo.LENGTHS) > 1e-2


@pytest.mark.parametrize("kernel", ["eager", "sdpa", "fast"])
def test_head_outputs_are_those_of_attention_with_loops(kernel: Any) -> None:
    entry = zoo.ZOO["bert"]
    model, inputs = entry.build("sdpa" if kernel == "sdpa" else "eager"), zoo.padded(entry)
    watch = Watch(needs_weights=False)
    with (
        AttentionSession(model, edits=[edit()], observers=[watch], kernel=kernel) as session,
        session.batch(zoo.batch_tokens(entry)),
        torch.no_grad(),
    ):
        model(**inputs)
    mask = float_mask(zoo.LENGTHS, near)
    for call in watch.calls:
        expected = attention(call.query, call.key, call.value, mask)
        assert np.abs(call.output.numpy() - expected).max() < 1e-5


@pytest.mark.parametrize("name", ["bert", "albert", "marian"])
def test_a_sentence_comes_out_alike_alone_and_in_a_batch(name: str) -> None:
    entry = zoo.ZOO[name]
    model = entry.build()
    whole = run(model, zoo.padded(entry), zoo.batch_tokens(entry), edit(Window(2)))
    lengths = zoo.output_lengths(entry)
    for row, inputs in enumerate(zoo.unpadded(entry)):
        sides = [zoo.tokens([inputs[k].shape[1]]) for k in ("input_ids", "decoder_input_ids") if k in inputs]
        alone = run(model, inputs, BatchTokens(*sides), edit(Window(2)))
        assert torch.allclose(whole[row, : lengths[row]], alone[0], atol=1e-5)


def test_padding_on_the_left_is_no_part_of_a_sentence() -> None:
    model = zoo.ZOO["llama"].build()
    ids = torch.randint(5, zoo.VOCABULARY, (1, 5), generator=torch.Generator().manual_seed(0))
    left = torch.cat([torch.full((1, 3), zoo.PAD), ids], dim=1)
    real = (torch.arange(8) >= 3).long()[None]
    source = MaskEdit(PatternMask(Star()), stack="decoder")
    alone = run(model, {"input_ids": ids}, BatchTokens(decoder=Tokens.only_real(torch.ones(1, 5))), source)
    inputs = {"input_ids": left, "attention_mask": real, "position_ids": (real.cumsum(1) - 1).clamp(min=0)}
    padded = run(model, inputs, BatchTokens(decoder=Tokens.only_real(real)), source)
    assert torch.allclose(padded[:, 3:], alone, atol=1e-5)


def test_masks_by_layer_and_head_hold_where_they_are_for() -> None:
    entry = zoo.ZOO["bert"]
    model, inputs = entry.build(), zoo.padded(entry)
    allowed = torch.rand(3, 4, 9, 9, generator=torch.Generator().manual_seed(0)) < 0.5
    mask = AttentionMask(allowed, ends=True)
    for call in watched(model, inputs, zoo.batch_tokens(entry), MaskEdit(mask)):
        assert call.weights is not None
        for row, n in enumerate(zoo.LENGTHS):
            expected = allowed[call.site.layer, :, :n, :n].clone()
            for end in (0, n - 1):
                expected[:, end] = True
                expected[:, :, end] = True
            assert torch.equal(call.weights[row, :, :n, :n] > 0, expected)
            assert not call.weights[row, :, :n, n:].any()


@pytest.mark.parametrize("name", ["bert", "albert"])
def test_layers_outside_of_the_range_are_left_alone(name: str) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build(), zoo.padded(entry)
    for call in watched(model, inputs, zoo.batch_tokens(entry), edit(Window(0), layers=(1,))):
        assert call.weights is not None
        alone = torch.eye(4, dtype=torch.bool)
        assert (call.site.layer == 1) is torch.equal(call.weights[1, 0, :4, :4] > 0, alone)


def test_decoders_stay_causal_and_cross_attention_as_it_is() -> None:
    entry = zoo.ZOO["marian"]
    model, inputs = entry.build(), zoo.padded(entry)
    for call in watched(model, inputs, zoo.batch_tokens(entry), edit(Window(1), stack="decoder")):
        assert call.weights is not None
        seen = call.weights[0, 0] > 0
        if call.site.stack == "decoder":
            assert torch.equal(seen, torch.ones(6, 6, dtype=torch.bool).tril() & (torch.ones(6, 6).triu(-1) > 0))
        else:
            assert seen.all()


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_queries_without_a_key_look_where_they_would_and_are_told(kernel: str) -> None:
    model = zoo.ZOO["bert"].build(kernel)
    inputs = {"input_ids": zoo.ids((3, 1), 0), "attention_mask": zoo.real((3, 1))}
    own = MaskEdit(Controlled(PatternMask(Full())))
    found = run(model, inputs, BatchTokens(Tokens.only_real(inputs["attention_mask"])), own)
    assert torch.isfinite(found).all()
    assert own.left_alone
    with torch.no_grad():
        alone = model(input_ids=inputs["input_ids"][1:, :1])[0]
    assert torch.allclose(found[1:, :1], alone, atol=1e-5)
    other = MaskEdit(Controlled(PatternMask(Full())))
    run(model, {"input_ids": zoo.ids((3, 2), 0)}, BatchTokens(Tokens.only_real(zoo.real((3, 2)))), other)
    assert not other.left_alone


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_gradients_pass_and_masked_positions_get_none(kernel: str) -> None:
    entry = zoo.ZOO["bert"]
    model = entry.build(kernel, num_hidden_layers=1)
    inputs = {"inputs_embeds": torch.randn(1, 6, zoo.HIDDEN, generator=torch.Generator().manual_seed(0))}
    inputs["inputs_embeds"].requires_grad_(True)
    tokens = BatchTokens(Tokens.only_real(torch.ones(1, 6)))
    with AttentionSession(model, edits=[edit(Window(1))]) as session, session.batch(tokens):
        model(**inputs)[0][0, 2].sum().backward()
    gradient = inputs["inputs_embeds"].grad
    assert gradient is not None
    reached = gradient[0].abs().sum(dim=1) > 1e-6
    assert reached.tolist() == [False, True, True, True, False, False]


def test_half_precision_gives_no_nan() -> None:
    entry = zoo.ZOO["bert"]
    for dtype in (torch.float16, torch.bfloat16):
        model = entry.build().to(dtype)
        found = run(model, zoo.padded(entry), zoo.batch_tokens(entry), MaskEdit(Controlled(PatternMask(Window(1)))))
        assert torch.isfinite(found).all()


def test_undeclared_tokens_are_told_and_never_guessed() -> None:
    entry = zoo.ZOO["bert"]
    model = entry.build()
    with pytest.raises(OptionError, match=r"encoder\.0: it was not declared which tokens are padding"):
        run(model, zoo.padded(entry), BatchTokens(), edit())


@pytest.mark.parametrize(
    ("name", "made", "message"),
    [
        (
            "bert",
            lambda: MaskEdit(AttentionMask(torch.ones(2, 1, 9, 9) > 0)),
            "wrong shape for this model: 2 layers of 1",
        ),
        ("bert", lambda: MaskEdit(AttentionMask(torch.ones(1, 12, 9, 9) > 0)), "The encoder has 3 layers of 4 heads"),
        ("bert", lambda: MaskEdit(AttentionMask(torch.ones(1, 2, 9, 9) > 0)), "1 layer of 2 heads"),
        ("bert", lambda: edit(stack="decoder"), "is for the decoder, which this model does not have"),
        ("gpt2", edit, "is for the encoder, which this model does not have.\nIt has: decoder"),
        ("bert", lambda: edit(layers=(2, 3)), "there is no layer 3 in the encoder.\nIts layers are 0 to 2"),
    ],
)
def test_masks_that_do_not_fit_are_refused_before_anything_runs(name: str, made: Any, message: str) -> None:
    with pytest.raises(OptionError) as error:
        AttentionSession(zoo.ZOO[name].build(), edits=[made()])
    assert message in str(error.value)


def test_a_sentence_longer_than_the_mask_is_told() -> None:
    entry = zoo.ZOO["bert"]
    with pytest.raises(OptionError, match="is for 5 tokens, but a sentence has 7"):
        run(
            entry.build(),
            zoo.padded(entry),
            zoo.batch_tokens(entry),
            MaskEdit(AttentionMask(torch.ones(1, 1, 5, 5) > 0)),
        )

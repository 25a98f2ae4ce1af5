"""Edits that stay with a model, in everything that is done with it."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import pytest
import torch
import zoo
from tiers import rest_slow, rest_slow_rows
from torch import Tensor
from watching import Watch, run

from headlens.attention.attach_edit import attach_edit, keep_as
from headlens.attention.edits_and_observers import BatchTokens, CallContext, Edit
from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites
from headlens.attention_masks.attention_mask import AttentionMask, Controlled, PatternMask
from headlens.attention_masks.attention_mask_edit import MaskEdit
from headlens.attention_masks.patterns import Global, Window
from headlens.errors import OptionError, SelfCheckError
from headlens.heads import Head
from headlens.interventions.compacting import without_heads
from headlens.interventions.gates import HeadGates
from headlens.replay.head_ablation import Replay

NAMES = ["bert", "bert-classifier", "albert", "albert-groups", "marian", "bart", "gpt2", "modernbert", "t5"]
KERNELS = ["eager", "sdpa"]
EVERY = rest_slow_rows(
    [(name, kernel) for name in NAMES if name in zoo.ZOO for kernel in KERNELS],
    [("bert-classifier", "sdpa"), ("albert", "eager")],
)


def stack_of(name: str) -> Any:
    return "decoder" if zoo.ZOO[name].kind == "decoder" else "encoder"


def masked(name: str) -> MaskEdit:
    return MaskEdit(Controlled(PatternMask(Window(1) | Global(1))), stack=stack_of(name))


def expected(model: Any, name: str, *more: Edit) -> Tensor:
    """As a session gives it that is told the tokens."""
    entry = zoo.ZOO[name]
    with AttentionSession(model, edits=[masked(name), *more]) as session, session.batch(zoo.batch_tokens(entry)):
        return run(model, zoo.padded(entry))


@pytest.mark.parametrize(("name", "kernel"), EVERY)
def test_plain_passes_sessions_and_replays_all_have_it(name: str, kernel: str) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build(kernel), zoo.padded(entry)
    plain, wanted = run(model, inputs), expected(model, name)
    assert not torch.allclose(plain, wanted, atol=1e-3)
    with attach_edit(model, masked(name)):
        assert torch.equal(run(model, inputs), wanted)
        with AttentionSession(model):
            assert torch.equal(run(model, inputs), wanted)
        with AttentionSession(model, observers=[Watch()], kernel="fast"):
            assert torch.allclose(run(model, inputs), wanted, atol=1e-4)
        with Replay(model) as replay:
            assert torch.allclose(replay.run(inputs).outputs[0], wanted, atol=1e-5)
        assert torch.equal(run(model, inputs), wanted)
    assert torch.equal(run(model, inputs), plain)


@pytest.mark.parametrize(("name", "kernel"), EVERY)
def test_a_replay_without_a_head_is_a_pass_with_the_head_gated(name: str, kernel: str) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build(kernel), zoo.padded(entry)
    with attach_edit(model, masked(name)), Replay(model) as replay:
        found = {v.head: v.outputs[0].clone() for v in replay.run(inputs).variants()}
    for head, ours in found.items():
        assert torch.allclose(ours, expected(model, name, HeadGates({head: 0.0})), atol=1e-4), head
    heads = [h for s in find_sites(model) for h in s.heads]
    assert list(found) == heads


@pytest.mark.parametrize(
    ("name", "mode"),
    rest_slow_rows(product(["bert-classifier", "albert", "marian"], ["uniform", "keep-only"]), [("albert", "uniform")]),
)
def test_other_ways_to_take_heads_out_go_on_under_the_mask(name: str, mode: Any) -> None:
    """Even attention is over what the mask leaves: hand-made from the values that each query may look at."""
    entry = zoo.ZOO[name]
    model, inputs = entry.build(), zoo.padded(entry)
    with attach_edit(model, masked(name)), Replay(model, mode) as replay:
        found = {v.head: v.outputs[0].clone() for v in replay.run(inputs).variants()}
    for head, ours in list(found.items())[::3]:
        others = [h for s in find_sites(model) for h in s.heads if h[:2] == head[:2] and h != head]
        instead = HeadGates(dict.fromkeys(others, 0.0)) if mode == "keep-only" else Evenly(head)
        assert torch.allclose(ours, expected(model, name, instead), atol=1e-4), head


class Evenly(Edit):
    """Lets one head look evenly at what its mask leaves, position by position."""

    edits_mask = True

    def __init__(self, head: Head) -> None:
        self.head, self.seen = head, None

    def mask(self, context: CallContext, mask: Tensor | None) -> Tensor | None:
        self.seen: Any = mask
        return mask

    def output(self, context: CallContext, output: Tensor) -> Tensor:
        if (context.site.stack, context.site.layer) != self.head[:2]:
            return output
        output = output.clone()
        for row in range(output.shape[0]):
            for query in range(output.shape[1]):
                values = context.value[row, self.head.head]
                if self.seen is not None:
                    mask = self.seen.expand(output.shape[0], -1, output.shape[1], -1)[row, 0, query]
                    values = values[mask > -1e30] if (mask > -1e30).any() else values
                output[row, query, self.head.head] = values.mean(dim=0)
        return output


@pytest.mark.parametrize("name", rest_slow(["bert", "albert", "marian"], 2))
def test_pruned_copies_keep_it(name: str) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build(), zoo.padded(entry)
    gone = [s.heads[1] for s in find_sites(model)]
    gates = HeadGates(dict.fromkeys(gone, 0.0))
    wanted = expected(model, name, gates)
    with attach_edit(model, masked(name)):
        small = without_heads(model, gone)
        assert torch.allclose(run(small, inputs), wanted, atol=1e-4)
        with Replay(small) as replay:
            assert torch.allclose(replay.run(inputs).outputs[0], wanted, atol=1e-4)
        assert not torch.allclose(run(model, inputs), wanted, atol=1e-3)
    assert torch.allclose(run(small, inputs), wanted, atol=1e-4)


def test_pruned_copies_have_the_masks_of_the_heads_that_are_left() -> None:
    entry = zoo.ZOO["bert"]
    model, inputs = entry.build(), zoo.padded(entry)
    mask = MaskEdit(AttentionMask(torch.rand(3, 4, 9, 9, generator=torch.Generator().manual_seed(0)) < 0.5, ends=True))
    gone = [Head("encoder", 0, 0), Head("encoder", 1, 2), *(Head("encoder", 2, h) for h in range(4))]
    with attach_edit(model, mask):
        with AttentionSession(model, edits=[HeadGates(dict.fromkeys(gone, 0.0))]):
            wanted = run(model, inputs)
        assert torch.allclose(run(without_heads(model, gone), inputs), wanted, atol=1e-4)


def test_other_copies_are_left_alone() -> None:
    entry = zoo.ZOO["bert"]
    model, inputs = entry.build(), zoo.padded(entry)
    plain = run(model, inputs)
    with attach_edit(model, masked("bert")):
        other = copy.deepcopy(model)
        assert torch.equal(run(other, inputs), plain)
    assert keep_as(other, model) is other
    assert torch.equal(run(other, inputs), plain)


@pytest.mark.parametrize("kernel", rest_slow(KERNELS))
def test_parts_of_the_model_have_it(kernel: str) -> None:
    entry = zoo.ZOO["marian"]
    model, inputs = entry.build(kernel), zoo.padded(entry)
    source = {k: inputs[k] for k in ("input_ids", "attention_mask")}
    encoder = model.get_encoder()
    session = AttentionSession(encoder, edits=[masked("marian")])
    with session, session.batch(BatchTokens(zoo.tokens(zoo.LENGTHS))):
        wanted = run(encoder, source)
    with attach_edit(model, masked("marian")):
        assert torch.equal(run(encoder, source), wanted)
        with AttentionSession(encoder):
            assert torch.equal(run(encoder, source), wanted)
        assert torch.equal(run(encoder, source), wanted)
        written = model.generate(**source, num_beams=2, max_new_tokens=4)
        with torch.no_grad():
            again = model.generate(
                attention_mask=source["attention_mask"],
                encoder_outputs=encoder(**source),
                num_beams=2,
                max_new_tokens=4,
            )
    assert torch.equal(written, again)


def test_positional_arguments_and_choices_are_understood() -> None:
    model = zoo.ZOO["bert"].build()
    ids, real = zoo.ids(zoo.LENGTHS, 1), zoo.real(zoo.LENGTHS)
    wanted = expected(model, "bert")
    with attach_edit(model, masked("bert")), torch.no_grad():
        assert torch.equal(model(ids, real)[0], wanted)
    choosing = zoo.Entry("BertForMultipleChoice", "BertConfig", "encoder", zoo.TEXT).build()
    with attach_edit(choosing, masked("bert")), torch.no_grad():
        whole = choosing(input_ids=ids[None], attention_mask=real[None])[0]
        each = [choosing(input_ids=ids[None, i : i + 1], attention_mask=real[None, i : i + 1])[0] for i in range(3)]
    assert torch.allclose(whole, torch.cat(each, dim=1), atol=1e-5)


def test_without_an_attention_mask_nothing_is_guessed() -> None:
    model = zoo.ZOO["bert"].build()
    with attach_edit(model, masked("bert")):
        run(model, {"input_ids": zoo.ids((4,), 0), "attention_mask": zoo.real((4,))})
        with pytest.raises(OptionError, match="it was not declared which tokens are padding"):
            run(model, {"input_ids": zoo.ids((4,), 0)})


def test_what_is_declared_comes_first() -> None:
    entry = zoo.ZOO["bert"]
    model = entry.build()
    with attach_edit(model, masked("bert")), AttentionSession(model) as session, session.batch(zoo.batch_tokens(entry)):
        found = run(model, {"input_ids": zoo.ids(zoo.LENGTHS, 1), "attention_mask": zoo.real(zoo.LENGTHS)})
    assert torch.equal(found, expected(model, "bert"))


def test_training_under_it_has_gradients_and_recomputes_them() -> None:
    entry = zoo.ZOO["bert"]
    gradients = []
    for checkpointing in (False, True):
        model, inputs = entry.build(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), zoo.padded(entry)
        if checkpointing:
            enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            enable()
        model.train()
        with attach_edit(model, masked("bert")):
            model(**inputs)[0].pow(2).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert torch.equal(*gradients)
    assert gradients[0].abs().sum() > 0


def test_errors_leave_the_model_as_it_was() -> None:
    entry = zoo.ZOO["bert"]
    model, inputs = entry.build(), zoo.padded(entry)
    plain, before = run(model, inputs), set(vars(model))
    with pytest.raises(ZeroDivisionError), attach_edit(model, masked("bert")):
        raise ZeroDivisionError
    with pytest.raises(OptionError), attach_edit(model, masked("gpt2")):
        pass
    with attach_edit(model, masked("bert")):
        with pytest.raises(RuntimeError, match="is already attached to this model"), attach_edit(model, masked("bert")):
            pass
        with pytest.raises(ZeroDivisionError), AttentionSession(model):
            raise ZeroDivisionError
        assert torch.equal(run(model, inputs), expected_again(model, inputs))
    assert torch.equal(run(model, inputs), plain)
    assert set(vars(model)) == before


def expected_again(model: Any, inputs: dict[str, Any]) -> Tensor:
    with AttentionSession(model):
        return run(model, inputs)


def test_a_model_that_goes_past_the_mask_is_told() -> None:
    model = zoo.ZOO["bert"].build()
    with attach_edit(model, masked("bert")):
        # as if a release of transformers went past the registry
        model.config._attn_implementation_internal = "eager"
        with pytest.raises(SelfCheckError, match="were skipped"):
            run(model, zoo.padded(zoo.ZOO["bert"]))

"""Importance from one backward pass against one example at a time, finite differences and what must be 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
import zoo
from tiers import rest_slow
from torch import Tensor
from transformers import PreTrainedModel

from headlens.attention.edits_and_observers import CallContext, Edit
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site, find_sites
from headlens.errors import ModelError, OptionError, SelfCheckError
from headlens.heads import Head
from headlens.interventions.compacting import compact_model
from headlens.interventions.gates import HeadGates
from headlens.metrics.accumulator import Accumulator
from headlens.relevance_propagation.importance import ImportanceSession, OpenGates, Per, add, importances

Inputs = Mapping[str, Any]
# A classifier, a text model, shared weights, three stacks, heads that share keys.
NAMES = ["bert-classifier", "bert-mlm", "albert-mlm", "marian", "bert-cross-decoder", "llama"]
CHOICE = zoo.Entry("BertForMultipleChoice", "BertConfig", "encoder", zoo.TEXT)


def loss(outputs: Any, inputs: Inputs) -> Tensor:
    """Minus the log-likelihood of a class, or at every position of the token that is there: (examples,)."""
    logits = outputs.logits
    if logits.dim() == 2:
        return -logits.log_softmax(-1)[:, 1]
    side = "decoder_" if "decoder_input_ids" in inputs else ""
    ids = inputs[f"{side}input_ids"]
    mask = inputs.get(f"{side}attention_mask", torch.ones_like(ids))
    return -(logits.log_softmax(-1).gather(2, ids[..., None])[..., 0] * mask).sum(dim=1)


def double(inputs: Inputs) -> dict[str, Any]:
    return {k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in inputs.items()}


def model_of(name: str, kernel: str = "eager") -> PreTrainedModel:
    return zoo.ZOO[name].build(kernel).double()


def singles(name: str) -> list[dict[str, Any]]:
    return [double(row) for row in zoo.unpadded(zoo.ZOO[name])]


def choices() -> dict[str, Tensor]:
    """Two examples of three choices each: (examples, choices, length)."""
    lengths = (6, 5, 4, 7, 3, 7)
    return {"input_ids": zoo.ids(lengths, 3).view(2, 3, 7), "attention_mask": zoo.real(lengths).view(2, 3, 7)}


def estimate(
    model: PreTrainedModel, batches: Sequence[Inputs], removed: Sequence[Head] = (), per: Per = "example"
) -> dict[Head, float]:
    totals = Accumulator()
    with ImportanceSession(model, removed, per) as session:
        for inputs in batches:
            add(totals, session.derivatives(inputs, loss))
    return importances(totals, session.sites)


def close(found: Mapping[Head, float], expected: Mapping[Head, float], rel: float = 1e-9) -> None:
    assert list(found) == list(expected)
    assert list(found.values()) == pytest.approx(list(expected.values()), rel=rel, abs=1e-12)


def losses_with(model: PreTrainedModel, gates: HeadGates, inputs: Inputs) -> Tensor:
    with AttentionSession(model, edits=[gates]):
        return loss(model(**inputs), inputs)


def naive(model: PreTrainedModel, examples: Sequence[Inputs]) -> dict[Head, float]:
    """The derivative for one example at a time, through gates of the whole model."""
    found = []
    for inputs in examples:
        gates = {s: torch.ones(s.n_heads, dtype=torch.double, requires_grad=True) for s in find_sites(model)}
        losses_with(model, HeadGates(gates), inputs).sum().backward()
        found.append([float(d.abs()) for g in gates.values() for d in g.grad])  # type: ignore[union-attr]
    heads = [h for s in find_sites(model) for h in s.heads]
    return dict(zip(heads, np.mean(found, axis=0), strict=True))


def differences(model: PreTrainedModel, head: Head, inputs: Inputs, step: float = 1e-4) -> Tensor:
    """The derivative by a head's gate for each example, from two passes without gradients."""
    site = next(s for s in find_sites(model) if head in s.heads)
    found = []
    for sign in (1, -1):
        gates = torch.ones(site.n_heads, dtype=torch.double)
        gates[head.head] += sign * step
        with torch.no_grad():
            found.append(losses_with(model, HeadGates({site: gates}), inputs))
    return (found[0] - found[1]) / (2 * step)


class Kept(Edit):
    """Keeps the head outputs with their gradients."""

    def __init__(self) -> None:
        self.outputs: dict[Site, Tensor] = {}

    def output(self, context: CallContext, output: Tensor) -> Tensor:
        output.retain_grad()
        self.outputs[context.site] = output
        return output


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_its_examples_one_by_one(name: str) -> None:
    model = model_of(name)
    found = estimate(model, [double(zoo.padded(zoo.ZOO[name]))])
    close(found, naive(model, singles(name)))
    assert min(found.values()) > 0


# Llama's norms compute in single precision whatever the model is in: too coarse for differences.
@pytest.mark.parametrize("name", rest_slow([n for n in NAMES if n != "llama"], ["albert-mlm", "marian"]))
def test_finite_differences_agree(name: str) -> None:
    model, inputs = model_of(name), double(zoo.padded(zoo.ZOO[name]))
    for head, value in estimate(model, [inputs]).items():
        assert value == pytest.approx(float(differences(model, head, inputs).abs().mean()), abs=1e-6)


@pytest.mark.parametrize("name", rest_slow(["bert-mlm", "albert-mlm", "marian"], ["marian"]))
def test_positions_are_the_formula_of_the_code(name: str) -> None:
    model, examples = model_of(name), singles(name)
    expected: dict[Head, float] = {}
    for inputs in examples:
        kept = Kept()
        with AttentionSession(model, edits=[kept]):
            loss(model(**inputs), inputs).sum().backward()
        for site, output in kept.outputs.items():
            assert output.grad is not None
            dots = torch.einsum("bqhd,bqhd->bqh", output.grad, output.detach())
            for head, value in zip(site.heads, dots.abs().sum(dim=(0, 1)), strict=True):
                expected[head] = expected.get(head, 0.0) + float(value) / len(examples)
    found = estimate(model, [double(zoo.padded(zoo.ZOO[name]))], per="position")
    close(found, {h: expected[h] for h in found})
    by_example = estimate(model, examples)
    assert all(found[h] >= by_example[h] * (1 - 1e-12) for h in found)
    assert sum(found.values()) > 1.05 * sum(by_example.values())


@pytest.mark.parametrize("per", ["example", "position"])
def test_a_head_that_nobody_reads_has_no_importance_at_all(per: Per) -> None:
    model = model_of("marian")
    dead = Head("cross", 1, 1)
    site = next(s for s in find_sites(model) if dead in s.heads)
    zoo.without_head(zoo.projection(model, site), dead.head, site.n_heads)
    found = estimate(model, [zoo.padded(zoo.ZOO["marian"])], per=per)
    assert [h for h, v in found.items() if v == 0] == [dead]


@pytest.mark.parametrize("per", ["example", "position"])
def test_removed_heads_are_as_if_cut_out(per: Per) -> None:
    model, inputs = model_of("marian"), zoo.padded(zoo.ZOO["marian"])
    removed = [Head("encoder", 0, h) for h in range(4)] + [Head("decoder", 1, 0), Head("cross", 0, 1)]
    gated = estimate(model, [inputs], removed, per)
    smaller = deepcopy(model)
    compact_model(smaller, removed)
    close(estimate(smaller, [inputs], per=per), {h: v for h, v in gated.items() if h not in removed})
    whole = estimate(model, [inputs], per=per)
    assert all(abs(v - whole[h]) > 1e-6 * v for h, v in gated.items() if v)


def test_removed_heads_of_shared_weights_are_gone_at_their_depth() -> None:
    model, inputs = model_of("albert-mlm"), zoo.padded(zoo.ZOO["albert-mlm"])
    removed = [Head("encoder", layer, 1) for layer in range(4)] + [Head("encoder", 2, 0)]
    gated = estimate(model, [inputs], removed)
    smaller = deepcopy(model)
    compact_model(smaller, removed)
    found = estimate(smaller, [inputs])
    # Masked there, so that it takes no part.
    assert found.pop(Head("encoder", 2, 0)) == 0
    close(found, {h: v for h, v in gated.items() if h not in removed})


@pytest.mark.parametrize("per", ["example", "position"])
def test_batches_and_their_order_do_not_matter(per: Per) -> None:
    model, inputs = model_of("marian"), zoo.padded(zoo.ZOO["marian"])
    turned = {k: v.flip(0) if isinstance(v, Tensor) else v for k, v in inputs.items()}
    first, rest = ({k: v[part] if isinstance(v, Tensor) else v for k, v in turned.items()} for part in ([0], [1, 2]))
    expected = estimate(model, [inputs], per=per)
    close(estimate(model, [first, rest], per=per), expected)
    close(estimate(model, singles("marian"), per=per), expected)


def test_sums_can_be_saved_and_gone_on_with() -> None:
    model, (one, two, three) = model_of("bert-mlm"), singles("bert-mlm")
    totals, before, after = Accumulator(), Accumulator(), Accumulator()
    with ImportanceSession(model) as session:
        for total, batches in ((totals, (one, two, three)), (before, (one,)), (after, (two, three))):
            for inputs in batches:
                add(total, session.derivatives(inputs, loss))
    resumed = Accumulator()
    resumed.add_arrays({k: v.copy() for k, v in after.arrays().items()})
    resumed.add_arrays(before.arrays())
    close(importances(resumed, session.sites), importances(totals, session.sites))


@pytest.mark.parametrize("per", ["example", "position"])
def test_choices_are_rows_of_one_example(per: Per) -> None:
    model, inputs = CHOICE.build().double(), choices()
    with ImportanceSession(model, per=per) as session:
        both = session.derivatives(inputs, loss)
        for i in range(2):
            alone = session.derivatives({k: v[i : i + 1] for k, v in inputs.items()}, loss)
            assert all(torch.allclose(both[s][i], alone[s][0], rtol=1e-9) for s in both)
    expected = differences(model, Head("encoder", 0, 2), inputs).abs()
    assert per == "position" or torch.allclose(both[session.sites[0]][:, 2], expected, rtol=0, atol=1e-6)


def test_examples_may_have_different_numbers_of_rows() -> None:
    model, inputs = model_of("bert-mlm"), zoo.padded(zoo.ZOO["bert-mlm"])

    def grouped(outputs: Any, inputs: Inputs) -> Tensor:
        first, second, third = loss(outputs, inputs)
        return torch.stack([first, second * third])

    with ImportanceSession(model) as session:
        found = session.derivatives(inputs, grouped, rows=[1, 2])
        pair = {k: v[1:] for k, v in inputs.items()}
        alone = session.derivatives(pair, lambda o, i: loss(o, i).prod()[None])
        single = session.derivatives({k: v[:1] for k, v in inputs.items()}, loss)
    for site, values in found.items():
        assert torch.allclose(values, torch.cat([single[site], alone[site]]), rtol=1e-9)


def test_kernels_agree() -> None:
    inputs = zoo.padded(zoo.ZOO["bert-mlm"])
    close(estimate(model_of("bert-mlm", "sdpa"), [inputs]), estimate(model_of("bert-mlm"), [inputs]), rel=1e-8)


def test_half_precision_is_near() -> None:
    model, inputs = zoo.ZOO["bert-mlm"].build(), zoo.padded(zoo.ZOO["bert-mlm"])
    expected = np.array(list(estimate(model, [inputs]).values()))
    found = np.array(list(estimate(model.bfloat16(), [inputs]).values()))
    assert np.abs(found - expected).max() < 0.1 * expected.max()


def test_the_model_is_left_as_it_was() -> None:
    model, inputs = zoo.ZOO["bert-classifier"].build(), zoo.padded(zoo.ZOO["bert-classifier"])
    frozen = model.get_input_embeddings().weight.requires_grad_(requires_grad=False)
    before = model(**inputs).logits
    with ImportanceSession(model) as session, torch.inference_mode():
        session.derivatives(inputs, loss)
        assert not any(p.requires_grad for p in model.parameters())
    assert all(p.grad is None and p.requires_grad is (p is not frozen) for p in model.parameters())
    assert torch.equal(model(**inputs).logits, before)
    with pytest.raises(RuntimeError, match="only be computed inside the `with` block"):
        session.derivatives(inputs, loss)


def test_a_stack_that_the_loss_does_not_reach_does_not_matter() -> None:
    model, inputs = model_of("marian"), zoo.padded(zoo.ZOO["marian"])

    def encoder_only(outputs: Any, inputs: Inputs) -> Tensor:
        return outputs.encoder_last_hidden_state[:, 0, 0]

    with ImportanceSession(model) as session:
        found = session.derivatives(inputs, encoder_only)
    assert list(found) == session.sites
    assert {s.stack for s, v in found.items() if v.any()} == {"encoder"}
    assert all(v.shape == (3, s.n_heads) and v.dtype == torch.double for s, v in found.items())


def test_gates_belong_to_one_pass() -> None:
    model, inputs, gates = model_of("bert-mlm"), zoo.padded(zoo.ZOO["bert-mlm"]), OpenGates([Head("encoder", 1, 2)])
    with AttentionSession(model, edits=[gates]) as session:
        model(**inputs)
        found = gates.take()
        assert gates.take() == {}
    assert list(found) == session.sites
    assert found[session.sites[1]].tolist() == [[[1, 1, 0, 1]]] * 3


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda o, _: o.logits.sum(), r"Losses have the shape \(\)"),
        (lambda o, _: o.logits, r"Losses have the shape \(3, 2\)"),
        (lambda o, _: o.logits[:0, 0], r"Losses have the shape \(0,\)"),
        (lambda o, _: o.logits[:2, 0], "2 losses do not match 3 rows"),
        (lambda o, _: o.logits.detach()[:, 0], "do not depend on any head"),
    ],
)
def test_losses_that_cannot_be(broken: Callable[[Any, Inputs], Tensor], message: str) -> None:
    model, inputs = model_of("bert-classifier"), zoo.padded(zoo.ZOO["bert-classifier"])
    with ImportanceSession(model) as session, pytest.raises(SelfCheckError, match=message):
        session.derivatives(inputs, broken)


def test_derivatives_that_overflow() -> None:
    model, inputs = model_of("bert-classifier"), zoo.padded(zoo.ZOO["bert-classifier"])
    with ImportanceSession(model) as session, pytest.raises(ModelError, match="first in the importance of its heads"):
        session.derivatives(inputs, lambda o, _: o.logits[:, 0] / 0)


@pytest.mark.parametrize("rows", [[1, 1], [1, 1, 2], [2, 0, 0]])
def test_rows_that_do_not_fit(rows: list[int]) -> None:
    model, inputs = model_of("bert-classifier"), zoo.padded(zoo.ZOO["bert-classifier"])
    with ImportanceSession(model) as session, pytest.raises(SelfCheckError, match="3 losses do not match 3 rows"):
        session.derivatives(inputs, loss, rows=rows)


def test_models_and_heads_that_cannot_be() -> None:
    model = zoo.ZOO["bert"].build()
    with pytest.raises(OptionError, match=r"There is no head encoder\.7\.0"):
        ImportanceSession(model, [Head("encoder", 7, 0)])
    with pytest.raises(ValueError, match=r"call model\.eval\(\) first"):
        ImportanceSession(model.train())

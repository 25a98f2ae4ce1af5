import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Never

import pytest
import torch
import zoo
from tiers import rest_slow
from torch import nn
from transformers import PreTrainedModel
from watching import AddToMask, Watch, run

from headlens.attention.edits_and_observers import AttentionCall, BatchTokens, CallContext, Edit, Observer
from headlens.attention.interface import Kernel
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site
from headlens.errors import OptionError, SelfCheckError, UnsupportedModelError

LOWEST = torch.finfo(torch.float32).min
PADDED = [n for n, e in zoo.ZOO.items() if e.kind not in ("image", "audio")]
FAST = [n for n in zoo.ZOO if n not in zoo.MORE_THAN_SOFTMAX]
WRITERS = ["gpt2", "opt", "llama", "mistral", "gemma2", "gpt-oss", "bart", "marian", "m2m100"]
WRITERS += ["pegasus", "bert-to-bert", "whisper", *(["t5"] if "t5" in zoo.ZOO else [])]


@pytest.mark.parametrize("name", rest_slow(zoo.ZOO, zoo.REPRESENTATIVES))
def test_a_watched_model_computes_what_its_own_eager_attention_does(name: str) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build(), zoo.padded(entry)
    with torch.no_grad():
        expected = model(**inputs, output_attentions=True)
        watch = Watch()
        with AttentionSession(model, observers=[watch]) as session, session.batch(zoo.batch_tokens(entry)):
            outputs = model(**inputs)
            inside = model(**inputs, output_attentions=True)
    assert torch.equal(outputs[0], expected[0])
    sites = [str(s) for s in session.sites]
    assert watch.counts() == dict.fromkeys(sites, 2)
    for site, weights in watch.weights().items():
        assert torch.equal(weights, zoo.attentions(entry, expected, site.stack)[site.layer])
        assert torch.equal(weights, zoo.attentions(entry, inside, site.stack)[site.layer])
        assert weights.shape[1] == site.n_heads


@pytest.mark.parametrize("name", rest_slow(PADDED, zoo.REPRESENTATIVES))
def test_attention_only_registration_would_fail_here_padded_batches_equal_single_sentences(name: str) -> None:
    entry = zoo.ZOO[name]
    model = entry.build()
    with AttentionSession(model, observers=[Watch()]):
        batch = run(model, zoo.padded(entry))
        singles = [run(model, row)[0] for row in zoo.unpadded(entry)]
    for row, single in zip(batch, singles, strict=True):
        assert torch.allclose(row[: len(single)], single, atol=1e-5)


@pytest.mark.parametrize("name", rest_slow(FAST, zoo.REPRESENTATIVES))
def test_without_need_of_weights_the_model_computes_what_its_own_sdpa_does(name: str) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build("sdpa"), zoo.padded(entry)
    single = zoo.unpadded(entry)[0]
    expected, expected_single = run(model, inputs), run(model, single)
    watch = Watch(needs_weights=False)
    with AttentionSession(model, observers=[watch]) as session:
        assert session.kernel == "sdpa"
        assert torch.equal(run(model, inputs), expected)
        assert torch.equal(run(model, single), expected_single)
    assert {c.weights for c in watch.calls} == {None}


@pytest.mark.parametrize("name", rest_slow(FAST, zoo.REPRESENTATIVES))
def test_none_masks_an_edit_that_adds_nothing_changes_nothing_under_sdpa(name: str) -> None:
    # Causality would be lost with the shortcut "no mask, is_causal".
    entry = zoo.ZOO[name]
    model = entry.build("sdpa")
    for inputs in (zoo.padded(entry), zoo.unpadded(entry)[0]):
        expected = run(model, inputs)
        edit = AddToMask(torch.zeros(1, 1, 1, 1))
        with AttentionSession(model, edits=[edit]) as session:
            assert session.kernel == "sdpa"
            edited = run(model, inputs)
        assert edit.seen
        # Padding that a sliding window cuts off from all keys gets nothing under sdpa, and uniform weights in a sum.
        for n, row, expected_row in zip(zoo.output_lengths(entry), edited, expected, strict=False):
            assert torch.allclose(row[:n], expected_row[:n], atol=1e-5)


def test_none_masks_a_causal_module_without_any_mask_is_given_one_before_edits() -> None:
    model = zoo.ZOO["gpt2"].build("sdpa")
    attention, hidden = model.transformer.h[0].attn, torch.randn(1, 5, zoo.HIDDEN)
    with torch.no_grad():
        expected = attention(hidden)[0]
        with AttentionSession(model, edits=[AddToMask(torch.zeros(1, 1, 1, 1))]):
            assert torch.allclose(attention(hidden)[0], expected, atol=1e-6)


@pytest.mark.parametrize("name", zoo.MORE_THAN_SOFTMAX)
def test_models_without_sdpa_keep_their_own_eager_attention_and_refuse_sdpa(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build(), zoo.padded(entry)
    expected = run(model, inputs)
    with AttentionSession(model) as session:
        assert session.kernel == "eager"
        assert torch.equal(run(model, inputs), expected)
    if not model._supports_sdpa:
        with pytest.raises(UnsupportedModelError, match="no sdpa attention"):
            AttentionSession(model, kernel="sdpa")
    # Some releases of transformers say that Gemma 2 has sdpa attention, and lose its soft cap.
    for part in model.modules():
        if hasattr(part, "_supports_sdpa"):
            monkeypatch.setattr(type(part), "_supports_sdpa", True)
    with pytest.raises(UnsupportedModelError, match="no sdpa attention"), AttentionSession(model, kernel="sdpa"):
        run(model, inputs)


@pytest.mark.parametrize("kernel", ["eager", "sdpa", "fast"])
@pytest.mark.parametrize("given", [{"is_causal": False}, {"attention_mask": torch.ones(2, 1, 6, 6).bool()}])
def test_decoders_that_see_later_tokens_are_refused(kernel: Kernel, given: dict[str, Any]) -> None:
    model, ids = zoo.ZOO["llama"].build(), zoo.ids((6, 6), 1)
    with AttentionSession(model, kernel=kernel), torch.no_grad():
        with pytest.raises(UnsupportedModelError, match=r"decoder\.0 of LlamaForCausalLM attends to later tokens"):
            model(input_ids=ids, use_cache=False, **given)
        model(input_ids=ids, use_cache=False)


@pytest.mark.parametrize("kernel", ["eager", "sdpa", "fast"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt-oss"])
def test_padding_on_the_left_is_no_later_token(name: str, kernel: Kernel) -> None:
    model, ids, real = zoo.ZOO[name].build(), zoo.ids((6, 4), 1).flip(1), zoo.real((6, 4)).flip(1)
    with AttentionSession(model, kernel="eager" if name == "gpt-oss" else kernel), torch.no_grad():
        model(input_ids=ids, attention_mask=real, use_cache=False)


def test_weights_cannot_be_had_from_sdpa() -> None:
    with pytest.raises(ValueError, match="does not return the attention weights"):
        AttentionSession(zoo.ZOO["bert"].build("sdpa"), observers=[Watch()], kernel="sdpa")


@pytest.mark.parametrize("beams", rest_slow([3, 1]))
@pytest.mark.parametrize("name", rest_slow(WRITERS, ["gpt2", "gemma2", "marian"]))
def test_generation_with_a_cache_gives_the_same_tokens(name: str, beams: int) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build(), zoo.padded(entry)
    kept = {k: v for k, v in inputs.items() if not k.startswith("decoder_") and k != "use_cache"}
    if "input_ids" in kept and entry.kind != "pair":
        # Sentences of one length: text after padding is no language model's input.
        kept |= {"input_ids": kept["input_ids"].clamp(min=5), "attention_mask": torch.ones_like(kept["input_ids"])}
    settings = {"max_new_tokens": 4, "min_new_tokens": 4, "num_beams": beams, "do_sample": False}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        expected = model.generate(**kept, **settings)
        watch = Watch()
        with AttentionSession(model, observers=[watch]) as session:
            assert torch.equal(model.generate(**kept, **settings), expected)
    lengths = {s.stack: {c.query.shape[2] for c in watch.calls if c.site.stack == s.stack} for s in session.sites}
    for stack in set(lengths) - {"encoder"}:
        assert 1 in lengths[stack], "no step with a single query"
    # The encoder runs once for a whole generation, outside of any pass of the whole model, and counts.
    assert {n for s, n in watch.counts().items() if s.startswith("encoder")} <= {1}
    assert watch.pending == []


@pytest.mark.parametrize("name", ["bart", "marian", "whisper", "bert-cross-decoder", "bert-to-bert"])
def test_cross_attention_key_length_is_not_query_length(name: str) -> None:
    entry = zoo.ZOO[name]
    model, watch = entry.build(), Watch()
    with AttentionSession(model, observers=[watch]) as session, session.batch(zoo.batch_tokens(entry)):
        run(model, zoo.padded(entry))
    source = 6 if name == "whisper" else max(zoo.LENGTHS)
    for call in (c for c in watch.calls if c.site.stack == "cross"):
        assert call.weights.shape[2:] == (max(zoo.TARGET_LENGTHS), source)
        assert not call.causal


def test_boolean_float_none_masks_a_users_own_boolean_mask_masks_under_eager_too() -> None:
    model = zoo.ZOO["bert"].build("sdpa")
    inputs = zoo.padded(zoo.ZOO["bert"])
    allowed = torch.rand(3, 1, 7, 7, generator=torch.Generator().manual_seed(3)) < 0.6
    allowed |= torch.eye(7, dtype=torch.bool)
    inputs["attention_mask"] = allowed
    expected = run(model, inputs)
    watch = Watch()
    with AttentionSession(model, observers=[watch]):
        assert torch.allclose(run(model, inputs), expected, atol=1e-5)
    for weights in watch.weights().values():
        assert (weights[~allowed.expand_as(weights)] == 0).all()
        assert (weights[allowed.expand_as(weights)] > 0).all()


def dropout_everywhere(name: str) -> PreTrainedModel:
    settings = {
        "bert": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.4},
        "albert": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.4},
        "llama": {"attention_dropout": 0.4},
        "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.4},
        "marian": {"dropout": 0.0, "attention_dropout": 0.4},
        "gpt-oss": {"attention_dropout": 0.4},
        "t5": {"dropout_rate": 0.4},
    }
    return zoo.ZOO[name].build(**settings[name]).train()


DROPPING = ["bert", "albert", "llama", "gpt2", "marian", "gpt-oss", *(["t5"] if "t5" in zoo.ZOO else [])]


@pytest.mark.parametrize("name", DROPPING)
def test_weights_after_dropout_watching_a_model_in_training_does_not_touch_the_random_numbers(name: str) -> None:
    model, inputs = dropout_everywhere(name), zoo.padded(zoo.ZOO[name])
    torch.manual_seed(1)
    expected = model(**inputs)[0]
    expected.sum().backward()
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad()
    state = torch.get_rng_state()
    watch = Watch()
    with AttentionSession(model, observers=[watch]):
        torch.manual_seed(1)
        output = model(**inputs)[0]
    output.sum().backward()
    assert torch.equal(output, expected)
    assert torch.equal(torch.get_rng_state(), state)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert (parameter.grad is None) == (gradient is None)
        assert gradient is None or torch.equal(parameter.grad, gradient)
    assert not any(c.weights.requires_grad for c in watch.calls)


@pytest.mark.parametrize("name", [n for n in DROPPING if n != "t5"])
def test_weights_after_dropout_observers_see_the_weights_before_it(name: str) -> None:
    model, inputs = dropout_everywhere(name), zoo.padded(zoo.ZOO[name])
    clean, dropped = Watch(), Watch()
    with AttentionSession(model, observers=[dropped]):
        model(**inputs)
    with AttentionSession(model.eval(), observers=[clean]) as session:
        model(**inputs)
    # Below the first attention nothing is dropped in these models.
    first = session.sites[0]
    assert torch.equal(dropped.weights()[first], clean.weights()[first])
    if name != "gpt-oss":
        for weights in dropped.weights().values():
            assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "albert", "llama", "bart", "gemma2", "gpt-oss", "vit"])
def test_half_precision_forward_passes_equal_eager(name: str) -> None:
    model = zoo.ZOO[name].build().to(torch.bfloat16)
    inputs = {
        k: v.to(torch.bfloat16) if torch.is_tensor(v) and v.is_floating_point() else v
        for k, v in zoo.padded(zoo.ZOO[name]).items()
    }
    expected = run(model, inputs)
    watch = Watch()
    with AttentionSession(model, observers=[watch]):
        assert torch.equal(run(model, inputs), expected)
    edit = AddToMask(torch.tensor(torch.finfo(torch.bfloat16).min))
    for kernel in ("eager",) if name in zoo.MORE_THAN_SOFTMAX else ("eager", "sdpa"):
        with AttentionSession(model, edits=[edit], kernel=kernel):
            assert torch.isfinite(run(model, inputs)).all()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
@pytest.mark.parametrize("name", ["bert", "llama", "marian"])
def test_grad_modes_and_autocast_give_what_eager_gives(
    name: str, mode: Callable[[], AbstractContextManager[None]]
) -> None:
    model, inputs = zoo.ZOO[name].build(), zoo.padded(zoo.ZOO[name])
    with mode():
        expected = model(**inputs)[0]
        with AttentionSession(model, observers=[Watch()]):
            assert torch.equal(model(**inputs)[0], expected)
    with AttentionSession(model, observers=[Watch()]), mode():
        assert torch.equal(model(**inputs)[0], expected)


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_a_mask_edit_of_single_precision_in_a_half_precision_model(kernel: str) -> None:
    model, inputs = zoo.ZOO["bert"].build().to(torch.bfloat16), zoo.padded(zoo.ZOO["bert"])
    expected = run(model, inputs)
    with AttentionSession(model, edits=[AddToMask(torch.zeros(1, 4, 7, 7))], kernel=kernel):
        assert torch.allclose(run(model, inputs).float(), expected.float(), atol=0.1)
    with AttentionSession(model, edits=[AddToMask(torch.full((1, 1, 7, 7), LOWEST))], kernel=kernel):
        assert torch.isfinite(run(model, inputs)).all()


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_autocast_with_a_mask_edit(kernel: str) -> None:
    model, inputs = zoo.ZOO["bert"].build(), zoo.padded(zoo.ZOO["bert"])
    edit = AddToMask(torch.zeros(1, 4, 7, 7))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), AttentionSession(model, edits=[edit], kernel=kernel):
        edited = model(**inputs)[0]
    assert torch.allclose(edited.float(), run(model, inputs), atol=0.2)


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["bert", "llama", "marian", "albert"])
def test_a_mask_edit_reaches_its_site_and_no_other(name: str, kernel: str) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build(kernel), zoo.padded(entry)
    before, after = Watch(), Watch()
    with AttentionSession(model, observers=[before]) as session:
        run(model, inputs)
    site = session.sites[1]
    blocked = torch.zeros(1, site.n_heads, 1, max(zoo.LENGTHS))
    blocked[:, 1, :, 2] = LOWEST
    edit = AddToMask(blocked, str(site))
    with AttentionSession(model, observers=[after], edits=[edit]) as session, session.batch(zoo.batch_tokens(entry)):
        edited = run(model, inputs)
    with AttentionSession(model, edits=[edit], kernel=kernel):
        assert torch.allclose(run(model, inputs), edited, atol=1e-5)
    first = session.sites[0]
    assert torch.equal(after.weights()[first], before.weights()[first])
    weights = after.weights()[site]
    # A causal first query that may look at nothing else would get uniform weights.
    assert (weights[:, 1, 3:, 2] == 0).all()
    assert (weights[:, 0, 3:, 2] > 0).any()


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_rows_masked_twice_over_get_uniform_weights_and_not_nan(name: str, kernel: str) -> None:
    model, inputs = zoo.ZOO[name].build(kernel), zoo.padded(zoo.ZOO[name])
    edits = [AddToMask(torch.full((1, 1, 7, 7), LOWEST)), AddToMask(torch.full((1, 1, 7, 7), -torch.inf))]
    with AttentionSession(model, edits=edits, kernel=kernel):
        assert torch.isfinite(run(model, inputs)).all()
    watch = Watch()
    with AttentionSession(model, edits=edits, observers=[watch]):
        run(model, inputs)
    for weights in watch.weights().values():
        assert torch.allclose(weights, torch.full((), 1 / 7))


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_gradients_flow_through_mask_edits(kernel: str) -> None:
    model, inputs = zoo.ZOO["bert"].build(kernel), zoo.padded(zoo.ZOO["bert"])
    learned = torch.zeros(1, 4, 7, 7, requires_grad=True)
    with AttentionSession(model, edits=[AddToMask(learned, "encoder.1")], kernel=kernel):
        (model(**inputs)[0][:, 0] ** 2).sum().backward()
    step = torch.zeros_like(learned)
    step[0, 2, 1, 3] = 1e-2
    losses = []
    for sign in (1, -1):
        with AttentionSession(model, edits=[AddToMask(sign * step, "encoder.1")], kernel=kernel):
            losses.append((run(model, inputs)[:, 0] ** 2).sum())
    assert learned.grad[0, 2, 1, 3].item() == pytest.approx((losses[0] - losses[1]).item() / 2e-2, rel=0.05, abs=1e-3)


class Affine(Edit):
    def __init__(self, factor: float, term: float) -> None:
        self.factor, self.term = factor, term

    def output(self, context: CallContext, output: torch.Tensor) -> torch.Tensor:
        return output * self.factor + self.term


def test_edits_compose_in_order() -> None:
    model, inputs = zoo.ZOO["bert"].build(), zoo.padded(zoo.ZOO["bert"])
    plain, edited = Watch(), Watch()
    with AttentionSession(model, observers=[plain]):
        run(model, inputs)
    first, second = AddToMask(torch.tensor(-1.0)), AddToMask(torch.tensor(-2.0))
    with AttentionSession(model, observers=[edited], edits=[first, Affine(2, 0), second, Affine(1, 3)]):
        run(model, inputs)
    # A constant in the mask changes no weights.
    assert torch.allclose(edited.calls[0].output, plain.calls[0].output * 2 + 3, atol=1e-5)
    assert torch.allclose(second.seen[0][1], first.seen[0][1] - 1)


def test_an_output_edit_changes_what_the_model_goes_on_with() -> None:
    model, inputs = zoo.ZOO["bert"].build(), zoo.padded(zoo.ZOO["bert"])
    with AttentionSession(model, edits=[Affine(0, 0)]):
        edited = run(model, inputs)
    for layer in model.encoder.layer:
        nn.init.zeros_(layer.attention.output.dense.weight)
    assert torch.allclose(edited, run(model, inputs), atol=1e-6)


@pytest.mark.parametrize("name", rest_slow(zoo.ZOO, zoo.REPRESENTATIVES))
def test_mask_and_output_edits_see_the_site_and_its_tokens(name: str) -> None:
    entry = zoo.ZOO[name]
    model, declared, watch = entry.build(), zoo.batch_tokens(entry), Watch()
    edit = AddToMask(torch.zeros(()))
    with AttentionSession(model, edits=[edit], observers=[watch]) as session:
        with session.batch(declared):
            run(model, zoo.padded(entry))
        run(model, zoo.padded(entry))
    n = len(session.sites)
    for seen in ([c for c, _ in edit.seen], watch.calls):
        assert sorted(str(c.site) for c in seen[:n]) == sorted(map(str, session.sites))
        for context in seen[:n]:
            queries, keys = declared.of(context.site)
            assert context.queries is queries
            assert context.keys is keys
        assert all(c.queries is None and c.keys is None for c in seen[n:])


def test_tokens_declared_of_another_shape_are_refused_and_inner_declarations_end() -> None:
    entry = zoo.ZOO["bert"]
    model, outer = entry.build(), zoo.batch_tokens(entry)
    watch = Watch()
    with AttentionSession(model, observers=[watch]) as session, session.batch(outer):
        wrong = BatchTokens(encoder=zoo.tokens((4, 4)))
        with (
            pytest.raises(SelfCheckError, match=r"declared as \(2, 4\).*attention sees \(3, 7\)"),
            session.batch(wrong),
        ):
            run(model, zoo.padded(entry))
        run(model, zoo.padded(entry))
    assert watch.calls[0].queries is outer.encoder


def test_an_edit_that_does_not_fit_the_model_is_refused_before_anything_runs() -> None:
    class TooDeep(Edit):
        def check(self, sites: Sequence[Site]) -> Never:
            raise OptionError(f"only {len(sites)} layers")

    with pytest.raises(OptionError, match="only 3 layers"):
        AttentionSession(zoo.ZOO["bert"].build(), edits=[TooDeep()])


def test_an_attention_function_of_another_shape_or_without_weights_is_noticed() -> None:
    model, inputs = zoo.ZOO["bert"].build(), zoo.padded(zoo.ZOO["bert"])
    with AttentionSession(model, observers=[Watch()]) as session:
        session._compute = lambda module, context, mask, kwargs: (context.query, None)
        with pytest.raises(SelfCheckError, match=r"encoder.0: attention has the shape \(3, 4, 7, 8\)"):
            run(model, inputs)
        session._compute = lambda module, context, mask, kwargs: (context.query.transpose(1, 2), None)
        with pytest.raises(SelfCheckError, match="gave no weights"):
            run(model, inputs)


class Learner(Observer):
    """Remembers the gradients of head outputs."""

    needs_weights = False

    def __init__(self) -> None:
        self.gradients = {}

    def observe(self, call: AttentionCall) -> None:
        call.output.register_hook(lambda g: self.gradients.__setitem__(str(call.site), g))


def test_observers_can_hook_the_gradients_of_head_outputs() -> None:
    model, inputs = zoo.ZOO["bert"].build(), zoo.padded(zoo.ZOO["bert"])
    learner = Learner()
    with AttentionSession(model, observers=[learner]):
        model(**inputs)[0].sum().backward()
    assert {k: v.shape for k, v in learner.gradients.items()} == {f"encoder.{i}": (3, 7, 4, 8) for i in range(3)}


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_nothing_but_attention_is_touched(kernel: str) -> None:
    model, inputs = zoo.ZOO["bert"].build(kernel), zoo.padded(zoo.ZOO["bert"])
    forwards = {n: type(m).forward for n, m in model.named_modules()}
    before = {n: p.clone() for n, p in model.state_dict().items()}
    with AttentionSession(model, edits=[Affine(2, 0)]):
        assert {n: type(m).forward for n, m in model.named_modules()} == forwards
        assert not any("forward" in vars(m) for m in model.modules())
        run(model, inputs)
        assert set(model.state_dict()) == set(before)
    assert all(torch.equal(p, before[n]) for n, p in model.state_dict().items())

from collections.abc import Callable

import pytest
import torch
import zoo
from entmax import entmax15, sparsemax
from hypothesis import given
from hypothesis import strategies as st
from tiers import rest_slow
from watching import AddToMask, Watch, run

from headlens.attention.normalizers import Entmax, HeadEntmax, check_core, softmax
from headlens.attention.session import AttentionSession
from headlens.errors import OptionError, UnsupportedModelError

LOWEST = torch.finfo(torch.float32).min
PLAIN = [n for n in zoo.ZOO if n not in zoo.MORE_THAN_SOFTMAX]
TEXTS = [n for n in PLAIN if zoo.ZOO[n].kind not in ("image", "audio")]


@pytest.mark.parametrize("name", rest_slow(PLAIN, zoo.REPRESENTATIVES))
def test_the_core_with_softmax_is_eager_attention(name: str) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build(), zoo.padded(entry)
    eager, own = Watch(), Watch()
    with AttentionSession(model, observers=[eager]):
        expected = run(model, inputs)
    with AttentionSession(model, observers=[own], normalizer=softmax):
        assert torch.allclose(run(model, inputs), expected, atol=1e-5)
    for site, weights in own.weights().items():
        assert torch.allclose(weights, eager.weights()[site], atol=1e-6)


@pytest.mark.parametrize("name", zoo.MORE_THAN_SOFTMAX)
def test_models_that_do_more_than_a_softmax_are_refused(name: str) -> None:
    entry = zoo.ZOO[name]
    with AttentionSession(entry.build(), normalizer=softmax) as session, pytest.raises(UnsupportedModelError) as caught:
        run(session.model, zoo.padded(entry))
    assert {"gemma2": "softcap", "gpt-oss": "s_aux"}[name] in caught.value.message
    assert {"gemma2": "Gemma2Attention", "gpt-oss": "GptOssAttention"}[name] in caught.value.message
    assert "cannot be replaced" in caught.value.advice
    assert "Llama" in caught.value.advice


def test_models_whose_arguments_do_not_tell_that_they_do_more_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = zoo.ZOO["gpt-oss"]
    model = entry.build()
    with AttentionSession(model, normalizer=softmax) as session:
        compute = session._compute
        monkeypatch.setattr(
            session,
            "_compute",
            lambda module, context, mask, kwargs: compute(module, context, mask, {**kwargs, "s_aux": None}),
        )
        with pytest.raises(UnsupportedModelError, match="not just a softmax of scaled scores"):
            run(model, zoo.padded(entry))


def test_the_core_is_checked_once_for_each_module(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, checked = zoo.ZOO["albert"].build(), zoo.padded(zoo.ZOO["albert"]), []
    monkeypatch.setattr(
        "headlens.attention.session.check_core", lambda *a, **k: (checked.append(a[1]), check_core(*a, **k))
    )
    with AttentionSession(model, normalizer=softmax):
        run(model, inputs)
        run(model, inputs)
    assert len(checked) == 1


@pytest.mark.parametrize("name", ["bert", "llama", "marian"])
def test_half_precision_and_training_pass_the_check_too(name: str) -> None:
    model, inputs = zoo.ZOO[name].build().to(torch.bfloat16).train(), zoo.padded(zoo.ZOO[name])
    torch.manual_seed(0)
    expected = model(**inputs)[0]
    torch.manual_seed(0)
    with AttentionSession(model, normalizer=softmax):
        output = model(**inputs)[0]
    assert output.dtype == torch.bfloat16
    assert torch.allclose(output.float(), expected.float(), atol=0.3)


@pytest.mark.parametrize(("alpha", "oracle"), [(1.5, entmax15), (2, sparsemax)])
@pytest.mark.parametrize("name", rest_slow(TEXTS, zoo.REPRESENTATIVES))
def test_sparse_attention_is_the_library_on_the_models_scores(
    name: str, alpha: float, oracle: Callable[..., torch.Tensor]
) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build(), zoo.padded(entry)
    watch, scores = Watch(), []

    def remember(values: torch.Tensor) -> torch.Tensor:
        scores.append(values)
        return Entmax(alpha)(values)

    session = AttentionSession(model, observers=[watch], normalizer=remember)
    with session, session.batch(zoo.batch_tokens(entry)):
        output = run(model, inputs)
    assert torch.isfinite(output).all()
    exact_zeros = 0
    for call, values in zip(watch.calls, scores, strict=True):
        weights = call.weights
        assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)
        alive = (values > LOWEST / 2).any(-1)
        assert torch.allclose(weights[alive], oracle(values[alive], dim=-1), atol=1e-6)
        real = call.queries.real[:, None, :].expand(alive.shape)
        padding = ~call.keys.real[:, None, None, :].expand_as(weights)[real]
        assert (weights[real][padding] == 0).all()
        exact_zeros += (weights[real][~padding] == 0).sum()
    assert exact_zeros


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.3])
def test_padded_batches_equal_single_sentences_under_entmax(alpha: float) -> None:
    entry = zoo.ZOO["bert"]
    model = entry.build()
    with AttentionSession(model, normalizer=Entmax(alpha)):
        batch = run(model, zoo.padded(entry))
        singles = [run(model, row)[0] for row in zoo.unpadded(entry)]
    for row, single in zip(batch, singles, strict=True):
        assert torch.allclose(row[: len(single)], single, atol=1e-5)


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.3])
def test_gradients_flow_and_match_finite_differences(alpha: float) -> None:
    scores = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    assert torch.autograd.gradcheck(Entmax(alpha), scores, eps=1e-7, atol=1e-5)
    model = zoo.ZOO["bert"].build()
    with AttentionSession(model, normalizer=Entmax(alpha)):
        (model(**zoo.padded(zoo.ZOO["bert"]))[0] ** 2).sum().backward()
    for layer in model.encoder.layer:
        gradient = layer.attention.self.query.weight.grad
        assert torch.isfinite(gradient).all()
        assert gradient.abs().max() > 0


def test_gradients_in_the_alphas_of_heads_match_finite_differences() -> None:
    generator = torch.Generator().manual_seed(2)
    scores = 2 * torch.randn(2, 3, 2, 5, dtype=torch.float64, generator=generator)  # (batch, heads, query, key)
    scores[:, :, 0, 3:] = LOWEST
    scores.requires_grad_()
    alphas = torch.tensor([1.05, 1.5, 1.95], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, a: HeadEntmax(a)(x), (scores, alphas), eps=1e-6, atol=1e-5, nondet_tol=1e-12
    )
    for head, alpha in enumerate(alphas.tolist()):
        assert torch.allclose(HeadEntmax(alphas)(scores)[:, head], Entmax(alpha)(scores[:, head]), atol=1e-9)


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.3])
def test_minus_infinity_masks_as_the_lowest_number_does(alpha: float) -> None:
    scores = torch.tensor([[-torch.inf, -torch.inf], [-torch.inf, 3.0], [0.0, 0.0]], requires_grad=True)
    weights = Entmax(alpha)(scores)
    assert torch.allclose(weights, torch.tensor([[0.5, 0.5], [0.0, 1.0], [0.5, 0.5]]))
    weights.sum().backward()
    assert torch.isfinite(scores.grad).all()


@given(st.integers(0, 2**16), st.integers(1, 6), st.sampled_from([1.5, 2.0, 1.3, 4.0]))
def test_weights_are_a_distribution_also_where_some_or_all_keys_are_masked(
    seed: int, n_keys: int, alpha: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(3, 4, n_keys, generator=generator) * 3
    masked = torch.rand(scores.shape, generator=generator) < 0.4
    weights = Entmax(alpha)(scores.masked_fill(masked, LOWEST))
    assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)
    dead = masked.all(-1)
    assert (weights[~dead][masked[~dead]] == 0).all()
    assert torch.allclose(weights[dead], torch.full((), 1 / n_keys))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.3])
def test_fully_masked_rows_are_uniform_with_finite_gradients(alpha: float, dtype: torch.dtype) -> None:
    entry = zoo.ZOO["bert"]
    model, watch = entry.build().to(dtype), Watch()
    lowest = AddToMask(torch.full((1, 1, 7, 7), torch.finfo(dtype).min, dtype=dtype), "encoder.1")
    with AttentionSession(model, observers=[watch], edits=[lowest, lowest], normalizer=Entmax(alpha)):
        output = model(**zoo.padded(entry))[0]
        output.float().sum().backward()
    assert torch.isfinite(output).all()
    assert torch.allclose(watch.calls[1].weights, torch.full((), 1 / 7))
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_generation_works_under_another_normalizer() -> None:
    model = zoo.ZOO["llama"].build()
    tokens = zoo.padded(zoo.ZOO["llama"])["input_ids"][:1]
    with AttentionSession(model, normalizer=Entmax()):
        longer = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=3, do_sample=False)
        for n in range(tokens.shape[1], longer.shape[1]):
            assert run(model, {"input_ids": longer[:, :n]})[0, -1].argmax() == longer[0, n]


def test_alphas_out_of_range_are_refused() -> None:
    with pytest.raises(OptionError, match=r"alpha 1 is not supported"):
        Entmax(1.0)

from dataclasses import replace
from typing import Any

import pytest
import torch
import zoo
from hypothesis import given
from hypothesis import strategies as st
from tiers import rest_slow
from torch import nn
from transformers import PreTrainedModel
from watching import AddToMask, Watch, run

from headlens.attention.edits_and_observers import AttentionCall, BatchTokens, CallContext, Edit
from headlens.attention.interface import additive, causal_mask
from headlens.attention.kernels import blocked_softmax as core
from headlens.attention.normalizers import softmax
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site
from headlens.errors import SelfCheckError

LOWEST = torch.finfo(torch.float32).min
TEXTS = [n for n, e in zoo.ZOO.items() if e.kind not in ("image", "audio")]


class WatchParts(Watch):
    """A Watch that may be shown a call in parts."""

    parts = True

    def observe(self, call: AttentionCall) -> None:
        # The memory of the weights is used again.
        super().observe(replace(call, weights=call.weights.clone()))

    def whole(self) -> dict[Site, torch.Tensor]:
        sites = dict.fromkeys(c.site for c in self.calls)
        return {s: torch.cat([c.weights for c in self.calls if c.site == s]) for s in sites}


def of_three(name: str) -> tuple[PreTrainedModel, dict[str, Any]]:
    return zoo.ZOO[name].build(), zoo.padded(zoo.ZOO[name])


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence per block."""
    monkeypatch.setattr(core, "BLOCK", {"cpu": 1, "other": 1})


@pytest.mark.parametrize("padding", rest_slow([True, False]))
@pytest.mark.parametrize("name", rest_slow(zoo.ZOO, zoo.REPRESENTATIVES))
def test_the_fast_kernel_is_eager_attention(name: str, padding: bool) -> None:
    entry = zoo.ZOO[name]
    model = entry.build()
    inputs = zoo.padded(entry) if padding else zoo.unpadded(entry)[0]
    eager, fast = Watch(), Watch()
    with AttentionSession(model, observers=[eager]):
        expected = run(model, inputs)
    with AttentionSession(model, observers=[fast], kernel="fast") as session:
        assert torch.allclose(run(model, inputs), expected, atol=1e-5)
    trusted = set(session._core._trusted.values())
    assert trusted == (set() if name in zoo.MORE_THAN_SOFTMAX else {True})
    assert fast.counts() == eager.counts()
    for site, weights in fast.weights().items():
        assert torch.allclose(weights, eager.weights()[site], atol=1e-5)
        # What is masked is masked, not nearly so.
        assert torch.equal(weights == 0, eager.weights()[site] == 0)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", rest_slow(TEXTS, zoo.REPRESENTATIVES))
def test_long_batches_come_in_parts_with_their_tokens(name: str) -> None:
    entry = zoo.ZOO[name]
    model, inputs = of_three(name)
    eager, fast = Watch(), WatchParts()
    with AttentionSession(model, observers=[eager]):
        expected = run(model, inputs)
    declared = zoo.batch_tokens(entry)
    with AttentionSession(model, observers=[fast], kernel="fast") as session, session.batch(declared):
        assert torch.allclose(run(model, inputs), expected, atol=1e-5)
    many = 1 if name in zoo.MORE_THAN_SOFTMAX else 3
    assert fast.counts() == {s: n * many for s, n in eager.counts().items()}
    for site, weights in fast.whole().items():
        assert torch.allclose(weights, eager.weights()[site], atol=1e-5)
    for number, call in enumerate(fast.calls):
        whole = [t for t in declared.of(call.site) if t is not None]
        rows = slice(number % many, number % many + 1) if many > 1 else slice(None)
        for tokens, of_part in zip(whole, (call.queries, call.keys), strict=True):
            assert torch.equal(of_part.real, tokens.real[rows])
        assert call.output.shape[:2] == call.queries.shape


@pytest.mark.usefixtures("small_blocks")
def test_observers_and_edits_that_want_whole_calls_get_them() -> None:
    class Whole(Edit):
        def output(self, context: CallContext, output: torch.Tensor) -> torch.Tensor:
            assert len(output) == len(context.query) == 3
            return output * 2

    model, inputs = of_three("bert")
    with AttentionSession(model, observers=[WatchParts(), watch := Watch()], kernel="fast"):
        run(model, inputs)
    assert {len(c.weights) for c in watch.calls} == {3}
    eager, fast = Watch(), WatchParts()
    with AttentionSession(model, observers=[eager], edits=[Whole()]):
        expected = run(model, inputs)
    with AttentionSession(model, observers=[fast], edits=[Whole()], kernel="fast"):
        assert torch.allclose(run(model, inputs), expected, atol=1e-5)
    assert torch.allclose(fast.calls[0].output, eager.calls[0].output, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "llama", "marian"])
def test_mask_edits_and_rows_masked_throughout(name: str) -> None:
    entry = zoo.ZOO[name]
    model, inputs = of_three(name)
    for amount in (torch.full((1, 1, 7, 7), LOWEST), torch.randn(3, 4, 7, 7)):
        weights = []
        for kernel in ("eager", "fast"):
            watch = Watch()
            edits = [AddToMask(amount, f"{entry.stacks[0]}.1")]
            with AttentionSession(model, observers=[watch], edits=edits, kernel=kernel):
                assert torch.isfinite(run(model, inputs)).all()
            weights.append(watch.weights())
        for site, expected in weights[0].items():
            assert torch.allclose(weights[1][site], expected, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama", "opt"])
def test_a_single_text_of_a_decoder_needs_no_mask_and_edits_of_masks_get_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build(), zoo.unpadded(entry)[0]
    masks: list[torch.Tensor | None] = []
    serves = core.BlockedSoftmax.serves

    def noting(
        own: core.BlockedSoftmax, module: nn.Module, context: CallContext, mask: Any, *args: Any, **kw: Any
    ) -> bool:
        masks.append(mask)
        return serves(own, module, context, mask, *args, **kw)

    monkeypatch.setattr(core.BlockedSoftmax, "serves", noting)
    length = inputs["input_ids"].shape[1]
    for edits in ([], [AddToMask(torch.randn(1, 4, length, length), f"{entry.stacks[0]}.1")]):
        masks.clear()
        with AttentionSession(model, observers=[eager := Watch()], edits=edits):
            expected = run(model, inputs)
        with AttentionSession(model, observers=[fast := Watch()], edits=edits, kernel="fast"):
            assert torch.allclose(run(model, inputs), expected, atol=1e-5)
        assert masks
        assert all((mask is None) is (not edits) for mask in masks)
        for site, weights in fast.weights().items():
            assert torch.allclose(weights, eager.weights()[site], atol=1e-5)
            assert torch.equal(weights == 0, eager.weights()[site] == 0)


def test_a_mask_that_hides_nothing_is_left_out_and_any_other_kept() -> None:
    kept = core.BlockedSoftmax()
    nothing, some = torch.zeros(1, 1, 2, 2), torch.tensor([[0.0, LOWEST]])
    assert kept.needed(None) is None
    assert kept.needed(nothing) is None
    assert kept.needed(nothing) is None
    assert kept.needed(some) is some
    kept.forget()
    assert kept.needed(some) is some


def test_another_mask_at_the_place_of_the_last_one_is_looked_at() -> None:
    model = zoo.ZOO["bert"].build()
    inputs = zoo.padded(zoo.ZOO["bert"])
    full = {"input_ids": inputs["input_ids"], "attention_mask": torch.ones_like(inputs["attention_mask"])}
    batches = [full, inputs, full, inputs]
    with AttentionSession(model, observers=[Watch()]):
        expected = [run(model, b) for b in batches]
    with AttentionSession(model, observers=[Watch()], kernel="fast"):
        for batch, output in zip(batches, expected, strict=True):
            assert torch.allclose(run(model, batch), output, atol=1e-5)


def left_to_eager(model: PreTrainedModel, inputs: dict[str, Any]) -> bool:
    """Whether the fast kernel gives eager attention's numbers bit for bit because it did not compute them."""
    torch.manual_seed(0)
    with AttentionSession(model, observers=[eager := Watch()]):
        expected = model(**inputs)[0]
    torch.manual_seed(0)
    with AttentionSession(model, observers=[fast := Watch()], kernel="fast") as session:
        output = model(**inputs)[0]
    assert torch.equal(output, expected)
    assert all(torch.equal(w, eager.weights()[s]) for s, w in fast.weights().items())
    return not any(session._core._trusted.values())


@pytest.mark.parametrize("name", zoo.MORE_THAN_SOFTMAX)
def test_models_that_do_more_than_a_softmax_are_left_to_eager(name: str) -> None:
    with torch.no_grad():
        assert left_to_eager(*of_three(name))


def test_gradients_training_and_autocast_are_left_to_eager() -> None:
    model, inputs = of_three("bert")
    assert left_to_eager(model, inputs)
    with torch.no_grad():
        assert left_to_eager(model.train(), inputs)
        model.eval()
        with torch.autocast("cpu", torch.bfloat16):
            assert left_to_eager(model, inputs)


def test_a_module_whose_numbers_differ_is_left_to_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = of_three("bert")
    attend, module = core.blocked_softmax_attention, []

    def wrong(context: CallContext, *rest: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        output, weights = attend(context, *rest, **kwargs)
        module.append(context.site.layer)
        return output * (1.01 if context.site.layer == 1 else 1), weights

    monkeypatch.setattr(core, "blocked_softmax_attention", wrong)
    with AttentionSession(model, observers=[eager := Watch()]):
        expected = run(model, inputs)
    with AttentionSession(model, observers=[fast := Watch()], kernel="fast") as session:
        assert torch.allclose(run(model, inputs), expected, atol=1e-5)
        run(model, inputs)
    assert list(session._core._trusted.values()) == [True, False, True]
    assert module == [0, 1, 2]
    assert set(fast.counts().values()) == {2}
    assert torch.allclose(fast.calls[2].output, eager.calls[2].output, atol=1e-5)


def test_a_module_whose_weights_differ_is_left_to_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = of_three("bert")
    attend = core.blocked_softmax_attention

    def wrong(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        output, weights = attend(*args, **kwargs)
        return output, weights * 1.01

    monkeypatch.setattr(core, "blocked_softmax_attention", wrong)
    with torch.no_grad():
        assert left_to_eager(model, inputs)


def test_a_shared_module_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = of_three("albert")
    checked, agrees = [], core.agrees
    monkeypatch.setattr(core, "agrees", lambda *args, **kwargs: (checked.append(args[0]), agrees(*args, **kwargs))[1])
    with AttentionSession(model, observers=[Watch()], kernel="fast"):
        run(model, inputs)
        run(model, inputs)
    assert len(checked) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["bert", "llama", "bart"])
def test_half_precision_models_give_weights_of_single_precision(name: str, dtype: torch.dtype) -> None:
    model, inputs = of_three(name)
    model = model.to(dtype)
    with AttentionSession(model, observers=[eager := Watch()]):
        expected = run(model, inputs)
    with AttentionSession(model, observers=[fast := Watch()], kernel="fast") as session:
        output = run(model, inputs)
    assert set(session._core._trusted.values()) == {True}
    assert output.dtype == dtype
    assert torch.allclose(output.float(), expected.float(), atol=0.3)
    first = session.sites[0]
    assert fast.weights()[first].dtype == torch.float32
    assert torch.allclose(fast.weights()[first], eager.weights()[first].float(), atol=4 * torch.finfo(dtype).eps)
    sums = fast.weights()[first].sum(-1)
    assert torch.allclose(sums, torch.ones_like(sums), atol=1e-5)


def test_generation_and_inputs_without_tokens() -> None:
    model = zoo.ZOO["llama"].build()
    tokens = zoo.padded(zoo.ZOO["llama"])["input_ids"][:1]
    settings = {"attention_mask": torch.ones_like(tokens), "max_new_tokens": 4, "do_sample": False}
    expected = model.generate(tokens, **settings)
    with AttentionSession(model, observers=[watch := WatchParts()], kernel="fast"):
        assert torch.equal(model.generate(tokens, **settings), expected)
    assert {c.query.shape[2] for c in watch.calls} == {tokens.shape[1], 1}


def test_a_failed_pass_is_discarded_and_repeated() -> None:
    class Full(WatchParts):
        failing = True

        def observe(self, call: AttentionCall) -> None:
            super().observe(call)
            if call.site.layer == 1 and self.failing:
                self.failing = False
                raise torch.OutOfMemoryError

    model, inputs = of_three("bert")
    with AttentionSession(model, observers=[watch := Full()], kernel="fast"):
        with pytest.raises(torch.OutOfMemoryError):
            run(model, inputs)
        run(model, inputs)
    assert watch.counts() == {f"encoder.{i}": 1 for i in range(3)}


def test_what_runs_outside_of_any_pass_cannot_be_observed() -> None:
    model, inputs = of_three("bert")
    with (
        AttentionSession(model, observers=[Watch()], kernel="fast"),
        pytest.raises(SelfCheckError, match="outside a forward pass of the model"),
        torch.no_grad(),
    ):
        model.forward(**inputs)


def test_no_other_normaliser_goes_with_the_fast_kernel() -> None:
    with pytest.raises(ValueError, match="accepts no other normaliser"):
        AttentionSession(zoo.ZOO["bert"].build(), normalizer=softmax, kernel="fast")


def contexts() -> st.SearchStrategy[CallContext]:
    return st.builds(
        random_context,
        batch=st.integers(1, 5),
        groups=st.integers(1, 3),
        lengths=st.tuples(st.integers(1, 6), st.integers(1, 6)),
        seed=st.integers(0, 999),
    )


def random_context(batch: int, groups: int, lengths: tuple[int, int], seed: int) -> CallContext:
    generator = torch.Generator().manual_seed(seed)
    sizes = [(batch, lengths[0], 2 * groups, 4), (batch, lengths[1], 2, 4), (batch, lengths[1], 2, 5)]
    query, key, value = (torch.randn(s, generator=generator).transpose(1, 2) for s in sizes)
    return CallContext(Site("encoder", 0, 2 * groups, "m"), query, key, value, None, None, causal=False)


def naive(context: CallContext, terms: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """One number at a time, in double precision."""
    groups = context.query.shape[1] // context.key.shape[1]
    batch, heads, queries, size = context.query.shape
    weights = torch.zeros(batch, heads, queries, context.key.shape[2], dtype=torch.float64)
    output = torch.zeros(batch, queries, heads, context.value.shape[3], dtype=torch.float64)
    for b, h, q in ((b, h, q) for b in range(batch) for h in range(heads) for q in range(queries)):
        keys, values = context.key[b, h // groups].double(), context.value[b, h // groups].double()
        scores = keys @ context.query[b, h, q].double() / size**0.5
        for term in terms:
            scores = scores + term.expand_as(weights)[b, h, q].double()
        powers = (scores - scores.max()).exp()
        weights[b, h, q] = powers / powers.sum()
        output[b, q, h] = weights[b, h, q] @ values
    return output, weights


@given(
    context=contexts(),
    masked=st.floats(0, 1),
    most=st.integers(1, 200),
    within=st.booleans(),
    causal=st.booleans(),
    data=st.data(),
)
def test_attention_in_blocks_of_any_size_against_one_number_at_a_time(
    context: CallContext, masked: float, most: int, within: bool, causal: bool, data: st.DataObject
) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    shape = [data.draw(st.sampled_from([1, n])) for n in (*context.query.shape[:3],)] + [context.key.shape[2]]
    mask = torch.zeros(shape).masked_fill(torch.rand(shape, generator=generator) < masked, LOWEST)
    later = additive(causal_mask(context.query, context.key), torch.float32)
    given, every = (None, later) if causal else (mask, mask)
    bias = torch.randn(1, *context.query.shape[1:3], context.key.shape[2], generator=generator)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "BLOCK", {"cpu": most, "other": most})
        patch.setattr(core, "FEWEST_QUERIES", 1)
        parts = list(core.blocks(context, divisible=True, within=within))
        (each,) = core.blocks(context, divisible=False)
        assert each == (slice(0, len(context.query)), slice(0, context.query.shape[2]), context)
    expected = naive(context, (every, bias))
    output, weights = (torch.full_like(t, torch.nan) for t in expected)
    for rows, queries, part in parts:
        terms = core.terms_of(rows, given, {"position_bias": bias}, queries)
        found = core.blocked_softmax_attention(part, terms, None, causal=causal)
        output[rows, queries], weights[rows, :, queries] = found
    for ours, theirs in zip((output, weights), expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)
    assert not causal or not weights[:, :, causal_mask(context.query, context.key).logical_not()].any()
    cut = within and context.site.stack != "cross" and context.query.shape[2] == context.key.shape[2]
    least = context.query.shape[1] * context.key.shape[2] * (1 if cut else context.query.shape[2])
    assert all(p.query.shape[:3].numel() * p.key.shape[2] <= max(most, least) for _, _, p in parts)
    assert all(p.last is (q.stop == context.query.shape[2]) and p.start == q.start for _, q, p in parts)


def test_the_scaling_a_model_asks_for() -> None:
    context = random_context(1, 1, (2, 3), 0)
    _, weights = core.blocked_softmax_attention(context, (), 0.3)
    scores = torch.matmul(context.query, context.key.transpose(2, 3)) * 0.3
    assert torch.allclose(weights, torch.softmax(scores, -1), atol=1e-6)


@pytest.fixture
def annotated() -> BatchTokens:
    """Five sentences with trees, rare words and sampled queries."""
    tokens = zoo.tokens((7, 4, 5, 3, 6))
    arcs = torch.tensor([[0, 1, 0, 0], [1, 0, 1, 1], [1, 1, 0, 0], [4, 2, 0, 1]])
    rarity = torch.arange(5)[:, None].expand(5, 5)
    return BatchTokens(encoder=replace(tokens, arcs=arcs, rarity=rarity, sampled=torch.tensor([0, 1, -1, 2, 3])))


def test_rows_of_tokens(annotated: BatchTokens) -> None:
    tokens = annotated.encoder
    part = tokens.rows(slice(1, 3))
    assert part.shape == (2, 7)
    assert part.arcs.tolist() == [[0, 0, 1, 1], [0, 1, 0, 0]]
    assert part.rarity[:, 0].tolist() == [1, 2]
    assert part.sampled.tolist() == [1, -1]
    assert part.n_words.tolist() == [2, 3]
    assert torch.equal(part.separator, tokens.separator[1:3])
    assert tokens.rows(slice(1, 3)) is part
    assert tokens.rows(slice(3, 9)).arcs.tolist() == [[1, 2, 0, 1]]
    assert zoo.tokens((3, 4)).rows(slice(0, 1)).arcs is None


def test_a_copy_of_tokens_has_parts_of_its_own(annotated: BatchTokens) -> None:
    tokens = annotated.encoder
    part = tokens.rows(slice(0, 2))
    assert replace(tokens).rows(slice(0, 2)) is not part

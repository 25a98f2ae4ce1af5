"""Learned masks: what they do to a model, which positions they hold, and gradients against finite differences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import zoo
from tiers import rest_slow
from torch import Tensor
from watching import Watch, run

from headlens.attention.edits_and_observers import BatchTokens, Tokens
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site
from headlens.attention_masks.learned_mask import LearnedAttentionMask, LearnedMaskOptions, Scope, masked_sites
from headlens.attention_masks.mask_distributions import AdaptiveSpan, GumbelDegrees, GumbelSigmoid, MaskDistribution
from headlens.errors import OptionError
from headlens.interventions.edited_model import EditedModel

ENCODERS = ["bert", "albert", "albert-groups", "marian", "roberta", "distilbert", "modernbert", "bart"]
FAST = ["bert", "albert", "marian", "modernbert"]
SOFT = GumbelSigmoid(straight_through=False)
SOFT_DEGREES = GumbelDegrees(0.7, straight_through=False, largest=5)
SPANS = AdaptiveSpan(largest=7, ramp=3)
SITES = [Site("encoder", layer, 4, f"layer{layer}") for layer in range(3)]


def filled(mask: LearnedAttentionMask, value: float | None = None) -> LearnedAttentionMask:
    """With the same α everywhere, or spread ones; in place."""
    with torch.no_grad():
        torch.manual_seed(3)
        mask.alpha.copy_(torch.randn_like(mask.alpha) if value is None else torch.full_like(mask.alpha, value))
    return mask


def seen(name: str, found: Tensor, inputs: dict[str, Any]) -> Tensor:
    """Without what models compute of padding."""
    if zoo.ZOO[name].kind != "encoder":
        return found
    return found[inputs["attention_mask"].bool()]


@pytest.mark.parametrize("name", rest_slow(ENCODERS, FAST))
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize(
    "options",
    [LearnedMaskOptions(9), LearnedMaskOptions(9, structured=True), LearnedMaskOptions(9, form="multiplicative")],
)
def test_open_everywhere_it_is_the_plain_model(name: str, kernel: str, options: LearnedMaskOptions) -> None:
    model, inputs = zoo.ZOO[name].build(kernel), zoo.padded(zoo.ZOO[name])
    mask = filled(LearnedAttentionMask(masked_sites(model), options, SOFT), 40.0)
    with EditedModel(model, mask).eval().opened():
        found = run(model, inputs)
    torch.testing.assert_close(seen(name, found, inputs), seen(name, run(model, inputs), inputs), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", rest_slow(ENCODERS, FAST))
@pytest.mark.parametrize("structured", [False, True])
@pytest.mark.parametrize("per_layer", [False, True])
def test_masked_positions_get_no_weight(name: str, structured: bool, per_layer: bool) -> None:
    """Below 1e-6 at c = 1e4."""
    model, inputs = zoo.ZOO[name].build(), zoo.padded(zoo.ZOO[name])
    options = LearnedMaskOptions(9, structured=structured, per_layer=per_layer)
    mask = filled(LearnedAttentionMask(masked_sites(model), options)).eval()
    with torch.no_grad():
        # So that every query may look somewhere, also in a window of its layer.
        mask.alpha[..., options.shape.offsets() == 0] = 1.0
    watch = Watch()
    real = inputs["attention_mask"].bool()
    session = AttentionSession(model, observers=[watch], edits=[mask])
    with session, session.batch(BatchTokens(encoder=Tokens.only_real(real))):
        run(model, inputs)
    checked = 0
    for call in watch.calls:
        if call.site.stack != "encoder":
            continue
        kept = mask.kept()[call.site.layer if per_layer else 0]
        for sentence, length in enumerate(real.sum(1).tolist()):
            own = kept[:, :length, :length].clone()
            if structured:
                own[:, -1] = own[:, :, -1] = True
            weights = call.weights[sentence, :, :length, :length]
            checked += int((~own).sum())
            assert float(weights.masked_fill(own, 0.0).max()) < 1e-6
    assert checked > 50


@pytest.mark.parametrize("kernel", rest_slow(["eager", "sdpa"], ["sdpa"]))
@pytest.mark.parametrize(
    ("options", "law", "scope"),
    [
        (LearnedMaskOptions(8, strength=20.0), SOFT, Scope()),
        (LearnedMaskOptions(8, strength=20.0, structured=True, per_layer=True), SOFT, Scope()),
        (LearnedMaskOptions(8, form="multiplicative"), SOFT, Scope(counted=5)),
        (LearnedMaskOptions(8, form="multiplicative", structured=True, diagonal=False), SOFT, Scope(counted=5)),
        (LearnedMaskOptions(8, form="renormalised", per_layer=True), SOFT, Scope(layers=(1,))),
        (LearnedMaskOptions(8, form="renormalised", structured=True, per_layer=True), SOFT_DEGREES, Scope()),
        (LearnedMaskOptions(8, form="renormalised", structured=True, per_layer=True), SPANS, Scope()),
        (
            LearnedMaskOptions(8, form="renormalised", structured=True, noise="never"),
            SOFT_DEGREES,
            Scope(per_head=False, counted=6),
        ),
    ],
)
def test_gradients_by_finite_differences(
    kernel: str, options: LearnedMaskOptions, law: MaskDistribution, scope: Scope
) -> None:
    """Of a loss and the penalty, by α, with noise that stays as it is; in double precision and a padded batch."""
    model, inputs = zoo.ZOO["bert"].build(kernel).double(), zoo.padded(zoo.ZOO["bert"])
    mask = filled(LearnedAttentionMask(masked_sites(model), options, law, scope=scope).double())
    masked = EditedModel(model, mask).eval()
    mask.train()

    def loss() -> Tensor:
        torch.manual_seed(11)
        outputs: Any = masked(**inputs).last_hidden_state
        return outputs[inputs["attention_mask"].bool()].tanh().sum() + 0.07 * mask.penalty()

    with masked.opened():
        (exact,) = torch.autograd.grad(loss(), mask.alpha)
        places = exact.abs().flatten().argsort(descending=True)[:: max(1, exact.numel() // 8)]
        for place in places.tolist():
            ends = []
            for step in (1e-5, -1e-5):
                with torch.no_grad():
                    mask.alpha.view(-1)[place] += step
                    ends.append(float(loss().detach()))
                    mask.alpha.view(-1)[place] -= step
            assert float(exact.view(-1)[place]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-4, abs=1e-6)
    assert float(exact.abs().max()) > 0.05


@pytest.mark.parametrize("diagonal", [True, False])
def test_structured_masks_are_toeplitz_but_for_first_and_last(diagonal: bool) -> None:
    mask = filled(LearnedAttentionMask(SITES, LearnedMaskOptions(10, structured=True, diagonal=diagonal)))
    for found in (mask.probabilities(), mask.kept().double()):
        same = torch.eye(10, dtype=torch.bool)
        for place in (0, 9):
            for line in (found[..., place, :], found[..., :, place]):
                assert bool((line[..., same[place]] == float(diagonal)).all())
                assert bool((line[..., ~same[place]] == 1).all())
        inner = found[..., 1:-1, 1:-1]
        assert torch.equal(inner[..., 1:, 1:], inner[..., :-1, :-1])
        assert torch.equal(inner, inner.mT)
    torch.testing.assert_close(mask.probabilities()[0, :, 2, 5], torch.sigmoid(mask.alpha[0, :, 3]))


@pytest.mark.parametrize("structured", [False, True])
def test_symmetric_after_every_step(structured: bool) -> None:
    model, inputs = zoo.ZOO["bert"].build("sdpa"), zoo.padded(zoo.ZOO["bert"])
    masked = EditedModel(
        model, LearnedAttentionMask(masked_sites(model), LearnedMaskOptions(7, structured=structured))
    ).train()
    optimiser = torch.optim.AdamW(masked.parameters(), lr=0.1)
    before = masked.edit.alpha.detach().clone()
    with masked.opened():
        for _ in range(3):
            masked(**inputs).last_hidden_state.tanh().sum().backward()
            optimiser.step()
            optimiser.zero_grad()
            found = masked.edit.probabilities()
            assert torch.equal(found, found.mT)
    assert float((masked.edit.alpha - before).abs().detach().max()) > 0.1


@pytest.mark.parametrize("form", ["additive", "multiplicative"])
def test_a_padded_sentence_gets_what_it_gets_alone(form: Any) -> None:
    """The top-left block of the mask, with the last row and column at its own end."""
    model, inputs = zoo.ZOO["bert"].build("sdpa"), zoo.padded(zoo.ZOO["bert"])
    mask = filled(LearnedAttentionMask(masked_sites(model), LearnedMaskOptions(9, structured=True, form=form), SOFT))
    with EditedModel(model, mask).eval().opened():
        together = run(model, inputs)
        for sentence, length in enumerate(zoo.LENGTHS):
            alone = run(model, {k: v[sentence : sentence + 1, :length] for k, v in inputs.items()})
            torch.testing.assert_close(together[sentence : sentence + 1, :length], alone, rtol=0, atol=2e-5)


def test_one_draw_for_all_layers_of_a_pass() -> None:
    """In training M is what the law gives for torch's own noise, and the same in every layer."""
    model, inputs = zoo.ZOO["albert"].build(), zoo.padded(zoo.ZOO["albert"])
    mask = filled(LearnedAttentionMask(masked_sites(model), LearnedMaskOptions(7)))
    masked = EditedModel(model, mask).eval()
    mask.train()
    with masked.opened():
        torch.manual_seed(5)
        first = run(masked, inputs)
        drawn = mask.values.detach()
        assert not torch.equal(run(masked, inputs), first)
        torch.manual_seed(5)
        assert torch.equal(run(masked, inputs), first)
    torch.manual_seed(5)
    assert torch.equal(drawn, mask.law.sample(mask.alpha, mask.law.noise(mask.alpha)).detach())
    assert int(mask.drawn) == 3
    # The same as a fixed mask of those numbers, which is without noise and in all layers.
    with torch.no_grad():
        mask.alpha.copy_(2 * drawn - 1)
    with masked.opened():
        mask.eval()
        torch.testing.assert_close(run(masked, inputs), first, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("noise", "in_training", "at_evaluation"), [("training", 1, 0), ("always", 1, 1), ("never", 0, 0)]
)
def test_when_there_is_noise(noise: Any, in_training: int, at_evaluation: int) -> None:
    mask = filled(LearnedAttentionMask(SITES, LearnedMaskOptions(20, noise=noise)), 0.1)
    for training, expected in ((True, in_training), (False, at_evaluation)):
        mask.train(training).draw()
        assert len(mask.values.unique()) == 1 + expected
    mask.forget()
    assert mask.values.unique().tolist() == [1.0]


def test_heads_of_a_layer_have_masks_of_their_own() -> None:
    """And those that were cut out take their part along."""
    site = Site("encoder", 1, 2, "somewhere", left=(1, 3))
    mask = LearnedAttentionMask([site, *SITES[2:]], LearnedMaskOptions(5, per_layer=True))
    assert mask.alpha.shape == (2, 4, 15)
    assert LearnedAttentionMask(SITES, LearnedMaskOptions(5)).alpha.shape == (1, 4, 15)
    filled(mask)
    context = _context(site, length=4)
    expected = (1e4 * (mask.kept()[site.layer][[1, 3]].float() - 1))[None, :, :4, :4]
    assert torch.equal(mask.mask(context, None).detach(), expected)
    assert torch.equal(mask.mask(context, torch.full((1, 1, 1, 4), 2.0)).detach(), expected + 2)


def _context(site: Site, length: int) -> Any:
    from headlens.attention.edits_and_observers import CallContext

    part = torch.zeros(1, site.n_heads, length, 3)
    return CallContext(site, part, part, part, None, None, causal=False)


@pytest.mark.parametrize("structured", [False, True])
@pytest.mark.parametrize("diagonal", [True, False])
def test_penalty_is_the_sum_over_positions(structured: bool, diagonal: bool) -> None:
    options = LearnedMaskOptions(7, structured=structured, diagonal=diagonal, per_layer=True)
    mask = filled(LearnedAttentionMask(SITES, options, SOFT)).eval()
    learned = mask.probabilities()
    if structured:
        learned = learned[..., 1:-1, 1:-1]
    assert float(mask.penalty().detach()) == pytest.approx(float(learned.sum()), rel=1e-5)
    assert float(mask.penalty("mean").detach()) == pytest.approx(float(learned.sum()) / (3 * 4 * 49), rel=1e-5)


def test_no_diagonal_masks_it_everywhere() -> None:
    mask = filled(LearnedAttentionMask(SITES, LearnedMaskOptions(6, diagonal=False)), 5.0)
    assert torch.equal(mask.kept(), ~torch.eye(6, dtype=torch.bool).expand(1, 4, 6, 6))


def test_multiplied_rows_do_not_sum_to_1() -> None:
    """Equation 4: the weights of the plain model, times M."""
    model, inputs = zoo.ZOO["bert"].build(), zoo.padded(zoo.ZOO["bert"])
    mask = filled(LearnedAttentionMask(masked_sites(model), LearnedMaskOptions(7, form="multiplicative"), SOFT)).eval()
    plain, found = Watch(), Watch()
    with AttentionSession(model, observers=[plain]):
        run(model, inputs)
    with AttentionSession(model, observers=[found], normalizer=mask):
        run(model, inputs)
    expected = plain.calls[0].weights * mask.probabilities()
    torch.testing.assert_close(found.calls[0].weights.detach(), expected, rtol=0, atol=1e-6)
    assert float(expected.sum(-1).max()) < 0.99


def test_before_training_alpha_is_near_0() -> None:
    torch.manual_seed(0)
    alpha = LearnedAttentionMask(SITES, LearnedMaskOptions(64)).alpha.detach()
    assert float(alpha.std()) == pytest.approx(1e-3, rel=0.05)
    assert abs(float(alpha.mean())) < 1e-4


def test_texts_that_are_longer_than_the_mask() -> None:
    model, inputs = zoo.ZOO["bert"].build(), zoo.padded(zoo.ZOO["bert"])
    masked = EditedModel(model, LearnedAttentionMask(masked_sites(model), LearnedMaskOptions(6)))
    with masked.opened(), pytest.raises(OptionError, match="A text of 7 tokens is longer than the mask of 6"):
        masked(**inputs)


def test_masks_of_another_model_and_models_without_encoder() -> None:
    with pytest.raises(OptionError, match=r"The mask of encoder\.0 cannot belong to this model"):
        AttentionSession(zoo.ZOO["bert"].build(), edits=[LearnedAttentionMask([Site("encoder", 0, 3, "somewhere")])])
    with pytest.raises(OptionError, match="GPT2LMHeadModel has no encoder whose attention could be masked"):
        masked_sites(zoo.ZOO["gpt2"].build())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"longest": 1}, "--data-args longest 1 leaves nothing to mask"),
        ({"strength": 0.0}, r"--law strength=0\.0 is not a positive number"),
        ({"form": "other"}, "--law form=other is unknown"),
        ({"noise": "other"}, "--law noise=other is unknown"),
    ],
)
def test_options_that_cannot_be(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        LearnedMaskOptions(**wrong)


def test_a_scope_without_layers() -> None:
    with pytest.raises(OptionError, match=r"--layers is empty\.\nLeave it out"):
        Scope(layers=())

"""Adaptive spans: the ramp by loops, what they do to weights of attention, and what their penalty counts."""

from __future__ import annotations

import math

import pytest
import torch
import zoo
from watching import Watch, run

from headlens.attention.edits_and_observers import BatchTokens, Tokens
from headlens.attention.session import AttentionSession
from headlens.attention_masks.learned_mask import LearnedAttentionMask, LearnedMaskOptions, masked_sites
from headlens.attention_masks.mask_distributions import AdaptiveSpan
from headlens.errors import OptionError


def ramp(span: float, width: int, distance: int) -> float:
    """By cases: whole weight within the span, none beyond its ramp, a line between."""
    if distance <= span:
        return 1.0
    return 0.0 if distance >= span + width else 1 - (distance - span) / width


@pytest.mark.parametrize("width", [1, 3])
def test_numbers_by_cases(width: int) -> None:
    law = AdaptiveSpan(largest=9, ramp=width)
    alpha = torch.tensor([[-60.0], [-1.3], [0.0], [2.0], [60.0]], dtype=torch.float64)
    spans = [9 / (1 + math.exp(-float(a))) for a in alpha]
    assert law.spans(alpha)[:, 0].tolist() == pytest.approx(spans)
    wanted = [[ramp(z, width, k) for k in range(10)] for z in spans]
    for found in (law.sample(alpha, law.noise(alpha), 0.3), law.settled(alpha, 2.0), law.probabilities(alpha)):
        torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64))
    assert law.kept(alpha).tolist() == [[m > 0 for m in row] for row in wanted]
    assert law.size(10) == 1
    assert law.spans(law.start(torch.zeros(2, 1))).tolist() == [[pytest.approx(8.1)]] * 2
    assert torch.autograd.gradcheck(law.sample, alpha[1:4].requires_grad_())


def test_weights_are_multiplied_and_sum_to_1() -> None:
    model, inputs = zoo.ZOO["bert"].build(), zoo.padded(zoo.ZOO["bert"])
    options = LearnedMaskOptions(9, structured=True, per_layer=True, form="renormalised")
    mask = LearnedAttentionMask(masked_sites(model), options, AdaptiveSpan(largest=8, ramp=2)).eval()
    with torch.no_grad():
        mask.alpha.copy_(torch.linspace(-7, -1, mask.alpha.numel()).view_as(mask.alpha))
    real = inputs["attention_mask"].bool()
    weights = []
    for edits in ([], [mask]):
        watch = Watch()
        session = AttentionSession(model, observers=[watch], edits=edits)
        with session, session.batch(BatchTokens(encoder=Tokens.only_real(real))):
            run(model, inputs)
        weights.append(watch.calls[0].weights)
    plain, found = weights
    checked = 0
    for sentence, n in enumerate(real.sum(1).tolist()):
        for head in range(plain.shape[1]):
            span = float(mask.law.spans(mask.alpha.detach()[0, head, 0]))
            for i in range(n):
                ends = [i in {0, n - 1} or j in {0, n - 1} for j in range(n)]
                factors = torch.tensor([1.0 if ends[j] else ramp(span, 2, abs(i - j)) for j in range(n)])
                wanted = plain[sentence, head, i, :n] * factors
                assert found[sentence, head, i, :n].tolist() == pytest.approx(
                    (wanted / wanted.sum()).tolist(), abs=1e-5
                )
                checked += int((factors == 0).sum())
    assert checked > 10


def test_the_penalty_is_on_spans() -> None:
    model = zoo.ZOO["bert"].build()
    options = LearnedMaskOptions(9, structured=True, per_layer=True, form="renormalised")
    mask = LearnedAttentionMask(masked_sites(model), options, AdaptiveSpan(largest=8))
    with torch.no_grad():
        mask.alpha.copy_(torch.randn_like(mask.alpha))
    shares = mask.law.spans(mask.alpha.detach()) / 8
    assert mask.penalty("mean").item() == pytest.approx(shares.mean().item())
    assert mask.penalty("sum").item() == pytest.approx(shares.sum().item())


def test_what_cannot_be() -> None:
    with pytest.raises(OptionError, match="--law span-ramp 0: a span has no end"):
        AdaptiveSpan(ramp=0)
    with pytest.raises(OptionError, match="Degrees are defined over offsets"):
        LearnedAttentionMask(masked_sites(zoo.ZOO["bert"].build()), LearnedMaskOptions(9), AdaptiveSpan(largest=8))

"""Training of masks: the penalty, what is learned of a planted task, and going on after an interruption."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from made_training import Folder, assert_equal, weights
from tiers import rest_slow_rows
from transformers import BertConfig, BertForMaskedLM

from headlens.attention_masks.learned_mask import LearnedAttentionMask, LearnedMaskOptions, mask_sparsity, masked_sites
from headlens.attention_masks.mask_distributions import GumbelDegrees, GumbelSigmoid, MaskDistribution
from headlens.interventions.edited_model import EDIT, EditedModel
from headlens.learning.batch_sampler import Indices
from headlens.learning.hyperparameters import TrainingOptions
from headlens.learning.loop import Trainer
from headlens.learning.objectives import MaskedTokenLoss
from headlens.learning.penalized_training import PenalizedObjective
from headlens.options import PenaltyKind

N = 12
Masked = EditedModel[LearnedAttentionMask]
OPTIONS = TrainingOptions(steps=200, batch_tokens=64 * N, learning_rate=5e-3, log_every=50, weight_decay=0.0)
# The same task with half as many places, which a second of CPU time learns.
SHORT = TrainingOptions(steps=80, batch_tokens=32 * 6, learning_rate=2e-2, log_every=20, weight_decay=0.0)
slow = pytest.mark.slow


@dataclass(frozen=True)
class PreviousToken:
    """Random tokens; at every place the one before is to be told, or one further back."""

    count: int = 640
    back: int = 1
    length: int = N

    @property
    def lengths(self) -> Sequence[int]:
        return [self.length] * self.count

    def batch(self, indices: Indices, epoch: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(indices[0] + 1000 * epoch)
        ids = torch.randint(1, 9, (len(indices), self.length), generator=generator)
        labels = ids.roll(self.back, 1)
        labels[:, : self.back] = -100
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def made(options: LearnedMaskOptions, law: MaskDistribution | None = None, draws: int = 1) -> Masked:
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = BertForMaskedLM(BertConfig(vocab_size=10, max_position_embeddings=options.longest, **shape, **none))
    return EditedModel(model, LearnedAttentionMask(masked_sites(model), options, law, draws))


def trainer(
    masked: Masked,
    strength: float,
    options: TrainingOptions = OPTIONS,
    kind: PenaltyKind = "sum",
    **more: Any,
) -> Trainer:
    objective = PenalizedObjective(MaskedTokenLoss(), masked.edit, strength, kind)
    return Trainer(
        options, objective, scales={EDIT: 10.0}, record=lambda _: masked.edit.log_columns(), clip_apart=True, **more
    )


@pytest.mark.parametrize(
    ("n", "structured", "strength"),
    [(6, True, 5e-3), pytest.param(N, True, 1e-3, marks=slow), pytest.param(N, False, 3e-3, marks=slow)],
)
def test_where_only_the_previous_token_matters_no_other_offset_is_kept(
    n: int, structured: bool, strength: float
) -> None:
    masked = made(LearnedMaskOptions(n, structured=structured))
    with masked.opened():
        state = trainer(masked, strength, OPTIONS if n == N else SHORT).fit(
            masked, PreviousToken(640 if n == N else 320, length=n)
        )
    kept = masked.edit.kept()[0, :, 1:-1, 1:-1]
    places = torch.arange(n - 2)
    offset = (places[:, None] - places).abs()
    # Positions are symmetric: with the previous token goes the next. One head is enough.
    assert bool(kept.any(dim=0)[offset == 1].all())
    assert not bool(kept[:, offset != 1].any())
    assert state.log[-1]["sparsity"] == pytest.approx(mask_sparsity(masked.edit.kept()))
    assert state.log[0]["undecided"] > state.log[-1]["undecided"]
    penalty = strength * float(masked.edit.penalty().detach())
    # Chance is log 8 = 2.08.
    assert state.log[-1]["loss"] - penalty < 0.7
    assert state.log[0]["loss"] - penalty > 1.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "back", "strength", "most"),
    [(6, 1, 0.1, 0.7), *(pytest.param(N, back, 0.3, 0.4, marks=slow) for back in (1, 2, 4))],
)
def test_degrees_come_to_the_width_that_matters(n: int, back: int, strength: float, most: float) -> None:
    """Heads look as far back as they have to, and no further."""
    law = GumbelDegrees(largest=7 if n == N else 3)
    masked = made(LearnedMaskOptions(n, structured=True, form="renormalised"), law)
    options, texts = (replace(OPTIONS, steps=300), 640) if n == N else (SHORT, 320)
    with masked.opened():
        state = trainer(masked, strength, options, "mean").fit(masked, PreviousToken(texts, back, n))
    # The diagonal is always open.
    degrees = law.kept(masked.edit.alpha.detach()).sum(dim=-1) - 1
    assert int(degrees.max()) == back
    # Chance is log 8 = 2.08.
    assert state.log[-1]["loss"] < most


def test_the_penalty_is_that_of_the_pass() -> None:
    """λ times the sum of what the forward pass drew, in every unit of the loss."""
    masked, data = made(LearnedMaskOptions(N, structured=True)), PreviousToken()
    inputs = data.batch((0, 1, 2), 0)
    objective = PenalizedObjective(MaskedTokenLoss(), masked.edit, 0.01, "sum")
    with masked.train().opened():
        torch.manual_seed(4)
        whole = objective.loss(masked, inputs).detach()
        drawn = masked.edit.values.detach()
        torch.manual_seed(4)
        task = MaskedTokenLoss().loss(masked, inputs).detach()
    sums = sum(float(drawn[0, h, k]) * (N - 2 - k) * (2 if k else 1) for h in range(2) for k in range(N - 2))
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    assert objective.units(inputs) == 3 * (N - 1)
    assert float(whole - task) == pytest.approx(0.01 * sums * 3 * (N - 1), rel=1e-4)


@pytest.mark.parametrize(
    ("law", "structured"),
    rest_slow_rows(
        [
            (GumbelSigmoid(), False),
            (GumbelSigmoid(), True),
            (GumbelSigmoid(2.0, 0.5, straight_through=False), True),
            (GumbelDegrees(2.0, 0.5, largest=4), True),
        ]
    ),
)
def test_interrupted_and_gone_on_with(tmp_path: Path, law: MaskDistribution, structured: bool) -> None:
    """Bit by bit as if it had never stopped, noise and temperature included."""
    options = replace(OPTIONS, steps=7, log_every=3)
    draws = 7

    def run(checkpoint: Folder | None) -> tuple[Masked, list[dict[str, float]]]:
        masked = made(LearnedMaskOptions(N, structured=structured), law, draws)
        with masked.opened():
            log = trainer(masked, 1e-3, options, checkpoint=checkpoint).fit(masked, PreviousToken()).log
        return masked, log

    whole, log = run(None)
    with pytest.raises(KeyboardInterrupt):
        run(Folder(tmp_path / "state", stop_after=4))
    torch.manual_seed(99)
    resumed, again = run(Folder(tmp_path / "state"))
    assert_equal(weights(resumed), weights(whole))
    assert again == log
    assert int(resumed.edit.drawn) == 7
    assert [row["temperature"] for row in log][-1] == pytest.approx(law.final_temperature or 1.0)


def test_alpha_has_no_weight_decay_and_a_rate_of_its_own() -> None:
    from headlens.learning.objectives import parameter_groups

    masked = made(LearnedMaskOptions(N))
    groups = parameter_groups(masked, 0.1, {EDIT: 7.0})
    (own,) = [g for g in groups if any(p is masked.edit.alpha for p in g["params"])]
    assert (own["weight_decay"], own["scale"], len(own["params"])) == (0.0, 7.0, 1)


@pytest.mark.parametrize("apart", [True, False])
def test_large_gradients_of_a_mask_can_be_clipped_apart(apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose norm is clipped: all parameters together, or the mask by itself."""
    found = []
    clip = torch.nn.utils.clip_grad_norm_
    monkeypatch.setattr(
        torch.nn.utils, "clip_grad_norm_", lambda p, *a, **k: found.append(len(p := list(p))) or clip(p, *a, **k)
    )
    masked = made(LearnedMaskOptions(N))
    one = replace(trainer(masked, 0.0, replace(OPTIONS, steps=1)), clip_apart=apart)
    with masked.opened():
        one.fit(masked, PreviousToken())
    everything = len(list(masked.parameters()))
    assert found == ([everything - 1, 1] if apart else [everything])


@pytest.mark.parametrize("apart", [True, False])
def test_steep_gradients_of_a_mask_leave_the_model_its_own_update(apart: bool) -> None:
    """Where nearly all is masked, the gradient of a renormalised mask is thousands of times that of an open one."""

    def updated(factor: float) -> list[torch.Tensor]:
        masked = made(LearnedMaskOptions(N, structured=True, form="renormalised"))
        with torch.no_grad():
            masked.edit.alpha.fill_(-3.5)  # P = 0.03
        masked.edit.alpha.register_hook(lambda gradient: factor * gradient)
        torch.manual_seed(1)
        with masked.opened():
            replace(trainer(masked, 1e-3, replace(OPTIONS, steps=3)), clip_apart=apart).fit(masked, PreviousToken())
        return [p.detach() for name, p in masked.named_parameters() if not name.startswith(EDIT)]

    alike = [bool(torch.allclose(a, b, rtol=1e-5, atol=1e-7)) for a, b in zip(updated(1e4), updated(1e7), strict=True)]
    assert all(alike) == apart

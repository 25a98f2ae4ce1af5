"""Gates in the training loop: what closes and what stays, by hand, interrupted, in half precision, in two processes."""

from __future__ import annotations

import copy
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from made_training import Folder, ModelLoss, Sentences, assert_equal, weights
from saved import build
from tiers import rest_slow
from torch import nn

from headlens.errors import OptionError
from headlens.heads import Head
from headlens.interventions.edited_model import EDIT, EditedModel
from headlens.interventions.hard_concrete import HardConcrete
from headlens.learning.batch_sampler import Indices
from headlens.learning.gate_training import StochasticGates, gated_sites, logged
from headlens.learning.hyperparameters import TrainingOptions
from headlens.learning.loop import Trainer
from headlens.learning.penalized_training import PenalizedObjective
from headlens.weights.head_slicing import projections

SITE = "bert.encoder.layer.0.attention.self"


@dataclass(frozen=True)
class Occurs:
    """Does token 7 occur? The first token, which is read, sees the others through heads alone."""

    count: int = 64

    @property
    def lengths(self) -> Sequence[int]:
        return [7] * self.count

    def batch(self, indices: Indices, epoch: int) -> dict[str, Any]:
        del epoch
        rows = []
        for index in indices:
            ids = torch.randint(8, 20, (7,), generator=torch.Generator().manual_seed(index))
            ids[0] = 2
            if index % 2:
                ids[1 + index // 2 % 6] = 7
            rows.append(ids)
        return {"input_ids": torch.stack(rows), "labels": torch.tensor(indices) % 2}


LEARNING = TrainingOptions(steps=60, batch_tokens=500, learning_rate=2e-2)


@pytest.fixture(scope="module")
def learned() -> nn.Module:
    """A layer of two heads that has learned the task."""
    torch.manual_seed(0)
    model = build("BertForSequenceClassification", num_hidden_layers=1, hidden_dropout_prob=0.0)
    Trainer(LEARNING, ModelLoss()).fit(model, Occurs())
    assert accuracy(model) == 1
    return model


def accuracy(model: nn.Module) -> float:
    batch = Occurs().batch(tuple(range(64)), 0)
    with torch.no_grad():
        found = model(input_ids=batch["input_ids"]).logits.argmax(-1)
    return float((found == batch["labels"]).float().mean())


def fitted(model: nn.Module, strength: float, steps: int = 200, **options: Any) -> tuple[EditedModel, Any]:
    own: Any = copy.deepcopy(model)
    gated = EditedModel(own, StochasticGates(gated_sites(own)))
    training = TrainingOptions(steps=steps, batch_tokens=500, learning_rate=1e-3, log_every=10, **options)
    scales = {EDIT: 0.1 / training.learning_rate}
    with gated.opened():
        trainer = Trainer(
            training,
            PenalizedObjective(ModelLoss(), gated.edit, strength, "mean"),
            scales=scales,
            record=lambda _: gated.edit.log_columns(),
        )
        state = trainer.fit(gated, Occurs())
    return gated, state


@pytest.mark.slow
def test_without_a_penalty_all_heads_stay(learned: nn.Module) -> None:
    gated, _ = fitted(learned, 0.0)
    assert gated.edit.closed() == []
    with gated.opened():
        assert accuracy(gated) == 1


@pytest.mark.slow
def test_a_very_large_penalty_closes_all(learned: nn.Module) -> None:
    gated, _ = fitted(learned, 1000.0)
    assert gated.edit.closed() == gated.edit.heads


def columns(model: nn.Module, head: int) -> torch.Tensor:
    """The columns of a head in the output projection."""
    size = projections(model, SITE).head_size
    return projections(model, SITE).output.weight[:, head * size : (head + 1) * size]


@pytest.fixture(scope="module", params=rest_slow([0, 1]))
def planted(request: pytest.FixtureRequest) -> tuple[int, nn.Module]:
    """A head without output, and a layer that has learned the task with the other one."""
    torch.manual_seed(1)
    head = request.param
    model = build("BertForSequenceClassification", num_hidden_layers=1, hidden_dropout_prob=0.0)

    def silence(*_: object) -> None:
        with torch.no_grad():
            columns(model, head).zero_()

    handle = model.register_forward_pre_hook(silence)
    Trainer(LEARNING, ModelLoss()).fit(model, Occurs())
    handle.remove()
    silence()
    assert accuracy(model) == 1
    for parameter in model.parameters():
        parameter.requires_grad_(requires_grad=False)
    return head, model


def test_a_head_without_output_goes_and_the_one_the_task_needs_stays(planted: tuple[int, nn.Module]) -> None:
    head, model = planted
    gated, state = fitted(model, 0.05, 110)
    assert gated.edit.closed() == [Head("encoder", 0, head)]
    for row in state.log[5:]:
        found = logged(row)
        assert found[Head("encoder", 0, head)] < found[Head("encoder", 0, 1 - head)]


@pytest.mark.slow
def test_of_two_equal_heads_one_goes(learned: nn.Module) -> None:
    model = copy.deepcopy(learned)
    parts = projections(model, SITE)
    size = parts.head_size
    with torch.no_grad():
        for layer in parts.inward:
            layer.module.weight[size:] = layer.module.weight[:size]
            layer.module.bias[size:] = layer.module.bias[:size]
        columns(model, 1).copy_(columns(model, 0))
    Trainer(TrainingOptions(steps=100, batch_tokens=500, learning_rate=5e-3), ModelLoss()).fit(model, Occurs())
    gated, _ = fitted(model, 0.2, 400)
    assert len(gated.edit.closed()) == 1
    with gated.opened():
        assert accuracy(gated) == 1


def test_the_loss_and_the_step_by_hand(learned: nn.Module) -> None:
    """One update: Adam's first step is the learning rate in the direction of the gradient, for gates at their own."""
    gated, state = fitted(learned, 3.0, 1, warmup=0, schedule="constant", clip=0.0)
    before = StochasticGates(gated.edit.sites)
    for name, log_alpha in gated.edit.log_alpha.items():
        moved = (before.log_alpha[name] - log_alpha).detach()
        torch.testing.assert_close(moved, torch.full_like(moved, 0.1), rtol=1e-4, atol=0)
    task = float(ModelLoss().loss(copy.deepcopy(learned).eval(), Occurs().batch(tuple(range(64)), 0)).detach()) / 64
    penalty = 3.0 * 2 / (1 + math.exp(-2.5) * 11**-0.33)
    assert state.log[0]["loss"] == pytest.approx(penalty + task, abs=0.2)
    first = logged(state.log[0])
    assert first == pytest.approx(gated.edit.log_alphas())


@pytest.mark.parametrize(("kind", "share"), [("mean", 1 / 2), ("sum", 1.0)])
def test_the_penalty_does_not_depend_on_the_batches(kind: Any, share: float) -> None:
    gates = StochasticGates(gated_sites(build("BertForSequenceClassification")), start=0.0)
    objective = PenalizedObjective(ModelLoss(), gates, 2.0, kind)
    model = build("BertForSequenceClassification").eval()
    batches = [Occurs().batch(i, 0) for i in ((0, 1), (2, 3, 4))]
    added = sum(float((objective.loss(model, b) - ModelLoss().loss(model, b)).detach()) for b in batches)
    assert added / sum(map(objective.units, batches)) == pytest.approx(2.0 * share * 4 / (1 + 11**-0.33), rel=1e-4)


def test_interrupted_and_gone_on_with(tmp_path: Path) -> None:
    options = TrainingOptions(steps=17, batch_tokens=40, learning_rate=1e-2, log_every=4)

    def run(checkpoint: Folder | None) -> tuple[EditedModel, Any]:
        own: Any = build("BertForSequenceClassification", num_labels=3)
        gated = EditedModel(own, StochasticGates(gated_sites(own)))
        objective = PenalizedObjective(ModelLoss(), gated.edit, 0.3, "mean")
        with gated.opened():
            trainer = Trainer(
                options, objective, checkpoint=checkpoint, scales={EDIT: 5.0}, record=lambda _: gated.edit.log_columns()
            )
            return gated, trainer.fit(gated, Sentences())

    whole, expected = run(None)
    with pytest.raises(KeyboardInterrupt):
        run(Folder(tmp_path / "state", 3, 7))
    torch.manual_seed(99)
    again, state = run(Folder(tmp_path / "state", 3))
    assert state == expected
    assert_equal(weights(again), weights(whole))


def test_in_half_precision(learned: nn.Module) -> None:
    gated, _ = fitted(learned, 0.0, 20, precision="bf16")
    assert {p.dtype for p in gated.parameters()} == {torch.float32}
    assert gated.edit.closed() == []


def test_nothing_left_to_train() -> None:
    model = build("BertForSequenceClassification")
    model.requires_grad_(requires_grad=False)
    with pytest.raises(
        OptionError, match=r"There is nothing left to train: all weights are frozen\.\nFreeze fewer parts\."
    ):
        Trainer(TrainingOptions(steps=1), ModelLoss()).fit(model, Sentences())


TWO = """
import sys, warnings
warnings.simplefilter("ignore")
sys.path[:0] = {paths!r}
import torch
from torch import distributed
from saved import build
from test_l0_objective import fitted
from headlens.interventions.hard_concrete import HardConcrete
distributed.init_process_group("gloo")
drawn, sample = [], HardConcrete.sample
def noted(law, log_alpha, noise):
    drawn.append(noise.detach().clone())
    return sample(law, log_alpha, noise)
HardConcrete.sample = noted
gated, state = fitted(build("BertForSequenceClassification"), 0.5, 5, accumulate=2)
torch.save([state.log, gated.state_dict(), drawn], f"{out}/{{distributed.get_rank()}}.pt")
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_share_gates_and_draw_their_own_noise(tmp_path: Path) -> None:
    here = Path(__file__).parent
    (tmp_path / "two.py").write_text(TWO.format(paths=[str(here), str(here.parent)], out=tmp_path))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(tmp_path / "two.py")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    one, two = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert one[0] == two[0]
    assert_equal(one[1], two[1])
    moved = [own for name, own in one[1].items() if name.startswith(EDIT)]
    assert moved
    assert all((own != 2.5).all() for own in moved)
    # 5 updates with 2 sites each: an epoch is over after one batch
    assert len(one[2]) == len(two[2]) == 10
    assert not any(torch.equal(a, b) for a, b in zip(one[2], two[2], strict=True))


def test_a_gate_that_helps_nothing_drifts_with_any_penalty() -> None:
    """Without a task the penalty alone closes gates, however small it is: Adam knows no size of gradients."""
    law, log_alpha = HardConcrete(), torch.tensor([2.5], requires_grad=True)
    optimiser = torch.optim.AdamW([log_alpha], lr=0.1, weight_decay=0.0)
    for _ in range(60):
        optimiser.zero_grad()
        (1e-3 * law.open_probability(log_alpha)).sum().backward()
        optimiser.step()
    assert float(law.gate(log_alpha.detach())) == 0

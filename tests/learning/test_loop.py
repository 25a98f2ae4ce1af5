"""The training loop against one written out by hand, and against itself interrupted."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from made_training import Folder, ModelLoss, Sentences, assert_equal, weights
from saved import build
from tiers import rest_slow_rows
from torch import nn

from headlens.errors import DivergedError, NotFiniteError, ResumeError
from headlens.learning.batch_sampler import BatchSampler
from headlens.learning.hyperparameters import TrainingOptions, learning_rate
from headlens.learning.loop import Trainer, TrainingState
from headlens.learning.objectives import parameter_groups

OPTIONS = TrainingOptions(steps=23, batch_tokens=40, learning_rate=1e-2, log_every=4, warmup=3)


def model(dropout: float = 0.1) -> nn.Module:
    return build(
        "BertForSequenceClassification", num_labels=3, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
    )


def test_as_written_out_by_hand() -> None:
    # In double precision: what has no gradient but rounding errors, as the biases of keys, would move at random.
    trained, expected = model(0.0).double(), model(0.0).double()
    state = Trainer(OPTIONS, ModelLoss()).fit(trained, Sentences())
    data = Sentences()
    order = BatchSampler(tuple(data.lengths), 40)
    optimiser = torch.optim.AdamW(parameter_groups(expected, 0.01))
    expected.train()
    losses, step, epoch = [], 0, 0
    while step < 23:
        for number in range(order.per_epoch(epoch)):
            if step == 23:
                break
            ((indices,),) = [order.of(epoch, number)]
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(OPTIONS, step, 23)
            optimiser.zero_grad()
            loss = expected(**data.batch(indices, epoch)).loss
            loss.backward()
            nn.utils.clip_grad_norm_(expected.parameters(), 1.0)
            optimiser.step()
            losses.append((float(loss.detach()) * len(indices), len(indices)))
            step += 1
        epoch += 1
    for name, parameter in expected.named_parameters():
        torch.testing.assert_close(weights(trained)[name], parameter.detach(), rtol=1e-6, atol=1e-9)
    assert [row["step"] for row in state.log] == [4, 8, 12, 16, 20, 23]
    four = losses[:4]
    assert state.log[0]["loss"] == pytest.approx(sum(a for a, _ in four) / sum(n for _, n in four), rel=1e-5)
    assert state.log[0]["learning_rate"] == learning_rate(OPTIONS, 3, 23)
    assert not trained.training


def test_the_loss_falls() -> None:
    options = TrainingOptions(steps=60, batch_tokens=200, learning_rate=2e-2, log_every=8)
    state = Trainer(options, ModelLoss()).fit(model(), Sentences(12))
    assert state.log[-1]["loss"] < 0.3 * state.log[0]["loss"]


def test_accumulated_batches_are_one_large_one() -> None:
    """An update's gradient is that of the mean over all its examples, though batches differ in size."""
    data = Sentences(12)
    small, large = (model(0.0).double() for _ in range(2))
    one = TrainingOptions(steps=1, batch_tokens=20, accumulate=100, learning_rate=1e-3, warmup=0)
    all_at_once = TrainingOptions(steps=1, batch_tokens=10**6, learning_rate=1e-3, warmup=0)
    Trainer(one, ModelLoss()).fit(small, data)
    Trainer(all_at_once, ModelLoss()).fit(large, data)
    for name, tensor in weights(small).items():
        torch.testing.assert_close(tensor, weights(large)[name], rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize(("stop", "every"), rest_slow_rows([(1, 1), (4, 3), (7, 1), (15, 4), (22, 22)]))
def test_interrupted_and_gone_on_with(tmp_path: Path, stop: int, every: int) -> None:
    evaluate = lambda m: {"sum": float(sum(p.sum() for p in m.parameters()))}  # noqa: E731
    whole = model()
    expected = Trainer(OPTIONS, ModelLoss(), evaluate).fit(whole, Sentences())
    checkpoint = Folder(tmp_path / "state", every, stop)
    with pytest.raises(KeyboardInterrupt):
        Trainer(OPTIONS, ModelLoss(), evaluate, checkpoint=checkpoint).fit(model(), Sentences())
    torch.manual_seed(99)  # whatever happened in between
    again = model()
    done: list[int] = []
    state = Trainer(
        OPTIONS, ModelLoss(), evaluate, checkpoint=Folder(tmp_path / "state", every), progress=done.append
    ).fit(again, Sentences())
    assert state == expected
    assert_equal(weights(again), weights(whole))
    assert sum(done) == 23
    assert done[:2] == [0, stop]


TWO = """
import sys, warnings
warnings.simplefilter("ignore")
sys.path[:0] = {paths!r}
import torch
from torch import distributed
from made_training import ModelLoss
from test_loop import Sentences, model
from headlens.learning.hyperparameters import TrainingOptions
from headlens.learning.loop import Trainer
distributed.init_process_group("gloo")
trained = model(0.0).double()
options = TrainingOptions(steps=3, batch_tokens=40, learning_rate=1e-2, log_every=1)
state = Trainer(options, ModelLoss()).fit(trained, Sentences())
torch.save([state.log, trained.state_dict()], f"{out}/{{distributed.get_rank()}}.pt")
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_are_one_with_twice_the_batches(tmp_path: Path) -> None:
    here = Path(__file__).parent
    (tmp_path / "two.py").write_text(TWO.format(paths=[str(here), str(here.parent)], out=tmp_path))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", tmp_path / "two.py"]
    subprocess.run(
        [str(c) for c in command], check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    alone = model(0.0).double()
    options = TrainingOptions(steps=3, batch_tokens=40, accumulate=2, learning_rate=1e-2, log_every=1)
    expected = Trainer(options, ModelLoss()).fit(alone, Sentences())
    for rank in range(2):
        log, state = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for row, own in zip(expected.log, log, strict=True):
            assert own == pytest.approx(row, rel=1e-9)
        for name, tensor in weights(alone).items():
            torch.testing.assert_close(state[name], tensor, rtol=1e-6, atol=1e-9)


def test_a_finished_run_is_not_trained_further(tmp_path: Path) -> None:
    trained = model()
    state = Trainer(OPTIONS, ModelLoss(), checkpoint=Folder(tmp_path / "state")).fit(trained, Sentences())
    fresh = model()
    assert Trainer(OPTIONS, ModelLoss(), checkpoint=Folder(tmp_path / "state")).fit(fresh, Sentences()) == state
    assert_equal(weights(fresh), weights(trained))


def test_a_state_of_another_model_or_half_of_one(tmp_path: Path) -> None:
    checkpoint = Folder(tmp_path / "state")
    Trainer(TrainingOptions(steps=1), ModelLoss(), checkpoint=checkpoint).fit(model(), Sentences())
    with pytest.raises(ResumeError, match="another model"):
        Trainer(OPTIONS, ModelLoss(), checkpoint=checkpoint).fit(build("AlbertForSequenceClassification"), Sentences())
    (tmp_path / "state" / "optimiser.pt").write_bytes(b"half")
    with pytest.raises(ResumeError, match="cannot be resumed from"):
        Trainer(OPTIONS, ModelLoss(), checkpoint=checkpoint).fit(model(), Sentences())
    (tmp_path / "state" / "random-0.pt").unlink()


def test_evaluations_and_patience() -> None:
    values = iter([0.1, 0.5, 0.4, 0.5, 0.6])
    best: list[int] = []
    trainer = Trainer(
        TrainingOptions(steps=100, batch_tokens=40, evaluate_every=2, patience=2),
        ModelLoss(),
        evaluate=lambda m: {"accuracy": next(values), "training": float(m.training)},
        better=lambda found: found["accuracy"],
        on_best=lambda _: best.append(1),
    )
    state = trainer.fit(model(), Sentences())
    assert state.step == 8
    assert [row["accuracy"] for row in state.evaluations] == [0.1, 0.5, 0.4, 0.5]
    assert {row["training"] for row in state.evaluations} == {0.0}
    assert (state.best, len(best)) == (0.5, 2)


def test_an_evaluation_at_the_end_of_every_epoch_and_of_all() -> None:
    trainer = Trainer(TrainingOptions(steps=11, batch_tokens=100), ModelLoss(), evaluate=lambda _: {})
    state = trainer.fit(model(), Sentences())
    per_epoch = BatchSampler(tuple(Sentences().lengths), 100).per_epoch(0)
    assert [row["step"] for row in state.evaluations] == [*range(per_epoch, 11, per_epoch), 11]
    assert state.evaluations[0]["epoch"] == 1


def test_a_part_of_an_epoch() -> None:
    per_epoch = BatchSampler(tuple(Sentences().lengths), 40).per_epoch(0)
    state = Trainer(TrainingOptions(epochs=0.5, batch_tokens=40), ModelLoss()).fit(model(), Sentences())
    assert state.step == round(per_epoch / 2)


def test_a_loss_that_is_no_number() -> None:
    broken = model()
    with torch.no_grad():
        next(iter(broken.parameters())).fill_(float("nan"))
    with pytest.raises(DivergedError, match="the loss of update 1 is nan"):
        Trainer(OPTIONS, ModelLoss()).fit(broken, Sentences())


@pytest.mark.parametrize(
    ("steps", "told"), [(1, "after update 1 the model gives NaN or infinity"), (2, "the loss of update 2 is nan")]
)
def test_weights_that_grow_too_large(steps: int, told: str) -> None:
    # One update leaves weights that are numbers, and no loss is known of them.
    options = replace(OPTIONS, steps=steps, learning_rate=1e30, warmup=0, log_every=100)
    with pytest.raises(DivergedError, match=told):
        Trainer(options, ModelLoss()).fit(model(), Sentences())


def test_a_model_that_gives_nan_diverges_unless_it_did_before_the_first_update() -> None:
    class Fails(ModelLoss):
        def __init__(self, after: int) -> None:
            self.left = after

        def loss(self, *given: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise NotFiniteError("NaN in the attention of encoder.0")
            return super().loss(*given)

    with pytest.raises(DivergedError, match="in update 2 the model gives NaN or infinity"):
        Trainer(OPTIONS, Fails(1)).fit(model(), Sentences())
    with pytest.raises(NotFiniteError, match=r"encoder\.0"):
        Trainer(OPTIONS, Fails(0)).fit(model(), Sentences())


def test_an_infinite_metric() -> None:
    trainer = Trainer(OPTIONS, ModelLoss(), evaluate=lambda _: {"perplexity": float("inf")})
    with pytest.raises(DivergedError, match="the perplexity is infinite"):
        trainer.fit(model(), Sentences())


def test_frozen_parameters_stay(tmp_path: Path) -> None:
    trained = model()
    frozen = [p for n, p in trained.named_parameters() if "layer.0" in n]
    before = [copy.deepcopy(p.requires_grad_(requires_grad=False)) for p in frozen]
    Trainer(OPTIONS, ModelLoss()).fit(trained, Sentences())
    assert all(torch.equal(a, b) for a, b in zip(before, frozen, strict=True))


def test_the_state_survives_json(tmp_path: Path) -> None:
    trained = model()
    optimiser = torch.optim.AdamW(trained.parameters())
    state = TrainingState(3, 1, 2, 0.1 + 0.2, 7, [{"step": 1, "loss": 1 / 3}], [], 0.7, 1, stopped=True)
    state.save(tmp_path, trained, optimiser)
    other = TrainingState()
    other.restore(tmp_path, model(), optimiser)
    assert other == state


def test_every_new_row_of_log_or_evaluations_is_told_at_once() -> None:
    seen: list[tuple[int, int, int]] = []
    every = TrainingOptions(steps=6, batch_tokens=40, log_every=2, evaluate_every=3)
    told = lambda state: seen.append((state.step, len(state.log), len(state.evaluations)))  # noqa: E731
    Trainer(every, ModelLoss(), lambda _: {"loss": 1.0}, logged=told).fit(model(), Sentences())
    assert seen == [(2, 1, 0), (3, 1, 1), (4, 2, 1), (6, 3, 1), (6, 3, 2)]


def test_the_model_is_saved_before_every_few_and_at_the_end(tmp_path: Path) -> None:
    """As trainings that end there leave it, and the same when the run was interrupted in between."""
    options = replace(OPTIONS, steps=7, schedule="constant", warmup=0, save_every=3)

    def saved(checkpoint: Folder | None = None) -> dict[int, dict[str, torch.Tensor]]:
        found: dict[int, dict[str, torch.Tensor]] = {}
        trained = model()

        def keep(step: int) -> None:
            found[step] = weights(trained)

        try:
            Trainer(options, ModelLoss(), checkpoint=checkpoint, save=keep).fit(trained, Sentences())
        except KeyboardInterrupt:
            assert checkpoint is not None
        return found

    whole = saved()
    assert list(whole) == [0, 3, 6, 7]
    assert_equal(whole[0], weights(model()))
    for step in (3, 6, 7):
        stopped = model()
        Trainer(replace(options, steps=step, save_every=0), ModelLoss()).fit(stopped, Sentences())
        assert_equal(whole[step], weights(stopped))
    before = saved(Folder(tmp_path / "state", stop_after=4))
    torch.manual_seed(99)
    after = saved(Folder(tmp_path / "state"))
    assert (list(before), list(after)) == ([0, 3], [6, 7])
    for step, tensors in {**before, **after}.items():
        assert_equal(tensors, whole[step])


def test_a_training_that_stops_early_is_saved_there() -> None:
    options = replace(OPTIONS, steps=9, evaluate_every=1, patience=2, save_every=4)
    saved: list[int] = []
    worse = iter(range(1, 10))
    trainer = Trainer(
        options, ModelLoss(), lambda _: {"loss": next(worse)}, lambda found: -found["loss"], save=saved.append
    )
    assert trainer.fit(model(), Sentences()).step == 3
    assert saved == [0, 3]

"""The one training loop: updates, log, evaluation, and the folder from which an interrupted run goes on."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from headlens.errors import DivergedError, NotFiniteError, ResumeError, read_errors
from headlens.learning.batch_sampler import BatchSampler, Indices
from headlens.learning.hyperparameters import TrainingOptions, learning_rate
from headlens.learning.objectives import SCALE, Objective, moved, parameter_groups
from headlens.nested_text import conform, parse_json

_RECORD, _WEIGHTS, _OPTIMISER, _RANDOM = "state.json", "weights.safetensors", "optimiser.pt", "random-{}.pt"
Row = dict[str, float]
Evaluate = Callable[[nn.Module], Mapping[str, float]]


@dataclass
class TrainingState:
    """Where training stands.

    Args:
        step: updates done.
        epoch: passes over the data that are complete.
        update: updates done of the present epoch.
        loss, units: sums since the last row of the log.
        log: rows by update.
        evaluations: rows by update.
        best: the best evaluation so far; None before the first.
        waited: evaluations since then.
        stopped: whether training has come to its end.
    """

    step: int = 0
    epoch: int = 0
    update: int = 0
    loss: float = 0.0
    units: int = 0
    log: list[Row] = field(default_factory=list)
    evaluations: list[Row] = field(default_factory=list)
    best: float | None = None
    waited: int = 0
    stopped: bool = False

    def save(self, folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer, scaler: Any = None) -> None:
        """Write everything but the random numbers of other processes."""
        save_file({name: tensor.contiguous() for name, tensor in _distinct(model).items()}, folder / _WEIGHTS)
        scaled = None if scaler is None else scaler.state_dict()
        _save({"optimiser": optimiser.state_dict(), "scaler": scaled}, folder / _OPTIMISER)
        (folder / _RECORD).write_text(json.dumps(vars(self)), encoding="utf-8")

    def restore(self, folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer, scaler: Any = None) -> None:
        """Read what `save` wrote.

        Raises:
            ResumeError: if it cannot be read, or is of another model.
        """
        with read_errors(folder, "cannot be resumed from", "Start again with --overwrite.", ResumeError):
            record = conform(parse_json((folder / _RECORD).read_text(encoding="utf-8")), TrainingState)
            weights = load_file(folder / _WEIGHTS)
            state = torch.load(folder / _OPTIMISER, weights_only=True)
            parameters = _distinct(model)
            shapes, shapes_here = ({name: t.shape for name, t in side.items()} for side in (weights, parameters))
            if shapes != shapes_here:
                raise ValueError("its weights are those of another model")
            with torch.no_grad():
                for name, tensor in parameters.items():
                    tensor.copy_(weights[name])
            optimiser.load_state_dict(state["optimiser"])
            if scaler is not None and state["scaler"] is not None:
                scaler.load_state_dict(state["scaler"])
        vars(self).update(vars(record))


def save_random(folder: Path, rank: int) -> None:
    """Write the state of this process's random numbers."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    _save({"cpu": torch.get_rng_state(), "cuda": cuda}, folder / _RANDOM.format(rank))


def _save(content: dict[str, Any], path: Path) -> None:
    # Given a path, torch would open it by itself, and say of a full disk no more than "unexpected pos".
    with path.open("wb") as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:  # closing the archive fails, too, and hides why
            raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None


def restore_random(folder: Path, rank: int) -> None:
    """Go on with the random numbers that `save_random` wrote.

    Raises:
        ResumeError: if there are none of this process.
    """
    if not (path := folder / _RANDOM.format(rank)).exists():
        raise ResumeError(f"{folder} has no state of process {rank}.", "Resume with the same number of processes.")
    with read_errors(path, "cannot be resumed from", "Start again with --overwrite.", ResumeError):
        states = torch.load(path, weights_only=True)
        torch.set_rng_state(states["cpu"])
        if states["cuda"] and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(states["cuda"])


def _distinct(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, tied ones once: torch names each of them by the first place where it stands."""
    return dict([*model.named_parameters(), *model.named_buffers()])


class TrainingData(Protocol):
    """Examples to train on, any of which can be asked for at any time."""

    @property
    def lengths(self) -> Sequence[int]:
        """Number of tokens of every training example, by which the batches are formed."""

    def batch(self, indices: Indices, epoch: int) -> dict[str, Any]:
        """Inputs and labels; what is drawn at random depends on example and epoch alone."""


class TrainingCheckpoint(Protocol):
    """Where a run's state is kept, and whether someone waits for it to stop."""

    @property
    def found(self) -> Path | None:
        """The folder of the last state, if there is one."""

    def due(self) -> bool:
        """Whether the state should be kept now; the same answer in all processes."""

    def saving(self) -> AbstractContextManager[Path]:
        """A folder that takes the place of the last one when the block ends well."""

    def obey(self) -> None:
        """Acts on a signal to the process that was noted since the last call; does nothing without one."""


@dataclass(frozen=True)
class Trainer:
    """Trains a model.

    An update's gradient is that of the mean loss over all its units, however they are spread over batches and
    processes. A run that was interrupted and goes on meets the same batches and random numbers as one that was not.

    Args:
        options: length, step size, rhythm.
        objective: what is made smaller.
        evaluate: measures the model, which is in evaluation mode meanwhile; None leaves it out.
        better: the value of an evaluation that should be large; needed for `patience`.
        on_best: called with the model after every evaluation that is better than all before.
        save: called with the number of updates done before the first, after every `save_every` of them, and at the end.
        checkpoint: where the state is kept; None keeps nothing.
        progress: called with the number of updates done; with 0 before the first.
        scales: factors on the learning rate for parameters whose names begin so, see `parameter_groups`.
        record: called with the model for every row of the log; gives more columns.
        logged: called with the state when its log or its evaluations have a new row.
        clip_apart: whether the gradients of parameters in `scales` are clipped by themselves: large ones would leave
            next to nothing of the others.
    """

    options: TrainingOptions
    objective: Objective
    evaluate: Evaluate | None = None
    better: Callable[[Mapping[str, float]], float] | None = None
    on_best: Callable[[nn.Module], None] = lambda _: None
    save: Callable[[int], None] = lambda _: None
    checkpoint: TrainingCheckpoint | None = None
    progress: Callable[[int], None] = lambda _: None
    scales: Mapping[str, float] = field(default_factory=dict)
    record: Callable[[nn.Module], Mapping[str, float]] = lambda _: {}
    logged: Callable[[TrainingState], None] = lambda _: None
    clip_apart: bool = False

    def fit(self, model: nn.Module, data: TrainingData) -> TrainingState:
        """Train in place.

        Args:
            model: on the device it is to be trained on.
            data: examples.

        Returns:
            The state at the end, with the log and the evaluations.

        Raises:
            DivergedError: if the loss, or a weight, is no longer finite.
            ResumeError: if what was kept cannot be gone on with.
        """
        return _Run(self, model, data).to_the_end()


def total_updates(options: TrainingOptions, updates: BatchSampler) -> int:
    """All updates; epochs differ by a few batches, so the first stands for all."""
    if options.steps is not None:
        return options.steps
    return max(1, round(options.epochs * updates.per_epoch(0)))


class _Run:
    """One call of `Trainer.fit`: a training run from its first or restored state to its end.

    Args:
        trainer: options, objective and callbacks of the run.
        model: trained in place, on the device where its parameters are.
        data: training examples.
    """

    def __init__(self, trainer: Trainer, model: nn.Module, data: TrainingData) -> None:
        options = trainer.options
        device = next(model.parameters()).device
        self.trainer, self.options, self.data = trainer, options, data
        # In a process accelerate remembers what it was first asked for, and refuses everything else.
        AcceleratorState._reset_state(reset_partial_state=True)
        self.accelerator = Accelerator(mixed_precision=options.precision, cpu=device.type == "cpu")
        groups = parameter_groups(model, options.weight_decay, trainer.scales)
        optimiser = torch.optim.AdamW(groups, lr=options.learning_rate, fused=True)
        self.plain, self.state = model, TrainingState()
        process, processes = self.accelerator.process_index, self.accelerator.num_processes
        self.updates = BatchSampler.of_training(data.lengths, options, process, processes)
        torch.manual_seed(options.seed + process)
        folder = None if trainer.checkpoint is None else trainer.checkpoint.found
        if folder is not None:
            self.state.restore(folder, model, optimiser, self.accelerator.scaler)
            restore_random(folder, process)
        self.model, self.optimiser = self.accelerator.prepare(model, optimiser)
        self.total = total_updates(options, self.updates)
        # Of the updates since they were last added to those of the log: of every batch, on its device.
        self._losses: list[list[Tensor]] = []
        self._last: list[dict[str, Any]] = []  # batches of the last update

    def to_the_end(self) -> TrainingState:
        state = self.state
        self.trainer.progress(0)  # loading took time, and was no update
        self.trainer.progress(state.step)
        if self.options.save_every and not state.step:
            self.trainer.save(0)
        while state.step < self.total and not state.stopped:
            self.model.train()
            self._update()
            ended = state.update >= self.updates.per_epoch(state.epoch)
            if ended:
                state.epoch, state.update = state.epoch + 1, 0
            last = state.step >= self.total
            if state.step % self.options.log_every == 0 or last:
                self._add_losses()
                self._log()
            every = self.options.evaluate_every
            if self.trainer.evaluate is not None and (last or (state.step % every == 0 if every else ended)):
                self._evaluate(self.trainer.evaluate)
            if (every := self.options.save_every) and (state.step % every == 0 or last or state.stopped):
                self._add_losses()  # which refuses those that are not finite
                self.trainer.save(state.step)
            self.trainer.progress(1)
            self._keep()
        self._check_end()
        state.stopped = True
        self._keep(always=True)
        # What comes after is computed in full precision, as a model that is loaded again computes it.
        self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
        self.plain.eval()
        return state

    def _update(self) -> None:
        batches = self.updates.of(self.state.epoch, self.state.update)
        inputs = self._last = [self.data.batch(indices, self.state.epoch) for indices in batches]
        units = int(self._sum([float(sum(int(self.trainer.objective.units(batch)) for batch in inputs))])[0])
        last = len(inputs) - 1
        try:
            losses = [self._backward(batch, units, last=number == last) for number, batch in enumerate(inputs)]
        except NotFiniteError as error:
            if not self.state.step:  # so it came
                raise
            raise self._diverged(f"in update {self.state.step + 1} the model gives NaN or infinity") from error
        rate = learning_rate(self.options, self.state.step, self.total)
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group.get(SCALE, 1.0)
        if self.options.clip and not self.trainer.clip_apart:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.options.clip)
        elif self.options.clip:
            self._clip_apart()
        self.optimiser.step()
        self.optimiser.zero_grad()
        self._losses.append(losses)
        self.state.units += units
        self.state.step += 1
        self.state.update += 1

    def _clip_apart(self) -> None:
        self.accelerator.unscale_gradients()
        groups = self.optimiser.param_groups
        usual = [p for group in groups if SCALE not in group for p in group["params"]]
        for part in (usual, *(group["params"] for group in groups if SCALE in group)):
            nn.utils.clip_grad_norm_(part, self.options.clip)

    def _backward(self, batch: dict[str, Any], units: int, *, last: bool) -> Tensor:
        """Computes the loss of a batch and adds its gradient to that of the update.

        Args:
            batch: inputs and labels.
            units: number of units of the whole update, over all processes, by which the gradient is divided.
            last: whether the batch is the update's last, after which the processes average their gradients.

        Returns:
            The loss, summed over the units of the batch, on its device.
        """
        inputs = moved(batch, self.accelerator.device)
        with nullcontext() if last else self.accelerator.no_sync(self.model):
            with self.accelerator.autocast():
                loss = self.trainer.objective.loss(self.model, inputs)
            # Processes average their gradients.
            self.accelerator.backward(loss * (self.accelerator.num_processes / max(units, 1)))
        return loss.detach()

    def _add_losses(self) -> None:
        """Adds the losses of the last updates to those of the log: read together, as each would wait for the device.

        Raises:
            DivergedError: if one of them is not finite.
        """
        updates, self._losses = self._losses, []
        if not updates:
            return
        values = iter(torch.stack([loss for losses in updates for loss in losses]).tolist())
        sums = []
        for number, losses in enumerate(updates):
            loss = 0.0  # not sum(), which from Python 3.12 on rounds otherwise
            for _ in losses:
                loss += next(values)
            if not math.isfinite(loss):
                update = self.state.step - len(updates) + number + 1
                raise self._diverged(f"the loss of update {update} is {loss}")
            sums.append(loss)
        for loss in self._sum(sums):
            self.state.loss += loss

    def _diverged(self, problem: str) -> DivergedError:
        rate = f"--learning-rate (it was {self.options.learning_rate:g})"
        if self.trainer.scales:
            rate += ", also of gates and masks that have one of their own"
        return DivergedError(
            f"The training diverged: {problem}.",
            f"Start again in another folder, or with --overwrite, and change one of these: a smaller {rate}, more "
            "warm-up (--training-args warmup=…), a smaller clip, or --training-args precision=no.",
        )

    def _check_end(self) -> None:
        """Refuses weights that the last update left as NaN or infinity, or that give them: no loss is known of them.

        Raises:
            DivergedError: naming one of them, where it is the weight itself.
        """
        for name, weight in self.plain.named_parameters():
            if weight.requires_grad and not bool(torch.isfinite(weight).all()):
                raise self._diverged(f"after update {self.state.step} {name} is not finite")
        self.plain.eval()
        problem = f"after update {self.state.step} the model gives NaN or infinity"
        try:
            with torch.no_grad(), self.accelerator.autocast():
                batches = [moved(batch, self.accelerator.device) for batch in self._last[:1]]
                losses = [self.trainer.objective.loss(self.plain, batch) for batch in batches]
        except NotFiniteError as error:
            raise self._diverged(problem) from error
        if not all(map(torch.isfinite, losses)):
            raise self._diverged(problem)

    def _sum(self, values: list[float]) -> list[float]:
        """Returns the sums of numbers over all processes, the same in each of them."""
        if self.accelerator.num_processes == 1:
            return values
        added: Any = self.accelerator.reduce(torch.tensor(values, dtype=torch.float64), reduction="sum")
        numbers: list[float] = added.tolist()
        return numbers

    def _log(self) -> None:
        state = self.state
        rate = learning_rate(self.options, state.step - 1, self.total)
        mean = state.loss / max(state.units, 1)
        row = {"step": state.step, "epoch": self._epochs(), "loss": mean, "learning_rate": rate}
        state.log.append(row | dict(self.trainer.record(self.plain)))
        state.loss, state.units = 0.0, 0
        self.trainer.logged(state)

    def _epochs(self) -> float:
        return self.state.epoch + self.state.update / self.updates.per_epoch(self.state.epoch)

    def _evaluate(self, evaluate: Evaluate) -> None:
        self._add_losses()
        self.plain.eval()
        try:
            with torch.no_grad():
                metrics = dict(evaluate(self.plain))
        except NotFiniteError as error:
            problem = f"after update {self.state.step} the model gives NaN or infinity where it is evaluated"
            raise self._diverged(problem) from error
        if infinite := [name for name, value in metrics.items() if math.isinf(value)]:
            raise self._diverged(f"after update {self.state.step} the {infinite[0]} is infinite")
        state = self.state
        state.evaluations.append({"step": state.step, "epoch": self._epochs(), **metrics})
        self.trainer.logged(state)
        if self.trainer.better is None:
            return
        value = self.trainer.better(metrics)
        if state.best is None or value > state.best:
            state.best, state.waited = value, 0
            self.trainer.on_best(self.plain)
        else:
            state.waited += 1
            state.stopped = 0 < self.options.patience <= state.waited

    def _keep(self, *, always: bool = False) -> None:
        if (checkpoint := self.trainer.checkpoint) is None:
            return
        if always or checkpoint.due():
            self._add_losses()
            with checkpoint.saving() as folder:
                if self.accelerator.is_main_process:
                    self.state.save(folder, self.plain, self.optimiser, self.accelerator.scaler)
                save_random(folder, self.accelerator.process_index)
        checkpoint.obey()

"""Everything a training run goes on from, in a folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from headlens.errors import ResumeError

_RECORD, _WEIGHTS, _OPTIMISER, _RANDOM = "state.json", "weights.safetensors", "optimiser.pt", "random-{}.pt"
Row = dict[str, float]


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
        weights = {name: tensor.contiguous() for name, tensor in _distinct(model).items()}
        save_file(weights, folder / _WEIGHTS)
        torch.save(
            {"optimiser": optimiser.state_dict(), "scaler": None if scaler is None else scaler.state_dict()},
            folder / _OPTIMISER,
        )
        (folder / _RECORD).write_text(json.dumps(vars(self)), encoding="utf-8")

    def restore(self, folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer, scaler: Any = None) -> None:
        """Read what `save` wrote.

        Raises:
            ResumeError: if it cannot be read, or is of another model.
        """
        try:
            record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
            weights = load_file(folder / _WEIGHTS)
            kept = torch.load(folder / _OPTIMISER, weights_only=True)
            parameters = _distinct(model)
            if weights.keys() != parameters.keys():
                raise ValueError("its weights are those of another model")
            with torch.no_grad():
                for name, tensor in parameters.items():
                    tensor.copy_(weights[name])
            optimiser.load_state_dict(kept["optimiser"])
            if scaler is not None and kept["scaler"] is not None:
                scaler.load_state_dict(kept["scaler"])
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise ResumeError(f"{folder} cannot be gone on with: {error}.", "Start again with --overwrite.") from error
        vars(self).update(record)


def save_random(folder: Path, rank: int) -> None:
    """Write the state of this process's random numbers."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    torch.save({"cpu": torch.get_rng_state(), "cuda": cuda}, folder / _RANDOM.format(rank))


def restore_random(folder: Path, rank: int) -> None:
    """Go on with the random numbers that `save_random` wrote.

    Raises:
        ResumeError: if there are none of this process.
    """
    path = folder / _RANDOM.format(rank)
    if not path.exists():
        raise ResumeError(f"{folder} has no state of process {rank}.", "Resume with as many processes as began.")
    states = torch.load(path, weights_only=True)
    torch.set_rng_state(states["cpu"])
    if states["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])


def _distinct(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, tied ones once: torch names each of them by the first place where it stands."""
    return dict([*model.named_parameters(), *model.named_buffers()])

"""What tasks take out of a model's outputs, and what they say when it is not there."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headlens.corpora.collate import IGNORED
from headlens.errors import OptionError
from headlens.tasks.task import Floats


def taken(outputs: Any, name: str, dimensions: int, task: str, wanted: str) -> Tensor:
    """A tensor of the outputs, in float32 at least.

    Args:
        outputs: of a model.
        name: attribute.
        dimensions: that it must have.
        task: name of the task, for errors.
        wanted: kind of model that would have it, for errors.

    Raises:
        OptionError: if the outputs have none, or one of another shape.
    """
    found = getattr(outputs, name, None)
    if not isinstance(found, Tensor) or found.dim() != dimensions:
        got = f"{name} of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"no {name}"
        raise OptionError(
            f"The task {task} needs a model with {wanted}; this one gives {got}.",
            f"Give a model that was trained for it, or train one: headlens train MODEL --task {task}.",
        )
    return found.float() if found.dtype in (torch.float16, torch.bfloat16) else found


def columns(*parts: Tensor | Floats) -> Floats:
    """Columns of records, each (n,), side by side in float64: (n, k)."""
    arrays = [p.detach().double().cpu().numpy() if isinstance(p, Tensor) else np.asarray(p, np.float64) for p in parts]
    return np.stack(arrays, axis=1)


def token_records(logits: Tensor, labels: Tensor) -> Floats:
    """Likelihood of label tokens, summed over each row.

    Args:
        logits: (rows, length, vocabulary).
        labels: ids, -100 where nothing counts, (rows, length).

    Returns:
        (rows, 3): negative log-likelihood in nats, tokens, tokens whose label is the most likely one.
    """
    counted = labels != IGNORED
    rows, chosen, wanted = counted.nonzero()[:, 0], logits[counted], labels[counted]  # only these are normalised
    chosen = chosen.float() if chosen.dtype != torch.float64 else chosen
    surprise = torch.logsumexp(chosen, dim=-1) - chosen.gather(1, wanted[:, None])[:, 0]
    sums = torch.zeros(len(labels), 3, dtype=torch.float64)
    found = torch.stack([surprise.double(), torch.ones_like(surprise).double(), (chosen.argmax(-1) == wanted).double()])
    sums.index_add_(0, rows.cpu(), found.T.cpu())
    return sums.numpy()

"""Models of which accelerate keeps parts in the memory of the machine or on its disk, and fetches them as they run."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from typing import Any

import torch
from torch import Tensor, nn


def offloading(device: torch.device) -> dict[str, Any]:
    """Returns the arguments of `from_pretrained` that place a model on a device, and elsewhere what has no room there.

    Of several GPUs one is used: sums over heads are made on one device. What has no room in memory lies in a folder
    that is removed when the process ends.

    Args:
        device: where the model runs.
    """
    from accelerate.utils import get_max_memory  # noqa: PLC0415 - costs a second, and few models need it

    folder = tempfile.mkdtemp(prefix="headlens-offload-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    names = {"cuda": device.index or 0, "mps": "mps"}
    room = {name: size for name, size in get_max_memory().items() if name in ("cpu", names.get(device.type))}
    return {"device_map": "auto", "max_memory": room, "offload_folder": folder}


def fetched_weight(model: nn.Module, name: str) -> Tensor:
    """Returns a weight that lies elsewhere, alone: all of them might not fit into memory.

    Args:
        model: as accelerate placed it.
        name: of the weight, as in its `state_dict`.
    """
    from accelerate.utils import align_module_device  # noqa: PLC0415

    owner, _, weight = name.rpartition(".")
    module = model.get_submodule(owner)
    with align_module_device(module, torch.device("cpu")):
        found: Tensor = getattr(module, weight).detach().clone()
    return found

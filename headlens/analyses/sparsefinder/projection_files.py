"""What was learned for all sites of a model, in one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from headlens.analyses.sparsefinder.pareto_points import FittedSite
from headlens.analyses.sparsefinder.query_key_projection import QueryKeyProjections
from headlens.errors import OptionError
from headlens.files import atomic_path, output_errors

_FORMAT = "headlens sparsefinder 1"


def save_fitted(path: Path, fitted: Mapping[str, FittedSite]) -> None:
    """Write projections and centroids.

    Args:
        path: of the file.
        fitted: by site, such as `encoder.0`.

    Raises:
        OutputError: if it cannot be written.
    """
    parts: dict[str, Tensor] = {}
    for site, own in fitted.items():
        parts |= {f"{site}/weight": own.projections.weight, f"{site}/bias": own.projections.bias}
        parts[f"{site}/losses"] = torch.tensor(own.losses, dtype=torch.float64)
        parts[f"{site}/seed"] = torch.tensor(own.seed)
        for kind, centroids in (("centroids", own.centroids), ("routing", own.routing)):
            parts |= {f"{site}/{kind}/{count}": tensor for count, tensor in centroids.items()}
    with output_errors(path), atomic_path(path) as temporary:
        save_file({name: t.detach().contiguous() for name, t in parts.items()}, temporary, {"format": _FORMAT})


def load_fitted(path: Path) -> dict[str, FittedSite]:
    """Read what `save_fitted` wrote.

    Raises:
        OptionError: if the file cannot be read, or holds something else.
    """
    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("format") != _FORMAT:
                raise ValueError("it is of another kind")
            parts = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        sites = dict.fromkeys(name.split("/")[0] for name in parts)
        return {site: _fitted(site, parts) for site in sites}
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise OptionError(f"{path} cannot be read as projections: {error}.", "Learn them again.") from error


def _fitted(site: str, parts: Mapping[str, Tensor]) -> FittedSite:
    weight, bias = parts[f"{site}/weight"], parts[f"{site}/bias"]
    maps, heads, size, dimensions = weight.shape
    projections = QueryKeyProjections(heads, size, dimensions, shared=maps == 1)
    with torch.no_grad():
        projections.weight.copy_(weight)
        projections.bias.copy_(bias)
    projections.requires_grad_(requires_grad=False)
    centroids, routing = (
        {int(name.split("/")[2]): t for name, t in parts.items() if name.startswith(f"{site}/{kind}/")}
        for kind in ("centroids", "routing")
    )
    return FittedSite(
        projections, parts[f"{site}/losses"].tolist(), centroids, routing, int(parts.get(f"{site}/seed", 0))
    )

"""Files of what was learned."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from headlens.analyses.sparsefinder.pareto_points import FittedSite
from headlens.analyses.sparsefinder.projection_files import load_fitted, save_fitted
from headlens.analyses.sparsefinder.query_key_projection import QueryKeyProjections
from headlens.errors import OptionError, OutputError


def made(seed: int, *, shared: bool) -> FittedSite:
    torch.manual_seed(seed)
    centroids, routing = ({count: torch.randn(3, count, d) for count in (2, 10)} for d in (4, 8))
    return FittedSite(QueryKeyProjections(3, 8, 4, shared=shared), [0.5, 0.1 + seed], centroids, routing)


def test_what_was_learned_comes_back(tmp_path: Path) -> None:
    wanted = {f"encoder.{n}": made(n, shared=n != 1) for n in (0, 1, 10)} | {"cross.0": made(7, shared=False)}
    save_fitted(tmp_path / "projections.safetensors", wanted)
    found = load_fitted(tmp_path / "projections.safetensors")
    assert set(found) == set(wanted)
    q, k = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 6, 8)
    for site, own in wanted.items():
        other = found[site]
        assert other.losses == own.losses
        for one, two in zip(own.projections(q, k), other.projections(q, k), strict=True):
            assert torch.equal(one, two)
        assert not any(p.requires_grad for p in other.projections.parameters())
        for name in ("centroids", "routing"):
            ours, theirs = getattr(own, name), getattr(other, name)
            assert set(ours) == set(theirs) == {2, 10}
            assert all(torch.equal(ours[count], theirs[count]) for count in ours)


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "projections.safetensors"
    with pytest.raises(OptionError, match="cannot be read as projections"):
        load_fitted(path)
    path.write_bytes(b"nothing")
    with pytest.raises(OptionError, match="cannot be read as projections"):
        load_fitted(path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(OptionError, match="it is of another kind"):
        load_fitted(path)
    with pytest.raises(OutputError):
        save_fitted(tmp_path / "projections.safetensors" / "below", {"encoder.0": made(0, shared=True)})

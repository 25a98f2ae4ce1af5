"""The loss of projections against loops over queries; that training them brings queries near their keys."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headlens.analyses.sparsefinder.fitting import drawn, margin_losses
from headlens.analyses.sparsefinder.measures import allowed_pairs
from headlens.analyses.sparsefinder.predictors import QueryKeyProjections

seeds = st.integers(0, 10_000)


def made(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(2, 3, n, 4, generator=generator, dtype=torch.float64) for n in (6, 8))
    gold = torch.rand(2, 3, 6, 8, generator=generator) < 0.25
    allowed = allowed_pairs(torch.arange(6) < torch.tensor([[6], [4]]), torch.arange(8) < torch.tensor([[8], [5]]))
    return q, k, gold, allowed


@given(seeds, st.floats(0, 3))
def test_the_loss_query_by_query(seed: int, margin: float) -> None:
    q, k, gold, allowed = made(seed)
    found = margin_losses(q, k, gold, allowed, margin, torch.Generator().manual_seed(seed))
    positive = gold & allowed
    negative = drawn(~gold & allowed, positive.sum(-1, keepdim=True), torch.Generator().manual_seed(seed))
    for b, h, i in [(b, h, i) for b in range(2) for h in range(3) for i in range(6)]:
        near = sum(float(((q[b, h, i] - k[b, h, j]) ** 2).sum()) for j in range(8) if positive[b, h, i, j])
        far = sum(float(((q[b, h, i] - k[b, h, j]) ** 2).sum()) for j in range(8) if negative[b, h, i, j])
        wanted = max(0.0, margin + near - far) if positive[b, h, i].any() else 0.0
        assert float(found[b, h, i]) == pytest.approx(wanted, abs=1e-9)


@given(seeds, st.integers(0, 9))
def test_as_many_negatives_as_positives_or_all(seed: int, wanted: int) -> None:
    free = torch.rand(5, 8, generator=torch.Generator().manual_seed(seed)) < 0.5
    found = drawn(free, torch.full((5, 1), wanted))
    assert not (found & ~free).any()
    assert found.sum(-1).tolist() == [min(wanted, int(row.sum())) for row in free]


def test_negatives_are_drawn_evenly() -> None:
    free = torch.ones(20_000, 5, dtype=torch.bool)
    free[:, 2] = False
    shares = drawn(free, torch.full((20_000, 1), 2), torch.Generator().manual_seed(0)).double().mean(dim=0)
    assert float(shares[2]) == 0
    others = shares[[0, 1, 3, 4]]
    assert float((others - 0.5).abs().max()) < 4 * (0.25 / 20_000) ** 0.5


def test_gradients_by_finite_differences() -> None:
    q, k, gold, allowed = made(3)
    projections = QueryKeyProjections(3, 4, 2, shared=False).double()

    def loss(weight: torch.Tensor) -> torch.Tensor:
        ours, theirs = q @ weight[0], k @ weight[1]
        return margin_losses(ours, theirs, gold, allowed, 1.0, torch.Generator().manual_seed(0)).sum()

    assert torch.autograd.gradcheck(loss, projections.weight.detach().clone().requires_grad_())


@pytest.mark.parametrize("shared", [True, False])
def test_heads_have_maps_of_their_own(shared: bool) -> None:
    torch.manual_seed(0)
    projections = QueryKeyProjections(3, 4, 2, shared=shared).double()
    q, k = torch.randn(2, 3, 5, 4).double(), torch.randn(2, 3, 6, 4).double()
    ours, theirs = projections(q, k)
    assert (ours.shape, theirs.shape) == ((2, 3, 5, 2), (2, 3, 6, 2))
    for head in range(3):
        last = projections.weight[-1, head], projections.bias[-1, head]
        assert torch.allclose(ours[:, head], q[:, head] @ projections.weight[0, head] + projections.bias[0, head])
        assert torch.allclose(theirs[:, head], k[:, head] @ last[0] + last[1])
    assert len(projections.weight) == (1 if shared else 2)
    assert torch.allclose(*projections(q, q)) == shared


def test_training_brings_queries_near_their_keys() -> None:
    """Queries and keys that meet share a direction hidden in noise."""
    generator = torch.Generator().manual_seed(0)
    kinds_q, kinds_k = (torch.randint(0, 4, (20, 1, 30), generator=generator) for _ in range(2))
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    hidden = torch.linalg.qr(torch.randn(16, 16, generator=generator))[0]
    q, k = (
        torch.cat([signs[kinds], torch.randn(20, 1, 30, 14, generator=generator)], dim=-1) @ hidden
        for kinds in (kinds_q, kinds_k)
    )
    gold = kinds_q[..., :, None] == kinds_k[..., None, :]
    allowed = torch.ones(20, 1, 30, 30, dtype=torch.bool)
    torch.manual_seed(0)
    projections = QueryKeyProjections(1, 16, 2)
    optimiser = torch.optim.Adam(projections.parameters(), lr=0.02)
    losses = []
    for _ in range(150):
        optimiser.zero_grad()
        loss = margin_losses(*projections(q, k), gold, allowed, 1.0, generator).mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.2 * losses[0]
    with torch.no_grad():
        apart = torch.cdist(*projections(q, k))
    assert float(apart[gold].mean()) < 0.3 * float(apart[~gold].mean())

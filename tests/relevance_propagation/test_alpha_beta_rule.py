"""Single operations under alpha-beta, worked by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import zoo
from relevance_neurons import FirstNeurons
from saved import build
from torch import nn
from torch.nn import functional

from headlens.errors import UnsupportedModelError
from headlens.relevance_propagation.alpha_beta_rule import AlphaBetaRules, distribute, rescale
from headlens.relevance_propagation.epsilon_rule import ConservationLedger
from headlens.relevance_propagation.relevance_session import RelevanceSession
from headlens.relevance_propagation.targets import GivenClass
from headlens.relevance_propagation.tracing import Tracer


def test_two_neurons_by_hand() -> None:
    """v1 = 2·1 - 1·3 + 4, of whose bias each input takes 2: z = (4, -1). v2 = 1·1 + 1·3: z = (1, 3).

    With R = (6, 8): v1 gives 0.5·6·4/4 = 3 to u1 and 0.5·6·(-1)/(-1) = 3 to u2; v2 has no negative part and gives
    0.5·8·1/4 = 1 and 0.5·8·3/4 = 3. Together (4, 6), scaled to the 14 that there were: (5.6, 8.4).
    """
    weight = torch.tensor([[2.0, -1.0], [1.0, 1.0]], dtype=torch.float64)
    tracer = Tracer(nn.Identity(), AlphaBetaRules(ConservationLedger(lambda r, _: r)))
    u = torch.tensor([[1.0, 3.0]], dtype=torch.float64, requires_grad=True)
    with tracer:
        v = functional.linear(u, weight, torch.tensor([4.0, 0.0], dtype=torch.float64))
    (relevance,) = torch.autograd.grad(v, u, torch.tensor([[6.0, 8.0]], dtype=torch.float64))
    assert relevance[0].tolist() == pytest.approx([5.6, 8.4], rel=1e-4)


def test_a_negative_output_hands_on_negative_relevance() -> None:
    z = torch.tensor([[[3.0, 1.0, -2.0]]])
    assert distribute(z, torch.tensor([[-4.0]]))[0].tolist() == pytest.approx([-1.5, -0.5, -2.0], rel=1e-4)
    assert distribute(z, torch.zeros(1, 1)).abs().sum() == 0


def test_magnitudes_are_kept() -> None:
    r = rescale(torch.tensor([[1.0, -1.0], [0.0, 0.0]]), torch.tensor([[3.0, -5.0], [0.0, 0.0]]))
    assert r.flatten().tolist() == pytest.approx([4, -4, 0, 0], rel=1e-4)


def test_readers_of_one_number_are_added_at_their_joint_magnitude() -> None:
    """u goes unchanged into a branch that brings (3, -1) back, and into one that brings (-1, 1): sum (2, 0), mass 6."""
    tracer = Tracer(nn.Identity(), AlphaBetaRules(ConservationLedger(lambda r, _: r)))
    u = torch.ones(2, requires_grad=True)
    with tracer:
        a, b = u * 2, functional.relu(u)
    (relevance,) = torch.autograd.grad([a, b], u, [torch.tensor([3.0, -1.0]), torch.tensor([-1.0, 1.0])])
    assert relevance.tolist() == [6.0, 0.0]


@pytest.mark.parametrize(
    "move",
    [
        lambda x: x.float(),
        lambda x: x.to(torch.float32),
        lambda x: x.contiguous(),
        lambda x: x.type_as(x),
        lambda x: functional.dropout(x, training=False),
    ],
    ids=["float", "to", "contiguous", "type_as", "dropout"],
)
def test_moves_that_hand_their_argument_back_count_as_others(move: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """What readers of the moved number bring back is scaled before it counts as that of one reader of the number."""

    def relevance(moving: Callable[[torch.Tensor], torch.Tensor]) -> list[float]:
        tracer = Tracer(nn.Identity(), AlphaBetaRules(ConservationLedger(lambda r, _: r)))
        u = torch.ones(2, requires_grad=True)
        with tracer:
            moved = moving(u)
            read = [moved * 2, functional.relu(moved), u * 3]
        brought = [torch.tensor(own) for own in ([3.0, -1.0], [-1.0, 1.0], [1.0, -2.0])]
        (found,) = torch.autograd.grad(read, u, brought)
        return found.tolist()

    assert move(one := torch.ones(2)) is one
    # (3, -1) and (-1, 1) come to (2, 0), scaled to their mass of 6; with (1, -2) to (7, -2), of the mass of both.
    assert relevance(move) == relevance(lambda x: x.view(2)) == pytest.approx([7.0, -2.0])


@pytest.mark.parametrize(
    "operation", [lambda x: x.sum(0), lambda x: 2 / x, lambda x: x / x, lambda x: x + torch.ones(2, 2)]
)
def test_what_has_no_rule_is_refused(operation: object) -> None:
    tracer = Tracer(nn.Identity(), AlphaBetaRules(ConservationLedger(lambda r, _: r)))
    x = torch.ones(2, requires_grad=True)
    with tracer, pytest.raises(UnsupportedModelError, match="no relevance rule for"):
        operation(x)  # type: ignore[operator]


def test_heads_that_share_keys_are_refused() -> None:
    entry = zoo.ZOO["llama"]
    with (
        RelevanceSession(entry.build(), FirstNeurons(), "alpha-beta") as session,
        pytest.raises(UnsupportedModelError, match="share keys") as caught,
    ):
        session.relevance(zoo.padded(entry))
    assert "epsilon" in caught.value.advice


@pytest.mark.parametrize("kind", ["BertForSequenceClassification", "AlbertForSequenceClassification"])
def test_all_heads_have_the_sign_of_the_target(kind: str) -> None:
    """So that the rule does not tell what serves it: in the same layers, heads of both signs by another rule."""
    model: Any = build(kind).double().eval()
    inputs = {"input_ids": torch.arange(5, 29).view(4, 6), "attention_mask": torch.ones(4, 6, dtype=torch.long)}
    with torch.no_grad():
        model.classifier.bias[1] -= model(**inputs).logits[:, 1].median() - 1e-4
    found = {}
    for rule in ("alpha-beta", "gradxact"):
        with RelevanceSession(model, GivenClass(1), rule) as session:
            measured = session.relevance(inputs)
        found[rule] = torch.cat([*measured.raw.values()], dim=1).sign()
    signs = measured.start.sign()
    assert {*signs.tolist()} == {-1.0, 1.0}
    assert (found["alpha-beta"] == signs[:, None]).all()
    assert (found["gradxact"] != signs[:, None]).any()

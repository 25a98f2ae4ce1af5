"""Models that give NaN or infinity: told by layer, once per forward pass, and never a number of a table."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import zoo
from torch import Tensor
from transformers.modeling_outputs import SequenceClassifierOutput

from headlens.attention.capture import Capture
from headlens.attention.edits_and_observers import AttentionCall, Observer
from headlens.attention.finite_values import FiniteValues, not_finite
from headlens.attention.normalizers import Entmax, softmax
from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites
from headlens.errors import ModelError


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    ("name", "weight", "place"),
    [
        ("bert", "encoder.layer.1.intermediate.dense.bias", r"the attention of encoder\.2 \(encoder\.layer\.2"),
        ("bert", "embeddings.LayerNorm.bias", r"the attention of encoder\.0"),
        ("bert-classifier", "classifier.bias", "the output logits"),
        ("gpt2", "transformer.h.1.mlp.c_fc.bias", r"the attention of decoder\.2"),
        ("marian", "model.decoder.layers.0.fc2.bias", r"the attention of decoder\.1"),
        ("albert", "embeddings.LayerNorm.bias", r"the attention of encoder\.0"),
    ],
)
def test_the_first_layer_is_named(name: str, weight: str, place: str, value: float) -> None:
    entry = zoo.ZOO[name]
    model, capture = entry.build(), Capture()
    with torch.no_grad():
        model.get_parameter(weight).fill_(value)
    told = pytest.raises(ModelError, match=f"gives NaN or infinity in float32, first in {place}")
    with AttentionSession(model, observers=[capture]), torch.no_grad(), told:
        model(**zoo.padded(entry))
    assert not capture.weights, "nothing of such a pass is kept"


class Blind(Observer):
    """Sees calls without weights."""

    needs_weights = False

    def observe(self, call: AttentionCall) -> None:
        del call


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "how",
    [{"kernel": "fast"}, {"kernel": "sdpa"}, {"normalizer": Entmax()}, {"normalizer": softmax}],
    ids=["fast", "sdpa", "entmax", "softmax"],
)
@pytest.mark.parametrize(
    ("name", "weight", "place"),
    [
        ("bert", "embeddings.LayerNorm.bias", r"the attention of encoder\.0"),
        ("gpt2", "transformer.h.1.mlp.c_fc.bias", r"the attention of decoder\.2"),
    ],
)
def test_checks_of_kernels_and_normalisers_leave_it_to_be_named(
    name: str, weight: str, place: str, how: dict[str, Any], value: float
) -> None:
    """What is not finite compares with nothing: the first layer is named all the same."""
    entry = zoo.ZOO[name]
    model = entry.build("sdpa")
    with torch.no_grad():
        model.get_parameter(weight).fill_(value)
    observer = Blind() if how.get("kernel") == "sdpa" else Capture()
    told = pytest.raises(ModelError, match=f"gives NaN or infinity in float32, first in {place}")
    with AttentionSession(model, observers=[observer], **how), torch.no_grad(), told:
        model(**zoo.padded(entry))


def outputs(logits: Tensor) -> Any:
    return SequenceClassifierOutput(logits=logits)


def test_tokens_that_cannot_be_are_allowed() -> None:
    values = FiniteValues(zoo.ZOO["bert"].build())
    values.check(outputs(torch.tensor([[0.0, -float("inf")]])))
    for broken in (float("nan"), float("inf")):
        with pytest.raises(ModelError, match="first in the output logits"):
            values.check(outputs(torch.tensor([[0.0, broken]])))
    values.check(outputs(torch.zeros(0, 2)))


def test_a_pass_that_failed_is_forgotten() -> None:
    values = FiniteValues(zoo.ZOO["bert"].build())
    first, second = find_sites(zoo.ZOO["bert"].build())[:2]
    values.note_site(first, torch.tensor([float("nan")]))
    values.forget()
    values.check(None)
    values.note_site(first, torch.tensor([1.0]))
    values.note_site(second, torch.tensor([1.0, float("nan")]))
    with pytest.raises(ModelError, match=r"first in the attention of encoder\.1"):
        values.check(None)


def test_passes_that_are_looked_at_together_name_the_first_layer_of_the_first_one() -> None:
    values = FiniteValues(zoo.ZOO["bert"].build())
    first, second = find_sites(zoo.ZOO["bert"].build())[:2]
    for number, site in enumerate((first, second, first)):
        values.note_site(
            site, torch.tensor([float("nan") if number else 1.0], dtype=(torch.float32, torch.float16)[number % 2])
        )
        if number == 1:
            values.check(None, passes=4)
        else:
            values.check(outputs(torch.tensor([0.5])), passes=4)
    values.note_site(first, torch.tensor([float("inf")]))
    values.forget()
    with pytest.raises(ModelError, match=r"first in the attention of encoder\.1"):
        values.check(None, passes=4)
    values.settle()


@pytest.mark.parametrize("error", [None, KeyboardInterrupt()])
def test_a_session_that_is_left_waits_for_what_nobody_waited_for(error: BaseException | None) -> None:
    entry, capture = zoo.ZOO["bert"], Capture()
    model = entry.build()
    session = AttentionSession(model, observers=[capture])
    session._passes_at_once = 2

    def run() -> None:
        with session, torch.no_grad():
            model(**zoo.padded(entry))
            model.get_parameter("embeddings.LayerNorm.bias").fill_(float("nan"))
            session.settle()
            model(**zoo.padded(entry))
            if error is not None:
                raise error

    with pytest.raises(ModelError if error is None else KeyboardInterrupt):
        run()


@pytest.mark.parametrize(
    ("dtype", "advice"),
    [(torch.float16, "float32, or bfloat16"), (torch.bfloat16, "Use --dtype float32"), (torch.float32, "too large")],
)
def test_what_helps(dtype: torch.dtype, advice: str) -> None:
    assert advice in not_finite(zoo.ZOO["bert"].build().to(dtype), "a layer").advice

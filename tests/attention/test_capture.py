import pytest
import torch
import zoo
from watching import run

from headlens.attention.capture import Capture
from headlens.attention.session import AttentionSession
from headlens.errors import SelfCheckError


def test_maps_of_the_last_pass_that_succeeded_are_kept() -> None:
    entry = zoo.ZOO["marian"]
    model, inputs = entry.build(), zoo.padded(entry)
    with torch.no_grad():
        expected = model(**inputs, output_attentions=True)
    capture = Capture()
    with AttentionSession(model, observers=[capture]) as session:
        run(model, {k: v[:1] if torch.is_tensor(v) else v for k, v in inputs.items()})
        run(model, inputs)
        # The encoder has run when the decoder meets tokens that are none.
        with pytest.raises(IndexError):
            run(model, inputs | {"decoder_input_ids": inputs["decoder_input_ids"] + zoo.VOCABULARY})
    assert set(capture.weights) == set(session.sites)
    for site, weights in capture.weights.items():
        assert torch.equal(weights, zoo.attentions(entry, expected, site.stack)[site.layer])


def test_without_weights_there_is_nothing_to_keep() -> None:
    class Blind(Capture):
        needs_weights = False

    model = zoo.ZOO["bert"].build("sdpa")
    with (
        AttentionSession(model, observers=[Blind()]),
        pytest.raises(SelfCheckError, match="no attention weights to keep"),
    ):
        run(model, zoo.padded(zoo.ZOO["bert"]))

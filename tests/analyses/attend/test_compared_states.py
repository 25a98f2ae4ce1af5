"""Two states of a model, or two models, side by side."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from saved import build, sentence
from transformers import PreTrainedTokenizerBase

from headlens.analyses.attend.options import AttendRequest
from headlens.analyses.attend.states import attention_of_states, states_of, view_of
from headlens.attention_masks.mask_options import MaskOptions
from headlens.corpora.sentence import Example
from headlens.errors import OptionError
from headlens.models.loading import LoadedModel
from headlens.pages.head_cards import SentenceMap

EXAMPLES = [Example(sentence("unbelievable cats sleep .")), Example(sentence("She sold nothing"))]


@pytest.fixture(scope="module")
def bert(wordpiece_tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    torch.manual_seed(0)
    return LoadedModel("tiny", build("BertModel", len(wordpiece_tokenizer)), wordpiece_tokenizer, None)


def maps_of(request: AttendRequest, *models: LoadedModel) -> list[SentenceMap]:
    return attention_of_states(states_of(request, models), EXAMPLES, request, lambda _: None)


def weights(maps: list[SentenceMap], name: str, state: int) -> np.ndarray:
    return next(own.weights for own in maps if (own.model, own.state) == (name, state))


def test_a_model_without_a_head_stands_beside_itself(bert: LoadedModel) -> None:
    request = AttendRequest("tiny", without=("encoder.0.1",))
    states, maps = states_of(request, [bert]), maps_of(request, bert)
    assert [state.name for state in states] == ["tiny without encoder.0.1", "tiny"]
    assert view_of(states, maps).one_model
    plain = maps_of(AttendRequest("tiny"), bert)
    for name in ("1", "2"):
        gone, whole, alone = weights(maps, name, 0), weights(maps, name, 1), weights(plain, name, 0)
        np.testing.assert_array_equal(whole, alone)
        assert np.isnan(gone[0, 1]).all()
        np.testing.assert_allclose(gone[0, 0], whole[0, 0], atol=1e-6)  # nothing is below them
        assert np.abs(gone[1] - whole[1]).max() > 1e-5


def test_what_a_head_gave_is_missing_above_it_as_if_its_output_were_zero(bert: LoadedModel) -> None:
    """An independent model: the columns of the output projection that read the head are zero."""
    other = LoadedModel("zeroed", build("BertModel", bert.model.config.vocab_size), bert.tokenizer, None)
    other.model.load_state_dict(bert.model.state_dict())
    projection = other.model.encoder.layer[0].attention.output.dense.weight
    size = projection.shape[1] // bert.model.config.num_attention_heads
    with torch.no_grad():
        projection[:, size : 2 * size] = 0
    gone = weights(maps_of(AttendRequest("tiny", without=("encoder.0.1",)), bert), "1", 0)
    np.testing.assert_allclose(gone[1], weights(maps_of(AttendRequest("z"), other), "1", 0)[1], atol=1e-6)


def test_a_model_under_a_mask_stands_beside_itself(bert: LoadedModel) -> None:
    request = AttendRequest("tiny", mask=MaskOptions("window:1", "1"))
    maps = maps_of(request, bert)
    assert [state.name for state in states_of(request, [bert])][1] == "tiny"
    assert "in layers 1" in states_of(request, [bert])[0].name
    masked, plain = weights(maps, "1", 0), weights(maps, "1", 1)
    assert (masked[1] == 0).any()
    assert not (plain == 0).any()
    np.testing.assert_allclose(masked[0], plain[0], atol=1e-6)


def test_two_models_are_no_states_of_one(bert: LoadedModel) -> None:
    other = replace(bert, model=build("BertModel", bert.model.config.vocab_size))
    request = AttendRequest("tiny", second="tiny")
    states = states_of(request, [bert, other])
    assert [state.name for state in states] == ["tiny", "tiny (2)"]
    assert not view_of(states, maps_of(request, bert, other)).one_model


def test_many_heads_are_counted_in_the_name(bert: LoadedModel) -> None:
    request = AttendRequest("tiny", without=tuple(f"encoder.{i // 2}.{i % 2}" for i in range(5)))
    assert states_of(request, [bert])[0].name == ("tiny without encoder.0.0, encoder.0.1, encoder.1.0 and 2 more")


@pytest.mark.parametrize(
    ("without", "message"),
    [
        ("encoder.0.9", "There is no head encoder.0.9"),
        ("decoder.0.0", "There is no head"),
        ("2.8", "is not the name of a head"),
    ],
)
def test_heads_that_there_are_not(bert: LoadedModel, without: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        maps_of(AttendRequest("tiny", without=(without,)), bert)

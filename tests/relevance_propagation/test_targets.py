"""What relevance starts from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import zoo
from torch import Tensor
from transformers import PreTrainedModel

from headlens.errors import OptionError
from headlens.relevance_propagation.relevance_session import HeadRelevance, RelevanceSession
from headlens.relevance_propagation.targets import (
    AnswerSpanTarget,
    EveryPosition,
    GivenClass,
    MaskedTokenLogits,
    OwnEmbedding,
    PredictedChoice,
    PredictedClass,
    SimilarityTarget,
    Target,
    generated,
)

MASK = 4


def built(name: str) -> tuple[PreTrainedModel, dict[str, Any]]:
    return zoo.ZOO[name].build().double(), zoo.padded(zoo.ZOO[name])


def relevance(model: PreTrainedModel, inputs: dict[str, Any], target: Target) -> HeadRelevance:
    with RelevanceSession(model, target) as session:
        return session.relevance(inputs)


def values(target: Target, model: PreTrainedModel, inputs: dict[str, Any]) -> Tensor:
    with torch.no_grad():
        return target.parts(model(**inputs), inputs).flatten(1).sum(dim=1)


def test_predicted_and_given_class() -> None:
    model, inputs = built("bert-classifier")
    logits = model(**inputs).logits.detach()
    assert torch.equal(values(PredictedClass(), model, inputs), logits.amax(dim=1))
    assert torch.equal(values(GivenClass(1), model, inputs), logits[:, 1])
    with pytest.raises(OptionError, match="There is no class 2") as caught:
        values(GivenClass(2), model, inputs)
    assert "classes 0 to 1" in caught.value.advice


def test_the_logits_of_all_classes_are_passed_back_one_by_one() -> None:
    """Relevance is linear in what starts: the predicted class is one of the given ones."""
    model, inputs = built("bert-classifier")
    predicted = relevance(model, inputs, PredictedClass())
    given = [relevance(model, inputs, GivenClass(i)) for i in range(2)]
    best = model(**inputs).logits.argmax(dim=1)
    for site, raw in predicted.raw.items():
        chosen = torch.stack([given[int(c)].raw[site][i] for i, c in enumerate(best)])
        assert torch.allclose(raw, chosen, rtol=1e-9, atol=1e-12)


def test_every_masked_position_starts_with_its_best_token() -> None:
    model, inputs = built("bert-mlm")
    ids = inputs["input_ids"]
    ids[0, 1] = ids[0, 3] = ids[1, 2] = ids[2, 0] = MASK
    best = model(**inputs).logits.detach().amax(dim=2)
    expected = torch.stack([best[0, 1] + best[0, 3], best[1, 2], best[2, 0]])
    assert torch.allclose(values(MaskedTokenLogits(MASK), model, inputs), expected)
    ids[1, 2] = 9
    with pytest.raises(OptionError, match="no position from which relevance could start") as caught:
        values(MaskedTokenLogits(MASK), model, inputs)
    assert "Mask tokens" in caught.value.advice


def test_positions_add_up_over_the_real_tokens_of_a_translation() -> None:
    model, inputs = built("marian")
    best = model(**inputs).logits.detach().amax(dim=2)
    expected = torch.stack([best[i, :n].sum() for i, n in enumerate(zoo.TARGET_LENGTHS)])
    assert torch.allclose(values(EveryPosition(), model, inputs), expected)
    bare = {k: v for k, v in inputs.items() if k != "decoder_attention_mask"}
    assert values(EveryPosition(), model, bare)[0] == pytest.approx(float(expected[0]))


def test_relevance_of_positions_is_the_sum_of_each_alone() -> None:
    class OnePosition(EveryPosition):
        at = 0

        def parts(self, outputs: Any, inputs: Any) -> Tensor:
            parts = super().parts(outputs, inputs)
            return parts * (torch.arange(parts.shape[1]) == self.at)

    model, inputs = built("marian")
    whole = relevance(model, inputs, EveryPosition())
    total: dict[Any, Tensor] = {}
    for at in range(max(zoo.TARGET_LENGTHS)):
        target = OnePosition()
        object.__setattr__(target, "at", at)
        for site, raw in relevance(model, inputs, target).raw.items():
            total[site] = total.get(site, 0) + raw
    for site, raw in whole.raw.items():
        assert torch.allclose(raw, total[site], rtol=1e-9, atol=1e-11)


def test_decoder_only_models_have_positions_too() -> None:
    model, inputs = built("gpt2")
    best = model(**inputs).logits.detach().amax(dim=2)
    expected = torch.stack([best[i, :n].sum() for i, n in enumerate(zoo.LENGTHS)])
    assert torch.allclose(values(EveryPosition(), model, inputs), expected)


def pairs() -> dict[str, Tensor]:
    lengths = (5, 7, 3, 4)
    return {"input_ids": zoo.ids(lengths, 4), "attention_mask": zoo.real(lengths)}


def test_similarity_is_the_cosine_and_half_of_it_starts_on_either_side() -> None:
    model, inputs = zoo.ZOO["bert"].build().double(), pairs()
    states, real = model(**inputs).last_hidden_state.detach(), inputs["attention_mask"][..., None]
    mean = (states * real).sum(dim=1) / real.sum(dim=1)
    expected = torch.cosine_similarity(mean[::2], mean[1::2])
    found = relevance(model, inputs, SimilarityTarget())
    assert torch.allclose(found.start, expected)
    assert found.inputs + found.biases == pytest.approx(float(expected.sum()), rel=1e-9)
    assert all(r.shape == (2, 4) for r in found.raw.values())
    assert torch.allclose(values(SimilarityTarget(), model, inputs), expected.repeat_interleave(2) / 2)


def test_similarity_does_not_depend_on_which_sentence_comes_first() -> None:
    model, inputs = zoo.ZOO["bert"].build().double(), pairs()
    turned = {k: v[[1, 0, 3, 2]] for k, v in inputs.items()}
    straight, other = (relevance(model, i, SimilarityTarget()) for i in (inputs, turned))
    for site, raw in straight.raw.items():
        assert torch.allclose(raw, other.raw[site], rtol=1e-9, atol=1e-12)


def test_a_sentence_is_as_similar_to_itself_as_to_its_copy() -> None:
    model, inputs = zoo.ZOO["bert"].build().double(), pairs()
    twice = {k: v.repeat_interleave(2, dim=0) for k, v in inputs.items()}
    own, copied = relevance(model, inputs, OwnEmbedding()), relevance(model, twice, SimilarityTarget())
    assert torch.allclose(own.start, torch.ones(4, dtype=torch.float64))
    for site, raw in own.raw.items():
        assert torch.allclose(raw, copied.raw[site], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("target", [OwnEmbedding(), SimilarityTarget()], ids=lambda t: t.name)
def test_constants_of_a_target_do_not_scale_relevance_that_is_passed_on_as_such(target: Target) -> None:
    """Under alpha-beta the backward pass carries relevance, which a constant factor leaves as it is."""
    model, inputs = zoo.ZOO["bert"].build().double(), pairs()
    with RelevanceSession(model, target, "alpha-beta") as session:
        found = session.relevance({k: v[:2] for k, v in inputs.items()})
    with torch.no_grad():
        parts = target.parts(model(**{k: v[:2] for k, v in inputs.items()}), {k: v[:2] for k, v in inputs.items()})
    # The largest share a layer's heads can have is all; a factor that got in would leave next to nothing.
    last = [r.abs().sum() for s, r in found.raw.items()][-1]
    assert 0.02 * parts.abs().sum() < last <= parts.abs().sum()


def test_an_odd_number_of_rows_is_no_pairs() -> None:
    model, inputs = built("bert")
    with pytest.raises(OptionError, match="3 rows do not make pairs"):
        values(SimilarityTarget(), model, inputs)


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [
        ("bert", PredictedClass(), "gives no logits"),
        ("bert", MaskedTokenLogits(MASK), "gives no logits"),
        ("bert-mlm", PredictedClass(), "not a sentence classifier"),
        ("bert-classifier", MaskedTokenLogits(MASK), "no logits for every token"),
        ("bert-mlm", OwnEmbedding(), "gives no embeddings"),
    ],
)
def test_targets_that_do_not_fit_the_model_say_what_does(name: str, target: Target, message: str) -> None:
    model, inputs = built(name)
    with pytest.raises(OptionError, match=message) as caught:
        values(target, model, inputs)
    assert "--relevance-target" in caught.value.advice


def test_generated_translations_are_what_greedy_search_wrote() -> None:
    model, inputs = zoo.ZOO["marian"].build(), zoo.padded(zoo.ZOO["marian"])
    source = {k: inputs[k] for k in ("input_ids", "attention_mask")}
    given = generated(model, source, limit=8)
    written = model.generate(**source, max_new_tokens=8, num_beams=1, do_sample=False)
    assert torch.equal(given["decoder_input_ids"], written[:, :-1])
    chosen = model(**given).logits.argmax(dim=2)
    real = given["decoder_attention_mask"].bool()
    assert torch.equal(chosen[real], written[:, 1:][real])
    assert real[:, 0].all()
    found = relevance(model, given, EveryPosition())
    assert found.start.isfinite().all()


def test_generation_stops_being_real_at_the_end_of_a_sentence() -> None:
    class Writer:
        generation_config = type("Config", (), {"eos_token_id": 3})

        def generate(self, **_: Any) -> Tensor:
            return torch.tensor([[2, 9, 3, 1, 1], [2, 9, 8, 7, 3], [2, 9, 8, 7, 6]])

    given = generated(Writer(), {}, limit=4)  # type: ignore[arg-type]
    assert given["decoder_attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]
    Writer.generation_config.eos_token_id = None
    assert generated(Writer(), {}, limit=4)["decoder_attention_mask"].all()  # type: ignore[arg-type]


def test_of_several_candidates_the_chosen_one_alone_is_relevant() -> None:
    model = zoo.Entry("BertForMultipleChoice", "BertConfig", "encoder", zoo.TEXT).build().double()
    ids = torch.randint(5, 60, (3, 4, 6), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    chosen = model(**inputs).logits.detach().argmax(dim=1)
    found = relevance(model, inputs, PredictedChoice())
    alone = {"input_ids": ids[range(3), chosen][:, None], "attention_mask": torch.ones(3, 1, 6)}
    expected = relevance(model, alone, PredictedChoice())
    for site, raw in found.raw.items():
        rows = raw.view(3, 4, -1)
        assert torch.allclose(rows[range(3), chosen], expected.raw[site], rtol=1e-9, atol=1e-12)
        assert int((rows != 0).any(dim=2).sum()) == 3


def test_an_answer_is_where_it_begins_and_where_it_ends() -> None:
    class End(AnswerSpanTarget):
        at = 0

        def parts(self, outputs: Any, inputs: Any) -> Tensor:
            return super().parts(outputs, inputs)[:, self.at]

    model = zoo.Entry("BertForQuestionAnswering", "BertConfig", "encoder", zoo.TEXT).build().double()
    lengths = (5, 8, 3)
    inputs = {"input_ids": zoo.ids(lengths, 5), "attention_mask": zoo.real(lengths)}
    outputs = model(**inputs)
    starts, ends = (x.detach() for x in (outputs.start_logits, outputs.end_logits))
    best = torch.stack([starts[i, :n].max() + ends[i, :n].max() for i, n in enumerate(lengths)])
    assert torch.allclose(values(AnswerSpanTarget(), model, inputs), best), "padding is no answer"
    whole, parts = relevance(model, inputs, AnswerSpanTarget()), []
    for at in range(2):
        target = End()
        object.__setattr__(target, "at", at)
        parts.append(relevance(model, inputs, target).raw)
    for site, raw in whole.raw.items():
        assert torch.allclose(raw, parts[0][site] + parts[1][site], rtol=1e-9, atol=1e-12)
    with pytest.raises(
        OptionError, match=r"(?s)not a question-answering model \(Base.*Give a question-answering model"
    ):
        values(AnswerSpanTarget(), *built("bert"))

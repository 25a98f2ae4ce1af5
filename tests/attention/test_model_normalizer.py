"""Models that were switched to another attention than softmax."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import zoo
from entmax import entmax15, entmax_bisect, sparsemax
from torch import Tensor, nn
from watching import Watch, run

from headlens.analyses.ablate.replay.head_ablation import Replay
from headlens.analyses.relevance.lrp.relevance_session import RelevanceSession
from headlens.analyses.relevance.lrp.targets import PredictedClass
from headlens.attention.model_normalizer import KEY, attention_name, attention_of, restore_attention, switch
from headlens.attention.normalizers import Entmax, parse_normalizer
from headlens.attention.session import AttentionSession
from headlens.errors import ModelError, OptionError, SelfCheckError, UnsupportedModelError
from headlens.interventions.compacting import without_heads
from headlens.interventions.gates import HeadGates
from headlens.interventions.learned_mask import LearnedAttentionMask, LearnedMaskOptions, masked_sites
from headlens.interventions.learned_mask_model import MaskedModel
from headlens.models.loading import load

NAMES = ["bert", "albert", "roberta", "marian", "bart", "t5", "gpt2", "llama"]
THERE = [name for name in NAMES if name in zoo.ZOO]
LIBRARY = {1.5: entmax15, 2.0: sparsemax, 1.3: lambda x, dim: entmax_bisect(x, alpha=1.3, dim=dim)}


def by_hand(name: str, alpha: float) -> Tensor:
    """The model's own eager attention, in whose file softmax was replaced by the library's function."""

    def instead(scores: Tensor, dim: int = -1, dtype: Any = None) -> Tensor:
        del dtype
        dead = (scores < -1e30).all(dim=-1, keepdim=True)
        return LIBRARY[alpha](scores.float().masked_fill(dead, 0.0), dim=dim)

    with mock.patch.object(nn.functional, "softmax", instead):
        return run(zoo.ZOO[name].build("eager"), zoo.padded(zoo.ZOO[name]))


def switched(name: str, alpha: float = 1.5, kernel: str = "eager") -> Any:
    model = zoo.ZOO[name].build(kernel)
    switch(model, Entmax(alpha))
    return model


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("alpha", list(LIBRARY))
@pytest.mark.parametrize("name", THERE)
def test_a_switched_model_is_the_one_in_whose_file_softmax_was_replaced(name: str, alpha: float, kernel: str) -> None:
    inputs = zoo.padded(zoo.ZOO[name])
    model = switched(name, alpha, kernel)
    found = run(model, inputs)
    assert torch.allclose(found, by_hand(name, alpha), atol=2e-5)
    assert not torch.allclose(found, run(zoo.ZOO[name].build(kernel), inputs), atol=1e-3)
    assert str(attention_of(model)) == attention_name(model) == str(Entmax(alpha))


@pytest.mark.parametrize("name", THERE)
def test_sessions_replays_and_copies_have_it(name: str) -> None:
    entry = zoo.ZOO[name]
    model, inputs, watch = switched(name), zoo.padded(entry), Watch()
    wanted = run(model, inputs)
    with AttentionSession(model, observers=[watch]) as session:
        assert session.kernel == "eager"
        assert torch.equal(run(model, inputs), wanted)
    assert sum(int((call.weights == 0).sum()) for call in watch.calls) > sum(c.weights.shape[0] for c in watch.calls)
    with AttentionSession(model, observers=[Watch()], kernel="fast"):
        assert torch.equal(run(model, inputs), wanted)
    with pytest.raises(UnsupportedModelError):
        AttentionSession(model, kernel="sdpa")
    with Replay(model) as replay:
        assert torch.allclose(replay.run(inputs).outputs[0], wanted, atol=1e-5)
    assert torch.equal(run(copy.deepcopy(model), inputs), wanted)
    assert torch.equal(run(model, inputs), wanted), "after the sessions"


@pytest.mark.parametrize("name", ["bert", "albert", "marian"])
def test_heads_are_cut_out_and_switched_off_under_it(name: str) -> None:
    entry = zoo.ZOO[name]
    model, inputs = switched(name), zoo.padded(entry)
    with Replay(model) as replay:
        variants = list(replay.run(inputs).variants())
    assert len(variants) > 3
    for variant in variants:
        with AttentionSession(model, edits=[HeadGates({variant.head: 0.0})]):
            wanted = run(model, inputs)
        assert torch.allclose(variant.outputs[0], wanted, atol=1e-5)
        assert not torch.allclose(wanted, run(model, inputs), atol=1e-4)
        if name != "albert":  # whose layers share their heads
            assert torch.allclose(run(without_heads(model, [variant.head]), inputs), wanted, atol=1e-5)


def test_softmax_comes_back() -> None:
    for kernel in ("eager", "sdpa"):
        model, inputs = zoo.ZOO["bert"].build(kernel), zoo.padded(zoo.ZOO["bert"])
        before = run(model, inputs)
        switch(model, Entmax(2.0))
        switch(model, Entmax(1.5))
        assert attention_name(model) == "entmax15"
        switch(model, None)
        assert torch.allclose(run(model, inputs), before, atol=1e-5)
        assert attention_of(model) is None
        assert not hasattr(model.config, KEY)
        switch(model, None)


def test_training_goes_through_it() -> None:
    """Gradients of a weight by finite differences, in double precision."""
    model, inputs = switched("bert").double(), zoo.padded(zoo.ZOO["bert"])
    weight = model.encoder.layer[0].attention.self.query.weight

    def loss() -> Tensor:
        return (model(**inputs)[0] ** 3)[inputs["attention_mask"].bool()].sum()

    (exact,) = torch.autograd.grad(loss(), weight)
    for place in exact.abs().flatten().argsort(descending=True)[:5].tolist():
        ends = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                weight.view(-1)[place] += step
                ends.append(float(loss().detach()))
                weight.view(-1)[place] -= step
        assert float(exact.flatten()[place]) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-3)


@pytest.mark.parametrize("alpha", [1.5, 1.25])
def test_a_checkpoint_says_what_it_was_trained_with(tmp_path: Path, alpha: float) -> None:
    model, inputs = switched("bert", alpha), zoo.padded(zoo.ZOO["bert"])
    model.save_pretrained(tmp_path)
    loaded = load(str(tmp_path))
    assert torch.allclose(run(loaded.model, inputs), run(model, inputs), atol=1e-6)
    switch(model, None)
    model.save_pretrained(tmp_path / "plain")
    plain = load(str(tmp_path / "plain"))
    assert attention_of(plain.model) is None
    assert plain.weight_hash != loaded.weight_hash
    model.config.headlens_attention = "quickmax"
    model.save_pretrained(tmp_path / "wrong")
    with pytest.raises(ModelError, match=r"names an attention that there is none, --attention 'quickmax' is none"):
        load(str(tmp_path / "wrong"))


def test_a_model_built_from_the_configuration_alone_is_no_softmax_in_silence() -> None:
    model, inputs = switched("bert"), zoo.padded(zoo.ZOO["bert"])
    other = type(model)(copy.deepcopy(model.config)).eval()
    with pytest.raises(SelfCheckError, match="has lost the attention"):
        run(other, inputs)
    restore_attention("other", other)
    other.load_state_dict(model.state_dict())
    assert torch.allclose(run(other, inputs), run(model, inputs), atol=1e-6)


def test_models_that_do_more_than_a_softmax_are_refused() -> None:
    model = zoo.ZOO["gemma2"].build()
    switch(model, Entmax())
    with pytest.raises(UnsupportedModelError, match="softcap"):
        run(model, zoo.padded(zoo.ZOO["gemma2"]))


def test_relevance_is_passed_on_through_entmax_where_weights_are_constants() -> None:
    model = switched("bert-classifier")
    inputs = zoo.unpadded(zoo.ZOO["bert-classifier"])[0]
    with RelevanceSession(model, PredictedClass(), "epsilon") as session:
        found = session.relevance(inputs)
    assert found is not None
    for rule in ("attnlrp", "alpha-beta"):
        with pytest.raises(UnsupportedModelError, match="Attention of this model is entmax15"):
            RelevanceSession(model, PredictedClass(), rule)


def test_a_multiplied_mask_needs_softmax() -> None:
    model = switched("bert")
    mask = LearnedAttentionMask(masked_sites(model), LearnedMaskOptions(9, form="multiplicative"))
    with (
        pytest.raises(OptionError, match="the attention of this model is entmax15, not softmax"),
        MaskedModel(model, mask).opened(),
    ):
        pass


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("softmax", None),
        ("entmax15", Entmax(1.5)),
        ("Sparsemax", Entmax(2.0)),
        ("entmax:1.3", Entmax(1.3)),
        ("entmax:1.5", Entmax(1.5)),
    ],
)
def test_names(text: str, found: Entmax | None) -> None:
    assert parse_normalizer(text) == found
    if found is not None:
        assert parse_normalizer(str(found)) == found


@pytest.mark.parametrize("text", ["", "entmax", "entmax:", "entmax:x", "softmax:2", "max", "sparsemax:2"])
def test_names_that_are_none(text: str) -> None:
    with pytest.raises(OptionError, match="is none"):
        parse_normalizer(text)


def test_alphas_that_cannot_be() -> None:
    for alpha in ("1", "0.5", "11", "nan"):
        with pytest.raises(OptionError, match="is not offered"):
            parse_normalizer(f"entmax:{alpha}")


def test_declared_tokens_are_not_needed() -> None:
    """Padding is masked by the model itself: a sentence comes out alone as in a padded batch."""
    model = switched("bert")
    batch = run(model, zoo.padded(zoo.ZOO["bert"]))
    for row, alone in zip(batch, zoo.unpadded(zoo.ZOO["bert"]), strict=True):
        single = run(model, alone)[0]
        assert torch.allclose(row[: len(single)], single, atol=1e-5)

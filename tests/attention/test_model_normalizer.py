"""Models that were switched to another attention than softmax."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import zoo
from entmax import entmax15, entmax_bisect, sparsemax
from tiers import rest_slow, rest_slow_rows
from torch import Tensor, nn
from watching import Watch, run

from headlens.attention.model_normalizer import (
    KEY,
    attention_name,
    attention_of,
    learned_alphas,
    restore_attention,
    switch,
)
from headlens.attention.normalizers import Entmax, LearnedEntmax, ModelNormalizer, parse_normalizer
from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites
from headlens.attention_masks.learned_mask import LearnedAttentionMask, LearnedMaskOptions, masked_sites
from headlens.errors import ModelError, OptionError, SelfCheckError, UnsupportedModelError
from headlens.heads import KEY_COLUMNS
from headlens.interventions.compacting import refilled, save_compacted, without_heads
from headlens.interventions.edited_model import EditedModel
from headlens.interventions.gates import HeadGates
from headlens.models.loading import load
from headlens.relevance_propagation.relevance_session import RelevanceSession
from headlens.relevance_propagation.targets import PredictedClass
from headlens.replay.head_ablation import Replay
from headlens.weights.head_slicing import ALPHAS

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


def learned(name: str, kernel: str = "eager") -> Any:
    """A model whose heads have learned alphas, each another one in its layer."""
    model = zoo.ZOO[name].build(kernel)
    switch(model, LearnedEntmax())
    with torch.no_grad():
        for logits in alpha_logits(model):
            logits.copy_(torch.linspace(-3, 4, len(logits)))
    return model


def alpha_logits(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for key, parameter in model.named_parameters() if key.endswith(ALPHAS)]


@pytest.mark.parametrize(
    ("name", "alpha", "kernel"),
    rest_slow_rows(
        product(THERE, LIBRARY, ["eager", "sdpa"]),
        [("bert", 1.5, "eager"), ("albert", 2.0, "sdpa"), ("marian", 1.3, "sdpa"), ("gpt2", 1.5, "sdpa")],
    ),
)
def test_a_switched_model_is_the_one_in_whose_file_softmax_was_replaced(name: str, alpha: float, kernel: str) -> None:
    inputs = zoo.padded(zoo.ZOO[name])
    model = switched(name, alpha, kernel)
    found = run(model, inputs)
    assert torch.allclose(found, by_hand(name, alpha), atol=2e-5)
    assert not torch.allclose(found, run(zoo.ZOO[name].build(kernel), inputs), atol=1e-3)
    assert str(attention_of(model)) == attention_name(model) == str(Entmax(alpha))


@pytest.mark.parametrize(
    ("name", "kernel"),
    rest_slow_rows(product(THERE, ["eager", "sdpa"]), [("albert", "eager"), ("marian", "sdpa"), ("gpt2", "eager")]),
)
def test_every_head_has_the_alpha_that_it_learned(name: str, kernel: str) -> None:
    def instead(scores: Tensor, dim: int = -1, dtype: Any = None) -> Tensor:
        del dtype
        alphas = (1 + torch.sigmoid(torch.linspace(-3, 4, scores.shape[1]))).tolist()
        dead = (scores < -1e30).all(dim=-1, keepdim=True)
        heads = scores.float().masked_fill(dead, 0.0).unbind(1)  # each (batch, query, key)
        return torch.stack([entmax_bisect(x, alpha=a, dim=dim) for x, a in zip(heads, alphas, strict=True)], dim=1)

    inputs = zoo.padded(zoo.ZOO[name])
    with mock.patch.object(nn.functional, "softmax", instead):
        wanted = run(zoo.ZOO[name].build("eager"), inputs)
    model = learned(name, kernel)
    assert torch.allclose(run(model, inputs), wanted, atol=2e-5)
    assert attention_name(model) == "entmax:learned"
    alphas = learned_alphas(model)
    assert alphas is not None
    assert len(alphas.rows) == sum(site.n_heads for site in find_sites(model))
    assert alphas.rows["alpha"].between(1.04, 1.99).all()


def test_learned_alphas_begin_at_one_and_a_half_stay_when_asked_for_again_and_go_with_another_normaliser() -> None:
    model, inputs = zoo.ZOO["marian"].build(), zoo.padded(zoo.ZOO["marian"])
    plain = set(model.state_dict())
    assert learned_alphas(model) is None
    switch(model, LearnedEntmax())
    assert torch.allclose(run(model, inputs), run(switched("marian"), inputs), atol=2e-5)
    model, before = learned("marian"), run(learned("marian"), inputs)
    switch(model, LearnedEntmax())
    assert torch.equal(run(model, inputs), before)
    for other in (Entmax(), None):
        model = learned("marian")
        switch(model, other)
        assert set(model.state_dict()) == plain
        assert learned_alphas(model) is None


def test_alphas_do_not_come_nearer_to_softmax_than_their_gradient_can_be_computed() -> None:
    model = learned("bert")
    with torch.no_grad():
        for logits in alpha_logits(model):
            logits.fill_(-30.0)
    alphas = learned_alphas(model)
    assert alphas is not None
    assert alphas.rows["alpha"].unique() == pytest.approx([1.01])


@pytest.mark.parametrize(
    ("name", "build"),
    rest_slow_rows(
        product(THERE, [switched, learned]),
        [("bert", switched), ("albert", learned), ("marian", learned), ("gpt2", switched)],
    ),
)
def test_sessions_replays_and_copies_have_it(name: str, build: Callable[[str], Any]) -> None:
    entry = zoo.ZOO[name]
    model, inputs, watch = build(name), zoo.padded(entry), Watch()
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


@pytest.mark.parametrize(
    ("name", "build"),
    rest_slow_rows(
        product(["bert", "albert", "marian"], [switched, learned]), [("bert", switched), ("albert", switched)]
    ),
)
def test_heads_are_cut_out_and_switched_off_under_it(name: str, build: Callable[[str], Any]) -> None:
    entry = zoo.ZOO[name]
    model, inputs = build(name), zoo.padded(entry)
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


@pytest.mark.parametrize("part", ["query", "alphas"])
def test_training_goes_through_it(part: str) -> None:
    """Gradients of a weight by finite differences, in double precision."""
    model, inputs = (learned if part == "alphas" else switched)("bert").double(), zoo.padded(zoo.ZOO["bert"])
    attention = model.encoder.layer[0].attention.self
    weight = attention.query.weight if part == "query" else attention.get_parameter(ALPHAS)

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
    with pytest.raises(ModelError, match=r"names an unknown attention: --attention 'quickmax' is unknown"):
        load(str(tmp_path / "wrong"))


@pytest.mark.parametrize("name", rest_slow(["bert", "albert", "bart", "gpt2"], 2))
def test_a_checkpoint_has_the_alphas_of_its_heads(name: str, tmp_path: Path) -> None:
    model, inputs = learned(name), zoo.padded(zoo.ZOO[name])
    model.save_pretrained(tmp_path)
    loaded = load(str(tmp_path))
    assert type(loaded.model) is type(model)
    assert torch.equal(run(loaded.model, inputs), run(model, inputs))
    assert not loaded.untrained | loaded.unused
    with torch.no_grad():
        alpha_logits(model)[0][0] += 1.0
    model.save_pretrained(tmp_path / "other")
    assert load(str(tmp_path / "other")).weight_hash != loaded.weight_hash


@pytest.mark.parametrize("name", ["bert", "bart"])
def test_heads_that_are_left_keep_their_alphas(name: str, tmp_path: Path) -> None:
    model, inputs = learned(name), zoo.padded(zoo.ZOO[name])
    site = find_sites(model)[0]
    smaller = without_heads(model, [site.heads[0], site.heads[2]])
    every, left = (learned_alphas(own) for own in (model, smaller))
    assert every is not None
    assert left is not None
    merged = left.rows.merge(every.rows, on=KEY_COLUMNS, how="left")
    assert len(merged) == len(every.rows) - 2
    assert (merged["alpha_x"] == merged["alpha_y"]).all()
    save_compacted(smaller, tmp_path)
    assert torch.allclose(run(load(str(tmp_path)).model, inputs), run(smaller, inputs), atol=1e-6)
    whole = refilled(copy.deepcopy(smaller))
    assert torch.allclose(run(whole, inputs), run(smaller, inputs), atol=1e-5)
    assert [len(logits) for logits in alpha_logits(whole)] == [len(logits) for logits in alpha_logits(model)]


def test_alphas_that_are_missing_or_that_nobody_names(tmp_path: Path) -> None:
    model = learned("bert")
    delattr(model.encoder.layer[1].attention.self, ALPHAS)
    model.save_pretrained(tmp_path / "missing")
    with pytest.raises(ModelError, match=f"1 weight is missing from the checkpoint and would be random: .*{ALPHAS}"):
        load(str(tmp_path / "missing"))
    model = learned("bert")
    delattr(model.config, KEY)
    model.save_pretrained(tmp_path / "unnamed")
    with pytest.raises(ModelError, match="cannot hold 3 weights of the checkpoint"):
        load(str(tmp_path / "unnamed"))
    model = learned("bert")
    model.save_pretrained(tmp_path / "classless")
    config = json.loads((tmp_path / "classless" / "config.json").read_text())
    del config["architectures"]
    (tmp_path / "classless" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="which a checkpoint with parameters of its attention needs"):
        load(str(tmp_path / "classless"))


def test_a_model_built_from_the_configuration_alone_is_no_softmax_in_silence() -> None:
    model, inputs = switched("bert"), zoo.padded(zoo.ZOO["bert"])
    other = type(model)(copy.deepcopy(model.config)).eval()
    with pytest.raises(SelfCheckError, match="no longer has the attention"):
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
    # The alphas that heads learned: where all are 1.5, relevance is that under entmax15.
    switch(model, LearnedEntmax())
    with RelevanceSession(model, PredictedClass(), "epsilon") as session:
        same = session.relevance(inputs)
    for site, raw in found.raw.items():
        assert torch.allclose(same.raw[site], raw, atol=1e-5)
    with torch.no_grad():
        alpha_logits(model)[0][0] = 4.0
    with RelevanceSession(model, PredictedClass(), "epsilon") as session:
        assert not all(torch.allclose(session.relevance(inputs).raw[s], raw, atol=1e-5) for s, raw in found.raw.items())
    switch(model, Entmax())
    for rule in ("attnlrp", "alpha-beta"):
        with pytest.raises(UnsupportedModelError, match="Attention of this model is entmax15"):
            RelevanceSession(model, PredictedClass(), rule)


def test_a_multiplied_mask_needs_softmax() -> None:
    model = switched("bert")
    mask = LearnedAttentionMask(masked_sites(model), LearnedMaskOptions(9, form="multiplicative"))
    with (
        pytest.raises(OptionError, match="the attention of this model is entmax15, not softmax"),
        EditedModel(model, mask).opened(),
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
        ("entmax: Learned", LearnedEntmax()),
    ],
)
def test_names(text: str, found: ModelNormalizer | None) -> None:
    assert parse_normalizer(text) == found
    if found is not None:
        assert parse_normalizer(str(found)) == found


@pytest.mark.parametrize("text", ["", "entmax", "entmax:", "entmax:x", "softmax:2", "max", "sparsemax:2", "learned"])
def test_names_that_are_none(text: str) -> None:
    with pytest.raises(OptionError, match="is unknown"):
        parse_normalizer(text)


def test_alphas_that_cannot_be() -> None:
    for alpha in ("1", "0.5", "11", "nan"):
        with pytest.raises(OptionError, match="is not supported"):
            parse_normalizer(f"entmax:{alpha}")


def test_declared_tokens_are_not_needed() -> None:
    """Padding is masked by the model itself: a sentence comes out alone as in a padded batch."""
    model = switched("bert")
    batch = run(model, zoo.padded(zoo.ZOO["bert"]))
    for row, alone in zip(batch, zoo.unpadded(zoo.ZOO["bert"]), strict=True):
        single = run(model, alone)[0]
        assert torch.allclose(row[: len(single)], single, atol=1e-5)

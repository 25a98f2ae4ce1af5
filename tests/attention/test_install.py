import copy
from pathlib import Path
from typing import Any, Never

import pytest
import torch
import zoo
from tiers import rest_slow
from transformers import AutoModel, BertConfig, BertModel, PreTrainedModel
from watching import AddToMask, Watch, run

from headlens.attention.interface import ATTRIBUTE, SDPA
from headlens.attention.session import AttentionSession
from headlens.errors import UnsupportedModelError


def state(model: PreTrainedModel) -> Any:
    """Everything a session could change, by identity."""
    modules = [(n, m, set(vars(m)), getattr(m, "config", None)) for n, m in model.named_modules()]
    configs = {id(c): c for *_, c in modules if hasattr(c, "sub_configs")}
    for config in list(configs.values()):
        nested = [getattr(config, n, None) for n in config.sub_configs]
        configs |= {id(c): c for c in nested if c is not None}
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks)) for _, m, *_ in modules]
    always = [len(m._forward_hooks_always_called) for _, m, *_ in modules]
    settings = {i: (set(vars(c)), c._attn_implementation) for i, c in configs.items()}
    return [(n, id(m), keys, id(c)) for n, m, keys, c in modules], hooks, always, settings


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("name", rest_slow(zoo.ZOO, zoo.REPRESENTATIVES))
def test_everything_is_undone_after_a_normal_exit(name: str, kernel: str) -> None:
    if kernel == "sdpa" and name in zoo.MORE_THAN_SOFTMAX:
        pytest.skip("this architecture has no sdpa attention")
    entry = zoo.ZOO[name]
    model = entry.build(kernel)
    before, inputs = state(model), zoo.padded(entry)
    expected = run(model, inputs)
    session = AttentionSession(model, observers=[Watch()])
    for _ in range(2):
        with session:
            assert state(model) != before
            run(model, inputs)
        assert state(model) == before
    assert torch.equal(run(model, inputs), expected)


class BoomError(Exception):
    pass


def explode(*_: Any) -> Never:
    raise BoomError


@pytest.mark.parametrize("place", ["forward", "observer", "edit", "body"])
@pytest.mark.parametrize("name", ["bert", "albert", "marian", "bert-to-bert"])
def test_everything_is_undone_after_an_exception(name: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = zoo.ZOO[name]
    model, watch, edit = entry.build("sdpa"), Watch(), AddToMask(torch.zeros(()))
    if place == "forward":
        model.get_submodule(AttentionSession(model).sites[-1].module).register_forward_hook(explode)
    before = state(model)
    monkeypatch.setattr(
        *{"observer": (watch, "observe"), "edit": (edit, "mask")}.get(place, (watch, "unused")), explode, raising=False
    )
    with pytest.raises(BoomError), AttentionSession(model, observers=[watch], edits=[edit]):  # noqa: PT012
        if place == "body":
            raise BoomError
        run(model, zoo.padded(entry))
    assert state(model) == before


@pytest.mark.parametrize("failing", ["discard", "commit"])
def test_everything_is_undone_when_an_observer_fails_at_the_end(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, watch = zoo.ZOO["bert"].build("sdpa"), Watch()
    before = state(model)
    monkeypatch.setattr(watch, failing, explode)
    if failing == "discard":
        hook = model.encoder.layer[0].register_forward_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises((BoomError, KeyboardInterrupt)), AttentionSession(model, observers=[watch]):
            run(model, zoo.padded(zoo.ZOO["bert"]))
        hook.remove()
    else:
        with pytest.raises(BoomError), AttentionSession(model, observers=[watch]):
            run(model, zoo.padded(zoo.ZOO["bert"]))
    assert state(model) == before


@pytest.mark.parametrize(("encoder", "decoder"), [("eager", "sdpa"), ("sdpa", "eager"), ("sdpa", "sdpa")])
def test_parts_with_implementations_of_their_own_get_them_back(encoder: str, decoder: str) -> None:
    model = zoo.encoder_decoder(encoder, decoder)
    inputs = zoo.padded(zoo.ZOO["bert-to-bert"])
    before, expected = state(model), run(model, inputs)
    assert {model.encoder.config._attn_implementation, model.decoder.config._attn_implementation} == {encoder, decoder}
    with AttentionSession(model) as session:
        assert session.kernel == ("sdpa" if encoder == decoder == "sdpa" else "eager")
        assert torch.allclose(run(model, inputs), expected, atol=1e-5)
    assert state(model) == before
    with AttentionSession(model, kernel="sdpa"):
        assert torch.allclose(run(model, inputs), expected, atol=1e-5)
    assert state(model) == before


def test_configs_that_only_hang_in_another_config_are_lent_too() -> None:
    # A composite model may ask these for the masks of its parts.
    model = zoo.encoder_decoder("sdpa")
    model.config.decoder = copy.deepcopy(model.config.decoder)
    with AttentionSession(model):
        assert model.config.decoder._attn_implementation == SDPA
    assert model.config.decoder._attn_implementation == "sdpa"


def test_a_part_without_sdpa_attention_is_enough_to_refuse_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.encoder_decoder("eager")
    monkeypatch.setattr(type(model.decoder), "_supports_sdpa", False)
    with pytest.raises(UnsupportedModelError, match="no sdpa attention"):
        AttentionSession(model, kernel="sdpa")


def test_an_attribute_that_somebody_deleted_meanwhile_does_not_hinder() -> None:
    model = zoo.ZOO["bert"].build()
    before = state(model)
    with AttentionSession(model):
        delattr(model.encoder, ATTRIBUTE)
    assert state(model) == before


def test_nested_sessions_on_one_model_are_refused_and_the_outer_one_goes_on() -> None:
    model, inputs = zoo.ZOO["bert"].build(), zoo.padded(zoo.ZOO["bert"])
    outer, inner = Watch(), Watch()
    before = state(model)
    with AttentionSession(model, observers=[outer]) as session:
        with pytest.raises(RuntimeError, match="already in a session"), AttentionSession(model, observers=[inner]):
            pass
        with pytest.raises(RuntimeError, match="already in a session"), AttentionSession(model.get_submodule("")):
            pass
        with pytest.raises(RuntimeError, match="already open"), session:
            pass
        run(model, inputs)
    assert len(outer.calls) == 3
    assert inner.calls == []
    assert state(model) == before


def test_a_session_on_a_part_is_refused_inside_one_on_the_whole_and_works_alone() -> None:
    entry = zoo.ZOO["bert-mlm"]
    model, watch = entry.build(), Watch()
    with AttentionSession(model), pytest.raises(RuntimeError, match="already"), AttentionSession(model.bert):
        pass
    with AttentionSession(model.bert, observers=[watch]):
        with pytest.raises(RuntimeError, match="already"), AttentionSession(model):
            pass
        run(model, zoo.padded(entry))
    assert len(watch.calls) == 3


def test_two_sessions_on_two_models_at_once_in_any_order() -> None:
    inputs = zoo.padded(zoo.ZOO["bert"])
    first, second = zoo.ZOO["bert"].build("sdpa", seed=1), zoo.ZOO["bert"].build("eager", seed=2)
    watches = Watch(), Watch(needs_weights=False)
    sessions = [AttentionSession(m, observers=[w]) for m, w in zip((first, second), watches, strict=True)]
    before = state(first), state(second)
    sessions[0].__enter__()
    sessions[1].__enter__()
    run(first, inputs)
    run(second, inputs)
    run(second, inputs)
    sessions[0].__exit__(None, None, None)
    run(second, inputs)
    sessions[1].__exit__(None, None, None)
    assert (len(watches[0].calls), len(watches[1].calls)) == (3, 9)
    assert (state(first), state(second)) == before


def test_two_models_with_one_config_object_cannot_be_in_sessions_at_once() -> None:
    config = BertConfig(**zoo.TEXT)
    first, second = BertModel(config), BertModel(config)
    before = state(second)
    with (
        AttentionSession(first),
        pytest.raises(RuntimeError, match="shares its config object"),
        AttentionSession(second),
    ):
        pass
    assert state(second) == before
    with AttentionSession(second):
        pass


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["bert", "albert", "marian"])
def test_a_deep_copy_made_inside_a_session_is_outside_of_it(name: str, kernel: str) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build(kernel), zoo.padded(entry)
    expected = run(model, inputs)
    watch, edit = Watch(needs_weights=False), AddToMask(torch.full((1, 1, 1, 1), 0.0))
    with AttentionSession(model, observers=[watch], edits=[edit], kernel=kernel):
        twin = copy.deepcopy(model)
        assert torch.allclose(run(twin, inputs), expected, atol=1e-5)
        assert watch.calls == []
        assert edit.seen == []
    own = Watch()
    assert torch.allclose(run(twin, inputs), expected, atol=1e-5)
    assert AttentionSession(twin).kernel == kernel
    with AttentionSession(twin, observers=[own]) as session:
        assert torch.allclose(run(twin, inputs), expected, atol=1e-5)
    assert len(own.calls) == len(session.sites)
    assert watch.calls == []


@pytest.mark.parametrize("name", ["bert", "marian", "bert-to-bert"])
def test_a_model_saved_inside_a_session_does_not_carry_headlens(name: str, tmp_path: Path) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build("sdpa"), zoo.padded(entry)
    model.save_pretrained(tmp_path / "outside")
    with AttentionSession(model, observers=[Watch()]):
        model.save_pretrained(tmp_path / "inside")
    texts = [(tmp_path / place / "config.json").read_text() for place in ("inside", "outside")]
    assert texts[0] == texts[1]
    assert "headlens" not in texts[0]
    loaded = [type(model).from_pretrained(tmp_path / place).eval() for place in ("inside", "outside")]
    assert torch.equal(run(loaded[0], inputs), run(loaded[1], inputs))


def test_gpu_placement_calls_inside_a_session_do_not_break_it() -> None:
    model, inputs = zoo.ZOO["bert"].build(), zoo.padded(zoo.ZOO["bert"])
    expected = run(model, inputs)
    with AttentionSession(model, observers=[Watch()]):
        model.to("cpu").double().float().train().eval()
        assert torch.allclose(run(model, inputs), expected)


def test_auto_classes_work_too() -> None:
    config = BertConfig(**zoo.TEXT)
    model = AutoModel.from_config(config).eval()
    with AttentionSession(model, observers=[watch := Watch()]):
        run(model, zoo.padded(zoo.ZOO["bert"]))
    assert len(watch.calls) == 3

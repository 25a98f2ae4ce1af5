import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Never

import pytest
import torch
import zoo
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from watching import Watch, run

from headlens.attention.edits_and_observers import AttentionCall, CallContext, Edit, Observer
from headlens.attention.session import AttentionSession
from headlens.errors import SelfCheckError, UnsupportedModelError
from headlens.heads import Head
from headlens.interventions.gates import HeadGates


class FailOnce(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error: BaseException | None = error

    def forward(self, *inputs: Any) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error


def fail_once(module: nn.Module, error: BaseException) -> None:
    failing = FailOnce(error)
    module.register_forward_hook(lambda *_: failing())


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), torch.OutOfMemoryError(), KeyboardInterrupt()])
@pytest.mark.parametrize("name", ["bert", "albert", "albert-inner", "marian", "llama"])
def test_a_failed_forward_pass_is_not_committed_and_a_retry_counts_once(name: str, error: BaseException) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build(), zoo.padded(entry)
    watch = Watch()
    with AttentionSession(model, observers=[watch]) as session:
        fail_once(model.get_submodule(session.sites[1].module), error)
        with pytest.raises(type(error)):
            run(model, inputs)
        assert watch.calls == []
        if isinstance(error, Exception):
            assert (watch.pending, watch.discarded) == ([], 1)
        run(model, inputs)
    assert watch.counts() == dict.fromkeys(map(str, session.sites), 1)
    assert watch.discarded == 1
    assert [(c.site.stack, c.site.layer) for c in watch.calls if c.site.stack != "cross"] == [
        (s.stack, s.layer) for s in session.sites if s.stack != "cross"
    ]


def test_a_pass_interrupted_at_the_end_of_the_session_is_discarded() -> None:
    model, watch = zoo.ZOO["bert"].build(), Watch()
    fail_once(model.encoder.layer[1], KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt), AttentionSession(model, observers=[watch]):
        run(model, zoo.padded(zoo.ZOO["bert"]))
    assert (watch.calls, watch.pending, watch.discarded) == ([], [], 1)


@pytest.mark.parametrize("culprit", ["observer", "edit"])
def test_a_failing_observer_or_edit_fails_the_pass(culprit: str) -> None:
    class BadObserver(Observer):
        def observe(self, call: AttentionCall) -> Never:
            raise ArithmeticError

    class BadEdit(Edit):
        def output(self, context: CallContext, output: torch.Tensor) -> Never:
            raise ArithmeticError

    model, watch = zoo.ZOO["bert"].build(), Watch()
    plugs = {"observers": [watch, BadObserver()]} if culprit == "observer" else {"observers": [watch]}
    edits = [BadEdit()] if culprit == "edit" else []
    with AttentionSession(model, edits=edits, **plugs), pytest.raises(ArithmeticError):
        run(model, zoo.padded(zoo.ZOO["bert"]))
    assert (watch.calls, watch.pending) == ([], [])


class CannotPrepare(Watch):
    """Runs out of memory once, after the pass."""

    def __init__(self, error: BaseException | None) -> None:
        super().__init__()
        self.error = error
        self.prepared = 0

    def prepare(self) -> None:
        self.prepared += 1
        error, self.error = self.error, None
        if error is not None:
            raise error


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), RuntimeError("CUDA error"), KeyboardInterrupt()])
def test_no_observer_counts_a_pass_that_one_of_them_cannot_prepare(error: BaseException, place: int) -> None:
    entry = zoo.ZOO["bert"]
    model, inputs = entry.build(), zoo.padded(entry)
    watches = [CannotPrepare(error if i == place else None) for i in range(3)]
    with AttentionSession(model, observers=watches) as session:
        with pytest.raises(type(error)):
            run(model, inputs)
        assert [(w.calls, w.pending, w.discarded) for w in watches] == [([], [], 1)] * 3
        run(model, inputs)
    assert [w.counts() for w in watches] == [dict.fromkeys(map(str, session.sites), 1)] * 3
    assert [w.prepared for w in watches] == [2] * (place + 1) + [1] * (2 - place)


def test_nothing_is_prepared_after_a_failed_pass() -> None:
    model, watch = zoo.ZOO["bert"].build(), CannotPrepare(None)
    fail_once(model.encoder.layer[1], RuntimeError())
    with AttentionSession(model, observers=[watch]), pytest.raises(RuntimeError):
        run(model, zoo.padded(zoo.ZOO["bert"]))
    assert (watch.prepared, watch.discarded) == (0, 1)


class Twice(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.inner(*args, **kwargs)
        return self.inner(*args, **kwargs)


class Skipped(nn.Module):
    def forward(self, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return hidden


@pytest.mark.parametrize(("wrong", "what"), [(Twice, "encoder.1$"), (lambda _: Skipped(), "encoder.1$")])
def test_a_site_not_reached_or_reached_twice_is_noticed_and_not_committed(
    wrong: Callable[[nn.Module], nn.Module], what: str
) -> None:
    model, inputs, watch = zoo.ZOO["bert"].build(), zoo.padded(zoo.ZOO["bert"]), Watch()
    with AttentionSession(model, observers=[watch]):
        right = model.encoder.layer[1]
        model.encoder.layer[1] = wrong(right)
        with pytest.raises(SelfCheckError, match="skipped or called twice") as caught:
            run(model, inputs)
        assert caught.value.message.endswith("twice: encoder.1.")
        assert (watch.calls, watch.pending) == ([], [])
        model.encoder.layer[1] = right
        run(model, inputs)
    assert len(watch.calls) == 3


def test_a_shared_module_that_runs_too_often_or_out_of_turn_is_noticed() -> None:
    model, inputs = zoo.ZOO["albert"].build(), zoo.padded(zoo.ZOO["albert"])
    with AttentionSession(model, observers=[Watch()]):
        model.config.num_hidden_layers = 5
        with pytest.raises(SelfCheckError, match="out of order, as layer 4 of 4"):
            run(model, inputs)
        model.config.num_hidden_layers = 3
        with pytest.raises(SelfCheckError, match=r"twice: encoder\.3"):
            run(model, inputs)
        model.config.num_hidden_layers = 4
    grouped = zoo.ZOO["albert-groups"].build()
    with AttentionSession(grouped):
        grouped.encoder.albert_layer_groups = grouped.encoder.albert_layer_groups[::-1]
        with pytest.raises(SelfCheckError, match="out of order, as layer 0 of 4"):
            run(grouped, inputs)


def test_a_changed_attention_implementation_is_noticed() -> None:
    model, watch = zoo.ZOO["bert"].build(), Watch()
    with AttentionSession(model, observers=[watch]):
        model.set_attn_implementation("sdpa")
        with pytest.raises(SelfCheckError, match="at 3 places") as caught:
            run(model, zoo.padded(zoo.ZOO["bert"]))
    assert "attention implementation changed" in caught.value.advice


def test_a_place_that_was_not_found_is_noticed() -> None:
    model = zoo.ZOO["bert"].build()
    with AttentionSession(model) as session:
        hidden = model.encoder.layer[1]
        session._passes._site_of.pop(hidden.attention.self)
        session._passes._sites = [(s, m) for s, m in session._passes._sites if s.layer != 1]
        with pytest.raises(SelfCheckError, match="a module that headlens had not found"):
            run(model, zoo.padded(zoo.ZOO["bert"]))


def test_parts_run_alone_are_passes_of_their_own() -> None:
    entry = zoo.ZOO["marian"]
    model, inputs, watch = entry.build(), zoo.padded(entry), Watch()
    reading = {k: inputs[k] for k in ("input_ids", "attention_mask")}
    with AttentionSession(model, observers=[watch]), torch.no_grad():
        encoded = model.get_encoder()(**reading)
        assert watch.counts() == {f"encoder.{i}": 1 for i in range(3)}
        fail_once(model.model.encoder.layers[1], RuntimeError())
        with pytest.raises(RuntimeError):
            model.get_encoder()(**reading)
        assert watch.pending == []
        rest = {k: v for k, v in inputs.items() if k != "input_ids"}
        model(**rest, encoder_outputs=encoded)
    sites = [f"{s}.{i}" for s in ("decoder", "cross") for i in range(2)]
    assert watch.counts() == {f"encoder.{i}": 1 for i in range(3)} | dict.fromkeys(sites, 1)


def test_layers_dropped_in_training_leave_the_others_their_numbers() -> None:
    entry = zoo.ZOO["bart"]
    model, inputs = entry.build(encoder_layerdrop=0.5, decoder_layerdrop=0.5).train(), zoo.padded(entry)
    run_layers: list[str] = []
    for stack, layers in (("encoder", model.model.encoder.layers), ("decoder", model.model.decoder.layers)):
        for i, layer in enumerate(layers):
            layer.register_forward_pre_hook(lambda *_, s=f"{stack}.{i}": run_layers.append(s))
    torch.manual_seed(0)
    dropped = 0
    for _ in range(10):
        watch = Watch()
        run_layers.clear()
        with AttentionSession(model, observers=[watch]):
            model(**inputs)
        assert [str(c.site) for c in watch.calls if c.site.stack != "cross"] == run_layers
        assert [c.site.layer for c in watch.calls if c.site.stack == "cross"] == [
            int(s[-1]) for s in run_layers if s.startswith("decoder")
        ]
        dropped += 5 - len(run_layers)
    assert dropped


def test_running_twice_is_noticed_in_training_too() -> None:
    model = zoo.ZOO["bert"].build().train()
    with AttentionSession(model):
        model.encoder.layer[1] = Twice(model.encoder.layer[1])
        with pytest.raises(SelfCheckError, match="called twice"):
            model(**zoo.padded(zoo.ZOO["bert"]))


def switch_checkpointing_on(model: PreTrainedModel, reentrant: bool) -> None:
    # The name changed in transformers 5.2x; the older one warns there.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": reentrant})
    model.train()


class ByTokens(Edit):
    """Halves the outputs of tokens that are special."""

    def output(self, context: CallContext, output: torch.Tensor) -> torch.Tensor:
        return output * torch.where(context.queries.special, 0.5, 1.0)[:, :, None, None]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["bert", "llama", "marian"])
def test_gradient_checkpoints_are_recomputed_with_the_edits_and_not_watched_again(name: str, reentrant: bool) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build(), zoo.padded(entry)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    site = Head(entry.stacks[-1], 1, 1)
    results = []
    for checkpointed in (False, True):
        if checkpointed:
            switch_checkpointing_on(model, reentrant)
            assert any(getattr(m, "gradient_checkpointing", False) for m in model.modules())
            for part in model.modules():
                for name_ in ("dropout", "attention_dropout", "activation_dropout"):
                    if isinstance(getattr(part, name_, None), float):
                        setattr(part, name_, 0.0)
        watch = Watch()
        edits = [HeadGates({site: 0.25}), ByTokens()]
        with AttentionSession(model, observers=[watch], edits=edits) as session:
            with session.batch(zoo.batch_tokens(entry)):
                # Reentrant checkpoints want inputs that require gradients.
                model.get_input_embeddings().register_forward_hook(lambda m, i, o: o.requires_grad_())
                loss = (model(**inputs)[0] ** 2).mean()
            loss.backward()
        results.append([p.grad for p in model.parameters()])
        model.zero_grad()
        assert watch.counts() == dict.fromkeys(map(str, session.sites), 1)
        assert watch.pending == []
    for plain, recomputed in zip(*results, strict=True):
        assert (plain is None) == (recomputed is None)
        assert plain is None or torch.allclose(plain, recomputed, atol=1e-6)


def test_gradient_checkpoints_of_shared_layers_are_refused() -> None:
    entry = zoo.ZOO["albert"]
    model = entry.build()
    model.encoder.gradient_checkpointing = True
    with pytest.raises(UnsupportedModelError, match="gradient checkpointing") as caught, AttentionSession(model):
        pass
    assert "off" in caught.value.advice
    by_hand = entry.build()
    group = by_hand.encoder.albert_layer_groups[0]
    group.forward = partial(checkpoint, group.forward, use_reentrant=False)
    with AttentionSession(by_hand):
        loss = by_hand(**zoo.padded(entry))[0].sum()
        with pytest.raises(SelfCheckError, match="it is not clear which layer this is"):
            loss.backward()


def in_thread(action: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    caught: list[BaseException] = []

    def guarded() -> None:
        try:
            action()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    return thread, caught


def test_two_sessions_on_two_models_in_two_threads_do_not_meet() -> None:
    names = ["bert", "albert"]
    models = [zoo.ZOO[n].build() for n in names]
    inputs = zoo.padded(zoo.ZOO["bert"])
    expected = [run(m, inputs) for m in models]
    watches, results = [Watch(), Watch()], [[], []]

    def work(i: int) -> None:
        for _ in range(20):
            with AttentionSession(models[i], observers=[watches[i]]):
                results[i].append(run(models[i], inputs))

    threads = [in_thread(lambda i=i: work(i)) for i in range(2)]
    for thread, caught in threads:
        thread.join()
        assert caught == []
    for i in range(2):
        assert all(torch.equal(r, expected[i]) for r in results[i])
        assert set(watches[i].counts().values()) == {20}


def test_a_second_thread_cannot_run_a_model_during_a_pass() -> None:
    model, inputs = zoo.ZOO["bert"].build(), zoo.padded(zoo.ZOO["bert"])
    errors = []

    class Meanwhile(Edit):
        def output(self, context: CallContext, output: torch.Tensor) -> torch.Tensor:
            thread, caught = in_thread(lambda: run(model, inputs))
            thread.join()
            errors.extend(caught)
            return output

    watch = Watch()
    with AttentionSession(model, observers=[watch], edits=[Meanwhile()]):
        run(model, inputs)
    assert len(errors) == 3
    assert all("second thread" in str(e) for e in errors)
    assert len(watch.calls) == 3


def test_what_runs_outside_of_any_pass_is_edited_and_cannot_be_observed() -> None:
    model, watch, inputs = zoo.ZOO["bert"].build(), Watch(), zoo.padded(zoo.ZOO["bert"])
    layer, hidden = model.encoder.layer[0].attention.self, torch.randn(1, 4, zoo.HIDDEN)
    gates = HeadGates({Head("encoder", 0, h): 0.0 for h in range(4)})
    with AttentionSession(model, edits=[gates]), torch.no_grad():
        assert (layer(hidden)[0] == 0).all()
    with AttentionSession(model, observers=[watch], edits=[gates]):
        for call in (lambda: layer(hidden), lambda: model.forward(**inputs)):
            with pytest.raises(SelfCheckError, match="outside a forward pass of the model") as caught:
                call()
            assert "model(...)" in caught.value.advice
    assert (watch.calls, watch.pending) == ([], [])

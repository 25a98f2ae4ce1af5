"""Replays against one full pass for every head."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import zoo
from relevance_neurons import SINGLE, model_and_inputs
from tiers import rest_slow
from torch import Tensor
from transformers import PreTrainedModel

from headlens.attention.edits_and_observers import CallContext, Edit
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site, find_sites
from headlens.errors import ModelError, OptionError, SelfCheckError
from headlens.heads import Head
from headlens.interventions.gates import HeadGates
from headlens.replay.head_ablation import Replay
from headlens.replay.modes import BY_BATCH, MODES, Mode
from headlens.replay.nested_tensors import tensors
from headlens.replay.replacement import HeadMeans

# One of those whose stand-ins are given by batch: to a replay they are the same.
KNOWN = tuple(mode for mode in MODES if mode not in BY_BATCH[1:])


FAMILIES = ["bert-classifier", "albert-groups", "roberta", "distilbert", "electra", "gpt2", "marian", "bart"]


class Instead(Edit):
    """Puts a number for each neuron in the place of one head's output."""

    def __init__(self, head: Head, mean: Tensor) -> None:
        self.head, self.mean = head, mean

    def output(self, context: CallContext, output: Tensor) -> Tensor:
        if (context.site.stack, context.site.layer) != self.head[:2]:
            return output
        output = output.clone()
        output[:, :, self.head.head] = self.mean[self.head.head].to(output)
        return output


class Evenly(Edit):
    """Averages values over the keys a query may look at, query by query."""

    edits_mask = True

    def __init__(self, head: Head) -> None:
        self.head, self.seen = head, None

    def mask(self, context: CallContext, mask: Tensor | None) -> Tensor | None:
        self.seen = mask
        return mask

    def output(self, context: CallContext, output: Tensor) -> Tensor:
        if (context.site.stack, context.site.layer) != self.head[:2]:
            return output
        output = output.clone()
        groups = context.query.shape[1] // context.value.shape[1]
        for row in range(output.shape[0]):
            for query in range(output.shape[1]):
                values = context.value[row, self.head.head // groups]
                keys = self._keys(row, query, query + 1 if context.causal else len(values))
                output[row, query, self.head.head] = values[keys].mean(dim=0)
        return output

    def _keys(self, row: int, query: int, n_keys: int) -> list[int]:
        if self.seen is None:
            return list(range(n_keys))
        seen = self.seen[(None,) * (4 - self.seen.dim())]
        mask = seen[row % seen.shape[0], 0, query % seen.shape[2]]
        kept = [k for k in range(n_keys) if (bool(mask[k]) if mask.dtype is torch.bool else float(mask[k]) > -1e30)]
        return kept or list(range(n_keys))


def edit_for(mode: Mode, head: Head, site: Site, means: dict[Site, Tensor] | None) -> Edit:
    if mode == "zero":
        return HeadGates({head: 0.0})
    if mode == "keep-only":
        return HeadGates({h: 0.0 for h in site.heads if h != head})
    return Evenly(head) if means is None else Instead(head, means[site])


def full(model: PreTrainedModel, inputs: dict[str, Any], edit: Edit) -> Any:
    cache = {} if all(s.stack == "encoder" for s in find_sites(model)) else {"use_cache": False}
    with AttentionSession(model, edits=[edit]), torch.no_grad():
        return model(**{**inputs, **cache})


def random_means(model: PreTrainedModel, mode: Mode) -> dict[Site, Tensor] | None:
    if mode not in ("mean", *BY_BATCH):
        return None
    generator = torch.Generator().manual_seed(3)
    size = model.config.hidden_size
    return {s: torch.randn(s.n_heads, size // s.n_heads, generator=generator) for s in find_sites(model)}


def assert_same(ours: Any, theirs: Any, tolerance: float) -> None:
    pairs = list(zip(tensors(ours), tensors(theirs), strict=True))
    assert pairs
    for own, other in pairs:
        assert own.shape == other.shape
        assert float((own - other).abs().max()) <= tolerance * float(other.abs().max())


def compare(model: PreTrainedModel, inputs: dict[str, Any], mode: Mode, tolerance: float, tokens: int = 2**14) -> None:
    means = random_means(model, mode)
    met = []
    with Replay(model, mode, means if mode == "mean" else None, tokens=tokens) as replay:
        intact = replay.run(inputs)
        if means is not None and mode in BY_BATCH:
            replay.instead_of(means)
        found = list(intact.variants())
    by_head = {h: s for s in find_sites(model) for h in s.heads}
    for variant in found:
        edit = edit_for(mode, variant.head, by_head[variant.head], means)
        assert_same(variant.outputs, full(model, inputs, edit), tolerance)
        met.append(variant.head)
    assert met == list(by_head)


@pytest.mark.parametrize(
    "name", rest_slow([n for n in zoo.ZOO if n not in FAMILIES], ["albert", "bert-cross-decoder", "llama"])
)
def test_every_architecture_gives_what_full_passes_give(name: str) -> None:
    if name in (*SINGLE, "gemma2", "gpt-oss"):
        compare(zoo.ZOO[name].build(), zoo.padded(zoo.ZOO[name]), "zero", 1e-5)
    else:
        compare(*model_and_inputs(name), "zero", 1e-10)


@pytest.mark.parametrize("kernel", rest_slow(["eager", "sdpa"], ["sdpa"]))
@pytest.mark.parametrize("mode", rest_slow(KNOWN, ("zero", "keep-only")))
@pytest.mark.parametrize("name", rest_slow(FAMILIES, ["marian"]))
def test_every_mode_gives_what_full_passes_give(name: str, mode: Mode, kernel: str) -> None:
    compare(*model_and_inputs(name, kernel=kernel), mode, 1e-10)


def choices() -> tuple[zoo.Entry, dict[str, Any]]:
    entry = zoo.Entry("BertForMultipleChoice", "BertConfig", "encoder", zoo.TEXT)
    return entry, {k: torch.stack([v, v.flip(0)], dim=1) for k, v in zoo.padded(entry).items()}


@pytest.mark.parametrize("name", rest_slow(["bert", "albert", "gpt2", "marian"], ["albert"]))
@pytest.mark.parametrize("mode", rest_slow(KNOWN, ("zero", "uniform")))
def test_single_sentences_without_masks(name: str, mode: Mode) -> None:
    model = zoo.ZOO[name].build("sdpa").double()
    compare(model, zoo.unpadded(zoo.ZOO[name])[0], mode, 1e-10)


@pytest.mark.parametrize("tokens", rest_slow([1, 30, 60], [30]))
@pytest.mark.parametrize("name", rest_slow(["albert-inner", "marian"], ["marian"]))
def test_heads_a_few_at_a_time(name: str, tokens: int) -> None:
    compare(*model_and_inputs(name), "zero", 1e-10, tokens)


@pytest.mark.parametrize("name", rest_slow(["bert-classifier", "albert", "bart"], ["bart"]))
def test_single_precision(name: str) -> None:
    compare(zoo.ZOO[name].build(), zoo.padded(zoo.ZOO[name]), "zero", 1e-5)


@pytest.mark.parametrize("kernel", rest_slow(["eager", "sdpa"]))
@pytest.mark.parametrize("mode", rest_slow(KNOWN, ("zero", "keep-only")))
def test_choices_are_rows_of_one_example(mode: Mode, kernel: str) -> None:
    entry, inputs = choices()
    compare(entry.build(kernel).double(), inputs, mode, 1e-10)


CLASSIFIERS = {
    "BertForSequenceClassification": True,
    "RobertaForSequenceClassification": True,
    "ElectraForSequenceClassification": True,
    "BertForTokenClassification": False,
    "BertModel": False,
    "BertForMaskedLM": False,
}


@pytest.mark.parametrize(
    "name", rest_slow(CLASSIFIERS, ["ElectraForSequenceClassification", "BertModel", "BertForMaskedLM"])
)
@pytest.mark.parametrize("kernel", rest_slow(["eager", "sdpa"], ["sdpa"]))
def test_the_last_layer_runs_for_the_first_position_where_no_other_matters(
    name: str, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = zoo.Entry(name, f"{name.partition('For')[0].removesuffix('Model')}Config", "encoder", zoo.TEXT)
    model, inputs = entry.build(kernel).double(), zoo.padded(entry)
    lengths: list[int] = []
    last = model.get_submodule(find_sites(model)[-1].module.rpartition(".attention")[0])
    handle = last.register_forward_hook(lambda _, args, output: lengths.append(output.shape[1]))
    with Replay(model) as replay:
        found = list(replay.run(inputs).variants())
    handle.remove()
    # The intact pass and the question whether it may be short; checks; a pass for the heads of every layer.
    assert set(lengths[-3:]) == ({1} if CLASSIFIERS[name] else {7})
    for variant in found:
        assert_same(variant.outputs, full(model, inputs, HeadGates({variant.head: 0.0})), 1e-10)


@pytest.mark.parametrize("kernel", rest_slow(["eager", "sdpa"], ("sdpa",)))
@pytest.mark.parametrize("part", ["key", "value"])
def test_projections_of_the_last_layer_that_somebody_changes(part: str, kernel: str) -> None:
    """Its weights alone do not tell what they give."""
    model, inputs = model_and_inputs("bert-classifier", kernel=kernel)
    projection = getattr(model.bert.encoder.layer[-1].attention.self, part)
    projection.register_forward_hook(lambda _, args, output: output.sin() * 3)
    compare(model, inputs, "zero", 1e-10)


@pytest.mark.parametrize("mode", rest_slow(KNOWN, ("zero", "uniform")))
@pytest.mark.parametrize("name", rest_slow(["AlbertForSequenceClassification", "DistilBertForSequenceClassification"]))
def test_classifiers_in_every_mode(name: str, mode: Mode) -> None:
    settings = zoo.ALBERT if name.startswith("Albert") else zoo.ZOO["distilbert"].settings
    entry = zoo.Entry(name, f"{name.partition('For')[0]}Config", "encoder", settings)
    compare(entry.build("sdpa").double(), zoo.padded(entry), mode, 1e-10)


@pytest.mark.parametrize("name", rest_slow(["bert", "bert-classifier", "marian"], ("bert-classifier",)))
def test_later_batches_may_be_of_another_shape(name: str) -> None:
    """Also where the first one, of one token, does not tell whether other positions matter."""
    model = zoo.ZOO[name].build().double()
    rows = zoo.unpadded(zoo.ZOO[name])
    short = {k: v[:, :1] if isinstance(v, Tensor) else v for k, v in rows[0].items()}
    batches = (short, zoo.padded(zoo.ZOO[name]), rows[1])
    with Replay(model) as replay:
        found = [list(replay.run(inputs).variants()) for inputs in batches]
    for inputs, variants in zip(batches, found, strict=True):
        for variant in variants:
            assert_same(variant.outputs, full(model, inputs, HeadGates({variant.head: 0.0})), 1e-10)


def test_every_head_matters_and_its_gradients_are_left_alone() -> None:
    model, inputs = model_and_inputs("marian")
    with Replay(model) as replay:
        intact = replay.run(inputs)
        for variant in intact.variants():
            assert not torch.allclose(variant.outputs[0], intact.outputs[0], atol=1e-6)
            assert not variant.outputs[0].requires_grad


def state(model: PreTrainedModel) -> list[dict[str, Any]]:
    return [{k: v for k, v in vars(m).items() if not k.startswith("_forward")} for m in model.modules()]


@pytest.mark.parametrize("name", rest_slow(FAMILIES, zoo.REPRESENTATIVES))
def test_the_model_is_as_it_was_also_after_errors(name: str) -> None:
    model, inputs = model_and_inputs(name)
    before, implementation = state(model), model.config._attn_implementation
    expected = full(model, inputs, HeadGates({}))
    with Replay(model) as replay:
        next(replay.run(inputs).variants())
        with pytest.raises((TypeError, ValueError, AttributeError)):
            replay.run({"attention_mask": inputs["attention_mask"]})
    assert [d.keys() for d in state(model)] == [d.keys() for d in before]
    assert all(a[k] is b[k] for a, b in zip(state(model), before, strict=True) for k in a)
    assert model.config._attn_implementation == implementation
    assert_same(full(model, inputs, HeadGates({})), expected, 0)


def test_a_model_is_in_one_session_at_a_time() -> None:
    model, inputs = model_and_inputs("bert")
    with Replay(model) as replay:
        with pytest.raises(RuntimeError, match="already in a session"):
            Replay(model).__enter__()
        with pytest.raises(RuntimeError, match="already in a session"):
            AttentionSession(model).__enter__()
        with pytest.raises(RuntimeError, match="already open"):
            replay.__enter__()
        intact = replay.run(inputs)
        with torch.no_grad():
            assert_same(model(**inputs), intact.outputs, 1e-12)
    with pytest.raises(RuntimeError, match="only runs inside its `with` block"):
        replay.run(inputs)
    with pytest.raises(RuntimeError, match="only runs inside its `with` block"):
        next(intact.variants())


def test_what_cannot_be_swept_is_refused() -> None:
    model, inputs = model_and_inputs("bert-classifier")
    with Replay(model) as replay:
        with pytest.raises(OptionError, match="Leave the labels out"):
            replay.run({**inputs, "labels": torch.zeros(3, dtype=torch.long)})
        with pytest.raises(OptionError, match="batch without tensors"):
            replay.run({})
        with pytest.raises(OptionError, match=r"no head cross\.0\.0\.\nThe layers are encoder\.0, encoder\.1"):
            next(replay.run(inputs).variants([Head("cross", 0, 0)]))
    with pytest.raises(RuntimeError, match=r"call model\.eval\(\) first"):
        Replay(model.train()).__enter__()


def test_modes_and_means_must_fit() -> None:
    model = zoo.ZOO["bert"].build()
    sites = find_sites(model)
    with pytest.raises(OptionError, match="Unknown mode 'half' to take a head out"):
        Replay(model, "half")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="'mean' needs the mean head outputs"):
        Replay(model, "mean")
    with pytest.raises(OptionError, match="'zero' needs no mean head outputs"):
        Replay(model, "zero", {})
    with pytest.raises(OptionError, match=r"no means for encoder\.0"):
        Replay(model, "mean", {})
    with pytest.raises(OptionError, match=r"means of the shape \(3, 8\) for encoder\.1"):
        Replay(model, "mean", {s: torch.zeros(4 - s.layer, 8) for s in sites})


def test_models_that_give_nothing_but_nan_are_told_apart() -> None:
    model, inputs = model_and_inputs("bert")
    torch.nn.init.constant_(model.encoder.layer[0].output.LayerNorm.bias, float("nan"))
    with (
        Replay(model) as replay,
        pytest.raises(ModelError, match=r"BertModel gives NaN or infinity in float64, first in the attention of"),
    ):
        replay.run(inputs)


def test_nan_of_any_example_is_found() -> None:
    model, inputs = model_and_inputs("bert")
    once = next(i for i in inputs["input_ids"][1].tolist() if i not in inputs["input_ids"][0])
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[once] = float("nan")
    with (
        Replay(model) as replay,
        pytest.raises(ModelError, match=r"BertModel gives NaN or infinity in float64, first in the attention of"),
    ):
        replay.run(inputs)


@pytest.mark.parametrize("name", rest_slow(["bert-classifier", "marian"], ["marian"]))
def test_half_precision_agrees_to_its_own(name: str) -> None:
    compare(zoo.ZOO[name].build().bfloat16(), zoo.padded(zoo.ZOO[name]), "zero", 0.05)


class Noise(torch.nn.Module):
    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + torch.rand_like(hidden)


def test_models_that_do_not_repeat_themselves_are_found_out() -> None:
    model, inputs = model_and_inputs("bert")
    model.encoder.layer[2].intermediate.intermediate_act_fn = Noise()
    with (
        Replay(model) as replay,
        pytest.raises(SelfCheckError, match=r"Run again from encoder\.0 with no head removed"),
    ):
        replay.run(inputs)


def test_outputs_that_do_not_arrive_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = model_and_inputs("bert")
    attention = model.encoder.layer[1].attention.self
    forward = attention.forward
    monkeypatch.setattr(attention, "forward", lambda *a, **k: (forward(*a, **k)[0] * 2, None))
    with Replay(model) as replay, pytest.raises(SelfCheckError, match="did not arrive at the output projection"):
        replay.run(inputs)


def test_what_was_not_removed_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = model_and_inputs("bert")
    with Replay(model) as replay:
        intact = replay.run(inputs)
        monkeypatch.setattr(Replay, "changed", lambda self, site, call, heads: call.output.repeat(len(heads), 1, 1, 1))
        with pytest.raises(SelfCheckError, match="used a value other than 0 where head 0 was taken out"):
            next(intact.variants())


def test_means_are_over_real_tokens() -> None:
    model, inputs = model_and_inputs("marian")
    means, rows = HeadMeans(), zoo.unpadded(zoo.ZOO["marian"])
    with AttentionSession(model, observers=[means]) as session, session.batch(zoo.batch_tokens(zoo.ZOO["marian"])):
        model(**inputs)
    alone = HeadMeans()
    with AttentionSession(model, observers=[alone]):
        for row in rows:
            model(**row)
        with pytest.raises(ValueError, match="input_ids"):
            model()
    assert list(means.means(find_sites(model))) == list(alone.means(find_sites(model)))
    for site, mean in means.means(find_sites(model)).items():
        assert mean.shape == (site.n_heads, 32 // site.n_heads)
        assert torch.allclose(mean, alone.means(find_sites(model))[site], atol=1e-12)
        assert torch.count_nonzero(mean)


def test_uniform_is_attention_with_queries_of_nothing() -> None:
    """A head whose queries are 0 scores all keys alike."""
    model, inputs = model_and_inputs("bert-classifier")
    head = Head("encoder", 1, 2)
    with Replay(model, "uniform") as replay:
        found = next(replay.run(inputs).variants([head])).outputs
    query = model.bert.encoder.layer[1].attention.self.query
    with torch.no_grad():
        query.weight[16:24], query.bias[16:24] = 0, 0
        assert_same(found, model(**inputs), 1e-10)

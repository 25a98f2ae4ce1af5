"""Models that Python gives: as they were afterwards, whatever happened, and refused in the same words everywhere."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from saved import build
from small_vocabulary import small_wordpiece  # noqa: F401
from tiers import rest_slow, rest_slow_rows
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import headlens.api  # some module that this imports draws a random number
from headlens.errors import HeadlensError, ModelError, OptionError
from headlens.models.given_models import check_weights_at_hand, made_ready
from headlens.models.loading import LoadedModel

ROWS = [f"{text}\t{label}" for text in ("the cat sleeps", "a dog sees it", "one two three") for label in (0, 1)] * 2
STEPS = {"steps": 2, "batch_tokens": 60, "longest": 16}
GRID = {"windows": (0,), "groups": (2,), "thresholds": (1.0,), "clusters": 2, "epochs": 1, "points": 1}
TEXTS = ["The cat sleeps.", "A dog sees it."] * 2


def trained(tsv: Path) -> dict[str, Any]:
    return {"task": "sst2", "data": tsv, "dev_data": tsv, **STEPS}


# By function: what is given beside the model and the data.
CALLS: dict[str, Callable[[Any, Path], Any]] = {
    "attend": lambda model, _: headlens.attend(model, "The cat sleeps."),
    "attend second": lambda model, _: headlens.attend(model, "The cat sleeps.", second=model),
    "classify": lambda model, _: headlens.classify(model, TEXTS, similarity="off"),
    "classify two": lambda model, _: headlens.classify([model, model], TEXTS, similarity="off"),
    "relevance": lambda model, _: headlens.relevance(model, TEXTS, replicates=100),
    "ablate": lambda model, tsv: headlens.ablate(model, "sst2", data=tsv, replicates=100, prune="1"),
    "probe": lambda model, _: headlens.probe(model, limit=20, replicates=100),
    "compact": lambda model, _: headlens.compact(model, ["encoder.0.0"], limit=2, rounds=2),
    "train": lambda model, tsv: headlens.train(model, **trained(tsv)),
    "train_dam": lambda model, tsv: headlens.train_dam(model, **trained(tsv), lambdas=(0.0,)),
    "prune": lambda model, tsv: headlens.prune(model, **trained(tsv), lambdas=(0.0,)),
    "masks": lambda model, tsv: headlens.masks(model, **trained(tsv), pattern=["window:1"]),
    "sparsefinder": lambda model, _: headlens.sparsefinder(model, limit=6, **GRID),
}


@pytest.fixture
def tsv(tmp_path: Path) -> Path:
    path = tmp_path / "data.tsv"
    path.write_text("\n".join(["sentence\tlabel", *ROWS]))
    return path


def used_model(words: int) -> PreTrainedModel:
    """A model in the middle of somebody's work: partly in training mode, with gradients, hooks and settings."""
    model = build("BertForSequenceClassification", words, id2label={0: "negative", 1: "positive"})
    model.config.pad_token_id, model.config.return_dict = None, False
    model.train()
    model.base_model.encoder.layer[0].eval()
    for number, parameter in enumerate(model.parameters()):
        parameter.requires_grad = bool(number % 3)
        if number % 2:
            parameter.grad = torch.full_like(parameter, 0.5)
    model.register_forward_hook(lambda *_: None)
    model.my_own = ["kept"]  # type: ignore[assignment]
    return model


def hooks_of(module: nn.Module) -> dict[str, list[Any]]:
    return {name: list(value.values()) for name, value in vars(module).items() if name.endswith("hooks")}


def state_of(model: PreTrainedModel) -> dict[str, Any]:
    """All that may be told apart from outside, in plain values."""
    modules = dict(model.named_modules())
    weights = dict(model.named_parameters())
    return {
        "training": {name: module.training for name, module in modules.items()},
        "classes": {name: type(module) for name, module in modules.items()},
        "attributes": {name: sorted(vars(module)) for name, module in modules.items()},
        "hooks": {name: hooks_of(module) for name, module in modules.items()},
        "requires_grad": {name: weight.requires_grad for name, weight in weights.items()},
        "places": {name: (weight.data_ptr(), weight.dtype, weight.device) for name, weight in weights.items()},
        "weights": {name: weight.tolist() for name, weight in weights.items() if weight.numel() < 1000},
        "gradients": {n: None if w.grad is None else w.grad.unique().tolist() for n, w in weights.items()},
        "config": model.config.to_dict(),
        "return_dict": model.config.return_dict,
        "attention": model.config._attn_implementation,
        "generation": model.generation_config.to_dict() if hasattr(model, "generation_config") else None,
        "random": (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()),  # type: ignore[index] # noqa: NPY002
    }


class Stop(Exception):  # noqa: N818 - as StopIteration
    """Raised in the middle."""


@pytest.mark.parametrize("name", rest_slow(CALLS, ["attend", "attend second", "ablate"]))
def test_a_model_is_as_it_was(name: str, tsv: Path, wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    model = used_model(len(wordpiece_tokenizer))
    before = state_of(model)
    if name == "sparsefinder":  # which reads models of entmax
        with pytest.raises(HeadlensError):
            CALLS[name]((model, wordpiece_tokenizer), tsv)
    else:
        CALLS[name]((model, wordpiece_tokenizer), tsv)
    assert state_of(model) == before


@pytest.mark.parametrize("passes", rest_slow([1, 2, 5]))
@pytest.mark.parametrize(
    "name", rest_slow([c for c in CALLS if c != "sparsefinder"], ["attend", "relevance", "ablate"])
)
def test_a_model_is_as_it_was_after_an_error(
    name: str, passes: int, tsv: Path, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    """The error comes out of a layer in a forward pass, the first or a later one, also of a copy of the model."""
    model, seen = used_model(len(wordpiece_tokenizer)), []

    def raise_in_time(*_: object) -> None:
        seen.append(1)
        if len(seen) >= passes:
            raise Stop

    model.base_model.encoder.layer[-1].register_forward_hook(raise_in_time)
    before = state_of(model)
    if passes > 1:
        with suppress(Stop, HeadlensError):
            CALLS[name]((model, wordpiece_tokenizer), tsv)
    else:
        with pytest.raises((Stop, HeadlensError)):
            CALLS[name]((model, wordpiece_tokenizer), tsv)
    assert seen
    assert state_of(model) == before


def test_a_loaded_model_is_as_it_was(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    model = build("BertModel", len(wordpiece_tokenizer))
    loaded = LoadedModel("tiny", model, wordpiece_tokenizer, None)
    model.train()
    before = state_of(model)
    headlens.attend(loaded, "The cat sleeps.")
    assert state_of(model) == before


def test_whatever_is_done_to_a_model_is_undone() -> None:
    encoder, decoder = build("BertModel"), build("BertLMHeadModel", is_decoder=True, add_cross_attention=True)
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder.config, decoder.config)
    model: Any = transformers.EncoderDecoderModel(config)
    model.generation_config.num_beams = 3
    before = state_of(model)
    with suppress(Stop), made_ready(model):
        assert not any(module.training for module in model.modules())
        model.to(torch.float64)
        model.decoder.config._attn_implementation_internal = "something"
        model.config.encoder.id2label[0] = "another"
        model.generation_config.num_beams = 1
        model.encoder.encoder.layer[0].attention = nn.Identity()
        model.encoder.register_forward_pre_hook(lambda *_: None)
        model.encoder.embeddings.register_buffer("more", torch.zeros(1))
        model.__class__ = type("Another", (type(model),), {})
        raise Stop
    assert state_of(model) == before
    assert "more" not in dict(model.named_buffers())


class AdapterModel(nn.Module):
    """As PEFT's wrapper: it hands attributes on to the model inside, and can be merged."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.base_model = model
        self.config = model.config

    def merge_and_unload(self) -> nn.Module:
        return self.base_model


class AdapterLayer(nn.Module):
    """As PEFT's layers around a linear one, also where transformers adds them itself."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.base_layer = layer

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.base_layer(hidden)
        return result


Int8Params = type("Int8Params", (nn.Parameter,), {"__module__": "bitsandbytes.nn.modules"})
Params4bit = type("AffineQuantizedTensor", (nn.Parameter,), {"__module__": "torchao.dtypes"})


def with_layer(change: Callable[[Any, str], None]) -> Callable[[PreTrainedModel], PreTrainedModel]:
    def changed(model: PreTrainedModel) -> PreTrainedModel:
        change(model.base_model.encoder.layer[0].attention.self, "query")
        return model

    return changed


def put_weight(kind: Any, dtype: torch.dtype = torch.int8) -> Callable[[Any, str], None]:
    def put(place: Any, name: str) -> None:
        layer = getattr(place, name)
        layer.weight = kind(layer.weight.data.to(dtype), requires_grad=False)

    return put


def dynamically_quantised(model: PreTrainedModel) -> PreTrainedModel:
    # Torch warns of it in two ways, of one of them only once per process.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


INSIDE: dict[str, tuple[Callable[[PreTrainedModel], PreTrainedModel], str]] = {
    "adapters": (with_layer(lambda p, n: setattr(p, n, AdapterLayer(getattr(p, n)))), "has adapters inside its layers"),
    "bitsandbytes": (with_layer(put_weight(Int8Params)), "and others are quantised"),
    "torchao": (with_layer(put_weight(Params4bit, torch.float32)), "and others are quantised"),
    "float8": (with_layer(put_weight(nn.Parameter, torch.float8_e4m3fn)), "and others are quantised"),
    "torch": (dynamically_quantised, "and others are quantised"),
    "offloaded": (with_layer(lambda p, n: setattr(p, n, getattr(p, n).to("meta"))), "weights are offloaded"),
    "all offloaded": (lambda model: model.to("meta"), "weights are offloaded"),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("what", rest_slow(INSIDE, ["adapters", "offloaded"]))
def test_weights_that_are_elsewhere_are_refused_by_all_functions(
    name: str, what: str, tsv: Path, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    change, said = INSIDE[what]
    model = change(build("BertForSequenceClassification"))
    for given in ((model, wordpiece_tokenizer), LoadedModel("tiny", model, wordpiece_tokenizer, None)):
        with pytest.raises(ModelError, match=said):
            CALLS[name](given, tsv)


WRAPPED: dict[str, tuple[Callable[[PreTrainedModel, Any], Any], str]] = {
    "peft": (
        lambda model, words: (AdapterModel(model), words),
        r"AdapterModel is no .*\n.*model\.merge_and_unload\(\)",
    ),
    "data parallel": (lambda model, words: (nn.DataParallel(model), words), r"DataParallel is no .*\n.*model\.module"),
    "compiled": (lambda model, words: (torch.compile(model), words), r"OptimizedModule is no .*\n.*model\._orig_mod"),
    "name": (lambda model, _: (model, "org/name"), r"A str is no tokenizer.*\n.*from_pretrained\('org/name'\)"),
    "processor": (lambda model, words: (model, SimpleNamespace(tokenizer=words)), r"processor\.tokenizer"),
    "backend": (lambda model, words: (model, words.backend_tokenizer), r"no tokenizer.*\n.*tokenizer_object"),
    "swapped": (lambda model, words: (words, model), r"The model comes first\."),
    "alone": (lambda model, _: model, r"BertForSequenceClassification is no model that"),
    "pipeline": (
        lambda model, words: (SimpleNamespace(model=model, tokenizer=words), words),
        r"it\.model, it\.tokeniz",
    ),
    "no model": (lambda _, words: (nn.Linear(2, 2), words), r"Linear is no model of transformers\.\nGive \(model, tok"),
}


# Every function with one wrapper, every wrapper with one function; to compile takes seconds.
EVERY = [(name, what) for what in WRAPPED for name in CALLS]
FAST = [(name, what) for name, what in EVERY if what == "alone" or (name == "classify" and what != "compiled")]


@pytest.mark.parametrize(("name", "what"), rest_slow_rows(EVERY, FAST))
def test_wrappers_are_refused_by_all_functions(
    name: str, what: str, tsv: Path, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    wrap, said = WRAPPED[what]
    with pytest.raises(OptionError, match=said):
        CALLS[name](wrap(build("BertForSequenceClassification"), wordpiece_tokenizer), tsv)


def test_a_usual_model_passes() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        check_weights_at_hand("tiny", copy.deepcopy(build("BertModel")).to(dtype))

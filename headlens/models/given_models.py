"""Models that a user's Python gives: which of them can be read, and leaving them as they were."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.errors import ModelError, OptionError
from headlens.models.checkpoint_settings import nested_configs

_READ = "Roles, maps, probes and the ablation of single heads do without."
_HOW = "Give (model, tokenizer), a name, a folder, or what headlens.load returns."
# Attributes by which wrappers around a model are known, without the packages that they come from.
_WRAPPERS = {
    "merge_and_unload": "It has an adapter of PEFT around it: give model.merge_and_unload().",
    "_orig_mod": "It was compiled: give model._orig_mod, which torch.compile keeps.",
    "module": "It is spread over devices or processes: give model.module.",
    "auto_model": "Give its auto_model and its tokenizer.",
}


def check_given(model: Any) -> None:
    """Refuses anything but a pair of a model of transformers and its tokenizer.

    Args:
        model: what a user gave in the place of a model.

    Raises:
        OptionError: saying what to give instead.
    """
    if not isinstance(model, tuple) or len(model) != 2 or _is_tokenizer(model[0]):
        order = " The model comes first." if isinstance(model, tuple) and any(map(_is_tokenizer, model)) else ""
        raise OptionError(f"{_a(model)} is no model that headlens can read text with.", f"{_HOW}{order}")
    network, tokenizer = model
    if not isinstance(network, PreTrainedModel) or hasattr(network, "_orig_mod"):
        advice = next((hint for name, hint in _WRAPPERS.items() if _has(network, name)), _HOW)
        if not isinstance(network, nn.Module) and isinstance(getattr(network, "model", None), PreTrainedModel):
            advice = "Give its model and its tokenizer: (it.model, it.tokenizer)."  # a pipeline
        raise OptionError(f"{_a(network)} is no model of transformers.", advice)
    if tokenizer is not None and not _is_tokenizer(tokenizer):
        if isinstance(tokenizer, str):
            advice = f"Give the tokenizer itself: AutoTokenizer.from_pretrained({tokenizer!r})."
        elif _is_tokenizer(getattr(tokenizer, "tokenizer", None)):
            advice = "Give the tokenizer that it holds: processor.tokenizer."
        else:
            advice = (
                "Give what AutoTokenizer.from_pretrained returns; PreTrainedTokenizerFast takes a tokenizer_object."
            )
        raise OptionError(f"{_a(tokenizer)} is no tokenizer of transformers.", advice)


def is_quantised(model: PreTrainedModel) -> bool:
    """Whether transformers loaded a model with quantised weights."""
    return getattr(model, "hf_quantizer", None) is not None


def check_usable_weights(name: str, model: PreTrainedModel) -> None:
    """Refuses a model whose weights cannot be used by themselves: quantised or offloaded ones.

    Args:
        name: name of the model, for errors.
        model: a model of transformers.

    Raises:
        ModelError: naming one.
    """
    _check_not_quantised(name, model)
    if is_offloaded(model):
        raise ModelError(
            f"{name}: some of its weights are offloaded; this needs all of them in one place.",
            f"Load it without device-map. {_READ}",
        )


def _check_not_quantised(name: str, model: PreTrainedModel) -> None:
    """Refuses quantised weights: they are known by their type, or by the package of their class or layer."""
    weights = dict(model.named_parameters())
    if quantised := [key for key, weight in weights.items() if _is_quantised(weight)] or _quantised_layers(model):
        problem = f"{name}: {quantised[0]} and others are quantised; this needs weights of 16 or 32 bits."
        raise ModelError(problem, f"Load the model without quantisation, or call model.dequantize(). {_READ}")


def check_weights_at_hand(name: str, model: PreTrainedModel) -> None:
    """Refuses a model whose weights are not those of one that can be read: elsewhere, quantised, behind adapters.

    Adapters are known by layers around others (`base_layer`), offloaded weights by their device. Quantised models are
    read as transformers loads them, by commands that need no weights.

    Args:
        name: name of the model, for errors.
        model: a model of transformers.

    Raises:
        ModelError: saying what to give instead.
    """
    weights = dict(model.named_parameters())
    # transformers sets this where it adds adapters itself.
    if getattr(model, "_hf_peft_config_loaded", False) or any(_has(m, "base_layer") for m in model.modules()):
        advice = "Merge them into the weights (PEFT: merge_and_unload), or load the model without them."
        raise ModelError(f"{name} has adapters inside its layers, which headlens does not read.", advice)
    if not is_quantised(model):
        _check_not_quantised(name, model)
    if elsewhere := [key for key, weight in weights.items() if weight.is_meta and not _has_map(model)]:
        problem = f"{name}: {len(elsewhere)} of its {len(weights)} weights are offloaded to a disk or another device"
        raise ModelError(f"{problem} ({elsewhere[0]} …).", "Load it whole on one device: without device_map, offload.")
    if len(devices := sorted({str(weight.device) for weight in weights.values() if not weight.is_meta})) > 1:
        problem = f"{name}: its weights are on several devices: {', '.join(devices)}."
        raise ModelError(problem, "Load it on one: without device_map, or with CUDA_VISIBLE_DEVICES=0.")


def is_offloaded(model: PreTrainedModel) -> bool:
    """Whether accelerate keeps weights of a model elsewhere, and fetches them when a layer runs."""
    return _has_map(model) and any(weight.is_meta for weight in model.parameters())


def _has_map(model: PreTrainedModel) -> bool:
    """Whether accelerate placed a model's parts; the first of them, the embeddings, say where texts are read."""
    first = next(model.parameters(), None)
    return bool(getattr(model, "hf_device_map", None)) and first is not None and not first.is_meta


def _is_tokenizer(value: Any) -> bool:
    return isinstance(value, PreTrainedTokenizerBase)


def _has(value: Any, name: str) -> bool:
    """Whether an object has an attribute, also one that raises when it is asked for others."""
    return getattr(value, name, None) is not None


def _a(value: Any) -> str:
    kind = type(value).__name__
    return f"{'An' if kind[0] in 'AEIOU' else 'A'} {kind}"


def _is_quantised(weight: nn.Parameter) -> bool:
    of_package = type(weight).__module__.partition(".")[0] in ("torchao", "bitsandbytes", "optimum", "hqq")
    tensor = weight.data
    return of_package or type(tensor) is not Tensor or not tensor.is_floating_point() or tensor.itemsize < 2


def _quantised_layers(model: nn.Module) -> list[str]:
    """Names of layers that hold quantised weights without parameters, as those of torch and of GPTQ."""
    kinds = ((name, type(module)) for name, module in model.named_modules())
    return [name for name, kind in kinds if ".quantized" in kind.__module__ or kind.__name__.startswith("QuantLinear")]


@contextmanager
def made_ready(model: PreTrainedModel) -> Iterator[None]:
    """Makes a model ready to be read inside `with`, and leaves it as it was, whatever happens there.

    It is in evaluation mode, its outputs have names, and gradients that its parameters have are laid aside. Afterwards
    all is as before: mode, class, hooks, buffers and other attributes of all modules; tensors, devices, types and
    gradients of all parameters; configurations, those of parts and of generation among them. Weights that are changed
    in place are not looked at.
    """
    with ExitStack() as undo:
        configs: dict[int, Any] = {}
        for module in model.modules():
            undo.callback(_restore_module, module, type(module), dict(vars(module)), _containers(module))
            for name in ("config", "generation_config"):
                if (config := vars(module).get(name)) is not None:
                    configs |= {id(nested): nested for nested in nested_configs(config)}
        for parameter in model.parameters():
            undo.callback(parameter.requires_grad_, parameter.requires_grad)
            undo.callback(_restore_tensors, parameter, parameter.data, parameter.grad)
        for nested in configs.values():
            undo.callback(_restore_config, nested, {key: _copied(value) for key, value in vars(nested).items()})
            if hasattr(nested, "return_dict"):
                nested.return_dict = True
        model.eval().zero_grad(set_to_none=True)
        yield


def _copied(value: Any) -> Any:
    """A copy of a setting; configurations within others are restored on their own."""
    return copy.deepcopy(value) if isinstance(value, dict | list | set) else value


def _containers(module: nn.Module) -> dict[str, Any]:
    """Copies of a module's dictionaries and sets: of its parameters, buffers, parts and hooks."""
    return {name: copy.copy(value) for name, value in vars(module).items() if isinstance(value, dict | set)}


def _restore_module(module: nn.Module, kind: type, attributes: dict[str, Any], containers: dict[str, Any]) -> None:
    if type(module) is not kind:
        module.__class__ = kind
    vars(module).clear()
    vars(module).update(attributes)
    for name, before in containers.items():
        attributes[name].clear()
        attributes[name].update(before)


def _restore_tensors(parameter: nn.Parameter, data: Tensor, grad: Tensor | None) -> None:
    parameter.grad = None  # a gradient of another device or type could not stand beside the weights
    parameter.data = data
    parameter.grad = grad


def _restore_config(config: Any, settings: dict[str, Any]) -> None:
    vars(config).clear()
    vars(config).update(settings)


@contextmanager
def random_numbers_untouched() -> Iterator[None]:
    """Leaves the generators of torch, numpy and Python as they were."""
    numpy, python = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=list(range(torch.cuda.device_count()))):
            yield
    finally:
        np.random.set_state(numpy)  # noqa: NPY002
        random.setstate(python)

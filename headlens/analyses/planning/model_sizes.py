"""The model of a plan: itself where it is on this machine, or one of its shape with random weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AlbertConfig,
    AutoConfig,
    AutoModel,
    AutoModelForSeq2SeqLM,
    BertConfig,
    DistilBertConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    RobertaConfig,
)

from headlens.attention.sites import find_sites
from headlens.errors import ModelError
from headlens.models.loading import choose_device, load, load_tokenizer, local_or_hub, quiet
from headlens.models.loading_errors import LoadRequest, explained
from headlens.models.model_options import ModelOptions
from headlens.network import hub_answers
from headlens.options import DEMO
from headlens.training.architectures import PREFIX, shape_of

# Shapes of well-known models as published, for machines that cannot ask the hub.
# By the last part of the hub's name.
MODELS: dict[str, PreTrainedConfig] = {
    "bert-base-uncased": BertConfig(),
    "albert-base-v2": AlbertConfig(
        vocab_size=30000, hidden_size=768, num_attention_heads=12, intermediate_size=3072, num_hidden_layers=12
    ),
    "roberta-base": RobertaConfig(vocab_size=50265, max_position_embeddings=514),
    "distilbert-base-uncased": DistilBertConfig(),
}


@dataclass(frozen=True)
class PlannedModel:
    """A model that a command would read or train.

    Args:
        name: as the command has it.
        model: its weights are its own, or random where `source` says so; on the device.
        tokenizer: None where it is not on this machine.
        source: where its shape comes from, in words.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    source: str

    @property
    def parameters(self) -> int:
        """Number of parameters of the model; shared ones are counted once."""
        return sum(p.numel() for p in self.model.parameters())

    @property
    def weight_bytes(self) -> int:
        """Size of the model's parameters in bytes; shared ones are counted once."""
        return sum(p.numel() * p.element_size() for p in self.model.parameters())

    @property
    def stacks(self) -> dict[str, tuple[int, int]]:
        """Layers and heads of all layers, by stack."""
        sites = find_sites(self.model)
        layers = Counter(site.stack for site in sites)
        heads = {stack: sum(site.n_heads for site in sites if site.stack == stack) for stack in layers}
        return {stack: (layers[stack], heads[stack]) for stack in layers}

    @property
    def heads(self) -> int:
        """Number of attention heads in all layers of all stacks."""
        return sum(heads for _, heads in self.stacks.values())

    @property
    def two_sided(self) -> bool:
        """Whether the model is an encoder-decoder, by its configuration."""
        return bool(self.model.config.is_encoder_decoder)


def planned_model(
    name: str, options: ModelOptions | None = None, *, vocabulary: int = 8000, longest: int = 128
) -> PlannedModel:
    """The model of a name. Nothing large is fetched: of a model on the hub that is not here, only its configuration.

    Args:
        name: as `load` takes it, or `new:NAME` as `headlens train` does.
        options: how it is loaded.
        vocabulary: of a new model.
        longest: of a new model.

    Raises:
        InputError: see `load`, and if the hub cannot be asked for a model whose shape is not known.
    """
    options = options or ModelOptions()
    if name.startswith(PREFIX):
        shape = shape_of(name.removeprefix(PREFIX), vocabulary, longest)
        return PlannedModel(name, _random(shape, options), None, "a new model")
    if name == DEMO or isinstance(local_or_hub(name), Path):
        loaded = load(name, options)
        return PlannedModel(loaded.name, loaded.model, loaded.tokenizer, "the model itself")
    try:
        config, tokenizer = _from_hub(name, options)
        return PlannedModel(name, _random(config, options), tokenizer, "its configuration; weights not fetched")
    except ModelError:
        known = MODELS.get(name.rsplit("/", 1)[-1])
        if known is None:
            raise
        return PlannedModel(name, _random(known, options), None, "its shape as headlens knows it; the hub is silent")


def _from_hub(name: str, options: ModelOptions) -> tuple[PreTrainedConfig, PreTrainedTokenizerBase | None]:
    with explained(name, LoadRequest(options.revision, options.offline, options.allow_pickle)), quiet():
        shared: dict[str, Any] = {
            "revision": options.revision or "main",
            "local_files_only": options.offline or not hub_answers(),
            "trust_remote_code": options.trust_remote_code,
        }
        return AutoConfig.from_pretrained(name, **shared), load_tokenizer(name, **shared)


def _random(config: PreTrainedConfig, options: ModelOptions) -> PreTrainedModel:
    """A model of that shape, of the type and on the device of the options."""
    kind: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModel
    with quiet():
        model: PreTrainedModel = kind.from_config(config)
    dtype = torch.float32 if options.dtype == "auto" else getattr(torch, options.dtype)
    placed: Any = model.eval().to(dtype=dtype)
    placed_model: PreTrainedModel = placed.to(choose_device(options.device))
    return placed_model

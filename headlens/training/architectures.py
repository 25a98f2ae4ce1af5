"""Models with random weights, by a name such as `new:bert-small`, or by their shape: `new:marian-3x8x128`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertForPreTraining,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    MarianConfig,
    MarianMTModel,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from headlens.errors import OptionError

PREFIX = "new:"
_TINY = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 128, "intermediate_size": 512}
_SMALL = {"num_hidden_layers": 6, "num_attention_heads": 8, "hidden_size": 256, "intermediate_size": 1024}
_BASE = {"num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 768, "intermediate_size": 3072}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_SHAPE = re.compile(r"(?P<family>bert|albert|marian)-(?P<layers>\d+)x(?P<heads>\d+)x(?P<width>\d+)")


def _translator(layers: int, heads: int, width: int, inner: int) -> dict[str, Any]:
    sizes = {"layers": layers, "attention_heads": heads, "ffn_dim": inner}
    return {"d_model": width} | {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in sizes.items()}


_MASKED: dict[str, dict[str, Any]] = {
    "bert-tiny": _TINY,
    "bert-small": _SMALL,
    "bert-base": _BASE,
    "albert-tiny": _TINY | {"embedding_size": 64},
    "albert-small": _SMALL | {"embedding_size": 128},
    "albert-base": _BASE | {"embedding_size": 128},
}
_TRANSLATORS = {
    "marian-tiny": _translator(2, 2, 128, 512),
    "marian-small": _translator(3, 8, 256, 1024),
    # Vaswani et al. 2017 and Voita et al. 2019
    "marian-base": _translator(6, 8, 512, 2048),
}
# Of each family the configuration, the model, and the model that has a head for next sentences, too.
_CLASSES: dict[str, tuple[type, type[PreTrainedModel], type[PreTrainedModel]]] = {
    "bert": (BertConfig, BertForMaskedLM, BertForPreTraining),
    "albert": (AlbertConfig, AlbertForMaskedLM, AlbertForPreTraining),
}


def _sizes_of(name: str, known: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The sizes of a model by its name: one of those that are known, or of their families by shape: `marian-3x8x128`.

    Raises:
        OptionError: if there is no such model.
    """
    families = dict.fromkeys(n.split("-")[0] for n in known)
    if not (match := _SHAPE.fullmatch(name)):
        if name in known:
            return known[name]
    else:
        family, (layers, heads, width) = match["family"], map(int, match.group("layers", "heads", "width"))
        if not (layers and heads and width) or width % heads or (family == "marian" and width % 2):
            raise OptionError(
                f"{PREFIX}{name}: {layers} layers of {heads} heads, {width} wide, make no model.",
                "LAYERSxHEADSxWIDTH: WIDTH is a multiple of HEADS, and even for marian; none of them is 0.",
            )
        if family == "marian" and family in families:
            return _translator(layers, heads, width, 4 * width)
        if family in families:
            shape = {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": width}
            return _MASKED[f"{family}-small"] | shape | {"intermediate_size": 4 * width}
    by_shape = " or ".join(f"{PREFIX}{family}-LAYERSxHEADSxWIDTH" for family in families)
    raise OptionError(
        f"{PREFIX}{name} is no model.", f"New models: {', '.join(PREFIX + n for n in known)}; or {by_shape}."
    )


def masked_model(
    name: str, tokenizer: PreTrainedTokenizerBase, longest: int, seed: int, *, next_sentence: bool = False
) -> PreTrainedModel:
    """A masked language model with random weights; without dropout, as Lan et al. 2020 recommend for pre-training.

    Args:
        name: `bert-small` and the like; without `new:`.
        tokenizer: its vocabulary.
        longest: tokens that it reads.
        seed: of the weights.
        next_sentence: whether it has a head for next sentences, too.

    Raises:
        OptionError: if there is no such model.
    """
    ids = {"bos": tokenizer.cls_token_id, "eos": tokenizer.sep_token_id, "pad": tokenizer.pad_token_id}
    config = _masked_config(name, len(tokenizer), longest, **{f"{token}_token_id": i for token, i in ids.items()})
    _, plain, with_next = _CLASSES[name.split("-", maxsplit=1)[0]]
    torch.manual_seed(seed)
    return (with_next if next_sentence else plain)(config)


def translation_model(name: str, tokenizer: PreTrainedTokenizerBase, longest: int, seed: int) -> PreTrainedModel:
    """A Marian model with random weights, one embedding for source, target and output.

    Raises:
        OptionError: if there is no such model.
    """
    ids = {"pad": tokenizer.pad_token_id, "end": tokenizer.eos_token_id}
    config = _translator_config(_sizes_of(name, _TRANSLATORS), len(tokenizer), longest, **ids)
    torch.manual_seed(seed)
    return MarianMTModel(config)


def shape_of(name: str, vocabulary: int, longest: int) -> PreTrainedConfig:
    """The configuration of a new model of either kind, before there is a tokenizer.

    Args:
        name: without `new:`.
        vocabulary: its pieces.
        longest: tokens that it reads.

    Raises:
        OptionError: if there is no such model.
    """
    sizes = _sizes_of(name, _MASKED | _TRANSLATORS)
    if name.startswith("marian"):
        return _translator_config(sizes, vocabulary, longest, pad=0, end=1)
    return _masked_config(name, vocabulary, longest)


def _masked_config(name: str, vocabulary: int, longest: int, **ids: int | None) -> PreTrainedConfig:
    sizes = {"vocab_size": vocabulary, "max_position_embeddings": longest, **_NO_DROPOUT, **_sizes_of(name, _MASKED)}
    config = _CLASSES[name.split("-", maxsplit=1)[0]][0]
    configured: PreTrainedConfig = config(**sizes, **ids)
    return configured


def _translator_config(shape: dict[str, Any], vocabulary: int, longest: int, *, pad: int, end: int) -> MarianConfig:
    return MarianConfig(
        vocab_size=vocabulary,
        max_position_embeddings=longest,
        pad_token_id=pad,
        eos_token_id=end,
        decoder_start_token_id=pad,
        forced_eos_token_id=None,
        scale_embedding=True,
        activation_function="relu",
        **shape,
    )


def is_new(name: str) -> bool:
    """Whether a name asks for a model with random weights, such as `new:bert-small`."""
    return name.startswith(PREFIX)

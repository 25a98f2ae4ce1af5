"""Models with random weights, by a name such as `new:bert-small`, or by their shape: `new:marian-3x8x128`."""

from __future__ import annotations

import re
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


_SHAPE = re.compile(r"(?P<family>bert|albert|marian)-(?P<layers>\d+)x(?P<heads>\d+)x(?P<width>\d+)")


def _translator(layers: int, heads: int, width: int, inner: int) -> dict[str, Any]:
    sides = ("encoder", "decoder")
    return {
        "d_model": width,
        **{f"{side}_layers": layers for side in sides},
        **{f"{side}_attention_heads": heads for side in sides},
        **{f"{side}_ffn_dim": inner for side in sides},
    }


_MASKED: dict[str, tuple[type[PreTrainedModel], type, dict[str, Any]]] = {
    "bert-tiny": (BertForMaskedLM, BertConfig, _TINY),
    "bert-small": (BertForMaskedLM, BertConfig, _SMALL),
    "bert-base": (BertForMaskedLM, BertConfig, _BASE),
    "albert-tiny": (AlbertForMaskedLM, AlbertConfig, _TINY | {"embedding_size": 64}),
    "albert-small": (AlbertForMaskedLM, AlbertConfig, _SMALL | {"embedding_size": 128}),
    "albert-base": (AlbertForMaskedLM, AlbertConfig, _BASE | {"embedding_size": 128}),
}
_WITH_NEXT: dict[type[PreTrainedModel], type[PreTrainedModel]] = {
    BertForMaskedLM: BertForPreTraining,
    AlbertForMaskedLM: AlbertForPreTraining,
}
_TRANSLATORS = {
    "marian-tiny": _translator(2, 2, 128, 512),
    "marian-small": _translator(3, 8, 256, 1024),
    # Vaswani et al. 2017 and Voita et al. 2019
    "marian-base": _translator(6, 8, 512, 2048),
}


def _translator_shape(name: str) -> dict[str, Any] | None:
    """Sizes of a translation model, None if the name is that of no such model."""
    if (sizes := _sizes(name)) and sizes[0] == "marian":
        _, layers, heads, width = sizes
        return _translator(layers, heads, width, 4 * width)
    return _TRANSLATORS.get(name)


def _masked_shape(name: str) -> tuple[type[PreTrainedModel], type, dict[str, Any]] | None:
    """Classes and sizes of a masked language model, None if the name is that of no such model."""
    if (sizes := _sizes(name)) and sizes[0] != "marian":
        family, layers, heads, width = sizes
        model, config, known = _MASKED[f"{family}-small"]
        shape = {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": width}
        return model, config, known | shape | {"intermediate_size": 4 * width}
    return _MASKED.get(name)


def _sizes(name: str) -> tuple[str, int, int, int] | None:
    """Family, layers, heads of a layer, and width that a name such as `marian-3x8x128` gives; None if it gives none.

    Raises:
        OptionError: if there are no such models.
    """
    if not (match := _SHAPE.fullmatch(name)):
        return None
    layers, heads, width = (int(match[part]) for part in ("layers", "heads", "width"))
    if not (layers and heads and width) or width % heads or (match["family"] == "marian" and width % 2):
        raise OptionError(
            f"{PREFIX}{name}: {layers} layers of {heads} heads, {width} wide, make no model.",
            "LAYERSxHEADSxWIDTH: WIDTH is a multiple of HEADS, and even for marian; none of them is 0.",
        )
    return match["family"], layers, heads, width


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
    kind = _known_masked(name)[0]
    torch.manual_seed(seed)
    return (_WITH_NEXT[kind] if next_sentence else kind)(config)


def translation_model(name: str, tokenizer: PreTrainedTokenizerBase, longest: int, seed: int) -> PreTrainedModel:
    """A Marian model with random weights, one embedding for source, target and output.

    Raises:
        OptionError: if there is no such model.
    """
    if not (shape := _translator_shape(name)):
        raise _unknown(name, _TRANSLATORS)
    ids = {"pad": tokenizer.pad_token_id, "end": tokenizer.eos_token_id}
    config = _translator_config(shape, len(tokenizer), longest, **ids)
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
    if shape := _translator_shape(name):
        return _translator_config(shape, vocabulary, longest, pad=0, end=1)
    if not _masked_shape(name):
        raise _unknown(name, _MASKED | _TRANSLATORS)
    return _masked_config(name, vocabulary, longest)


def _known_masked(name: str) -> tuple[type[PreTrainedModel], type, dict[str, Any]]:
    if not (known := _masked_shape(name)):
        raise _unknown(name, _MASKED)
    return known


def _masked_config(name: str, vocabulary: int, longest: int, **ids: int | None) -> PreTrainedConfig:
    _, config, shape = _known_masked(name)
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    configured: PreTrainedConfig = config(
        vocab_size=vocabulary, max_position_embeddings=longest, **none, **shape, **ids
    )
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


def _unknown(name: str, known: dict[str, Any]) -> OptionError:
    families = dict.fromkeys(n.split("-")[0] for n in known)
    by_shape = " or ".join(f"{PREFIX}{family}-LAYERSxHEADSxWIDTH" for family in families)
    return OptionError(
        f"{PREFIX}{name} is no model.", f"New models: {', '.join(PREFIX + n for n in known)}; or {by_shape}."
    )


def is_new(name: str) -> bool:
    """Whether a name asks for a model with random weights, such as `new:bert-small`."""
    return name.startswith(PREFIX)

"""Attention weights as transformers itself gives them: eager, one sentence at a time, nothing padded."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from naive_samples import Seq
from transformers import PreTrainedModel

Weights = npt.NDArray[np.float32]


def eager_attention(
    model: Any,
    input_ids: Sequence[int],
    *,
    decoder_input_ids: Sequence[int] | None = None,
    token_type_ids: Sequence[int] | None = None,
    stack: str = "encoder",
) -> dict[str, Weights]:
    """Attention of one unpadded sentence by stack, each (layers, heads, queries, keys), in float32.

    A copy of the model is run, so that the model given keeps its device, precision and attention function.

    Args:
        model: a Hugging Face model.
        input_ids: the sentence with its special tokens.
        decoder_input_ids: for an encoder-decoder, what its decoder reads; the result then has the stacks
            encoder, decoder and cross.
        token_type_ids: segments, for models that read pairs.
        stack: what to call the only stack of any other model: "decoder" for a decoder-only one.
    """
    inputs = {"input_ids": input_ids, "attention_mask": [1] * len(input_ids)}
    if token_type_ids is not None:
        inputs["token_type_ids"] = token_type_ids
    if decoder_input_ids is not None:
        inputs["decoder_input_ids"] = decoder_input_ids
        inputs["decoder_attention_mask"] = [1] * len(decoder_input_ids)
    outputs = run_eagerly(model, {name: torch.tensor([list(ids)]) for name, ids in inputs.items()})
    if decoder_input_ids is None:
        return {stack: to_numpy(outputs.attentions)}
    return {
        "encoder": to_numpy(outputs.encoder_attentions),
        "decoder": to_numpy(outputs.decoder_attentions),
        "cross": to_numpy(outputs.cross_attentions),
    }


def run_eagerly(model: Any, inputs: dict[str, torch.Tensor]) -> Any:
    """The outputs of a float32 copy of the model that computes attention with its own eager function."""
    eager = copy.deepcopy(model).cpu().float().eval()
    for module in eager.modules():
        # Each part, as in older transformers the whole of a T5 tells its two stacks nothing.
        if isinstance(module, PreTrainedModel):
            module.set_attn_implementation("eager")
    with torch.no_grad():
        return eager(**inputs, output_attentions=True, use_cache=False)


def to_numpy(layers: Sequence[torch.Tensor]) -> Weights:
    """Tensors (1, heads, queries, keys) of one sentence, one per layer -> (layers, heads, queries, keys)."""
    return np.stack([layer[0].numpy() for layer in layers])


def unpadded(tokens: Any, row: int) -> Seq:
    """One sentence of a `headlens.attention.edits_and_observers.Tokens`, its padding left out."""
    real = tokens.real[row].tolist()

    def kept(name: str) -> list[Any]:
        return [value for value, is_real in zip(getattr(tokens, name)[row].tolist(), real, strict=True) if is_real]

    flags = {name: kept(name) for name in ("special", "cls", "sep", "bos", "eos", "punct")}
    return Seq(**flags, word=kept("word"), n_words=int(tokens.n_words[row]))

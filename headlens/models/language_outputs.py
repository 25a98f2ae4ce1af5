"""Logits of language models, which have other names in models with a second head for pre-training."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import PreTrainedModel


def token_logits(outputs: Any) -> Any:
    """Logits of tokens, (rows, length, vocabulary); of other models whatever they call `logits`, or None."""
    logits = getattr(outputs, "prediction_logits", None)
    return getattr(outputs, "logits", None) if logits is None else logits


def next_logits(outputs: Any) -> Any:
    """Logits (rows, 2) of BERT's head for next sentences, or of ALBERT's for their order; class 0: it follows."""
    logits = getattr(outputs, "seq_relationship_logits", None)
    return getattr(outputs, "sop_logits", None) if logits is None else logits


def unembedding_weight(model: PreTrainedModel) -> Tensor | None:
    """The matrix from the residual stream to logits, (vocabulary, features); None where it is not known."""
    module: Any = model.get_output_embeddings()
    if module is None and getattr(model.config, "tie_word_embeddings", False):
        module = model.get_input_embeddings()
    weight = getattr(module, "weight", None)
    return weight.detach() if isinstance(weight, Tensor) else None

"""Logits of language models, which have other names in models with a second head for pre-training."""

from __future__ import annotations

from typing import Any


def token_logits(outputs: Any) -> Any:
    """Logits of tokens, (rows, length, vocabulary); of other models whatever they call `logits`, or None."""
    logits = getattr(outputs, "prediction_logits", None)
    return getattr(outputs, "logits", None) if logits is None else logits


def next_logits(outputs: Any) -> Any:
    """Logits (rows, 2) of BERT's head for next sentences, or of ALBERT's for their order; class 0: it follows."""
    logits = getattr(outputs, "seq_relationship_logits", None)
    return getattr(outputs, "sop_logits", None) if logits is None else logits

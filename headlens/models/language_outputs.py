"""What language models answer: models with a second head for pre-training call it otherwise than those without."""

from __future__ import annotations

from typing import Any


def token_logits(outputs: Any) -> Any:
    """Logits of tokens, (rows, length, vocabulary); of other models whatever they call `logits`, or None."""
    found = getattr(outputs, "prediction_logits", None)
    return getattr(outputs, "logits", None) if found is None else found


def next_logits(outputs: Any) -> Any:
    """Logits of BERT's head for next sentences, or of ALBERT's for their order; (rows, 2), class 0: it follows."""
    found = getattr(outputs, "seq_relationship_logits", None)
    return getattr(outputs, "sop_logits", None) if found is None else found

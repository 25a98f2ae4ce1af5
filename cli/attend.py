"""`headlens attend`: attention maps of given sentences."""

from __future__ import annotations

from typing import Any

from .command import analysis
from .next_steps import next_step
from .screen import Screen


@analysis("Analyses")
def attend(run: Any, request: Any, _: Screen) -> str:
    """Show where every head looks in given sentences: an interactive page, and one figure per layer.

    Arguments with a space are sentences. Examples: headlens attend "The cat that I saw sleeps." ·
    headlens attend bert-base-uncased "One sentence." "Another one." --without encoder.2.8
    """
    classify = next_step("classify", request, request.model)
    by_ids = request.model_options.tokenizer == "ids"  # the bundled text is of words
    return f"open {run.folder / 'attention.html'} in a browser{'' if by_ids else f', or {classify}'}"

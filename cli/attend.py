"""`headlens attend`: attention maps of given sentences."""

from __future__ import annotations

import shlex
from typing import Any

from .command import analysis
from .screen import Screen


@analysis("Analyses")
def attend(run: Any, request: Any, _: Screen) -> str:
    """Show where every head looks in given sentences: an interactive page, and one figure per layer.

    Arguments with a space are sentences. Examples: headlens attend "The cat that I saw sleeps." ·
    headlens attend bert-base-uncased "One sentence." "Another one." --without encoder.2.8
    """
    same = [*request.mask.as_options(), *request.model_options.as_options()]
    classify = shlex.join(["headlens", "classify", request.model, *same])
    return f"open {run.folder / 'attention.html'} in a browser, or {classify}"

"""Which way metrics of tasks go."""

from __future__ import annotations

# All others are better high.
LOWER_IS_BETTER = frozenset({"loss", "perplexity"})

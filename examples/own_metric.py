"""A metric of your own: how much attention every head of MiniLM gives to the first word of a sentence.

Run: python examples/own_metric.py
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

import headlens


@dataclass(frozen=True)
class FirstWord(headlens.Metric):
    """Attention to the first word."""

    name: ClassVar[str] = "first_word"
    columns: ClassVar[tuple[headlens.MetricColumn, ...]] = (
        headlens.MetricColumn("to_first_word", "Mean attention weight given to the first word.", "weight to word 1"),
    )

    def measure(self, view: headlens.CallView) -> Mapping[str, Tensor]:
        """Reduce one attention call to two sums; (heads,) and a count."""
        to_first = view.weights.masked_fill(view.keys.word[:, None, None] != 0, 0).sum(-1)  # (batch, heads, query)
        real = view.queries.real[:, None]
        return {"mass": to_first.masked_fill(~real, 0).sum((0, 2), dtype=view.sums_dtype), "n": real.sum()}

    def compute(self, sums: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """From the sums over the corpus to a column."""
        return {"to_first_word": sums["mass"] / sums["n"]}


def main() -> None:
    """Measure MiniLM on the bundled corpus, print its ten strongest heads, and save the whole run."""
    result = headlens.classify("demo", metrics=[FirstWord()])
    columns = ["stack", "layer", "head", "to_first_word", "confidence", "roles"]
    print(result.tables["heads"].nlargest(10, "to_first_word")[columns].to_string(index=False))


if __name__ == "__main__":
    main()

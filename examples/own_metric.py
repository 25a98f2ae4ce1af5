"""A metric of your own: how much attention every head of MiniLM gives to the first word of a sentence.

Run: python examples/own_metric.py
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

import headlens
from headlens.metrics.attention_view import CallView
from headlens.metrics.metric import Metric, Sums
from headlens.runs.corpus_reader import CorpusReader


@dataclass(frozen=True)
class FirstWord(Metric):
    """Mean attention mass on the pieces of the first word."""

    name: ClassVar[str] = "first_word"

    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        """Reduce one attention call to two sums; (heads,) and a count."""
        to_first = view.weights.masked_fill(view.keys.word[:, None, None] != 0, 0).sum(-1)  # (batch, heads, query)
        real = view.queries.real[:, None]
        return {"mass": to_first.masked_fill(~real, 0).sum((0, 2), dtype=view.sums_dtype), "n": real.sum()}

    def compute(self, sums: Sums) -> Mapping[str, object]:
        """From the sums over the corpus to a column."""
        return {"to_first_word": sums["mass"] / sums["n"]}


def main() -> None:
    """Measure MiniLM over the embedded corpus and print its ten strongest heads."""
    loaded, corpus = headlens.load("demo"), headlens.open_corpus("demo")
    feed = CorpusReader.of(loaded, next(iter(corpus)))
    statistics = headlens.Statistics([FirstWord()], feed.sites)
    with headlens.AttentionSession(feed.model, observers=[statistics]) as session, torch.inference_mode():
        for batch in feed.batches(corpus, batch_tokens=2048):
            with session.batch(headlens.BatchTokens(encoder=batch.source)):
                feed.model(**batch.inputs)
    table = statistics.tables()["first_word"].rows
    print(table.sort_values("to_first_word", ascending=False).head(10).to_string(index=False))


if __name__ == "__main__":
    main()

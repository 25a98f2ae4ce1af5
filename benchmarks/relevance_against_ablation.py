"""Does relevance tell what becomes of the target without a head? Prints a markdown table of rank correlations.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/relevance_against_ablation.py

MiniLM on the bundled corpus, target `embedding`. Every head is taken out by itself; `drop` is by how much the
embedding gets shorter in its own direction, which is what the target measures, and `turn` is 1 - cosine with the
embedding of the whole model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import spearmanr
from torch import Tensor
from transformers import PreTrainedModel

from headlens.analyses.ablate.sweep import sweep_batch
from headlens.attention.sites import find_sites
from headlens.corpora.sources import open_corpus
from headlens.heads import KEY_COLUMNS
from headlens.models.loading import load
from headlens.relevance_propagation.head_relevance import head_relevance
from headlens.relevance_propagation.relevance_options import RULES
from headlens.replay.head_ablation import Replay
from headlens.runs.corpus_pass import CorpusReader


def pooled(outputs: Any, inputs: Any) -> Tensor:
    """Sentence embeddings as the mean over the tokens that are no padding, (rows, d)."""
    real = inputs["attention_mask"][..., None].to(outputs.last_hidden_state.dtype)
    mean: Tensor = (outputs.last_hidden_state * real).sum(1) / real.sum(1)
    return mean


def damage(model: PreTrainedModel, batches: Iterable[dict[str, Tensor]]) -> pd.DataFrame:
    """Means over sentences of what becomes of the embedding without each head."""
    heads = [h for s in find_sites(model) for h in s.heads]
    with Replay(model) as replay:
        swept = [
            sweep_batch(replay, batch, lambda outputs, batch=batch: pooled(outputs, batch).double().numpy(), heads)
            for batch in batches
        ]
    whole, *others = np.concatenate(swept, axis=1)
    length = np.linalg.norm(whole, axis=1)
    rows = []
    for head, without in zip(heads, others, strict=True):
        along = (whole * without).sum(1) / length
        turn = 1 - along / np.linalg.norm(without, axis=1)
        rows.append({**head._asdict(), "drop": (1 - along / length).mean(), "turn": turn.mean()})
    return pd.DataFrame(rows).set_index(KEY_COLUMNS)


def main() -> None:
    loaded, corpus = load("demo"), open_corpus("demo")
    reader = CorpusReader.of(loaded, next(iter(corpus)))
    truth = damage(reader.model, (batch.inputs for batch in reader.batches(corpus, 512)))
    rules = tuple(rule for rule in RULES if rule != "alpha-beta")
    found = head_relevance(loaded, corpus, compare=rules).table.rows
    print("| rule | `raw` and drop | size of `raw` and turn | `relevance` and drop |\n|---|---:|---:|---:|")
    for rule in rules:
        own = found[found["rule"] == rule].set_index(KEY_COLUMNS).loc[truth.index]
        pairs = (
            (own["raw"], truth["drop"]),
            (own["raw"].abs(), truth["turn"]),
            (own["relevance"], truth["drop"]),
        )
        print(f"| {rule} | " + " | ".join(f"{spearmanr(*pair).statistic:.2f}" for pair in pairs) + " |")


if __name__ == "__main__":
    main()

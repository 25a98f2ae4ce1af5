"""What a sweep over all heads costs beside one full pass for every head; prints a markdown table.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE python tests/benchmarks/sweep.py

CPU time of this process; rounds in which every contender runs once, in turn; medians of ratios. Full passes have a hook
that zeroes one head's slice of what the output projection gets, which costs nothing worth measuring.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import zoo
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel

from headlens.attention.sites import find_sites
from headlens.corpora.sources import open_corpus
from headlens.experiments.feeding import Feed
from headlens.heads import Head
from headlens.models.loading import load
from headlens.pruning.sweep import SweepOptions, sweep

Inputs = dict[str, Tensor]
Contender = Callable[[], dict[Head, Tensor]]


def read(outputs: Any, inputs: Any) -> Tensor:
    """A sentence embedding, or the logits of a classifier: (rows, k)."""
    if "logits" in outputs:
        return outputs.logits
    mask = inputs["attention_mask"][..., None]
    return (outputs.last_hidden_state * mask).sum(dim=1) / mask.sum(dim=1)


@contextmanager
def cut(layer: nn.Module, head: int, n_heads: int) -> Iterator[None]:
    def zero(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden = args[0].clone()
        hidden.unflatten(-1, (n_heads, -1))[..., head, :] = 0
        return (hidden, *args[1:])

    handle = layer.register_forward_pre_hook(zero)
    try:
        yield
    finally:
        handle.remove()


def hooks(model: PreTrainedModel, batches: list[Inputs]) -> Contender:
    """One full pass for every head."""

    def run() -> dict[Head, Tensor]:
        found = {}
        for site in find_sites(model):
            layer = zoo.projection(model, site)
            for head in site.heads:
                with cut(layer, head.head, site.n_heads), torch.no_grad():
                    found[head] = torch.cat([read(model(**b), b) for b in batches])
        return found

    return run


def ours(model: PreTrainedModel, batches: list[Inputs], options: SweepOptions) -> Contender:
    def run() -> dict[Head, Tensor]:
        found = sweep(model, batches, read, options).without
        return {head: torch.from_numpy(records) for head, records in found.items()}

    return run


def seconds(contender: Contender) -> float:
    gc.collect()
    begun = time.process_time()
    contender()
    return time.process_time() - begun


def print_table(title: str, contenders: dict[str, Contender], rounds: int) -> None:
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for i in range(rounds):
        names = list(contenders)
        for name in names[i % len(names) :] + names[: i % len(names)]:
            found[name].append(seconds(contenders[name]))
    base = found["sweep"]
    print(f"\n{title}\n\n| contender | CPU seconds | / sweep | lowest-highest |\n|---|---|---|---|")
    for name, times in found.items():
        ratios = [t / b for t, b in zip(times, base, strict=True)]
        print(
            f"| {name} | {statistics.median(times):.2f} | {statistics.median(ratios):.2f} "
            f"| {min(ratios):.2f}-{max(ratios):.2f} |",
            flush=True,
        )


def check(one: dict[Head, Tensor], other: dict[Head, Tensor]) -> float:
    """Largest difference, relative to the largest number."""
    return max(float((one[h] - other[h]).abs().max() / other[h].abs().max()) for h in other)


def classifier(config: BertConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    return BertForSequenceClassification(config).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=48)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=SweepOptions().tokens)
    parser.add_argument("--models", default="embedding,minilm,bert")
    options = parser.parse_args()
    loaded, corpus = load("demo"), open_corpus("demo")
    feed = Feed.of(loaded, next(iter(corpus)))
    every = [r for rows in feed.rows(corpus, 2048) for r in rows]
    # In no order, as a loop that knows nothing of lengths would take them.
    mixed = sorted(every, key=lambda r: r.key)[: options.sentences]
    rows = sorted(mixed, key=lambda r: r.length)
    same = [dict(feed.collate(part).inputs) for part in budgeted(rows, options.batch_tokens)]
    small = [dict(feed.collate(mixed[i : i + 16]).inputs) for i in range(0, len(mixed), 16)]
    mini = classifier(BertConfig(**{**loaded.model.config.to_dict(), "num_labels": 2}))
    mini.base_model.load_state_dict(loaded.model.base_model.state_dict(), strict=False)
    models = {
        "embedding": ("MiniLM (6 x 12), sentence embeddings", loaded.model),
        "minilm": ("MiniLM (6 x 12), classifier", mini),
        "bert": ("Random BERT-base (12 x 12), classifier", classifier(BertConfig(attn_implementation="sdpa"))),
    }
    for name in options.models.split(","):
        title, model = models[name]
        contenders = {
            "sweep": ours(model, same, SweepOptions(tokens=options.tokens)),
            "hook per head, the same batches": hooks(model, same),
            "hook per head, batches of 16": hooks(model, small),
        }
        difference = check(contenders["sweep"](), contenders["hook per head, the same batches"]())
        count = f"{sum(int(b['attention_mask'].sum()) for b in same)} tokens in {len(same)} batches"
        print_table(f"{title}, {count}, largest difference {difference:.1e}", contenders, options.rounds)


def budgeted(rows: list[Any], tokens: int) -> list[list[Any]]:
    """Sentences of similar length together, padding included in the budget."""
    found: list[list[Any]] = []
    for row in sorted(rows, key=lambda r: r.length):
        if not found or (len(found[-1]) + 1) * row.length > tokens:
            found.append([])
        found[-1].append(row)
    return found


if __name__ == "__main__":
    main()

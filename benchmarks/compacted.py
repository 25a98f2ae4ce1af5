"""How much of the speed-up that arithmetic promises a model without some heads has; prints markdown tables.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE python benchmarks/compacted.py

CPU time of this process; rounds in which the whole model and the smaller ones run once each, in turn; medians of the
ratios within a round. What arithmetic promises is the ratio of multiplications and additions in linear layers and
attention; layer norms, activations and embeddings, which cutting heads leaves alone, are not among them.
"""

from __future__ import annotations

import argparse
import copy
import gc
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, PreTrainedModel

from headlens.attention.sites import find_sites
from headlens.corpora.sources import open_corpus
from headlens.heads import Head
from headlens.interventions.compacting import compact_model
from headlens.models.loading import load
from headlens.runs.corpus_pass import CorpusReader

Inputs = dict[str, Tensor]
SHARES = (0.25, 0.5, 0.75)


def operations(model: PreTrainedModel, batches: Sequence[Inputs]) -> int:
    """Multiplications and additions of a pass in linear layers, and between queries, keys and values."""
    found = 0

    def count(layer: nn.Linear, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal found
        found += 2 * output.numel() * layer.in_features

    hooks = [m.register_forward_hook(count) for m in model.modules() if type(m) is nn.Linear]
    with torch.inference_mode():
        for inputs in batches:
            model(**inputs)
            rows, length = inputs["input_ids"].shape
            for site in find_sites(model):
                size: Any = model.get_submodule(site.module).attention_head_size
                found += 4 * rows * site.n_heads * length * length * size
    for hook in hooks:
        hook.remove()
    return found


def without(model: PreTrainedModel, share: float, *, whole_layers: bool) -> PreTrainedModel:
    """A copy that lost a share of its heads: the same of every layer, or the last layers as a whole."""
    heads = [h for s in find_sites(model) for h in s.heads]
    heads.sort(key=lambda h: h.layer if whole_layers else h.head)
    small = copy.deepcopy(model)
    lost: list[Head] = heads[round(len(heads) * (1 - share)) :]
    compact_model(small, lost)
    return small


def seconds(model: PreTrainedModel, batches: Sequence[Inputs]) -> float:
    gc.collect()
    begun = time.process_time()
    with torch.inference_mode():
        for inputs in batches:
            model(**inputs)
    return time.process_time() - begun


def measure(models: dict[str, PreTrainedModel], batches: Sequence[Inputs], rounds: int) -> dict[str, list[float]]:
    for model in models.values():
        seconds(model, batches)
    found: dict[str, list[float]] = {name: [] for name in models}
    for i in range(rounds):
        names = list(models)
        for name in names[i % len(names) :] + names[: i % len(names)]:
            found[name].append(seconds(models[name], batches))
    return found


def print_speed(title: str, model: PreTrainedModel, batches: Sequence[Inputs], rounds: int) -> None:
    """A table of one model."""
    models = {"none": model}
    for whole_layers in (False, True):
        kind = "whole layers" if whole_layers else "of every layer"
        models |= {f"{share:.0%} {kind}": without(model, share, whole_layers=whole_layers) for share in SHARES}
    found = measure(models, batches, rounds)
    base, work = found.pop("none"), operations(model, batches)
    print(f"\n{title}, {sum(int(b['attention_mask'].sum()) for b in batches)} tokens\n")
    print("| heads cut | CPU seconds | speed-up | promised | share | lowest-highest |\n|---|---|---|---|---|---|")
    print(f"| none | {statistics.median(base):.2f} | 1 | 1 | | |")
    for name, times in found.items():
        promised = work / operations(models[name], batches)
        gains = [b / t for t, b in zip(times, base, strict=True)]
        gain = statistics.median(gains)
        spread = f"{min(gains) / promised:.2f}-{max(gains) / promised:.2f}"
        print(
            f"| {name} | {statistics.median(times):.2f} | {gain:.2f} | {promised:.2f} | {gain / promised:.2f} "
            f"| {spread} |"
        )


def long(rows: int, length: int) -> list[Inputs]:
    """Random tokens without padding."""
    ids = torch.randint(1000, 20000, (rows, length))
    return [{"input_ids": ids, "attention_mask": torch.ones_like(ids)}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.manual_seed(0)
    loaded, corpus = load("demo"), open_corpus("demo")
    batches = [b.inputs for b in CorpusReader.of(loaded, next(iter(corpus))).batches(corpus, 2048)]
    print_speed("MiniLM (6 x 12), sentences", loaded.model, batches[:4], options.rounds)
    print_speed("MiniLM (6 x 12), n = 512", loaded.model, long(4, 512), options.rounds)
    bert = BertModel(BertConfig()).eval()
    print_speed("Random BERT-base (12 x 12), sentences", bert, batches[:1], options.rounds)
    print_speed("Random BERT-base (12 x 12), n = 512", bert, long(2, 512), options.rounds)


if __name__ == "__main__":
    main()

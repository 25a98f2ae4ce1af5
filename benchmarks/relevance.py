"""What relevance of all heads costs beside a plain forward and backward pass; prints a markdown table.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE python benchmarks/relevance.py

CPU time of this process; rounds in which every contender runs once, in turn; medians. captum's gradient x activation at
the output projections joins in where captum is installed.
"""

from __future__ import annotations

import argparse
import copy
import gc
import resource
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, PreTrainedModel

from headlens.attention.sites import find_sites
from headlens.corpora.sources import open_corpus
from headlens.models.loading import load
from headlens.relevance_propagation.aggregation import RelevanceSums
from headlens.relevance_propagation.relevance_options import Rule
from headlens.relevance_propagation.relevance_session import RelevanceSession
from headlens.relevance_propagation.targets import OwnEmbedding
from headlens.runs.corpus_pass import CorpusReader

try:
    from captum.attr import LayerGradientXActivation
except ImportError:
    LayerGradientXActivation = None

Inputs = dict[str, Tensor]
Contender = Callable[[], None]


def value(model: nn.Module, inputs: Inputs) -> Tensor:
    """The target of every contender, one number for each row."""
    return OwnEmbedding().parts(model(**inputs), inputs).flatten(1).sum(dim=1)


def plain(model: PreTrainedModel, batches: list[Inputs], *, parameters: bool) -> Contender:
    """Forward and backward, with the gradients of all parameters or of the embeddings alone."""

    def run() -> None:
        model.requires_grad_(parameters)
        embeddings = model.get_input_embeddings().weight
        embeddings.requires_grad_()
        for inputs in batches:
            value(model, inputs).sum().backward()
            model.zero_grad(set_to_none=True)
        model.requires_grad_()

    return run


def forward(model: PreTrainedModel, batches: list[Inputs]) -> Contender:
    """The model's forward passes alone, which others are compared with."""

    def run() -> None:
        with torch.no_grad():
            for inputs in batches:
                value(model, inputs)

    return run


def relevance(model: PreTrainedModel, batches: list[Inputs], rule: Rule, undo: ExitStack) -> Contender:
    """headlens: all heads of all layers; the session stays open, as over a corpus."""
    session = undo.enter_context(RelevanceSession(copy.deepcopy(model), OwnEmbedding(), rule))

    def run() -> None:
        for inputs in batches:
            session.relevance(inputs)

    return run


def captum(model: PreTrainedModel, batches: list[Inputs]) -> Contender:
    """Gradient x activation of the inputs of all output projections."""
    layers = [model.get_submodule(s.module.removesuffix("self") + "output.dense") for s in find_sites(model)]
    attribution = LayerGradientXActivation(
        lambda ids, mask: value(model, {"input_ids": ids, "attention_mask": mask}), layers
    )

    def run() -> None:
        for inputs in batches:
            attribution.attribute(
                inputs["input_ids"], additional_forward_args=inputs["attention_mask"], attribute_to_layer_input=True
            )

    return run


def seconds(contender: Contender) -> float:
    gc.collect()
    begun = time.process_time()
    contender()
    return time.process_time() - begun


def measure(contenders: dict[str, Contender], rounds: int) -> dict[str, list[float]]:
    for contender in contenders.values():
        contender()
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for i in range(rounds):
        names = list(contenders)
        for name in names[i % len(names) :] + names[: i % len(names)]:
            found[name].append(seconds(contenders[name]))
    return found


def contenders(model: PreTrainedModel, batches: list[Inputs], undo: ExitStack) -> dict[str, Contender]:
    rules: tuple[Rule, ...] = ("epsilon", "attnlrp", "gradxact", "taylor")
    found = {
        "forward + backward": plain(model, batches, parameters=True),
        "forward + backward to the embeddings": plain(model, batches, parameters=False),
        "forward": forward(model, batches),
        **{f"relevance, {rule}": relevance(model, batches, rule, undo) for rule in rules},
    }
    if LayerGradientXActivation is not None:
        found["captum, gradient x activation"] = captum(model, batches)
    return found


def print_costs(title: str, model: PreTrainedModel, batches: list[Inputs], rounds: int) -> None:
    """Prints the CPU time of every contender on a model, and its ratio to a forward and backward pass."""
    with ExitStack() as undo:
        found = measure(contenders(model, batches, undo), rounds)
    base = found["forward + backward"]
    print(f"\n{title}, {sum(int(b['attention_mask'].sum()) for b in batches)} tokens\n")
    print("| contender | CPU seconds | / forward + backward | lowest-highest |\n|---|---|---|---|")
    for name, times in found.items():
        ratios = [t / b for t, b in zip(times, base, strict=True)]
        spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
        print(f"| {name} | {statistics.median(times):.2f} | {statistics.median(ratios):.2f} | {spread} |")


def print_memory(model: PreTrainedModel, batches: list[Any]) -> None:
    """Highest resident memory so far, over corpora of growing size."""
    print("\n| corpus | sums held | peak memory |\n|---|---|---|")
    for times in (1, 4, 16):
        with RelevanceSession(model, OwnEmbedding()) as session:
            sums = RelevanceSums(session.sites)
            for i, batch in enumerate(b for _ in range(times) for b in batches):
                keys = [f"{i}{e.key}" for e in batch.examples]
                sums.add(session.relevance(batch.inputs), keys)
        held = sum(a.nbytes for a in sums.totals.arrays().values()) / 2**20
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
        print(f"| {times}x | {held:.2f} MiB | {peak:.0f} MiB |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)
    loaded, corpus = load("demo"), open_corpus("demo")
    reader = CorpusReader.of(loaded, next(iter(corpus)))
    batches = list(reader.batches(corpus, 2048))
    inputs = [b.inputs for b in batches]
    print_memory(loaded.model, batches)
    print_costs("MiniLM (6 x 12), sentences", loaded.model, inputs, options.rounds)
    bert = BertModel(BertConfig()).eval()
    print_costs("Random BERT-base (12 x 12), sentences", bert, inputs[:1], options.rounds)


if __name__ == "__main__":
    main()

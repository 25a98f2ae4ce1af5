"""What a training step with a learned mask costs beside a plain one; prints markdown tables.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE python benchmarks/dam.py

CPU time of this process; rounds in which every contender makes one update, in turn; medians. A step is a forward pass,
the loss of guessed tokens, a backward pass and AdamW. Models have no dropout, with which plain training leaves the
fast kernel, too. "sdpa's own" is the same mask handed to sdpa, which is what headlens did without an autograd function
of its own. The attention alone is measured below.
"""

from __future__ import annotations

import argparse
import copy
import gc
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as sdpa
from transformers import BertConfig, BertForMaskedLM

from headlens.attention.kernels import differentiable_mask as learned_mask
from headlens.attention.kernels.differentiable_mask import MaskedAttention
from headlens.attention_masks.learned_mask import LearnedAttentionMask, LearnedMaskOptions, masked_sites
from headlens.attention_masks.mask_distributions import GumbelDegrees, MaskDistribution
from headlens.interventions.edited_model import EditedModel
from headlens.learning.objectives import MaskedTokenLoss, parameter_groups
from headlens.learning.penalized_training import PenalizedObjective
from headlens.models.loading import load

Inputs = dict[str, Tensor]
Step = Callable[[], None]


def batch(rows: int, length: int, *, padded: bool, words: int = 30000) -> Inputs:
    """Random tokens, of which 15 % are to be guessed; padded texts are from half as long to the whole length."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, words, (rows, length), generator=generator)
    lengths = torch.linspace(length // 2, length, rows).long() if padded else torch.full((rows,), length)
    real = torch.arange(length) < lengths[:, None]
    guessed = (torch.rand(ids.shape, generator=generator) < 0.15) & real
    labels = ids.masked_fill(~guessed, -100)
    return {"input_ids": ids, "attention_mask": real.long(), "labels": labels}


def stepper(model: nn.Module, loss: Callable[[], Tensor], scales: dict[str, float]) -> Step:
    optimiser = torch.optim.AdamW(parameter_groups(model, 0.01, scales), lr=1e-4)

    def step() -> None:
        loss().backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def plain(model: BertForMaskedLM, inputs: Inputs) -> Step:
    own = copy.deepcopy(model).train()
    return stepper(own, lambda: MaskedTokenLoss().loss(own, inputs), {})


def dam(
    model: BertForMaskedLM,
    inputs: Inputs,
    options: LearnedMaskOptions,
    undo: ExitStack,
    law: MaskDistribution | None = None,
) -> Step:
    own = copy.deepcopy(model)
    masked = EditedModel(own, LearnedAttentionMask(masked_sites(own), options, law)).train()
    undo.enter_context(masked.opened())
    objective = PenalizedObjective(MaskedTokenLoss(), masked.edit, 1e-4, "sum")
    return stepper(masked, lambda: objective.loss(masked, inputs), {"mask.": 1.0})


def with_sdpa(step: Step) -> Step:
    def run() -> None:
        with mock.patch.object(learned_mask, "serves", return_value=False):
            step()

    return run


def attention(rows: int, length: int, heads: int, size: int) -> dict[str, Step]:
    """Forward and backward of one layer's attention."""
    torch.manual_seed(0)
    parts = [torch.randn(rows, length, heads, size).transpose(1, 2).requires_grad_() for _ in range(3)]
    mask = torch.randn(1, heads, length, length).requires_grad_()
    shared = mask.detach()[:, :1].clone().requires_grad_()
    outer = torch.randn(parts[0].shape)
    return {
        "plain": lambda: sdpa(*parts).backward(outer),
        "a mask for all heads": lambda: MaskedAttention.apply(*parts, shared, size**-0.5).backward(outer),
        "a mask for each head": lambda: MaskedAttention.apply(*parts, mask, size**-0.5).backward(outer),
        "sdpa's own": lambda: sdpa(*parts, attn_mask=mask).backward(outer),
    }


def print_table(title: str, contenders: dict[str, Step], rounds: int) -> None:
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for i in range(-1, rounds):
        names = list(contenders)
        for name in names[i % len(names) :] + names[: i % len(names)]:
            gc.collect()
            begun = time.process_time()
            contenders[name]()
            if i >= 0:
                found[name].append(time.process_time() - begun)
    print(f"\n{title}\n\n| contender | CPU ms | / plain | lowest-highest |\n|---|---|---|---|")
    for name, times in found.items():
        ratios = [t / b for t, b in zip(times, found["plain"], strict=True)]
        spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
        print(f"| {name} | {1000 * statistics.median(times):.0f} | {statistics.median(ratios):.2f} | {spread} |")


def print_steps(title: str, model: BertForMaskedLM, inputs: Inputs, rounds: int) -> None:
    n = inputs["input_ids"].shape[1]
    degrees = LearnedMaskOptions(n, structured=True, per_layer=True, form="renormalised")
    with ExitStack() as undo:
        contenders = {
            "plain": plain(model, inputs),
            "DAM_u, a mask for each head": dam(model, inputs, LearnedMaskOptions(n), undo),
            "DAM_s, a mask for each head": dam(model, inputs, LearnedMaskOptions(n, structured=True), undo),
            "DAM_u, also for each layer": dam(model, inputs, LearnedMaskOptions(n, per_layer=True), undo),
            "learned degrees of each head": dam(model, inputs, degrees, undo, GumbelDegrees()),
            "DAM_u, sdpa's own": with_sdpa(dam(model, inputs, LearnedMaskOptions(n), undo)),
        }
        print_table(f"{title}, {' x '.join(map(str, inputs['input_ids'].shape))} tokens", contenders, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", default="minilm,bert")
    options = parser.parse_args()
    torch.manual_seed(0)
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    mini = BertForMaskedLM(BertConfig(**{**load("demo").model.config.to_dict(), **none}))
    models = {"minilm": ("MiniLM (6 x 12)", mini)}
    if "bert" in options.models:
        models["bert"] = ("BERT-base (12 x 12)", BertForMaskedLM(BertConfig(**none)))
    for title, model in (models[name] for name in options.models.split(",")):
        print_steps(title, model, batch(16, 128, padded=False), options.rounds)
        print_steps(f"{title}, padded", model, batch(16, 128, padded=True), options.rounds)
        print_steps(title, model, batch(4, 512, padded=False), options.rounds)
    for rows, length in ((16, 128), (4, 512)):
        title = f"Attention of one layer alone, 12 heads of 32, {rows} x {length} tokens"
        print_table(title, attention(rows, length, 12, 32), options.rounds)


if __name__ == "__main__":
    main()

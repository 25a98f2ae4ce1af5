"""What fixed and structured masks save as block-sparse attention on a GPU, beside dense sdpa; prints markdown tables.

    python benchmarks/masks.py

How many blocks of 128 x 128 positions a mask opens is counted on any machine. On a GPU one attention of 12 heads over
8 texts is timed, forward and backward, and its largest memory taken: sdpa without a mask, sdpa with the mask as a
tensor, and FlexAttention of the open blocks; in turn, medians. `offsets` is a mask as DAM_s learns them: a set of
offsets |i - j| for every head, first and last token open. Without a GPU nothing is timed: on the processor masks save
nothing.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence

import torch
from device_time import milliseconds
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from headlens.attention.kernels.block_sparse import block_sparse_attention, blocks_of
from headlens.attention_masks.attention_mask import AttentionMask, PatternMask
from headlens.attention_masks.patterns import parse_pattern

LENGTHS = (128, 256, 512, 1024, 2048, 4096)
PATTERNS = ("window:3", "longformer", "bigbird", "star", "logsparse", "fixed", "strided")
TEXTS, HEADS, WIDTH = 8, 12, 64


def masks(n: int, patterns: Sequence[str] = PATTERNS) -> dict[str, Tensor]:
    """Which positions are open under each pattern for n tokens, by name, (1, heads or 1, n, n)."""
    found = {name: PatternMask(parse_pattern(name)).block(n) for name in patterns}
    apart = (torch.arange(n)[:, None] - torch.arange(n)).abs()
    # Near offsets are likelier to stay, and some far ones do.
    generator = torch.Generator().manual_seed(n)
    stays = torch.rand(HEADS, n, generator=generator) < 1 / (1 + torch.arange(n) / 4)
    return found | {"offsets": AttentionMask(stays[:, apart][None], ends=True).block(n)}


def counted(n: int) -> list[list[object]]:
    rows: list[list[object]] = []
    for name, allowed in masks(n).items():
        masked = 1 - float(allowed.double().mean())
        rows.append([n, name, f"{masked:.1%}", f"{1 - blocks_of(allowed).share:.1%}"])
    return rows


def measured(run: Callable[[], Tensor]) -> tuple[float, float]:
    """Milliseconds of a forward and a backward pass, and MiB beyond what was held before."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    took = milliseconds(lambda: run().sum().backward(), queued=True)
    return took, (torch.cuda.max_memory_allocated() - before) / 2**20


def timed(n: int, rounds: int, patterns: Sequence[str] = PATTERNS) -> list[list[object]]:
    query, key, value = (
        torch.randn(TEXTS, HEADS, n, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    )
    rows: list[list[object]] = []
    for name, own in masks(n, patterns).items():
        allowed = own.cuda()
        additive = torch.zeros(allowed.shape, device="cuda", dtype=torch.bfloat16).masked_fill(~allowed, -1e4)
        blocks = blocks_of(allowed)
        contenders: dict[str, Callable[[], Tensor]] = {
            "plain": lambda: sdpa(query, key, value),
            "mask": lambda additive=additive: sdpa(query, key, value, attn_mask=additive),  # type: ignore[misc]
            "blocks": lambda blocks=blocks: block_sparse_attention(query, key, value, blocks),  # type: ignore[misc]
        }
        for run in contenders.values():
            for _ in range(3):
                measured(run)
        seen: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
        for _ in range(rounds):
            for kind, run in contenders.items():
                seen[kind].append(measured(run))
        times = [statistics.median(t for t, _ in own) for own in seen.values()]
        memory = [max(m for _, m in own) for own in seen.values()]
        shown = [f"{t:.2f}" for t in times] + [f"{m:.0f}" for m in memory]
        rows.append([n, name, f"{1 - blocks.share:.1%}", *shown, f"{times[0] / times[2]:.2f}"])
    return rows


def print_rows(title: str, columns: list[str], rows: list[list[object]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    rows = [row for n in LENGTHS for row in counted(n)]
    print_rows("Positions and blocks that masks close", ["n", "mask", "positions", "blocks of 128"], rows)
    if not torch.cuda.is_available():
        print("\nNo GPU: nothing is timed.")
        return
    ways = ("sdpa, no mask", "sdpa, mask", "blocks")
    columns = [
        "n",
        "mask",
        "blocks closed",
        *(f"{w}, ms" for w in ways),
        *(f"{w}, MiB" for w in ways),
        "no mask / blocks",
    ]
    title = f"Attention, forward and backward, {TEXTS} texts x {HEADS} heads on {torch.cuda.get_device_name()}"
    print_rows(title, columns, [row for n in LENGTHS for row in timed(n, options.rounds)])


if __name__ == "__main__":
    main()

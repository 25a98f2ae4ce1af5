"""How many pairs Sparsefinder on blocks scores as texts grow, and what that costs on a GPU; prints markdown tables.

    python benchmarks/sparsefinder_blocks.py --figure docs/results/sparsefinder/pairs.png

Pairs are counted, on any machine: of vectors drawn around √n centres, in C = √n clusters, each with n / C of
the tokens (blocks of one token, no window), so that n k pairs of the first version and C k² of the second are n √n.
On a GPU attention is timed as well: FlexAttention of blocks of 128 tokens that meet, predicting them included, beside
dense sdpa, in turn; medians. Without a GPU nothing is timed: it is for GPUs that blocks are made.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable

import numpy as np
import torch
from device_time import milliseconds
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from headlens.analyses.sparsefinder.block_masks import BlockClusters, Version, block_attention
from headlens.analyses.sparsefinder.predictors import QueryKeyProjections, QueryKeyVectors
from headlens.plots.style import BLUE, FAINT, INK, TICK_SIZE, VERMILION, dress, heading, new_figure

HEADS, SIZE, DIMENSIONS = 4, 64, 4
TEXTS = 24  # that are timed together


def vectors(n: int, centres: int, device: str = "cpu") -> tuple[QueryKeyVectors, QueryKeyProjections, Tensor]:
    """Queries and keys around so many centres, projections, and these centres in the small space."""
    generator = torch.Generator().manual_seed(n)
    means = 3 * torch.randn(HEADS, centres, SIZE, generator=generator)
    which = torch.randint(centres, (2, HEADS, n), generator=generator)
    noise = torch.randn(2, HEADS, n, SIZE, generator=generator)
    queries, keys = (noise[i] + torch.stack([m[w] for m, w in zip(means, which[i], strict=True)]) for i in (0, 1))
    torch.manual_seed(0)
    projections = QueryKeyProjections(HEADS, SIZE, DIMENSIONS).requires_grad_(requires_grad=False).to(device)
    real = torch.ones(1, n, dtype=torch.bool, device=device)
    centroids, _ = projections(means[None].to(device), means[None].to(device))
    return QueryKeyVectors(queries[None].to(device), keys[None].to(device), real, real), projections, centroids[0]


def counted(n: int, version: Version) -> float:
    """Returns how many pairs of a text of n tokens are scored, the mean of all heads."""
    clusters = round(math.sqrt(n))
    own, projections, centroids = vectors(n, clusters)
    graph = BlockClusters(projections, centroids, 1, max(1, n // clusters), version, -1).predictor.graph(own)
    return float(graph.sum()) / HEADS


def times(n: int, rounds: int) -> list[object]:
    own, projections, centroids = vectors(n, max(2, round(math.sqrt(n / 128))), "cuda")
    queries, keys = (t.bfloat16().repeat(TEXTS, 1, 1, 1) for t in (own.queries, own.keys))
    half = QueryKeyVectors(queries, keys, own.real_queries.repeat(TEXTS, 1), own.real_keys.repeat(TEXTS, 1))
    values = torch.randn_like(half.keys)
    blocked = BlockClusters(projections, centroids, 128, 2, 1)
    contenders: dict[str, Callable[[], object]] = {
        "dense": lambda: sdpa(half.queries, half.keys, values),
        "blocks": lambda: block_attention(half.queries, half.keys, values, blocked.blocks(half), 128),
    }
    for run in contenders.values():
        for _ in range(3):
            run()
    seen: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            seen[name].append(milliseconds(run))
    dense, sparse = (statistics.median(own) for own in seen.values())
    share = float(blocked.blocks(half).float().mean())
    return [n, f"{share:.1%}", f"{dense:.3f}", f"{sparse:.3f}", f"{dense / sparse:.2f}"]


def print_rows(title: str, columns: list[str], rows: list[list[object]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")


def draw(path: str, lengths: list[int], pairs: dict[Version, list[float]]) -> None:
    """Pairs over tokens, both on logarithmic axes, with the slopes that there could be."""
    figure = new_figure(3.4, 2.6)
    axes = figure.add_axes((0.19, 0.19, 0.76, 0.7))
    dress(axes, "tokens n", "scored pairs of a head")
    heading(axes, "Sparsefinder on blocks, √n clusters", 3.0)
    at = np.array(lengths, dtype=float)
    axes.plot(at, at**2, ":", color=INK, linewidth=1, label="dense: n²")
    axes.plot(at, at**1.5, color=FAINT, linewidth=5, alpha=0.4, label="n√n")
    axes.plot(at, pairs[1], "o-", color=VERMILION, markersize=3, linewidth=1, label="version 1")
    axes.plot(at, pairs[2], "s--", color=BLUE, markersize=3, linewidth=1, label="version 2")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.legend(loc="lower right", frameon=False, fontsize=TICK_SIZE)
    figure.savefig(path, dpi=200)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--longest", type=int, default=4096, help="tokens of the longest text whose pairs are counted")
    parser.add_argument("--figure", metavar="FILE", help="draws the counted pairs")
    options = parser.parse_args()
    lengths = [2**power for power in range(6, 14) if 2**power <= options.longest]
    pairs = {version: [counted(n, version) for n in lengths] for version in (1, 2)}
    print_rows(
        "Scored pairs of a head, C = √n clusters",
        ["n", "dense, n²", "version 1", "version 2", "n √n"],
        [
            [n, n * n, f"{a:.0f}", f"{b:.0f}", f"{n**1.5:.0f}"]
            for n, a, b in zip(lengths, pairs[1], pairs[2], strict=True)
        ],
    )
    for version, own in pairs.items():
        slope = np.polyfit(np.log(lengths), np.log(own), 1)[0]
        print(f"version {version}: pairs grow as n^{slope:.2f}")
    if options.figure:
        draw(options.figure, lengths, pairs)
    if not torch.cuda.is_available():
        print("\nNo GPU: nothing is timed.")
        return
    print_rows(
        f"Attention of {TEXTS} texts x {HEADS} heads on {torch.cuda.get_device_name()}, ms",
        ["n", "blocks that meet", "dense sdpa", "FlexAttention of blocks", "dense / blocks"],
        [times(n, options.rounds) for n in (512, 1024, 2048, 4096, 8192)],
    )


if __name__ == "__main__":
    main()

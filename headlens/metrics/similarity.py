"""How alike heads attend: Jensen-Shannon distances (Clark et al. 2019, section 6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from headlens.attention.edits_and_observers import AttentionCall, BatchTokens, CallContext, Observer, Tokens
from headlens.attention.kernels.row_attention import divergence_refusal, head_divergences
from headlens.attention.sites import Site
from headlens.heads import KEY_COLUMNS, STACKS, HeadTable, Stack
from headlens.metrics.accumulator import Accumulator, Array
from headlens.metrics.batch_cache import once_per_batch
from headlens.metrics.reductions import exact_type, log_

# Weights of pairs of heads that are worked on at a time: on processors, and elsewhere.
_PAIRED = {"cpu": 2**22, "other": 2**28}


class HeadSimilarity(Observer):
    """Mean Jensen-Shannon divergence between all pairs of heads of a stack, over query tokens.

    All heads of a stack must be seen together, so the rows of a batch are kept until the end of its pass.
    The number of pairs grows with the square of the number of heads: where the batch says so
    (`Tokens.sampled`), one query token of each sentence is used instead of all.
    """

    parts = True
    parts_of_sentences = True
    leaves_results = True

    def __init__(self, sites: Sequence[Site]) -> None:
        self.sites = tuple(sites)
        self.totals = Accumulator()
        self._rows: dict[str, list[Tensor]] = {}
        # Why no kernel compares heads, nothing if one does; None before the first batch.
        self._no_kernel: str | None = None

    def look_ahead(self, tokens: BatchTokens) -> None:
        """Works out which queries of a batch are compared; the tokens are on the processor."""
        for side in (tokens.encoder, tokens.decoder):
            if side is not None:
                chosen_queries(side)

    def observe(self, call: AttentionCall) -> None:
        """Keep the rows of the chosen queries: (heads, queries, key)."""
        if call.queries is None:
            return
        chosen, weights = chosen_queries(call.queries), call.distribution
        if weights is not None:
            self._rows.setdefault(str(call.site), []).append(weights[chosen[0], :, chosen[1]].transpose(0, 1))
        elif call.rows is not None:
            self._rows.setdefault(str(call.site), []).append(call.rows.weights(*chosen))

    def reads_rows(self, context: CallContext) -> bool:
        """Whether one row of each sentence is needed, and not all weights."""
        return context.queries is not None and context.queries.sampled is not None

    def prepare(self) -> None:
        """Computes the Jensen-Shannon divergences of all pairs of heads from the kept attention rows, stack by stack.

        The sums in nats, (heads, heads) for each stack with rows of all its sites, join the pending totals; the rows
        are dropped.
        """
        for stack in STACKS:
            places = [str(s) for s in self.sites if s.stack == stack]
            if places and all(p in self._rows for p in places):
                # (heads of the stack, queries, key)
                rows = torch.cat([torch.cat(self._rows[p], dim=1) for p in places])
                self.totals.add(
                    "similarity",
                    stack,
                    {
                        "divergence": self._divergence(rows),
                        "tokens": rows.new_full((), rows.shape[1], dtype=torch.int64),
                    },
                )
        self._rows = {}
        self.totals.fetch()

    def _divergence(self, rows: Tensor) -> Tensor:
        """What `divergences_by_torch` gives, by a kernel where one does."""
        if self._no_kernel is None:
            self._no_kernel = divergence_refusal(rows, divergences_by_torch)
        return divergences_by_torch(rows) if self._no_kernel else head_divergences(rows)

    def kernels(self) -> dict[str, list[str]]:
        """How heads were compared, and why by no kernel: names of stacks by words, as `AttentionSession.kernels`."""
        stacks: list[str] = list(self.stacks)
        if self._no_kernel is None or not stacks:
            return {}
        return {f"divergences by torch: {self._no_kernel}" if self._no_kernel else "divergences by a kernel": stacks}

    def commit(self) -> None:
        """Adds the divergences of the forward pass to the committed totals, after `prepare` for any rows still kept."""
        self.prepare()
        self.totals.commit()

    def discard(self) -> None:
        """Drops the kept attention rows and the pending divergences of a failed forward pass."""
        self._rows = {}
        self.totals.discard()

    def divergence(self, stack: Stack) -> Array:
        """Mean divergence in nats between the heads of a stack: (heads, heads), zeros on the diagonal."""
        sums = self.totals.of("similarity")[stack]
        return sums["divergence"] / sums["tokens"]

    @property
    def stacks(self) -> list[Stack]:
        """The stacks that were seen."""
        return [s for s in STACKS if s in self.totals.of("similarity")]

    def table(self) -> HeadTable | None:
        """Rows of similarity.csv: one per pair of different heads, both ways round."""
        return _below(map(self._pairs, self.stacks))

    def embedding(self) -> HeadTable | None:
        """Per head: 2-d embedding, cluster and place among the leaves (columns similarity_*)."""
        return _below(map(self._embedded, self.stacks))

    def _heads(self, stack: Stack) -> pd.DataFrame:
        return pd.DataFrame([h for s in self.sites if s.stack == stack for h in s.heads], columns=KEY_COLUMNS)

    def _pairs(self, stack: Stack) -> pd.DataFrame:
        heads, divergence = self._heads(stack), self.divergence(stack)
        first, second = np.nonzero(~np.eye(len(heads), dtype=bool))
        return heads.iloc[first].assign(
            other_layer=heads["layer"].to_numpy()[second],
            other_head=heads["head"].to_numpy()[second],
            js_divergence=divergence[first, second],
            js_distance=np.sqrt(divergence[first, second]),
            tokens=int(self.totals.of("similarity")[stack]["tokens"]),
        )

    def _embedded(self, stack: Stack) -> pd.DataFrame:
        distance = np.sqrt(self.divergence(stack))
        x, y = classical_mds(distance).T
        cluster, leaf = clusters(distance)
        names = ("similarity_x", "similarity_y", "similarity_cluster", "similarity_leaf")
        return self._heads(stack).assign(**dict(zip(names, (x, y, cluster, leaf), strict=True)))


def _below(stacks: Iterable[pd.DataFrame]) -> HeadTable | None:
    """The rows of all stacks below each other; None where there are no stacks."""
    frames = list(stacks)
    return HeadTable(pd.concat(frames, ignore_index=True)) if frames else None


@once_per_batch
def chosen_queries(queries: Tokens) -> tuple[Tensor, Tensor]:
    """Sentence and place of the queries that are compared."""
    if queries.sampled is None:
        batch, query = queries.real.nonzero(as_tuple=True)
        return batch, query
    place = queries.sampled - queries.start
    inside = (queries.sampled >= 0) & (place >= 0) & (place < queries.shape[1])
    batch = inside.nonzero(as_tuple=True)[0]
    return batch, place[batch]


def divergences_by_torch(rows: Tensor) -> Tensor:
    """Sums over queries of the Jensen-Shannon divergences of all pairs of heads, in nats, which the kernel gives, too.

    Args:
        rows: weights, (heads, queries, key).

    Returns:
        (heads, heads), zeros on the diagonal.
    """
    kind = exact_type(rows)
    # Not quite 0, whose logarithm there is none of.
    half = (rows / 2).clamp_(min=torch.finfo(rows.dtype).tiny)

    def entropy(weights: Tensor) -> Tensor:
        # Term by term, so that padding and the size of the batch do not decide where sums are rounded.
        return log_(weights.clone()).mul_(weights).sum((1, 2), dtype=kind).neg_()

    single = entropy(half + half)
    total = torch.zeros(len(rows), len(rows), dtype=kind, device=rows.device)
    pairs = torch.triu_indices(len(rows), len(rows), 1, device=rows.device)
    # Many pairs at a time: each would be a launch of its own.
    most = max(1, _PAIRED.get(rows.device.type, _PAIRED["other"]) // max(1, rows[0].numel()))
    for first, second in zip(*(p.split(most) for p in pairs), strict=True):
        total[first, second] = entropy(half[first].add_(half[second])) - (single[first] + single[second]) / 2
    # Rounding can leave a tiny negative divergence between equal heads.
    return (total + total.T).clamp(min=0)


def classical_mds(distance: Array) -> Array:
    """Two-dimensional embedding by classical multidimensional scaling (Torgerson 1952).

    Args:
        distance: symmetric, (n, n).

    Returns:
        (n, 2), centred; the sign of each axis is fixed by making its largest coordinate positive.
    """
    n = len(distance)
    centre = np.eye(n) - np.full((n, n), 1 / n)
    values, vectors = np.linalg.eigh(-0.5 * centre @ distance**2 @ centre)
    order = np.argsort(values)[::-1][:2]
    points = np.zeros((n, 2))
    coordinates = vectors[:, order] * np.sqrt(np.maximum(values[order], 0))
    points[:, : coordinates.shape[1]] = coordinates
    signs = np.sign(points[np.abs(points).argmax(0), range(2)])
    return points * np.where(signs == 0, 1, signs)


def clusters(distance: Array, most: int = 8) -> tuple[Array, Array]:
    """Average-linkage clustering: cluster numbers from 1, and each head's place among the leaves.

    Args:
        distance: symmetric, (n, n).
        most: how many clusters at most.
    """
    if len(distance) < 2:
        return np.ones(len(distance), dtype=np.int64), np.zeros(len(distance), dtype=np.int64)
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    tree = hierarchy.linkage(squareform(distance, checks=False), "average", optimal_ordering=len(distance) <= 500)
    place = np.empty(len(distance), dtype=np.int64)
    place[hierarchy.leaves_list(tree)] = np.arange(len(distance))
    return hierarchy.fcluster(tree, most, "maxclust").astype(np.int64), place

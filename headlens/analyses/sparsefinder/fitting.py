"""Learning projections and clusters of one site (Treviso et al. 2022, section 4), and files of what was learned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from headlens.analyses.sparsefinder.block_masks import projected_blocks
from headlens.analyses.sparsefinder.options import FitOptions, ParameterGrid
from headlens.analyses.sparsefinder.predictors import QueryKeyProjections, QueryKeyVectors, directions
from headlens.analyses.sparsefinder.query_key_store import StoredBatch
from headlens.errors import DivergedError, OptionError, read_errors
from headlens.files import atomic_path, output_errors

_FORMAT = "headlens sparsefinder 1"
_POINTS = 8_000  # vectors of a head that clusters are fitted to
_CENTROIDS = ("centroids", "routing", "blocks")  # fields of `FittedSite`
Batches = Callable[[], Iterable[StoredBatch]]
# Vectors of queries and of keys, (batch, heads, tokens, r), and the sentences that they are of.
_Vectors = tuple[Tensor, Tensor, QueryKeyVectors]


@dataclass(frozen=True, eq=False)
class FittedSite:
    """Projections and clusters that were learned for a site.

    Args:
        projections: of its heads.
        losses: the mean loss of a query in every epoch.
        centroids: of projected queries and keys, `(heads, clusters, r)`, by the number of clusters.
        routing: of the directions of queries and keys as they are, `(heads, clusters, d)`, by the number of clusters.
        seed: of what is drawn at random where nothing is learned: hashes, random keys.
        blocks: centroids of the means of projected vectors in blocks, `(heads, clusters, r)`, by the number of
            clusters; none without blocks.
    """

    projections: QueryKeyProjections
    losses: list[float]
    centroids: Mapping[int, Tensor] = field(default_factory=dict)
    routing: Mapping[int, Tensor] = field(default_factory=dict)
    seed: int = 0
    blocks: Mapping[int, Tensor] = field(default_factory=dict)


def fit_site(batches: Batches, grid: ParameterGrid, options: FitOptions) -> FittedSite:
    """Learns projections, then clusters of every number of the grid.

    Args:
        batches: gives the sentences of a site anew.
        grid: says which numbers of clusters.
        options: of the projections.

    Raises:
        OptionError: if there are no sentences, or fewer tokens than clusters.
    """
    projections, losses = fit_projections(batches, options)
    projected = points_of(((*projections(b.queries, b.keys), b) for b in batches()), seed=options.seed)
    raw = points_of(((directions(b.queries), directions(b.keys), b) for b in batches()), seed=options.seed)
    all_points = [projected, raw]
    if grid.block_size is not None:
        all_points.append(points_of(_blocks(batches(), projections, grid.block_size), seed=options.seed))
    centroids, routing, *blocks = (
        {count: fit_centroids(points, count, options.seed) for count in grid.groups} for points in all_points
    )
    return FittedSite(projections, losses, centroids, routing, options.seed, *blocks)


def _blocks(batches: Iterable[StoredBatch], projections: QueryKeyProjections, size: int) -> Iterator[_Vectors]:
    """Means of the projected queries and keys of blocks, and which blocks have a token."""
    for b in batches:
        queries, keys, real_queries, real_keys = projected_blocks(projections, b, size)
        yield queries, keys, QueryKeyVectors(queries, keys, real_queries, real_keys)


def fit_projections(
    batches: Batches, options: FitOptions | None = None, advance: Callable[[int], None] = lambda _: None
) -> tuple[QueryKeyProjections, list[float]]:
    """Learns the projections of all heads of a site at once.

    Args:
        batches: gives the sentences anew for every epoch.
        options: size of the space, length and step size.
        advance: called with the number of sentences done.

    Returns:
        The projections, and the mean loss of a query in every epoch.

    Raises:
        OptionError: if there are no sentences.
        DivergedError: if the loss or a weight is no longer finite.
    """
    options = options or FitOptions()
    generator = torch.Generator().manual_seed(options.seed)
    first = next(iter(batches()), None)
    if first is None:
        raise OptionError("There are no sentences to learn projections from.", "Collect queries and keys first.")
    _, heads, _, size = first.queries.shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        projections = QueryKeyProjections(heads, size, options.dimensions, shared=options.shared)
    optimiser = torch.optim.Adam(projections.parameters(), lr=options.learning_rate)
    epoch_losses = []
    for _ in range(options.epochs):
        total, queries_seen = 0.0, 0
        for batch in batches():
            optimiser.zero_grad()
            queries, keys = projections(batch.queries, batch.keys)
            losses = margin_losses(queries, keys, batch.gold, batch.allowed, options.margin, generator)
            count = int((batch.gold & batch.allowed).any(dim=-1).sum())
            # A mean over the queries of each head, summed over heads, which share nothing.
            loss = losses.sum() * losses.shape[1] / max(count, 1)
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(projections.parameters(), options.clip)
            optimiser.step()
            total, queries_seen = total + float(losses.detach().sum()), queries_seen + count
            advance(len(batch.queries))
        epoch_losses.append(total / max(queries_seen, 1))
        _check_finite(torch.tensor(epoch_losses[-1]), f"in epoch {len(epoch_losses)}", options)
    projections.requires_grad_(requires_grad=False)
    # The losses are those before each update: what the last one left is measured once more.
    queries, keys = projections(first.queries, first.keys)
    losses = margin_losses(queries, keys, first.gold, first.allowed, options.margin, generator)
    _check_finite(losses.sum(), f"after epoch {options.epochs}", options)
    return projections, epoch_losses


def _check_finite(loss: Tensor, when: str, options: FitOptions) -> None:
    if not bool(torch.isfinite(loss)):
        raise DivergedError(
            f"Learning projections diverged: {when} the loss is {float(loss):g}.",
            f"Start again in another folder, or with --overwrite, and a smaller --projections learning-rate (it was "
            f"{options.learning_rate:g}) or --projections clip.",
        )


def margin_losses(
    queries: Tensor, keys: Tensor, gold: Tensor, allowed: Tensor, margin: float, generator: torch.Generator
) -> Tensor:
    """max(0, m + Σ_pos ‖q' - k'‖² - Σ_neg ‖q' - k'‖²) of every query: `(batch, heads, query)`.

    Positives are a query's gold keys, negatives as many others, drawn anew each time, or all others where these are
    fewer. Queries that are padding, or have no gold key, have 0.

    Args:
        queries: q', `(batch, heads, query, r)`.
        keys: k', `(batch, heads, key, r)`.
        gold: pairs with weight, bool, `(batch, heads, query, key)`.
        allowed: pairs that could have weight, see `allowed_pairs`.
        margin: m.
        generator: of the negatives, on the processor or the device of the vectors.
    """
    # Not by cdist: its derivative at a distance of 0 is none.
    dots = queries @ keys.transpose(-1, -2)  # (batch, heads, query, key)
    squares = queries.square().sum(-1)[..., :, None] + keys.square().sum(-1)[..., None, :]
    distances = (squares - 2 * dots).clamp(min=0)
    positive = gold & allowed
    negative = drawn(~gold & allowed, positive.sum(dim=-1, keepdim=True), generator)
    near, far = ((distances * pairs).sum(dim=-1) for pairs in (positive, negative))
    return torch.relu(margin + near - far) * positive.any(dim=-1)


def drawn(candidates: Tensor, counts: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draws so many of the candidates of every row at random, or all where there are fewer.

    Args:
        candidates: bool, `(..., places)`.
        counts: how many are drawn, `(..., 1)`.
        generator: of the random numbers.

    Returns:
        bool, `(..., places)`.
    """
    device = candidates.device if generator is None else generator.device
    numbers = torch.rand(candidates.shape, generator=generator, device=device).to(candidates.device)
    # A random order in which those that cannot be drawn come last; argsort twice gives ranks.
    ranks = numbers.masked_fill(~candidates, 2.0).argsort(dim=-1).argsort(dim=-1)
    return candidates & (ranks < counts)


def fit_centroids(vectors: Tensor, clusters: int, seed: int = 0) -> Tensor:
    """Centroids of queries and keys together, by k-means for each head: `(heads, clusters, r)`.

    Args:
        vectors: `(heads, points, r)`, see `points_of`.
        clusters: how many, at most as many as points.
        seed: of the first centroids.

    Raises:
        OptionError: for more clusters than points.
    """
    from sklearn.cluster import KMeans  # noqa: PLC0415 - heavy, and needed here alone
    from threadpoolctl import threadpool_limits  # noqa: PLC0415

    if clusters > vectors.shape[1]:
        raise OptionError(
            f"{clusters} clusters were asked for, but there are only {vectors.shape[1]} queries and keys.",
            "Collect more sentences.",
        )
    kmeans = KMeans(clusters, n_init=1, random_state=seed)
    # In an iteration on so few points threads wait for one another far longer than they work.
    with threadpool_limits(1):
        centroids = [kmeans.fit(points).cluster_centers_ for points in vectors.numpy().astype(np.float64)]
    return torch.from_numpy(np.stack(centroids)).float()


def points_of(batches: Iterable[_Vectors], most: int = _POINTS, seed: int = 0) -> Tensor:
    """Queries and keys of every head without padding, a random part of them where there are many: `(heads, points, r)`.

    Memory is bounded: while more come, those that are kept are a uniform sample of all so far (reservoir sampling), the
    same tokens for all heads.

    Args:
        batches: vectors of queries and of keys, `(batch, heads, tokens, r)`, and the sentences that they are of.
        most: number of points that are kept.
        seed: of the sample.

    Raises:
        OptionError: if there are no sentences.
    """
    generator = torch.Generator().manual_seed(seed)
    points: Tensor | None = None
    numbers = torch.zeros(0)
    for queries, keys, batch in batches:
        for vectors, real in ((queries, batch.real_queries), (keys, batch.real_keys)):
            part = vectors.transpose(0, 1)[:, real]  # (heads, points, r), without padding
            points = part if points is None else torch.cat([points, part], dim=1)
            numbers = torch.cat([numbers, torch.rand(part.shape[1], generator=generator)])
            if len(numbers) > most:
                # The points with the smallest random numbers of all are a uniform sample; their order stays.
                smallest = numbers.argsort(stable=True)[:most].sort().values
                points, numbers = points[:, smallest], numbers[smallest]
    if points is None:
        raise OptionError("There are no sentences to find clusters in.", "Collect queries and keys first.")
    return points


def save_fitted(path: Path, fitted: Mapping[str, FittedSite]) -> None:
    """Writes projections and centroids of all sites of a model to one file.

    Args:
        path: of the file.
        fitted: by site, such as `encoder.0`.

    Raises:
        OutputError: if it cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    for site, at_site in fitted.items():
        tensors |= {f"{site}/{name}": tensor for name, tensor in at_site.projections.state_dict().items()}
        tensors[f"{site}/losses"] = torch.tensor(at_site.losses, dtype=torch.float64)
        tensors[f"{site}/seed"] = torch.tensor(at_site.seed)
        for kind in _CENTROIDS:
            by_count = getattr(at_site, kind)
            tensors |= {f"{site}/{kind}/{count}": tensor.contiguous() for count, tensor in by_count.items()}
    with output_errors(path), atomic_path(path) as temporary:
        save_file(tensors, temporary, {"format": _FORMAT})


def load_fitted(path: Path) -> dict[str, FittedSite]:
    """Reads what `save_fitted` wrote.

    Raises:
        OptionError: if the file cannot be read, or holds something else.
    """
    with read_errors(path, "cannot be read as projections", "Learn them again.", OptionError):
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("format") != _FORMAT:
                raise ValueError("it is of another kind")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        sites = dict.fromkeys(name.split("/")[0] for name in tensors)
        return {site: _fitted_site(site, tensors) for site in sites}


def _fitted_site(site: str, tensors: Mapping[str, Tensor]) -> FittedSite:
    state = {name: tensors[f"{site}/{name}"] for name in ("weight", "bias")}
    maps, heads, size, dimensions = state["weight"].shape
    projections = QueryKeyProjections(heads, size, dimensions, shared=maps == 1)
    projections.load_state_dict(state)
    centroids = {
        kind: {int(name.split("/")[2]): t for name, t in tensors.items() if name.startswith(f"{site}/{kind}/")}
        for kind in _CENTROIDS
    }
    seed = int(tensors.get(f"{site}/seed", 0))
    projections.requires_grad_(requires_grad=False)
    return FittedSite(projections, tensors[f"{site}/losses"].tolist(), seed=seed, **centroids)

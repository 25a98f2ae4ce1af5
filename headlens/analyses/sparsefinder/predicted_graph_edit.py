"""Attention over predicted graphs: a model that looks nowhere else, at test time (Treviso et al. 2022, section 5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from headlens.analyses.sparsefinder.measures import allowed_pairs
from headlens.analyses.sparsefinder.predictors import Predictor, QueryKeyVectors
from headlens.attention.edits_and_observers import AttentionCall, CallContext, Edit, Observer
from headlens.attention.sites import Site
from headlens.errors import OptionError


class Sparsity:
    """Sparsity of attention while a model runs: for each head a mean over texts, then over heads, as of recall."""

    def __init__(self) -> None:
        # By site the sum over texts of the share of pairs that are looked at, and the number of texts: (heads,) each.
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}
        self._pending: dict[str, tuple[Tensor, Tensor]] = {}  # the same of a pass that has not returned yet

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Forgets what was counted inside if it fails: it will be repeated in parts, for want of memory."""
        before = dict(self._sums)
        try:
            yield
        except BaseException:
            self._sums = before
            raise

    def commit(self) -> None:
        """Adds the counts of the pass that has returned to the sums over all texts."""
        for site, (shares, texts) in self._pending.items():
            before = self._sums.get(site, (0, 0))
            self._sums[site] = before[0] + shares, before[1] + texts
        self._pending = {}

    def add(self, site: Site, kept: Tensor, allowed: Tensor, heads: int) -> None:
        """Counts the pairs of one call, until `commit`; the calls of a pass that failed before are forgotten.

        Args:
            site: of the call.
            kept: pairs that are looked at, bool, `(batch, heads or 1, query, key)`.
            allowed: pairs that could be looked at, broadcastable to these.
            heads: how many the site has.
        """
        allowed = allowed.expand(-1, -1, *kept.shape[-2:])
        looked_at, possible = ((pairs & allowed).sum(dim=(2, 3)).double() for pairs in (kept, allowed))
        # Texts without a possible pair are NaN, and do not count.
        shares, texts = (x.expand(-1, heads).nansum(dim=0).cpu() for x in (looked_at / possible, possible > 0))
        if str(site) in self._pending:
            self._pending = {}
        self._pending[str(site)] = shares, texts

    @property
    def mean(self) -> float:
        """Mean over all heads of all sites, which have equal weight; NaN if nothing was counted."""
        heads = [1 - shares / texts for shares, texts in self._sums.values()]
        return float(torch.cat(heads).nanmean()) if heads else float("nan")


class PredictedGraphEdit(Edit):
    """Lets queries look only where their site's predictor says, within what the model's own mask allows.

    A query of which no pair is predicted looks at its own place (in cross attention: the source token in its place,
    or the last one), so that no weight is left for the rest.

    Args:
        predictors: by site, such as `encoder.0`; other sites stay as they are.
        written: whether the model writes texts token by token, of which nobody declares the tokens. With a cache, a
            query is seen without those before it, which is enough for predictors that are `pairwise`.
    """

    edits_mask = True

    def __init__(self, predictors: Mapping[str, Predictor], *, written: bool = False) -> None:
        self.predictors = dict(predictors)
        self.written = written
        self._before = 0
        self._sparsity: Sparsity | None = None

    @contextmanager
    def counting(self, sparsity: Sparsity) -> Iterator[None]:
        """Adds the pairs that are looked at to `sparsity` inside, own places of queries without a predicted key too."""
        self._sparsity = sparsity
        try:
            yield
        finally:
            self._sparsity = None

    def check(self, sites: Sequence[Site]) -> None:
        """Raises OptionError if there is a predictor for a site that the model does not have."""
        there = {str(site) for site in sites}
        if missing := sorted(set(self.predictors) - there):
            raise OptionError(f"There is no {missing[0]} in this model.", f"It has: {', '.join(sorted(there))}.")

    def mask(self, context: CallContext, mask: Tensor | None) -> Tensor | None:
        """Returns the additive mask: `(batch, heads or 1, query, key)`.

        Raises:
            OptionError: where nobody declared which tokens are padding, or queries are missing that a predictor needs.
        """
        stack = context.site.stack
        if stack == "decoder":
            # Attention to a source comes later in the layer; nothing there tells how long the text is already.
            self._before = context.key.shape[2] - context.query.shape[2]
        predictor = self.predictors.get(str(context.site))
        if predictor is None:
            return mask
        before = 0 if stack == "encoder" else self._before
        if before and not predictor.pairwise:
            raise OptionError(
                f"{context.site}: these graphs cannot be predicted for one query alone.",
                "Generate text without a cache.",
            )
        real_queries, real_keys = tokens_of(context, mask, written=self.written)
        query, key = context.query.float(), context.key_of_heads.float()
        vectors = QueryKeyVectors(query, key, real_queries, real_keys, before, causal=stack == "decoder")
        inside = allowed_pairs(real_queries, real_keys)
        graph = predictor.graph(vectors) & inside
        mask = torch.zeros((), dtype=context.query.dtype, device=inside.device) if mask is None else mask
        allowed = inside & _open(mask)
        alone = ~(graph & allowed).any(dim=-1, keepdim=True)
        # What padding looks at means nothing, but it has to look somewhere, too.
        kept = graph | (alone & _own_places(real_queries, real_keys, before)) | ~real_queries[:, None, :, None]
        if self._sparsity is not None:
            self._sparsity.add(context.site, kept, allowed, context.query.shape[1])
        return torch.where(kept, mask, torch.finfo(mask.dtype).min)


class WeightSparsity(Edit, Observer):
    """Counts the pairs that attention itself gives weight, among those that the model's mask allows.

    It changes nothing: as an edit it learns which pairs are allowed, as an observer of the same model it sees the
    weights.

    Args:
        sites: names of those whose pairs are counted.
        sparsity: where they are counted.
    """

    edits_mask = True

    def __init__(self, sites: Sequence[str], sparsity: Sparsity) -> None:
        self.sites = frozenset(sites)
        self.sparsity = sparsity
        self._allowed: dict[Site, Tensor] = {}

    def mask(self, context: CallContext, mask: Tensor | None) -> Tensor | None:
        """Returns the mask unchanged and records which pairs it allows: bool, `(batch, heads or 1, query, key)`."""
        if str(context.site) in self.sites:
            pairs = allowed_pairs(*tokens_of(context, mask, written=False))
            self._allowed[context.site] = pairs if mask is None else pairs & _open(mask)
        return mask

    def observe(self, call: AttentionCall) -> None:
        """Adds the sparsity of this call's attention weights: which of the allowed pairs have a weight above 0."""
        pairs = self._allowed.pop(call.site, None)
        if pairs is not None:
            assert call.weights is not None
            self.sparsity.add(call.site, call.weights > 0, pairs, call.weights.shape[1])


def tokens_of(context: CallContext, mask: Tensor | None, *, written: bool) -> tuple[Tensor, Tensor]:
    """Tells which queries and keys are tokens: bool, `(batch, query)` and `(batch, key)`.

    Args:
        context: the call.
        mask: its additive mask.
        written: whether texts are written, so that nobody knows the tokens, see `PredictedGraphEdit`.

    Raises:
        OptionError: where nobody declared which tokens are padding, and the mask does not tell.
    """
    if context.queries is not None and context.keys is not None:
        return context.queries.real.bool(), context.keys.real.bool()
    if not written:
        raise OptionError(
            f"{context.site}: it was not declared which tokens are padding, so no graph can be predicted.",
            "Declare them with session.batch(...).",
        )
    (batch, _, n, _), m = context.query.shape, context.key.shape[2]
    keys = torch.ones(batch, m, dtype=torch.bool, device=context.query.device)
    if mask is not None:
        # A key is padding if no query of any head may look at it.
        keys = keys & _open(mask).any(dim=2).any(dim=1)
    return keys if context.site.stack == "encoder" else keys.new_ones(batch, n), keys


def _open(mask: Tensor) -> Tensor:
    """Where an additive mask lets queries look; a bias may be added to the lowest number, so half of it divides."""
    return mask > torch.finfo(mask.dtype).min / 2


def _own_places(real_queries: Tensor, real_keys: Tensor, before: int) -> Tensor:
    """The key in the place of every query, or the last one: bool, `(batch, 1, query, key)`."""
    n, m = real_queries.shape[1], real_keys.shape[1]
    last = real_keys.sum(dim=1) - 1
    places = torch.minimum(torch.arange(before, before + n, device=last.device), last[:, None])
    return (places[..., None] == torch.arange(m, device=last.device))[:, None]

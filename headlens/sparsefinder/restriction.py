"""Attention over predicted graphs: a model that looks nowhere else, at test time (Treviso et al. 2022, section 5)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from headlens.attention.contract import AttentionCall, CallContext, Edit, Observer
from headlens.attention.sites import Site
from headlens.errors import OptionError
from headlens.sparsefinder.predictors import Predictor, Vectors


class Sparsity:
    """How sparse attention is while a model runs: means over texts for each head, then over heads, as of recall.

    A text that is written has a graph at every step, and each of its steps counts as a text does.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), dtype=torch.float64))
        self._texts: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), dtype=torch.float64))

    def add(self, site: Site, kept: Tensor, allowed: Tensor, heads: int) -> None:
        """Count one call.

        Args:
            site: where.
            kept: pairs that are looked at, bool, (batch, heads or 1, query, key).
            allowed: pairs that could be, broadcastable to these.
            heads: how many the site has.
        """
        allowed = allowed.expand(-1, -1, *kept.shape[-2:])
        left = (kept & allowed).sum(dim=(2, 3)).double() / allowed.sum(dim=(2, 3))
        left = left.expand(-1, heads).cpu()
        self._sums[str(site)] = self._sums[str(site)] + (1 - left).nansum(dim=0)
        self._texts[str(site)] = self._texts[str(site)] + left.isfinite().sum(dim=0)

    @property
    def mean(self) -> float:
        """Over all heads of all sites, which have equal weight; NaN if nothing was counted."""
        found = [sums / self._texts[site] for site, sums in self._sums.items()]
        return float(torch.cat(found).nanmean()) if found else float("nan")


class Restricted(Edit):
    """Lets queries look only where their site's predictor says, within what the model's own mask allows.

    A query without any predicted key looks at the key in its own place, or the last one if there are fewer: a head
    has to look somewhere, and this is the least that it can be given.

    Args:
        predictors: by site, such as `encoder.0`; other sites stay as they are.
        uncached: whether a text that is written token by token is read anew for every token (`use_cache=False`), so
            that queries of which nobody declared the tokens are all there.
        sparsity: counts what is looked at, the own places of queries without a predicted key among it.
    """

    edits_mask = True

    def __init__(
        self, predictors: Mapping[str, Predictor], *, uncached: bool = False, sparsity: Sparsity | None = None
    ) -> None:
        self.predictors = dict(predictors)
        self.uncached = uncached
        self.sparsity = sparsity

    def check(self, sites: Sequence[Site]) -> None:
        """Raise OptionError if there is a predictor for a site that the model does not have."""
        there = {str(site) for site in sites}
        if missing := sorted(set(self.predictors) - there):
            raise OptionError(f"There is no {missing[0]} in this model.", f"It has: {', '.join(sorted(there))}.")

    def mask(self, context: CallContext, mask: Tensor | None) -> Tensor | None:
        """The additive mask: (batch, heads or 1, query, key).

        Raises:
            OptionError: where nobody declared which tokens are padding, as while a text is written token by token.
        """
        predictor = self.predictors.get(str(context.site))
        if predictor is None:
            return mask
        queries, others = tokens_of(context, mask, uncached=self.uncached)
        found = predictor.graph(Vectors(context.query.float(), context.key_of_heads.float(), queries, others))
        own = torch.zeros((), dtype=context.query.dtype, device=queries.device) if mask is None else mask
        lowest = torch.finfo(own.dtype).min
        within = queries[:, None, :, None] & others[:, None, None, :]
        found = found & within
        allowed = within & (own > lowest / 2)
        alone = ~(found & allowed).any(dim=-1, keepdim=True)
        # What padding looks at means nothing, but it has to look somewhere, too.
        kept = found | (alone & _itself(queries, others)) | ~queries[:, None, :, None]
        if self.sparsity is not None:
            self.sparsity.add(context.site, kept, allowed, context.query.shape[1])
        return torch.where(kept, own, lowest)


class Allowed(Edit):
    """Changes nothing, but remembers which pairs each site may look at, for an observer that comes after.

    Args:
        sites: by name, those that are asked about.
        uncached: as of `Restricted`.
    """

    edits_mask = True

    def __init__(self, sites: Sequence[str], *, uncached: bool = False) -> None:
        self.sites = frozenset(sites)
        self.uncached = uncached
        self.pairs: dict[str, Tensor] = {}

    def mask(self, context: CallContext, mask: Tensor | None) -> Tensor | None:
        """The mask as it is."""
        if str(context.site) in self.sites:
            queries, keys = tokens_of(context, mask, uncached=self.uncached)
            pairs = queries[:, None, :, None] & keys[:, None, None, :]
            self.pairs[str(context.site)] = pairs if mask is None else pairs & (mask > torch.finfo(mask.dtype).min / 2)
        return mask


class WeightSparsity(Observer):
    """Counts the pairs that attention itself gives weight, among those of an `Allowed` of the same model.

    Passes that fail and are repeated in parts, for want of memory, count as often as they were begun.

    Args:
        allowed: says which pairs there are.
        sparsity: where they are counted.
    """

    def __init__(self, allowed: Allowed, sparsity: Sparsity) -> None:
        self.allowed = allowed
        self.sparsity = sparsity

    def observe(self, call: AttentionCall) -> None:
        """Count one call."""
        pairs = self.allowed.pairs.pop(str(call.site), None)
        if pairs is not None:
            assert call.weights is not None
            self.sparsity.add(call.site, call.weights > 0, pairs, call.weights.shape[1])


def tokens_of(context: CallContext, mask: Tensor | None, *, uncached: bool) -> tuple[Tensor, Tensor]:
    """Which queries and keys are tokens: bool, (batch, query) and (batch, key).

    Args:
        context: the call.
        mask: its additive mask.
        uncached: whether all queries of a text that is written are there, see `Restricted`.

    Raises:
        OptionError: where nobody declared which tokens are padding, and the mask does not tell.
    """
    if context.queries is not None and context.keys is not None:
        return context.queries.real.bool(), context.keys.real.bool()
    (batch, _, n, _), m = context.query.shape, context.key.shape[2]
    itself = context.site.stack != "cross"
    if not uncached or (itself and n != m):
        raise OptionError(
            f"{context.site}: nobody said which tokens are padding, so no graph can be predicted.",
            "Declare them with session.batch(...); write texts without a cache.",
        )
    keys = torch.ones(batch, m, dtype=torch.bool, device=context.query.device)
    if mask is not None:
        # What no query may look at.
        keys = keys & (mask > torch.finfo(mask.dtype).min / 2).any(dim=2).any(dim=1)
    return keys if itself else keys.new_ones(batch, n), keys


def _itself(queries: Tensor, keys: Tensor) -> Tensor:
    """The key in the place of every query, or the last one: bool, (batch, 1, query, key)."""
    n, m = queries.shape[1], keys.shape[1]
    last = keys.sum(dim=1) - 1
    places = torch.minimum(torch.arange(n, device=keys.device), last[:, None])
    return (places[..., None] == torch.arange(m, device=keys.device))[:, None]

"""Attention over predicted graphs: a model that looks nowhere else, at test time (Treviso et al. 2022, section 5)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from headlens.analyses.sparsefinder.predictors import Predictor, QueryKeyVectors
from headlens.attention.contract import AttentionCall, CallContext, Edit, Observer
from headlens.attention.sites import Site
from headlens.errors import OptionError


class Sparsity:
    """How sparse attention is while a model runs: for each head a mean over texts, then over heads, as of recall."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), dtype=torch.float64))
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
        found, all_of_them = (kept & allowed).sum(dim=(2, 3)).double(), allowed.sum(dim=(2, 3)).double()
        shares = found / all_of_them, (all_of_them > 0).double()
        for sums, own in zip((self._kept, self._texts), shares, strict=True):
            sums[str(site)] = sums[str(site)] + own.expand(-1, heads).nansum(dim=0).cpu()

    @property
    def mean(self) -> float:
        """Over all heads of all sites, which have equal weight; NaN if nothing was counted."""
        found = [1 - kept / self._texts[site] for site, kept in self._kept.items()]
        return float(torch.cat(found).nanmean()) if found else float("nan")


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
        """Inside, what is looked at is counted, the own places of queries without a predicted key among it."""
        self._sparsity = sparsity
        try:
            yield
        finally:
            self._sparsity = None

    def check(self, sites: Sequence[Site]) -> None:
        """Raise OptionError if there is a predictor for a site that the model does not have."""
        there = {str(site) for site in sites}
        if missing := sorted(set(self.predictors) - there):
            raise OptionError(f"There is no {missing[0]} in this model.", f"It has: {', '.join(sorted(there))}.")

    def mask(self, context: CallContext, mask: Tensor | None) -> Tensor | None:
        """The additive mask: (batch, heads or 1, query, key).

        Raises:
            OptionError: where nobody declared which tokens are padding, or queries are missing that a predictor needs.
        """
        if context.site.stack == "decoder":
            # Attention to a source comes later in the layer; nothing there tells how long the text is already.
            self._before = context.key.shape[2] - context.query.shape[2]
        predictor = self.predictors.get(str(context.site))
        if predictor is None:
            return mask
        before = 0 if context.site.stack == "encoder" else self._before
        if before and not predictor.pairwise:
            raise OptionError(
                f"{context.site}: these graphs cannot be predicted of one query alone.", "Write texts without a cache."
            )
        queries, others = tokens_of(context, mask, written=self.written)
        vectors = context.query.float(), context.key_of_heads.float(), queries, others
        found = predictor.graph(QueryKeyVectors(*vectors, before, causal=context.site.stack == "decoder"))
        own = torch.zeros((), dtype=context.query.dtype, device=queries.device) if mask is None else mask
        lowest = torch.finfo(own.dtype).min
        within = queries[:, None, :, None] & others[:, None, None, :]
        found = found & within
        allowed = within & (own > lowest / 2)
        alone = ~(found & allowed).any(dim=-1, keepdim=True)
        # What padding looks at means nothing, but it has to look somewhere, too.
        kept = found | (alone & _itself(queries, others, before)) | ~queries[:, None, :, None]
        if self._sparsity is not None:
            self._sparsity.add(context.site, kept, allowed, context.query.shape[1])
        return torch.where(kept, own, lowest)


class AllowedPairs(Edit):
    """Changes nothing, but remembers which pairs each site may look at, for an observer that comes after.

    Args:
        sites: by name, those that are asked about.
    """

    edits_mask = True

    def __init__(self, sites: Sequence[str]) -> None:
        self.sites = frozenset(sites)
        self.pairs: dict[str, Tensor] = {}

    def mask(self, context: CallContext, mask: Tensor | None) -> Tensor | None:
        """Returns the mask unchanged and records which pairs it allows: bool, `(batch, heads or 1, query, key)`."""
        if str(context.site) in self.sites:
            queries, keys = tokens_of(context, mask, written=False)
            pairs = queries[:, None, :, None] & keys[:, None, None, :]
            self.pairs[str(context.site)] = pairs if mask is None else pairs & (mask > torch.finfo(mask.dtype).min / 2)
        return mask


class WeightSparsity(Observer):
    """Counts the pairs that attention itself gives weight, among those of an `AllowedPairs` of the same model.

    Passes that fail and are repeated in parts, for want of memory, count as often as they were begun.

    Args:
        allowed: says which pairs there are.
        sparsity: where they are counted.
    """

    def __init__(self, allowed: AllowedPairs, sparsity: Sparsity) -> None:
        self.allowed = allowed
        self.sparsity = sparsity

    def observe(self, call: AttentionCall) -> None:
        """Adds the sparsity of this call's attention weights: which of the allowed pairs have a weight above 0."""
        if str(call.site) in self.allowed.pairs:
            pairs = self.allowed.pairs.pop(str(call.site))
            assert call.weights is not None
            self.sparsity.add(call.site, call.weights > 0, pairs, call.weights.shape[1])


def tokens_of(context: CallContext, mask: Tensor | None, *, written: bool) -> tuple[Tensor, Tensor]:
    """Which queries and keys are tokens: bool, (batch, query) and (batch, key).

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
            f"{context.site}: nobody said which tokens are padding, so no graph can be predicted.",
            "Declare them with session.batch(...).",
        )
    (batch, _, n, _), m = context.query.shape, context.key.shape[2]
    keys = torch.ones(batch, m, dtype=torch.bool, device=context.query.device)
    if mask is not None:
        # What no query may look at.
        keys = keys & (mask > torch.finfo(mask.dtype).min / 2).any(dim=2).any(dim=1)
    return keys if context.site.stack == "encoder" else keys.new_ones(batch, n), keys


def _itself(queries: Tensor, keys: Tensor, before: int) -> Tensor:
    """The key in the place of every query, or the last one: bool, (batch, 1, query, key)."""
    n, m = queries.shape[1], keys.shape[1]
    last = keys.sum(dim=1) - 1
    places = torch.minimum(torch.arange(before, before + n, device=keys.device), last[:, None])
    return (places[..., None] == torch.arange(m, device=keys.device))[:, None]

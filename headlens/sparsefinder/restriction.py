"""Attention over predicted graphs: a model that looks nowhere else, at test time (Treviso et al. 2022, section 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from headlens.attention.contract import CallContext, Edit
from headlens.attention.sites import Site
from headlens.errors import OptionError
from headlens.sparsefinder.predictors import Predictor, Vectors


class Restricted(Edit):
    """Lets queries look only where their site's predictor says, within what the model's own mask allows.

    A query without any predicted key looks at the key in its own place, or the last one if there are fewer: a head
    has to look somewhere, and this is the least that it can be given.

    Args:
        predictors: by site, such as `encoder.0`; other sites stay as they are.
        uncached: whether a text that is written token by token is read anew for every token (`use_cache=False`), so
            that queries of which nobody declared the tokens are all there.
    """

    edits_mask = True

    def __init__(self, predictors: Mapping[str, Predictor], *, uncached: bool = False) -> None:
        self.predictors = dict(predictors)
        self.uncached = uncached

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
        queries, others = self._real(context, mask)
        found = predictor.graph(Vectors(context.query.float(), context.key_of_heads.float(), queries, others))
        own = torch.zeros((), dtype=context.query.dtype, device=queries.device) if mask is None else mask
        lowest = torch.finfo(own.dtype).min
        within = queries[:, None, :, None] & others[:, None, None, :]
        found = found & within
        alone = ~(found & (own > lowest / 2)).any(dim=-1, keepdim=True)
        # What padding looks at means nothing, but it has to look somewhere, too.
        kept = found | (alone & _itself(queries, others)) | ~queries[:, None, :, None]
        return torch.where(kept, own, lowest)

    def _real(self, context: CallContext, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Which queries and keys are tokens: bool, (batch, query) and (batch, key)."""
        if context.queries is not None and context.keys is not None:
            return context.queries.real.bool(), context.keys.real.bool()
        (batch, _, n, _), m = context.query.shape, context.key.shape[2]
        itself = context.site.stack != "cross"
        if not self.uncached or (itself and n != m):
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

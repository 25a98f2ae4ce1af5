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
    """

    edits_mask = True

    def __init__(self, predictors: Mapping[str, Predictor]) -> None:
        self.predictors = dict(predictors)

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
        if context.queries is None or context.keys is None:
            raise OptionError(
                f"{context.site}: nobody said which tokens are padding, so no graph can be predicted.",
                "Declare them with session.batch(...).",
            )
        heads = context.query.shape[1]
        keys = context.key.repeat_interleave(heads // context.key.shape[1], dim=1)
        queries, others = context.queries.real.bool(), context.keys.real.bool()
        found = predictor.graph(Vectors(context.query.float(), keys.float(), queries, others))
        own = torch.zeros((), dtype=context.query.dtype, device=queries.device) if mask is None else mask
        lowest = torch.finfo(own.dtype).min
        within = queries[:, None, :, None] & others[:, None, None, :]
        found = found & within
        alone = ~(found & (own > lowest / 2)).any(dim=-1, keepdim=True)
        # What padding looks at means nothing, but it has to look somewhere, too.
        kept = found | (alone & _itself(queries, others)) | ~queries[:, None, :, None]
        return torch.where(kept, own, lowest)


def _itself(queries: Tensor, keys: Tensor) -> Tensor:
    """The key in the place of every query, or the last one: bool, (batch, 1, query, key)."""
    n, m = queries.shape[1], keys.shape[1]
    last = keys.sum(dim=1) - 1
    places = torch.minimum(torch.arange(n, device=keys.device), last[:, None])
    return (places[..., None] == torch.arange(m, device=keys.device))[:, None]

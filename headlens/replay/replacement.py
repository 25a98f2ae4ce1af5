"""What stands in the place of a head's output when the head is taken out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headlens.attention.edits_and_observers import AttentionCall, Observer
from headlens.attention.interface import Kernel, causal_mask, is_causal
from headlens.attention.sites import Site
from headlens.errors import OptionError, SelfCheckError
from headlens.metrics.accumulator import Accumulator
from headlens.replay.modes import BY_BATCH, MODES, Mode

_METRIC = "outputs"


class HeadMeans(Observer):
    """Mean head outputs over the real tokens of a corpus, for the mode `mean`.

    Tokens are those declared with `session.batch`; without a declaration all positions count.
    """

    needs_weights = False

    def __init__(self) -> None:
        self.totals = Accumulator()

    def observe(self, call: AttentionCall) -> None:
        """Sums head outputs (batch, query, heads, d) of a call over its real tokens to (heads, d), until `commit`."""
        real = (
            torch.ones(call.output.shape[:2], device=call.output.device) if call.queries is None else call.queries.real
        )
        # (batch, query, heads, d) -> (heads, d)
        total = torch.einsum("bqhd,bq->hd", call.output.detach().double(), real.double())
        self.totals.add(_METRIC, str(call.site), {"sum": total, "tokens": real.sum()})

    def prepare(self) -> None:
        """Gets what was observed from its device."""
        self.totals.fetch()

    def commit(self) -> None:
        """Adds the sums and token counts of the last pass to the totals of each site."""
        self.totals.commit()

    def discard(self) -> None:
        """Forget what was observed since the last commit."""
        self.totals.discard()

    def means(self, sites: Sequence[Site]) -> dict[Site, Tensor]:
        """Mean outputs of the sites that were observed, (heads, d), double precision."""
        sums = self.totals.of(_METRIC)
        by_site = {site: sums[str(site)] for site in sites if str(site) in sums}
        return {site: torch.from_numpy(site_sums["sum"] / site_sums["tokens"]) for site, site_sums in by_site.items()}


def check_means(mode: Mode, means: Mapping[Site, Tensor] | None, sites: Sequence[Site]) -> None:
    """Raise OptionError unless there are means exactly where a mode needs them."""
    if mode not in MODES:
        raise OptionError(f"Unknown mode {mode!r} to take a head out.", f"Choose from: {', '.join(MODES)}.")
    if (mode == "mean") != (means is not None) and mode not in BY_BATCH:
        raise OptionError(
            f"The mode {mode!r} needs {'the' if mode == 'mean' else 'no'} mean head outputs.",
            "Measure them with HeadMeans and give them as means=, for the mode 'mean' only.",
        )
    for site in sites if mode == "mean" else ():
        mean = (means or {}).get(site)
        if mean is None or mean.dim() != 2 or mean.shape[0] != site.n_heads:
            problem = "no means" if mean is None else f"means of the shape {tuple(mean.shape)}"
            raise OptionError(f"There are {problem} for {site}.", f"Give ({site.n_heads} heads, d) for every site.")


def replaced(output: Tensor, heads: Sequence[int], instead: Tensor | None) -> Tensor:
    """Head outputs once for every head of a list, in which that head is replaced.

    Args:
        output: (rows, query, heads, d).
        heads: which.
        instead: what comes in the place of each, broadcastable to (rows, query, heads, d); None for 0.

    Returns:
        (len(heads) x rows, query, heads, d).
    """
    copies = output.repeat(len(heads), 1, 1, 1)
    if instead is not None:
        instead = instead.to(output).expand_as(output)
    for copy, head in zip(copies.view(len(heads), *output.shape), heads, strict=True):
        copy[:, :, head] = 0 if instead is None else instead[:, :, head]
    return copies


def check_removed(outputs: Tensor, heads: Sequence[int], mode: Mode) -> None:
    """Raise SelfCheckError unless what a mode removes is exactly 0 in what the model goes on with.

    Args:
        outputs: (len(heads) x rows, query, heads, d).
        heads: which.
        mode: `zero`, or `keep-only`; the others leave nothing that is known to be 0.
    """
    for copy, head in zip(outputs.view(len(heads), -1, *outputs.shape[1:]), heads, strict=True):
        others = torch.arange(copy.shape[2], device=copy.device) != head
        gone = copy[:, :, head] if mode == "zero" else copy[:, :, others] if mode == "keep-only" else copy[:0]
        if gone.any():
            raise SelfCheckError(f"The model used a value other than 0 where head {head} was taken out.")


def evenly(
    kernel: Kernel,
    module: nn.Module,
    tensors: tuple[Tensor, ...],
    mask: Tensor | None,
    kwargs: Mapping[str, Any],
) -> Tensor:
    """Head outputs if every query looked evenly at the keys it may look at: the mean of their values.

    Args:
        kernel: what the mask is made for.
        module: the attention module.
        tensors: query (rows, heads, query, d), and key and value (rows, key heads, key, d).
        mask: boolean, True where a query may look, or additive; None for no mask.
        kwargs: the other arguments of the call.

    Returns:
        (rows, query, heads, d). A query that may look nowhere looks everywhere, as after a softmax.
    """
    query, key, value = tensors
    if kernel == "sdpa" and is_causal(module, query, mask, kwargs):
        mask = causal_mask(query, key)
    if mask is None:
        seen = value.new_ones(1, 1, query.shape[2], key.shape[2])
    else:
        # Sums of lowest numbers are -inf; anything this low is 0 after a softmax.
        allowed = mask if mask.dtype is torch.bool else mask > torch.finfo(mask.dtype).min / 2
        allowed = allowed.expand(*allowed.shape[:-2], query.shape[2], key.shape[2])[(None,) * (4 - allowed.dim())]
        seen = (allowed | ~allowed.any(-1, keepdim=True)).to(value.dtype)
    # A layer that lost all its heads has no groups either.
    values = value.repeat_interleave(query.shape[1] // max(1, value.shape[1]), dim=1)
    # (rows, heads, query, d) -> (rows, query, heads, d)
    return ((seen / seen.sum(-1, keepdim=True)) @ values).transpose(1, 2)

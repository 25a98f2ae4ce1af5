"""Head gates: every head's output times a number, before the output projection (Voita et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from headlens.attention.edits_and_observers import CallContext, Edit
from headlens.attention.sites import Site, check_heads, inventory
from headlens.errors import OptionError
from headlens.heads import Head


class HeadGates(Edit):
    """Multiplies head outputs: 0 removes a head, 1 leaves it as it is.

    MultiHead(Q, K, V) = Concat_i(g_i head_i) W^O (Voita et al. 2019, equation 2). Layers without a gate are not
    touched. With shared weights (ALBERT) a gate applies at its own depth only.

    Args:
        values: a number for each head, 1 for heads that are not named; or a tensor for each site, (heads,) or
            (batch, heads), which may carry gradients.
    """

    def __init__(self, values: Mapping[Head, float] | Mapping[Site, Tensor]) -> None:
        self._heads = {k: float(v) for k, v in values.items() if isinstance(k, Head)}
        self._tensors = {
            (k.stack, k.layer): v for k, v in values.items() if isinstance(k, Site) and isinstance(v, Tensor)
        }

    def check(self, sites: Sequence[Site]) -> None:
        """Raises OptionError on a head the model does not have, or on a tensor for another number of heads."""
        counts = {(s.stack, s.layer): s.n_heads for s in sites}
        check_heads(self._heads, sites)
        for (stack, layer), tensor in self._tensors.items():
            n_heads = counts.get((stack, layer))
            if n_heads is None:
                raise OptionError(f"There is no layer {stack}.{layer}.", f"The model has {inventory(sites)}.")
            if tensor.dim() not in (1, 2) or tensor.shape[-1] != n_heads:
                raise OptionError(
                    f"The gates of {stack}.{layer} have the shape {tuple(tensor.shape)}.",
                    f"Give ({n_heads},) or (batch, {n_heads}).",
                )

    def output(self, context: CallContext, output: Tensor) -> Tensor:
        """The head outputs times their gates: (batch, query, heads, d)."""
        site = context.site
        gates = self._tensors.get((site.stack, site.layer))
        if gates is None and not self._heads.keys().isdisjoint(site.heads):
            gates = torch.tensor([self._heads.get(h, 1.0) for h in site.heads])
        # (heads,) or (batch, heads) -> (1 or batch, 1, heads, 1)
        return output if gates is None else output * gates.to(output)[..., None, :, None]

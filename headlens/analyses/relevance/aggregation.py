"""Relevance over a corpus: normalised by example and layer, averaged, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from headlens.analyses.relevance.lrp.relevance_session import HeadRelevance
from headlens.attention.sites import Site
from headlens.errors import SelfCheckError
from headlens.heads import Head, HeadTable
from headlens.metrics.accumulator import Accumulator, Array
from headlens.statistics.bootstrap import FEWEST, Draws, percentile_interval

# Where the heads of a layer cancel to less than this share of their magnitudes, their sum is no unit to measure in.
CANCELLED = 0.1
COLUMNS = (
    *("relevance", "ci_low", "ci_high", "raw", "rule", "target"),
    *("signed", "signed_low", "signed_high", "n", "cancelled", "negative", "raw_low", "raw_high"),
)
_HEADS, _FLOW = "relevance", "conservation"


@dataclass(frozen=True)
class Conservation:
    """Where the relevance of a corpus went, as shares of what started; they add up to 1.

    Args:
        inputs: arrived at embeddings.
        biases: kept by biases.
    """

    inputs: float
    biases: float

    @property
    def lost(self) -> float:
        """What arrived at neither: rounding for `epsilon`; it means nothing for gradxact, taylor and alpha-beta."""
        return 1 - self.inputs - self.biases


class RelevanceSums:
    """Adds relevance up over a corpus; what it holds does not grow with it.

    An example's relevance is normalised over the heads of each layer, so that a layer sums to 1: a head's number is its
    share in what the layer as a whole contributes, which is negative for heads that work against it, whichever sign the
    layer's sum has. Where the heads cancel (|sum| < 0.1 · sum of magnitudes) shares mean nothing and would drown all
    others; such examples are left out of that layer's mean, and counted. `signed` divides by the sum of magnitudes
    instead, which always exists: it keeps the sign of the contribution and leaves nothing out.

    Args:
        sites: where the heads are.
        replicates: bootstrap samples.
        seed: of the bootstrap.
    """

    def __init__(self, sites: Sequence[Site], *, replicates: int = 1000, seed: int = 0) -> None:
        self.sites = tuple(sites)
        self.replicates = replicates
        self.seed = seed
        self.totals = Accumulator()

    def add(self, found: HeadRelevance, keys: Sequence[str]) -> None:
        """Count a batch, as a whole or not at all.

        Args:
            found: of the batch.
            keys: one for each example, the same wherever it is met (`EncodedExample.key`).

        Raises:
            ValueError: if there are not as many keys as examples.
        """
        self.hold(found, keys)
        self.totals.commit()

    def hold(self, found: HeadRelevance, keys: Sequence[str]) -> None:
        """Do everything of `add` that may fail: the batch counts once `totals.commit` is called.

        Raises:
            ValueError: if there are not as many keys as examples.
        """
        if len(keys) != len(found.start):
            raise ValueError(f"{len(keys)} keys for {len(found.start)} examples")
        draws = torch.from_numpy(Draws.of(keys, self.replicates, self.seed).counts).double()
        for site, raw in found.raw.items():
            self.totals.add(_HEADS, str(site), _sums(raw, draws))
        ends = {name: torch.tensor(getattr(found, name), dtype=torch.float64) for name in ("inputs", "biases")}
        self.totals.add(_FLOW, "all", {"start": found.start.sum()} | ends)
        self.totals.fetch()

    def table(self, rule: str, target: str) -> HeadTable:
        """One row per head.

        Columns: `relevance`, the mean of normalised relevance with its 95 % bootstrap interval `ci_low`, `ci_high`
        (empty where every example was left out; the interval already where fewer than 5 were kept); `raw`, the mean of
        signed sums, with its interval `raw_low`, `raw_high`; `rule`; `target`; `signed`, the mean share in the sum of
        magnitudes, with `signed_low`, `signed_high`; `n`, examples in the mean of `relevance`; `cancelled`, examples
        left out of it; `negative`, examples in it whose layer has a negative sum.

        Raises:
            SelfCheckError: if no head has any relevance, or one has none that is finite.
        """
        sums = self.totals.of(_HEADS)
        present = [s for s in self.sites if str(s) in sums]
        rows = pd.concat([_columns(sums[str(s)], s.n_heads) for s in present] or [pd.DataFrame({"raw": []})])
        if not rows["raw"].any() or not np.isfinite(rows["raw"]).all():
            raise SelfCheckError("The relevance of heads is zero throughout, or not finite.")
        heads: list[Head] = [h for s in present for h in s.heads]
        rows = rows.assign(rule=rule, target=target)
        return HeadTable.from_columns(heads, **{name: rows[name].to_numpy() for name in COLUMNS})

    def means(self) -> dict[Site, Array]:
        """The mean of normalised relevance by site, then its bootstrap replicates: (1 + replicates, heads).

        NaN where no example is left in a mean. Those of two rules over one corpus are paired: a replicate drew the same
        examples for both.
        """
        found, totals = {}, self.totals.of(_HEADS)
        for site in (site for site in self.sites if str(site) in totals):
            sums = totals[str(site)]
            shares = np.vstack([sums["share"], sums["drawn_share"]])
            found[site] = _quotients(shares, np.append(sums["kept"], sums["drawn_kept"]))
            if sums["kept"] < FEWEST:
                found[site][1:] = np.nan
        return found

    @property
    def conservation(self) -> Conservation:
        """Where relevance went, over the corpus so far."""
        flow = self.totals.of(_FLOW)["all"]
        start = float(flow["start"])
        return Conservation(float(flow["inputs"]) / start, float(flow["biases"]) / start)


def normalised(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Shares in the layer's sum, (examples, heads), 0 where the heads cancel; and where they do not, (examples,)."""
    total = raw.sum(dim=1, keepdim=True)
    kept = total.abs() >= CANCELLED * raw.abs().sum(dim=1, keepdim=True)
    kept = kept & (total != 0)
    return torch.where(kept, raw / total, 0.0), kept[:, 0]


def _sums(raw: Tensor, draws: Tensor) -> dict[str, Tensor]:
    """Additive sums of one site; raw (examples, heads), draws (replicates, examples)."""
    shares, kept = normalised(raw)
    magnitude = raw.abs().sum(dim=1, keepdim=True)
    signed = torch.where(magnitude > 0, raw / magnitude, 0.0)
    return {
        "examples": torch.tensor(len(raw)),
        "kept": kept.sum(),
        "negative": (kept & (raw.sum(dim=1) < 0)).sum(),
        "raw": raw.sum(dim=0),
        "share": shares.sum(dim=0),
        "signed": signed.sum(dim=0),
        "drawn_share": draws @ shares,
        "drawn_kept": draws @ kept.double(),
        "drawn_signed": draws @ signed,
        "drawn_raw": draws @ raw,
        "drawn": draws.sum(dim=1),
    }


def _columns(sums: dict[str, Array], n_heads: int) -> pd.DataFrame:
    """The columns of the heads of a site, from its sums over all examples and over those that replicates drew."""
    examples, kept = int(sums["examples"]), int(sums["kept"])
    low, high = _interval(sums["drawn_share"], sums["drawn_kept"], kept)
    signed_low, signed_high = _interval(sums["drawn_signed"], sums["drawn"], examples)
    shares = {"relevance": sums["share"] / kept if kept else np.nan, "ci_low": low, "ci_high": high}
    shares |= {"raw": sums["raw"] / examples, "signed": sums["signed"] / examples}
    shares |= {"signed_low": signed_low, "signed_high": signed_high}
    raw_low, raw_high = _interval(sums["drawn_raw"], sums["drawn"], examples)
    shares |= {"raw_low": raw_low, "raw_high": raw_high}
    counts = {"n": kept, "cancelled": examples - kept, "negative": int(sums["negative"])}
    return pd.DataFrame(shares | counts, index=range(n_heads))


def _interval(sums: Array, counts: Array, examples: int) -> tuple[Array, Array]:
    if examples < FEWEST:
        return np.full(sums.shape[1], np.nan), np.full(sums.shape[1], np.nan)
    return percentile_interval(_quotients(sums, counts))


def _quotients(sums: Array, counts: Array) -> Array:
    """Means (rows, heads) of sums (rows, heads) and counts (rows,); NaN where nothing was counted."""
    found: Array = np.divide(sums, counts[:, None], out=np.full_like(sums, np.nan), where=counts[:, None] > 0)
    return found

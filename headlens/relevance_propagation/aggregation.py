"""Relevance over a corpus: normalised by example and layer, averaged, with intervals; and how well two rules agree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from headlens.attention.sites import Site
from headlens.errors import SelfCheckError
from headlens.heads import HeadTable
from headlens.metrics.accumulator import Accumulator, Array
from headlens.relevance_propagation.logit_attribution_rule import HEADS
from headlens.relevance_propagation.relevance_session import HeadRelevance
from headlens.relevance_propagation.shares import EVEN, few_answers
from headlens.statistics.bootstrap import FEWEST, Draws, bias_corrected_interval, percentile_interval
from headlens.statistics.weighted_means import ratio, spearman_by_row
from headlens.tables.relevance_tables import CORRELATIONS, RELEVANCE
from headlens.tables.shared_columns import ALL

# Where the heads of a layer cancel to less than this share of their magnitudes, their sum is no unit to measure in.
CANCELLED = 0.1
Means = Mapping[Site, npt.NDArray[np.float64]]
_HEADS, _FLOW, _OUTPUTS = "relevance", "conservation", "outputs"
_ROUNDING = 1e-5  # of float32 after some layers, relative


@dataclass(frozen=True)
class Conservation:
    """Where the relevance of a corpus went, as shares of what started; they add up to 1.

    Args:
        inputs: arrived at embeddings.
        biases: kept by biases.
        others: what else of it ended where, by what that is: for `logit-attribution`, at heads and MLPs.
    """

    inputs: float
    biases: float
    others: Mapping[str, float] = field(default_factory=dict)

    @property
    def lost(self) -> float:
        """What arrived at neither: rounding for `epsilon`; it means nothing for gradxact, taylor and alpha-beta."""
        return 1 - self.inputs - self.biases - sum(self.others.values())


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

    def add(self, relevance: HeadRelevance, keys: Sequence[str]) -> None:
        """Count a batch, as a whole or not at all.

        Args:
            relevance: of the batch.
            keys: one for each example, the same wherever it is met (`EncodedExample.key`).

        Raises:
            ValueError: if there are not as many keys as examples.
        """
        self.hold(relevance, keys)
        self.totals.commit()

    def hold(self, relevance: HeadRelevance, keys: Sequence[str]) -> None:
        """Do everything of `add` that may fail: the batch counts once `totals.commit` is called.

        Raises:
            ValueError: if there are not as many keys as examples.
        """
        if len(keys) != len(relevance.start):
            raise ValueError(f"{len(keys)} keys for {len(relevance.start)} examples")
        draws = torch.from_numpy(Draws.of(keys, self.replicates, self.seed).counts).double()
        for site, raw in relevance.raw.items():
            self.totals.add(_HEADS, str(site), _sums(raw, draws))
        ends = {"inputs": relevance.inputs, "biases": relevance.biases, **relevance.others}
        flow = {name: torch.tensor(value, dtype=torch.float64) for name, value in ends.items()}
        starts = {"start": relevance.start.sum(), "drawn_start": draws @ relevance.start}
        self.totals.add(_FLOW, "all", starts | flow)
        even = {"evenness": torch.tensor(relevance.evenness, dtype=torch.float64)}
        squares = {"count": torch.tensor(len(relevance.outputs)), "square": relevance.outputs.square().sum(dim=0)}
        signs = {"starts": torch.tensor(len(relevance.start)), "below": (relevance.start < 0).sum()}
        self.totals.add(
            _OUTPUTS,
            "all",
            {"sum": relevance.outputs.sum(dim=0), "answers": relevance.answers} | even | squares | signs,
        )
        self.totals.fetch()

    def table(self, rule: str, target: str) -> HeadTable:
        """One row per head, without numbers for those that the rule gives no relevance.

        Columns: `relevance`, the mean of normalised relevance with its 95 % bootstrap interval `ci_low`, `ci_high`
        (empty where every example was left out; the interval already where fewer than 10 were kept); `raw`, the mean of
        signed sums, with its interval `raw_low`, `raw_high`; `rule`; `target`; `signed`, the mean share in the sum of
        magnitudes, with `signed_low`, `signed_high`; `n`, examples in the mean of `relevance`; `cancelled`, examples
        left out of it; `negative`, examples in it whose layer has a negative sum; `layer_raw`, `layer_raw_low`,
        `layer_raw_high`, the mean over all examples of the sum over the layer, the same for all of its heads;
        `same_output`, whether all outputs of the model are the same; `even_output`, whether it finds all answers
        (nearly) equally probable; `few_answers`, whether it (nearly) always gives the same answer, or one of few;
        `remainder`, with `remainder_low` and `remainder_high`, for a rule by which heads give a part of the target: the
        mean of what none of them gives.

        Raises:
            SelfCheckError: if no head has any relevance, or one has none that is finite.
        """
        sums = self.totals.of(_HEADS)
        present = [s for s in self.sites if str(s) in sums]
        parts = [_columns(sums[str(s)], s.n_heads) for s in present]
        if not any(part["raw"].any() for part in parts) or not all(np.isfinite(part["raw"]).all() for part in parts):
            raise SelfCheckError("The relevance of heads is zero throughout, or not finite.")
        found = dict(zip(present, parts, strict=True))
        no_examples = dict.fromkeys(("n", "cancelled", "negative"), 0)
        rows = pd.concat([found.get(s, pd.DataFrame(no_examples, index=range(s.n_heads))) for s in self.sites])
        remainder = self._remainder([sums[str(s)] for s in present])
        outputs = {"same_output": self.identical > 0, "even_output": self.evenness >= EVEN}
        outputs["few_answers"] = not outputs["same_output"] and bool(few_answers(self.answers))
        rows = rows.assign(rule=rule, target=target, **outputs, **remainder)
        heads = [h for s in self.sites for h in s.heads]
        return HeadTable.from_columns(heads, **{name: rows[name].to_numpy() for name in RELEVANCE.names[4:]})

    def _remainder(self, sites: Sequence[dict[str, Array]]) -> dict[str, float]:
        """The mean of the target without what heads give it, with its interval; empty where they give no part of it."""
        names = ("remainder", "remainder_low", "remainder_high")
        flow = self.totals.of(_FLOW).get("all", {})
        if HEADS not in flow:
            return dict.fromkeys(names, np.nan)
        drawn = flow["drawn_start"] - sum(sums["drawn_raw"].sum(axis=1) for sums in sites)
        total, examples = float(flow["start"] - sum(sums["raw"].sum() for sums in sites)), int(sites[0]["examples"])
        replicates = ratio(drawn, sites[0]["drawn"])
        interval = map(float, percentile_interval(replicates)) if examples >= FEWEST else (np.nan, np.nan)
        return dict(zip(names, (total / examples, *interval), strict=True))

    def means(self, *, raw: bool = False) -> dict[Site, Array]:
        """The mean of normalised relevance, or of `raw`, by site, then its replicates: (1 + replicates, heads).

        NaN where no example is left in a mean. Those of two rules over one corpus are paired: a replicate drew the same
        examples for both.
        """
        site_means, totals = {}, self.totals.of(_HEADS)
        for site in (site for site in self.sites if str(site) in totals):
            sums = totals[str(site)]
            name, count = ("raw", "examples") if raw else ("share", "kept")
            drawn = sums["drawn" if raw else "drawn_kept"]
            shares = np.vstack([sums[name], sums[f"drawn_{name}"]])
            site_means[site] = ratio(shares, np.append(sums[count], drawn)[:, None])
            if sums[count] < FEWEST:
                site_means[site][1:] = np.nan
        return site_means

    @property
    def answers(self) -> Array:
        """At how many of the starts of relevance each answer is the model's, from the most frequent one on."""
        counts = self.totals.of(_OUTPUTS).get("all", {"answers": np.zeros(0)})["answers"]
        return np.sort(counts)[::-1]

    @property
    def evenness(self) -> float:
        """Mean entropy of what the model predicts, as a share of the largest possible one; NaN without logits."""
        sums = self.totals.of(_OUTPUTS).get("all", {"answers": np.zeros(0)})
        count = sums["answers"].sum()
        return float(sums["evenness"] / count) if count else math.nan

    @property
    def identical(self) -> int:
        """How many outputs there are if all are the same but for rounding: the model ignores its input; else 0."""
        sums = self.totals.of(_OUTPUTS).get("all", {"count": np.asarray(0)})
        if (count := int(sums["count"])) < 2:
            return 0
        square = sums["square"] / count
        variance = square - (sums["sum"] / count) ** 2
        return count if (variance <= _ROUNDING**2 * square.max()).all() else 0

    @property
    def below(self) -> tuple[int, int]:
        """In how many examples the target is below 0, and how many examples there are."""
        sums = self.totals.of(_OUTPUTS)["all"]
        return int(sums["below"]), int(sums["starts"])

    @property
    def conservation(self) -> Conservation | None:
        """Where relevance went, over the corpus so far; None where what started adds up to nothing."""
        flow = self.totals.of(_FLOW)["all"]
        start = float(flow["start"])
        if not start:
            return None
        shares = {name: float(value) / start for name, value in flow.items() if name not in ("start", "drawn_start")}
        return Conservation(shares.pop("inputs"), shares.pop("biases"), shares)


def normalised(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Shares in the layer's sum, (examples, heads), 0 where the heads cancel; and where they do not, (examples,)."""
    total = raw.sum(dim=1, keepdim=True)
    kept = (total.abs() >= CANCELLED * raw.abs().sum(dim=1, keepdim=True)) & (total != 0)
    return torch.where(kept, raw / total, 0.0), kept[:, 0]


def _sums(raw: Tensor, draws: Tensor) -> dict[str, Tensor]:
    """Additive sums of one site; raw (examples, heads), draws (replicates, examples)."""
    shares, kept = normalised(raw)
    magnitude = raw.abs().sum(dim=1, keepdim=True)
    values = {"share": shares, "signed": torch.where(magnitude > 0, raw / magnitude, 0.0), "raw": raw}
    return {
        "examples": torch.tensor(len(raw)),
        "kept": kept.sum(),
        "negative": (kept & (raw.sum(dim=1) < 0)).sum(),
        "drawn": draws.sum(dim=1),
        "drawn_kept": draws @ kept.double(),
        **{name: value.sum(dim=0) for name, value in values.items()},
        **{f"drawn_{name}": draws @ value for name, value in values.items()},
    }


def _columns(sums: dict[str, Array], n_heads: int) -> pd.DataFrame:
    """The columns of the heads of a site, from its sums over all examples and over those that replicates drew."""
    examples, kept = int(sums["examples"]), int(sums["kept"])
    columns: dict[str, Any] = {"n": kept, "cancelled": examples - kept, "negative": int(sums["negative"])}
    for name, column, ends, drawn, count in (
        ("share", "relevance", "ci", "drawn_kept", kept),
        ("signed", "signed", "signed", "drawn", examples),
        ("raw", "raw", "raw", "drawn", examples),
    ):
        columns[column] = sums[name] / count if count else np.nan
        replicates = ratio(sums[f"drawn_{name}"], sums[drawn][:, None])
        interval = percentile_interval(replicates) if count >= FEWEST else (np.nan, np.nan)
        columns[f"{ends}_low"], columns[f"{ends}_high"] = interval
    layer = ratio(sums["drawn_raw"].sum(axis=1), sums["drawn"])
    columns["layer_raw"] = sums["raw"].sum() / examples
    layer_interval = percentile_interval(layer) if examples >= FEWEST else (np.nan, np.nan)
    columns["layer_raw_low"], columns["layer_raw_high"] = map(float, layer_interval)
    return pd.DataFrame(columns, index=range(n_heads))


def raw_correlations(rule: str, means: Means, other_rule: str, others: Means) -> pd.DataFrame:
    """`rule_correlations` of means of `raw`, the only ones that compare heads of different layers: of `heads` only.

    `of` is `raw`, or `raw magnitude` for absolute values.
    """
    rows = rule_correlations(rule, means, other_rule, others)
    rows = rows[rows["scope"] == "heads"]
    return rows.assign(of=rows["of"].map({"relevance": "raw", "magnitude": "raw magnitude"}))


def rule_correlations(rule: str, means: Means, other_rule: str, others: Means) -> pd.DataFrame:
    """Rank correlations between two rules over one corpus, with 95 % bootstrap intervals.

    Args:
        rule: name of the first.
        means: its mean relevance and paired replicates by site (`RelevanceSums.means`).
        other_rule: name of the second.
        others: the same for it.

    Returns:
        Rows of correlations.csv without the model: `of` is `relevance`, or `magnitude` for absolute values; `scope` is
        `heads`, all heads of the stack (or of all stacks: `all`), or `layers`, the mean over layers of the correlation
        between the heads of a layer. `n` is the number of heads that have a relevance under both rules, the others are
        left out. Correlations that do not exist are NaN, and so are intervals of fewer than ten heads, and those of
        what resampling moves to one side, see `bias_corrected_interval`.
    """
    stacks: list[str] = list(dict.fromkeys(site.stack for site in means if site in others))
    rows = []
    for stack, of in product(stacks if len(stacks) == 1 else [*stacks, ALL], ("relevance", "magnitude")):
        taken, pairs = (np.abs if of == "magnitude" else np.asarray), []
        for first, second in ((means[s], others[s]) for s in means if s in others and stack in (ALL, s.stack)):
            # Heads that have a mean under both rules: in a layer that always cancels none has.
            has_means = ~(np.isnan(first[0]) | np.isnan(second[0]))
            pairs.append((taken(first[:, has_means]), taken(second[:, has_means])))
        by_layer = np.stack([spearman_by_row(*pair) for pair in pairs])
        # The layers of the value are those of every replicate: the interval of others would be that of another mean.
        known = by_layer[np.isfinite(by_layer[:, 0])]
        correlations = {
            "heads": spearman_by_row(*(np.concatenate(side, axis=1) for side in zip(*pairs, strict=True))),
            "layers": known.mean(axis=0) if len(known) else by_layer[0],
        }
        n = sum(first.shape[1] for first, _ in pairs)
        for scope, values in correlations.items():
            # A rank correlation of few heads jumps from one value to the next, or stays at its end.
            low, high = bias_corrected_interval(values[0], values[1:]) if n >= FEWEST else (np.nan, np.nan)
            rows.append((stack, rule, other_rule, of, scope, n, values[0], low, high))
    return pd.DataFrame(rows, columns=CORRELATIONS.names[1:])

"""Degrees of attention: BigBird's as a grid, those of neighbours also learned (Brahma et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any, Literal

import pandas as pd

from headlens.analyses.dam.learning import DamOptions
from headlens.analyses.masks.study_figures import LEARNED
from headlens.analyses.training.training_callbacks import check_strength
from headlens.errors import OptionError
from headlens.interventions.gumbel_degrees import GumbelDegrees
from headlens.interventions.learned_mask import LearnedAttentionMask, LearnedMaskOptions, Scope
from headlens.interventions.patterns import BigBird

# What a grid calls the degrees, and what the pattern does.
KINDS = {"global": "tokens", "random": "keys", "neighbour": "window"}
_FORM = "Write a grid such as 'global=0,1 random=0,2 neighbour=1,3'."
_LARGEST = 16
DEGREES_COLUMNS = [
    *("model", "stack", "layer", "head", "pattern", "layers", "diagonal", "seed"),
    *("degree", "p", "chosen"),
]


def parse_grid(text: str) -> tuple[str, ...]:
    """BigBird patterns with every combination of degrees.

    Args:
        text: such as `global=0,1 random=0,2 neighbour=1,3`; a kind that is not named has the degree 0.

    Raises:
        OptionError: if it cannot be read.
    """
    degrees: dict[str, tuple[int, ...]] = {}
    for part in text.replace(";", " ").split():
        kind, equals, values = part.partition("=")
        if kind not in KINDS or not equals:
            raise OptionError(f"--grid: {part!r} is no degree.", f"{_FORM} Kinds: {', '.join(KINDS)}.")
        if kind in degrees:
            raise OptionError(f"--grid: {kind} is given twice.", _FORM)
        if not all(value.isdecimal() for value in values.split(",")):
            raise OptionError(f"--grid: {part!r} has no whole numbers, 0 or more.", _FORM)
        degrees[kind] = tuple(dict.fromkeys(map(int, values.split(","))))
    if not degrees:
        raise OptionError("--grid is empty.", _FORM)
    combined = product(*(map(str, degrees.get(kind, (0,))) for kind in KINDS))
    return tuple(
        f"{BigBird.name}:" + ",".join(map("=".join, zip(KINDS.values(), own, strict=True))) for own in combined
    )


@dataclass(frozen=True)
class DegreeOptions:
    """How degrees of neighbours are learned.

    Args:
        learn_degrees: μ, of the expected density, a training each.
        largest_degree: the largest degree that can be learned.
        degrees_of: whether each of the `heads` has a distribution, or all heads of each of the `layers` share one.

    Raises:
        OptionError: if a number cannot be.
    """

    learn_degrees: tuple[float, ...] = ()
    largest_degree: int = _LARGEST
    degrees_of: Literal["heads", "layers"] = "heads"

    def __post_init__(self) -> None:
        GumbelDegrees(largest=self.largest_degree)
        if self.degrees_of not in ("heads", "layers"):
            raise OptionError(f"--degrees-of {self.degrees_of} is none.", "Choose heads or layers.")
        if not self.learn_degrees and (self.largest_degree != _LARGEST or self.degrees_of != "heads"):
            name = "--degrees-of" if self.degrees_of != "heads" else "--largest-degree"
            raise OptionError(f"{name} is about degrees that are learned.", "Give --learn-degrees 0.1,1 as well.")
        for strength in self.learn_degrees:
            check_strength(strength, "--learn-degrees")

    @property
    def patterns(self) -> tuple[str, ...]:
        """What tables call them, one for every μ."""
        return tuple(f"{LEARNED}{strength:.10g}" for strength in self.learn_degrees)

    def scope(self, typical: int) -> Scope:
        """Heads and positions that count.

        Args:
            typical: tokens of the text for which the density is counted.
        """
        return Scope(per_head=self.degrees_of == "heads", counted=typical)

    def dam(self, longest: int, layers: str | None, *, diagonal: bool) -> DamOptions:
        """A mask whose offsets have learned degrees.

        Args:
            longest: tokens of the longest text.
            layers: in which layers it holds; None for all.
            diagonal: whether a token may look at itself.
        """
        mask = LearnedMaskOptions(
            longest,
            structured=True,
            per_layer=True,
            form="renormalised",
            diagonal=diagonal,
        )
        return DamOptions(mask, GumbelDegrees(largest=self.largest_degree), "mean", layers=layers)


def strength_of(pattern: str) -> float | None:
    """μ of a pattern that is learned; None of others."""
    return float(pattern.removeprefix(LEARNED)) if pattern.startswith(LEARNED) else None


def degree_rows(mask: LearnedAttentionMask) -> list[dict[str, Any]]:
    """The distribution of the degree of every head: layer, head, degree, p, and which degree is chosen in the end.

    Heads are None where those of a layer share a distribution.
    """
    assert isinstance(mask.law, GumbelDegrees)
    alpha = mask.alpha.detach().cpu()
    masses, degrees = mask.law.distribution(alpha), mask.law.kept(alpha).sum(dim=-1) - 1
    return [
        {
            "layer": site.layer,
            "head": head if mask.scope.per_head else None,
            "degree": degree,
            "p": float(p),
            "chosen": degree == int(degrees[row, head]),
        }
        for row, site in enumerate(mask.sites)
        for head in range(alpha.shape[1])
        if not mask.scope.per_head or head in {h.head for h in site.heads}
        for degree, p in enumerate(masses[row, head])
    ]


def unsettled(rows: Sequence[Mapping[str, Any]]) -> float:
    """The share of heads of which no degree has a probability above 1/2."""
    highest: dict[tuple[Any, Any], float] = {}
    for row in rows:
        key = row["layer"], row["head"]
        highest[key] = max(highest.get(key, 0.0), row["p"])
    return fmean(p <= 0.5 for p in highest.values())


def mean_degree(rows: Sequence[Mapping[str, Any]]) -> float:
    """The mean of the degrees that were chosen."""
    return fmean(row["degree"] for row in rows if row["chosen"])


def degrees_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Builds the table `degrees.csv` from its rows, with nullable integers for layer, head, seed and degree."""
    frame = pd.DataFrame(rows, columns=DEGREES_COLUMNS)
    return frame.astype({name: pd.Int64Dtype() for name in ("layer", "head", "seed", "degree")})

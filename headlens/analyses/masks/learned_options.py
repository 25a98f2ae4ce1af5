"""Options of masks that `headlens masks` learns: degrees of connections, and adaptive attention spans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headlens.errors import OptionError
from headlens.option_values import names, numbers
from headlens.options import option
from headlens.training.hyperparameters import check_strength

if TYPE_CHECKING:
    from headlens.analyses.dam.learning import MaskLearningOptions
    from headlens.interventions.learned_mask import Scope

STUDY = "Training under masks"  # panel of the help
LEARNED, SPANS = "degrees:mu=", "spans:mu="  # in front of μ
MADE = (LEARNED, SPANS)  # masks that are learned in the run
_LARGEST = 16
_KINDS = ("neighbour",)
_RAMP = 4


@dataclass(frozen=True)
class DegreeOptions:
    """How degrees are learned: a training for each weight μ of the expected density.

    `degrees_of` says whether each of the heads has a distribution, or all heads of each of the layers share one.

    Raises:
        OptionError: if a number cannot be.
    """

    learn_degrees: tuple[float, ...] = option(
        (),
        "Learn how many neighbours on each side every head needs (or other kinds, see --degree-kinds), for these "
        "strengths μ of the penalty on the share of open positions, such as 0.1,1,10.",
        STUDY,
        metavar="NUMBERS",
        parse=numbers,
    )
    largest_degree: int = option(_LARGEST, "Largest degree that can be learned.", STUDY, metavar="N")
    degrees_of: Literal["heads", "layers"] = option(
        "heads", "Whether each head has a degree of its own, or all heads of a layer share one.", STUDY
    )
    degree_kinds: tuple[str, ...] = option(
        ("neighbour",),
        "Kinds of connections whose degrees are learned: neighbour, global, random, or several, comma-separated; "
        "each kind is penalised for the positions that it opens.",
        STUDY,
        metavar="NAMES",
        parse=names,
    )
    draws: int = option(
        0,
        "Also evaluate the model under this many masks drawn from the learned degrees: shows how far one draw "
        "differs from another.",
        STUDY,
        metavar="N",
    )

    def __post_init__(self) -> None:
        if self.largest_degree != _LARGEST:
            from headlens.interventions.mask_distributions import GumbelDegrees

            GumbelDegrees(largest=self.largest_degree)
        if self.degrees_of not in ("heads", "layers"):
            raise OptionError(f"--degrees-of {self.degrees_of} is unknown.", "Choose heads or layers.")
        given = {
            "--degrees-of": self.degrees_of != "heads",
            "--largest-degree": self.largest_degree != _LARGEST,
            "--degree-kinds": self.degree_kinds != _KINDS,
            "--draws": self.draws != 0,
        }
        if not self.learn_degrees and any(given.values()):
            name = next(name for name, changed in given.items() if changed)
            raise OptionError(f"{name} applies to learned degrees only.", "Give --learn-degrees 0.1,1 as well.")
        if self.degree_kinds != _KINDS:
            from headlens.interventions.mask_parametrization import check_connections

            check_connections(self.degree_kinds)
        if self.draws < 0 or self.draws == 1:
            raise OptionError(f"--draws {self.draws} is too few to tell how far draws differ.", "Give 2 or more.")
        for strength in self.learn_degrees:
            check_strength(strength, "--learn-degrees")

    @property
    def patterns(self) -> tuple[str, ...]:
        """What tables call them, one for every μ."""
        kinds = "" if self.degree_kinds == _KINDS else f",kinds={'+'.join(self.degree_kinds)}"
        return tuple(f"{LEARNED}{strength:.10g}{kinds}" for strength in self.learn_degrees)

    def scope(self, typical: int) -> Scope:
        """Heads and positions that count.

        Args:
            typical: tokens of the text for which the density is counted.
        """
        from headlens.interventions.learned_mask import Scope

        return Scope(per_head=self.degrees_of == "heads", counted=typical)

    def dam(self, longest: int, layers: str | None, *, diagonal: bool, seed: int = 0) -> MaskLearningOptions:
        """A mask whose connections have learned degrees.

        Args:
            longest: tokens of the longest text.
            layers: in which layers it holds; None for all.
            diagonal: whether a token may look at itself.
            seed: of random keys.
        """
        from headlens.analyses.dam.learning import MaskLearningOptions
        from headlens.interventions.learned_mask import LearnedMaskOptions
        from headlens.interventions.mask_distributions import GumbelDegrees

        mask = LearnedMaskOptions(
            longest,
            structured=True,
            per_layer=True,
            form="renormalised",
            diagonal=diagonal,
            connections=self.degree_kinds,
            seed=seed,
        )
        law = GumbelDegrees(largest=self.largest_degree, kinds=len(self.degree_kinds))
        return MaskLearningOptions(mask, law, "mean", layers=layers)


@dataclass(frozen=True)
class SpanOptions:
    """How adaptive attention spans are learned (Sukhbaatar et al. 2019): a training for each weight μ of the mean span.

    Raises:
        OptionError: if a number cannot be.
    """

    learn_spans: tuple[float, ...] = option(
        (),
        "Learn how far every head looks, its adaptive attention span, for these strengths μ of the penalty on the mean "
        "span as a share of the longest text, such as 0.1,1,10.",
        STUDY,
        metavar="NUMBERS",
        parse=numbers,
    )
    span_ramp: int = option(_RAMP, "Tokens beyond a span over which weights fall to 0.", STUDY, metavar="N")

    def __post_init__(self) -> None:
        if self.span_ramp != _RAMP:
            from headlens.interventions.mask_distributions import AdaptiveSpan

            AdaptiveSpan(ramp=self.span_ramp)
            if not self.learn_spans:
                raise OptionError("--span-ramp applies to learned spans only.", "Give --learn-spans 0.1,1 as well.")
        for strength in self.learn_spans:
            check_strength(strength, "--learn-spans")

    @property
    def patterns(self) -> tuple[str, ...]:
        """What tables call them, one for every μ."""
        ramp = "" if self.span_ramp == _RAMP else f",ramp={self.span_ramp}"
        return tuple(f"{SPANS}{strength:.10g}{ramp}" for strength in self.learn_spans)

    def dam(self, longest: int, layers: str | None, largest: int, *, diagonal: bool) -> MaskLearningOptions:
        """A mask whose heads have learned spans.

        Args:
            longest: tokens of the longest text that the mask is made for.
            layers: in which layers it holds; None for all.
            largest: the largest span.
            diagonal: whether a token may look at itself.
        """
        from headlens.analyses.dam.learning import MaskLearningOptions
        from headlens.interventions.learned_mask import LearnedMaskOptions
        from headlens.interventions.mask_distributions import AdaptiveSpan

        mask = LearnedMaskOptions(longest, structured=True, per_layer=True, form="renormalised", diagonal=diagonal)
        return MaskLearningOptions(mask, AdaptiveSpan(largest=largest, ramp=self.span_ramp), "mean", layers=layers)

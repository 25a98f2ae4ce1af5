"""Options of `masks` that belong together."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from . import mask_options as m
from .dam_groups import MaskTrainingGroup
from .gate_groups import LessonGroup
from .gate_options import split_numbers
from .groups import LoadGroup, OptionGroup

if TYPE_CHECKING:
    from headlens.analyses.masks.recipe import StudyRequest


@dataclass(frozen=True)
class StudyGroup(OptionGroup):
    """Options of a mask study: the masks or graphs that models are trained under, their layers, and the seeds."""

    mask: m.StudyMaskOption = None
    grid: m.GridOption = None
    graph: m.GraphOption = None
    learn_degrees: m.LearnDegreesOption = None
    largest_degree: m.LargestDegreeOption = 16
    degrees_of: m.DegreesOfOption = "heads"
    parser: m.StudyParserOption = "gold"
    layers: m.StudyLayersOption = None
    seeds: m.SeedsOption = 1
    controls: m.ControlsOption = True


@dataclass(frozen=True)
class Study:
    """All that is said of trainings under masks."""

    task: str | None
    model: str
    lesson: LessonGroup
    own: StudyGroup
    training: MaskTrainingGroup
    load: LoadGroup

    def request(self) -> StudyRequest | None:
        """As the package wants it; None where nothing is trained.

        Raises:
            OptionError: if something is said of trainings, and there is none.
        """
        from headlens.analyses.masks.degrees import DegreeOptions
        from headlens.analyses.masks.recipe import StudyRequest

        if self.task is None:
            self._refuse()
            return None
        own = self.own
        strengths = split_numbers("--learn-degrees", own.learn_degrees) if own.learn_degrees is not None else ()
        return StudyRequest(
            model=self.model,
            lesson=self.lesson.lesson(self.task),
            mask=tuple(own.mask or ()),
            grid=own.grid,
            graph=tuple(own.graph or ()),
            degrees=DegreeOptions(strengths, own.largest_degree, own.degrees_of),
            parser=own.parser,
            layers=tuple(own.layers or ()),
            seeds=own.seeds,
            controls=own.controls,
            training=self.training.options(),
            model_options=self.load.options(),
        )

    def _refuse(self) -> None:
        from headlens.errors import OptionError

        groups = (self.lesson, self.own, self.training)
        given = [f.name for g in groups for f in fields(g) if getattr(g, f.name) != f.default]
        if given or self.model != "demo":
            said = f"--{given[0].replace('_', '-')}" if given else self.model
            raise OptionError(f"{said} is about models that are trained under masks.", "Give --task as well.")

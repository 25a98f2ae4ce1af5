"""Edits with parameters of their own, and a model with one of them as one module that can be trained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.attention.edits_and_observers import Edit
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site
from headlens.errors import OptionError
from headlens.options import PenaltyKind

# How the names of the edit's parameters begin in an `EditedModel`.
EDIT = "edit."


class LearnedEdit(nn.Module, Edit, ABC):
    """Base of edits that are trained beside a model under a penalty: gates of heads, or a mask of attention."""

    called: ClassVar[str]  # in errors
    sites: tuple[Site, ...]  # of the model that it was made for

    @abstractmethod
    def penalty(self, kind: PenaltyKind) -> Tensor:
        """Computes what the training makes smaller beside the loss of the task, a scalar."""

    @abstractmethod
    def log_columns(self) -> dict[str, float]:
        """What a row of a training's log says of it, by column."""

    def applied(self, model: PreTrainedModel) -> AbstractContextManager[AttentionSession]:
        """Runs a model with the edit inside `with`."""
        return AttentionSession(model, edits=[self])

    def check(self, sites: Sequence[Site]) -> None:
        """Raises OptionError if a site that it was made for is not there, or has other heads."""
        heads = {(s.stack, s.layer): s.heads for s in sites}
        if absent := [s for s in self.sites if heads.get((s.stack, s.layer)) != s.heads]:
            raise OptionError(
                f"The {self.called} of {absent[0]} cannot belong to this model.",
                f"Create the {self.called} for this model's own sites.",
            )


Learned = TypeVar("Learned", bound=LearnedEdit)


class EditedModel(nn.Module, Generic[Learned]):
    """A model and an edit of it as one module that can be trained, saved and shared by processes.

        gated = EditedModel(model, StochasticGates(gated_sites(model)))
        with gated.opened():
            gated(**inputs)

    Args:
        module: the model; only training changes it.
        edit: gates or a mask, made for its sites.
    """

    def __init__(self, module: PreTrainedModel, edit: Learned) -> None:
        super().__init__()
        self.module = module
        self.edit = edit.to(module.device)
        self._open = False

    @contextmanager
    def opened(self) -> Iterator[AttentionSession]:
        """Applies the edit in every forward pass inside `with`, of the model itself or of this module.

        Raises:
            OptionError: if the edit does not fit the model.
        """
        with self.edit.applied(self.module) as session:
            self._open = True
            try:
                yield session
            finally:
                self._open = False

    def forward(self, **inputs: Any) -> Any:
        """Runs the wrapped model on `inputs` under the edit and returns the model's output.

        Raises:
            RuntimeError: if called outside `opened`, where the edit would have no effect.
        """
        if not self._open:
            raise RuntimeError("an edited model can only run inside `with edited.opened()`")
        return self.module(**inputs)

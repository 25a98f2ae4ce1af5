"""Attention masks as Brahma et al. (2022) print them: scores are multiplied by the mask before the softmax."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headlens.attention.attach_edit import attach_edit
from headlens.attention.edits_and_observers import CallContext, Edit
from headlens.attention.model_normalizer import attention_of
from headlens.attention.normalizers import CallNormalizer, Normalizer, softmax
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site
from headlens.errors import OptionError
from headlens.interventions.attention_mask_edit import MaskEdit


@contextmanager
def zeroed_scores(model: PreTrainedModel, edit: MaskEdit) -> Iterator[None]:
    """Computes softmax(M ⊙ S) inside `with`, S the scores of a layer and M 1 where a mask allows to look, else 0.

    A masked score is 0 and not -∞: its key keeps the weight exp(0) / Σ exp(S), and a query whose keys are all masked
    looks at all of them alike. S has what the model adds to the scores, such as relative positions; what the model
    itself masks, padding and later tokens, stays masked.

    Args:
        model: a model that is in no session.
        edit: the mask.

    Raises:
        OptionError: if the mask does not fit the model, or its attention is no softmax.
        UnsupportedModelError: on running, if its attention is more than a softmax of scaled scores.
    """
    if attention_of(model) is not None:
        raise OptionError(
            f"--zero-scores: the attention of this model is {attention_of(model)}, not softmax.",
            "Leave --zero-scores out, or choose a model with softmax.",
        )
    form = _ZeroedScores(edit)
    # As an edit that stays with the model it is given the tokens of every pass.
    with attach_edit(model, form), AttentionSession(model, normalizer=form):
        yield


class _ZeroedScores(Edit, CallNormalizer):
    """Takes the mask of every call as an edit, and applies it as the normaliser of the same call.

    Args:
        edit: the mask.
    """

    edits_mask = True

    def __init__(self, edit: MaskEdit) -> None:
        self._edit = edit
        self._allowed: Tensor | None = None

    def check(self, sites: Sequence[Site]) -> None:
        """Raises OptionError if the mask does not fit the model."""
        self._edit.check(sites)

    def mask(self, context: CallContext, mask: Tensor | None) -> Tensor | None:
        """Returns the mask of the model as it is, and keeps where the call may look."""
        self._allowed = self._edit.allowed(context)
        return mask

    def at(self, context: CallContext) -> Normalizer:
        """A softmax of scores that are 0 where the mask of the call allows nothing."""
        del context
        allowed, self._allowed = self._allowed, None
        if allowed is None:
            return softmax

        def normalizer(scores: Tensor) -> Tensor:
            # Sums of lowest numbers are -inf; anything this low is masked by the model itself.
            masked = ~allowed & (scores > torch.finfo(scores.dtype).min / 2)
            return softmax(scores.masked_fill(masked, 0.0))

        return normalizer

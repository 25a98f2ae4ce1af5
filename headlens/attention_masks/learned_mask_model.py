"""A model and its learned attention mask as one module that can be trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.attention.edits_and_observers import BatchTokens, Tokens, named_arguments, real_tokens
from headlens.attention.model_normalizer import attention_of
from headlens.attention.session import AttentionSession
from headlens.attention_masks.learned_mask import LearnedAttentionMask
from headlens.errors import OptionError
from headlens.interventions.edited_model import EditedModel


class MaskedModel(EditedModel):
    """A model and its mask.

        masked = MaskedModel(model, LearnedAttentionMask(masked_sites(model)))
        with masked.opened():
            masked(**inputs)

    Args:
        module: the model; only training changes it.
        mask: mask of its encoder.
    """

    kind = "masked"

    def __init__(self, module: PreTrainedModel, mask: LearnedAttentionMask) -> None:
        super().__init__(module)
        self.mask = mask.to(module.device)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Draws and applies a mask in every forward pass inside `with`, of the model itself or of this module.

        The attention mask of a pass gives the lengths of its sentences.

        Raises:
            OptionError: for a multiplicative mask, if the model's own attention is no softmax.
        """
        multiplies = self.mask.options.form == "multiplicative"
        if multiplies and attention_of(self.module) is not None:
            raise OptionError(
                f"--law form=multiplicative: the attention of this model is {attention_of(self.module)}, not softmax.",
                "Choose additive or renormalised.",
            )
        normalizer = self.mask if multiplies else None
        with self.edited(edits=[self.mask], normalizer=normalizer) as session, _drawing(session, self.mask):
            yield


@contextmanager
def _drawing(session: AttentionSession, mask: LearnedAttentionMask) -> Iterator[None]:
    """Draws a mask and declares the tokens at the start of every pass, in the outermost model that is called."""
    running: list[tuple[nn.Module, ExitStack]] = []

    def begin(module: nn.Module, args: tuple[Any, ...], inputs: dict[str, Any]) -> None:
        if not running:
            running.append((module, ExitStack()))
            mask.draw()
            if (tokens := _tokens(named_arguments(module, args, inputs))) is not None:
                running[0][1].enter_context(session.batch(BatchTokens(encoder=tokens)))

    def end(module: nn.Module, _args: object, _output: object) -> None:
        if running and running[0][0] is module:
            running.pop()[1].close()

    with ExitStack() as undo:
        undo.callback(mask.forget)
        for part in session.model.modules():
            if isinstance(part, PreTrainedModel):
                undo.callback(part.register_forward_pre_hook(begin, with_kwargs=True).remove)
                undo.callback(part.register_forward_hook(end, always_call=True).remove)
        yield


def _tokens(inputs: dict[str, Any]) -> Tokens | None:
    """The tokens of a pass, of which only padding is known; None where the encoder does not run."""
    if inputs.get("encoder_outputs") is not None:
        return None
    ids, real = inputs.get("input_ids"), inputs.get("attention_mask")
    if real is None and isinstance(ids, Tensor):
        real = torch.ones_like(ids)
    return real_tokens(real, ids)

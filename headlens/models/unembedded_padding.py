"""Texts that contain a padding token for which the model has no embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from headlens.errors import ModelError


@dataclass(frozen=True)
class UnembeddedPadding:
    """A hook of embeddings that refuses a text with the padding token; batches are padded with another one.

    GPT-2 has no padding, and a tokenizer to which it was added numbers it beyond the embeddings. It stands in a text
    if that has its characters; on a GPU, an index beyond the embeddings would end the process.

    Args:
        name: of the model.
        token: the padding token.
        id: its id.
    """

    name: str
    token: str
    id: int

    def __call__(self, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Looks at the ids that the embeddings are asked for."""
        if any(isinstance(ids, Tensor) and bool((ids == self.id).any()) for ids in inputs):
            raise ModelError(
                f"{self.name}: a text contains {self.token!r}, the padding token of the tokenizer, for which the model "
                "has no embedding.",
                "Leave out such texts, or add the embedding with resize_token_embeddings.",
            )

    def watch(self, model: nn.Module, size: float) -> None:
        """Sets the hook on every table of `size` embeddings of a model, once."""
        for module in model.modules():
            is_table = isinstance(module, nn.Embedding) and module.num_embeddings == size
            if is_table and self not in module._forward_pre_hooks.values():
                module.register_forward_pre_hook(self)

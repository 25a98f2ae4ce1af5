"""Path patching: a head's changed output reaches one other head, or the model's outputs, by the direct path alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headlens.attention.sites import Site, check_heads
from headlens.errors import OptionError
from headlens.heads import Head
from headlens.replay.activation_cache import PARTS


@dataclass(frozen=True)
class Receiver:
    """The head that gets the changed output of another by the direct path (path patching; Wang et al. 2023).

    Args:
        head: which.
        parts: letters of what of it is computed from the changed input: its queries (q), keys (k) and values (v).
    """

    head: Head
    parts: str = PARTS

    @classmethod
    def parse(cls, text: str) -> Receiver:
        """Reads `decoder.5.1`, or `decoder.5.1.q` for its queries alone, `decoder.5.1.kv` for keys and values.

        Raises:
            OptionError: if it is no such name.
        """
        name, _, last = text.strip().rpartition(".")
        if not last or set(last) <= set("0123456789"):
            return cls(Head.parse(text))
        if not set(last) <= set(PARTS) or len(set(last)) < len(last):
            raise OptionError(
                f"{text!r} is not the name of a receiver.",
                "Write a head, such as decoder.5.1, or its queries, keys or values: decoder.5.1.q, .k, .v, .kv.",
            )
        return cls(Head.parse(name), last)

    @classmethod
    def within(cls, text: str, sites: Sequence[Site]) -> Receiver:
        """Reads the name of a receiver that a model has, and to which some head has a direct path.

        Args:
            text: as for `parse`.
            sites: of the model.

        Raises:
            OptionError: if it is no such name.
        """
        receiver = cls.parse(text)
        check_heads([receiver.head], sites)
        if not senders([head for site in sites for head in site.heads], receiver):
            raise OptionError(f"No head has a direct path to {receiver.head}.", "Name a head of a later layer.")
        return receiver

    def __str__(self) -> str:
        return str(self.head) if self.parts == PARTS else f"{self.head}.{self.parts}"


def senders(heads: Sequence[Head], receiver: Receiver | None) -> list[Head]:
    """Returns the heads from which a direct path leads to a receiver, in their order.

    Args:
        heads: of the model.
        receiver: None for the outputs of the model, to which those of a decoder and of cross-attention have one, but of
            an encoder only where there is no decoder: the rest goes through cross-attention.
    """
    if receiver is None:
        decodes = any(head.stack == "cross" for head in heads)
        return [head for head in heads if not decodes or head.stack != "encoder"]
    return [head for head in heads if _turn(head) < _turn(receiver.head)]


def _turn(head: Head) -> tuple[bool, int, bool]:
    """Orders heads as a pass comes by them: the encoder, then self- and cross-attention of every decoder layer."""
    return head.stack != "encoder", head.layer, head.stack == "cross"

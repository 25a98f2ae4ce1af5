"""Path patching: a head's changed output reaches one other head, or the model's outputs, by the direct path alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from headlens.errors import OptionError
from headlens.heads import Head
from headlens.replay.activation_cache import Inputs, ModuleCall

_PARTS = "qkv"


@dataclass(frozen=True)
class Receiver:
    """The head that gets the changed output of another by the direct path (path patching; Wang et al. 2023).

    Args:
        head: which.
        parts: letters of what of it is computed from the changed input: its queries (q), keys (k) and values (v).
    """

    head: Head
    parts: str = _PARTS

    @classmethod
    def parse(cls, text: str) -> Receiver:
        """Reads `decoder.5.1`, or `decoder.5.1.q` for its queries alone, `decoder.5.1.kv` for keys and values.

        Raises:
            OptionError: if it is no such name.
        """
        name, _, last = text.strip().rpartition(".")
        if not last or set(last) <= set("0123456789"):
            return cls(Head.parse(text))
        if not set(last) <= set(_PARTS) or len(set(last)) < len(last):
            raise OptionError(
                f"{text!r} is not the name of a receiver.",
                "Write a head, such as decoder.5.1, or its queries, keys or values: decoder.5.1.q, .k, .v, .kv.",
            )
        return cls(Head.parse(name), last)

    def __str__(self) -> str:
        return str(self.head) if self.parts == _PARTS else f"{self.head}.{self.parts}"


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


class PathEnds(Exception):  # noqa: N818 - no error: nothing behind the receiver is asked for
    """Ends a pass at the head that receives a changed output."""


@dataclass(frozen=True, eq=False)
class DirectPath:
    """What is held at its intact value in a pass along the direct path from one head (path patching).

    All attention calls after the start give what they gave in the intact pass; layers between are computed. The call
    of the receiver is computed, and what it gives is kept.

    Args:
        calls: of attention in the intact pass, in order.
        receiver: number of the receiver's call among them; None for a path to the outputs of the model.
        parts: of query, key and value those that the receiver's call computes from the changed input.
        received: gets what the receiver's site gives, (rows of the pass, query, heads, d).
    """

    calls: list[ModuleCall]
    receiver: int | None = None
    parts: str = _PARTS
    received: list[Tensor] = field(default_factory=list)

    def held(self, number: int) -> Tensor | None:
        """What a later attention call gives instead of what it would compute; None for the receiver's."""
        return None if number == self.receiver else self.calls[number].output

    def receive(self, output: Tensor) -> None:
        """Takes what the receiver's site gives.

        Raises:
            PathEnds: always, as nothing behind it is asked for.
        """
        self.received.append(output)
        raise PathEnds

    def inputs(self, qkv: Inputs, fit: Callable[[Any], Any]) -> Inputs:
        """Query, key and value of the receiver's call, with the intact ones where its changed input is not for them."""
        assert self.receiver is not None
        intact = self.calls[self.receiver].qkv
        assert intact is not None
        query, key, value = (
            new if part in self.parts else fit(old) for part, new, old in zip(_PARTS, qkv, intact, strict=True)
        )
        return query, key, value

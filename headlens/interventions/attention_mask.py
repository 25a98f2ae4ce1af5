"""Masks of attention: where a query may look, by layer, head and position; and the files that hold them."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from headlens.errors import OptionError, OutputError, counted
from headlens.heads import STACKS, Stack
from headlens.interventions.patterns import Pattern, made

FILE = "mask.safetensors"
_FORMAT = "headlens attention mask 1"
_TENSOR = "allowed"
_MEND = f"Give a {FILE} that headlens wrote, or a pattern such as window:3."


class MaskSource(Protocol):
    """Where a query may look in a sentence of any length."""

    @property
    def name(self) -> str:
        """Name of the mask in tables and error messages."""

    @property
    def stack(self) -> Stack | None:
        """Whose self-attention it is for; None for the encoder's, of a model without one the decoder's."""

    @property
    def shape(self) -> tuple[int, int]:
        """For how many layers and heads it says something; 1 says the same for all."""

    @property
    def sha256(self) -> str:
        """Of all that decides what `block` gives."""

    def block(self, length: int) -> Tensor:
        """True where a query may look in a sentence of that many tokens: (layers or 1, heads or 1, query, key)."""


@runtime_checkable
class TextMaskSource(Protocol):
    """Where a query may look in a text, which is known by its tokens; the same for all layers and heads."""

    @property
    def name(self) -> str:
        """Name of the mask in tables and error messages."""

    @property
    def stack(self) -> Stack | None:
        """Whose self-attention it is for; None for the encoder's, of a model without one the decoder's."""

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of layers and heads that the masks tell apart, always `(1, 1)`: all share the mask of a text."""

    @property
    def sha256(self) -> str:
        """Of all that decides what `rows` gives."""

    def rows(self, ids: Tensor, real: Tensor) -> Tensor:
        """True where a query may look: (batch, query, key); what padding gets means nothing.

        Args:
            ids: vocabulary ids, (batch, length).
            real: which are tokens, (batch, length).
        """


AnyMaskSource = MaskSource | TextMaskSource


@dataclass(frozen=True, eq=False)
class AttentionMask:
    """A mask over n positions.

    Of a sentence of m < n tokens the first m positions are taken.

    Args:
        allowed: True where a query may look, (layers or 1, heads or 1, n, n).
        ends: whether the first and the last token of every sentence look at all its tokens and are looked at by all,
            whatever its length: the last-row rule of DAM. Padding is no part of a sentence.
        diagonal: whether the diagonal is kept as it is; else it is masked, also where `ends` would open it.
        name: what tables call it.
        stack: whose self-attention it is for; None for the encoder's, of a model without one the decoder's.
        metadata: what else is known of it, by name.
        layers: in which layers the rules hold, `ends` and `diagonal`; None for all. Others are as `allowed` has them.

    Raises:
        OptionError: if `allowed` is no such tensor, or the stack has no self-attention.
    """

    allowed: Tensor
    ends: bool = False
    diagonal: bool = True
    name: str = "mask"
    stack: Stack | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.allowed.shape)
        square = len(shape) == 4 and shape[2] == shape[3] and all(shape)
        if self.allowed.dtype is not torch.bool or not square:
            kind = str(self.allowed.dtype).removeprefix("torch.")
            raise OptionError(
                f"{self.name}: a {kind} tensor of the shape {shape} is no attention mask.",
                "It has to be boolean, (layers or 1, heads or 1, n, n).",
            )
        if self.stack == "cross":
            raise OptionError(f"{self.name}: it is for cross-attention.", "Masks hold in self-attention.")
        if self.layers is not None and not set(self.layers) <= set(range(shape[0])):
            raise OptionError(f"{self.name}: its rules are for layers that it does not have.", _MEND)

    @property
    def length(self) -> int:
        """Number n of query positions, and of key positions, that the mask covers."""
        return self.allowed.shape[2]

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of layers and heads that the mask tells apart; 1 where all layers or all heads share one mask."""
        return self.allowed.shape[0], self.allowed.shape[1]

    @property
    def sha256(self) -> str:
        """Of positions and rules; name and metadata do not count."""
        digest = hashlib.sha256(f"{tuple(self.allowed.shape)} {self.ends} {self.diagonal} {self.stack}".encode())
        digest.update(b"" if self.layers is None else str(self.layers).encode())
        digest.update(self.allowed.cpu().contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def block(self, length: int) -> Tensor:
        """Where queries of a sentence may look: (layers or 1, heads or 1, length, length).

        Raises:
            OptionError: for a sentence longer than the mask.
        """
        if length > self.length:
            raise OptionError(
                f"The mask {self.name} is for {counted(self.length, 'token')}, but a sentence has {length}.",
                "Take shorter sentences, a longer mask, or a pattern, which is made for any length.",
            )
        found = self.allowed[:, :, :length, :length].clone()
        ruled = found if self.layers is None else found[list(self.layers)]
        if self.ends:
            for end in (0, length - 1):
                ruled[:, :, end] = True
                ruled[:, :, :, end] = True
        if not self.diagonal:
            ruled &= ~torch.eye(length, dtype=torch.bool, device=found.device)
        if self.layers is not None:
            found[list(self.layers)] = ruled
        return found

    @property
    def masked(self) -> Tensor:
        """How many of the n × n positions are masked, whole numbers: (layers or 1, heads or 1)."""
        return (~self.block(self.length)).sum(dim=(2, 3))

    @property
    def sparsity(self) -> Tensor:
        """Which share that is, in double precision: (layers or 1, heads or 1)."""
        return self.masked.double() / self.length**2

    def without_diagonal(self) -> AttentionMask:
        """The same, in which no token looks at itself."""
        diagonal = torch.eye(self.length, dtype=torch.bool, device=self.allowed.device)
        return replace(self, allowed=self.allowed & ~diagonal, diagonal=False)

    def __or__(self, other: AttentionMask) -> AttentionMask:
        """What either of two masks allows; of one length, with their rules applied at that length.

        Raises:
            OptionError: for masks of different lengths, stacks, or numbers of layers or heads.
        """
        fits = all(a == b or 1 in (a, b) for a, b in zip(self.shape, other.shape, strict=True))
        if self.length != other.length or self.stack != other.stack or not fits:
            raise OptionError(
                f"The masks {self.name} and {other.name} do not go together.",
                "They need the same length and stack, and the same numbers of layers and heads, or 1.",
            )
        if (self.ends, self.diagonal, self.layers) == (other.ends, other.diagonal, other.layers):
            return replace(self, allowed=self.allowed | other.allowed, name=f"{self.name}|{other.name}", metadata={})
        allowed = self.block(self.length) | other.block(other.length)
        return AttentionMask(allowed, name=f"{self.name}|{other.name}", stack=self.stack)

    def save(self, path: str | Path) -> Path:
        """Write the mask and all that is known of it; a reader sees a whole file or none.

        Raises:
            OutputError: if it cannot be written.
        """
        target = Path(path)
        fresh = target.with_name(f".{target.name}.tmp")
        rules = {"ends": self.ends, "diagonal": self.diagonal, "name": self.name, "stack": self.stack}
        rules |= {} if self.layers is None else {"layers": list(self.layers)}
        header = {"format": _FORMAT, "mask": json.dumps(rules), "metadata": json.dumps(dict(self.metadata))}
        try:
            fresh.write_bytes(_ordered(save({_TENSOR: self.allowed.cpu().contiguous()}, header)))
            fresh.replace(target)
        except OSError as problem:
            raise OutputError(
                f"Cannot write {target}: {problem.strerror or problem}.", "Name another folder."
            ) from problem
        finally:
            with contextlib.suppress(OSError):
                fresh.unlink()
        return target

    @classmethod
    def load(cls, path: str | Path) -> AttentionMask:
        """Read what `save` wrote.

        Args:
            path: of the file, or of a folder with a `mask.safetensors`.

        Raises:
            OptionError: if there is no such file, or it holds no mask.
        """
        file = Path(path) / FILE if Path(path).is_dir() else Path(path)
        if not file.is_file():
            inside = (own for form in ("*.safetensors", f"*/{FILE}") for own in Path(path).glob(form))
            others = sorted(map(str, inside)) if Path(path).is_dir() else []
            there = f"{path}: there is no {FILE} in this folder" if others else f"{path}: there is no such mask file"
            raise OptionError(f"{there}.", f"Give one of: {', '.join(others)}." if others else _MEND)
        try:
            with safe_open(file, framework="pt") as content:
                header = content.metadata() or {}
                tensor = content.get_tensor(_TENSOR) if header.get("format") == _FORMAT else None
                rules, metadata = json.loads(header.get("mask", "{}")), json.loads(header.get("metadata", "{}"))
        except (SafetensorError, OSError, ValueError) as problem:
            raise OptionError(f"{file} cannot be read as a mask: {problem}.", _MEND) from problem
        if tensor is None:
            raise OptionError(f"{file} holds no attention mask.", _MEND)
        return cls(tensor, **_checked(rules, file), metadata=metadata)


def _checked(rules: Any, file: Path) -> dict[str, Any]:
    """The rules of a file, if they can be meant."""
    kinds: dict[str, type] = {"ends": bool, "diagonal": bool, "name": str}
    whole = isinstance(rules, dict) and set(rules) - {"layers"} == {*kinds, "stack"}
    layers = rules.get("layers", []) if whole else []
    fits = isinstance(layers, list) and all(isinstance(layer, int) for layer in layers)
    if not whole or not fits or not all(isinstance(rules[k], kind) for k, kind in kinds.items()):
        raise OptionError(f"{file} does not say how its mask is meant.", _MEND)
    if rules["stack"] not in (None, *STACKS):
        raise OptionError(f"{file}: there is no stack {rules['stack']!r}.", _MEND)
    return dict(rules) | ({"layers": tuple(layers)} if "layers" in rules else {})


@dataclass(frozen=True)
class PatternMask:
    """A fixed pattern, made for the length of every sentence, the same in all layers and heads.

    Args:
        pattern: the pattern.
        stack: whose self-attention it is for; None for the encoder's, of a model without one the decoder's.
    """

    pattern: Pattern
    stack: Stack | None = None

    @property
    def name(self) -> str:
        """Name of the mask: the pattern with all its parameters, such as `window:width=1`."""
        return str(self.pattern)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of layers and heads that the mask tells apart, always `(1, 1)`: all share the pattern."""
        return 1, 1

    @property
    def sha256(self) -> str:
        """SHA-256 digest, in hexadecimal, of the pattern with its parameters and of the stack."""
        return hashlib.sha256(f"{self.pattern} {self.stack}".encode()).hexdigest()

    def block(self, length: int) -> Tensor:
        """Where queries of a sentence may look: (1, 1, length, length)."""
        return torch.tensor(made(self.pattern, length))[None, None]

    def of_length(self, n: int) -> AttentionMask:
        """The mask over n positions, as a file can hold it; of shorter sentences its first positions are taken."""
        return AttentionMask(
            self.block(n), name=self.name, stack=self.stack, metadata={"pattern": str(self.pattern), "n": str(n)}
        )


@dataclass(frozen=True)
class _Derived:
    """A mask made of another one, for the same layers and heads."""

    source: AnyMaskSource

    @property
    def stack(self) -> Stack | None:
        """Stack whose self-attention the mask is for, the same as that of the source mask."""
        return self.source.stack

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of layers and heads that the mask tells apart, the same as those of the source mask."""
        return self.source.shape


@dataclass(frozen=True)
class Controlled(_Derived):
    """A mask with one of SparseBERT's controls (Shi et al. 2021, table 2).

    Args:
        source: the mask.
        drop: `diagonal` masks i = j everywhere. `random` masks as many other allowed positions as the source allows on
            the diagonal, of every sentence length by itself and the same in every sentence of that length, for each
            layer and head that the source tells apart; all others where there are fewer, as none in a sentence of one
            token. Whether they should be symmetric the paper leaves open: they are not.
        seed: of the draw.
    """

    source: MaskSource
    drop: str = "diagonal"
    seed: int = 0

    @property
    def name(self) -> str:
        """That of the mask, and what is dropped."""
        return f"{self.source.name} without {'the diagonal' if self.drop == 'diagonal' else 'as many at random'}"

    @property
    def sha256(self) -> str:
        """SHA-256 digest, in hexadecimal, of the source mask, of what is dropped, and of the seed."""
        return hashlib.sha256(f"{self.source.sha256} {self.drop} {self.seed}".encode()).hexdigest()

    def block(self, length: int) -> Tensor:
        """Where queries of a sentence may look: (layers or 1, heads or 1, length, length)."""
        found = self.source.block(length).cpu()
        diagonal = torch.eye(length, dtype=torch.bool)
        if self.drop == "diagonal":
            return found & ~diagonal
        generator = torch.Generator().manual_seed(self.seed * 100_003 + length)
        free = (found & ~diagonal).flatten(2)
        draws = torch.rand(free.shape, generator=generator).masked_fill(~free, 2.0)
        # the positions with the smallest numbers; those that are not free have none
        rank = draws.argsort(dim=2, stable=True).argsort(dim=2, stable=True)
        wanted = (found & diagonal).sum(dim=(2, 3))[..., None]
        return found & ~(free & (rank < wanted)).view(found.shape)


@dataclass(frozen=True)
class WithoutDiagonal(_Derived):
    """A mask that differs from text to text, in which no token looks at itself.

    Args:
        source: the mask.
    """

    source: TextMaskSource

    @property
    def name(self) -> str:
        """That of the mask, and what is dropped."""
        return f"{self.source.name} without the diagonal"

    @property
    def sha256(self) -> str:
        """SHA-256 digest, in hexadecimal, of the source mask and of what is dropped, the diagonal."""
        return hashlib.sha256(f"{self.source.sha256} diagonal".encode()).hexdigest()

    def rows(self, ids: Tensor, real: Tensor) -> Tensor:
        """True where a query may look: (batch, query, key)."""
        found = self.source.rows(ids, real)
        return found & ~torch.eye(found.shape[-1], dtype=torch.bool, device=found.device)


def _ordered(content: bytes) -> bytes:
    """A safetensors file with its header in one order, whatever order the library took this time."""
    size = int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8 : 8 + size]), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    text = header.encode()
    text += b" " * (-len(text) % 8)  # tensors begin at multiples of 8
    return len(text).to_bytes(8, "little") + text + content[8 + size :]

"""Masks of attention: where a query may look, by layer, head and position; and the files that hold them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from headlens.attention_masks.patterns import Pattern, cached_positions
from headlens.errors import OptionError, counted, read_errors
from headlens.files import atomic_path
from headlens.heads import STACKS, Stack
from headlens.nested_text import parse_json

FILE = "mask.safetensors"
_FORMAT = "headlens attention mask 1"
_TENSOR = "allowed"
_ADVICE = f"Give a {FILE} that headlens wrote, or a pattern such as window:3."


class _DescribedMask(Protocol):
    @property
    def name(self) -> str:
        """Name of the mask in tables and error messages."""

    @property
    def stack(self) -> Stack | None:
        """Stack whose self-attention the mask is for; None for the encoder's, of a model without one the decoder's."""

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of layers and heads that the mask tells apart; 1 where all share one mask."""


class MaskSource(_DescribedMask, Protocol):
    """Where a query may look in a sentence of any length."""

    @property
    def sha256(self) -> str:
        """SHA-256 digest, in hexadecimal, of everything that decides which positions are open."""

    def block(self, length: int) -> Tensor:
        """True where a query may look in a sentence of `length` tokens: (layers or 1, heads or 1, query, key)."""


@runtime_checkable
class TextMaskSource(_DescribedMask, Protocol):
    """Where a query may look in a text, which is known by its tokens; `shape` is (1, 1): layers and heads share it."""

    def rows(self, ids: Tensor, real: Tensor) -> Tensor:
        """True where a query may look: (batch, query, key); values at padding mean nothing.

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
        name: name of the mask in tables and error messages.
        stack: stack whose self-attention the mask is for; None for the encoder's, of a model without one the decoder's.
        metadata: notes that are saved with the mask, by name.
        layers: in which layers the rules hold, `ends` and `diagonal`; None for all. The other layers follow `allowed`
        alone.

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
                f"{self.name}: a {kind} tensor of the shape {shape} is not an attention mask.",
                "It must be boolean, of shape (layers or 1, heads or 1, n, n).",
            )
        if self.stack == "cross":
            raise OptionError(f"{self.name}: it is for cross-attention.", "Masks apply to self-attention only.")
        if self.layers is not None and not set(self.layers) <= set(range(shape[0])):
            raise OptionError(f"{self.name}: its rules refer to layers that it does not have.", _ADVICE)

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
        """SHA-256 digest, in hexadecimal, of the positions and rules; name and metadata do not count."""
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
                "Use shorter sentences, a larger mask, or a pattern, which fits any length.",
            )
        block = self.allowed[:, :, :length, :length].clone()
        layers = slice(None) if self.layers is None else list(self.layers)
        ruled = block[layers]
        if self.ends:
            for end in (0, length - 1):
                ruled[:, :, end] = True
                ruled[:, :, :, end] = True
        if not self.diagonal:
            ruled &= ~torch.eye(length, dtype=torch.bool, device=block.device)
        block[layers] = ruled
        return block

    @property
    def masked(self) -> Tensor:
        """Number of masked positions of n × n: whole numbers, (layers or 1, heads or 1)."""
        return (~self.block(self.length)).sum(dim=(2, 3))

    @property
    def sparsity(self) -> Tensor:
        """Share of the n × n positions that is masked, in double precision: (layers or 1, heads or 1)."""
        return self.masked.double() / self.length**2

    def without_diagonal(self) -> AttentionMask:
        """The same mask, in which no token looks at itself."""
        return replace(self, allowed=_off_diagonal(self.allowed), diagonal=False)

    def __or__(self, other: AttentionMask) -> AttentionMask:
        """A mask that allows what either of two masks of one length allows, after their rules.

        Raises:
            OptionError: for masks of different lengths, stacks, or numbers of layers or heads.
        """
        fits = all(a == b or 1 in (a, b) for a, b in zip(self.shape, other.shape, strict=True))
        if self.length != other.length or self.stack != other.stack or not fits:
            raise OptionError(
                f"The masks {self.name} and {other.name} cannot be combined.",
                "They need the same length and stack, and the same numbers of layers and heads, or 1.",
            )
        if (self.ends, self.diagonal, self.layers) == (other.ends, other.diagonal, other.layers):
            return replace(self, allowed=self.allowed | other.allowed, name=f"{self.name}|{other.name}", metadata={})
        allowed = self.block(self.length) | other.block(other.length)
        return AttentionMask(allowed, name=f"{self.name}|{other.name}", stack=self.stack)

    def save(self, path: str | Path) -> Path:
        """Writes the mask with its rules, name and metadata; a reader sees a complete file or none.

        Raises:
            OutputError: if it cannot be written.
        """
        rules = {"ends": self.ends, "diagonal": self.diagonal, "name": self.name, "stack": self.stack}
        rules |= {} if self.layers is None else {"layers": list(self.layers)}
        header = {"format": _FORMAT, "mask": json.dumps(rules), "metadata": json.dumps(dict(self.metadata))}
        with atomic_path(path) as temporary:
            temporary.write_bytes(_with_sorted_header(save({_TENSOR: self.allowed.cpu().contiguous()}, header)))
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> AttentionMask:
        """Reads a mask that `save` wrote.

        Args:
            path: path of the file, or of a folder with a `mask.safetensors`.

        Raises:
            OptionError: if there is no such file, or it holds no mask.
        """
        file = Path(path) / FILE if Path(path).is_dir() else Path(path)
        if not file.is_file():
            masks = (mask for form in ("*.safetensors", f"*/{FILE}") for mask in Path(path).glob(form))
            others = sorted(map(str, masks)) if Path(path).is_dir() else []
            problem = f"there is no {FILE} in this folder" if others else "there is no such mask file"
            raise OptionError(f"{path}: {problem}.", f"Give one of: {', '.join(others)}." if others else _ADVICE)
        with read_errors(file, "cannot be read as a mask", _ADVICE, OptionError):
            with safe_open(file, framework="pt") as content:
                header = content.metadata() or {}
                tensor = content.get_tensor(_TENSOR) if header.get("format") == _FORMAT else None
                rules, metadata = parse_json(header.get("mask", "{}")), parse_json(header.get("metadata", "{}"))
            if tensor is None:
                raise OptionError(f"{file} holds no attention mask.", _ADVICE)
            return cls(tensor, **_check_rules(rules, file), metadata=metadata)


def _check_rules(rules: Any, file: Path) -> dict[str, Any]:
    """The rules in the header of a file.

    Raises:
        OptionError: if some are missing or of another type than `save` writes.
    """
    kinds: dict[str, type] = {"ends": bool, "diagonal": bool, "name": str}
    complete = isinstance(rules, dict) and set(rules) - {"layers"} == {*kinds, "stack"}
    layers = rules.get("layers", []) if complete else []
    fits = isinstance(layers, list) and all(isinstance(layer, int) for layer in layers)
    if not complete or not fits or not all(isinstance(rules[k], kind) for k, kind in kinds.items()):
        raise OptionError(f"{file} does not say how its mask is to be applied.", _ADVICE)
    if rules["stack"] not in (None, *STACKS):
        raise OptionError(f"{file}: there is no stack {rules['stack']!r}.", _ADVICE)
    return dict(rules) | ({"layers": tuple(layers)} if "layers" in rules else {})


@dataclass(frozen=True)
class PatternMask:
    """A fixed pattern, made for the length of every sentence, the same in all layers and heads.

    Args:
        pattern: the pattern.
        stack: stack whose self-attention it is for; None for the encoder's, of a model without one the decoder's.
    """

    pattern: Pattern
    stack: Stack | None = None
    shape = (1, 1)  # all layers and heads share the pattern

    @property
    def name(self) -> str:
        """Name of the mask: the pattern with all its parameters, such as `window:width=1`."""
        return str(self.pattern)

    @property
    def sha256(self) -> str:
        """SHA-256 digest, in hexadecimal, of the pattern with its parameters and of the stack."""
        return hashlib.sha256(f"{self.pattern} {self.stack}".encode()).hexdigest()

    def block(self, length: int) -> Tensor:
        """Where queries of a sentence may look: (1, 1, length, length)."""
        return torch.tensor(cached_positions(self.pattern, length))[None, None]

    def of_length(self, n: int) -> AttentionMask:
        """The mask over n positions, as a file can hold it; of shorter sentences its first positions are taken."""
        return AttentionMask(
            self.block(n), name=self.name, stack=self.stack, metadata={"pattern": str(self.pattern), "n": str(n)}
        )


@dataclass(frozen=True, eq=False)
class DerivedMask:
    """A mask that is derived from another one, for the same layers and heads."""

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
class Controlled(DerivedMask):
    """A mask with one of SparseBERT's controls (Shi et al. 2021, table 2).

    Args:
        source: the mask that is changed.
        drop: `diagonal` masks i = j everywhere. `random` masks as many other allowed positions as the source allows on
            the diagonal, of every sentence length by itself and the same in every sentence of that length, for each
            layer and head that the source tells apart; all others where there are fewer, as none in a sentence of one
            token. Whether they should be symmetric the paper leaves open: they are not.
        seed: of the draw.
        causal: whether only positions up to each query's own are drawn, as a decoder sees no others.
    """

    source: MaskSource
    drop: str = "diagonal"
    seed: int = 0
    causal: bool = False

    @property
    def name(self) -> str:
        """Name of the source mask, and what is dropped from it."""
        return f"{self.source.name} without {'the diagonal' if self.drop == 'diagonal' else 'as many random positions'}"

    @property
    def sha256(self) -> str:
        """SHA-256 digest, in hexadecimal, of the source mask, of what is dropped, and of the seed."""
        return hashlib.sha256(f"{self.source.sha256} {self.drop} {self.seed}".encode()).hexdigest()

    def block(self, length: int) -> Tensor:
        """Where queries of a sentence may look: (layers or 1, heads or 1, length, length)."""
        allowed = self.source.block(length).cpu()
        off_diagonal = _off_diagonal(allowed)
        if self.drop == "diagonal":
            return off_diagonal
        generator = torch.Generator().manual_seed(self.seed * 100_003 + length)
        free = (off_diagonal.tril() if self.causal else off_diagonal).flatten(2)  # (layers or 1, heads or 1, length²)
        draws = torch.rand(free.shape, generator=generator).masked_fill(~free, 2.0)
        # The positions with the smallest numbers are dropped; those that are not free come last.
        rank = draws.argsort(dim=2, stable=True).argsort(dim=2, stable=True)
        n_dropped = (allowed & ~off_diagonal).sum(dim=(2, 3))[..., None]
        return allowed & ~(free & (rank < n_dropped)).view(allowed.shape)


@dataclass(frozen=True)
class WithoutDiagonal(DerivedMask):
    """A mask that differs from text to text, in which no token looks at itself.

    Args:
        source: the mask that is changed.
    """

    source: TextMaskSource

    @property
    def name(self) -> str:
        """Name of the source mask, and what is dropped from it."""
        return f"{self.source.name} without the diagonal"

    def rows(self, ids: Tensor, real: Tensor) -> Tensor:
        """True where a query may look: (batch, query, key)."""
        return _off_diagonal(self.source.rows(ids, real))


def _off_diagonal(allowed: Tensor) -> Tensor:
    """The same mask (..., n, n), in which no token looks at itself."""
    return allowed & ~torch.eye(allowed.shape[-1], dtype=torch.bool, device=allowed.device)


def _with_sorted_header(content: bytes) -> bytes:
    """A safetensors file with the keys of its header sorted: the library's own order differs from call to call."""
    size = int.from_bytes(content[:8], "little")
    header = json.dumps(parse_json(content[8 : 8 + size]), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    text = header.encode()
    text += b" " * (-len(text) % 8)  # tensors begin at multiples of 8
    return len(text).to_bytes(8, "little") + text + content[8 + size :]

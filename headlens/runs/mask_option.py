"""Models under an attention mask: `--mask` for every command that runs one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from headlens.attention.attach_edit import attach_edit
from headlens.attention.sites import find_sites
from headlens.errors import OptionError, counted
from headlens.interventions.attention_mask import AnyMaskSource, AttentionMask, Controlled, MaskSource, PatternMask
from headlens.interventions.attention_mask_edit import MaskEdit
from headlens.interventions.pattern_parser import PATTERNS, parse_pattern
from headlens.interventions.patterns import Full

_LAYERS = "Write 6-11, 0,2,4-6, first:3, last:3 or all; layers count from 0."
_ALONE = (
    "Under the mask some tokens are left without any key, as a sentence of one token is without the diagonal: they "
    "look where they would without the mask."
)


@dataclass(frozen=True)
class MaskOptions:
    """Where the queries of a model may look.

    Args:
        mask: a `mask.safetensors`, a folder with one, or a pattern such as `window:3|global:1`; None for all keys.
        layers: in which layers it holds, such as `6-11`, `0,2,4-6` or `last:3`; None for all.
        no_diagonal: no token looks at itself.
        drop_random: as many other positions as the diagonal has are masked instead, drawn at random.
        mask_seed: of that draw.

    Raises:
        OptionError: if options do not go together, or layers cannot be read.
    """

    mask: str | None = None
    layers: str | None = None
    no_diagonal: bool = False
    drop_random: bool = False
    mask_seed: int = 0

    def __post_init__(self) -> None:
        if self.no_diagonal and self.drop_random:
            raise OptionError(
                "--no-diagonal and --drop-random are two controls, to be compared with each other.",
                "Give one, then the other.",
            )
        if self.mask_seed and not self.drop_random:
            raise OptionError("--mask-seed: nothing is drawn.", "It is for --drop-random; patterns have seed=N.")
        if self.layers is not None and not self.given:
            raise OptionError("--layers says where a mask holds, and there is none.", "Give --mask as well.")
        read_layers(self.layers)

    @property
    def given(self) -> bool:
        """Whether anything is masked."""
        return self.mask is not None or self.no_diagonal or self.drop_random

    def source(self) -> MaskSource | None:
        """The mask; None where nothing is masked.

        Raises:
            OptionError: if there is no such file or pattern.
        """
        if not self.given:
            return None
        found = PatternMask(Full()) if self.mask is None else parse_mask(self.mask)
        if self.no_diagonal:
            return Controlled(found)
        return Controlled(found, "random", self.mask_seed) if self.drop_random else found

    def facts(self) -> dict[str, Any]:
        """What run.json says of it; nothing where nothing is masked."""
        source = self.source()
        return {} if source is None else {"mask": {"name": source.name, "sha256": source.sha256, "layers": self.layers}}

    def as_options(self) -> list[str]:
        """The same for another command line."""
        found = [] if self.mask is None else ["--mask", self.mask]
        found += [] if self.layers is None else ["--layers", self.layers]
        found += ["--no-diagonal"] * self.no_diagonal + ["--drop-random"] * self.drop_random
        return found + (["--mask-seed", str(self.mask_seed)] if self.mask_seed else [])


@contextmanager
def under_mask(model: PreTrainedModel, options: MaskOptions, tell: Callable[[str], None]) -> Iterator[None]:
    """Inside, a model runs under a mask, if one is given.

    Args:
        model: the model.
        options: the mask.
        tell: is told of queries that the mask left without any key.

    Raises:
        OptionError: if the mask cannot be had, or does not fit the model.
    """
    source = options.source()
    if source is None:
        yield
        return
    edit = mask_edit(model, source, options.layers)
    with attach_edit(model, edit):
        yield
    if edit.left_alone:
        tell(_ALONE)


def mask_edit(model: PreTrainedModel, source: AnyMaskSource, layers: str | None) -> MaskEdit:
    """A mask for a model, in the stack that it is for or that the model begins with, and in some of its layers.

    Raises:
        OptionError: if the model has fewer layers.
    """
    sites = find_sites(model)
    stack = source.stack or next(iter(dict.fromkeys(s.stack for s in sites)))
    count = 1 + max((s.layer for s in sites if s.stack == stack), default=-1)
    return MaskEdit(source, read_layers(layers, count), stack)


def parse_mask(text: str) -> MaskSource:
    """A mask file, a folder with one, or a pattern.

    Raises:
        OptionError: if it is none of these.
    """
    path = Path(text).expanduser()
    named = re.split(r"[:|]", text)[0].strip().lower() in PATTERNS
    if not named and (path.exists() or path.suffix or len(path.parts) > 1):
        return AttentionMask.load(path)
    return PatternMask(parse_pattern(text))


def read_layers(text: str | None, count: int = 0) -> tuple[int, ...] | None:
    """Numbers of layers: `6-11`, `0,2,4-6`, `first:3`, `last:3`, `all`; None for all.

    Args:
        text: what is given.
        count: layers of the model; 0 where only the form of the text matters, as before a model is loaded.

    Raises:
        OptionError: if they cannot be read, or the model has fewer.
    """
    if text is None or text.strip() == "all":
        return None
    found: list[int] = []
    for part in str(text).split(","):
        found += _end(part.strip(), text, count) if ":" in part else _range(part, text)
    return tuple(dict.fromkeys(found))


def _range(part: str, text: str) -> range:
    first, dash, last = (own.strip() for own in part.partition("-"))
    if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
        raise OptionError(f"--layers {text!r} is no range of layers.", _LAYERS)
    return range(int(first), int(last or first) + 1)


def _end(part: str, text: str, count: int) -> range:
    name, _, number = (own.strip() for own in part.partition(":"))
    if name not in ("first", "last") or not number.isdecimal() or not int(number):
        raise OptionError(f"--layers {text!r} is no range of layers.", _LAYERS)
    if count and int(number) > count:
        raise OptionError(f"--layers {text!r}: there are {counted(count, 'layer')}.", f"Give at most {name}:{count}.")
    return range(int(number)) if name == "first" else range(max(count - int(number), 0), count)

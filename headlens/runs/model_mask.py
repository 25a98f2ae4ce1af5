"""Models under an attention mask: `--mask` for every command that runs one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from headlens.attention.attach_edit import attach_edit
from headlens.attention.sites import find_sites
from headlens.interventions.attention_mask import AnyMaskSource, AttentionMask, Controlled, MaskSource, PatternMask
from headlens.interventions.attention_mask_edit import MaskEdit
from headlens.interventions.importance_mask import parse_kept
from headlens.interventions.kept_text import kept_text
from headlens.interventions.patterns import PATTERNS, Full, parse_pattern
from headlens.runs.mask_options import MaskOptions, read_layers

_ALONE = (
    "Under the mask some tokens are left without any key, as a sentence of one token is without the diagonal: they "
    "look where they would without the mask."
)


def mask_source(options: MaskOptions) -> MaskSource | None:
    """Returns the mask that the options name; None where nothing is masked.

    Raises:
        OptionError: if there is no such file or pattern.
    """
    if not options.given:
        return None
    if options.mask is None:
        source: MaskSource = PatternMask(Full())
    elif options.keep is None:
        source = parse_mask(options.mask)
    else:
        source = parse_mask(kept_text(options.mask, options.keep_order, options.keep))
    if options.no_diagonal:
        return Controlled(source)
    return Controlled(source, "random", options.mask_seed) if options.drop_random else source


def mask_record(options: MaskOptions) -> dict[str, Any]:
    """Returns what run.json says of the mask: its name, hash and layers; nothing where nothing is masked."""
    source = mask_source(options)
    return {} if source is None else {"mask": {"name": source.name, "sha256": source.sha256, "layers": options.layers}}


@contextmanager
def under_mask(model: PreTrainedModel, options: MaskOptions, tell: Callable[[str], None]) -> Iterator[None]:
    """Runs a model under a mask inside the context, if one is given.

    Args:
        model: the model.
        options: the options of the mask.
        tell: called with a warning when the mask left queries without any key.

    Raises:
        OptionError: if the mask cannot be read, or does not fit the model.
    """
    source = mask_source(options)
    if source is None:
        yield
        return
    with under_source(model, source, options.layers, tell):
        yield


@contextmanager
def under_source(
    model: PreTrainedModel, source: AnyMaskSource, layers: str | None, tell: Callable[[str], None]
) -> Iterator[None]:
    """Runs a model under a mask in some layers inside the context; errors and warnings as in `under_mask`."""
    edit = mask_edit(model, source, layers)
    with attach_edit(model, edit):
        yield
    if edit.left_alone:
        tell(_ALONE)


def mask_edit(model: PreTrainedModel, source: AnyMaskSource, layers: str | None) -> MaskEdit:
    """Returns the edit that masks some layers of the stack that a mask is for, or of the model's first stack.

    Raises:
        OptionError: if the model has fewer layers.
    """
    sites = find_sites(model)
    stack = source.stack or next(iter(dict.fromkeys(s.stack for s in sites)))
    count = 1 + max((s.layer for s in sites if s.stack == stack), default=-1)
    return MaskEdit(source, read_layers(layers, count), stack)


def parse_mask(text: str) -> MaskSource:
    """Reads a mask from the path of its file or folder, from learned importance (`parse_kept`), or from a pattern.

    Raises:
        OptionError: if it is none of these.
    """
    if (kept := parse_kept(text)) is not None:
        return kept
    path = Path(text).expanduser()
    is_pattern = re.split(r"[:|]", text)[0].strip().lower() in PATTERNS
    if not is_pattern and (path.exists() or path.suffix or len(path.parts) > 1):
        return AttentionMask.load(path)
    return PatternMask(parse_pattern(text))

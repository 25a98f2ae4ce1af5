"""Models under an attention mask: `--mask` for every command that runs one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from headlens.attention.attach_edit import attach_edit
from headlens.attention.sites import find_sites
from headlens.attention_masks.attention_mask import AnyMaskSource, AttentionMask, Controlled, MaskSource, PatternMask
from headlens.attention_masks.attention_mask_edit import MaskEdit
from headlens.attention_masks.importance_mask import ImportanceMask
from headlens.attention_masks.mask_options import MaskOptions, read_layers
from headlens.attention_masks.named_masks import (
    ImportanceShare,
    PatternName,
    StoredMask,
    parse_stored_mask,
)
from headlens.attention_masks.patterns import Full, parse_pattern
from headlens.heads import Stack

LEFT_ALONE = (
    "Under the mask some tokens have no key left, as in a sentence of one token without the diagonal; they "
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
        source = source_of(ImportanceShare(options.mask, options.keep_order, options.keep))
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
    edit = mask_edit(model, source, options.layers)
    with attach_edit(model, edit):
        yield
    if edit.left_alone:
        tell(LEFT_ALONE)


def mask_edit(model: PreTrainedModel, source: AnyMaskSource, layers: str | None) -> MaskEdit:
    """Returns the edit that masks some layers of the stack that a mask is for, or of the model's first stack.

    Raises:
        OptionError: if the model has fewer layers.
    """
    stack, numbers = stack_layers(model, layers, source.stack)
    return MaskEdit(source, numbers, stack)


def is_causal_stack(model: PreTrainedModel) -> bool:
    """Whether masks of a model are for a decoder, where a token sees only those up to itself, whatever the mask."""
    return find_sites(model)[0].stack == "decoder"


def stack_layers(
    model: PreTrainedModel, layers: str | None, stack: Stack | None = None, flag: str = "--layers"
) -> tuple[Stack, tuple[int, ...] | None]:
    """Reads layers of one stack of a model.

    Args:
        model: the model.
        layers: such as `6-11` or `last:3`; None for all.
        stack: the stack; None for the first of the model.
        flag: the option, for errors.

    Returns:
        The stack, and the numbers of the layers; None for all.

    Raises:
        OptionError: if they cannot be read, or the model has fewer.
    """
    sites = find_sites(model)
    stack = stack or sites[0].stack
    count = 1 + max((s.layer for s in sites if s.stack == stack), default=-1)
    return stack, read_layers(layers, count, flag)


def parse_mask(text: str) -> MaskSource:
    """Reads a mask from the path of its file or folder, from learned importance, or from a pattern.

    Raises:
        OptionError: if it is none of these.
    """
    return source_of(parse_stored_mask(text))


def source_of(stored: StoredMask) -> MaskSource:
    """Returns the mask that a name stands for.

    Raises:
        OptionError: if there is no such pattern or file.
    """
    match stored:
        case PatternName(words):
            return PatternMask(parse_pattern(words))
        case ImportanceShare(path, order, keep):
            return ImportanceMask.load(Path(path).expanduser(), keep, order)
    file = Path(stored.words).expanduser()
    if file.exists() or file.suffix or len(file.parts) > 1:
        return AttentionMask.load(file)
    # Neither a file nor a pattern: the error names the patterns.
    return PatternMask(parse_pattern(stored.words))

"""The files of learned masks: in their final form, with the probabilities that they came from."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_file, save_file

from headlens.attention_masks.attention_mask import AttentionMask
from headlens.attention_masks.named_masks import PROBABILITIES, UNMASKED
from headlens.errors import ResumeError
from headlens.files import atomic_path, output_errors
from headlens.learning.mask_learning import (
    LearnedMask,
    LearnedMaskResult,
)
from headlens.learning.sweep import MODELS

MASKS = "masks"  # folder of the mask files


def forget_masks(folder: Path) -> None:
    """Remove masks and models of an earlier sweep, whose penalties may have been others."""
    with output_errors(folder):
        for name in ("penalty-*", "degrees_*", UNMASKED):
            for place in [*(folder / MASKS).glob(name), *(folder / MODELS).glob(name)]:
                shutil.rmtree(place)


def save_mask(path: Path, learned: LearnedMask, result: LearnedMaskResult) -> None:
    """Write a mask in its final form, and beside it the P that it came from.

    Raises:
        OutputError: if the folder cannot be written.
    """
    about = {"form": result.mask.options.form, "task": result.task.name}
    mask = replace(learned.file, metadata={**learned.file.metadata, **about})
    with output_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        mask.save(path)
        with atomic_path(path.with_name(PROBABILITIES)) as temporary:
            save_file({"p": learned.probabilities.float().contiguous()}, temporary)


def load_mask(folder: Path) -> LearnedMask:
    """What `save_mask` wrote.

    Raises:
        ResumeError: if it cannot be read.
    """
    try:
        return LearnedMask(AttentionMask.load(folder), load_file(folder / PROBABILITIES)["p"])
    except Exception as error:  # also what masks are refused with elsewhere: this one was kept to go on
        raise ResumeError(
            f"{folder} no longer has a readable mask: {error}", "Start again with --overwrite."
        ) from error

"""Attention on a sentence that a run keeps beside its tables, for cards of single heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save

from headlens.errors import read_errors
from headlens.nested_text import parse_json
from headlens.pages.head_cards import SentenceMap
from headlens.runs.folder import RunFolder
from headlens.runs.reading import RecordedRun, mapping

WEIGHTS, LABELS = "attention.safetensors", "labels.json"
Labels = Mapping[str, Mapping[str, Mapping[str, Sequence[str]]]]


def write_maps(run: RunFolder, weights: Mapping[str, npt.NDArray[np.floating]], labels: Labels) -> None:
    """Write maps of sentences.

    Args:
        run: the folder, started.
        weights: by `NAME.STACK`, (layers, heads, query, key).
        labels: by name and stack, the texts of `queries` and `keys`.
    """
    with run.file(WEIGHTS) as path:
        # save_file has an error of its own for a full disk
        path.write_bytes(save({name: np.ascontiguousarray(w, np.float32) for name, w in weights.items()}))
    run.json(LABELS.removesuffix(".json"), labels)


def read_maps(run: RecordedRun, model_of: Callable[[str], str]) -> list[SentenceMap]:
    """The maps of a run; none where it keeps none.

    Args:
        run: of a command that writes maps.
        model_of: the model of a name, as tables call it.

    Raises:
        InputError: if a file cannot be read, or does not hold what it should.
    """
    paths = run.folder / WEIGHTS, run.folder / LABELS
    if not all(path.is_file() for path in paths):
        return []
    advice = "Run the command again, or leave this run out."
    with read_errors(f"{paths[0]} and {LABELS}", "do not hold attention on sentences", advice):
        weights, labels = load_file(paths[0]), parse_json(paths[1].read_text(encoding="utf-8"))
        return [
            _read(model_of(name), stack, weights[f"{name}.{stack}"], texts)
            for name, stacks in labels.items()
            for stack, texts in mapping(stacks).items()
        ]


def _read(model: str, stack: str, weights: npt.NDArray[np.floating], labels: Mapping[str, Any]) -> SentenceMap:
    queries, keys = (tuple(map(str, labels[name])) for name in ("queries", "keys"))
    if weights.ndim != 4 or weights.shape[2:] != (len(queries), len(keys)):
        raise ValueError(f"weights {weights.shape} do not fit {len(queries)} queries and {len(keys)} keys")
    return SentenceMap(model, stack, queries, keys, weights)

"""Attention on a sentence that a run keeps beside its tables, for cards of single heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save

from headlens.errors import read_errors
from headlens.nested_text import parse_json
from headlens.pages.head_cards import SentenceMap, TokenGroups
from headlens.pages.score_parts import Numbers, ScoreParts
from headlens.runs.folder import RunFolder
from headlens.runs.reading import RecordedRun, mapping

WEIGHTS, LABELS, SCORES = "attention.safetensors", "labels.json", "queries_keys.safetensors"
# With its number each follows the name in every state, and on every sentence of a model, but the first
STATE, SENTENCE = ".state", ".sentence"
_GROUPS = ("query_groups", "key_groups")
_OF_SCORES = ("queries", "keys", "rest", "sums")


def write_maps(run: RunFolder, maps: Sequence[SentenceMap]) -> None:
    """Write maps of sentences, named by their `model`, with what the view of attention shows beside the weights.

    Args:
        run: the folder, started.
        maps: of all stacks and states.
    """
    weights: dict[str, npt.NDArray[np.float32]] = {}
    scores: dict[str, npt.NDArray[np.float32]] = {}
    labels: dict[str, dict[str, dict[str, Any]]] = {}
    for stored in maps:
        name = stored.model + _ending(SENTENCE, stored.sentence) + _ending(STATE, stored.state)
        weights[f"{name}.{stored.stack}"] = np.ascontiguousarray(stored.weights, np.float32)
        facts: dict[str, Any] = {key: list(getattr(stored, key)) for key in ("queries", "keys")}
        facts |= {key: getattr(stored, key) for key in ("text", "state", "sentence")}
        facts |= {key: vars(group) for key in _GROUPS if (group := getattr(stored, key)) is not None}
        labels.setdefault(name, {})[stored.stack] = facts
        if stored.scores is not None:
            facts["scores"] = []
        for parts in stored.scores or ():
            place = f"{name}.{stored.stack}.{parts.layer}"
            scores |= {f"{place}.{key}": np.ascontiguousarray(getattr(parts, key), np.float32) for key in _OF_SCORES}
            facts["scores"].append({k: v for k, v in vars(parts).items() if k not in _OF_SCORES})
    with run.file(WEIGHTS) as path:
        # save_file has an error of its own for a full disk
        path.write_bytes(save(weights))
    if scores:
        with run.file(SCORES) as path:
            path.write_bytes(save(scores))
    run.json(LABELS.removesuffix(".json"), labels)


def read_maps(run: RecordedRun, model_of: Callable[[str], str]) -> list[SentenceMap]:
    """The maps of a run; none where it keeps none.

    Args:
        run: of a command that writes maps.
        model_of: the model of a name, as tables call it; the name is that which the maps were written under.

    Raises:
        InputError: if a file cannot be read, or does not hold what it should.
    """
    paths = run.folder / WEIGHTS, run.folder / LABELS
    if not all(path.is_file() for path in paths):
        return []
    advice = "Run the command again, or leave this run out."
    with read_errors(f"{paths[0]} and {LABELS}", "do not hold attention on sentences", advice):
        weights, labels = load_file(paths[0]), parse_json(paths[1].read_text(encoding="utf-8"))
        scores = load_file(run.folder / SCORES) if (run.folder / SCORES).is_file() else {}
        entries = [(name, stack, texts) for name, stacks in labels.items() for stack, texts in mapping(stacks).items()]
        maps = [_read(name, stack, weights, texts, scores) for name, stack, texts in entries]
        return [replace(stored, model=model_of(stored.model)) for stored in maps]


def _read(
    name: str, stack: str, weights: Mapping[str, Numbers], labels: Mapping[str, Any], scores: Mapping[str, Numbers]
) -> SentenceMap:
    queries, keys = (tuple(map(str, labels[side])) for side in ("queries", "keys"))
    own = weights[f"{name}.{stack}"]
    if own.ndim != 4 or own.shape[2:] != (len(queries), len(keys)):
        raise ValueError(f"weights {own.shape} do not fit {len(queries)} queries and {len(keys)} keys")
    # Runs of earlier versions have no more than the tokens.
    state, number = (int(labels.get(name, 0)) for name in ("state", "sentence"))
    groups = [TokenGroups(**labels[key]) if key in labels else None for key in _GROUPS]
    for group, side in zip(groups, (queries, keys), strict=True):
        if group is not None:
            group.check(len(side))
    parts = []
    for facts in labels.get("scores", ()) if scores else ():  # whoever is short of space deletes the file
        arrays: dict[str, Any] = {key: scores[f"{name}.{stack}.{int(facts['layer'])}.{key}"] for key in _OF_SCORES}
        parts.append(ScoreParts(**facts, **arrays))
        parts[-1].check(own.shape)
    model = name.removesuffix(_ending(STATE, state)).removesuffix(_ending(SENTENCE, number))
    text = str(labels.get("text", ""))
    known = parts if "scores" in labels else None
    return SentenceMap(model, stack, queries, keys, own, text, state, groups[0], groups[1], number, known)


def _ending(kind: str, number: int) -> str:
    return f"{kind}{number}" if number else ""

"""Which heads of a table share keys and values: the column `kv_group` of every table with a row for heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from headlens.heads import KEY_COLUMNS

KV_GROUP = "kv_group"
_MODEL = "model"


@dataclass(frozen=True)
class SharedKeys:
    """How many heads of each layer of a model share a head of keys and values.

    Args:
        labels: names that the model may have in tables.
        shared_by: number of heads, by stack and layer; layers whose heads have their own are left out.
    """

    labels: tuple[str, ...]
    shared_by: Mapping[tuple[Any, int], int]


def add_kv_groups(frame: pd.DataFrame, models: Sequence[SharedKeys]) -> None:
    """Adds the column `kv_group` beside the head, in place; nothing where no head of the table shares its keys.

    A group has the number of its head of keys and values in the original model: that of the head through the number
    of heads that share it.

    Args:
        frame: a table; one without rows about heads stays as it is.
        models: those of the run. Rows without the name of a model are about the first.
    """
    if KV_GROUP in frame or not set(KEY_COLUMNS) <= set(frame.columns) or not any(m.shared_by for m in models):
        return
    by_label = {label: model for model in reversed(models) for label in model.labels}
    names = frame[_MODEL] if _MODEL in frame else [None] * len(frame)
    groups: list[int | None] = []  # of rows
    for name, stack, layer, head in zip(names, *(frame[key] for key in KEY_COLUMNS), strict=True):
        model = models[0] if name is None else by_label.get(str(name))
        known = model is not None and not pd.isna(layer) and not pd.isna(head)
        size = model.shared_by.get((str(stack), int(layer))) if known and model is not None else None
        groups.append(None if size is None else int(head) // size)
    if any(group is not None for group in groups):
        place = list(frame.columns).index(KEY_COLUMNS[-1]) + 1
        frame.insert(place, KV_GROUP, pd.Series(groups, index=frame.index, dtype="Int64"))

"""Which heads of a ranking go, so that what is left has a shape: as many of every group, whole groups, or any."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headlens.analyses.compact.head_lists import (
    head_of_line,
    listed_heads,
    matching_rows,
    read_heads,
    table_of,
    table_with,
)
from headlens.analyses.compact.options import CompactRequest, Shape
from headlens.attention.sites import Site, check_heads
from headlens.errors import OptionError, counted
from headlens.heads import KEY_COLUMNS, Head, parse_heads
from headlens.runs.run_record import read_run
from headlens.tasks.task_options import LOWER_IS_BETTER

_DELTA, _METRIC = "delta", "metric"
_RANK_BY, _SHAPE = "--strategy-args rank-by", "--strategy-args shape"
# Heads of a group of keys, by layer and number of the group.
Groups = dict[Site, dict[int, list[Head]]]


def chosen_heads(request: CompactRequest) -> list[Head]:
    """The heads to remove, or with `remove` the ranking that they are taken from.

    Raises:
        OptionError: if there are none, or what names them cannot be read.
    """
    if request.from_file is not None:
        if request.remove is not None:
            return read_ranking(request.from_file, request.where, request.rank_by)
        return read_heads(request.from_file, request.where)
    if not request.heads:
        raise OptionError(
            "No heads to cut out were given.", "Name them with --heads encoder.3.1,encoder.4.0 or --from FILE."
        )
    return parse_heads(request.heads)


def read_ranking(path: Path, where: Sequence[str] = (), by: str | None = None) -> list[Head]:
    """Heads in the order in which they go, the least important first.

    Args:
        path: a table with a row for every head, or the folder of a run with one; or a plain list in that order.
        where: of a table, which rows count: `COLUMN=VALUE`, all of them.
        by: the column that ranks them, the smallest number first; None for what the metric loses without the head
            (`delta` of ablation.csv, whose sign is that of the metric).

    Raises:
        OptionError: if it cannot be read, ranks no heads, or names one twice.
    """
    return list(_harm_by_head(path, where, by))


def _harm_by_head(path: Path, where: Sequence[str], by: str | None) -> dict[Head, float]:
    """The heads of `read_ranking` in order, with the numbers that rank them; of a list their places."""
    path = table_of(path, (*KEY_COLUMNS, by or _DELTA))
    if (rows := table_with(KEY_COLUMNS, path)) is None:
        if where or by is not None:
            raise OptionError(
                f"{'--where' if where else _RANK_BY}: {path} is a plain list.",
                "Leave it out; lists are in order.",
            )
        return {head: float(place) for place, head in enumerate(dict.fromkeys(listed_heads(path)))}
    chosen = matching_rows(path, rows, where)
    column = by or _DELTA
    if column not in (columns := chosen[0][1]):
        raise OptionError(
            f"--from: {path} has no column {column!r} to rank heads by.",
            f"Name one with {_RANK_BY}=COLUMN: {', '.join(name for name in columns if name not in KEY_COLUMNS)}.",
        )
    harm: dict[Head, float] = {}
    first_rows: dict[Head, Mapping[str, str]] = {}
    for number, row in chosen:
        head = head_of_line(path, number, ".".join(row[key] for key in KEY_COLUMNS))
        if (first := first_rows.setdefault(head, row)) is not row:
            apart = next((f"{name}={first[name]}" for name in row if row[name] != first[name]), "mode=zero")
            raise OptionError(
                f"--from: {path} has several rows for {head}.",
                f"Choose one of each head with --where, such as {apart}.",
            )
        harm[head] = _number(path, number, row[column]) * (1 if by or _is_loss(path, number, row) else -1)
    return {head: harm[head] for head in sorted(harm, key=harm.__getitem__)}


def tie_notes(request: CompactRequest, choice: HeadChoice, sites: Sequence[Site]) -> list[str]:
    """A note where heads stay that the ranking does not tell from heads that go: their order in the model decided.

    Args:
        request: names the ranking.
        choice: the heads that go.
        sites: layers of the model.
    """
    if request.remove is None or request.from_file is None:
        return []
    harm, gone = _harm_by_head(request.from_file, request.where, request.rank_by), set(choice.heads)
    layers = groups_of(sites).values()
    # What goes or stays together, in parts of which some has to go.
    parts = [[[head] for head in harm]]
    if choice.shape == "groups" and shares_keys(sites):
        parts = [list(by_number.values()) for by_number in layers]
    elif choice.shape != "uneven":
        parts = [[[head] for head in heads] for by_number in layers for heads in by_number.values()]
    tied = set[Head]()
    for units in parts:
        values = [sorted(map(harm.__getitem__, heads)) for heads in units]
        gone_values = [own for own, heads in zip(values, units, strict=True) if gone.issuperset(heads)]
        for own, heads in zip(values, units, strict=True):
            tied |= set(heads) - gone if own in gone_values else set()
    if not tied:
        return []
    stay = "1 head that stays ranks" if len(tied) == 1 else f"{len(tied)} heads that stay rank"
    return [
        f"{stay} exactly as heads that go: of equal ones the first in the model go, which says nothing of layers. More "
        f"examples, or a finer column ({_RANK_BY}=COLUMN), may tell them apart."
    ]


def run_of(path: Path | None) -> dict[str, Any]:
    """What run.json says of the run that heads come from, whose folder or table this is; empty without one."""
    return (read_run(path if path.is_dir() else path.parent) if path is not None else None) or {}


def ranked_on(path: Path | None) -> str:
    """The name of the data that a run of `ablate` ranked heads on, beside whose table its run.json stands; or empty."""
    record = run_of(path)
    names = (data.get("name") for model in record.get("models", []) if isinstance(data := model.get("data"), dict))
    return str(next(names, None) or "")


def _is_loss(path: Path, number: int, row: Mapping[str, str]) -> bool:
    if _METRIC not in row:
        raise OptionError(
            f"--from: {path}:{number}: {_DELTA} of no metric.",
            f"Name a column with {_RANK_BY}=COLUMN.",
        )
    return row[_METRIC] in LOWER_IS_BETTER


def _number(path: Path, number: int, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise OptionError(
            f"--from: {path}:{number}: {cell!r} is no number to rank by.",
            f"Name another with {_RANK_BY}=COLUMN.",
        )
    return value


def groups_of(sites: Sequence[Site]) -> Groups:
    """The heads of every layer by the head of keys and values that they use; where each has its own, all together.

    Heads with keys of their own count as one group: taking as many of it in every layer is what evenness means there.
    """
    groups: Groups = {}
    for site in sites:
        by_number: dict[int, list[Head]] = {}
        for head in site.heads:
            by_number.setdefault(head.head // site.shared_by if site.shared_by > 1 else 0, []).append(head)
        groups[site] = by_number
    return groups


def shares_keys(sites: Sequence[Site]) -> bool:
    """Whether several heads of a model share keys and values."""
    return any(site.shared_by > 1 for site in sites)


def choose(ranking: Sequence[Head], n: int, shape: Shape, sites: Sequence[Site]) -> list[Head]:
    """The heads that go: of what the shape allows, the least important.

    `even`: as many of every group of heads that share keys, in every layer (without shared keys as many of every
    layer). `groups`: all heads of as many groups in every layer, those whose heads come first in the ranking on
    average. `uneven`: the first of the ranking, wherever they are.

    Args:
        ranking: heads, the least important first.
        n: how many go.
        shape: one of these.
        sites: layers of the model.

    Raises:
        OptionError: if the shape cannot be had with so many heads, or the ranking lacks heads that have to be compared.
    """
    check_heads(ranking, sites)
    known = {head for site in sites for head in site.heads}
    if n >= len(known):
        raise OptionError(f"--heads {n} leaves no head of {len(known)}.", "Keep at least one.")
    if shape == "uneven":
        if n > len(ranking):
            raise OptionError(f"--heads {n}: the ranking has {counted(len(ranking), 'head')}.", "Rank more heads.")
        return list(ranking[:n])
    place = {head: number for number, head in enumerate(ranking)}
    if left_out := sorted(known - place.keys(), key=str):
        raise OptionError(
            f"The ranking lacks {counted(len(left_out), 'head')}, such as {left_out[0]}.",
            f"Rank all heads of the model for shape={shape}.",
        )
    groups = groups_of(sites)
    _check_count(n, shape, groups)
    if shape == "groups" and shares_keys(sites):
        of_layer = n // sum(len(next(iter(by_number.values()))) for by_number in groups.values())
        chosen = []
        for by_number in groups.values():
            means = sorted(by_number.values(), key=lambda heads: sum(map(place.__getitem__, heads)) / len(heads))
            chosen += [head for heads in means[:of_layer] for head in heads]
        return sorted(chosen, key=place.__getitem__)
    of_group = n // sum(map(len, groups.values()))
    parts = [sorted(heads, key=place.__getitem__) for by_number in groups.values() for heads in by_number.values()]
    return sorted((head for heads in parts for head in heads[:of_group]), key=place.__getitem__)


def _check_count(n: int, shape: Shape, groups: Groups) -> None:
    """Refuses a number of heads that is not the same of every part."""
    sizes = [len(heads) for by_number in groups.values() for heads in by_number.values()]
    whole = shape == "groups" and max(map(len, groups.values())) > 1
    step = sum(len(next(iter(by_number.values()))) for by_number in groups.values()) if whole else len(sizes)
    if len(set(sizes)) > 1 or len(set(map(len, groups.values()))) > 1:
        raise OptionError(
            f"shape={shape}: the layers of this model differ in their numbers of heads.",
            f"Give {_SHAPE}=uneven.",
        )
    most = (len(next(iter(groups.values()))) if whole else sizes[0]) - 1
    if n % step or n // step > most:
        numbers = ", ".join(str(step * k) for k in range(1, min(most, 4) + 1))
        what = "a whole group of every layer" if whole else "one head of every group"
        raise OptionError(
            f"--heads {n} does not go with shape={shape}: {what} makes {step}.",
            f"Cut {numbers}{' …' if most > 4 else ''}, or give {_SHAPE}=uneven."
            if most
            else f"Give {_SHAPE}=uneven, or another shape.",
        )


def shape_problem(shape: Shape, removed: Sequence[Head], sites: Sequence[Site]) -> str:
    """In words why a set of heads has not the shape; empty if it has.

    Args:
        shape: `even` or `groups`; any set is `uneven`.
        removed: the heads that go.
        sites: layers of the model.
    """
    gone, groups = set(removed), groups_of(sites)
    if shape == "groups" and shares_keys(sites):
        for site, by_number in groups.items():
            for number, heads in by_number.items():
                if 0 < len(gone.intersection(heads)) < len(heads):
                    return f"of group {number} of {site} {len(gone.intersection(heads))} of {len(heads)} heads go"
        counts = {
            str(site): sum(gone.issuperset(heads) for heads in by_number.values()) for site, by_number in groups.items()
        }
        what = "group"
    else:
        counts = {
            f"group {number} of {site}" if site.shared_by > 1 else str(site): len(gone.intersection(heads))
            for site, by_number in groups.items()
            for number, heads in by_number.items()
        }
        what = "head"
    few, many = min(counts, key=lambda name: counts[name]), max(counts, key=lambda name: counts[name])
    return "" if counts[few] == counts[many] else f"{many} loses {counted(counts[many], what)}, {few} {counts[few]}"


@dataclass(frozen=True)
class HeadChoice:
    """The heads that go, and those that would go in another shape.

    Args:
        heads: those that go.
        shape: that they have, as far as it was asked for; `auto` for heads as they were named.
        others: as many of the same ranking for each of the shapes that the model allows; empty without a ranking.
        impossible: why other shapes cannot be had with so many heads, a sentence each.
    """

    heads: list[Head]
    shape: Shape
    others: Mapping[Shape, list[Head]] = field(default_factory=dict)
    impossible: tuple[str, ...] = ()


def choice_of_ranking(ranking: Sequence[Head], n: int, shape: Shape, sites: Sequence[Site]) -> HeadChoice:
    """What goes of a ranking in the shape that is asked for, with what would go in the others, see `choose`.

    Args:
        ranking: heads, the least important first.
        n: how many go.
        shape: `auto` is even where heads share keys, else uneven.
        sites: layers of the model.

    Raises:
        OptionError: as `choose`.
    """
    chosen: Shape = ("even" if shares_keys(sites) else "uneven") if shape == "auto" else shape
    others, impossible = {chosen: choose(ranking, n, chosen, sites)}, []
    shapes: tuple[Shape, ...] = ("even", "groups", "uneven") if shares_keys(sites) else ("even", "uneven")
    for other in shapes:
        if other not in others:
            try:
                others[other] = choose(ranking, n, other, sites)
            except OptionError as error:
                impossible.append(error.message.replace("--heads ", ""))
    return HeadChoice(
        others[chosen], chosen, {name: others[name] for name in shapes if name in others}, tuple(impossible)
    )


def choice_of_list(heads: Sequence[Head], shape: Shape, sites: Sequence[Site]) -> HeadChoice:
    """Heads that were named, which have to have the shape that is asked for.

    Raises:
        OptionError: if they have not.
    """
    if shape in ("even", "groups") and (problem := shape_problem(shape, heads, sites)):
        raise OptionError(
            f"These heads are not shape={shape}: {problem}.",
            f"Name others, let headlens choose with --from ablation.csv --heads N, or leave {_SHAPE} out.",
        )
    return HeadChoice(list(heads), shape)

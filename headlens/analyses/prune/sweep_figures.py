"""What a task is like by how many heads are left, and which roles the heads have that remain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import pandas as pd

from headlens.analyses.prune import sweep_runs
from headlens.findings.without_skill import within_guesses
from headlens.heads import STACKS
from headlens.plots import curves, style
from headlens.plots.axis_labels import drawable_text
from headlens.plots.head_grid import Grid, by_model_and_stack, float_column, has_numbers
from headlens.plots.role_colours import COLOURS, FAMILIES, NONE, families, legend_handles
from headlens.tables.prune_tables import SCRATCH, TRAINED
from headlens.tables.same_answers import answer_shares

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# colour, marker, label
LOOKS = {
    TRAINED: (style.BLUE, "o", "from the trained model"),
    SCRATCH: (style.ORANGE, "s", "from scratch"),
}
_WHOLE = {TRAINED: "unpruned model", SCRATCH: "all heads, from scratch"}
_ABREAST = 2  # panels
# inches
_HEIGHT, _APART = 2.2, 0.05
_CLOSEST = 0.12  # names of runs
_SINGLE = 0.7  # of the full width
ALL = "all"
# inches
_WIDEST, _NARROWEST = 4.0, 3.3
_ROLES_ABREAST = 3  # panels


class _Set(NamedTuple):
    """The runs of a panel: those of one model in which the same stacks had gates, and the rows of the whole model."""

    title: str
    gated: tuple[str, ...]
    runs: pd.DataFrame
    unpruned: pd.DataFrame


def gate_quality(sweep: pd.DataFrame, gates: pd.DataFrame | None = None) -> Figure | None:
    """The main metric of a task against the number of heads left, with 95 % intervals.

    After Voita et al. (2019), table 2. One line for models that were pruned, one for the same architectures trained
    from scratch; dashed lines with their bands are models with all heads. There is one panel per model and set of
    stacks that had gates; of stacks without gates no heads are counted. Panels with the same metric have the same axis.

    Args:
        sweep: rows of `sweep.csv`, of one model or several.
        gates: rows of `gates.csv`, which tell which stacks had gates; without them those that lost heads.

    Returns:
        The figure, or None when no run has a value.
    """
    rows = sweep_runs.main_rows(sweep)
    rows = rows.assign(gated=pd.Series(sweep_runs.gated_stacks(rows, gates), index=rows.index, dtype=object))
    if not has_numbers(rows[~sweep_runs.is_unpruned(rows)], "value"):
        return None
    sets = _sets(rows)
    metric, task = (", ".join(map(str, rows[c].dropna().unique())) for c in ("metric", "task"))
    verdicts = curves.verdicts_text(rows[~sweep_runs.is_unpruned(rows)])
    title = f"Quality by heads left: {metric} on {task}\n({curves.intervals_text(rows)}{verdicts})"
    single = len(sets) == 1
    levels = [s.unpruned[s.unpruned["init"] == TRAINED] for s in sets]
    titles = [
        curves.unpruned_title(s.title, next(iter(answer_shares(rows)), np.nan), guesses=within_guesses(rows))
        for s, rows in zip(sets, levels, strict=True)
    ]
    abreast = min(_abreast(_ABREAST), len(sets))
    width = min(style.page_width(), style.FULL_WIDTH * (_SINGLE if single else 1))
    figure, drawn = curves.panels(title, titles, width, abreast)
    for number, (axes, panel) in enumerate(zip(drawn, sets, strict=True)):
        metric = str(panel.runs["metric"].iloc[0])
        words = style.fold(metric, _HEIGHT, style.LABEL_SIZE) if number % _abreast(_ABREAST) == 0 else ""
        style.dress(axes, f"heads left in {_listed(panel.gated)}", words)
        known = curves.known_values(rows[rows["metric"] == metric])
        low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
        margin = 0.06 * (high - low or abs(high) or 1.0)
        axes.set_ylim(curves.no_shorter_than_margin((low - margin, high + margin), rows[rows["metric"] == metric]))
        _draw_quality(axes, panel, judged=bool(verdicts))
    curves.legend_below(figure, drawn)
    style.fit_height(figure, drawn[::abreast], _HEIGHT * len(drawn[::abreast]))
    return figure


def _sets(rows: pd.DataFrame) -> list[_Set]:
    runs, unpruned = rows[~sweep_runs.is_unpruned(rows)], rows[sweep_runs.is_unpruned(rows)]
    sets = []
    for (model, stacks), group in runs.groupby(["model", "gated"], sort=False):
        gated = cast("tuple[str, ...]", stacks)
        title = f"{model}: gates in {_listed(gated)}" if len(runs["gated"].unique()) > 1 else str(model)
        counted = group.assign(left=sweep_runs.count_heads_left(group, gated))
        sets.append(_Set(title, gated, counted, unpruned[unpruned["model"] == model]))
    return sets


def _listed(stacks: Sequence[str]) -> str:
    return " and ".join([", ".join(stacks[:-1]), stacks[-1]] if len(stacks) > 1 else stacks) or "all stacks"


def _abreast(most: int) -> int:
    """Panels in a line: one in a column of a paper."""
    return 1 if style.in_column() else most


def _draw_quality(axes: Axes, panel: _Set, *, judged: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    most = max(
        float(sweep_runs.count_heads_left(rows, panel.gated).max(initial=1.0)) for rows in (panel.runs, panel.unpruned)
    )
    axes.set_xlim(-0.05 * most, 1.05 * most)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=[1, 2, 5, 10]))
    for init, (colour, _, _) in LOOKS.items():
        level = panel.unpruned[panel.unpruned["init"] == init]
        curves.draw_level(axes, level, _WHOLE[init], colour=style.INK if init == TRAINED else colour)
    inits = [init for init in LOOKS if (panel.runs["init"] == init).any()]
    for number, init in enumerate(inits):
        # beside each other, so that intervals can be told apart
        shift = _APART * (number - (len(inits) - 1) / 2) * 1.1 * most / _inches(axes)
        rows = panel.runs[panel.runs["init"] == init].sort_values("left", kind="stable")
        (colour, marker, label), at = LOOKS[init], float_column(rows, "left") + shift
        values = float_column(rows, "value")
        # Runs that left as many heads are points above each other, and the line goes through their mean.
        line = pd.Series(values).groupby(at).mean()
        axes.plot(line.index.to_numpy(float), line.to_numpy(float), color=colour, linewidth=1.0)
        axes.plot(at, values, color=colour, marker=marker, markersize=3.5, linestyle="none", label=label)
        curves.draw_intervals(axes, at, rows, colour)
        curves.draw_verdicts(axes, at, rows, colour, marker, judged=judged)
        curves.draw_same_answers(axes, at, rows)
    curves.draw_chance(axes, float(chance[0]) if len(chance := float_column(panel.runs, "chance")) else np.nan)
    _name_runs(axes, panel.runs)


def _inches(axes: Axes) -> float:
    figure = axes.get_figure(root=True)
    return axes.get_position().width * (figure.get_figwidth() if figure is not None else 1.0)


def _name_runs(axes: Axes, rows: pd.DataFrame) -> None:
    """Write λ above the models that were pruned, but for those too close to one with more heads."""
    pruned = rows[rows["init"] == TRAINED].sort_values("left", ascending=False, kind="stable")
    low, high = axes.get_xlim()
    room = _CLOSEST * (high - low) / _inches(axes)
    names: dict[float, str] = {}
    for at, name in zip(float_column(pruned, "left"), _names(pruned), strict=True):
        # Those with as many heads share a name.
        if at in names:
            names[at] = f"{names[at]}, {name}"
        elif not names or min(names) - at >= room:
            names[at] = name
    above = axes.secondary_xaxis("top")
    above.set_xticks(list(names), [drawable_text(name) for name in names.values()], rotation=90)
    above.tick_params(labelsize=style.TICK_SIZE - 1, length=2, width=0.5, pad=1.5, colors=style.INK)
    above.spines["top"].set_linewidth(0.5)


def _names(rows: pd.DataFrame) -> list[str]:
    pairs = zip(rows["run"], float_column(rows, "penalty"), strict=True)
    return [
        f"{'λ ' * bool(np.isfinite(penalty))}{sweep_runs.penalty_text(str(run), penalty)}" for run, penalty in pairs
    ]


class Bar(NamedTuple):
    """The heads that a run left in a stack, by family of role; the first bar is the whole stack."""

    name: str
    counts: dict[str, int]

    @property
    def left(self) -> int:
        """Number of heads that are left, over all roles."""
        return sum(self.counts.values())


class RoleSet(NamedTuple):
    """The bars of one stack of a model, from all heads to few."""

    model: str
    stack: str
    bars: list[Bar]


def roles_kept(roles: pd.DataFrame, column: str = "role") -> Figure | None:
    """How many heads of every role are left, a bar per run from most heads to fewest; one panel per model and stack.

    After Voita et al. (2019), figure 8. The first bar holds all heads of the unpruned model; what a role loses from bar
    to bar are the heads of that role that were removed.

    Args:
        roles: rows of `roles.csv`, of one model or several.
        column: `role` for roles in the unpruned model, `role_pruned` for those that heads have in the pruned ones.

    Returns:
        The figure, or None when there are no heads or no head left has a role there.
    """
    sets = role_sets(roles, column)
    if not any(set(role_set.bars[0].counts) - {NONE} for role_set in sets):
        return None
    words = "that remaining heads had before pruning" if column == "role" else "of remaining heads after pruning"
    present = {name for role_set in sets for bar in role_set.bars for name in bar.counts}
    # Axes side by side, as many as there may be stacks.
    abreast = min(_abreast(_ROLES_ABREAST), len(sets))
    slot = min(_WIDEST, (style.page_width() - 0.05) / abreast)
    width = max(_NARROWEST, abreast * slot + 0.05)
    titles = [f"{panel_set.model}, {panel_set.stack}" if panel_set.model else panel_set.stack for panel_set in sets]
    figure, drawn = curves.panels(f"Roles {words}", titles, width, abreast)
    for number, (axes, role_set) in enumerate(zip(drawn, sets, strict=True)):
        style.dress(axes, "penalty λ", "heads" if number % _abreast(_ROLES_ABREAST) == 0 else "")
        _draw_roles(axes, role_set)
    handles = legend_handles(present)
    columns = curves.legend_columns([str(handle.get_label()) for handle in handles], width)
    figure.legend(handles=handles, loc="outside lower left", ncols=columns, **style.legend_looks())
    style.fit_height(figure, drawn[::abreast], _HEIGHT * len(drawn[::abreast]))
    return figure


def role_sets(roles: pd.DataFrame, column: str = "role") -> list[RoleSet]:
    """Count the heads that are left by family of role: per model and stack, runs by the heads they have in all."""
    sets = []
    for part in by_model_and_stack(roles[roles["stack"].isin(STACKS)]):
        model_roles = roles[roles["model"].fillna("").astype(str) == part.model]
        unpruned = part.rows.drop_duplicates(["layer", "head"])
        bars = [Bar(ALL, _counts(unpruned["role"]))]
        # Runs from most heads to fewest.
        heads_left = kept_rows(model_roles).groupby(model_roles["run"], sort=False).sum()
        for run in heads_left.sort_values(ascending=False, kind="stable").index:
            left = part.rows[(part.rows["run"] == run) & kept_rows(part.rows)]
            if (part.rows["run"] == run).any():
                penalty = float_column(model_roles[model_roles["run"] == run], "penalty")[0]
                bars.append(Bar(sweep_runs.penalty_text(str(run), penalty), _counts(left[column])))
        sets.append(RoleSet(part.model, part.stack, bars))
    return sets


def kept_rows(roles: pd.DataFrame) -> pd.Series[bool]:
    """Which rows are of heads that are left, whether truth values were read as such or as words."""
    return roles["kept"].astype(str).str.lower() == "true"


def _counts(roles: pd.Series) -> dict[str, int]:
    names = families(roles)
    return {name: names.count(name) for name in FAMILIES if name in names}


def _draw_roles(axes: Axes, role_set: RoleSet) -> None:
    from matplotlib.ticker import MaxNLocator

    places = np.arange(len(role_set.bars))
    bottom = np.zeros(len(role_set.bars))
    most = max(role_set.bars[0].left, 1)
    for name in FAMILIES:
        counts = np.array([bar.counts.get(name, 0) for bar in role_set.bars], float)
        if counts.any():
            axes.bar(places, counts, 0.8, bottom, color=COLOURS[name], edgecolor="white", linewidth=0.4, label=name)
            _write(axes, counts, bottom, name, most)
        bottom += counts
    size = style.TICK_SIZE - 1
    for place, bar in enumerate(role_set.bars):
        at = place, bar.left + 0.015 * most
        axes.text(*at, str(bar.left), ha="center", va="bottom", fontsize=size, color=style.INK)
    axes.set(xlim=(-0.6, len(role_set.bars) - 0.4), ylim=(0, 1.1 * most))
    axes.set_xticks(places, [drawable_text(bar.name) for bar in role_set.bars], rotation=90)
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))


def _write(axes: Axes, counts: Grid, bottom: Grid, name: str, most: float) -> None:
    """Write counts into the pieces of bars that are high enough for them."""
    size = style.TICK_SIZE - 1.5
    high = size / 72 * 1.15 * 1.1 * most / _HEIGHT
    slot = _inches(axes) / len(counts)
    if slot * 0.8 < 0.64 * size / 72 * len(str(int(counts.max()))):
        return
    for place, (count, low) in enumerate(zip(counts, bottom, strict=True)):
        if count >= high:
            ink = style.ink_on(COLOURS[name])
            axes.text(place, low + count / 2, f"{count:.0f}", ha="center", va="center", fontsize=size, color=ink)

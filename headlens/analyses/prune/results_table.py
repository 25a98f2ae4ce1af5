"""What a sweep gave, as tables and sentences: the task by heads left, which heads remained, which roles die last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd

from headlens.analyses.prune import sweep_runs
from headlens.analyses.prune.sweep_figures import role_sets
from headlens.analyses.prune.sweep_runs import UNPRUNED
from headlens.errors import counted
from headlens.findings import verdicts, without_skill
from headlens.heads import KEY_COLUMNS
from headlens.pages.formatting import (
    DELTA,
    DIFFERENCE,
    NOTHING,
    difference_text,
    digits_of,
    escaped,
    markdown_lines,
    number_text,
    value_text,
)
from headlens.pages.head_cards import HeadFacts, HeadSeries, HeadWords
from headlens.pages.page_tables import Cell, PageTable, difference_cell, interval_cell, page_table, picture_ends
from headlens.plots.curves import VALUES
from headlens.plots.head_grid import float_column
from headlens.plots.role_colours import NONE
from headlens.runs.reading import RecordedRun, labelled_records
from headlens.tables.prune_tables import RESULTS, SCRATCH, TRAINED

_BLOCK = ["model", "task", "metric"]
_SHORT = {"encoder": "e", "decoder": "d", "cross": "d-e"}
_COLUMNS = [f"{init}{end}" for init in (TRAINED, SCRATCH) for end in ("", "_low", "_high")]
# Of the model pruned from a trained one; that from scratch lacks more than heads.
_VERDICT = ("p_holm", "margin", "verdict", "n_to_decide")
_NAMED = 24  # heads of a stack; more are not listed
_WORDS = {TRAINED: "from trained", SCRATCH: "from scratch"}


def results_table(sweep: pd.DataFrame) -> pd.DataFrame:
    """One row per architecture and metric, from most heads to fewest: pruned from a trained model, and from scratch.

    After Voita et al. (2019), table 2.

    Args:
        sweep: rows of `sweep.csv`, of one model or several.

    Returns:
        Columns model, task, metric, run (the pruned one), penalty, heads (`encoder/decoder/cross`, of the stacks that
        the models have), `heads_*`, trained, trained_low, trained_high, scratch, scratch_low, scratch_high, n, and of
        either `_delta`, what it has more than the unpruned model, with the paired interval `_delta_low` and
        `_delta_high`, and `_p_value`, and p_holm, margin, verdict and n_to_decide of the pruned one; blocks of
        model, task and metric in order of appearance; empty cells where nothing was measured.
    """
    stacks = sweep_runs.sweep_stacks(sweep)
    keys = pd.Series(sweep_runs.architectures(sweep), index=sweep.index, dtype=object)
    table = sweep.assign(key=keys, order=~sweep_runs.is_unpruned(sweep), left=sweep_runs.count_heads_left(sweep))
    records = [
        {name: run_rows[name].iloc[0] for name in (*_BLOCK, "order", "left")} | _record(run_rows, stacks)
        for _, run_rows in table.groupby([*_BLOCK, "key"], sort=False, dropna=False)
    ]
    counts = dict.fromkeys((f"heads_{stack}" for stack in stacks), "Int64")
    names = [name for name in RESULTS.names if not name.startswith("heads_") or name in counts]
    if not records:
        return pd.DataFrame(columns=names)
    results = pd.DataFrame(records).assign(block=lambda t: t.groupby(_BLOCK, sort=False, dropna=False).ngroup())
    order = {"block": True, "order": True, "left": False, "penalty": True}
    results = results.sort_values([*order], ascending=[*order.values()], kind="stable")
    return results[names].astype(counts).reset_index(drop=True)


def _record(rows: pd.DataFrame, stacks: Sequence[str]) -> dict[str, Any]:
    """The rows of one architecture and metric: one from a trained model, one from scratch."""
    first = rows.sort_values("init", key=lambda init: init != TRAINED, kind="stable").iloc[0]
    record: dict[str, Any] = {"run": str(first["run"]), "penalty": _number(first.get("penalty"))}
    record |= {f"heads_{stack}": _number(first.get(f"heads_{stack}")) for stack in stacks}
    record["heads"] = "/".join(NOTHING if np.isnan(n) else f"{n:.0f}" for n in (record[f"heads_{s}"] for s in stacks))
    for init in (TRAINED, SCRATCH):
        chosen = rows[rows["init"] == init]
        columns = {"": "value", "_low": "ci_low", "_high": "ci_high"} | {f"_{name}": name for name in DIFFERENCE}
        for end, column in columns.items():
            known = len(chosen) and column in chosen
            record[init + end] = float(float_column(chosen, column)[0]) if known else np.nan
    record |= {name: first.get(name, np.nan) if first["init"] == TRAINED else np.nan for name in _VERDICT}
    return record | {"n": first.get("n", np.nan)}


def results_markdown(sweep: pd.DataFrame) -> str:
    """The results as Markdown, one table per model, task and metric: numbers with their 95 % intervals.

    Args:
        sweep: rows of `sweep.csv`, of one model or several.
    """
    table, stacks = results_table(sweep), sweep_runs.sweep_stacks(sweep)
    blocks = [_block(rows, stacks) for _, rows in table.groupby(_BLOCK, sort=False, dropna=False)]
    return "\n".join(["# Heads left by pruning with gates", *blocks]) + "\n"


def _block(rows: pd.DataFrame, stacks: Sequence[str]) -> str:
    first = rows.iloc[0]
    metric, model, task = (escaped(str(first[name])) for name in ("metric", "model", "task"))
    heads = stacks_text(stacks)
    digits, headings = result_digits(rows), [f"heads ({heads})", "λ"]
    compared = {init: bool(rows[f"{init}_delta"].notna().any()) for init in (TRAINED, SCRATCH)}
    has_verdict = {TRAINED: bool(rows["verdict"].notna().any()), SCRATCH: False}
    for init in (TRAINED, SCRATCH):
        headings += [f"{metric} from {init} [95 % interval]", *["difference from unpruned [paired]"] * compared[init]]
        headings += ["verdict"] * has_verdict[init]
    lines = []
    for row in rows.to_dict("records"):
        cells = [row["heads"], NOTHING if np.isnan(row["penalty"]) else f"{row['penalty']:g}"]
        for init in (TRAINED, SCRATCH):
            cells += [interval_text(row, init, digits), *[minus_unpruned(row, init, digits)] * compared[init]]
            cells += [verdict_text(row)] * has_verdict[init]
        lines.append(cells)
    grid = "\n".join(markdown_lines([headings, ["---:"] * len(headings), *lines]))
    examples = rows["n"].dropna()
    known = f", n = {int(examples.iloc[0]):,}" if len(examples) else ""
    return f"\n## {metric} of {model} on {task}{known}\n\n{grid}"


def stacks_text(stacks: Sequence[str]) -> str:
    """Names the stacks whose heads are counted, in the order of their numbers."""
    return "/".join(_SHORT[stack] for stack in stacks) if len(stacks) > 1 else " ".join(stacks)


def result_digits(rows: pd.DataFrame) -> int:
    """Decimals of a metric: two for those that go to 100, three for those that go to 1, more where runs are alike."""
    largest = np.nanmax(np.abs(rows[_COLUMNS].to_numpy(np.float64)), initial=0.0)
    return digits_of(rows[list(_WORDS)], least=2 if largest >= 10 else 3)


def interval_text(row: Mapping[Any, Any], init: str, digits: int) -> str:
    """Formats a metric with its confidence interval, such as `29.61 [29.02, 30.20]`."""
    value, low, high = (float(row[name]) for name in (init, f"{init}_low", f"{init}_high"))
    return value_text(value, low, high, digits=digits)


def minus_unpruned(row: Mapping[Any, Any], init: str, digits: int) -> str:
    """The difference between a model and the unpruned one."""
    value, low, high, p_value = (float(row[f"{init}_{name}"]) for name in DIFFERENCE)
    p_holm = float(row["p_holm"]) if init == TRAINED else np.nan
    return difference_text(value, low, high, p_value, p_holm=p_holm, digits=digits)


def verdict_text(row: Mapping[Any, Any]) -> str:
    """Whether the task needs what is gone, in a cell of a table; a dash where nothing is."""
    return row["verdict"] if isinstance(row["verdict"], str) else NOTHING


def _number(value: Any) -> float:
    return float("nan") if value is None or pd.isna(value) else float(value)


def results_overview(runs: Sequence[RecordedRun]) -> PageTable:
    """Heads left and the task's metrics, from a trained model and from scratch."""
    about = (
        "From most heads to fewest (encoder/decoder/cross): the task with a trained model whose heads were pruned, and "
        "with the same architecture trained from scratch, with 95 % intervals (dot, line; tick: the unpruned model). "
        "Differences from the unpruned model are paired by example. Verdicts are on the pruned models, corrected for "
        f"the number of them (Holm). {verdicts.VERDICTS_KEY}"
    )
    return page_table("Heads left and what they achieve", labelled_records(runs, "sweep", _results), about)


def remaining_heads(runs: Sequence[RecordedRun]) -> PageTable:
    """How many heads each run left in which stack, and which where they are few."""
    about = (
        "Heads left at the last update for each penalty λ (gate not 0), listed by layer and head where there are at "
        f"most {_NAMED}. An attention layer without heads passes its input on."
    )
    return page_table("Heads that remain", labelled_records(runs, "gates", _remaining), about)


def lasting_roles(runs: Sequence[RecordedRun]) -> PageTable:
    """For every role of a stack with how few heads it still occurs, those that last longest first."""
    about = (
        "Roles are those that heads had before any were removed. The fewer heads are left while a role still occurs, "
        "the later it dies; next to it, the average share of its heads that a run leaves, and that share for all "
        "heads."
    )
    return page_table("Which roles die last", labelled_records(runs, "roles", _lasting), about)


def _results(sweep: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for _, rows in results_table(sweep).groupby(_BLOCK, sort=False):
        ends = picture_ends(rows[_COLUMNS])
        level = float(next(iter(float_column(rows[rows["run"] == UNPRUNED], TRAINED)), np.nan))
        form = f".{result_digits(rows)}f"
        for row in rows.to_dict("records"):
            record = {name: row[name] for name in _BLOCK}
            record["λ"] = _cell(float(row["penalty"]), "g") if row["run"] != UNPRUNED else Cell(UNPRUNED, "-1")
            record["heads"] = row["heads"]
            for init, words in _WORDS.items():
                value, low, high = (float(row[init + end]) for end in ("", "_low", "_high"))
                record[words] = _cell(value, form)
                record[f"95 % CI {words}"] = interval_cell((low, value, high, level), ends)
            record["difference from unpruned"] = difference_cell(row, f"{TRAINED}_", digits=result_digits(rows))
            yield record | {"n": row["n"]} | verdicts.verdict_cells(row)


def _remaining(gates: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for run, stack in ((gated, stack) for gated in sweep_runs.gated_runs(gates) for stack in gated.stacks):
        rows = run.last[run.last["stack"] == stack]
        left = rows[float_column(rows, "gate") > 0].sort_values(["layer", "head"])
        names = [f"{layer}.{head}" for layer, head in zip(left["layer"], left["head"], strict=True)]
        empty = sorted(set(rows["layer"]) - set(left["layer"]))
        penalty = repr(run.penalty) if np.isfinite(run.penalty) else "-1"
        yield {
            "model": run.model,
            "λ": Cell(sweep_runs.penalty_text(run.run, run.penalty), penalty),
            "stack": stack,
            "left": sweep_runs.open_heads(rows),
            "of": len(rows),
            "layers without heads": ", ".join(map(str, empty)),
            "heads left": ", ".join(names) if len(names) <= _NAMED else "",
        }


def _lasting(roles: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for roles_of_set in role_sets(roles):
        unpruned, *bars = roles_of_set.bars
        lasting = []
        for name, count in unpruned.counts.items() if bars else ():
            share = float(np.mean([bar.counts.get(name, 0) / count for bar in bars]))
            # The run with the fewest heads that still has the role.
            last = min((bar for bar in bars if bar.counts.get(name)), key=lambda bar: bar.left, default=None)
            record = {
                "model": roles_of_set.model,
                "stack": roles_of_set.stack,
                "role": "no role" if name == NONE else name,
                "heads with this role": count,
                "fewest heads left while it occurs": Cell(str(last.left), str(last.left)) if last else Cell("never"),
                "λ of that run": last.name if last else "",
                "mean share of its heads left": share,
                "mean share of all heads left": float(np.mean([bar.left / unpruned.left for bar in bars])),
            }
            lasting.append(((last.left if last else np.inf, -share), record))
        yield from (record for _, record in sorted(lasting, key=itemgetter(0)))


def _cell(value: float, form: str) -> Cell:
    return Cell(format(value, form), repr(value)) if np.isfinite(value) else Cell("")


def gate_heads(run: RecordedRun) -> HeadFacts:
    """The gates at the end of every run, and the roles that heads had."""
    if "gates" not in run.tables:
        return HeadFacts()
    about = "The head's gate after training with this penalty: 1 is open, 0 closed, which removes the head."
    series = [
        HeadSeries(f"gate {r.label}", f"gate, {r.label}", about, r.last.assign(model=r.model), "gate", high=1.0)
        for r in sweep_runs.gated_runs(run.tables["gates"])
    ]
    if "roles" not in run.tables:
        return HeadFacts(series)
    roles = run.tables["roles"].drop_duplicates(["model", *KEY_COLUMNS])
    before = roles.assign(text=roles["role"].fillna("").replace("", "none"))
    return HeadFacts(series, [HeadWords("Role before pruning", before)])


def gate_findings(run: RecordedRun) -> list[str]:
    """The sentences of a run, see `gate_sentences`; none where it has no sweep yet."""
    return gate_sentences(run.tables["sweep"]) if "sweep" in run.tables else []


def gate_sentences(sweep: pd.DataFrame) -> list[str]:
    """What is known of the task with most heads left, with as few as are enough or undecided, and with the fewest.

    Args:
        sweep: rows of `sweep.csv`, of one model or several.
    """
    sentences = []
    main = sweep_runs.main_rows(sweep)
    for model, rows in main.groupby("model", sort=False):
        unpruned = rows[sweep_runs.is_unpruned(rows)]
        pruned = rows[~sweep_runs.is_unpruned(rows) & (rows["init"] == TRAINED)]
        if pruned.empty:
            continue
        heads = int(sweep_runs.count_heads_left(unpruned)[0]) if len(unpruned) else 0
        all_left = (sweep_runs.count_heads_left(pruned) == heads) & ~(float_column(pruned, "between") > 0)
        if all_left.any():
            sentences += [
                f"{model}: no head is pruned with λ = {float(row['penalty']):g}: {_measured_text(row, unpruned)}. What "
                f"differs from the unpruned model is further training alone"
                f"{'' if row['penalty'] == 0 else '; compare with λ = 0'}.{without_skill.one_answer_after(row)}"
                for row in pruned[all_left].to_dict("records")
            ]
            pruned = pruned[~all_left]
        if pruned.empty:
            continue
        left, known = sweep_runs.count_heads_left(pruned), verdicts.known_verdicts(pruned).to_dict("index")
        scaled = float_column(pruned, "between")
        # Most heads left, the one that says most, and fewest; of as many, under the weakest and the strongest penalty.
        order = np.lexsort((-float_column(pruned, "penalty"), left))
        fewest, most = int(order[0]), int(order[-1])
        chosen_place = most
        if known:
            decided = verdicts.known_verdicts(pruned)
            chosen = verdicts.foremost(decided.assign(gone=-sweep_runs.count_heads_left(decided)), "gone")
            chosen_place = int(np.flatnonzero(pruned["run"] == chosen["run"])[0])
        for place in dict.fromkeys((most, chosen_place, fewest)):
            row, count = pruned.iloc[place], int(left[place])
            if count < heads and row.name in known:
                gone = f"{heads - count} of {heads} heads pruned"
                gone += f" and {scaled[place]:.0f} scaled down" * bool(scaled[place] > 0)
                gone += f" (λ = {float(row['penalty']):g})"
                text = verdicts.taken_away_text(known[row.name], gone, len(known), "pruned models")
                if place == chosen_place:
                    words = {"most": "most pruned", "least": "least pruned"}
                    text = verdicts.chosen_text(chosen, decided, "pruned models", **words) + text
                sentences.append(f"{model}: {text}")
                continue
            staying = f"{counted(count, 'head')} {'stays' if count == 1 else 'stay'}" if count else "no head stays"
            staying += f" ({scaled[place]:.0f} scaled down)" * bool(scaled[place] > 0)
            text = f"{model}: with λ = {float(row['penalty']):g} {staying}: {_measured_text(row.to_dict(), unpruned)}"
            constant = [row.to_dict(), *unpruned.to_dict("records")]
            if count < heads and len(unpruned) and all(map(without_skill.gives_one_answer, constant)):
                text = f"{model}: with λ = {float(row['penalty']):g} {staying}: "
                text += without_skill.one_answer_text(
                    row["metric"], int(row["n"]), "evaluation examples", "pruned heads"
                )
                sentences.append(text)
                continue
            sentences.append(f"{text}.{without_skill.one_answer_after(row.to_dict())}")
    return sentences


def _measured_text(row: Mapping[Any, Any], unpruned: pd.DataFrame) -> str:
    """The metric of a model beside that of the unpruned one, with the number of examples and the chance level."""
    text = f"{row['metric']} on {row['task']} {value_text(*(_number(row.get(name)) for name in VALUES))}"
    if len(unpruned):
        text += f", unpruned {number_text(float(unpruned['value'].iloc[0]))}"
    difference = [float(row.get(name, np.nan)) for name in DELTA]
    text += f", a change of {value_text(*difference)}" * bool(np.isfinite(difference[0]))
    n, chance = _number(row.get("n")), _number(row.get("chance"))
    text += f", n = {n:,.0f}" if np.isfinite(n) else ""
    return text + (f" (chance level {number_text(chance)})" if np.isfinite(chance) else "")

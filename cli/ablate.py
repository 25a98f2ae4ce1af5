"""`headlens ablate`: what a task loses without heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headlens.errors import counted
from headlens.tasks.task_options import DEFAULT_TASK

from .command import analysis
from .next_steps import next_step
from .screen import Screen, bounds

if TYPE_CHECKING:
    import pandas as pd

_LEVEL = 0.05  # of significance


@analysis("Analyses")
def ablate(run: Any, request: Any, screen: Screen) -> str | None:
    """Measure what a task loses without each attention head, and with many heads pruned.

    Examples: headlens ablate · headlens ablate ./my-classifier --task sst2 --data dev.tsv --prune 3,10,20,30
    """
    from headlens.analyses.ablate.figures import NONE
    from headlens.analyses.ablate.overviews import (
        NONE_SIGNIFICANT,
        best_alone,
        most_damage,
        most_restored,
        one_row_for_orders,
        two_methods,
        without,
    )
    from headlens.analyses.ablate.pruning_strategies import CONTROLS
    from headlens.analyses.ablate.worth_over_training import worth_by_step
    from headlens.findings.layer_smoothness import smoothness_on_console
    from headlens.pages.formatting import DELTA, digits_of, value_text
    from headlens.tables.shared_columns import VERDICTS

    tables: Mapping[str, pd.DataFrame] = run.tables
    screen.findings("ablate", run)
    intact = [
        {"model": facts["model"], "metric": metric, "value": f"{e['value']:.4f}", "95 % CI": bounds(e, 4)}
        for facts in run.models
        for metric, e in facts["evaluation"].items()
    ]
    data = run.models[0]["data"]
    screen.table(f"All heads, {counted(data['examples'], 'example')} of {data['name']}", intact)
    if by_step := worth_by_step(tables["ablation"], run.models):
        counts = [{"step": row["step"]} | {v: _known(row[v], ".0f") for v in VERDICTS} for row in by_step]
        if any(row[v] for row in counts for v in VERDICTS):
            screen.table("Heads by their verdicts, over the training", counts)
        # Of checkpoints the last is shown in full.
        tables = {n: t[t["model"] == by_step[-1]["model"]] for n, t in tables.items() if n != "smoothness"}
    for (model, mode), group in tables["ablation"].groupby(["model", "mode"], sort=False):
        alone, denoises = mode == "keep-only", mode == "denoise"
        chosen = best_alone(group) if alone else most_restored(group, 8) if denoises else most_damage(group, 8)
        digits = digits_of(chosen[["value", "baseline"]], least=4)
        rows = [_of_head(row, digits) for row in chosen.to_dict("records")]
        title = "Best head of each layer when it is the only one kept"
        what, how = ("gains", "denoising") if denoises else ("losses", f"{mode!s} ablation")
        how = f"path patching to {group['receiver'].iloc[0]}" if mode == "path" else how
        title = title if alone else f"Largest {what} {without(str(mode))} a head ({how})"
        if rows:
            # Of heads that make no difference some come first, too.
            unclear = not alone and not (chosen["p_holm"] < _LEVEL).any()
            screen.table(f"{title}, {model!s}{NONE_SIGNIFICANT * unclear}", rows, two_methods(chosen))
    if "smoothness" in tables:
        screen.show(*smoothness_on_console(tables["smoothness"]))
    for model, every in tables["pruning"].groupby("model", sort=False) if "pruning" in tables else ():
        group = every[~every["strategy"].isin(CONTROLS)]
        digits = digits_of(group["value"], least=4)
        rows = [
            {
                "strategy": row["strategy"],
                "pruned": row["n_pruned"],
                str(row["metric"]): f"{row['value']:.{digits}f}",
                "95 % CI": f"{row.get('spread') or ''}{bounds(row, digits)}",
                "change": "" if row["strategy"] == NONE else value_text(*(row[name] for name in DELTA), digits=digits),
                "p (Holm)": _known(row["p_holm"], ".3g"),
                "on the selection split": f"{row['ranking_value']:.{digits}f}",
                "parameters": _known(row["parameters"], ","),
                "theoretical speed-up": _known(row["speedup"], ".2f"),
                "verdict": row["verdict"] if isinstance(row["verdict"], str) else "",
            }
            for row in one_row_for_orders(group).to_dict("records")
        ]
        several = (group.groupby(["strategy", "n_pruned"]).size() > 1).any()
        remark = "Of random orders: their mean, and their range in place of an interval. " * bool(several)
        remark += "Random sets beside those of strategies are in pruning.csv." * (len(every) > len(group))
        judged = group[group["verdict"].notna()]
        remark += " " + (two_methods(judged, ("delta_low", "delta_high", "p_holm"), "sets") or "")
        screen.table(
            f"{model!s} pruned, evaluated on {group['n'].iloc[0]} held-out examples", rows, remark.strip() or None
        )
    return following(run, request)


def _of_head(row: Mapping[Any, Any], digits: int) -> dict[str, str]:
    from headlens.analyses.ablate.overviews import restored_text
    from headlens.findings.verdicts import tied

    return {
        "head": f"{row['stack']}.{row['layer']}.{row['head']}{tied(row.get('alike', 1))}",
        str(row["metric"]): f"{row['value']:.{digits}f}",
        "change": f"{row['delta']:+.{digits}f}",
        "95 % CI": bounds(row, digits),
        "p": f"{row['p_value']:.3g}",
        "p (Holm)": f"{row['p_holm']:.3g}",
        **({"restored": restored_text(row)} if row["mode"] == "denoise" else {}),
        "verdict": row["verdict"] if isinstance(row["verdict"], str) else "",
    }


def following(run: Any, request: Any) -> str | None:
    """Cutting out the largest set of heads that is not needed, or pruning while the task is learned."""
    if len(request.models) > 1 or request.mask.mask is not None:
        return None  # `prune` and `compact` take one model, without a mask
    if request.options.mode in ("path", "denoise"):
        # What is not shown to be needed by them may still be needed.
        return next_step("ablate", request, request.models[0])
    if "pruning" not in run.tables:
        task = str(run.tables["ablation"]["task"].iloc[0])
        if task.startswith("translation") and request.data.columns:
            return None  # prune learns translation from files of lines
        words = ["--task", "translation" if task == "translation-loss" else task] if task != DEFAULT_TASK else []
        # A few examples would be divided into even fewer, to learn from and to evaluate on.
        return next_step("prune", request, request.models[0], *words, without=("task", "limit"))
    from headlens.analyses.ablate.pruning_strategies import RANDOM_SETS
    from headlens.statistics.non_inferiority import NOT_NEEDED

    sets = run.tables["pruning"]
    sets = sets[(sets["verdict"] == NOT_NEEDED) & ~sets["strategy"].isin(RANDOM_SETS)]
    if sets.empty:
        return None
    row = sets.loc[sets["n_pruned"].idxmax()]
    rows = ["--where", f"strategy={row['strategy']},n_pruned={row['n_pruned']}"]
    rows += ["--stock"] * bool(row[["parameters"]].isna().all())  # heads that cannot be cut out of the weights
    # compact reads text, in the language of the model.
    from headlens.corpora.sources import is_text

    data = request.data.data
    read = ["--corpus", data[0]] if len(data) == 1 and is_text(data[0]) else []
    without = () if read else ("target", "limit", "chat", "skip_broken")
    table = str(run.folder / "pruning.csv")
    return next_step("compact", request, request.models[0], "--from", table, *rows, *read, without=without)


def _known(number: Any, form: str) -> str:
    """Formats a number; empty where it is not known: heads set to 0 make nothing smaller, guesses have no verdicts."""
    import pandas as pd

    return "" if pd.isna(number) else format(number, form)

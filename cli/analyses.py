"""What the commands that analyse a model say of themselves in the help, and what they show of a run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from headlens.errors import counted

from .command import analysis, command
from .screen import Screen, bounds

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

MOST_RELATIONS = 12  # rows of a table
_LEVEL = 0.05  # of significance


@analysis("Analyses")
def ablate(run: Any, _: Any, screen: Screen) -> None:
    """Measure what a task loses without each attention head, and with many heads pruned.

    Examples: headlens ablate · headlens ablate ./my-classifier --task sst2 --data dev.tsv --prune 3,10,20,30
    """
    from headlens.analyses.ablate.head_cards import findings_of
    from headlens.analyses.ablate.overviews import best_alone, most_damage
    from headlens.analyses.layer_smoothness import smoothness_on_console

    tables: Mapping[str, pd.DataFrame] = run.tables
    screen.say(findings_of(tables))
    intact = [
        {"model": facts["model"], "metric": metric, "value": f"{e['value']:.4f}", "95 % CI": bounds(e, 4)}
        for facts in run.models
        for metric, e in facts["evaluation"].items()
    ]
    data = run.models[0]["data"]
    screen.table(f"All heads, {counted(data['examples'], 'example')} of {data['name']}", intact)
    for (model, mode), group in tables["ablation"].groupby(["model", "mode"], sort=False):
        alone = mode == "keep-only"
        rows = [
            {
                "head": f"{row['stack']}.{row['layer']}.{row['head']}",
                str(row["metric"]): f"{row['value']:.4f}",
                "change": f"{row['delta']:+.4f}",
                "95 % CI": bounds(row, 4),
                "p": f"{row['p_value']:.3g}",
                "p (Holm)": f"{row['p_holm']:.3g}",
            }
            for row in (best_alone(group) if alone else most_damage(group, 8)).to_dict("records")
        ]
        title = "Best head of each layer when it is the only one kept"
        title = title if alone else f"Most important heads ({mode!s} ablation)"
        if rows:
            # Of heads that make no difference some come first, too.
            unclear = not alone and not (group["p_holm"] < _LEVEL).any()
            screen.table(f"{title}, {model!s}", rows, "No change is significant." if unclear else None)
    if "smoothness" in tables:
        screen.show(*smoothness_on_console(tables["smoothness"]))
    for model, group in tables["pruning"].groupby("model", sort=False) if "pruning" in tables else ():
        rows = [
            {
                "strategy": row["strategy"],
                "seed": row["seed"],
                "pruned": row["n_pruned"],
                str(row["metric"]): f"{row['value']:.4f}",
                "95 % CI": bounds(row, 4),
                "on the selection split": f"{row['ranking_value']:.4f}",
                "parameters": f"{row['parameters']:,}",
                "speed-up": f"{row['speedup']:.2f}",
            }
            for row in group.to_dict("records")
        ]
        screen.table(f"{model!s} pruned, evaluated on {group['n'].iloc[0]} held-out examples", rows)


@analysis("Analyses")
def attend(run: Any, request: Any, _: Screen) -> str:
    """Show where every head looks in given sentences: an interactive page, and one figure per layer.

    Arguments with a space are sentences. Examples: headlens attend "The cat that I saw sleeps." ·
    headlens attend bert-base-uncased "One sentence." "Another one." --without encoder.2.8
    """
    classify = shlex.join(["headlens", "classify", request.model])
    return f"open {run.folder / 'attention.html'} in a browser, or {classify}"


@command("Analyses")
def classify(request: Any, screen: Screen) -> None:
    """Show what every attention head does (confidence, positions, syntax, rare words) and name its role.

    Examples: headlens classify · headlens classify bert-base-uncased albert-base-v2 --corpus en_ewt-ud-test.conllu
    """
    from headlens.analyses.classify.metric_declarations import measure_records, registered_declarations
    from headlens.analyses.classify.recipe import run_classify
    from headlens.analyses.classify.role_agreement import role_records
    from headlens.analyses.classify.roles import role_family
    from headlens.analyses.classify.syntax_figure import best_heads, gain, verdicts
    from headlens.analyses.layer_smoothness import smoothness_on_console
    from headlens.pages.page_tables import page_table

    def show(run: Any) -> None:
        tables: Mapping[str, pd.DataFrame] = run.tables
        screen.say(run.findings)
        heads = tables["heads"]
        held, nearest = (heads[name].map(role_family) for name in ("role", "nearest"))
        told = {
            f"{model}{name}": own[heads["model"] == model]
            for model in heads["model"].unique()
            for name, own in (("", held), (" (closest, if no role)", nearest.where(held == "none", "")))
        }
        roles = [*sorted({*held, *nearest} - {"none"}), "none"]
        rows = [{"role": role, **{name: int((own == role).sum()) for name, own in told.items()}} for role in roles]
        screen.table("Heads by their strongest role", rows)
        if len(set(heads["model"])) > 1:
            title = "Roles found in any model: number of heads, and the best head with its measured value and score"
            screen.show(page_table(title, role_records(tables["roles"])).console())
        screen.table("Measures", list(measure_records(heads, registered_declarations())))
        if "smoothness" in tables:
            screen.show(*smoothness_on_console(tables["smoothness"]))
        for name, group in best_heads(tables["syntax"]).groupby("model", sort=False) if "syntax" in tables else ():
            judged = group.assign(
                verdict=verdicts(group, request.options.thresholds.min_instances), gain=gain(group)
            ).sort_values("gain", ascending=False, kind="stable")
            title = f"Best head of each relation and direction, {name}"
            if len(judged) > MOST_RELATIONS:
                title += f" (the {MOST_RELATIONS} of {len(judged)} farthest above their baselines; all: syntax.csv)"
            best = [
                {
                    "relation": f"{row['relation']} {row['direction']}",
                    "head": f"{row['stack']}.{row['layer']}.{row['head']}",
                    "n": row["n"],
                    "accuracy": f"{row['accuracy']:.2f}",
                    "95 % CI": f"{row['ci_low']:.2f}-{row['ci_high']:.2f}",
                    "baseline": f"{row['baseline']:.2f}",
                    "syntactic": row["verdict"],
                }
                for row in judged.head(MOST_RELATIONS).to_dict("records")
            ]
            screen.table(title, best)
        if "relevance" in tables:
            _show_relevance(tables, screen)
        screen.notes(run.notes)

    run = run_classify(request, screen, measured=show)
    report = shlex.join(["headlens", "report", str(run.folder)])
    attend = shlex.join(["headlens", "attend", request.models[0], "A sentence of yours."])
    screen.finish(run.summary(), run.files, f"{report}, or {attend}")


@analysis("Analyses")
def relevance(run: Any, _: Any, screen: Screen) -> None:
    """Measure what every attention head contributes to the output, by layer-wise relevance propagation.

    Example: headlens relevance ./my-classifier --corpus dev.tsv --column sentence --relevance-target class:positive
    """
    _show_relevance(run.tables, screen)


def _show_relevance(tables: Mapping[str, pd.DataFrame], screen: Screen) -> None:
    """The most relevant heads of the rule asked for, in their layers and across them, and how far other rules agree."""
    from headlens.analyses.relevance.overviews import largest_heads, largest_record
    from headlens.pages.page_tables import page_table

    heads = tables["relevance"]
    rule = heads["rule"].iloc[0]
    for (model, stack), group in heads[heads["rule"] == rule].groupby(["model", "stack"], sort=False):
        best = [
            {
                "head": f"{row['stack']}.{row['layer']}.{row['head']}",
                "share of its layer": f"{row['relevance']:.3f}",
                "95 % CI": bounds(row, 3),
                "signed": row["signed"],
                "raw": row["raw"],
                "examples": row["n"],
            }
            for row in group.nlargest(8, "relevance").to_dict("records")
        ]
        even = (1 / group.groupby("layer")["head"].transform("count")).mean()
        start = f"rule {rule}, target {group['target'].iloc[0]}; an equal share would be {even:.3f}"
        screen.table(f"Most relevant heads of {model}, {stack} ({start})", best)
        largest = [largest_record(row) for row in largest_heads(group, 8).to_dict("records")]
        screen.show(page_table(f"Largest contributions of {model}, {stack}, across layers", largest).console())
    if "correlations" in tables:
        rows = [
            {
                "stack": row["stack"],
                "other rule": row["other_rule"],
                "quantity": row["of"],
                "scope": "all heads" if row["scope"] == "heads" else "within layers",
                "heads": row["n"],
                "rho": f"{row['spearman']:.2f}",
                "95 % CI": bounds(row, 2),
            }
            for row in tables["correlations"].dropna(subset="spearman").to_dict("records")
        ]
        if rows:
            screen.table(f"Does {rule} rank the heads in the same order as the other rules? (Spearman)", rows)


@analysis("Analyses")
def masks(run: Any, request: Any, screen: Screen) -> str:
    """Count and draw fixed attention patterns, write them as mask files and, with --task, train models under them.

    Examples: headlens masks · headlens masks --pattern "window:3|global:1|random:2" --length 64
    · headlens masks demo --task sst2 --data train.tsv --dev-data dev.tsv --pattern star --pattern bigbird --seeds 3
    · headlens masks demo --task paraphrase --graph neighbour --graph random --layers all --layers last:3
    """
    counts: pd.DataFrame = run.tables["sparsity"]
    rows = []
    for name, group in counts.groupby("mask", sort=False):
        shares, printed = ([f"{100 * v:.1f}" for v in group[c]] for c in ("sparsity", "paper_sparsity"))
        _, _, parameters = str(group["pattern"].iloc[0]).partition(":")
        row = {
            "pattern": name,
            "parameters": parameters if "|" not in parameters else "",
            "allowed": group["allowed"].iloc[0],
            "masked, %": shares[0],
            "without diagonal, %": shares[1],
        }
        rows.append(row if group["paper_sparsity"].isna().all() else {**row, "in the paper": " / ".join(printed)})
    if rows:
        screen.table(f"Fixed patterns at n = {counts['n'].iloc[0]}", rows)
    screen.show(*study_tables(run.tables))
    if request.study is not None:
        return shlex.join(["headlens", "report", str(run.folder)])
    use = request.pattern[0] if request.pattern else "star"
    return shlex.join(["headlens", "ablate", "--mask", use, *["--no-diagonal"] * request.no_diagonal])


def study_tables(tables: Mapping[str, pd.DataFrame]) -> Iterator[Table]:
    """What models achieve that were trained under masks, over seeds; nothing where none was trained."""
    from headlens.analyses.masks.draws import SPREAD, draw_summary, mask_words, spread_texts
    from headlens.analyses.masks.study_figures import has_delta, means
    from headlens.pages.formatting import DELTA, share_text, value_text
    from headlens.pages.page_tables import summary_table
    from headlens.plots.curves import VALUES

    if "masks" not in tables:
        return
    for (model, task, metric), rows in means(tables["masks"]).groupby(["model", "task", "metric"], sort=False):
        lines = [
            {
                "pattern": row["pattern"],
                "layers": row["layers"],
                "diagonal": row["control"],
                "masked, %": share_text(row["sparsity"]),
                "masked in texts, %": share_text(row["sparsity_texts"]),
                f"{metric} [95 % CI]": value_text(*(row[name] for name in VALUES)),
                **({"difference from unmasked": value_text(*(row[name] for name in DELTA))} if has_delta(rows) else {}),
                **({"seeds": row["seeds"]} if (rows["seeds"] > 1).any() else {}),
            }
            for row in rows.to_dict("records")
        ]
        yield summary_table(f"{model} trained under masks, on {task}", lines)
    drawn: dict[str, list[dict[str, object]]] = {}
    for row in draw_summary(tables["draws"], tables["masks"]) if "draws" in tables else ():
        line: dict[str, object] = {"mask": mask_words(row), **dict(zip(SPREAD, spread_texts(row), strict=True))}
        line["the median mask"] = value_text(*(row[name] for name in VALUES))
        drawn.setdefault(f"Masks drawn from learned degrees, {row['metric']} on {row['task']}", []).append(line)
    yield from (summary_table(title, lines) for title, lines in drawn.items())


@analysis("Analyses")
def probe(run: Any, _: Any, screen: Screen) -> None:
    """Find governors from the attention of all heads: one learned weight per head and direction, scored as UAS.

    Examples: headlens probe · headlens probe bert-base-uncased --corpus en_ewt-ud-train.conllu --dev dev.conllu
    """
    from headlens.analyses.probe.report import probe_records

    screen.say(run.findings)
    screen.table("Words whose governor is found", probe_records(run.tables["probe"]))


@analysis("Analyses")
def sparsefinder(run: Any, _: Any, screen: Screen) -> None:
    """Predict which attention weights of an entmax model will be zero, and measure how good the predictions are.

    Examples: headlens sparsefinder · headlens sparsefinder runs/entmax/model --corpus en_ewt-ud-test.conllu
    """
    from headlens.analyses.sparsefinder.report import method_areas

    for (model, stack), rows in method_areas(run.tables["areas"]):
        screen.table(f"Methods by area under the recall-sparsity curve, {model}, {stack}", rows)


@analysis("Results", plans=False)
def report(run: Any, _: Any, screen: Screen) -> str:
    """Redraw the figures of one or more runs from their tables, and write a single self-contained page, report.html.

    Examples: headlens report runs/classify-demo-20261121-103000 · headlens report FIRST SECOND --out comparison
    """
    screen.table("On the page", run.rows())
    return f"open {run.page} in a browser"

"""`headlens classify`: what every head does."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .command import command
from .next_steps import next_step
from .relevance import show_relevance
from .screen import Screen

if TYPE_CHECKING:
    import pandas as pd

MOST_RELATIONS, _MOST_CIRCUITS = 12, 5  # rows of a table


@command("Analyses")
def classify(request: Any, screen: Screen) -> None:
    """Show what every attention head does (confidence, positions, syntax, rare words) and name its role.

    Examples: headlens classify · headlens classify bert-base-uncased albert-base-v2 --corpus en_ewt-ud-test.conllu
    """
    from headlens.analyses.classify.metric_declarations import measure_records, registered_declarations
    from headlens.analyses.classify.overviews import ROLE_SCORE, family_counts
    from headlens.analyses.classify.recipe import run_classify
    from headlens.analyses.classify.roles_over_training import of_last_checkpoint
    from headlens.analyses.classify.syntax_figure import best_head_name, best_heads, gain
    from headlens.findings.layer_smoothness import smoothness_on_console
    from headlens.pages.formatting import by_sign
    from headlens.pages.page_tables import page_table
    from headlens.roles.even_attention import even_stacks, without_even
    from headlens.roles.role_rules import role_records
    from headlens.roles.syntax_verdicts import explained_verdicts, verdicts

    def show(run: Any) -> None:
        # Of checkpoints of one training the last is shown in full.
        tables: Mapping[str, pd.DataFrame] = of_last_checkpoint(run.tables, run.steps)
        _show_findings(run, screen)
        heads, least = tables["heads"], request.options.thresholds.min_instances
        even = even_stacks(heads)
        screen.table("Heads by their strongest role", family_counts(heads))
        if len(set(heads["model"])) > 1:
            title = "Roles found in any model: number of heads, and the best head with its measured value and score"
            if records := role_records(tables["roles"], even):
                screen.show(page_table(title, records).console())
                screen.say([ROLE_SCORE])
        _show_probes(tables, screen)
        measures = list(measure_records(heads, registered_declarations(), least))
        screen.show(page_table("Measures", measures).console())
        if "smoothness" in tables:
            screen.show(*smoothness_on_console(tables["smoothness"]))
        best = best_heads(without_even(tables["syntax"], even)) if "syntax" in tables else None
        for name, group in () if best is None else best.groupby("model", sort=False):
            judged = group.assign(verdict=verdicts(group, least), gain=gain(group)).sort_values(
                "gain", ascending=False, kind="stable"
            )
            title = f"Best head of each relation and direction, {name}"
            if len(judged) > MOST_RELATIONS:
                shown = by_sign(
                    judged["gain"].head(MOST_RELATIONS).to_numpy(),
                    above="farthest above their baselines",
                    below="nearest to their baselines, none of which is beaten",
                    mixed="highest above their baselines, or nearest below",
                    equal="first ones, all at their baselines",
                    none="first ones",
                )
                title += f" (the {MOST_RELATIONS} of {len(judged)} {shown}; all: syntax.csv)"
            records = [
                {
                    "relation": f"{row['relation']} {row['direction']}",
                    "head": best_head_name(row),
                    "n": row["n"],
                    "accuracy": f"{row['accuracy']:.2f}",
                    "95 % CI": f"{row['ci_low']:.2f}-{row['ci_high']:.2f}",
                    "baseline": f"{row['baseline']:.2f}",
                    "uniform": f"{row['accuracy_null']:.2f}",
                    "syntactic": row["verdict"],
                }
                for row in judged.head(MOST_RELATIONS).to_dict("records")
            ]
            screen.table(title, records)
            screen.say(explained_verdicts(row["syntactic"] for row in records))
        if "relevance" in tables:
            show_relevance(tables, screen)
        screen.notes(run.notes)

    run = run_classify(request, screen, measured=show)
    report = shlex.join(["headlens", "report", str(run.folder)])
    heads = run.tables["heads"]
    first = heads[heads["model"] == heads["model"].iloc[0]]
    # Without a translation the maps would be those of the encoder alone.
    translation = ["--target-text", "Its translation."] * bool((first["stack"] == "cross").any())
    sample = "1 2 3" if request.model_options.tokenizer == "ids" else "A sentence of yours."
    attend = next_step("attend", request, request.models[-1 if run.steps else 0], sample, *translation)
    # Relevance is of one model, and of all of a corpus.
    single = len(request.models) == 1 and request.shard is None and request.merge == ()
    relevance = [next_step("relevance", request, request.models[0])] * single
    screen.finish_run("classify", run, ", or ".join([*relevance, report, attend]))


def _show_probes(tables: Mapping[str, pd.DataFrame], screen: Screen) -> None:
    """The best heads of every probe, and of what weights do."""
    from headlens.analyses.classify.circuit_report import composition_records, copying_records
    from headlens.analyses.classify.probe_report import PROBE_COLUMNS, head_probe_records

    if "probes" in tables:
        screen.table("Best heads of each probe, on prompts made for it", head_probe_records(tables["probes"]))
        screen.say([PROBE_COLUMNS])
    if "circuits" in tables:
        screen.table("Largest copying scores", copying_records(tables["circuits"], _MOST_CIRCUITS))
        screen.table("Pairs of heads that compose most", composition_records(tables["composition"], _MOST_CIRCUITS))


def _show_findings(run: Any, screen: Screen) -> None:
    """The findings, and the roles of checkpoints of one training by step."""
    from headlens.analyses.classify.roles_over_training import roles_by_step

    screen.say(run.findings)
    if run.steps:
        screen.table("Heads that hold each role, over the training", roles_by_step(run.tables["heads"], run.steps))

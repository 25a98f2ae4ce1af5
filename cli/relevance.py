"""`headlens relevance`: what every head contributes to the output."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .command import analysis
from .next_steps import next_step
from .screen import Screen, bounds

if TYPE_CHECKING:
    import pandas as pd


_OF_CLASSES = ("predicted", "class")  # how targets begin that only classifiers have


@analysis("Analyses")
def relevance(run: Any, request: Any, screen: Screen) -> str:
    """Measure what every attention head contributes to the output, by layer-wise relevance propagation.

    Example: headlens relevance ./my-classifier --corpus dev.tsv --column sentence --relevance-target class:positive
    """
    from headlens.corpora.sources import is_text

    show_relevance(run.tables, screen)
    if str(run.tables["relevance"]["target"].iloc[0]).startswith(_OF_CLASSES):
        # What its heads are worth is told by labelled examples, which no option of this command names.
        return shlex.join(["headlens", "report", str(run.folder)])
    stacks, pairs = set(run.tables["relevance"]["stack"]), request.corpus_options.target is not None
    masked = not pairs and run.tables["relevance"]["target"].iloc[0] == "masked"
    options = request.corpus_options
    is_lines = Path(request.corpus).is_file() and (is_text(request.corpus) or bool(options.chat and not options.column))
    # What the head is worth: of a language model's own text and of translations; else on what comes with headlens.
    data = ["--data", request.corpus] if (stacks == {"decoder"} or pairs or masked) and is_lines else []
    if "cross" in stacks and not data:
        # Without translations to measure on, what is left are paraphrases, which its encoder alone would read.
        return shlex.join(["headlens", "report", str(run.folder)])
    task = ["--task", "translation-loss" if pairs else "mlm"] if data and (pairs or masked) else []
    without = () if data else ("target", "limit", "skip_broken", "chat")
    return next_step("ablate", request, request.model, *task, *data, without=without)


def show_relevance(tables: Mapping[str, pd.DataFrame], screen: Screen) -> None:
    """The heads that contribute most under the rule asked for, the largest shares, and how far other rules agree."""
    from headlens.pages.page_tables import page_table
    from headlens.relevance_propagation import overviews

    heads = tables["relevance"]
    rule = heads["rule"].iloc[0]
    for (model, stack), group in heads[heads["rule"] == rule].groupby(["model", "stack"], sort=False):
        of = f"of {model}, {stack}"
        start = f"rule {rule}, target {group['target'].iloc[0]}"
        largest = [overviews.largest_record(row) for row in overviews.largest_heads(group, 8).to_dict("records")]
        screen.show(page_table(f"Largest contributions {of} ({start})", largest).console())
        shares = overviews.largest_shares(group, 8)
        best = [
            {
                "head": f"{row['stack']}.{row['layer']}.{row['head']}",
                "share of its layer": f"{row['relevance']:.3f}",
                "95 % CI": bounds(row, 3),
                "signed": row["signed"],
                "raw": row["raw"],
                "positive sum": f"{row['positive']:.2f}",
                "examples": row["n"],
            }
            for row in shares.to_dict("records")
        ]
        even = (1 / group.groupby("layer")["head"].transform("count")).mean()
        screen.table(f"{overviews.shares_title(group)} {of}: an equal share would be {even:.3f}", best)
        if (shares["positive"] >= 1.005).any():  # 1.01 as it is written; sums of 1 are rounded
            screen.say([overviews.OPPOSED])
    if "correlations" in tables:
        rows = [
            {
                "stack": row["stack"],
                "other rule": row["other_rule"],
                "quantity": row["of"],
                "scope": row["over"],
                "heads": row["n"],
                "rho": f"{row['spearman']:.2f}",
                "95 % CI over examples": bounds(row, 2),
            }
            for row in overviews.shown_correlations(tables["correlations"].dropna(subset="spearman"))
        ]
        if rows:
            screen.table(f"Does {rule} rank the heads in the same order as the other rules? (Spearman)", rows)

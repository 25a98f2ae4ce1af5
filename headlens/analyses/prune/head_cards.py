"""What `headlens prune` tells about single heads, and about all of them in a few sentences."""

from __future__ import annotations

import numpy as np

from headlens.analyses.prune.sweep_runs import gated_runs
from headlens.analyses.prune.sweep_summary import TRAINED, count_heads_left, is_unpruned, main_rows
from headlens.errors import counted
from headlens.heads import KEY_COLUMNS
from headlens.pages.head_cards import HeadFacts, HeadSeries, HeadWords
from headlens.pages.page_tables import number_text
from headlens.runs.reading import RecordedRun


def gate_heads(run: RecordedRun) -> HeadFacts:
    """The gates at the end of every run, and the roles that heads had."""
    if "gates" not in run.tables:
        return HeadFacts()
    about = "The head's gate after training with this penalty: 1 is open, 0 closed, which removes the head."
    series = [
        HeadSeries(
            f"gate {run_rows.label}",
            f"gate, {run_rows.label}",
            about,
            run_rows.last.assign(model=run_rows.model),
            "gate",
        )
        for run_rows in gated_runs(run.tables["gates"])
    ]
    if "roles" not in run.tables:
        return HeadFacts(series)
    roles = run.tables["roles"].drop_duplicates(["model", *KEY_COLUMNS])
    before = roles.assign(text=roles["role"].fillna("").replace("", "none"))
    return HeadFacts(series, [HeadWords("Role before pruning", before)])


def gate_findings(run: RecordedRun) -> list[str]:
    """What is left of the task with the fewest heads, and with most of them."""
    if "sweep" not in run.tables:
        return []
    sentences = []
    main = main_rows(run.tables["sweep"])
    for model, rows in main.groupby("model", sort=False):
        unpruned = rows[is_unpruned(rows)]
        pruned = rows[~is_unpruned(rows) & (rows["init"] == TRAINED)]
        if pruned.empty:
            continue
        left = count_heads_left(pruned)
        for place in dict.fromkeys((int(np.argmax(left)), int(np.argmin(left)))):
            row, count = pruned.iloc[place], int(left[place])
            value, low, high = (number_text(float(row[name])) for name in ("value", "ci_low", "ci_high"))
            text = (
                f"{model}: with λ = {float(row['penalty']):g} {counted(count, 'head')} "
                f"{'stays' if count == 1 else 'stay'}: {row['metric']} of {row['task']} {value} [{low}, {high}]"
            )
            if len(unpruned):
                text += f", with all heads {number_text(float(unpruned['value'].iloc[0]))}"
            sentences.append(text + ".")
    return sentences

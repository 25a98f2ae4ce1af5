"""`headlens masks`: fixed attention patterns, and models that are trained under them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .command import analysis
from .screen import Screen

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table


@analysis("Analyses")
def masks(run: Any, request: Any, screen: Screen) -> str:
    """Count and draw fixed attention patterns, write them as mask files and, with --task, train models under them.

    Examples: headlens masks · headlens masks --pattern "window:3|global:1|random:2" --length 64
    · headlens masks demo --task sst2 --data train.tsv --dev-data dev.tsv --pattern star --pattern bigbird --seeds 3
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
    screen.findings("masks", run)
    screen.show(*study_tables(run.tables))
    if request.study is not None:
        return shlex.join(["headlens", "report", str(run.folder)])
    use = request.pattern[0] if request.pattern else "star"
    return shlex.join(["headlens", "ablate", "--mask", use, *["--mask-rules", "no-diagonal"] * request.no_diagonal])


def study_tables(tables: Mapping[str, pd.DataFrame]) -> Iterator[Table]:
    """What models achieve that were trained under masks, over seeds; nothing where none was trained."""
    from headlens.analyses.masks.degree_tables import SPREAD, draw_summary, mask_words, spread_texts
    from headlens.analyses.masks.study_figures import has_delta, means
    from headlens.pages.formatting import DELTA, share_text, value_text
    from headlens.pages.page_tables import summary_table
    from headlens.plots.curves import VALUES
    from headlens.plots.mask_points import short_names

    if "masks" not in tables:
        return
    short = short_names(tables["masks"]["pattern"])
    for (model, task, metric), rows in means(tables["masks"]).groupby(["model", "task", "metric"], sort=False):
        lines = [
            {
                "pattern": short[row["pattern"]],
                "layers": row["layers"],
                # A mask may have no diagonal of its own.
                "diagonal": "as it is" if row["control"] == "kept" else row["control"],
                "masked, %": share_text(row["sparsity"]),
                "masked in texts, %": share_text(row["sparsity_texts"]),
                f"{metric} [95 % CI]": value_text(*(row[name] for name in VALUES)),
                **({"difference from unmasked": value_text(*(row[name] for name in DELTA))} if has_delta(rows) else {}),
                "verdict": row.get("verdict"),
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

"""`headlens train-dam`: masks of attention that are learned together with a model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from headlens.errors import counted

from .command import analysis
from .screen import Screen, bounds

if TYPE_CHECKING:
    import pandas as pd


@analysis("Models")
def train_dam(run: Any, _: Any, screen: Screen) -> None:
    """Learn which positions attention needs: train a model together with sparse attention masks.

    Examples: headlens train-dam · headlens train-dam new:bert-small --task mlm --corpus books.txt --steps 5000
    """
    from headlens.analyses.dam.report import baseline_of
    from headlens.pages.page_tables import difference_cell

    sweep: pd.DataFrame = run.tables["sweep"]
    screen.findings("train-dam", run)
    for (model, task, metric), group in sweep.groupby(["model", "task", "metric"], sort=False):
        difference = f"difference from {baseline_of(group)}"
        rows = [
            {
                "run": row["run"],
                "masked": "" if math.isnan(row["penalty"]) else f"{row['sparsity']:.1%}",
                "masked in texts": "" if math.isnan(row["penalty"]) else f"{row['sparsity_texts']:.1%}",
                str(metric): row["value"],
                "95 % CI": bounds(row, 3),
                difference: difference_cell(row).text,
                "verdict": row["verdict"] if isinstance(row["verdict"], str) else "",
            }
            for row in group.to_dict("records")
        ]
        on = f"{counted(int(group['n'].max()), 'example')} of {task}"
        screen.table(f"Learned masks of {model}, and {on} under them", rows)

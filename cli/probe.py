"""`headlens probe`: how much of a dependency tree can be read off the attention of all heads."""

from __future__ import annotations

from typing import Any

from .command import analysis
from .screen import Screen


@analysis("Analyses")
def probe(run: Any, _: Any, screen: Screen) -> None:
    """Find governors from the attention of all heads: one learned weight per head and direction, scored as UAS.

    Examples: headlens probe · headlens probe bert-base-uncased --corpus en_ewt-ud-train.conllu --dev dev.conllu
    """
    from headlens.analyses.probe.report import probe_records

    screen.say(run.findings)
    screen.table("Words whose governor is found", probe_records(run.tables["probe"]))

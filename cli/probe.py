"""`headlens probe`: how much of a dependency tree can be read off the attention of all heads."""

from __future__ import annotations

import shlex

from headlens.analyses.probe.options import COMMAND, ProbeRequest

from .command import command
from .screen import Screen


@command(COMMAND, "Analyses")
def probe(request: ProbeRequest, screen: Screen) -> None:
    """Find governors from the attention of all heads: one learned weight per head and direction, scored as UAS.

    Examples: headlens probe · headlens probe bert-base-uncased --corpus en_ewt-ud-train.conllu --dev dev.conllu
    """
    from headlens.analyses.probe.recipe import run_probe
    from headlens.analyses.probe.report import probe_records
    from headlens.pages.page_tables import summary_table

    run = run_probe(request, screen)
    screen.say(run.findings)
    screen.show(summary_table("Words whose governor is found", probe_records(run.tables["probe"])))
    screen.notes(run.notes)
    screen.finish(run.summary(), run.files, shlex.join(["headlens", "report", str(run.folder)]))

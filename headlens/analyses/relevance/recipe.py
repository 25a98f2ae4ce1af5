"""`relevance` with everything around it: corpus and model by name, a run folder with tables and figures."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from headlens.analyses.relevance.options import RelevanceRequest
from headlens.corpora.sentence import CorpusSummary, summarise
from headlens.corpora.sources import open_corpus, refuse_unused
from headlens.files import plain_value
from headlens.pages.command_report import write_results
from headlens.plots.style import named_after
from headlens.relevance_propagation.figures import relevance_figures
from headlens.relevance_propagation.head_relevance import HeadRelevances, head_relevance
from headlens.relevance_propagation.shares import NO_PREDICTION
from headlens.runs.progress import Reporter
from headlens.runs.run import FinishedRun, model_record, open_run


@dataclass(frozen=True)
class RelevanceRun(FinishedRun):
    """What a run gave, with what it read and what it measured."""

    corpus: CorpusSummary
    result: HeadRelevances

    def summary(self) -> dict[str, Any]:
        """Returns the run as JSON values: target, most relevant heads, rank correlations, conservation and notes."""
        heads = self.tables["relevance"]
        largest = heads[heads["rule"] == heads["rule"].iloc[0]].nlargest(10, "relevance")
        return {
            "out": str(self.folder),
            "corpus": asdict(self.corpus),
            "target": self.result.target,
            "most_relevant": largest[["stack", "layer", "head", "relevance", "ci_low", "ci_high"]].to_dict("records"),
            "correlations": plain_value(self.result.correlations.to_dict("records")),
            "conservation": _flows(self.result),
            "notes": self.notes,
        }


def run_relevance(request: RelevanceRequest, reporter: Reporter | None = None) -> RelevanceRun:
    """Read the corpus, load the model, measure the relevance of its heads, write the run folder.

    Raises:
        InputError: whatever is wrong with what was asked for; nothing is left half-written.
    """
    refuse_unused(request.corpus_options, request.corpus, request.corpus_options.target)
    with open_run("relevance", request.model, request, reporter, mask=request.mask) as run:
        loaded = run.load(request.model, request.model_options)
        corpus = open_corpus(request.corpus, request.corpus_options)
        with run.reporter.progress(f"reading {corpus.name}", None) as advance:
            summary = summarise(corpus, advance)
        text = f"relevance of the heads of {loaded.short_name}"
        with run.masked(loaded, request.mask), run.corpus_pass("relevance", text, loaded, summary) as corpus_pass:
            result = head_relevance(
                loaded,
                corpus,
                request.options,
                compare=request.compare,
                reading=request.reading,
                corpus_pass=corpus_pass,
            )
        for note in result.notes[:2]:
            if note.startswith(NO_PREDICTION):
                run.reporter.warn(note)  # before the numbers
        tables = result.frames(loaded.short_name)
        notes = result.notes + run.warnings
        if run.folder is not None:
            with run.reporter.status("writing tables and figures" if request.figures else "writing tables"):
                drawn = named_after(summary.name, relevance_figures(tables), run.mask_name)
                write_results(run.folder, tables, drawn if request.figures else ())
            facts = model_record(loaded, loaded.short_name) | {"encoding": asdict(result.encoding)}
            facts |= {"target": result.target, "conservation": _flows(result)}
            run.folder.finish({"models": [facts], "corpus": asdict(summary), "notes": notes})
        return RelevanceRun(run.path, run.files, tables, notes, summary, result)


def _flows(result: HeadRelevances) -> dict[str, dict[str, float]]:
    return {rule: {**asdict(flow), "lost": flow.lost} for rule, flow in result.conservation.items()}

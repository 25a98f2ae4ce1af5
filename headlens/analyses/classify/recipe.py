"""`classify_heads` with everything around it: corpus and models by name, a run folder with tables and figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from headlens.analyses.attend.analysis import AttentionMaps, collect_attention, label_lists, shown_example
from headlens.analyses.attend.stored_maps import write_maps
from headlens.analyses.classify.analysis import Classification, Frequencies, check_relations, classify_heads
from headlens.analyses.classify.metric_declarations import MetricDeclaration, registered_declarations
from headlens.analyses.classify.options import ClassifyRequest
from headlens.analyses.classify.parsing import keep_trees
from headlens.analyses.classify.report import write_classification
from headlens.analyses.classify.roles import count_families
from headlens.analyses.relevance.analysis import head_relevance
from headlens.analyses.relevance.options import ReadingOptions
from headlens.analyses.relevance.target_option import choose_target
from headlens.corpora.corpus_summary import CorpusSummary, summarise
from headlens.corpora.frequency import Frequency, make_frequency
from headlens.corpora.sentence import Corpus
from headlens.corpora.sources import ParsedCorpus, open_corpus, refuse_unused
from headlens.corpora.token_offsets import Side
from headlens.models.loading import LoadedModel
from headlens.runs.corpus_reader import CorpusReader
from headlens.runs.folder import RunFolder
from headlens.runs.model_record import model_label, model_record
from headlens.runs.progress import Reporter
from headlens.runs.run import Run, open_run


@dataclass(frozen=True)
class ClassifyRun:
    """What a run gave: the folder, the tables as written, what to know about them."""

    folder: Path
    files: list[Path]
    tables: dict[str, pd.DataFrame]
    notes: list[str]
    corpus: CorpusSummary

    def summary(self) -> dict[str, Any]:
        """Returns the run as JSON values: folder, corpus, number of heads of each role by model, and notes."""
        heads = self.tables["heads"]
        roles = {str(m): count_families(rows).to_dict() for m, rows in heads.groupby("model", sort=False)}
        return {"out": str(self.folder), "corpus": asdict(self.corpus), "roles": roles, "notes": self.notes}


def run_classify(request: ClassifyRequest, reporter: Reporter | None = None) -> ClassifyRun:
    """Read the corpus, load the models, classify their heads, write the run folder.

    Raises:
        InputError: whatever is wrong with what was asked for; nothing is left half-written.
    """
    refuse_unused(request.corpus_options, request.corpus, request.corpus_options.target, request.baseline_corpus)
    with open_run("classify", request.models[0], request, reporter) as run:
        # Before anything that takes long: what was named may not be there.
        lists, baseline = _frequencies(request), _baseline(request)
        loaded = run.load(request.models[0], request.model_options)
        corpus, summary = _corpus(request, loaded, run)
        read = _Read(corpus, summary, Frequencies(**lists, **_frequencies(request, corpus)), baseline)
        results: dict[str, Classification] = {}
        shown: dict[str, AttentionMaps] = {}
        facts = []
        for number, name in enumerate(request.models):
            loaded = loaded if number == 0 else run.load(name, request.model_options)
            label = model_label(loaded, results)
            with run.masked(loaded, request.mask):
                results[label] = _measured(request, run, loaded, f"{number}", read)
                if run.writes and (example := shown_example(corpus, loaded)) is not None:
                    (shown[label],) = collect_attention(loaded, [example])
            facts.append(_facts(loaded, label, results[label]))
        tables = _stack(results)
        notes = [f"{name}: {note}" if len(results) > 1 else note for name, r in results.items() for note in r.notes]
        notes += run.warnings
        if run.folder is not None:
            with run.reporter.status("writing tables and figures" if request.figures else "writing tables"):
                few = request.options.thresholds.min_instances
                more = [MetricDeclaration.of(metric) for metric in request.options.metrics]
                declarations = [*registered_declarations(), *more]
                write_classification(run.folder, tables, few, declarations, figures=request.figures)
                _write_maps(run.folder, shown)
            metrics = [declaration.as_record() for declaration in declarations]
            run.folder.finish({"models": facts, "corpus": asdict(summary), "metrics": metrics, "notes": notes})
        return ClassifyRun(run.path, run.files, tables, notes, summary)


@dataclass(frozen=True)
class _Read:
    """What is measured on, the same for all models."""

    corpus: Corpus
    summary: CorpusSummary
    frequencies: Frequencies
    baseline: Corpus | None


def _measured(request: ClassifyRequest, run: Run, loaded: LoadedModel, number: str, read: _Read) -> Classification:
    """One model's heads, and their relevance where that was asked for."""
    relevance = None
    if request.relevance:
        # First, for there are models that only relevance refuses.
        reading = ReadingOptions(request.options.batch_tokens, request.options.seed, request.options.long_sentences)
        text = f"relevance of the heads of {loaded.short_name}"
        with run.corpus_pass(f"relevance-{number}", text, loaded, read.summary) as corpus_pass:
            relevance = head_relevance(loaded, read.corpus, request.relevance_options, reading=reading, how=corpus_pass)
    text = f"classifying the heads of {loaded.short_name}"
    with run.corpus_pass(f"classify-{number}", text, loaded, read.summary) as corpus_pass:
        classification = classify_heads(
            loaded,
            read.corpus,
            request.options,
            read.frequencies,
            baseline_corpus=read.baseline,
            corpus_pass=corpus_pass,
        )
    return classification if relevance is None else classification.with_relevance(relevance)


def _write_maps(folder: RunFolder, shown: Mapping[str, AttentionMaps]) -> None:
    """What heads of each model attend to on one sentence, which the report shows."""
    weights = {
        f"{label}.{stack}": w.float().numpy() for label, maps in shown.items() for stack, w in maps.weights.items()
    }
    if weights:
        write_maps(folder, weights, {label: label_lists(maps) for label, maps in shown.items()})


def _corpus(request: ClassifyRequest, loaded: LoadedModel, run: Run) -> tuple[Corpus, CorpusSummary]:
    """The corpus, parsed once if it has to be; what the model cannot read is refused before."""
    corpus = open_corpus(request.corpus, request.corpus_options, request.parser)
    unparsed = corpus.corpus if isinstance(corpus, ParsedCorpus) else corpus
    if (first := next(iter(unparsed), None)) is not None:
        CorpusReader.of(loaded, first)
        if request.relevance:
            choose_target(request.relevance_options.relevance_target, loaded, paired=first.target is not None)
    if isinstance(corpus, ParsedCorpus):
        with run.reporter.progress(f"parsing with {request.parser}", None) as advance:
            corpus = keep_trees(corpus, run, advance)
    with run.reporter.progress(f"reading {corpus.name}", None) as advance:
        summary = summarise(corpus, advance)
    if summary.trees:
        check_relations(request.options.relations, summary.relations, corpus.name)
    return corpus, summary


def _baseline(request: ClassifyRequest) -> Corpus | None:
    if request.baseline_corpus is None:
        return None
    return open_corpus(
        request.baseline_corpus, replace(request.corpus_options, target=None, limit=None), request.parser
    )


def _frequencies(request: ClassifyRequest, corpus: Corpus | None = None) -> dict[Side, Frequency]:
    """The lists that were asked for, by side: without a corpus those from elsewhere, with one those counted in it."""
    specs: dict[Side, str] = {"source": request.frequency, "target": request.target_frequency}
    chosen = {
        side: spec for side, spec in specs.items() if spec != "none" and (spec == "corpus") == (corpus is not None)
    }
    return {side: make_frequency(spec, () if corpus is None else corpus, side) for side, spec in chosen.items()}


def _facts(loaded: LoadedModel, label: str, result: Classification) -> dict[str, Any]:
    return model_record(loaded, label) | {
        "encoding": asdict(result.encoding),
        "annotation": asdict(result.annotation),
    }


def _stack(results: Mapping[str, Classification]) -> dict[str, pd.DataFrame]:
    """The tables of all models under each other."""
    frames = [result.frames(label) for label, result in results.items()]
    names = list(dict.fromkeys(name for tables in frames for name in tables))
    return {name: pd.concat([tables[name] for tables in frames if name in tables], ignore_index=True) for name in names}

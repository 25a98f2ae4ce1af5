"""`classify_heads` with everything around it: corpus and models by name, a run folder with tables and figures."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from headlens.analyses.classify.findings import classify_findings
from headlens.analyses.classify.metric_declarations import MetricDeclaration, registered_declarations
from headlens.analyses.classify.options import ClassifyRequest
from headlens.analyses.classify.probed_models import ProbedModels
from headlens.analyses.classify.report import classify_figures
from headlens.attention_masks.model_mask import mask_source
from headlens.corpora.alignment import Side
from headlens.corpora.frequency import Frequency, make_frequency
from headlens.corpora.pharaoh import AlignedCorpus
from headlens.corpora.sentence import Corpus, CorpusSummary, summarise
from headlens.corpora.sources import ParsedCorpus, ReadableExamples, open_corpus, refuse_unused
from headlens.errors import OptionError
from headlens.findings.layer_smoothness import NAME as SMOOTHNESS
from headlens.findings.layer_smoothness import smoothness_notes, smoothness_table
from headlens.findings.result_notes import notes_of_models
from headlens.maps.sentence_attention import collect_attention, shown_examples
from headlens.maps.stored_maps import write_maps
from headlens.models.loading import LoadedModel, look_for_models
from headlens.models.names import first_and_last, recorded_steps
from headlens.options import CIRCUITS_PROBE
from headlens.pages.command_report import write_results
from headlens.pages.head_cards import SentenceMap
from headlens.plots.style import named_after
from headlens.relevance_propagation.head_relevance import HeadRelevances, head_relevance
from headlens.relevance_propagation.relevance_options import ReadingOptions
from headlens.relevance_propagation.targets import choose_target
from headlens.roles.even_attention import even_stacks, in_stacks
from headlens.roles.head_roles import (
    Classification,
    Frequencies,
    check_relations,
    check_split,
    classify_heads,
)
from headlens.roles.role_agreement import agreement_notes, role_agreement
from headlens.roles.role_rules import count_families
from headlens.runs.corpus_pass import CorpusReader, parse_shard, part_folders
from headlens.runs.folder import RunFolder
from headlens.runs.kept_trees import keep_trees
from headlens.runs.progress import Reporter
from headlens.runs.reading import titled_corpus
from headlens.runs.run import FinishedRun, Run, model_label, model_record, open_run
from headlens.shared_options import arguments
from headlens.unchanged_files import file_hashes

_SHOWN = 3  # sentences whose attention a run keeps
# Files, beside the corpus, that the sums of the pass come from.
_FILES = ("frequency", "target_frequency", "baseline_corpus", "alignments")
_CONFIDENCE = ("confidence", "confidence_all")  # what is compared from layer to layer
_NULL_UNDER_MASK = (
    "Where heads have masks of their own there is no one uniform attention: that which roles have to be above, and its "
    "values (…_null), know nothing of the mask, which alone may make a role of what a head does. Compare with the same "
    "run without the mask."
)
_OF_WEIGHTS = "Circuits are of the weights alone, which no mask changes."


@dataclass(frozen=True)
class ClassifyRun(FinishedRun):
    """What a run gave, with its findings in sentences, and steps of checkpoints by model."""

    corpus: CorpusSummary
    findings: list[str]
    steps: Mapping[str, int] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """Returns the run as JSON values: folder, corpus, number of heads of each role by model, and notes."""
        heads = self.tables["heads"]
        roles = {str(m): count_families(rows).to_dict() for m, rows in heads.groupby("model", sort=False)}
        texts = {"findings": self.findings, "notes": self.notes}
        return {"out": str(self.folder), "corpus": asdict(self.corpus), "roles": roles, **texts}


def run_classify(
    request: ClassifyRequest,
    reporter: Reporter | None = None,
    *,
    measured: Callable[[ClassifyRun], None] = lambda _: None,
) -> ClassifyRun:
    """Read the corpus, load the models, classify their heads, write the run folder.

    Args:
        request: what is asked for.
        reporter: shows progress.
        measured: called with the results when the tables are written and before figures are drawn, which takes longer.

    Raises:
        InputError: whatever is wrong with what was asked for; nothing is left half-written.
    """
    _check_named(request)
    with open_part(request, reporter) as run:
        # Before anything that takes long: what was named may not be there.
        lists, other, options = open_frequencies(request), request.baseline_corpus, request.options
        baseline = None if other is None else _whole_corpus(other, request)
        files = {f"the file of --{option.replace('_', '-')}": getattr(request, option) for option in _FILES}
        run.depend_on(None, file_hashes(files))
        loaded = run.load(request.models[0], request.model_options, reads_only=not request.relevance)
        corpus, summary = _corpus(request, loaded, run)
        frequencies = Frequencies(**lists, **open_frequencies(request, corpus))
        results, maps, facts = dict[str, Classification](), list[SentenceMap](), list[dict[str, Any]]()
        probed = ProbedModels(run, request.probes, options.seed, corpus)
        for number, name in enumerate(request.models):
            if number:
                loaded = run.load(name, request.model_options, reads_only=not request.relevance)
            probed.check(loaded)
            label = model_label(loaded, results)
            with run.masked(loaded, request.mask):
                # First, for there are models that only relevance refuses.
                relevance = _relevance(request, run, loaded, corpus, summary, number) if request.relevance else None
                text = f"classifying the heads of {loaded.short_name}"
                with run.corpus_pass(f"classify-{number}", text, loaded, summary) as corpus_pass:
                    classified = classify_heads(
                        loaded,
                        corpus,
                        options,
                        frequencies,
                        baseline_corpus=baseline,
                        summary=summary,
                        corpus_pass=corpus_pass,
                    )
                if options.stability:
                    with run.reporter.progress("resampling sentences", options.stability) as advance:
                        classified = classified.with_stability(advance)
                results[label] = classified if relevance is None else classified.with_relevance(relevance)
                probed.measure(loaded, label)
                if run.writes:
                    sides = frequencies.source, frequencies.target
                    shown = collect_attention(loaded, shown_examples(corpus, loaded, _SHOWN), frequencies=sides)
                    maps += [m for n, sentence in enumerate(shown) for m in sentence.sentence_maps(label, sentence=n)]
            probed.measure_weights(loaded, label)
            facts.append(model_record(loaded, label) | classified.record())
        steps = recorded_steps(facts)
        tables, notes = _together(results, options.seed, steps)
        tables |= probed.tables
        notes += [*probed.notes, *run.warnings, *_mask_notes(request), *_offset_notes(request, summary)]
        sentences = classify_findings(tables, [name for name, result in results.items() if result.too_little], steps)
        if run.folder is not None:
            write_results(run.folder, tables, ())
            _write_more(run.folder, maps, probed)
        measured(ClassifyRun(run.path, run.files, tables, notes, summary, sentences, steps))
        if run.folder is not None:
            declarations = [*registered_declarations(), *map(MetricDeclaration.of, options.metrics)]
            if request.figures:
                with run.reporter.status("drawing figures"):
                    drawn = classify_figures(tables, options.thresholds.min_instances, declarations, maps, steps)
                    drawn = named_after(titled_corpus(summary.name, other, options.level), drawn, run.mask_name)
                    write_results(run.folder, {}, drawn)
            metrics = [asdict(declaration) for declaration in declarations]
            run.folder.finish({"models": facts, "corpus": asdict(summary), "metrics": metrics, "notes": notes})
        return ClassifyRun(run.path, run.files, tables, notes, summary, sentences, steps)


def _whole_corpus(name: str, request: ClassifyRequest) -> Corpus:
    return open_corpus(name, replace(request.corpus_options, target=None, limit=None), request.parser)


def _offset_notes(request: ClassifyRequest, summary: CorpusSummary) -> list[str]:
    if (other := request.baseline_corpus) is None or not summary.trees:
        return []
    return [
        f"Fixed offsets are the most frequent ones of {Path(other).stem}, not of {summary.name}, where another offset "
        "may be right more often, and a head above the one of the other corpus below it."
    ]


def _mask_notes(request: ClassifyRequest) -> list[str]:
    source = mask_source(request.mask)
    if source is None:
        return []
    return [_NULL_UNDER_MASK] * (source.shape[1] > 1) + [_OF_WEIGHTS] * (CIRCUITS_PROBE in request.probes)


def _write_more(folder: RunFolder, maps: Sequence[SentenceMap], probed: ProbedModels) -> None:
    if maps:
        write_maps(folder, maps)
    probed.write()


def _check_named(request: ClassifyRequest) -> None:
    """What can be refused before anything is read or written."""
    refuse_unused(request.corpus_options, request.corpus, request.corpus_options.target, request.baseline_corpus)
    look_for_models(request.models)


def _relevance(
    request: ClassifyRequest, run: Run, loaded: LoadedModel, corpus: Corpus, summary: CorpusSummary, number: int
) -> HeadRelevances:
    """The relevance of the heads of a model, which is the one of this number in the run."""
    options = request.options
    reading = ReadingOptions(options.batch_tokens, options.seed, options.long_sentences)
    text = f"relevance of the heads of {loaded.short_name}"
    with run.corpus_pass(f"relevance-{number}", text, loaded, summary) as corpus_pass:
        return head_relevance(loaded, corpus, request.relevance_options, reading=reading, corpus_pass=corpus_pass)


def _together(
    results: Mapping[str, Classification], seed: int, steps: Mapping[str, int]
) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """The tables of all models under each other, and their notes; of several models also how they compare.

    Of checkpoints of one training, which have `steps`, the first and the last are compared.
    """
    frames = [result.frames(label) for label, result in results.items()]
    names = dict.fromkeys(name for tables_of_model in frames for name in tables_of_model)
    tables = {
        n: pd.concat([tables_of_model[n] for tables_of_model in frames if n in tables_of_model], ignore_index=True)
        for n in names
    }
    notes = notes_of_models({name: result.notes for name, result in results.items()}, once=bool(steps))
    if len(results) > 1:
        heads = tables["heads"][tables["heads"]["model"].isin(first_and_last(steps) or [*results])]
        agreement = role_agreement(heads)
        # Of models of different shapes there is none.
        tables |= {"agreement": agreement} if len(agreement) else {}
        # Of heads that attend evenly, confidence is 1 / tokens and noise.
        smoothness = smoothness_table(heads[~in_stacks(heads, even_stacks(heads))], _CONFIDENCE, seed)
        tables |= {SMOOTHNESS: smoothness} if len(smoothness) else {}
        notes += [*agreement_notes(agreement), *smoothness_notes(smoothness)]
    return tables, notes


def _corpus(request: ClassifyRequest, loaded: LoadedModel, run: Run) -> tuple[Corpus, CorpusSummary]:
    """The corpus, parsed once if it has to be; what the model cannot read is refused before."""
    corpus = open_corpus(request.corpus, request.corpus_options, request.parser)
    if request.alignments is not None:
        unlimited = open_corpus(request.corpus, replace(request.corpus_options, limit=None))
        corpus = AlignedCorpus(unlimited, request.alignments)
        if request.corpus_options.limit is not None:
            deque(corpus, maxlen=0)  # lines out of step may show at the end alone
            corpus = ReadableExamples(corpus, limit=request.corpus_options.limit)
    check_readable(request, loaded, corpus.corpus if isinstance(corpus, ParsedCorpus) else corpus)
    corpus = keep_trees(corpus, run, request.parser)
    with run.reporter.progress(f"reading {corpus.name}", None) as advance:
        summary = summarise(corpus, advance)
    if summary.trees:
        check_relations(request.options.relations or (), summary.relations, corpus.name)
    return corpus, summary


def check_readable(request: ClassifyRequest, loaded: LoadedModel, unparsed: Corpus) -> None:
    """Refuses a corpus that the model cannot read as asked, by its first example.

    Raises:
        ModelError, OptionError: see `CorpusReader.of`, `check_split`, `choose_target`.
    """
    if (first := next(iter(unparsed), None)) is None:
        return
    CorpusReader.of(loaded, first, split_at=request.options.split_at)
    if request.options.split_at is not None:
        check_split(unparsed, request.options.split_at, paired=first.target is not None)
    if request.relevance:
        choose_target(request.relevance_options.relevance_target, loaded, paired=first.target is not None)


def open_frequencies(request: ClassifyRequest, corpus: Corpus | None = None) -> dict[Side, Frequency]:
    """The lists that were asked for, by side: without a corpus those from elsewhere, with one those counted in it."""
    specs: dict[Side, str] = {"source": request.frequency, "target": request.target_frequency}
    counted, texts = corpus is not None, () if corpus is None else corpus
    chosen = {side: spec for side, spec in specs.items() if spec != "none" and (spec == "corpus") == counted}
    return {side: make_frequency(spec, texts, side) for side, spec in chosen.items()}


@contextmanager
def open_part(request: ClassifyRequest, reporter: Reporter | None) -> Iterator[Run]:
    """Opens a run, and tells it which part of the corpus it reads, or the sums of which parts it adds up.

    Raises:
        OptionError: if several processes share the work, which do that by themselves.
        InputError: see `part_folders` and `open_run`.
    """
    # A run that adds parts up is of the whole corpus, also where its options are those of a part.
    part_request = replace(request, shard=None) if request.merge else request
    merged = part_folders(request.merge, "classify", arguments(part_request)) if request.merge else []
    part = None if part_request.shard is None else parse_shard(part_request.shard)
    with open_run("classify", request.models[0], part_request, reporter, mask=request.mask) as run:
        if run.processes.count > 1 and (part or merged):
            raise OptionError("--shard and --merge each run in a single process.", "Run without torchrun.")
        if part is not None:
            run.tell(f"These numbers are for part {request.shard} of the sentences only; --merge adds up all parts.")
        yield replace(run, part=part, merged=merged)

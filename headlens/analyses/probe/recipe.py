"""The probe with everything around it: a model and treebanks by name, a run folder with tables and figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from headlens.analyses.probe.analysis import (
    AttachmentCounts,
    ProbedSentence,
    TreeAttention,
    TreebankCounts,
    fit_probe,
    read_word_attention,
)
from headlens.analyses.probe.embeddings import FileEmbeddings, open_embeddings
from headlens.analyses.probe.options import ProbeRequest
from headlens.analyses.probe.report import probe_figures, probe_findings
from headlens.analyses.probe.tables import weight_table
from headlens.corpora.sentence import Corpus, CorpusSummary, summarise
from headlens.corpora.sources import first_example, require_held_out
from headlens.errors import CorpusError, OptionError, counted
from headlens.findings.result_notes import encoding_notes
from headlens.learning.open_training_set import read_text
from headlens.pages.command_report import write_results
from headlens.plots.style import named_after
from headlens.runs.corpus_pass import CorpusPass, CorpusReader
from headlens.runs.progress import Reporter
from headlens.runs.run import FinishedRun, Run, model_record, open_run
from headlens.tables.probe_tables import EMBEDDED_METHODS


@dataclass(frozen=True)
class ProbeRun(FinishedRun):
    """What a run gave, with its findings in sentences."""

    findings: list[str]

    def summary(self) -> dict[str, Any]:
        """Returns the run as JSON values: number of scored words and UAS of the probe, findings and notes."""
        scores = self.tables["probe"].to_dict("records")
        measured = {name: scores[0][name] for name in ("words", "uas", "ci_low", "ci_high")}
        return {"out": str(self.folder), **measured, "findings": self.findings, "notes": self.notes}


def run_probe(request: ProbeRequest, reporter: Reporter | None = None) -> ProbeRun:
    """Reads the treebank, learns the probe, measures it on held-out sentences, and writes the run folder.

    Raises:
        InputError: whatever is wrong with the request.
    """
    options = request.options
    with open_run("probe", request.model, request, reporter) as run:
        loaded = run.load(request.model, request.model_options, reads_only=True)
        (corpus, summary), (held_out, held_out_summary) = _treebanks(request, run)
        reader = CorpusReader.of(loaded, first_example(corpus), options.long_sentences)
        reader.require_heads(loaded.name)
        spec = request.embeddings
        embeddings = None if spec is None else open_embeddings(spec, loaded.model, (corpus, held_out))
        data, uniform, embedded, distances = TreeAttention(), TreeAttention(), TreeAttention(), TreeAttention()

        def learn_from(sentence: ProbedSentence) -> None:
            data.add(sentence.of_attention)
            uniform.add(sentence.of_uniform)
            if embeddings is not None:
                embedded.add(sentence)
                distances.add(sentence.of_distances)

        def read(part: Corpus, sentences: int, use: Callable[[ProbedSentence], None]) -> TreebankCounts:
            with run.reporter.progress(f"attention between words, {part.name}", sentences, None) as advance:
                corpus_pass = CorpusPass(advance, run.warn)
                return read_word_attention(reader, part, use, options.batch_tokens, corpus_pass, embeddings)

        learned = read(corpus, summary.sentences, learn_from)
        with run.reporter.status("learning the probe"):
            probe = fit_probe(data, options.l2)
            of_uniform = fit_probe(uniform, options.l2)
        fitted = [probe]
        if embeddings is not None:
            with run.reporter.status("learning the probes with word embeddings"):
                fitted += [fit_probe(part, options.l2) for part in (embedded, distances)]
        with_embeddings = (fitted[1].weights, fitted[2].weights) if embeddings is not None else None
        scored = AttachmentCounts(probe.weights, data.best_offset, of_uniform.weights, with_embeddings)
        held = read(held_out, held_out_summary.sentences, scored.add)
        heads = weight_table([head for site in reader.sites for head in site.heads], probe.weights.numpy())
        scores = scored.table(options.replicates, options.seed)
        scores.insert(0, "model", loaded.short_name)
        tables = {"probe": scores, "probe_weights": heads.with_model(loaded.short_name)}
        notes = [
            f"Learned from {counted(data.arcs, 'word')} of {counted(data.sentences, 'sentence')} in "
            f"{counted(probe.steps, 'step')} of L-BFGS; {data.nbytes / 1e6:.1f} MB of attention were kept."
        ]
        notes += [
            "Learning has not converged: raise l2, in Python or in a file of --config, or read more sentences."
        ] * (not all(each.converged for each in fitted))
        if isinstance(embeddings, FileEmbeddings):
            notes.append(embeddings.note())
        notes += run.warnings
        for name, counts in ((corpus.name, learned), (f"Held out, {held_out.name}", held)):
            notes += [f"{name}: {note}" for note in (*encoding_notes(reader, counts.encoding), *counts.notes())]
        if run.folder is not None:
            with run.reporter.status("writing tables and figures" if request.figures else "writing tables"):
                figures = named_after(corpus.name, probe_figures(tables)) if request.figures else ()
                write_results(run.folder, tables, figures)
            fit: dict[str, Any] = probe.record() | {"words": data.arcs}
            fit |= {method: other.record() for method, other in zip(EMBEDDED_METHODS, fitted[1:], strict=False)}
            facts = model_record(loaded, loaded.short_name) | {"encoding": asdict(learned.encoding)}
            corpora = {"corpus": asdict(summary), "held_out": asdict(held_out_summary)}
            run.folder.finish({"models": [facts], **corpora, "fit": fit, "notes": notes})
        return ProbeRun(run.path, run.files, tables, notes, probe_findings(tables))


def _treebanks(request: ProbeRequest, run: Run) -> list[tuple[Corpus, CorpusSummary]]:
    """Opens what is learned from and what is held out, and sums both up."""
    dev = request.dev, None
    corpus, held_out, summary = read_text(run, request.corpus, request.corpus_options, request.dev_share, dev)
    if request.dev is None:
        require_held_out(corpus.name, request.dev_share, summary.sentences)
    assert held_out is not None
    if any(first_example(part).target is not None for part in (corpus, held_out)):
        raise OptionError("The probe reads single sentences, but the corpus has pairs.", "Give a treebank.")
    treebanks = [(part, summarise(part)) for part in (corpus, held_out)]
    for part, content in treebanks:
        if not content.trees:
            advice = "Give a treebank with gold trees (FILE.conllu)."
            raise CorpusError("the probe needs dependency trees, and no sentence has one.", advice, path=part.name)
    return treebanks

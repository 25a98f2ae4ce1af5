"""`classify` with everything around it: corpus and models by name, a run folder with tables and figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from headlens.corpora.conllu import ConlluCorpus, write_conllu
from headlens.corpora.frequency import Frequency, make_frequency
from headlens.corpora.parallel import ParallelCorpus
from headlens.corpora.pieces import Side
from headlens.corpora.sentence import Corpus, Sentence
from headlens.corpora.sources import CorpusOptions, NamedCorpus, ParsedCorpus, open_corpus
from headlens.corpora.summary import CorpusSummary, summarise
from headlens.errors import OptionError
from headlens.experiments.classify import Classification, ClassifyOptions, Frequencies, check_relations, classify
from headlens.experiments.feeding import Feed
from headlens.experiments.reporter import Advance, Reporter, Silent
from headlens.experiments.requests import plain
from headlens.models.loading import DEMO, LoadedModel, ModelOptions, load
from headlens.report.classify import write_classification
from headlens.report.runs import RunFolder
from headlens.roles.labels import count_families


@dataclass(frozen=True)
class ClassifyRequest:
    """What `headlens classify` is asked for.

    Args:
        models: one model or two, by name.
        corpus: where the sentences come from.
        corpus_options: how they are read.
        frequency: `wordfreq:LANG`, `corpus`, a file, or `none`; for the source side.
        target_frequency: the same for the target side.
        baseline_corpus: where the syntactic baseline is chosen; None for the corpus itself.
        options: what is measured.
        model_options: how the models are loaded.
        out: run folder; None for a new one below `runs/`.
        overwrite: replace a finished run.
    """

    models: tuple[str, ...] = (DEMO,)
    corpus: str = DEMO
    corpus_options: CorpusOptions = field(default_factory=CorpusOptions)
    frequency: str = "wordfreq:en"
    target_frequency: str = "none"
    baseline_corpus: str | None = None
    options: ClassifyOptions = field(default_factory=ClassifyOptions)
    model_options: ModelOptions = field(default_factory=ModelOptions)
    out: Path | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        if not 1 <= len(self.models) <= 2:
            raise OptionError(f"{len(self.models)} models were given.", "Give one model, or two to compare.")


@dataclass(frozen=True)
class ClassifyRun:
    """What a run gave: the folder, the tables as written, what to know about them."""

    folder: Path
    files: list[Path]
    tables: dict[str, pd.DataFrame]
    notes: list[str]
    corpus: CorpusSummary

    def summary(self) -> dict[str, Any]:
        """The result in short, for `--json`."""
        heads = self.tables["heads"]
        roles = {str(m): count_families(rows).to_dict() for m, rows in heads.groupby("model", sort=False)}
        return {"out": str(self.folder), "corpus": asdict(self.corpus), "roles": roles, "notes": self.notes}


def run_classify(request: ClassifyRequest, reporter: Reporter | None = None) -> ClassifyRun:
    """Read the corpus, load the models, classify their heads, write the run folder.

    Raises:
        InputError: whatever is wrong with what was asked for; nothing is left half-written.
    """
    reporter = reporter or Silent()
    with RunFolder.create(request.out, command="classify", model=request.models[0], overwrite=request.overwrite) as run:
        run.start({"arguments": plain(asdict(request))})
        loaded = _load(request, 0, reporter)
        corpus, summary = _corpus(request, loaded, run, reporter)
        frequencies = Frequencies(
            _frequency(request.frequency, corpus, "source"), _frequency(request.target_frequency, corpus, "target")
        )
        results: dict[str, Classification] = {}
        facts = []
        for number in range(len(request.models)):
            loaded = loaded if number == 0 else _load(request, number, reporter)
            label = _label(loaded, results)
            with reporter.progress(f"classifying the heads of {label}", summary.sentences) as advance:
                results[label] = classify(
                    loaded, corpus, request.options, frequencies, baseline_corpus=_baseline(request), progress=advance
                )
            facts.append(_facts(loaded, label, results[label]))
        tables = _stack(results)
        with reporter.status("writing tables and figures"):
            write_classification(run, tables)
        notes = [f"{name}: {note}" if len(results) > 1 else note for name, r in results.items() for note in r.notes]
        run.finish({"models": facts, "corpus": asdict(summary), "notes": notes})
        return ClassifyRun(run.path, run.files, tables, notes, summary)


def _load(request: ClassifyRequest, number: int, reporter: Reporter) -> LoadedModel:
    with reporter.status(f"loading {request.models[number]}"):
        return load(request.models[number], request.model_options)


def _corpus(
    request: ClassifyRequest, loaded: LoadedModel, run: RunFolder, reporter: Reporter
) -> tuple[Corpus, CorpusSummary]:
    """The corpus, parsed once if it has to be; what the model cannot read is refused before."""
    corpus = open_corpus(request.corpus, request.corpus_options)
    unparsed = corpus.corpus if isinstance(corpus, ParsedCorpus) else corpus
    if (first := next(iter(unparsed), None)) is not None:
        Feed.of(loaded, first)
    if isinstance(corpus, ParsedCorpus):
        with reporter.progress(f"parsing with {request.corpus_options.parser}", None) as advance:
            corpus = _keep_trees(corpus, run, advance)
    with reporter.progress(f"reading {corpus.name}", None) as advance:
        summary = summarise(corpus, advance)
    if summary.trees:
        check_relations(request.options.relations, summary.relations, corpus.name)
    return corpus, summary


def _baseline(request: ClassifyRequest) -> Corpus | None:
    if request.baseline_corpus is None:
        return None
    return open_corpus(request.baseline_corpus, replace(request.corpus_options, target=None, limit=None))


def _keep_trees(corpus: ParsedCorpus, run: RunFolder, advance: Advance) -> Corpus:
    """Write what the parser says into the run folder, where it can be looked at, corrected and read again."""
    _write_sentences(run, "parsed.conllu", (example.source for example in corpus), advance)
    source = NamedCorpus(ConlluCorpus(run.path / "parsed.conllu"), corpus.name)
    first = next(iter(corpus.corpus), None)
    if first is None or first.target is None:
        return source
    _write_sentences(run, "targets.conllu", (e.target for e in corpus.corpus if e.target is not None), lambda _: None)
    return ParallelCorpus(source, ConlluCorpus(run.path / "targets.conllu"))


def _write_sentences(run: RunFolder, name: str, sentences: Iterable[Sentence], advance: Advance) -> None:
    def counted() -> Iterator[Sentence]:
        for sentence in sentences:
            advance(1)
            yield sentence

    with run.file(name) as path:
        write_conllu(counted(), path)


def _frequency(spec: str, corpus: Corpus, side: Side) -> Frequency | None:
    return None if spec == "none" else make_frequency(spec, corpus, side)


def _label(loaded: LoadedModel, taken: Mapping[str, object]) -> str:
    """What the model is called in tables: its short name, the full one if that is taken."""
    names = (loaded.short_name, loaded.name, f"{loaded.name} (2)")
    return next(n for n in names if n not in taken)


def _facts(loaded: LoadedModel, label: str, result: Classification) -> dict[str, Any]:
    return {
        "model": label,
        "name": loaded.name,
        "revision": loaded.revision,
        "weight_hash": loaded.weight_hash,
        "parameters": loaded.n_parameters,
        "device": str(loaded.device),
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        "encoding": asdict(result.encoding),
        "annotation": asdict(result.annotation),
    }


def _stack(results: Mapping[str, Classification]) -> dict[str, pd.DataFrame]:
    """The tables of all models under each other."""
    frames = [result.frames(label) for label, result in results.items()]
    names = list(dict.fromkeys(name for own in frames for name in own))
    return {name: pd.concat([own[name] for own in frames if name in own], ignore_index=True) for name in names}

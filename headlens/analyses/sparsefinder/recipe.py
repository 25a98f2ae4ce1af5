"""`sparsefinder` with everything around it: model and corpus by name, a run folder with tables and figures."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from headlens.analyses.ablate.task_examples import Examples
from headlens.analyses.sparsefinder.collection import collect
from headlens.analyses.sparsefinder.head_examples import check_shown
from headlens.analyses.sparsefinder.head_table import all_contents
from headlens.analyses.sparsefinder.options import (
    SparsefinderRequest,
)
from headlens.analyses.sparsefinder.pareto_curves import EVERY, curve, of_stacks, spread_out
from headlens.analyses.sparsefinder.pareto_points import GOLD, FittedSite
from headlens.analyses.sparsefinder.projection_files import save_fitted
from headlens.analyses.sparsefinder.query_key_store import QueryKeyStore
from headlens.analyses.sparsefinder.report import write_sparsefinder
from headlens.analyses.sparsefinder.restricted_task import CurvePointResult, RestrictedTask, opened_task
from headlens.analyses.sparsefinder.sweep import SparsitySweep
from headlens.analyses.sparsefinder.tables import NOTHING, Findings, RestrictedTaskResult, key_of
from headlens.analyses.training.sweep import SweepRun
from headlens.attention.model_normalizer import attention_name, attention_notes, attention_of, switch_as_asked
from headlens.corpora.corpus_summary import CorpusSummary, summarise
from headlens.corpora.sentence import Corpus
from headlens.corpora.sources import open_corpus, refuse_unused, split_corpus
from headlens.errors import CorpusError, OptionError, counted
from headlens.files import atomic_path
from headlens.models.loading import LoadedModel
from headlens.options import DEMO
from headlens.runs.corpus_pass import CorpusPass
from headlens.runs.model_record import model_record
from headlens.runs.progress import Reporter
from headlens.runs.run import Run, open_run
from headlens.tasks.evaluation import EvaluationOptions
from headlens.tasks.example_sources import MemoryExamples
from headlens.tasks.task import Task
from headlens.tasks.task_heads import check_head


@dataclass(frozen=True)
class _Parts:
    """What is learned from, what is measured on, and what of it becomes known."""

    train: Corpus
    held: Corpus
    summary: CorpusSummary
    held_sentences: int
    held_sha256: str
    pairs: bool


def run_sparsefinder(request: SparsefinderRequest, reporter: Reporter | None = None) -> SweepRun:
    """Read the corpus, run the model over it, learn and measure every method, write the run folder.

    Raises:
        InputError: whatever is wrong with what was asked for.
    """
    refuse_unused(request.corpus_options, request.corpus, request.corpus_options.target, request.dev)
    with open_run("sparsefinder", request.model, request, reporter) as run:
        if run.processes.count > 1:
            raise OptionError("sparsefinder runs in one process.", "Start it without torchrun.")
        loaded = run.load(request.model, request.model_options)
        notes = _switched(request, loaded)
        parts = _parts(request, run)
        # What is wrong with the task is told before anything is learned.
        check_shown(request.shown, loaded, next(iter(parts.held)))
        opened, examples = _opened(request, loaded, parts)
        hashes = {"the corpus": parts.summary.sha256, "what is held out": parts.held_sha256, **examples}
        run.depend_on(loaded, hashes)
        sweep = SparsitySweep(
            _collected(request, run, loaded, parts.train, "train", parts.summary.sentences),
            _collected(request, run, loaded, parts.held, "held", parts.held_sentences),
            run.kept("sites"),
            request.grid,
            request.fit,
        )
        with run.reporter.progress("projections, clusters and graphs (layers)", len(sweep.train.sites())) as advance:
            swept = sweep.run(advance)
        points = of_stacks(swept.heads)
        measured = _measured(request, run, loaded, opened, points, swept.fitted)
        contents = all_contents(sweep.held, swept.fitted, request.counted_clusters)
        about = (loaded, parts.held, request.grid, request.counted_clusters)
        tables = Findings(*about, swept, points, measured, contents, request.shown).tables()
        left_out = [*sweep.train.notes, *(f"Held out: {note}" for note in sweep.held.notes)]
        dev = parts.held.name if request.dev else None
        notes += [*measured.notes, *_notes(tables, sweep.held.sentences, dev), *left_out, *run.warnings]
        assert run.folder is not None
        with run.file("projections.safetensors") as path:
            save_fitted(path, swept.fitted)
        with run.reporter.status("writing tables and figures" if request.figures else "writing tables"):
            write_sparsefinder(run.folder, tables, figures=request.figures)
        facts = {
            "models": [model_record(loaded, loaded.short_name)],
            "corpus": asdict(parts.summary),
            "held_out": sweep.held.sentences,
            "store_bytes": {"train": sweep.train.size, "held": sweep.held.size},
            "losses": {site: own.losses for site, own in swept.fitted.items()},
            "restricted": list(measured.stacks),
        }
        run.folder.finish({**facts, "notes": notes})
        return SweepRun(run.path, run.files, tables, notes, ("areas",))


def _switched(request: SparsefinderRequest, loaded: LoadedModel) -> list[str]:
    """What to know about the model's attention.

    Raises:
        OptionError: if it is softmax.
    """
    wanted = request.attention
    if wanted is None and attention_of(loaded.model) is None and request.model == DEMO:
        wanted = "entmax15"
    if wanted is not None:
        before = attention_name(loaded.model)
        switch_as_asked(loaded.model, wanted)
        after = attention_name(loaded.model)
        if after == before:
            return []
        return [
            f"{loaded.short_name} was trained with {before} and switched to {after} as it is: this shows how methods "
            f"compare on such attention, not on that of a model trained with it (headlens train --attention {after})."
        ]
    if attention_of(loaded.model) is None:
        raise OptionError(
            f"{loaded.name} attends with softmax, which leaves no weight at exactly zero.",
            "Train it with headlens train MODEL --attention entmax15, or switch it as it is: --attention entmax15.",
        )
    return attention_notes(loaded.model)


def _parts(request: SparsefinderRequest, run: Run) -> _Parts:
    options = request.corpus_options
    corpus = open_corpus(request.corpus, options)
    with run.reporter.progress(f"reading {corpus.name}", None) as advance:
        summary = summarise(corpus, advance)
    first = next(iter(corpus))
    if request.dev is None:
        train, held = split_corpus(corpus, request.dev_share, summary.sentences)
        if held is None:
            raise CorpusError(
                f"of {counted(summary.sentences, 'sentence')} none can be held out.",
                "Name some with --dev.",
                path=corpus.name,
            )
    else:
        train, held = corpus, open_corpus(request.dev, options.held_out(request.dev_target))
    own = summarise(held)
    return _Parts(train, held, summary, own.sentences, own.sha256, first.target is not None)


def _collected(
    request: SparsefinderRequest, run: Run, loaded: LoadedModel, corpus: Corpus, name: str, total: int
) -> QueryKeyStore:
    """Queries and keys of a corpus; what an interrupted pass left is thrown away."""
    folder = run.kept(name)
    if not QueryKeyStore(folder).whole:
        shutil.rmtree(folder, ignore_errors=True)
        with run.reporter.progress(f"queries and keys ({name})", total) as advance:
            collect(
                loaded,
                corpus,
                folder,
                batch_tokens=request.batch_tokens,
                long_sentences=request.long_sentences,
                how=CorpusPass(advance, run.warn),
            )
    return QueryKeyStore(folder)


def _opened(
    request: SparsefinderRequest, loaded: LoadedModel, parts: _Parts
) -> tuple[tuple[Task, MemoryExamples] | None, dict[str, str]]:
    """The task and its examples, one of which the model was asked, and their hash."""
    opened = opened_task(request.metric, loaded, parts.held, pairs=parts.pairs, offline=request.model_options.offline)
    if opened is None:
        return None, {}
    task, source = opened
    check_head(loaded, task)
    examples = Examples.of(task, source, loaded)
    examples.ask_shortest(loaded.model)
    return opened, {"the data of the task": examples.summary.sha256}


def _measured(
    request: SparsefinderRequest,
    run: Run,
    loaded: LoadedModel,
    opened: tuple[Task, MemoryExamples] | None,
    points: pd.DataFrame,
    fitted: Mapping[str, FittedSite],
) -> RestrictedTaskResult:
    if opened is None:
        asked = "" if request.metric.task == "none" else "No task is known that this model could be asked: see --task."
        return RestrictedTaskResult(notes=(asked,) if asked else ())
    task, source = opened
    stacks = tuple(dict.fromkeys(site.partition(".")[0] for site in fitted))
    level = stacks[0] if len(stacks) == 1 else EVERY
    own = points[points["stack"] == level]
    # A task suffers from the weight that is lost, not from the number of pairs that had some.
    tried = spread_out(curve(own[own["method"] != GOLD], "mass"), request.metric.points, "mass")
    tried = pd.concat([own[own["method"] == GOLD], tried, pd.DataFrame([NOTHING])], ignore_index=True)
    options = EvaluationOptions(request.batch_tokens, seed=request.fit.seed, warn=run.warn_once)
    restricted = RestrictedTask(loaded, task, source, request.grid, fitted, stacks, options)
    found: dict[tuple[Any, ...], CurvePointResult] = {}
    with run.reporter.progress(f"{task.name} over predicted graphs (points)", len(tried)) as advance:
        for number, point in enumerate(tried.to_dict("records")):
            path = run.kept(f"tried-{number}.json")
            if (level, *key_of(point)) not in found:  # nothing is of the grid, too, if that has no window
                if not path.is_file():
                    with atomic_path(path) as temporary:
                        temporary.write_text(json.dumps(asdict(restricted.measured(point))), encoding="utf-8")
                found[level, *key_of(point)] = CurvePointResult.of(json.loads(path.read_text(encoding="utf-8")))
            advance(1)
    return RestrictedTaskResult(task.name, restricted.metric, found, stacks)


def _notes(tables: Mapping[str, pd.DataFrame], sentences: int, dev: str | None) -> list[str]:
    gold = tables["heads"].groupby("stack", sort=False)["sparsity"].mean()
    told = ", ".join(f"{stack} {value:.3f}" for stack, value in gold.items())
    notes = [
        f"Measured on {counted(sentences, 'sentence')} " + (f"of {dev}." if dev else "that were held out."),
        f"Sparsity of entmax itself: {told}.",
    ]
    areas = tables["areas"]
    for quality, own in areas[areas["quality"] != "recall"].groupby("quality", sort=False):
        if own["share"].isna().all():
            notes.append(
                f"Without any predicted pair the model has nearly the same {quality} as with all of them: nothing can "
                f"be told of what methods reach of the possible. metrics.csv has what they have."
            )
    if "examples" not in tables:
        notes.append("No sentence held out is of a length that can be drawn: there is no figure of heads on one.")
    if "clusters" not in tables:
        notes.append("No parts of speech are known: give a treebank (.conllu) to see what clusters hold.")
    return notes

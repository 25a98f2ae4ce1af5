"""`sparsefinder` with everything around it: model and corpus by name, a run folder with tables and figures."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

import pandas as pd

from headlens.analyses.sparsefinder.figures import sparsefinder_figures
from headlens.analyses.sparsefinder.fitting import FittedSite, save_fitted
from headlens.analyses.sparsefinder.options import SparsefinderRequest
from headlens.analyses.sparsefinder.pareto_curves import curve, of_stacks, spread_out
from headlens.analyses.sparsefinder.pareto_points import SparsitySweep, key_of
from headlens.analyses.sparsefinder.query_key_store import QueryKeyStore, collect
from headlens.analyses.sparsefinder.restricted_task import CurvePointResult, RestrictedTask, opened_task
from headlens.analyses.sparsefinder.tables import NOTHING, Findings, RestrictedTaskResult, check_shown
from headlens.attention.model_normalizer import (
    SOFTMAX,
    attention_name,
    attention_notes,
    attention_of,
    switch,
    switch_as_asked,
)
from headlens.attention.normalizers import LearnedEntmax, parse_normalizer
from headlens.corpora.sentence import Corpus, CorpusSummary, summarise
from headlens.corpora.sources import open_corpus, refuse_unused, require_held_out, split_corpus
from headlens.errors import OptionError, ResumeError, counted, read_errors
from headlens.files import atomic_path
from headlens.findings.result_notes import left_out_notes
from headlens.findings.verdicts import check_margin
from headlens.learning.alphas_figure import ALPHAS
from headlens.learning.learned_alphas import alpha_notes, alpha_table
from headlens.learning.sweep import SweepRun
from headlens.models.loading import LoadedModel
from headlens.nested_text import conform, parse_json
from headlens.options import DEMO
from headlens.pages.command_report import write_results
from headlens.runs.corpus_pass import CorpusPass
from headlens.runs.kept_trees import keep_trees
from headlens.runs.progress import Reporter
from headlens.runs.run import Run, model_record, open_run
from headlens.statistics.bootstrap import FEWEST
from headlens.tables.shared_columns import ALL
from headlens.tables.sparsefinder_tables import GOLD
from headlens.tasks.evaluation import EvaluationOptions
from headlens.tasks.example_sources import MemoryExamples, SourceCounts
from headlens.tasks.task import Task
from headlens.tasks.task_examples import Examples
from headlens.tasks.task_heads import check_head
from headlens.tasks.task_options import DEFAULT_TASK


def run_sparsefinder(request: SparsefinderRequest, reporter: Reporter | None = None) -> SweepRun:
    """Reads the corpus, runs the model over it, learns and measures every method, and writes the run folder.

    Raises:
        InputError: whatever is wrong with the request.
    """
    refuse_unused(request.corpus_options, request.corpus, request.corpus_options.target, request.dev)
    with open_run("sparsefinder", request.model, request, reporter, alone=True) as run:
        loaded = run.load(request.model, request.model_options, reads_only=True)
        trained_with = attention_name(loaded.model)
        notes = _switched(request, loaded)
        corpus, held_out, summary = _split(request, run)
        held_out_summary = summarise(held_out)
        # Errors of the task are raised before anything is learned.
        check_shown(request.shown, loaded, next(iter(held_out)))
        hashes = {"the corpus": summary.sha256, "the held-out data": held_out_summary.sha256}
        pairs, offline = next(iter(corpus)).target is not None, request.model_options.offline
        counts = SourceCounts()
        few = request.examples
        opened = opened_task(request.metric, loaded, held_out, counts, pairs=pairs, offline=offline, limit=few)
        if opened is not None:
            notes += left_out_notes(counts, opened[1].name, None)
            check_head(loaded, opened[0])
            check_margin(opened[0].metrics[0], request.metric.loss_margin)
            examples = Examples.of(*opened, loaded)
            examples.ask_shortest(loaded)
            notes += [*left_out_notes(examples.summary, opened[1].name, examples.reader.limit_text), *examples.notes]
            hashes["the data of the task"] = examples.summary.sha256
        run.depend_on(loaded, hashes)
        train = _collected(request, run, loaded, corpus, "train", summary.sentences)
        held = _collected(request, run, loaded, held_out, "held", held_out_summary.sentences)
        with run.reporter.progress("projections, clusters and graphs (layers)", len(train.sites())) as advance:
            swept = SparsitySweep(train, held, run.kept("sites"), request.grid, request.fit).run(advance)
        points = of_stacks(swept.heads)
        restricted = _restricted(request, run, loaded, opened, points, swept.fitted, trained_with)
        tables = Findings(request, loaded, held_out, held, swept, points, restricted).tables()
        attention = attention_name(loaded.model)
        switched = "" if attention == trained_with else f", switched from {trained_with} without training"
        tables["pareto"]["attention"] = f"{attention}{switched}"
        if (alphas := alpha_table(loaded)) is not None:
            tables[ALPHAS] = alphas
        dev = held_out.name if request.dev else None
        bundled = few is not None and opened is not None and opened[0].name == DEFAULT_TASK
        notes += request.few_notes(bundled=bundled, task=opened is not None)
        notes += [*restricted.notes, *_notes(tables, held.record["sentences"], dev), *alpha_notes(alphas)]
        notes += [*train.record["notes"], *(f"Held out: {note}" for note in held.record["notes"]), *run.warnings]
        assert run.folder is not None
        with run.file("projections.safetensors") as path:
            save_fitted(path, swept.fitted)
        with run.reporter.status("writing tables and figures" if request.figures else "writing tables"):
            write_results(run.folder, tables, sparsefinder_figures(tables) if request.figures else ())
        facts = {
            "models": [model_record(loaded, loaded.short_name)],
            "corpus": asdict(summary),
            "held_out": held.record["sentences"],
            "store_bytes": {"train": train.size, "held": held.size},
            "losses": {site: learned.losses for site, learned in swept.fitted.items()},
            "restricted": list(restricted.stacks),
            "coarse_grid": request.coarse_grid,
        }
        run.folder.finish({**facts, "notes": notes})
        return SweepRun(run.path, run.files, tables, notes, ("areas",))


def _switched(request: SparsefinderRequest, loaded: LoadedModel) -> list[str]:
    """Switches the model's attention where that is asked for; returns notes on its attention.

    Raises:
        OptionError: if it is softmax.
    """
    attention = request.attention
    if attention is None and attention_of(loaded.model) is None:
        if request.model != DEMO:
            raise OptionError(
                f"{loaded.name} attends with softmax, which leaves no weight at exactly zero.",
                "Train it with headlens train MODEL --attention entmax15, or switch it without training: "
                "--attention entmax15.",
            )
        attention = "entmax15"
    if attention is None:
        return attention_notes(loaded.model)
    before = attention_name(loaded.model)
    if isinstance(parse_normalizer(attention), LearnedEntmax) and before != str(LearnedEntmax()):
        raise OptionError(
            f"--attention {attention}: the heads of {loaded.name} have not learned any alpha.",
            f"Train them: headlens train MODEL --attention {attention}, or give a number: --attention entmax15.",
        )
    switch_as_asked(loaded.model, attention)
    after = attention_name(loaded.model)
    if after == before:
        return []
    return [
        f"The attention of {loaded.short_name} is switched from {before} to {after} without training: this shows how "
        "methods compare on such attention, not on that of a model trained with "
        f"it (headlens train --attention {after})."
    ]


def _split(request: SparsefinderRequest, run: Run) -> tuple[Corpus, Corpus, CorpusSummary]:
    """Reads the corpus and holds a part of it out, or reads what `--dev` names; the summary is that of the whole.

    What has to be parsed is parsed once, into the run folder.

    Raises:
        CorpusError: if nothing is left to hold out.
    """
    options = request.corpus_options
    corpus = keep_trees(open_corpus(request.corpus, options, request.parser), run, request.parser)
    with run.reporter.progress(f"reading {corpus.name}", None) as advance:
        summary = summarise(corpus, advance)
    if request.dev is None:
        require_held_out(corpus.name, request.dev_share, summary.sentences)
        train, held_out = split_corpus(corpus, request.dev_share, summary.sentences)
    else:
        dev = open_corpus(request.dev, options.held_out(request.dev_target), request.parser)
        train, held_out = corpus, keep_trees(dev, run, request.parser, "-dev")
    assert held_out is not None
    return train, held_out, summary


def _collected(
    request: SparsefinderRequest, run: Run, loaded: LoadedModel, corpus: Corpus, name: str, total: int
) -> QueryKeyStore:
    """Collects queries and keys of a corpus; what an interrupted pass left is thrown away."""
    folder = run.kept(name)
    if not QueryKeyStore(folder).complete:
        shutil.rmtree(folder, ignore_errors=True)
        with run.reporter.progress(f"queries and keys ({name})", total, None) as advance:
            corpus_pass, tokens = CorpusPass(advance, run.warn), request.batch_tokens
            collect(loaded, corpus, folder, tokens, request.long_sentences, corpus_pass)
    return QueryKeyStore(folder)


def _restricted(
    request: SparsefinderRequest,
    run: Run,
    loaded: LoadedModel,
    opened: tuple[Task, MemoryExamples] | None,
    points: pd.DataFrame,
    fitted: Mapping[str, FittedSite],
    trained_with: str,
) -> RestrictedTaskResult:
    """Measures the task over predicted graphs at a few points of each curve; those that were measured are read.

    A model that was switched from softmax is measured with that, too.
    """
    if opened is None:
        unknown = "No task is known for this model: see --task."
        return RestrictedTaskResult(notes=() if request.metric.task == "none" else (unknown,))
    task, source = opened
    stacks = tuple(dict.fromkeys(site.partition(".")[0] for site in fitted))
    level = stacks[0] if len(stacks) == 1 else ALL
    points = points[points["stack"] == level]
    gold, methods = points[points["method"] == GOLD], points[points["method"] != GOLD]
    # A task suffers from the weight that is lost, not from the number of pairs that had some.
    few = spread_out(curve(methods, "mass"), request.metric.points, "mass")
    tried = pd.concat([gold, few, pd.DataFrame([NOTHING])], ignore_index=True)
    options = EvaluationOptions(request.batch_tokens, seed=request.fit.seed, warn=run.warn_once)
    places = {key_of(point) for point in tried.to_dict("records")}
    margin = (request.metric.loss_margin, len(places) - 1)
    restricted = RestrictedTask(loaded, task, source, request.grid, fitted, stacks, options, *margin)
    baseline: CurvePointResult | None = None
    results: dict[tuple[Any, ...], CurvePointResult] = {}
    switched = trained_with == SOFTMAX

    def measured(name: object, point: Mapping[Any, Any]) -> CurvePointResult:
        """Measures at a point, or reads what was measured before."""
        path = run.kept(f"tried-{name}.json")
        if not path.is_file():
            with atomic_path(path) as temporary:
                temporary.write_text(json.dumps(asdict(restricted.measured(point, baseline))), encoding="utf-8")
        with read_errors(path, "cannot be read", "Start again with --overwrite.", ResumeError):
            content: CurvePointResult = conform(parse_json(path.read_text(encoding="utf-8")), CurvePointResult)
        return content

    with run.reporter.progress(f"{task.name} over predicted graphs (points)", len(tried) + switched) as advance:
        for number, point in enumerate(tried.to_dict("records")):
            if (level, *key_of(point)) not in results:  # `NOTHING` is of the grid, too, if that has no window
                content = results[level, *key_of(point)] = measured(number, point)
                baseline = baseline or content  # attention that is not restricted comes first
            advance(1)
        found = RestrictedTaskResult(task.name, restricted.metric, results, stacks)
        if not switched:
            return found
        with ExitStack() as undo:
            undo.callback(switch, loaded.model, attention_of(loaded.model))
            switch(loaded.model, None)
            own = measured(SOFTMAX, gold.iloc[0].to_dict()).metrics[found.metric].value
        advance(1)
    note = (
        f"With its own softmax the model has {found.metric} {own:.3f} on the same examples of {task.name}; what is "
        f"compared is the model switched to {attention_name(loaded.model)}."
    )
    return replace(found, notes=(note,))


def _notes(tables: Mapping[str, pd.DataFrame], sentences: int, dev: str | None) -> list[str]:
    """Notes for a reader of the tables, and which tables are missing."""
    gold = tables["heads"].groupby("stack", sort=False)["sparsity"].mean()
    notes = [
        f"Measured on {counted(sentences, 'sentence')} {f'of {dev}' if dev else 'that were held out'}"
        + (f": areas under curves of recall have no intervals for fewer than {FEWEST}." if sentences < FEWEST else "."),
        f"Sparsity of entmax itself: {', '.join(f'{stack} {value:.3f}' for stack, value in gold.items())}.",
    ]
    if "metrics" in tables:
        known = tables["metrics"].dropna(subset=["chance"]).drop_duplicates("metric")
        chances = [f"{row['metric']} of {row['task']} {row['chance']:.3f}" for row in known.to_dict("records")]
        notes += [f"What guesses made without reading give (chance level): {', '.join(chances)}."] * bool(chances)
    areas = tables["areas"]
    for quality, rows in areas[areas["quality"] != "recall"].groupby("quality", sort=False):
        if rows["share"].isna().all():
            notes.append(
                f"There is no normalised area of {quality}, a share of the difference between attention with all pairs "
                "of entmax and without any: that makes less than 0.005 of area, or is not shown to be above 0. The "
                "values themselves are in metrics.csv."
            )
    if "examples" not in tables:
        notes.append(
            "No held-out sentence has a length that can be drawn, so there is no figure of heads on a sentence."
        )
    if "clusters" not in tables:
        notes.append(
            "No parts of speech are known: give a treebank (.conllu) or a --parser to see what the clusters contain."
        )
    return notes

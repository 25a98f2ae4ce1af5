"""`ablate_heads` with everything around it: models and task by name, a run folder with tables and figures."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.analyses.ablate import sweep
from headlens.analyses.ablate.figures import not_ablated
from headlens.analyses.ablate.mib_circuits import CircuitBench
from headlens.analyses.ablate.missed_heads import screening_facts, screening_notes
from headlens.analyses.ablate.options import AblateRequest
from headlens.analyses.ablate.overviews import without, worsening
from headlens.analyses.ablate.pruning_experiment import PruningExperiment
from headlens.analyses.ablate.report import ablation_figures
from headlens.analyses.ablate.screening import Screener
from headlens.analyses.ablate.single_heads import ablate_heads
from headlens.analyses.ablate.stand_ins import EPOCHS, changed_examples
from headlens.attention.sites import find_sites
from headlens.errors import counted
from headlens.findings.layer_smoothness import NAME as SMOOTHNESS
from headlens.findings.layer_smoothness import smoothness_notes, smoothness_table
from headlens.findings.result_notes import (
    cluster_notes,
    cut_translations,
    few_example_notes,
    left_out_notes,
    notes_of_models,
    record_notes,
    were,
)
from headlens.findings.training_data import training_data_notes
from headlens.findings.verdicts import check_margin, has_no_verdicts, tied
from headlens.heads import Head
from headlens.models.loading import LoadedModel
from headlens.models.names import first_and_last, recorded_steps
from headlens.pages.command_report import write_results
from headlens.plots.style import named_after
from headlens.replay.direct_path import Receiver, senders
from headlens.replay.modes import BY_BATCH, WITH_PAIRS, Mode
from headlens.runs.progress import Reporter
from headlens.runs.run import FinishedRun, Run, model_label, model_record, open_run
from headlens.tasks.evaluation import EvaluationOptions, chosen_metric, estimates, label_counts, token_count
from headlens.tasks.example_sources import TaskSource
from headlens.tasks.open_task import open_examples, suited_data, tells_task
from headlens.tasks.task import Floats, PreparedExample, Task
from headlens.tasks.task_examples import Chosen, Examples, example_table, ranking_part
from headlens.tasks.task_heads import check_head, classifier_names, task_of_head
from headlens.tasks.task_options import AUTO, OWN_CLASSES
from headlens.tasks.test_set_predictions import read_test_sets, write_predictions


@dataclass(frozen=True)
class AblateRun(FinishedRun):
    """What a run gave: `ablation`, `examples`, `pruning` where heads were pruned, and `smoothness` of two models.

    Args:
        models: what run.json says of each.
    """

    models: list[dict[str, Any]]

    def summary(self) -> dict[str, Any]:
        """Returns the run as JSON values: folder, metrics, counts of significant heads, pruned models and notes.

        `significant` counts changes of either sign, `significantly_better` those where the model gains without a head.
        """
        pruning, ablation = self.tables.get("pruning", pd.DataFrame()).astype(object), self.tables["ablation"]
        case, sure = ablation["model"] + " " + ablation["mode"], ablation["p_holm"] < 0.05
        gains = sure & (worsening(ablation) < 0)
        return {
            "out": str(self.folder),
            "models": [{k: m[k] for k in ("model", "data", "evaluation")} for m in self.models],
            "significant": {str(name): int(count) for name, count in sure.groupby(case, sort=False).sum().items()},
            "significantly_better": {str(k): int(n) for k, n in gains.groupby(case, sort=False).sum().items()},
            "pruning": pruning.where(pruning.notna(), None).to_dict("records"),
            "notes": self.notes,
        }


def run_ablate(request: AblateRequest, reporter: Reporter | None = None) -> AblateRun:
    """Read the task, load the models, take their heads out, write the run folder.

    Raises:
        InputError: whatever is wrong with what was asked for; nothing is left half-written.
        SelfCheckError: if taking heads out has no effect.
    """
    # Gradients and relevance are of weights as they are.
    gradients = request.pruning.prune or request.options.mode == "optimal" or request.options.confirm is not None
    with open_run("ablate", request.models[0], request, reporter, mask=request.mask) as run:
        load = partial(run.load, options=request.model_options, reads_only=not gradients)
        # Data of one's own may lack some classes of the model.
        needs_model = request.data.task in (OWN_CLASSES, AUTO)
        first = load(request.models[0]) if needs_model else None
        offline = request.model_options.offline
        data = request.data if first is None else suited_data(request.data, first.model, offline=offline)
        known = () if first is None else classifier_names(first)
        with nullcontext() if first is None else tells_task(request.data, data.task, first.model):
            task, source = open_examples(data, offline=offline, known=known)
        check_margin(metric := chosen_metric(task, request.options.metric), request.options.margin)
        test_sets = read_test_sets(request.predict, data, offline=offline)
        for name in request.models[1:]:
            # Errors in it are raised before the first model is swept.
            other = load(name)
            with run.masked(other, request.mask):
                _Ablated(request, run, "", other, name).examples(task, source, metric)
        results: dict[str, _Found] = {}
        for number, name in enumerate(request.models):
            loaded = load(name) if first is None or number else first
            label = model_label(loaded, results)
            with run.masked(loaded, request.mask):
                results[label] = _Ablated(request, run, f"{number}", loaded, label).run(task, source, metric)
                if test_sets and run.folder is not None:
                    size = request.options.batch_tokens or EvaluationOptions.batch_tokens
                    with run.reporter.status("predicting"):
                        scoring_notes = write_predictions(
                            task, loaded, test_sets, EvaluationOptions(size, warn=run.warn), run.file
                        )
                    results[label].notes.extend(scoring_notes)
        tables = _stack(results)
        steps = recorded_steps([found.facts for found in results.values()])
        notes = notes_of_models({name: found.notes for name, found in results.items()}, once=bool(steps))
        if len(results) > 1:
            swept = tables["ablation"][tables["ablation"]["mode"] == request.options.mode]
            # Of checkpoints of one training the first and the last are compared.
            swept = swept[swept["model"].isin(first_and_last(steps) or [*results])]
            # Changes of a model that guesses are chance, wherever they stand.
            silent = [name for name, rows in swept.groupby("model", sort=False) if has_no_verdicts(rows)]
            guessing = silent if request.options.mode != "denoise" else []  # which has no verdicts
            screened = [name for name, rows in swept.groupby("model", sort=False) if not_ablated(rows).any()]
            for names, why in ((guessing, "it has no verdicts"), (screened, "heads are left out")):
                notes += [f"{name!s}: its changes are not looked at for smoothness, as {why}." for name in names]
            if len(skilled := swept[~swept["model"].isin([*guessing, *screened])]):
                tables[SMOOTHNESS] = smoothness_table(skilled, ("delta",), request.options.seed)
                notes += smoothness_notes(tables[SMOOTHNESS])
        notes += run.warnings
        facts = [f.facts for f in results.values()]
        if run.folder is not None:
            with run.reporter.status("writing tables and figures" if request.figures else "writing tables"):
                drawn = named_after("", ablation_figures(tables, facts), run.mask_name)
                write_results(run.folder, tables, drawn if request.figures else ())
                arrays = {f"{name}/{key}": array for name, f in results.items() for key, array in f.arrays.items()}
                # Given a path, numpy would choose the suffix.
                with run.file("records.npz") as path, path.open("wb") as file:
                    np.savez_compressed(file, allow_pickle=False, **arrays)
            run.folder.finish({"models": facts, "task": vars(task), "notes": notes})
        return AblateRun(run.path, run.files, tables, notes, facts)


# What a reader should know of what stands in for heads.
_STOOD_IN = {
    "mean": (
        "--mode mean: means are over all tokens of the examples, first and special ones included, whatever their "
        "position."
    ),
    "resample": (
        "--mode resample: every example has one other example, drawn by --seed, whose head outputs at the same "
        "positions stand in, and behind its end that at its last token. Intervals hold for other draws, too."
    ),
    "path": (
        "--mode path: head outputs on the changed text reach what `receiver` names by the direct path alone (path "
        "patching; Wang et al. 2023): the other heads give what they gave, MLPs and norms on the way are computed "
        "anew. Positions correspond; answers are those of the data."
    ),
    "denoise": (
        "--mode denoise: the changed text is read, and the head's output on the original stands in, at the same "
        "positions; `baseline` is the metric on the changed texts, and answers are those of the data. What restores an "
        "answer need not be needed for it: there are no verdicts."
    ),
    "counterfactual": (
        "--mode counterfactual: head outputs on the changed text stand in for those on the original (noising), at the "
        "same positions; answers are those of the data."
    ),
    "optimal": (
        f"--mode optimal: constants that cost least were fitted by gradient on one half of the examples ({EPOCHS} "
        "passes, from the means) and stand in on the other half; better ones may exist."
    ),
}


@dataclass(frozen=True)
class _Found:
    """What was found out about one model."""

    tables: dict[str, pd.DataFrame]
    arrays: dict[str, npt.NDArray[Any]]
    notes: list[str]
    facts: dict[str, Any]


@dataclass(frozen=True)
class _Ablated:
    """Ablation of one model of a run: sweeps over single heads and, if asked for, pruning of many heads."""

    request: AblateRequest
    under_way: Run
    number: str
    loaded: LoadedModel
    label: str

    def run(self, task: Task, source: TaskSource, metric: str) -> _Found:
        options = self.request.options
        examples = self.examples(task, source, metric)
        changed = self._changed(task)
        sweeps = partial(self._sweep, examples, metric, changed)
        ablation = ablate_heads(self.loaded, examples, options, sweeps, changed, self._screener(examples, metric))
        records, intact = ablation.records[options.mode], ablation.intact
        tables, ranked_on = {"ablation": ablation.table}, None
        bench = self._bench(examples, metric, records)
        notes = self._notes(examples, records, intact, metric, ~bench.ranked_on if self.request.pruning.prune else None)
        arrays = {"heads": np.array([str(h) for h in records.heads])}
        arrays |= {mode: swept.without for mode, swept in ablation.records.items()}
        if self.request.pruning.prune:
            ranked_on = bench.ranked_on
            pruned, arrays["pruned"] = bench.outcome()
            tables |= pruned
            notes += bench.notes(pruned)
        tables["examples"] = example_table(examples, intact, ranked_on)
        chosen = EvaluationOptions(replicates=options.replicates, seed=options.seed)
        measured = {name: asdict(e) for name, e in estimates(task, intact, examples.keys, chosen).items()}
        facts = model_record(self.loaded, self.label) | {"data": asdict(examples.summary), "evaluation": measured}
        facts["chance"] = {metric: task.chance(intact, metric, label_counts(examples.prepared))}
        if options.mib is not None and changed is not None:
            circuits = self._circuits(examples, metric, changed_examples(examples, changed))
            text = f"circuits of {counted(len(circuits.nodes.names), 'node')}"
            total = len(examples) + int(circuits.ranked_on.sum())
            with self.under_way.reporter.progress(text, total, None) as advance:
                circuits = replace(circuits, progress=advance)
                tables_of_circuits = circuits.outcome()
            tables |= tables_of_circuits
            notes += circuits.notes(tables_of_circuits)
            if self.under_way.folder is not None:
                files = circuits.write(options.mib)
                notes.append(f"Scores of nodes are in {' and '.join(map(str, files))}.")
        if options.confirm is not None:
            facts["screening"] = screening_facts(ablation.table, options.subsets)
            notes += screening_notes(facts["screening"], metric)
        return _Found(tables, arrays, notes, facts)

    def _screener(self, examples: Examples, metric: str) -> Screener | None:
        """What chooses the heads that are ablated; None for all."""
        options, run = self.request.options, self.under_way
        if options.confirm is None:
            return None
        bench = self._bench(examples, metric, sweep.HeadRecords((), 0, 0))
        return Screener(
            *(self.loaded, examples, metric, options.confirm, options.subsets, options.seed, options.batch_tokens),
            warn=run.warn_once,
            progress=lambda text, total: run.reporter.progress(text, total, None),
            remembered=partial(bench.remembered, "screening"),
            sweep=partial(bench.sweep_without, "subset"),
        )

    def _circuits(self, examples: Examples, metric: str, changed: Sequence[PreparedExample]) -> CircuitBench:
        """What measures circuits of heads and MLPs."""
        options, pruning, run = self.request.options, self.request.pruning, self.under_way
        identity = {"the data": examples.summary.sha256, "--seed": str(options.seed)}
        return CircuitBench(
            self.loaded.model,
            examples,
            replace(examples, prepared=tuple(changed)),
            ranking_part(examples.keys, pruning.rank_split, options.seed),
            metric,
            orders=pruning.orders,
            replicates=options.replicates,
            seed=options.seed,
            warn=run.warn_once,
            checkpoint=run.checkpoint(f"mib-{self.number}", self.loaded, identity),
        )

    def _changed(self, task: Task) -> Examples | None:
        """The changed texts of --pairs as the model reads them; None without."""
        if (pairs := self.request.options.pairs) is None:
            return None
        offline = self.request.model_options.offline
        data = replace(suited_data(self.request.data, self.loaded.model, offline=offline), data=(pairs,))
        _, source = open_examples(data, offline=offline, known=task.labels)
        return Examples.of(task, source, self.loaded)

    def examples(self, task: Task, source: TaskSource, metric: str) -> Examples:
        """The examples as the model reads them; errors where it cannot do the task, or be pruned as asked."""
        with tells_task(self.request.data, task.name, self.loaded.model):
            check_head(self.loaded, task)
            with self.under_way.reporter.progress(f"reading {source.name}", None) as advance:
                examples = Examples.of(task, source, self.loaded, advance)
        bench = self._bench(examples, metric, sweep.HeadRecords(sweep.task_heads(self.loaded.model, task), 0, 0))
        if (name := self.request.options.receiver) is not None:
            Receiver.within(name, find_sites(task.network(self.loaded.model)))
        if self.request.pruning.prune:
            bench.check()
        examples.ask_shortest(self.loaded, self.under_way.warn_once)
        if self.request.options.mib is not None:
            self._circuits(examples, metric, ()).check()
        if self.request.pruning.prune:
            bench.check_scores()
        return examples

    def _bench(self, examples: Examples, metric: str, records: sweep.HeadRecords) -> PruningExperiment:
        options, pruning = self.request.options, self.request.pruning
        return PruningExperiment(self.under_way, self.number, self.loaded, examples, metric, records, options, pruning)

    @contextmanager
    def _sweep(
        self, examples: Examples, metric: str, changed: Examples | None, mode: Mode
    ) -> Iterator[sweep.TaskSweep]:
        run, seed = self.under_way, self.request.options.seed
        identity = {"the data": examples.summary.sha256}
        identity |= {"--seed": str(seed)} if mode in BY_BATCH else {}
        identity |= {"--pairs": changed.summary.sha256} if changed is not None and mode in WITH_PAIRS else {}
        identity |= {"--strategy-args receiver": str(self.request.options.receiver)} if mode == "path" else {}
        checkpoint = run.checkpoint(f"sweep-{self.number}-{mode}", self.loaded, identity)
        model, task = self.loaded.model, examples.task
        heads = sweep.task_heads(model, task)
        if mode == "path":
            name = self.request.options.receiver
            heads = tuple(senders(heads, None if name is None else Receiver.parse(name)))
        tokens = self.request.options.batch_tokens or sweep.suitable_tokens(model, task, len(heads))
        batches = examples.batches(tokens, run.processes.rank, run.processes.count)
        costs = [token_count(batch) / len(batch) for batch in batches for _ in batch]
        confirm = self.request.options.confirm
        count = len(heads) if confirm is None else min(confirm, len(heads))
        interim = sweep.InterimHeads(task, metric, mode, len(costs), run.reporter.remark)
        swept = f"each of {counted(count, 'head')}"
        swept = f"with {swept} alone" if mode == "keep-only" else f"{without(mode)} {swept}"
        text = f"{self.loaded.short_name} {swept}, {counted(len(costs), 'example')}"
        with run.reporter.progress(text, len(costs), costs) as advance:
            yield sweep.TaskSweep(mode, tokens, advance, run.warn_once, checkpoint, run.processes, interim)

    def _notes(
        self,
        examples: Examples,
        records: sweep.HeadRecords,
        intact: Floats,
        metric: str,
        evaluated: Chosen | None,
    ) -> list[str]:
        """Notes on the examples, on the answers of the model, and on heads that change nothing."""
        summary = examples.summary
        notes = left_out_notes(summary, summary.name, examples.reader.limit_text)
        notes += few_example_notes(len(examples), evaluated)
        task, data = examples.task, self.request.data
        notes += training_data_notes(
            self.loaded.name,
            data.data or (task.name,),
            data.data_split,
            "Name others with --data.",
            summary.sha256,
        )
        labels = label_counts(examples.prepared)
        pruned_labels = None if evaluated is None else label_counts(examples.part(evaluated).prepared)
        notes += [*examples.notes, *record_notes(task, intact, evaluated, labels, pruned_labels)]
        notes += cluster_notes(examples.keys)
        if evaluated is not None:
            part = [key for key, is_evaluated in zip(examples.keys, evaluated, strict=True) if is_evaluated]
            notes += [f"Pruned models: {note}" for note in cluster_notes(part)]
        cut = {head: cut_translations(task, translations) for head, translations in records.items()}
        if (most := max(cut.values(), default=0)) > cut_translations(task, records.intact):
            worst = f"{max(cut, key=cut.__getitem__)}{tied(list(cut.values()).count(most))}"
            notes.append(
                f"Without {worst}, {most} of {counted(len(examples), 'translation')} {were(most)} cut off at the "
                "length limit, the largest number for any head."
            )
        if self.request.pruning.prune and self.request.options.mode != "zero":
            ranked = f"; `ranked` used the order of --mode {self.request.options.mode}"
            ranked *= "ranked" in self.request.pruning.strategies
            notes.append(f"In pruned models the heads are removed altogether{ranked}.")
        model = self.loaded.model
        if task.head == "embedding" and (model.base_model is not model or "For" in type(model).__name__):
            name, made_for = type(model).__name__, task_of_head(model) or OWN_CLASSES
            made_for = "translation-loss" if made_for == "translation" else made_for
            notes.append(
                f"{task.name} compares mean hidden states: the head of {name} is not used. What that was trained for "
                f"is another --task: {made_for} with --data."
            )
        mode = self.request.options.mode
        notes += [_STOOD_IN[mode]] if mode in _STOOD_IN else []
        if self.request.options.keep_only and mode != "zero":
            notes.append(f"--keep-only sets the other heads of a layer to 0, not to what --mode {mode} gives.")
        return notes + idle_notes(task, metric, records, sweep.zeroed_heads(self.loaded.model, task))


def idle_notes(task: Task, metric: str, records: sweep.HeadRecords, zeroed: Collection[Head] = ()) -> list[str]:
    """Which heads change nothing when each is removed alone; empty for a model that gives one answer to everything.

    Args:
        task: whose records they are.
        metric: of the task.
        records: of all examples.
        zeroed: heads that add nothing whatever the examples, see `headlens.analyses.ablate.sweep.zeroed_heads`.

    Raises:
        ModelError, SelfCheckError: as in `headlens.analyses.ablate.sweep.check_effect`.
    """
    idle = sweep.check_effect(records, counts=task.generates, constant=task.constant(records.intact))
    if not idle or task.constant(records.intact, metric):
        return []
    notes = []
    if zeroed := [head for head in idle if head in set(zeroed)]:
        notes.append(
            f"{counted(len(zeroed), 'head')} {'adds' if len(zeroed) == 1 else 'add'} nothing to any text, as "
            f"weights of the output projection are 0, and {'is' if len(zeroed) == 1 else 'are'} not needed: "
            f"{' '.join(map(str, zeroed))}."
        )
    if idle := [head for head in idle if head not in set(zeroed)]:
        notes.append(
            f"Removed singly, {counted(len(idle), 'head')} {'changes' if len(idle) == 1 else 'change'} no output that "
            f"is measured on these {counted(len(records.intact), 'example')}, in any digit: {' '.join(map(str, idle))}."
        )
    return notes


def _stack(results: dict[str, _Found]) -> dict[str, pd.DataFrame]:
    """The tables of all models under each other."""
    stacked = {}
    for name in next(iter(results.values())).tables:
        joined = pd.concat([f.tables[name].assign(model=label) for label, f in results.items()], ignore_index=True)
        stacked[name] = joined[["model", *(column for column in joined if column != "model")]]
    return stacked

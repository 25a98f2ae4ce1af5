"""`prune` with everything around it: model and data by name, a run folder with tables, figures and checkpoints."""

from __future__ import annotations

import itertools
from dataclasses import asdict

from headlens.analyses.prune.options import PruneRequest
from headlens.analyses.prune.report import write_gates
from headlens.analyses.prune.sweep import GateSweep, PenaltyOutcome, gate_tables, nearest
from headlens.analyses.prune.sweep_runs import UNPRUNED
from headlens.attention.sites import find_sites
from headlens.corpora.corpus_options import CorpusOptions
from headlens.corpora.frequency import make_frequency
from headlens.corpora.sentence import Corpus
from headlens.corpora.sources import open_corpus
from headlens.errors import OptionError, counted
from headlens.findings.result_notes import were, without_advice
from headlens.heads import STACKS, Head
from headlens.interventions.compacting import can_cut
from headlens.interventions.hard_concrete import HardConcrete
from headlens.learning.gate_options import GateOptions
from headlens.learning.hyperparameters import TrainingOptions, learning_rate
from headlens.learning.open_training_set import OpenedTraining, open_training_set
from headlens.learning.sweep import MODELS, SweepRun, notes_once
from headlens.learning.training_set import TrainingCallbacks
from headlens.roles.head_roles import Frequencies
from headlens.roles.role_options import Thresholds
from headlens.runs.progress import Reporter
from headlens.runs.run import Run, model_record, open_run
from headlens.unchanged_files import file_hashes


def open_roles(request: PruneRequest) -> tuple[Corpus, Frequencies] | None:
    """Returns the corpus on which roles are named and its frequencies; None where none is asked for.

    Raises:
        InputError: whatever is wrong with the corpus, and thresholds without one.
    """
    options = request.roles
    if options.roles_corpus is None:
        if request.thresholds != Thresholds():
            raise OptionError(
                "Role thresholds only apply with --roles-corpus, which is not given.",
                "Give both. The margin of a loss is --loss-margin.",
            )
        return None
    skip, offline = request.training_set.data.skip_broken, request.model_options.offline
    corpus = open_corpus(options.roles_corpus, CorpusOptions(options.roles_target, skip_broken=skip, offline=offline))
    source = None if options.frequency == "none" else make_frequency(options.frequency, corpus)
    return corpus, Frequencies(source)


def run_prune(request: PruneRequest, reporter: Reporter | None = None) -> SweepRun:
    """Read the data, train with gates for every penalty, measure and save what is left, write the run folder.

    Raises:
        InputError: whatever is wrong with what was asked for.
    """
    offline = request.model_options.offline
    with open_run("prune", request.model, request, reporter) as run:
        run.set_aside(f"{MODELS}/penalty-*", f"{MODELS}/{UNPRUNED}-scratch")
        roles, given = open_roles(request), request.roles
        files = {"roles-corpus": given.roles_corpus, "roles-target": given.roles_target, "frequency": given.frequency}
        run.depend_on(None, file_hashes({f"the file of --{option}": path for option, path in files.items()}))
        loaded = run.load(request.model, request.model_options)
        opened = open_training_set(
            request.training_set, run, loaded, request.training.seed, request.sweep.loss_margin, offline=offline
        )
        loaded, training_set, gates = opened.loaded, opened.training_set, request.resolved_gates
        training, scratch = request.training.of_loop(), request.training.scratch()
        count = TrainingCallbacks(processes=run.processes.count).updates
        updates, scratch_updates = count(training_set.data, training), count(training_set.data, scratch)
        _warn_of_short_way(run, training, gates, updates)
        outcomes = GateSweep(run, request, loaded, training_set, roles).outcomes()
        sites = [s for s in find_sites(loaded.model) if s.n_heads]
        head_names = [head for outcome in outcomes for head in outcome.values]
        gated = gates.gates or tuple(s for s in STACKS if any(head.startswith(s) for head in head_names))
        tables = gate_tables(loaded.short_name, training_set.task.name, gates.penalty, sites, gated, outcomes)
        sweep_notes = _notes(request, opened, outcomes, updates, scratch_updates)
        if run.writes and {o.run for o in outcomes} != {UNPRUNED} and training_set.task.generates:
            sweep_notes.append("headlens reproduce voita2019 puts such a table next to the paper's numbers.")
        notes = [*opened.untrained, *opened.notes, *sweep_notes, *run.warnings]
        if run.folder is not None:
            with run.reporter.status("writing tables and figures" if request.figures else "writing tables"):
                write_gates(run.folder, tables, notes, figures=request.figures)
            rate = {"updates": updates, "gate_learning_rate": gates.rate(updates)}
            facts = {"models": [model_record(loaded, loaded.short_name)], "task": vars(training_set.task)}
            run.folder.finish(facts | {"lesson": training_set.facts, "gates": asdict(gates) | rate, "notes": notes})
        return SweepRun(run.path, run.files, tables, notes)


def _warn_of_short_way(run: Run, training: TrainingOptions, gates: GateOptions, updates: int) -> None:
    """Say before a long training that gates cannot close in it: Adam moves log α by a learning rate a step at most."""
    share = sum(learning_rate(training, step, updates) for step in range(updates)) / training.learning_rate
    way, needed = gates.rate(updates) * share, gates.gate_start - HardConcrete().closed_below
    if way < needed:
        run.warn(
            f"No gate can close: in {counted(updates, 'update')} log α moves by about {way:.2g} at most, and "
            f"{needed:.2g} are needed. Give more updates, a higher --law gate-learning-rate, or a lower --law "
            "gate-start."
        )


def _notes(
    request: PruneRequest, opened: OpenedTraining, outcomes: list[PenaltyOutcome], updates: int, scratch_updates: int
) -> list[str]:
    gates = request.resolved_gates
    notes = [
        "λ multiplies the mean over attention modules of the expected number of open gates."
        if gates.penalty == "mean"
        else "λ multiplies the expected number of open gates of all attention modules."
    ]
    if gates.freeze:
        notes.append(f"Frozen: {', '.join(gates.freeze)}.")
    each = f"Each run has {counted(updates, 'update')}; gate learning rate {gates.rate(updates):.3g}."
    if "all" not in (gates.freeze or ()):
        each += " They train the model, too, which alone may change the metric"
        each += "." if 0 in request.sweep.strengths else ": a run with --lambdas 0 shows by how much."
    notes.append(each)
    if request.sweep.from_scratch:
        had = f"Models from scratch had {counted(scratch_updates, 'update')}"
        notes.append(f"{had}; use --training-args scratch-steps to give them as many as the original model had.")
    # Notes that the unpruned model has, too, are not repeated.
    known = [note for outcome in outcomes if outcome.run == UNPRUNED for note in outcome.notes]
    # A model without heads has nothing to train that could tell examples apart.
    shortened = [without_advice(o.notes) if o.values and not o.left else o.notes for o in outcomes]
    notes_of_runs = [
        ((o.run, notes_of_run), (f"{o.run} from random weights", o.scratch_notes))
        for o, notes_of_run in zip(outcomes, shortened, strict=True)
    ]
    notes += notes_once(known, itertools.chain.from_iterable(notes_of_runs))
    notes += _gate_notes(outcomes, opened)
    target = request.sweep.target_heads
    if target is not None:
        best = nearest([o for o in outcomes if o.values], target)
        end = "." if best.left == target else ": the closest; a larger --law most-runs may come closer."
        notes.append(
            f"{counted(best.left, 'head')} with gates left by {best.run}, of {target} that were asked for{end}"
        )
    if request.roles.roles_corpus is None:
        left = any(outcome.left for outcome in outcomes if outcome.values)
        notes += ["To see what the remaining heads do, give --roles-corpus FILE.conllu."] * left
    elif not any(role for outcome in outcomes for role, _ in outcome.roles.values()):
        notes.append(
            "No head has a role at these thresholds, before or after pruning, so the figure of roles is not drawn."
        )
    return notes


def _gate_notes(outcomes: list[PenaltyOutcome], opened: OpenedTraining) -> list[str]:
    """What became of gates that is not seen from the numbers of heads."""
    notes = []
    for outcome in outcomes:
        if outcome.between:
            notes.append(
                f"{outcome.run}: {counted(outcome.between, 'gate')} between 0 and 1 {were(outcome.between)} folded "
                "into the weights."
            )
        if outcome.values and not outcome.left:
            notes.append(f"{outcome.run}: all gates are closed.")
    heads = sum(s.n_heads for s in find_sites(opened.loaded.model))
    some = [o for o in outcomes if 0 < len(o.removed) < heads]
    if uncut := [o.run for o in some if not can_cut(opened.loaded.model, map(Head.parse, o.removed))]:
        notes.append(
            f"{', '.join(uncut)}: these heads cannot be cut out of the weights, so the checkpoint keeps its shape, "
            "with zeros in the output projections, and other commands still see all of them; no such model is trained "
            "from scratch."
        )
    if emptied := [o.run for o in outcomes if len(o.removed) == heads]:
        notes.append(
            f"{', '.join(emptied)}: without any head left, the checkpoint keeps its shape, with zeros for heads, and "
            "other commands still see all of them; no such model is trained from scratch."
        )
    return notes

"""`train-dam` with everything around it: model and data by name, a run folder with masks, tables and figures."""

from __future__ import annotations

import statistics
from dataclasses import asdict, replace

import pandas as pd

from headlens.analyses.dam.options import DamRequest
from headlens.analyses.dam.report import write_dam
from headlens.analyses.dam.sweep import DamSweep
from headlens.corpora.sources import open_corpus
from headlens.errors import counted
from headlens.learning.mask_learning import EARLIER_MASKS, MASKS, load_mask, made_mask
from headlens.learning.new_models import PREFIX, hints_at_new, is_new
from headlens.learning.open_training_set import OpenedTraining, open_training_set
from headlens.learning.sweep import SweepRun, notes_once
from headlens.learning.text_training import block_length, made_new
from headlens.learning.training_options import TextOptions
from headlens.learning.training_set import TrainingCallbacks
from headlens.models.loading import LoadedModel
from headlens.runs.progress import Reporter
from headlens.runs.run import Run, model_record, open_run

_UNDECIDED = 0.1  # share of the numbers from which on a note is due


def run_dam(request: DamRequest, reporter: Reporter | None = None) -> SweepRun:
    """Read the data, train model and mask for every penalty, measure and save them, write the run folder.

    Raises:
        InputError: whatever is wrong with what was asked for.
    """
    offline, seed = request.model_options.offline, request.training.seed
    with open_run("train-dam", request.model.removeprefix(PREFIX), request, reporter) as run:
        run.set_aside(*EARLIER_MASKS)
        loaded = _loaded(request, run)
        longest = block_length(loaded, request.dam.longest)
        request = replace(request, dam=replace(request.dam, longest=longest))
        training_set = replace(request.training_set, longest=longest)
        opened = open_training_set(training_set, run, loaded, seed, request.margin, offline=offline)
        # Errors in the mask are raised before anything is measured.
        made_mask(opened.training_set.task.network(opened.loaded.model), request.learning)
        training = request.training.of_loop()
        settings = (request.lambdas, request.learning, training, request.dam.controls, request.margin)
        sweep = DamSweep(run, opened.loaded, opened.training_set, *settings)
        outcomes = sweep.outcomes()
        tables = sweep.tables(outcomes) if run.writes else {}
        updates = TrainingCallbacks(processes=run.processes.count).updates(opened.training_set.data, training)
        measured = notes_once(outcomes[0].notes, [(o.run, o.notes) for o in outcomes])
        notes = [*opened.untrained, *opened.notes, *_notes(request, opened, tables, updates), *measured, *run.warnings]
        if run.folder is not None:
            masks = [load_mask(run.path / MASKS / o.run) for o in outcomes if o.mask and request.figures]
            with run.reporter.status("writing tables and figures" if request.figures else "writing tables"):
                pictures = [(m.file.name, m.probabilities, m.file.allowed) for m in masks]
                write_dam(run.folder, tables, pictures, notes)
            learning = {"updates": updates, "mask_learning_rate": request.learning.rate(updates)}
            facts = {
                "models": [model_record(opened.loaded, opened.loaded.short_name)],
                "task": vars(opened.training_set.task),
                "lesson": opened.training_set.facts,
                "dam": asdict(request.learning) | learning,
                "sparsity": {o.run: o.sparsity for o in outcomes if o.mask},
            }
            run.folder.finish({**facts, "notes": notes})
        return SweepRun(run.path, run.files, tables, notes)


def _loaded(request: DamRequest, run: Run) -> LoadedModel:
    if not is_new(request.model):
        with hints_at_new(request.model):
            return run.load(request.model, request.model_options)
    data, options = request.training_set, request.model_options
    corpus = open_corpus(
        data.corpus, replace(data.corpus_options(offline=options.offline), target=None, target_column=None)
    )
    longest, halves = request.dam.longest, data.next_sentence
    text = TextOptions("mlm", vocabulary=request.vocabulary, longest=longest, next_sentence=halves)
    trainable = made_new(run, request.model, corpus, text, request.training.seed, options.device)
    return LoadedModel(request.model, trainable.model, trainable.tokenizer, None)


def _notes(request: DamRequest, opened: OpenedTraining, tables: dict[str, pd.DataFrame], updates: int) -> list[str]:
    dam = request.learning
    positions = "n x n positions of all heads" + (" and layers" if dam.mask.per_layer else "")
    notes = [
        f"λ multiplies the {dam.penalty} of M over the {positions}, n = {dam.mask.longest}.",
        f"Each run has {counted(updates, 'update')}; α learns at {dam.rate(updates):.3g}.",
        "Metrics are measured under masks that are resampled for every batch."
        if dam.mask.noise == "always"
        else "Metrics are measured under the final mask, which keeps positions with P > 1/2.",
    ]
    if dam.mask.form == "multiplicative":
        notes.append(
            "Attention weights were multiplied by M; when the mask is used with --mask, they are normalised to sum "
            "to 1 again, so results differ."
        )
    if dam.layers is not None:
        notes.append("Sparsity is the share of masked positions in the layers to which a mask applies.")
    if dam.freeze:
        notes.append(f"Frozen: {', '.join(dam.freeze)}.")
    longest = opened.training_set.longest
    if longest < dam.mask.longest:
        beyond = "positions beyond that are decided by the penalty alone"
        if any(penalty == 0 for penalty in request.lambdas):
            beyond += (
                "; under λ = 0 nothing decides them: P stays near 1/2, where it began, and chance masks half of them"
            )
        notes.append(f"No text to learn from has more than {longest} tokens: {beyond}.")
    median = statistics.median_low(opened.training_set.learned_lengths.elements())
    if median < longest:
        alone = "for this reason alone"
        what = [f"under a penalty, P may fall with distance {alone}"] * any(request.lambdas)
        what += [f"under λ = 0, P stays nearer to 1/2, and may rise or fall {alone}"] * (0 in request.lambdas)
        notes.append(
            f"Half of the texts to learn from have at most {median} tokens. The fewer texts have a position, the less "
            f"they decide its P (texts in positions.csv): {'; '.join(what)}."
        )
    if not tables:
        return notes
    for name, rows in tables["sparsity"].dropna(subset=["head"]).groupby("mask", sort=False):
        if closed := int((rows["sparsity"] == 1).sum()):
            these = "this head" if closed == 1 else "these heads"
            notes.append(
                f"{name}: everything is masked in {closed} of {counted(len(rows), 'head')}, so the output of "
                f"{these} is meaningless. Give a smaller penalty, or fewer updates."
            )
    last = {row["run"]: row for row in tables["log"].to_dict("records")}
    settle = "more updates or a larger --law mask-learning-rate would let the mask settle"
    learned = "more updates or a larger --law mask-learning-rate would let those settle that some text has"
    return notes + [
        f"{run}: P of {row['undecided']:.0%} of the mask parameters is still between 0.1 and 0.9; "
        f"{learned if row['penalty'] == 0 and longest < dam.mask.longest else settle}."
        for run, row in last.items()
        if row["undecided"] > _UNDECIDED
    ]

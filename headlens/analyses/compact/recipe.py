"""`compact_model` with everything around it: a model by name, heads from a list, a folder with the smaller model.

Whether it computes what the masked one does, and how much faster, is measured before it is written.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from transformers import PreTrainedModel

from headlens.analyses.compact.head_choice import (
    choice_of_list,
    choice_of_ranking,
    chosen_heads,
    run_of,
    tie_notes,
)
from headlens.analyses.compact.model_comparison import (
    Difference,
    Inputs,
    ModelComparison,
    model_inputs,
    output_layer_note,
)
from headlens.analyses.compact.options import CompactRequest, MeasureOptions
from headlens.analyses.compact.report import INTERVALS
from headlens.analyses.compact.shape_costs import (
    ranking_notes,
    rescaling_notes,
    shape_losses,
    shape_notes,
    shape_table,
    text_notes,
)
from headlens.analyses.compact.text_loss import TextLoss
from headlens.attention.sites import Site, find_sites, is_decoder_only
from headlens.corpora.encoded_corpus import EncodingCounts
from headlens.corpora.sentence import Corpus, CorpusSummary, summarise
from headlens.corpora.sources import open_corpus, refuse_unused, split_corpus
from headlens.errors import CorpusError, OptionError, OutputError, counted
from headlens.files import output_errors
from headlens.findings.training_data import training_data_notes
from headlens.interventions.compacting import (
    Compaction,
    can_cut,
    compact_model,
    save_compacted,
    settings_or_none,
    zero_heads,
)
from headlens.interventions.plain_shape import plain_settings
from headlens.interventions.rescaling import rescaling, scale_layers
from headlens.models.loading import LoadedModel, quiet
from headlens.options import DEMO
from headlens.runs.progress import Reporter
from headlens.runs.run import FinishedRun, Run, model_record, open_run
from headlens.statistics.intervals import FEWEST
from headlens.tasks.evaluation import EvaluationOptions
from headlens.weights.head_map import FILE

_CONFIG = "config.json"


@dataclass(frozen=True)
class CompactRun(FinishedRun):
    """What a run gave: the folder with the model, what was cut out of it, and how it compares."""

    compaction: Compaction
    difference: Difference
    corpus: CorpusSummary

    @property
    def table(self) -> pd.DataFrame:
        """Returns `compact.csv`, the model before and after."""
        return self.tables["compact"]

    def summary(self) -> dict[str, Any]:
        """Returns the run as JSON values: removed and masked heads, differences of outputs, sizes and notes."""
        return {
            "out": str(self.folder),
            "cut": [str(h) for h in self.compaction.cut],
            "masked": [str(h) for h in self.compaction.masked],
            "difference": asdict(self.difference),
            "states": self.table.to_dict("records"),
            "shapes": self.tables["shapes"].to_dict("records") if "shapes" in self.tables else [],
            "notes": self.notes,
        }


def run_compact(request: CompactRequest, reporter: Reporter | None = None) -> CompactRun:
    """Cut the heads out, save the model, read it again, compare it with the masked one, write the folder.

    Raises:
        InputError: whatever is wrong with what was asked for; no half of a model is left.
        SelfCheckError: if the smaller model computes something else than the masked one; it is not written then.
    """
    named = chosen_heads(request)
    refuse_unused(request.corpus_options, request.corpus, request.corpus_options.target)
    _refuse_models_folder(request)
    with open_run("compact", request.model, request, reporter, alone=True) as run:
        loaded = run.load(request.model, request.model_options)
        number, shape, sites = request.remove, request.shape, find_sites(loaded.model)
        choice = (
            choice_of_list(named, shape, sites) if number is None else choice_of_ranking(named, number, shape, sites)
        )
        with run.reporter.status("cutting heads out"):
            small = copy.deepcopy(loaded.model)
            done = (zero_heads if request.stock else compact_model)(small, choice.heads)
            if choice.shape in ("even", "groups") and not request.stock:
                plain_settings(small)  # refused in words where transformers cannot hold the shape
        corpus, counts = open_corpus(request.corpus, request.corpus_options), EncodingCounts()
        with run.reporter.progress(f"reading {corpus.name}", None) as advance:
            summary = summarise(corpus, advance)
        inputs = model_inputs(loaded, corpus, request.measure.batch_tokens, counts)
        measured, factors = corpus, dict[Site, float]()
        if request.rescale:
            fitted, measured = _halves(corpus, summary.sentences)
            with run.reporter.status("rescaling"):
                batches = model_inputs(loaded, fitted, request.measure.batch_tokens, EncodingCounts())
                factors = rescaling(loaded.model, done.heads.removed, batches)
                scale_layers(small, factors)
        text = _text(request, loaded, measured, run)
        compared = ModelComparison(request, run, loaded, inputs, done, factors)
        with _saved(run, loaded, small) as folder:
            difference, table, losses = compared.of(folder, text)
            # The configuration last, for without it there is no model.
            for file in sorted(filter(Path.is_file, folder.iterdir()), key=lambda f: (f.name == _CONFIG, f.name)):
                with run.file(file.name) as path:
                    shutil.move(file, path)
        tables = {"compact": table}
        notes = [*tie_notes(request, choice, sites), *_notes(request, loaded, small, done, counts)]
        if text is not None and losses:
            # Of heads that were named only where rescaling is measured beside.
            shapes = shape_losses(text, loaded, choice, run.reporter.status) if choice.others or factors else {}
            if choice.others:
                tables["shapes"] = shape_table(loaded.short_name, choice, shapes, losses[0])
            notes += [*shape_notes(choice, shapes), *ranking_notes(request, text)]
            split = request.corpus_options.split
            notes += training_data_notes(loaded.name, (request.corpus,), split, "Name others with --corpus.")
            notes += text_notes(losses[0], rescaled=request.rescale)
            notes += rescaling_notes(factors, corpus.name, losses[1], shapes.get(choice.shape))
        else:
            notes += rescaling_notes(factors, corpus.name)
        notes += [*run.warnings, *_time_notes(request.measure, loaded.model, inputs, table)]
        if run.folder is not None:
            for name, frame in tables.items():
                run.folder.table(name, frame)
            facts = model_record(loaded, loaded.short_name) | {"encoding": asdict(counts)}
            removed = {"removed": [str(h) for h in done.heads.removed], "self_check": asdict(difference)}
            scaled = {"rescaled": {str(site): factor for site, factor in factors.items()}} if factors else {}
            run.folder.finish({"models": [facts], "corpus": asdict(summary), **removed, **scaled, "notes": notes})
        return CompactRun(run.path, run.files, tables, notes, done, difference, summary)


def _halves(corpus: Corpus, sentences: int) -> tuple[Corpus, Corpus]:
    """The sentences that --rescale is fitted to, and the others, on which it is measured."""
    fitted, measured = split_corpus(corpus, 0.5, sentences)
    if measured is None:
        raise CorpusError(
            f"{corpus.name} has a single sentence: --rescale fits on one half and measures on the other.",
            "Give more text with --corpus.",
        )
    return fitted, measured


def _time_notes(
    measure: MeasureOptions, model: PreTrainedModel, inputs: Sequence[Inputs], table: pd.DataFrame
) -> list[str]:
    rounds, tokens, batches = measure.rounds, measure.batch_tokens, len(inputs)
    mean = f"the mean of {batches}" if batches > 1 else "the corpus is one"
    few = f"{rounds} rounds are too few for intervals of times and speed-ups"
    return [
        *output_layer_note(model, inputs[batches // 2], table["operations"].tolist()),
        f"Times are per batch of up to {tokens:,} tokens, padding included: {mean}.",
        INTERVALS if rounds >= FEWEST else f"{few}: --data-args rounds={FEWEST} or more gives some.",
    ]


def _text(request: CompactRequest, loaded: LoadedModel, corpus: Corpus, run: Run) -> TextLoss | None:
    """The text on which a decoder is measured; None for models that predict no next tokens."""
    if not is_decoder_only(loaded.model):
        return None
    try:
        options = EvaluationOptions(request.measure.batch_tokens, warn=run.warn)
        return TextLoss.of(loaded, corpus, options)
    except OptionError as error:
        run.tell(f"Loss and perplexity were not measured: {error.message}")
        return None


def _refuse_models_folder(request: CompactRequest) -> None:
    """Refuses an output folder that holds a model, such as the original."""
    out = request.place.out
    if out is None or not (out / _CONFIG).is_file() or request.place.resume:
        return
    if out.resolve() == Path(request.model).expanduser().resolve():
        raise OptionError(f"--out {out} is the folder of the model itself.", "Name another folder.")
    if not (out / FILE).is_file() and not (out / "run.json").is_file():
        raise OutputError(f"{out} holds a model already.", "Name another folder with --out.")


@contextmanager
def _saved(run: Run, loaded: LoadedModel, small: PreTrainedModel) -> Iterator[Path]:
    """A folder with the smaller model, for as long as it is looked at."""
    folder = run.kept(".saving")
    try:
        with run.reporter.status("saving"), output_errors(run.path), quiet():
            shutil.rmtree(folder, ignore_errors=True)
            save_compacted(small, folder)
            if loaded.tokenizer is not None:
                loaded.tokenizer.save_pretrained(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _language_notes(request: CompactRequest) -> list[str]:
    """A note where the bundled text is read although the heads come from a run on other data."""
    arguments = run_of(request.from_file).get("arguments", {})
    named = arguments.get("data") or [corpus for corpus in [arguments.get("corpus")] if corpus not in (None, DEMO)]
    if request.corpus != DEMO or not isinstance(named, list) or not named:
        return []
    return [
        "The model reads the bundled English sentences here, and the heads come from a run on "
        f"{' and '.join(map(str, named))}: to compare and time it on text of that kind, name some with --corpus."
    ]


def _notes(
    request: CompactRequest, loaded: LoadedModel, small: PreTrainedModel, done: Compaction, counts: EncodingCounts
) -> list[str]:
    notes = _language_notes(request)
    if done.masked:
        names = " ".join(map(str, done.masked))
        whose = "its" if len(done.masked) == 1 else "their"
        notes.append(
            f"{counted(len(done.masked), 'head')} only masked, because other layers need the same weights; "
            f"headlens.load keeps {whose} output at zero: {names}."
        )
    if done.again:
        notes.append(f"{counted(len(done.again), 'head')} had already been removed.")
    if request.stock and not can_cut(loaded.model, done.cut):
        notes.append(
            "These heads cannot be cut out of the weights: zeros stand in the output projections alone, "
            "and other commands still measure what these heads attend to."
        )
    if settings_or_none(small) is not None:
        notes.append(
            f"Plain from_pretrained reads the folder, with heads numbered anew; headlens keeps the numbers of the "
            f"original, which {FILE} lists."
        )
    elif not request.stock:
        notes.append(
            f"Plain from_pretrained cannot read the folder: load it with headlens.load, or write one that it reads "
            f"with --stock. Heads keep the numbers of the original; {FILE} lists those that are left."
        )
    emptied = [f"{s.stack}.{s.layer}" for s in done.heads.sites if not s.left]
    if "decoder.0" in emptied and not request.stock:
        notes.append(
            "decoder.0 has no heads left, so the length of a key-value cache cannot be determined: use_cache is off "
            "and generation is slower."
        )
    if loaded.model.config.is_encoder_decoder and request.corpus_options.target is None:
        notes.append("The corpus has no target side: the decoder read the source for the comparison.")
    if counts.too_long:
        notes.append(f"{counted(counts.too_long, 'sentence')} too long for the model left out of the comparison.")
    return notes

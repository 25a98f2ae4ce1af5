"""`compact_model` with everything around it: a model by name, heads from a list, a folder with the smaller model.

Whether it computes what the masked one does, and how much faster, is measured before it is written.
"""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import PreTrainedModel

from headlens.analyses.compact.head_choice import (
    choice_of_list,
    choice_of_ranking,
    chosen_heads,
    run_of,
    tie_notes,
)
from headlens.analyses.compact.options import CompactRequest
from headlens.analyses.compact.report import INTERVALS
from headlens.analyses.compact.shape_costs import (
    ranking_notes,
    rescaling_notes,
    shape_losses,
    shape_notes,
    shape_table,
    text_notes,
)
from headlens.analyses.compact.text_loss import MeasuredText, TextLoss, cache_bytes_per_token, gates_of
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site, find_sites, is_decoder_only
from headlens.corpora.encoded_corpus import EncodingCounts
from headlens.corpora.sentence import Corpus, CorpusSummary, summarise
from headlens.corpora.sources import open_corpus, refuse_unused, split_corpus
from headlens.errors import CorpusError, OptionError, OutputError, SelfCheckError, counted
from headlens.files import output_errors
from headlens.findings.training_data import training_data_notes
from headlens.heads import Head
from headlens.interventions.compacting import (
    Compaction,
    can_cut,
    compact_model,
    save_compacted,
    settings_or_none,
    zero_heads,
)
from headlens.interventions.gates import HeadGates
from headlens.interventions.plain_shape import plain_settings
from headlens.interventions.rescaling import rescaling, scale_layers
from headlens.metrics.accumulator import Array
from headlens.models.loading import LoadedModel, load, quiet
from headlens.options import DEMO
from headlens.planning.speed import operations_of, seconds_of
from headlens.runs.corpus_pass import CorpusReader
from headlens.runs.progress import Advance, Reporter
from headlens.runs.run import FinishedRun, Run, model_record, open_run
from headlens.statistics.intervals import FEWEST, geometric_mean_interval
from headlens.tasks.evaluation import EvaluationOptions
from headlens.weights.head_map import FILE
from headlens.weights.shared_layer_masks import silent_heads

Inputs = dict[str, Any]
# Of the largest output, or of 1 where that is less.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
_CONFIG = "config.json"


@dataclass(frozen=True)
class Difference:
    """How far the outputs of two models are apart.

    Args:
        largest: the largest difference of two numbers.
        output: the largest output.
        tolerance: the share of the output (of 1 where that is less) that is allowed.
    """

    largest: float
    output: float
    tolerance: float

    def check(self) -> None:
        """Refuse a model that computes something else than the masked one.

        Raises:
            SelfCheckError: if the difference is larger than allowed, or no number.
        """
        if not self.largest <= self.tolerance * max(1.0, self.output):
            raise SelfCheckError(
                f"The compacted model differs from the masked one: {self}.", "Nothing was written; please report it."
            )

    def __str__(self) -> str:
        return (
            f"outputs differ by at most {self.largest:.2g}, the largest output being {self.output:.3g}; "
            f"{self.tolerance * max(1.0, self.output):.2g} is the tolerance"
        )


def model_inputs(loaded: LoadedModel, corpus: Corpus, batch_tokens: int, counts: EncodingCounts) -> list[Inputs]:
    """Batches of a corpus for the whole model; where there is no target side, its decoder reads the source.

    Args:
        loaded: the model.
        corpus: what it reads, held in memory as numbers.
        batch_tokens: tokens of a batch, padding included.
        counts: filled with what became of the sentences.

    Raises:
        CorpusError: if there is no sentence that the model can read.
    """
    examples = iter(corpus)
    first = next(examples, None)
    reader = None if first is None else CorpusReader.of(loaded, first)
    batches = [] if reader is None else list(reader.batches(chain([first], examples), batch_tokens, counts))  # type: ignore[list-item]
    if reader is None or not batches:
        raise CorpusError(f"{corpus.name} has no sentence that {loaded.name} can read.", "Give shorter sentences.")
    further = {"use_cache": False} if loaded.model.config.is_encoder_decoder else reader.arguments
    return [{**_complete(loaded.model, batch.inputs), **further} for batch in batches]


def _complete(model: PreTrainedModel, inputs: Mapping[str, torch.Tensor]) -> Inputs:
    if not model.config.is_encoder_decoder or "decoder_input_ids" in inputs:
        return dict(inputs)
    table: Any = model.get_decoder().get_input_embeddings()
    ids = inputs["input_ids"].clamp(max=table.num_embeddings - 1)
    return {**inputs, "decoder_input_ids": ids, "decoder_attention_mask": inputs["attention_mask"]}


def difference_to_masked(
    model: PreTrainedModel,
    small: PreTrainedModel,
    removed: Collection[Head],
    inputs: Sequence[Inputs],
    scales: Mapping[Head, float] | None = None,
) -> Difference:
    """Compare what a smaller model computes with what the original does with the removed heads gated to 0.

    Outputs at padding are nobody's: no token reads them, and rounding may grow there beyond what any tolerance allows.

    Args:
        model: the original, which may have lost some of the heads before.
        small: without them.
        removed: the heads.
        inputs: batches, see `model_inputs`.
        scales: what the outputs of other heads are multiplied by; None for nothing.
    """
    masked, part = _body(model), _body(small)
    values = gates_of(removed, scales or {})
    gates = HeadGates({h: values[h] for s in find_sites(masked) for h in s.heads if h in values})
    sizes = [(0.0, 0.0)]
    with AttentionSession(masked, edits=[gates]), torch.inference_mode():
        for batch in inputs:
            # Which outputs are those of tokens, by their first two dimensions.
            mask = batch.get("decoder_attention_mask", batch.get("attention_mask"))
            real: Any = ... if mask is None else mask.bool()
            expected, computed = (m(**batch)[0][real].double() for m in (masked, part))
            sizes.append((float((expected - computed).abs().max()), float(expected.abs().max())))
    # numpy's, since NaN is the largest of all there.
    difference, output = np.max(sizes, axis=0)
    return Difference(float(difference), float(output), TOLERANCE[model.dtype])


def _body(model: PreTrainedModel) -> PreTrainedModel:
    """The model without its task head, which costs the same before and after."""
    body = model.base_model
    assert isinstance(body, PreTrainedModel)
    return body


def seconds_per_forward(
    models: Sequence[PreTrainedModel], inputs: Sequence[Inputs], rounds: int, advance: Advance = lambda _: None
) -> Array:
    """Wall time of a forward pass, the mean over the batches: (rounds, models).

    The models take turns at every batch, so that whatever else the machine does hits all of them; the first round
    warms up and does not count.
    """
    spent = np.zeros((rounds + 1, len(models)))
    with torch.inference_mode():
        for number in range(rounds + 1):
            for turn, batch in enumerate(inputs):
                for offset in range(len(models)):
                    which = (turn + number + offset) % len(models)
                    body = _body(models[which])
                    spent[number, which] += seconds_of(partial(body, **batch), body.device)
            advance(1)
    seconds: Array = spent[1:] / len(inputs)
    return seconds


def model_size(model: PreTrainedModel) -> dict[str, int]:
    """How large a model is: its heads, its parameters, and the bytes of its weights, shared ones once.

    Of weights that several depths share, the heads count at each depth; `masked` of them are silent.
    """
    tensors = {t.data_ptr() or id(t): t for t in model.state_dict().values()}.values()
    return {
        "heads": sum(s.n_heads for s in find_sites(model)),
        "masked": sum(map(len, silent_heads(model))),
        "parameters": sum(p.numel() for p in model.parameters()),
        "weight_bytes": sum(t.numel() * t.element_size() for t in tensors),
    }


def compact_table(
    name: str, states: Sequence[str], sizes: Sequence[dict[str, int]], seconds: Array, operations: Sequence[int]
) -> pd.DataFrame:
    """`compact.csv`: a row for each state of the model, the first being the original.

    Args:
        name: of the model.
        states: what the rows are called.
        sizes: for each.
        seconds: (rounds, states), see `seconds_per_forward`.
        operations: of a forward pass, for each.
    """
    rows = []
    for i, (state, size) in enumerate(zip(states, sizes, strict=True)):
        mean, low, high = geometric_mean_interval(seconds[:, i])
        # Ratios within a round, since its models ran side by side.
        gain = geometric_mean_interval(seconds[:, 0] / seconds[:, i])
        times = {"seconds_per_forward": mean, "ci_low": low, "ci_high": high}
        speed = {"speedup": gain[0], "speedup_low": gain[1], "speedup_high": gain[2]}
        counts = {"operations": operations[i], "theoretical_speedup": operations[0] / operations[i]}
        rows.append({"model": name, "state": state, **size, **times, **speed, **counts})
    return pd.DataFrame(rows)


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
        compared = _Comparison(request, run, loaded, inputs, done, factors)
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
        notes += [*run.warnings, *_time_notes(request.measure.rounds, request.measure.batch_tokens, len(inputs))]
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


def _time_notes(rounds: int, tokens: int, batches: int) -> list[str]:
    mean = f"the mean of {batches}" if batches > 1 else "the corpus is one"
    few = f"{rounds} rounds are too few for intervals of times and speed-ups"
    return [
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


@dataclass(frozen=True)
class _Comparison:
    """What is compared: the saved model, read again, with the masked model and the original."""

    request: CompactRequest
    run: Run
    loaded: LoadedModel
    inputs: list[Inputs]
    done: Compaction
    factors: Mapping[Site, float]

    def of(self, folder: Path, text: TextLoss | None) -> tuple[Difference, pd.DataFrame, list[MeasuredText]]:
        """The self-check, the table, and what both models did on a text."""
        # What was saved is loaded as the original was.
        kind: Any = str(self.loaded.model.dtype).removeprefix("torch.")
        options = replace(self.request.model_options, dtype=kind, revision=None, offline=True)
        small = load(str(folder), options)
        with self.run.reporter.status("comparing with the masked model"):
            difference = self._difference(small.model)
        difference.check()
        if settings_or_none(small.model) is not None:
            with self.run.reporter.status("comparing with plain from_pretrained"), quiet():
                plain: Any = type(self.loaded.model).from_pretrained(folder, dtype=self.loaded.model.dtype)
                difference = max(difference, self._difference(plain.to(self.loaded.device).eval()), key=_largest)
            difference.check()
        rounds, inputs = self.request.measure.rounds, self.inputs
        models = (self.loaded.model, small.model)
        with self.run.reporter.progress("timing", rounds + 1) as advance:
            seconds = seconds_per_forward(models, inputs, rounds, advance)
        middle = inputs[len(inputs) // 2]
        sizes, operations = [model_size(m) for m in models], [operations_of(_body(m), middle) for m in models]
        states = ["original", "stock" if self.request.stock else "compacted"]
        table = compact_table(self.loaded.short_name, states, sizes, seconds, operations)
        table["tokens_per_second"] = sum(map(tokens_read, inputs)) / len(inputs) / table["seconds_per_forward"]
        table["cache_bytes_per_token"] = [cache_bytes_per_token(m, inputs[0]) for m in models]
        losses = []
        if text is not None:
            with self.run.reporter.status(f"reading {text.source.name}"):
                losses = [text.evaluate(self.loaded), text.evaluate(replace(small, name=self.loaded.name))]
            rows = [losses[0].cells, losses[1].cells | losses[1].compared(losses[0])]
            table = table.join(pd.DataFrame(rows))
        return difference, table, losses

    def _difference(self, small: PreTrainedModel) -> Difference:
        scales = {head: factor for site, factor in self.factors.items() for head in site.heads}
        return difference_to_masked(self.loaded.model, small, self.done.heads.removed, self.inputs, scales)


def _largest(difference: Difference) -> float:
    return math.inf if math.isnan(difference.largest) else difference.largest


def tokens_read(batch: Mapping[str, Any]) -> int:
    """How many tokens of a batch are not padding, those of both sides."""
    names = ("attention_mask", "decoder_attention_mask")
    return sum(int(batch[name].sum()) for name in names if batch.get(name) is not None)


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

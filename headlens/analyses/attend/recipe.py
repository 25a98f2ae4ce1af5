"""`attend` with everything around it: a model by name, a run folder with figures and the maps themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headlens.analyses.attend.analysis import AttentionMaps, Selection, attend, examples_of, label_lists
from headlens.analyses.attend.figures import attention_maps
from headlens.analyses.attend.stored_maps import write_maps
from headlens.corpora.sentence import Example
from headlens.heads import Stack
from headlens.metrics.attention_view import Level
from headlens.models.loading import DEMO, ModelOptions
from headlens.runs.folder import RunFolder
from headlens.runs.mask_option import MaskOptions
from headlens.runs.model_record import model_record
from headlens.runs.output_options import OutputOptions
from headlens.runs.progress import Reporter
from headlens.runs.run import open_run


@dataclass(frozen=True)
class AttendRequest:
    """What `headlens attend` is asked for.

    Args:
        text: sentences.
        target_text: their translations, one for each sentence, or none.
        model: by name.
        selection: which heads are drawn; the maps of all are kept.
        level: tokens or words.
        mask: where queries may look.
        model_options: how the model is loaded.
        place: where the run goes.
    """

    text: tuple[str, ...]
    target_text: tuple[str, ...] = ()
    model: str = DEMO
    selection: Selection = field(default_factory=Selection)
    level: Level = "token"
    mask: MaskOptions = field(default_factory=MaskOptions)
    model_options: ModelOptions = field(default_factory=ModelOptions)
    place: OutputOptions = field(default_factory=OutputOptions)

    def examples(self) -> list[Example]:
        """Sentences with words, without trees.

        Raises:
            OptionError: if a sentence has no words or the numbers of sentences and translations differ.
        """
        return examples_of(self.text, self.target_text)


@dataclass(frozen=True)
class AttendRun:
    """Result of `headlens attend`: the run folder, the files written to it, and notes for the reader."""

    folder: Path
    files: list[Path]
    notes: list[str]

    def summary(self) -> dict[str, Any]:
        """Returns the run as JSON values: the folder and the notes."""
        return {"out": str(self.folder), "notes": self.notes}


def run_attend(request: AttendRequest, reporter: Reporter | None = None) -> AttendRun:
    """Run the sentences and write maps and figures.

    Raises:
        InputError: whatever is wrong with what was asked for.
    """
    examples = request.examples()
    with open_run("attend", request.model, request, reporter) as run:
        loaded = run.load(request.model, request.model_options)
        with run.masked(loaded, request.mask):
            maps = attend(loaded, examples, request.selection, level=request.level)
        notes = list(run.warnings)
        if loaded.model.config.is_encoder_decoder and not request.target_text:
            notes.append("Without --target-text only the encoder was looked into.")
        if run.folder is not None:
            _write_tensors(run.folder, maps)
            _write_figures(run.folder, maps, request.selection, run.reporter)
            run.folder.finish({"models": [model_record(loaded, loaded.short_name)], "notes": notes})
        return AttendRun(run.path, run.files, notes)


def _write_figures(folder: RunFolder, maps: list[AttentionMaps], selection: Selection, reporter: Reporter) -> None:
    drawn = [
        (number, stack, layer)
        for number, m in enumerate(maps)
        for stack in m.weights
        for layer in range(len(m.weights[stack]))
        if selection.layer in (None, layer)
    ]
    with reporter.progress("drawing", len(drawn)) as advance:
        for number, stack, layer in drawn:
            _draw(folder, maps[number], (number + 1, stack, layer), selection.head)
            advance(1)


def _write_tensors(run: RunFolder, maps: list[AttentionMaps]) -> None:
    weights = {f"{i}.{stack}": w.numpy() for i, m in enumerate(maps, 1) for stack, w in m.weights.items()}
    write_maps(run, weights, {str(i): label_lists(m) for i, m in enumerate(maps, 1)})


def _draw(run: RunFolder, maps: AttentionMaps, place: tuple[int, Stack, int], head: int | None) -> None:
    number, stack, layer = place
    weights = maps.weights[stack][layer].numpy()
    # Of heads that were cut out of the model there is nothing to draw.
    heads = [h for h in ((head,) if head is not None else range(len(weights))) if not np.isnan(weights[h]).all()]
    if not heads:
        return
    queries, keys = maps.labels[stack]
    figure = attention_maps(
        weights[heads],
        queries,
        keys,
        [f"{stack}.{layer}.{h}" for h in heads],
        f"Sentence {number}, {stack} layer {layer}",
    )
    run.figure(f"sentence{number}_{stack}_layer{layer}" + ("" if head is None else f"_head{head}"), figure)

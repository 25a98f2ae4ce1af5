"""`collect_attention` with everything around it: a model by name, a run folder with figures and the maps themselves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headlens.analyses.attend.analysis import AttentionMaps, collect_attention, label_lists
from headlens.analyses.attend.figures import layer_figures
from headlens.analyses.attend.options import AttendRequest, Selection
from headlens.analyses.attend.stored_maps import write_maps
from headlens.corpora.text import sentence_examples
from headlens.pages.head_cards import SentenceMap
from headlens.runs.folder import RunFolder
from headlens.runs.model_record import model_record
from headlens.runs.progress import Reporter
from headlens.runs.run import open_run


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
    examples = sentence_examples(request.text, request.target_text)
    with open_run("attend", request.model, request, reporter) as run:
        loaded = run.load(request.model, request.model_options)
        with run.masked(loaded, request.mask):
            maps = collect_attention(loaded, examples, request.selection, level=request.level)
        notes = list(run.warnings)
        if loaded.model.config.is_encoder_decoder and not request.target_text:
            notes.append("Without --target-text only the encoder was looked into.")
        if run.folder is not None:
            _write_tensors(run.folder, maps)
            _write_figures(run.folder, maps, request.selection, run.reporter)
            run.folder.finish({"models": [model_record(loaded, loaded.short_name)], "notes": notes})
        return AttendRun(run.path, run.files, notes)


def _write_figures(folder: RunFolder, maps: list[AttentionMaps], selection: Selection, reporter: Reporter) -> None:
    stacks = [
        SentenceMap(str(number), stack, *m.labels[stack], m.weights[stack].float().numpy())
        for number, m in enumerate(maps, 1)
        for stack in m.weights
    ]
    layers = sum(len(sentence.weights) if selection.layer is None else 1 for sentence in stacks)
    with reporter.progress("drawing", layers) as advance:
        for name, figure in layer_figures(stacks, selection.layer, selection.head):
            folder.figure(name, figure)
            advance(1)


def _write_tensors(run: RunFolder, maps: list[AttentionMaps]) -> None:
    weights = {f"{i}.{stack}": w.numpy() for i, m in enumerate(maps, 1) for stack, w in m.weights.items()}
    write_maps(run, weights, {str(i): label_lists(m) for i, m in enumerate(maps, 1)})

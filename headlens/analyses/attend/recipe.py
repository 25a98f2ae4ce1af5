"""`collect_attention` with everything around it: models by name, a run folder with figures, maps and an HTML page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headlens.analyses.attend.figures import drawn_names, layer_figures
from headlens.analyses.attend.options import EXAMPLE, AttendRequest
from headlens.analyses.attend.states import attention_of_states, states_of, view_of
from headlens.corpora.text import sentence_examples
from headlens.heads import parse_heads
from headlens.maps.sentence_attention import sink_notes
from headlens.maps.stored_maps import write_maps
from headlens.pages.attention_page import page_of_view, size_notes
from headlens.runs.progress import Reporter
from headlens.runs.run import model_record, open_run

PAGE = "attention.html"


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
    """Run the sentences and write maps, the page and figures.

    Raises:
        InputError: whatever is wrong with what was asked for.
    """
    examples = sentence_examples(request.text, request.target_text)
    parse_heads(request.without)  # what cannot be read is refused before models are loaded
    with open_run("attend", request.model, request, reporter, mask=request.mask) as run:
        models = [
            run.load(name, request.model_options, reads_only=True)
            for name in filter(None, (request.model, request.second))
        ]
        states = states_of(request, models)
        maps = attention_of_states(states, examples, request, run.tell)
        notes = [*run.warnings, *sink_notes(sentence_map.weights for sentence_map in maps)]
        if request.text == (EXAMPLE,):
            notes.append(f"No sentence was given, and this one is shown: {EXAMPLE} Give yours in quotation marks.")
        if models[0].model.config.is_encoder_decoder and not request.target_text:
            notes.append("Without --target-text only the encoder was analysed.")
        if run.folder is not None:
            write_maps(run.folder, maps)
            view = view_of(states, maps)
            page = page_of_view(f"Attention of {' and '.join(view.states)}", view)
            with run.folder.file(PAGE) as path:
                path.write_text(page, encoding="utf-8", newline="\n")
            notes += size_notes(page, view)
            if request.figures:
                names, selection = drawn_names(view.states, len(models)), request.selection
                layers = sum(
                    len(sentence_map.weights) if selection.layer is None else 1
                    for sentence_map in maps
                    if not sentence_map.state
                )
                with run.reporter.progress("drawing", layers) as advance:
                    for name, figure in layer_figures(maps, names, selection.layer, selection.head, selection.heads):
                        run.folder.figure(name, figure)
                        advance(1)
            records = {state.model: model_record(state.loaded, state.model) for state in states}
            run.folder.finish({"models": [*records.values()], "states": list(view.states), "notes": notes})
        return AttendRun(run.path, run.files, notes)

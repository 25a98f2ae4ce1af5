"""`attend` with everything around it: a model by name, a run folder with figures and the maps themselves."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from headlens.corpora.sentence import Example
from headlens.corpora.text import plain_sentence
from headlens.errors import OptionError
from headlens.experiments.attend import AttentionMaps, Selection, attend
from headlens.experiments.reporter import Reporter, Silent
from headlens.experiments.requests import plain
from headlens.heads import Stack
from headlens.metrics.view import Level
from headlens.models.loading import DEMO, ModelOptions, load
from headlens.report.figures import attention_maps
from headlens.report.runs import RunFolder


@dataclass(frozen=True)
class AttendRequest:
    """What `headlens attend` is asked for.

    Args:
        texts: sentences.
        target_texts: their translations, one for each sentence, or none.
        model: by name.
        selection: which heads are drawn; the maps of all are kept.
        level: tokens or words.
        model_options: how the model is loaded.
        out: run folder; None for a new one below `runs/`.
        overwrite: replace a finished run.
    """

    texts: tuple[str, ...]
    target_texts: tuple[str, ...] = ()
    model: str = DEMO
    selection: Selection = field(default_factory=Selection)
    level: Level = "token"
    model_options: ModelOptions = field(default_factory=ModelOptions)
    out: Path | None = None
    overwrite: bool = False

    def examples(self) -> list[Example]:
        """Sentences with words, without trees.

        Raises:
            OptionError: if a sentence has no words or the numbers of sentences and translations differ.
        """
        if self.target_texts and len(self.target_texts) != len(self.texts):
            raise OptionError(
                f"--target-text: {len(self.target_texts)} translations for {len(self.texts)} sentences.",
                "Give one translation for each sentence.",
            )
        sources = [plain_sentence(t, f"sentence-{i}") for i, t in enumerate(self.texts, 1)]
        targets = [plain_sentence(t, f"target-{i}") for i, t in enumerate(self.target_texts, 1)]
        if not all(s.words for s in [*sources, *targets]):
            raise OptionError("--text: a sentence has no words.", "Give some text.")
        return [Example(s, targets[i] if targets else None) for i, s in enumerate(sources)]


@dataclass(frozen=True)
class AttendRun:
    """What a run gave."""

    folder: Path
    files: list[Path]
    notes: list[str]

    def summary(self) -> dict[str, Any]:
        """The result in short, for `--json`."""
        return {"out": str(self.folder), "notes": self.notes}


def run_attend(request: AttendRequest, reporter: Reporter | None = None) -> AttendRun:
    """Run the sentences and write maps and figures.

    Raises:
        InputError: whatever is wrong with what was asked for.
    """
    reporter = reporter or Silent()
    examples = request.examples()
    with RunFolder.create(request.out, command="attend", model=request.model, overwrite=request.overwrite) as run:
        run.start({"arguments": plain(asdict(request))})
        with reporter.status(f"loading {request.model}"):
            loaded = load(request.model, request.model_options)
        maps = attend(loaded, examples, request.selection, level=request.level)
        _write_tensors(run, maps)
        drawn = [
            (number, stack, layer)
            for number, m in enumerate(maps)
            for stack in m.weights
            for layer in range(len(m.weights[stack]))
            if request.selection.layer in (None, layer)
        ]
        with reporter.progress("drawing", len(drawn)) as advance:
            for number, stack, layer in drawn:
                _draw(run, maps[number], (number + 1, stack, layer), request.selection.head)
                advance(1)
        notes = []
        if loaded.model.config.is_encoder_decoder and not request.target_texts:
            notes.append("Without --target-text only the encoder was looked into.")
        run.finish({"model_name": loaded.name, "weight_hash": loaded.weight_hash, "notes": notes})
        return AttendRun(run.path, run.files, notes)


def _write_tensors(run: RunFolder, maps: list[AttentionMaps]) -> None:
    tensors = {f"{i}.{stack}": w.contiguous() for i, m in enumerate(maps, 1) for stack, w in m.weights.items()}
    with run.file("attention.safetensors") as path:
        save_file(tensors, path)
    sentences = {
        str(i): {stack: {"queries": q, "keys": k} for stack, (q, k) in m.labels.items()} for i, m in enumerate(maps, 1)
    }
    run.json("labels", sentences)


def _draw(run: RunFolder, maps: AttentionMaps, place: tuple[int, Stack, int], head: int | None) -> None:
    number, stack, layer = place
    weights = maps.weights[stack][layer].numpy()
    heads = range(len(weights)) if head is None else [head]
    queries, keys = maps.labels[stack]
    figure = attention_maps(
        weights[list(heads)],
        queries,
        keys,
        [f"{stack}.{layer}.{h}" for h in heads],
        f"Sentence {number}, {stack} layer {layer}",
    )
    run.figure(f"sentence{number}_{stack}_layer{layer}" + ("" if head is None else f"_head{head}"), figure)

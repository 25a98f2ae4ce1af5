"""`masks` with everything around it: fixed patterns, pictures and files of them, and models trained under them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from headlens.analyses.dam.sweep import forget_masks
from headlens.analyses.masks.cases import GRAPH, MaskCase, cases
from headlens.analyses.masks.degree_regression import degree_effects
from headlens.analyses.masks.degrees import DegreeOptions, parse_grid
from headlens.analyses.masks.report import write_masks
from headlens.analyses.masks.study import MaskStudy
from headlens.analyses.training.sweep import SweepRun
from headlens.analyses.training.training_set_options import OpenedTraining, TrainingSetOptions
from headlens.corpora.parsers import make_parser
from headlens.corpora.word_graphs import parse_graph
from headlens.errors import OptionError, counted
from headlens.interventions.attention_mask import FILE, PatternMask
from headlens.interventions.pattern_parser import parse_pattern
from headlens.interventions.patterns import Pattern, count_masked, pattern_sparsity
from headlens.models.loading import DEMO, ModelOptions
from headlens.runs.mask_option import read_layers
from headlens.runs.model_record import model_record
from headlens.runs.output_options import OutputOptions
from headlens.runs.progress import Reporter
from headlens.runs.run import Run, open_run
from headlens.training.hyperparameters import LoopOptions, TrainingOptions

# Shares masked at n = 128 with and without the diagonal, in per cent, as printed: Shi et al. 2021, last table.
PAPER = {
    "strided": (70.4, 71.2),
    "fixed": (72.7, 73.4),
    "longformer": (88.7, 89.5),
    "logsparse": (89.8, 90.6),
    "bigbird": (93.2, 93.9),
    "star": (96.1, 96.9),
}
_PAPER_LENGTH = 128
LONGEST = 2048
SPARSITY_COLUMNS = [
    *("mask", "layer", "head", "diagonal", "n", "sparsity"),
    *("masked", "allowed", "paper_sparsity", "pattern"),
]


@dataclass(frozen=True)
class StudyRequest:
    """What is trained under masks.

    Args:
        model: a checkpoint, by name.
        lesson: the task, and what is trained and measured on.
        mask: mask files that are trained under like patterns.
        grid: degrees of BigBird patterns, of which every combination is trained under, see `parse_grid`.
        graph: graphs of each text that are trained under like patterns, in words such as `syntax`, see `parse_graph`.
        degrees: degrees of neighbours that are learned.
        parser: of the texts, whose words graphs connect; `gold` for none, and no trees.
        layers: ranges of layers in which masks hold, such as `6-11`; none for all layers.
        seeds: how many trainings of each; seeds count from that of the training.
        controls: whether everything is trained without the diagonal, too, and attention without a mask also with as
            many random positions masked.
        training: length, step size, rhythm.
        model_options: how the model is loaded, and the device.

    Raises:
        OptionError: for no seed at all, or layers that cannot be read.
    """

    model: str = DEMO
    lesson: TrainingSetOptions = field(default_factory=TrainingSetOptions)
    mask: tuple[str, ...] = ()
    grid: str | None = None
    graph: tuple[str, ...] = ()
    degrees: DegreeOptions = field(default_factory=DegreeOptions)
    parser: str = "gold"
    layers: tuple[str, ...] = ()
    seeds: int = 1
    controls: bool = True
    training: LoopOptions = field(default_factory=LoopOptions)
    model_options: ModelOptions = field(default_factory=ModelOptions)

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise OptionError(f"--seeds {self.seeds} trains nothing.", "Give 1 or more; 3 tell how far seeds differ.")
        for text in self.layers:
            read_layers(text)
        if self.grid is not None:
            parse_grid(self.grid)
        graphs = [parse_graph(text) for text in self.graph]
        kinds = [graph.kind for graph in graphs]
        if any(graph.vectors == "spacy" for graph in graphs) and not self.parser.startswith("spacy:"):
            raise OptionError(
                "--graph lexical:vectors=spacy: there is no spaCy model.", "Name one: --parser spacy:en_core_web_md."
            )
        if "syntax" in kinds and self.parser == "gold":
            raise OptionError("--graph syntax needs dependency trees.", "Name a parser: --parser spacy:en_core_web_sm.")
        if self.parser != "gold" and not kinds:
            raise OptionError("--parser is about graphs, and there is none.", "Name some with --graph.")
        make_parser(self.parser, keep_words=False)

    def cases(self, patterns: Sequence[str]) -> list[MaskCase]:
        """All trainings; without the diagonal only what has one.

        Args:
            patterns: in words; none for those of the SparseBERT paper, unless there is something else to train under.
        """
        first = self.training.seed
        seeds = tuple(range(first, first + self.seeds))
        grid = parse_grid(self.grid) if self.grid is not None else ()
        graphs = (f"{GRAPH}{text.strip()}" for text in self.graph)
        wanted = (*patterns, *grid, *self.mask, *graphs, *self.degrees.patterns) or tuple(PAPER)
        found = cases(wanted, self.layers or (None,), seeds, controls=self.controls)
        return [case for case in found if case.diagonal == "kept" or case.has_diagonal]

    @property
    def options(self) -> TrainingOptions:
        """Of every training; nothing is evaluated before its end."""
        return self.training.of_loop()


@dataclass(frozen=True)
class MasksRequest:
    """What `headlens masks` is asked for.

    Args:
        pattern: in words; none for those of the SparseBERT paper.
        length: n, for which they are counted, drawn and written.
        no_diagonal: whether the files that are written are without the diagonal; the table has both.
        study: what is trained under them; None trains nothing.
        figures: whether figures are drawn; `headlens report` draws them later from the tables.
        place: where the run goes.

    Raises:
        OptionError: for a length out of range, a pattern that there is none, or no pattern whose file is asked for.
    """

    pattern: tuple[str, ...] = ()
    length: int = _PAPER_LENGTH
    no_diagonal: bool = False
    study: StudyRequest | None = None
    figures: bool = True
    place: OutputOptions = field(default_factory=OutputOptions)

    def __post_init__(self) -> None:
        if not 1 <= self.length <= LONGEST:
            raise OptionError(f"--length {self.length} is out of range.", f"Give 1 to {LONGEST} tokens.")
        if self.no_diagonal and not self.pattern:
            raise OptionError(
                "--no-diagonal is about the files of patterns, and none is asked for.",
                "Name patterns with --pattern; the table has both in any case.",
            )
        self.chosen()

    def chosen(self) -> dict[str, Pattern]:
        """The patterns that are counted, by name; those of the SparseBERT paper where no mask at all is named."""
        grid = parse_grid(self.study.grid) if self.study is not None and self.study.grid is not None else ()
        others = self.study is not None and (self.study.graph or self.study.mask or self.study.degrees.patterns)
        wanted = (*self.pattern, *grid) or (() if others else tuple(PAPER))
        return {text: parse_pattern(text) for text in _named(wanted)}


def run_masks(request: MasksRequest, reporter: Reporter | None = None) -> SweepRun:
    """Count the patterns, write table, pictures and mask files.

    Raises:
        InputError: whatever is wrong with what was asked for.
    """
    patterns = request.chosen()
    subject = "patterns" if request.study is None else request.study.model
    with open_run("masks", subject, request, reporter) as run:
        tables = {"sparsity": sparsity_table(patterns, request.length)}
        notes = _notes(tables["sparsity"])
        facts: dict[str, Any] = {}
        if request.study is not None:
            trained, told, facts = _trained(request, request.study, run)
            tables |= trained
            notes += told + run.warnings
        if run.folder is not None:
            write_masks(run.folder, tables, figures=request.figures)
            for name, pattern in zip(_files(_named(request.pattern)), patterns.values(), strict=False):
                mask = PatternMask(pattern).of_length(request.length)
                with run.file(name) as path:
                    (mask.without_diagonal() if request.no_diagonal else mask).save(path)
            run.folder.finish({**facts, "notes": notes})
        return SweepRun(run.path, run.files, tables, notes, main=())


def _trained(
    request: MasksRequest, study: StudyRequest, run: Run
) -> tuple[dict[str, pd.DataFrame], list[str], dict[str, Any]]:
    """The tables of what was trained, what to know about them, and what run.json says of the model."""
    if request.place.overwrite and run.writes:
        forget_masks(run.path)
    loaded = run.load(study.model, study.model_options)
    offline = study.model_options.offline
    facts: dict[str, Any] = {"models": [model_record(loaded, loaded.short_name)]}

    def opened(seed: int) -> OpenedTraining:
        found = study.lesson.open(run, loaded, seed, offline=offline)
        # The data is the same for all seeds.
        facts.setdefault("lesson", found.lesson.facts)
        return found

    chosen = study.cases(tuple(text.strip() for text in request.pattern))
    parser = make_parser(study.parser, keep_words=False)
    own = MaskStudy(run, opened, study.options, request.length, study.lesson.longest, parser, study.degrees)
    tables, notes = own.tables(chosen)
    effects = degree_effects(tables["masks"])
    tables |= {"effects": effects} if len(effects) else {}
    updates = f"{counted(len(chosen), 'training')}, each measured under the mask that it was trained under."
    return tables, [updates, *notes], facts


def sparsity_table(patterns: dict[str, Pattern], n: int) -> pd.DataFrame:
    """How sparse patterns are with and without the diagonal: columns `SPARSITY_COLUMNS`, two rows each.

    `layer` and `head` are empty, for patterns are the same in all. Counts are of the n × n positions; `paper_sparsity`
    is what Shi et al. (2021) print for such a pattern at n = 128.

    Args:
        patterns: by name.
        n: tokens.
    """
    rows = []
    for name, pattern in patterns.items():
        for diagonal in (True, False):
            count = count_masked(pattern, n, diagonal=diagonal)
            printed = PAPER.get(name, ()) if n == _PAPER_LENGTH else ()
            rows.append(
                {
                    "mask": name,
                    "layer": None,
                    "head": None,
                    "diagonal": diagonal,
                    "n": n,
                    "sparsity": pattern_sparsity(pattern, n, diagonal=diagonal),
                    "masked": count,
                    "allowed": n * n - count,
                    "paper_sparsity": round(printed[not diagonal] / 100, 4) if printed else float("nan"),
                    "pattern": str(pattern),
                }
            )
    return pd.DataFrame(rows, columns=SPARSITY_COLUMNS)


def _named(texts: Sequence[str]) -> list[str]:
    """Each pattern once, as it was written first."""
    return list(dict.fromkeys(text.strip() for text in texts))


def _files(texts: Sequence[str]) -> list[str]:
    """A file name for every pattern that was named: `mask.safetensors` of a single one."""
    if len(texts) < 2:
        return [FILE] * len(texts)
    names = [re.sub(r"[^a-z0-9]+", "-", text.lower()) for text in texts]
    # "window:1|global:1" and "window:1 | global:1" read the same in a file's name.
    counts = [names[:place].count(name) for place, name in enumerate(names)]
    return [f"{name}{f'-{n + 1}' if n else ''}.safetensors" for name, n in zip(names, counts, strict=True)]


def _notes(table: pd.DataFrame) -> list[str]:
    if table["paper_sparsity"].isna().all():
        return []
    return [
        "The paper prints no parameters. Those shown give its sparsities to the digit but for longformer, where no "
        "window without gaps does, and bigbird, whose keys are drawn."
    ]

"""`masks` with everything around it: fixed patterns, pictures and files of them, and models trained under them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from headlens.analyses.masks.cases import MaskCase, cases
from headlens.analyses.masks.degree_tables import degree_effects
from headlens.analyses.masks.options import FEW, PAPER, PAPER_LENGTH, MasksRequest, StudyRequest, parse_grid
from headlens.analyses.masks.report import write_masks
from headlens.analyses.masks.study import PREDICTIONS, MaskStudy
from headlens.attention_masks.attention_mask import FILE, PatternMask
from headlens.attention_masks.model_mask import is_causal_stack
from headlens.attention_masks.named_masks import FULL_ATTENTION, TextGraph, Zeroable, ZeroedScores, parse_named_mask
from headlens.attention_masks.patterns import Pattern, count_masked, visible_positions
from headlens.errors import OptionError, counted
from headlens.learning.mask_learning import EARLIER_MASKS
from headlens.learning.open_training_set import OpenedTraining, open_training_set, read_further
from headlens.learning.sweep import SweepRun
from headlens.runs.progress import Reporter
from headlens.runs.run import Run, model_record, open_run
from headlens.tables.mask_tables import SPARSITY
from headlens.tasks.example_sources import fingerprint
from headlens.tasks.test_set_predictions import read_test_sets

_PARAMETERS = (
    "The paper does not give the parameters. Those shown reproduce its sparsities to the last digit, except for "
    "longformer, where no window without gaps does so, and bigbird, whose keys are drawn at random."
)
_SHORT = (
    f"Nothing was named to train under: {len(FEW)} of the paper's {len(PAPER)} patterns were, and whether the diagonal "
    "matters was not asked. --thorough trains under all, without the diagonal, and with random positions instead, too."
)


def study_cases(study: StudyRequest, patterns: Sequence[str]) -> list[MaskCase]:
    """Returns all trainings of a study; without the diagonal only what has one.

    Args:
        study: what is trained under masks.
        patterns: in words; none for those of the SparseBERT paper, unless there is something else to train under: few
            of them, and no controls, unless the study is thorough.
    """
    first = study.training.seed
    seeds = tuple(range(first, first + study.seeds))
    grid = parse_grid(study.grid) if study.grid is not None else ()
    named = patterns or grid or study.names_cases
    defaults = () if named else tuple(PAPER) if study.thorough else FEW
    trained = [*map(parse_named_mask, (*patterns, *grid, *defaults)), *study.masks]
    trained += [*(TextGraph(text.strip()) for text in study.graph), *study.degrees.masks, *study.spans.masks]
    if study.zero_scores:
        zeroed = [ZeroedScores(mask) for mask in trained if isinstance(mask, Zeroable) and mask != FULL_ATTENTION]
        if not zeroed:
            raise OptionError(
                "--mask-rules zero-scores: no mask is given to which it could apply.", "Name one with --pattern."
            )
        trained += zeroed
    controls = study.controls and bool(named or study.thorough)
    planned = cases(trained, study.layers or (None,), seeds, study.removed, controls=controls)
    return [case for case in planned if case.diagonal == "kept" or case.has_diagonal]


def run_masks(request: MasksRequest, reporter: Reporter | None = None) -> SweepRun:
    """Count the patterns, write table, pictures and mask files.

    Raises:
        InputError: whatever is wrong with what was asked for.
    """
    patterns = request.chosen()
    subject = "patterns" if request.study is None else request.study.model
    with open_run("masks", subject, request, reporter) as run:
        tables, causal = dict[str, pd.DataFrame](), False
        notes = [_PARAMETERS] if request.length == PAPER_LENGTH and patterns.keys() >= PAPER.keys() else []
        facts: dict[str, Any] = {}
        if request.study is not None:
            tables, more_notes, facts, causal = _trained(request, request.study, run)
            notes += more_notes + run.warnings
        tables = {"sparsity": sparsity_table(patterns, request.length, causal=causal)} | tables
        if run.folder is not None:
            write_masks(run.folder, tables, notes, figures=request.figures)
            given = {text.strip() for text in request.pattern}
            texts = [text for text in patterns if text in given]
            for name, text in zip(_files(texts), texts, strict=True):
                mask = PatternMask(patterns[text]).of_length(request.length)
                with run.file(name) as path:
                    (mask.without_diagonal() if request.no_diagonal else mask).save(path)
            run.folder.finish({**facts, "notes": notes})
        return SweepRun(run.path, run.files, tables, notes, main=())


def _trained(
    request: MasksRequest, study: StudyRequest, run: Run
) -> tuple[dict[str, pd.DataFrame], list[str], dict[str, Any], bool]:
    """The tables of what was trained, what to know about them, what run.json says of the model, if it is causal."""
    run.set_aside(*EARLIER_MASKS, f"{PREDICTIONS}/*")
    offline, data = study.model_options.offline, study.training_set.data
    further = read_further(study.also_on, data, offline=offline)
    test_sets = read_test_sets(study.predict, data, offline=offline)
    loaded = run.load(study.model, study.model_options)
    facts: dict[str, Any] = {"models": [model_record(loaded, loaded.short_name)]}

    def opened(seed: int) -> OpenedTraining:
        opened = open_training_set(study.training_set, run, loaded, seed, study.margin, offline=offline)
        # The data is the same for all seeds.
        facts.setdefault("lesson", opened.training_set.facts)
        return replace(opened, training_set=replace(opened.training_set, further=further))

    others = {f"what is held out of {task.name}": held for task, held in further}
    others |= {f"the test set of {name}": rows for name, rows in test_sets.items()}
    run.depend_on(None, {name: fingerprint(part.examples) for name, part in others.items()})
    patterns = tuple(text.strip() for text in request.pattern)
    chosen = study_cases(study, patterns)
    tests = len(chosen) // study.seeds - 1
    tables, notes = MaskStudy(run, opened, study, request.length, tests, test_sets).tables(chosen)
    effects = degree_effects(tables["masks"])
    tables |= {"effects": effects} if len(effects) else {}
    updates = f"{counted(len(chosen), 'training run')}, each model evaluated under the mask that it was trained under."
    few = not study.thorough and {str(case.mask) for case in chosen} == {str(FULL_ATTENTION), *FEW}
    short = [_SHORT] * (few and not study.names_cases)
    return tables, [*short, updates, *notes], facts, is_causal_stack(loaded.model)


def sparsity_table(patterns: dict[str, Pattern], n: int, *, causal: bool = False) -> pd.DataFrame:
    """How sparse patterns are with and without the diagonal: sparsity.csv, two rows each.

    `layer` and `head` are empty, for patterns are the same in all. Counts are of the n × n positions; `paper_sparsity`
    is what Shi et al. (2021) print for such a pattern at n = 128.

    Args:
        patterns: by name.
        n: tokens.
        causal: whether only positions up to each query's own count, as a decoder sees no others.
    """
    visible = visible_positions(n, causal=causal)
    rows: list[tuple[object, ...]] = []
    for name, pattern in patterns.items():
        printed = PAPER.get(name) if n == PAPER_LENGTH and not causal else None
        for diagonal in (True, False):
            count = count_masked(pattern, n, diagonal=diagonal, causal=causal)
            paper = round(printed[not diagonal] / 100, 4) if printed else float("nan")
            shares = count / visible, count, visible - count, paper
            rows.append((name, None, None, diagonal, n, *shares, str(pattern), causal))
    return SPARSITY.frame(rows)


def _files(texts: Sequence[str]) -> list[str]:
    """A file name for every pattern that was named: `mask.safetensors` of a single one."""
    if len(texts) < 2:
        return [FILE] * len(texts)
    names = [re.sub(r"[^a-z0-9]+", "-", text.lower()) for text in texts]
    # "window:1|global:1" and "window:1 | global:1" read the same in a file's name.
    counts = [names[:place].count(name) for place, name in enumerate(names)]
    return [f"{name}{f'-{n + 1}' if n else ''}.safetensors" for name, n in zip(names, counts, strict=True)]

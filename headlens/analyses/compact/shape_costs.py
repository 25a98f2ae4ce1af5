"""What the shape of a smaller model costs, and what rescaling gives back: the loss of text with these heads at 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import pandas as pd

from headlens.analyses.compact.head_choice import HeadChoice, ranked_on
from headlens.analyses.compact.options import CompactRequest, Shape
from headlens.analyses.compact.text_loss import MeasuredText, TextLoss
from headlens.attention.sites import Site, find_sites
from headlens.errors import counted
from headlens.findings.result_notes import few_example_notes, record_notes
from headlens.interventions.rescaling import removed_of
from headlens.models.loading import LoadedModel
from headlens.pages.formatting import digits_of
from headlens.statistics.paired_tests import PairedComparison
from headlens.tables.training_tables import SHAPES

Losses = Mapping[Shape, MeasuredText]


def shape_losses(
    text: TextLoss,
    loaded: LoadedModel,
    choice: HeadChoice,
    status: Callable[[str], AbstractContextManager[object]],
) -> dict[Shape, MeasuredText]:
    """The text as it is read with the heads of each shape at 0, without any rescaling.

    Args:
        text: the text.
        loaded: the original.
        choice: the heads that go in each shape.
        status: shows what is being done.
    """
    losses, sites = dict[Shape, MeasuredText](), find_sites(loaded.model)
    for shape, heads in (choice.others or {choice.shape: choice.heads}).items():
        with status(f"reading {text.source.name} without the heads of shape {shape}"):
            gates = dict.fromkeys((head for site in sites for head in removed_of(site, heads)), 0.0)
            losses[shape] = text.evaluate(loaded, gates)
    return losses


def shape_table(model: str, choice: HeadChoice, losses: Losses, whole: MeasuredText) -> pd.DataFrame:
    """`shapes.csv`: a row for each shape that so many heads of a ranking can be cut in.

    Args:
        model: its name.
        choice: the heads.
        losses: with these heads at 0, by shape.
        whole: with all heads.
    """
    rows = [
        {
            "model": model,
            "shape": shape,
            "chosen": shape == choice.shape,
            "n_removed": len(heads),
            **losses[shape].cells,
            **losses[shape].compared(whole),
            "removed": " ".join(map(str, heads)),
        }
        for shape, heads in choice.others.items()
    ]
    return SHAPES.frame(rows)


def text_notes(whole: MeasuredText, *, rescaled: bool) -> list[str]:
    """What is to be known of the text that was measured.

    Args:
        whole: what all heads did on it.
        rescaled: whether it is the half of the sentences that the factors of layers were not fitted to.
    """
    evaluation = whole.evaluation
    half = "--rescale is fitted to half of the sentences, and the other half is measured. " * rescaled
    return [
        *few_example_notes(
            len(evaluation.records),
            purpose="how much the loss changes",
            advice=f"{half}Raise --limit, or give more text with --corpus.",
        ),
        *record_notes(evaluation.task, evaluation.records, labels=evaluation.labels),
        *evaluation.notes,
    ]


def shape_notes(choice: HeadChoice, losses: Losses) -> list[str]:
    """What the chosen shape costs beside the uneven one, and which shapes could not be compared."""
    notes = [f"Not compared: {problem}" for problem in choice.impossible]
    if choice.others and choice.shape != "uneven" and "uneven" in losses:
        found = losses[choice.shape].beside(losses["uneven"])
        notes.append(
            f"The shape {choice.shape} changes the loss by {_with_interval(found)} beside as many heads of the same "
            "ranking wherever they are (uneven), before any rescaling."
        )
    return notes


def ranking_notes(request: CompactRequest, text: TextLoss) -> list[str]:
    """A note where heads were ranked on the text that the loss is measured on."""
    if text.source.name != ranked_on(request.from_file):
        return []
    were = "Heads were ranked" if request.remove is not None else "The heads that go were chosen"
    return [
        f"{were} on {text.source.name}, the text that the loss is measured on: on other texts expect to lose more. "
        "Name one with --corpus."
    ]


def rescaling_notes(
    factors: Mapping[Site, float],
    text: str,
    rescaled: MeasuredText | None = None,
    without: MeasuredText | None = None,
) -> list[str]:
    """What was multiplied by what, and what that did to the loss; nothing without factors.

    Args:
        factors: of the layers.
        text: name of the text that the factors come from.
        rescaled: the smaller model on a text, with the factors; None where none was measured.
        without: the same without them.
    """
    if not factors:
        return []
    low, high = (format(number(factors.values()), ".3g") for number in (min, max))
    notes = [
        f"What is left of {counted(len(factors), 'layer')} was multiplied by {low}{f' to {high}' * (high != low)} "
        f"(least squares on every other sentence of {text}, the rest of which is measured); run.json has the factor of "
        "each."
    ]
    if rescaled is not None and without is not None:
        notes.append(f"Rescaling changes the loss by {_with_interval(rescaled.beside(without))}.")
    return notes


def _with_interval(found: PairedComparison) -> str:
    digits = digits_of((0.0, found.delta, found.low, found.high))
    delta, low, high = (f"{number:+.{digits}f}" for number in (found.delta, found.low, found.high))
    interval = "no interval of so few texts" if math.isnan(found.low) else f"{low} to {high}"
    return f"{delta} ({interval}) nats per token"

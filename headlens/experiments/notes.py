"""What the reader of a table should know about its numbers, in plain words."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from headlens.corpora.annotations import AnnotationCounts
from headlens.corpora.bootstrap import FEWEST
from headlens.corpora.encoded_corpus import EncodingCounts
from headlens.corpora.sources import DEMO
from headlens.errors import counted
from headlens.experiments.feeding import Feed
from headlens.experiments.relevance_feed import RelevanceFeed
from headlens.heads import HeadTable
from headlens.relevance.corpus import Conservation
from headlens.relevance.session import Rule
from headlens.tasks.base import Floats, Task
from headlens.tasks.translation import CUT


def encoding_notes(feed: Feed, counts: EncodingCounts) -> list[str]:
    """What was left out, and what could not be aligned."""
    notes = []
    if feed.encoder_alone:
        notes.append("The corpus has no target side: only the encoder was looked into.")
    notes += _long_sentences(feed, counts)
    if counts.empty:
        notes.append(f"{counted(counts.empty, 'sentence')} without words {_were(counts.empty)} left out.")
    if counts.unmaskable:
        notes.append(
            f"{counted(counts.unmaskable, 'sentence')} without a token to mask {_were(counts.unmaskable)} left out."
        )
    if counts.sentences_with_unaligned:
        words, sentences = counts.unaligned_words, counts.sentences_with_unaligned
        notes.append(
            f"{counted(words, 'word')} in {counted(sentences, 'sentence')} {'has' if words == 1 else 'have'} no token; "
            f"{'its' if words == 1 else 'their'} relations are not measured."
        )
    if counts.merged_words:
        notes.append(f"{counts.merged_words} words share a token with another word and are read as one with it.")
    return notes


def record_notes(task: Task, records: Floats) -> list[str]:
    """What the records (n, k) of a whole model tell of its task: what guessing gives, whether it guesses, what was cut.

    Args:
        task: whose records they are.
        records: of all examples.
    """
    notes, said = [], _column(task, records, "predicted")
    if (chance := task.chance(records)) is not None:
        metric = task.metrics[0]
        article = "an" if metric[0] in "aeiou" or metric == "f1" else "a"
        notes.append(f"Guessing without reading has {article} {metric} of {chance:.3f}.")
    if task.labels and said is not None and len(said) > 1 and (said == said[0]).all():
        notes.append(f"The model says {task.labels[int(said[0])]!r} of every example.")
    if cut := cut_translations(task, records):
        notes.append(f"{counted(cut, 'translation')} {_were(cut)} cut: there was no end when they were too long.")
    return notes


def left_out_notes(number: int, name: str, limit: int | None) -> list[str]:
    """What to know about examples that a model does not read: one note, none if there are none.

    Args:
        number: of them.
        name: of the data.
        limit: tokens that the model reads; None if any number.
    """
    if not number:
        return []
    why = "without anything to ask" if limit is None else f"too long for {limit} tokens or without anything to ask"
    return [f"Left out: {counted(number, 'example')} of {name}, {why}."]


def embedded_notes(corpus: str, sentences: int) -> list[str]:
    """What to know about text that a model learns from where nobody named any: one note, none if somebody did.

    Args:
        corpus: as it was named.
        sentences: of it.
    """
    if corpus != DEMO:
        return []
    return [f"The text is that of the embedded treebank, {counted(sentences, 'sentence')}: few to learn from."]


def cut_translations(task: Task, records: Floats) -> int:
    """How many translations were scored without an end, see `Translation`; 0 for other tasks."""
    cut = _column(task, records, CUT)
    return 0 if cut is None else int(cut.sum())


def _column(task: Task, records: Floats, name: str) -> Floats | None:
    found: Floats | None = records[:, task.columns.index(name)] if name in task.columns else None
    return found


def reading_notes(feed: Feed, counts: EncodingCounts) -> list[str]:
    """What was left out or cut."""
    notes = _long_sentences(feed, counts)
    for number, lack in ((counts.empty, "words"), (counts.unmaskable, "a token to mask")):
        if number:
            notes.append(f"{counted(number, 'sentence')} without {lack} {_were(number)} left out.")
    return notes


def _long_sentences(feed: Feed, counts: EncodingCounts) -> list[str]:
    notes, longer = [], f"longer than {feed.encoder.limit} tokens"
    if counts.too_long:
        in_pairs = feed.encoder.reads_pairs
        advice = "" if feed.encoder.long_sentences == "window" else " --long-sentences window cuts them."
        advice = " Pairs are not cut into windows." if in_pairs else advice
        notes.append(f"{counted(counts.too_long, 'sentence')} {longer} {_were(counts.too_long)} left out.{advice}")
    if counts.windowed:
        notes.append(
            f"{counted(counts.windowed, 'sentence')} {longer} {_were(counts.windowed)} cut into windows. Each window "
            "counts as a sentence; relations between windows are lost."
        )
    if counts.words_too_long:
        words = counts.words_too_long
        notes.append(f"{counted(words, 'word')} {_were(words)} left out of the windows, alone {longer}.")
    return notes


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def annotation_notes(counts: AnnotationCounts, relations: tuple[str, ...], min_instances: int) -> list[str]:
    """Which trees and relations are missing."""
    notes = []
    if counts.lost_arcs:
        notes.append(
            f"{counted(counts.lost_arcs, 'relation instance')} not measured: inside one unit, between windows, or at a "
            "word without a token."
        )
    if counts.no_tree:
        verb = "has" if counts.no_tree == 1 else "have"
        notes.append(f"{counted(counts.no_tree, 'sentence')} {verb} no dependency tree; --parser adds them.")
    if counts.rarity_is_vague:
        notes.append(
            f"In {counts.tied_sentences} of {counts.rare_sentences} sentences several words tie for the rarest, as "
            "words unknown to the frequency list do: no head is called rare. --frequency wordfreq:LANG names the list."
        )
    few = [f"{r} ({counts.arcs.get(r, 0)})" for r in relations if counts.arcs.get(r, 0) < min_instances]
    if few and counts.arcs:
        notes.append(f"Too few instances for a syntactic role (fewer than {min_instances}): {', '.join(few)}.")
    return notes


def relevance_notes(
    feed: RelevanceFeed, encoding: EncodingCounts, table: HeadTable, conservation: Mapping[Rule, Conservation]
) -> list[str]:
    """Where relevance started and went, and in which layers it cancels.

    Args:
        feed: what was run.
        encoding: what became of the sentences.
        table: of one rule, `RelevanceSums.table`.
        conservation: by rule.
    """
    notes = []
    if feed.generates:
        notes.append("The corpus has no target side: relevance starts at what the model itself writes (greedy search).")
    if feed.masking is not None:
        notes.append(_masks(encoding))
    for rule, flow in conservation.items():
        mixed = "" if 0 <= flow.inputs <= 1 else " (contributions of both signs, as shares of their sum)"
        notes.append(
            f"{rule}: of the relevance that started, {flow.inputs:.1%} arrived at embeddings, {flow.biases:.1%} stayed "
            f"in biases, {_share(flow.lost)} was lost{mixed}."
        )
    layers = table.rows.drop_duplicates(["stack", "layer"])
    if named := _layers(layers, "cancelled"):
        notes.append(
            "Where positive and negative relevance of a layer's heads all but cancel, an example has no shares and is "
            f"left out of that layer's means: {named}."
        )
    if named := _layers(layers, "negative"):
        notes.append(
            "In some examples the heads of a layer together work against the target; a positive share there is a share "
            f"in working against it. See `signed` and `raw` for the sign: {named}."
        )
    if (layers["n"] < FEWEST).any():
        notes.append(f"Layers with fewer than {FEWEST} examples have no intervals.")
    return notes


def _layers(layers: pd.DataFrame, column: str) -> str:
    """Layers in which a count is not 0, each with it."""
    return ", ".join(f"{r['stack']} {r['layer']} ({r[column]})" for r in layers.to_dict("records") if r[column])


def _masks(counts: EncodingCounts) -> str:
    drawn = counts.sentences - counts.unmaskable - counts.own_masks
    parts = []
    if drawn:
        parts.append(f"{counted(counts.masked, 'token')} of {counted(drawn, 'sentence')} {_were(counts.masked)} masked")
    if counts.own_masks:
        parts.append(f"{counted(counts.own_masks, 'sentence')} with mask tokens in the text got no others")
    return f"{'; '.join(parts)}."


def _share(value: float) -> str:
    return f"{value:.1%}" if abs(value) >= 5e-4 else f"{value:.0e}"

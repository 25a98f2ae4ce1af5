"""What the reader of a classification should know about its numbers, in plain words."""

from __future__ import annotations

from headlens.corpora.annotations import AnnotationCounts
from headlens.corpora.encoding import EncodingCounts
from headlens.experiments.feeding import Feed


def encoding_notes(feed: Feed, counts: EncodingCounts) -> list[str]:
    """What was left out, and what could not be aligned."""
    notes = []
    if feed.encoder_alone:
        notes.append("The corpus has no target side: only the encoder was looked into.")
    if counts.too_long:
        notes.append(f"{counts.too_long} sentences longer than {feed.encoder.limit} tokens were left out.")
    if counts.empty:
        notes.append(f"{counts.empty} sentences without words were left out.")
    if counts.sentences_with_unaligned:
        notes.append(
            f"{counts.unaligned_words} words in {counts.sentences_with_unaligned} sentences have no token; "
            "their relations are not measured."
        )
    if counts.merged_words:
        notes.append(f"{counts.merged_words} words share a token with another word and are read as one with it.")
    return notes


def annotation_notes(counts: AnnotationCounts, relations: tuple[str, ...], min_instances: int) -> list[str]:
    """Which trees and relations are missing."""
    notes = []
    if counts.lost_arcs:
        notes.append(f"{counts.lost_arcs} relation instances lie inside one unit or touch a word without a token.")
    if counts.no_tree:
        notes.append(f"{counts.no_tree} sentences have no dependency tree; --parser adds them.")
    if counts.rarity_is_vague:
        notes.append(
            f"In {counts.tied_sentences} of {counts.rare_sentences} sentences several words tie for the rarest, as "
            "words unknown to the frequency list do: no head is called rare. --frequency wordfreq:LANG names the list."
        )
    few = [f"{r} ({counts.arcs.get(r, 0)})" for r in relations if counts.arcs.get(r, 0) < min_instances]
    if few and counts.arcs:
        notes.append(f"Too few instances for a syntactic role (fewer than {min_instances}): {', '.join(few)}.")
    return notes

"""Whether what a model is measured on stands in what it learned from."""

from __future__ import annotations

from collections.abc import Sequence

from headlens.tasks.example_sources import MemoryExamples
from headlens.tasks.examples import texts_of

# So many examples are looked for, of at least so many words; fewer words stand everywhere.
_MOST, _FEWEST_WORDS = 200, 4
_WORTH_TELLING = 0.1


def seen_notes(learned: MemoryExamples, held_out: MemoryExamples | None) -> list[str]:
    """Tell of examples that are measured on and stand, word for word, in those that are learned from.

    SST-2's phrases are parts of one another, for example: held out of them, a tenth is no new text. Case and spaces do
    not count; every text of an example has to be there.

    Args:
        learned: what is trained on.
        held_out: what is measured on.

    Returns:
        A note if they are a tenth or more of those looked for, else nothing.
    """
    long = [
        e for e in (held_out.examples if held_out else ()) if sum(len(t.split()) for t in texts_of(e)) >= _FEWEST_WORDS
    ]
    if not long:
        return []
    chosen = long[:: -(-len(long) // _MOST)]
    learned_from = _plain([text for example in learned.examples for text in texts_of(example)])
    there = sum(all(_plain([text]) in learned_from for text in texts_of(example)) for example in chosen)
    if there < _WORTH_TELLING * len(chosen):
        return []
    return [
        f"Of {len(chosen)} examples that are measured on, {there} stand word for word in those that were learned from: "
        "the figures are too good. Name others with --dev-data."
    ]


def _plain(texts: Sequence[str]) -> str:
    """Texts on lines of their own, with a space around every word."""
    return "\n".join(f" {' '.join(text.casefold().split())} " for text in texts)

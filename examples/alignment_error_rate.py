"""How well every cross-attention head of a translation model aligns words, against alignments made by hand.

A head aligns a target word, when the decoder has read it, with the source word that it looks at most (word level: to a
word the sum over its pieces, from it the mean). Alignment error rate of links A against sure links S and possible ones
P, S being part of P (Och and Ney 2003): 1 - (|A and S| + |A and P|) / (|A| + |S|).

Run: python examples/alignment_error_rate.py MODEL SOURCE TARGET ALIGNMENTS
Texts are tokenized, a sentence a line; alignments such as `1-1 3p4` say: source, sure (-) or possible (p), target.
"""

import re
import sys
from pathlib import Path

import pandas as pd

import headlens
from headlens import Example, Sentence, Word


def words(line: str) -> Sentence:
    """A sentence whose words stand between spaces."""
    return Sentence(line.strip(), tuple(Word(m[0], *m.span()) for m in re.finditer(r"\S+", line.strip())))


def links(line: str, kinds: str) -> set[tuple[int, int]]:
    """Pairs of source and target word, from 0."""
    return {(int(s) - 1, int(t) - 1) for s, kind, t in re.findall(r"(\d+)([-p])(\d+)", line) if kind in kinds}


def main(model: str, *files: str) -> None:
    """Count links of every head over the corpus and print a table, the best head first."""
    loaded, counts, skipped = headlens.load(model), {}, 0
    for source, target, gold in zip(*(Path(f).read_text(encoding="utf-8").splitlines() for f in files), strict=True):
        pair, sure, possible = Example(words(source), words(target)), links(gold, "-"), links(gold, "-p")
        maps = headlens.attend(loaded, [pair], level="word")[0].weights["cross"]  # (layers, heads, target, source)
        shape = (1 + len(pair.target.words), len(pair.source.words) + 1)
        if tuple(maps.shape[2:]) != shape:  # words without a token of their own
            skipped += 1
            continue
        chosen = maps[:, :, 1:, :-1].argmax(-1)  # without the token that a decoder starts from, and the source's end
        for layer, head in ((i, j) for i in range(chosen.shape[0]) for j in range(chosen.shape[1])):
            found = {(source, target) for target, source in enumerate(chosen[layer, head].tolist())}
            own = (len(found & sure), len(found & possible), len(found), len(sure))
            counts[layer, head] = [a + b for a, b in zip(counts.get((layer, head), (0,) * 4), own, strict=True)]
    rows = [(*head, 1 - (s + p) / (a + n), a) for head, (s, p, a, n) in counts.items()]
    table = pd.DataFrame(rows, columns=["layer", "head", "alignment_error_rate", "links"])
    print(table.sort_values("alignment_error_rate").to_string(index=False))
    print(f"{skipped} pairs were left out: some of their words share a token, or have none.")


if __name__ == "__main__":
    main(*sys.argv[1:])

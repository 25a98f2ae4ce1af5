"""How well every cross-attention head of a translation model aligns words, against alignments made by hand.

A head aligns a target word with the source word that it looks at most (sum over pieces to a word, mean from it): when
the decoder is to write the word (`written`), or has read it (`read`, one step later; Chen et al. 2020 shift so). Error
rate of links A, sure ones S, possible ones P with S: 1 - (|A and S| + |A and P|) / (|A| + |S|) (Och and Ney 2003).
Run: python examples/alignment_error_rate.py MODEL SOURCE TARGET ALIGNMENTS
Texts are tokenized, a sentence a line; alignments such as `1-1 3p4` say: source, sure (-) or possible (p), target.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import headlens

WAYS = {"written": 1, "read": 0}  # steps before that at which a word is read


def words(line: str) -> headlens.Sentence:
    """A sentence whose words stand between spaces."""
    found = re.finditer(r"\S+", line.strip())
    return headlens.Sentence(line.strip(), tuple(headlens.Word(m[0], *m.span()) for m in found))


def links(line: str, kinds: str) -> set[tuple[int, int]]:
    """Pairs of source and target word, from 0."""
    return {(int(s) - 1, int(t) - 1) for s, kind, t in re.findall(r"(\d+)([-p])(\d+)", line) if kind in kinds}


def main(model: str, *files: str) -> None:
    """Count links of every head over the corpus and print a table, the best head first."""
    loaded, counts, skipped = headlens.load(model), defaultdict(lambda: np.zeros(4)), 0
    for source, target, gold in zip(*(Path(f).read_text(encoding="utf-8").splitlines() for f in files), strict=True):
        pair, sure, possible = headlens.Example(words(source), words(target)), links(gold, "-"), links(gold, "-p")
        sides = headlens.CorpusReader.of(loaded, pair).encoder.encode(pair).sides
        if any(list(side.unit_of_word) != list(range(side.n_units)) for side in sides):
            skipped += 1  # words that share a token, or have none
            continue
        pieces = [torch.nn.functional.one_hot(torch.tensor(side.units) + 1)[:, 1:].double() for side in sides]
        maps = headlens.collect_attention(loaded, [pair])[0].weights["cross"].double() @ pieces[0]  # to words
        for way, before in WAYS.items():
            chosen = (pieces[1].roll(-before, 0).T @ maps).argmax(-1)  # (layers, heads, target word)
            for layer, head in np.ndindex(*chosen.shape[:2]):
                found = {(source, target) for target, source in enumerate(chosen[layer, head].tolist())}
                counts[layer, head, way] += len(found & sure), len(found & possible), len(found), len(sure)
    rows = [(*key, 1 - (s + p) / (a + n)) for key, (s, p, a, n) in counts.items()]
    table = pd.DataFrame(rows, columns=["layer", "head", "way", "rate"])
    rates = table.pivot_table(index=["layer", "head"], columns="way", values="rate")[[*WAYS]].reset_index()
    print(rates.sort_values([*WAYS]).to_string(index=False))
    print(f"{skipped} pairs were left out: some of their words share a token, or have none.")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""How well every cross-attention head of a translation model aligns words, against alignments made by hand.

A head aligns a target word with the source word to which it attends most (weights to a word are summed over its
subwords, weights from a word averaged), either at the step where the decoder has the word as input (`aer`, the shift of
Chen et al. 2020) or at the step before, where it predicts the word (`aer_written`). The error rate of links A with sure
links S and possible links P (which include S) is 1 - (|A and S| + |A and P|) / (|A| + |S|) (Och and Ney 2003).
Run: python examples/alignment_error_rate.py MODEL SOURCE TARGET ALIGNMENTS
Texts are tokenized, one sentence per line; an alignment such as `1-1 3p4` gives source word, sure (-) or possible
(p), target word.
"""

import sys

import headlens


def main(model: str, source: str, target: str, alignments: str) -> None:
    """Classify the heads with the gold alignment, and print the error rates, the best head first."""
    found = headlens.classify(model, source, target=target, alignments=alignments, frequency="none", similarity="off")
    heads = found.tables["heads"].query("stack == 'cross'")
    columns = ["layer", "head", "aer_written", "aer", "aligned", "aligned_chance"]
    print(heads.sort_values(["aer_written", "aer"])[columns].to_string(index=False))
    print(*found.notes, sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

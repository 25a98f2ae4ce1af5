"""How well every cross-attention head of a translation model aligns words, against alignments made by hand.

A head aligns a target word with the source word that it looks at most (sum over pieces to a word, mean from it): when
the decoder has read it (`aer`; Chen et al. 2020 shift so), or is to write it (`aer_written`, one step before). Error
rate of links A, sure ones S, possible ones P with S: 1 - (|A and S| + |A and P|) / (|A| + |S|) (Och and Ney 2003).
Run: python examples/alignment_error_rate.py MODEL SOURCE TARGET ALIGNMENTS
Texts are tokenized, a sentence a line; alignments such as `1-1 3p4` say: source, sure (-) or possible (p), target.
"""

import sys

import headlens


def main(model: str, source: str, target: str, alignments: str) -> None:
    """Classify the heads with the gold alignment, and print the error rates, the best head first."""
    options = {"frequency": "none", "similarity": "off", "figures": False}
    found = headlens.classify(model, source, target=target, alignments=alignments, **options)
    heads = found.tables["heads"].query("stack == 'cross'")
    columns = ["layer", "head", "aer_written", "aer", "aligned", "aligned_chance"]
    print(heads.sort_values(["aer_written", "aer"])[columns].to_string(index=False))
    print(*found.notes, sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

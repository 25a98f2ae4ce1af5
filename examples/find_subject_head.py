"""Which head of a model points from a verb's subject to the verb, and is it better than a fixed offset?

Run: python examples/find_subject_head.py [MODEL]
"""

import sys

import headlens


def main() -> None:
    """Print the five best heads for nsubj, dependent to head."""
    loaded = headlens.load(sys.argv[1] if len(sys.argv) > 1 else "demo")
    found = headlens.classify_heads(
        loaded, headlens.open_corpus("demo"), headlens.ClassifyOptions(relations=("nsubj",))
    )
    rows = found.tables["syntax"].rows
    rows = rows[rows["direction"] == "dep->head"].sort_values("accuracy", ascending=False)
    columns = ["stack", "layer", "head", "n", "accuracy", "ci_low", "ci_high", "baseline", "p_holm"]
    print(rows[columns].head(5).to_string(index=False, float_format="{:.3f}".format))


if __name__ == "__main__":
    main()

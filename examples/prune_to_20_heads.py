"""Prune a model to the 20 heads that a task needs most, and save it: smaller, faster, and loadable again.

Run: python examples/prune_to_20_heads.py [FOLDER]
"""

import sys

import headlens

HEADS, LEFT = 72, 20


def main() -> None:
    """Rank heads on half of the bundled paraphrases, and measure the smaller model on the other half."""
    folder = sys.argv[1] if len(sys.argv) > 1 else "minilm-20-heads"
    pruning = headlens.ablate("demo", "paraphrase", prune=[HEADS - LEFT], strategies="ranked").tables["pruning"]
    for row in pruning.to_dict("records"):
        quality = f"{row['metric']} {row['value']:.3f} [{row['ci_low']:.3f}, {row['ci_high']:.3f}]"
        print(f"{HEADS - row['n_pruned']} heads: {row['parameters'] / 1e6:.1f} M parameters, {quality}")
    smaller = headlens.compact("demo", pruning["removed"].iloc[-1].split(), out=folder)
    print(smaller.tables["compact"].to_string(index=False))
    print(f"In {folder}, without {pruning['removed'].iloc[-1]}")


if __name__ == "__main__":
    main()

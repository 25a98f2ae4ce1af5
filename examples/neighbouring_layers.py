"""How similar heads of neighbouring layers are: Pearson's correlation over heads, from a table that headlens wrote.

    python examples/neighbouring_layers.py runs/classify-demo-*/heads.csv confidence
    python examples/neighbouring_layers.py runs/ablate-demo-*/ablation.csv delta

In ALBERT, whose layers share their weights, head h of one layer is head h of the next; in other models head numbers
carry no meaning across layers, so the correlations vary around 0.
"""

import sys

import pandas as pd


def correlations(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """One row per model and stack and pair of layers; a layer whose heads are all the same has no correlation."""
    rows = []
    if "mode" in table:  # of ablations: the one that was asked for, not each head alone in its layer
        table = table[table["mode"] == table["mode"].iloc[0]]
    for (model, stack), own in table.groupby(["model", "stack"], sort=False):
        heads = own.pivot_table(index="head", columns="layer", values=column)
        for lower, upper in zip(heads.columns, heads.columns[1:], strict=False):
            rows.append((model, stack, f"{lower}-{upper}", heads[lower].corr(heads[upper])))
    return pd.DataFrame(rows, columns=["model", "stack", "layers", "correlation"])


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(correlations(pd.read_csv(sys.argv[1]), sys.argv[2]).round(2).to_string(index=False))

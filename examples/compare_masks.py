"""Is one mask better than another? Differences paired by seed, with Student's t, from a table of `headlens masks`.

    python examples/compare_masks.py runs/masks-demo-*/masks.csv graph:neighbour graph:random

The first pattern is compared with the other patterns given, or with all patterns, in each range of layers.
"""

import sys

import pandas as pd
from scipy import stats


def differences(table: pd.DataFrame, first: str, others: list[str]) -> pd.DataFrame:
    """One row per task, range of layers and other pattern, with 95 % intervals over seeds."""
    rows = []
    kept = table[table["control"] == "kept"]
    whole = kept[kept["pattern"] == "full"]
    for (task, metric, layers), own in kept.groupby(["task", "metric", "layers"], sort=False):
        # Attention without a mask belongs to every range of layers.
        without = whole[(whole["task"] == task) & (whole["metric"] == metric)]
        masked = pd.concat([own[own["pattern"] != "full"], without])
        values = masked.pivot_table(index="seed", columns="pattern", values="value")
        if first not in values:
            continue
        for other in others or [str(name) for name in values if name != first]:
            if other in values:
                by_seed = (values[first] - values[other]).dropna()
                mean, seeds = by_seed.mean(), len(by_seed)
                interval = stats.t.interval(0.95, seeds - 1, mean, by_seed.std() / seeds**0.5)
                rows.append((task, metric, layers, other, seeds, mean, *interval))
    columns = ["task", "metric", "layers", f"{first} less", "seeds", "difference", "ci_low", "ci_high"]
    return pd.DataFrame(rows, columns=columns)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    found = differences(pd.read_csv(sys.argv[1]), sys.argv[2], sys.argv[3:])
    print(found.to_string(index=False, float_format="{:.3f}".format))

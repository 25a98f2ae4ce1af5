"""A small run of every command, for tests of what happens to runs and to what they leave."""

from __future__ import annotations

TRAINED = ("--steps", 4, "--batch-tokens", 150, "--data-args", "longest=40")
SST2 = ("--task", "sst2", "--data", "{data}/train.tsv", "--dev-data", "{data}/dev.tsv")
GRID = ("--methods", "windows=0,3,groups=2,thresholds=1,clusters=2,points=1", "--epochs", 1)
CASES: dict[str, tuple[object, ...]] = {
    "classify": ("classify", "{bert}", "--limit", 60, "--batch-tokens", 200),
    "relevance": ("relevance", "{bert}", "--limit", 12, "--batch-tokens", 100),
    "attend": ("attend", "{bert}", "--text", "The old cat sees a house"),
    "ablate": ("ablate", "{judge}", *SST2[:4], "--replicates", 100, "--keep-only"),
    "ablate --prune": ("ablate", "{judge}", *SST2[:4], "--replicates", 100, "--prune", "1,2", "--strategies", "all"),
    "probe": ("probe", "{bert}", "--limit", 60, "--batch-tokens", 200, "--replicates", 100),
    "prune": ("prune", "{judge}", *SST2, *TRAINED, "--lambdas", "0,0.05"),
    "train": ("train", "{judge}", *SST2, *TRAINED, "--training-args", "evaluate-every=2"),
    "train mlm": (
        *("train", "new:albert-tiny", "--model-args", "vocabulary=300", "--limit", 60, *TRAINED),
        *("--training-args", "evaluate-every=2"),
    ),
    "train-dam": ("train-dam", "{judge}", *SST2, *TRAINED, "--lambdas", "0,0.1"),
    "masks": ("masks", "--pattern", "strided:2", "--length", 40),
    "masks --task": ("masks", "{judge}", *SST2, *TRAINED, "--pattern", "window:1"),
    "masks --graph": ("masks", "{judge}", *SST2, *TRAINED, "--graph", "neighbour", "--no-controls"),
    "sparsefinder": ("sparsefinder", "{sparse}", "--limit", 12, *GRID, *SST2[:4]),
    "compact": ("compact", "{bert}", "--heads", "encoder.0.1", "--limit", 5, "--data-args", "rounds=2"),
    "report": ("report", "{measured}", "--latex"),
}  # fmt: skip

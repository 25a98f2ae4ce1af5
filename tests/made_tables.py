"""Tables like those of the commands, with random numbers."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

Shapes = dict[str, list[int]]
ROLES = ["positional(-1)", "positional(+1)", "syntactic(nsubj head->dep)", "rare", "separator", "broad", "self", ""]
OFFSETS = ["<-8", *map(str, range(-8, 9)), ">8"]


def head_keys(model: str, shapes: Shapes) -> pd.DataFrame:
    """One row per head; a stack is a list with the number of heads of each layer."""
    keys = [
        (model, stack, layer, head)
        for stack, layers in shapes.items()
        for layer, heads in enumerate(layers)
        for head in range(heads)
    ]
    return pd.DataFrame(keys, columns=["model", "stack", "layer", "head"])


@pytest.fixture
def make_heads() -> Callable[..., pd.DataFrame]:
    def make(model: str = "demo", shapes: Shapes | None = None, seed: int = 0) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        frame = head_keys(model, shapes or {"encoder": [12] * 6})
        size = len(frame)
        columns: dict[str, Any] = {"tokens": np.full(size, 1000)}
        names = ["confidence", "confidence_all", "entropy_norm", "positional_share", "rare_top1", "rare_top2"]
        names += ["same_word", "nearest_score"]
        targets = ["to_cls", "to_sep", "to_punct", "to_self", "to_prev", "to_next"]
        columns |= {name: rng.uniform(0, 1, size) for name in [*names, *targets]}
        columns |= {"to_bos": np.nan, "to_eos": np.nan, "rare_chance": 0.0833, "relevance": np.nan}
        columns |= {"entropy": rng.gamma(2, 1, size), "positional_offset": rng.choice([-2.0, -1.0, 1.0], size)}
        shares = np.linspace(0, 1, size)
        columns |= dict.fromkeys(("coreference", "to_pair", "to_equal", "aligned", "norm_share", "idle"), shares)
        columns |= {"role": rng.choice(ROLES, size), "similarity_leaf": rng.permutation(size)}
        columns |= {"similarity_x": rng.normal(size=size), "similarity_y": rng.normal(size=size)}
        frame = frame.assign(**columns)
        return frame.assign(roles=frame["role"], similarity_cluster=frame["similarity_leaf"] // 5)

    return make


@pytest.fixture
def make_relevance() -> Callable[..., pd.DataFrame]:
    def make(
        model: str = "demo", shapes: Shapes | None = None, rules: Sequence[str] = ("epsilon",), seed: int = 0
    ) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        keys = head_keys(model, shapes or {"encoder": [12] * 6})
        size = keys.groupby(["stack", "layer"])["head"].transform("size").to_numpy()
        frames = []
        for rule in rules:
            share, half = rng.normal(1, 0.8, len(keys)) / size, rng.uniform(0.01, 0.9, len(keys)) / size
            columns = {"relevance": share, "ci_low": share - half, "ci_high": share + half, "raw": share, "rule": rule}
            frames.append(keys.assign(**columns, target="class", signed=share, n=100, cancelled=3, negative=1))
        return pd.concat(frames, ignore_index=True)

    return make


@pytest.fixture
def make_ablation() -> Callable[..., pd.DataFrame]:
    def make(
        model: str = "demo", shapes: Shapes | None = None, mode: str = "zero", metric: str = "accuracy", seed: int = 0
    ) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        keys = head_keys(model, shapes or {"encoder": [12] * 6})
        delta, half = rng.normal(-0.01, 0.02, len(keys)), rng.uniform(0.005, 0.02, len(keys))
        columns = {"task": "sst2", "metric": metric, "mode": mode, "n": 872, "baseline": 0.91}
        columns |= {"value": 0.91 + delta, "delta": delta, "ci_low": delta - half, "ci_high": delta + half}
        p_holm = rng.uniform(0, 0.2, len(keys))
        return keys.assign(**columns, p_value=p_holm / len(keys), p_holm=p_holm)

    return make


@pytest.fixture
def make_pruning() -> Callable[..., pd.DataFrame]:
    def make(
        model: str = "demo",
        strategies: Sequence[str] = ("ranked", "importance", "random"),
        counts: Sequence[int] = (3, 10, 20, 30),
        metric: str = "accuracy",
        seed: int = 0,
    ) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        asked = [(s, order) for s in strategies for order in (range(3) if s == "random" else [np.nan])]
        rows = [("none", np.nan, 0), *((s, order, count) for s, order in asked for count in counts)]
        frame = pd.DataFrame(rows, columns=["strategy", "seed", "n_pruned"]).assign(model=model, task="sst2")
        value = 0.9 - 0.005 * frame["n_pruned"] * rng.uniform(0.8, 1.2, len(frame))
        bounds = {"value": value, "ci_low": value - 0.02, "ci_high": value + 0.02, "ranking_value": value + 0.01}
        frame = frame.assign(metric=metric, n_heads=72 - frame["n_pruned"], **bounds, n=400)
        return frame.assign(parameters=10**6 - frame["n_pruned"], speedup=1.5, removed="encoder.0.1")

    return make


@pytest.fixture
def make_positions() -> Callable[..., pd.DataFrame]:
    def make(model: str = "demo", shapes: Shapes | None = None) -> pd.DataFrame:
        keys = head_keys(model, shapes or {"encoder": [12] * 6})
        frame = keys.loc[keys.index.repeat(19)].reset_index(drop=True)
        shares = np.random.default_rng(0).dirichlet(np.ones(19), len(keys))
        return frame.assign(offset=OFFSETS * len(keys), count=10, share=shares.ravel())

    return make


@pytest.fixture
def make_syntax() -> Callable[..., pd.DataFrame]:
    def make(model: str = "demo", shapes: Shapes | None = None, relations: str = "nsubj obj") -> pd.DataFrame:
        rng = np.random.default_rng(1)
        keys = head_keys(model, shapes or {"encoder": [12] * 6})
        frames = []
        for relation in relations.split():
            for direction in ("dep->head", "head->dep"):
                accuracy, baseline = rng.uniform(0, 1, len(keys)), rng.uniform(0.3, 0.6)
                columns = {"relation": relation, "direction": direction, "n": 812, "accuracy": accuracy}
                columns |= {"ci_low": accuracy - 0.02, "ci_high": accuracy + 0.02, "baseline": baseline}
                columns |= {"syntactic": accuracy > baseline + 0.1, "significant": accuracy > 0.7}
                frames.append(keys.assign(**columns))
        return pd.concat(frames, ignore_index=True)

    return make

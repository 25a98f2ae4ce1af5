"""Run folders without a model: the tables of a small classification, and the pictures of another command."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from headlens.analyses.classify.metric_declarations import registered_declarations
from headlens.analyses.classify.position_figure import OFFSETS
from headlens.files import write_csv
from headlens.runs.folder import RunFolder
from headlens.runs.run_record import RUN_FILE

LAYERS, HEADS = 2, 3
RELATIONS = ("nsubj", "obj")


def classify_tables(model: str = "demo", seed: int = 0) -> dict[str, pd.DataFrame]:
    """The tables of `classify` for one encoder of 2 layers of 3 heads; head 1 of layer 0 is the best for all."""
    rng = np.random.default_rng(seed)
    keys = pd.DataFrame(
        [(model, "encoder", layer, head) for layer in range(LAYERS) for head in range(HEADS)],
        columns=["model", "stack", "layer", "head"],
    )
    size = len(keys)
    shares = ("confidence", "confidence_all", "entropy", "entropy_norm", "positional_share", "rare_top1", "rare_top2")
    shares += ("same_word", "nearest_score")
    masses = ("to_cls", "to_sep", "to_punct", "to_self", "to_prev", "to_next")
    heads = keys.assign(tokens=1000, **{name: rng.uniform(0.01, 1, size) for name in (*shares, *masses)})
    heads = heads.assign(positional_offset=-1.0, to_bos=np.nan, to_eos=np.nan, rare_chance=0.08, relevance=np.nan)
    heads = heads.assign(
        **dict.fromkeys(
            ("coreference", "to_pair", "to_equal", "aligned", "norm_share", "idle"), np.linspace(0.1, 0.9, size)
        )
    )
    roles = ["positional(-1)", "syntactic(nsubj dep->head)", "", "", "rare", ""]
    nearest = [role or "broad" for role in roles]
    places = {f"similarity_{name}": rng.permutation(size) for name in ("x", "y", "cluster", "leaf")}
    return {
        "heads": heads.assign(role=roles, roles=roles, nearest=nearest, **places),
        "positions": _repeat(keys, "offset", OFFSETS).assign(count=10, share=1 / len(OFFSETS)),
        "syntax": _syntax(keys),
        "similarity": _pairs(keys, rng),
    }


def relevance_tables(
    model: str = "demo", rules: Sequence[str] = ("epsilon", "taylor"), seed: int = 0
) -> dict[str, pd.DataFrame]:
    """The tables of `relevance` for the same encoder; with one rule there are no correlations."""
    rng = np.random.default_rng(seed)
    keys = classify_tables(model)["heads"][["model", "stack", "layer", "head"]]
    rows = _repeat(keys, "rule", rules)
    share, half = rng.normal(1 / HEADS, 0.2, len(rows)), rng.uniform(0.01, 0.3, len(rows))
    rows = rows.assign(relevance=share, ci_low=share - half, ci_high=share + half, raw=share, target="class")
    bounds = {f"signed{name}": 0.1 for name in ("", "_low", "_high")}
    found = {"relevance": rows.assign(**bounds, n=100, cancelled=3, negative=1)}
    if len(rules) > 1:
        pairs = pd.DataFrame({"model": model, "stack": ["encoder", "all"], "rule": rules[0], "other_rule": rules[1]})
        pairs = pairs.assign(of=["relevance", "magnitude"], scope=["heads", "layers"], n=[6, 6], spearman=[0.5, -0.25])
        found["correlations"] = pairs.assign(ci_low=[0.25, np.nan], ci_high=[0.75, np.nan])
    return found


def write_relevance(folder: Path, model: str = "demo", rules: Sequence[str] = ("epsilon", "taylor")) -> Path:
    """A finished run of `relevance` with tables and no figures."""
    with RunFolder.create(folder, command="relevance", model=model) as run:
        run.start({"arguments": {"models": [model], "corpus": "demo"}})
        for name, frame in relevance_tables(model, rules).items():
            run.table(name, frame)
        run.finish({"models": [{"model": model, "name": model}], "notes": []})
    return folder


_VERDICT = ["p_margin", "p_margin_holm", "margin", "verdict", "n_to_decide"]


def ablation_tables(
    model: str = "demo", modes: Sequence[str] = ("zero", "keep-only"), seed: int = 0, metric: str = "accuracy"
) -> dict[str, pd.DataFrame]:
    """The tables of `ablate` for the same encoder: head 1 of layer 0 is needed, and 2 of 6 heads were pruned, too."""
    rng = np.random.default_rng(seed)
    keys = classify_tables(model)["heads"][["model", "stack", "layer", "head"]].assign(task="sst2", metric=metric)
    rows = _repeat(keys, "mode", modes)
    needed = ((rows["layer"] == 0) & (rows["head"] == 1)).to_numpy()
    delta = np.where(needed, -0.25, rng.uniform(-0.02, 0.01, len(rows)))
    found = rows.assign(n=200, baseline=0.875, value=0.875 + delta, delta=delta, ci_low=delta - 0.03)
    p_values = np.where(needed, 1e-9, 0.5)
    found = found.assign(ci_high=delta + 0.03, p_value=p_values, p_holm=np.minimum(1, 6 * p_values))
    spare = ((rows["layer"] == 1) & (rows["head"] == 2)).to_numpy()
    p_margin = np.where(spare, 1e-4, 0.9)
    found = found.assign(p_margin=p_margin, p_margin_holm=np.minimum(1, 6 * p_margin), margin=0.01)
    found = found.assign(verdict=np.select([spare, needed], ["not needed", "needed"], "not decided"))
    found = found.assign(n_to_decide=np.where(found["verdict"] == "not decided", 2300.0, np.nan))
    order = ["model", "task", "metric", "mode", "stack", "layer", "head", "n", "baseline", "value", "delta"]
    return {
        "ablation": found[[*order, "ci_low", "ci_high", "p_value", "p_holm", *_VERDICT]],
        "pruning": _pruned(model, metric),
    }


def _pruned(model: str, metric: str) -> pd.DataFrame:
    rows = [("none", None, 0, ""), ("ranked", None, 1, "encoder.1.0"), ("ranked", None, 2, "encoder.0.2 encoder.1.0")]
    rows += [("random", seed, n, " ".join(["encoder.0.0", "encoder.0.1"][:n])) for seed in (0, 1) for n in (1, 2)]
    frame = pd.DataFrame(rows, columns=["strategy", "seed", "n_pruned", "removed"])
    value = 0.875 - 0.05 * frame["n_pruned"] - 0.1 * frame["seed"].notna()
    keys = {"model": model, "task": "sst2", "metric": metric}
    columns = {
        "value": value,
        "ci_low": value - 0.05,
        "ci_high": value + 0.05,
        "parameters": 10_000 - frame["n_pruned"],
    }
    frame = frame.assign(**keys, n_heads=6 - frame["n_pruned"], **columns, speedup=1 + 0.1 * frame["n_pruned"])
    order = ["model", "task", "metric", "strategy", "seed", "n_pruned", "n_heads", "value", "ci_low", "ci_high"]
    delta = value - 0.875
    frame = frame.assign(delta=delta, delta_low=delta - 0.06, delta_high=delta + 0.06, p_value=0.5)
    frame = frame.assign(p_holm=1.0, p_margin=0.9, p_margin_holm=1.0, margin=0.01, verdict="not decided")
    frame["n_to_decide"] = 1200.0
    two = frame["n_pruned"] == 2
    frame = frame.assign(verdict=np.where(two, "needed", frame["verdict"]), p_holm=np.where(two, 0.01, 1.0))
    frame["n_to_decide"] = frame["n_to_decide"].mask(two)
    of_sets = ["delta", "delta_low", "delta_high", "p_value", "p_holm", *_VERDICT]
    frame.loc[frame["strategy"] == "none", of_sets] = np.nan
    return frame.assign(ranking_value=value + 0.01, n=100)[
        [
            *order,
            "parameters",
            "speedup",
            "removed",
            "delta",
            "delta_low",
            "delta_high",
            "p_value",
            "n",
            "ranking_value",
            "p_holm",
            *_VERDICT,
        ]
    ]


def write_ablation(folder: Path, model: str = "demo", **settings: Any) -> Path:
    """A finished run of `ablate` with tables and no figures."""
    with RunFolder.create(folder, command="ablate", model=model) as run:
        run.start({"arguments": {"models": [model], "task": "sst2"}})
        for name, frame in ablation_tables(model, **settings).items():
            run.table(name, frame)
        run.finish({"models": [{"model": model, "name": model}], "notes": []})
    return folder


def _repeat(keys: pd.DataFrame, name: str, values: Any) -> pd.DataFrame:
    return keys.merge(pd.DataFrame({name: list(values)}), how="cross")


def _syntax(keys: pd.DataFrame) -> pd.DataFrame:
    frame = _repeat(_repeat(keys, "relation", RELATIONS), "direction", ("dep->head", "head->dep"))
    best = (frame["layer"] == 0) & (frame["head"] == 1)
    accuracy = np.where(best, 0.8, 0.05 * frame["head"] + 0.01 * frame["layer"])
    count = frame["relation"].map({"nsubj": 812, "obj": 12})
    frame = frame.assign(n=count, correct=10, accuracy=accuracy, ci_low=accuracy - 0.01, ci_high=accuracy + 0.01)
    frame = frame.assign(baseline_offset=1, baseline=0.4, p_value=1e-9, p_holm=1e-7)
    return frame.assign(syntactic=best, significant=best & (frame["direction"] == "dep->head"))


def _pairs(keys: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    heads = list(keys[["layer", "head"]].itertuples(index=False, name=None))
    rows = [(*a, *b, rng.uniform(0.1, 0.8)) for a, b in combinations(heads, 2)]
    frame = pd.DataFrame(rows, columns=["layer", "head", "other_layer", "other_head", "js_distance"])
    frame.insert(0, "stack", "encoder")
    frame.insert(0, "model", keys["model"].iloc[0])
    return frame


def _without(frame: pd.DataFrame, heads: Sequence[tuple[int, int]]) -> pd.DataFrame:
    for prefix in ("", "other_"):
        if heads and f"{prefix}layer" in frame:
            frame = frame[~frame.set_index([f"{prefix}layer", f"{prefix}head"]).index.isin(heads)]
    return frame


def write_classification(
    folder: Path, model: str = "demo", seed: int = 0, removed: Sequence[tuple[int, int]] = (), **info: Any
) -> Path:
    """A finished run of `classify` with tables and no figures, of a model that lost some heads (layer, head).

    `info` goes into its record.
    """
    with RunFolder.create(folder, command="classify", model=model) as run:
        run.start({"arguments": {"models": [model], "corpus": "demo", "min_instances": 30}})
        for name, frame in classify_tables(model, seed).items():
            run.table(name, _without(frame, removed))
        corpus = {"name": "demo", "sentences": 258, "words": 4162, "trees": 258, "sha256": "ab" * 32}
        facts: dict[str, Any] = {
            "model": model,
            "name": model,
            "weight_hash": "cd" * 32,
            "device": "cpu",
            "dtype": "float32",
        }
        if removed:
            facts["heads_removed"] = [f"encoder.{layer}.{head}" for layer, head in removed]
        metrics = [asdict(declaration) for declaration in registered_declarations()]
        notes = ["34 words share a token."]
        run.finish({"models": [facts], "corpus": corpus, "metrics": metrics, "notes": notes, **info})
    return folder


def write_other(folder: Path, name: str = "sentence1_encoder_layer0", **info: Any) -> Path:
    """A finished run of a command without figures of its own making, with one picture."""
    with RunFolder.create(folder, command="attend", model="demo") as run:
        run.start({"arguments": {"model": "demo", "text": ["A cat."]}})
        figure = Figure(figsize=(2, 1))
        figure.subplots().plot([1, 2])
        run.figure(name, figure)
        run.finish({"model_name": "demo", "notes": [], **info})
    return folder


def change_record(folder: Path, changes: Mapping[str, Any]) -> None:
    """Rewrite entries of a folder's `run.json`."""
    path = folder / RUN_FILE
    record = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(record | dict(changes)), encoding="utf-8")


HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"'><svg onload=alert(1)>",
    "-->]]></style></title></textarea>",
    "{{ 7 * 7 }}{% raw %}&lt;b&amp;",
    "שלום \u202e gnp.exe \u2066",
    "a\x00b\x07c\x85d\ufffe",
    "javascript:alert(1)//%0a\\u003cscript\u2028",
    "$\\frac{1}{0}$ _^",
)


def write_hostile(folder: Path, words: str) -> Path:
    """A run in which everything that may come from a model, a corpus or a user is `words`."""
    write_classification(folder, model=words, notes=[words])
    tables = classify_tables(words)
    for name in ("role", "roles"):
        tables["heads"][name] = [words, "rare", "", f"syntactic({words} dep->head)", "", ""]
    tables["heads"][words] = [words, "rare"] * 3  # a column that pages keep in the table
    tables["syntax"]["relation"] = words
    tables["syntax"] = tables["syntax"].drop_duplicates(["layer", "head", "direction"])
    for name, frame in tables.items():
        write_csv(frame, folder / f"{name}.csv")
    changes = {"corpus": {"name": words, "sentences": 1, words: words}, "arguments": {words: [words], "text": words}}
    change_record(folder, changes | {"rows": None, "started": words, "platform": words, words: words})
    return folder

"""Tables like those of `prune`, without training: heads close in the order of their importance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from headlens.runs.folder import RunFolder

MARIAN = {"encoder": (6, 8), "decoder": (6, 8), "cross": (6, 8)}
PENALTIES = (0.005, 0.01, 0.02, 0.05, 0.1)
_STACKS = ("encoder", "decoder", "cross")
_ROLES = ("positional(-1)", "positional(+1)", "syntactic(nsubj dep->head)", "rare", "separator", "", "", "")
_LASTING = ("positional", "syntactic", "rare")  # roles of heads that are the last to close


@dataclass(frozen=True)
class Made:
    """What a sweep looks like.

    Args:
        shapes: layers and heads of every stack of the model.
        gated: the stacks with gates; all where none is named.
        penalties: one run each; the share of heads that remain falls from the first to the last.
        steps: at which gates are logged.
        metrics: the first is the main one.
        scratch: whether every architecture was trained from scratch, too.
        least: the share of heads that the last run keeps.
    """

    shapes: Mapping[str, tuple[int, int]] = field(default_factory=lambda: MARIAN)
    gated: Sequence[str] = ()
    penalties: Sequence[float] = PENALTIES
    steps: Sequence[int] = tuple(range(0, 2001, 100))
    metrics: Sequence[str] = ("bleu",)
    model: str = "opus-mt-en-de"
    task: str = "newstest2014"
    scratch: bool = True
    least: float = 0.08
    seed: int = 0

    @property
    def stacks(self) -> tuple[str, ...]:
        """Those with gates."""
        return tuple(self.gated) or tuple(self.shapes)


def gate_tables(made: Made | None = None) -> dict[str, pd.DataFrame]:
    """The tables `gates`, `sweep` and `roles`."""
    made = made or Made()
    keys = _keys(made)
    kept = {penalty: _kept(made, keys, share) for penalty, share in zip(made.penalties, _shares(made), strict=True)}
    gates = [_gates(made, keys, penalty, own) for penalty, own in kept.items()]
    roles = [_with_run(keys, penalty).assign(kept=own) for penalty, own in kept.items()]
    frame = pd.concat(roles, ignore_index=True)
    after = frame["role"].where(frame["kept"] & (frame["head"] % 3 > 0), "positional(-1)").where(frame["kept"], "")
    order = ["run", "penalty", "model", "stack", "layer", "head", "role", "roles", "kept"]
    return {
        "gates": pd.concat(gates, ignore_index=True),
        "sweep": _sweep(made, keys, kept),
        "roles": frame.assign(roles=frame["role"])[order].assign(role_pruned=after),
    }


def write_prune(folder: Path, made: Made | None = None, *, roles: bool = True) -> Path:
    """A finished run of `prune` with tables and no figures."""
    made = made or Made()
    with RunFolder.create(folder, command="prune", model=made.model) as run:
        run.start({"arguments": {"model": made.model, "task": made.task}})
        for name, frame in gate_tables(made).items():
            if roles or name != "roles":
                run.table(name, frame)
        run.finish({"models": [{"model": made.model, "name": made.model}], "notes": []})
    return folder


def _shares(made: Made) -> list[float]:
    return np.linspace(0.85, made.least, len(made.penalties)).tolist() if len(made.penalties) > 1 else [made.least]


def _keys(made: Made) -> pd.DataFrame:
    rng = np.random.default_rng(made.seed)
    rows = [
        (s, layer, head) for s in made.stacks for layer in range(made.shapes[s][0]) for head in range(made.shapes[s][1])
    ]
    keys = pd.DataFrame(rows, columns=["stack", "layer", "head"]).assign(model=made.model)
    role = rng.choice(_ROLES, len(keys))
    lasting = np.array([name.startswith(_LASTING) for name in role])
    cross = (keys["stack"] == "cross").to_numpy()
    return keys.assign(role=role, importance=rng.normal(0, 1, len(keys)) + 1.2 * lasting + 0.6 * cross)


def _kept(made: Made, keys: pd.DataFrame, share: float) -> np.ndarray:
    del made
    first = np.argsort(-keys["importance"].to_numpy(), kind="stable")[: round(share * len(keys))]
    return np.isin(np.arange(len(keys)), first)


def _with_run(keys: pd.DataFrame, penalty: float) -> pd.DataFrame:
    return keys.assign(run=f"lambda-{penalty:g}", penalty=penalty)


def _gates(made: Made, keys: pd.DataFrame, penalty: float, kept: np.ndarray) -> pd.DataFrame:
    rng = np.random.default_rng(made.seed + 1)
    goal = np.where(kept, rng.uniform(1.0, 6.0, len(keys)), rng.uniform(-8.0, -3.0, len(keys)))
    late = rng.uniform(0.2, 0.9, len(keys))  # of the training, when half of the way is gone
    last = max(made.steps) or 1
    frames = []
    for step in made.steps:
        way = 1 / (1 + np.exp(-14 * (step / last - late))) if step else np.zeros(len(keys))
        way = np.ones(len(keys)) if step == last else way
        log_alpha = 2.2 + way * (goal - 2.2)
        gate = np.clip(1.2 / (1 + np.exp(-log_alpha)) - 0.1, 0, 1)
        p_open = 1 / (1 + np.exp(-(log_alpha - 0.33 * np.log(0.1 / 1.1))))
        frames.append(_with_run(keys, penalty).assign(step=step, log_alpha=log_alpha, p_open=p_open, gate=gate))
    order = ["run", "penalty", "step", "stack", "layer", "head", "log_alpha", "p_open", "gate", "model"]
    return pd.concat(frames)[order]


def _sweep(made: Made, keys: pd.DataFrame, kept: Mapping[float, np.ndarray]) -> pd.DataFrame:
    rows = [
        _row(made, keys, ("unpruned", np.nan, "trained"), np.ones(len(keys), bool), metric) for metric in made.metrics
    ]
    for init in ("trained", "scratch") if made.scratch else ("trained",):
        for penalty, own in kept.items():
            # as the command names the runs from scratch
            name = f"lambda-{penalty:g}" + ("-scratch" if init == "scratch" else "")
            rows += [_row(made, keys, (name, penalty, init), own, metric) for metric in made.metrics]
    return pd.DataFrame(rows)


def _row(made: Made, keys: pd.DataFrame, run: tuple[str, float, str], kept: np.ndarray, metric: str) -> dict[str, Any]:
    name, penalty, init = run
    totals = {s: int(np.prod(made.shapes[s])) if s in made.shapes else None for s in _STACKS}
    gone = keys[~kept]
    counts = {f"heads_{s}": None if t is None else t - int((gone["stack"] == s).sum()) for s, t in totals.items()}
    share = float(kept.mean())
    # nothing is lost until few heads are left; training the small model from scratch is somewhat worse
    loss = 0.03 * np.exp(-8 * share) + (0.006 * (1 - share) if init == "scratch" else 0.0)
    unit = 100 if metric in ("bleu", "chrf") else 1
    value, half = unit * (0.3 - 3 * loss if unit == 100 else 0.9 - 2 * loss), 0.008 * unit
    bounds = {"metric": metric, "value": value, "ci_low": value - half, "ci_high": value + half}
    removed = " ".join(f"{s}.{layer}.{h}" for s, layer, h in gone[["stack", "layer", "head"]].itertuples(index=False))
    facts = {"model": made.model, "task": made.task, "n": 1000, **{f"total_{s}": t for s, t in totals.items()}}
    known = {"run": name, "penalty": penalty, "init": init, **counts, **bounds}
    return {**known, **facts, "removed": removed, "checkpoint": f"checkpoints/{name}"}

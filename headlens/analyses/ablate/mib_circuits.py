"""The circuit metrics of MIB: how well a model does with a share of its heads and MLPs, the rest of it patched.

Mueller et al. (2025): f(k) = (m(C_k) - m(corrupted)) / (m(full) - m(corrupted)) for circuits of the share k of all
nodes. CPR is the area below f with nodes ranked by their scores, CMD that of |1 - f| with nodes ranked by size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import PreTrainedModel

from headlens.errors import OptionError, counted
from headlens.files import write_json
from headlens.interventions.patched_nodes import PatchedNodes, importances_file
from headlens.memory import SplitWhenOutOfMemory
from headlens.metrics.accumulator import Array
from headlens.models.freezing import frozen
from headlens.pages.formatting import number_text
from headlens.runs.checkpoint import IDENTITY, Checkpoint, packed, unpacked
from headlens.statistics.bootstrap import Draws
from headlens.statistics.non_inferiority import LEVEL
from headlens.statistics.paired_tests import interval_around, replicates_of
from headlens.statistics.seeding import generator_of
from headlens.tables.ablation_tables import MIB, MIB_AREAS
from headlens.tasks.evaluation import paired_comparison, token_count
from headlens.tasks.task import Floats, PreparedExample, TaskBatch
from headlens.tasks.task_examples import Chosen, Examples
from headlens.tasks.task_options import LOWER_IS_BETTER

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of the nodes, as in MIB
RANKINGS = ("attribution", "patching")
_RANDOM = "random"
_TOKENS = 2048  # of a batch


class _Kept:
    """Arrays by name that are kept for --resume."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}

    def dump(self, identity: Mapping[str, str] | None = None) -> bytes:
        return packed({IDENTITY: dict(identity or {})}, self.arrays)

    def take(self, content: bytes) -> None:
        self.arrays = unpacked(content)[1]


@dataclass(frozen=True)
class CircuitBench:
    """One decoder on a task and on the changed texts of `--pairs`.

    Args:
        model: whole.
        examples: all of them.
        changed: the same with changed texts, see `headlens.analyses.ablate.stand_ins.changed_examples`.
        ranked_on: the examples that nodes are scored on; circuits are measured on the others.
        metric: of the task.
        orders: random orders of the nodes, the control.
        replicates: of the bootstrap.
        seed: of the bootstrap and the random orders.
        warn: called with what the user should know at once.
        progress: called with the number of examples that are done, scored in either way or measured.
        checkpoint: where what was measured is kept; None keeps it in memory.
    """

    model: PreTrainedModel
    examples: Examples
    changed: Examples
    ranked_on: Chosen
    metric: str
    orders: int = 5
    replicates: int = 10_000
    seed: int = 0
    warn: Callable[[str], None] = lambda _: None
    progress: Callable[[int], None] = lambda _: None
    checkpoint: Checkpoint | None = None
    _kept: _Kept = field(default_factory=_Kept)

    def check(self) -> None:
        """Refuse what cannot be measured.

        Raises:
            OptionError: if the task generates.
            UnsupportedModelError: if the model is no such decoder.
        """
        if self.examples.task.generates:
            raise OptionError(
                f"--strategy-args mib asks for one pass over an example, and {self.examples.task.name} generates.",
                "Give another --task, such as logit-difference.",
            )
        assert self.nodes.names

    @cached_property
    def nodes(self) -> PatchedNodes:
        """All heads and MLPs of the model, in the order that MIB has them."""
        return PatchedNodes(self.examples.task.network(self.model))

    @cached_property
    def scores(self) -> dict[str, Floats]:
        """By how much the loss grows when each node is patched, (nodes,): to first order, and measured one by one."""
        measures = self._attribution, self._patching
        return {name: self._remembered(name, measure) for name, measure in zip(RANKINGS, measures, strict=True)}

    @cached_property
    def circuits(self) -> list[tuple[str, int | None, str, float, frozenset[int]]]:
        """Ranking, seed, order (signed, absolute), share, and the numbers of the nodes that are kept."""
        count, found = len(self.nodes.names), list[tuple[str, int | None, str, float, frozenset[int]]]()
        rankings: list[tuple[str, int | None, str, Floats]] = []
        for name, scores in self.scores.items():
            rankings += [(name, None, "signed", scores), (name, None, "absolute", np.abs(scores))]
        for seed in range(self.seed, self.seed + self.orders):
            drawn = np.array([generator_of(node, seed).random() for node in self.nodes.names])
            rankings += [(_RANDOM, seed, order, drawn) for order in ("signed", "absolute")]
        for name, of_seed, order, scores in rankings:
            best = np.argsort(-scores, kind="stable")
            found += [(name, of_seed, order, share, frozenset(best[: int(share * count)].tolist())) for share in SHARES]
        return found

    def outcome(self) -> dict[str, pd.DataFrame]:
        """The tables `mib`, of all circuits, and `mib_areas`, CPR and CMD of every ranking."""
        task, metric = self.examples.task, self.metric
        part = self.examples.part(~self.ranked_on)
        sets = list(dict.fromkeys(kept for *_, kept in self.circuits))
        records = self._remembered("records", partial(self._records, sets))
        draws = Draws.of(part.keys, self.replicates, self.seed)

        def numbers(own: Floats) -> Floats:
            """The metric, and that of every replicate."""
            replicates = replicates_of(own, partial(task.replicates, metric=metric), draws)
            return np.array([task.value(own, metric=metric), *replicates])

        corrupted, full = numbers(records[0]), numbers(records[1])
        values = {kept: numbers(own) for kept, own in zip(sets, records[2:], strict=True)}
        way = full - corrupted
        # Where patching everything makes the metric no worse, a share of the way there is none of anything.
        way = way if (way[0] < 0) == (metric in LOWER_IS_BETTER) and way[0] else np.full_like(way, np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):
            faithful = {kept: (value - corrupted) / way for kept, value in values.items()}
        heads = {number for number, name in enumerate(self.nodes.names) if name.startswith("a")}
        apart = paired_comparison(task, metric, records[1], draws).of(records[0])
        about: dict[str, Any] = {"task": task.name, "metric": metric, "texts_p_value": apart.p_value}
        rows = [
            about
            | {"ranking": name, "seed": seed, "order": order, "share": share, "nodes": len(kept)}
            | {"heads": len(kept & heads), "mlps": len(kept - heads), "value": values[kept][0]}
            | {"faithfulness": faithful[kept][0], "full": full[0], "corrupted": corrupted[0], "n": len(part)}
            | {"circuit": " ".join(self.nodes.names[number] for number in sorted(kept))}
            for name, seed, order, share, kept in self.circuits
        ]
        areas = [about | row | {"n": len(part)} for row in self._areas(faithful)]
        frames = {MIB: pd.DataFrame(rows), MIB_AREAS: pd.DataFrame(areas)}
        return {
            schema.name: frame.astype({"seed": "Int64"})[[name for name in schema.names if name != "model"]]
            for schema, frame in frames.items()
        }

    def write(self, folder: Path) -> list[Path]:
        """Writes the scores of each ranking as `RANKING/importances.json`, as MIB's evaluation reads them."""
        batch = next(self.examples.batches(1))
        with torch.no_grad(), self.nodes.open():
            self._keep(batch, self.examples, self.changed)
        task = self.examples.task
        collated = task.collate(batch, self.examples.reader, self.model.device)
        config = self.nodes.config(task.inputs(self.model, collated))
        paths = [folder / name / "importances.json" for name in RANKINGS]
        for path, scores in zip(paths, self.scores.values(), strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(importances_file(config, self.nodes.names, scores.tolist()), path)
        return paths

    def notes(self, tables: Mapping[str, pd.DataFrame]) -> list[str]:
        """How large circuits are and what they keep, in words."""
        areas, count = tables["mib_areas"], len(self.nodes.names)
        drawn = areas["ranking"] == _RANDOM
        first = tables["mib"].iloc[0]
        if areas["area"].isna().all():
            return [
                f"Patching all nodes with what they give on the texts of --pairs does not make {first['metric']} worse "
                f"({number_text(first['corrupted'])} instead of {number_text(first['full'])}, n = {first['n']}): there "
                "is nothing that circuits could be faithful to, and CPR and CMD are empty."
            ]
        scored = areas[~drawn].to_dict("records")
        several = ", ".join(
            f"{row['measure']} by {row['ranking']} {row['area']:.3g} [{row['ci_low']:.3g}, {row['ci_high']:.3g}]"
            for row in scored
        )
        empty = [f"{share:g}" for share in SHARES if int(share * count) == 0]
        nothing = f" Circuits of the shares {', '.join(empty)} have no node at all." if empty else ""
        if not first["texts_p_value"] < LEVEL:
            nothing += (
                f" The changed texts do not make {first['metric']} significantly worse "
                f"({number_text(first['corrupted'])} instead of {number_text(first['full'])}): these may be "
                "shares of nothing."
            )
        ranges = ", ".join(
            f"{measure} {own['area'].min():.3g} to {own['area'].max():.3g}"
            for measure, own in areas[drawn].groupby("measure", sort=False)
        )
        return [
            f"Circuits of {counted(count, 'node')} (heads and MLPs), all others patched with what they give on the "
            f"texts of --pairs, while embeddings are those of the data, on the {first['n']} examples that scores are "
            f"not from, with 95 % intervals over these: {several}; of "
            f"{counted(self.orders, 'random order')} {ranges}.{nothing}"
        ]

    def _areas(self, faithful: Mapping[frozenset[int], Floats]) -> Iterator[dict[str, Any]]:
        curves: dict[tuple[str, int | None, str], list[Floats]] = {}
        for name, seed, order, _, kept in self.circuits:
            curves.setdefault((name, seed, order), []).append(faithful[kept])
        for (name, seed, order), curve in curves.items():
            heights = np.stack(curve) if order == "signed" else np.abs(1 - np.stack(curve))
            area = np.trapezoid(heights, SHARES, axis=0)
            low, high = interval_around(float(area[0]), area[1:])
            measure = "CPR" if order == "signed" else "CMD"
            yield {"ranking": name, "seed": seed, "measure": measure, "area": area[0], "ci_low": low, "ci_high": high}

    def _remembered(self, name: str, measure: Callable[[], Floats]) -> Floats:
        if self.checkpoint is not None and not self._kept.arrays:
            self.checkpoint.restore(self._kept)
        if name not in self._kept.arrays:
            self._kept.arrays[name] = measure()
            if self.checkpoint is not None:
                self.checkpoint.save(self._kept)
        return self._kept.arrays[name]

    def _attribution(self) -> Floats:
        total = torch.zeros(len(self.nodes.names), dtype=torch.double)

        def run(batch: TaskBatch, inputs: Mapping[str, Any]) -> Floats:
            gates = torch.zeros(len(total), device=self.model.device, requires_grad=True)
            self.nodes.gates = gates
            with torch.enable_grad():
                losses = self.examples.task.losses(self.nodes.model(**inputs), batch)
                (slopes,) = torch.autograd.grad(losses.sum(), gates)
            return slopes.double().cpu().numpy()[None]

        with frozen(self.nodes.model):
            slopes, places = self._each_batch(self.ranked_on, run, axis=0)
        return np.array(slopes.sum(0) / len(places))

    def _patching(self) -> Floats:
        single = [[], *([number] for number in range(len(self.nodes.names)))]

        def run(batch: TaskBatch, inputs: Mapping[str, Any]) -> Floats:
            losses = [self.examples.task.losses(self._outputs(inputs, patched), batch) for patched in single]
            return torch.stack(losses).double().cpu().numpy()

        losses, _ = self._each_batch(self.ranked_on, run, axis=1)
        return np.array((losses[1:] - losses[0]).mean(1))

    def _outputs(self, inputs: Mapping[str, Any], patched: Sequence[int]) -> Any:
        gates = torch.zeros(len(self.nodes.names))
        gates[list(patched)] = 1.0
        self.nodes.gates = gates.to(self.model.device)
        return self.nodes.model(**inputs)

    def _records(self, sets: Sequence[frozenset[int]]) -> Floats:
        """Records on the changed texts, of the whole model, and of every circuit: (2 + circuits, examples, columns)."""
        task, every = self.examples.task, range(len(self.nodes.names))
        chosen = ~self.ranked_on
        patched = [[], *([number for number in every if number not in kept] for kept in sets)]

        def run(batch: TaskBatch, inputs: Mapping[str, Any]) -> Floats:
            donors = [self.changed.part(chosen).prepared[p.index] for p in batch.prepared]
            other = task.collate(donors, self.examples.reader, self.model.device)
            self.nodes.gates = torch.zeros(len(every), device=self.model.device)
            read = [task.read(self.nodes.model(**task.inputs(self.model, other)), other)]
            return np.stack([*read, *(task.read(self._outputs(inputs, nodes), batch) for nodes in patched)])

        records, places = self._each_batch(chosen, run, axis=1)
        return np.array(records[:, np.argsort(places)])

    def _keep(self, prepared: Sequence[PreparedExample], part: Examples, changed: Examples) -> None:
        """Keeps what nodes give on the changed texts of some examples."""
        task = part.task
        donors = [changed.prepared[p.index] for p in prepared]
        other = task.collate(donors, part.reader, self.model.device)
        self.nodes.gates = None
        self.nodes.model(**task.inputs(self.model, other))

    def _each_batch(
        self, chosen: Chosen, run: Callable[[TaskBatch, Mapping[str, Any]], Floats], axis: int
    ) -> tuple[Floats, list[int]]:
        """What `run` gives of all batches of some examples, put together along an axis, and the examples in order."""
        part, changed, task = self.examples.part(chosen), self.changed.part(chosen), self.examples.task

        def patched(prepared: Sequence[PreparedExample]) -> Floats:
            self._keep(prepared, part, changed)
            batch = task.collate(prepared, part.reader, self.model.device)
            return run(batch, task.inputs(self.model, batch))

        def joined(one: Floats, other: Floats) -> Floats:
            return np.concatenate([one, other], axis)

        in_parts = SplitWhenOutOfMemory(self.model.device, patched, joined, token_count, self.warn)
        found, places = list[Floats](), list[int]()
        with torch.no_grad(), self.nodes.open():
            for batch in part.batches(_TOKENS):
                found.append(in_parts(batch))
                places += [p.index for p in batch]
                self.progress(len(batch))
        return np.concatenate(found, axis), places

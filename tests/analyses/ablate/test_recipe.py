"""`ablate` as a whole, on tiny models: pruned models are what gates make of them, parts are apart, runs go on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from made_judges import judge, prune_request
from made_tasks import given_examples, text
from saved import build, save
from tiers import rest_slow
from transformers import PreTrainedTokenizerBase

import headlens
from headlens.analyses.ablate.options import STRATEGIES, AblateRequest, AblationOptions, PruneOptions
from headlens.analyses.ablate.pruning_experiment import evaluated, operations
from headlens.analyses.ablate.pruning_strategies import RANDOM_SETS
from headlens.analyses.ablate.recipe import AblateRun, run_ablate
from headlens.analyses.ablate.sweep import TaskSweep
from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites
from headlens.errors import OptionError, ResumeError
from headlens.heads import Head
from headlens.interventions.compacting import without_heads
from headlens.interventions.gates import HeadGates
from headlens.models.loading import LoadedModel, load
from headlens.shared_options import OutputOptions
from headlens.statistics.bootstrap import Draws
from headlens.tasks.catalogue import CATALOGUE
from headlens.tasks.open_task import open_examples
from headlens.tasks.task import Floats
from headlens.tasks.task_examples import Examples, ranking_part
from headlens.tasks.task_heads import with_task_head
from headlens.tasks.task_options import TaskData

COUNTS = (1, 3)
ALL = tuple(name for name in STRATEGIES if name != "gates")  # which asks for another run
ROWS = 30


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "dev.tsv"
    rows = [f"{text(n)} {text(n, 3)}\t{n % 3 % 2}" for n in range(ROWS)]
    path.write_text("sentence\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module", params=rest_slow(["BertModel", "AlbertModel"], ["AlbertModel"]))
def model(
    request: pytest.FixtureRequest,
    wordpiece_tokenizer: PreTrainedTokenizerBase,
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    folder = tmp_path_factory.mktemp("model") / request.param
    bare = LoadedModel("tiny", build(request.param, len(wordpiece_tokenizer)), wordpiece_tokenizer, None)
    return save(with_task_head(bare, CATALOGUE["sst2"].task, 0).model, folder, wordpiece_tokenizer)


def ask(model: str, data: str, folder: Path, **settings: Any) -> AblateRequest:
    pruning = PruneOptions(COUNTS, ALL, beam=2, orders=2, interactions=2)
    options = AblationOptions(replicates=100, batch_tokens=400)
    resume = settings.pop("resume", False)
    return AblateRequest(
        (model,),
        TaskData("sst2", (data,)),
        **{"options": options, "pruning": pruning, **settings},
        figures=False,
        place=OutputOptions(folder, resume=resume),
    )


@pytest.fixture(scope="module")
def counted(model: str, data: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[AblateRun, int]:
    """A run and the number of its batches."""
    with pytest.MonkeyPatch.context() as patch, killed_after(patch, -1) as every:
        return run_ablate(ask(model, data, tmp_path_factory.mktemp("runs") / "run")), every[0]


@pytest.fixture(scope="module")
def done(counted: tuple[AblateRun, int]) -> AblateRun:
    return counted[0]


@pytest.fixture(scope="module")
def every(counted: tuple[AblateRun, int]) -> int:
    return counted[1]


@pytest.fixture(scope="module")
def examples(model: str, data: str) -> Examples:
    task, source = open_examples(TaskData("sst2", (data,)))
    return Examples.of(task, source, load(model))


loaded_once = cache(load)  # for what leaves the model as it was


def gated(model: str, examples: Examples, removed: list[Head]) -> Floats:
    """Records of a model with gates, one example at a time."""
    loaded, found = loaded_once(model), []
    with AttentionSession(loaded.model, edits=[HeadGates(dict.fromkeys(removed, 0.0))]):
        for prepared in examples.prepared:
            batch = examples.task.collate([prepared], examples.reader, "cpu")
            found.append(examples.task.read(examples.task.run(loaded.model, batch), batch))
    return np.concatenate(found)


def heads_of(row: pd.Series) -> list[Head]:
    return [Head.parse(name) for name in str(row["removed"]).split()]


def test_areas_have_intervals_over_the_evaluation_part(done: AblateRun, examples: Examples) -> None:
    """From records.npz, with every replicate written out example by example."""
    evaluated = ~ranking_part(examples.keys, 0.5, 0)
    with np.load(done.folder / "records.npz") as arrays:
        (pruned,) = (arrays[name] for name in arrays if name.endswith("/pruned"))
    keys = [key for key, used in zip(examples.keys, evaluated, strict=True) if used]
    counts = Draws.of(keys, 100, 0).counts
    table, areas = done.tables["pruning"], done.tables["pruning_areas"].set_index(["strategy", "control_of"])
    values = [
        np.array([examples.task.value(np.repeat(of_row[evaluated], times, axis=0)) for times in counts])
        for of_row in pruned
    ]

    def area(strategy: str) -> Floats:
        one, three = (values[row] for row in np.flatnonzero(table["strategy"] == strategy))
        return np.array(((values[0] + one) / 2 + (one + three)) / 3)

    for strategy in set(ALL) - set(RANDOM_SETS):
        row, replicates = areas.loc[strategy].iloc[0], area(strategy)
        low, high = np.quantile(replicates, [0.025, 0.975])
        assert low < high
        assert (row["ci_low"], row["ci_high"]) == pytest.approx((min(low, row["area"]), max(high, row["area"])))
        differences = replicates - area("ranked")
        low, high = np.quantile(differences, [0.025, 0.975]) if np.ptp(differences) else (np.nan, np.nan)
        ends = min(low, row["delta"]), max(high, row["delta"])
        assert (row["delta_low"], row["delta_high"]) == pytest.approx(ends, nan_ok=True)


@pytest.mark.slow
def test_pruned_models_are_what_gates_make_of_them(model: str, done: AblateRun, examples: Examples) -> None:
    ranked_on = ranking_part(examples.keys, 0.5, 0)
    pruning = done.tables["pruning"]
    choosing = len(ALL) - len(RANDOM_SETS)
    # Two orders, as many sets by layer for each set, and of other heads where one is pruned: 1 is left beside 3.
    assert len(pruning) == 1 + len(COUNTS) * (choosing + 2) + 2 * choosing * (len(COUNTS) + 1)
    for _, row in pruning.fillna({"removed": ""}).iterrows():
        removed = heads_of(row)
        records = gated(model, examples, removed)
        assert len(set(removed)) == row["n_pruned"] == 4 - row["n_heads"]
        assert row["value"] == pytest.approx(examples.task.value(records[~ranked_on]))
        assert row["ranking_value"] == pytest.approx(examples.task.value(records[ranked_on]))
        assert row["n"] == (~ranked_on).sum() == ROWS - ranked_on.sum()
        assert row["ci_low"] <= row["value"] <= row["ci_high"]
    base = pruning["value"].iloc[0]
    assert (pruning["delta"] == pruning["value"] - base).all()


def test_strategies_choose_by_the_ranking_part_alone(model: str, done: AblateRun, examples: Examples) -> None:
    ranked_on = ranking_part(examples.keys, 0.5, 0)
    heads = [h for s in find_sites(load(model).model) for h in s.heads]
    records = {h: gated(model, examples, [h])[ranked_on] for h in heads}
    part = {h: examples.task.value(own) for h, own in records.items()}
    # Where the accuracy is the same, the loss decides.
    order = sorted(heads, key=lambda h: (-part[h], records[h][:, 2].mean()))
    pruning = done.tables["pruning"].set_index(["strategy", "n_pruned"])
    for count in COUNTS:
        assert set(heads_of(pruning.loc["ranked", count])) == set(order[:count])
    best = max(part.values())
    for strategy in ("ranked", "greedy", "beam"):
        assert pruning.loc[(strategy, 1), "ranking_value"] == pytest.approx(best)
    pairs = {
        (a, b): examples.task.value(gated(model, examples, [a, b])[ranked_on]) for a in heads for b in heads if a < b
    }
    greedy = max(v for pair, v in pairs.items() if order[0] in pair)
    assert greedy <= max(pairs.values())
    assert pruning.loc["random", 1]["removed"].nunique() >= 1
    assert sorted(pruning.loc["random"]["seed"].unique()) == [0, 1]


@pytest.mark.slow
def test_what_is_saved_is_counted(model: str, done: AblateRun, examples: Examples) -> None:
    pruning, whole = done.tables["pruning"], load(model)
    assert pruning["parameters"].iloc[0] == whole.n_parameters
    for _, row in pruning.fillna({"removed": ""}).iterrows():
        small = without_heads(whole.model, heads_of(row))
        assert row["parameters"] == sum(p.numel() for p in small.parameters())
        assert row["speedup"] == pytest.approx(operations(whole.model, examples) / operations(small, examples))
    if whole.model.config.model_type == "bert":
        assert pruning["speedup"].iloc[0] == 1
        assert (pruning["speedup"].iloc[1:] > 1).all()


def test_operations_are_those_of_the_matrix_products(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    task = CATALOGUE["sst2"].task
    bare = LoadedModel("tiny", build("BertModel", len(wordpiece_tokenizer)), wordpiece_tokenizer, None)
    model = with_task_head(bare, task, 0).model
    examples = given_examples(task, model, wordpiece_tokenizer, 5)
    n = sorted(p.length for p in examples.prepared)[2]
    d, inner = 16, 16
    layer = 2 * n * (4 * d * d + 2 * d * inner) + 2 * 2 * n * n * d
    assert operations(model, examples) == 2 * layer + 2 * d * d + 2 * d * 2


def test_from_python(model: str, data: str, done: AblateRun) -> None:
    loaded = headlens.load(model)
    task, source = headlens.open_task("sst2", data)
    options = headlens.AblationOptions(replicates=100, batch_tokens=400)
    found = headlens.ablate_heads(loaded, headlens.Examples.of(task, source, loaded), options)
    pd.testing.assert_frame_equal(found.table, done.tables["ablation"].drop(columns="model"))
    assert headlens.evaluate(task, loaded, source).value == found.table["baseline"].iloc[0]


def test_the_run_says_what_it_was(done: AblateRun, model: str) -> None:
    record = json.loads((done.folder / "run.json").read_text())
    (facts,) = record["models"]
    assert facts["data"]["examples"] == ROWS
    assert len(facts["data"]["sha256"]) == 64
    assert set(facts["evaluation"]) == {"accuracy"}
    assert facts["evaluation"]["accuracy"]["value"] == done.tables["ablation"]["baseline"].iloc[0]
    assert record["status"] == "finished"
    json.dumps(done.summary(), allow_nan=False)
    assert not (done.folder / ".resume").exists()


@pytest.mark.parametrize(("metric", "better"), [("accuracy", 1), ("loss", 2)])
def test_gains_are_counted_beside_all_that_is_significant(metric: str, better: int) -> None:
    rows = {"model": "m", "mode": "zero", "metric": metric, "delta": [0.1, -0.1, -0.2, 0.3], "p_holm": [0.01] * 3 + [1]}
    summary = AblateRun(Path(), [], {"ablation": pd.DataFrame(rows)}, [], []).summary()
    assert (summary["significant"], summary["significantly_better"]) == ({"m zero": 3}, {"m zero": better})


class Killed(BaseException):
    """The end of a process."""


@contextmanager
def killed_after(monkeypatch: pytest.MonkeyPatch, batches: int) -> Iterator[list[int]]:
    """Every batch is kept; after some of them the process is gone."""
    from headlens.analyses.ablate.sweep import HeadRecords
    from headlens.runs.checkpoint import Checkpoint

    done, put = [0], HeadRecords.put

    def counted(self: HeadRecords, *args: Any) -> None:
        if done[0] == batches:
            raise Killed
        done[0] += 1
        put(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(HeadRecords, "put", counted)
        patch.setattr(Checkpoint, "due", True)
        yield done


@pytest.mark.parametrize("share", rest_slow([0.05, 0.3, 0.6, 0.95], [0.3]))
def test_a_killed_run_goes_on_to_the_same_tables(
    model: str, data: str, done: AblateRun, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    folder = tmp_path / "run"
    batches = max(1, int(share * every))
    with killed_after(monkeypatch, batches) as before, pytest.raises(Killed):
        run_ablate(ask(model, data, folder))
    with killed_after(monkeypatch, -1) as after:
        found = run_ablate(ask(model, data, folder, resume=True))
    assert before[0] == batches
    assert after[0] < every, "what was done before is not done again"
    for name in ("ablation", "pruning", "interactions", "ranking_agreement", "ranking_variance"):
        assert (found.folder / f"{name}.csv").read_bytes() == (done.folder / f"{name}.csv").read_bytes()


def test_a_killed_screening_goes_on_with_the_same_heads_and_subsets(
    model: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = AblationOptions(replicates=100, batch_tokens=400, confirm=2, subsets=8)
    asked: dict[str, Any] = {"options": options, "pruning": PruneOptions()}
    with killed_after(monkeypatch, -1) as every:
        whole = run_ablate(ask(model, data, tmp_path / "whole", **asked))
    batches = every[0] * 2 // 3
    with killed_after(monkeypatch, batches), pytest.raises(Killed):
        run_ablate(ask(model, data, tmp_path / "run", **asked))
    with killed_after(monkeypatch, -1) as after, monkeypatch.context() as patch:
        patch.setattr("headlens.analyses.ablate.scorers.AttributionEstimator.__call__", None)
        found = run_ablate(ask(model, data, tmp_path / "run", **asked, resume=True))
    assert after[0] == every[0] - batches, "what was done before is not done again, attribution neither"
    pd.testing.assert_frame_equal(found.tables["ablation"], whole.tables["ablation"])
    assert found.models[0]["screening"] == whole.models[0]["screening"]


def test_other_data_cannot_be_gone_on_with(
    model: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "dev.tsv"
    copy.write_bytes(Path(data).read_bytes())
    with killed_after(monkeypatch, 1), pytest.raises(Killed):
        run_ablate(ask(model, str(copy), tmp_path / "run"))
    copy.write_text(copy.read_text().replace("the", "a"), encoding="utf-8")
    with pytest.raises(ResumeError, match="the data changed since"):
        run_ablate(ask(model, str(copy), tmp_path / "run", resume=True))


def test_what_cannot_be_pruned_is_told_before_anything_runs(model: str, data: str, tmp_path: Path) -> None:
    few = TaskData("sst2", (data,), limit=3)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"pruning": PruneOptions((4,))}, r"(?s)4 heads cannot be pruned: nothing would be left.*up to 3"),
        ({"pruning": PruneOptions((9,))}, r"9 heads cannot be pruned: the model has 4"),
        ({"pruning": PruneOptions((1,), rank_split=1.0)}, r"--strategy-args rank-split 1.0 leaves nothing"),
        ({"data": few}, r"3 examples cannot be split"),
    ]
    for settings, message in wrong:
        request = replace(ask(model, data, tmp_path / "run"), **settings)
        with pytest.raises(OptionError, match=message):
            run_ablate(request)
        assert not (tmp_path / "run").exists()


def test_strategies_by_name() -> None:
    wrong: Any = ("best",)
    with pytest.raises(OptionError, match=r"(?s)Unknown strategy 'best'.*ranked, importance, importance-steps"):
        PruneOptions((3,), strategies=wrong)
    with pytest.raises(OptionError, match="--strategies is empty"):
        PruneOptions((3,), ())
    with pytest.raises(OptionError, match="--strategies only applies together with --prune"):
        PruneOptions(strategies=("greedy",))
    with pytest.raises(OptionError, match="--strategy-args beam 0"):
        PruneOptions(beam=0)
    with pytest.raises(OptionError, match="--strategy-args orders 0"):
        PruneOptions(orders=0)
    with pytest.raises(OptionError, match="3 models were given"):
        AblateRequest(("a", "b", "c"))


def test_pruned_models_are_evaluated_without_a_sweep(model: str, examples: Examples) -> None:
    small = without_heads(load(model).model, [Head("encoder", 1, 0)])
    found = evaluated(small, examples, TaskSweep(), cut=True)
    expected = gated(model, examples, [Head("encoder", 1, 0)])
    np.testing.assert_allclose(found.records, expected, rtol=1e-5, atol=1e-6)
    assert torch.is_tensor(next(small.parameters()))


@pytest.mark.parametrize(
    ("right", "judged"), [({"evaluation"}, False), ({"ranking"}, False), ({"evaluation", "ranking"}, True)]
)
def test_no_part_has_verdicts_where_the_model_guesses(
    right: set[str], judged: bool, wordpiece_tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    """Of 100 pairs a model had 58 right, which is guessing; of the 45 of the evaluation part 31, which had verdicts."""
    network: Any = judge(wordpiece_tokenizer).model
    texts = [f"{text(n)} {text(n, 3)}" for n in range(40)]
    with torch.no_grad():
        first, second = network(**wordpiece_tokenizer(texts, padding=True, return_tensors="pt")).logits.unbind(dim=1)
        network.classifier.bias[1] += (first - second).median() + 1e-6  # so that it gives both answers
    path, file = save(network, tmp_path / "judge", wordpiece_tokenizer), tmp_path / "dev.tsv"

    def found(labels: Sequence[int], run: str) -> dict[str, pd.DataFrame]:
        rows = "".join(f"{one}\t{label}\n" for one, label in zip(texts, labels, strict=True))
        file.write_text(f"sentence\tlabel\n{rows}", encoding="utf-8")
        return run_ablate(prune_request(path, str(file), tmp_path / run, PruneOptions((1,), ("ranked",)))).tables

    known = found([0] * len(texts), "first")["examples"]
    labels = np.where(known["part"].isin(right), known["predicted"], 1 - known["predicted"]).astype(int)
    tables = found(labels.tolist(), "then")
    sets = tables["pruning"].query("n_pruned > 0")
    assert sets["verdict"].notna().all() == judged
    assert sets["n_to_decide"].notna().any() <= judged

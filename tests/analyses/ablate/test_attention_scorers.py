"""Heads pruned by the norm of what they add, by the entropy of their attention, and by the gates of another run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import made_tasks
import numpy as np
import pandas as pd
import pytest
import torch
from made_judges import judge, prune_request
from made_tasks import given_examples
from transformers import PreTrainedTokenizerBase

from headlens.analyses.ablate.options import PruneOptions
from headlens.analyses.ablate.plan import ablate_plan
from headlens.analyses.ablate.recipe import AblateRun, run_ablate
from headlens.analyses.ablate.recorded_scores import RecordedGates
from headlens.analyses.ablate.scorers import (
    AttentionEstimator,
    ExampleScores,
    FocusEstimator,
    ImportanceScorer,
    NormEstimator,
)
from headlens.errors import InputError, OptionError, UnsupportedModelError
from headlens.heads import Head
from headlens.metrics.norms import Norms
from headlens.models.loading import load
from headlens.runs.folder import RunFolder
from headlens.runs.progress import Reporter
from headlens.shared_options import OutputOptions
from headlens.tasks.task_examples import Examples

HEADS = [Head("encoder", layer, head) for layer in range(2) for head in range(2)]
A, B, C, D = HEADS
KINDS = ("sst2", "mlm", "swag", "paraphrase", "causal-lm", "translation-loss")


def eager(network: Any) -> Any:
    """The same network, so that it gives its weights."""
    for module in network.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = "eager"
    return network


def rows_of(examples: Examples, number: int, network: Any) -> list[tuple[Any, list[int], list[int]]]:
    """Outputs of the model for every row of one example, with how many tokens are real on either side."""
    batch = examples.task.collate([examples.prepared[number]], examples.reader, "cpu")
    inputs = examples.task.differentiable.inputs(network, batch)
    with torch.no_grad():
        outputs = network(**inputs, output_attentions=True, output_hidden_states=True)
    real = [int(mask.sum()) for mask in inputs["attention_mask"].flatten(0, -2)]
    targets = inputs.get("decoder_attention_mask")
    return [(outputs, real, real if targets is None else [int(mask.sum()) for mask in targets])]


def evenness(weights: np.ndarray, queries: int, keys: int, *, causal: bool) -> list[float]:
    """The share of the largest possible entropy of every query that has a choice, by loops."""
    found = []
    for query in range(queries):
        among = query + 1 if causal else keys
        if among > 1:
            row = [float(w) for w in weights[query, :among]]
            found.append(-sum(w * np.log(w) for w in row if w > 0) / np.log(among))
    return found


@pytest.mark.parametrize("name", KINDS)
def test_entropies_are_means_over_the_queries_of_all_examples(
    name: str, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    loaded = judge(wordpiece_tokenizer, name)
    model = loaded.model.double().eval()
    examples = given_examples(made_tasks.TASKS[name], model, wordpiece_tokenizer, 5)
    network = eager(examples.task.differentiable.network(model))
    expected: dict[Head, list[float]] = {}
    for number in range(5):
        for outputs, sources, targets in rows_of(examples, number, network):
            sides = {"attentions": ("encoder", sources, sources)}
            if name == "causal-lm":
                sides = {"attentions": ("decoder", sources, sources)}
            if name == "translation-loss":
                sides = {"encoder_attentions": ("encoder", sources, sources)}
                sides |= {"decoder_attentions": ("decoder", targets, targets)}
                sides |= {"cross_attentions": ("cross", targets, sources)}
            for kind, (stack, queries, keys) in sides.items():
                for layer, weights in enumerate(outputs[kind]):
                    for row, of_row in enumerate(weights.numpy()):
                        for head, of_head in enumerate(of_row):
                            own = evenness(of_head, queries[row], keys[row], causal=stack == "decoder")
                            expected.setdefault(Head(stack, layer, head), []).extend(own)
    found = FocusEstimator(model, examples, 200, print)(frozenset())
    assert found == pytest.approx({head: 1 - np.mean(values) for head, values in expected.items()}, rel=1e-9)


@pytest.mark.parametrize("name", ["sst2", "swag"])
def test_norms_are_those_of_weighted_values(name: str, wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    """Kobayashi et al. (2020): the sum over keys of weight, value and the head's part of the output projection."""
    model = judge(wordpiece_tokenizer, name).model.double().eval()
    examples = given_examples(made_tasks.TASKS[name], model, wordpiece_tokenizer, 5)
    network = eager(examples.task.differentiable.network(model))
    norms: dict[Head, list[float]] = {}
    for number in range(5):
        for outputs, real, _ in rows_of(examples, number, network):
            for layer, attention in enumerate(network.base_model.encoder.layer):
                own, size = attention.attention, attention.attention.self.attention_head_size
                values = own.self.value(outputs["hidden_states"][layer]).detach().numpy()
                projection = own.output.dense.weight.detach().numpy()
                for row, of_row in enumerate(outputs["attentions"][layer].numpy()):
                    for head, weights in enumerate(of_row):
                        part = slice(head * size, (head + 1) * size)
                        for query in range(real[row]):
                            added = sum(
                                weights[query, key] * projection[:, part] @ values[row, key, part]
                                for key in range(real[row])
                            )
                            norms.setdefault(Head("encoder", layer, head), []).append(float(np.linalg.norm(added)))
    estimator = NormEstimator(model, examples, 200, print)
    assert estimator(frozenset()) == pytest.approx({head: np.mean(v) for head, v in norms.items()}, rel=1e-6)
    some = np.array([True, False, True, False, False])
    scorer = ImportanceScorer(estimator, normalize=False)
    alone = NormEstimator(model, examples.part(some), 200, print)(frozenset())
    order = sorted(alone, key=alone.__getitem__)
    assert [order.index(head) + 1 for head in HEADS] == scorer.ranks(HEADS, some).tolist()


def test_heads_that_are_gone_are_not_measured(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    model = judge(wordpiece_tokenizer).model
    examples = given_examples(made_tasks.TASKS["sst2"], model, wordpiece_tokenizer, 4)
    left = NormEstimator(model, examples, None, print)(frozenset({A}))
    assert set(left) >= {B, C, D}
    scores = ImportanceScorer(NormEstimator(model, examples, None, print), normalize=False).without(
        frozenset({A}), [B, C, D]
    )
    assert scores == {head: -left[head] for head in (B, C, D)}


def prune(model: str, data: str, folder: Path, pruning: PruneOptions) -> AblateRun:
    return run_ablate(prune_request(model, data, folder, pruning))


def gates(folder: Path, model: str, opened: dict[str, dict[Head, float]], **facts: Any) -> Path:
    """A run of `prune` with a gate by head for every training run, the other way round before its last update."""
    rows = [
        (run, 0.1, step, *head, gate if step else 1 - gate, float(gate > 0.5), "judge")
        for run, of_heads in opened.items()
        for step in (0, 20)
        for head, gate in of_heads.items()
    ]
    columns = ["run", "penalty", "step", "stack", "layer", "head", "p_open", "gate", "model"]
    with RunFolder.create(folder, command="prune", model="judge") as run:
        run.start({"arguments": {}})
        run.table("gates", pd.DataFrame(rows, columns=columns))
        record = {"model": "judge", "weight_hash": load(model).weight_hash} | facts
        run.finish({"models": [record], "notes": []})
    return folder


def test_the_heads_whose_gates_close_go_first(model: str, data: str, tmp_path: Path) -> None:
    """By the mean over the penalties of a sweep, after the last update."""
    weak, strong = {A: 0.9, B: 0.8, C: 1.0, D: 0.7}, {A: 0.5, B: 0.2, C: 0.1, D: 0.0}
    folder = gates(tmp_path / "gates", model, {"weak": weak, "strong": strong})
    found = prune(model, data, tmp_path / "run", PruneOptions((1, 2, 3), ("gates", "norm"), gates=folder))
    table = found.tables["pruning"]
    chosen = [set(str(names).split()) for names in table.loc[table["strategy"] == "gates", "removed"]]
    assert chosen == [{str(D)}, {str(D), str(B)}, {str(D), str(B), str(C)}]
    rankings = found.tables["rankings"]
    worth = rankings.loc[rankings["strategy"] == "gates", "worth"].to_numpy(float)
    assert worth == pytest.approx([0.7, 0.5, 0.55, 0.35])
    assert found.tables["ranking_agreement"][["strategy", "other_strategy"]].to_numpy().tolist() == [["gates", "norm"]]
    (note,) = [note for note in found.notes if "`gates` used" in note]
    assert "(the last update, 2 training runs), whose training data should not contain" in note
    # what was trained by another law has no probabilities
    rows = pd.read_csv(folder / "gates.csv").assign(p_open=np.nan)
    assert RecordedGates.read(rows)[0] == dict.fromkeys(HEADS, 0.5)


def test_gates_of_another_model_or_of_some_heads_are_refused(model: str, data: str, tmp_path: Path) -> None:
    every = dict.fromkeys(HEADS, 0.5)
    wrong = {
        gates(tmp_path / "other", model, {"a": every}, weight_hash="0"): "whose weights are not those of",
        gates(tmp_path / "some", model, {"a": {A: 0.5}}): r"(?s)has no gate of 3 heads of 4, such as encoder\.0\.1",
        tmp_path / "none": "does not exist",
    }
    for folder, message in wrong.items():
        with pytest.raises(InputError, match=message):
            prune(model, data, tmp_path / "run", PruneOptions((1,), ("gates",), gates=folder))
        assert not (tmp_path / "run").exists(), "nothing was measured before"
    for options in ({"prune": (1,), "strategies": ("gates",)}, {"prune": (1,), "gates": Path("run")}):
        with pytest.raises(OptionError, match="--strategies gates and --strategy-args gates=RUN belong together"):
            PruneOptions(**options)  # type: ignore[arg-type]


def test_what_is_not_known_of_a_model_is_told_before_anything_runs(
    model: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Norms, "measure", lambda *_: {})
    with pytest.raises(UnsupportedModelError, match=r"(?s)norms cannot be measured at encoder\.0.*other --strategies"):
        prune(model, data, tmp_path / "run", PruneOptions((1,), ("norm",)))
    assert not (tmp_path / "run").exists()


def test_passes_are_counted_by_the_plan_and_not_repeated(
    model: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pruning = PruneOptions((1,), ("norm", "entropy"))
    works = ablate_plan(prune_request(model, data, tmp_path / "run", pruning), Reporter()).work
    planned = [work for work in works if "attention of the heads" in work.text]
    assert [(work.kind, work.each) for work in planned] == [("forward", 1), ("forward", 1)]
    measured, names = AttentionEstimator.measured, list[str]()

    def counted(self: AttentionEstimator, removed: frozenset[Head]) -> ExampleScores:
        if len(self.examples) > 1:
            names.append(self.mean)
            if names == ["norm", "entropy_norm"]:
                raise KeyboardInterrupt
        return measured(self, removed)

    monkeypatch.setattr(AttentionEstimator, "measured", counted)
    with pytest.raises(KeyboardInterrupt):
        prune(model, data, tmp_path / "run", pruning)
    place = OutputOptions(tmp_path / "run", resume=True)
    run_ablate(replace(prune_request(model, data, tmp_path / "run", pruning), place=place))
    assert names == ["norm", "entropy_norm", "entropy_norm"], "norms were kept"

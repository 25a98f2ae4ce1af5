"""Pruning by gates from Python: what is removed, what is given back, what stays as it was."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch
from made_tasks import example, taught
from saved import build
from spread_gates import spread
from tiers import rest_slow_rows
from transformers import PreTrainedTokenizerBase

from headlens.errors import CorpusError, OptionError, UnsupportedModelError
from headlens.heads import Head
from headlens.interventions.compacting import heads_of_model
from headlens.interventions.edited_model import EditedModel
from headlens.learning.gate_options import GateOptions
from headlens.learning.gate_training import Pruned, StochasticGates, from_scratch, gate_table, gated_sites, train_gates
from headlens.learning.hyperparameters import TrainingOptions
from headlens.learning.training_set import TrainingSet
from headlens.models.loading import LoadedModel
from headlens.tasks.catalogue import CATALOGUE
from headlens.tasks.example_sources import MemoryExamples, SourceCounts
from headlens.tasks.task import Task

SHORT = TrainingOptions(steps=6, batch_tokens=200, log_every=3)


def outputs(model: Any, training_set: TrainingSet) -> torch.Tensor:
    data: Any = training_set.data
    batch = data.batch((0, 1, 2), 0)["batch"]
    with torch.no_grad():
        found: torch.Tensor = training_set.task.network(model)(**batch.inputs)[0]
    return found


@pytest.mark.parametrize(
    ("task", "kind"), rest_slow_rows([("sst2", "BertModel"), ("sst2", "AlbertModel"), ("paraphrase", "BertModel")])
)
def test_the_model_is_what_was_trained_with_gates(
    wordpiece_tokenizer: PreTrainedTokenizerBase, task: str, kind: str
) -> None:
    loaded, training_set = taught(wordpiece_tokenizer, task, kind)
    before = {name: p.clone() for name, p in loaded.model.state_dict().items()}
    found = train_gates(loaded, training_set, 0.0, GateOptions(freeze=("all",)), SHORT)
    assert found.removed == []
    assert set(found.values) == {h for s in gated_sites(loaded.model) for h in s.heads}
    gates = StochasticGates(gated_sites(training_set.task.network(loaded.model)))
    last = found.gates[found.gates["step"] == 6]
    with torch.no_grad():
        for site in gates.sites:
            own = last[(last["stack"] == site.stack) & (last["layer"] == site.layer)]["log_alpha"].tolist()
            gates.log_alpha[f"{site.stack}_{site.layer}"].copy_(torch.tensor(own))
    assert gates.values() == pytest.approx(found.values)
    with EditedModel(training_set.task.network(loaded.model), gates).eval().opened():
        expected = outputs(loaded.model, training_set)
    torch.testing.assert_close(outputs(found.model, training_set), expected, rtol=1e-5, atol=1e-5)
    assert all(torch.equal(p, before[name]) for name, p in loaded.model.state_dict().items())
    assert all(p.requires_grad for p in found.model.parameters())
    assert not found.model.training


def test_a_very_large_penalty(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    loaded, training_set = taught(wordpiece_tokenizer)
    training = TrainingOptions(steps=40, batch_tokens=200)
    found = train_gates(loaded, training_set, 1e4, training=training)
    assert len(found.removed) == 4
    assert set(found.values.values()) == {0.0}
    assert heads_of_model(found.model).removed == []
    rates = found.log["loss"]
    assert rates.iloc[-1] < 0.1 * rates.iloc[0]


def test_rows_of_gates(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    loaded, training_set = taught(wordpiece_tokenizer)
    found = train_gates(loaded, training_set, 0.1, GateOptions(gate_start=0.5), SHORT)
    assert found.gates.columns.tolist() == ["step", "stack", "layer", "head", "log_alpha", "p_open", "gate"]
    assert found.gates["step"].unique().tolist() == [0, 3, 6]
    assert len(found.gates) == 3 * 4
    assert found.log.columns.tolist() == ["step", "epoch", "loss", "learning_rate"]
    first = found.gates[found.gates["step"] == 0]
    assert first["log_alpha"].unique() == [0.5]
    assert first["gate"].iloc[0] == pytest.approx(1.2 / (1 + 2.718281828**-0.5) - 0.1, rel=1e-5)
    last = found.gates[found.gates["step"] == 6]
    heads = [Head(*row) for row in last[["stack", "layer", "head"]].itertuples(index=False)]
    assert dict(zip(heads, last["gate"], strict=True)) == found.values


def test_gates_that_are_closed_have_no_probability_left_only_far_below() -> None:
    table = gate_table({7: {Head("cross", 1, 0): -2.5, Head("cross", 1, 1): 8.0}})
    assert table["gate"].tolist() == [0.0, 1.0]
    assert table["p_open"].tolist() == pytest.approx([0.1533, 0.99985], abs=1e-4)


def test_some_parts_are_frozen(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    loaded, training_set = taught(wordpiece_tokenizer)
    found = train_gates(loaded, training_set, 0.0, GateOptions(freeze=("encoder", "embeddings")), SHORT)
    old, new = loaded.model.state_dict(), found.model.state_dict()
    changed = {name for name in old if not torch.equal(old[name], new[name]) and "attention.output.dense" not in name}
    assert changed
    assert not [name for name in changed if name.startswith(("bert.encoder", "bert.embeddings"))]


def test_gates_learn_at_a_rate_of_their_own() -> None:
    assert GateOptions().rate(10) == 0.5
    assert GateOptions().rate(480) == 0.05
    assert GateOptions(gate_learning_rate=0.2).rate(480) == 0.2


def test_from_random_weights(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    loaded, training_set = taught(wordpiece_tokenizer)
    removed = [Head("encoder", 0, 1), Head("encoder", 1, 0)]
    one, two, other = (from_scratch(loaded, training_set, removed, TrainingOptions(steps=3, seed=s)) for s in (0, 0, 1))
    assert heads_of_model(one).removed == removed
    assert type(one) is type(loaded.model)
    name = "bert.encoder.layer.0.attention.self.query.weight"
    assert one.state_dict()[name].shape == (8, 16)
    assert torch.equal(one.state_dict()[name], two.state_dict()[name])
    assert not torch.equal(one.state_dict()[name], other.state_dict()[name])
    again = LoadedModel("tiny", one, wordpiece_tokenizer, None)
    assert heads_of_model(from_scratch(again, training_set, [], TrainingOptions(steps=1))).removed == removed


def test_a_compacted_model_can_be_pruned_further(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    loaded, training_set = taught(wordpiece_tokenizer)
    once = from_scratch(loaded, training_set, [Head("encoder", 0, 1)], TrainingOptions(steps=1))
    found = train_gates(LoadedModel("tiny", once, wordpiece_tokenizer, None), training_set, 0.0, training=SHORT)
    assert set(found.values) == {Head("encoder", 0, 0), Head("encoder", 1, 0), Head("encoder", 1, 1)}
    assert heads_of_model(found.model).removed == [Head("encoder", 0, 1)]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"gates": ("lower",)}, r"--law gates 'lower' is unknown\.\nChoose one of encoder, decoder, cross\."),
        ({"penalty": "max"}, "--law penalty 'max' is unknown"),
        ({"save": "whole"}, "--training-args save 'whole' is unknown"),
        ({"gate_learning_rate": 0.0}, r"--law gate-learning-rate 0\.0 is out of range"),
        ({"gate_start": float("inf")}, "--law gate-start inf is not a finite number"),
    ],
)
def test_options_that_cannot_be(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        GateOptions(**wrong)


@pytest.mark.parametrize("strength", [-0.1, float("inf"), float("nan")])
def test_penalties_that_cannot_be(wordpiece_tokenizer: PreTrainedTokenizerBase, strength: float) -> None:
    loaded, training_set = taught(wordpiece_tokenizer)
    with pytest.raises(OptionError, match=rf"--lambdas {strength} is not a finite number of 0 or more"):
        train_gates(loaded, training_set, strength)


def test_stacks_and_models_that_cannot_be(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    loaded, training_set = taught(wordpiece_tokenizer)
    with pytest.raises(OptionError, match="--law gates cross: BertForSequenceClassification has no such heads"):
        train_gates(loaded, training_set, 0.1, GateOptions(gates=("cross",)))
    with pytest.raises(OptionError, match="--training-args freeze decoder"):
        train_gates(loaded, training_set, 0.1, GateOptions(freeze=("decoder",)))
    gated = build("Qwen3NextModel", layer_types=["full_attention"] * 2, num_hidden_layers=2)
    other = LoadedModel("tiny", gated, wordpiece_tokenizer, None)
    with pytest.raises(UnsupportedModelError, match="something else with the output of its heads"):
        train_gates(other, training_set, 0.1)


class Lossless(type(CATALOGUE["sst2"].task)):  # type: ignore[misc]
    """A task that nobody can learn."""

    loss = Task.loss

    def targets(self, *_: Any) -> dict[str, torch.Tensor]:
        return {}


def test_a_task_without_a_loss(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    loaded, _ = taught(wordpiece_tokenizer)
    task = Lossless("sst2", ("negative", "positive"), ("accuracy",))
    source = MemoryExamples(tuple(example(task, n) for n in range(6)), "made")
    with pytest.raises(OptionError, match="The model computed no loss for the task sst2"):
        train_gates(loaded, TrainingSet.of_task(loaded, task, source), 0.1)


def test_what_is_held_out(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    loaded, training_set = taught(wordpiece_tokenizer)
    task, source = training_set.task, MemoryExamples(tuple(example(training_set.task, n) for n in range(9)), "made")
    assert len(training_set.data.lengths) == 10
    assert training_set.held is not None
    assert len(training_set.held.examples) == 10
    assert TrainingSet.of_task(loaded, task, source, None).held is None
    given = TrainingSet.of_task(loaded, task, source, training_set.held)
    assert given.held == training_set.held
    assert training_set.task.reported == ("accuracy",)
    with pytest.raises(CorpusError, match="none of its 5 examples can be used"):
        TrainingSet.of_task(loaded, task, source, longest=2)
    before = SourceCounts(unlabelled=4, too_short=2)
    facts = TrainingSet.of_task(loaded, task, source, training_set.held, counts=before).facts["data"]
    assert (facts["rows"], facts["unlabelled"], facts["too_short"], facts["examples"]) == (15, 4, 2, 9)


def test_removed_are_the_gates_that_are_zero() -> None:
    model = build("BertModel")
    values = spread(StochasticGates(gated_sites(model))).values()
    found = Pruned(model, values, pd.DataFrame())
    assert found.removed == [h for h in values if values[h] == 0]
    assert found.removed

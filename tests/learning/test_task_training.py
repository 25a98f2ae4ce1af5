"""A task as the training loop sees it: losses add up, evaluations agree with `evaluate`, processes with each other."""

from __future__ import annotations

import copy
import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import made_tasks
import numpy as np
import pytest
import torch
from made_tasks import example
from saved import build
from tiers import rest_slow
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from headlens.analyses.training.options import FineTuneRequest
from headlens.errors import CorpusError, OptionError
from headlens.learning.hyperparameters import TrainingOptions
from headlens.learning.loop import Trainer
from headlens.learning.training_run import score
from headlens.learning.training_set import TaskForward, TaskRows, freeze_unused, hold_out, task_evaluation
from headlens.models.loading import LoadedModel
from headlens.tasks.catalogue import CATALOGUE
from headlens.tasks.evaluation import EvaluationOptions, evaluate
from headlens.tasks.example_sources import MemoryExamples, SourceCounts
from headlens.tasks.examples import TextExample
from headlens.tasks.task import Task
from headlens.tasks.task_heads import with_task_head
from headlens.tasks.task_options import TaskData


def rows_of(task: Task, tokenizer: PreTrainedTokenizerBase, count: int = 12, name: str = "BertModel") -> Any:
    """A model with its head, and examples for it; in double precision, without dropout."""
    model = build(name, len(tokenizer), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    loaded = LoadedModel("tiny", model, tokenizer, None)
    loaded = LoadedModel("tiny", with_task_head(loaded, task, 0).model.double(), tokenizer, None)
    source = MemoryExamples(tuple(example(task, n) for n in range(count)), "made")
    return loaded, TaskRows.of(TaskForward.of(task, loaded, 30), source)


TASKS = [task for task in made_tasks.TASKS.values() if task.head not in ("seq2seq-lm", "causal-lm")]


# One task for each kind of head and of texts.
KINDS = [t for t in TASKS if t.name in ("sst2", "mnli", "stsb", "paraphrase", "similarity", "mlm", "swag", "squad2")]


@pytest.mark.parametrize("task", rest_slow(TASKS, KINDS), ids=lambda t: t.name)
def test_losses_add_up_and_evaluations_agree(task: Task, wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    loaded, rows = rows_of(task, wordpiece_tokenizer)
    network, objective = task.network(loaded.model), rows.task_forward
    indices = tuple(range(len(rows.prepared)))
    whole = rows.batch(indices, 0)
    apart = [rows.batch((i,), 3) for i in indices]
    assert objective.units(whole) == sum(map(objective.units, apart))
    total = sum(float(objective.loss(network, part).detach()) for part in apart)
    assert float(objective.loss(network, whole).detach()) == pytest.approx(total, rel=1e-6)
    assert rows.lengths == [sum(max(len(r.ids) for r in p.rows) for _ in p.rows) for p in rows.prepared]
    found = task_evaluation(rows, 100)(network)
    assert found["loss"] == pytest.approx(total / objective.units(whole), rel=1e-6)
    expected = evaluate(task, loaded, rows.examples, EvaluationOptions(max_length=30, replicates=0))
    assert {name: found[name] for name in task.metrics} == pytest.approx(
        {name: e.value for name, e in expected.metrics.items()}, rel=1e-6, nan_ok=True
    )


def test_what_a_loss_does_not_need_is_left_alone(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    loaded, rows = rows_of(CATALOGUE["similarity"].task, wordpiece_tokenizer)
    freeze_unused(loaded.model, rows.task_forward, rows.batch((0, 1), 0))
    frozen = {name for name, p in loaded.model.named_parameters() if not p.requires_grad}
    assert frozen == {"pooler.dense.weight", "pooler.dense.bias"}
    assert all(p.grad is None for p in loaded.model.parameters())


@pytest.mark.slow
def test_a_classifier_learns(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    loaded, rows = rows_of(CATALOGUE["sst2"].task, wordpiece_tokenizer, 20)
    before = task_evaluation(rows, 1000)(loaded.model)
    options = TrainingOptions(steps=60, batch_tokens=200, learning_rate=1e-2)
    Trainer(options, rows.task_forward).fit(loaded.model, rows)
    after = task_evaluation(rows, 1000)(loaded.model)
    assert after["loss"] < 0.3 * before["loss"]
    assert after["accuracy"] == 1


def test_evaluations_after_training_are_in_full_precision(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    loaded, rows = rows_of(CATALOGUE["sst2"].task, wordpiece_tokenizer)
    model = loaded.model.float()
    Trainer(TrainingOptions(steps=2, precision="bf16"), rows.task_forward).fit(model, rows)
    again = copy.deepcopy(model)
    inputs = rows.task_forward.batch(rows.prepared).inputs
    with torch.no_grad():
        found = model(**inputs).logits
        expected = type(again).forward(again, **inputs).logits
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


TWO = """
import sys, warnings
warnings.simplefilter("ignore")
sys.path[:0] = {paths!r}
import torch
from torch import distributed
from test_task_training import trained
distributed.init_process_group("gloo")
state, model = trained({name!r}, {place!r}, 1)
torch.save([state.log, model.state_dict()], f"{out}/{{distributed.get_rank()}}.pt")
distributed.destroy_process_group()
"""


def trained(name: str, tokenizer: str, accumulate: int) -> tuple[Any, PreTrainedModel]:
    """Three updates of a task, as one of several processes or alone."""
    task = CATALOGUE[name].task
    loaded, rows = rows_of(task, AutoTokenizer.from_pretrained(tokenizer), 24)
    network, objective = task.network(loaded.model), rows.task_forward
    freeze_unused(network, objective, rows.batch((0,), 0))
    # So small that three updates end before the epoch does, whose last update may be another one.
    options = TrainingOptions(steps=3, batch_tokens=20, accumulate=accumulate, learning_rate=1e-2, log_every=1)
    return Trainer(options, objective).fit(network, rows), loaded.model


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sst2", "similarity"])
def test_two_processes_are_one_with_twice_the_batches(
    tmp_path: Path, wordpiece_tokenizer: PreTrainedTokenizerBase, name: str
) -> None:
    place, here = tmp_path / "tokenizer", Path(__file__).parent
    wordpiece_tokenizer.save_pretrained(place)
    code = TWO.format(
        paths=[str(here), str(here.parent), str(here.parents[1])], name=name, place=str(place), out=tmp_path
    )
    (tmp_path / "two.py").write_text(code)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(tmp_path / "two.py")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    expected, model = trained(name, str(place), 2)
    for rank in range(2):
        log, weights = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for row, own in zip(expected.log, log, strict=True):
            assert own == pytest.approx(row, rel=1e-7)
        for key, tensor in model.state_dict().items():
            torch.testing.assert_close(weights[key], tensor, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("share", "held"), [(0.25, [3, 7, 11]), (0.05, None), (0.0, None)])
def test_what_is_held_out(share: float, held: list[int] | None) -> None:
    source = MemoryExamples(tuple(TextExample(str(n), (str(n),), 0.0) for n in range(13)), "made")
    kept, dev = hold_out(source, share)
    assert (dev is None) == (held is None)
    numbers = [] if dev is None else [int(e.id) for e in dev.examples]
    assert numbers == (held or [])
    assert [int(e.id) for e in kept.examples] == [n for n in range(13) if n not in numbers]
    assert kept.name == "made"


def test_counts_of_what_was_left_out(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    task = CATALOGUE["sst2"].task
    loaded, _ = rows_of(task, wordpiece_tokenizer)
    texts = ["a cat", "the cat " * 20, "no"]
    source = MemoryExamples(tuple(TextExample(str(i), (t,), 1.0) for i, t in enumerate(texts)), "made")
    summary = TaskRows.of(TaskForward.of(task, loaded), source, SourceCounts(unlabelled=4, too_short=2)).summary
    counts = summary.rows, summary.unlabelled, summary.too_short, summary.too_long, summary.examples
    assert counts == (9, 4, 2, 1, 2)
    with pytest.raises(CorpusError, match=r"made: none of its 3 examples can be used: .* 2 tokens"):
        TaskRows.of(TaskForward.of(task, loaded, 2), source)


def test_better_by_the_main_metric() -> None:
    up = partial(score, main="accuracy", higher_is_better=True)
    assert up({"loss": 1.0, "accuracy": 0.5}) > up({"loss": 0.1, "accuracy": 0.4})
    assert score({"loss": 0.1, "accuracy": 0.4}) > score({"loss": 1.0, "accuracy": 0.5})
    assert up({"accuracy": math.nan}) == -math.inf < up({"accuracy": -1.0})
    assert np.isfinite(score({"loss": 3.0}))


@pytest.mark.parametrize("task", ["mlm", "translation", "translation-loss"])
def test_tasks_of_text(task: str) -> None:
    with pytest.raises(OptionError, match=f"--task {task} is not trained on examples"):
        FineTuneRequest(TaskData(task))


def test_shares_that_cannot_be() -> None:
    with pytest.raises(OptionError, match=r"--data-args dev-share 0\.95 is out of range"):
        FineTuneRequest(TaskData("sst2"), dev_share=0.95)

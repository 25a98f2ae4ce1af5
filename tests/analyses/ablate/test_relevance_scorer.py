"""Heads pruned by their relevance: measured on the examples, and as another run measured it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from made_judges import judge, prune_request
from made_tasks import TASKS, given_examples
from saved import build, save
from tiers import rest_slow
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from headlens.analyses.ablate.options import PruneOptions
from headlens.analyses.ablate.pruning_strategies import STRATEGY_ENTRIES, StrategySettings
from headlens.analyses.ablate.recipe import AblateRun, run_ablate
from headlens.analyses.ablate.recorded_scores import RecordedRelevance
from headlens.analyses.ablate.scorers import ImportanceScorer, RelevanceEstimator, task_target
from headlens.analyses.relevance.options import RelevanceRequest
from headlens.analyses.relevance.recipe import run_relevance
from headlens.attention.sites import find_sites
from headlens.errors import InputError, OptionError, UnsupportedModelError
from headlens.heads import Head
from headlens.models.loading import LoadedModel, load
from headlens.relevance_propagation import relevance_session
from headlens.relevance_propagation.relevance_session import RelevanceSession
from headlens.relevance_propagation.targets import Target
from headlens.runs.folder import RunFolder
from headlens.shared_options import OutputOptions
from headlens.tasks.example_sources import MemoryExamples
from headlens.tasks.examples import TextExample
from headlens.tasks.open_task import open_examples
from headlens.tasks.task_examples import Examples, ranking_part
from headlens.tasks.task_options import TaskData

HEADS = [Head("encoder", layer, head) for layer in range(2) for head in range(2)]
A, B, C, D = HEADS
# By size D, A, C, B; the sign does not count, nor what a head has of its layer.
RAW = {A: -0.2, B: 3.0, C: 1.0, D: 0.1}
KINDS = ("sst2", "stsb", "paraphrase", "similarity", "mlm", "swag", "squad", "translation-loss")


def measured(folder: Path, model: str, raw: Mapping[Head, float], **facts: Any) -> Path:
    """A run that measured the relevance of a model by hand."""
    rows = [("judge", *head, 0.5, value) for head, value in raw.items()]
    frame = pd.DataFrame(rows, columns=["model", "stack", "layer", "head", "relevance", "raw"])
    frame = frame.assign(ci_low=0.4, ci_high=0.6, rule="epsilon", target="predicted")
    with RunFolder.create(folder, command="relevance", model="judge") as run:
        run.start({"arguments": {}})
        run.table("relevance", frame)
        record = {"model": "judge", "weight_hash": load(model).weight_hash} | facts
        run.finish({"models": [record], "corpus": {"name": "other.txt"}, "notes": []})
    return folder


def prune(model: str, data: str, folder: Path, **settings: Any) -> AblateRun:
    return run_ablate(prune_request(model, data, folder, PruneOptions((1, 2, 3), ("relevance",), **settings)))


def removed(run: AblateRun) -> list[set[str]]:
    table = run.tables["pruning"]
    assert table["strategy"].tolist() == ["none", *["relevance"] * 3]
    return [set(str(names).split()) for names in table["removed"].iloc[1:]]


def test_the_least_relevant_heads_go_first_whatever_their_sign() -> None:
    scorer = ImportanceScorer(RecordedRelevance({h: abs(v) for h, v in RAW.items()}, "by hand"), normalize=False)
    strategy = STRATEGY_ENTRIES["relevance"].make(StrategySettings(scorer, 1, 0))
    assert [choice.removed[-1] for choice in strategy.choices(HEADS, 4)] == [D, A, C, B]
    assert scorer.without(frozenset({D}), [A, B]) == {A: -0.2, B: -3.0}


def test_a_run_that_measured_the_model_is_gone_by(model: str, data: str, tmp_path: Path) -> None:
    folder = measured(tmp_path / "relevance", model, RAW)
    found = prune(model, data, tmp_path / "run", relevance=folder)
    assert removed(found) == [{str(D)}, {str(D), str(A)}, {str(D), str(A), str(C)}]
    (note,) = [note for note in found.notes if "`relevance` used" in note]
    assert f"{folder} (rule epsilon, target predicted on other.txt)" in note


@pytest.mark.slow
def test_heads_are_measured_on_the_examples_that_they_are_chosen_on(model: str, data: str, tmp_path: Path) -> None:
    """As `headlens relevance` measures the same sentences: another reader, another target option, another average."""
    task, source = open_examples(TaskData("sst2", (data,)))
    examples = Examples.of(task, source, load(model))
    part = examples.part(ranking_part(examples.keys, 0.5, 0))
    sentences = tmp_path / "part.txt"
    sentences.write_text("\n".join(p.example.texts[0] for p in part.prepared) + "\n", encoding="utf-8")  # type: ignore[union-attr]
    folder = tmp_path / "relevance"
    run_relevance(RelevanceRequest(model, str(sentences), compare=(), figures=False, place=OutputOptions(folder)))
    recorded = RecordedRelevance.of(folder, load(model), tuple(HEADS))
    own = RelevanceEstimator(load(model).model, part, None, print)(frozenset())
    assert own == pytest.approx(recorded(frozenset()), rel=1e-4)
    here = prune(model, data, tmp_path / "here")
    assert removed(here) == removed(prune(model, data, tmp_path / "there", relevance=folder))
    order = sorted(HEADS, key=lambda head: own[head])
    assert removed(here) == [{str(h) for h in order[:size]} for size in (1, 2, 3)]
    assert [n for n in here.notes if "`relevance` used rule epsilon, target predicted" in n]


def test_a_head_without_output_goes_first(
    wordpiece_tokenizer: PreTrainedTokenizerBase, data: str, tmp_path: Path
) -> None:
    loaded = judge(wordpiece_tokenizer)
    network: Any = loaded.model
    with torch.no_grad():
        network.base_model.encoder.layer[1].attention.output.dense.weight[:, 8:] = 0.0
    path = save(loaded.model, tmp_path / "idle", wordpiece_tokenizer)
    assert removed(prune(path, data, tmp_path / "run"))[0] == {str(D)}


@pytest.mark.parametrize("name", rest_slow(KINDS, ("sst2", "mlm", "squad")))
def test_every_task_has_its_target(name: str, wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    """Each example alone, in double precision, against all in batches of several."""
    loaded = judge(wordpiece_tokenizer, name)
    model = loaded.model.double()
    examples = given_examples(TASKS[name], model, wordpiece_tokenizer, 6)
    task = examples.task
    found = RelevanceEstimator(model, examples, 200, print)(frozenset())
    sums: dict[Head, list[float]] = {}
    with RelevanceSession(task.network(model), task_target(task, examples.reader)) as session:
        for prepared in examples.prepared:
            batch = task.collate([prepared], examples.reader, "cpu")
            for site, raw in session.relevance({**batch.inputs, **task.arguments(model)}).raw.items():
                for head, values in zip(site.heads, raw.T, strict=True):
                    sums.setdefault(head, []).extend(values.tolist())
    assert found == pytest.approx({head: abs(np.mean(values)) for head, values in sums.items()}, rel=1e-9, abs=1e-12)
    assert {*found} == {head for site in find_sites(task.network(model)) for head in site.heads}
    assert sum(value > 0 for value in found.values()) == len(found)


@dataclass(frozen=True)
class From(Target):
    """The largest logits from one position of a row to another."""

    first: int
    end: int | None
    name = "by hand"

    def parts(self, outputs: Any, inputs: Any) -> Tensor:
        top: Tensor = outputs.logits.amax(dim=-1)
        places = torch.arange(top.shape[1])
        return top * ((places >= self.first) & (places < (self.end or top.shape[1])))


TEXTS: dict[str, list[tuple[str, ...]]] = {
    "causal-lm": [("She took the cat.",), ("A long day for all of them, and no rain.",)],
    "minimal-pairs": [("The cats sleep on.", "The cats sleeps on the table."), ("A long day", "A long days")],
    "cloze": [("She took", "the old cat.", "a table"), ("A long day for", "them", "all of them")],
    "logit-difference": [("She took the", " a", " t"), ("The cats sleep on", " t", " a")],
}


@pytest.mark.parametrize("kind", ["GPT2LMHeadModel", "LlamaForCausalLM"])
@pytest.mark.parametrize("name", TEXTS)
def test_relevance_of_a_decoder_starts_where_its_task_reads(
    name: str, kind: str, bytebpe_tokenizer: PreTrainedTokenizerBase
) -> None:
    """Decoders give the logits alone that a task reads, and were said to give none for every token."""
    loaded = LoadedModel("tiny", build(kind, len(bytebpe_tokenizer)), bytebpe_tokenizer, None)
    model, task = loaded.model, TASKS[name]
    choices = {"minimal-pairs", "cloze"}
    source = MemoryExamples(
        tuple(TextExample(str(i), texts, 0 if name in choices else None) for i, texts in enumerate(TEXTS[name])), "made"
    )
    examples = Examples.of(task, source, loaded)
    expected: dict[Head, list[float]] = {}
    for prepared in examples.prepared:
        ids = [list(row.ids) for row in prepared.rows]
        # What all candidates begin with is read alike, unless nothing else is left; of a prompt the last token is read.
        last = min(map(len, ids)) - 1
        same = next((i for i, several in enumerate(zip(*ids, strict=False)) if len({*several}) > 1), last) - 1
        for row in ids:
            first = {"causal-lm": 0, "logit-difference": len(row) - 1}.get(name, same)
            with RelevanceSession(model, From(first, None if name == "logit-difference" else len(row) - 1)) as session:
                for site, raw in session.relevance({"input_ids": torch.tensor([row])}).raw.items():
                    for head, value in zip(site.heads, raw[0].tolist(), strict=True):
                        expected.setdefault(head, []).append(value)
    found = RelevanceEstimator(model, examples, 200, print)(frozenset())
    assert found == pytest.approx({head: abs(np.mean(v)) for head, v in expected.items()}, rel=1e-3, abs=1e-6)
    assert sum(value > 0 for value in found.values()) == len(found)


def test_masked_words_need_a_mask(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    loaded = judge(wordpiece_tokenizer, "mlm")
    own = copy.deepcopy(wordpiece_tokenizer)  # that of the fixture serves other tests, too
    reader = given_examples(TASKS["mlm"], loaded.model, own, 3).reader
    assert task_target(TASKS["mlm"], reader).name == "masked"
    reader.tokenizer.mask_token = None
    with pytest.raises(OptionError, match="has no mask token"):
        task_target(TASKS["mlm"], reader)


def test_a_run_of_other_weights_or_heads_is_refused(model: str, data: str, tmp_path: Path) -> None:
    other = measured(tmp_path / "other", model, RAW, weight_hash="0")
    some = measured(tmp_path / "some", model, {A: 1.0, B: np.nan})
    with RunFolder.create(tmp_path / "empty", command="classify", model="judge") as run:
        run.start({"arguments": {}})
        run.finish({"models": [], "notes": []})
    wrong = {
        other: r"(?s)measured judge, whose weights are not those of .*judge.*headlens relevance",
        some: r"(?s)no raw relevance of 3 heads of 4, such as encoder\.0\.1.*leave --strategy-args relevance out",
        tmp_path / "empty": r"(?s)is not a finished run that measured relevance.*headlens classify --relevance",
        tmp_path / "none": "does not exist",
    }
    for folder, message in wrong.items():
        with pytest.raises(InputError, match=message):
            prune(model, data, tmp_path / "run", relevance=folder)
        assert not (tmp_path / "run").exists(), "nothing was measured before"
    damaged = measured(tmp_path / "damaged", model, RAW)
    table = (damaged / "relevance.csv").read_text().replace("3.0", "many")
    (damaged / "relevance.csv").write_text(table)
    with pytest.raises(InputError, match=r"relevance\.csv:3: column raw holds 'many'"):
        RecordedRelevance.of(damaged, load(model), tuple(HEADS))


def test_a_run_is_asked_for_with_the_strategy_alone() -> None:
    for options in ({"strategies": ("ranked",), "prune": (3,)}, {}):
        with pytest.raises(
            OptionError,
            match=r"(?s)--strategy-args relevance applies to the strategy relevance.*--strategies relevance",
        ):
            PruneOptions(**options, relevance=Path("run"))


def test_a_model_without_rules_is_told_before_anything_runs(
    model: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UnsupportedModelError("There is no relevance rule for this.", "Another advice.")

    monkeypatch.setattr(relevance_session.RelevanceSession, "relevance", refuse)
    with pytest.raises(
        UnsupportedModelError, match=r"(?s)--strategies relevance: There is no relevance rule.*--rule gradxact"
    ):
        prune(model, data, tmp_path / "run")
    assert not (tmp_path / "run").exists()

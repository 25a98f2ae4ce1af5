"""Masks learned from Python: what is given back, what stays as it was, and the files that hold them."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from made_tasks import taught
from tiers import rest_slow_rows
from transformers import PreTrainedTokenizerBase

from headlens.analyses.dam.options import DamRequest
from headlens.analyses.masks.cases import MaskCase
from headlens.analyses.masks.options import DegreeOptions, StudyRequest
from headlens.analyses.masks.study import learning
from headlens.analyses.masks.text_graphs import StudyTexts
from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites
from headlens.attention_masks.attention_mask import AttentionMask
from headlens.attention_masks.attention_mask_edit import MaskEdit
from headlens.attention_masks.learned_mask import LearnedAttentionMask, LearnedMaskOptions, masked_sites
from headlens.attention_masks.mask_distributions import GumbelSigmoid
from headlens.attention_masks.named_masks import LearnedDegrees
from headlens.errors import OptionError, ResumeError
from headlens.heads import Head
from headlens.interventions.compacting import compact_model
from headlens.interventions.edited_model import EditedModel
from headlens.learning.hyperparameters import TrainingOptions
from headlens.learning.mask_learning import (
    LearnedMask,
    LearnedMaskResult,
    MaskLearningOptions,
    hard,
    learn_mask,
    load_mask,
    save_mask,
)
from headlens.learning.training_set import TaskRows, TrainingSet

SHORT = TrainingOptions(steps=6, batch_tokens=200, log_every=3)
SMALL = MaskLearningOptions(LearnedMaskOptions(40, structured=True))


def outputs(found: LearnedMaskResult, training_set: TrainingSet) -> torch.Tensor:
    data: Any = training_set.data
    batch = data.batch((0, 1, 2), 0)["batch"]
    with torch.no_grad():
        made: torch.Tensor = training_set.task.network(found.model)(**batch.inputs)[0]
    return made


@pytest.mark.parametrize(
    ("task", "kind"),
    rest_slow_rows(
        [("sst2", "BertModel"), ("sst2", "AlbertModel"), ("paraphrase", "BertModel"), ("swag", "BertModel")], 2
    ),
)
def test_model_and_mask_are_trained_together(
    wordpiece_tokenizer: PreTrainedTokenizerBase, task: str, kind: str
) -> None:
    loaded, training_set = taught(wordpiece_tokenizer, task, kind)
    before = {name: p.clone() for name, p in loaded.model.state_dict().items()}
    found = learn_mask(loaded, training_set, 0.01, SMALL, SHORT)
    assert all(torch.equal(p, before[name]) for name, p in loaded.model.state_dict().items())
    assert any(not torch.equal(p, before[name]) for name, p in found.model.state_dict().items())
    assert float(found.mask.alpha.detach().abs().max()) > 0.5
    assert found.log["step"].tolist() == [3, 6]
    assert {"loss", "sparsity", "undecided", "temperature"} <= set(found.log)
    plain = outputs(found, training_set)
    with found.hardened():
        assert not torch.allclose(outputs(found, training_set), plain, atol=1e-5)
    assert torch.equal(outputs(found, training_set), plain)


@pytest.mark.parametrize(
    "options",
    [
        SMALL,
        MaskLearningOptions(LearnedMaskOptions(40, diagonal=False), window=2),
        MaskLearningOptions(LearnedMaskOptions(40, per_layer=True), layers="last:1"),
    ],
)
def test_importance_is_followed_over_the_training(
    wordpiece_tokenizer: PreTrainedTokenizerBase, options: MaskLearningOptions
) -> None:
    """From α near 0 to what the table of positions says in the end."""
    loaded, training_set = taught(wordpiece_tokenizer)
    found = learn_mask(loaded, training_set, 0.01, options, SHORT)
    by_step = found.importance.pivot_table(index="step", columns="class", values="p")
    assert by_step.index.tolist() == [0, 3, 6]
    structured, diagonal = options.mask.structured, options.mask.diagonal
    start = {"special": 0.5} if not structured else {}
    start |= {"diagonal": 0.5} if diagonal else {}
    start |= {"neighbourhood": 0.5, "rest": 0.5}
    assert by_step.loc[0].to_dict() == pytest.approx(start, abs=1e-3)
    last = LearnedMask.of("mask", found.mask).positions(options.window, training_set.learned_lengths)
    means = last.groupby("class")["p"].mean().drop("offset").dropna()
    assert by_step.loc[6].to_dict() == pytest.approx(means.to_dict())
    assert not set(found.importance["class"]) & set(found.log)


@pytest.mark.parametrize("task", ["sst2", "paraphrase", "swag"])
def test_every_row_of_an_example_is_a_text_that_is_learned(
    wordpiece_tokenizer: PreTrainedTokenizerBase, task: str
) -> None:
    """Not the longest alone: the others have fewer tokens, of which the larger distances learn nothing."""
    _, training_set = taught(wordpiece_tokenizer, task)
    assert isinstance(training_set.data, TaskRows)
    lengths = [len(row.ids) for example in training_set.data.prepared for row in example.rows]
    assert sorted(training_set.learned_lengths.elements()) == sorted(lengths)
    assert training_set.longest == max(lengths)
    assert (len(lengths) > len(training_set.data.prepared)) == (task != "sst2")


def test_the_same_seed_learns_the_same(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    loaded, training_set = taught(wordpiece_tokenizer)
    one, two = (learn_mask(loaded, training_set, 0.01, SMALL, SHORT) for _ in range(2))
    assert torch.equal(one.mask.alpha, two.mask.alpha)
    other = learn_mask(loaded, training_set, 0.01, SMALL, TrainingOptions(steps=6, batch_tokens=200, seed=1))
    assert not torch.equal(one.mask.alpha, other.mask.alpha)


def test_frozen_models_learn_the_mask_alone(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    loaded, training_set = taught(wordpiece_tokenizer)
    found = learn_mask(loaded, training_set, 0.01, MaskLearningOptions(SMALL.mask, freeze=("all",)), SHORT)
    assert all(torch.equal(p, dict(loaded.model.named_parameters())[n]) for n, p in found.model.named_parameters())
    assert all(p.requires_grad for p in found.model.parameters())
    assert float(found.mask.alpha.detach().abs().max()) > 0.5


def test_a_stronger_penalty_masks_more(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    loaded, training_set = taught(wordpiece_tokenizer)
    weak, strong = (learn_mask(loaded, training_set, s, SMALL, SHORT) for s in (0.0, 10.0))
    assert strong.log["sparsity"].iloc[-1] > weak.log["sparsity"].iloc[-1] + 0.1
    # All but the first and last row and column is masked.
    assert strong.log["sparsity"].iloc[-1] == pytest.approx(38**2 / 40**2)


@pytest.mark.parametrize("form", ["additive", "multiplicative"])
def test_the_final_mask_is_0_or_1(wordpiece_tokenizer: PreTrainedTokenizerBase, form: Any) -> None:
    loaded, training_set = taught(wordpiece_tokenizer)
    options = MaskLearningOptions(LearnedMaskOptions(40, form=form), GumbelSigmoid(2.0, straight_through=False))
    found = learn_mask(loaded, training_set, 0.0, options, SHORT)
    last = hard(found.mask)
    last.draw()
    assert set(last.values.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(last.kept(), found.mask.kept())
    with found.hardened():
        assert torch.equal(outputs(found, training_set), outputs(found, training_set))


def test_noise_that_is_always_drawn(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    """For every pass anew, and the same whenever the model is measured."""
    loaded, training_set = taught(wordpiece_tokenizer)
    found = learn_mask(loaded, training_set, 0.0, MaskLearningOptions(LearnedMaskOptions(40, noise="always")), SHORT)
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    with found.hardened():
        one, two = (outputs(found, training_set) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not torch.equal(one, two)
    with found.hardened():
        assert torch.equal(outputs(found, training_set), one)


DEGREES = list(product(["BertModel", "AlbertModel"], ["heads", "layers"], [None, "last:1"]))


@pytest.mark.parametrize(
    ("kind", "degrees_of", "layers"),
    rest_slow_rows(DEGREES, [("AlbertModel", "heads", "last:1"), ("BertModel", "layers", None)]),
)
def test_the_file_of_learned_degrees_is_their_final_mask(
    wordpiece_tokenizer: PreTrainedTokenizerBase, kind: str, degrees_of: Any, layers: str | None
) -> None:
    loaded, training_set = taught(wordpiece_tokenizer, kind=kind)
    degrees = DegreeOptions((1.0,), 5, degrees_of)
    case = MaskCase(LearnedDegrees(1.0), layers=layers)
    options, scope = learning(case, StudyRequest(degrees=degrees), StudyTexts({12: 1}, {}), 40)
    found = learn_mask(loaded, training_set, 1.0, options, SHORT, scope=scope)
    with torch.no_grad():
        found.mask.alpha.normal_(generator=torch.Generator().manual_seed(1))
    ids = torch.randint(5, 50, (2, 30), generator=torch.Generator().manual_seed(2))

    def states() -> torch.Tensor:
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        return found.model(**given, output_hidden_states=True).hidden_states[-1].detach()

    plain = states()
    with EditedModel(training_set.task.network(found.model), hard(found.mask)).eval().opened():
        expected = states()
    with found.hardened():
        # What is masked while degrees are learned keeps a millionth.
        torch.testing.assert_close(states(), expected, atol=1e-5, rtol=1e-5)
    assert float((plain - expected).abs().max()) > 1e-3


SHARED = list(product(["BertModel", "AlbertModel"], [True, False], [True, False]))


@pytest.mark.parametrize(
    ("kind", "structured", "per_layer"),
    rest_slow_rows(SHARED, [("AlbertModel", True, True), ("BertModel", False, False)]),
)
def test_the_mask_of_a_file_is_the_final_one(
    wordpiece_tokenizer: PreTrainedTokenizerBase, kind: str, *, structured: bool, per_layer: bool
) -> None:
    loaded, training_set = taught(wordpiece_tokenizer, kind=kind)
    options = MaskLearningOptions(LearnedMaskOptions(40, structured=structured, per_layer=per_layer))
    found = learn_mask(loaded, training_set, 0.02, options, SHORT)
    with torch.no_grad():
        found.mask.alpha.normal_(generator=torch.Generator().manual_seed(1))
    with EditedModel(training_set.task.network(found.model), hard(found.mask)).eval().opened():
        expected = outputs(found, training_set)
    with found.hardened():
        torch.testing.assert_close(outputs(found, training_set), expected, atol=1e-5, rtol=1e-4)


def test_layers_keep_their_numbers_where_one_lost_its_heads(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    loaded, _ = taught(wordpiece_tokenizer)
    small = loaded.model
    compact_model(small, [Head("encoder", 0, 0), Head("encoder", 0, 1)])
    mask = LearnedAttentionMask(masked_sites(small), LearnedMaskOptions(8, per_layer=True))
    with torch.no_grad():
        mask.alpha.fill_(-9.0)
    kept = LearnedMask.of("m", mask).file.allowed
    assert len(kept) == 2
    assert kept[0].all()
    assert not kept[1].any()
    AttentionMask(kept)
    MaskEdit(LearnedMask.of("m", mask).file).check(find_sites(small))


def test_a_file_holds_what_was_learned(tmp_path: Path, wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    loaded, training_set = taught(wordpiece_tokenizer)
    found = learn_mask(loaded, training_set, 0.01, SMALL, SHORT)
    learned = LearnedMask.of("penalty-0.01", found.mask)
    save_mask(tmp_path / "own" / "mask.safetensors", learned, found)
    again = load_mask(tmp_path / "own")
    assert torch.equal(again.file.allowed, learned.file.allowed)
    torch.testing.assert_close(again.probabilities, learned.probabilities)
    assert (again.file.name, again.file.ends, again.file.diagonal) == ("penalty-0.01", True, True)
    file = AttentionMask.load(tmp_path / "own")
    assert (file.sha256, file.name) == (learned.file.sha256, "penalty-0.01")
    assert file.metadata == {"form": "additive", "n": "40", "task": "sst2"}
    (tmp_path / "own" / "mask.safetensors").unlink()
    with pytest.raises(ResumeError, match="no longer has a readable mask"):
        load_mask(tmp_path / "own")


def test_texts_longer_than_the_mask_are_refused(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    loaded, training_set = taught(wordpiece_tokenizer)
    with pytest.raises(OptionError, match="longer than the mask of 3"):
        learn_mask(loaded, training_set, 0.01, MaskLearningOptions(LearnedMaskOptions(3)), SHORT)
    assert not hasattr(loaded.model, "_headlens_link")
    with AttentionSession(loaded.model):
        pass


@pytest.mark.parametrize(
    ("kind", "wrong", "message"),
    [
        (MaskLearningOptions, {"penalty": "other"}, "--law penalty other is unknown"),
        (MaskLearningOptions, {"mask_learning_rate": 0.0}, r"--law mask-learning-rate 0\.0 is not a positive number"),
        (DamRequest, {"lambdas": ()}, r"No penalty was given\.\nName some with --lambdas"),
        (DamRequest, {"lambdas": (-1.0,)}, r"--lambdas -1\.0 is out of range"),
        (DamRequest, {"window": 0}, "window 0 is out of range"),
        (
            DamRequest,
            {"model": "new:bert-tiny"},
            r"new:bert-tiny: a new model can only be trained on masked tokens\.\nGive --task mlm",
        ),
    ],
)
def test_options_that_cannot_be(kind: Any, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        kind(**wrong)

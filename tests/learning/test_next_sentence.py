"""Halves of text that follow each other or do not, and the loss of telling which."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from saved import build
from torch import nn

from headlens.analyses.training.recipe import _known_of_held_out
from headlens.corpora.batches import IGNORED
from headlens.corpora.sources import demo_corpus
from headlens.errors import CorpusError, OptionError
from headlens.learning.new_models import wordpiece_tokenizer
from headlens.learning.objectives import NEXT, MaskedTokenLoss
from headlens.learning.text_training import evaluation
from headlens.learning.training_options import TextOptions
from headlens.learning.training_text import CausalText, MaskedText, TextHalves, order_of, read_halves

TEXTS = [example.source.text for example in demo_corpus()]
MASK, CLS, SEP = 1, 2, 3
FRAME = tuple(np.array([i], dtype=np.int64) for i in (CLS, SEP, SEP))


def halves(sizes: list[int], order: Any, seed: int = 0) -> TextHalves:
    """Blocks whose tokens are 100 times the number of the block, and count on."""
    blocks = [100 * (number + 1) + np.arange(size, dtype=np.int64) for number, size in enumerate(sizes)]
    masking = MaskedText((), MASK, frozenset({MASK, CLS, SEP}), 5000, share=0.3, seed=seed)
    return TextHalves(blocks, masking, FRAME, order)  # type: ignore[arg-type]


def unmasked(batch: dict[str, Any]) -> torch.Tensor:
    labels = batch["labels"]
    return torch.where(labels == IGNORED, batch["input_ids"], labels)


@given(
    count=st.integers(2, 6), size=st.integers(2, 9), last=st.integers(2, 9), seed=st.integers(0, 99),
    epoch=st.integers(0, 3), order=st.sampled_from(["random", "swapped"]),
)  # fmt: skip
def test_a_second_half_follows_or_does_not(count: int, size: int, last: int, seed: int, epoch: int, order: str) -> None:
    data = halves([size] * (count - 1) + [min(last, size)], order, seed)
    batch = data.batch(tuple(range(count)), epoch)
    for number, (row, real, segments, other) in enumerate(
        zip(unmasked(batch), batch["attention_mask"], batch["token_type_ids"], batch[NEXT], strict=True)
    ):
        ids = row[real.bool()].tolist()
        between = ids.index(SEP)
        first, second = ids[1:between], ids[between + 1 : -1]
        assert (ids[0], ids[-1]) == (CLS, SEP)
        assert segments[real.bool()].tolist() == [0] * (between + 1) + [1] * (len(second) + 1)
        own = data.blocks[number].tolist()
        middle = len(own) // 2
        assert len(ids) <= data.lengths[number] == len(own) + 3
        if not other:
            assert (first, second) == (own[:middle], own[middle:])
        elif order == "swapped":
            assert (first, second) == (own[middle:], own[:middle])
        else:
            source = second[0] // 100 - 1
            assert source != number
            theirs = data.blocks[source]
            assert first == own[:middle]
            assert second == theirs[len(theirs) // 2 :][: len(own) - middle].tolist()
    again = data.batch(tuple(range(count)), epoch)
    assert all(torch.equal(batch[name], again[name]) for name in batch)


def test_half_of_all_rows_and_others_in_every_epoch() -> None:
    data = halves([8] * 400, "random")
    drawn = torch.stack([data.batch(tuple(range(400)), epoch)[NEXT] for epoch in range(5)])
    assert 0.45 < drawn.float().mean() < 0.55
    assert (drawn[0] != drawn[1]).float().mean() > 0.4
    sources = unmasked(data.batch(tuple(range(400)), 0))[drawn[0] == 1][:, -2] // 100 - 1
    assert len(set(sources.tolist())) > 100


def test_text_is_framed_as_the_tokenizer_frames_pairs() -> None:
    tokenizer = wordpiece_tokenizer(TEXTS, 500)
    masking = MaskedText((), int(tokenizer.mask_token_id or 0), frozenset(tokenizer.all_special_ids), 500)
    assert set(read_halves(TEXTS, tokenizer, 24, masking, "random").lengths[:-1]) == {24}
    data = read_halves(["the and of", "the of and"], tokenizer, 9, masking, "swapped")
    epoch = next(e for e in range(20) if not data.batch((0,), e)[NEXT].item())
    batch, pair = data.batch((0,), epoch), tokenizer("the and of", "the of and")
    assert unmasked(batch)[0].tolist() == pair["input_ids"]
    assert batch["token_type_ids"][0].tolist() == pair["token_type_ids"]
    with pytest.raises(OptionError, match="--data-args longest 4 leaves no room for the two halves"):
        read_halves(TEXTS, tokenizer, 4, masking, "random")
    with pytest.raises(CorpusError, match="too short for --training-args next-sentence"):
        read_halves(TEXTS[:1], tokenizer, 128, masking, "random")
    assert len(read_halves(TEXTS[:1], tokenizer, 128, masking, "swapped").blocks) == 1


@pytest.mark.parametrize("kind", ["Bert", "Albert"])
def test_the_loss_is_the_models_own(kind: str) -> None:
    model = build(f"{kind}ForPreTraining", pad_token_id=1).eval()
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 1, 1]])
    labels = torch.tensor([[IGNORED, 3, IGNORED, 4], [2, IGNORED, IGNORED, IGNORED]])
    segments = torch.tensor([[0, 0, 1, 1], [0, 1, 0, 0]])
    inputs = {"input_ids": ids, "attention_mask": (ids != 1).long(), "token_type_ids": segments}
    follows = torch.tensor([0, 1])
    name = "next_sentence_label" if kind == "Bert" else "sentence_order_label"
    objective = MaskedTokenLoss()
    whole = inputs | {"labels": labels, NEXT: follows}
    assert objective.units(whole) == 3
    model(**inputs, labels=labels, **{name: follows}).loss.backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    own = model(**inputs, labels=labels, **{name: follows}).loss
    model.zero_grad()
    found = objective.loss(model, whole) / 3
    found.backward()
    torch.testing.assert_close(found, own)
    torch.testing.assert_close([p.grad for p in model.parameters() if p.grad is not None], expected)
    # Without the second task, the same model has the loss of tokens alone.
    tokens = nn.functional.cross_entropy(
        model(**inputs).prediction_logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED
    )
    torch.testing.assert_close(objective.loss(model, inputs | {"labels": labels}) / 3, tokens)


@pytest.mark.parametrize("order", ["random", "swapped"])
def test_one_answer_on_next_sentences_is_right_for_as_many_as_are_told(order: Any) -> None:
    """A share of .737 of 19 rows stood without its chance level, which was .737."""
    blocks = [np.array([10 + story] * 4 + [20 + story] * 4) for story in range(4)] * 5
    data = TextHalves(blocks, MaskedText((), MASK, frozenset({MASK, CLS, SEP}), 30), FRAME, order)
    kind = {"random": "Bert", "swapped": "Albert"}[order]
    shares = []
    for answer in (0, 1):
        model: Any = build(f"{kind}ForPreTraining", pad_token_id=0)
        head = model.cls.seq_relationship if order == "random" else model.sop_classifier.classifier
        with torch.no_grad():
            head.weight.zero_()
            head.bias.copy_(torch.eye(2)[answer])
            shares.append(evaluation(data, 40)(model.eval())["next_sentence"])
    assert sum(shares) == pytest.approx(1.0)
    *_, told = _known_of_held_out(data, 40)[1]
    assert (
        told == f"Of 20 held-out rows, the same answer on next sentences is right for {max(shares):.3f} (chance level)."
    )
    assert len(_known_of_held_out(CausalText(blocks), 40)[1]) == 1


@pytest.mark.parametrize(
    ("kind", "order", "epochs", "times"),
    [pytest.param("Bert", "random", 300, 20, marks=pytest.mark.slow), ("Albert", "swapped", 40, 6)],
)
def test_models_learn_which_half_follows(kind: str, order: str, epochs: int, times: int) -> None:
    # Every block is one of four stories, its first half of other words than its second.
    model = build(f"{kind}ForPreTraining", pad_token_id=0)
    assert order_of(model) == order
    blocks = [np.array([10 + story] * 4 + [20 + story] * 4) for story in range(4)] * times
    masking = MaskedText((), MASK, frozenset({MASK, CLS, SEP}), 30)
    data, objective = TextHalves(blocks, masking, FRAME, order_of(model)), MaskedTokenLoss()
    evaluate = torch.no_grad()(evaluation(data, 512))
    before = evaluate(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        inputs = data.batch(tuple(range(len(blocks))), epoch)
        (objective.loss(model, inputs) / objective.units(inputs)).backward()
        optimiser.step()
        optimiser.zero_grad()
    found = evaluate(model)
    # A second half that was drawn from elsewhere is that of the same story in a quarter of all draws.
    assert before["next_sentence"] < 0.7
    assert found["next_sentence"] > 0.8
    assert set(found) == {"loss", "perplexity", "accuracy", "next_sentence"}


def test_only_masked_tokens_go_with_it() -> None:
    with pytest.raises(OptionError, match="--training-args next-sentence is not for --task translation"):
        TextOptions("translation", next_sentence=True)

"""Text, pairs and vocabularies that models are trained on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from saved import build
from transformers import PreTrainedTokenizerBase

from headlens.corpora.sources import demo_corpus
from headlens.errors import CorpusError, OptionError
from headlens.learning.new_models import marian_tokenizer, new_model, wordpiece_tokenizer
from headlens.learning.objectives import IGNORED, MaskedTokenLoss
from headlens.learning.text_training import chance_loss, evaluation, predicted
from headlens.learning.training_text import CausalText, MaskedText, read_blocks, read_pairs, read_stream

TEXTS = [example.source.text for example in demo_corpus()]


@pytest.fixture(scope="module")
def pieces() -> PreTrainedTokenizerBase:
    return wordpiece_tokenizer(TEXTS, 500)


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    return marian_tokenizer(TEXTS, 300, tmp_path_factory.mktemp("v"))


def test_the_vocabulary_is_the_same_every_time(pieces: PreTrainedTokenizerBase) -> None:
    assert wordpiece_tokenizer(TEXTS, 500).get_vocab() == pieces.get_vocab()
    assert len(pieces) == 500


def test_pieces_are_those_of_bert(pieces: PreTrainedTokenizerBase) -> None:
    ids = pieces("The cat,", "a [MASK] naïve")["input_ids"]
    tokens = pieces.convert_ids_to_tokens(ids)
    assert tokens[0] == "[CLS]"
    assert tokens.count("[SEP]") == 2
    assert "[MASK]" in tokens
    assert "the" in tokens
    joined = "".join(t.removeprefix("##") for t in tokens if not t.startswith("["))
    assert joined == "thecat,anaive"
    assert pieces("a", "b")["token_type_ids"][-1] == 1
    # The demo corpus in a fifth of the letters: merges were learned.
    assert sum(len(pieces.tokenize(t)) for t in TEXTS) < 0.6 * sum(len(t.replace(" ", "")) for t in TEXTS)


def test_marian_pieces_go_both_ways(marian: PreTrainedTokenizerBase) -> None:
    text = "The old teacher sold a house."
    ids = marian(text)["input_ids"]
    assert ids[-1] == marian.eos_token_id
    assert marian.decode(ids, skip_special_tokens=True) == text
    assert marian(text_target=text)["input_ids"] == ids


@pytest.mark.parametrize("make", ["wordpiece", "marian"])
def test_vocabularies_that_cannot_be(make: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--model-args vocabulary 5 is too small"):
        wordpiece_tokenizer(TEXTS, 5) if make == "wordpiece" else marian_tokenizer(TEXTS, 5, tmp_path)


def test_streams_hold_all_the_text_in_order(pieces: PreTrainedTokenizerBase) -> None:
    """Every text after the token that texts begin with; the next token of each is its label."""
    blocks = read_stream(TEXTS, pieces, 24)
    assert {len(b) for b in blocks[:-1]} == {24}
    stream = [i for text in TEXTS for i in pieces(text)["input_ids"][:-1]]  # [CLS], but no [SEP]
    whole = np.concatenate(blocks).tolist()
    assert whole == stream[: len(whole)]
    assert len(stream) - len(whole) <= 1, "a single token at the end has nothing to predict"
    batch = CausalText(blocks, pieces.pad_token_id).batch([0, len(blocks) - 1], 0)
    for row, block in enumerate((blocks[0], blocks[-1])):
        assert batch["labels"][row, : len(block)].tolist() == [*block[1:], -100]
        assert set(batch["labels"][row, len(block) :].tolist()) <= {-100}
    with pytest.raises(OptionError, match="--data-args longest 1"):
        read_stream(TEXTS, pieces, 1)
    with pytest.raises(CorpusError, match="no text"):
        read_stream([" "], pieces, 24)


def test_causal_text_has_the_loss_of_transformers(pieces: PreTrainedTokenizerBase) -> None:
    model = build("GPT2LMHeadModel", len(pieces))
    data = CausalText(read_stream(TEXTS[:9], pieces, 16), pieces.pad_token_id)
    batch = data.batch([0, 1, len(data.blocks) - 1], 0)
    with torch.no_grad():
        total = float(MaskedTokenLoss().loss(model, batch))
        known = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        expected = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=known).loss
    assert total / float((batch["labels"] != -100).sum()) == pytest.approx(float(expected), rel=1e-5)


def test_blocks_hold_all_the_text_in_order(pieces: PreTrainedTokenizerBase) -> None:
    blocks = read_blocks(TEXTS, pieces, 24)
    assert {len(b) for b in blocks[:-1]} == {24}
    assert {int(b[0]) for b in blocks} == {pieces.cls_token_id}
    assert {int(b[-1]) for b in blocks} == {pieces.sep_token_id}
    expected = [i for text in TEXTS for i in pieces(text, add_special_tokens=False)["input_ids"]]
    assert np.concatenate([b[1:-1] for b in blocks]).tolist() == expected
    with pytest.raises(OptionError, match="--data-args longest 2"):
        read_blocks(TEXTS, pieces, 2)
    with pytest.raises(CorpusError, match="no text"):
        read_blocks([], pieces, 24)


def test_masking_is_that_of_bert(pieces: PreTrainedTokenizerBase) -> None:
    blocks = read_blocks(TEXTS * 3, pieces, 64)
    special = frozenset(pieces.all_special_ids)
    mask = pieces.mask_token_id
    assert isinstance(mask, int)
    data = MaskedText(blocks, mask, special, len(pieces), share=0.2)
    batch = data.batch(tuple(range(len(blocks))), 0)
    labels, ids = batch["labels"], batch["input_ids"]
    chosen = labels != IGNORED
    whole = np.zeros(ids.shape, dtype=np.int64)
    for row, block in enumerate(blocks):
        whole[row, : len(block)] = block
    assert (ids.numpy() == whole)[~chosen.numpy()].all()
    assert (labels.numpy() == whole)[chosen.numpy()].all()
    per_block = chosen.sum(1)
    assert all(int(n) == max(1, round(0.2 * (len(b) - 2))) for n, b in zip(per_block, blocks, strict=True))
    share = float((ids[chosen] == mask).float().mean())
    kept = float((ids[chosen] == labels[chosen]).float().mean())
    assert 0.75 < share < 0.85
    assert 0.06 < kept < 0.14
    assert not set(ids[chosen & (ids != mask)].tolist()) & special
    assert (data.batch((3, 5), 0)["labels"] != IGNORED).any()
    assert not (data.batch((3,), 0)["labels"] == data.batch((3,), 1)["labels"]).all()
    assert (data.batch((3,), 1)["labels"] == data.batch((3,), 1)["labels"]).all()


def test_pairs(marian: PreTrainedTokenizerBase) -> None:
    long = " ".join(["house"] * 50)
    data = read_pairs([("a cat", "a dog sleeps"), (long, "a"), ("", "a"), ("the cat", "she")], marian, 20)
    assert len(data.sources) == 2
    assert data.left_out == 2
    batch = data.batch((0, 1), 0)
    assert batch["input_ids"].shape == batch["attention_mask"].shape
    assert batch["labels"][1, -1] == IGNORED
    assert batch["input_ids"][batch["attention_mask"] == 0].eq(marian.pad_token_id).all()
    for row in range(2):
        own = batch["labels"][row]
        assert own[own != IGNORED][-1] == marian.eos_token_id
    with pytest.raises(CorpusError, match="none of 1 pair can"):
        read_pairs([(long, "a")], marian, 20)


def test_models_by_name(pieces: PreTrainedTokenizerBase, marian: PreTrainedTokenizerBase) -> None:
    for name in ("bert-tiny", "albert-tiny"):
        model = new_model(name, "mlm", pieces, 64, 0)
        assert model.get_input_embeddings().weight.shape[0] == len(pieces)
        same = new_model(name, "mlm", pieces, 64, 0).state_dict()
        assert all(same[k].equal(v) for k, v in model.state_dict().items())
    assert new_model("marian-tiny", "translation", marian, 64, 0).config.pad_token_id == marian.pad_token_id
    with pytest.raises(OptionError, match="new:bert-huge is not a known model"):
        new_model("bert-huge", "mlm", pieces, 64, 0)
    with pytest.raises(OptionError, match="new:marian-small"):
        new_model("bert-tiny", "translation", marian, 64, 0)


class Constant(torch.nn.Module):
    """A model that predicts every token by the same numbers, whatever it reads."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(logits)

    def forward(self, input_ids: torch.Tensor, **_: object) -> SimpleNamespace:
        return SimpleNamespace(logits=self.logits.expand(*input_ids.shape, -1))


def test_the_chance_level_of_a_text_is_its_best_constant_prediction() -> None:
    blocks = [np.array([1, 5, 5, 6, 5, 7]), np.array([1, 6, 6, 5])]
    data = CausalText(blocks)
    counts = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 4.0, 3.0, 1.0])  # the first token of a block is not predicted
    best = Constant((counts / counts.sum()).log().clamp_min(-40))
    level = chance_loss(predicted(data, 64))
    assert predicted(data, 64) == {5: 4, 6: 3, 7: 1}
    with torch.no_grad():
        assert evaluation(data, 64)(best)["loss"] == pytest.approx(level, rel=1e-6)
        for shift in torch.eye(8)[5:]:
            assert evaluation(data, 64)(Constant(best.logits + 0.1 * shift))["loss"] > level
    assert chance_loss(predicted(CausalText([np.array([1, 5, 5])]), 64)) == 0

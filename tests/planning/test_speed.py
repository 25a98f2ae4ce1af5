"""What a model costs: bytes that live at once are counted exactly, and measuring leaves no trace."""

from __future__ import annotations

import torch
from transformers import BertConfig, BertModel, MarianConfig, MarianMTModel

from headlens.attention.model_normalizer import attention_of, switch
from headlens.attention.normalizers import LearnedEntmax, parse_normalizer
from headlens.planning.speed import LiveBytes, Speed, measure_speed
from headlens.weights.head_slicing import ALPHAS

BERT = {"vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 32}


def test_bytes_that_live_at_once() -> None:
    start = torch.zeros(1000)
    with LiveBytes() as live:
        first = start + 1  # 4,000 bytes
        second = first * 2  # 8,000
        del first  # 4,000
        third = torch.cat([second, second])  # 12,000
        view = third[:10]  # nothing new
    assert live.peak == 12_000
    assert live.now == 12_000
    del second, third, view
    assert live.now == 0


def test_what_is_given_and_changed_in_place_counts_nothing() -> None:
    start = torch.zeros(1000)
    with LiveBytes() as live:
        start.add_(1)
        start.view(10, 100)
    assert live.peak == 0


def test_what_training_keeps_grows_with_the_layers() -> None:
    kept = []
    for layers in (2, 4):
        model = BertModel(BertConfig(**BERT | {"num_hidden_layers": layers}))
        speed = measure_speed(model, 8, 64, frozenset({"backward"}))
        assert speed.backward_bytes > speed.forward_bytes > 0
        kept.append(speed.backward_bytes)
    # at least the outputs of both parts of each further layer, and the inner activations, in float32
    assert kept[1] - kept[0] > 2 * 4 * (2 * BERT["hidden_size"] + BERT["intermediate_size"])


def test_measuring_leaves_no_trace() -> None:
    model = BertModel(BertConfig(**BERT)).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    entmax = parse_normalizer("entmax15")
    measure_speed(model, 8, 64, frozenset({"backward"}), precision="bf16", attention=entmax)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not model.training
    assert attention_of(model) is None
    switch(model, LearnedEntmax())
    with torch.no_grad():
        alphas = next(own for key, own in model.named_parameters() if key.endswith(ALPHAS))
        alphas.fill_(2.0)
    measure_speed(model, 8, 64, attention=entmax)
    assert (model.state_dict()[f"encoder.layer.0.attention.self.{ALPHAS}"] == 2.0).all(), "what was learned stays"


def test_only_what_was_asked_for_is_timed() -> None:
    shape = {"vocab_size": 60, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "pad_token_id": 0}
    heads = {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
    inner = {f"{side}_ffn_dim": 24 for side in ("encoder", "decoder")}
    ids = {"eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": None, "max_position_embeddings": 40}
    marian = MarianMTModel(MarianConfig(**shape, **heads, **inner, **ids))
    plain = measure_speed(marian, 6, 48)
    assert plain.forward > 0
    assert (plain.backward, plain.written, plain.update) == (0, 0, 0)
    assert measure_speed(marian, 6, 48, frozenset({"written"})).written > 0


def test_seconds_are_proportional_to_tokens() -> None:
    speed = Speed(forward=2.0, backward=5.0, written=7.0)
    assert [speed.seconds(kind, 3) for kind in ("forward", "backward", "written")] == [6, 15, 21]

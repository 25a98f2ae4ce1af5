"""A decoder whose heads are made by hand: each does one thing, on random tokens."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from headlens.models.loading import LoadedModel
from headlens.roles.probe_prompts import COPIES

VOCABULARY, POSITIONS, WIDTH, HEADS, SIZE = 128, 104, 512, 4, 128
TOKEN, POSITION, BEFORE = 0, VOCABULARY, VOCABULARY + POSITIONS  # where each is in the residual stream
SHARP = 1.6


def words(count: int) -> PreTrainedTokenizerFast:
    """A tokenizer of so many words, the first of which stands before texts."""
    made = Tokenizer(models.WordLevel({f"w{n}": n for n in range(count)}, unk_token="w1"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="w0", unk_token="w1", pad_token="w1")


def circuit() -> LoadedModel:
    """A GPT-2 of two layers whose weights are set by hand; its MLPs add nothing.

    The residual stream holds token and place as one-hot vectors. Layer 0: previous token (which it writes down),
    duplicate token, first token, even attention. Layer 1: induction, a fixed offset of one block less one, twice even
    attention.
    """
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=WIDTH, n_layer=2, n_head=HEADS, bos_token_id=0
    )
    model = GPT2LMHeadModel(config).eval()
    block = (POSITIONS - 1) // COPIES
    with torch.no_grad():
        for parameter in model.transformer.h.parameters():
            parameter.zero_()
        for norm in (*(h.ln_1 for h in model.transformer.h), *(h.ln_2 for h in model.transformer.h)):
            norm.weight.fill_(1)
        model.transformer.wte.weight.zero_()
        model.transformer.wpe.weight.zero_()
        for token in range(VOCABULARY):
            model.transformer.wte.weight[token, TOKEN + token] = 1
        for place in range(POSITIONS):
            model.transformer.wpe.weight[place, POSITION + place] = 1

        def joined(layer: int, head: int, query: dict[int, int], key: dict[int, int]) -> None:
            weight, start = model.transformer.h[layer].attn.c_attn.weight, head * SIZE
            for rows, part in ((query, 0), (key, WIDTH)):
                for source, feature in rows.items():
                    weight[source, part + start + feature] = SHARP

        def carried(layer: int, head: int, source: int, target: int) -> None:
            attention, start = model.transformer.h[layer].attn, head * SIZE
            for token in range(VOCABULARY):
                attention.c_attn.weight[source + token, 2 * WIDTH + start + token] = 1
                attention.c_proj.weight[start + token, target + token] = 0.1

        tokens = {TOKEN + t: t for t in range(VOCABULARY)}
        places = {POSITION + p: p for p in range(POSITIONS)}
        joined(0, 0, {POSITION + p: p - 1 for p in range(1, POSITIONS)}, places)
        carried(0, 0, TOKEN, BEFORE)
        joined(0, 1, tokens, tokens)
        joined(0, 2, dict.fromkeys(places, 0), {POSITION: 0})
        joined(1, 0, tokens, {BEFORE + t: t for t in range(VOCABULARY)})
        carried(1, 0, TOKEN, TOKEN)
        joined(1, 1, {POSITION + p: p - block + 1 for p in range(block - 1, POSITIONS)}, places)
    return LoadedModel("circuit", model, words(VOCABULARY), None)

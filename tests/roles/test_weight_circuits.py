"""What weights do against matrices of vocabulary times vocabulary, heads made by hand, and random ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import zoo
from circuits import circuit, words
from saved import Memory, build, sentence
from scipy.stats import ortho_group
from tiers import rest_slow
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM, PreTrainedTokenizerBase

from headlens.attention.sites import find_sites
from headlens.corpora.sentence import Example
from headlens.errors import UnsupportedModelError
from headlens.models.loading import LoadedModel
from headlens.roles.weight_circuits import (
    EARLIER,
    check_circuits,
    compositions,
    eigenvalue_shares,
    measure_circuits,
    own_first,
    readable_ids,
    singular_directions,
)
from headlens.tables.circuit_tables import CIRCUITS
from headlens.weights.head_matrices import HeadMatrices, head_matrices

HEADS, SIZE = 4, 8
# The made tokenizer finds its special token w1 in w10 to w19, too.
NAMED = [*range(2, 10), *range(20, zoo.VOCABULARY)]


def corpus(*tokens: int) -> Memory:
    return Memory([Example(sentence(" ".join(f"w{n}" for n in tokens)))])


ALL = corpus(*NAMED)


def loaded(name: str, **settings: Any) -> LoadedModel:
    model = zoo.ZOO[name].build(**settings).double()
    return LoadedModel(name, model, words(zoo.VOCABULARY), None)


def brute_share(whole: Tensor) -> float:
    values = np.linalg.eigvals(whole.numpy())
    return float(values.sum().real / np.abs(values).sum())


def centred(matrix: Tensor) -> Tensor:
    return matrix - matrix.mean(dim=0)


def weights_by_hand(name: str, model: Any, layer: int, head: int) -> tuple[Tensor, ...]:
    """W_E, W_Q, W_K, W_V, W_O and W_U of a head of GPT-2, Llama or BERT, with the gains of norms, in full."""
    own = slice(head * SIZE, (head + 1) * SIZE)
    if name == "gpt2":
        block = model.transformer.h[layer]
        gain, (query, key, value) = block.ln_1.weight[:, None], block.attn.c_attn.weight.split(zoo.HIDDEN, dim=1)
        inward = [centred(gain * part[:, own]) for part in (query, key, value)]
        unembedding = centred(model.transformer.ln_f.weight[:, None] * model.lm_head.weight.T)
        return model.transformer.wte.weight, *inward, block.attn.c_proj.weight[own], unembedding
    if name == "llama":
        block, group = model.model.layers[layer], slice(head // 2 * SIZE, (head // 2 + 1) * SIZE)
        gain, attention = block.input_layernorm.weight[:, None], block.self_attn
        inward = [gain * attention.q_proj.weight[own].T, gain * attention.k_proj.weight[group].T]
        inward += [gain * attention.v_proj.weight[group].T]
        unembedding = model.model.norm.weight[:, None] * model.lm_head.weight.T
        return model.model.embed_tokens.weight, *inward, attention.o_proj.weight[:, own].T, unembedding
    block = model.encoder.layer[layer].attention
    inward = [getattr(block.self, part).weight[own].T for part in ("query", "key", "value")]
    tokens = model.embeddings.word_embeddings.weight
    return tokens, *inward, block.output.dense.weight[:, own].T, tokens.T


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_scores_are_those_of_matrices_of_all_tokens(name: str) -> None:
    model = loaded(name)
    frames, _ = measure_circuits(model, ALL)
    with torch.no_grad():
        for row in frames["circuits"].to_dict("records"):
            e, q, k, v, o, u = (part.detach() for part in weights_by_hand(name, model.model, row["layer"], row["head"]))
            # RMSNorm computes in single precision, from where its gain is read off.
            near = {"abs": 1e-5 if name == "llama" else 1e-8}
            assert row["copying"] == pytest.approx(brute_share(e @ v @ o @ u), **near)
            assert row["matching"] == pytest.approx(brute_share(e @ q @ k.T @ e.T), **near)
            logits = (e @ v @ o @ u)[NAMED][:, NAMED]
            right = logits.argmax(dim=1) == torch.arange(len(logits))
            assert row["copying_top"] == pytest.approx(float(right.double().mean()))


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_directions_are_those_of_the_whole_matrices(name: str) -> None:
    model = loaded(name)
    frames, _ = measure_circuits(model, ALL)
    table = frames["circuit_directions"]
    row = {"layer": 1, "head": 2}
    e, q, k, v, o, u = (part.detach() for part in weights_by_hand(name, model.model, 1, 2))
    for circuit_name, whole, after in (("OV", v @ o, u.T), ("QK", q @ k.T, e)):
        own = table[(table[list(row)] == pd.Series(row)).all(axis=1) & (table["circuit"] == circuit_name)]
        left, values, right = np.linalg.svd(whole.numpy())
        assert own["share"].tolist() == pytest.approx(np.repeat(values[:3] ** 2 / (values**2).sum(), 2), rel=1e-4)
        for direction in range(3):
            sign = np.sign(left[np.abs(left[:, direction]).argmax(), direction])
            for side, tokens in (("from", e.numpy()), ("to", after.numpy())):
                turned = sign * (left[:, direction] if side == "from" else right[direction])
                cosines = tokens[2:] @ turned / np.linalg.norm(tokens[2:], axis=1)
                for end, order in (("+", np.argsort(-cosines)), ("-", np.argsort(cosines))):
                    told = own[(own["direction"] == direction) & (own["sign"] == end)][f"{side}_tokens"].item()
                    assert told == " ".join(f"w{n + 2}" for n in order[:6]), (circuit_name, direction, side, end)


def random_heads(heads: int, width: int, size: int, seed: int) -> HeadMatrices:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(heads, width, size)] * 3 + [(heads, size, width)]
    return HeadMatrices(*(torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes))


def test_compositions_are_norms_of_whole_products() -> None:
    before, after = random_heads(3, 12, 4, 0), random_heads(2, 12, 4, 1)
    found = compositions(before, after)
    assert {kind: tuple(ratios.shape) for kind, ratios in found.items()} == dict.fromkeys("QKV", (2, 3))
    norm = torch.linalg.matrix_norm
    for later in range(2):
        scores, copied = after.query[later] @ after.key[later].T, after.value[later] @ after.output[later]
        for earlier in range(3):
            written = before.value[earlier] @ before.output[earlier]
            for kind, reading in (("Q", scores), ("K", scores.T), ("V", copied)):
                expected = norm(written @ reading) / (norm(written) * norm(reading))
                assert found[kind][later, earlier] == pytest.approx(float(expected), rel=1e-10)
    nothing = HeadMatrices(before.query, before.key, before.value * 0, before.output)
    assert not any(ratios.any() for ratios in compositions(nothing, after).values())


def test_heads_of_another_stream_compose_where_widths_agree_alone() -> None:
    before, after = random_heads(2, 12, 4, 0), random_heads(2, 10, 4, 1)
    wide = random_heads(2, 12, 4, 2)
    mixed = HeadMatrices(after.query, wide.key, wide.value, after.output)
    assert set(compositions(before, mixed)) == {"K", "V"}


def test_of_random_directions_the_square_is_one_over_the_width_whatever_the_matrices() -> None:
    width, draws = 10, 400
    first, second = (random_heads(1, width, 3, seed) for seed in (5, 6))
    uneven = torch.diag(torch.tensor([10.0, 1.0, 0.1], dtype=torch.float64))
    turned = torch.from_numpy(ortho_group.rvs(width, size=draws, random_state=0))
    rest = (part.expand(draws, -1, -1) for part in (second.key, second.value, second.output))
    after = HeadMatrices(turned @ (second.query @ uneven), *rest)
    ratios = compositions(first, after)["Q"][:, 0]
    squares = ratios.square()
    error = float(squares.std()) / math.sqrt(draws)
    assert float(squares.mean()) == pytest.approx(1 / width, abs=4 * error)


def test_a_head_that_copies_has_one_and_one_that_does_the_opposite_has_minus_one() -> None:
    model = loaded("gpt2").model
    with torch.no_grad():
        for block in model.transformer.h:
            value = block.attn.c_attn.weight[:, 2 * zoo.HIDDEN :]
            # W_O = (W_U W_E W_V)' makes the small matrix positive: A' A; that of head 1 is turned round.
            gram = (
                centred(model.transformer.ln_f.weight[:, None] * model.lm_head.weight.T) @ model.transformer.wte.weight
            )
            block.attn.c_proj.weight.copy_((gram @ centred(block.ln_1.weight[:, None] * value)).T)
            block.attn.c_proj.weight[SIZE : 2 * SIZE] *= -1
            block.attn.c_proj.weight[2 * SIZE : 3 * SIZE] = 0
    rows = measure_circuits(LoadedModel("m", model, words(zoo.VOCABULARY), None), ALL)[0]["circuits"]
    assert rows[rows["head"] == 0]["copying"].tolist() == pytest.approx([1.0] * 3)
    assert rows[rows["head"] == 1]["copying"].tolist() == pytest.approx([-1.0] * 3)
    assert rows[rows["head"] == 2]["copying"].isna().all()  # it writes nothing


def test_random_heads_are_about_zero_and_mostly_below_the_bound() -> None:
    config = GPT2Config(vocab_size=200, n_positions=16, n_embd=128, n_layer=8, n_head=8, tie_word_embeddings=False)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config).double().eval()
    found = measure_circuits(LoadedModel("m", model, words(200), None), corpus(*range(2, 10), *range(20, 100)))[0]
    rows = found["circuits"]
    assert abs(rows["copying"].mean()) < 0.05
    assert abs(rows["matching"].mean()) < 0.05
    inside = (rows["copying"].abs() <= rows["copying_random"]).mean()
    assert 0.8 < inside <= 1
    assert 0.02 < rows["copying_random"].iloc[0] < 0.4
    assert rows["copying_top"].mean() < 0.1
    assert found["layer_composition"]["mean"].abs().max() < 0.01


def test_an_induction_head_made_by_hand_copies_and_reads_the_previous_tokens_head_with_its_keys() -> None:
    frames, notes = measure_circuits(circuit(), corpus(*range(2, 10), *range(20, 100)), draws=2)
    heads = frames["circuits"].set_index(["layer", "head"])
    assert heads.loc[1, 0]["copying"] == pytest.approx(1.0, abs=1e-3)
    assert heads.loc[1, 0]["copying_top"] == 1
    assert heads.loc[0, 1]["matching"] == pytest.approx(1.0, abs=1e-3)  # its queries look for their own token
    pairs = frames["composition"]
    best = pairs.loc[pairs["composition"].idxmax()]
    # The stream holds what was there before at places of its own, which these keys alone read: their norms agree.
    assert (best["layer"], best["head"], best["kind"]) == (1, 0, "K")
    assert (best["other_layer"], best["other_head"]) == (0, 0)
    layers = frames["layer_composition"].set_index("kind")
    assert layers.loc["K", "largest"] == best["composition"]
    assert layers.loc["K", "pairs"] == 16
    assert notes == ["Circuits: copying of the 88 tokens that are most frequent in the corpus."]


def test_what_reads_the_stream_of_what() -> None:
    frames, _ = measure_circuits(loaded("marian"), ALL)
    encoders = [(f"encoder.{a}", f"encoder.{b}", kind) for a in range(3) for b in range(a) for kind in "QKV"]
    reading = [(f"cross.{a}", f"encoder.{b}", kind) for a in range(2) for b in range(3) for kind in "KV"]
    writing = [("decoder.1", f"{stack}.0", kind) for stack in ("decoder", "cross") for kind in "QKV"]
    queries = [("cross.0", "decoder.0", "Q"), ("cross.1", "decoder.0", "Q"), ("cross.1", "decoder.1", "Q")]
    queries += [("cross.1", "cross.0", "Q")]
    rows = frames["layer_composition"].to_dict("records")
    found = {(f"{r['stack']}.{r['layer']}", f"{r['other_stack']}.{r['other_layer']}", r["kind"]) for r in rows}
    assert found == {*encoders, *reading, *writing, *queries}


def test_the_strongest_of_all_earlier_heads_are_kept() -> None:
    model = loaded("gpt2")
    pairs = measure_circuits(model, ALL)[0]["composition"]
    sites = find_sites(model.model)
    folded = {}
    for site in sites:  # by hand: gains of layer norms are part of what reads
        plain, gain = (
            head_matrices(model.model, site.module, site.n_heads),
            model.model.transformer.h[site.layer].ln_1.weight.detach(),
        )
        inward = [gain[:, None] * part for part in (plain.query, plain.key, plain.value)]
        folded[site.layer] = HeadMatrices(*(p - p.mean(dim=1, keepdim=True) for p in inward), plain.output)
    for kind in "QKV":
        ratios = torch.cat([compositions(folded[layer], folded[2])[kind] for layer in (0, 1)], dim=1)  # (4, 8)
        own = pairs[(pairs["layer"] == 2) & (pairs["kind"] == kind)]
        for head, (values, places) in enumerate(zip(*ratios.topk(EARLIER, dim=1), strict=True)):
            rows = own[own["head"] == head]
            assert rows["composition"].tolist() == pytest.approx((values - 32**-0.5).tolist(), abs=1e-9)
            assert (rows["other_layer"] * HEADS + rows["other_head"]).tolist() == places.tolist()
    assert set(pairs["random"]) == {32**-0.5}


def test_layers_that_share_weights_have_the_same_numbers_and_factorised_embeddings_are_multiplied() -> None:
    model = loaded("albert")
    frames, notes = measure_circuits(model, ALL)
    by_layer = [rows.drop(columns="layer").reset_index(drop=True) for _, rows in frames["circuits"].groupby("layer")]
    assert len(by_layer) == 4
    assert all(rows.equals(by_layer[0]) for rows in by_layer)
    untyped: Any = model.model
    with torch.no_grad():
        inward = untyped.encoder.embedding_hidden_mapping_in.weight
        e = untyped.embeddings.word_embeddings.weight @ inward.T
        matrices = head_matrices(model.model, find_sites(model.model)[0].module, HEADS)
        expected = [brute_share(e @ v @ o @ e.T) for v, o in zip(matrices.value, matrices.output, strict=True)]
    assert by_layer[0]["copying"].tolist() == pytest.approx(expected, abs=1e-8)
    assert any("the norms of this model are on the residual stream" in note for note in notes)
    assert any("where they write the embedding of what they attend to" in note for note in notes)


def test_projections_beside_the_layers_are_multiplied() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 40, "vocab_size": 60}
    config = OPTConfig(**sizes, word_embed_proj_dim=16, max_position_embeddings=40, pad_token_id=1)
    model: Any = zoo.randomized(OPTForCausalLM(config)).double()
    rows = measure_circuits(LoadedModel("opt", model, words(60), None), ALL)[0]["circuits"]
    decoder = model.model.decoder
    with torch.no_grad():
        e = decoder.embed_tokens.weight @ decoder.project_in.weight.T
        u = decoder.final_layer_norm.weight[:, None] * (model.lm_head.weight @ decoder.project_out.weight).T
        layer = decoder.layers[1]
        value = layer.self_attn_layer_norm.weight[:, None] * layer.self_attn.v_proj.weight[8:16].T
        whole = e @ centred(value) @ layer.self_attn.out_proj.weight[:, 8:16].T @ centred(u)
    assert rows.set_index(["layer", "head"]).loc[(1, 1), "copying"] == pytest.approx(brute_share(whole), abs=1e-8)


@pytest.mark.parametrize(
    ("name", "told"),
    [("llama", ("without their rotation", "that share keys and values")), ("gpt2", ())],
)
def test_notes_say_what_is_left_out(name: str, told: Sequence[str]) -> None:
    _, notes = measure_circuits(loaded(name), ALL)
    assert len(notes) == 1 + len(told)
    assert all(any(words_of in note for note in notes) for words_of in told)


def test_without_an_unembedding_copying_is_empty_and_a_note_says_so() -> None:
    model = loaded("qwen2", tie_word_embeddings=False)
    frames, notes = measure_circuits(model, ALL)
    assert frames["circuits"][["copying", "copying_random", "copying_top"]].isna().all(axis=None)
    assert frames["circuits"]["matching"].notna().all()
    written = frames["circuit_directions"].query("circuit == 'OV'")
    assert (written["to_tokens"] == "").all()
    assert (written["from_tokens"] != "").all()
    assert "Circuits: copying is empty for decoder, where headlens does not know embeddings and" in notes[-1]
    pair = loaded("marian", share_encoder_decoder_embeddings=False, decoder_vocab_size=60)
    frames, notes = measure_circuits(pair, ALL)
    empty = frames["circuits"].groupby("stack")["copying"].apply(lambda values: values.isna().all())
    assert empty.to_dict() == {"encoder": False, "decoder": True, "cross": True}
    assert "for decoder and cross" in notes[-1]


def test_tokens_that_are_copied_are_the_most_frequent_of_both_sides() -> None:
    model = loaded("gpt2")
    text = Memory([Example(sentence("w7 w7 w9 w0"), sentence("w21 w21 w21 w9"))])
    found = measure_circuits(model, text)[0]["circuits"]
    for row in found.to_dict("records"):
        e, _, _, v, o, u = (part.detach() for part in weights_by_hand("gpt2", model.model, row["layer"], row["head"]))
        chosen = [21, 7, 9]  # w0 is a special token
        logits = (e @ v @ o @ u)[chosen][:, chosen]
        assert row["copying_top"] == pytest.approx(float((logits.argmax(dim=1) == torch.arange(3)).double().mean()))
    alone = measure_circuits(model, corpus(7))[0]["circuits"]
    assert alone["copying_top"].isna().all()


def test_no_matrix_is_as_large_as_the_square_of_the_vocabulary() -> None:
    """It would take 40 gigabytes."""
    config = GPT2Config(vocab_size=100_000, n_positions=16, n_embd=8, n_layer=1, n_head=2)
    model = GPT2LMHeadModel(config).eval()
    frames, _ = measure_circuits(LoadedModel("m", model, words(1000), None), ALL)
    assert frames["circuits"]["copying"].notna().all()
    assert frames["layer_composition"].empty


def test_unused_and_special_tokens_are_not_named(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    names = wordpiece_tokenizer.convert_ids_to_tokens(readable_ids(wordpiece_tokenizer))
    assert not {"[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]"} & set(names)
    assert "the" in names
    with_unused = words(5)
    with_unused.add_tokens(["[unused1]", "<extra_id_0>"])
    assert [with_unused.convert_ids_to_tokens(i) for i in readable_ids(with_unused)] == ["w2", "w3", "w4"]


@pytest.mark.parametrize(
    "name", rest_slow(["gpt2", "bert", "albert-mlm", "gemma2", "gpt-oss", "phi", "bart", "m2m100"], 2)
)
def test_tables_of_every_architecture_have_their_columns(name: str) -> None:
    entry = zoo.ZOO[name]
    model = LoadedModel(name, entry.build(), words(zoo.VOCABULARY), None)
    check_circuits(model)
    frames, _ = measure_circuits(model, ALL)
    for schema in CIRCUITS:
        assert frames[schema.name].columns.tolist() == schema.names[1:]
        assert not frames[schema.name].duplicated([n for n in schema.identity if n != "model"]).any()
    heads = frames["circuits"]
    assert len(heads) == sum(site.n_heads for site in find_sites(model.model))
    for score in ("copying", "matching"):
        assert (heads[score].abs() <= 1 + 1e-9).all()
    assert len(frames["circuit_directions"]) == len(heads) * 2 * 3 * 2


def test_what_has_no_plain_matrices_is_refused() -> None:
    model = loaded("bert")
    attention: Any = model.model.get_submodule("encoder.layer.1.attention.self")
    attention.query = nn.Sequential(attention.query)
    with pytest.raises(UnsupportedModelError, match=r"in encoder\.layer\.1\.attention\.self"):
        check_circuits(model)


def test_shares_and_own_tokens_by_hand() -> None:
    turning = torch.tensor([[[0.0, -1.0], [1.0, 0.0]], [[3.0, 0.0], [0.0, -1.0]], [[0.0, 0.0], [0.0, 0.0]]])
    assert eigenvalue_shares(turning).tolist()[:2] == [0.0, 0.5]  # ±i; 3 and −1
    assert np.isnan(eigenvalue_shares(turning)[2])
    before, after = torch.eye(3)[None], torch.tensor([[[2.0, 1, 0], [0, 1, 5], [0, 0, 1]]])
    assert own_first(before, after).tolist() == [2 / 3]


def test_leading_directions_give_the_product_back() -> None:
    heads = random_heads(2, 9, 4, 3)
    starts, values, ends = singular_directions(heads.query, heads.key, most=4)
    whole = starts @ torch.diag_embed(values) @ ends.transpose(1, 2)
    assert torch.allclose(whole, heads.query @ heads.key.transpose(1, 2), atol=1e-10)
    largest = starts.gather(1, starts.abs().argmax(dim=1, keepdim=True))
    assert (largest > 0).all()


def test_tokens_are_named_as_the_tokenizer_has_them(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    model = build("BertForMaskedLM", len(wordpiece_tokenizer))
    texts = Memory([Example(sentence("the old teacher sold a house near the river"))])
    frames, _ = measure_circuits(LoadedModel("m", model, wordpiece_tokenizer, None), texts)
    named = " ".join(frames["circuit_directions"]["from_tokens"]).split()
    assert set(named) <= set(wordpiece_tokenizer.get_vocab())

"""Roles on prompts of random tokens: a circuit made by hand, heads that only look like it, naive loops over weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import zoo
from circuits import circuit, words
from tiers import rest_slow
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from headlens.errors import OptionError
from headlens.models.loading import LoadedModel
from headlens.roles.probe_prompts import ProbePrompts, PromptSets, make_prompts
from headlens.roles.role_probes import MARGIN, held_heads, measure_probes
from headlens.tables.classify_tables import PROBES

ON_TOKENS = ("previous", "duplicate", "induction", "sink")


@pytest.fixture(scope="module")
def found() -> pd.DataFrame:
    rows, notes = measure_probes(circuit(), ON_TOKENS, prompts=6)
    assert notes == []
    return rows


def of(rows: pd.DataFrame, probe: str, layer: int, head: int) -> Any:
    chosen = rows[(rows["probe"] == probe) & (rows["layer"] == layer) & (rows["head"] == head)]
    assert len(chosen) == 1
    return chosen.iloc[0]


def test_every_head_of_a_circuit_holds_its_own_role(found: pd.DataFrame) -> None:
    expected = {"previous": [[0, 0]], "duplicate": [[0, 1]], "induction": [[1, 0]], "sink": [[0, 2]]}
    assert held_heads(found) == expected
    assert found.columns.tolist() == PROBES.names[1:]
    for probe, ((layer, head),) in expected.items():
        row = of(found, probe, layer, head)
        assert row["score"] > 0.9, probe
        assert row["second_score"] > 0.9
        assert row["most"] > 0.95
        assert max(row["control"], row["second_control"], row["chance"]) < 0.12
        assert row["p_holm"] < 0.05
        assert row["n"] == 6


def test_the_induction_head_copies_and_others_do_not(found: pd.DataFrame) -> None:
    assert of(found, "induction", 1, 0)["copying"] == 1
    rest = found[(found["probe"] == "induction") & (found["score"] < 0.9)]["copying"]
    assert (rest < 0.2).all()
    assert found[found["probe"] != "induction"]["copying"].isna().all()
    sink = of(found, "sink", 0, 2)
    assert (sink["rate"], sink["first_four"]) == (1, pytest.approx(1, abs=0.05))


def test_a_fixed_offset_is_no_induction(found: pd.DataFrame) -> None:
    """It gives all of its weight to what followed the last copy, but also where nothing is repeated."""
    row = of(found, "induction", 1, 1)
    assert row["score"] > 0.9
    assert row["control"] > 0.9, "fresh tokens"
    assert row["second_control"] > 0.9, "random gaps"
    assert row["second_score"] < 0.1
    assert not row["holds"]


def test_even_heads_are_at_chance(found: pd.DataFrame) -> None:
    for probe in ON_TOKENS:
        for layer, head in ((0, 3), (1, 2)):
            row = of(found, probe, layer, head)
            assert row["score"] == pytest.approx(row["chance"], abs=0.01), probe
            assert not row["holds"]


@pytest.mark.parametrize("seed", rest_slow([0, 1, 2, 3], [0]))
@pytest.mark.parametrize(
    "name", rest_slow(["llama", "gpt2", "gpt-oss", "bert", "mistral", "modernbert"], ["llama", "bert"])
)
def test_numbers_are_those_of_loops_over_weights(name: str, seed: int) -> None:
    model = zoo.ZOO[name].build(seed=seed, vocab_size=90)
    loaded = LoadedModel(name, model, words(90), None)
    causal = "bert" not in name
    rows, _ = measure_probes(loaded, ON_TOKENS, prompts=3, seed=seed)
    sets = make_prompts(words(90), loaded.max_length, 3, seed, causal=causal)
    # Mistral counts the query, ModernBERT both sides of it.
    windows = {"mistral": [3] * 3, "gpt-oss": [3, None, 3], "modernbert": [None, 3, None]}
    passes = {kind: eager(model, getattr(sets, kind)) for kind in ("repeated", "fresh", "gapped")}
    for (layer, head), of_head in rows.groupby(["layer", "head"]):
        weights = {kind: passes[kind][:, layer, head] for kind in passes}
        window = windows.get(name, [None] * 3)[layer]
        expected = naive(weights, sets, in_sight(sets.fresh.ids.shape[1], causal, window))
        for row in of_head.to_dict("records"):
            for column, value in expected[row["probe"]].items():
                assert row[column] == pytest.approx(value, abs=2e-6), (row["probe"], column)


def eager(model: PreTrainedModel, prompts: ProbePrompts) -> np.ndarray:
    """(prompts, layers, heads, query, key), rows adding up to 1."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = model(input_ids=torch.from_numpy(prompts.ids), output_attentions=True).attentions
    stacked = torch.stack([m.double() for m in maps], dim=1)
    return (stacked / stacked.sum(-1, keepdim=True)).numpy()


@pytest.mark.parametrize(("name", "blind"), [("mistral", 12), ("gpt-oss", 8), ("llama", 0)])
def test_heads_whose_window_never_holds_what_is_asked_for_have_no_rows(name: str, blind: int) -> None:
    loaded = LoadedModel(name, zoo.ZOO[name].build(vocab_size=90), words(90), None)
    rows, notes = measure_probes(loaded, ("previous", "induction"), prompts=2)
    assert (rows["probe"] == "previous").sum() == 12
    assert (rows["probe"] == "induction").sum() == 12 - blind
    told = [f"Probes: in {blind} of 12 heads what induction asks for is never within the window of the layer: they "]
    assert [note.startswith(told[0]) for note in notes] == [True] * bool(blind)


def in_sight(length: int, causal: bool, window: int | None) -> list[list[int]]:
    """The keys that every query sees."""
    return [
        [k for k in range(length) if (k <= q or not causal) and (window is None or abs(q - k) < window)]
        for q in range(length)
    ]


def naive(weights: dict[str, np.ndarray], sets: PromptSets, seen: list[list[int]]) -> dict[str, dict[str, float]]:
    def over(kind: str, places: np.ndarray, others: bool) -> float:
        means = []
        for prompt, matrix in enumerate(weights[kind]):
            masses = []
            for query, row in enumerate(matrix):
                keys = np.flatnonzero(places[prompt, query])
                if not len(keys):
                    continue
                left = [0 if others and (k == query or k < sets.first) else w for k, w in enumerate(row)]
                masses.append(sum(left[k] for k in keys) / (sum(left) or 1))
            means.append(float(np.mean(masses)))
        return float(np.mean(means))

    def at(back: int, *, others: bool = True) -> float:
        means = []
        for matrix in weights["fresh"]:
            masses = []
            for query in range(sets.first + 2, len(matrix) - sets.last):
                row = [0 if others and (k == query or k < sets.first) else w for k, w in enumerate(matrix[query])]
                masses.append(row[query - back] / sum(row))
            means.append(np.mean(masses))
        return float(np.mean(means))

    def first(key: int) -> float:
        return float(np.mean([np.mean(m[max(1, key + 1) : len(m) - sets.last, key]) for m in weights["fresh"]]))

    length = sets.fresh.ids.shape[1]
    queries = range(sets.first + 2, length - sets.last)
    even = np.mean([1 / len([k for k in seen[q] if k >= sets.first and k != q]) for q in queries])
    even_first = np.mean([(0 in seen[q]) / len(seen[q]) for q in range(1, length - sets.last)])
    r, g = sets.repeated, sets.gapped
    return {
        "previous": {"score": at(1), "control": even, "second_score": at(1), "second_control": at(2)}
        | {"weight": at(1, others=False)},
        "duplicate": {
            "score": over("repeated", r.copies, True),
            "control": over("fresh", sets.fresh.copies, True),
            "second_score": over("gapped", g.copies, True),
            "second_control": over("gapped", g.shifted_copies, True),
            "weight": over("repeated", r.copies, False),
        },
        "induction": {
            "score": over("repeated", r.following, False),
            "control": over("fresh", sets.fresh.following, False),
            "second_score": over("gapped", g.following, False),
            "second_control": over("gapped", g.shifted, False),
            "weight": over("repeated", r.following, False),
        },
        "sink": {"score": first(0), "control": even_first, "second_score": first(0), "second_control": first(1)}
        | {"weight": first(0)},
    }


def test_prompts_are_what_they_are_called() -> None:
    sets = make_prompts(words(300), 200, 5, 0, causal=True)
    assert (sets.first, sets.last, sets.block) == (1, 0, 25)
    for kind in (sets.repeated, sets.fresh, sets.gapped):
        assert kind.ids.shape == (5, 101)
        assert (kind.ids[:, 0] == 0).all()
        assert kind.ids[:, 1:].min() >= 300 // 20, "the most frequent are left out"
        assert kind.ids[:, 1:].max() < 300 - 14
    for ids in sets.fresh.ids:
        assert len(set(ids)) == 101
    for kind in (sets.repeated, sets.gapped):
        for ids, following, copies in zip(kind.ids, kind.following, kind.copies, strict=True):
            for query, key in np.argwhere(copies):
                assert key < query
                assert ids[key] == ids[query]
            for query, key in np.argwhere(following):
                assert ids[key - 1] == ids[query]
                assert key <= query
    # Every token of the text that occurred before is a query in a repeated prompt.
    assert sets.repeated.copies.any(-1).sum() == 5 * 75
    gaps = [np.flatnonzero(ids[1:] == ids[1]) for ids in sets.gapped.ids]
    assert all(len(g) == 3 and (np.diff(g) > 25).all() for g in gaps)
    assert len({tuple(g) for g in gaps}) > 1, "they vary"
    assert not (sets.gapped.shifted & sets.gapped.following).any()
    again = make_prompts(words(300), 200, 5, 0, causal=True)
    assert np.array_equal(sets.gapped.ids, again.gapped.ids)
    assert not np.array_equal(sets.gapped.ids, make_prompts(words(300), 200, 5, 1, causal=True).gapped.ids)


def test_batches_change_nothing_and_nothing_stays_on_the_model() -> None:
    loaded = circuit()
    state = {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}
    whole, _ = measure_probes(loaded, ["induction", "sink"], prompts=5)
    single, _ = measure_probes(loaded, ["induction", "sink"], prompts=5, batch_tokens=1)
    numbers = ["score", "control", "second_score", "second_control", "most", "copying"]
    np.testing.assert_allclose(whole[numbers].astype(float), single[numbers].astype(float), atol=1e-6)
    assert not loaded.model.training
    assert loaded.model.config._attn_implementation == circuit().model.config._attn_implementation
    assert all(torch.equal(tensor, state[name]) for name, tensor in loaded.model.state_dict().items())


@pytest.mark.parametrize("seed", rest_slow(list(range(6)), [0]))
def test_random_models_hold_no_role(seed: int) -> None:
    torch.manual_seed(seed)
    config = GPT2Config(vocab_size=200, n_positions=110, n_embd=32, n_layer=2, n_head=4, bos_token_id=0)
    rows, _ = measure_probes(LoadedModel("random", GPT2LMHeadModel(config).eval(), words(200), None), ON_TOKENS)
    assert not rows["holds"].any()
    assert (rows["above"] < MARGIN).all()


@pytest.mark.parametrize(
    ("name", "vocabulary", "settings", "message"),
    [
        ("bart", 90, {}, "is for encoders and decoders; bart is both"),
        ("gpt2", 90, {"n_positions": 16}, "reads 16 tokens, too few for 4 copies of 4"),
        ("gpt2", 40, {"n_positions": 110}, "has 36 tokens to draw from, and 100 different ones"),
    ],
)
def test_models_that_cannot_be_asked(name: str, vocabulary: int, settings: dict[str, int], message: str) -> None:
    model = zoo.ZOO[name].build(vocab_size=vocabulary, **settings)
    with pytest.raises(OptionError, match=message):
        measure_probes(LoadedModel(name, model, words(vocabulary), None), ["sink"])


def test_the_way_to_the_logits_may_not_be_known() -> None:
    model = zoo.ZOO["qwen2"].build(vocab_size=90, tie_word_embeddings=False)
    rows, notes = measure_probes(LoadedModel("base", model, words(90), None), ["induction"], prompts=2)
    assert rows["copying"].isna().all()
    assert notes == ["Probes: `copying` is empty, as the matrix from hidden states to logits is not known."]
    assert math.isfinite(rows["score"].iloc[0])

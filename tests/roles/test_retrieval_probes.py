"""Retrieval on prompts with a question: a circuit made by hand, naive loops over weights, places of the parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch
import zoo
from circuits import circuit
from saved import build
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.attention.sites import find_sites
from headlens.errors import OptionError
from headlens.models.loading import LoadedModel
from headlens.roles import retrieval_probes
from headlens.roles.needle_prompts import NEEDLES, DocumentRun, NeedleRun, make_document_runs, make_needle_runs
from headlens.roles.retrieval_probes import measure_query_retrieval, measure_retrieval, recall
from headlens.roles.role_probes import check_probes, held_heads, measure_probes

ANSWERED = ("retrieval", "query-retrieval")


def needles() -> list[NeedleRun]:
    """Tokens of which none occurs twice, but for the last: it stands before the needle, so that induction copies it."""
    runs = []
    for group in range(4):
        rng = np.random.default_rng(group)
        tokens = rng.permutation(np.arange(2, 80))[:60].tolist()
        start = 10 + 8 * group
        ids = (0, *tokens, tokens[start])
        runs.append(NeedleRun(ids, range(start + 2, start + 8), range(1, 7), group))
    return runs


def test_the_induction_head_of_a_circuit_retrieves_and_no_other() -> None:
    model = circuit().model
    found, runs = measure_retrieval(model, needles(), model.get_output_embeddings().weight.detach())
    assert runs == 4
    for site in find_sites(model):
        for head in range(site.n_heads):
            numbers = {name: values[:, head] for name, values in found[site].items()}
            retrieves = (site.layer, head) == (1, 0)
            assert (numbers["hits"] == retrieves).all()
            assert not numbers["decoy_hits"].any()
            if retrieves:  # it goes on behind the answer, and comes back
                assert (numbers["hits_most"] > 0.6).all()
                assert (numbers["copying"] == 1).all()
            if (site.layer, head) == (0, 1):  # that of duplicates looks at the answer, too, and copies nothing
                assert (numbers["hits_most"] > 0.6).all()
            assert ((numbers["hits_even"] > 0) & (numbers["hits_even"] < 0.05)).all()


def test_a_key_at_random_is_one_in_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer with a window of three tokens sees the end of an answer alone."""
    model, ids = zoo.ZOO["mistral"].build(), tuple(range(5, 15))
    run, written = NeedleRun(ids, range(7, 10), range(1, 4), 0), (12, 13, 14)
    monkeypatch.setattr(retrieval_probes, "_written", lambda *_: written)
    found, _ = measure_retrieval(model, [run, NeedleRun(ids, range(7, 10), range(1, 4), 1)], None)
    # The steps are read from places 9, 10 and 11, which see 7 to 9, 8 to 10, 9 to 11: each its own token.
    assert next(iter(found.values()))["hits_even"] == pytest.approx(1 / 3)
    monkeypatch.setattr(retrieval_probes, "_written", lambda *_: (14, 13, 12))
    found, _ = measure_retrieval(model, [run, NeedleRun(ids, range(7, 10), range(1, 4), 1)], None)
    assert next(iter(found.values()))["hits_even"] == pytest.approx(2 / 9), "the last one is out of sight"


def test_runs_without_an_answer_do_not_count() -> None:
    model = circuit().model
    asked = [NeedleRun((*run.ids[:-1], 100), run.needle, run.decoy, run.group) for run in needles()]
    assert measure_retrieval(model, asked, None) == ({}, 0)
    found, runs = measure_retrieval(model, [*asked[:2], *needles()[2:]], None)
    assert (runs, len(next(iter(found.values()))["hits"])) == (2, 2)


@pytest.mark.parametrize(
    ("answer", "written", "share"), [((1, 2, 3, 3), (3, 9, 3, 1), 0.75), ((1, 2), (2, 2), 0.5), ((5,), (), 0)]
)
def test_recall(answer: Sequence[int], written: Sequence[int], share: float) -> None:
    assert recall(answer, written) == share


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "LlamaForCausalLM"])
def test_documents_are_ranked_as_by_loops(name: str) -> None:
    model = build(name, 60).eval()
    rng = np.random.default_rng(0)
    begin, end, empty = (
        rng.integers(2, 60, 22).tolist(),
        rng.integers(2, 60, 5).tolist(),
        rng.integers(2, 60, 3).tolist(),
    )
    documents = (range(2, 7), range(7, 12), range(12, 16), range(16, 22))
    run = DocumentRun((*begin, *end), (*begin, *empty), documents, range(22, 27), range(22, 25), 2, 0)
    found = measure_query_retrieval(model, [run])
    for site in find_sites(model):
        asked, without = (weights_of(model, ids)[site.layer] for ids in (run.ids, run.empty_ids))
        for head in range(site.n_heads):
            scores, plain = [], []
            for document in documents:
                difference = [
                    np.mean([asked[head, q, k] for q in run.query])
                    - np.mean([without[head, q, k] for q in run.empty_query])
                    for k in document
                ]
                even = [np.mean([without[head, q, k] for q in run.empty_query]) for k in document]
                for values, total in ((difference, scores), (even, plain)):
                    total.append(sum(v for v in values if v >= np.mean(values) - 2 * np.std(values)))
            numbers = {name: values[0, head] for name, values in found[site].items()}
            for values, expected in ((scores, numbers["ndcg"]), (plain, numbers["ndcg_without"])):
                rank = sorted(values, reverse=True).index(values[2])
                assert expected == pytest.approx(1 / math.log2(rank + 2), abs=1e-6)
            assert numbers["ndcg_even"] == pytest.approx(np.mean([1 / math.log2(r + 2) for r in range(4)]))


def weights_of(model: PreTrainedModel, ids: Sequence[int]) -> list[np.ndarray]:
    """By layer, (heads, query, key)."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        made = model(input_ids=torch.tensor([list(ids)]), output_attentions=True, use_cache=False)
    return [layer[0].double().numpy() for layer in made.attentions]


def test_answers_stand_where_they_are_said_to_stand(bytebpe_tokenizer: PreTrainedTokenizerBase) -> None:
    runs = make_needle_runs(bytebpe_tokenizer, 900)
    assert len(runs) == 5 * len(NEEDLES)
    for run in runs:
        begin, answer = NEEDLES[run.group]
        _, other = NEEDLES[(run.group + 1) % len(NEEDLES)]
        for span, expected in ((run.needle, answer), (run.decoy, other)):
            assert bytebpe_tokenizer.decode(list(run.ids)[span.start : span.stop]).strip() == expected
        text = bytebpe_tokenizer.decode(list(run.ids))
        assert text.endswith(f"Answer: {begin}")
        assert text.count(answer) == 1
        assert len(run.ids) + run.longest <= 900
    places = [run.needle.start / len(run.ids) for run in runs[:5]]
    assert places == sorted(places)
    assert places[0] < 0.1
    for document in make_document_runs(bytebpe_tokenizer, 1200, seed=3):
        ids = list(document.ids)
        assert document.empty_ids[: document.query.start] == document.ids[: document.query.start]
        gold = document.documents[document.gold]
        assert " ".join(NEEDLES[document.group]) in bytebpe_tokenizer.decode(ids[gold.start : gold.stop])
        asked = bytebpe_tokenizer.decode(ids[document.query.start : document.query.stop])
        assert asked.strip().startswith("Which note")
        assert asked.endswith("Answer:")


def test_models_that_cannot_be_asked(
    wordpiece_tokenizer: PreTrainedTokenizerBase, bytebpe_tokenizer: PreTrainedTokenizerBase
) -> None:
    encoder = LoadedModel("bert", build("BertForMaskedLM", len(wordpiece_tokenizer)), wordpiece_tokenizer, None)
    decoder = LoadedModel("gpt2", build("GPT2LMHeadModel", len(bytebpe_tokenizer)), bytebpe_tokenizer, None)
    for probe in ANSWERED:
        with pytest.raises(OptionError, match=f"--probes {probe} is for decoders; bert is none"):
            check_probes(encoder, [probe])
        with pytest.raises(OptionError, match="the model reads 40 tokens, and retrieval needs"):
            check_probes(decoder, [probe])
        with pytest.raises(OptionError, match=r"100% of its tokens are unknown|retrieval needs"):
            check_probes(circuit(), [probe])


def test_a_model_that_answers_nothing_has_no_rows(
    bytebpe_tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headlens.roles.needle_prompts.NEEDLES", NEEDLES[:3])
    monkeypatch.setattr("headlens.roles.role_probes.make_needle_runs", partial(make_needle_runs, depths=(0.5,)))
    decoder = LoadedModel(
        "gpt2", build("GPT2LMHeadModel", len(bytebpe_tokenizer), n_positions=1024), bytebpe_tokenizer, None
    )
    rows, notes = measure_probes(decoder, ANSWERED)
    assert set(rows["probe"]) == {"query-retrieval"}
    assert notes[0].startswith("Retrieval: the model repeats more than half of the answer in 0 of 3 prompts of about")
    assert notes[1].startswith("Retrieval: too few facts")
    assert held_heads(rows) == {"query-retrieval": []}
    assert rows["score"].between(0, 1).all()
    assert (rows["n"] == 3).all()

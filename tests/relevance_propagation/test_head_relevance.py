"""Relevance over a corpus against one example at a time, written out by hand."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pandas.testing import assert_frame_equal
from saved import Memory, build, save, sentence
from tiers import rest_slow
from torch import nn
from transformers import PreTrainedTokenizerBase

from headlens.corpora.sentence import Example
from headlens.errors import CorpusError, Interrupted, OptionError
from headlens.models.loading import LoadedModel, load
from headlens.relevance_propagation.head_relevance import HeadRelevances, head_relevance
from headlens.relevance_propagation.relevance_options import ReadingOptions, RelevanceOptions, Rule
from headlens.relevance_propagation.relevance_session import RelevanceSession
from headlens.relevance_propagation.targets import (
    EveryPosition,
    MaskedTokenLogits,
    OwnEmbedding,
    PredictedClass,
    SimilarityTarget,
    Target,
    generated,
)
from headlens.runs.checkpoint import Checkpoint
from headlens.runs.corpus_pass import CorpusPass
from headlens.runs.processes import Processes

TEXTS = ["the old teachers see mice", "dogs chase small cats in the house", "birds sleep", "a cat cannot see it at all"]
SINGLE = Memory([Example(sentence(t)) for t in TEXTS * 2])
PAIRS = Memory([Example(sentence(a), sentence(b)) for a in TEXTS for b in TEXTS[:3]])
MARIAN = {"pad_token_id": 0, "eos_token_id": 102, "decoder_start_token_id": 0, "forced_eos_token_id": None}
BART = MARIAN | {"bos_token_id": 101}
FAST = RelevanceOptions(replicates=100)
SMALL = ReadingOptions(batch_tokens=30)

Tokenizer = PreTrainedTokenizerBase
Loaded = Callable[[str], LoadedModel]
Inputs = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory, wordpiece_tokenizer: Tokenizer) -> Loaded:
    folder, built = tmp_path_factory.mktemp("models"), dict[str, LoadedModel]()

    def get(name: str) -> LoadedModel:
        if name not in built:
            settings = MARIAN if "Marian" in name else BART if "Bart" in name else {"pad_token_id": 0}
            built[name] = load(
                save(build(name, len(wordpiece_tokenizer), **settings), folder / name, wordpiece_tokenizer)
            )
        return built[name]

    return get


@dataclass(frozen=True)
class Case:
    """A kind of model, its corpus, where relevance starts, and how an example becomes inputs."""

    model: str
    corpus: Memory
    target: Target
    inputs: Callable[[LoadedModel, Example], Inputs]


def tokens(loaded: LoadedModel, *texts: str, **options: Any) -> Inputs:
    assert loaded.tokenizer is not None
    return dict(loaded.tokenizer(*texts, return_tensors="pt", **options))


def alone(loaded: LoadedModel, example: Example) -> Inputs:
    found = tokens(loaded, example.source.text)
    found.pop("token_type_ids", None)
    return found


def joined(loaded: LoadedModel, example: Example) -> Inputs:
    assert example.target is not None
    return tokens(loaded, example.source.text, example.target.text)


def apart(loaded: LoadedModel, example: Example) -> Inputs:
    assert example.target is not None
    assert loaded.tokenizer is not None
    return dict(loaded.tokenizer([example.source.text, example.target.text], return_tensors="pt", padding=True))


def forced(loaded: LoadedModel, example: Example) -> Inputs:
    assert example.target is not None
    found, labels = alone(loaded, example), tokens(loaded, example.target.text)["input_ids"]
    start = torch.full((1, 1), loaded.decoder_start_id or 0)
    return {**found, "decoder_input_ids": torch.cat([start, labels[:, :-1]], dim=1)}


def written(loaded: LoadedModel, example: Example) -> Inputs:
    return generated(loaded.model, alone(loaded, example), 39)


CASES = {
    "bert, class": Case("BertForSequenceClassification", SINGLE, PredictedClass(), alone),
    "bert, class of pairs": Case("BertForSequenceClassification", PAIRS, PredictedClass(), joined),
    "albert, class": Case("AlbertForSequenceClassification", SINGLE, PredictedClass(), alone),
    "bart, class": Case("BartForSequenceClassification", SINGLE, PredictedClass(), alone),
    "bart, class of pairs": Case("BartForSequenceClassification", PAIRS, PredictedClass(), joined),
    "roberta, class": Case("RobertaForSequenceClassification", SINGLE, PredictedClass(), alone),
    "distilbert, class": Case("DistilBertForSequenceClassification", SINGLE, PredictedClass(), alone),
    "electra, class": Case("ElectraForSequenceClassification", SINGLE, PredictedClass(), alone),
    "bert, embedding": Case("BertModel", SINGLE, OwnEmbedding(), alone),
    "bert, similarity": Case("BertModel", PAIRS, SimilarityTarget(), apart),
    "marian, forced": Case("MarianMTModel", PAIRS, EveryPosition(), forced),
    "bart, forced": Case("BartForConditionalGeneration", PAIRS, EveryPosition(), forced),
    "marian, written": Case("MarianMTModel", Memory(SINGLE.examples[:3]), EveryPosition(), written),
    "gpt2, positions": Case("GPT2LMHeadModel", SINGLE, EveryPosition(), alone),
}


def one_by_one(case: Case, loaded: LoadedModel) -> pd.DataFrame:
    """Mean shares and mean raw sums, without batches, corpora or bootstrap."""
    whole = loaded.model if not case.target.pooled else loaded.model.base_model
    assert isinstance(whole, nn.Module)
    session = RelevanceSession(whole, case.target)  # type: ignore[arg-type]
    rows = []
    for example in case.corpus:
        inputs = case.inputs(loaded, example)
        with session:
            found = session.relevance(inputs)
        for site, raw in found.raw.items():
            total = float(raw.sum())
            kept = abs(total) >= 0.1 * float(raw.abs().sum())
            rows += [
                {
                    "stack": site.stack,
                    "layer": site.layer,
                    "head": h,
                    "raw": float(r),
                    "share": r / total if kept else np.nan,
                }
                for h, r in enumerate(raw[0].tolist())
            ]
    return pd.DataFrame(rows).groupby(["stack", "layer", "head"]).mean()


MOST_KINDS = [
    "bert, class of pairs",
    "albert, class",
    "bert, similarity",
    "bart, forced",
    "marian, written",
    "gpt2, positions",
]


@pytest.mark.parametrize(
    "name", rest_slow(CASES, ["bert, class of pairs", "albert, class", "marian, written", "gpt2, positions"])
)
def test_against_one_example_at_a_time(loaded: Loaded, name: str) -> None:
    case = CASES[name]
    model = loaded(case.model)
    found = head_relevance(model, case.corpus, FAST, reading=SMALL)
    expected = one_by_one(case, model)
    rows = found.table.rows.set_index(["stack", "layer", "head"])
    assert len(rows) == len(expected)
    assert set(rows["target"]) == {case.target.name}
    scale = rows["raw"].abs().max()
    np.testing.assert_allclose(rows["raw"].loc[expected.index], expected["raw"], atol=2e-5 * scale)
    # Shares divide by a sum that may nearly cancel, so rounding weighs more.
    np.testing.assert_allclose(rows["relevance"].loc[expected.index], expected["share"], atol=2e-4)
    two_sided = model.model.config.is_encoder_decoder
    assert len(found.table.stacks) == (3 if two_sided else 1)
    # An encoder-decoder reads both texts, but not as one sequence.
    assert any("read as one sequence" in note for note in found.notes) == (case.inputs is joined)


def test_masked_tokens(loaded: Loaded) -> None:
    model = loaded("AlbertForMaskedLM")
    assert model.tokenizer is not None
    mask = model.tokenizer.mask_token_id
    assert isinstance(mask, int)
    texts = ["the [MASK] teachers see mice", "dogs chase [MASK] [MASK] in the house"]
    corpus = Memory([Example(sentence(t)) for t in texts])
    expected = one_by_one(Case("", corpus, MaskedTokenLogits(mask), alone), model)
    rows = head_relevance(model, corpus, FAST).table.rows.set_index(["stack", "layer", "head"])
    np.testing.assert_allclose(rows["relevance"], expected["share"], atol=2e-4)
    assert set(rows["target"]) == {"masked"}
    # Masks of its own: more of them start with more logits, another seed masks other tokens.
    few, many, other = (
        head_relevance(model, SINGLE, RelevanceOptions(mask_share=s, replicates=100), reading=ReadingOptions(seed=seed))
        for s, seed in ((0.1, 0), (1.0, 0), (0.1, 1))
    )
    assert few.conservation["epsilon"].inputs != other.conservation["epsilon"].inputs
    assert few.table.rows["raw"].abs().sum() < many.table.rows["raw"].abs().sum()


def test_masks_are_told(loaded: Loaded) -> None:
    model = loaded("AlbertForMaskedLM")
    texts = ["the [MASK] teachers see mice", "dogs chase small cats in the house", "birds sleep"]
    found = head_relevance(model, Memory([Example(sentence(t)) for t in texts]), FAST)
    assert (
        "2 tokens of 2 sentences were masked; 1 sentence that contains mask tokens was not masked further."
        in found.notes
    )
    assert (found.encoding.masked, found.encoding.own_masks) == (2, 1)
    with pytest.raises(OptionError, match="mask-share: no tokens are masked for the target embedding"):
        head_relevance(loaded("BertModel"), SINGLE, RelevanceOptions(mask_share=0.5))


@pytest.mark.parametrize("name", rest_slow(["marian, forced", "bert, class", "bert, embedding"], 2))
def test_heads_and_the_remainder_add_up_to_the_target(loaded: Loaded, name: str) -> None:
    case = CASES[name]
    model = loaded(case.model)
    direct = RelevanceOptions(rule="logit-attribution", replicates=100)
    found = head_relevance(model, case.corpus, direct, compare=("epsilon",), reading=SMALL)
    whole: Any = model.model.base_model if case.target.pooled else model.model
    with torch.no_grad():
        inputs = [case.inputs(model, example) for example in case.corpus]
        starts = [float(case.target.parts(whole(**own), own).sum()) for own in inputs]
    rows = found.table.rows[found.table.rows["rule"] == "logit-attribution"]
    (remainder,) = rows["remainder"].unique()
    assert rows["raw"].sum() + remainder == pytest.approx(np.mean(starts), abs=1e-4)
    others = found.table.rows[found.table.rows["rule"] == "epsilon"]
    assert others[["remainder", "remainder_low", "remainder_high"]].isna().all(axis=None)
    flow = found.conservation["logit-attribution"]
    assert flow.others["heads"] == pytest.approx(rows["raw"].sum() / np.mean(starts), abs=1e-3)
    assert flow.lost == pytest.approx(0, abs=1e-4)
    (told,) = (note for note in found.notes if note.startswith("logit-attribution: of the target, heads give"))
    assert f"heads give {flow.others['heads']:.1%} themselves. The remainder: {flow.others['mlps']:.1%} MLPs" in told
    assert ("to their tangents" in told) == (name == "bert, class")
    absent = [note for note in found.notes if "heads of the encoder write nothing into the residual stream" in note]
    assert len(absent) == (name == "marian, forced")
    given = rows[rows["raw"].notna()]
    assert set(given["stack"]) == set(others["stack"]) - ({"encoder"} if absent else set())
    assert (given["raw"] != 0).all()
    compared = found.correlations[found.correlations["of"] == "raw"].set_index("stack")["n"]
    assert compared.to_dict() == {**given.groupby("stack").size()} | ({"all": len(given)} if len(compared) > 1 else {})
    assert not any("encoder 0" in note for note in found.notes if "cancel" in note and absent)


def test_layers_that_work_against_the_target_are_told(bert: LoadedModel) -> None:
    found = head_relevance(bert, PAIRS, FAST)
    layers = found.table.rows.drop_duplicates("layer")
    against = [f"encoder {r.layer} ({r.negative})" for r in layers.itertuples() if r.negative]
    told = [note for note in found.notes if "work against the target" in note]
    assert len(told) == bool(against)
    assert all(layer in told[0] for layer in against)


def test_too_few_examples_for_intervals(bert: LoadedModel) -> None:
    few = Memory(PAIRS.examples[:4])
    found = head_relevance(bert, few, FAST, compare=("taylor",))
    assert found.table.rows["relevance"].notna().any()
    assert found.table.rows[["ci_low", "ci_high", "signed_low", "signed_high"]].isna().all(axis=None)
    assert found.correlations[["ci_low", "ci_high"]].isna().all(axis=None)
    assert "Layers with fewer than 10 examples have no intervals." in found.notes


@pytest.mark.parametrize(("rule", "told"), [("alpha-beta", True), ("taylor", False), ("gradxact", False)])
def test_a_rule_that_gives_all_heads_the_sign_of_the_target_says_so(bert: LoadedModel, rule: Rule, told: bool) -> None:
    found = head_relevance(bert, Memory(PAIRS.examples[:4]), RelevanceOptions(rule=rule, replicates=100))
    assert any("have the sign of what relevance starts from" in note for note in found.notes) == told


def frames(found: HeadRelevances) -> dict[str, pd.DataFrame]:
    return found.frames("m") | {"encoding": pd.DataFrame([vars(found.encoding)])}


@pytest.fixture(scope="module")
def bert(loaded: Loaded) -> LoadedModel:
    return loaded("BertForSequenceClassification")


def run(bert: LoadedModel, how: CorpusPass | None = None, corpus: Memory = PAIRS) -> dict[str, pd.DataFrame]:
    return frames(head_relevance(bert, corpus, FAST, compare=("taylor", "gradxact"), reading=SMALL, corpus_pass=how))


@pytest.fixture(scope="module")
def expected(bert: LoadedModel) -> dict[str, pd.DataFrame]:
    return run(bert)


def assert_same(found: dict[str, pd.DataFrame], expected: dict[str, pd.DataFrame], within: float = 0.0) -> None:
    assert list(found) == list(expected)
    for name, frame in expected.items():
        assert_frame_equal(found[name], frame, check_exact=within == 0, rtol=within, atol=within, obj=name)


def test_rules_stand_beside_each_other(bert: LoadedModel, expected: dict[str, pd.DataFrame]) -> None:
    rows = expected["relevance"]
    assert rows["rule"].iloc[0] == "epsilon"
    assert rows.groupby("rule").size().to_dict() == {"epsilon": 4, "taylor": 4, "gradxact": 4}
    for rule, own in rows.groupby("rule"):
        only = head_relevance(bert, PAIRS, RelevanceOptions(rule=str(rule), replicates=100), reading=SMALL)  # type: ignore[arg-type]
        assert_frame_equal(own.reset_index(drop=True), only.frames("m")["relevance"], check_exact=True)
    assert set(expected["correlations"]["other_rule"]) == {"taylor", "gradxact"}
    # A layer whose heads cancel in every example has no shares.
    shares = rows.groupby(["rule", "layer"])["relevance"].sum(min_count=1).dropna()
    assert len(shares) >= 4
    np.testing.assert_allclose(shares, 1.0, atol=1e-9)


def test_batches_do_not_matter(bert: LoadedModel, expected: dict[str, pd.DataFrame]) -> None:
    large = head_relevance(bert, PAIRS, FAST, compare=("taylor", "gradxact"), reading=ReadingOptions(10**6))
    assert_same(frames(large), expected, 1e-3)


@contextmanager
def hooked(loaded: LoadedModel, hook: Callable[[torch.Tensor], None]) -> Iterator[None]:
    module: Any = loaded.model.base_model
    watch: Callable[[nn.Module, Any], None] = lambda _, inputs: hook(inputs[0])  # noqa: E731
    handle = module.encoder.layer[1].register_forward_pre_hook(watch)
    try:
        yield
    finally:
        handle.remove()


def test_out_of_memory_in_any_rule_counts_nothing_twice(bert: LoadedModel) -> None:
    calls, failures = 0, 0

    def memory(hidden: torch.Tensor) -> None:
        nonlocal calls, failures
        calls += 1
        # Every third pass is the third rule's: by then the others have done the batch.
        if calls % 3 == 0 and len(hidden) > 1 and failures < 3:
            failures += 1
            raise torch.OutOfMemoryError("no memory")

    warnings: list[str] = []
    with hooked(bert, memory):
        few = Memory(PAIRS.examples[:6])
        found = run(bert, CorpusPass(warn=warnings.append), few)
    assert failures
    assert "batches are halved" in warnings[0]
    one_at_a_time = frames(head_relevance(bert, few, FAST, compare=("taylor", "gradxact"), reading=ReadingOptions(1)))
    assert_same(found, one_at_a_time, 1e-3)
    assert found["relevance"]["n"].tolist() == one_at_a_time["relevance"]["n"].tolist()


def test_interrupted_and_resumed(bert: LoadedModel, expected: dict[str, pd.DataFrame], tmp_path: Path) -> None:
    calls = 0

    def interrupt(hidden: torch.Tensor) -> None:
        nonlocal calls
        calls += 1
        if calls == 8:
            signal.raise_signal(signal.SIGINT)

    previous = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, _raise)
    try:
        with hooked(bert, interrupt), pytest.raises(Interrupted):
            run(bert, CorpusPass(checkpoint=Checkpoint(tmp_path / "k.npz", {"a": "b"})))
    finally:
        signal.signal(signal.SIGINT, previous)
    assert (tmp_path / "k.npz").exists()
    assert_same(run(bert, CorpusPass(checkpoint=Checkpoint(tmp_path / "k.npz", {"a": "b"}))), expected)


def _raise(number: int, frame: object) -> None:
    raise Interrupted(number)


def test_shards_add_up(bert: LoadedModel, expected: dict[str, pd.DataFrame], monkeypatch: pytest.MonkeyPatch) -> None:
    dumps: dict[int, bytes] = {}

    def gather(self: Processes, own: bytes) -> list[bytes]:
        dumps[self.rank] = own
        return [dumps[r] for r in sorted(dumps)]

    monkeypatch.setattr(Processes, "gather", gather)
    run(bert, CorpusPass(shard=Processes(0, 2)))
    assert_same(run(bert, CorpusPass(shard=Processes(1, 2))), expected, 1e-3)


def test_similarity_batches_count_both_sentences(loaded: Loaded) -> None:
    rows: list[int] = []
    with hooked(loaded("BertModel"), lambda hidden: rows.append(hidden.shape[0] * hidden.shape[1])):
        head_relevance(loaded("BertModel"), PAIRS, FAST, reading=ReadingOptions(60))
    assert max(rows) <= 60
    assert len(rows) > 1


@pytest.mark.parametrize(
    ("options", "message"), [({"rule": "lrp"}, "--rule 'lrp' is unknown"), ({"replicates": 0}, "--replicates 0")]
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        RelevanceOptions(**options)


def test_bad_comparison(bert: LoadedModel) -> None:
    with pytest.raises(OptionError, match="--compare lrp is not a rule"):
        head_relevance(bert, SINGLE, compare=("lrp",))  # type: ignore[arg-type]


def test_nothing_to_read(bert: LoadedModel) -> None:
    with pytest.raises(CorpusError, match="is empty"):
        head_relevance(bert, Memory([]))
    with pytest.raises(CorpusError, match="1 longer than its 40 tokens"):
        head_relevance(bert, Memory([Example(sentence("a " * 50 + "b"))]))

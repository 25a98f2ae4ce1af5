"""Tables of ablation against counting by hand; parts to rank and to evaluate on."""

from __future__ import annotations

import math
from math import comb

import naive_statistics
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from saved import build

from headlens.analyses.ablate.options import AblationOptions
from headlens.analyses.ablate.recipe import idle_notes
from headlens.analyses.ablate.single_heads import (
    ablation_table,
    share_intervals,
    with_kept,
    with_restored,
    with_zeroed_heads,
)
from headlens.analyses.ablate.sweep import HeadRecords, zeroed_heads
from headlens.attention.sites import find_sites
from headlens.errors import OptionError
from headlens.findings.verdicts import without_verdicts
from headlens.heads import Head
from headlens.statistics.bootstrap import Draws
from headlens.statistics.non_inferiority import NOT_NEEDED
from headlens.statistics.paired_tests import PairedComparison
from headlens.tables.ablation_tables import ABLATION
from headlens.tasks.catalogue import CATALOGUE
from headlens.tasks.classification import SequenceClassification
from headlens.tasks.evaluation import chosen_metric, paired_comparison
from headlens.tasks.skill import skill_of
from headlens.tasks.task_examples import ranking_part
from headlens.weights.head_slicing import scale_heads

SST2, STSB, COLA = (CATALOGUE[name].task for name in ("sst2", "stsb", "cola"))
HEADS = [Head("encoder", layer, head) for layer in range(2) for head in range(2)]
KEYS = [f"example {i}" for i in range(40)]
# Of modes with changed texts.
WITH_TEXTS = {"on_changed", "kept", "on_original", "restored", "receiver", "texts_delta", "texts_low", "texts_high"}
WITH_TEXTS |= {"texts_p_value", "kept_low", "kept_high", "restored_low", "restored_high"}
ENDS = np.array([0.1, 0.2]), np.array([0.3, 0.4])  # of intervals of shares
SCREENED = {"attribution", "confirmed", "subset_effect", "subset_bound"}


def classified(predicted: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.stack([labels, predicted, np.where(labels == predicted, 0.1, 2.0)], axis=1).astype(float)


@pytest.fixture
def records() -> HeadRecords:
    """Head 0.0 does nothing, 0.1 breaks 12 examples, 1.0 mends 2, 1.1 breaks 3 and mends 3."""
    labels = np.tile([0, 1], 20)
    base = labels.copy()
    base[:5] = 1 - base[:5]
    turned = {HEADS[0]: [], HEADS[1]: range(5, 17), HEADS[2]: range(2), HEADS[3]: [0, 1, 2, 10, 11, 12]}
    found = HeadRecords(HEADS, 40, 3)
    without = []
    for places in turned.values():
        own = base.copy()
        own[list(places)] = 1 - own[list(places)]
        without.append(classified(own, labels))
    found.put(range(40), np.stack([classified(base, labels), *without]))
    return found


def test_a_row_for_every_head(records: HeadRecords) -> None:
    table = ablation_table(SST2, "accuracy", "zero", records, Draws.of(KEYS, 500))
    assert table.columns.tolist() == [n for n in ABLATION.names[1:] if n not in WITH_TEXTS | SCREENED]
    assert [Head(*r) for r in table[["stack", "layer", "head"]].itertuples(index=False)] == HEADS
    assert table["n"].tolist() == [40] * 4
    assert table["baseline"].tolist() == [35 / 40] * 4
    assert table["value"].tolist() == [35 / 40, 23 / 40, 37 / 40, 35 / 40]
    assert table["delta"].tolist() == pytest.approx([0, -12 / 40, 2 / 40, 0])
    assert table["p_value"].tolist() == pytest.approx([1, 2 / 2**12, 2 / 4, 1])
    assert table["p_holm"].tolist() == pytest.approx([1, 8 / 2**12, 1, 1])
    assert (table["ci_low"] <= table["delta"]).all()
    assert (table["delta"] <= table["ci_high"]).all()
    for row, changes in enumerate([(0, 0), (0, 12), (2, 0), (3, 3)]):
        expected = naive_statistics.paired_score_interval(*changes, 40)
        assert table.loc[row, ["ci_low", "ci_high"]].tolist() == pytest.approx(expected, abs=1e-6)
    assert table.loc[1, "ci_high"] < 0
    assert set(table["task"] + table["metric"] + table["mode"]) == {"sst2accuracyzero"}


def test_mcnemar_where_examples_are_right_or_wrong_else_the_bootstrap(records: HeadRecords) -> None:
    draws = Draws.of(KEYS, 400)
    found = paired_comparison(COLA, "matthews", records.intact, draws).of(dict(records.items())[HEADS[2]])
    replicates = []
    for weights in draws.counts.astype(int):
        values = [np.repeat(r, weights, axis=0) for r in (records.intact, dict(records.items())[HEADS[2]])]
        scores = [np.corrcoef(v[:, 0], v[:, 1])[0, 1] for v in values]
        replicates.append(scores[1] - scores[0])
    assert (found.low, found.high) == pytest.approx(np.quantile(replicates, [0.025, 0.975]).tolist(), abs=1e-9)
    far = sum(abs(r - found.delta) >= abs(found.delta) for r in replicates)
    assert far, "else Student's t alone bounds the p-value"
    assert found.p_value == pytest.approx((1 + far) / 401)
    exact = paired_comparison(COLA, "accuracy", records.intact, draws).of(dict(records.items())[HEADS[3]])
    assert exact.p_value == pytest.approx(min(1.0, 2 * sum(comb(6, i) for i in range(4)) / 64))


def test_correlations(records: HeadRecords) -> None:
    rng = np.random.default_rng(0)
    found = HeadRecords(HEADS[:1], 40, 2)
    gold = rng.normal(size=(40, 1))
    base, worse = (np.hstack([gold, gold + rng.normal(scale=s, size=(40, 1))]) for s in (0.1, 2.0))
    found.put(range(40), np.stack([base, worse]))
    table = ablation_table(STSB, "pearson", "mean", found, Draws.of(KEYS, 300))
    expected = [np.corrcoef(r.T)[0, 1] for r in (base, worse)]
    assert table.loc[0, ["baseline", "value"]].tolist() == pytest.approx(expected)
    assert table.loc[0, "ci_high"] < 0
    assert table.loc[0, "p_value"] < 0.01


def shifted(name: str, said: float, changed: int) -> HeadRecords:
    """Two heads of a model that says the same of 400 examples but for some; without head 0 it says it of all."""
    columns, rng = CATALOGUE[name].task.columns, np.random.default_rng(0)
    found = HeadRecords(HEADS[:2], 400, len(columns))
    record = rng.random((400, len(columns)))
    place = columns.index("predicted") if "predicted" in columns else 0
    record[:, 0] = np.arange(400) % 2
    record[:, place] = said
    without = record.copy()
    record[:changed, place] = 1 - said
    found.put(range(400), np.stack([record, without, record]))
    return found


@pytest.mark.parametrize(
    ("name", "metric"),
    [("sst2", "accuracy"), ("cola", "matthews"), ("mrpc", "f1"), ("paraphrase", "accuracy"), ("stsb", "pearson")],
)
def test_one_answer_to_all_examples_has_no_verdicts(name: str, metric: str) -> None:
    task, draws = CATALOGUE[name].task, Draws.of([str(n) for n in range(400)], 100)
    for changed, constant in ((0, True), (1, False), (200, False)):
        records = shifted(name, 1.0, changed)
        table = ablation_table(task, metric, "zero", records, draws)
        assert table.columns.tolist() == [n for n in ABLATION.names[1:] if n not in WITH_TEXTS | SCREENED]
        silent = constant or skill_of(task, records.intact).lacking
        assert table["verdict"].isna().tolist() == [silent] * 2
        assert not silent or table["n_to_decide"].isna().all()
    if task.right(np.zeros((2, len(task.columns))), metric) is not None:
        assert table[["p_value", "p_margin"]].notna().all(axis=None), "p-values stay"


def guessed(name: str, share: float) -> np.ndarray:
    """Records of 400 examples, of which so large a share is right, spread evenly over both classes."""
    gold, right = np.arange(400) % 2, np.arange(400) % 100 < 100 * share
    if name == "stsb":
        return np.stack([np.arange(400) % 100, np.where(right, np.arange(400) % 100, 30.0)], axis=1)
    if name == "logit-difference":
        return np.where(right, 1.0, -1.0)[:, None]
    if name == "causal-lm":  # sums over ten tokens of two kinds, which occur equally often: 10 log 2 is 6.9
        return np.stack([np.where(right, 5.0, 8.9), np.full(400, 10.0), np.full(400, 5.0)], axis=1)
    of_length = [np.zeros(400)] * (name == "minimal-pairs")
    return np.stack([gold, np.where(right, gold, 1 - gold), np.ones(400), *of_length], axis=1).astype(float)


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        *(("sst2", "accuracy"), ("cola", "matthews"), ("stsb", "pearson"), ("logit-difference", "logit_difference")),
        *(("minimal-pairs", "accuracy"), ("causal-lm", "loss"), ("causal-lm", "perplexity")),
    ],
)
def test_a_model_that_guesses_has_no_verdicts(name: str, metric: str) -> None:
    task, labels = CATALOGUE[name].task, {1: 2000, 2: 2000} if name == "causal-lm" else None
    draws = Draws.of([str(n) for n in range(400)], 100)
    guesses = 0.0 if name == "stsb" else 0.5
    for share, skilled in ((0.8, True), (guesses, False)):
        record = guessed(name, share)
        found = HeadRecords(HEADS[:1], 400, record.shape[1])
        found.put(range(400), np.stack([record, record]))
        assert skill_of(task, record, labels).better is skilled
        table = ablation_table(task, metric, "zero", found, draws, labels=labels)
        assert table["verdict"].notna().tolist() == [skilled]


def test_what_varies_with_how_sure_a_model_is_has_verdicts() -> None:
    sure = SequenceClassification("own", ("no", "yes"), ("accuracy", "loss"))
    records = shifted("sst2", 1.0, 0).intact
    assert sure.constant(records, "accuracy")
    assert not sure.constant(records, "loss")
    assert not sure.constant(records[:1], "accuracy"), "a single example"
    assert math.isnan(sure.answer_share(records[:1], "accuracy"))
    nearly = np.stack([np.zeros(40), np.arange(40) == 7, np.zeros(40)], axis=1)
    assert sure.answer_share(nearly, "accuracy") == 39 / 40
    assert not sure.constant(nearly, "accuracy")
    for name in ("mlm", "translation-loss"):
        task = CATALOGUE[name].task
        assert math.isnan(task.answer_share(np.ones((40, len(task.columns))), task.metrics[0]))
        assert not task.constant(np.ones((40, len(task.columns))), task.metrics[0]), "records do not hold the answers"


@pytest.mark.parametrize(("same", "words"), [((0,), "1 head changes"), ((1, 3), "2 heads change"), ((), "")])
def test_heads_that_change_nothing_are_told_as_removed_singly(same: tuple[int, ...], words: str) -> None:
    record = np.random.default_rng(0).random((40, 3))
    without = np.stack([record if place in same else record + np.array([0, 0, 1e-12]) for place in range(4)])
    for constant in (False, True):
        found = HeadRecords(HEADS, 40, 3)
        found.put(range(40), np.stack([record, *without]) * [1, not constant, 1])
        names = " ".join(str(HEADS[place]) for place in same)
        told = f"Removed singly, {words} no output that is measured on these 40 examples, in any digit: {names}."
        assert idle_notes(SST2, "accuracy", found) == [told] * bool(same and not constant)


def test_heads_without_weights_are_not_needed_whatever_the_examples(records: HeadRecords) -> None:
    zeroed = [HEADS[0]]
    tables = [ablation_table(SST2, "accuracy", mode, records, Draws.of(KEYS, 500)) for mode in ("zero", "keep-only")]
    assert tables[0]["verdict"].tolist() == ["not decided", "needed", "not decided", "not decided"]
    table = with_zeroed_heads(pd.concat(tables, ignore_index=True), zeroed)
    assert table["verdict"].tolist()[:4] == ["not needed", "needed", "not decided", "not decided"]
    assert math.isnan(table["n_to_decide"][0])
    # A head that adds nothing is not enough as the only one of its layer.
    assert table["verdict"].tolist()[4:] == tables[1]["verdict"].tolist()
    assert with_zeroed_heads(without_verdicts(table), zeroed)["verdict"].isna().all()
    (first, *others) = idle_notes(SST2, "accuracy", records, zeroed)
    assert first == (
        "1 head adds nothing to any text, as weights of the output projection are 0, and is not needed: encoder.0.0."
    )
    assert not others


def test_the_only_head_of_a_layer_shows_nothing_of_others() -> None:
    """Kept alone it is the whole model, however many examples there are."""
    right = np.stack([np.ones(4000), np.ones(4000), np.zeros(4000)], axis=1)
    wrong = right.copy()
    wrong[: len(wrong) // 2, 1] = 0
    heads = [Head("encoder", 0, 0), Head("encoder", 1, 0), Head("encoder", 1, 1)]
    records = HeadRecords(heads, len(right), 3)
    right[::4, 0] = right[::4, 1] = 0
    wrong[::4, 0] = 0
    records.put(range(len(right)), np.stack([right, right, wrong, right]))
    draws = Draws.of([f"e{n}" for n in range(len(right))], 10)
    verdicts = {
        m: ablation_table(SST2, "accuracy", m, records, draws)["verdict"].tolist() for m in ("zero", "keep-only")
    }
    assert verdicts["zero"] == ["not needed", "needed", "not needed"]
    assert verdicts["keep-only"] == ["not decided", "needed", "not needed"]


@pytest.mark.parametrize("name", ["BertForMaskedLM", "GPT2LMHeadModel", "LlamaForCausalLM"])
def test_heads_without_weights_are_found(name: str) -> None:
    model = build(name, 40)
    assert not zeroed_heads(model, CATALOGUE["mlm"].task)
    scale_heads(model, find_sites(model)[1].module, [1.0, *[0.0] * (find_sites(model)[1].n_heads - 1)])
    assert zeroed_heads(model, CATALOGUE["mlm"].task) == list(find_sites(model)[1].heads[1:])


def test_metrics_by_name() -> None:
    assert chosen_metric(COLA, None) == "matthews"
    assert chosen_metric(COLA, "accuracy") == "accuracy"
    with pytest.raises(OptionError, match=r"(?s)task cola has no metric 'bleu'.*matthews, accuracy"):
        chosen_metric(COLA, "bleu")


def test_options() -> None:
    assert AblationOptions().modes == ["zero"]
    assert AblationOptions("mean", keep_only=True).modes == ["mean", "keep-only"]
    with pytest.raises(OptionError, match="--replicates 0 is out of range"):
        AblationOptions(replicates=0)
    with pytest.raises(OptionError, match="--batch-tokens -1 is out of range"):
        AblationOptions(batch_tokens=-1)
    with pytest.raises(OptionError, match=r"--mode keep-only is an option of its own now\.\nGive --keep-only"):
        AblationOptions("keep-only")


@given(st.integers(150, 400), st.floats(0.25, 0.65), st.integers(0, 5))
def test_examples_are_drawn_each_by_itself(count: int, share: float, seed: int) -> None:
    keys = [str(i) for i in range(count)]
    chosen = ranking_part(keys, share, seed)
    assert abs(chosen.mean() - share) < 5 * np.sqrt(share * (1 - share) / count)
    more = ranking_part([*reversed(keys), "new"], share, seed)
    assert (more[:-1][::-1] == chosen).all()
    assert (ranking_part(keys, min(0.9, share + 0.1), seed) >= chosen).all()


def test_both_parts_need_examples() -> None:
    assert (ranking_part(KEYS, 0.5, 0) != ranking_part(KEYS, 0.5, 1)).any()
    for share in (0.0, 1.0):
        with pytest.raises(OptionError, match="leaves nothing to rank or to evaluate on"):
            ranking_part(KEYS, share, 0)
    with pytest.raises(OptionError, match="3 examples cannot be split"):
        ranking_part(KEYS[:3], 0.5, 0)


@pytest.mark.parametrize(
    ("metric", "changed", "original", "restored"),
    [
        ("accuracy", 0.5, 0.9, [0.5, -0.25]),
        ("accuracy", 0.9, 0.5, None),
        ("accuracy", 0.5, 0.5, None),
        ("loss", 3.0, 2.0, [-0.2, 0.1]),
        ("loss", 2.0, 3.0, None),
    ],
)
@pytest.mark.parametrize("p_value", [0.04, 0.06, math.nan])
def test_only_what_changed_texts_take_away_is_restored(
    metric: str, changed: float, original: float, restored: list[float] | None, p_value: float
) -> None:
    """Shares of a way to a worse metric would look like what a head restores."""
    table = pd.DataFrame({"metric": metric, "baseline": changed, "value": [changed + 0.2, changed - 0.1]})
    found = with_restored(table, PairedComparison(original, original - changed, -0.1, 0.2, p_value), *ENDS)
    assert found["on_original"].tolist() == [original] * 2
    assert found[["texts_low", "texts_high"]].to_numpy().tolist() == [[-0.1, 0.2]] * 2
    assert found["texts_p_value"].tolist() == pytest.approx([p_value] * 2, nan_ok=True)
    nothing = restored is None or not p_value < 0.05
    assert found["restored"].isna().all() if nothing else found["restored"].tolist() == pytest.approx(restored)
    ends = found[["restored_low", "restored_high"]].to_numpy()
    assert np.isnan(ends).all() if nothing else ends.T.tolist() == [[0.1, 0.2], [0.3, 0.4]]


@pytest.mark.parametrize(("p_value", "shown"), [(0.04, True), (0.06, False), (math.nan, False)])
def test_heads_lose_nothing_of_a_difference_that_is_not_shown(p_value: float, shown: bool) -> None:
    """Verdicts and shares would be of a margin and a way that may be noise."""
    table = pd.DataFrame({"metric": "loss", "baseline": 2.0, "value": [2.1, 2.0], "verdict": NOT_NEEDED})
    table["n_to_decide"] = 100.0
    found = with_kept(table, PairedComparison(2.2, 0.2, -0.01, 0.4, p_value), *ENDS)
    assert found["on_changed"].tolist() == [2.2, 2.2]
    assert found["verdict"].notna().tolist() == [shown] * 2
    assert found["kept"].tolist() == pytest.approx([0.5, 1.0] if shown else [math.nan] * 2, nan_ok=True)
    assert found["kept_low"].notna().tolist() == [shown] * 2


def test_intervals_of_shares_are_of_all_three_on_the_same_resampled_examples() -> None:
    """Against the bootstrap one replicate at a time."""
    random, n = np.random.default_rng(0), 60
    labels = random.integers(0, 2, n)
    start, end, *heads = (
        classified(np.where(random.random(n) < share, labels, 1 - labels), labels) for share in (0.4, 0.9, 0.5, 0.8)
    )
    draws = Draws.of([str(i) for i in range(n)], 300, 1)
    low, high = share_intervals(SST2, "accuracy", np.stack(heads), (start, end), draws)
    for place, head in enumerate(heads):
        shares = []
        for weights in np.concatenate(list(draws.blocks())):
            first, last, value = (weights @ (made[:, 0] == made[:, 1]) / n for made in (start, end, head))
            shares.append((value - first) / (last - first))
        assert [low[place], high[place]] == pytest.approx(np.quantile(shares, [0.025, 0.975]))

"""Screening: against the plain run, Welch's test of scipy, simulated effects, and a head that attribution misses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import made_tasks
import numpy as np
import pandas as pd
import pytest
import torch
from made_tasks import given_examples
from naive_statistics import holm
from saved import build
from scipy import stats
from transformers import PreTrainedTokenizerBase

from headlens.analyses.ablate.ablation_findings import findings_of
from headlens.analyses.ablate.figures import ablation_map, not_ablated
from headlens.analyses.ablate.missed_heads import largest_bound, screening_facts, screening_notes
from headlens.analyses.ablate.options import AblateRequest, AblationOptions, PruneOptions
from headlens.analyses.ablate.overviews import ablation_heads, damage_by_layer
from headlens.analyses.ablate.screening import Screener, subset_effects, subset_members
from headlens.analyses.ablate.single_heads import ablate_heads
from headlens.attention.session import AttentionSession
from headlens.errors import OptionError
from headlens.heads import KEY_COLUMNS, Head
from headlens.interventions.gates import HeadGates
from headlens.models.loading import LoadedModel
from headlens.runs.reading import RecordedRun
from headlens.tasks.task_examples import Examples

EXACT = ["value", "delta", "ci_low", "ci_high", "p_value", "p_holm", "p_margin", "p_margin_holm", "verdict"]


def test_every_head_is_in_a_quarter_of_the_subsets_whatever_the_others_are_in() -> None:
    members = subset_members(3, 12, 1)
    assert members.shape == (12, 3)
    assert members.sum(0).tolist() == [3] * 3
    both = np.array([(m[:, 0] & m[:, 1]).sum() for m in (subset_members(2, 12, seed) for seed in range(3000))])
    # As many as of 3 draws out of 12 are among 3 marked ones.
    expected = stats.hypergeom(12, 3, 3)
    assert both.mean() == pytest.approx(expected.mean(), abs=4 * expected.std() / np.sqrt(3000))
    assert both.var() == pytest.approx(expected.var(), rel=0.15)


@pytest.mark.parametrize("sign", [1, -1])
def test_bounds_are_ends_of_welchs_interval(sign: int) -> None:
    rng = np.random.default_rng(2)
    changes, members = sign * rng.normal(1, 1, 16), subset_members(5, 16, 0)
    effects, bounds = subset_effects(changes, members)
    for there, effect, bound in zip(members.T, effects, bounds, strict=True):
        welch = stats.ttest_ind(changes[there], changes[~there], equal_var=False)
        low, high = welch.confidence_interval(0.9)
        assert effect == pytest.approx(changes[there].mean() - changes[~there].mean())
        assert bound == pytest.approx(max(high, -low))


def test_the_largest_bound_holds_in_95_of_100_runs_where_effects_add_up() -> None:
    rng, heads, runs = np.random.default_rng(0), 12, 300
    misses = 0
    estimates = []
    for seed in range(runs):
        truth = rng.normal(0, 0.01, heads)
        truth[0] = -0.1
        members = subset_members(heads, 32, seed)
        effects, bounds = subset_effects(members @ truth, members)
        misses += bounds.max() < np.abs(truth).max()
        estimates.append(effects - truth)
    assert misses <= stats.binom(runs, 0.05).ppf(0.999)
    spread = np.std(estimates, axis=0) / np.sqrt(runs)
    assert (np.abs(np.mean(estimates, axis=0)) < 4 * spread).all(), "unbiased"


def test_the_only_other_head_is_measured_exactly() -> None:
    members = subset_members(1, 8, 0)
    effects, bounds = subset_effects(np.where(members[:, 0], -0.25, 0.0), members)
    assert (effects[0], bounds[0]) == (-0.25, 0.25)


Made = tuple[LoadedModel, Examples]


@pytest.fixture(scope="module")
def saturated(wordpiece_tokenizer: PreTrainedTokenizerBase) -> Made:
    """A masked language model of 12 heads; one of the last layer is all that its layer norm lets through.

    However small its output is made, the norm undoes that: its derivative is nearly 0. Without it, the others of the
    layer are heard.
    """
    task = made_tasks.TASKS["mlm"]
    layers = {"num_hidden_layers": 3, "num_attention_heads": 4}
    model = build("BertForMaskedLM", len(wordpiece_tokenizer), **layers).double().eval()
    with torch.no_grad():
        model.bert.encoder.layer[2].attention.output.dense.weight[:, :4] *= 1000
        model.cls.predictions.transform.LayerNorm.weight *= 30
    loaded = LoadedModel("tiny", model, wordpiece_tokenizer, None)
    return loaded, given_examples(task, model, wordpiece_tokenizer, 20)


MISSED = Head("encoder", 2, 0)


@pytest.fixture(scope="module")
def plain(saturated: Made) -> pd.DataFrame:
    return ablate_heads(*saturated, AblationOptions(metric="loss", replicates=100)).table


def screened(made: Made, confirm: int, **more: Any) -> pd.DataFrame:
    options = AblationOptions(metric="loss", replicates=100, confirm=confirm, **more)
    return ablate_heads(*made, options).table


def test_with_all_heads_confirmed_everything_is_as_in_the_plain_run(saturated: Made, plain: pd.DataFrame) -> None:
    table = screened(saturated, 12)
    pd.testing.assert_frame_equal(table[plain.columns], plain)
    assert table["confirmed"].all()
    assert table[["subset_effect", "subset_bound"]].isna().all(axis=None)
    assert table["attribution"].notna().all()
    pd.testing.assert_frame_equal(screened(saturated, 999)[plain.columns], plain)


def test_a_saturated_head_is_missed_and_the_subsets_see_it(saturated: Made, plain: pd.DataFrame) -> None:
    table = screened(saturated, 6).set_index(KEY_COLUMNS)
    exact = plain.set_index(KEY_COLUMNS)
    missed = table.loc[MISSED]
    effect = exact.loc[MISSED, "delta"]
    assert effect == exact["delta"].max(), "nothing is needed more"
    assert abs(missed["attribution"]) < 0.01 * effect
    assert not missed["confirmed"]
    others = table[~table["confirmed"]]
    assert largest_bound(others.reset_index())[0] == str(MISSED)
    assert missed["subset_bound"] > 2 * others.drop(MISSED)["subset_bound"].max()
    # Effects do not quite add up here, so that the bound need not hold; the head is seen all the same.
    assert missed["subset_effect"] > 0.6 * effect
    assert missed["subset_bound"] > 0.9 * effect


def test_rows_of_confirmed_heads_are_those_of_the_plain_run_corrected_for_all(
    saturated: Made, plain: pd.DataFrame
) -> None:
    table = screened(saturated, 4, subsets=8)
    confirmed = table["confirmed"].to_numpy(bool)
    assert confirmed.sum() == 4
    assert table["attribution"].abs()[confirmed].min() >= table["attribution"].abs()[~confirmed].max()
    uncorrected = ["value", "delta", "ci_low", "ci_high", "p_value", "p_margin", "baseline", "n", "margin"]
    pd.testing.assert_frame_equal(table.loc[confirmed, uncorrected], plain.loc[confirmed, uncorrected])
    assert table.loc[~confirmed, [*EXACT, "n_to_decide"]].isna().all(axis=None)
    for name in ("p_value", "p_margin"):
        expected = holm([*table.loc[confirmed, name], *[1.0] * 8])[:4]
        corrected = table.loc[confirmed, f"{name.removesuffix('_value')}_holm"]
        assert corrected.tolist() == pytest.approx(list(expected))
    assert table[KEY_COLUMNS].equals(plain[KEY_COLUMNS])


def test_subsets_are_measured_by_the_whole_task(saturated: Made) -> None:
    """Effects are those of the changes that a model without the heads of each subset has."""
    screener = Screener(*saturated, "loss", confirm=9, subsets=8, seed=5)
    assert len(screener.others) == 3
    rows = pd.DataFrame([head._asdict() for head in screener.attribution])
    table = screener.columns(rows, 1.5)
    members = subset_members(3, 8, 5)
    names = [tuple(head for head, there in zip(screener.others, row, strict=True) if there) for row in members]
    values = {gone: gated_loss(saturated, gone) for gone in {*names} - {()}} | {(): 1.5}
    effects, bounds = subset_effects(np.array([values[gone] - 1.5 for gone in names]), members)
    found = table[~table["confirmed"]]
    assert found["subset_effect"].tolist() == pytest.approx(effects.tolist(), abs=1e-9)
    assert found["subset_bound"].tolist() == pytest.approx(bounds.tolist(), abs=1e-9)


def gated_loss(made: Made, gone: tuple[Head, ...]) -> float:
    """The mean loss with the outputs of heads times 0, one example at a time."""
    loaded, examples = made
    found = []
    with AttentionSession(loaded.model, edits=[HeadGates(dict.fromkeys(gone, 0.0))]), torch.inference_mode():
        for prepared in examples.prepared:
            batch = examples.task.collate([prepared], examples.reader, "cpu")
            found.append(examples.task.read(examples.task.run(loaded.model, batch), batch))
    return examples.task.value(np.concatenate(found), metric="loss")


def rows_of(bounds: float = 0.03) -> pd.DataFrame:
    """Six heads, two of them ablated: one with a significant loss."""
    frame = pd.DataFrame([{"stack": "encoder", "layer": n // 3, "head": n % 3} for n in range(6)])
    frame = frame.assign(model="m", task="sst2", metric="accuracy", mode="zero", n=200, baseline=0.9)
    frame = frame.assign(baseline_answer_share=0.5, margin=0.01, attribution=[0.5, -0.2, 0.1, 0.0, 0.05, 0.01])
    frame["confirmed"] = [True, True, False, False, False, False]
    numbers = {"value": [0.7, 0.89], "delta": [-0.2, -0.01], "ci_low": [-0.25, -0.03], "ci_high": [-0.15, 0.01]}
    numbers |= {"p_value": [1e-5, 0.4], "p_holm": [6e-5, 1.0], "p_margin": [1, 0.5], "p_margin_holm": [1, 1]}
    for name, pair in numbers.items():
        frame[name] = [*pair, *[np.nan] * 4]
    frame["verdict"] = pd.Series(["needed", "not decided", *[None] * 4], dtype=object)
    frame["n_to_decide"] = [np.nan, 900.0, *[np.nan] * 4]
    frame["subset_effect"] = [np.nan, np.nan, 0.001, -0.02, 0.0, 0.0]
    return frame.assign(subset_bound=[np.nan, np.nan, 0.01, bounds, 0.01, 0.02])


def test_what_is_told_of_heads_that_were_not_ablated() -> None:
    (sentence,) = findings_of({"ablation": rows_of()})
    assert "of the 2 heads that were ablated, " in sentence
    assert "1 head of 2 is significant" in sentence
    assert "corrected for all 6 heads: 1 needed, 1 not decided" in sentence
    assert sentence.endswith(
        "4 other heads whose attribution is smaller in size were not ablated; with 95 % confidence, none of them "
        "changes accuracy by more than 3 points on these very examples, if effects add up (the bound of encoder.1.0); "
        "on others it may be more."
    )
    facts = screening_facts(rows_of(), 32)
    counts = {"heads": 6, "confirmed": 2, "subsets": 32, "share": 0.25, "confidence": 0.95}
    assert facts == counts | {"bound": 0.03, "bound_head": "encoder.1.0", "bound_heads": 1, "bound_head_effect": -0.02}
    ranked, bounded = screening_notes(facts, "accuracy")
    assert "ranked 6 heads, and the 2 whose attribution is largest in size, whatever its sign, were ablated." in ranked
    assert "32 random subsets of 4 other heads" in bounded
    assert "is at most 0.030 with 95 % confidence, the bound of encoder.1.0 (estimated change -0.020)" in bounded
    # Two heads that were in the same subsets: the estimate is of both.
    twice = rows_of().assign(subset_effect=-0.02, subset_bound=0.03)
    alike = screening_facts(twice, 32)
    assert (alike["bound_head"], alike["bound_heads"]) == ("encoder.0.2", 4)
    assert "the bound of encoder.0.2 (4 heads tie) (estimated change -0.020)" in screening_notes(alike, "accuracy")[1]
    unknown = screening_facts(rows_of(np.nan), 32)
    assert unknown["bound"] is None
    assert "nothing bounds what was missed" in screening_notes(unknown, "accuracy")[1]
    assert findings_of({"ablation": rows_of(np.nan)})[0].endswith("attribution is smaller in size were not ablated.")
    everything = rows_of().iloc[:2]
    assert len(screening_notes(screening_facts(everything, 32), "accuracy")) == 1
    assert "ablated" not in findings_of({"ablation": everything})[0]


def test_means_of_layers_are_of_ablated_heads() -> None:
    run = RecordedRun(Path("run"), "run", {"command": "ablate", "status": "finished"}, {"ablation": rows_of()})
    table = damage_by_layer([run])
    (row,) = ({column.name: cell.text for column, cell in zip(table.columns, row, strict=True)} for row in table.rows)
    assert (row["heads"], row["mean change"], row["needed"]) == ("2", "-0.105", "1")
    assert "being the ones whose attribution is largest in size" in table.about


def test_cards_have_the_attribution_of_all_heads() -> None:
    run = RecordedRun(Path("run"), "run", {"command": "ablate", "status": "finished"}, {"ablation": rows_of()})
    change, attribution = ablation_heads(run).series
    assert change.rows[change.value].notna().sum() == 2
    assert attribution.rows[attribution.value].tolist() == rows_of()["attribution"].tolist()
    assert attribution.rows["sure"].isna().all()
    guesses = RecordedRun(Path("run"), "run", run.record, {"ablation": rows_of().assign(verdict=None)})
    _, attribution = ablation_heads(guesses).series
    assert (attribution.rows["sure"] == 0).all()
    assert "not shown to be better than guessing" in attribution.pale


def test_heads_that_were_not_ablated_are_hatched() -> None:
    figure = ablation_map(rows_of())
    assert figure is not None
    axes = figure.axes[0]
    hatched = [patch.get_xy() for patch in axes.patches if patch.get_hatch() == "\\\\\\"]
    assert sorted(hatched) == [(0, 1), (1, 1), (2, 0), (2, 1)]
    words = " ".join(text.get_text().replace("\n", " ") for text in [*figure.texts, *axes.texts])
    assert "Hatched: not ablated" in words
    assert "not shown to be better than guessing" not in words
    numbers = [text.get_text() for text in axes.texts]
    assert len([word for word in numbers if "±" in word]) == 2
    assert not any(word.startswith("0.000") for word in numbers)
    plain_figure = ablation_map(rows_of().assign(confirmed=True).iloc[:2])
    assert plain_figure is not None
    assert not [patch for patch in plain_figure.axes[0].patches if patch.get_hatch() == "\\\\\\"]
    assert not not_ablated(rows_of().drop(columns="confirmed")).any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AblationOptions(confirm=3, mode="mean"), "--strategy-args confirm .* is for --mode zero alone"),
        (lambda: AblationOptions(confirm=3, keep_only=True), "is for --mode zero alone"),
        (lambda: AblationOptions(confirm=0), "confirm 0 is out of range"),
        (lambda: AblationOptions(subsets=16), "subsets only applies together with --strategy-args confirm"),
        (
            lambda: AblateRequest(options=AblationOptions(confirm=3), pruning=PruneOptions((1,))),
            "(?s)--strategies ranked goes by the loss without every.*attribution,random",
        ),
    ],
)
def test_what_screening_is_not_for(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()

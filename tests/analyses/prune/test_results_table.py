from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from made_gates import Made, gate_tables
from made_runs import HOSTILE
from tiers import rest_slow

from headlens.analyses.prune.results_table import gate_sentences, results_markdown, results_table
from headlens.pages.formatting import difference_text
from headlens.statistics.intervals import paired_share_interval
from headlens.statistics.paired_tests import mcnemar

STEPS = (0, 2000)  # few: making gates of every update takes longer than drawing


MADE = Made(penalties=(0.1, 0.005, 0.02), metrics=("bleu", "chrf"), steps=STEPS)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_rows_pair_what_was_pruned_with_what_was_trained_from_scratch() -> None:
    sweep = gate_tables(MADE)["sweep"]
    table = results_table(sweep)
    assert table["metric"].tolist() == ["bleu"] * 4 + ["chrf"] * 4
    assert table["run"].tolist() == ["unpruned", "lambda-0.1", "lambda-0.005", "lambda-0.02"] * 2
    for row in table.itertuples():
        own = sweep[(sweep["metric"] == row.metric) & (sweep["penalty"] == row.penalty)].set_index("init")
        if row.run == "unpruned":
            own = sweep[(sweep["metric"] == row.metric) & (sweep["run"] == "unpruned")].set_index("init")
            assert np.isnan([row.scratch, row.scratch_low, row.scratch_high]).all()
        else:
            assert (row.scratch, row.scratch_low, row.scratch_high) == tuple(
                own.loc["scratch", ["value", "ci_low", "ci_high"]]
            )
        assert (row.trained, row.trained_low, row.trained_high) == tuple(
            own.loc["trained", ["value", "ci_low", "ci_high"]]
        )
        counts = [int(own.loc["trained", f"heads_{stack}"]) for stack in ("encoder", "decoder", "cross")]
        assert row.heads == "/".join(map(str, counts))
        assert [row.heads_encoder, row.heads_decoder, row.heads_cross] == counts


def test_most_heads_come_first_and_the_unpruned_model_before_all() -> None:
    sweep = gate_tables(Made(steps=STEPS))["sweep"]
    shuffled = sweep.sample(frac=1, random_state=3)
    pd.testing.assert_frame_equal(results_table(shuffled), results_table(sweep))
    table = results_table(sweep)
    left = table[["heads_encoder", "heads_decoder", "heads_cross"]].sum(axis=1)
    assert left.tolist() == sorted(left, reverse=True)
    same = sweep.assign(heads_encoder=48, heads_decoder=48, heads_cross=48)
    assert results_table(same)["run"].iloc[0] == "unpruned"


def test_differences_stand_beside_what_is_compared() -> None:
    sweep = gate_tables(MADE)["sweep"]
    number = np.arange(len(sweep), dtype=float)
    own = {"delta": -number, "delta_low": -number - 1, "delta_high": 1 - number, "p_value": 10.0**-number}
    trained = sweep["init"] == "trained"
    compared = sweep.assign(**{name: np.where(trained, values, np.nan) for name, values in own.items()})
    table = results_table(compared)
    assert table["scratch_delta"].isna().all()
    lines = results_markdown(compared).split("\n## ")[1].strip().split("\n")[2:]
    assert cells(lines[0])[2:] == [
        "bleu from trained [95 % interval]", "difference from unpruned [paired]", "bleu from scratch [95 % interval]",
    ]  # fmt: skip
    row = table.iloc[1]
    found = f"{row['trained_delta']:.2f} [{row['trained_delta_low']:.2f}, {row['trained_delta_high']:.2f}], p"
    assert cells(lines[3])[3].startswith(found)
    assert (table["trained_delta_high"] - table["trained_delta"]).dropna().tolist() == [1.0] * 8


def swept(heads: int, between: float | None, verdict: str | None) -> pd.DataFrame:
    """A model pruned to so many of 4 heads, beside the unpruned one."""
    common = {"model": "m", "init": "trained", "task": "sst2", "metric": "accuracy", "n": 50}
    whole = common | {"run": "unpruned", "penalty": np.nan, "heads_encoder": 4, "value": 0.8}
    pruned = common | {"run": "penalty-1", "penalty": 1.0, "heads_encoder": heads, "value": 0.7, "between": between}
    tested = {"delta": -0.1, "delta_low": -0.2, "delta_high": 0.0, "p_value": 0.03, "p_holm": 0.06, "margin": 0.01}
    known = {"verdict": verdict, "n_to_decide": 300.0} | tested if verdict else dict.fromkeys(tested, np.nan)
    return pd.DataFrame([whole, pruned | known])


@pytest.mark.parametrize(
    ("heads", "between", "verdict", "told"),
    [
        (2, 0, "not decided", "whether sst2 needs the 2 of 4 heads pruned (λ = 1) is not decided"),
        (2, 1, "not decided", "whether sst2 needs the 2 of 4 heads pruned and 1 scaled down (λ = 1) is not decided"),
        (2, None, "needed", "sst2 with 2 of 4 heads pruned (λ = 1) loses significantly"),
        (4, 4, None, "with λ = 1 4 heads stay (4 scaled down): accuracy on sst2 0.700, unpruned 0.800, n = 50."),
        # As in runs of earlier versions.
        (
            4,
            3,
            "not decided",
            "with λ = 1 4 heads stay (3 scaled down): accuracy on sst2 0.700, unpruned 0.800, a change of -0.1",
        ),
    ],
)
def test_sentences_tell_what_was_done_to_heads(
    heads: int, between: float | None, verdict: str | None, told: str
) -> None:
    (sentence,) = gate_sentences(swept(heads, between, verdict).assign(ci_low=np.nan, ci_high=np.nan))
    assert sentence.startswith(f"m: {told}")


def test_runs_that_pruned_nothing_are_no_headline() -> None:
    """Their change is that of training further; the run with most heads among those that lost some is told."""
    whole = swept(4, 0, None).assign(penalty=[np.nan, 0.001], run=["unpruned", "penalty-0.001"], value=0.9)
    told = gate_sentences(pd.concat([whole, swept(2, 0, "needed").iloc[1:]], ignore_index=True))
    assert told[0] == (
        "m: no head is pruned with λ = 0.001: accuracy on sst2 0.900, unpruned 0.900, n = 50. What differs from the "
        "unpruned model is further training alone; compare with λ = 0."
    )
    assert [text.partition(" loses")[0] for text in told[1:]] == ["m: sst2 with 2 of 4 heads pruned (λ = 1)"]
    assert gate_sentences(whole) == told[:1]
    (plain,) = gate_sentences(whole.assign(penalty=[np.nan, 0.0], chance=0.5, answer_share=0.97))
    assert plain.startswith("m: no head is pruned with λ = 0: accuracy on sst2 0.900, unpruned 0.900, n = 50 (chance ")
    assert plain.endswith("level 0.500). What differs from the unpruned model is further training alone. It gives the "
                          "same answer to 97 % of the examples.")  # fmt: skip


def test_the_most_heads_that_are_not_needed_are_told() -> None:
    """As ablate tells it: more heads pruned without a loss that matters say more than few."""
    few, more, most = (swept(heads, 0, "needed").iloc[1:].assign(penalty=float(4 - heads)) for heads in (3, 2, 1))
    rows = [swept(4, 0, None).iloc[:1], few, more.assign(verdict="not needed", value=0.8), most]
    table = pd.concat(rows, ignore_index=True).assign(run=["unpruned", "a", "b", "c"])
    told = gate_sentences(table)
    counts = [text.partition(" of 4 heads pruned")[0] for text in told]
    chosen = "m: 2 of 3 pruned models lose significantly, 1 loses less than the margin: sst2 with 2"
    assert counts == ["m: sst2 with 1", chosen, "m: sst2 with 3"]


@pytest.mark.parametrize(
    ("verdict", "end"),
    [
        (None, "2 heads stay: the model gives the same answer to all 50 evaluation examples, so that nothing can be "
            "measured about pruned heads with accuracy."),
        ("needed", "n = 50. It gives the same answer to all examples."),
    ],
)  # fmt: skip
def test_a_pruned_model_with_one_answer_is_told(verdict: str | None, end: str) -> None:
    """Read as "costs nothing" a constant model's unchanged metric would mislead."""
    rows = swept(2, 0, verdict).assign(ci_low=np.nan, ci_high=np.nan, same_answer=[verdict is None, True])
    (sentence,) = gate_sentences(rows)
    assert sentence.endswith(end)
    # Of a model without skill that has answers, the one answer after pruning is no constant of its own.
    (sentence,) = gate_sentences(rows.assign(verdict=None, same_answer=[False, True], answer_share=[0.6, 1.0]))
    assert "so that nothing can be measured" not in sentence
    assert sentence.endswith("n = 50. It gives the same answer to all examples.")


def test_p_values_beside_verdicts_are_those_they_rest_on() -> None:
    text = "-0.100 [-0.200, 0.000], p"
    assert f"{text} (Holm) 0.06" in results_markdown(swept(2, 0, "not decided"))
    assert f"{text} 0.03" in results_markdown(swept(2, 0, "not decided").drop(columns="p_holm"))
    assert difference_text(-0.1, -0.2, 0.0, 0.03, p_holm=0.0004) == f"{text} (Holm) < 0.001"
    # Four examples change, all for the worse: the exact test is not significant.
    low, high = paired_share_interval(0, 4, 222)
    told = difference_text(-4 / 222, low, high, mcnemar([0] * 4, [1] * 4))
    assert high < 0
    assert told.endswith("], p 0.12, which decides on a change, not the interval")
    assert "decides" not in difference_text(-0.1, -0.2, -0.01, 0.03)
    assert "decides" not in difference_text(-0.1, -0.2, 0.01, 0.3)


def test_stacks_that_a_model_lacks_are_no_columns() -> None:
    table = results_table(gate_tables(Made(shapes={"encoder": (2, 3)}, metrics=("accuracy",), steps=STEPS))["sweep"])
    assert [name for name in table if name.startswith("heads")] == ["heads", "heads_encoder"]
    assert table["heads"].iloc[0] == "6"


def test_markdown_has_a_table_for_every_metric() -> None:
    sweep = gate_tables(MADE)["sweep"]
    blocks = results_markdown(sweep).split("\n## ")
    assert blocks[0] == "# Heads left by pruning with gates\n"
    assert [block.split("\n")[0] for block in blocks[1:]] == [
        f"{metric} of opus-mt-en-de on newstest2014, n = 1,000" for metric in ("bleu", "chrf")
    ]
    lines = blocks[1].strip().split("\n")[2:]
    assert cells(lines[0]) == [
        "heads (e/d/d-e)", "λ", "bleu from trained [95 % interval]", "bleu from scratch [95 % interval]",
    ]  # fmt: skip
    assert len(lines) == 6
    assert all(len(cells(line)) == 4 for line in lines)
    whole = sweep[sweep["run"] == "unpruned"].iloc[0]
    interval = f"{whole['value']:.2f} [{whole['ci_low']:.2f}, {whole['ci_high']:.2f}]"
    assert cells(lines[2]) == ["48/48/48", "–", interval, "–"]
    assert cells(lines[3])[1] == "0.1"
    assert blocks[-1].endswith("|\n")


def test_shares_have_three_decimals_and_one_stack_its_name() -> None:
    sweep = gate_tables(Made(shapes={"encoder": (2, 3)}, metrics=("accuracy",), scratch=False, steps=STEPS))["sweep"]
    text = results_markdown(sweep)
    assert "| heads (encoder) | λ |" in text
    assert re.search(r"\| 6 \| – \| 0\.9\d\d \[0\.\d{3}, 0\.\d{3}\] \| – \|", text)


@pytest.mark.parametrize(("column", "expected"), [("ci_low", r"\| \d\d\.\d\d \|"), ("value", r"\| – \| – \| – \|")])
def test_what_is_not_known_is_left_out(column: str, expected: str) -> None:
    text = results_markdown(gate_tables(MADE)["sweep"].assign(**{column: np.nan}))
    assert "nan" not in text
    assert re.search(expected, text)


NAMES = [*HOSTILE, "a | b", "*bold*", "`code`", "line\nbreak"]


@pytest.mark.parametrize("words", rest_slow(NAMES, [HOSTILE[0], "a | b", "line\nbreak"]))
def test_names_do_not_break_the_table(words: str) -> None:
    sweep = gate_tables(Made(penalties=(0.1,), steps=STEPS))["sweep"].assign(model=words, task=words, metric=words)
    lines = results_markdown(sweep).split("\n")
    rows = [line for line in lines if line.startswith("|")]
    assert len(lines) == 5 + len(rows)
    assert [len(cells(row)) for row in rows] == [4] * 4
    assert not re.search(r"(?<!\\)[*<`]", lines[2].removeprefix("## "))


def test_no_rows_no_tables() -> None:
    sweep = gate_tables(MADE)["sweep"].iloc[:0]
    assert results_table(sweep).empty
    assert results_markdown(sweep) == "# Heads left by pruning with gates\n"


def test_of_runs_that_scaled_heads_alone_the_weakest_and_the_strongest_penalty_are_told() -> None:
    runs = [swept(4, 1, None).iloc[1:].assign(penalty=penalty, run=f"penalty-{penalty:g}") for penalty in (3, 0, 0.3)]
    table = pd.concat([swept(4, 0, None).iloc[:1], *runs], ignore_index=True)
    told = [text.partition(" scaled down")[0] for text in gate_sentences(table)]
    assert told == ["m: with λ = 0 4 heads stay (1", "m: with λ = 3 4 heads stay (1"]

"""What runs found, in sentences: every number in them is one of the tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_gates import Made, write_prune
from made_runs import (
    ablation_tables,
    classify_tables,
    relevance_tables,
    write_ablation,
    write_classification,
    write_relevance,
)

from headlens.analyses.ablate.overviews import _INSTEAD
from headlens.analyses.report.registry import report_of, reports
from headlens.runs.reading import RecordedRun, read_recorded


def found(folder: Path) -> list[str]:
    run = read_recorded(folder, "run")
    return report_of(run.command).findings(run)


def of(command: str, **tables: pd.DataFrame) -> list[str]:
    return report_of(command).findings(RecordedRun(Path(), "run", {"command": command}, tables))


@pytest.mark.parametrize("command", sorted(reports()))
def test_nothing_is_found_in_nothing(command: str) -> None:
    assert of(command) == []


def test_of_a_classification(tmp_path: Path) -> None:
    syntactic, other = found(write_classification(tmp_path / "run"))
    assert syntactic == (
        "demo, encoder: encoder.0.1 finds the verb of a subject (nsubj dep->head) in 80% [79%, 81%] of 812 cases; a "
        "fixed offset does so in 40%."
    )
    heads = classify_tables()["heads"]
    positional, rare = heads.iloc[0], heads.iloc[4]
    expected = [
        "demo, encoder: encoder.0.0 attends most to the previous token for "
        f"{positional['positional_share']:.0%} of the tokens.",
        f"demo, encoder: encoder.1.1 points at the rarest word for {rare['rare_top1']:.0%} of the words, "
        f"chance level {rare['rare_chance']:.0%}.",
    ]
    assert other == expected[int(rare["nearest_score"] > positional["nearest_score"])]


@pytest.mark.parametrize(("offset", "words"), [(1, "the next token"), (-3, "the token at -3"), (4, "the token at +4")])
def test_where_the_most_positional_head_looks(offset: float, words: str) -> None:
    role = f"positional({offset:+d})"
    heads = classify_tables()["heads"].assign(positional_offset=offset, role=role, roles=role)
    (text,) = of("classify", heads=heads)
    assert f"attends most to {words} for " in text


def test_no_syntactic_head_for_sure() -> None:
    syntax = classify_tables()["syntax"].assign(significant=False)
    assert of("classify", syntax=syntax) == [
        "demo, encoder: no head beats the fixed-offset baseline of any relation significantly and by the required "
        "margin."
    ]


def test_of_relevance(tmp_path: Path) -> None:
    (text,) = found(write_relevance(tmp_path / "run"))
    rows = relevance_tables()["relevance"].query("rule == 'epsilon'")
    best = rows.loc[rows["relevance"].idxmax()]
    size = rows["raw"].abs()
    positive = rows["relevance"][(rows["layer"] == best["layer"]) & (rows["relevance"] > 0)].sum()
    largest = "encoder.{layer}.{head}".format(**rows.loc[size.idxmax()])
    assert text == (
        f"demo, encoder: {largest} contributes most (rule epsilon): {rows['raw'].loc[size.idxmax()]:.3f} in units of "
        f"the output, {size.max() / size.sum():.1%} of the summed magnitudes of its stack's heads. "
        f"encoder.{best['layer']}.{best['head']} has the largest positive share of its layer's relevance, "
        "among heads in layers that serve the target whose share is significantly above 0 and raw above 0: "
        f"{best['relevance']:.3f} [{best['ci_low']:.3f}, {best['ci_high']:.3f}]; an "
        f"equal share is 0.333, all positive shares of its layer add up to {positive:.3f}."
    )


def test_of_a_classification_with_relevance() -> None:
    tables = classify_tables() | relevance_tables()
    assert of("classify", **tables)[2:] == of("relevance", **relevance_tables())


def test_of_an_ablation(tmp_path: Path) -> None:
    worst, pruned = found(write_ablation(tmp_path / "run"))
    assert worst == (
        "demo: sst2 suffers most without encoder.0.1: accuracy 0.625 instead of 0.875, a change of -0.250 [-0.280, "
        "-0.220], Holm-corrected p below 0.001. 1 head of 6 is significant. With a margin of 1 point, corrected for "
        "all 6 heads: 1 needed, 1 not needed, 4 not decided (if changes are as measured, about 2,300 examples would "
        "decide half of these)."
    )
    # of `ranked`, one head costs 0.05 and two cost 0.1, with paired intervals of 0.06 to each side
    assert pruned == (
        "demo: 1 of 2 sets of heads loses significantly, 1 is not decided: "
        "whether sst2 needs the 1 of 6 heads pruned (ranked) is not decided for a margin of 1 point (corrected "
        "for 2 sets of heads): accuracy 0.825 instead of 0.875, a change of -0.050 [-0.110, 0.010], n = 100; may "
        "lose up to 11 points; about 1,200 evaluation examples "
        "would decide, if the change is as measured. 2 random orders of as many heads: 0.725 each."
    )


@pytest.mark.parametrize(("mode", "words"), [item for item in _INSTEAD.items() if item[0] != "denoise"])
def test_what_is_read_in_the_place_of_a_head_is_named(mode: str, words: str) -> None:
    """Nothing is removed in these modes: no sentence says `without`."""
    rows = ablation_tables()["ablation"]
    rows = rows[rows["mode"] == "zero"].assign(mode=mode, on_changed=0.5)
    unsure = rows.assign(p_holm=1.0)
    better = rows.assign(delta=-rows["delta"], value=2 * rows["baseline"] - rows["value"])
    silent = rows.assign(verdict=None, baseline_answer_share=0.6)
    same = silent.assign(value=silent["baseline"], delta=0.0)
    texts = [of("ablate", ablation=table)[0] for table in (rows, unsure, better, silent, same)]
    assert all("without" not in text.lower().replace("without reading", "") for text in texts)
    assert all(words in text or words[0].upper() + words[1:] in text for text in (*texts[:3], texts[4]))
    assert texts[3].endswith(" when replaced alone (to the worse).")
    assert " All heads on the changed texts: accuracy 0.500." in texts[0]


def test_a_model_that_writes_nearly_one_text_is_said_to_tell_nothing() -> None:
    rows = ablation_tables()["ablation"]
    rows = rows[rows["mode"] == "zero"].assign(verdict=None, task="translation", metric="bleu")
    (text,) = of("ablate", ablation=rows.assign(baseline_answer_share=0.975))
    assert text.startswith(
        "demo: the model gives the same answer to 97.5 % of the examples (200 examples), so that bleu does not tell "
        "what heads are needed for."
    )


def test_heads_without_which_a_task_is_better_are_no_losses() -> None:
    rows = ablation_tables()["ablation"].drop(columns="verdict")  # as of an older version
    zero = rows[rows["mode"] == "zero"].reset_index(drop=True)
    changed = zero.assign(delta=[-0.01, -0.02, 0.1, 0.05, 0.0, 0.0], p_holm=[1.0, 1.0, 0.001, 0.01, 1.0, 1.0])
    changed["value"] = changed["baseline"] + changed["delta"]
    changed = changed.assign(ci_low=changed["delta"] - 0.004, ci_high=changed["delta"] + 0.004)
    names = [f"{row.stack}.{row.layer}.{row.head}" for row in changed.itertuples()]
    (text,) = of("ablate", ablation=changed)
    assert text.startswith(
        f"demo: none of 6 heads is significantly needed for sst2 on its own; the largest loss is without {names[1]}: "
    )
    assert text.endswith(
        f" Without any one of 2 heads, accuracy is significantly better, most so without {names[2]}: 0.975."
    )
    (text,) = of("ablate", ablation=changed.assign(p_holm=[1.0, 0.01, 0.001, 1.0, 1.0, 1.0]))
    assert f"sst2 suffers most without {names[1]}: " in text
    alone = f"Without {names[2]}, accuracy is significantly better: 0.975."
    assert text.endswith(f". The loss without 1 head of 6 is significant. {alone}")
    (text,) = of("ablate", ablation=changed.assign(p_holm=[0.01, 0.01, 0.001, 1.0, 1.0, 1.0]))
    assert text.endswith(f". The loss without each of 2 heads of 6 is significant. {alone}")
    better = changed.assign(delta=changed["delta"].clip(lower=0), value=changed["value"].clip(lower=0.875))
    (text,) = of("ablate", ablation=better)
    assert text.startswith("demo: without any one of 6 heads, sst2 has accuracy 0.875 or better on these examples.")
    assert " Without any one of 2 heads, accuracy is significantly better" in text
    # A metric that is better when it is low.
    turned = {name: -changed[name] for name in ("delta", "ci_low", "ci_high")}
    (text,) = of("ablate", ablation=changed.assign(metric="loss", **turned))
    assert f"Without any one of 2 heads, loss is significantly better, most so without {names[2]}" in text


def test_no_head_is_said_to_be_needed_where_no_change_is_significant() -> None:
    rows = ablation_tables()["ablation"].drop(columns="verdict")
    (text,) = of("ablate", ablation=rows.assign(p_holm=1.0))
    assert text.startswith(
        "demo: none of 6 heads changes sst2 significantly on its own; the largest loss is without encoder.0.1: accuracy"
    )
    (text,) = of("ablate", ablation=rows.assign(delta=0.0, value=rows["baseline"], p_holm=1.0))
    same = "demo: without any one of 6 heads, sst2 has exactly the same accuracy as with all, 0.875, on these examples."
    assert text == same
    assert not of("ablate", ablation=rows.assign(delta=np.nan))


def test_the_first_of_several_heads_is_not_told_as_the_only_one() -> None:
    rows = ablation_tables(modes=("zero",))["ablation"].drop(columns="verdict")
    for lost, told in ((1, "encoder.0.0: "), (2, "encoder.0.0 (2 heads tie): "), (6, "encoder.0.0 (6 heads tie): ")):
        delta = np.where(np.arange(6) < lost, -0.1, 0.05)
        changed = rows.assign(delta=delta, value=rows["baseline"] + delta, ci_low=delta - 0.05, ci_high=delta + 0.05)
        (text,) = of("ablate", ablation=changed.assign(p_holm=1.0))
        assert f"the largest loss is without {told}" in text
        assert "Holm-corrected p 1.000, which decides on a change, not the interval." in text
        (text,) = of("ablate", ablation=changed.assign(p_holm=0.01))
        assert f"suffers most without {told}" in text
        more = {1: "encoder.0.1 (5 heads tie): 0.925.", 2: "encoder.0.2 (4 heads tie): 0.925.", 6: "significant."}
        assert text.endswith(more[lost])


def test_the_most_damage_is_said_of_a_head_that_intervals_tell_apart() -> None:
    rows = ablation_tables(modes=("zero",))["ablation"].drop(columns="verdict").assign(p_holm=0.01)
    delta = np.array([-0.2, -0.15, -0.1, 0.05, 0.04, 0.0])
    changed = rows.assign(delta=delta, value=rows["baseline"] + delta, ci_low=delta - 0.03, ci_high=delta + 0.03)
    (text,) = of("ablate", ablation=changed)
    overlap = "(the intervals of 1 other head overlap with its own)"
    assert f"demo: one of the heads that sst2 suffers most without is encoder.0.0 {overlap}: accuracy 0.675" in text
    # Of all heads, also that without a significant change.
    overlap = "(the intervals of 2 other heads overlap with its own)"
    assert text.endswith(f"is significantly better, among them encoder.1.0 {overlap}: 0.925.")


@pytest.mark.parametrize(
    ("p_values", "told"),
    [
        ((0.5, 0.01, 1, 1, 1, 1), "1 head of 6 is significant: encoder.0.1."),
        ((0.5, 0.01, 0.01, 0.01, 0.01, 1), "4 heads of 6 are significant: encoder.0.1, encoder.0.2, encoder.1.0, …."),
        ((0.01, 0.01, 1, 1, 1, 1), "2 heads of 6 are significant."),
    ],
)
def test_heads_that_are_significant_are_named_where_the_largest_loss_is_not(
    p_values: Sequence[float], told: str
) -> None:
    rows = ablation_tables(modes=("zero",))["ablation"].drop(columns="verdict").assign(p_holm=p_values)
    delta = np.array([-0.2, -0.15, -0.1, -0.1, -0.1, 0.0])
    (text,) = of("ablate", ablation=rows.assign(delta=delta, ci_low=delta - 0.1, ci_high=delta + 0.1))
    assert "one of the heads that sst2 suffers most without is encoder.0.0" in text
    assert told in text


def test_strategies_that_do_equally_well_are_all_told() -> None:
    table = ablation_tables()["pruning"]
    rival = table[(table["strategy"] == "ranked") & (table["n_pruned"] == 1)].assign(strategy="greedy")
    for more, names in ((0.0, "ranked, greedy"), (-0.001, "ranked"), (0.001, "greedy")):
        (text,) = of("ablate", pruning=pd.concat([table, rival.assign(value=rival["value"] + more)]))
        assert f"1 of 6 heads pruned ({names})" in text
    (text,) = of("ablate", pruning=pd.concat([table, rival, rival.assign(strategy="beam", verdict="needed")]))
    assert "(ranked, greedy)" in text


def test_a_set_that_two_strategies_choose_is_one_set() -> None:
    table = ablation_tables()["pruning"]
    chosen = table[(table["strategy"] == "ranked") & (table["n_pruned"] > 0)]
    names = [f"encoder.0.{count}" for count in range(len(chosen))]
    both = pd.concat([chosen.assign(removed=names, strategy=name) for name in ("ranked", "shapley")])
    (text,) = of("ablate", pruning=pd.concat([table[table["strategy"] == "none"], both]))
    assert text.startswith(f"demo: 1 of {len(chosen)} different sets of heads loses significantly, 1 is not decided:")
    apart = both.assign(removed=[*names, *(f"other.{name}" for name in names)])
    (text,) = of("ablate", pruning=pd.concat([table[table["strategy"] == "none"], apart]))
    assert f"of {2 * len(chosen)} sets of heads lose significantly" in text


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([0.75, 0.857, 0.8], " 3 random orders of as many heads: 0.750 to 0.857."),
        ([0.8, 0.8], " 2 random orders of as many heads: 0.800 each."),
        ([0.8], " 1 random order of as many heads: 0.800."),
        ([], "if the change is as measured."),
    ],
)
def test_what_random_orders_do_stands_beside_a_strategy(values: list[float], told: str) -> None:
    table = ablation_tables()["pruning"]
    first = table[(table["strategy"] == "random") & (table["n_pruned"] == 1)].iloc[:1]
    orders = [first.assign(seed=seed, value=value) for seed, value in enumerate(values)]
    others = table[(table["strategy"] != "random") | (table["n_pruned"] == 2)]
    (text,) = of("ablate", pruning=pd.concat([others, *orders]))
    assert "1 of 6 heads pruned (ranked) is not decided" in text
    assert text.endswith(told)


def test_one_answer_to_all_examples_is_told_first_and_nothing_is_needed() -> None:
    tables = {name: rows.assign(verdict=None, n_to_decide=np.nan) for name, rows in ablation_tables().items()}
    rows = tables["ablation"].assign(delta=0.0, value=tables["ablation"]["baseline"], p_holm=1.0)
    nothing = "so that nothing can be measured about heads with accuracy."
    expected = (
        f"demo: the model gives the same answer to all 200 examples, {nothing} It has exactly the same accuracy, "
    )
    assert of("ablate", ablation=rows, pruning=tables["pruning"]) == [f"{expected}0.875, without any one of 6 heads."]
    # too few for anything else to be told
    assert of("ablate", ablation=rows.assign(n=4))[0].startswith("demo: the model gives the same answer to all 4 ex")
    (text,) = of("ablate", ablation=rows.assign(value=rows["value"] - (rows["head"] == 0)))
    assert text.endswith(" It has accuracy 0.875; none of 6 heads changes it significantly when taken out alone.")
    (text,) = of("ablate", ablation=rows.assign(value=rows["value"] - (rows["head"] == 0), p_value=np.nan))
    assert text.endswith(" It has accuracy 0.875; on so few examples no change is tested.")
    (text,) = of("ablate", ablation=rows.assign(value=np.nan, delta=np.nan, baseline=np.nan, metric="pearson"))
    assert text.endswith(nothing.replace("accuracy", "pearson"))
    # the evaluation part alone
    *_, text = of("ablate", ablation=ablation_tables()["ablation"], pruning=tables["pruning"])
    told = "demo: the model gives the same answer to all 100 evaluation examples, so that nothing can be measured about"
    assert text == f"{told} pruned heads with accuracy."


def test_a_model_that_guesses_has_no_verdicts_and_says_why() -> None:
    tables = {name: rows.assign(verdict=None, n_to_decide=np.nan) for name, rows in ablation_tables().items()}
    guesses = "is not shown to be better than guessing on"
    (text,) = of("ablate", ablation=tables["ablation"].assign(baseline_answer_share=0.6))
    assert text.startswith(
        f"demo: the model {guesses} 200 examples, so that accuracy does not tell what heads are needed for. It has "
    )
    (text,) = of("ablate", pruning=tables["pruning"].assign(answer_share=np.nan))
    assert f"{guesses} 100 evaluation examples or on all, so" in text


def test_texts_that_do_not_differ_take_nothing_away_that_a_head_could() -> None:
    """A task was said to suffer most from a head of a model that did not tell the two texts apart."""
    rows = ablation_tables(modes=("counterfactual",))["ablation"].assign(verdict=None, n_to_decide=np.nan)
    texts = {"texts_delta": -0.01, "texts_low": -0.03, "texts_high": 0.01, "on_changed": 0.865}
    (text,) = of("ablate", ablation=rows.assign(texts_p_value=0.2, baseline_answer_share=0.6, **texts))
    assert text.startswith("demo: All heads on the changed texts: accuracy 0.865, a difference of -0.010 [-0.030, 0.0")
    assert (
        "not shown that there is anything to lose or to restore. On the original ones, it has accuracy 0.875; 1" in text
    )
    assert "suffers" not in text
    (text,) = of("ablate", ablation=rows.assign(texts_p_value=0.01, baseline_answer_share=0.6, **texts))
    assert text.startswith("demo: the model is not shown to be better than guessing on 200 examples")


def pruning(**columns: Any) -> list[str]:
    return of("ablate", pruning=ablation_tables()["pruning"].assign(**columns))


def test_pruning_that_costs_too_much_and_losses() -> None:
    table = ablation_tables()["pruning"]
    assert pruning(verdict="needed") == [
        "demo: both sets of heads lose significantly; of these, the smallest: "
        "sst2 with 1 of 6 heads pruned (ranked) loses significantly (corrected for 2 sets of heads): "
        "accuracy 0.825 instead of 0.875, a change of -0.050 [-0.110, 0.010], n = 100. 2 random orders of as many "
        "heads: 0.725 each."
    ]
    # the most heads that are shown not to be needed, also where more are not decided
    few = np.where(table["n_pruned"] == 1, "not needed", "not decided")
    assert pruning(verdict=few) == [
        "demo: 1 of 2 sets of heads loses significantly, 1 is not decided, 1 loses less than the margin: "
        "sst2 with 1 of 6 heads pruned (ranked) loses less than the margin of 1 point (corrected for 2 sets of "
        "heads): accuracy 0.825 instead of 0.875, a change of -0.050 [-0.110, 0.010], n = 100. 2 random orders of "
        "as many heads: 0.725 each."
    ]


@pytest.mark.parametrize("metric", ["perplexity", "bleu", "matthews"])
def test_what_is_not_decided_has_a_bound(metric: str) -> None:
    (text,) = pruning(metric=metric, verdict="not decided", n_to_decide=1200.0)
    bounds = {"perplexity": "may rise by up to 0.000", "bleu": "may lose up to 0.16 points"}
    assert "needs the 2 of 6 heads pruned (ranked) is not decided for a margin of " in text
    bound = bounds.get(metric, "may lose up to 16 points")
    assert f"; {bound}; about 1,200 evaluation examples would decide, if the change is as measured." in text
    assert "no loss" not in text


def test_tables_of_older_versions_are_judged_by_their_intervals() -> None:
    table = ablation_tables()["pruning"].drop(columns=["verdict", "margin", "p_margin", "p_margin_holm", "n_to_decide"])
    (text,) = of("ablate", pruning=table)
    assert "1 of 6 heads pruned (ranked) is not decided for a margin of 1 point: accuracy 0.825" in text
    assert text.endswith("may lose up to 11 points. 2 random orders of as many heads: 0.725 each.")
    (text,) = of("ablate", pruning=table.assign(metric="perplexity"))
    assert "with 2 of 6 heads pruned (ranked) is significantly better: perplexity 0.775" in text


def test_the_best_of_as_many_heads_counts_and_random_orders_are_no_choice() -> None:
    table = ablation_tables()["pruning"]
    # of as many heads the better choice counts; random orders are no choice
    rival = table[(table["strategy"] == "ranked") & (table["n_pruned"] == 1)].assign(strategy="greedy")
    for more, best in ((0.001, "greedy"), (-0.001, "ranked")):
        both = pd.concat([table, rival.assign(value=rival["value"] + more)])
        (text,) = of("ablate", pruning=both)
        assert f"1 of 6 heads pruned ({best})" in text
        # it was chosen on these examples: what the other one has stands beside it
        other = {"greedy": "ranked 0.825", "ranked": "greedy 0.824"}[best]
        others = "This strategy was picked on these examples; others with as many heads pruned"
        assert f" {others}: {other}. 2 random orders" in text
    assert of("ablate", pruning=table.drop(columns="delta")) == []


def test_of_gates(tmp_path: Path) -> None:
    made = Made(shapes={"encoder": (2, 3)}, penalties=(0.01, 0.1), steps=(0, 5, 10))
    folder = write_prune(tmp_path / "run", made)
    texts = found(folder)
    sweep = read_recorded(folder, "run").tables["sweep"]
    sweep = sweep[(sweep["init"] == "trained") & (sweep["run"] != "unpruned")].drop_duplicates("run")
    assert len(texts) == sweep["heads_encoder"].nunique() == 2
    for text, row in zip(texts, sweep.sort_values("heads_encoder", ascending=False).to_dict("records"), strict=True):
        staying = f"{row['heads_encoder']} head" if row["heads_encoder"] else "no head stays"
        assert f"with λ = {row['penalty']:g} {staying}" in text
        assert f"{row['value']:.3f} [{row['ci_low']:.3f}, {row['ci_high']:.3f}]" in text


def test_of_trainings_and_masks() -> None:
    row = {"model": "m", "task": "sst2", "data": "dev", "metric": "accuracy", "n": 50}
    values = {"value": 0.8, "ci_low": 0.7, "ci_high": 0.9}
    metrics = pd.DataFrame([row | values])
    assert of("train", metrics=metrics) == ["m: accuracy on sst2 0.800 [0.700, 0.900] on 50 examples of dev."]
    sweep = pd.DataFrame(
        [row | values | {"run": name, "sparsity_texts": s} for name, s in (("plain", np.nan), ("penalty-1", 0.5))]
    )
    assert of("train-dam", sweep=sweep) == [
        "m, penalty-1: 50.0% of text positions masked, accuracy on sst2 0.800 [0.700, 0.900]."
    ]
    patterns = [
        ("full", "all", 0.8, 0.0),
        ("star", "all", 0.6, 0.9),
        ("window:1", "all", 0.7, 0.95),
        ("star", "0", 0.75, 0.9),
    ]
    rest = row | values | {"control": "kept", "seed": 0}
    masks = pd.DataFrame(
        [
            rest | {"pattern": name, "layers": layers, "value": v, "sparsity": s, "sparsity_texts": s / 2}
            for name, layers, v, s in patterns
        ]
    )
    assert of("masks", masks=masks) == [
        "m: accuracy on sst2 after training without a mask: 0.800 [0.700, 0.900].",
        "m: sst2 under 2 masks in all layers, 50 examples, 1 seed: highest measured window:1 (48% of text positions "
        "masked) 0.700 [0.700, 0.900]; lowest measured star (45% of text positions masked) 0.600 [0.700, 0.900].",
        "m: sst2 under 1 mask in layer 0, 50 examples, 1 seed: star (45% of text positions masked) 0.750 [0.700, "
        "0.900].",
    ]


def test_of_sparsefinder() -> None:
    # That of entmax itself is (1 + its sparsity) / 2.
    methods = {"entmax": 0.9, "distance": 0.7, "window": 0.5, "random": np.nan}
    rows = [
        {"model": "m", "stack": stack, "method": method, "quality": "recall", "area": area, "share": 2 * area - 1}
        for stack in ("all", "cross")
        for method, area in methods.items()
    ]
    dense = [row | {"stack": "decoder", "area": 0.5, "share": np.nan} for row in rows[: len(methods)]]
    first, second, third = of("sparsefinder", areas=pd.DataFrame(rows + dense))
    assert first == (
        "m: entmax leaves 80.0% of the pairs without weight. Best predicted by Sparsefinder, distance (normalised area "
        "under the recall-sparsity curve 0.400); lowest is window (0.000); of so few sentences there are no "
        "intervals, and no difference is tested."
    )
    assert second.startswith("m, cross: entmax")
    assert third == "m, decoder: entmax leaves 0.0% of the pairs without weight: nothing to predict."

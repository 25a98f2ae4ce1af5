"""Tables over tasks from a run for each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy import stats

from headlens.analyses.masks.report import REPORT
from headlens.analyses.masks.study_figures import chance_text, means, without_mask
from headlens.analyses.masks.task_tables import (
    average_by_pattern,
    main_metrics,
    metrics_of,
    over_tasks,
    tasks_markdown,
    tasks_of,
)
from headlens.runs.reading import RecordedRun

CASES = [("full", "kept", 0.0), ("full", "random", 0.01), ("full", "dropped", 0.01), ("star", "kept", 0.9)]


def run(task: str, base: float, seeds: int = 3, metrics: tuple[str, ...] = ("accuracy",)) -> RecordedRun:
    rows = [
        {
            "pattern": pattern,
            "layers": "all",
            "control": control,
            "sparsity": sparsity,
            "sparsity_texts": sparsity * (0.5 if task == "rte" else 0.25),
            "task": task,
            "metric": metric,
            "seed": seed,
            "value": base + 0.1 * number + 0.02 * seed * (number + 1) - 0.5 * (metric != metrics[0]),
            "ci_low": base + 0.1 * number - 0.03,
            "ci_high": base + 0.1 * number + 0.04,
            "model": "m",
        }
        for number, (pattern, control, sparsity) in enumerate(CASES)
        for metric in metrics
        for seed in range(seeds)
    ]
    return RecordedRun(Path(task), task, {"command": "masks"}, {"masks": pd.DataFrame(rows)})


def test_averages_are_those_of_the_tasks_of_each_seed() -> None:
    table = over_tasks([run("sst2", 0.5), run("mrpc", 0.3, metrics=("f1", "accuracy"))])
    assert tasks_of(table) == ["sst2", "mrpc"]
    assert table["pattern"].tolist() == [pattern for pattern, *_ in CASES]
    star = table.iloc[3]
    sst2, mrpc = (np.array([base + 0.3 + 0.08 * seed for seed in range(3)]) for base in (0.5, 0.3))
    assert star[["sst2", "mrpc"]].tolist() == pytest.approx([sst2.mean(), mrpc.mean()])
    means = (sst2 + mrpc) / 2
    low, high = stats.t.interval(0.95, 2, means.mean(), stats.sem(means))
    assert star[["average", "ci_low", "ci_high", "seeds"]].tolist() == pytest.approx([means.mean(), low, high, 3])


def test_deltas_of_averages_are_paired_by_seed() -> None:
    whole, part = run("sst2", 0.5), run("rte", 0.3)
    table = over_tasks([whole, part])
    # of case k .1 k + .02 k seed more than without a mask, in both tasks
    more = np.array([0.3 + 0.06 * seed for seed in range(3)])
    low, high = stats.t.interval(0.95, 2, more.mean(), stats.sem(more))
    assert table.iloc[3][["delta", "delta_low", "delta_high"]].tolist() == pytest.approx([more.mean(), low, high])
    assert np.isnan(table.iloc[0]["delta"])
    lines = tasks_markdown(table, metrics_of([whole, part])).splitlines()
    assert lines[4].endswith("| average [95 % interval] | difference from unmasked |")
    assert lines[-3].endswith(f"| 0.360 [{low:.3f}, {high:.3f}] |")
    assert lines[-1].endswith("`difference from unmasked` is paired over seeds.")
    alone = [run("sst2", 0.5, 1), run("rte", 0.3, 1)]
    assert over_tasks(alone)["delta"].isna().all(), "as runs wrote it that compared nothing"
    assert "difference from unmasked" not in tasks_markdown(over_tasks(alone), metrics_of(alone))


def test_of_one_seed_deltas_are_those_of_examples() -> None:
    runs = [run("sst2", 0.5, 1), run("rte", 0.3, 1)]
    for number, own in enumerate(runs):
        rows = own.tables["masks"]
        masked = rows["pattern"] == "star"
        rows.loc[masked, ["delta", "delta_low", "delta_high"]] = [
            0.1 * number,
            0.1 * number - 0.04,
            0.1 * number + 0.03,
        ]
    star = over_tasks(runs).iloc[3]
    found = star[["delta", "delta_low", "delta_high"]].tolist()
    assert found == pytest.approx([0.05, 0.05 - np.sqrt(2) * 0.04 / 2, 0.05 + np.sqrt(2) * 0.03 / 2])
    assert over_tasks(runs)["delta"].isna().tolist() == [True, True, True, False]


def test_of_one_seed_the_intervals_of_tasks_are_combined() -> None:
    """As independent ones: the variance of a mean of k is the sum of the variances over k squared."""
    row = over_tasks([run("sst2", 0.5, 1), run("rte", 0.3, 1)]).iloc[0]
    assert row[["average", "seeds"]].tolist() == pytest.approx([0.4, 1])
    assert row["ci_low"] == pytest.approx(0.4 - np.sqrt(2 * 0.03**2) / 2)
    assert row["ci_high"] == pytest.approx(0.4 + np.sqrt(2 * 0.04**2) / 2)


def test_what_a_task_lacks_has_no_average() -> None:
    whole, part = run("sst2", 0.5), run("rte", 0.3)
    rows = part.tables["masks"]
    without = RecordedRun(part.folder, "rte", part.record, {"masks": rows[rows["pattern"] == "full"]})
    table = over_tasks([whole, without])
    assert table["average"].isna().tolist() == [False, False, False, True]
    assert np.isnan(table.iloc[3]["rte"])
    fewer = RecordedRun(part.folder, "rte", part.record, {"masks": rows[rows["seed"] < 2]})
    assert over_tasks([whole, fewer])["seeds"].tolist() == [2, 2, 2, 2]


def test_one_task_is_not_several() -> None:
    assert over_tasks([run("sst2", 0.5)]).empty
    assert over_tasks([]).empty
    assert list(REPORT.together([run("sst2", 0.5)])) == []
    twice = over_tasks([run("sst2", 0.5), run("sst2", 0.9), run("rte", 0.3)])
    assert twice.iloc[0]["sst2"] == pytest.approx(0.52), "the first of two runs counts"


def test_models_called_alike_are_told_apart_by_their_weights() -> None:
    def of(own: RecordedRun, label: str, weights: str) -> RecordedRun:
        record = {"command": "masks", "models": [{"model": "m", "weight_hash": weights}]}
        return RecordedRun(own.folder, label, record, own.tables)

    runs = [of(run("sst2", 0.5), "a", "x"), of(run("rte", 0.3), "b", "y"), of(run("rte", 0.4), "c", "x")]
    table = over_tasks(runs)
    assert set(table["model"]) == {"m (a)"}, "the other model has one task, of which there is no average"
    first = table.groupby("model").first()
    assert first.loc["m (a)", ["sst2", "rte"]].tolist() == pytest.approx([0.52, 0.42])
    assert over_tasks(runs[:2]).empty
    assert REPORT.left_out(runs) == []


def test_what_does_not_count_is_told() -> None:
    one, again, other = run("sst2", 0.5), run("sst2", 0.5), run("sst2", 0.6, 2)
    runs = [
        RecordedRun(own.folder, label, own.record, own.tables)
        for own, label in zip((one, again, other), "abc", strict=True)
    ]
    told = (
        "8 training runs of c on sst2 left out over all runs: a has the same model, task, mask and seed but a "
        "different result."
    )
    assert REPORT.left_out([*runs, run("rte", 0.3)]) == [told]
    assert REPORT.left_out([]) == []


def test_a_run_on_other_data_counts_as_a_whole_or_not_at_all() -> None:
    """Its masks are compared with its own model without one, which another run's is not."""

    def of(label: str, base: float, *patterns: str, **arguments: object) -> RecordedRun:
        made = run("sst2", base, 1)
        rows = made.tables["masks"]
        hashes = {"the data": "a", "what is held out": arguments.pop("held_out", "b")}
        record = {
            "command": "masks",
            "arguments": {"data": ["x/train.tsv"], "steps": 12} | arguments,
            "depends_on": hashes,
        }
        return RecordedRun(Path(label), label, record, {"masks": rows[rows["pattern"].isin(patterns)]})

    first, more = of("a", 0.5, "full"), of("b", 0.5, "full", "star", data=["train.tsv"])
    assert set(main_metrics([first, more])["pattern"]) == {"full", "star"}
    assert REPORT.left_out([first, more]) == []
    assert [name for name, _ in REPORT.together([first, more])] == ["together"]
    for other in (of("b", 0.6, "full", "star"), of("b", 0.5, "star", steps=60), of("b", 0.5, "star", held_out="c")):
        assert set(main_metrics([first, other])["pattern"]) == {"full"}
        assert list(REPORT.together([first, other])) == [], "which is one run"
        (told,) = REPORT.left_out([first, other])
        assert told.startswith(f"{len(other.tables['masks'])} training run")
        assert ("different result" in told) == (len(other.tables["masks"]) > 1)
        assert ("on other data or with other options than those of a" in told) == (len(other.tables["masks"]) == 1)


def test_chance_levels_of_a_task_are_not_averaged() -> None:
    rows = pd.DataFrame({"task": "sst2", "metric": "accuracy", "chance": [0.5, 0.9, 0.9]})
    assert "has 0.500 to 0.900 (accuracy of sst2)" in chance_text(rows)
    assert "has 0.900 (accuracy of sst2)" in chance_text(rows[1:])


def test_of_one_seed_nothing_is_paired_by_seed() -> None:
    runs = [run("sst2", 0.5, 1), run("rte", 0.3, 1)]
    for own in runs:
        own.tables["masks"][["delta", "delta_low", "delta_high"]] = [0.1, 0.0, 0.2]
    assert tasks_markdown(over_tasks(runs), metrics_of(runs)).endswith(
        "`difference from unmasked` is paired over the examples of each task.\n"
    )


def test_what_guessing_gives_is_told() -> None:
    runs = [run("sst2", 0.5, 1), run("rte", 0.3, 1, metrics=("f1", "accuracy"))]
    runs[0].tables["masks"]["chance"] = 0.55
    (told,) = (made for name, made in REPORT.together(runs) if isinstance(made, str))
    chance = "Always giving the most frequent answer has 0.550 (accuracy of sst2): the chance level."
    assert told.endswith(f"\n\n{chance}\n\nNo mask: not shown to be better than guessing (sst2).\n")


def test_markdown_names_what_is_masked() -> None:
    runs = [run("sst2", 0.5, 1), run("rte", 0.3, 1, metrics=("f1", "accuracy"))]
    lines = tasks_markdown(over_tasks(runs), metrics_of(runs)).splitlines()
    assert "| attention | masked, % | masked in texts, % | sst2 | rte | average [95 % interval] |" in lines
    assert "| all | 0.0 | 0.0 | 0.500 | 0.300 | 0.400 [0.379, 0.428] |" in lines
    assert "| no diagonal | 1.0 | 0.4 | 0.700 | 0.500 | 0.600 [0.579, 0.628] |" in lines
    assert any(line.startswith("| star | 90.0 | 33.8 | 0.800 | 0.600 |") for line in lines)
    assert lines[-1] == "The average is that of accuracy of sst2, f1 of rte."


def test_runs_on_one_task_are_drawn_together() -> None:
    """Of what both have the first run counts, once."""
    one, two = run("sst2", 0.5), run("sst2", 0.5)
    other = two.tables["masks"].replace({"pattern": {"star": "window:3"}})
    other.loc[other["pattern"] == "window:3", ["value", "ci_low", "ci_high"]] += 0.1
    two = RecordedRun(two.folder, "other", two.record, {"masks": other})
    ((name, figure),) = REPORT.together([one, two])
    assert name == "together"
    assert isinstance(figure, Figure)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["from the top:\nwindow:3\nstar"], (
        "in the order of what they achieve"
    )
    assert [line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == "--"] == [pytest.approx(0.52)]


def test_masks_of_fewer_seeds_than_the_line_are_not_said_to_be_means_of_as_many() -> None:
    one, two = run("sst2", 0.5, 1), run("sst2", 0.5, 3)
    two = RecordedRun(two.folder, "other", two.record, {"masks": two.tables["masks"].query("pattern == 'full'")})
    ((_, figure),) = REPORT.together([one, two])
    assert isinstance(figure, Figure)
    assert ", means of 1 to 3 seeds)" in " ".join(figure.texts[0].get_text().split())


def test_runs_whose_folders_are_called_alike_are_both_told() -> None:
    one, two = run("sst2", 0.5), run("sst2", 0.6)
    two = RecordedRun(Path("elsewhere") / one.folder.name, "sst2", two.record, two.tables)
    (table,) = REPORT.overviews([one, two])
    assert len(table.rows) == 2 * len(CASES)


def test_an_average_of_models_that_guess_says_so() -> None:
    """Both tasks at their chance level, one with one answer to everything: no loss under masks means nothing."""
    runs = [run("sst2", 0.5), run("paraphrase", 0.3)]
    for number, (done, chance) in enumerate(zip(runs, (0.52, 0.5), strict=True)):
        done.tables["masks"] = done.tables["masks"].assign(
            chance=chance, n=60, value=chance, answer_share=[0.6, 1.0][number], same_answer=bool(number)
        )
    (text,) = (made for name, made in REPORT.together(runs) if name == "over_tasks" and isinstance(made, str))
    assert "No mask: the same answer to all examples" in text
    assert "paraphrase" in text.partition("No mask: the same answer to all")[2]
    figure = average_by_pattern(over_tasks(runs), without_mask(means(main_metrics(runs))))
    assert figure is not None
    title = figure.texts[0].get_text().replace("\n", " ")
    assert "no mask: the same answer to all examples (paraphrase)" in title
    (chance,) = (line for line in figure.axes[0].lines if "chance" in str(line.get_label()))
    assert np.asarray(chance.get_ydata()) == pytest.approx(0.51)


def test_figure_and_page() -> None:
    runs = [run("sst2", 0.5), run("rte", 0.3)]
    made = dict.fromkeys(name for name, _ in REPORT.together(runs))
    assert list(made) == ["together", "over_tasks", "average", "diagonal_over_tasks"]
    unmasked = without_mask(means(main_metrics(runs)))
    figure = average_by_pattern(over_tasks(runs), unmasked)
    assert figure is not None
    (axes,) = figure.axes
    assert axes.get_ylabel() == "average on 2 tasks"
    tables = REPORT.overviews(runs)
    assert [table.title for table in tables] == ["Over tasks", "Models trained under masks"]
    named = [column.name for column in tables[0].columns]
    assert named[:5] == ["attention", "masked, %", "masked in texts, %", "sst2", "rte"]

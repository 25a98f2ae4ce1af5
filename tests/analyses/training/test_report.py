"""How training runs are shown."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headlens.analyses.training.report import ONLY_TRAINING, REPORT, CurveFacts, training_curve
from headlens.errors import InputError
from headlens.heads import KEY_COLUMNS
from headlens.learning.alphas_figure import alpha_histograms
from headlens.learning.learned_alphas import alpha_notes
from headlens.learning.training_run import chance_notes, checkpoint_note
from headlens.runs.reading import RecordedRun

LOG = pd.DataFrame({"step": [10, 20, 30], "loss": [2.0, 1.5, 1.25]})
HELD = pd.DataFrame({"step": [15, 30], "loss": [1.75, 1.5], "accuracy": [0.5, 0.75]})


def metrics(low: float = 0.625) -> pd.DataFrame:
    row = {"model": "m", "task": "sst2", "data": "dev", "metric": "accuracy", "n": 8, "value": 0.75}
    return pd.DataFrame([{**row, "ci_low": low, "ci_high": 0.875}])


def recorded(**tables: pd.DataFrame) -> RecordedRun:
    return RecordedRun(Path("folder"), "run", {"command": "train"}, tables)


def test_both_losses_are_drawn_where_they_were_measured() -> None:
    figure = training_curve(LOG, HELD)
    assert figure is not None
    training, held = figure.axes[0].lines
    assert list(zip(*training.get_data(), strict=True)) == [(10, 2.0), (20, 1.5), (30, 1.25)]
    assert list(zip(*held.get_data(), strict=True)) == [(15, 1.75), (30, 1.5)]


def test_the_curve_is_named_after_model_and_data() -> None:
    figure = training_curve(LOG, HELD, "new:marian", "train.de+train.en")
    assert figure is not None
    assert figure.get_suptitle() == "Training and held-out loss of new:marian\ndata: train.de+train.en"
    run = recorded(log=LOG)
    run.record["models"], run.record["data"] = [{"model": "m"}], {"name": "sst2.tsv"}  # type: ignore[index]
    ((_, again),) = REPORT.figures(run)
    assert again is not None
    assert again.get_suptitle() == "Training loss of m\ndata: sst2.tsv"


def test_what_only_the_loss_in_training_has_stands_in_the_title() -> None:
    more = ["label smoothing 0.1", "dropout"]
    run = recorded(log=LOG, evaluations=HELD)
    run.record[ONLY_TRAINING] = more  # type: ignore[index]
    for figure in (
        training_curve(LOG, HELD, facts=CurveFacts(only_training=more)),
        dict(REPORT.figures(run))["training"],
    ):
        assert figure is not None
        title = figure.get_suptitle().replace("\n", " ")
        assert title.endswith(" (only the training loss has label smoothing 0.1 and dropout)")
    run.record[ONLY_TRAINING] = "damaged"  # type: ignore[index]
    others = training_curve(LOG, HELD), training_curve(LOG, HELD.iloc[:0, :0], facts=CurveFacts(only_training=more))
    for figure in (*others, dict(REPORT.figures(run))["training"]):
        assert figure is not None
        assert "only" not in figure.get_suptitle()


@pytest.mark.parametrize(
    ("values", "higher", "step", "words"),
    [
        ([0.573, 0.573], True, 1, "update 1, the first of 2 with the highest held-out accuracy (0.573)."),
        ([0.5, 0.75, 0.75, 0.75], True, 2, "update 2, the first of 3 with the highest held-out accuracy (0.750)."),
        ([0.5, 0.75, 0.6], True, 2, "update 2, the one with the highest held-out accuracy (0.750)."),
        ([2.0, 1.5, 1.5], False, 2, "update 2, the first of 2 with the lowest held-out accuracy (1.500)."),
        ([float("nan"), 1.5], False, 2, "update 2, the one with the lowest held-out accuracy (1.500)."),
    ],
)
def test_of_equal_evaluations_the_first_is_said_to_be_saved(
    values: list[float], step: int, words: str, *, higher: bool
) -> None:
    evaluations = [{"step": number, "accuracy": value} for number, value in enumerate(values, 1)]
    found = checkpoint_note(evaluations, "accuracy", higher_is_better=higher)
    chosen = f" The same examples chose it among {len(values)} evaluations: what it achieves on them is optimistic."
    assert found == (step, f"The checkpoint is that of {words}{chosen}")
    assert checkpoint_note(evaluations[:1], "accuracy")[1].endswith(").")


@pytest.mark.parametrize(
    ("steps", "evaluated", "saved"),
    [([4], [2, 4], 2), ([3], [3], 3), ([1, 2, 3], [1, 2, 3], 2), ([10, 2000], [2000], 2000)],
)
def test_updates_are_whole_numbers_and_the_saved_one_is_marked(
    steps: list[int], evaluated: list[int], saved: int
) -> None:
    log, held = (pd.DataFrame({"step": own, "loss": 1.5}) for own in (steps, evaluated))
    run = recorded(log=log, evaluations=held)
    run.record["checkpoint"] = saved  # type: ignore[index]
    for figure in (training_curve(log, held, facts=CurveFacts(saved=saved)), dict(REPORT.figures(run))["training"]):
        assert figure is not None
        figure.canvas.draw()
        (axes,) = figure.axes
        low, high = axes.get_xlim()
        ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
        assert ticks
        assert all(tick == int(tick) for tick in ticks)
        mark = axes.lines[-1]
        assert (mark.get_label(), set(mark.get_xdata())) == ("saved checkpoint", {saved})
    plain = training_curve(log, pd.DataFrame())
    assert plain is not None
    assert [line.get_label() for line in plain.axes[0].lines] == ["training, mean since the last point"]


def test_a_loss_above_that_of_predicting_by_frequency_has_a_note_of_its_own() -> None:
    evaluations = [{"step": 1, "loss": 9.1}, {"step": 2, "loss": 8.866}]
    (note,) = chance_notes(evaluations, 4.936)
    assert note.startswith("The held-out loss of the model (8.866) is above that of predicting by the frequencies ")
    assert "(4.936; of little text, this is lower than of more): train it further, with more --epochs" in note
    assert "significant" not in note, "nothing was tested"
    assert "a higher --learning-rate (weights" in note
    for diverged in ([{"loss": 97_443.0}], [{"loss": 6.0}, {"loss": 5.9}, {"loss": 8.0}]):
        (note,) = chance_notes(diverged, 4.7)
        assert note.endswith("give a lower --learning-rate.")
    assert chance_notes(evaluations, 8.9) == chance_notes(evaluations, float("nan")) == []


@pytest.mark.parametrize(("even", "drawn"), [(1.6, True), (1.0, True), (40.0, False), (float("nan"), False)])
def test_the_loss_of_guessing_is_a_line_where_it_is_near(even: float, drawn: bool) -> None:
    """A loss that falls may still be worse than that of guessing."""
    run = recorded(log=LOG, evaluations=HELD)
    run.record["chance_loss"] = even  # type: ignore[index]
    for figure in (training_curve(LOG, HELD, facts=CurveFacts(chance=even)), dict(REPORT.figures(run))["training"]):
        assert figure is not None
        levels = [line.get_ydata()[0] for line in figure.axes[0].lines if line.get_label() == "chance level"]
        assert levels == [even] * drawn
        low, high = figure.axes[0].get_ylim()
        assert (low < even < high) == drawn
        labels = [text.get_text() for text in figure.legends[0].get_texts()]
        assert ("chance level 40 (above the axis)" in labels) == (even == 40.0)


def test_a_loss_that_is_a_squared_error_is_called_so() -> None:
    run = recorded(log=LOG, evaluations=HELD)
    assert dict(REPORT.figures(run))["training"].axes[0].get_ylabel() == "loss"
    run.record["loss"] = "squared error"  # type: ignore[index]
    assert dict(REPORT.figures(run))["training"].axes[0].get_ylabel() == "loss (squared error)"


def test_a_single_point_can_be_seen() -> None:
    figure = training_curve(LOG[:1], pd.DataFrame())
    assert figure is not None
    (line,) = figure.axes[0].lines
    assert line.get_marker() == "."
    assert training_curve(LOG[:0], HELD) is None


def test_a_report_draws_the_curve_again() -> None:
    ((name, figure),) = REPORT.figures(recorded(log=LOG, evaluations=HELD))
    assert name == "training"
    assert figure is not None
    assert "evaluations" in REPORT.caption(name).text
    assert list(REPORT.figures(recorded())) == []


def alphas(**stacks: list[list[float]]) -> pd.DataFrame:
    """A row for each head, from the alphas of the heads of each layer of each stack."""
    rows = [
        ("m", stack, layer, head, alpha)
        for stack, layers in stacks.items()
        for layer, heads in enumerate(layers)
        for head, alpha in enumerate(heads)
    ]
    return pd.DataFrame(rows, columns=["model", *KEY_COLUMNS, "alpha"])


def _drawn(figure: Figure | None) -> list[Axes]:
    assert figure is not None
    return [axes for axes in figure.axes if axes.collections][:1]


def test_learned_alphas_are_counted_by_layer() -> None:
    table = alphas(encoder=[[1.01, 1.02, 1.51], [2.0, 1.98, 1.99]], cross=[[1.5, 1.51, 1.52], [1.7, 1.3, 1.3]])
    figure = alpha_histograms(table)
    assert figure is not None
    figure.canvas.draw()
    first, second = ([axes for axes in figure.axes if axes.collections][place] for place in (0, 1))
    counts = first.collections[0].get_array().filled(0)  # (layers, twentieths from 1 to 2)
    assert counts.shape == (2, 21)
    assert (counts[0, 0], counts[0, 10], counts[1, 20]) == (2, 1, 3), "1, 1.5 and 2 are middles"
    assert counts.sum() == 6
    assert second.collections[0].get_array().filled(0)[0, 10] == 3
    assert [axes.get_title(loc="left") for axes in (first, second)] == ["m, encoder", "m, cross"]
    assert alpha_histograms(table[:0]) is None
    (axes,) = _drawn(alpha_histograms(alphas(encoder=[[1.4999, 1.5001, 1.5]])))
    assert axes.collections[0].get_array().max() == 3, "what has not moved is in one bin"
    ((name, again),) = REPORT.figures(recorded(alphas=table))
    assert name == "alphas"
    assert again is not None
    assert alpha_notes(table) == [
        "Learned alphas of entmax, mean and range over heads: encoder 1.58 (1.01 to 2.00), cross 1.47 (1.30 to 1.70)."
    ]
    assert alpha_notes(None) == []


def test_the_overview_says_what_the_model_achieves() -> None:
    (table,) = REPORT.overviews([recorded(metrics=metrics()), recorded(log=LOG)])
    names = [column.name for column in table.columns]
    cells = dict(zip(names, table.rows[0], strict=True))
    assert (cells["metric"].text, cells["value"].text) == ("accuracy", "0.750")
    assert cells["95 % interval"].text == "0.625 to 0.875"
    assert len(table.rows) == 1
    assert REPORT.overviews([recorded(log=LOG)]) == []


def test_a_task_with_too_few_examples_has_no_interval() -> None:
    (table,) = REPORT.overviews([recorded(metrics=metrics(float("nan")))])
    assert [column.name for column in table.columns][-1] == "value"


def test_a_damaged_log_is_named() -> None:
    with pytest.raises(InputError, match=r"log\.csv"):
        REPORT.check(recorded(log=LOG.drop(columns="loss")))

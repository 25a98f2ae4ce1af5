"""The recipe of `report`: what is written where, and what is left alone."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made_runs import change_record, write_classification, write_other
from matplotlib.figure import Figure
from tiers import rest_slow

from headlens.analyses.report import recipe
from headlens.analyses.report.options import ReportRequest
from headlens.analyses.report.recipe import run_report
from headlens.errors import InputError, OptionError, OutputError
from headlens.runs.folder import LOCK_NAME, RunFolder
from headlens.runs.progress import Reporter
from headlens.shared_options import OutputOptions

FIGURES = ["functions", "confidence", "entropy", "mass", "rare", "same_word", "coreference", "pair", "alignment"]
FIGURES += ["positions", "offsets", "best_heads", "syntax", "similarity"]


# What these figures are drawn from stays in runs of which few figures are drawn.
FEW = ("functions", "confidence")
SHOWN = {"model", "stack", "layer", "head", "tokens", "role", "roles", "nearest", "confidence", "confidence_all"}


def keep_few(folder: Path) -> None:
    """Empties what no figure of FEW is drawn from."""
    for name in ("positions", "syntax", "similarity"):
        path = folder / f"{name}.csv"
        path.write_text(path.read_text(encoding="utf-8").splitlines(keepends=True)[0], encoding="utf-8")
    heads = pd.read_csv(folder / "heads.csv")
    heads.assign(**dict.fromkeys(set(heads) - SHOWN, "")).to_csv(folder / "heads.csv", index=False)
    change_record(folder, {"rows": {}})


def report(*runs: Path, **place: Any) -> recipe.ReportRun:
    return run_report(ReportRequest(runs, OutputOptions(**place)))


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture
def classified(tmp_path: Path) -> Path:
    return write_classification(tmp_path / "run")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return write_other(tmp_path / "other")


@pytest.mark.slow
def test_the_report_of_a_run_goes_into_its_folder_and_nothing_else_changes(classified: Path) -> None:
    before, old = content(classified), record(classified)
    made = report(classified)
    after, new = content(classified), record(classified)
    drawn = [f"figures/{name}.{kind}" for name in FIGURES for kind in ("png", "svg")]
    assert set(after) - set(before) == {*drawn, "report.html"}
    assert {name for name in before if before[name] != after[name]} == {"run.json"}
    assert new == old | {"files": [*old["files"], *drawn, "report.html"]}
    assert made.folder == classified
    assert made.files == [classified / name for name in [*drawn, "report.html"]]
    assert made.page == classified / "report.html"
    assert not made.notes
    summary = made.summary()
    assert json.loads(json.dumps(summary)) == summary
    assert summary["runs"] == [
        {"run": "run", "command": "classify", "model": "demo", "status": "finished", "tables": 4, "figures": 14}
    ]
    # a second time nothing changes at all
    report(classified)
    assert content(classified) == after


@pytest.mark.slow
@pytest.mark.parametrize("names", rest_slow([FEW, tuple(FIGURES)]), ids=["few", "all"])
def test_figures_are_those_that_the_run_itself_draws(classified: Path, tmp_path: Path, names: tuple[str, ...]) -> None:
    from headlens.analyses.classify.report import classify_figures
    from headlens.pages.command_report import write_results
    from headlens.plots.style import named_after
    from headlens.runs.reading import read_recorded

    if names == FEW:
        keep_few(classified)
    read = read_recorded(classified, "")
    assert read.corpus_name
    with RunFolder.create(tmp_path / "again", command="classify", model="demo") as run:
        write_results(run, read.tables, named_after(read.corpus_name, classify_figures(read.tables)))
    assert [p.stem for p in report(classified).files if p.suffix == ".png"] == list(names)
    for name in names:
        for kind in ("png", "svg"):
            file = f"figures/{name}.{kind}"
            assert (classified / file).read_bytes() == (tmp_path / "again" / file).read_bytes()


@pytest.mark.slow
def test_a_report_elsewhere_leaves_the_run_alone(classified: Path, tmp_path: Path) -> None:
    before = content(classified)
    made = report(classified, out=tmp_path / "out")
    assert content(classified) == before
    assert record(tmp_path / "out")["status"] == "finished"
    expected = {"runs": [str(classified)], "format": ["png", "svg"], "latex": False, "width": "full"}
    assert record(tmp_path / "out")["arguments"] == expected
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"figures", "report.html", "run.json"}
    inside = report(classified)
    assert made.page.read_bytes() == inside.page.read_bytes()


@pytest.mark.slow
def test_figures_for_a_column_and_those_that_keep_their_width(classified: Path, other: Path, tmp_path: Path) -> None:
    figure = Figure(figsize=(5, 1))
    figure.subplots().plot([1, 2])
    with RunFolder.reopen(other) as folder:
        folder.figure("large", figure)
    made = run_report(ReportRequest((classified, other), OutputOptions(out=tmp_path / "out"), width="column"))
    widths = {picture.name: picture.inches for section in made.sections for picture in section.pictures}
    assert {name for name, inches in widths.items() if inches > 3.31} == {"large"}
    assert made.notes == ["Figures wider than a column (3.3 inches): large (other)."]
    assert record(tmp_path / "out")["arguments"]["width"] == "column"
    # the next report is one for a page again
    assert not report(classified).notes
    alone = run_report(ReportRequest((other,), width="column"))
    assert alone.notes == ["Figures wider than a column (3.3 inches): large."]


def test_an_unknown_width_is_refused(other: Path) -> None:
    with pytest.raises(OptionError, match=r"(?s)--width 'wide'.*full, column"):
        ReportRequest((other,), width="wide")


def test_naming_the_run_itself_as_place_is_the_same(other: Path, tmp_path: Path) -> None:
    report(other, out=tmp_path / "." / "other", overwrite=True)
    assert record(other)["command"] == "attend"
    assert (other / "figures" / "sentence1_encoder_layer0.png").exists()
    assert (other / "report.html").exists()


def test_several_runs_have_a_folder_of_their_own(other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    second = write_other(tmp_path / "second", "another")
    made = report(other, Path("second"))
    assert made.folder.parent == Path("runs")
    assert made.folder.name.startswith("report-other-and-1-more-")
    html = made.page.read_text(encoding="utf-8")
    assert html.count("data:image/webp") == 2
    assert not (second / "report.html").exists()


@pytest.mark.slow
def test_figures_of_several_runs_do_not_meet(classified: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second = write_classification(tmp_path / "deep" / "run", "other", seed=1)
    made = report(classified, second, out=tmp_path / "out")
    assert {p.name for p in (tmp_path / "out" / "figures").glob("*.png")} == {
        f"{number}_{name}.png" for number in (1, 2) for name in FIGURES
    }
    # two folders of one name are told apart by their paths
    assert [section.run.label for section in made.sections] == [str(classified), str(second)]


def test_a_run_of_another_command_is_shown_with_its_pictures(other: Path) -> None:
    made = report(other)
    assert made.files == [other / "report.html"]
    assert "sentence1 encoder layer0" in made.page.read_text(encoding="utf-8")


@pytest.mark.parametrize("status", rest_slow(["interrupted", "failed", "running", "odd"], ["interrupted", "odd"]))
def test_an_unfinished_run_is_shown_with_a_remark(other: Path, status: str) -> None:
    change_record(other, {"status": status, "files": []})
    made = report(other)
    assert len(made.notes) == 1
    assert "below is what" in made.notes[0]
    html = made.page.read_text(encoding="utf-8")
    assert f'<p class="warning"><strong>{made.notes[0]}</strong></p>' in html
    assert html.count("data:image/webp") == 1
    assert record(other)["status"] == status


@pytest.mark.slow
@pytest.mark.parametrize("names", rest_slow([FEW, tuple(FIGURES[:10])]), ids=["few", "all"])
def test_of_an_interrupted_classification_is_drawn_what_can_be(classified: Path, names: tuple[str, ...]) -> None:
    if names == FEW:
        keep_few(classified)
    else:
        for name in ("positions", "syntax", "similarity"):
            (classified / f"{name}.csv").unlink()
    change_record(classified, {"status": "interrupted", "files": []})
    made = run_report(ReportRequest((classified,), OutputOptions(), format=("png",)))
    assert [p.stem for p in made.files if p.suffix == ".png"] == list(names)


def test_broken_pictures_are_not_shown(other: Path) -> None:
    (other / "figures" / "z.png").write_text("<script>")
    made = report(other)
    assert made.notes == ["figures/z.png is not a whole PNG file and is not shown."]
    assert made.page.read_text(encoding="utf-8").count("data:image/webp") == 1


@pytest.mark.parametrize(("shown", "told"), [(2, "2 further figures are"), (3, "1 further figure is")])
def test_pictures_beyond_what_a_page_holds_are_counted(
    other: Path, monkeypatch: pytest.MonkeyPatch, shown: int, told: str
) -> None:
    first = other / "figures" / "sentence1_encoder_layer0.png"
    for number in range(3):
        shutil.copy(first, other / "figures" / f"x{number}.png")
    embedded = recipe.picture(first, "x", "other")
    assert embedded is not None
    monkeypatch.setattr(recipe, "MOST_PICTURES", len(embedded.uri) * shown)
    made = report(other)
    assert made.notes == [f"{told} left out to keep this page small: see figures/."]
    assert made.page.read_text(encoding="utf-8").count("data:image/webp") == shown


@pytest.mark.slow
def test_what_has_no_numbers_is_named(classified: Path) -> None:
    path = classified / "heads.csv"
    lines = [line.split(",") for line in path.read_text().splitlines()]
    empty = [lines[0].index(name) for name in ("entropy", "entropy_norm")]
    rows = [[("" if i in empty else cell) for i, cell in enumerate(line)] for line in lines[1:]]
    path.write_text("\n".join(",".join(line) for line in [lines[0], *rows]) + "\n")
    made = report(classified)
    assert made.sections[0].undrawn == ["entropy"]
    assert "Nothing to draw, so no figure, for: Entropy." in made.page.read_text(encoding="utf-8")


def test_a_page_of_somebody_else_is_refused(other: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "report.html").write_text("mine")
    with pytest.raises(OutputError, match=r"(?s)report\.html exists.*--overwrite"):
        report(other, out=out)
    (other / "report.html").write_text("mine")
    with pytest.raises(OutputError, match=r"(?s)report\.html exists.*--overwrite"):
        report(other)
    assert (out / "report.html").read_text() == (other / "report.html").read_text() == "mine"
    report(other, out=out, overwrite=True)
    report(other, overwrite=True)
    assert "mine" not in {(out / "report.html").read_text(), (other / "report.html").read_text()}


def test_a_finished_run_as_place_is_refused(other: Path, classified: Path) -> None:
    before = content(classified)
    with pytest.raises(OutputError, match="holds a finished run of classify"):
        report(other, out=classified)
    assert content(classified) == before


def test_an_earlier_report_is_replaced_only_when_asked(other: Path, tmp_path: Path) -> None:
    report(other, out=tmp_path / "out")
    before = content(tmp_path / "out")
    with pytest.raises(OutputError, match="holds a finished run of report"):
        report(other, out=tmp_path / "out")
    made = report(other, out=tmp_path / "out", overwrite=True)
    assert made.page.read_bytes() == before["report.html"]


@pytest.mark.parametrize("place", [{}, {"overwrite": True}])
def test_a_run_that_is_being_written_is_not_touched(other: Path, place: dict[str, Any]) -> None:
    with RunFolder.create(other, command="attend", model="demo", overwrite=True) as run:
        run.start({})
        with pytest.raises(OutputError, match="being written to by another headlens process"):
            report(other, **place)
        run.finish()
    assert not (other / "report.html").exists()


@pytest.mark.slow
def test_what_breaks_off_leaves_the_lock_and_lists_what_it_wrote(
    classified: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Impatient(Reporter):
        @contextmanager
        def progress(self, text: str, total: int | None, costs: Any = ()) -> Iterator[Any]:
            def advance(_: int) -> None:
                raise KeyboardInterrupt

            yield advance

    with pytest.raises(KeyboardInterrupt):
        run_report(ReportRequest((classified,)), Impatient())
    assert not (classified / LOCK_NAME).exists()
    assert record(classified)["files"][-2:] == ["figures/functions.png", "figures/functions.svg"]
    assert record(classified)["status"] == "finished"
    report(classified)
    assert record(classified)["files"][-1] == "report.html"


def test_no_run_is_refused() -> None:
    with pytest.raises(OptionError, match="No run"):
        report()


def test_a_run_given_twice_is_refused(other: Path) -> None:
    with pytest.raises(OptionError, match="is given twice"):
        report(other, other.parent / "." / "other")


def test_one_of_several_runs_is_no_place(other: Path, tmp_path: Path) -> None:
    second = write_other(tmp_path / "second")
    before = content(other)
    with pytest.raises(OptionError, match="is one of the runs"):
        report(other, second, out=other, overwrite=True)
    assert content(other) == before


def test_a_report_is_no_run(other: Path, tmp_path: Path) -> None:
    report(other, out=tmp_path / "out")
    with pytest.raises(InputError) as found:
        report(tmp_path / "out")
    assert str(found.value).splitlines() == [
        f"{tmp_path / 'out'} holds a report, not a run.",
        f"Name the runs it was made from: {other}",
    ]


def test_pages_among_runs_are_left_out(other: Path, tmp_path: Path) -> None:
    """As where a shell writes out `runs/*`."""
    report(other, out=tmp_path / "page")
    done = report(tmp_path / "page", other, out=tmp_path / "out")
    assert [section.run.folder for section in done.sections] == [other]
    assert f"Left out, as they hold reports and no runs: {tmp_path / 'page'}." in done.notes
    assert not any("hold reports" in note for note in report(other, out=tmp_path / "alone").notes)


def test_nothing_is_written_when_one_of_the_runs_is_broken(
    other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no run"):
        report(other, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other"]


def test_a_large_page_is_told(other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "LARGE_PAGE", 1000)
    (told,) = report(other).notes
    pictures = r"report\.html is \d+\.\d MB: pictures are \d+\.\d MB of it"
    assert re.fullmatch(rf"{pictures}, the rest is tables and the numbers of all heads\.", told)

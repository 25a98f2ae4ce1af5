"""`headlens report` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_runs import change_record, write_ablation, write_classification, write_other

Headlens = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_classification(tmp_path / "run")


@pytest.mark.slow
def test_it_names_the_page_and_what_to_do_with_it(headlens: Headlens, run: Path) -> None:
    done = headlens("report", "run")
    assert done.code == 0, done.err
    assert ["run", "classify", "demo", "finished", "4", "14"] in [line.split() for line in done.out.splitlines()]
    assert "run/ report.html" in done.out
    assert "run/figures/ functions.{png,svg}" in done.out
    assert done.out.endswith("Next: open run/report.html in a browser\n")
    assert (run / "report.html").is_file()


def test_json_is_the_only_output(headlens: Headlens, tmp_path: Path) -> None:
    run, other = write_ablation(tmp_path / "run"), write_other(tmp_path / "other")
    done = headlens("report", run, other, "--out", "out", "--json")
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    assert summary["page"] == "out/report.html"
    assert [own["command"] for own in summary["runs"]] == ["ablate", "attend"]
    assert "out/report.html" in summary["files"]
    assert not done.err


def test_quiet_says_nothing(headlens: Headlens, tmp_path: Path) -> None:
    write_other(tmp_path / "other")
    done = headlens("report", "other", "-q")
    assert (done.code, done.out, done.err) == (0, "", "")


def test_an_interrupted_run_gets_a_note(headlens: Headlens, tmp_path: Path) -> None:
    change_record(write_other(tmp_path / "other"), {"status": "interrupted"})
    done = headlens("report", "other")
    assert done.code == 0, done.err
    assert "note: This run was interrupted" in done.out


def test_a_report_is_repeated_from_its_record(headlens: Headlens, tmp_path: Path) -> None:
    write_other(tmp_path / "other")
    assert headlens("report", "other", "--out", "out").code == 0
    done = headlens("report", "--config", "out/run.json", "--out", "again")
    assert done.code == 0, done.err
    assert Path("again/report.html").read_bytes() == Path("out/report.html").read_bytes()


def test_an_interrupted_report_goes_on(headlens: Headlens, tmp_path: Path) -> None:
    write_other(tmp_path / "other")
    assert headlens("report", "other", "--out", "out").code == 0
    change_record(tmp_path / "out", {"status": "interrupted"})
    done = headlens("report", "--resume", "out")
    assert done.code == 0, done.err
    assert json.loads(Path("out/run.json").read_text())["status"] == "finished"


def damage(run: Path, what: str) -> None:
    heads = run / "heads.csv"
    text = heads.read_text()
    match what:
        case "no record":
            (run / "run.json").unlink()
        case "broken record":
            (run / "run.json").write_text("{")
        case "no table":
            heads.unlink()
        case "broken table":
            heads.write_text(text + '"\n')
        case "no column":
            heads.write_text(text.replace("role,", "rolle,", 1))
        case "odd cell":
            heads.write_text(text.replace("demo,encoder,0,0", "demo,encoder,0,-7", 1))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no record", "run holds no run.json"),
        ("broken record", "run/run.json cannot be read"),
        ("no table", "run/heads.csv is missing"),
        ("broken table", "run/heads.csv cannot be read"),
        ("no column", "run/heads.csv: no column role."),
        ("odd cell", "run/heads.csv:2: column head holds '-7'; expected a whole number from 0 to 4096."),
    ],
)
@pytest.mark.parametrize("more", [[], ["other", "--out", "out"]])
def test_a_damaged_run(headlens: Headlens, run: Path, what: str, message: str, more: list[str]) -> None:
    write_other(run.parent / "other")
    damage(run, what)
    done = headlens("report", "run", *more)
    assert done.code == 2, done.out
    assert done.err.startswith(f"Error: {message}")
    assert len(done.err.splitlines()) == 2
    assert "Traceback" not in done.err
    assert not done.out
    assert not Path("out").exists()
    assert not (run / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none"], "none does not exist"),
        (["run/run.json"], "run/run.json is a file"),
        (["run", "run"], "run is given twice"),
        (["run", "--out", "run/heads.csv"], "Cannot write run/heads.csv"),
        ([], "Missing argument"),
    ],
)
def test_bad_input(headlens: Headlens, run: Path, arguments: list[str], message: str) -> None:
    done = headlens("report", *arguments)
    assert done.code == 2, done.out
    assert message in done.err
    assert not (run / "report.html").exists()


@pytest.mark.slow
def test_a_report_needs_no_torch(run: Path) -> None:
    code = (
        "import sys\n"
        f"sys.argv = ['headlens', 'report', {str(run)!r}, '--quiet']\n"
        "from headlens_cli.app import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "print([m for m in ('torch', 'transformers', 'spacy') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert (run / "report.html").is_file()


@pytest.mark.slow
def test_for_a_paper(headlens: Headlens, run: Path) -> None:
    done = headlens("report", "run", "--format", "pdf", "--latex")
    assert done.code == 0, done.err
    assert (run / "figures/functions.pdf").read_bytes().startswith(b"%PDF")
    assert (run / "figures/functions.png").is_file()
    assert not (run / "figures/functions.svg").exists()
    assert "functions.{png,pdf}" in done.out
    assert "roles.tex" in done.out
    text = (run / "best-head-for-every-relation.tex").read_text(encoding="utf-8")
    assert r"nsubj & dep$\rightarrow$head & 812 & " in text
    assert "The same in all rows: model demo, head encoder.0.1, accuracy" in text
    again = headlens("report", "--config", "run/run.json", "run", "--out", "again")
    assert again.code == 2
    # of a run with few figures: what it looks like is not asked here
    write_other(run.parent / "other")
    assert headlens("report", "other", "--format", "pdf", "--latex", "--out", "again").code == 0
    repeated = headlens("report", "--config", "again/run.json", "--out", "third")
    assert repeated.code == 0, repeated.err
    assert json.loads(Path("third/run.json").read_text())["arguments"]["latex"] is True


@pytest.mark.slow
def test_for_a_column(headlens: Headlens, run: Path) -> None:
    done = headlens("report", "run", "--width", "column", "--out", "narrow")
    assert done.code == 0, done.err
    assert "note:" not in done.out + done.err
    assert json.loads((run.parent / "narrow/run.json").read_text())["arguments"]["width"] == "column"
    repeated = headlens("report", "--config", "narrow/run.json", "--out", "again")
    assert repeated.code == 0, repeated.err
    first, second = ((run.parent / name / "report.html").read_bytes() for name in ("narrow", "again"))
    assert first == second
    assert headlens("report", "run", "--width", "wide").code == 2


def test_a_format_that_there_is_not(headlens: Headlens, run: Path) -> None:
    done = headlens("report", "run", "--format", "png,eps")
    assert done.code == 2
    assert "--format 'eps' is not a format of figures" in done.err
    assert not (run / "report.html").exists()

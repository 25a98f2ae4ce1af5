"""One self-contained HTML page about one run or several: no other file and no network is needed to read it."""

from __future__ import annotations

import base64
import hashlib
import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from headlens.analyses.classify.before_after import pruned_findings, pruned_pairs
from headlens.analyses.report.registry import report_of
from headlens.analyses.report.run_comparison import counts, differences, facts
from headlens.pages.command_report import Caption
from headlens.pages.embedded_images import Picture
from headlens.pages.head_cards import head_page
from headlens.pages.page_tables import MOST_CELLS, PageTable, csv_table
from headlens.runs.reading import RecordedRun

# letters that reorder the text around them
_REORDERING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


@dataclass(frozen=True)
class Shown:
    """What a page shows of a run.

    Args:
        run: its record and tables.
        pictures: its figures.
        remarks: what the reader must know first, such as that it was interrupted.
        undrawn: names of the figures for which its tables have no numbers.
    """

    run: RecordedRun
    pictures: Sequence[Picture]
    remarks: Sequence[str] = ()
    undrawn: Sequence[str] = ()


@dataclass(frozen=True)
class FigureGroup:
    """The figures that have a caption, in every run that has them.

    Args:
        caption: of all.
        pictures: of every run.
        sources: names of the files that they are drawn from.
        commands: what was typed to make the runs, as far as it is known.
    """

    caption: Caption
    pictures: Sequence[Picture]
    sources: Sequence[str] = ()
    commands: Sequence[str] = ()

    @property
    def moves(self) -> bool:
        """Whether these are animations, which are shown when they are asked for."""
        return any(picture.moving for picture in self.pictures)


def render(shown: Sequence[Shown]) -> str:
    """The page as HTML; the same runs give the same bytes."""
    runs = [own.run for own in shown]
    style, script = _part("report.css"), _part("report.js") + _part("heads.js")
    return (
        _environment()
        .get_template("report.html")
        .render(
            title=_title(runs),
            policy=_policy(style, script),
            style=Markup(style),  # noqa: S704 - a file of this package
            script=Markup(script),  # noqa: S704 - a file of this package
            cards=[_card(own) for own in shown],
            findings=_findings(runs),
            heads=_heads(runs),
            overviews=overviews(runs),
            figures=_figures(shown),
            undrawn=_undrawn(shown),
            tables=[table for run in runs for table in _tables(run, len(runs))],
            differences=differences(runs) if len(runs) > 1 else None,
            facts=facts(runs),
            several=len(runs) > 1,
        )
    )


def visible(value: Any) -> Any:
    """Text in which nothing hides: control characters and those that turn the direction of text are spelled out."""
    if isinstance(value, Markup):
        return value
    if (text := str(value)).isprintable():  # nearly all are, and pages have tens of thousands
        return text
    return "".join(f"⟨U+{ord(c):04X}⟩" if _hides(c) else c for c in text)


def _hides(character: str) -> bool:
    if character in "\n\t":
        return False
    no_character = ord(character) & 0xFFFE == 0xFFFE
    return character in _REORDERING or no_character or unicodedata.category(character) in ("Cc", "Cs")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("headlens.analyses.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = lambda share: f"{100 * share:.2f}"
    return environment


@cache
def _part(name: str) -> str:
    text = resources.files("headlens.analyses.report").joinpath("templates", name).read_text(encoding="utf-8")
    # the hash of the policy is over what the browser sees, which has plain line feeds
    return text.replace("\r\n", "\n")


def _policy(style: str, script: str) -> str:
    """A content security policy: nothing is fetched, and only our own script and style are used."""
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    of_style, of_script = (f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; img-src data:; style-src {of_style}; script-src {of_script}; "
        "base-uri 'none'; form-action 'none'"
    )


def _title(runs: Sequence[RecordedRun]) -> str:
    if len(runs) > 1:
        return "Attention heads: " + ", ".join(run.label for run in runs)
    return " and ".join(runs[0].models)


def _card(own: Shown) -> dict[str, Any]:
    run = own.run
    return {
        "label": run.label,
        "command": run.command,
        "models": run.models,
        "corpus": counts(run),
        "status": run.status,
        "finished": run.finished,
        "typed": run.command_line,
        "started": str(run.record.get("started", "")).replace("T", " ").replace("+00:00", " UTC"),
        "notes": run.notes,
        "remarks": own.remarks,
    }


def _findings(runs: Sequence[RecordedRun]) -> list[tuple[str, list[str]]]:
    """What each run found, below its label, and what pruning did to models."""
    found = [(run.label, report_of(run.command).findings(run)) for run in runs]
    found += [(f"{pair.before}, pruned to {pair.after}", pruned_findings(pair)) for pair in pruned_pairs(runs)]
    return [(label, own) for label, own in found if own]


def _heads(runs: Sequence[RecordedRun]) -> Markup | None:
    """What the script shows of single heads, as JSON that ends no element; None where there is nothing."""
    facts = [(run.label, report_of(run.command).heads(run)) for run in runs]
    found = head_page(facts, lambda text: str(visible(text)), pruned_pairs(runs))
    if not found:
        return None
    text = json.dumps(found, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))  # noqa: S704 - nothing in it can end the element


def overviews(runs: Sequence[RecordedRun]) -> list[PageTable]:
    """The short tables that are read first, of all commands."""
    commands = dict.fromkeys(run.command for run in runs)
    return [
        table
        for command in commands
        for table in report_of(command).overviews([r for r in runs if r.command == command])
    ]


def _figures(shown: Sequence[Shown]) -> list[FigureGroup]:
    """Figures in the order of the runs that have them, those of one name together, those of one caption in a group."""
    groups: dict[tuple[str, str], list[Picture]] = {}
    for own in shown:
        for picture in own.pictures:
            groups.setdefault((own.run.command, picture.name), []).append(picture)
    captioned: dict[tuple[str, Caption], list[Picture]] = {}
    sources: dict[tuple[str, Caption], list[str]] = {}
    for (command, name), found in groups.items():
        key = command, report_of(command).caption(name)
        captioned.setdefault(key, []).extend(found)
        sources.setdefault(key, []).extend(f"{table}.csv" for table in report_of(command).drawn_from(name))
    typed = {own.run.label: own.run.command_line for own in shown}
    return [
        FigureGroup(
            key[1],
            found,
            list(dict.fromkeys(sources[key])),
            list(filter(None, dict.fromkeys(typed.get(picture.run, "") for picture in found))),
        )
        for key, found in captioned.items()
    ]


def _undrawn(shown: Sequence[Shown]) -> list[str]:
    """Titles of figures that a run has nothing for, each with its run where there are several."""
    return [
        report_of(own.run.command).caption(name).title + (f" ({own.run.label})" if len(shown) > 1 else "")
        for own in shown
        for name in own.undrawn
    ]


def _tables(run: RecordedRun, runs: int) -> list[PageTable]:
    first = report_of(run.command).first
    most_cells = max(2_000, MOST_CELLS // runs)
    return [
        csv_table(frame, f"{name}.csv" + (f" of {run.label}" if runs > 1 else ""), f"{name}.csv", first.get(name, ""),
                  most_cells)
        for name, frame in run.tables.items()
    ]  # fmt: skip

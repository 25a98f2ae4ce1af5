"""One self-contained HTML page about one run or several: no other file and no network is needed to read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from headlens.analyses.classify.before_after import pruned_findings, pruned_pairs
from headlens.analyses.report.registry import report_of, report_of_run
from headlens.analyses.report.run_comparison import counts, differences, facts
from headlens.pages.attention_page import attention_data, view_script, view_style
from headlens.pages.command_report import Caption
from headlens.pages.embedded_images import Picture
from headlens.pages.head_cards import head_page
from headlens.pages.page_tables import MOST_CELLS, PageTable, csv_table
from headlens.pages.self_contained import LARGE_PAGE, script_data, self_contained_page, template_part
from headlens.runs.reading import RecordedRun
from headlens.visible_text import visible_text

_HERE = "headlens.analyses.report"
_FILTERS = {
    "percent": lambda share: f"{100 * share:.2f}",
    "counts": counts,
    "moment": lambda time: time.replace("T", " ").replace("+00:00", " UTC"),
}


@dataclass(frozen=True)
class RunSection:
    """The part of a run that a page shows.

    Args:
        run: its record and tables.
        pictures: its figures.
        remarks: warnings to the reader, such as that the run was interrupted.
        undrawn: names of the figures for which its tables have no numbers.
    """

    run: RecordedRun
    pictures: Sequence[Picture]
    remarks: Sequence[str] = ()
    undrawn: Sequence[str] = ()


@dataclass
class FigureGroup:
    """The figures that have a caption, in every run that has them.

    Args:
        caption: of all.
        pictures: of every run.
        sources: names of the files that they are drawn from, in order.
        commands: the command lines of the runs, as far as they are known, in order.
    """

    caption: Caption
    pictures: list[Picture] = field(default_factory=list)
    sources: dict[str, None] = field(default_factory=dict)
    commands: dict[str, None] = field(default_factory=dict)

    @property
    def moves(self) -> bool:
        """Whether these are animations, which are shown when they are asked for."""
        return any(picture.moving for picture in self.pictures)


def render(sections: Sequence[RunSection]) -> str:
    """Returns the page as HTML; the same runs give the same bytes."""
    runs = [section.run for section in sections]
    several = len(runs) > 1
    style = view_style() + template_part(_HERE, "report.css")
    script = view_script() + template_part(_HERE, "report.js") + template_part(_HERE, "heads.js")
    tables = [
        csv_table(
            frame,
            f"{name}.csv of {run.label}" if several else f"{name}.csv",
            f"{name}.csv",
            report_of(run.command).first.get(name, ""),
            max(2_000, MOST_CELLS // len(runs)),
        )
        for run in runs
        for name, frame in run.tables.items()
    ]
    undrawn = [
        report_of_run(section.run).caption(name).title + (f" ({section.run.label})" if several else "")
        for section in sections
        for name in section.undrawn
    ]
    return self_contained_page(
        _HERE,
        "report.html",
        style=style,
        script=script,
        filters=_FILTERS,
        command="report",
        title="Attention heads: " + ", ".join(r.label for r in runs) if several else " and ".join(runs[0].models),
        sections=sections,
        findings=_findings(runs),
        heads=_heads(runs),
        attention=_attention(runs),
        overviews=overviews(runs),
        figures=_figures(sections),
        undrawn=undrawn,
        tables=tables,
        differences=differences(runs) if several else None,
        facts=facts(runs),
        several=several,
        wide=several,
    )


def _findings(runs: Sequence[RecordedRun]) -> list[tuple[str, list[str]]]:
    """Returns the findings of each run, below its label, and those about models before and after pruning."""
    findings = [(run.label, report_of(run.command).findings(run)) for run in runs]
    findings += [(f"{pair.before}, pruned to {pair.after}", pruned_findings(pair)) for pair in pruned_pairs(runs)]
    return [(label, sentences) for label, sentences in findings if sentences]


def _heads(runs: Sequence[RecordedRun]) -> Markup | None:
    """Returns what the script shows of single heads, as JSON that ends no element; None where there is nothing."""
    facts = [(run.label, report_of(run.command).heads(run)) for run in runs]
    findings = [sentence for run in runs for sentence in report_of(run.command).findings(run)]
    data = head_page(facts, visible_text, pruned_pairs(runs), findings)
    if not data:
        return None
    return script_data(data)


def _attention(runs: Sequence[RecordedRun]) -> list[tuple[str, Markup]]:
    """Returns the data of the views of attention on sentences that runs keep, with their labels."""
    views = [(run.label, report_of_run(run).attention(run)) for run in runs]
    room = LARGE_PAGE // max(1, sum(view is not None for _, view in views))
    return [(label, script_data(attention_data(view, room))) for label, view in views if view is not None]


def overviews(runs: Sequence[RecordedRun]) -> list[PageTable]:
    """Returns the short tables of all commands, which are read first."""
    commands = dict.fromkeys(run.command for run in runs)
    return [
        table
        for command in commands
        for table in report_of(command).overviews([r for r in runs if r.command == command])
    ]


def _figures(sections: Sequence[RunSection]) -> list[FigureGroup]:
    """Figures in the order of the runs that have them, those of one name together, those of one caption in a group."""
    groups: dict[tuple[str, Caption], FigureGroup] = {}
    command_lines = {section.run.label: section.run.command_line for section in sections}
    for section in sections:
        report = report_of_run(section.run)
        for picture in section.pictures:
            caption = report.caption(picture.name)
            group = groups.setdefault((section.run.command, caption), FigureGroup(caption))
            group.pictures.append(picture)
            group.sources |= dict.fromkeys(f"{name}.csv" for name in report.drawn_from(picture.name))
    for group in groups.values():
        names = list(dict.fromkeys(picture.name for picture in group.pictures))
        group.pictures.sort(key=lambda picture, names=names: names.index(picture.name))  # type: ignore[misc]
        typed = [command_lines.get(picture.run) for picture in group.pictures]
        group.commands = dict.fromkeys(filter(None, typed))
    return list(groups.values())

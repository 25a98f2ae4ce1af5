"""The options of `headlens report`."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from headlens.option_values import folder, names
from headlens.options import OUTPUT, Checked, CommandOptions, DeclaredOption, Option, option
from headlens.shared_options import OutputOptions

_PLACE = "the run folder itself; for several runs, runs/report-<run>-<time>"
_OUT = Option("Folder for the page and its figures.", OUTPUT, "DIR", folder, shown=_PLACE)
_FORMAT = Option("File formats of the figures: png (always written), svg, pdf.", OUTPUT, "LIST", names)
_WIDTH = (
    "Width for which figures are drawn: the full text width of a page (7 inches), or one of two columns (3.3 inches)."
)


@dataclass(frozen=True)
class ReportRequest(Checked):
    """The runs that `headlens report` shows, and how.

    Without a folder the page and the figures of a single run go into its own. Figures are written as PNG in any case,
    which the page shows.

    Raises:
        OptionError: for an unknown format or width.
    """

    OVERRIDES: ClassVar[tuple[DeclaredOption, ...]] = (DeclaredOption("out", Path | None, None, _OUT),)

    runs: tuple[Path, ...] = option(
        MISSING, "Run folders; several are shown side by side on one page.", metavar="RUN", shown="", argument=True
    )
    place: OutputOptions = field(default_factory=OutputOptions)
    format: tuple[str, ...] = option(("png", "svg"), _FORMAT)
    latex: bool = option(False, "Also write the main tables as LaTeX.", OUTPUT)
    width: Literal["full", "column"] = option("full", _WIDTH, OUTPUT)

    def __post_init__(self) -> None:
        super().__post_init__()
        from headlens.plots.export import check_formats

        check_formats(self.format)

    @property
    def formats(self) -> tuple[str, ...]:
        """Formats that figures are written as: PNG, which the page shows, and those asked for."""
        return tuple(dict.fromkeys(("png", *self.format)))


COMMAND = CommandOptions("report", (ReportRequest,), "run_report")

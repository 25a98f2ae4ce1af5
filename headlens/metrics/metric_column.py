"""A column of heads.csv as a metric declares it; a report reads declarations, so that this file does without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MetricColumn:
    """A column of heads.csv that a metric fills; console, page, figure and reference are made from it.

    Args:
        name: of the column; with `interval` the columns `<name>_ci_low` and `<name>_ci_high` hold its 95 % interval.
        about: what the numbers are and what they are not, in a sentence.
        title: what the page and the console call it; empty for columns that only the table has.
        unit: of the numbers.
        panel: title of its panel in the metric's figure; empty for a column that is not drawn there.
        scale: label of the colour bar; by default title and unit.
        high: upper end of the colour scale, which begins at 0; None for the largest value.
        chance: the column that says what a head which points at random would have, or another baseline.
        chance_name: what that is, above a map.
        offset: the column of the offset that the number is a share at; the card of a head tells it.
        instances: the column of the number of words, mentions or the like that the number rests on; empty for tokens.
        colours: matplotlib's name of the colours.
        interval: whether its interval is measured, too.
        null: whether the column `<name>_null` says what the null head has, see `Metric.null`.
        part_of: the column that counts this share, too; the table of measures has both, as neither is read alone.
        contract: whether it stands among the first columns of heads.csv, which every run has.
    """

    name: str
    about: str
    title: str = ""
    unit: str = "share"
    panel: str = ""
    scale: str = ""
    high: float | None = 1.0
    chance: str = ""
    chance_name: str = "chance level"
    offset: str = ""
    instances: str = ""
    colours: str = "viridis"
    interval: bool = False
    null: bool = False
    part_of: str = ""
    contract: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the column and, where an interval is measured, of the columns of its ends."""
        return (self.name, f"{self.name}_ci_low", f"{self.name}_ci_high") if self.interval else (self.name,)

    @property
    def null_names(self) -> tuple[str, ...]:
        """Name of the column with what the null head has, if there is one."""
        return (f"{self.name}_null",) if self.null else ()

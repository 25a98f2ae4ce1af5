"""How compacted models are shown."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from headlens.analyses.compact.report import REPORT
from headlens.errors import InputError
from headlens.runs.reading import RecordedRun

ROWS = [
    ("original", 72, 1000, 4_000_000, 0.5, 1.0, 1.0, 1.0),
    ("compacted", 60, 900, 3_600_000, 0.4, 1.25, 1.125, 1.5),
]
COLUMNS = [
    *("state", "heads", "parameters", "weight_bytes", "seconds_per_forward"),
    *("speedup", "speedup_low", "speedup_high"),
]


def recorded(status: str = "finished") -> RecordedRun:
    table = pd.DataFrame(ROWS, columns=COLUMNS)
    table.insert(0, "model", "m")
    facts = {"command": "compact", "status": status}
    return RecordedRun(Path("folder"), "run", facts, {"compact": table})


def test_the_overview_has_size_and_speed_of_both() -> None:
    (table,) = REPORT.overviews([recorded()])
    names = [column.name for column in table.columns]
    _, small = (dict(zip(names, row, strict=True)) for row in table.rows)
    shown = {name: small[name].text for name in ("heads", "weights, MB", "speed-up", "95 % interval")}
    assert shown == {"heads": "60", "weights, MB": "3.600", "speed-up": "1.250", "95 % interval": "1.125 to 1.500"}
    place = small["95 % interval"].interval
    assert place is not None
    assert place.low < place.value < place.high
    assert place.baseline == pytest.approx(1 / 3), "as fast as before"
    assert "over the rounds of this run" in table.about
    assert "theoretical speed-up" not in names, "runs of before did not count operations"
    counted = recorded()
    counted.tables["compact"]["theoretical_speedup"] = [1.0, 1.125]
    (table,) = REPORT.overviews([counted])
    last = [column.name for column in table.columns].index("theoretical speed-up")
    assert [row[last].text for row in table.rows] == ["1.000", "1.125"]
    assert REPORT.overviews([]) == []


def test_losses_of_a_decoder_and_of_shapes() -> None:
    run = recorded()
    loss = {"perplexity": [20.0, 22.0], "loss": [2.9957, 3.091], "loss_delta": [math.nan, 0.0953]}
    loss |= {"loss_delta_low": [math.nan, 0.05], "loss_delta_high": [math.nan, 0.14]}
    run.tables["compact"] = run.tables["compact"].assign(**loss, cache_bytes_per_token=[1536, 768])
    run.tables["shapes"] = pd.DataFrame({"model": "m", "shape": ["even", "uneven"], **loss})
    _, text, shapes = REPORT.overviews([run])
    texts = [[cell.text for cell in row] for row in text.rows]
    assert [row[-6:] for row in texts] == [
        ["20.000", "2.996", "", "", "", "1536"],
        ["22.000", "3.091", "0.095", "0.050", "0.140", "768"],
    ]
    assert [[cell.text for cell in row][-6:-3] for row in shapes.rows] == [
        ["even", "20.000", "2.996"],
        ["uneven", "22.000", "3.091"],
    ]


def test_a_run_that_lost_its_table_is_refused() -> None:
    run = recorded()
    REPORT.check(run)
    with pytest.raises(InputError, match=r"compact\.csv is missing"):
        REPORT.check(RecordedRun(run.folder, run.label, run.record, {}))

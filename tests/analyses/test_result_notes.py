"""What is told of the examples."""

from __future__ import annotations

import numpy as np
import pytest

from headlens.analyses.result_notes import record_notes
from headlens.tasks.catalogue import find_task


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("sst2", "Guessing without reading has an accuracy of 0.750."),
        ("mrpc", "Guessing without reading has an f1 of 0.857."),
        ("cola", "Guessing without reading has a matthews of 0.000."),
        ("stsb", None),
    ],
)
def test_what_guessing_gives(name: str, note: str | None) -> None:
    records = np.array([[1.0, 1.0, 0.1], [1.0, 0.0, 2.0], [0.0, 0.0, 0.2], [1.0, 1.0, 0.3]])
    notes = record_notes(find_task(name).task, records)
    assert notes == ([] if note is None else [note])

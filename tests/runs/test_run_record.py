"""What run.json says of the process, and what a resumed run has to have in common with what it began as."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headlens.errors import ResumeError
from headlens.runs.run_record import check_same_conditions, peak_memory


def test_peak_memory_is_that_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource", reason="the system does not tell")
    pages = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    here = peak_memory()
    assert here is not None
    assert here > 10 << 20
    # Where there is no /proc, or it does not say.
    monkeypatch.setattr(Path, "exists", lambda _: False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert (peak_memory() or 0) >= pages * 1024
    monkeypatch.setattr(sys, "platform", "darwin")
    assert (peak_memory() or 0) < (here << 3)
    monkeypatch.setattr(sys, "platform", "win32")
    assert peak_memory() is None


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (1, 2, "started with 1 process, but now there are 2.\nLeave torchrun out."),
        (2, 1, "started with 2 processes, but now there is 1.\ntorchrun --nproc-per-node 2 -m headlens_cli"),
    ],
)
def test_a_run_goes_on_with_as_many_processes(before: int, now: int, words: str) -> None:
    with pytest.raises(ResumeError) as caught:
        check_same_conditions({"processes": before}, {"processes": now})
    assert words in str(caught.value)
    check_same_conditions({"processes": now}, {"processes": now})

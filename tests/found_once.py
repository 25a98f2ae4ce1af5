"""What every run records of programs and is the same in one process, for folders of tests with many small runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from headlens.runs import run_record


@pytest.fixture(scope="session", autouse=True)
def programs_found_once() -> Iterator[None]:
    """Versions of packages and the commit are looked up once; a folder that imports this has it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_record, "versions", cache(run_record.versions))
        patch.setattr(run_record, "git_commit", cache(run_record.git_commit))
        yield

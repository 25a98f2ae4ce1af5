"""What every run records of programs and is the same in one process, for folders of tests with many small runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from headlens.runs import run_record

_versions, _git_commit = cache(run_record.versions), cache(run_record.git_commit)


@pytest.fixture(scope="module", autouse=True)
def programs_found_once() -> Iterator[None]:
    """Versions of packages and the commit are looked up once; a folder that imports this has it, and no other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_record, "versions", _versions)
        patch.setattr(run_record, "git_commit", _git_commit)
        yield

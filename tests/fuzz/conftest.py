"""Thousands of damaged files would fill the log."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_log() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)

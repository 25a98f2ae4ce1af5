"""Thousands of damaged files would fill the log; tokenizers have fewer tokens."""

import logging
from collections.abc import Iterator

import pytest
from small_vocabulary import small_wordpiece  # noqa: F401


@pytest.fixture(autouse=True)
def _no_log() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)

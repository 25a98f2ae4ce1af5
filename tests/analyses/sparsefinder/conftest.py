"""Stores of queries and keys of the tiny models of the zoo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import zoo
from watching import run

from headlens.analyses.sparsefinder.query_key_store import QueryKeyCollector, QueryKeyStore
from headlens.attention.edits_and_observers import Observer
from headlens.attention.model_normalizer import switch
from headlens.attention.normalizers import Entmax
from headlens.attention.session import AttentionSession


@pytest.fixture(scope="session")
def collected() -> Callable[..., QueryKeyStore]:
    """Collects what a model with entmax does in a few passes over its padded batch."""

    def collect(folder: Path, name: str = "marian", passes: int = 3, *observers: Observer) -> QueryKeyStore:
        entry = zoo.ZOO[name]
        model, collector = entry.build(), QueryKeyCollector(folder)
        switch(model, Entmax())
        session = AttentionSession(model, observers=[*observers, collector])
        with session, session.batch(zoo.batch_tokens(entry)):
            for _ in range(passes):
                run(model, zoo.padded(entry))
        collector.flush()
        return QueryKeyStore(folder)

    return collect

"""What is collected of a model against its attention maps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import zoo
from tiers import rest_slow
from watching import Watch, run

from headlens.analyses.sparsefinder import query_key_store as module
from headlens.analyses.sparsefinder.measures import graph_counts
from headlens.analyses.sparsefinder.query_key_store import QueryKeyCollector, QueryKeyStore
from headlens.attention.edits_and_observers import BatchTokens
from headlens.attention.session import AttentionSession
from headlens.errors import OptionError, SelfCheckError, UnsupportedModelError
from headlens.heads import STACKS

Collected = Callable[..., QueryKeyStore]
NAMES = [name for name in ("bert", "albert", "marian", "llama", "gpt2") if name in zoo.ZOO]


@pytest.mark.parametrize("room", rest_slow([1, 10_000, 2**25], [10_000]))
@pytest.mark.parametrize("name", NAMES)
def test_sentences_come_back_without_their_padding(
    collected: Collected, name: str, room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BUFFER_BYTES", room)
    watch = Watch()
    store = collected(tmp_path, name, 2, watch)
    by_site: dict[str, list[Any]] = {}
    for call in watch.calls:
        by_site.setdefault(str(call.site), []).append(call)
    assert store.sites() == sorted(
        by_site, key=lambda site: (STACKS.index(site.split(".")[0]), int(site.split(".")[1]))
    )
    for site, calls in by_site.items():
        found = list(store.batches(site, 1))
        rows = [(call, row) for call in calls for row in range(len(call.query))]
        assert len(found) == len(rows)
        for pairs, (call, row) in zip(found, rows, strict=True):
            ours, theirs = call.queries.real[row].bool(), call.keys.real[row].bool()
            groups = call.query.shape[1] // call.key.shape[1]
            assert torch.allclose(pairs.queries[0], call.query[row][:, ours], atol=1e-3, rtol=1e-3)
            keys = call.key.repeat_interleave(groups, dim=1)[row][:, theirs]
            assert torch.allclose(pairs.keys[0], keys, atol=1e-3, rtol=1e-3)
            assert torch.equal(pairs.gold[0], (call.weights[row] > 0)[:, ours][:, :, theirs])
            own = call.weights[row][:, ours][:, :, theirs]
            assert torch.allclose(pairs.weights[0], own, atol=1e-7, rtol=1e-3)
            assert pairs.causal == (site.startswith("decoder"))
            # Nothing has weight that is not allowed.
            assert not (pairs.gold & ~pairs.allowed).any()
            assert bool((pairs.gold.any(-1)).all()), "every query looks somewhere"


@pytest.mark.parametrize("name", ["mistral", "modernbert", "gpt-oss"])
def test_texts_longer_than_a_window_are_refused(name: str, tmp_path: Path) -> None:
    """What a layer with local attention cannot see is not predicted."""
    model = zoo.ZOO[name].build()
    stack = "encoder" if name == "modernbert" else "decoder"

    def collect(n: int, folder: Path) -> None:
        folder.mkdir()
        batch = BatchTokens(**{stack: zoo.tokens((n, n))})
        session = AttentionSession(model, observers=[QueryKeyCollector(folder)])
        with session, session.batch(batch), torch.no_grad():
            model(input_ids=zoo.ids((n, n), 1), attention_mask=zoo.real((n, n)), use_cache=False)

    collect(3, tmp_path / "short")
    with pytest.raises(UnsupportedModelError, match="local attention and sees a part of a text of 9 tokens"):
        collect(9, tmp_path / "long")


def test_batches_are_the_sentences_padded(collected: Collected, tmp_path: Path) -> None:
    store = collected(tmp_path)
    for site in store.sites():
        single, many = list(store.batches(site, 1)), list(store.batches(site, 4))
        assert [len(pairs.queries) for pairs in many][:-1] == [4] * (len(many) - 1)
        assert sum(len(pairs.queries) for pairs in many) == len(single)
        rows = [(pairs, row) for pairs in many for row in range(len(pairs.queries))]
        for one, (pairs, row) in zip(single, rows, strict=True):
            ours, theirs = pairs.real_queries[row], pairs.real_keys[row]
            assert torch.equal(one.queries[0], pairs.queries[row][:, ours])
            assert torch.equal(one.weights[0], pairs.weights[row][:, ours][:, :, theirs])
            alone = graph_counts(one.gold, one.gold, one.allowed)
            padded = graph_counts(pairs.gold, pairs.gold, pairs.allowed)
            assert torch.equal(alone.shares[1][0], padded.shares[1][row])
            assert torch.equal(alone.totals[2][0], padded.totals[2][row])


def test_the_least_weight_is_one(tmp_path: Path) -> None:
    """Half precision knows no number between 0 and 6e-8."""
    weights = torch.tensor([[[1 - 1e-12, 1e-12], [0.0, 1.0]]])
    real = torch.ones(2, dtype=torch.bool)
    sentences = [module._sentence(torch.ones(1, 2, 3), torch.ones(1, 2, 3), weights, real, real)] * 2
    module._write(tmp_path / "encoder.0" / "00000.safetensors", sentences)
    (pairs,) = QueryKeyStore(tmp_path).batches("encoder.0")
    assert pairs.gold[:, 0].tolist() == [[[True, True], [False, True]]] * 2
    assert pairs.weights[:, 0].numpy() == pytest.approx(weights.expand(2, 2, 2).numpy(), abs=1e-7)


def test_what_is_held_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BUFFER_BYTES", 20_000)
    entry = zoo.ZOO["bert"]
    model, collector = entry.build(), QueryKeyCollector(tmp_path)
    held = []
    with AttentionSession(model, observers=[collector]) as session, session.batch(zoo.batch_tokens(entry)):
        for _ in range(30):
            run(model, zoo.padded(entry))
            held.append(collector.buffered_bytes)
    assert max(held) < 20_000
    assert len(list(tmp_path.rglob("*.safetensors"))) > 4


def test_a_pass_that_failed_is_not_collected(tmp_path: Path) -> None:
    entry = zoo.ZOO["bert"]
    model, collector = entry.build(), QueryKeyCollector(tmp_path)
    with AttentionSession(model, observers=[collector]) as session:
        with session.batch(zoo.batch_tokens(entry)):
            run(model, zoo.padded(entry))
        with pytest.raises(SelfCheckError, match="for declared tokens"):
            run(model, zoo.padded(entry))
    collector.flush()
    assert len(list(QueryKeyStore(tmp_path).batches("encoder.0", 1))) == len(zoo.padded(entry)["input_ids"])


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "encoder.0").mkdir()
    (tmp_path / "encoder.0" / "00000.safetensors").write_bytes(b"nothing")
    with pytest.raises(OptionError, match="cannot be read as queries and keys"):
        list(QueryKeyStore(tmp_path).batches("encoder.0"))

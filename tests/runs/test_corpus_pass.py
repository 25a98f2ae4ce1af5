"""A pass that runs out of memory, is interrupted, or is shared gives the numbers of one that is not."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal
from saved import Memory, build, save, sentence, tree
from tiers import rest_slow, rest_slow_rows
from torch import nn
from transformers import PreTrainedTokenizerBase

from headlens import memory as models_memory
from headlens.attention.session import AttentionSession
from headlens.corpora.encoded_corpus import EncodingCounts
from headlens.corpora.frequency import corpus_frequency
from headlens.corpora.sentence import Example
from headlens.errors import CorpusError, ModelError, OutputError
from headlens.models.loading import LoadedModel, load
from headlens.roles.head_roles import Frequencies, classify_heads
from headlens.roles.role_options import ClassifyOptions, Thresholds
from headlens.runs import corpus_pass
from headlens.runs.checkpoint import Checkpoint
from headlens.runs.corpus_pass import CorpusPass, PassProgress, read_ahead
from headlens.runs.processes import Processes

TREES = [
    tree(s, v, "old", o) for s in ("dogs", "cats", "teachers") for v in ("chase", "see") for o in ("mice", "birds")
]
LONGER = [
    sentence("the story of the old teachers and the small mice never ends"),
    sentence("They sleep , it seems ."),
    sentence("a " * 60 + "b"),  # longer than the model reads
]
CORPUS = Memory([Example(s) for s in [*TREES, *LONGER]])
OPTIONS = ClassifyOptions(("nsubj", "obj"), Thresholds(min_instances=5), batch_tokens=30)
FREQUENCIES = Frequencies(corpus_frequency(CORPUS))


@pytest.fixture(autouse=True)
def _no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lack of memory collects garbage, which takes long in a process with many modules; see tests of `memory`."""
    monkeypatch.setattr(models_memory, "free", lambda _: None)


@pytest.fixture(autouse=True, params=rest_slow([True, False]), ids=["reading ahead", ""])
def _ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a pass does when it is interrupted or runs out of memory, it also does as on a GPU: reading ahead."""
    if request.param:
        monkeypatch.setattr(corpus_pass, "reads_ahead", lambda _: True)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory, wordpiece_tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return load(save(build("BertModel", len(wordpiece_tokenizer)), folder, wordpiece_tokenizer))


def run(loaded: LoadedModel, corpus_pass: CorpusPass | None = None, corpus: Memory = CORPUS) -> dict[str, pd.DataFrame]:
    found = classify_heads(loaded, corpus, OPTIONS, FREQUENCIES, corpus_pass=corpus_pass)
    counts = pd.DataFrame([vars(found.encoding) | {k: str(v) for k, v in vars(found.annotation).items()}])
    return found.frames("tiny") | {"counts": counts}


@pytest.fixture(scope="module")
def expected(loaded: LoadedModel) -> dict[str, pd.DataFrame]:
    return run(loaded)


def assert_same(found: dict[str, pd.DataFrame], expected: dict[str, pd.DataFrame], within: float = 0.0) -> None:
    assert list(found) == list(expected)
    for name, frame in expected.items():
        assert_frame_equal(found[name], frame, check_exact=within == 0, rtol=0, atol=within, obj=name)


@contextmanager
def hooked(loaded: LoadedModel, layer: int, hook: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Something happens when a layer gets its input, half-way through the pass."""
    module: Any = loaded.model.base_model
    watch: Callable[[nn.Module, Any], None] = lambda _, inputs: hook(inputs[0])  # noqa: E731
    handle = module.encoder.layer[layer].register_forward_pre_hook(watch)
    try:
        yield
    finally:
        handle.remove()


# --- out of memory


@pytest.mark.parametrize(("layer", "most"), rest_slow_rows(product([0, 1], [7, 14, 28]), [(1, 14)]))
def test_batches_are_halved_until_they_fit_and_nothing_counts_twice(
    loaded: LoadedModel, expected: dict[str, pd.DataFrame], layer: int, most: int
) -> None:
    sizes: list[int] = []
    warnings: list[str] = []

    def memory(hidden: torch.Tensor) -> None:
        tokens = hidden.shape[0] * hidden.shape[1]
        sizes.append(tokens)
        if tokens > most and hidden.shape[0] > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    with hooked(loaded, layer, memory):
        found = run(loaded, CorpusPass(warn=warnings.append))
    assert_same(found, expected, within=1e-6)
    assert max(sizes) > most, "the test must have made memory run out"
    assert len(warnings) == 1
    assert "batches are halved" in warnings[0]
    assert "--batch-tokens" in warnings[0]


def test_a_size_that_failed_is_not_tried_again(loaded: LoadedModel) -> None:
    failed = 0

    def memory(hidden: torch.Tensor) -> None:
        nonlocal failed
        if hidden.shape[0] > 2:
            failed += 1
            raise torch.OutOfMemoryError("CUDA out of memory.")

    many = Memory([Example(s) for s in TREES * 2])
    with hooked(loaded, 0, memory):
        run(loaded, CorpusPass(warn=lambda _: None), many)
    assert failed <= 2


@pytest.mark.parametrize("error", [RuntimeError("DefaultCPUAllocator: can't allocate memory"), MemoryError()])
def test_a_sentence_that_never_fits_is_an_error_with_advice(loaded: LoadedModel, error: Exception) -> None:
    def memory(_: torch.Tensor) -> None:
        raise error

    with (
        hooked(loaded, 1, memory),
        pytest.raises(ModelError, match=r"(?s)does not have enough memory for a single sentence.*--device cpu"),
    ):
        run(loaded, CorpusPass(warn=lambda _: None))


def test_other_errors_are_not_taken_for_a_lack_of_memory(loaded: LoadedModel) -> None:
    def broken(_: torch.Tensor) -> None:
        raise RuntimeError("shapes cannot be multiplied")

    with hooked(loaded, 1, broken), pytest.raises(RuntimeError, match="multiplied"):
        run(loaded)


def test_python_users_get_a_warning(loaded: LoadedModel) -> None:
    def memory(hidden: torch.Tensor) -> None:
        if hidden.shape[0] > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    with hooked(loaded, 0, memory), pytest.warns(UserWarning, match="batches are halved"):
        run(loaded)


# --- interrupted


def checkpoint(path: Path, **depends: str) -> Checkpoint:
    return Checkpoint(path / "pass.npz", {"the corpus": "abc", **depends})


@pytest.mark.parametrize(
    ("number", "after"),
    rest_slow_rows(product([signal.SIGINT, signal.SIGTERM], [1, 2, 4])),
)
def test_a_signal_waits_for_the_batch_and_the_rest_is_done_later(
    loaded: LoadedModel, expected: dict[str, pd.DataFrame], tmp_path: Path, after: int, number: int
) -> None:
    class Stopped(BaseException):
        pass

    def stop(*_: object) -> None:
        raise Stopped

    passes = 0

    def count(_: torch.Tensor) -> None:
        nonlocal passes
        passes += 1
        if passes == after:
            signal.raise_signal(number)

    before = signal.signal(number, stop)
    try:
        with hooked(loaded, 1, count), pytest.raises(Stopped):
            run(loaded, CorpusPass(checkpoint=checkpoint(tmp_path)))
        assert passes == after, "the batch in which the signal came was finished, the next one not begun"
        with hooked(loaded, 1, count):
            assert_same(run(loaded, CorpusPass(checkpoint=checkpoint(tmp_path))), expected)
        total = passes
        assert signal.getsignal(number) is stop
        with hooked(loaded, 1, count):  # what is complete is not run again
            assert_same(run(loaded, CorpusPass(checkpoint=checkpoint(tmp_path))), expected)
        assert passes == total
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("after", rest_slow([1, 2, 4], [2]))
def test_a_pass_that_breaks_off_goes_on_from_what_was_kept(
    loaded: LoadedModel, expected: dict[str, pd.DataFrame], tmp_path: Path, after: int
) -> None:
    @dataclass
    class Often(Checkpoint):
        @property
        def due(self) -> bool:
            return True

        def __init__(self, path: Path) -> None:
            Checkpoint.__init__(self, path / "pass.npz", {})

    passes = 0

    def crash(_: torch.Tensor) -> None:
        nonlocal passes
        passes += 1
        if passes == after:
            raise ZeroDivisionError

    with hooked(loaded, 1, crash):
        with pytest.raises(ZeroDivisionError):
            run(loaded, CorpusPass(checkpoint=Often(tmp_path)))
        steps: list[int] = []
        assert_same(run(loaded, CorpusPass(steps.append, checkpoint=Often(tmp_path))), expected)
    assert sum(steps) == len(CORPUS.examples), "progress counts what was done before, and what is left out"


def test_what_was_kept_for_another_corpus_is_refused(loaded: LoadedModel, tmp_path: Path) -> None:
    run(loaded, CorpusPass(checkpoint=checkpoint(tmp_path, model="x")))
    with pytest.raises(OutputError, match=r"(?s)model changed since the run was interrupted.*--overwrite"):
        run(loaded, CorpusPass(checkpoint=checkpoint(tmp_path, model="y")))


@pytest.mark.parametrize("content", [b"", b"PK nonsense", b"x" * 1000])
def test_a_kept_file_that_is_damaged_is_refused(loaded: LoadedModel, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "pass.npz").write_bytes(content)
    with pytest.raises(OutputError, match=r"(?s)pass.npz cannot be read.*--overwrite"):
        run(loaded, CorpusPass(checkpoint=checkpoint(tmp_path)))


# --- shared


@dataclass(frozen=True)
class Mailbox(Processes):
    """Processes that run one after the other; the last one sees what all have sent."""

    letters: list[Any] = field(default_factory=list)

    def gather(self, value: Any) -> list[Any]:
        self.letters.append(value)
        return list(self.letters)


@pytest.mark.parametrize("count", rest_slow([1, 2, 3, 8, 20], [3]))
def test_shards_of_any_number_add_up(loaded: LoadedModel, expected: dict[str, pd.DataFrame], count: int) -> None:
    # 15 examples: uneven shards, and with 20 processes empty ones
    letters: list[Any] = []
    found = [run(loaded, CorpusPass(shard=Mailbox(rank, count, letters))) for rank in range(count)][-1]
    found["counts"]["arcs"] = expected["counts"]["arcs"]  # the same counts in another order
    assert_same(found, expected, within=1e-6)


EXAMPLE = Example(sentence("a b"))


@given(st.lists(st.integers(0, 4), max_size=40), st.integers(1, 12), st.integers(1, 5))
def test_whatever_sentences_become_steps_add_up_to_the_corpus(rows: list[int], pool: int, size: int) -> None:
    """Sentences become no, one or several rows, are read pool by pool, and run batch by batch."""
    steps: list[int] = []
    counts = EncodingCounts()
    progress = PassProgress(steps.append, counts)
    corpus = progress.reading([EXAMPLE] * len(rows))
    for first in range(0, len(rows), pool):
        pool_rows = rows[first : first + pool]
        for produced in pool_rows:
            next(corpus)
            counts.sentences += produced
        for start in range(0, sum(pool_rows), size):
            progress.ran(min(size, sum(pool_rows) - start))
            assert sum(steps) <= first + len(pool_rows)
        if sum(pool_rows):
            assert sum(steps) == first + len(pool_rows)
    assert all(step > 0 for step in steps)


def test_a_sentence_of_many_rows_is_done_with_its_last() -> None:
    steps: list[int] = []
    counts = EncodingCounts(sentences=10)
    progress = PassProgress(steps.append, counts)
    assert list(progress.reading([EXAMPLE] * 2)) == [EXAMPLE] * 2
    for _ in range(9):
        progress.ran(1)
    assert steps == [1]
    progress.ran(1)
    assert steps == [1, 1]


def test_what_has_no_row_in_the_end_does_not_hold_the_rest_up() -> None:
    steps: list[int] = []
    progress = PassProgress(steps.append, EncodingCounts(sentences=4, unmaskable=2))
    list(progress.reading([EXAMPLE] * 4))
    progress.ran(2)
    assert steps == [4]


def read_ahead_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("headlens-read-ahead")]


def test_what_is_read_ahead_comes_in_order_and_one_at_a_time() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(50):
            made.append(number)
            yield number

    taken = []
    with read_ahead(items()) as ahead:
        for number in ahead:
            assert len(made) <= number + 2
            taken.append(number)
    assert taken == list(range(50))


def test_an_error_while_reading_ahead_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise CorpusError("line 2 is broken.")

    with read_ahead(items()) as ahead:
        assert next(ahead) == 1
        with pytest.raises(CorpusError, match=r"line 2 is broken\."):
            next(ahead)


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, ModelError("m")])
def test_whoever_stops_reading_ahead_leaves_no_thread(error: Any) -> None:
    with suppress(KeyboardInterrupt, ModelError), read_ahead(iter(range(10**6))) as ahead:
        assert next(ahead) == 0
        assert read_ahead_threads()
        if error is not None:
            raise error
    assert not read_ahead_threads()


@pytest.mark.parametrize(("device", "expected"), [("cpu", False), ("cuda", True), ("mps", True)])
def test_reading_ahead_is_for_devices(device: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert corpus_pass.reads_ahead(torch.device(device)) is expected


def test_passes_are_waited_for_before_their_sums_are_kept(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    class Kept(Checkpoint):
        due = True

        def save(self, result: Any) -> None:
            events.append("save")
            super().save(result)

    monkeypatch.setattr(AttentionSession, "settle", lambda _: events.append("settle"))
    run(loaded, CorpusPass(checkpoint=Kept(tmp_path / "sums.npz", {})))
    assert events.count("save") > 2
    assert all(before == "settle" for before, event in pairwise(events) if event == "save")

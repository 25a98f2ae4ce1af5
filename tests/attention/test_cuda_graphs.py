"""Passes that are replayed: observers see what they see of passes that are run, and what fails is run as always."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import zoo
from few_annotations import annotated
from torch import Tensor
from transformers import PreTrainedModel

from headlens.attention import session as session_module
from headlens.attention.cuda_graphs import LENGTHS, MOST_GRAPHS, ReplayedPasses, cuda_capture, padded_length
from headlens.attention.edits_and_observers import AttentionCall, BatchTokens, CallContext, Observer
from headlens.attention.kernels import row_attention
from headlens.attention.rows import RowFacts, Rows, RowStatistics
from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites
from headlens.errors import NotFiniteError
from headlens.metrics.metric import MetricSettings, Statistics
from headlens.metrics.metric_registry import registered_metrics

LENGTHS_OF_BATCHES = [(16, 9, 12), (16, 3, 16), (7, 16, 5), (16, 16, 15)]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class ScoredRows(Rows):
    """Rows of weights that are worked out when they are asked for, as by the kernels."""

    def __init__(self, query: Tensor, key: Tensor, mask: Tensor | None) -> None:
        self.query, self.key, self.mask = query, key, mask

    def fill(self, statistics: RowStatistics, facts: RowFacts) -> None:
        raise NotImplementedError

    def weights(self, sentence: Tensor, query: Tensor) -> Tensor:
        return self.map()[sentence, :, query].transpose(0, 1)

    def map(self) -> Tensor:
        scores = self.query @ self.key.transpose(2, 3) * self.query.shape[3] ** -0.5
        return (scores if self.mask is None else scores + self.mask).softmax(3)


class ScoredAttention:
    """Stands in for the kernels where there is no card."""

    def refusal(self, *_: object, **__: object) -> str:
        return ""

    def attend(
        self, context: CallContext, mask: Tensor | None, kwargs: object, *, causal: bool
    ) -> tuple[Tensor, ScoredRows]:
        del kwargs, causal
        rows = ScoredRows(context.query, context.key, mask)
        return (rows.map() @ context.value).transpose(1, 2).contiguous(), rows


class Seen(Observer):
    """Keeps what it sees of every call: its tokens, its output, and the weights of each first query."""

    needs_weights = False
    leaves_results = True

    def __init__(self) -> None:
        self.pending: list[Tensor] = []
        self.seen: list[Tensor] = []

    def reads_rows(self, context: CallContext) -> bool:
        return True

    def observe(self, call: AttentionCall) -> None:
        assert call.queries is not None
        assert call.rows is not None
        sentences = torch.arange(len(call.output), device=call.output.device)
        assert call.queries.ids is not None
        firsts = call.rows.weights(sentences, torch.zeros_like(sentences))
        self.pending += [call.queries.ids.clone(), call.output.clone(), firsts]

    def commit(self) -> None:
        self.seen += self.pending
        self.pending = []

    def discard(self) -> None:
        self.pending = []


def tensors(value: object) -> Iterator[Tensor]:
    """All tensors that an attention call is made of."""
    for part in vars(value).values():
        if isinstance(part, Tensor):
            yield part
        elif isinstance(part, Rows) or type(part).__name__ == "_Scores":
            yield from tensors(part)


class Again(NamedTuple):
    """Stands in for a graph where there is no card: runs everything again, and writes it to the same memory."""

    run: Callable[[], Any]
    session: AttentionSession
    calls: list[AttentionCall]
    outputs: Any

    def replay(self) -> None:
        with self.session.recorded() as calls:
            outputs = self.run()
        for old, new in zip(self.calls, calls, strict=True):
            for place, value in zip(tensors(old), tensors(new), strict=True):
                place.copy_(value)
        self.outputs[0].copy_(outputs[0])


def capture_in(session: AttentionSession) -> Callable[..., Any]:
    def capture(run: Callable[[], Any]) -> tuple[Again, Any]:
        outputs = run()
        assert session._recorded is not None
        return Again(run, session, list(session._recorded), outputs), outputs

    return capture


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> PreTrainedModel:
    monkeypatch.setattr(session_module, "available", lambda _: "")
    if DEVICE == "cpu":
        monkeypatch.setattr(session_module, "RowAttention", ScoredAttention)
    return zoo.ZOO["bert"].build("sdpa").eval().to(DEVICE)


def run_batches(
    network: PreTrainedModel,
    observer: Observer,
    capture: Callable[[AttentionSession], Callable[..., Any]] | None,
    batches: Sequence[tuple[int, ...]] = LENGTHS_OF_BATCHES,
) -> ReplayedPasses:
    """Shows batches of one shape, which are replayed or (without a way to capture) run."""
    session = AttentionSession(network, observers=[observer], kernel="fast")
    replayed = ReplayedPasses(session, {}, cuda_capture if capture is None else capture(session))
    with session, torch.inference_mode():
        for seed, lengths in enumerate(batches):
            inputs = {"input_ids": zoo.ids(lengths, seed), "attention_mask": zoo.real(lengths)}
            inputs = {name: tensor.to(DEVICE) for name, tensor in inputs.items()}
            tokens = replace(annotated(zoo.tokens(lengths), seed), ids=zoo.ids(lengths, seed)).to(DEVICE)
            with session.batch(BatchTokens(encoder=tokens)):
                if capture is None:
                    network(**inputs)
                else:
                    replayed(inputs)
    return replayed


def seen(
    network: PreTrainedModel, capture: Callable[[AttentionSession], Callable[..., Any]] | None
) -> tuple[list[Tensor], ReplayedPasses]:
    observer = Seen()
    replayed = run_batches(network, observer, capture)
    return observer.seen, replayed


def test_observers_see_of_replayed_passes_what_they_see_of_others(network: PreTrainedModel) -> None:
    expected, _ = seen(network, None)
    found, replayed = seen(network, capture_in)
    torch.testing.assert_close(found, expected)
    assert len(found) == 3 * len(find_sites(network)) * len(LENGTHS_OF_BATCHES)
    assert replayed.replayed == len(LENGTHS_OF_BATCHES) - 1
    assert replayed.kernels() == {"CUDA graphs (3 passes)": ["3x16 and 3x16"]}


def test_a_pass_that_gives_no_numbers_is_noticed_when_replayed(network: PreTrainedModel) -> None:
    observer, lengths = Seen(), LENGTHS_OF_BATCHES[0]

    def capture(run: Callable[[], Any]) -> tuple[Again, Any]:
        graph, outputs = inner(run)
        return graph, outputs

    session = AttentionSession(network, observers=[observer], kernel="fast")
    inner = capture_in(session)
    replayed = ReplayedPasses(session, {}, capture)
    inputs = {"input_ids": zoo.ids(lengths, 0), "attention_mask": zoo.real(lengths)}
    inputs = {name: tensor.to(DEVICE) for name, tensor in inputs.items()}
    tokens = replace(zoo.tokens(lengths), ids=inputs["input_ids"]).to(DEVICE)
    with session, session.batch(BatchTokens(encoder=tokens)), torch.inference_mode():
        replayed(inputs)
        with torch.no_grad():
            network.get_submodule(find_sites(network)[1].module).value.bias.fill_(float("nan"))
        with pytest.raises(NotFiniteError, match="layer"):
            replayed(inputs)
    assert len(observer.seen) == 3 * len(find_sites(network))


class Nothing:
    """A graph that does nothing, as of a model that reads other memory than its inputs."""

    def replay(self) -> None:
        pass


@pytest.mark.parametrize(
    ("capture", "why"),
    [
        (lambda run: (Nothing(), run()), "a replayed pass gives other numbers"),
        (lambda run: 1 / 0, "a pass could not be captured, ZeroDivisionError"),
        (lambda run: torch.empty(2**60), "memory ran out"),
    ],
)
def test_what_cannot_be_replayed_is_run(network: PreTrainedModel, capture: Callable[..., Any], why: str) -> None:
    expected, _ = seen(network, None)
    found, replayed = seen(network, lambda _: capture)
    torch.testing.assert_close(found, expected)
    assert (replayed.replayed, replayed.kernels()) == (0, {f"no CUDA graphs: {why}": []})


def test_a_processor_has_no_graphs() -> None:
    session = AttentionSession(zoo.ZOO["bert"].build("sdpa").eval(), kernel="fast")
    assert ReplayedPasses(session, {}).kernels() == {"no CUDA graphs: the device is a cpu": []}


def test_lengths_are_a_fixed_set() -> None:
    assert [padded_length(n) for n in (1, 16, 17, 33, 128, 129, 500)] == [16, 16, 24, 48, 128, 129, 500]
    assert len(LENGTHS) < MOST_GRAPHS


def sums(
    network: PreTrainedModel, capture: Callable[[AttentionSession], Callable[..., Any]] | None
) -> tuple[dict[str, Any], ReplayedPasses]:
    metrics = [kind.of(MetricSettings(("nsubj", "obj"))) for kind in registered_metrics()]
    statistics = Statistics(metrics, find_sites(network))
    replayed = run_batches(network, statistics, capture, LENGTHS_OF_BATCHES[:2])
    return statistics.totals.arrays(), replayed


@pytest.mark.slow
@pytest.mark.parametrize("on", ["interpreter", pytest.param("card", marks=pytest.mark.gpu)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_all_metrics_by_the_kernels(on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    for module in (row_attention, session_module):
        monkeypatch.setattr(module, "available", lambda _: "")
    network = zoo.ZOO["bert"].build("sdpa").eval().to(DEVICE)
    expected, _ = sums(network, None)
    found, replayed = sums(network, (lambda _: cuda_capture) if on == "card" else capture_in)
    assert (replayed.refused, replayed.replayed) == ("", 1)
    assert set(found) == set(expected)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-6, atol=1e-7, err_msg=key)

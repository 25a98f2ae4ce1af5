"""Forward passes that are replayed as CUDA graphs: a short pass takes the processor longer to start than a card to run.

Of a batch whose shapes came before, all kernels of the model start at once; observers then see its attention calls.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from headlens.attention.edits_and_observers import AttentionCall
from headlens.attention.session import AttentionSession
from headlens.memory import is_out_of_memory

# Tokens that short texts are padded to, so that shapes come again; longer ones are no shorter to compute as a graph.
LENGTHS = (16, 24, 32, 48, 64, 96, 128)
# A graph keeps the memory of a pass, so there are few.
MOST_GRAPHS = 2 * len(LENGTHS)


def padded_length(length: int) -> int:
    """Returns the tokens that a text of this length is padded to."""
    return LENGTHS[bisect_left(LENGTHS, length)] if length <= LENGTHS[-1] else length


class Graph(Protocol):
    """Work on a card that can be started again as a whole."""

    def replay(self) -> None:
        """Runs everything again, from what the same memory holds now."""


# Runs a function, and gives what runs it again with the same memory, and what it returned.
Capture = Callable[[Callable[[], Any]], tuple[Graph, Any]]


def cuda_capture(run: Callable[[], Any]) -> tuple[Graph, Any]:
    """Captures what a function starts on the card at hand."""
    graph = torch.cuda.CUDAGraph()
    # Another thread makes the next batch, and may ask for pinned memory.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        outputs = run()
    return graph, outputs


class _Pass(NamedTuple):
    graph: Graph
    inputs: dict[str, Tensor]
    calls: list[AttentionCall]
    outputs: Any

    def replay(self, inputs: Mapping[str, Tensor]) -> None:
        for name, tensor in self.inputs.items():
            tensor.copy_(inputs[name])
        self.graph.replay()


@dataclass
class ReplayedPasses:
    """Runs a model inside a session; passes of shapes that come again are replayed.

    The first batch of a shape is run as always. If it has padding, its pass is then captured and, with the sentences in
    reverse order, compared with what the model gave; where anything fails or differs, no pass is captured any more.

    Args:
        session: the open session, of the kernel "fast"; only passes of which no map of weights is made are captured.
        arguments: of the model, beside tensors.
        capture: captures what a function does.
    """

    session: AttentionSession
    arguments: Mapping[str, Any]
    capture: Capture = cuda_capture

    def __post_init__(self) -> None:
        device = self.session.model.device
        self.refused = "" if device.type == "cuda" or self.capture is not cuda_capture else f"the device is a {device}"
        self._passes: dict[tuple[Any, ...], _Pass | None] = {}
        self.replayed = 0

    def __call__(self, inputs: Mapping[str, Tensor]) -> None:
        """Runs a batch; observers of the session see it."""
        shape = tuple((name, tensor.shape, tensor.dtype) for name, tensor in inputs.items())
        if (known := self._passes.get(shape)) is not None:
            known.replay(inputs)
            self.session.show(known.calls, known.outputs)
            self.replayed += 1
            return
        outputs = self.session.model(**inputs, **self.arguments)
        lengths = {tensor.shape[1] for tensor in inputs.values()}
        fits = lengths <= set(LENGTHS) and len(self._passes) < MOST_GRAPHS and not any(self.session.no_rows.values())
        if self.refused or shape in self._passes or not fits:
            return
        real = inputs.get("decoder_attention_mask", inputs["attention_mask"]).bool()
        # Without padding there was no mask, for which kernels would be compiled while they are captured.
        if not bool(real.all()):
            self._passes[shape] = self._captured(inputs, outputs[0], real)

    def kernels(self) -> dict[str, list[str]]:
        """Returns how many passes were replayed, or why none is captured any more, for the record of a run."""
        shapes = [" and ".join("x".join(map(str, s)) for _, s, _ in shape) for shape, p in self._passes.items() if p]
        kernels = {f"CUDA graphs ({self.replayed} passes)": shapes} if shapes else {}
        return kernels | ({f"no CUDA graphs: {self.refused}": []} if self.refused else {})

    def _captured(self, inputs: Mapping[str, Tensor], expected: Tensor, real: Tensor) -> _Pass | None:
        try:
            own = {name: tensor.clone() for name, tensor in inputs.items()}
            with self.session.recorded() as calls:
                graph, outputs = self.capture(lambda: self.session.model(**own, **self.arguments))
            captured = _Pass(graph, own, list(calls), outputs)
            captured.replay({name: tensor.flip(0) for name, tensor in inputs.items()})
            found, expected = outputs[0].flip(0)[real], expected[real]
            within = 1e-4 if expected.dtype == torch.float32 else 2e-2
            if not bool(((found - expected).abs() <= within * expected.abs().amax()).all()):
                self.refused = "a replayed pass gives other numbers"
        except Exception as error:
            # Cards and models refuse in ways of their own, and everything runs without.
            lacks = is_out_of_memory(error)
            self.refused = "memory ran out" if lacks else f"a pass could not be captured, {type(error).__name__}"
        return None if self.refused else captured

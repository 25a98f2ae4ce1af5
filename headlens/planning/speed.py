"""How fast this machine is with a model, and how much memory that takes: one batch of each kind is run and watched."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from headlens.attention.model_normalizer import attention_of, switch
from headlens.attention.normalizers import LearnedEntmax, ModelNormalizer
from headlens.attention.session import AttentionSession
from headlens.learning.hyperparameters import Precision

Kind = Literal["forward", "backward", "written"]
_TIMED = 512  # tokens of the batch that is timed, or those of the command's where that has fewer
_WRITTEN = 8  # tokens that are written of each text


@dataclass(frozen=True)
class Speed:
    """What a model costs on this machine.

    Args:
        forward: seconds of a token in a forward pass.
        backward: seconds of a token in a forward and backward pass.
        written: seconds of a token that is generated with a beam of 4; 0 where the model writes nothing.
        update: seconds of an optimiser's step.
        forward_bytes: of a token of a batch, beside the weights, at their peak.
        backward_bytes: the same with what is kept for the backward pass, without gradients of weights.
    """

    forward: float
    backward: float = 0.0
    written: float = 0.0
    update: float = 0.0
    forward_bytes: float = 0.0
    backward_bytes: float = 0.0

    def seconds(self, kind: Kind, tokens: float) -> float:
        """Computes the seconds that a number of tokens take in passes of this kind."""
        return tokens * float(getattr(self, kind))


def measure_speed(
    model: PreTrainedModel,
    length: int,
    batch_tokens: int,
    kinds: frozenset[Kind] = frozenset({"forward"}),
    *,
    precision: Precision = "no",
    attention: ModelNormalizer | None = None,
) -> Speed:
    """Run a batch of random tokens of each kind and look at the clock; weights stay as they are.

    Args:
        model: its weights do not matter, its shape does.
        length: tokens of a text.
        batch_tokens: of the batches of the command; a batch of at most 512 tokens is timed.
        kinds: what is to be known besides forward passes.
        precision: of the passes that are trained.
        attention: what the model's attention would be switched to.
    """
    before = attention_of(model)
    # Alphas that its heads learned would go with another normaliser; to find weights by them takes longest anyway.
    with ExitStack() as undo:
        if attention is not None and not isinstance(before, LearnedEntmax):
            switch(model, attention)
            undo.callback(switch, model, before)
        return _measured(model, length, batch_tokens, kinds, precision)


def _measured(
    model: PreTrainedModel, length: int, batch_tokens: int, kinds: frozenset[Kind], precision: Precision
) -> Speed:
    def forward(inputs: dict[str, Tensor]) -> None:
        with torch.inference_mode():
            model(**inputs)

    def loss(inputs: dict[str, Tensor]) -> Tensor:
        half = torch.bfloat16 if precision == "bf16" else torch.float16
        with torch.autocast(model.device.type, half, enabled=precision != "no"):
            measured: Tensor = model(**inputs)[0]
            return measured.float().square().mean()

    def backward(inputs: dict[str, Tensor]) -> None:
        loss(inputs).backward()  # type: ignore[no-untyped-call]

    rows = max(1, min(_TIMED, batch_tokens) // length)
    peak = _peak(forward, _inputs(model, rows, length))
    measured = {"forward": _timed(forward, model, rows, length), "forward_bytes": peak / (rows * length)}
    if "backward" in kinds:
        model.train()
        try:
            measured["backward"] = _timed(backward, model, rows, length)
            # Most is kept where the backward pass begins; gradients of weights come while it is given back.
            measured["backward_bytes"] = _peak(loss, _inputs(model, rows, length)) / (rows * length)
            # A step of AdamW that changes nothing.
            fused = model.device.type != "mps"
            optimiser = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0, fused=fused)
            optimiser.step()
            measured["update"] = seconds_of(optimiser.step, model.device)
        finally:
            model.eval()
            model.zero_grad(set_to_none=True)
    if "written" in kinds and model.can_generate():
        measured["written"] = _written(model, length)
    return Speed(**measured)


def _timed(run: Callable[[dict[str, Tensor]], None], model: PreTrainedModel, rows: int, length: int) -> float:
    """Seconds of a token of a batch, the second time that it is run: some things are slow only once."""
    inputs = _inputs(model, rows, length)
    run(inputs)
    return seconds_of(partial(run, inputs), model.device) / (rows * length)


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """Wall time of a call, until the device has finished its work."""
    _wait(device)
    start = time.perf_counter()
    run()
    _wait(device)
    return time.perf_counter() - start


def operations_of(network: PreTrainedModel, inputs: Mapping[str, Any]) -> int:
    """Returns the floating-point operations of matrix products in a forward pass.

    Args:
        network: the model, or the part of it that counts.
        inputs: its arguments.
    """
    # The counter does not know every kernel of sdpa.
    with AttentionSession(network, kernel="eager"), FlopCounterMode(display=False) as counter, torch.inference_mode():
        network(**inputs)
    return int(counter.get_total_flops())


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _inputs(model: PreTrainedModel, rows: int, length: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, int(model.config.get_text_config().vocab_size), (rows, length), generator=generator)
    ids = ids.to(model.device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return inputs | ({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})


def _written(model: PreTrainedModel, length: int) -> float:
    rows = 16
    inputs = {k: v for k, v in _inputs(model, rows, length).items() if not k.startswith("decoder")}
    generate: Any = model.generate

    def run() -> None:
        with torch.inference_mode():
            generate(**inputs, num_beams=4, do_sample=False, min_new_tokens=_WRITTEN, max_new_tokens=_WRITTEN)

    run()
    return seconds_of(run, model.device) / (rows * _WRITTEN)


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of tensors that are made inside, as long as they live.

    Attributes:
        now: that live.
        peak: the most that lived at once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known = weakref.WeakSet[torch.UntypedStorage]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and look at what it made."""
        given = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for storage in (t.untyped_storage() for t in tree_leaves(result) if isinstance(t, Tensor)):
            if id(storage) not in given and storage not in self._known:
                self._known.add(storage)
                self._change(storage.nbytes())
                weakref.finalize(storage, self._change, -storage.nbytes())
        return result

    def _change(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)


def _peak(run: Callable[[dict[str, Tensor]], object], inputs: dict[str, Tensor]) -> int:
    """Bytes beside weights and inputs."""
    live = LiveBytes()
    with live:
        outputs = run(inputs)
    del outputs
    return live.peak

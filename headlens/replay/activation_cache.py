"""One intact pass, written down, and passes that start in its middle: what came before is taken from the recording."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from headlens.attention.interface import additive
from headlens.attention.normalizers import unknown_arguments
from headlens.attention.sites import Site
from headlens.errors import SelfCheckError, UnsupportedModelError
from headlens.replay.nested_tensors import now

Forward = Callable[..., Any]
Arguments = tuple[Any, ...]
Keywords = Mapping[str, Any]
Inputs = tuple[Tensor, Tensor, Tensor]  # of an attention call: query, key and value
PARTS = "qkv"  # letters of these


@dataclass(eq=False)
class ModuleCall:
    """One call of a module, or of the attention function of one.

    Args:
        module: what was called.
        stop: the record after the last one made while the call ran.
        attends: whether it is the call of the attention function.
        output: what may stand in for the call, if anything; of attention the head outputs, (rows, query, heads, d).
        even: head outputs with even attention, (rows, query, heads, d); None where nobody needs them.
        qkv: query, key and value of an attention call, as it got them; None where nobody needs them.
        given: where the tensor lay that it got first; 0 if it got none of (rows, positions, numbers).
        made: where the tensor lay that came out of a projection.
    """

    module: nn.Module
    stop: int = 0
    attends: bool = False
    output: Any = None
    even: Tensor | None = None
    qkv: Inputs | None = None
    given: int = 0
    made: int = -1


class ActivationCache:
    """The calls of one pass in the order they began, with the outputs that a later pass can take instead.

    Of a call only what a later site needs is kept: the input of the layers above is, what is inside a layer after its
    attention is not.

    Args:
        chain: modules with attention inside; their outputs carry the rows of the batch on the first axis.
        inputs: of the model.
    """

    def __init__(self, chain: set[nn.Module], inputs: Mapping[str, Any]) -> None:
        self.records: list[ModuleCall] = []
        # Where key and value of the last attention call lay.
        self.made_of = (0, 0)
        self._chain = chain
        self._inputs = {v.data_ptr() for v in inputs.values() if isinstance(v, Tensor)}

    @property
    def calls(self) -> list[ModuleCall]:
        """The calls of attention functions, in the order they began."""
        return [record for record in self.records if record.attends]

    @property
    def rows(self) -> int:
        """Rows of the batch as attention sees them: several for each example where there are choices."""
        return int(self.calls[0].output.shape[0])

    def call(self, module: nn.Module, forward: Forward, args: Arguments, kwargs: Keywords) -> Any:
        """Calls a module's forward method and records the call, with its output if a later pass can use it."""
        given = self._first_tensor(args, kwargs)
        record = ModuleCall(module, given=0 if given is None else given.data_ptr())
        first = len(self.records)
        self.records.append(record)
        output = forward(*args, **kwargs)
        record.stop = len(self.records)
        if module in self._chain:
            record.output = output
        elif given is not None and isinstance(output, Tensor) and output.shape[:-1] == _positions(given):
            record.output, record.made = output, output.data_ptr()
        self._let_go(first + 1, record.stop)
        return output

    def attended(
        self,
        module: nn.Module,
        output: Tensor,
        even: Tensor | None,
        qkv: Inputs,
        *,
        keep: bool = False,
    ) -> None:
        """Write an attention call down, with its query, key and value where they are to be kept."""
        self.made_of = (qkv[1].data_ptr(), qkv[2].data_ptr())
        kept = qkv if keep else None
        self.records.append(ModuleCall(module, len(self.records) + 1, attends=True, output=output, even=even, qkv=kept))

    def finish(self, sites: Sequence[Site], modules: Mapping[Site, nn.Module]) -> dict[Site, ModuleCall]:
        """The calls by site, in the order of the sites, once the pass is over.

        Raises:
            SelfCheckError: if some site was not reached once.
            UnsupportedModelError: if the calls do not have the same rows.
        """
        self._let_go(0, len(self.records))
        left, records = self.calls, {}
        for site in sites:
            if (call := next((c for c in left if c.module is modules[site]), None)) is not None:
                records[site] = call
                left.remove(call)
        if left or not records or {s.stack for s in sites if s not in records} & {s.stack for s in records}:
            raise SelfCheckError(
                f"The model computed attention at {len(self.calls)} of {len(sites)} sites, or more than once at one "
                "of them.",
                "Call the whole model, and not through generate().",
            )
        if len({call.output.shape[0] for call in records.values()}) > 1:
            raise UnsupportedModelError("The model does not process the same rows in all of its layers.")
        return records

    def _let_go(self, first: int, stop: int) -> None:
        """Forget the outputs of sibling calls that no attention call of their parent came after."""
        last = max((i for i in range(first, stop) if self.records[i].attends), default=-1)
        while first < stop:
            record = self.records[first]
            if record.stop > last and not record.attends:
                record.output = None
            first = record.stop

    def _first_tensor(self, args: Arguments, kwargs: Keywords) -> Tensor | None:
        """What a module got first, if it is a vector for each position, or the numbers of the batch's tokens.

        Other numbers, such as those of positions, need not be one row for each row of the batch.
        """
        given = next((v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)), None)
        if given is None:
            return None
        vectors = given.is_floating_point() and given.dim() > 2
        return given if vectors or (given.dim() == 2 and given.data_ptr() in self._inputs) else None


def _positions(given: Tensor) -> torch.Size:
    """The shape of vectors or tokens: a projection gives one vector for each."""
    return given.shape[:-1] if given.is_floating_point() else given.shape


@dataclass(frozen=True, eq=False)
class ClsOnlyLayer:
    """How the last layer can be run for its first position alone: that one looks at the keys and values of all.

    Args:
        layer: the call of the last layer, whose first argument is what keys and values are made of.
        key, value: the modules that make them.
    """

    layer: ModuleCall
    key: nn.Linear
    value: nn.Linear

    def attend(self, query: Tensor, hidden: Tensor, mask: Tensor | None, kwargs: Mapping[str, Any]) -> Tensor:
        """Head outputs of the first position, without computing a key or value of any other.

        A score q·(Kx) is (Kᵀq)·x, and a mean of values Vx is V times the mean of the x. What the bias of keys adds is
        the same for all scores of a query, which a softmax does not see.

        Args:
            query: (rows, heads, 1, d).
            hidden: the layer's input, (rows, key, hidden).
            mask: boolean or additive, (rows or 1, heads or 1, query or 1, key); None for no mask.
            kwargs: further arguments of the attention call.

        Returns:
            (rows, 1, heads, d).

        Raises:
            SelfCheckError: if the attention is more than a softmax of scaled scores, or heads share keys.
        """
        n_heads, size = query.shape[1], query.shape[3]
        if unknown_arguments(kwargs) or any(m.out_features != n_heads * size for m in (self.key, self.value)):
            raise SelfCheckError("The attention of the last layer is of a kind that cannot be restricted to [CLS].")
        # (heads, d, hidden) each.
        key, value = (m.weight.view(n_heads, size, m.in_features) for m in (self.key, self.value))
        scaling = kwargs.get("scaling")
        products = torch.einsum("rhd,hdk->rhk", query[:, :, 0] * (size**-0.5 if scaling is None else scaling), key)
        # (rows, heads, hidden) times (rows, hidden, key).
        scores = products @ hidden.transpose(1, 2)
        added = additive(mask, query.dtype)
        weights = torch.softmax(scores if added is None else scores + added[:, :, 0], dim=-1)
        output = torch.einsum("rhk,hdk->rhd", weights @ hidden, value)
        if self.value.bias is not None:
            output = output + self.value.bias.view(n_heads, size)
        return output[:, None]

    @classmethod
    def of(cls, recording: ActivationCache) -> ClsOnlyLayer | None:
        """Whether the last layer has that shape, as BERT's has; None if not.

        Layers that normalise their input first, and positions that turn queries and keys, are left to full passes. It
        does not tell whether anybody looks at other positions: a replay of the intact pass does.
        """
        records = recording.records
        last = max(i for i, r in enumerate(records) if r.attends)
        around = [i for i, r in enumerate(records[:last]) if r.stop > last]
        # The first of several calls that made the same counts.
        made = {records[i].made: records[i] for i in range(last - 1, around[-1] if around else last, -1)}
        key, value = map(made.get, recording.made_of)
        if key is None or value is None or key.given != value.given or not key.given:
            return None
        if not (_plain(key.module) and _plain(value.module)):
            return None
        for i in around:
            if records[i].given == key.given and not any(r.attends for r in records[i:last]):
                return cls(records[i], key.module, value.module)
        return None


def _plain(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a module's weights say all that it computes; subclasses and hooks may do more."""
    return type(module) is nn.Linear and not module._forward_hooks and not module._forward_pre_hooks


class PathEnds(Exception):  # noqa: N818 - no error: nothing behind the receiver is asked for
    """Ends a pass at the head that receives a changed output."""


@dataclass(frozen=True, eq=False)
class DirectPath:
    """What is held at its intact value in a pass along the direct path from one head (path patching).

    All attention calls after the start give what they gave in the intact pass; layers between are computed. The call
    of the receiver is computed, and what it gives is kept.

    Args:
        calls: of attention in the intact pass, in order.
        receiver: number of the receiver's call among them; None for a path to the outputs of the model.
        parts: of query, key and value those that the receiver's call computes from the changed input.
        received: gets what the receiver's site gives, (rows of the pass, query, heads, d).
    """

    calls: list[ModuleCall]
    receiver: int | None = None
    parts: str = PARTS
    received: list[Tensor] = field(default_factory=list)

    def held(self, number: int) -> Tensor | None:
        """What a later attention call gives instead of what it would compute; None for the receiver's."""
        return None if number == self.receiver else self.calls[number].output

    def receive(self, output: Tensor) -> None:
        """Takes what the receiver's site gives.

        Raises:
            PathEnds: always, as nothing behind it is asked for.
        """
        self.received.append(output)
        raise PathEnds

    def inputs(self, qkv: Inputs, fit: Callable[[Any], Any]) -> Inputs:
        """Query, key and value of the receiver's call, with the intact ones where its changed input is not for them."""
        assert self.receiver is not None
        intact = self.calls[self.receiver].qkv
        assert intact is not None
        query, key, value = (
            new if part in self.parts else fit(old) for part, new, old in zip(PARTS, qkv, intact, strict=True)
        )
        return query, key, value


@dataclass(eq=False)
class PartialForward:
    """Follows a pass over repeated inputs up to one attention call, and leaves the model alone after it.

    Args:
        records: of the intact pass.
        shortcut: for the last layer, if only its first position is looked at.
        start: number of the record of the attention call.
        outputs: of its heads, (rows of this pass, query, heads, d).
        check: called with what the model made of them, in the same shape.
        fit: brings what the intact pass gave to the rows of this one.
        arrives: what the model itself makes of head outputs on their way to the output projection.
        path: what is held at its intact value later; None to compute everything.
    """

    records: list[ModuleCall]
    shortcut: ClsOnlyLayer | None
    start: int
    outputs: Tensor
    check: Callable[[Tensor], None]
    fit: Callable[[Any], Any]
    arrives: Callable[[Tensor], Tensor]
    path: DirectPath | None = None

    def __post_init__(self) -> None:
        # Attention calls that are left out and to come, and all positions of the last layer's input once it runs for
        # the first alone.
        self.depth = sum(r.attends for r in self.records[: self.start])
        self._left = sum(r.attends for r in self.records[self.start + 1 :])
        self._all: Tensor | None = None
        if self.shortcut is not None and not self._left:
            self.outputs = self.outputs[:, :1].contiguous()
        self._at = 0
        self._arrived = False

    @property
    def reached(self) -> bool:
        """Whether the attention call is over, so that everything runs as usual."""
        return self._at > self.start

    def call(self, module: nn.Module, forward: Forward, args: Arguments, kwargs: Keywords) -> Any:
        """Run a module, or return its output in the intact pass."""
        if self._is_last_layer(module):
            self._all = args[0]
            args = (args[0][:, :1], *args[1:])
        if self.reached:
            if not self._arrived:
                self._look_at(args, kwargs)
            return forward(*args, **kwargs)
        record = self._next(module, attends=False)
        if record.output is not None and record.stop <= self.start:
            self._at = record.stop
            return self.fit(record.output if self._all is None else record.output[:, :1])
        self._at += 1
        return forward(*args, **kwargs)

    def attend(self, module: nn.Module, query: Tensor, mask: Tensor | None, kwargs: Keywords) -> Tensor | None:
        """The head outputs to use: at the start, and of a later call if it is for the first position alone."""
        if not self.reached:
            self._next(module, attends=True)
            self._at += 1
            return self.outputs
        self._left -= 1
        self.depth += 1
        if self.path is not None:
            held = self.path.held(self.depth)
            return None if held is None else now(self.fit(held))
        if self._all is None or self.shortcut is None:
            return None
        return self.shortcut.attend(query, self._all, mask, kwargs)

    @property
    def receiving(self) -> DirectPath | None:
        """The direct path whose receiver's attention call is under way; None if it is another call."""
        path = self.path
        return path if path is not None and self.reached and self.depth == path.receiver else None

    def finish(self) -> None:
        """Raise SelfCheckError if the outputs were not asked for, or never seen again."""
        if not self._arrived:
            raise SelfCheckError("The model did not use the head outputs it was given.", "Please report the model.")

    def _next(self, module: nn.Module, *, attends: bool) -> ModuleCall:
        record = self.records[self._at]
        in_order = record.module is module and record.attends == attends and (self._at == self.start) == attends
        if not in_order:
            raise SelfCheckError(
                f"{type(module).__name__} was not called in the same order as in the intact pass.",
                "The model does not behave the same way for the same inputs.",
            )
        return record

    def _is_last_layer(self, module: nn.Module) -> bool:
        if self.shortcut is None or self._all is not None:
            return False
        if self.reached:
            return self._left == 1 and module is self.shortcut.layer.module
        return self.records[self._at] is self.shortcut.layer and not self._left

    def _look_at(self, args: Arguments, kwargs: Keywords) -> None:
        """The first module after attention, the output projection, must get the outputs that were given."""
        expected = self.arrives(self.outputs)
        for value in (*args, *kwargs.values()):
            if isinstance(value, Tensor) and value.shape == self.outputs.flatten(2).shape:
                arrived = value.view(self.outputs.shape)
                if value.data_ptr() == expected.data_ptr() or torch.equal(arrived, expected):
                    self.check(arrived)
                    self._arrived = True
                    return
        raise SelfCheckError(
            "The head outputs that were given did not arrive at the output projection.", "Please report the model."
        )

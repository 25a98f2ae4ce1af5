"""One intact pass, written down so that later passes can start in its middle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from headlens.attention.sites import Site
from headlens.errors import SelfCheckError, UnsupportedModelError

Forward = Callable[..., Any]
Arguments = tuple[Any, ...]
Keywords = Mapping[str, Any]


@dataclass(eq=False)
class ModuleCall:
    """One call of a module, or of the attention function of one.

    Args:
        module: what was called.
        stop: the record after the last one made while the call ran.
        attends: whether it is the call of the attention function.
        kept: whether `output` may stand in for the call.
        output: what came out.
        given: where the tensor lay that it got first; 0 if it got none of (rows, positions, numbers).
        made: where the tensor lay that came out of a projection.
    """

    module: nn.Module
    stop: int = 0
    attends: bool = False
    kept: bool = False
    output: Any = None
    given: int = 0
    made: int = -1


@dataclass(frozen=True, eq=False)
class Call:
    """What the attention function of a site gave in the intact pass.

    Args:
        record: its number among the records.
        output: head outputs, (rows, query, heads, d).
        even: the same with even attention, (rows, query, heads, d); None where nobody needs it.
    """

    record: int
    output: Tensor
    even: Tensor | None


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
        self.calls: list[tuple[nn.Module, Call]] = []
        # Where keys and values of the last attention call lay.
        self.made_of: tuple[int, ...] = ()
        self._chain = chain
        self._inputs = {v.data_ptr() for v in inputs.values() if isinstance(v, Tensor)}

    @property
    def rows(self) -> int:
        """Rows of the batch as attention sees them: several for each example where there are choices."""
        return self.calls[0][1].output.shape[0]

    def call(self, module: nn.Module, forward: Forward, args: Arguments, kwargs: Keywords) -> Any:
        """Calls a module's forward method and records the call, with its output if a later pass can use it."""
        given = self._first_tensor(args, kwargs)
        record = ModuleCall(module, given=0 if given is None else given.data_ptr())
        first = len(self.records)
        self.records.append(record)
        output = forward(*args, **kwargs)
        record.stop = len(self.records)
        if module in self._chain:
            record.kept, record.output = True, output
        elif given is not None and isinstance(output, Tensor) and _one_for_each(output, given):
            record.kept, record.output, record.made = True, output, output.data_ptr()
        self._let_go(first + 1, record.stop)
        return output

    def attended(self, module: nn.Module, output: Tensor, even: Tensor | None, made_of: tuple[Tensor, Tensor]) -> None:
        """Write an attention call down, with its key and value."""
        number = len(self.records)
        self.made_of = tuple(t.data_ptr() for t in made_of)
        self.calls.append((module, Call(number, output, even)))
        self.records.append(ModuleCall(module, number + 1, attends=True))

    def finish(self, sites: Sequence[Site], modules: Mapping[Site, nn.Module]) -> dict[Site, Call]:
        """The calls by site, in the order of the sites, once the pass is over.

        Raises:
            SelfCheckError: if some site was not reached once.
            UnsupportedModelError: if the calls do not have the same rows.
        """
        self._let_go(0, len(self.records))
        left, records = list(self.calls), {}
        for site in sites:
            turn = next((i for i, (m, _) in enumerate(left) if m is modules[site]), None)
            if turn is not None:
                records[site] = left.pop(turn)[1]
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
        last = next((i for i in range(stop - 1, first - 1, -1) if self.records[i].attends), -1)
        for record in self._siblings(first, stop):
            if record.stop > last:
                record.output, record.kept = None, False

    def _siblings(self, first: int, stop: int) -> Iterator[ModuleCall]:
        while first < stop:
            yield self.records[first]
            first = self.records[first].stop

    def _first_tensor(self, args: Arguments, kwargs: Keywords) -> Tensor | None:
        """What a module got first, if it is a vector for each position, or the numbers of the batch's tokens.

        Other numbers, such as those of positions, need not be one row for each row of the batch.
        """
        given = next((v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)), None)
        if given is None:
            return None
        vectors = given.is_floating_point() and given.dim() > 2
        return given if vectors or (given.dim() == 2 and given.data_ptr() in self._inputs) else None


def _one_for_each(output: Tensor, given: Tensor) -> bool:
    """Whether there is one vector for each that was given, or for each token."""
    positions = given.shape[:-1] if given.is_floating_point() else given.shape
    return output.shape[:-1] == positions

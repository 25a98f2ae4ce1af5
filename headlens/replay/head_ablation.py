"""Passes of a model in which one head is taken out, without computing again what that cannot change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.attention.edit_chain import Floor, edited_output, mask_to_use
from headlens.attention.edits_and_observers import CallContext
from headlens.attention.finite_values import FiniteValues
from headlens.attention.forward_tracker import ForwardTracker, SessionLink
from headlens.attention.install import install, is_eager, put
from headlens.attention.interface import EAGER, SDPA, Kernel, additive, own_attention
from headlens.attention.persistent_edit import persistent_edits, set_aside
from headlens.attention.reversible_context import ReversibleContext
from headlens.attention.sites import Site, find_sites
from headlens.errors import OptionError, SelfCheckError
from headlens.heads import Head
from headlens.memory import is_out_of_memory
from headlens.replay.activation_cache import (
    ActivationCache,
    ClsOnlyLayer,
    DirectPath,
    ModuleCall,
    PartialForward,
    PathEnds,
)
from headlens.replay.direct_path import Receiver, senders
from headlens.replay.modes import Mode
from headlens.replay.nested_tensors import LazyTensor, now, part, repeated, rows_of, tensors
from headlens.replay.replacement import check_means, check_removed, evenly, replaced
from headlens.weights.shared_layer_masks import depth_mask

# Rows times positions of one pass over several heads by default: more do not make a processor faster.
TOKENS = {"cpu": 2**11, "other": 2**15}
# Tokens of a batch, padding included, that suit it: heads fill a pass, so that a batch may be small, of few lengths.
BATCH_TOKENS = {"cpu": 2**8, "other": 2**13}


class Replay(ReversibleContext):
    """Takes the heads of a model out, one at a time, while inside `with`; afterwards nothing is left of it.

        with Replay(model) as replay:
            intact = replay.run(inputs)
            for variant in intact.variants():
                variant.head, variant.outputs, intact.outputs

    An intact pass keeps the inputs of all layers and the outputs of all heads. A head changes nothing below its layer,
    so all heads of a layer start from there together, as further rows of the batch: queries, keys, values and attention
    of the layer itself are not computed again, the layers above run as the model's own code. With shared weights
    (ALBERT) every depth is a layer of its own. Outputs equal those of full passes with `HeadGates` but for rounding. A
    model that lost heads can lose more of them: the others keep their numbers, heads masked at a depth change nothing.

    Where only the first position of the last layer is looked at, as in BERT's classifiers, the last layer is run for
    that position alone, without a key or value; the first batch shows whether that changes any output.

    An edit that stays with the model (`headlens.attention.attach_edit`) holds in all passes; the last layer is then
    run whole.

    Every replay checks that what it replaced arrived at the output projection, and that what it removed is exactly 0
    there; of every layer in the first batch, and of one layer in every later one, that an intact replay of its first
    example gives the outputs of the intact pass.

    Args:
        model: in evaluation mode.
        mode: what a head's output is replaced by: `zero`, nothing; `mean`, its mean over a corpus; `uniform`, the mean
            of the values its queries may look at, as from even attention; those of `headlens.replay.modes.BY_BATCH`,
            what `instead_of` was given, with `path` along the direct path alone: all other heads give what they gave,
            the layers between are computed. `keep-only` removes all heads of a layer but one.
        means: for the mode `mean`, (heads, d) by site, as `HeadMeans` gives them.
        receiver: for the mode `path`, the head that gets the changed output; None for the outputs of the model.
        tokens: rows times positions of one pass, though a single head's batch may be larger; None for what suits the
            device.

    Raises:
        OptionError: for a mode that does not exist, or does not fit `means`.
        UnsupportedModelError: if the model's attention cannot be reached.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        mode: Mode = "zero",
        means: Mapping[Site, Tensor] | None = None,
        *,
        tokens: int | None = None,
        receiver: Receiver | None = None,
    ) -> None:
        self.model = model
        self.mode: Mode = mode
        self.sites = find_sites(model)
        self.receiver = receiver
        self.receiving = None if receiver is None else site_of(receiver.head, self.sites)
        self.tokens = tokens or TOKENS.get(model.device.type, TOKENS["other"])
        check_means(mode, means, self.sites)
        self._means = means or {}
        self.edits = persistent_edits(model)
        self.modules = {s: model.get_submodule(s.module) for s in self.sites}
        self.kernel: Kernel = "eager" if is_eager(self.modules.values()) else "sdpa"
        self._name = SDPA if self.kernel == "sdpa" else EAGER
        sites = set(self.modules.values())
        self._silent = depth_mask(model)
        self._chain = {m for m in model.modules() if m is not model and not sites.isdisjoint(m.modules())}
        self._tape: ActivationCache | PartialForward | None = None
        self._checked: set[Site] = set()
        self._batches = 0
        # The largest magnitude in each tensor of the outputs, over all batches.
        self.largest: list[float] = []
        self._only_first: bool | None = None
        self._floor = Floor()
        # The number of the next attention call among those of a whole pass.
        self._turn = 0

    def _change(self, undo: ExitStack) -> None:
        if self.model.training:
            raise RuntimeError(
                "a model in training mode applies different dropout in every pass: call model.eval() first"
            )
        # No hooks of the passes are set: a replay leaves sites out on purpose.
        undo.enter_context(set_aside(self.model))
        link = SessionLink(self._attend, ForwardTracker(self.model, self.sites, _nothing))
        install(self.model, self._name, link, undo)
        # Modules with attention inside, and what stands beside them: layers, projections, normalisation.
        beside = [m for parent in (self.model, *self._chain) for m in parent.children()]
        for module in dict.fromkeys([*self._chain, *beside]):
            put(module, "forward", partial(self._call, module, module.forward), undo)

    def run(self, inputs: Mapping[str, Any]) -> BaselinePass:
        """The intact pass over a batch.

        Args:
            inputs: what the model takes, with the examples on the first axis of tensors; no labels.

        Raises:
            OptionError: for labels, whose loss is one number for all rows.
            SelfCheckError: if the pass does not come by every site once.
        """
        if "labels" in inputs:
            raise OptionError("A loss over a batch mixes its rows.", "Leave the labels out and score the outputs.")
        if any(s.stack != "encoder" for s in self.sites):
            # A cache would hold what replays leave out.
            inputs = {**inputs, "use_cache": False}
        rows_of(inputs)
        recording = ActivationCache(self._chain, inputs)
        outputs = self.run_with(recording, inputs)
        intact = BaselinePass(self, inputs, recording, outputs)
        sizes = [float(t.abs().max()) if t.numel() else 0.0 for t in tensors(outputs)]
        self.largest = [max(pair) for pair in zip_longest(sizes, self.largest, fillvalue=0.0)]
        self._check(intact)
        return intact

    def run_with(self, tape: ActivationCache | PartialForward, inputs: Mapping[str, Any]) -> Any:
        """The model's outputs from a pass that is written down, or that starts in the middle.

        Raises:
            RuntimeError: outside of `with`.
        """
        if not self.is_open:
            raise RuntimeError("a replay only runs inside its `with` block")
        self._tape = tape
        self._turn = tape.depth if isinstance(tape, PartialForward) else 0
        try:
            with torch.no_grad():
                return self.model(**inputs)
        finally:
            self._tape = None

    def changed(self, site: Site, call: ModuleCall, heads: Sequence[int]) -> Tensor:
        """What the heads of a site give when each head of a list is taken out: (len(heads) x rows, query, heads, d).

        Heads are counted by where their weights are; numbers in the original model are another thing.
        """
        if self.mode == "keep-only":
            return replaced(torch.zeros_like(call.output), heads, call.output)
        instead = call.even if self.mode == "uniform" else self._means.get(site)
        if instead is None and self.mode != "zero":
            raise OptionError(f"There is nothing to stand in for heads of {site}.", "Give it with instead_of.")
        return replaced(call.output, heads, instead)

    def instead_of(self, outputs: Mapping[Site, Tensor]) -> None:
        """Says what stands in the place of head outputs from here on, for modes whose stand-ins differ by batch.

        Args:
            outputs: by site, what can be broadcast to (rows, query, heads, d) of the batch.
        """
        self._means = outputs

    def arriving(self, site: Site, outputs: Tensor) -> Tensor:
        """Head outputs as the output projection gets them, where shared weights mask or scale some at this depth."""
        if self._silent is None:
            return outputs
        return self._silent.at(site.layer, outputs.flatten(2)).view(outputs.shape)

    def _call(self, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._tape is None:
            return forward(*args, **kwargs)
        return self._tape.call(module, forward, args, kwargs)

    def _attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        tape, turn = self._tape, self._turn
        self._turn += 1
        if isinstance(tape, PartialForward):
            if not tape.reached and self._silent is not None:
                self._silent.skip_to(tape.depth)
            if (given := tape.attend(module, query, attention_mask, kwargs)) is not None:
                return given, None
            if (path := tape.receiving) is not None:
                query, key, value = path.inputs((query, key, value), tape.fit)
        mask = attention_mask
        if self.edits:
            context = self._context(module, turn, (query, key, value))
            mask = mask_to_use(self.edits, self._name, module, context, (mask, kwargs), self._floor)
        mask = mask if self.kernel == "sdpa" else additive(mask, query.dtype)
        output, weights = own_attention(self.kernel, module)(module, query, key, value, mask, **kwargs)
        if self.edits:
            output = edited_output(self.edits, context, output)
        if tape is None:
            return output, weights
        if isinstance(tape, ActivationCache):
            uniform = self.mode == "uniform"
            even = evenly(self.kernel, module, (query, key, value), mask, kwargs) if uniform else None
            receiving = self.receiving is not None and module is self.modules[self.receiving]
            tape.attended(module, output, even, (query, key, value), keep=receiving)
        elif (path := tape.receiving) is not None:
            path.receive(output)
        # No weights, as they would be kept with the layer's outputs.
        return output, None

    def _context(self, module: nn.Module, turn: int, tensors: tuple[Tensor, Tensor, Tensor]) -> CallContext:
        module_sites = [s for s in self.sites if self.modules[s] is module]
        # Shared weights compute the encoder, which runs first: its depths are the first calls of a pass.
        site = module_sites[0] if len(module_sites) == 1 else self.sites[turn]
        return CallContext(site, *tensors, queries=None, keys=None, causal=site.stack == "decoder")

    def _check(self, intact: BaselinePass) -> None:
        """Every layer once, then one in every batch, in turn."""
        sites = intact.sites
        if self._only_first is None:
            # An edit wants to see all queries of a layer.
            whole = bool(self.edits) or self.mode == "path"  # and so does a path
            self._only_first = False if whole else intact.only_first_position()
        if self._only_first:
            intact.shortcut = ClsOnlyLayer.of(intact.recording)
        for site in [s for s in sites if s not in self._checked] or [sites[self._batches % len(sites)]]:
            intact.check(site)
            self._checked.add(site)
        self._batches += 1


def site_of(head: Head, sites: Sequence[Site]) -> Site:
    """Returns the site that a head is of.

    Raises:
        OptionError: if the model has no such head.
    """
    for site in sites:
        if head in site.heads:
            return site
    raise OptionError(f"There is no head {head}.", f"The layers are {', '.join(map(str, sites))}.")


@dataclass(frozen=True, eq=False)
class Variant:
    """The batch once more, without a head.

    Args:
        head: which was taken out, or is the only one left in its layer (`keep-only`).
        outputs: what the model gave; tensors may share memory with those of other heads.
    """

    head: Head
    outputs: Any


class BaselinePass:
    """A batch after its intact pass; what it holds goes with it.

    Args:
        replay: whose model ran.
        inputs: of the batch.
        recording: of the pass.
        outputs: of the model.
    """

    def __init__(self, replay: Replay, inputs: Mapping[str, Any], recording: ActivationCache, outputs: Any) -> None:
        self.outputs, self.recording = outputs, recording
        self._replay, self._inputs, self._rows = replay, inputs, rows_of(inputs)
        self._calls = recording.finish(replay.sites, replay.modules)
        values = FiniteValues(replay.model)
        for site, call in self._calls.items():
            values.note_site(site, call.output)
        values.check(outputs)
        self.shortcut: ClsOnlyLayer | None = None

    @property
    def head_outputs(self) -> dict[Site, Tensor]:
        """What heads gave at each of these sites, (rows, query, heads, d)."""
        return {site: call.output for site, call in self._calls.items()}

    @property
    def sites(self) -> list[Site]:
        """The sites the batch came by: all, but for an encoder that runs alone."""
        return list(self._calls)

    def variants(self, heads: Sequence[Head] | None = None) -> Iterator[Variant]:
        """The batch without each of its heads, layer by layer; by default of all.

        Raises:
            OptionError: for a head that the batch does not come by.
            SelfCheckError: if something else was taken out, or too much computed again.
        """
        known = [h for s in self.sites for h in s.heads]
        if self._replay.mode == "path":
            known = senders(known, self._replay.receiver)
        ablated = known if heads is None else heads
        for head in ablated:
            if head not in known:
                raise OptionError(f"There is no head {head}.", f"The layers are {', '.join(map(str, self.sites))}.")
        for site, call in self._calls.items():
            here = [h for h in ablated if h[:2] == (site.stack, site.layer)]
            size = max(1, self._replay.tokens // max(1, call.output.shape[:2].numel()))
            for chunk in (here[first : first + size] for first in range(0, len(here), size)):
                outputs = self._without(site, chunk)
                for i, head in enumerate(chunk):
                    rows = part(outputs, i * self._rows, (i + 1) * self._rows, len(chunk) * self._rows)
                    yield Variant(head, rows)

    def only_first_position(self) -> bool | None:
        """Whether nobody looks at anything but the first position of the last layer; None if there is no other.

        Asked of the model, by running the last layer for its first position alone: if the outputs are the same, in
        shape and in number, the others do not matter.
        """
        if {s.stack for s in self.sites} != {"encoder"} or not (shortcut := ClsOnlyLayer.of(self.recording)):
            return False
        if self._calls[self.sites[-1]].output.shape[1] < 2:
            return None
        self.shortcut = shortcut
        try:
            self.check(self.sites[0], self._rows)
        except (SelfCheckError, RuntimeError, IndexError) as error:
            if is_out_of_memory(error):
                raise
            return False
        finally:
            self.shortcut = None
        return True

    def check(self, site: Site, examples: int = 1) -> None:
        """Raise SelfCheckError if a replay from a site, with nothing taken out, does not give the intact outputs.

        One example is enough to find a replay that goes wrong, at a small part of what the batch would cost.

        Args:
            site: where it starts.
            examples: how many of the batch it runs.
        """
        rows = self.recording.rows
        fit = partial(part, first=0, stop=examples * (rows // self._rows), rows=rows)
        path = DirectPath(self.recording.calls) if self._replay.mode == "path" else None
        inputs, expected = (part(v, 0, examples, self._rows) for v in (self._inputs, self.outputs))
        outputs = self._play(site, inputs, fit(self._calls[site].output), _nothing, fit, path)
        for ours, theirs, largest in zip(tensors(outputs), tensors(expected), self._replay.largest, strict=True):
            if ours.shape != theirs.shape or not close(ours, theirs, largest):
                raise SelfCheckError(
                    f"Run again from {site} with no head removed, the model gave different outputs than before.",
                    "Please report the model; does it draw random numbers in evaluation mode?",
                )

    def _without(self, site: Site, heads: Sequence[Head]) -> Any:
        # Where their weights are: models that lost heads number the others as before.
        places = [site.heads.index(h) for h in heads]
        outputs = self._replay.changed(site, self._calls[site], places)
        check = partial(check_removed, heads=places, mode=self._replay.mode)
        fit = partial(repeated, times=len(heads), rows=self.recording.rows, copy=LazyTensor.repeat_of)
        inputs = repeated(self._inputs, len(heads), self._rows)
        if self._replay.mode != "path":
            return self._play(site, inputs, outputs, check, fit)
        if (receiver := self._replay.receiver) is None:
            return self._play(site, inputs, outputs, check, fit, DirectPath(self.recording.calls))
        # What the receiver gives of the changed input, and then the model with that.
        to = self._replay.receiving
        assert to is not None
        calls = self.recording.calls
        path = DirectPath(calls, calls.index(self._calls[to]), receiver.parts)
        self._play(site, inputs, outputs, check, fit, path)
        place = to.heads.index(receiver.head)
        given = now(fit(self._calls[to].output)).clone()
        given[:, :, place] = path.received[0][:, :, place]
        return self._play(to, inputs, given, _nothing, fit)

    def _play(
        self,
        site: Site,
        inputs: Mapping[str, Any],
        outputs: Tensor,
        check: Callable[[Tensor], None],
        fit: Callable[[Any], Any],
        path: DirectPath | None = None,
    ) -> Any:
        """The model's outputs from a pass that starts with the head outputs of a site, see `PartialForward`."""
        start, arrives = self._calls[site].stop - 1, partial(self._replay.arriving, site)
        playing = PartialForward(self.recording.records, self.shortcut, start, outputs, check, fit, arrives, path)
        result = None
        with suppress(PathEnds):
            result = self._replay.run_with(playing, inputs)
            FiniteValues(self._replay.model).check(result)
        playing.finish()
        return result


def close(ours: Tensor, theirs: Tensor, largest: float) -> bool:
    """Whether numbers agree but for rounding.

    That is 7e-5 of the largest in single precision, 4e-10 in double; in half precision, where a pass in another batch
    rounds the hidden states of all layers otherwise, 9e-2 (bfloat16) and 3e-2 (float16).

    Args:
        ours: of any shape.
        theirs: of the same.
        largest: magnitude of such numbers in general: those of one example may all be small.
    """
    if not theirs.numel():
        return True
    precision = torch.finfo(theirs.dtype)
    tolerance = precision.eps ** (0.5 if precision.bits < 32 else 0.6) * largest
    return bool((ours - theirs).abs().max() <= tolerance)


def _nothing(*_: object, **__: object) -> None:
    pass

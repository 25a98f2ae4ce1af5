"""Following the forward passes of a model: where each attention call belongs, and whether the pass succeeded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from headlens.attention.interface import ATTRIBUTE
from headlens.attention.sites import Site
from headlens.errors import SelfCheckError


class SessionLink:
    """Link to its session that every module of a model carries.

    A copy of the model gets None in its place, so that it computes like a model outside of any session.
    """

    def __init__(self, attend: Callable[..., Any], passes: ForwardTracker) -> None:
        self.attend = attend
        self.passes = passes

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


class ForwardTracker:
    """The forward passes of one model; the outermost call of the model or of a model within it is one pass.

    Args:
        model: the model.
        sites: its sites.
        finish: function that is called at the end of every pass with the outputs of the model; None if it failed.
    """

    def __init__(self, model: PreTrainedModel, sites: Sequence[Site], finish: Callable[..., None]) -> None:
        self._sites = [(s, model.get_submodule(s.module)) for s in sites]
        self._site_of = {module: site for site, module in self._sites if not site.shared}
        parts = [m for m in model.modules() if isinstance(m, PreTrainedModel)]
        # The sites of every model within the model, as it is now: a layer that is taken out later counts as missing.
        self._inside = {p: [s for s, m in self._sites if m in inside] for p in parts for inside in [set(p.modules())]}
        self._finish = finish
        self._root: PreTrainedModel | None = None
        self._thread = 0
        self._seen: list[Site] = []

    @property
    def running(self) -> bool:
        """Whether a pass is under way; the recomputing of gradient checkpoints happens outside of any."""
        return self._root is not None

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Follows passes inside `with`; one that is under way at the end counts as failed."""
        with ExitStack() as undo:
            for part in self._inside:
                undo.callback(part.register_forward_pre_hook(_begin).remove)
                # always_call: after an exception too, with None for the output.
                undo.callback(part.register_forward_hook(_end, always_call=True).remove)
            undo.callback(self.end, None)
            yield

    def begin(self, part: PreTrainedModel) -> None:
        """Begins a pass when a model, or a model within it, starts to run, unless one is under way."""
        if self.running:
            self._check_thread()
            if part is not self._root:
                return
            # The pass before was interrupted in a way that hooks do not see (KeyboardInterrupt).
            self.end(None)
        self._root, self._thread, self._seen = part, get_ident(), []

    def end_of(self, part: PreTrainedModel, outputs: object) -> None:
        """Ends the pass when the model that began it returns or raises."""
        # A second thread that was turned away reports the end of its attempt, too.
        if part is self._root and self._thread == get_ident():
            self.end(outputs)

    def end(self, outputs: object) -> None:
        """Ends the pass that is under way, if there is one; it failed if there are no outputs.

        Raises:
            SelfCheckError: if it did not compute attention once at every site.
        """
        root, self._root = self._root, None
        if root is None:
            return
        try:
            if outputs is not None:
                self._check_complete(root)
        except SelfCheckError:
            self._finish(None)
            raise
        self._finish(outputs)

    def site(self, module: nn.Module) -> Site:
        """The site of a call, from the module or, for shared modules, from the calls before it.

        Raises:
            SelfCheckError: if the module is unknown or not the one whose turn it is.
        """
        site = self._site_of.get(module) or self._next_shared(module)
        if self.running:
            self._check_thread()
            self._seen.append(site)
        return site

    def _next_shared(self, module: nn.Module) -> Site:
        stack = next((s.stack for s, m in self._sites if m is module), None)
        if stack is None:
            raise SelfCheckError(
                f"{type(module).__name__} computed attention in a module that headlens had not found.",
                "Its heads would be missing from every result; please report the model.",
            )
        if not self.running:
            raise SelfCheckError(
                f"{type(module).__name__} computes several layers and was called outside of a forward pass of its "
                "model: it is not clear which layer this is.",
                "Run the whole model, and without gradient checkpointing.",
            )
        depths = [(s, m) for s, m in self._sites if s.stack == stack]
        depth = sum(s.stack == stack for s in self._seen)
        if depth >= len(depths) or depths[depth][1] is not module:
            raise SelfCheckError(f"{type(module).__name__} was called out of order, as layer {depth} of {len(depths)}.")
        return depths[depth][0]

    def _check_thread(self) -> None:
        if self._thread != get_ident():
            raise RuntimeError("a model inside a session can run one forward pass at a time; this is a second thread")

    def _check_complete(self, root: PreTrainedModel) -> None:
        stacks = {s.stack for s in self._seen}
        seen, inside = Counter(self._seen), Counter(self._inside[root])
        # A stack that did not run at all, such as the encoder in generation, is not missing.
        expected = Counter(s for s in inside if s.stack in stacks)
        # In training layers may be dropped, but not run twice.
        complete = seen <= expected if root.training else seen == expected and (seen or not inside)
        if not complete:
            differing = sorted({str(s) for s in seen | (expected or inside) if seen[s] != inside[s]})
            raise SelfCheckError(
                f"a forward pass of {type(root).__name__} should compute attention once at {len(expected or inside)} "
                f"places, but these were skipped or called twice: {', '.join(differing)}.",
                "Was the model's attention implementation changed inside the session?",
            )


def _begin(part: PreTrainedModel, _inputs: object) -> None:
    # Plain functions that look for their session: a copy of the model takes its hooks along, but no link.
    link: SessionLink | None = getattr(part, ATTRIBUTE, None)
    if link is not None:
        link.passes.begin(part)


def _end(part: PreTrainedModel, _inputs: object, output: object) -> None:
    link: SessionLink | None = getattr(part, ATTRIBUTE, None)
    if link is not None:
        link.passes.end_of(part, output)

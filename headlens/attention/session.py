"""The one way into a model's attention: a context manager that watches and edits every call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from headlens.attention.contract import AttentionCall, BatchTokens, CallContext, Edit, Observer
from headlens.attention.interface import ATTRIBUTE, NAMES, Kernel
from headlens.attention.normalizers import Normalizer, attend_with
from headlens.attention.sites import Site, eager_function, find_sites
from headlens.errors import SelfCheckError, UnsupportedModelError


class AttentionSession:
    """Watch and edit the attention of a model while inside `with`.

        with AttentionSession(model, observers=[statistics]) as session:
            with session.batch(BatchTokens(encoder=tokens)):
                model(**inputs)

    Inside, results equal those of the model's own eager attention bit for bit as long as no edit and no
    normaliser is given. On leaving, also after an exception, the model is as it was.

    Args:
        model: a transformers model; its sites are found by a walk (`find_sites`).
        observers: see every call after it was computed.
        edits: change masks and head outputs, in order.
        normalizer: replaces the softmax of every site.
        kernel: "eager", "sdpa", or "auto": sdpa if nobody needs weights and the model uses it, else eager.

    Raises:
        UnsupportedModelError: if the model's attention cannot be reached.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        observers: Sequence[Observer] = (),
        edits: Sequence[Edit] = (),
        normalizer: Normalizer | None = None,
        kernel: Kernel | Literal["auto"] = "auto",
    ) -> None:
        self.model = model
        self.sites = find_sites(model)
        self.observers = tuple(observers)
        self.edits = tuple(edits)
        self.normalizer = normalizer
        self.kernel: Kernel = self._choose_kernel(kernel)
        self._tokens = BatchTokens()
        self._route = _Route(model, self.sites)
        self._undo: list[Callable[[], None]] = []
        self._in_pass = False

    def __enter__(self) -> Self:
        if self._undo:
            raise RuntimeError("this session is already open")
        try:
            self._install()
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_pass(succeeded=False)
        self._restore()

    @contextmanager
    def batch(self, tokens: BatchTokens) -> Iterator[None]:
        """Declare the tokens of the forward passes inside; without it observers and edits see None for tokens."""
        self._tokens = tokens
        try:
            yield
        finally:
            self._tokens = BatchTokens()

    def _choose_kernel(self, wanted: Kernel | Literal["auto"]) -> Kernel:
        weights = self.normalizer is not None or any(o.needs_weights for o in self.observers)
        if wanted == "auto":
            return "eager" if weights or self.model.config._attn_implementation == "eager" else "sdpa"
        if wanted == "sdpa" and weights:
            raise ValueError("the sdpa kernel never has the weights that an observer or normaliser needs")
        return wanted

    def _install(self) -> None:
        if any(s.shared for s in self.sites) and self.model.is_gradient_checkpointing:
            raise UnsupportedModelError(
                f"{type(self.model).__name__} shares weights between layers and recomputes them in the backward "
                "pass (gradient checkpointing): the layer of a recomputed call cannot be told.",
                "Call model.gradient_checkpointing_disable() first.",
            )
        for config in _configs(self.model):
            self._undo.append(_setter(config, "_attn_implementation_internal"))
            config._attn_implementation_internal = NAMES[self.kernel]
        for module in self._route.modules:
            self._undo.append(_setter(module, ATTRIBUTE))
            setattr(module, ATTRIBUTE, self._attend)
            if module.config._attn_implementation != NAMES[self.kernel]:
                raise SelfCheckError(f"{type(module).__name__} does not take headlens's attention function.")
        before = self.model.register_forward_pre_hook(lambda *_: self._begin_pass())
        after = self.model.register_forward_hook(lambda *_: self._end_pass(succeeded=True))
        self._undo += [before.remove, after.remove]

    def _restore(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _begin_pass(self) -> None:
        self._end_pass(succeeded=False)
        self._route.reset()
        self._in_pass = True

    def _end_pass(self, *, succeeded: bool) -> None:
        if not self._in_pass:
            return
        self._in_pass = False
        if succeeded:
            self._route.check_complete(self.model.training)
        for observer in self.observers:
            observer.commit() if succeeded else observer.discard()

    def _attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        site = self._route.site(module)
        causal = site.stack == "decoder"
        context = CallContext(site, query, key, value, *self._tokens_of(site, query, key), causal)
        mask = attention_mask
        for edit in self.edits:
            if edit.edits_mask:
                mask = edit.mask(context, _additive(mask, query))
        output, weights = self._compute(module, context, mask, kwargs)
        if output.shape[:3] != (query.shape[0], query.shape[2], query.shape[1]) or query.shape[1] != site.n_heads:
            raise SelfCheckError(
                f"{site}: attention has the shape {tuple(output.shape)} for queries of shape {tuple(query.shape)}; "
                f"expected (batch, query, {site.n_heads} heads, d)."
            )
        for edit in self.edits:
            output = edit.output(context, output)
        self._show(context, self._clean(module, context, mask, weights, kwargs), output)
        return output, weights

    def _compute(
        self, module: nn.Module, context: CallContext, mask: Tensor | None, kwargs: dict[str, Any]
    ) -> tuple[Tensor, Tensor | None]:
        if self.normalizer is not None:
            return attend_with(self.normalizer, context, module, _additive(mask, context.query), **kwargs)
        if self.kernel == "sdpa":
            function = AttentionInterface()["sdpa"]
        else:
            # A boolean mask under eager would be added as 0 and 1: silently wrong.
            mask, function = _additive(mask, context.query), eager_function(module)
        output, weights = function(module, context.query, context.key, context.value, mask, **kwargs)
        return output, weights

    def _clean(
        self,
        module: nn.Module,
        context: CallContext,
        mask: Tensor | None,
        weights: Tensor | None,
        kwargs: dict[str, Any],
    ) -> Tensor | None:
        """Weights before dropout: an eager function returns them after, so in training they are computed again."""
        if self.normalizer is not None or not module.training or not kwargs.get("dropout"):
            return weights
        if not any(o.needs_weights for o in self.observers):
            return None
        clean: Tensor | None = self._compute(module, context, mask, {**kwargs, "dropout": 0.0})[1]
        return clean

    def _show(self, context: CallContext, weights: Tensor | None, output: Tensor) -> None:
        if not self.observers:
            return
        with torch.no_grad():
            call = AttentionCall(**vars(context), weights=weights, output=output)
            for observer in self.observers:
                observer.observe(call)

    def _tokens_of(self, site: Site, query: Tensor, key: Tensor) -> tuple[Any, Any]:
        queries, keys = self._tokens.of(site)
        for tokens, tensor in ((queries, query), (keys, key)):
            if tokens is not None and tokens.shape != (tensor.shape[0], tensor.shape[2]):
                raise SelfCheckError(
                    f"{site}: the batch was declared as {tuple(tokens.shape)} (batch, tokens), "
                    f"but attention sees {(tensor.shape[0], tensor.shape[2])}."
                )
        return queries, keys


class _Route:
    """Which site a call belongs to: a module's own, or for shared modules the number of calls so far."""

    def __init__(self, model: nn.Module, sites: Sequence[Site]) -> None:
        self._own = {model.get_submodule(s.module): s for s in sites if not s.shared}
        self._shared = {model.get_submodule(s.module): s.stack for s in sites if s.shared}
        self._depths = {s.stack: [t for t in sites if t.stack == s.stack] for s in sites if s.shared}
        self._sites = list(sites)
        self._seen: list[Site] = []

    @property
    def modules(self) -> list[nn.Module]:
        """The modules of all sites, each once."""
        return [*self._own, *self._shared]

    def reset(self) -> None:
        self._seen = []

    def site(self, module: nn.Module) -> Site:
        if module in self._own:
            site = self._own[module]
        else:
            depths = self._depths[self._shared[module]]
            done = sum(s.shared for s in self._seen)
            # Modulo: a stack run outside a pass of the whole model (an encoder in `generate`) starts again at 0.
            site = depths[done % len(depths)]
        self._seen.append(site)
        return site

    def check_complete(self, training: bool) -> None:
        """Every site of a stack that ran must have been called once (layers may be dropped in training)."""
        stacks = {s.stack for s in self._seen}
        expected = [s for s in self._sites if s.stack in stacks]
        if not training and sorted(map(str, self._seen)) != sorted(map(str, expected)):
            raise SelfCheckError(
                f"a forward pass computed attention at {len(self._seen)} places, but the model has {len(expected)}: "
                f"{', '.join(sorted({str(s) for s in expected} ^ {str(s) for s in self._seen})) or 'some twice'}."
            )


def _additive(mask: Tensor | None, like: Tensor) -> Tensor | None:
    if mask is None or mask.dtype != torch.bool:
        return mask
    lowest = torch.finfo(like.dtype).min
    return torch.zeros(mask.shape, dtype=like.dtype, device=mask.device).masked_fill(~mask, lowest)


def _configs(model: PreTrainedModel) -> list[Any]:
    """Every configuration object that some part of the model asks for its attention implementation."""
    owners = [m.config for m in model.modules() if hasattr(getattr(m, "config", None), "_attn_implementation_internal")]
    nested = [getattr(c, name, None) for c in owners for name in getattr(c, "sub_configs", {})]
    found = [c for c in [*owners, *nested] if hasattr(c, "_attn_implementation_internal")]
    return list({id(c): c for c in found}.values())


def _setter(owner: Any, name: str) -> Callable[[], None]:
    """A function that puts an attribute back to what it is now."""
    if name not in vars(owner):
        return lambda: delattr(owner, name)
    value = vars(owner)[name]
    return lambda: setattr(owner, name, value)

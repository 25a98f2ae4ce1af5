"""AttentionSession, the one way into a model's attention: a context manager that observes and edits every call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.attention.edit_chain import Floor, allowed_keys, edited_output, mask_to_use, own_window, sees_later
from headlens.attention.edits_and_observers import AttentionCall, BatchTokens, CallContext, Edit, Observer, Tokens
from headlens.attention.finite_values import FiniteValues, not_finite
from headlens.attention.forward_tracker import ForwardTracker, SessionLink
from headlens.attention.install import implementations, install, is_eager, recomputes, supports_sdpa
from headlens.attention.interface import (
    EAGER,
    FAST,
    SDPA,
    SWITCHED,
    Kernel,
    additive,
    causal_mask,
    is_causal,
    own_attention,
)
from headlens.attention.kernels import differentiable_mask
from headlens.attention.kernels.block_sparse import BlockSparseKernel
from headlens.attention.kernels.blocked_softmax import BlockedSoftmax, blocked_softmax_attention, blocks, terms_of
from headlens.attention.kernels.row_attention import RowAttention, available
from headlens.attention.normalizers import CallNormalizer, Normalizer, attend_as, check_core
from headlens.attention.persistent_edit import persistent_edits, set_aside
from headlens.attention.reversible_context import ReversibleContext
from headlens.attention.rows import Rows
from headlens.attention.sites import Site, find_sites
from headlens.errors import SelfCheckError, UnsupportedModelError
from headlens.weights.head_slicing import output_weight

# Parts of a model's attention that sdpa cannot compute; some releases of transformers leave them out in silence.
_LOST_BY_SDPA = ("softcap", "s_aux")
# After how many passes a GPU is waited for.
PASSES = 50


class AttentionSession(ReversibleContext):
    """Observes and edits the attention of a model inside `with`.

        with AttentionSession(model, observers=[statistics]) as session:
            with session.batch(BatchTokens(encoder=tokens)):
                model(**inputs)

    Inside, results equal those of the model's own attention of the same kernel bit for bit as long as no edit and
    no normaliser is given. On leaving, also after an exception, the model is as it was. A model can be inside one
    session at a time and run one forward pass at a time; copies made inside a session are outside of it.

    The kernel "fast" is for observers, and gives up bit-equality: outputs equal those of eager attention to about
    1e-6 of the largest, the model gets no weights, and observers with `parts` see long batches in parts. It computes
    modules whose first call shows that they do nothing but a softmax of scores, outside of training and where no
    gradients are asked for; everything else is left to eager attention.

    Observers see the forward passes of the model and of the models within it (`model.get_encoder()`). Gradient
    checkpoints that are recomputed are edited in the same way but not seen again; the session has to be open still.

    Whether a pass gave numbers is looked at after it, or on a GPU, where all observers leave their results on the
    device (`Observer.leaves_results`), after `PASSES` passes and on leaving: before what was observed is read inside,
    `settle` is to be called.

    Args:
        model: a transformers model; its sites are found by a walk (`find_sites`), and those without heads left out.
        observers: see every call after it was computed.
        edits: change masks and head outputs, in order, after the persistent edit of the model
            (`headlens.attention.attach_edit`).
        normalizer: replaces the softmax of every site.
        kernel: "eager", "sdpa", "fast", or "auto": eager if an observer needs weights or the model itself uses it,
            otherwise sdpa.

    Raises:
        UnsupportedModelError: if the model's attention cannot be reached, or not with this kernel.
        OptionError: if an edit does not fit the model; on running, if it gives a mask or head outputs of a shape or
            type that cannot be.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        observers: Sequence[Observer] = (),
        edits: Sequence[Edit] = (),
        normalizer: Normalizer | CallNormalizer | None = None,
        kernel: Kernel | Literal["auto"] = "auto",
    ) -> None:
        self.model = model
        sites = find_sites(model)
        # A layer that lost all its heads computes nothing that could be observed or edited.
        self.sites = [s for s in sites if s.n_heads]
        self.observers = tuple(observers)
        self.edits = (*persistent_edits(model), *edits)
        self.normalizer = normalizer
        for edit in self.edits:
            edit.check(self.sites)
        self._grams: dict[str, Tensor | None] = {}
        self._needs_weights = any(o.needs_weights for o in self.observers)
        self._modules = list(dict.fromkeys(model.get_submodule(s.module) for s in sites))
        self.kernel: Kernel = self._choose_kernel(kernel)
        for module in self._modules:
            own_attention(self.kernel, module)  # raises before anything is changed if there is none
        has_sdpa = SWITCHED not in implementations(self._modules) and supports_sdpa(model, self._modules)
        # What transformers calls the attention of this session, by which it chooses masks.
        self._name = {"eager": EAGER, "sdpa": SDPA, "fast": FAST if has_sdpa else EAGER}[self.kernel]
        self._passes = ForwardTracker(model, sites, self._finish)
        self._finite = FiniteValues(model)
        leaves = bool(self.observers) and all(o.leaves_results for o in self.observers)
        self._passes_at_once = PASSES if leaves and model.device.type == "cuda" else 1
        self._tokens = self._pass_tokens = BatchTokens()
        self._unchecked: set[nn.Module] = set()
        self._directed: set[Site] = set()  # those that were seen to look at later tokens, or not, as they should
        # Modules whose rows of weights were summed, and whether they add up to 1.
        self._summed: dict[nn.Module, bool] = {}
        self._core, self._floor, self._blocks = BlockedSoftmax(), Floor(), BlockSparseKernel()
        self._rows = RowAttention()
        # Of every site why statistics of rows did not suffice at its last call; nothing where they did.
        self.no_rows: dict[Site, str] = {}
        self._recorded: list[AttentionCall] | None = None

    def _change(self, undo: ExitStack) -> None:
        if any(s.shared for s in self.sites) and recomputes(self.model):
            raise UnsupportedModelError(
                f"{type(self.model).__name__} shares weights between layers and recomputes them in the backward "
                "pass (gradient checkpointing): it is not clear which layer a recomputed call belongs to.",
                "Switch its gradient checkpointing off.",
            )
        undo.enter_context(set_aside(self.model))
        link = SessionLink(self._attend, self._passes)
        install(self.model, self._name, link, undo)
        undo.enter_context(self._passes.hooks())
        self._unchecked = set(self._modules) if self.normalizer is not None else set()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if error[0] is None:
            self.settle()

    def settle(self) -> None:
        """Waits for the passes that nobody waited for.

        Raises:
            NotFiniteError: if one of them gave NaN or infinity.
        """
        self._finite.settle()

    @contextmanager
    def recorded(self) -> Iterator[list[AttentionCall]]:
        """Keeps the attention calls of the passes inside for `show`; observers see none of them."""
        self._recorded = calls = list[AttentionCall]()
        try:
            yield calls
        finally:
            self._recorded = None

    def show(self, calls: Sequence[AttentionCall], outputs: object) -> None:
        """Shows observers a pass whose calls were recorded, with the tokens declared now.

        Args:
            calls: of which the tensors have the numbers of these tokens.
            outputs: of the model.
        """
        try:
            for call in calls:
                self._finite.note_site(call.site, call.output)
                queries, keys = self._tokens.of(call.site)
                for observer in self.observers:
                    observer.observe(replace(call, queries=queries, keys=keys))
        except BaseException:
            self._finish(None)
            raise
        self._finish(outputs)

    def kernels(self) -> dict[str, list[str]]:
        """Which sites were computed by the kernels of rows, and which were not, and why: names of sites by words.

        Of the kernel "fast" alone; where a site was computed in several ways, the last one.
        """
        sites: dict[str, list[str]] = {}
        for site, why in self.no_rows.items():
            sites.setdefault(f"weights: {why}" if why else "statistics of rows", []).append(str(site))
        return sites

    @contextmanager
    def batch(self, tokens: BatchTokens) -> Iterator[None]:
        """Declares the tokens of the forward passes inside; without it observers and edits see None for tokens."""
        outer, self._tokens = self._tokens, tokens
        try:
            yield
        finally:
            self._tokens = outer

    def _choose_kernel(self, kernel: Kernel | Literal["auto"]) -> Kernel:
        needs_scores = self._needs_weights or self.normalizer is not None
        if kernel == "auto":
            return "eager" if needs_scores or is_eager(self._modules) else "sdpa"
        if kernel == "fast" and self.normalizer is not None:
            raise ValueError("the fast kernel always computes a softmax and accepts no other normaliser")
        if kernel == "sdpa" and needs_scores:
            raise ValueError(
                "the sdpa kernel does not return the attention weights that an observer or normaliser needs"
            )
        switched = SWITCHED in implementations(self._modules)
        if kernel == "sdpa" and (switched or not supports_sdpa(self.model, self._modules)):
            raise _no_sdpa(type(self.model).__name__)
        return kernel

    def _finish(self, outputs: object) -> None:
        succeeded = outputs is not None
        for cache in (self._core, self._floor, self._blocks):
            cache.forget()
        if self._recorded is not None:
            return
        try:
            if succeeded:
                self._finite.check(outputs, self._passes_at_once)
            for observer in self.observers if succeeded else ():
                observer.prepare()
        except BaseException:
            self._finish(None)
            raise
        self._finite.forget()
        for observer in self.observers:
            observer.commit() if succeeded else observer.discard()

    def _attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        site = self._passes.site(module)
        if not site.n_heads:
            # (batch, query, no heads, d) and (batch, no heads, query, key)
            return query.transpose(1, 2), query.new_zeros(*query.shape[:3], key.shape[2])
        context = self._context(site, module, (query, key, value), attention_mask, kwargs)
        mask = mask_to_use(self.edits, self._name, module, context, (attention_mask, kwargs), self._floor)
        context = replace(context, allowed=allowed_keys(self.edits, context, mask))
        if self.kernel == "fast":
            fast, mask = self._output_or_mask(module, context, mask, kwargs)
            if fast is not None:
                return self._noted(site, fast), None
        try:
            output, weights = self._compute(module, context, mask, kwargs)
        except RuntimeError as error:
            # entmax fails somewhere inside on numbers that are none.
            if all(bool(torch.isfinite(t).all()) for t in (query, key)):
                raise
            raise not_finite(self.model, f"the attention of {site} ({site.module})") from error
        if query.shape[1] != site.n_heads or output.shape[:3] != (query.shape[0], query.shape[2], site.n_heads):
            raise SelfCheckError(
                f"{site}: attention has the shape {tuple(output.shape)} for queries of shape {tuple(query.shape)}; "
                f"expected (batch, query, {site.n_heads} heads, d)."
            )
        output = edited_output(self.edits, context, output)
        if self._observes(site):
            seen = weights if self._needs_weights else None
            with torch.no_grad():
                if self._needs_weights and self.normalizer is None and module.training and kwargs.get("dropout"):
                    # An eager function returns the weights after dropout; those before it are computed again.
                    seen = self._compute(module, context, mask, {**kwargs, "dropout": 0.0})[1]
                if self._needs_weights and seen is None:
                    raise SelfCheckError(f"{site}: the attention function of {type(module).__name__} gave no weights.")
                self._show(
                    context, seen, output, None if seen is None else self._to_tokens(module, context, seen, kwargs)
                )
        return self._noted(site, output), weights

    def _context(
        self,
        site: Site,
        module: nn.Module,
        tensors: tuple[Tensor, Tensor, Tensor],
        mask: Tensor | None,
        kwargs: dict[str, Any],
    ) -> CallContext:
        """The call of an attention module, before edits.

        Raises:
            UnsupportedModelError: if a decoder attends to later tokens or an encoder does not, at the first call of a
                layer that shows it.
        """
        queries, keys = self._tokens_of(site, *tensors[:2])
        causal, scaling = site.stack == "decoder", kwargs.get("scaling")
        window = None if site.stack == "cross" else own_window(module, kwargs)
        context = CallContext(site, *tensors, queries, keys, causal=causal, window=window, scaling=scaling)
        if site.stack != "cross" and site not in self._directed:
            sees = sees_later(self._name, module, context, mask, kwargs)
            if sees is not None and sees == causal:
                what, kind = ("later tokens", "a causal decoder") if sees else ("no later token", "an encoder")
                raise UnsupportedModelError(
                    f"{site} of {type(self.model).__name__} attends to {what}; headlens took it for {kind}, and what "
                    "it is compared with would be wrong.",
                    f'If that is meant, add "is_causal": {str(not sees).lower()} to its config.json.',
                )
            self._directed |= {site} if sees is not None else set()
        return context

    def _output_or_mask(
        self, module: nn.Module, context: CallContext, mask: Tensor | None, kwargs: dict[str, Any]
    ) -> tuple[Tensor | None, Tensor | None]:
        """The head outputs, where a fast kernel computes them; else None, and the mask for the eager one."""
        query = context.query
        mask = additive(mask, query.dtype)
        # An edit that gives no mask means none.
        edited = any(e.edits_mask for e in self.edits)
        causal = self._name == FAST and not edited and is_causal(module, query, mask, kwargs)
        if self._rows_suffice(module, context, mask, kwargs, causal=causal):
            return self._attend_rows(context, mask, kwargs, causal=causal), None
        if self._core.serves(module, context, mask, kwargs, causal=causal):
            return self._attend_fast(context, self._core.needed(mask), kwargs, causal=causal), None
        return None, additive(causal_mask(query, context.key), query.dtype) if causal else mask

    def _rows_suffice(
        self, module: nn.Module, context: CallContext, mask: Tensor | None, kwargs: dict[str, Any], *, causal: bool
    ) -> bool:
        """Whether a call needs no map of weights, but only statistics of its rows; if not, notes why."""
        why = available(context.query.device)
        if not why and not all(observer.reads_rows(context) for observer in self.observers):
            why = "something that is measured needs weights"
        self.no_rows[context.site] = why or self._rows.refusal(module, context, mask, kwargs, causal=causal)
        return not self.no_rows[context.site]

    def _attend_rows(
        self, context: CallContext, mask: Tensor | None, kwargs: dict[str, Any], *, causal: bool
    ) -> Tensor:
        output, rows = self._rows.attend(context, mask, kwargs, causal=causal)
        output = edited_output(self.edits, context, output)
        if self._observes(context.site):
            with torch.no_grad():
                self._show(context, None, output, rows.to_tokens, rows)
        return output

    def _noted(self, site: Site, output: Tensor) -> Tensor:
        if self._passes.running and self._recorded is None:
            self._finite.note_site(site, output)
        return output

    def _attend_fast(
        self, context: CallContext, mask: Tensor | None, kwargs: dict[str, Any], *, causal: bool
    ) -> Tensor:
        observes = self._observes(context.site)
        divisible = not self.edits and all(o.parts for o in self.observers)
        within = divisible and all(o.parts_of_sentences for o in self.observers)
        joined: Tensor | None = None
        # Few sentences at a time, so that the weights of a block are shown while they are in the cache.
        for rows, queries, part in blocks(context, divisible=divisible, within=within):
            room = self._core.room(part) if divisible else None
            terms = terms_of(rows, mask, kwargs, queries)
            output, weights = blocked_softmax_attention(part, terms, kwargs.get("scaling"), room, causal=causal)
            output = edited_output(self.edits, part, output)
            if observes:
                with torch.no_grad():
                    self._show(part, weights, output)
            if part is context:
                return output
            if joined is None:
                joined = output.new_empty(len(context.query), context.query.shape[2], *output.shape[2:])
            joined[rows, queries] = output
        assert joined is not None  # there is always a part
        return joined

    def _observes(self, site: Site) -> bool:
        if self.observers and not self._passes.running and not recomputes(self.model):
            raise SelfCheckError(
                f"{site}: attention was computed outside a forward pass of the model, so no observer would count it.",
                "Call the model itself, model(...), not model.forward(...) or one of its layers.",
            )
        return bool(self.observers) and self._passes.running

    def _compute(
        self, module: nn.Module, context: CallContext, mask: Tensor | None, kwargs: dict[str, Any]
    ) -> tuple[Tensor, Tensor | None]:
        if self.kernel != "sdpa":
            mask = additive(mask, context.query.dtype)
        if self.normalizer is not None:
            if module in self._unchecked:
                check_core(context, module, mask, **kwargs)
                self._unchecked.remove(module)
            asked = self.normalizer
            normalizer = asked.at(context) if isinstance(asked, CallNormalizer) else asked
            return attend_as(normalizer, module, context.query, context.key, context.value, mask, **kwargs)
        if self.kernel == "sdpa" and any(kwargs.get(k) is not None for k in _LOST_BY_SDPA):
            raise _no_sdpa(type(module).__name__)
        if self.kernel == "sdpa" and mask is not None:
            if differentiable_mask.supports_differentiable_mask(module, context, mask, kwargs):
                return differentiable_mask.differentiable_mask_attention(context, mask, kwargs.get("scaling")), None
            if any(e.edits_mask for e in self.edits):
                output = self._blocks.output(module, context, mask, kwargs)
                if output is not None:
                    return output, None
        return own_attention(self.kernel, module)(module, context.query, context.key, context.value, mask, **kwargs)

    def _to_tokens(
        self, module: nn.Module, context: CallContext, weights: Tensor, kwargs: dict[str, Any]
    ) -> Tensor | None:
        """What rows of weights add up to, (batch, heads, query); None where it is 1.

        That is looked at in the first call of a module; with learned sinks it never is.
        """
        if kwargs.get("s_aux") is None and module not in self._summed:
            self._summed[module] = _is_whole(context, weights)
        return None if self._summed.get(module) else weights.float().sum(-1)

    def _show(
        self,
        context: CallContext,
        weights: Tensor | None,
        output: Tensor,
        to_tokens: Tensor | None = None,
        rows: Rows | None = None,
    ) -> None:
        gram = self._gram(context) if any(o.needs_projection for o in self.observers) else None
        call = AttentionCall(**vars(context), weights=weights, output=output, gram=gram, to_tokens=to_tokens, rows=rows)
        if self._recorded is not None:
            self._recorded.append(call)
            return
        for observer in self.observers:
            observer.observe(call)

    def _gram(self, context: CallContext) -> Tensor | None:
        """The Gram matrix of every head's part of the output projection, see `AttentionCall.gram`."""
        name = context.site.module
        if name not in self._grams:
            self._grams[name] = None
            # Made in each session: weights may have been changed since the last one in ways that torch does not count.
            with suppress(UnsupportedModelError), torch.no_grad():
                weight = output_weight(self.model, name)  # (features, heads x d)
                parts = weight.T.reshape(-1, context.value.shape[3], len(weight))  # (heads, d, features)
                exact = parts.to(torch.float32 if weight.device.type == "mps" else torch.float64).contiguous()
                self._grams[name] = torch.matmul(exact, exact.transpose(1, 2)).to(context.value.device, torch.float32)
        return self._grams[name]

    def _tokens_of(self, site: Site, query: Tensor, key: Tensor) -> tuple[Tokens | None, Tokens | None]:
        if self._passes.running:
            # Recomputed calls come later, when another batch, or none, may have been declared.
            self._pass_tokens = self._tokens
        queries, keys = self._pass_tokens.of(site)
        for tokens, tensor in ((queries, query), (keys, key)):
            if tokens is not None and tokens.shape != (tensor.shape[0], tensor.shape[2]):
                raise SelfCheckError(
                    f"{site}: the batch was declared as {tuple(tokens.shape)} (batch, tokens), "
                    f"but attention sees {(tensor.shape[0], tensor.shape[2])}."
                )
        return queries, keys


def _is_whole(context: CallContext, weights: Tensor) -> bool:
    """Whether the weights of every real query add up to 1.

    Raises:
        UnsupportedModelError: if weights are no shares: negative, or of more than the whole.
    """
    sums = weights.sum(-1, dtype=torch.float32).transpose(1, 2)  # (batch, query, heads)
    if context.queries is not None:
        sums = sums[context.queries.real]
    if not sums.numel():
        return True
    least, most = (float(end) for end in torch.aminmax(sums))
    lowest = float(weights.min())
    within = 1e-3 if weights.dtype.itemsize >= 4 else 2e-2  # as far as weights of few digits add up to 1
    if lowest < -within or most > 1 + within:
        raise UnsupportedModelError(
            f"{context.site}: attention weights are no shares of a whole: the least is {lowest:.3g}, and those of a "
            f"token add up to {most:.3g} at the most.",
            "What headlens says of attention holds where it is a softmax or entmax of scores.",
        )
    # NaN is neither: `FiniteValues` tells.
    return not least < 1 - within


def _no_sdpa(name: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{name} has no sdpa attention: part of its computation would be silently lost.", 'Use kernel="eager".'
    )

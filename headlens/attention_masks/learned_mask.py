"""Attention masks that are learned: soft importance of positions and DAM (Shi et al. 2021)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.attention.edits_and_observers import BatchTokens, CallContext, Tokens, named_arguments, real_tokens
from headlens.attention.model_normalizer import attention_of
from headlens.attention.normalizers import CallNormalizer, Normalizer, softmax
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site, find_sites
from headlens.attention_masks.mask_distributions import AdaptiveSpan, GumbelSigmoid, MaskDistribution
from headlens.attention_masks.mask_parametrization import (
    Connections,
    Offsets,
    PositionPairs,
    Shape,
    at_ends,
)
from headlens.attention_masks.named_masks import check_connections
from headlens.errors import OptionError, counted
from headlens.heads import Stack
from headlens.interventions.edited_model import LearnedEdit
from headlens.options import PenaltyKind

Form = Literal["additive", "multiplicative", "renormalised"]
Noise = Literal["training", "always", "never"]
_START_STD = 1e-3  # standard deviation of α before training
# Added to M before its logarithm: masked positions keep next to no weight, and a finite derivative.
_EPSILON = 1e-6


@dataclass(frozen=True)
class LearnedMaskOptions:
    """Options of a learned mask.

    Args:
        longest: n, tokens of the longest text.
        structured: one α for every offset |i - j|, and the first and last row and column of each sentence always
            active; else one for every pair of positions.
        per_layer: whether every layer has masks of its own; else heads of the same number share one in all layers, as
            the authors have it.
        form: `additive` adds Q = -c (1 - M) to the scores (equations 5 and 6); `multiplicative` multiplies the weights
            by M, which leaves rows that do not sum to 1 (equation 4); `renormalised` divides these rows by their sums:
            it adds log(M + 1e-6) to the scores, so that what is masked has a derivative, too.
        strength: c of the additive form.
        diagonal: whether a token may look at itself; if not, i = j is masked everywhere.
        noise: whether M is drawn in `training`, also at evaluation (`always`), as in the authors' code, or `never`,
            which is soft importance.
        connections: what a structured mask has values for: `neighbour` is offsets, others see `Connections`.
        seed: of random keys among the connections.

    Raises:
        OptionError: for a number out of range, or an unknown form, noise or kind of connections.
    """

    longest: int = 128
    structured: bool = False
    per_layer: bool = False
    form: Form = "additive"
    strength: float = 1e4
    diagonal: bool = True
    noise: Noise = "training"
    connections: tuple[str, ...] = ("neighbour",)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.longest < 2:
            raise OptionError(f"--data-args longest {self.longest} leaves nothing to mask.", "The authors use 128.")
        if not 0 < self.strength < float("inf"):
            raise OptionError(f"--law strength={self.strength} is not a positive number.", "The authors use 1e4.")
        if self.form not in get_args(Form):
            raise OptionError(f"--law form={self.form} is unknown.", f"Choose one of {', '.join(get_args(Form))}.")
        if self.noise not in get_args(Noise):
            raise OptionError(f"--law noise={self.noise} is unknown.", "Choose training, always or never.")
        check_connections(self.connections)

    @property
    def shape(self) -> Shape:
        """Parametrization that makes masks of values: by offset or connection if `structured`, else by pair."""
        if not self.structured:
            return PositionPairs(self.longest)
        by_offset = self.connections == ("neighbour",)
        return Offsets(self.longest) if by_offset else Connections(self.longest, self.connections, self.seed)

    @property
    def ends(self) -> bool:
        """Whether the first and last row and column are always active; global degrees are learned from none on."""
        return self.structured and "global" not in self.connections


@dataclass(frozen=True)
class Scope:
    """Layers and heads that a learned mask has, and the positions that its penalty counts.

    Args:
        layers: numbers of the layers that are masked; None for all. With shared weights (ALBERT) these are depths.
        per_head: whether every head has a mask of its own; else all heads of a layer share one.
        counted: length of the text whose positions the penalty counts; None for the longest text.

    Raises:
        OptionError: if there are no layers.
    """

    layers: tuple[int, ...] | None = None
    per_head: bool = True
    counted: int | None = None

    def __post_init__(self) -> None:
        if self.layers is not None and not self.layers:
            raise OptionError("--layers is empty.", "Leave it out to mask all of them.")


class LearnedAttentionMask(LearnedEdit, CallNormalizer):
    """Masks the self-attention of encoders by numbers M from 0 to 1, which a law makes of α; symmetric by construction.

    M is drawn once for a forward pass, the same for all sentences of the batch (`draw`; `applied` does it). Without
    a draw M is without noise, `MaskDistribution.settled`. Shorter sentences use the top-left block of the mask; their
    lengths are those of the declared tokens, and without any all tokens count.

    The multiplicative form is the normaliser of a session; the others are edits.

    Args:
        sites: sites of an encoder, see `masked_sites`; the scope says which of them are masked.
        options: options of the mask.
        law: distribution that M is drawn from.
        draws: number of draws in the training, for a temperature that falls.
        scope: layers, heads and positions that count.
    """

    called = "mask"

    def __init__(
        self,
        sites: Sequence[Site],
        options: LearnedMaskOptions | None = None,
        law: MaskDistribution | None = None,
        draws: int = 1,
        scope: Scope | None = None,
    ) -> None:
        super().__init__()
        self.scope = scope or Scope()
        self.options, self.law, self.draws = options or LearnedMaskOptions(), law or GumbelSigmoid(), draws
        if self.law.by_offset and not self.options.structured:
            raise OptionError(
                "Degrees are defined over offsets, but this mask has a parameter for each pair of positions.",
                "Use a structured mask.",
            )
        if self.law.by_offset and self.law.kinds != len(self.options.connections):
            raise ValueError(f"degrees of {self.law.kinds} kinds for {self.options.connections}")
        self.sites = tuple(s for s in sites if self.scope.layers is None or s.layer in self.scope.layers)
        numbers = [s.layer for s in sites]
        self._n_layers = 1 + max(numbers)
        if missing := sorted(set(self.scope.layers or ()) - set(numbers)):
            raise OptionError(
                f"--layers: there is no layer {missing[0]} with heads in the encoder.",
                f"Its layers are {min(numbers)} to {max(numbers)}.",
            )
        self.edits_mask = self.options.form != "multiplicative"
        # Index into the first axis of α, by stack and layer.
        self._layer_index = {(s.stack, s.layer): i if self.options.per_layer else 0 for i, s in enumerate(self.sites)}
        n_layers = len(self.sites) if self.options.per_layer else 1
        # Heads that were cut out keep their numbers.
        n_heads = 1 + max(h.head for s in self.sites for h in s.heads) if self.scope.per_head else 1
        near_zero = _START_STD * torch.randn(n_layers, n_heads, self.law.size(self.options.shape.size))
        self.alpha = nn.Parameter(self.law.start(near_zero))
        # A buffer, so that a training that goes on after an interruption has the temperature that it had.
        self.register_buffer("drawn", torch.zeros((), dtype=torch.int64))
        self.drawn: Tensor
        self._values: Tensor | None = None
        # Masks of the present draw by layer index and length.
        self._cache: dict[tuple[int, int], Tensor] = {}

    @contextmanager
    def applied(self, model: PreTrainedModel) -> Iterator[AttentionSession]:
        """Draws and applies a mask in every forward pass of a model inside `with`.

        The attention mask of a pass gives the lengths of its sentences.

        Raises:
            OptionError: for a multiplicative mask, if the model's own attention is no softmax.
        """
        multiplies = self.options.form == "multiplicative"
        if multiplies and attention_of(model) is not None:
            raise OptionError(
                f"--law form=multiplicative: the attention of this model is {attention_of(model)}, not softmax.",
                "Choose additive or renormalised.",
            )
        normalizer = self if multiplies else None
        with AttentionSession(model, edits=[self], normalizer=normalizer) as session, _drawing(session, self):
            yield session

    def draw(self) -> None:
        """Draws the M of the next forward pass; its gradients can be computed until the next draw."""
        self.forget()
        if self.options.noise == "always" or (self.options.noise == "training" and self.training):
            self._values = self._padded(self.law.sample(self.alpha, self.law.noise(self.alpha), self.temperature))
        else:
            self._values = self._settled()
        if self.training:
            self.drawn += 1

    def forget(self) -> None:
        """Forgets the draw: passes that follow see M without noise."""
        self._values = None
        self._cache.clear()

    @property
    def temperature(self) -> Tensor:
        """Temperature τ of the draws at the present step of the training, a scalar tensor.

        Depends on how many masks were drawn in training so far, as a share of `draws`; see `temperature_at` of the law.
        """
        return self.law.temperature_at((self.drawn / max(1, self.draws)).clamp(max=1.0).to(self.alpha))

    @property
    def values(self) -> Tensor:
        """The values of M in the present pass: (layers or 1, heads or 1, values)."""
        return self._settled() if self._values is None else self._values

    def mask(self, context: CallContext, mask: Tensor | None) -> Tensor | None:
        """The mask with Q added: (1 or batch, heads, query, key)."""
        added = self._matrix_of(context)
        return mask if added is None else added if mask is None else mask + added

    def at(self, context: CallContext) -> Normalizer:
        """A softmax whose weights are multiplied by M."""
        factors = self._matrix_of(context)  # M, (1 or batch, heads, query, key)
        return softmax if factors is None else lambda scores: softmax(scores) * factors

    def penalty(self, kind: PenaltyKind = "sum") -> Tensor:
        """Computes ‖M‖₁ without the positions that are always active: a scalar.

        M is that of the present pass, or for a distribution with `expected` its expectation. Of adaptive
        spans their lengths count, as shares of the largest, summed or their mean over layers and heads.

        Args:
            kind: "sum" over layers, heads, and all n x n positions, as the authors have it, or their "mean".
                The scope may say that the positions of a shorter text are counted. What several kinds of connections
                open counts once for each.
        """
        if isinstance(self.law, AdaptiveSpan):
            shares = torch.sigmoid(self.alpha)  # of the largest span
            return shares.sum() if kind == "sum" else shares.mean()
        values = self._padded(self.law.probabilities(self.alpha)) if self.law.expected else self.values
        shape, n = self.options.shape, self.scope.counted or self.options.longest
        # Each value counts as often as it stands in the mask: (values,)
        counts = shape.counts(n, self.alpha.device, diagonal=self.options.diagonal).to(self.alpha)
        total = (values * counts).sum()
        return total if kind == "sum" else total / (self.alpha[..., 0].numel() * n**2)

    @torch.no_grad()
    def log_columns(self) -> dict[str, float]:
        """What a training's log says of the mask: its sparsity, how sure it is, and the temperature of its noise.

        `sparsity` is the share of all n x n positions of all heads that are masked in the end, in the layers that are;
        `undecided` the share of numbers with a P between 0.1 and 0.9, of which draws still go both ways. Of adaptive
        spans, the span of every head by the number of its row and its own.
        """
        if isinstance(self.law, AdaptiveSpan):
            spans: list[list[float]] = self.law.spans(self.alpha)[..., 0].tolist()
            return {f"span {row} {head}": span for row, own in enumerate(spans) for head, span in enumerate(own)}
        open_share = self.law.probabilities(self.alpha)
        undecided = ((open_share > 0.1) & (open_share < 0.9)).float().mean()
        kept = self.kept() if self.layers is None else self.kept()[list(self.layers)]
        return {"sparsity": mask_sparsity(kept), "undecided": float(undecided), "temperature": float(self.temperature)}

    @property
    def layers(self) -> tuple[int, ...] | None:
        """Numbers of the masked layers; None where `kept` and `probabilities` are the same for all layers."""
        by_layer = self.options.per_layer or self.scope.layers is not None
        return tuple(s.layer for s in self.sites) if by_layer else None

    def probabilities(self) -> Tensor:
        """Computes the probability of each position to be open: (layers or 1, heads or 1, n, n), 1 at active ends."""
        return self._full_matrix(self.law.probabilities(self.alpha))

    def kept(self) -> Tensor:
        """True at positions that stay open, see `MaskDistribution.kept`: (layers or 1, heads or 1, n, n)."""
        return self._full_matrix(self.law.kept(self.alpha).to(self.alpha)) > 0.5

    def opened_by(self, values: Tensor, length: int) -> Tensor:
        """True at positions of a sentence that values of the law open: (layers or 1, heads or 1, length, length).

        Args:
            values: M, 0 or 1: (layers of the mask or 1, heads or 1, values of the law).
            length: tokens of the sentence.
        """
        return self._full_matrix(values.float(), length) > 0.5

    def _settled(self) -> Tensor:
        return self._padded(self.law.settled(self.alpha, self.temperature))

    def _padded(self, values: Tensor) -> Tensor:
        """Values with 0 for offsets that the law never opens: (layers or 1, heads or 1, values of the shape)."""
        by_kind = self.law.by_kind(values)
        missing = self.options.shape.size // self.law.kinds - by_kind.shape[-1]
        return nn.functional.pad(by_kind, (0, missing)).flatten(-2)

    @torch.no_grad()
    def _full_matrix(self, values: Tensor, length: int | None = None) -> Tensor:
        """Values by position, at the numbers of their layers: (layers or 1, heads or 1, n, n).

        Layers without a mask, or without heads, have all positions. Without a length n is that of the longest text.
        """
        n = length or self.options.longest
        lengths = torch.tensor([n], device=values.device)
        matrix = self._matrix(self._padded(values)[:, :, None], n, lengths)[:, :, 0]
        if self.layers is None:
            return matrix
        by_layer = matrix.new_ones(self._n_layers, *matrix.shape[1:])
        by_layer[list(self.layers)] = matrix
        return by_layer

    def _matrix(self, values: Tensor, length: int, lengths: Tensor) -> Tensor:
        """M by position, (..., 1 or batch, length, length), of values (..., 1, values)."""
        matrix = self.options.shape.matrix(values, length, lengths)
        if self.options.ends:
            # Sentences end at different places, so that each has a mask of its own.
            matrix = matrix.masked_fill(at_ends(lengths, length), 1.0)
        if not self.options.diagonal:
            matrix = matrix.masked_fill(torch.eye(length, dtype=torch.bool, device=matrix.device), 0.0)
        return matrix

    def _matrix_of(self, context: CallContext) -> Tensor | None:
        """Q or M of a call: (1 or batch, heads of the layer, query, key); None in layers that are not masked."""
        index, length = self._layer_index.get((context.site.stack, context.site.layer)), context.query.shape[2]
        if index is None:
            return None
        matrix = self._cache.get((index, length))
        if matrix is None:
            matrix = self._build(index, length, context)
            if self._values is not None:  # without a draw α may change from call to call
                self._cache[index, length] = matrix
        heads = [h.head for h in context.site.heads]
        has_all = not self.scope.per_head or heads == list(range(matrix.shape[1]))
        return matrix if has_all else matrix[:, heads]

    def _build(self, index: int, length: int, context: CallContext) -> Tensor:
        if length > self.options.longest:
            raise OptionError(
                f"A text of {counted(length, 'token')} is longer than the mask of {self.options.longest}.",
                "Give --data-args longest, or leave long texts out.",
            )
        # One length where all sentences have the same, or the mask does not depend on them.
        lengths = longest = torch.tensor([length], device=context.query.device)
        if context.queries is not None and self.options.structured:
            real = context.queries.real.sum(dim=1)
            lengths = longest if bool((real == longest).all()) else real
        # transposed from (heads, 1 or batch, length, length)
        values = self._matrix(self.values[index][:, None], length, lengths).transpose(0, 1)
        if self.options.form == "additive":
            return self.options.strength * (values - 1.0)
        return values if self.options.form == "multiplicative" else torch.log(values + _EPSILON)


@contextmanager
def _drawing(session: AttentionSession, mask: LearnedAttentionMask) -> Iterator[None]:
    """Draws a mask and declares the tokens at the start of every pass, in the outermost model that is called."""
    running: list[tuple[nn.Module, ExitStack]] = []

    def begin(module: nn.Module, args: tuple[Any, ...], inputs: dict[str, Any]) -> None:
        if not running:
            running.append((module, ExitStack()))
            mask.draw()
            if (tokens := _tokens(named_arguments(module, args, inputs))) is not None:
                running[0][1].enter_context(session.batch(BatchTokens(encoder=tokens)))

    def end(module: nn.Module, _args: object, _output: object) -> None:
        if running and running[0][0] is module:
            running.pop()[1].close()

    with ExitStack() as undo:
        undo.callback(mask.forget)
        for part in session.model.modules():
            if isinstance(part, PreTrainedModel):
                undo.callback(part.register_forward_pre_hook(begin, with_kwargs=True).remove)
                undo.callback(part.register_forward_hook(end, always_call=True).remove)
        yield


def _tokens(inputs: dict[str, Any]) -> Tokens | None:
    """The tokens of a pass, of which only padding is known; None where the encoder does not run."""
    if inputs.get("encoder_outputs") is not None:
        return None
    ids, real = inputs.get("input_ids"), inputs.get("attention_mask")
    if real is None and isinstance(ids, Tensor):
        real = torch.ones_like(ids)
    return real_tokens(real, ids)


class SettledMask:
    """What a learned mask opens, decided for good: a `MaskSource`, made for the length of every sentence.

    Args:
        mask: the mask.
        values: its M, 0 or 1, on the processor: (layers of the mask or 1, heads or 1, values of the law).
    """

    name = "learned"
    stack: Stack = "encoder"

    def __init__(self, mask: LearnedAttentionMask, values: Tensor) -> None:
        self.values = values
        self._mask = mask
        # Batches hold sentences of similar lengths, and every layer asks for its own part.
        self.block = lru_cache(maxsize=16)(partial(mask.opened_by, values))

    @classmethod
    def kept(cls, mask: LearnedAttentionMask) -> SettledMask:
        """The mask that stays after training, see `MaskDistribution.kept`."""
        return cls(mask, mask.law.kept(mask.alpha.detach().cpu()))

    @classmethod
    def drawn(cls, mask: LearnedAttentionMask, seed: int) -> SettledMask:
        """A mask drawn from what was learned; the same for the same seed, whatever device the mask is on."""
        alpha = mask.alpha.detach().cpu()
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            noise = mask.law.noise(alpha)
        return cls(mask, mask.law.sample(alpha, noise) > 0.5)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of layers and heads that the mask tells apart; 1 where all layers or all heads share one mask."""
        layers, heads, _, _ = self.block(1).shape
        return layers, heads

    @property
    def sha256(self) -> str:
        """SHA-256 digest, in hexadecimal, of the numbers M and of what they open."""
        digest = hashlib.sha256(f"{self._mask.options} {self._mask.layers}".encode())
        digest.update(self.values.contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()


def mask_sparsity(kept: Tensor) -> float:
    """Share of masked positions of masks (..., n, n), first and last row and column included as the paper counts."""
    return 1.0 - float(kept.double().mean())


def masked_sites(model: nn.Module) -> list[Site]:
    """The sites of encoders that have heads.

    Raises:
        OptionError: if there are none.
        UnsupportedModelError: if heads cannot be found.
    """
    sites = [s for s in find_sites(model) if s.stack == "encoder" and s.n_heads]
    if not sites:
        raise OptionError(
            f"{type(model).__name__} has no encoder whose attention could be masked.",
            "Masks are learned for BERT, ALBERT, the encoder of Marian, and models like them.",
        )
    return sites

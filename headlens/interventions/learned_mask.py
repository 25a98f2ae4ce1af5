"""Attention masks that are learned: soft importance of positions and DAM (Shi et al. 2021)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from headlens.attention.edits_and_observers import CallContext, Edit
from headlens.attention.normalizers import CallNormalizer, Normalizer, softmax
from headlens.attention.sites import Site, find_sites
from headlens.errors import OptionError, counted
from headlens.heads import Stack
from headlens.interventions.mask_distributions import GumbelSigmoid, MaskDistribution, split_kinds
from headlens.interventions.patterns import random_ranks

Form = Literal["additive", "multiplicative", "renormalised"]
Noise = Literal["training", "always", "never"]
PenaltyKind = Literal["sum", "mean"]
_START_STD = 1e-3  # standard deviation of α before training
# Added to M before its logarithm: masked positions keep next to no weight, and a finite derivative.
_EPSILON = 1e-6


@dataclass(frozen=True)
class PositionPairs:
    """A value for every pair of positions: the upper triangle, row by row.

    Args:
        n: number of positions.
    """

    n: int

    @property
    def size(self) -> int:
        """Number of values that make a mask, n (n + 1) / 2: one for every pair of positions i ≤ j."""
        return self.n * (self.n + 1) // 2

    def matrix(self, values: Tensor, length: int, lengths: Tensor | None = None) -> Tensor:
        """Symmetric matrices of the first positions, (..., length, length), of values (..., size)."""
        del lengths
        full = values.new_zeros(*values.shape[:-1], self.n, self.n)
        rows, columns = torch.triu_indices(self.n, self.n, device=values.device)
        full[..., rows, columns] = values
        upper = full[..., :length, :length]
        # What is above the diagonal is mirrored below it; the diagonal is there once.
        return upper + upper.triu(1).mT

    def counts(self, within: int, device: torch.device | None = None, *, diagonal: bool = True) -> Tensor:
        """Number of positions of a text of `within` tokens that each value fills, (size,); also without a diagonal."""
        rows, columns = torch.triu_indices(self.n, self.n, device=device)
        return torch.where(rows == columns, float(diagonal), 2.0).masked_fill(columns >= within, 0.0)

    def offsets(self, device: torch.device | None = None) -> Tensor:
        """Returns the offset |i - j| of the pair of positions that each value stands for: integers of shape (size,)."""
        rows, columns = torch.triu_indices(self.n, self.n, device=device)
        return torch.sub(columns, rows)


@dataclass(frozen=True)
class Offsets:
    """A value for every offset |i - j|: Toeplitz matrices, whose first and last row and column are always active.

    Args:
        n: number of positions.
    """

    n: int

    @property
    def size(self) -> int:
        """Number of values that make a mask, n: one for every offset |i - j| from 0 to n - 1."""
        return self.n

    def matrix(self, values: Tensor, length: int, lengths: Tensor | None = None) -> Tensor:
        """Toeplitz matrices, (..., length, length), of values (..., size)."""
        del lengths
        near = values[..., :length]
        # (..., 2 length - 1), by the offset j - i from the lowest to the highest
        both = torch.cat([near.flip(-1), near[..., 1:]], dim=-1)
        # Window k has the offsets of the row length - 1 - k.
        return both.unfold(-1, length, 1).flip(-2)

    def counts(self, within: int, device: torch.device | None = None, *, diagonal: bool = True) -> Tensor:
        """Number of positions of a text of `within` tokens that each value fills, (size,); also without a diagonal.

        The first and the last row and column are always active, and no value's.
        """
        inner = (within - 2 - self.offsets(device)).clamp(min=0)
        return torch.where(self.offsets(device) == 0, inner * diagonal, 2 * inner).float()

    def offsets(self, device: torch.device | None = None) -> Tensor:
        """Returns the offset |i - j| that each value stands for, 0 to n - 1: integers of shape (size,)."""
        return torch.arange(self.n, device=device)


@dataclass(frozen=True)
class Connections:
    """Values for the kinds of connections of BigBird: neighbours, global tokens, random keys (Zaheer et al. 2020).

    Of each kind, value k from 1 on opens what a degree of k has and one of k - 1 has not: keys at the distance k, the
    k-th token as a global one, or the k-th key that is drawn for a query, as `Random` draws it for the length of the
    text. Value 0 of neighbours is that of the diagonal; that of the other kinds opens nothing. A position is open as
    far as any kind opens it, 1 - Π (1 - M), and the diagonal, where neighbours have no values, always. So values that
    are 1 up to degrees w, g and r, and 0 beyond, make the pattern `window:w|global:g|random:r`.

    Args:
        n: number of positions.
        kinds: of `CONNECTIONS`, each once.
        seed: of the random keys.
    """

    n: int
    kinds: tuple[str, ...]
    seed: int = 0

    @property
    def size(self) -> int:
        """Number of values that make a mask, n of every kind."""
        return self.n * len(self.kinds)

    def matrix(self, values: Tensor, length: int, lengths: Tensor | None = None) -> Tensor:
        """Matrices (..., 1 or batch, length, length) of values (..., 1, size).

        Args:
            values: the values.
            length: of the batch, padding included.
            lengths: tokens of every sentence, (batch,), on which random keys depend; None for `length`.
        """
        closed = torch.ones((), device=values.device, dtype=values.dtype)
        for kind, own in zip(self.kinds, split_kinds(values, len(self.kinds)).unbind(-2), strict=True):
            # One more value, of what no degree opens.
            by_place = nn.functional.pad(own, (0, 1))[..., 0, :]  # (..., n + 1)
            closed = closed * (1.0 - by_place[..., self._places(kind, length, lengths).to(values.device)])
        if "neighbour" not in self.kinds:
            closed = closed.masked_fill(torch.eye(length, dtype=torch.bool, device=closed.device), 0.0)
        return 1.0 - closed

    def counts(self, within: int, device: torch.device | None = None, *, diagonal: bool = True) -> Tensor:
        """Number of positions of a text of `within` tokens that each value fills, (size,); also without a diagonal.

        A position that several kinds open counts for each of them. The first and the last row and column are no
        value's where tokens have no global degree: they are always active.
        """
        counted = torch.ones(within, within, dtype=torch.bool)
        if "global" not in self.kinds:
            counted &= ~at_ends(torch.tensor([within]), within)[0]
        if not diagonal:
            counted.fill_diagonal_(fill_value=False)
        places = [self._places(kind, within, None)[0][counted] for kind in self.kinds]
        return torch.cat([p.bincount(minlength=self.n + 1)[: self.n] for p in places]).float().to(device)

    def _places(self, kind: str, length: int, lengths: Tensor | None) -> Tensor:
        """The value that opens each position, n where none does: (1 or batch, length, length)."""
        place = torch.arange(length)
        if kind == "neighbour":
            return (place[:, None] - place).abs()[None]
        if kind == "global":
            return (torch.minimum(place[:, None], place) + 1).clamp(max=self.n)[None]
        sentences = [length] if lengths is None else lengths.tolist()
        places = torch.full((len(sentences), length, length), self.n)
        for row, tokens in enumerate(sentences):
            places[row, :tokens, :tokens] = _random_places(tokens, self.seed).clamp(max=self.n)
        return places


@lru_cache(maxsize=256)
def _random_places(n: int, seed: int) -> Tensor:
    """The random degree from which on a query looks at a key: (query, key); for the query itself none is enough."""
    return (torch.from_numpy(random_ranks(n, seed)) + 1).fill_diagonal_(torch.iinfo(torch.int64).max)


Shape = PositionPairs | Offsets | Connections
CONNECTIONS = ("neighbour", "global", "random")


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
            raise OptionError(f"--longest {self.longest} leaves nothing to mask.", "128 is that of the authors.")
        if not 0 < self.strength < float("inf"):
            raise OptionError(f"--strength {self.strength} is not a positive number.", "1e4 is that of the authors.")
        if self.form not in get_args(Form):
            raise OptionError(f"--form {self.form} is none.", f"Choose one of {', '.join(get_args(Form))}.")
        if self.noise not in get_args(Noise):
            raise OptionError(f"--noise {self.noise} is none.", "Choose training, always or never.")
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


def check_connections(kinds: Sequence[str], flag: str = "--degree-kinds") -> None:
    """Raises OptionError if there is no such kind of connections, or none at all."""
    if unknown := [kind for kind in kinds if kind not in CONNECTIONS]:
        raise OptionError(f"{flag}: {unknown[0]!r} is no kind of degree.", f"Kinds: {', '.join(CONNECTIONS)}.")
    if not kinds:
        raise OptionError(f"{flag} names no kind of degree.", f"Kinds: {', '.join(CONNECTIONS)}.")


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
            raise OptionError("--layers names no layer.", "Leave it out to mask all of them.")


class LearnedAttentionMask(nn.Module, Edit, CallNormalizer):
    """Masks the self-attention of encoders by numbers M from 0 to 1, which a law makes of α; symmetric by construction.

    M is drawn once for a forward pass, the same for all sentences of the batch (`draw`; `MaskedModel` does it). Without
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
            raise OptionError("Degrees are about offsets, and the mask has a number for each pair.", "Structure it.")
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

    def check(self, sites: Sequence[Site]) -> None:
        """Raises OptionError if a layer that is masked is not there, or has other heads."""
        heads = {(s.stack, s.layer): s.heads for s in sites}
        for site in self.sites:
            if heads.get((site.stack, site.layer)) != site.heads:
                raise OptionError(f"The mask of {site} is not that of this model.", "Make one for its own sites.")

    def draw(self) -> None:
        """Draws the M of the next forward pass; its gradients can be computed until the next draw."""
        self.forget()
        noise = self.options.noise
        if noise == "never" or (noise == "training" and not self.training):
            self._values = self._settled()
        else:
            self._values = self._padded(self.law.sample(self.alpha, self.law.noise(self.alpha), self.temperature))
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

        M is that of the present pass, or for a distribution with `expected` its expectation.

        Args:
            kind: "sum" over layers, heads, and all n x n positions, as the authors have it, or their "mean".
                The scope may say that the positions of a shorter text are counted. What several kinds of connections
                open counts once for each.
        """
        values = self._padded(self.law.probabilities(self.alpha)) if self.law.expected else self.values
        shape, n = self.options.shape, self.scope.counted or self.options.longest
        # Each value counts as often as it stands in the mask: (values,)
        counts = shape.counts(n, self.alpha.device, diagonal=self.options.diagonal).to(self.alpha)
        total = (values * counts).sum()
        return total if kind == "sum" else total / (self.alpha[..., 0].numel() * n**2)

    @property
    def layers(self) -> tuple[int, ...] | None:
        """Numbers of the masked layers; None where `kept` and `probabilities` are the same for all layers."""
        same_for_all = not self.options.per_layer and self.scope.layers is None
        return None if same_for_all else tuple(s.layer for s in self.sites)

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
        by_kind = split_kinds(values, self.law.kinds)
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
            matrix = self._build(index, context)
            if self._values is not None:  # without a draw α may change from call to call
                self._cache[index, length] = matrix
        heads = [h.head for h in context.site.heads]
        has_all = not self.scope.per_head or heads == list(range(matrix.shape[1]))
        return matrix if has_all else matrix[:, heads]

    def _build(self, index: int, context: CallContext) -> Tensor:
        length = context.query.shape[2]
        if length > self.options.longest:
            raise OptionError(
                f"A text of {counted(length, 'token')} is longer than the mask of {self.options.longest}.",
                "Give --longest, or leave long texts out.",
            )
        # transposed from (heads, 1 or batch, length, length)
        values = self._matrix(self.values[index][:, None], length, self._lengths(context)).transpose(0, 1)
        if self.options.form == "additive":
            return self.options.strength * (values - 1.0)
        return values if self.options.form == "multiplicative" else torch.log(values + _EPSILON)

    def _lengths(self, context: CallContext) -> Tensor:
        """Lengths of the sentences (batch,); (1,) where all have the same, or the mask does not depend on them."""
        longest = torch.tensor([context.query.shape[2]], device=context.query.device)
        if context.queries is None or not self.options.structured:
            return longest
        lengths = context.queries.real.sum(dim=1)
        return longest if bool((lengths == longest).all()) else lengths


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


def at_ends(lengths: Tensor, longest: int) -> Tensor:
    """Where a query or a key is the first or last of its sentence: (batch, longest, longest), also in its padding.

    Args:
        lengths: tokens of every sentence, padded at the end: (batch,).
        longest: length of the batch, padding included.
    """
    places = torch.arange(longest, device=lengths.device)
    ends = (places == 0) | (places == lengths[:, None] - 1)
    return ends[:, :, None] | ends[:, None, :]

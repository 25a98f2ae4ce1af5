"""What an observer and an edit see of one attention call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from headlens.attention.sites import Site


@dataclass(frozen=True, eq=False)
class Tokens:
    """What is known of the tokens of a padded batch; all tensors (batch, length), on the model's device.

    Padding is known from the batch (`real`), never guessed from mask tensors.

    Args:
        real: not padding.
        special: one of the tokenizer's special tokens, or padding.
        cls, sep, bos, eos: real tokens with that id of the tokenizer.
        punct: real tokens that consist of punctuation only.
        word: index of the token's word in its sentence; -1 for special tokens and padding.
        n_words: words of each sentence; (batch,).
        n_pieces: subwords of each word; (batch, max words), 0 past the end.
        arcs: edges of the dependency trees, (arcs, 4): sentence, dependent word, head word, relation number;
            None when nobody asked for trees.
        rarity: (batch, max words): 2 for the least frequent word of a sentence, 1 for the second, else 0 (also
            throughout sentences that are too short); None when nobody asked.
        sampled: (batch,) one query token of each sentence, for statistics too dear for all; -1 for none.
        ids: vocabulary ids, for masks that differ from text to text; None where nobody told.
    """

    real: Tensor
    special: Tensor
    cls: Tensor
    sep: Tensor
    bos: Tensor
    eos: Tensor
    punct: Tensor
    word: Tensor
    n_words: Tensor
    n_pieces: Tensor
    arcs: Tensor | None = None
    rarity: Tensor | None = None
    sampled: Tensor | None = None
    ids: Tensor | None = None

    @classmethod
    def only_real(cls, real: Tensor, ids: Tensor | None = None) -> Tokens:
        """A batch of which nothing is known but what is padding, and perhaps the ids: no special tokens, no words."""
        nothing = torch.zeros_like(real, dtype=torch.bool)
        return cls(
            real=real.bool(),
            special=~real.bool(),
            **dict.fromkeys(("cls", "sep", "bos", "eos", "punct"), nothing),
            word=torch.full_like(real, -1, dtype=torch.long),
            n_words=torch.zeros(real.shape[0], dtype=torch.long, device=real.device),
            n_pieces=torch.zeros(real.shape[0], 0, dtype=torch.long, device=real.device),
            ids=ids,
        )

    @property
    def shape(self) -> torch.Size:
        """Shape of the tensors that have an entry per token, such as `real`: `(batch, length)`."""
        return self.real.shape

    @cached_property
    def separator(self) -> Tensor:
        """End-of-sentence and separator tokens, which `confidence` leaves out."""
        return self.sep | self.eos

    def rows(self, rows: slice) -> Tokens:
        """Some sentences of the batch, without gaps; the same object every time."""
        start, stop, _ = rows.indices(self.shape[0])
        if (start, stop) not in self._parts:
            self._parts[start, stop] = self._cut(start, stop)
        return self._parts[start, stop]

    @cached_property
    def _parts(self) -> dict[tuple[int, int], Tokens]:
        return {}

    def _cut(self, start: int, stop: int) -> Tokens:
        own = {k: v[start:stop] for k, v in vars(self).items() if k in self.__match_args__ and v is not None}
        if self.arcs is not None:
            inside = (self.arcs[:, 0] >= start) & (self.arcs[:, 0] < stop)
            shift = torch.tensor([start, 0, 0, 0], device=self.arcs.device)
            own["arcs"] = self.arcs[inside] - shift
        return Tokens(**own)

    def to(self, device: torch.device | str) -> Tokens:
        """Returns the tokens of the batch with all tensors moved to another device."""
        return replace(
            self, **{k: v.to(device) for k, v in vars(self).items() if k in self.__match_args__ and v is not None}
        )


@dataclass(frozen=True)
class BatchTokens:
    """The tokens of a batch by stack: decoder-only models have no encoder, encoders no decoder."""

    encoder: Tokens | None = None
    decoder: Tokens | None = None

    def of(self, site: Site) -> tuple[Tokens | None, Tokens | None]:
        """Tokens of the queries and of the keys at a site."""
        if site.stack == "cross":
            return self.decoder, self.encoder
        own = self.encoder if site.stack == "encoder" else self.decoder
        return own, own


@dataclass(frozen=True)
class CallContext:
    """One attention call before it is computed: what an edit may look at.

    Args:
        site: which heads.
        query: (batch, heads, query, d).
        key, value: (batch, key heads, key, d); fewer heads than the query's with grouped keys.
        queries, keys: tokens of the batch; None when none were declared (generation).
        causal: whether a query sees only keys up to its own position.
    """

    site: Site
    query: Tensor
    key: Tensor
    value: Tensor
    queries: Tokens | None
    keys: Tokens | None
    causal: bool

    @property
    def key_of_heads(self) -> Tensor:
        """The keys of every head: (batch, heads, key, d); grouped keys are repeated for the heads that share them."""
        groups = self.query.shape[1] // max(1, self.key.shape[1])
        return self.key.repeat_interleave(groups, dim=1) if groups > 1 else self.key


@dataclass(frozen=True)
class AttentionCall(CallContext):
    """One attention call after it was computed: what an observer sees.

    Args:
        weights: (batch, heads, query, key) after the normaliser, before dropout; None unless an observer needs them.
        output: (batch, query, heads, d), the head outputs before the output projection, after all edits.
    """

    weights: Tensor | None
    output: Tensor


class Observer(ABC):
    """Watches attention calls of a session; it must reduce at once and keep no attention maps.

    What a forward pass brought is pending until `commit`; a pass that failed half-way ends in `discard`, so
    that a repeated batch is not counted twice. All observers are asked to `prepare` before the first one commits: if
    one cannot, none counts the pass.
    """

    needs_weights: bool = True
    parts: bool = False

    @abstractmethod
    def observe(self, call: AttentionCall) -> None:
        """See one call; a forward pass has one per site.

        With `parts`, the fast kernel may show a call in several parts, some sentences of the batch in each, and the
        memory of the weights is used again afterwards.
        """

    def prepare(self) -> None:
        """The forward pass succeeded: do what may still fail, such as fetching sums from the device."""

    def commit(self) -> None:
        """What was observed since the last commit counts; nothing that may fail is left to be done."""

    def discard(self) -> None:
        """The forward pass, or some observer's `prepare`, failed: forget what was observed since the last commit."""


class Edit:
    """Changes attention calls of a session: the mask before scores are normalised, or the head outputs after.

    `edits_mask` says whether `mask` does anything, so that fast kernels keep their shortcuts where it does not.
    """

    edits_mask: bool = False

    def check(self, sites: Sequence[Site]) -> None:
        """Raise OptionError if the edit does not fit a model with these sites; asked before anything runs."""

    def mask(self, context: CallContext, mask: Tensor | None) -> Tensor | None:
        """The additive mask to use: float, broadcastable to (batch, heads, query, key), or None for no mask.

        A boolean one is taken too, True where a query may look; what is neither, or does not fit, is an OptionError.
        What comes in is additive too. Sums below the lowest number of the query's dtype are raised to it, so that
        a row masked throughout, also twice, gets uniform weights and not NaN. A tensor that is given back for several
        layers must not be changed in place between them.
        """
        del context
        return mask

    def output(self, context: CallContext, output: Tensor) -> Tensor:
        """The head outputs to use: (batch, query, heads, d)."""
        del context
        return output

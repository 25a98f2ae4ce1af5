"""The interface of edits and observers: tokens of a batch, attention calls, and the two base classes."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from headlens.attention.rows import Rows
from headlens.attention.sites import Site

T = TypeVar("T")
# Of Universal Dependencies, as `Tokens.upos` numbers them.
PARTS_OF_SPEECH = (
    *("ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM"),
    *("PART", "PRON", "PROPN", "PUNCT", "SCONJ", "SYM", "VERB", "X"),
)

# Fields of `Tokens` with an entry for every token.
_BY_TOKEN = ("real", "special", "cls", "sep", "bos", "eos", "punct", "word", "segment", "ids")
# Fields of `Tokens` that list something, the number of the sentence first.
LISTS = frozenset({"arcs", "links", "mentions"})


@dataclass(frozen=True, eq=False)
class Tokens:
    """Properties of the tokens of a padded batch; all tensors (batch, length), on the model's device.

    Padding is known from the batch (`real`), never guessed from mask tensors.

    Args:
        real: True for tokens that are not padding.
        special: one of the tokenizer's special tokens, or padding.
        cls, sep, bos, eos: real tokens with that id of the tokenizer.
        punct: real tokens that consist of punctuation only.
        word: index of the token's word in its sentence; -1 for special tokens and padding.
        n_words: words of each sentence; (batch,).
        n_pieces: subwords of each word; (batch, max words), 0 past the end.
        arcs: edges of the dependency trees, (arcs, 4): sentence, dependent word, head word, relation number;
            None if trees were not requested.
        rarity: (batch, max words): 2 for the least frequent word of a sentence, 1 for the second, else 0 (also
            throughout sentences that are too short); None if not requested.
        forms: (batch, max words): a number for every word form of a sentence, the same for the same form whatever its
            case; -1 for punctuation and past the end; None if not requested.
        upos: (batch, max words): number of the part of speech in `PARTS_OF_SPEECH`, -1 where unknown and past the end;
            None if no word of the batch has any, or not requested.
        segment: (batch, length): 0 for tokens of the first of two texts in one sequence, 1 for those of the second, -1
            for what belongs to neither; None where a sequence is one text.
        links: gold alignment of words, (links, 4): sentence, word of the source or first text, word of the target or
            second text, 1 for a sure link and 0 for a possible one; None if not requested.
        mentions: head words of mentions of entities, (mentions, 6): sentence, word, number of the entity, and 1 or 0
            for whether an earlier mention of it is there, whether the nearest earlier mention of any entity is one,
            and whether the nearest earlier occurrence of the same word is one; None if not requested, or there is none.
        sampled: (batch,) one query token of each sentence, for statistics too costly for all; -1 for none.
        ids: vocabulary ids, for masks that differ from text to text; None if unknown.
        host: the same tokens on the processor, where what depends on them alone is worked out without waiting for the
            device; None for tokens that are there themselves.
        whole: the tokens that these are a part of, see `queries_of`; None for all tokens of the sentences.
        start: number of the first of them there.
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
    forms: Tensor | None = None
    upos: Tensor | None = None
    segment: Tensor | None = None
    links: Tensor | None = None
    mentions: Tensor | None = None
    sampled: Tensor | None = None
    ids: Tensor | None = None
    host: Tokens | None = field(default=None, init=False, repr=False)
    whole: Tokens | None = field(default=None, init=False, repr=False)
    start: int = field(default=0, init=False, repr=False)
    _parts: dict[tuple[int, int], Tokens] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def only_real(cls, real: Tensor, ids: Tensor | None = None) -> Tokens:
        """Tokens of which only padding is known, and perhaps ids: no special tokens, no words."""
        return cls(
            real=real.bool(),
            special=~real.bool(),
            **dict.fromkeys(("cls", "sep", "bos", "eos", "punct"), torch.zeros_like(real, dtype=torch.bool)),
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
        """The tokens of a slice of consecutive sentences; the same object every time, so that caches recognise it."""
        start, stop, _ = rows.indices(self.shape[0])
        if (start, stop) not in self._parts and self.host is not None:
            self._parts[start, stop] = self.host.rows(rows).to(self.real.device)
        elif (start, stop) not in self._parts:
            parts = {name: tensor[start:stop] for name, tensor in self.tensors().items()}
            for name in LISTS & parts.keys():
                entries = self.tensors()[name]
                parts[name] = entries[(entries[:, 0] >= start) & (entries[:, 0] < stop)].clone()
                parts[name][:, 0] -= start  # sentences are counted from the first of the part
            self._parts[start, stop] = Tokens(**parts)
        return self._parts[start, stop]

    def queries_of(self, start: int, stop: int) -> Tokens:
        """Returns the tokens from `start` to `stop` of every sentence, as queries: words keep their numbers."""
        sliced: dict[str, Any] = {n: t[:, start:stop] for n, t in self.tensors().items() if n in _BY_TOKEN}
        host = None if self.host is None else self.host.queries_of(start, stop)
        return replace(self, **sliced).beside(host, whole=self, start=start)

    def are(self, keys: Tokens) -> bool:
        """Whether these are the tokens of the keys, or a part of them."""
        return self is keys or self.whole is keys

    def to(self, device: torch.device | str) -> Tokens:
        """Returns the tokens of the batch with all tensors moved to another device; the same ones if they are there."""
        device = torch.device(device)
        if self.host is not None and device.type == "cpu":
            return self.host
        return copied_together(self, device)

    def annotated(self, **annotations: Tensor) -> Tokens:
        """Returns these tokens with some of the fields that may be None, given on the processor."""
        copied: dict[str, Any] = annotations
        moved: dict[str, Any] = copied_together(copied, self.real.device)
        host = None if self.host is None else replace(self.host, **copied)
        return replace(self, **moved).beside(host)

    def beside(self, host: Tokens | None, *, whole: Tokens | None = None, start: int = 0) -> Tokens:
        """Notes the same tokens on the processor, and of which tokens these are a part; returns these."""
        for name, value in {"host": host, "whole": whole, "start": start}.items():
            object.__setattr__(self, name, value)
        return self

    def tensors(self) -> dict[str, Tensor]:
        """Returns the fields that are known, by name; `vars` also has the cached properties."""
        return {name: vars(self)[name] for name in self.__match_args__ if vars(self)[name] is not None}


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copies a tensor to a device without waiting for what the device has still to do."""
    # Pinned memory would be copied later; of other memory a copy is taken at once.
    return tensor.to(device, non_blocking=not tensor.is_pinned())


_ALIGNED = 16  # bytes: where a tensor may begin in memory that several share


def copied_together(value: T, device: torch.device | str) -> T:
    """Copies all tensors of a value to a device at once: each copy of its own would take about as long as all.

    Args:
        value: tensors, tokens, and dictionaries and tuples of them; whatever else there is stays as it is.
        device: where they go; a value that is there already is given back.
    """
    device, tensors = torch.device(device), dict[int, Tensor]()
    _rebuilt(value, lambda tensor: tensors.setdefault(id(tensor), tensor), {})
    places = device, torch.device(device.type, device.index or 0)
    if all(tensor.device in places for tensor in tensors.values()):
        return value
    copies = dict(zip(tensors, _copied(list(tensors.values()), device), strict=True))
    return cast("T", _rebuilt(value, lambda tensor: copies[id(tensor)], {}))


def _copied(tensors: list[Tensor], device: torch.device) -> list[Tensor]:
    if device.type == "mps":  # which has no float64
        tensors = [tensor.float() if tensor.dtype == torch.float64 else tensor for tensor in tensors]
    if device.type == "cpu" or any(tensor.device.type != "cpu" for tensor in tensors):
        return [to_device(tensor, device) for tensor in tensors]
    # Of pinned memory a copy is made later, while the processor goes on; torch does not use it again before.
    return places_of(tensors, packed_bytes(tensors, pinned=device.type == "cuda").to(device, non_blocking=True))


def packed_bytes(tensors: Sequence[Tensor], *, pinned: bool) -> Tensor:
    """Returns the bytes of tensors behind each other, each from a multiple of 16 on; in pinned memory or not."""
    memory = torch.empty(_starts(tensors)[-1], dtype=torch.uint8, pin_memory=pinned)
    for place, tensor in zip(places_of(tensors, memory), tensors, strict=True):
        place.copy_(tensor)
    return memory


def places_of(tensors: Sequence[Tensor], memory: Tensor) -> list[Tensor]:
    """Returns the tensors that stand in memory, on any device, where `packed_bytes` puts these."""
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    return [
        memory[start : start + size].view(tensor.dtype).view(tensor.shape)
        for tensor, start, size in zip(tensors, _starts(tensors), sizes, strict=False)
    ]


def _starts(tensors: Sequence[Tensor]) -> list[int]:
    """Where tensors begin in memory that they share, in bytes; at last where the memory ends."""
    sizes = (tensor.numel() * tensor.element_size() for tensor in tensors)
    return [0, *accumulate(-(-size // _ALIGNED) * _ALIGNED for size in sizes)]


def _rebuilt(value: Any, change: Callable[[Tensor], Tensor], seen: dict[int, Tokens]) -> Any:
    """The same value with other tensors; `seen` has the tokens that were rebuilt, each of which stays one object."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Tokens):
        if id(value) not in seen:
            tensors = {name: change(tensor) for name, tensor in value.tensors().items()}
            seen[id(value)] = Tokens(**tensors).beside(value if value.host is None else value.host)
        return seen[id(value)]
    if isinstance(value, dict):
        return {name: _rebuilt(part, change, seen) for name, part in value.items()}
    if isinstance(value, tuple):
        parts = [_rebuilt(part, change, seen) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


@dataclass(frozen=True)
class BatchTokens:
    """The tokens of a batch by stack: decoder-only models have no encoder, encoders no decoder."""

    encoder: Tokens | None = None
    decoder: Tokens | None = None

    def of(self, site: Site) -> tuple[Tokens | None, Tokens | None]:
        """Tokens of the queries and of the keys at a site."""
        if site.stack == "cross":
            return self.decoder, self.encoder
        tokens = self.encoder if site.stack == "encoder" else self.decoder
        return tokens, tokens


@dataclass(frozen=True)
class CallContext:
    """One attention call before it is computed, as edits see it.

    Args:
        site: the layer of heads that computes it.
        query: (batch, heads, query, d).
        key, value: (batch, key heads, key, d); fewer heads than the query's with grouped keys.
        queries, keys: tokens of the batch; None when none were declared (generation).
        causal: whether a query sees only keys up to its own position.
        start: number of the first query in its sentence, where a call has a part of the queries of self-attention.
        last: whether the call has the last query of its sentence.
        allowed: keys that every query may attend to, bool, (1 or batch, 1 or heads, query, key), where an edit changes
            the mask, or a text is longer than the layer's window; None elsewhere (and before edits of the mask): all
            real keys, in a causal stack those so far.
        window: how many tokens a layer with local attention sees, as the model counts them; None for all.
        scaling: factor that the model gives for products of queries and keys; None for the root of 1 / d.
    """

    site: Site
    query: Tensor
    key: Tensor
    value: Tensor
    queries: Tokens | None
    keys: Tokens | None
    causal: bool
    start: int = field(default=0, kw_only=True)
    last: bool = field(default=True, kw_only=True)
    allowed: Tensor | None = field(default=None, kw_only=True)
    window: int | None = field(default=None, kw_only=True)
    scaling: float | None = field(default=None, kw_only=True)

    @property
    def key_of_heads(self) -> Tensor:
        """The keys of every head: (batch, heads, key, d)."""
        return repeat_groups(self.key, self.query.shape[1])


@dataclass(frozen=True)
class AttentionCall(CallContext):
    """One attention call after it was computed, as observers see it.

    Args:
        weights: (batch, heads, query, key) after the normaliser, before dropout; None unless an observer needs them.
        output: (batch, query, heads, d), the head outputs before the output projection, after all edits.
        gram: (heads, d, d), W Wᵀ of each head's part W of the output projection: a vector v of the head is as long as
            the root of v W Wᵀ vᵀ after it. None unless an observer needs it, or where headlens does not know W.
        to_tokens: (batch, heads, query), what rows of `weights` add up to where that is not 1, because a part of
            attention goes to no token but to a learned sink. None elsewhere.
        rows: what can be known of the weights where no map of them was made, because nobody needs it; else None.
    """

    weights: Tensor | None
    output: Tensor
    gram: Tensor | None = None
    to_tokens: Tensor | None = None
    rows: Rows | None = None

    @property
    def distribution(self) -> Tensor | None:
        """Weights over tokens, given that attention goes to one: (batch, heads, query, key) in at least float32.

        Rows add up to 1 also where a learned sink takes a part; those that give nothing to any token stay 0.
        """
        if self.weights is None:
            return None
        weights = self.weights.float() if self.weights.dtype.itemsize < 4 else self.weights
        if self.to_tokens is None:
            return weights
        total = self.to_tokens[..., None]
        return weights / torch.where(total > 0, total, 1)


def repeat_groups(tensor: Tensor, n_heads: int) -> Tensor:
    """Repeats grouped keys or values for the heads that share them: (batch, key heads, ...) to (batch, heads, ...)."""
    groups = n_heads // max(1, tensor.shape[1])
    return tensor.repeat_interleave(groups, dim=1) if groups > 1 else tensor


class Observer(ABC):
    """Watches attention calls of a session; it must reduce each call immediately and must not keep attention maps.

    The results of a forward pass are pending until `commit`; a pass that failed half-way ends in `discard`, so
    that a repeated batch is not counted twice. All observers are asked to `prepare` before the first one commits: if
    one cannot, none counts the pass.
    """

    needs_weights: bool = True
    needs_projection: bool = False
    parts: bool = False
    parts_of_sentences: bool = False
    # Whether it leaves its results on the device until somebody reads them: passes are not waited for then.
    leaves_results: bool = False

    @abstractmethod
    def observe(self, call: AttentionCall) -> None:
        """Receives one call; a forward pass has one per site.

        With `parts`, the fast kernel may show a call in several parts, some sentences of the batch in each, and the
        memory of the weights is used again afterwards. With `parts_of_sentences` it may show one after the other some
        queries of a single sentence, too, from `start` on up to the one that is `last`; no word is divided.
        """

    def reads_rows(self, context: CallContext) -> bool:
        """Whether it is content with `AttentionCall.rows`, without weights, in a call that is to be computed."""
        del context
        return False

    def prepare(self) -> None:
        """Does what may still fail, such as adding sums up, after a forward pass that succeeded."""

    def commit(self) -> None:
        """Counts what was observed since the last commit; it must not fail."""

    def discard(self) -> None:
        """Drops what was observed since the last commit, after a forward pass or a `prepare` that failed."""


class Edit:
    """Changes attention calls of a session: the mask before scores are normalised, or the head outputs after.

    `edits_mask` says whether `mask` does anything, so that fast kernels keep their shortcuts where it does not.
    """

    edits_mask: bool = False

    def check(self, sites: Sequence[Site]) -> None:
        """Raises OptionError if the edit does not fit a model with these sites; called before anything runs."""

    def mask(self, context: CallContext, mask: Tensor | None) -> Tensor | None:
        """Returns the additive mask to use: float, broadcastable to (batch, heads, query, key), or None for no mask.

        A boolean mask is accepted too, True where a query may look; anything else, or another shape, is an OptionError.
        The mask passed in is additive. Sums below the lowest number of the query's dtype are raised to it, so that
        a row masked throughout, also twice, gets uniform weights and not NaN. A tensor that is given back for several
        layers must not be changed in place between them.
        """
        del context
        return mask

    def output(self, context: CallContext, output: Tensor) -> Tensor:
        """Returns the head outputs to use: (batch, query, heads, d)."""
        del context
        return output


def named_arguments(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of a model by name, positional ones included."""
    # The signature of the class: on an instance `forward` may be wrapped in a function that takes anything.
    names = list(inspect.signature(type(model).forward).parameters)[1:]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def real_tokens(mask: object, ids: object = None) -> Tokens | None:
    """Tokens of a call, of which only padding is known, from its attention mask.

    The mask is (batch, tokens), for multiple choice (n, choices, tokens); None for masks of other shapes, such as
    those that are added to scores.

    Args:
        mask: attention mask of a call of the model, or None.
        ids: vocabulary ids of the call, of the same shape, or None.
    """
    if not isinstance(mask, Tensor) or mask.dim() not in (2, 3):
        return None
    known_ids = ids.flatten(0, -2) if isinstance(ids, Tensor) and ids.shape == mask.shape else None
    return Tokens.only_real(mask.flatten(0, -2), known_ids)

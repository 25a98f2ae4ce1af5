"""Attention on a GPU whose rows are known by their statistics: Triton kernels in place of maps of weights.

A first kernel gives head outputs and the logarithm of the sum of every row. With it others work out of scores, which
they compute again, what somebody asks of the weights.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from headlens.attention.edits_and_observers import CallContext
from headlens.attention.kernels.blocked_softmax import CHECKED, checked_part, checked_rows, equals_own
from headlens.attention.normalizers import lowest_kept, unknown_arguments
from headlens.attention.rows import TILE, RowFacts, Rows, RowStatistics
from headlens.memory import is_out_of_memory

# Heads of these sizes, and of those in between, which are computed as the next larger one.
_SIZES = (16, 32, 64, 128, 256)
_TYPES = (torch.float32, torch.float16, torch.bfloat16)
_PRECISION = {"IP": "tf32x3"}  # of products of float32: three products of TF32 keep about all digits
# Heads and weights of a tile of pairs of heads.
DIVERGENCE_SIZES = {"TILE": 16, "BN": 16, "num_warps": 4}
# A program adds up so many weights of each pair; of more than so many parts, a multiple of it.
_FEWEST_WEIGHTS, _MOST_PARTS = 1024, 64
# What these kernels know beside what all of headlens do: a soft cap of the scores, and learned sinks.
_KNOWN = ("softcap", "s_aux")


class RowAttention:
    """Decides for every call whether these kernels compute what the model does, and computes it.

    A module is trusted when, at its first call, two sentences come out as from the model's own eager attention.
    """

    def __init__(self) -> None:
        self._refused: dict[nn.Module, str] = {}

    def refusal(
        self, module: nn.Module, context: CallContext, mask: Tensor | None, kwargs: Mapping[str, Any], *, causal: bool
    ) -> str:
        """Why this call cannot be computed here; nothing if it can."""
        if why := _unfit(module, context, kwargs, causal=causal):
            return why
        if module not in self._refused:
            agrees = partial(_agrees, module, context, mask, kwargs, causal=causal)
            self._refused[module] = reason_against(agrees, "the attention of the model gives other numbers")
        return self._refused[module]

    def attend(
        self, context: CallContext, mask: Tensor | None, kwargs: Mapping[str, Any], *, causal: bool
    ) -> tuple[Tensor, KernelRows]:
        """Head outputs (batch, query, heads, d), and the rows.

        Args:
            context: the call.
            mask: additive, (1 or batch, 1 or heads, 1 or query, key); None for none.
            kwargs: other arguments of the model's attention function.
            causal: whether a query sees only the keys up to its own position.
        """
        bias = kwargs.get("position_bias")
        terms = [lowest_kept(t, torch.float32) if bias is not None else t for t in (mask, bias) if t is not None]
        factor = context.query.shape[-1] ** -0.5 if kwargs.get("scaling") is None else kwargs["scaling"]
        added = None if not terms else terms[0] if len(terms) == 1 else terms[0] + terms[1]
        scores = _Scores(context.query, context.key, added, factor, kwargs.get("softcap"), causal)
        return scores.attend(context.value, kwargs.get("s_aux"))


def tile_sizes(dtype: torch.dtype, d: int) -> dict[str, int]:
    """Rows and columns of a tile for heads of a size, and how it is worked on: what the memory of a processor holds."""
    large = dtype.itemsize * d
    if large > 512:
        return {"BM": 32, "BN": 32, "num_warps": 4, "num_stages": 1}
    return {"BM": 64, "BN": 32 if large > 128 else 64, "num_warps": 4, "num_stages": 2}


@cache
def available(device: torch.device) -> str:
    """Why there are no such kernels for a device; nothing if there are."""
    if device.type != "cuda":
        return f"the device is a {device.type}"
    return "" if importlib.util.find_spec("triton") else "Triton is not installed"


def reason_against(agrees: Callable[[], bool], other_numbers: str) -> str:
    """Why a kernel cannot be used: nothing where it agrees, else that it gives other numbers, or how it failed."""
    try:
        return "" if agrees() else other_numbers
    except Exception as error:
        if is_out_of_memory(error):
            raise
        # Compilers raise everything, on cards and with versions that nobody tried.
        return f"the kernel failed, {type(error).__name__}"


def _unfit(module: nn.Module, context: CallContext, kwargs: Mapping[str, Any], *, causal: bool) -> str:
    """Why a call cannot be computed here, from its types, shapes and arguments alone."""
    query, key, value = context.query, context.key, context.value
    if why := available(query.device):
        return why
    if unknown := unknown_arguments({name: value for name, value in kwargs.items() if name not in _KNOWN}):
        return f"the arguments {', '.join(unknown)} of the model's attention"
    if torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value)):
        return "gradients are asked for"
    if torch.is_autocast_enabled(query.device.type) or module.training or kwargs.get("output_attentions"):
        return "autocast, training, or the model is asked for its attention"
    if query.dtype not in _TYPES or {key.dtype, value.dtype} != {query.dtype}:
        return f"numbers of the type {str(query.dtype).removeprefix('torch.')}"
    if query.shape[3] > _SIZES[-1] or value.shape[3] != query.shape[3]:
        return f"heads of size {query.shape[3]} and {value.shape[3]}"
    if causal and query.shape[2] != key.shape[2]:
        return "fewer queries than keys"
    return ""


def _agrees(
    module: nn.Module, context: CallContext, mask: Tensor | None, kwargs: Mapping[str, Any], *, causal: bool
) -> bool:
    """Whether the last queries of the first and last sentence come out as from the model's own attention."""
    output, rows = RowAttention().attend(context, mask, kwargs, causal=causal)
    part, terms = checked_part(context, mask, kwargs)
    sentences = torch.arange(len(context.query), device=context.query.device)[checked_rows(context)]
    queries = torch.arange(part.start, context.query.shape[2], device=context.query.device)
    chosen = sentences.repeat_interleave(len(queries)), queries.repeat(len(sentences))
    weights = rows.weights(*chosen).view(-1, len(sentences), *part.query.shape[2:3], part.key.shape[2]).transpose(0, 1)
    if rows.to_tokens is not None:
        weights = weights * rows.to_tokens[checked_rows(context), :, -CHECKED:, None]
    return equals_own(module, part, terms, kwargs, (output[checked_rows(context), -CHECKED:], weights), causal=causal)


@dataclass(frozen=True, eq=False)
class _Scores:
    """How the scores of a call are computed.

    Args:
        query: (batch, heads, query, d).
        key: (batch, key heads, key, d).
        mask: added to the scores, (1 or batch, 1 or heads, 1 or query, key); None for none.
        factor: of the scores.
        cap: soft cap of the scores, or None.
        causal: whether a query sees only the keys up to its own position.
    """

    query: Tensor
    key: Tensor
    mask: Tensor | None
    factor: float
    cap: float | None
    causal: bool

    @cached_property
    def kernels(self) -> Any:
        """The module with the kernels, for which Triton is imported."""
        from headlens.attention.kernels import row_kernels  # noqa: PLC0415 - heavy, and only on GPUs

        return row_kernels

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Sentences, heads, queries and keys."""
        return (*self.query.shape[:3], self.key.shape[2])

    @cached_property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and the mask, each with its last numbers side by side."""
        query, key = (t if t.stride(-1) == 1 else t.contiguous() for t in (self.query, self.key))
        return query, key, query if self.mask is None else self.mask.expand(self.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides of `tensors`, as kernels take them."""
        query, key, mask = self.tensors
        of_mask = (0, 0, 0, 0) if self.mask is None else mask.stride()
        return (*query.stride()[:3], *key.stride()[:3], *of_mask)

    @property
    def numbers(self) -> tuple[int, float, float]:
        """Heads that share a key, the factor, and the cap."""
        return self.query.shape[1] // self.key.shape[1], self.factor, self.cap or 1.0

    @property
    def constants(self) -> dict[str, Any]:
        """Constants that the kernels are compiled for."""
        d = self.query.shape[3]
        return {
            "D": d,
            "BD": next(size for size in _SIZES if size >= d),
            "HAS_MASK": self.mask is not None,
            "CAUSAL": self.causal,
            "HAS_CAP": self.cap is not None,
        }

    @property
    def sizes(self) -> dict[str, int]:
        """Rows and columns of a tile, see `tile_sizes`."""
        return tile_sizes(self.query.dtype, self.query.shape[3])

    def attend(self, value: Tensor, sink: Tensor | None) -> tuple[Tensor, KernelRows]:
        sentences, n_heads, n_queries, n_keys = self.shape
        query, key, mask = self.tensors
        value = value if value.stride(-1) == 1 else value.contiguous()
        output = query.new_empty(sentences, n_queries, n_heads, query.shape[3])
        lse = query.new_empty(self.shape[:3], dtype=torch.float32)
        given = None if sink is None else torch.empty_like(lse)
        query_and_key, of_mask = self.strides[:6], self.strides[6:]
        self.kernels.attention_forward[(-(-n_queries // self.sizes["BM"]), sentences * n_heads)](
            query, key, value, mask, lse if sink is None else sink, output, lse, lse if given is None else given,
            *query_and_key, *value.stride()[:3], *of_mask, output.stride(0), output.stride(2), output.stride(1),
            n_heads, n_queries, n_keys, *self.numbers,
            **self.constants, **_PRECISION, **self.sizes, HAS_SINK=sink is not None,
        )  # fmt: skip
        return output, KernelRows(self, lse, given)


class KernelRows(Rows):
    """Rows whose statistics Triton kernels compute.

    Args:
        scores: of the call.
        lse: logarithm, to the base 2, of the sum of the exponentials of every row; (batch, heads, query).
        to_tokens: share of every query's attention that goes to tokens.
    """

    def __init__(self, scores: _Scores, lse: Tensor, to_tokens: Tensor | None) -> None:
        self._scores, self._lse, self.to_tokens = scores, lse, to_tokens

    def fill(self, statistics: RowStatistics, facts: RowFacts) -> None:
        """Computes what there is memory for, in one launch for tokens and one for each kind of words."""
        one_pass = (statistics.peak, statistics.entropy, statistics.distance, statistics.received, statistics.parts)
        if any(room is not None for room in one_pass):
            self._fill_tokens(statistics, facts)
        if statistics.words is not None:
            self._fill_words(statistics.words, facts, others=False)
        if statistics.other_words is not None:
            self._fill_words(statistics.other_words, facts, others=True)

    def _fill_tokens(self, statistics: RowStatistics, facts: RowFacts) -> None:
        scores, sizes = self._scores, self._scores.sizes
        sentences, n_heads, n_queries, n_keys = scores.shape
        n_blocks, unused = -(-n_queries // sizes["BM"]), self._lse
        by_row = (
            *(statistics.highest, statistics.between, statistics.peak, statistics.peak_key, statistics.entropy),
            *(statistics.distance, statistics.previous, statistics.itself, statistics.following),
        )
        strides = next((t.stride()[:2] for t in by_row if t is not None), (0, 0))
        received = read = parts = None
        if statistics.received is not None:
            received = self._lse.new_empty(sentences, n_heads, n_blocks, n_keys)
        if statistics.read is not None and self.to_tokens is not None:
            read = self._lse.new_empty(sentences, n_heads, n_blocks, n_keys)
        n_parts = 16
        if statistics.parts is not None and facts.key_parts is not None:
            n_parts = facts.key_parts.shape[2]
            parts = self._lse.new_empty(sentences, n_heads, n_blocks, n_parts, n_parts)
        given = (*by_row, self.to_tokens, received, read, parts)
        scores.kernels.row_statistics[(n_blocks, sentences * n_heads)](
            *scores.tensors, self._lse, facts.key_flags, facts.query_flags,
            *(unused if t is None else t for t in (facts.key_parts, facts.query_parts)),
            *(unused if t is None else t for t in given),
            *scores.strides, *strides, n_heads, n_queries, n_keys, n_blocks, *scores.numbers,
            **scores.constants, **_PRECISION, **sizes, N_PARTS=n_parts,
            OF_PEAK=statistics.peak is not None, OF_ENTROPY=statistics.entropy is not None,
            OF_PLACES=statistics.distance is not None, OF_RECEIVED=received is not None, OF_READ=read is not None,
            OF_PARTS=parts is not None,
        )  # fmt: skip
        if received is not None:
            torch.sum(received, 2, out=statistics.received)
        if read is not None:
            torch.sum(read, 2, out=statistics.read)
        if parts is not None:
            torch.sum(parts, 2, out=statistics.parts)

    def _fill_words(self, target: Tensor, facts: RowFacts, *, others: bool) -> None:
        scores, queries, keys = self._scores, facts.query_words, facts.key_words
        assert queries is not None
        assert keys is not None
        sentences, n_heads, n_queries, _ = scores.shape
        target.fill_(-1)
        scores.kernels.word_targets[(queries.words.shape[1], sentences * n_heads)](
            *scores.tensors, self._lse, queries.tokens, queries.starts, queries.words,
            keys.tokens, keys.slots, keys.starts[:, -1].contiguous(), keys.words, target,
            *scores.strides, *target.stride()[:2], n_heads, n_queries,
            queries.words.shape[1], queries.tokens.shape[1], keys.words.shape[1], keys.tokens.shape[1], *scores.numbers,
            **scores.constants, **_PRECISION, TILE=TILE, OTHERS=others, num_warps=2, num_stages=2,
        )  # fmt: skip

    def weights(self, sentence: Tensor, query: Tensor) -> Tensor:
        """Returns the weights of some rows, given that attention goes to a token: (heads, rows, key)."""
        scores, n_chosen = self._scores, len(sentence)
        _, n_heads, n_queries, n_keys = scores.shape
        weights = self._lse.new_empty(n_heads, n_chosen, n_keys)
        if n_chosen:
            scores.kernels.chosen_rows[(n_chosen, n_heads)](
                *scores.tensors, self._lse, sentence.contiguous(), query.contiguous(), weights,
                *scores.strides, n_heads, n_queries, n_keys, n_chosen, *scores.numbers,
                **scores.constants, BN=64, num_warps=4,
            )  # fmt: skip
        return weights


def head_divergences(rows: Tensor) -> Tensor:
    """Sums over queries of the Jensen-Shannon divergences of all pairs of heads, in nats.

    Args:
        rows: weights that add up to 1 or are all 0, float32; (heads, queries, key).

    Returns:
        (heads, heads), float64, zeros on the diagonal.
    """
    from headlens.attention.kernels import row_kernels  # noqa: PLC0415 - heavy, and only on GPUs

    n_heads, n_weights = len(rows), rows[0].numel()
    n_tiles = -(-n_heads // DIVERGENCE_SIZES["TILE"])
    # Sums of float32 are short, and there are enough of them for all processors of a card.
    part = max(_FEWEST_WEIGHTS, -(-n_weights // (_MOST_PARTS * _FEWEST_WEIGHTS)) * _FEWEST_WEIGHTS)
    n_parts = max(1, -(-n_weights // part))
    sums = rows.new_zeros(n_heads, n_heads, n_parts)
    row_kernels.pair_divergences[(n_tiles, n_tiles, n_parts)](
        rows.contiguous(), sums, n_heads, n_weights, n_parts, part, **DIVERGENCE_SIZES
    )
    total = sums.sum(2, dtype=torch.float64).triu_(1) * math.log(2)
    # Rounding can leave a tiny negative divergence between equal heads.
    return (total + total.T).clamp_(min=0)


def divergence_refusal(rows: Tensor, by_torch: Callable[[Tensor], Tensor]) -> str:
    """Why divergences of such rows are not computed by the kernel; nothing if they are.

    Args:
        rows: as `head_divergences` gets them; some of them are compared.
        by_torch: what gives the same numbers.
    """
    if why := available(rows.device):
        return why
    if rows.dtype != torch.float32:
        return f"numbers of the type {str(rows.dtype).removeprefix('torch.')}"

    def agree() -> bool:
        found, expected = (compute(rows[:, :CHECKED]) for compute in (head_divergences, by_torch))
        return torch.allclose(found, expected, rtol=1e-3, atol=1e-3)

    return reason_against(agree, "torch gives other numbers")

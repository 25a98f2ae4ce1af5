"""Batches of examples of similar length within a budget of tokens, and the tensors a model reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from headlens.attention.edits_and_observers import Tokens, copied_together
from headlens.corpora.alignment import UNALIGNED
from headlens.corpora.encoding import EncodedExample, EncodedSequence, TokenKind
from headlens.errors import OptionError

POOL = 4096  # examples that are held and sorted together
# Tokens of a batch by default: with small batches a GPU spends its time on starting.
BATCH_TOKENS = {"cpu": 2048, "other": 16384}
T = TypeVar("T")
IGNORED = -100  # transformers' label of positions that do not count
Ids: TypeAlias = npt.NDArray[np.int64]
PaddedLength: TypeAlias = Callable[[int], int]  # what a text of so many tokens is padded to


def pooled_batches(
    examples: Iterable[T],
    batch_tokens: int,
    length: Callable[[T], int],
    rows: Callable[[T], int],
    pool: int = POOL,
    group: Callable[[T], int] | None = None,
) -> Iterator[list[T]]:
    """Puts examples of similar length together, so that little of a batch is padding.

    `pool` examples at a time are held and sorted by length; the order depends on the examples alone.

    Args:
        examples: read once, lazily.
        batch_tokens: most tokens of a batch, padding among them; a longer example is a batch of its own.
        length: gives the tokens of an example's longest row.
        rows: gives the number of an example's rows of input.
        pool: number of examples that are sorted together.
        group: gives the number of an example's group, where a batch is to have examples of one group only.

    Raises:
        OptionError: if `batch_tokens` or `pool` is not positive.
    """
    for name, value in (("batch-tokens", batch_tokens), ("pool", pool)):
        if value < 1:
            raise OptionError(f"--{name} {value} is not a positive number.", "4096 suits most machines.")
    iterator = iter(examples)
    pools = iter(lambda: sorted(islice(iterator, pool), key=length), [])
    parts = pools if group is None else (list(part) for p in pools for _, part in groupby(sorted(p, key=group), group))
    return chain.from_iterable(cut_batches(part, batch_tokens, length, rows) for part in parts)


def batch_tokens_of(device: torch.device) -> int:
    """Returns the tokens of a batch that suit a device."""
    return BATCH_TOKENS.get(device.type, BATCH_TOKENS["other"])


def cut_batches(
    examples: Iterable[T], batch_tokens: int, length: Callable[[T], int], rows: Callable[[T], int]
) -> Iterator[list[T]]:
    """Cuts examples of rising length into batches, each as large as the budget of tokens allows."""
    batch: list[T] = []
    size = 0
    for example in examples:
        if batch and (size + rows(example)) * length(example) > batch_tokens:
            yield batch
            batch, size = [], 0
        batch.append(example)
        size += rows(example)
    if batch:
        yield batch


def one_row(example: object) -> int:
    """Returns 1, the number of rows of an example that is one sequence."""
    del example
    return 1


def padded(rows: Sequence[Sequence[int] | Ids], fill: int, length: int = 0) -> Tensor:
    """Puts ids of different length into one tensor, filled on the right: int64, (rows, longest or `length`)."""
    tensors = [torch.as_tensor(row, dtype=torch.int64) for row in rows]
    ids = pad_sequence(tensors, batch_first=True, padding_value=fill)
    return ids if ids.shape[1] >= length else pad(ids, (0, length - ids.shape[1]), value=fill)


def attention_mask(rows: Sequence[Sequence[int] | Ids], length: int = 0) -> Tensor:
    """Makes the attention mask of padded rows: 1 for tokens, 0 for padding, int64, (rows, longest or `length`)."""
    return padded([np.ones(len(row), dtype=np.int64) for row in rows], 0, length)


def padded_inputs(
    ids: Sequence[Sequence[int]], segments: Sequence[Sequence[int]], pad_id: int, length: int = 0
) -> dict[str, Tensor]:
    """Pads rows to `input_ids`, `attention_mask` and, where the model has segments, `token_type_ids`.

    Args:
        ids: token ids of every row.
        segments: segment of every token by row; empty where the model does not tell segments apart.
        pad_id: any id that the model can embed.
        length: what rows are padded to at least.

    Returns:
        Arguments of the model by name, each (rows, longest or `length`).
    """
    inputs = {"input_ids": padded(ids, pad_id, length), "attention_mask": attention_mask(ids, length)}
    return inputs | ({"token_type_ids": padded(segments, 0, length)} if any(segments) else {})


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples that go through a model together; tensors (batch, length), padded on the right.

    Args:
        inputs: arguments of the model: `input_ids`, `attention_mask` and, of pairs, `decoder_input_ids`,
            `decoder_attention_mask`; of pairs in one sequence `token_type_ids`, where the model tells them apart.
        source: kinds and units of the tokens of `input_ids`.
        target: kinds and units of the tokens of `decoder_input_ids`; None without a decoder.
        examples: the encoded examples, one per row.
    """

    inputs: dict[str, Tensor]
    source: Tokens
    target: Tokens | None
    examples: Sequence[EncodedExample]

    def to(self, device: torch.device | str) -> Batch:
        """Returns the batch with all of its tensors copied to a device at once."""
        return Batch(*copied_together((self.inputs, self.source, self.target), device), self.examples)


def token_budget_batches(
    examples: Iterable[EncodedExample],
    batch_tokens: int,
    pool: int = POOL,
    group: Callable[[EncodedExample], int] | None = None,
    padded_length: PaddedLength = int,
) -> Iterator[list[EncodedExample]]:
    """Puts encoded examples of similar length together, see `pooled_batches`; of pairs the longer side counts."""
    return pooled_batches(examples, batch_tokens, lambda e: padded_length(e.length), one_row, pool, group)


def collate(
    examples: Sequence[EncodedExample],
    *,
    pad_id: int,
    device: torch.device | str,
    padded_length: PaddedLength = int,
) -> Batch:
    """Pads examples and moves them to a device.

    Either all examples have a target or none.

    Args:
        examples: the rows of the batch.
        pad_id: any id that the model can embed; what is padding is known from the masks, never from the id.
        device: where the tensors go.
        padded_length: gives what rows are padded to, from the longest; by default that.

    Raises:
        ValueError: if only some of the examples have a target.
    """
    targets = [e.target for e in examples if e.target is not None]
    if targets and len(targets) < len(examples):
        raise ValueError("all examples of a batch need a target, or none")
    inputs, source = _side([e.source for e in examples], pad_id, padded_length)
    target = None
    if targets:
        decoder, target = _side(targets, pad_id, padded_length)
        inputs |= {f"decoder_{name}": tensor for name, tensor in decoder.items()}
    return Batch(inputs, source, target, examples).to(device)


def _side(
    rows: Sequence[EncodedSequence], pad_id: int, padded_length: PaddedLength
) -> tuple[dict[str, Tensor], Tokens]:
    """Pads one side of the examples to the arguments of the model and what is known of every token."""
    length = padded_length(max(len(row.ids) for row in rows))
    inputs = padded_inputs([row.ids for row in rows], [row.segments for row in rows], pad_id, length)
    # (batch, length) each
    kinds = padded([row.kinds for row in rows], int(TokenKind.SPECIAL), length)  # padding is special and nothing else
    units = padded([row.units for row in rows], UNALIGNED, length)
    n_units = torch.tensor([row.n_units for row in rows], dtype=torch.int64)
    most = int(n_units.max())
    row, column = (units >= 0).nonzero(as_tuple=True)
    cells = row * most + units[row, column]  # place of a token's unit in the flat table of units, (batch, most)
    tokens = Tokens(
        real=inputs["attention_mask"].bool(),
        **{str(kind.name).lower(): (kinds & int(kind)) != 0 for kind in TokenKind},
        word=units,
        n_words=n_units,
        n_pieces=torch.bincount(cells, minlength=len(units) * most).view(len(units), most),
        ids=inputs["input_ids"],
    )
    return inputs, tokens

"""Batches of about equal cost, and the tensors a model reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headlens.attention.contract import Tokens
from headlens.corpora.batching import POOL, one_row, pooled_batches
from headlens.corpora.collate import padded
from headlens.corpora.encoding import EncodedExample, EncodedSequence, TokenKind

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples that go through a model together; tensors (batch, length), padded on the right.

    Args:
        inputs: arguments of the model: `input_ids`, `attention_mask` and, of pairs, `decoder_input_ids`,
            `decoder_attention_mask`; of pairs in one sequence `token_type_ids`, where the model tells them apart.
        source: what the tokens of `input_ids` are.
        target: what the tokens of `decoder_input_ids` are.
        examples: the rows.
    """

    inputs: dict[str, Tensor]
    source: Tokens
    target: Tokens | None
    examples: Sequence[EncodedExample]


def token_budget_batches(
    examples: Iterable[EncodedExample], batch_tokens: int, pool: int = POOL
) -> Iterator[list[EncodedExample]]:
    """`pooled_batches` of encoded examples; of pairs the longer side counts."""
    return pooled_batches(examples, batch_tokens, lambda e: e.length, one_row, pool)


def collate(examples: Sequence[EncodedExample], *, pad_id: int, device: torch.device | str) -> Batch:
    """Pad examples and move them to a device.

    Either all examples have a target or none.

    Args:
        examples: the rows of the batch.
        pad_id: any id that the model can embed; what is padding is known from the masks, never from the id.
        device: where the tensors go.

    Raises:
        ValueError: if only some of the examples have a target.
    """
    targets = [e.target for e in examples if e.target is not None]
    if targets and len(targets) < len(examples):
        raise ValueError("all examples of a batch need a target, or none")
    inputs, source = _side([e.source for e in examples], pad_id)
    target = None
    if targets:
        decoder, target = _side(targets, pad_id)
        inputs |= {f"decoder_{name}": tensor for name, tensor in decoder.items()}
        target = target.to(device)
    return Batch({k: v.to(device) for k, v in inputs.items()}, source.to(device), target, examples)


def _side(rows: Sequence[EncodedSequence], pad_id: int) -> tuple[dict[str, Tensor], Tokens]:
    """Model inputs and token information of one side."""
    lengths = np.array([len(row) for row in rows])
    real = np.arange(lengths.max()) < lengths[:, None]  # (batch, length)
    kinds = padded([row.kinds for row in rows], int(TokenKind.SPECIAL)).numpy()
    units = padded([row.units for row in rows], -1).numpy()
    n_units = np.array([row.n_units for row in rows], dtype=np.int64)
    ids = padded([row.ids for row in rows], pad_id)
    inputs = {"input_ids": ids, "attention_mask": torch.from_numpy(real.astype(np.int64))}
    if any(row.segments for row in rows):
        inputs["token_type_ids"] = padded([row.segments for row in rows], 0)
    return inputs, replace(_tokens(real, kinds, units, n_units), ids=ids)


def _tokens(real: Booleans, kinds: Integers, units: Integers, n_units: Integers) -> Tokens:
    """Unpack the bits of `TokenKind`; padding is special and nothing else."""

    def has(kind: TokenKind) -> Tensor:
        return torch.from_numpy((kinds & int(kind)) != 0)

    return Tokens(
        real=torch.from_numpy(real),
        special=has(TokenKind.SPECIAL),
        cls=has(TokenKind.CLS),
        sep=has(TokenKind.SEP),
        bos=has(TokenKind.BOS),
        eos=has(TokenKind.EOS),
        punct=has(TokenKind.PUNCT),
        word=torch.from_numpy(units),
        n_words=torch.from_numpy(n_units),
        n_pieces=torch.from_numpy(_count_pieces(units, int(n_units.max()))),
    )


def _count_pieces(units: Integers, most: int) -> Integers:
    """Tokens of every unit; (batch, most)."""
    row, column = np.nonzero(units >= 0)
    cells = row * most + units[row, column]
    return np.bincount(cells, minlength=len(units) * most).reshape(len(units), most).astype(np.int64)

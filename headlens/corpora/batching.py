"""Batches of about equal cost: as many examples as a number of tokens allows, padding included."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from headlens.errors import OptionError

POOL = 4096  # examples that are held and sorted together
T = TypeVar("T")


def pooled_batches(
    examples: Iterable[T], batch_tokens: int, length: Callable[[T], int], rows: Callable[[T], int], pool: int = POOL
) -> Iterator[list[T]]:
    """Put examples of similar length together, so that little of a batch is padding.

    `pool` examples at a time are held and sorted by length; the order depends on the examples alone.

    Args:
        examples: read once, lazily.
        batch_tokens: most tokens of a batch, padding among them; a longer example is a batch of its own.
        length: tokens of an example's longest row.
        rows: how many rows of input it has.
        pool: how many examples are sorted together.

    Raises:
        OptionError: if `batch_tokens` or `pool` is not positive.
    """
    for name, value in (("batch-tokens", batch_tokens), ("pool", pool)):
        if value < 1:
            raise OptionError(f"--{name} {value} is not a positive number.", "4096 suits most machines.")
    return _pools(iter(examples), batch_tokens, length, rows, pool)


def _pools(
    examples: Iterator[T], batch_tokens: int, length: Callable[[T], int], rows: Callable[[T], int], pool: int
) -> Iterator[list[T]]:
    while held := list(islice(examples, pool)):
        yield from cut_batches(sorted(held, key=length), batch_tokens, length, rows)


def cut_batches(
    examples: Iterable[T], batch_tokens: int, length: Callable[[T], int], rows: Callable[[T], int]
) -> Iterator[list[T]]:
    """Cut examples of rising length into batches, each as long as the tokens allow."""
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
    """The rows of examples that are one sequence each."""
    del example
    return 1

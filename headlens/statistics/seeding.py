"""Random numbers that belong to a sentence: the same in every batch and shard of a corpus.

A sentence is known by its id. In treebanks that is its own, so that the order of the sentences does not matter; rows of
tables and lines of texts have their number.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np


def generator_of(key: str, seed: int) -> np.random.Generator:
    """A random generator that depends on nothing but its arguments.

    Args:
        key: key of the sentence, which no other has (`EncodedExample.key`).
        seed: another one gives other numbers for the same sentence.
    """
    salt = seed.to_bytes(8, "little", signed=True)
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16, salt=salt).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))

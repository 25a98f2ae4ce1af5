"""Tokenizers of these tests have fewer tokens."""

from small_vocabulary import small_wordpiece  # noqa: F401

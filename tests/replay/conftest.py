"""A small WordPiece, whose vocabulary does not outweigh the tiny models that are tried."""

from found_once import programs_found_once  # noqa: F401
from small_vocabulary import frequent_wordpiece, whole_wordpiece  # noqa: F401

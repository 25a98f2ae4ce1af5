"""Loading the tokenizer of a checkpoint."""

from __future__ import annotations

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from headlens.errors import ModelError
from headlens.models.checkpoint_files import CheckpointFiles
from headlens.models.loading_errors import first_line

# Where vocabularies are kept, besides the files that a tokenizer's class names itself.
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json", "spiece.model", "tekken.json")


def load_tokenizer(files: CheckpointFiles) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a checkpoint; None if it has none, as with models of images or sound.

    transformers makes up a tokenizer with an empty vocabulary where there is none: every word would be an unknown
    one, in silence. So a tokenizer without a file of its own does not count.

    Raises:
        ModelError: if there is a tokenizer that cannot be read.
    """
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(files.place, **files.trusting)
    except Exception as error:
        # Tokenizers raise everything from KeyError to a bare Exception, for missing files and for broken ones.
        file = files.first(*_VOCABULARIES)
        if file is None:
            return None
        raise ModelError(
            f"{files.place}: the tokenizer cannot be read ({type(error).__name__}: {first_line(error)}).",
            f"Look at its {file}; it may be damaged, or may need a package that is not installed.",
        ) from error
    longest = tokenizer.model_max_length
    if isinstance(longest, bool) or not isinstance(longest, (int, float)) or not longest > 0:
        raise ModelError(
            f"{files.place}: the model_max_length of its tokenizer is {longest!r}, which is not a number of tokens.",
            "Correct it in tokenizer_config.json.",
        )
    names = tuple(tokenizer.vocab_files_names.values())  # None for tokenizers of bytes or characters
    return tokenizer if not names or files.first(*_VOCABULARIES, *names) else None

"""Loading the tokenizer of a checkpoint, and what is odd about its vocabulary."""

from __future__ import annotations

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from headlens.errors import ModelError
from headlens.models.checkpoint_files import CheckpointFiles
from headlens.models.loading_errors import first_line

CASED = 0.01  # share of tokens with capitals from which a vocabulary counts as cased
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
            f"Look at its {file}; it may be damaged, or need a package that is not installed.",
        ) from error
    names = tuple(tokenizer.vocab_files_names.values())  # None for tokenizers of bytes or characters
    return tokenizer if not names or files.first(*_VOCABULARIES, *names) else None


def case_notes(tokenizer: PreTrainedTokenizerBase | None) -> list[str]:
    """Tells of a vocabulary with capitals that is read in lower case, as BERT's is without a tokenizer_config.json."""
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    lowers = normalizer is not None and normalizer.normalize_str("A") == "a"
    if tokenizer is None or not (lowers or (not tokenizer.is_fast and getattr(tokenizer, "do_lower_case", False))):
        return []
    vocabulary = set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens) - set(tokenizer.added_tokens_encoder)
    capitals = sum(token != token.lower() for token in vocabulary)
    if capitals < CASED * len(vocabulary):
        return []
    return [
        f"The tokenizer writes text in lower case, but {capitals:,} of the {len(vocabulary):,} tokens it knows have "
        'capitals: is the vocabulary a cased one? If so, put {"do_lower_case": false} into its tokenizer_config.json.'
    ]

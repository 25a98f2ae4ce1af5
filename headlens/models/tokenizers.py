"""The tokenizer a checkpoint brings, or the knowledge that it brings none."""

from __future__ import annotations

from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from headlens.errors import ModelError

# Where vocabularies are kept, besides the files that a tokenizer's class names itself.
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json", "spiece.model", "tekken.json")


def load_tokenizer(place: str, **shared: str | bool) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a checkpoint; None if it has none, as with models of images or sound.

    transformers makes up a tokenizer with an empty vocabulary where there is none: every word would be an unknown
    one, in silence. So a tokenizer without a file of its own does not count.

    Args:
        place: a folder or hub id.
        shared: arguments of `from_pretrained`.

    Raises:
        ModelError: if there is a tokenizer that cannot be read.
    """
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(place, **shared)
    except Exception as error:
        # Tokenizers raise everything from KeyError to a bare Exception, for missing files and for broken ones.
        found = _first_file(place, _VOCABULARIES, shared)
        if found is None:
            return None
        raise ModelError(
            f"{place}: the tokenizer cannot be read ({type(error).__name__}: {_first_line(error)}).",
            f"Look at its {found}; it may be damaged, or need a package that is not installed.",
        ) from error
    names = tuple(tokenizer.vocab_files_names.values())  # None for tokenizers of bytes or characters
    return tokenizer if not names or _first_file(place, (*_VOCABULARIES, *names), shared) else None


def _first_file(place: str, names: tuple[str, ...], shared: dict[str, str | bool]) -> str | None:
    own = {k: v for k, v in shared.items() if k != "trust_remote_code"}
    return next((name for name in names if _is_there(place, name, own)), None)


def _is_there(place: str, name: str, arguments: dict[str, str | bool]) -> bool:
    try:
        return cached_file(place, name, **arguments) is not None
    except OSError:
        return False


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")

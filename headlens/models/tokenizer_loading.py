"""Loads the tokenizer of a checkpoint, with the tokenizer.json as it stands where transformers rebuilds parts of it.

transformers 5 takes the vocabulary of tokenizer.json, and gives it the normaliser, pre-tokeniser and post-processor of
the class that tokenizer_config.json or config.json names, whatever the file has: digits, letters and special tokens
can differ from those that the model was trained with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from headlens.errors import ModelError
from headlens.models.checkpoint_files import CheckpointFiles
from headlens.models.loading_errors import first_line
from headlens.nested_text import parse_json

# Where vocabularies are kept, besides the files that a tokenizer's class names itself.
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json", "spiece.model", "tekken.json")
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
# Settings of tokenizer_config.json that go before tokenizer.json, as in transformers 4: attributes of BertNormalizer.
_BERT = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
_EMPTY = {"type": "WordLevel", "vocab": {}, "unk_token": ""}  # with which the other parts are read without words
# Texts that classes of tokenizers cut in different ways: cases, accents, digits, spaces, marks, scripts, long words.
_TRIED = (
    "Zoë's  3 Cafés of 1999 can't open\tat 12:45 -- e.g. A_b/c-d, ﬁne ½ №7!?",
    " The THE the  İstanbul'da naïve 東京へ行く 한국어 Straße\n«oui» … $3.50 x=y+1 🙂 #tag user@example.org ",
    f"{'supercalifragilistic' * 6} aaaaaaaaaa 0123456789",
)


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
        if (file := next(filter(files.path, _VOCABULARIES), None)) is None:
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
    return tokenizer if not names or any(map(files.path, (*_VOCABULARIES, *names))) else None


def id_tokenizer(size: int) -> PreTrainedTokenizerBase:
    """Returns what reads ids of tokens, numbers with white space between them; it adds none, and has no special ones.

    Args:
        size: how many ids the model has embeddings for.
    """
    backend = Tokenizer(WordLevel({str(number): number for number in range(size)}))
    backend.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=["input_ids", "attention_mask"])


def follow_file(tokenizer: PreTrainedTokenizerBase, path: Path, stated: Mapping[str, Any]) -> list[str]:
    """Gives a tokenizer the parts that its tokenizer.json has, where those of its class are others.

    Languages, which change the special tokens, stay as the class has them. Classes of code that comes with a model are
    left as they are.

    Args:
        tokenizer: the tokenizer, which is changed.
        path: its tokenizer.json.
        stated: what tokenizer_config.json says.

    Returns:
        What to know where texts are cut otherwise than by transformers; nothing where they are cut alike.

    Raises:
        Exception: of the package tokenizers, which has no kinds of its own, if the file cannot be read.
    """
    made: Any = tokenizer
    if not tokenizer.is_fast or not type(tokenizer).__module__.startswith("transformers."):
        return []
    content = parse_json(path.read_text(encoding="utf-8"))
    # As somebody saved them, perhaps shorter than what is tried; every call of transformers sets its own.
    made.backend_tokenizer.no_truncation()
    made.backend_tokenizer.no_padding()
    backend, notes = made.backend_tokenizer, _cut_alike(made.backend_tokenizer, content["model"])
    tried = [text for text in _TRIED if _is_read(made, text)]
    before = [_cut(made, text) for text in tried]
    # The words are read again only where something about them differs: of large vocabularies that takes seconds.
    rest = {**content, "model": _EMPTY, "added_tokens": []}
    parts, changed = Tokenizer.from_str(json.dumps(rest)), []
    _override(parts, stated)
    has_languages = hasattr(made, "set_src_lang_special_tokens")
    if not _has_model(backend, content["model"]) or not _has_added(backend, content, stated):
        made._tokenizer = backend = _with_words_of(path, backend)
        _cut_alike(backend, content["model"])
        changed.append("vocabulary")
    for name in _PARTS:
        part = getattr(parts, name)
        if _state(part) != _state(getattr(backend, name)) and not (name == "post_processor" and has_languages):
            setattr(backend, name, part)
            changed += [name] if name != "decoder" else []  # which cuts nothing
    if [_cut(made, text) for text in tried] != before:
        notes.append(
            f"Text is cut into tokens as the checkpoint's tokenizer.json says; {type(tokenizer).__name__} of "
            f"transformers {transformers.__version__} would use another {' and '.join(changed)}."
        )
    return notes


def _cut_alike(backend: Any, written: Mapping[str, Any]) -> list[str]:
    """Makes a tokenizer cut a text the same way every time, and tells where its file has it cut at random."""
    if not (dropout := written.get("dropout")):
        return []
    if hasattr(backend.model, "dropout"):
        backend.model.dropout = None
    return [f"tokenizer.json cuts words at random (dropout {dropout:g}), as in training; headlens does not."]


def _is_read(tokenizer: Any, text: str) -> bool:
    """Whether a tokenizer knows all of a text, or has a token for what it does not know."""
    try:
        _cut(tokenizer, text)
    except Exception:  # the package tokenizers has no kinds of its own
        return False
    return True


def _cut(tokenizer: Any, text: str) -> list[Any]:
    """The tokens of a text alone, and of one in two parts with their segments."""
    two = tokenizer.backend_tokenizer.encode(text, "b 1")
    return [tokenizer.backend_tokenizer.encode(text).ids, two.ids, two.type_ids]


def _state(part: Any) -> Any:
    return None if part is None else json.loads(part.__getstate__())


def _override(parts: Tokenizer, stated: Mapping[str, Any]) -> None:
    """Changes parts of a file by what tokenizer_config.json says."""
    normalizer, splitter = parts.normalizer, parts.pre_tokenizer
    for setting, attribute in _BERT.items():
        if hasattr(normalizer, attribute) and isinstance(stated.get(setting), bool):
            setattr(normalizer, attribute, stated[setting])
    if isinstance(space := stated.get("add_prefix_space"), bool):
        if hasattr(splitter, "add_prefix_space"):
            splitter.add_prefix_space = space
        elif (scheme := getattr(splitter, "prepend_scheme", None)) and (scheme != "never") != space:
            splitter.prepend_scheme = "always" if space else "never"
    parts.normalizer, parts.pre_tokenizer = normalizer, splitter


def _has_model(backend: Tokenizer, written: Mapping[str, Any]) -> bool:
    """Whether a tokenizer has the kind, the settings and the vocabulary that a tokenizer.json says, not its merges."""
    model, vocabulary = backend.model, written["vocab"]
    if isinstance(vocabulary, list):  # with the score of every token
        vocabulary = {entry[0]: number for number, entry in enumerate(vocabulary)}
    others = {name: value for name, value in written.items() if name not in ("type", "vocab", "merges", "dropout")}
    return (
        written.get("type") in (None, type(model).__name__)
        and all((getattr(model, name, None) or None) == (value or None) for name, value in others.items())
        and backend.get_vocab(with_added_tokens=False) == vocabulary
    )


def _has_added(backend: Tokenizer, content: Mapping[str, Any], stated: Mapping[str, Any]) -> bool:
    """Whether a tokenizer has the tokens that tokenizer.json adds, but for those that tokenizer_config.json states."""
    known, others = backend.get_added_tokens_decoder(), stated.get("added_tokens_decoder") or {}
    listed = ((token["id"], {k: v for k, v in token.items() if k != "id"}) for token in content.get("added_tokens", ()))
    added = {number: AddedToken(**token) for number, token in listed if str(number) not in others}
    return all(number in known and repr(known[number]) == repr(token) for number, token in added.items())


def _with_words_of(path: Path, made: Tokenizer) -> Tokenizer:
    """The tokenizer of a file, with the tokens that were added to another, and the parts and settings of that."""
    as_written = Tokenizer.from_file(str(path))
    known = as_written.get_added_tokens_decoder().values()
    names = {token.content for token in known}
    as_written.add_tokens([t for _, t in sorted(made.get_added_tokens_decoder().items()) if t.content not in names])
    as_written.encode_special_tokens = made.encode_special_tokens
    as_written.no_truncation()
    as_written.no_padding()
    for name in _PARTS:
        setattr(as_written, name, getattr(made, name))
    return as_written

"""Vocabularies of a model's own, learned from the text it is to be trained on."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import MarianTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from headlens.errors import OptionError

_FILES = {"source_spm": "source.spm", "target_spm": "target.spm", "vocab": "vocab.json"}
_BERT = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}


def wordpiece_tokenizer(texts: Iterable[str], size: int, longest: int = 512) -> PreTrainedTokenizerBase:
    """A lower-casing WordPiece vocabulary as BERT has it.

    Args:
        texts: read once.
        size: pieces, the five special ones included; small texts may yield fewer.
        longest: tokens that the model reads.

    Raises:
        OptionError: if `size` leaves no room for letters.
    """
    _check(size)
    counts = _words(texts)
    letters = sorted({letter for word in counts for letter in word})
    # The trainer numbers letters inside words in random order, and ties between merges follow these numbers; what is
    # called special it numbers as told.
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    draft = Tokenizer(models.WordPiece(unk_token=_BERT["unk"]))
    draft.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fixed = [*special, *letters, *(f"##{letter}" for letter in letters)]
    trainer = trainers.WordPieceTrainer(vocab_size=max(size, len(fixed)), special_tokens=fixed, show_progress=False)
    draft.train_from_iterator((" ".join([word] * n) for word, n in sorted(counts.items())), trainer)
    tokenizer = Tokenizer(models.WordPiece(draft.get_vocab(), unk_token=_BERT["unk"]))
    tokenizer.add_special_tokens(special)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    named = {f"{name}_token": token for name, token in _BERT.items()}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=longest,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **named,
    )


def marian_tokenizer(texts: Iterable[str], size: int, folder: Path, longest: int = 512) -> PreTrainedTokenizerBase:
    """Marian's tokenizer with one SentencePiece vocabulary (BPE) for both languages.

    Args:
        texts: of both languages; read once.
        size: pieces, the special ones included; small texts may yield fewer.
        folder: where its files go; it must be there.
        longest: tokens that the model reads.

    Raises:
        OptionError: if `size` is too small for the letters of the text.
    """
    _check(size)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(text for text in texts if text.strip()),
            model_prefix=str(folder / "source"),
            model_type="bpe",
            vocab_size=size - 1,
            hard_vocab_limit=False,
            character_coverage=1.0,
            minloglevel=2,
        )
    except RuntimeError as error:
        message = str(error).strip()
        reason = message.splitlines()[-1].rstrip(".")[:200] if message else type(error).__name__
        raise OptionError(
            f"No vocabulary of {size} pieces can be made of this text: {reason}.",
            "Give another --vocabulary, or more text.",
        ) from error
    (folder / "source.vocab").unlink()
    (folder / "source.model").rename(folder / "source.spm")
    (folder / "target.spm").write_bytes((folder / "source.spm").read_bytes())
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "source.spm"))
    pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    names = dict.fromkeys(["</s>", "<unk>", *(p for p in pieces if p not in ("<s>", "</s>", "<unk>")), "<pad>"])
    vocabulary = {piece: number for number, piece in enumerate(names)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    files: dict[str, Any] = {name: str(folder / file) for name, file in _FILES.items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Recommended: pip install sacremoses")
        return MarianTokenizer(**files, model_max_length=longest)


def _words(texts: Iterable[str]) -> Counter[str]:
    """How often each word occurs, as BERT cuts and lower-cases text."""
    normalise, cut = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in cut.pre_tokenize_str(normalise.normalize_str(text)))
    return counts


def _check(size: int) -> None:
    if size < 32:
        raise OptionError(f"--vocabulary {size} is too small.", "8000 suits a small corpus, 32000 a large one.")

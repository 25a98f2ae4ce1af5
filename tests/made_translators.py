"""Tiny translation models that have to be told their languages, with tokenizers of their own."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import sentencepiece
from saved import build, save
from transformers import (
    M2M100Tokenizer,
    MBart50Tokenizer,
    MBartTokenizer,
    NllbTokenizer,
    PreTrainedTokenizerBase,
)

from headlens.languages import language_tokens

CHARACTERS = ["▁", *string.ascii_lowercase]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
SOURCE, TARGET = "a cat sees the dog", "die katze sieht den hund"
# By model: class, codes of source and target, and settings as published models have them.
MODELS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "m2m100": ("M2M100ForConditionalGeneration", "fr", "de", {"decoder_start_token_id": 2}),
    "nllb": ("M2M100ForConditionalGeneration", "fra_Latn", "deu_Latn", {"decoder_start_token_id": 2}),
    "nllb-legacy": ("M2M100ForConditionalGeneration", "fra_Latn", "deu_Latn", {"decoder_start_token_id": 2}),
    "mbart": ("MBartForConditionalGeneration", "fr_XX", "de_DE", {}),
    "mbart50": ("MBartForConditionalGeneration", "fr_XX", "de_DE", {"decoder_start_token_id": 2}),
}
SIZES = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 64}
SIZES |= {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}


def m2m100(folder: Path) -> PreTrainedTokenizerBase:
    """Its slow tokenizer, with a SentencePiece model and a vocabulary of its pieces."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([SOURCE, TARGET, string.ascii_lowercase]),
        model_prefix=str(folder / "spm"),
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
    pieces = [processor.id_to_piece(i) for i in range(3, processor.get_piece_size())]
    (folder / "vocab.json").write_text(json.dumps({p: i for i, p in enumerate([*SPECIAL, *pieces])}))
    return M2M100Tokenizer(str(folder / "vocab.json"), str(folder / "spm.model"))


def made_tokenizer(name: str, folder: Path) -> PreTrainedTokenizerBase:
    scored = [(token, 0.0) for token in SPECIAL] + [(c, -2.0) for c in CHARACTERS]
    if name == "m2m100":
        return m2m100(folder)
    if name.startswith("nllb"):
        words = {t: i for i, t in enumerate([*SPECIAL, *CHARACTERS])}
        return NllbTokenizer(vocab=words, merges=[], legacy_behaviour=name == "nllb-legacy")
    codes = MBartTokenizer() if name == "mbart" else MBart50Tokenizer()
    named = [(code, 0.0) for code in sorted(language_tokens(codes))]
    return type(codes)(vocab=[*scored, *named, ("<mask>", 0.0)])


def saved_translator(name: str, place: Path) -> str:
    """One of `MODELS` in a folder, which states no languages."""
    kind, _, _, settings = MODELS[name]
    tokenizer = made_tokenizer(name, place)
    usual = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "forced_eos_token_id": 2}
    size = max(len(tokenizer), *(i + 1 for i in language_tokens(tokenizer).values()))
    return save(build(kind, size, **SIZES, **usual, **settings), place / "model", tokenizer)

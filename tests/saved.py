"""Tiny models with random weights, saved as users have them: a folder with weights, configuration, tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.corpora.conllu import ConlluCorpus
from headlens.corpora.sentence import ROOT, Example, Sentence, Word

Weights = dict[str, Tensor]
SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 40,
}
PAIR: dict[str, Any] = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "max_position_embeddings": 40,
}
GPT2: dict[str, Any] = {
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 16,
    "n_positions": 40,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
T5: dict[str, Any] = {
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 16,
    "num_layers": 2,
    "num_heads": 2,
    "decoder_start_token_id": 0,
}


def build(name: str, vocabulary: int = 60, **settings: Any) -> PreTrainedModel:
    """A model by the name of its class, such as "BertModel", with weights that give sharp attention."""
    usual = PAIR if name.startswith(("Marian", "Bart")) else GPT2 if "GPT2" in name else T5 if "T5" in name else SMALL
    cls = getattr(transformers, name)
    config = cls.config_class(**{"vocab_size": vocabulary, **usual, **settings})
    model: PreTrainedModel = cls(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model.eval()


def save(model: PreTrainedModel, folder: Path, tokenizer: PreTrainedTokenizerBase | None = None) -> str:
    """Save without loading bars and messages; the folder as a name to load."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
    finally:
        transformers.logging.set_verbosity(verbosity)
        transformers.logging.enable_progress_bar()
    return str(folder)


def rewrite(folder: str, change: Callable[[Weights], Weights | None], **settings: Any) -> str:
    """Changes the weights of a checkpoint and its config.json; a setting that is None is taken out."""
    path, config = Path(folder) / "model.safetensors", Path(folder) / "config.json"
    weights = load_file(path)
    weights = change(weights) or weights
    save_file({k: v.clone().contiguous() for k, v in weights.items()}, path, metadata={"format": "pt"})
    content = json.loads(config.read_text()) | settings
    config.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
    return folder


def prefixed(prefix: str, among: str = "") -> Callable[[Weights], Weights]:
    """Puts something before the names of all weights, or of those that begin with `among`."""
    return lambda weights: {(f"{prefix}{k}" if k.startswith(among) else k): v for k, v in weights.items()}


def without(*parts: str) -> Callable[[Weights], Weights]:
    """Takes out the weights whose names have one of these in them."""
    return lambda weights: {k: v for k, v in weights.items() if not any(part in k for part in parts)}


@dataclass(frozen=True)
class Memory:
    """A corpus in memory."""

    examples: Sequence[Example]
    name: str = "memory"

    def __iter__(self) -> Iterator[Example]:
        return iter(self.examples)


def sentence(text: str, heads: Sequence[int] = (), relations: Sequence[str] = ()) -> Sentence:
    """Words between spaces, with the indices of their heads (-1 for the root) if there is a tree."""
    words, start = [], 0
    for i, form in enumerate(text.split(" ")):
        tree = (heads[i], relations[i]) if heads else (None, None)
        words.append(Word(form, start, start + len(form), *tree))
        start += len(form) + 1
    return Sentence(text, tuple(words))


def tree(*words: str) -> Sentence:
    """Subject, verb, adjective, object: "dogs chase small cats"."""
    return sentence(" ".join(words), (1, ROOT, 3, 1), ("nsubj", "root", "amod", "obj"))


def joined(sentences: Sequence[Sentence]) -> Sentence:
    """One tree of many: later roots hang on the first."""
    text, words = "", list[Word]()
    root = next(i for i, w in enumerate(sentences[0].words) if w.head == ROOT)
    for part in sentences:
        before, offset = len(words), len(text)
        for w in part.words:
            assert w.head is not None
            head = w.head + before if w.head != ROOT else root if before else ROOT
            words.append(Word(w.form, w.start + offset, w.end + offset, head, w.relation))
        text += part.text + " "
    return Sentence(text.rstrip(), tuple(words), "long")


def read_conllu(path: str | Path) -> Iterator[Sentence]:
    """Streams the sentences of a CoNLL-U file."""
    return (example.source for example in ConlluCorpus(path))

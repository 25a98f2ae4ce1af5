"""Which kinds of models are known to work, and which are known not to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

# What every command does with families of models, as it was tried with tiny ones: see `commands_by_family`.
COMMANDS_FILE = Path(__file__).with_name("commands_by_family.json")


@dataclass(frozen=True)
class Family:
    """A kind of model that the test suite runs through every check of the seam.

    Args:
        model_type: the `model_type` of its configuration.
        title: its name in papers.
        stacks: the stacks that have heads.
        example: a well-known checkpoint.
    """

    model_type: str
    title: str
    stacks: tuple[str, ...]
    example: str


_ENCODER, _DECODER, _BOTH = ("encoder",), ("decoder",), ("encoder", "decoder", "cross")

FAMILIES = (
    Family("bert", "BERT", _ENCODER, "google-bert/bert-base-uncased"),
    Family("albert", "ALBERT", _ENCODER, "albert/albert-base-v2"),
    Family("roberta", "RoBERTa", _ENCODER, "FacebookAI/roberta-base"),
    Family("distilbert", "DistilBERT", _ENCODER, "distilbert/distilbert-base-uncased"),
    Family("electra", "ELECTRA", _ENCODER, "google/electra-small-discriminator"),
    Family("modernbert", "ModernBERT", _ENCODER, "answerdotai/ModernBERT-base"),
    Family("marian", "Marian (OPUS-MT)", _BOTH, "Helsinki-NLP/opus-mt-en-de"),
    Family("bart", "BART", _BOTH, "facebook/bart-base"),
    Family("m2m_100", "M2M100, NLLB", _BOTH, "facebook/m2m100_418M"),
    Family("t5", "T5 (from transformers 5.15 on)", _BOTH, "google-t5/t5-small"),
    Family("gpt2", "GPT-2", _DECODER, "openai-community/gpt2"),
    Family("opt", "OPT", _DECODER, "facebook/opt-125m"),
    Family("llama", "Llama", _DECODER, "meta-llama/Llama-3.2-1B"),
    Family("mistral", "Mistral", _DECODER, "mistralai/Mistral-7B-v0.1"),
    Family("vit", "ViT (only from Python; reads no text)", _ENCODER, "google/vit-base-patch16-224"),
    Family("whisper", "Whisper (only from Python; reads no text)", _BOTH, "openai/whisper-tiny"),
)

# These compute attention in their own forward pass, past transformers' registry.
UNSUPPORTED = ("DeBERTa", "MPNet", "XLM", "XLNet", "Longformer", "GPT-J", "BLOOM", "Falcon")


def commands_by_family() -> dict[str, dict[str, str]]:
    """Returns what commands do with families of models, by family and command.

    It was tried with a tiny model of each family with random weights; another model of it may have other settings.

    Returns:
        An empty text where a command works, else the first line of the refusal.
    """
    table: dict[str, dict[str, str]] = json.loads(COMMANDS_FILE.read_text(encoding="utf-8"))
    return table


def dispatching_model_types() -> list[str]:
    """Every model type of the installed transformers whose attention goes through the registry.

    Found by reading the modeling files, without importing them; sorted.
    """
    import transformers.models  # noqa: PLC0415 - costs seconds, and only this function needs it

    root = Path(transformers.models.__path__[0])
    sources = ((file, file.read_text(encoding="utf-8")) for file in root.glob("*/modeling_*.py"))
    return sorted({file.parent.name for file, text in sources if "ALL_ATTENTION_FUNCTIONS.get_interface(" in text})

"""Sizes of well-known models and data sets, for plans on machines that cannot ask the hub.

Shapes are those of the published configurations; counts of examples those of the data sets' pages; words of an example
are rounded means.
"""

from __future__ import annotations

from dataclasses import dataclass

from transformers import AlbertConfig, BertConfig, DistilBertConfig, PreTrainedConfig, RobertaConfig

# By the last part of the hub's name.
MODELS: dict[str, PreTrainedConfig] = {
    "bert-base-uncased": BertConfig(),
    "albert-base-v2": AlbertConfig(
        vocab_size=30000, hidden_size=768, num_attention_heads=12, intermediate_size=3072, num_hidden_layers=12
    ),
    "roberta-base": RobertaConfig(vocab_size=50265, max_position_embeddings=514),
    "distilbert-base-uncased": DistilBertConfig(),
}


@dataclass(frozen=True)
class KnownSplit:
    """A part of a data set: its examples, and the words of one, all its texts together."""

    examples: int
    words: float


def _glue(words: float, train: int, validation: int) -> dict[str, KnownSplit]:
    return {"train": KnownSplit(train, words), "validation": KnownSplit(validation, words)}


_SST2 = {"train": KnownSplit(67_349, 9.4), "validation": KnownSplit(872, 19.5)}
_MNLI = {"train": KnownSplit(392_702, 30.0)} | {
    f"validation_{kind}": KnownSplit(count, 30.0) for kind, count in (("matched", 9_815), ("mismatched", 9_832))
}
_WIKITEXT = {"validation": KnownSplit(3_760, 57.9), "test": KnownSplit(4_358, 56.4)}

DATA: dict[str, dict[str, KnownSplit]] = {
    "nyu-mll/glue:cola": _glue(7.7, 8_551, 1_043),
    "nyu-mll/glue:sst2": _SST2,
    "nyu-mll/glue:mrpc": _glue(44.0, 3_668, 408),
    "nyu-mll/glue:stsb": _glue(22.0, 5_749, 1_500),
    "nyu-mll/glue:qqp": _glue(22.0, 363_846, 40_430),
    "nyu-mll/glue:mnli": _MNLI,
    "nyu-mll/glue:qnli": _glue(37.0, 104_743, 5_463),
    "nyu-mll/glue:rte": _glue(53.0, 2_490, 277),
    "wmt/wmt19:ru-en": {"validation": KnownSplit(3_000, 21.0)},
    "Salesforce/wikitext:wikitext-2-raw-v1": _WIKITEXT | {"train": KnownSplit(36_718, 56.9)},
    "Salesforce/wikitext:wikitext-103-raw-v1": _WIKITEXT | {"train": KnownSplit(1_801_350, 57.3)},
}

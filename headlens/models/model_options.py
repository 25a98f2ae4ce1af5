"""The options of loading a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headlens.options import MODEL, option

Device = Literal["auto", "cpu", "cuda", "mps"]
DType = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class ModelOptions:
    """Device, type of the weights, revision, network access, and which files and code are trusted."""

    device: Device = option("auto", "Where to compute; auto: CUDA, MPS, CPU.", MODEL)
    dtype: DType = option("auto", "Type of the weights; auto: float32.", MODEL, flags=("--dtype",))
    revision: str | None = option(None, "Branch, tag or commit on the hub.", MODEL, shown="main")
    source_language: str | None = option(
        None,
        "Language of the sources, for models that have to be told (M2M100, NLLB, mBART, X-MOD).",
        MODEL,
        metavar="CODE",
    )
    target_language: str | None = option(
        None,
        "Language of the translations, for models that have to be told, also Marian's.",
        MODEL,
        metavar="CODE",
    )
    max_unknown: float = option(
        0.5,
        "Share of unknown tokens from which text is refused; 1: never.",
        MODEL,
        metavar="SHARE",
        at_least=0,
        at_most=1,
    )
    offline: bool = option(False, "Never ask the hub.", MODEL)
    allow_pickle: bool = option(
        False, "Load checkpoints that are not safetensors; can run any code.", MODEL, trusts=True
    )
    trust_remote_code: bool = option(False, "Run code that comes with the model.", MODEL, trusts=True)

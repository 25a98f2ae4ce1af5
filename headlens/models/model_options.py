"""The options of loading a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from headlens.options import DEMO, MODEL, option
from headlens.shared_options import MODEL_NAME, OFFLINE

Device = Literal["auto", "cpu", "cuda", "mps"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
Quantize = Literal["none", "8bit", "4bit"]
DeviceMap = Literal["none", "auto"]
TokenizerSource = Literal["checkpoint", "ids"]


@dataclass(frozen=True)
class ModelOptions:
    """Device, type of the weights, revision, network access, and which files and code are trusted."""

    device: Device = option("auto", "Device to compute on; auto: the first available of CUDA, MPS, CPU.", MODEL)
    dtype: DType = option("auto", "Data type of the weights; auto: float32.", MODEL, flags=("--dtype",))
    quantize: Quantize = option(
        "none",
        "Quantise weights by bitsandbytes when loading: 8bit, 4bit; for commands that only read.",
        MODEL,
        group="model-args",
    )
    device_map: DeviceMap = option(
        "none",
        "auto: keep what does not fit on the device in the machine's memory or on its disk (accelerate); for commands "
        "that only read.",
        MODEL,
        group="model-args",
    )
    tokenizer: TokenizerSource = option(
        "checkpoint",
        "ids: texts are ids of tokens, numbers with spaces between them, read as they stand; for models without a "
        "tokenizer.",
        MODEL,
        group="model-args",
    )
    revision: str | None = option(None, "Branch, tag or commit on the hub.", MODEL, shown="main", group="model-args")
    source_language: str | None = option(
        None,
        "Source language, for models that need to know it (M2M100, NLLB, mBART, X-MOD).",
        MODEL,
        metavar="CODE",
        group="model-args",
    )
    target_language: str | None = option(
        None,
        "Target language, for models that need to know it, including some Marian models.",
        MODEL,
        metavar="CODE",
        group="model-args",
    )
    max_unknown: float = option(
        0.5,
        "Refuse text in which this share of the tokens or more is unknown; 1: never refuse.",
        MODEL,
        metavar="SHARE",
        at_least=0,
        at_most=1,
        group="model-args",
    )
    offline: bool = option(False, OFFLINE)
    allow_pickle: bool = option(
        False,
        "Load pickle checkpoints (not safetensors), which can run arbitrary code.",
        MODEL,
        group="trust",
        trusts=True,
    )
    trust_remote_code: bool = option(
        False, "Run the Python code that comes with the model.", MODEL, group="trust", trusts=True
    )


@dataclass(frozen=True)
class CheckRequest:
    """What `headlens models check` is asked for."""

    model: str = option(DEMO, MODEL_NAME)
    model_options: ModelOptions = field(default_factory=ModelOptions)

"""A target for models of any kind, and the families that have rules throughout."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import zoo
from torch import Tensor
from transformers import PreTrainedModel

from headlens.relevance_propagation.targets import Inputs, Target

# Softcaps and sinks are more than a softmax; pictures and sounds come in through convolutions.
REFUSED = ("gemma2", "gpt-oss", "vit", "whisper")
# Their own attention computes the softmax in single precision, whatever the model's.
SINGLE = ("modernbert", "opt", "llama", "mistral", "qwen2", "qwen3", "phi")
WITH_RULES = [name for name in zoo.ZOO if name not in REFUSED]


def model_and_inputs(name: str, **settings: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
    """A tiny model, in double precision where it can compute in it, and a padded batch."""
    entry = zoo.ZOO[name]
    dtype = torch.float32 if name in SINGLE else torch.float64
    return entry.build(**settings).to(dtype), cast(zoo.padded(entry), dtype)


def cast(inputs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Inputs whose numbers are of a type."""
    return {k: v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in inputs.items()}


class FirstNeurons(Target):
    """A few neurons of the first position's first output."""

    name: ClassVar[str] = "first"

    def parts(self, outputs: Any, inputs: Inputs) -> Tensor:
        del inputs
        return outputs[0].flatten(1)[:, :4]

r"""Models with heads removed in EleutherAI's lm-evaluation-harness, which the extra `lm-eval` brings.

    python -m headlens.lm_eval run --model headlens --tasks lambada_openai \
        --model_args pretrained=openai-community/gpt2,heads=decoder.0.3+decoder.5.1

The module registers the model as `headlens` and is the program of the harness, with its other options as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from transformers import PreTrainedModel

from headlens.attention.attach_edit import attach_edit
from headlens.heads import parse_heads
from headlens.interventions.gates import HeadGates


class HeadlensLM(HFLM):  # type: ignore[misc] # the harness has no types
    """The model `hf` of the harness, whose outputs of some heads are set to 0 wherever it runs.

    Args:
        pretrained: as for `hf`: a name, a folder, or a loaded model.
        heads: those to remove, in a list or as text with `+` between names: `decoder.0.3+decoder.5.1`. Without any the
            model is as it is, by the same arithmetic.
        options: those of `hf`, such as `tokenizer`, `dtype` and `batch_size`.

    Raises:
        OptionError: if the model has no such head.
    """

    def __init__(self, pretrained: str | PreTrainedModel, heads: str | Sequence[str] = (), **options: Any) -> None:
        names = heads.split("+") if isinstance(heads, str) else list(heads)
        self.heads_removed = parse_heads([name.strip() for name in names if name.strip()])
        super().__init__(pretrained, **options)
        self._edit = ExitStack()
        self._edit.enter_context(attach_edit(self.model, HeadGates(dict.fromkeys(self.heads_removed, 0.0))))

    def close(self) -> None:
        """Gives a model that was loaded before back as it was."""
        self._edit.close()

    def get_model_info(self) -> dict[str, Any]:
        """Returns what the harness writes of the model with its results, and which heads were removed."""
        return {**super().get_model_info(), "heads_removed": [str(head) for head in self.heads_removed]}


register_model("headlens")(HeadlensLM)

if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()

"""Tiny models for tasks of all kinds, and requests to prune their heads."""

from __future__ import annotations

from pathlib import Path

from made_tasks import TASKS
from saved import build
from transformers import PreTrainedTokenizerBase

from headlens.analyses.ablate.options import AblateRequest, AblationOptions, PruneOptions
from headlens.models.loading import LoadedModel
from headlens.shared_options import OutputOptions
from headlens.tasks.task_heads import with_task_head
from headlens.tasks.task_options import TaskData

_SETTINGS = {
    "GPT2LMHeadModel": {},
    "MarianMTModel": {"pad_token_id": 0, "eos_token_id": 102, "decoder_start_token_id": 0},
    "BertModel": {"max_position_embeddings": 80},
}
_KINDS = {"causal-lm": "GPT2LMHeadModel", "translation-loss": "MarianMTModel"}


def judge(tokenizer: PreTrainedTokenizerBase, task: str = "sst2") -> LoadedModel:
    """A model with random weights for a task, with two layers of two heads in every stack."""
    kind = _KINDS.get(task, "BertModel")
    loaded = LoadedModel("tiny", build(kind, len(tokenizer), **_SETTINGS[kind]), tokenizer, None)
    return with_task_head(loaded, TASKS[task], 0) if kind == "BertModel" else loaded


def prune_request(model: str, data: str, folder: Path, pruning: PruneOptions) -> AblateRequest:
    """Asks for pruned models on a table of sentiments, without figures."""
    return AblateRequest(
        (model,),
        TaskData("sst2", (data,)),
        AblationOptions(replicates=100),
        pruning,
        figures=False,
        place=OutputOptions(folder),
    )

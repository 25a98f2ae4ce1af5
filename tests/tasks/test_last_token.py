"""Decoders that classify read their answer off the last token: that of a text, whatever pads its batch."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from made_tasks import example
from saved import build, rewrite, save
from tiers import rest_slow_rows
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from headlens.models.loading import LoadedModel, load
from headlens.tasks.catalogue import CATALOGUE
from headlens.tasks.example_sources import MemoryExamples
from headlens.tasks.task_examples import Examples
from headlens.tasks.task_heads import with_task_head

SST2 = {"id2label": {0: "negative", 1: "positive"}, "label2id": {"negative": 0, "positive": 1}}
TASK = CATALOGUE["sst2"].task


def logits_of_batch(loaded: LoadedModel) -> torch.Tensor:
    """Of texts of different lengths, in one batch, (texts, 2)."""
    source = MemoryExamples(tuple(example(TASK, n) for n in range(9)), "made")
    examples = Examples.of(TASK, source, loaded)
    assert len({p.length for p in examples.prepared}) > 2
    batch = TASK.collate(examples.prepared, examples.reader, loaded.device)
    with torch.no_grad():
        logits: torch.Tensor = TASK.network(loaded.model)(**batch.inputs).logits
    return logits


def logits_one_by_one(folder: str, tokenizer: PreTrainedTokenizerBase) -> torch.Tensor:
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    model.config.pad_token_id = None
    texts = [example(TASK, n).texts[0] for n in range(9)]  # type: ignore[union-attr]
    with torch.no_grad():
        return torch.cat([model(**tokenizer(text, return_tensors="pt")).logits for text in texts])


STATED = [("GPT2", stated) for stated in ("none", "beyond", "end", "word", "negative")]
STATED += [("Llama", stated) for stated in ("none", "end", "word", "negative")]  # which cannot be built with "beyond"


ADDED = [None, "[PAD]", "embedded", "end"]
FAST = [("GPT2", "none", None), ("GPT2", "beyond", "[PAD]"), ("GPT2", "word", "embedded"), ("GPT2", "negative", "end")]
FAST += [("Llama", "end", None), ("Llama", "none", "embedded"), ("Llama", "word", "[PAD]")]


@pytest.mark.parametrize(
    ("kind", "stated", "added"),
    rest_slow_rows([(kind, stated, added) for kind, stated in STATED for added in ADDED], FAST),
)
def test_the_batch_does_not_matter(
    tmp_path: Path, bytebpe_tokenizer: PreTrainedTokenizerBase, kind: str, added: str | None, stated: str
) -> None:
    """Whether config.json names a padding token or not, and whether the tokenizer has the same one."""
    tokenizer, words = copy.deepcopy(bytebpe_tokenizer), len(bytebpe_tokenizer)
    end = int(tokenizer.eos_token_id)
    if added is not None:
        tokenizer.add_special_tokens({"pad_token": {"embedded": "Z", "end": tokenizer.eos_token}.get(added, added)})
    model = build(f"{kind}ForSequenceClassification", words, pad_token_id=end, **SST2)
    number = {"none": None, "beyond": words, "end": end, "word": tokenizer.convert_tokens_to_ids("Q"), "negative": -1}
    folder = save(model, tmp_path / "model", tokenizer)
    rewrite(folder, lambda w: None, pad_token_id=number[stated])
    loaded = load(folder)
    torch.testing.assert_close(logits_of_batch(loaded), logits_one_by_one(folder, tokenizer), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pad", [None, "[PAD]"])
def test_nor_for_a_new_head(tmp_path: Path, bytebpe_tokenizer: PreTrainedTokenizerBase, pad: str | None) -> None:
    tokenizer = copy.deepcopy(bytebpe_tokenizer)
    if pad is not None:
        tokenizer.add_special_tokens({"pad_token": pad})
    loaded = load(save(build("GPT2LMHeadModel", len(bytebpe_tokenizer)), tmp_path / "model", tokenizer))
    headed = with_task_head(loaded, TASK, 0).model
    found = logits_of_batch(LoadedModel("tiny", headed, loaded.tokenizer, None))
    folder = save(headed, tmp_path / "headed", loaded.tokenizer)
    torch.testing.assert_close(found, logits_one_by_one(folder, tokenizer), rtol=1e-4, atol=1e-5)

"""How sparse attention is on a task: counted over the texts that a model reads, and over those that it wrote."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from saved import build
from tiers import rest_slow
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from headlens.analyses.sparsefinder.fitting import FittedSite
from headlens.analyses.sparsefinder.options import MetricOptions, ParameterGrid
from headlens.analyses.sparsefinder.predictors import QueryKeyProjections
from headlens.analyses.sparsefinder.restricted_task import RestrictedTask, opened_task, suited_task
from headlens.attention.model_normalizer import switch
from headlens.attention.normalizers import Entmax
from headlens.attention.session import AttentionSession
from headlens.corpora.sources import open_corpus
from headlens.models.loading import LoadedModel
from headlens.tables.sparsefinder_tables import GOLD
from headlens.tasks.evaluation import EvaluationOptions
from headlens.tasks.example_sources import MemoryExamples, SourceCounts
from headlens.tasks.examples import TextExample
from headlens.tasks.reader import Reader
from headlens.tasks.task import TaskBatch
from headlens.tasks.translation import Translation, read_while_writing

EXAMPLES = [
    TextExample("1", ("A cat sold the café.", "She cannot see.")),
    TextExample("2", ("It", "A cat sold.")),
    TextExample("3", ("She cannot see it today.", "It rains.")),
]
WINDOWED = {"method": "window", "parameter": "window", "value_of_parameter": 3.0, "window": 3, "global_tokens": 0}
BUCKETS = {"method": "bucket", "parameter": "buckets", "value_of_parameter": 4.0, "window": 0, "global_tokens": 0}
AS_IT_IS = {"method": GOLD, "parameter": "alpha", "value_of_parameter": math.nan, "window": 0, "global_tokens": 0}
STACKS = ("encoder", "decoder", "cross")


def translator(tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    pad = tokenizer.pad_token_id
    settings = {"pad_token_id": pad, "eos_token_id": tokenizer.eos_token_id, "decoder_start_token_id": pad}
    torch.manual_seed(1)
    model = build("MarianMTModel", len(tokenizer), forced_eos_token_id=None, **settings).eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(3.0)  # so that entmax leaves zeros
    switch(model, normalizer=Entmax(1.5))
    return LoadedModel("tiny", model, tokenizer, None)


def learned(heads: int, size: int) -> FittedSite:
    points = {4: torch.randn(heads, 4, 3)}, {4: torch.randn(heads, 4, size)}
    return FittedSite(QueryKeyProjections(heads, size, 3), [], *points)


def restricted(loaded: LoadedModel, task: Translation, stacks: tuple[str, ...], tokens: int = 4096) -> RestrictedTask:
    sites = AttentionSession(loaded.model).sites
    width = loaded.model.config.d_model
    fitted = {str(s): learned(s.n_heads, width // s.n_heads) for s in sites}
    options = EvaluationOptions(replicates=0, batch_tokens=tokens)
    return RestrictedTask(loaded, task, MemoryExamples(EXAMPLES), ParameterGrid(groups=(4,)), fitted, stacks, options)


LENGTHS = {"1": 3, "2": 9, "3": 6}  # tokens of a translation before its end; the second has none


class Written:
    """What a task wrote of each example, between the token that a decoder starts from and the end.

    A random model never ends, so its texts are ended here.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.texts: dict[str, list[int]] = {}
        run = Translation.run

        def ended(task: Translation, model: Any, batch: TaskBatch) -> Tensor:
            ids = run(task, model, batch).clone()
            for example, row in zip(batch.examples, ids, strict=True):
                own = row[1:]
                length = LENGTHS[example.id]
                own[length : length + 1] = batch.reader.tokenizer.eos_token_id
                own[length + 1 :] = batch.reader.tokenizer.pad_token_id
                self.texts[example.id] = own[:length].tolist()
            return ids

        monkeypatch.setattr(Translation, "run", ended)


def near(query: int, keys: int) -> int:
    """How many keys a window of one to each side has; a query without any looks at the last one."""
    return max(1, sum(abs(query - key) <= 1 for key in range(keys)))


@pytest.mark.parametrize("tokens", rest_slow([4096, 14], [14]))
def test_every_text_counts_once(
    marian_tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    """Whichever beams were given up for it, and however long others are."""
    loaded, seen = translator(marian_tokenizer), Written(monkeypatch)
    sources = [len(marian_tokenizer(e.texts[0])["input_ids"]) for e in EXAMPLES]
    for stack in STACKS:
        tried = restricted(loaded, Translation(beams=3, max_tokens=9), (stack,), tokens).measured(WINDOWED)
        # The last token that is written, or the end, is not read any more.
        assert {name: len(own) for name, own in seen.texts.items()} == LENGTHS
        read = [4, 9, 7]
        expected = {
            "encoder": [1 - sum(near(i, n) for i in range(n)) / n**2 for n in sources],
            "decoder": [1 - sum(near(i, i + 1) for i in range(m)) / (m * (m + 1) / 2) for m in read],
            "cross": [1 - sum(near(i, n) for i in range(m)) / (m * n) for m, n in zip(read, sources, strict=True)],
        }
        assert tried.sparsity == pytest.approx(np.mean(expected[stack]), abs=1e-12), stack
        assert set(tried.metrics) == {"bleu", "chrf"}


def test_weights_of_written_texts(marian_tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entmax's own zeros, beside those of each text read alone."""
    loaded, seen = translator(marian_tokenizer), Written(monkeypatch)
    task = Translation(beams=2, max_tokens=9)
    counted = restricted(loaded, task, STACKS).measured(AS_IT_IS).sparsity
    shares = []
    model: Any = loaded.model
    for example in EXAMPLES:
        read = torch.tensor([[model.config.decoder_start_token_id, *seen.texts[example.id]][:9]])
        source = marian_tokenizer(example.texts[0], return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            found = model(input_ids=source, decoder_input_ids=read, output_attentions=True)
        weights = [*found.encoder_attentions, *found.decoder_attentions, *found.cross_attentions]
        pairs = [torch.ones(w.shape[-2:]) for w in weights]
        for i in range(len(found.encoder_attentions), len(weights) - len(found.cross_attentions)):
            pairs[i] = pairs[i].tril()
        own = [1 - (w[0] > 0).sum(dim=(1, 2)) / p.sum() for w, p in zip(weights, pairs, strict=True)]
        shares.append(torch.cat(own).mean().item())
    assert 0.05 < counted < 0.95
    assert counted == pytest.approx(np.mean(shares), abs=1e-6)


def bucket_of(values: list[float], place: int, buckets: int) -> int:
    return sorted(values).index(values[place]) // math.ceil(len(values) / buckets)


@pytest.mark.parametrize("tokens", rest_slow([4096, 14], [14]))
def test_buckets_of_finished_texts(
    marian_tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    """Buckets change with each token that is written; those of each text alone are counted, pair by pair."""
    loaded, seen = translator(marian_tokenizer), Written(monkeypatch)
    task = restricted(loaded, Translation(beams=2, max_tokens=9), ("decoder",), tokens)
    fitted = task.fitted["decoder.0"]
    # The first layer alone: its queries and keys do not depend on what the graphs leave out.
    sparsity = replace(task, fitted={"decoder.0": fitted}).measured(BUCKETS).sparsity
    model: Any = loaded.model
    attention, found = model.get_decoder().layers[0].self_attn, {}
    for name in ("q_proj", "k_proj"):
        layer = getattr(attention, name)
        layer.register_forward_hook(lambda _, __, out, name=name: found.__setitem__(name, out))
    shares = []
    for text in seen.texts.values():
        ids = torch.tensor([[model.config.decoder_start_token_id, *text][:9]])
        with torch.inference_mode():
            model(input_ids=ids, decoder_input_ids=ids)
            heads = [found[name].unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) for name in found]
            projected = fitted.projections(*heads)
        n = ids.shape[1]
        for queries, keys in zip(*(own[0].tolist() for own in projected), strict=True):
            kept = 0
            for i in range(n):
                alike = [
                    any(
                        bucket_of([q[r] for q in queries], i, 4) == bucket_of([k[r] for k in keys], j, 4)
                        for r in range(3)
                    )
                    for j in range(i + 1)
                ]
                kept += max(1, sum(alike))
            shares.append(1 - kept / (n * (n + 1) / 2))
    assert 0.05 < sparsity < 0.95
    assert sparsity == pytest.approx(np.mean(shares), abs=1e-9)


def test_what_was_read(marian_tokenizer: PreTrainedTokenizerBase) -> None:
    reader = Reader.of(translator(marian_tokenizer))
    end, pad, word = marian_tokenizer.eos_token_id, marian_tokenizer.pad_token_id, 5
    read = read_while_writing(
        torch.tensor([[pad, word, word, end], [pad, word, end, pad], [pad, end, pad, pad], [pad, word, word, word]]),
        reader,
    )
    assert read["decoder_attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]]
    assert read["decoder_input_ids"].tolist()[1] == [pad, word, end]
    alone = read_while_writing(torch.tensor([[pad, end]]), reader)
    assert alone["decoder_attention_mask"].tolist() == [[1]]


def test_labels_reach_the_task(tmp_path: Path, wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    path = tmp_path / "dev.tsv"
    path.write_text("sentence\tlabel\nA cat.\t0\nNo.\t1\n", encoding="utf-8")
    options = MetricOptions("sst2", (str(path),), labels=("model=POS,NEG", "data=positive,negative"))
    judge = LoadedModel(
        "tiny", build("BertForSequenceClassification", len(wordpiece_tokenizer)), wordpiece_tokenizer, None
    )
    opened = opened_task(options, judge, open_corpus("demo"), SourceCounts(), pairs=False, offline=True)
    assert opened is not None
    task, examples = opened
    assert task.outputs == ("positive", "negative")
    assert [example.label for example in examples.examples if isinstance(example, TextExample)] == [1, 0]


@pytest.mark.parametrize(
    ("kind", "pairs", "name"),
    [
        ("MarianMTModel", True, "translation-loss"),
        ("MarianMTModel", False, None),
        ("BertForMaskedLM", False, "mlm"),
        ("BertModel", False, "paraphrase"),
        ("BertForSequenceClassification", False, None),
        ("GPT2Model", False, "paraphrase"),
    ],
)
def test_the_task_of_auto_is_one_that_the_model_can_do(
    kind: str, pairs: bool, name: str | None, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    loaded = LoadedModel("tiny", build(kind, len(wordpiece_tokenizer), pad_token_id=0), wordpiece_tokenizer, None)
    assert suited_task(loaded, pairs=pairs) == name

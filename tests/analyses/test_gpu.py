"""The same numbers on a GPU, and how often the processor waits for it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertModel, PreTrainedModel

import headlens
from headlens.attention.session import AttentionSession
from headlens.corpora.annotations import AnnotationCounts, Annotator
from headlens.corpora.sources import open_corpus
from headlens.learning.hyperparameters import TrainingOptions
from headlens.learning.loop import Trainer
from headlens.learning.new_models import wordpiece_tokenizer
from headlens.learning.objectives import MaskedTokenLoss
from headlens.learning.training_text import MaskedText, read_blocks
from headlens.metrics.metric import MetricSettings, Statistics
from headlens.metrics.metric_registry import registered_metrics
from headlens.metrics.similarity import HeadSimilarity
from headlens.models.loading import LoadedModel
from headlens.models.model_options import DType
from headlens.roles.head_roles import classify_heads
from headlens.roles.role_options import ClassifyOptions
from headlens.runs.corpus_pass import CorpusReader

pytestmark = pytest.mark.gpu
SIZES = {"vocab_size": 2000, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
_OURS = str(Path(headlens.__file__).parent)
# Random weights so large that heads have something to look at.
PEAKED = BertConfig(**SIZES, intermediate_size=256, initializer_range=0.15)


def loaded(model: PreTrainedModel) -> LoadedModel:
    """A model that reads the bundled treebank."""
    texts = [example.source.text for example in open_corpus("demo")]
    return LoadedModel("random", model.eval(), wordpiece_tokenizer(texts, 2000), None)


def heads(device: str, dtype: DType) -> pd.DataFrame:
    torch.manual_seed(0)
    model = BertModel(PEAKED).to(device, getattr(torch, dtype))
    return classify_heads(loaded(model), open_corpus("demo"), ClassifyOptions()).tables["heads"].rows


@pytest.fixture(scope="module")
def on_cpu() -> pd.DataFrame:
    return heads("cpu", "float32")


@pytest.mark.parametrize(("dtype", "tolerance", "share"), [("float32", 1e-4, 0.002), ("bfloat16", 5e-2, 0.1)])
def test_cuda_equals_cpu(on_cpu: pd.DataFrame, dtype: DType, tolerance: float, share: float) -> None:
    cuda = heads("cuda", dtype)
    numbers = on_cpu.select_dtypes("number").columns
    assert list(cuda.columns) == list(on_cpu.columns)
    # Counts can differ where two weights are equal but for rounding.
    counted = {
        c for c in numbers if c.startswith(("positional_", "rare_", "same_word", "coreference", "nearest_", "self_"))
    }
    for column in numbers:
        if column.startswith(("similarity_", "positional_offset")) or "_ci_" in column:
            continue
        np.testing.assert_allclose(
            cuda[column], on_cpu[column], atol=share if column in counted else tolerance, rtol=tolerance, err_msg=column
        )
    assert (cuda["tokens"] == on_cpu["tokens"]).all()


@contextmanager
def waits() -> Iterator[list[str]]:
    """Says where the processor waited for the GPU."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")
    # What transformers asks for to make its masks is not ours.
    found += [f"{w.filename}:{w.lineno}" for w in seen if "synchroniz" in str(w.message) and _OURS in w.filename]


def test_a_batch_is_waited_for_at_its_end_only() -> None:
    model = BertModel(PEAKED).to("cuda")
    examples = list(open_corpus("demo"))
    reader = CorpusReader.of(loaded(model), examples[0])
    relations = ("nsubj", "obj")
    watching = Statistics([m.of(MetricSettings(relations)) for m in registered_metrics()], reader.sites)
    observers = [watching, HeadSimilarity(reader.sites)]
    annotator = Annotator(relations, words=True)
    with AttentionSession(reader.model, observers=observers, kernel="fast") as session, torch.inference_mode():
        for number, rows in enumerate(reader.rows(examples, 2048)):
            batch = reader.collate(rows)
            tokens = annotator.annotate(batch, AnnotationCounts(), decoder_only=False)
            with session.batch(tokens), waits() as found:
                reader.model(**batch.inputs)
            # The first pass also compares the kernel with the model's own attention, layer by layer.
            assert number == 0 or len(found) <= 6, found
            if number == 3:
                break


def test_a_training_step_is_not_waited_for() -> None:
    torch.manual_seed(0)
    model = BertForMaskedLM(PEAKED).to("cuda")
    texts = [example.source.text for example in open_corpus("demo")]
    tokenizer = wordpiece_tokenizer(texts, 2000)
    blocks = read_blocks(texts, tokenizer, 64)
    assert tokenizer.mask_token_id is not None
    data = MaskedText(blocks, tokenizer.mask_token_id, frozenset(tokenizer.all_special_ids), 2000)
    numbers = {}
    for steps in (10, 30):
        options = TrainingOptions(steps=steps, batch_tokens=512, log_every=10, clip=1.0)
        with waits() as found:
            Trainer(options, MaskedTokenLoss()).fit(model, data)
        numbers[steps] = found
    assert len(numbers[30]) - len(numbers[10]) <= 4, numbers[30]

"""Encoders and decoders read as much as each of them can."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import transformers
from saved import build
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.analyses.model_check import check_model
from headlens.corpora.encoded_corpus import EncodingCounts
from headlens.corpora.sentence import Example
from headlens.corpora.text import plain_sentence
from headlens.findings.result_notes import reading_notes
from headlens.models.loading import LoadedModel
from headlens.runs.corpus_pass import CorpusReader
from headlens.tasks.examples import TextExample
from headlens.tasks.masked import TranslationLoss
from headlens.tasks.reader import Reader


def alone(model: PreTrainedModel) -> LoadedModel:
    return LoadedModel("tiny", model, None, None)


def put_together(source: int, target: int, vocabulary: int = 60) -> PreTrainedModel:
    """BERT reads, BERT writes, with so many positions each."""
    writing = {"is_decoder": True, "add_cross_attention": True, "max_position_embeddings": target}
    encoder = build("BertModel", vocabulary, max_position_embeddings=source)
    model = transformers.EncoderDecoderModel(encoder=encoder, decoder=build("BertLMHeadModel", vocabulary, **writing))
    model.config.decoder_start_token_id, model.config.pad_token_id = 2, 0
    return model


LED = {"vocab_size": 60, "attention_window": 4, "max_encoder_position_embeddings": 48}
LED |= {"max_decoder_position_embeddings": 20, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1}
LED |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}


@pytest.mark.parametrize(
    ("make", "source", "target"),
    [
        (lambda: put_together(48, 20), 48, 20),
        (lambda: put_together(20, 48), 20, 48),
        (lambda: transformers.LEDForConditionalGeneration(transformers.LEDConfig(**LED)), 48, 20),
        (lambda: build("MarianMTModel", pad_token_id=0, max_position_embeddings=30), 30, 30),
        (lambda: build("T5ForConditionalGeneration"), None, None),
    ],
)
def test_encoder_and_decoder_have_limits_of_their_own(
    make: Callable[[], PreTrainedModel], source: int | None, target: int | None
) -> None:
    loaded = alone(make())
    assert (loaded.longest("source"), loaded.longest("target")) == (source, target)
    assert loaded.max_length == (None if source is None or target is None else min(source, target))


@pytest.mark.parametrize(("source", "target"), [(60, 12), (12, 60)])
def test_sides_are_held_against_their_own_limits(
    source: int, target: int, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    model = put_together(source, target, len(wordpiece_tokenizer))
    loaded = LoadedModel("two", model, wordpiece_tokenizer, None)
    long, short = "a " * 30, "a b c"
    texts = {"long source": (long, short), "long target": (short, long)}
    examples = {k: Example(*(plain_sentence(text, "1") for text in pair)) for k, pair in texts.items()}
    encoder = CorpusReader.of(loaded, next(iter(examples.values()))).encoder
    reader = Reader.of(loaded)
    assert reader.limit_text == f"{source} tokens, or the decoder's {target}"
    for name, example in examples.items():
        fits = (name == "long source") == (source > target)
        assert (encoder.encode(example) is not None) == fits
        assert bool(TranslationLoss().prepare(TextExample("1", texts[name], None), reader)) == fits
    counts = EncodingCounts(too_long=1)
    assert reading_notes(CorpusReader.of(loaded, example), counts)[0].startswith(
        f"1 sentence longer than {source} tokens, or than {target} as a target was left out."
    )
    # The encoder alone reads as much as it can.
    assert CorpusReader.of(loaded, Example(plain_sentence(short, "1"))).encoder.limit == source
    assert f"{source} tokens" in check_model(loaded).facts()["longest input"]
    assert check_model(loaded).facts()["longest target"] == f"{target} tokens"


def test_a_model_whose_decoder_reads_the_same_text_reads_no_more_than_that(
    wordpiece_tokenizer: PreTrainedTokenizerBase,
) -> None:
    config = transformers.LEDConfig(**LED | {"vocab_size": len(wordpiece_tokenizer)})
    loaded = LoadedModel("led", transformers.LEDForQuestionAnswering(config), wordpiece_tokenizer, None)
    assert Reader.of(loaded).limit == 20

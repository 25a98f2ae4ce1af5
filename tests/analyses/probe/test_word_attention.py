"""What a probe reads: attention between words of all heads, and the arcs that are scored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
import zoo
from saved import Memory, build, sentence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.analyses.probe.analysis import (
    ProbedSentence,
    TreebankCounts,
    WordAttention,
    gold_arcs,
    read_word_attention,
)
from headlens.attention.session import AttentionSession
from headlens.corpora.annotations import AnnotationCounts
from headlens.corpora.encoded_corpus import EncodingCounts
from headlens.corpora.encoding import EncodedExample
from headlens.corpora.sentence import OUTSIDE, ROOT, Example, Sentence
from headlens.errors import CorpusError, SelfCheckError
from headlens.models.loading import LoadedModel
from headlens.runs.corpus_pass import CorpusReader

Tokenizer = PreTrainedTokenizerBase
# Words of several subwords, a contraction, and punctuation with a subtype and without.
SENTENCES = [
    sentence(
        "the unbelievable cats isn't sleeping .",
        (2, 2, 4, 4, ROOT, 4),
        ("det", "amod", "nsubj", "aux", "root", "punct"),
    ),
    sentence("dogs chase cats", (1, ROOT, 1), ("nsubj", "root", "obj")),
    sentence("unquestionably nobody sleeps .", (2, 2, ROOT, 2), ("advmod", "nsubj:outer", "root", "punct:final")),
]


def loaded(model: PreTrainedModel, tokenizer: Tokenizer) -> LoadedModel:
    return LoadedModel("tiny", model.eval(), tokenizer, None)


def read(
    model: LoadedModel, sentences: Sequence[Sentence] = SENTENCES, batch_tokens: int = 2048
) -> tuple[list[ProbedSentence], TreebankCounts]:
    corpus, found = Memory([Example(own) for own in sentences]), list[ProbedSentence]()
    reader = CorpusReader.of(model, next(iter(corpus)))
    counts = read_word_attention(reader, corpus, found.append, batch_tokens)
    return sorted(found, key=lambda own: own.key), counts


def encoded(model: LoadedModel, own: Sentence) -> EncodedExample:
    example = CorpusReader.of(model, Example(own)).encoder.encode(Example(own))
    assert example is not None
    return example


@pytest.fixture
def bert(wordpiece_tokenizer: Tokenizer) -> LoadedModel:
    return loaded(build("BertModel", len(wordpiece_tokenizer)), wordpiece_tokenizer)


def test_attention_between_words_is_that_of_brute_force(bert: LoadedModel) -> None:
    """To a word the sum over its subwords, from it the mean, special tokens left out; of all heads of all layers."""
    found, _ = read(bert)
    for own, probed in zip(sorted(SENTENCES, key=lambda s: s.text), found, strict=True):
        row = encoded(bert, own).source
        with torch.no_grad():
            bert.model.set_attn_implementation("eager")
            layers = bert.model(torch.tensor([row.ids]), output_attentions=True).attentions
        units = [[t for t, unit in enumerate(row.units) if unit == word] for word in range(row.n_units)]
        assert max(map(len, units)) > 1 or own is SENTENCES[1]
        assert probed.maps.shape == (len(units), len(units), 4)
        assert probed.maps.dtype == torch.float16
        for layer, head in np.ndindex(2, 2):
            weights = layers[layer][0, head].double().numpy()
            for i, sources in enumerate(units):
                for j, targets in enumerate(units):
                    expected = np.mean([sum(weights[q, k] for k in targets) for q in sources])
                    assert float(probed.maps[i, j, 2 * layer + head]) == pytest.approx(expected, rel=1e-3, abs=1e-6)
        even = torch.tensor([len(targets) / len(row.ids) for targets in units]).expand(len(units), -1)
        torch.testing.assert_close(probed.uniform[..., 0].float(), even, rtol=1e-3, atol=1e-6)


def test_batches_change_nothing(bert: LoadedModel) -> None:
    one, other = read(bert)[0], read(bert, batch_tokens=1)[0]
    for first, second in zip(one, other, strict=True):
        assert first.key == second.key
        assert torch.equal(first.arcs, second.arcs)
        torch.testing.assert_close(first.maps, second.maps, rtol=2e-3, atol=1e-6)


def test_the_root_and_punctuation_are_not_scored(bert: LoadedModel) -> None:
    counts = AnnotationCounts()
    assert gold_arcs(encoded(bert, SENTENCES[0]).source, counts).tolist() == [[0, 2], [1, 2], [2, 4], [3, 4]]
    assert gold_arcs(encoded(bert, SENTENCES[2]).source, counts).tolist() == [[0, 2], [1, 2]], "a subtype is scored"
    assert counts.lost_arcs == 0


def test_words_that_cannot_be_found_are_counted(bert: LoadedModel) -> None:
    """A governor in another window, in the same token, or without a token."""
    counts = AnnotationCounts()
    outside = sentence("dogs chase cats", (OUTSIDE, ROOT, 1), ("nsubj", "root", "obj"))
    assert gold_arcs(encoded(bert, outside).source, counts).tolist() == [[2, 1]]
    assert counts.lost_arcs == 1
    told = TreebankCounts(EncodingCounts(no_tree=2), counts).notes()
    assert told[0].startswith("1 word not scored: the governor is in the same unit or in another window")
    assert told[1] == "2 sentences without a dependency tree left out."
    assert TreebankCounts(EncodingCounts(), AnnotationCounts()).notes() == []


def test_sentences_without_a_tree_are_left_out(bert: LoadedModel) -> None:
    found, counts = read(bert, [*SENTENCES, sentence("cats sleep"), sentence("sleep", (ROOT,), ("root",))])
    assert len(found) == 3
    assert counts.encoding.no_tree == 1


def test_nothing_to_score_is_an_error(bert: LoadedModel) -> None:
    cases = [sentence("cats sleep")], [sentence("sleep .", (ROOT, 0), ("root", "punct:final"))]
    for sentences in cases:
        with pytest.raises(CorpusError, match=r"memory: no word has a governor that the probe could find\.\nGive a"):
            read(bert, sentences)


def test_a_decoder_sees_earlier_words_only(bytebpe_tokenizer: Tokenizer) -> None:
    found, _ = read(loaded(build("GPT2Model", len(bytebpe_tokenizer)), bytebpe_tokenizer))
    assert len(found) == 3
    for own in found:
        # The attention to later words is 0, that to earlier ones is not.
        assert not own.maps.permute(2, 0, 1).triu(1).any()
        assert (own.maps.diagonal() > 0).all()
        assert not own.uniform[..., 0].triu(1).any()


def test_uniform_attention_of_layers_with_a_window_is_a_head_of_its_own(wordpiece_tokenizer: Tokenizer) -> None:
    entry = zoo.ZOO["modernbert"]  # sees all in two layers, two tokens to each side in one
    found, _ = read(loaded(entry.build(vocab_size=len(wordpiece_tokenizer)), wordpiece_tokenizer))
    for own in found:
        assert own.uniform.shape[2] == 2
        far = torch.ones(own.uniform.shape[:2]).triu(3).bool()
        assert not own.uniform[..., 1][far].any()
        assert (own.uniform[..., 0] > 0).all()


def test_of_an_encoder_decoder_the_encoder_is_read(marian_tokenizer: Tokenizer) -> None:
    model = loaded(
        build("MarianMTModel", len(marian_tokenizer), pad_token_id=1, decoder_start_token_id=1), marian_tokenizer
    )
    found, _ = read(model)
    assert {own.maps.shape[2] for own in found} == {4}, "two layers of two heads"


def test_batches_that_do_not_fit_into_memory_are_halved_and_count_once(
    bert: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, forward = read(bert)[0], bert.model.encoder.layer[1].forward

    def greedy(states: torch.Tensor, *args: object, **more: object) -> object:
        """Runs out of memory in the second layer, when the first has been observed."""
        if len(states) > 1:
            raise torch.OutOfMemoryError("out of memory")
        return forward(states, *args, **more)

    monkeypatch.setattr(bert.model.encoder.layer[1], "forward", greedy)
    with pytest.warns(UserWarning, match="memory"):
        found, _ = read(bert)
    assert [own.key for own in found] == [own.key for own in expected]
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own.maps, other.maps, rtol=2e-3, atol=1e-6)


def test_attention_without_tokens_is_refused(bert: LoadedModel) -> None:
    observer = WordAttention(CorpusReader.of(bert, Example(SENTENCES[1])).sites)
    with AttentionSession(bert.model, observers=[observer]), pytest.raises(SelfCheckError, match="needs weights and"):
        bert.model(inputs_embeds=torch.zeros(1, 3, 16))

"""A corpus for relevance: the whole model is run, and the target says what it reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from headlens.analyses.relevance.lrp.targets import EveryPosition, MaskedTokenLogits, Target, generated
from headlens.attention.sites import find_sites
from headlens.corpora.batches import Batch, collate, token_budget_batches
from headlens.corpora.corpus_options import LongSentences
from headlens.corpora.encoded_corpus import EncodingCounts, encode_corpus
from headlens.corpora.encoding import EncodedExample, Pairing, SentenceEncoder
from headlens.corpora.masking import Masking, mask_examples
from headlens.corpora.sentence import Example
from headlens.models.loading import LoadedModel, tokenizer_of
from headlens.runs.corpus_reader import CorpusReader

LONGEST = 256  # tokens of a translation that the model writes itself


@dataclass(frozen=True)
class RelevanceReader(CorpusReader):
    """A model as relevance needs it, and the way of a corpus into it.

    Args:
        masking: what is masked; None for other targets than masked tokens.
        generates: whether the model writes the decoder's input itself.
    """

    masking: Masking | None = None
    generates: bool = False

    @classmethod
    def starting_at(
        cls, target: Target, loaded: LoadedModel, example: Example, masking: tuple[float, int], long: LongSentences
    ) -> RelevanceReader:
        """How to feed examples like this one.

        Args:
            target: where relevance starts.
            loaded: the model.
            example: the first of the corpus.
            masking: share of tokens to mask, and seed.
            long: what to do with sentences that are too long.

        Raises:
            ModelError: if the model has no tokenizer.
            OptionError: if the share to mask is out of range.
        """
        tokenizer = tokenizer_of(loaded)
        # A classifier with a decoder (BART's) makes the decoder's input itself, of the same sequence.
        two_sided = bool(loaded.model.config.is_encoder_decoder) and isinstance(target, EveryPosition)
        paired = example.target is not None
        model = _model(loaded, target)
        decodes = any(s.stack == "decoder" for s in find_sites(model))
        pairing: Pairing = "alone" if not paired else "apart" if target.rows == 2 else "joined"
        start = loaded.decoder_start_id if two_sided and paired else None
        pad = tokenizer.pad_token_id
        return cls(
            model=model,
            encoder=SentenceEncoder(tokenizer, loaded.max_length, start, long, pairing),
            pad_id=0 if pad is None else int(pad),
            decoder_only=decodes and not two_sided,
            encoder_alone=False,
            arguments={},
            masking=Masking(target.mask_id, *masking) if isinstance(target, MaskedTokenLogits) else None,
            generates=two_sided and not paired,
        )

    def rows(
        self, corpus: Iterable[Example], batch_tokens: int = 2048, counts: EncodingCounts | None = None
    ) -> Iterator[list[EncodedExample]]:
        """See `Feed.rows`; a pair of two rows costs the tokens of both."""
        counts = counts or EncodingCounts()
        encoded = encode_corpus(corpus, self.encoder, counts)
        masked = encoded if self.masking is None else mask_examples(encoded, self.masking, counts)
        return token_budget_batches(masked, max(1, batch_tokens // 2) if self._apart else batch_tokens)

    def collate(self, rows: Sequence[EncodedExample]) -> Batch:
        """A batch on the model's device; the sentences of a pair may be rows one after the other."""
        if not self._apart:
            return super().collate(rows)
        single = [EncodedExample(side) for row in rows for side in row.sides]
        return replace(collate(single, pad_id=self.pad_id, device=self.model.device), examples=rows)

    def inputs(self, batch: Batch) -> dict[str, Any]:
        """What the model takes, with the translations it writes itself where the corpus has none."""
        inputs: dict[str, Tensor] = dict(batch.inputs)
        if not self.generates:
            return inputs
        limit = LONGEST if self.encoder.limit is None else min(LONGEST, self.encoder.limit - 1)
        return generated(self.model, inputs, limit)

    @property
    def _apart(self) -> bool:
        return self.encoder.pairing == "apart" and self.encoder.decoder_start_id is None


def _model(loaded: LoadedModel, target: Target) -> PreTrainedModel:
    """The whole model; without its task head, and without a decoder, where embeddings are what is looked at."""
    if not target.pooled:
        return loaded.model
    two_sided = bool(loaded.model.config.is_encoder_decoder)
    model = loaded.model.get_encoder() if two_sided else loaded.model.base_model
    assert isinstance(model, PreTrainedModel)
    return model

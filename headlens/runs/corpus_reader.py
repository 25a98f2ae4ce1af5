"""The part of a model that a corpus is read by, and how: shared by all analyses that read sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedModel

from headlens.attention.sites import Site, find_sites
from headlens.corpora.batches import Batch, batch_tokens_of, collate, token_budget_batches
from headlens.corpora.corpus_options import LongSentences
from headlens.corpora.encoded_corpus import EncodingCounts, encode_corpus
from headlens.corpora.encoding import EncodedExample, SentenceEncoder
from headlens.corpora.sentence import Example
from headlens.errors import NoHeadsError, OptionError
from headlens.models.loading import LoadedModel, tokenizer_of


@dataclass(frozen=True)
class CorpusReader:
    """The part of a model that examples of a corpus can run, and their way into it.

    Args:
        model: the model without its task head, whose output is not used; only the encoder of an encoder-decoder when
            there are no targets.
        encoder: sentences to token ids.
        pad_id: id used for padding; any id that the model can embed.
        decoder_only: whether the only sequence is the decoder's.
        encoder_alone: whether a decoder was left out.
        arguments: further arguments of the forward pass.
        group: gives the number of an example's group, where a batch is to have examples of one group only.
    """

    model: PreTrainedModel
    encoder: SentenceEncoder
    pad_id: int
    decoder_only: bool
    encoder_alone: bool
    arguments: dict[str, Any]
    group: Callable[[EncodedExample], int] | None = field(default=None, kw_only=True)

    @classmethod
    def of(
        cls,
        loaded: LoadedModel,
        example: Example,
        long_sentences: LongSentences = "skip",
        split_at: str | None = None,
    ) -> CorpusReader:
        """Returns the reader for examples like this one; an encoder reads both texts of a pair as one sequence.

        Args:
            loaded: the model.
            example: the first of the corpus.
            long_sentences: what happens to sentences that are too long.
            split_at: what stands between the two texts of a sentence.

        Raises:
            ModelError: if the model has no tokenizer.
            OptionError: if there is a target that the model cannot read.
        """
        two_sided = bool(loaded.model.config.is_encoder_decoder)
        encoder_alone = two_sided and example.target is None
        model = loaded.model.get_encoder() if encoder_alone else loaded.model.base_model
        assert isinstance(model, PreTrainedModel)
        decodes = any(s.stack == "decoder" for s in find_sites(model))
        joined = example.target is not None and not two_sided
        if joined and decodes:
            raise OptionError(
                f"{loaded.name} reads single sentences, but the corpus has a source and a target.",
                "Leave the translation out, or give an encoder or a translation model.",
            )
        start = None if encoder_alone else loaded.decoder_start_id
        return cls(
            model=model,
            encoder=SentenceEncoder(
                tokenizer_of(loaded),
                loaded.longest("source"),
                start,
                long_sentences,
                "joined" if joined else "alone",
                max_unknown=loaded.max_unknown,
                max_target_length=loaded.longest("target"),
                split_at=split_at,
            ),
            pad_id=loaded.pad_id,
            decoder_only=decodes and not two_sided,
            encoder_alone=encoder_alone,
            # A cache would only cost memory: every example is read once.
            arguments={"use_cache": False} if decodes else {},
        )

    @property
    def sites(self) -> list[Site]:
        """The attention sites of the model that have heads."""
        return [s for s in find_sites(self.model) if s.n_heads]

    def require_heads(self, name: str) -> None:
        """Refuses a model of that name which has lost all the heads that its input goes through.

        Raises:
            NoHeadsError: if there are none.
        """
        if not self.sites:
            part = "the encoder of " if self.encoder_alone else ""
            raise NoHeadsError(f"There are no heads left in {part}{name}.", "Give a model with some.")

    def rows(
        self, corpus: Iterable[Example], batch_tokens: int | None = None, counts: EncodingCounts | None = None
    ) -> Iterator[list[EncodedExample]]:
        """Encodes a corpus and puts sentences of similar length into one batch.

        Args:
            corpus: examples; they are read once.
            batch_tokens: tokens of a batch, padding included; None for what suits the device.
            counts: filled with what became of the sentences.
        """
        size = batch_tokens or batch_tokens_of(self.model.device)
        encoded = encode_corpus(corpus, self.encoder, counts or EncodingCounts())
        return token_budget_batches(encoded, size, group=self.group)

    def collate(self, rows: Sequence[EncodedExample]) -> Batch:
        """Pads encoded examples to one batch and moves its tensors to the device of the model."""
        return collate(rows, pad_id=self.pad_id, device=self.model.device)

    def batches(
        self, corpus: Iterable[Example], batch_tokens: int | None = None, counts: EncodingCounts | None = None
    ) -> Iterator[Batch]:
        """Encodes a corpus as `rows` does and returns an iterator over the padded batches on the model's device."""
        return map(self.collate, self.rows(corpus, batch_tokens, counts))

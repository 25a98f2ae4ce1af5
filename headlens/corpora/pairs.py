"""Two sentences that a model reads as one sequence, as classifiers of sentence pairs do."""

from __future__ import annotations

from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from headlens.corpora.sentence import Example, Sentence
from headlens.corpora.token_offsets import TokenOffsets, trim
from headlens.errors import AlignmentError


def join_sentences(first: Sentence, second: Sentence) -> Sentence:
    """Both sentences as one text, a line each; both trees stay as they are."""
    start, count = len(first.text) + 1, len(first.words)
    moved = tuple(
        replace(
            word,
            start=word.start + start,
            end=word.end + start,
            head=word.head if word.head is None or word.head < 0 else word.head + count,
        )
        for word in second.words
    )
    return Sentence(f"{first.text}\n{second.text}", first.words + moved, f"{first.id}+{second.id}")


def tokenize_pair(tokenizer: PreTrainedTokenizerBase, pair: Example) -> tuple[TokenOffsets, tuple[int, ...]]:
    """Tokenize source and target as one sequence, with spans in the text of `join_sentences`.

    Returns:
        The tokens, and which segment each is of; no segments if the model does not tell them apart.

    Raises:
        AlignmentError: if the tokenizer is a slow one.
    """
    assert pair.target is not None
    if not tokenizer.is_fast:
        raise AlignmentError(
            f"{type(tokenizer).__name__} is a slow tokenizer: it does not tell which token of a pair is of which "
            "sentence.",
            "Use a model with a fast tokenizer (a tokenizer.json beside the weights).",
        )
    text = join_sentences(pair.source, pair.target).text
    encoding = tokenizer(
        pair.source.text,
        pair.target.text,
        return_offsets_mapping=True,
        return_attention_mask=False,
        return_token_type_ids=True,
        verbose=False,
    )
    # Special tokens are of no sentence and stand for no text: where does not matter.
    moves = [len(pair.source.text) + 1 if sentence == 1 else 0 for sentence in encoding.sequence_ids()]
    spans = [(start + move, end + move) for (start, end), move in zip(encoding["offset_mapping"], moves, strict=True)]
    pieces = TokenOffsets(tuple(encoding["input_ids"]), tuple(trim(text, span) for span in spans))
    segments = "token_type_ids" in tokenizer.model_input_names
    return pieces, tuple(encoding["token_type_ids"]) if segments else ()

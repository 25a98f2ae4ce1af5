"""Tasks of language models: text of which every token is predicted, and choices between texts that differ little."""

from __future__ import annotations

import itertools
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from headlens.corpora.alignment import known_word
from headlens.corpora.batches import IGNORED, padded
from headlens.corpora.encoding import EncodedSequence, TokenKind
from headlens.errors import OptionError, counted
from headlens.statistics import weighted_means
from headlens.tables.same_answers import NEARLY_ALL
from headlens.tasks.classification import ChoiceTask
from headlens.tasks.examples import LabelCounts, TaskExample, texts_of
from headlens.tasks.masked import Likelihood, encoded, language_logits, row_log_likelihoods
from headlens.tasks.reader import Reader, TokenRow
from headlens.tasks.task import (
    NO_TRAITS,
    Floats,
    HeadKind,
    PreparedExample,
    Task,
    TaskBatch,
    first_place,
    length_preference,
    record_columns,
)
from headlens.tasks.task_options import LOGIT_DIFFERENCE

# Tokens of a window, for models that read more.
WINDOW = 1024
_NO_FIRST = "The tokenizer has no token for the beginning of texts: the first token of every text is not predicted."


def next_tokens(outputs: Any, batch: TaskBatch, task: str) -> tuple[Tensor, Tensor]:
    """Returns logits, (rows, length, vocabulary), and the tokens that they predict, (rows, length).

    The logits of a decoder predict the token after the one that it reads, and begin where the first is predicted.
    """
    labels = batch.labels["labels"]
    if not batch.reader.causal:
        return language_logits(outputs, labels, task, "mlm"), labels
    first = first_place(predicting(batch))
    return language_logits(outputs, labels, task, "causal-lm", first)[:, :-1], labels[:, first + 1 :]


def predicting(batch: TaskBatch) -> Tensor | None:
    """Returns where a decoder's batch predicts a next token that is scored, (rows, length); None for an encoder."""
    if not batch.reader.causal:
        return None
    scored = batch.labels["labels"] != IGNORED
    return torch.cat([scored[:, 1:], torch.zeros_like(scored[:, :1])], dim=1)


def predicted_row(first: tuple[int, ...], ids: tuple[int, ...], start: int = 0, candidate: int = 0) -> TokenRow:
    """Returns a row whose tokens from `start` on are predicted; the very first of a row never is.

    Args:
        first: what stands before the text.
        ids: of the text.
        start: place in the text of the first token that is predicted.
        candidate: see `TokenRow`.
    """
    known = max(len(first) + start, 1)
    row = first + ids
    return TokenRow(row, labels=(IGNORED,) * known + row[known:], candidate=candidate)


def windows(first: tuple[int, ...], ids: tuple[int, ...], size: int) -> Iterator[TokenRow]:
    """Yields windows of a text, in which every token is predicted once; all begin with `first`.

    The next window begins half a window later: what it predicts has half a window before it, the first one excepted.
    There is none where `first` leaves no room for a token.

    Args:
        first: special tokens that texts begin with.
        ids: of the text.
        size: most tokens of a window.
    """
    room = size - len(first)
    done = 0
    while room > 0 and done < len(ids):
        end = min(len(ids), room if not done else done + max(1, room // 2))
        start = max(0, end - room)
        yield predicted_row(first, ids[start:end], done - start)
        done = end


def check_causal(task: str, *, causal: bool) -> None:
    """Refuses a model that is no decoder.

    Raises:
        OptionError: its tokens see what comes after them, so that predicting the next one shows nothing.
    """
    if not causal:
        raise OptionError(
            f"--task {task} is for decoders such as GPT-2; the tokens of this model see those after them.",
            "Give a decoder, or use --task mlm or minimal-pairs for a masked language model.",
        )


@dataclass(frozen=True)
class CausalLM(Likelihood):
    """How well a decoder predicts the next token of a text; a long text is read in overlapping windows.

    Args:
        name: name of the task.
        window: most tokens of a window, where the model reads more.
    """

    name: str = "causal-lm"
    window: int = WINDOW
    metrics = ("loss", "perplexity", "accuracy")
    head: ClassVar[HeadKind] = "causal-lm"

    def prepare(self, example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
        """Tokenises a text as one row for each window, see `windows`; no row if there is nothing to predict.

        Raises:
            OptionError: if the model is no decoder.
        """
        check_causal(self.name, causal=reader.causal)
        first, ids = reader.beginning_and_text(texts_of(example)[0])
        rows = tuple(windows(first, ids, self._size(reader)))
        return rows if any(label != IGNORED for row in rows for label in row.labels) else ()

    def notes(self, reader: Reader, traits: Mapping[Any, int] = NO_TRAITS) -> list[str]:
        """Returns notes where first tokens are not predicted, and where texts are read in windows."""
        notes = [] if reader.beginning_and_text(known_word(reader.tokenizer))[0] else [_NO_FIRST]
        if longer := traits.get(True, 0):
            verb = "is" if longer == 1 else "are"
            notes.append(
                f"{counted(longer, 'text')} of more than {self._size(reader)} tokens {verb} read in windows of as "
                "many, which overlap by half."
            )
        return notes

    def trait(self, prepared: PreparedExample) -> bool:
        """Returns whether a text is read in several windows."""
        return len(prepared.rows) > 1

    def _size(self, reader: Reader) -> int:
        """Returns the most tokens that a window can have."""
        return min(self.window, reader.limit or self.window)

    def read_positions(self, batch: TaskBatch) -> Tensor | None:
        """Returns the positions that predict a token."""
        return predicting(batch)

    def _predictions(self, outputs: Any, batch: TaskBatch) -> tuple[Tensor, Tensor]:
        return next_tokens(outputs, batch, self.name)


class LikelihoodChoice(ChoiceTask):
    """Base of tasks that choose the text which a language model finds likeliest.

    The score of a candidate is the sum of the log-probabilities of its tokens in nats, without a norm for its length.
    Of a masked language model these are pseudo-log-likelihoods: a token is predicted with itself and what follows of
    its word masked (Kauf and Ivanova 2023), in a row of input for each token.
    """

    candidates = 2
    head: ClassVar[HeadKind] = "language-model"
    columns: ClassVar[tuple[str, ...]] = ("label", "predicted", "margin", "longer")

    def prepare(self, example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
        """Tokenises the candidates; no row is returned if one is too long.

        Raises:
            OptionError: if an encoder's tokenizer has no mask token.
        """
        texts = self._texts(example)
        shared = self._shared(texts, reader) if reader.causal else 0
        rows = [
            tuple(self._rows(example.id, before, text, number, reader, shared))
            for number, (before, text) in enumerate(texts)
        ]
        fit = all(rows) and all(reader.fits(len(row.ids)) for row in itertools.chain(*rows))
        return tuple(itertools.chain(*rows)) if fit else ()

    @abstractmethod
    def _texts(self, example: TaskExample) -> list[tuple[str, str]]:
        """Returns what stands before each candidate and is not predicted, and the candidate."""

    def _shared(self, texts: Sequence[tuple[str, str]], reader: Reader) -> int:
        """Returns how many first tokens of a decoder's candidates need not be scored."""
        del texts, reader
        return 0

    def _rows(
        self, key: str, before: str, text: str, candidate: int, reader: Reader, shared: int
    ) -> Iterator[TokenRow]:
        if reader.causal:
            first, ids = reader.beginning_and_text(before + text)
            start = max(shared, common_length(reader.beginning_and_text(before)[1], ids) if before else 0)
            if start < len(ids):
                yield predicted_row(first, ids, start, candidate)
            return
        if (whole := encoded(key, before + text, reader)) is not None:
            yield from masked_rows(whole.source, len(before), candidate, reader)

    def targets(self, prepared: Sequence[PreparedExample], reader: Reader, device: torch.device) -> dict[str, Tensor]:
        """Returns ids of the tokens to predict as `labels`, -100 at all other places: (rows, length)."""
        del reader
        return {"labels": padded([row.labels for p in prepared for row in p.rows], IGNORED).to(device)}

    def loss(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Computes the mean of `losses` over the batch, a scalar: that of the model is of all candidates."""
        return self.losses(outputs, batch).mean()

    def read_positions(self, batch: TaskBatch) -> Tensor | None:
        """Returns the positions that predict a token of a decoder's candidates."""
        return predicting(batch)

    def notes(self, reader: Reader, traits: Mapping[Any, int] = NO_TRAITS) -> list[str]:
        """Returns how models score texts, and whether one preference would do without reading."""
        same = _preference_notes(traits)
        if not reader.causal:
            return [
                "Texts are scored by pseudo-log-likelihood: each token is predicted with itself and what follows of "
                "its word masked (Kauf and Ivanova 2023).",
                *same,
            ]
        return [*([] if reader.beginning_and_text(known_word(reader.tokenizer))[0] else [_NO_FIRST]), *same]

    def trait(self, prepared: PreparedExample) -> tuple[str, str]:
        """Returns the words that only the right candidate has, and those that only the wrong one has."""
        example = prepared.example
        one, other = (re.split(r"(\s+)", text) for _, text in self._texts(example))
        start = common_length(one, other)
        end = common_length(one[start:][::-1], other[start:][::-1])
        texts = "".join(one[start : len(one) - end]), "".join(other[start : len(other) - end])
        return texts if getattr(example, "label", 0) == 0 else texts[::-1]

    def read(self, outputs: Any, batch: TaskBatch) -> Floats:
        """Computes the records of `ChoiceTask`, and by how many tokens the right candidate is longer, (n, 4)."""
        records, sizes = super().read(outputs, batch), np.zeros((len(batch), self.candidates))
        for place, prepared in enumerate(batch.prepared):
            for row in prepared.rows:
                sizes[place, row.candidate] += sum(label != IGNORED for label in row.labels)
        right = np.take_along_axis(sizes, records[:, :1].astype(int), axis=1)[:, 0]
        # There are two candidates.
        return np.column_stack((records, 2 * right - sizes.sum(axis=1)))

    def chance(self, records: Floats, metric: str | None = None, labels: LabelCounts | None = None) -> float | None:
        """Returns the accuracy of always choosing the candidate of fewer tokens, or always that of more, the better.

        Where they are equal it is one half. What is chosen by bytes is compared with one half alone.
        """
        if metric not in (None, "accuracy"):
            return super().chance(records, metric, labels)
        return 0.5 + abs(length_preference(self, records)) / 2

    def _scores(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Computes the log-likelihood of every candidate in nats, (n, candidates)."""
        rows = row_log_likelihoods(*next_tokens(outputs, batch, self.name))
        number = torch.tensor([row.candidate for p in batch.prepared for row in p.rows])
        places = (batch.example_of_row * self.candidates + number).to(rows.device)
        return rows.new_zeros(len(batch) * self.candidates).index_add(0, places, rows).view(-1, self.candidates)


@dataclass(frozen=True)
class MinimalPairs(LikelihoodChoice):
    """Which of two sentences that differ in one thing is the right one (BLiMP, Warstadt et al. 2020).

    Args:
        name: name of the task.
    """

    name: str = "minimal-pairs"

    def _texts(self, example: TaskExample) -> list[tuple[str, str]]:
        return [("", text) for text in texts_of(example)]

    def _shared(self, texts: Sequence[tuple[str, str]], reader: Reader) -> int:
        """Returns how many first tokens both texts share, which are predicted alike: no choice depends on them."""
        ids = [reader.beginning_and_text(before + text)[1] for before, text in texts]
        return min(common_length(*ids), *(len(one) - 1 for one in ids))


@dataclass(frozen=True)
class Cloze(LikelihoodChoice):
    """Which of two continuations follows a context; `acc_norm` compares log-likelihoods by byte of the continuation.

    Args:
        name: name of the task.
    """

    name: str = "cloze"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "acc_norm")
    columns: ClassVar[tuple[str, ...]] = ("label", "predicted", "margin", "longer", "predicted_by_bytes")

    def _texts(self, example: TaskExample) -> list[tuple[str, str]]:
        context, *endings = texts_of(example)
        return [(context, joined(context, ending)) for ending in endings]

    def read(self, outputs: Any, batch: TaskBatch) -> Floats:
        """Computes the records `label`, `predicted`, `margin`, `longer` and `predicted_by_bytes`, (n, 5)."""
        scores = self._scores(outputs, batch)
        sizes = [[len(text.encode()) for _, text in self._texts(example)] for example in batch.examples]
        by_bytes = scores / torch.tensor(sizes, dtype=scores.dtype, device=scores.device)
        return np.column_stack((super().read(outputs, batch), record_columns(by_bytes.argmax(dim=1))))

    def right(self, records: Floats, metric: str) -> Floats:
        """Returns 1 for every example whose right continuation is chosen, else 0, (n,)."""
        right: Floats = (records[:, 0] == records[:, 4 if metric == "acc_norm" else 1]).astype(np.float64)
        return right

    def statistic(self, metric: str, records: Floats, weights: Floats) -> Floats:
        """Computes the share of right choices under every weighting, (replicates,)."""
        return weighted_means.mean(self.right(records, metric), weights)


@dataclass(frozen=True)
class LogitDifference(Task):
    """By how much the logit of the right next token is above that of a wrong one (Wang et al. 2023).

    Texts of an example are the prompt, the right answer and the wrong one, of one token each.

    Records: `difference` of the logits at the last token of the prompt.

    Args:
        name: name of the task.
    """

    name: str = "logit-difference"
    metrics = (LOGIT_DIFFERENCE, "accuracy")
    columns = ("difference",)
    head: ClassVar[HeadKind] = "causal-lm"

    def prepare(self, example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
        """Tokenises the prompt as one row, with the two answers as labels; no row if it is too long.

        Raises:
            OptionError: if the model is no decoder, or an answer is not one token of its own.
        """
        check_causal(self.name, causal=reader.causal)
        prompt, *answers = texts_of(example)
        first, ids = reader.beginning_and_text(prompt)
        labels = []
        for answer in answers:
            _, whole = reader.beginning_and_text(prompt + joined(prompt, answer))
            if whole[:-1] != ids:
                raise OptionError(
                    f"The answer {answer!r} of example {example.id} is not one token of its own after its prompt: "
                    f"{' '.join(reader.tokenizer.convert_ids_to_tokens(list(whole[common_length(ids, whole) :])))}.",
                    "Give answers of one token, or use --task cloze.",
                )
            labels.append(whole[-1])
        if labels[0] == labels[1]:
            raise OptionError(
                f"Both answers of example {example.id} are the same token.", "Give two different answers."
            )
        return (TokenRow(first + ids, labels=tuple(labels)),) if reader.fits(len(first + ids)) else ()

    def notes(self, reader: Reader, traits: Mapping[Any, int] = NO_TRAITS) -> list[str]:
        """Returns whether one preference would do without reading."""
        del reader
        return _preference_notes(traits)

    def trait(self, prepared: PreparedExample) -> tuple[str, str]:
        """Returns the right answer and the wrong one."""
        _, right, wrong = texts_of(prepared.example)
        return right, wrong

    def read(self, outputs: Any, batch: TaskBatch) -> Floats:
        """Computes the record `difference` from the logits at the last token of every prompt, (n, 1)."""
        return record_columns(self._differences(outputs, batch))

    def _differences(self, outputs: Any, batch: TaskBatch) -> Tensor:
        read, attended = self.read_positions(batch), batch.inputs["attention_mask"]
        first = first_place(read)
        logits = language_logits(outputs, attended, self.name, "causal-lm", first)
        answers = torch.tensor([p.rows[0].labels for p in batch.prepared], device=logits.device)
        place = read.int().argmax(dim=1) - first
        last = logits[torch.arange(len(batch), device=logits.device), place]  # (n, vocabulary)
        right, wrong = last.gather(1, answers).unbind(dim=1)
        return right - wrong

    def losses(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Computes the cross-entropy of the right answer among the two in nats, (n,)."""
        return softplus(-self._differences(outputs, batch))

    def loss(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Computes the mean of `losses` over the batch, a scalar."""
        return self.losses(outputs, batch).mean()

    def read_positions(self, batch: TaskBatch) -> Tensor:
        """Returns the last position of every prompt."""
        attended = batch.inputs["attention_mask"]
        return torch.arange(attended.shape[1], device=attended.device) == attended.sum(dim=1, keepdim=True) - 1

    def right(self, records: Floats, metric: str) -> Floats | None:
        """Returns 1 where the right answer has the higher logit, else 0, (n,); None unless `metric` is accuracy."""
        return (records[:, 0] > 0).astype(np.float64) if metric == "accuracy" else None

    def chance(self, records: Floats, metric: str | None = None, labels: LabelCounts | None = None) -> float | None:
        """Returns what guessing gives: no difference, and half of the answers."""
        del records, labels
        return 0.5 if metric == "accuracy" else 0.0

    def statistic(self, metric: str, records: Floats, weights: Floats) -> Floats:
        """Computes the mean difference, or the share of right answers, under every weighting, (replicates,)."""
        right = self.right(records, metric)
        return weighted_means.mean(records[:, 0] if right is None else right, weights)


def _preference_notes(answers: Mapping[tuple[str, str], int]) -> list[str]:
    """Returns a note where (nearly) all examples have the same right and the same wrong answer; nothing for one.

    A model that always prefers one to the other does as well without reading, which no chance level of a choice shows.

    Args:
        answers: how many examples have which right one and wrong one.
    """
    if (examples := sum(answers.values())) < 2:
        return []
    (right, wrong), most = max(answers.items(), key=lambda item: item[1])
    if most < NEARLY_ALL * examples:
        return []
    return [
        f"{most:,} of {counted(examples, 'example')} have the same right answer ({right!r}) and the same wrong one "
        f"({wrong!r}): a model that always prefers the first does as well without reading. Add examples in which the "
        "second is right."
    ]


def joined(before: str, text: str) -> str:
    """Returns a text with the space that parts it from what stands before, unless one of both has white space there."""
    return text if not before or before[-1].isspace() or text[:1].isspace() else f" {text}"


def common_length(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Returns how many tokens, or characters, two texts begin with alike."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in pairs)


def masked_rows(sequence: EncodedSequence, start: int, candidate: int, reader: Reader) -> Iterator[TokenRow]:
    """Yields a row for every token of a text from a character on, with it and what follows of its word masked.

    Args:
        sequence: tokens of the text.
        start: the first character of which tokens are predicted.
        candidate: see `TokenRow`.
        reader: for the mask token.

    Raises:
        OptionError: if the tokenizer has none.
    """
    mask_id, ids, units = reader.mask_id, sequence.ids, sequence.units
    segments = reader.one_segment(len(ids))
    for place, (kind, (begin, _)) in enumerate(zip(sequence.kinds, sequence.spans, strict=True)):
        if kind & TokenKind.SPECIAL or begin < start:
            continue
        later = (n for n in range(place + 1, len(ids)) if units[n] >= 0 and units[n] == units[place])
        hidden = {place, *later}
        row = tuple(mask_id if n in hidden else token for n, token in enumerate(ids))
        labels = tuple(token if n == place else IGNORED for n, token in enumerate(ids))
        yield TokenRow(row, segments, labels, candidate=candidate)

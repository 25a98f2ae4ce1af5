"""One pass of a corpus through a model: progress, out of memory, interruption and shards, once for all recipes.

Parts of a corpus may be read by runs of their own, perhaps on other machines; their sums are added up here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

from headlens.attention.sites import Site, find_sites
from headlens.corpora.annotations import AnnotationCounts
from headlens.corpora.batches import Batch, PaddedLength, batch_tokens_of, collate, token_budget_batches
from headlens.corpora.corpus_options import LongSentences
from headlens.corpora.encoded_corpus import EncodingCounts, add_counts, encode_corpus
from headlens.corpora.encoding import EncodedExample, SentenceEncoder
from headlens.corpora.sentence import Corpus, Example
from headlens.errors import InputError, NoHeadsError, OptionError, read_errors
from headlens.memory import SplitWhenOutOfMemory
from headlens.metrics.accumulator import Accumulator
from headlens.models.loading import LoadedModel, tokenizer_of
from headlens.nested_text import conform
from headlens.runs.checkpoint import IDENTITY, Checkpoint, packed, unpacked
from headlens.runs.processes import ALONE, DeferredSignals, Processes
from headlens.runs.progress import Advance
from headlens.runs.run_record import changes, read_run
from headlens.visible_text import warn_visibly

Item = TypeVar("Item")


# Runs a batch through the model; what it measures is pending until the model has returned.
Step = Callable[[Any], AnnotationCounts]
# Makes of encoded examples what a step takes.
Prepare = Callable[[Sequence[EncodedExample]], Any]


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
        padded_length: gives what a text of so many tokens is padded to, and the longest of a batch.
    """

    model: PreTrainedModel
    encoder: SentenceEncoder
    pad_id: int
    decoder_only: bool
    encoder_alone: bool
    arguments: dict[str, Any]
    group: Callable[[EncodedExample], int] | None = field(default=None, kw_only=True)
    padded_length: PaddedLength = field(default=int, kw_only=True)

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
        return token_budget_batches(encoded, size, group=self.group, padded_length=self.padded_length)

    def collate(self, rows: Sequence[EncodedExample]) -> Batch:
        """Pads encoded examples to one batch and moves its tensors to the device of the model."""
        return collate(rows, pad_id=self.pad_id, device=self.model.device, padded_length=self.padded_length)

    def batches(
        self, corpus: Iterable[Example], batch_tokens: int | None = None, counts: EncodingCounts | None = None
    ) -> Iterator[Batch]:
        """Encodes a corpus as `rows` does and returns an iterator over the padded batches on the model's device."""
        return map(self.collate, self.rows(corpus, batch_tokens, counts))


@dataclass
class PassState:
    """Sums and counts of the batches that are done: kept for --resume, and sent between processes.

    Args:
        totals: sums by the name of who adds them up; the objects stay the same, their contents grow.
        encoding: what became of the sentences.
        annotation: what became of their trees and rare words.
        batches: how many batches are in the sums.
        complete: whether the corpus has been read to its end.
    """

    totals: Mapping[str, Accumulator]
    encoding: EncodingCounts = field(default_factory=EncodingCounts)
    annotation: AnnotationCounts = field(default_factory=AnnotationCounts)
    batches: int = 0
    complete: bool = False

    def dump(self, identity: Mapping[str, str] | None = None) -> bytes:
        """Serialises the sums and counts as the content of an .npz file, with `identity` in its record."""
        record = {
            IDENTITY: dict(identity or {}),
            "encoding": asdict(self.encoding),
            "annotation": asdict(self.annotation),
            "batches": self.batches,
            "complete": self.complete,
        }
        arrays = {f"{owner}|{key}": a for owner, t in self.totals.items() for key, a in t.arrays().items()}
        return packed(record, arrays)

    def take(self, content: bytes) -> None:
        """Restores the state that `dump` serialised."""
        self.fill([content])
        if not self.complete:
            # Sentences are encoded again from the start, to come to the batches that are left: they count anew.
            self.encoding = EncodingCounts()

    def fill(self, parts: Sequence[bytes]) -> None:
        """Replaces the state by the sum of several dumps, added up in the order given."""
        dumps = [unpacked(part) for part in parts]
        self.encoding, self.annotation = EncodingCounts(), AnnotationCounts()
        for record, _ in dumps:
            add_counts(self.encoding, EncodingCounts(**record["encoding"]))
            add_counts(self.annotation, AnnotationCounts(**record["annotation"]))
        self.batches = sum(record["batches"] for record, _ in dumps)
        self.complete = all(record["complete"] for record, _ in dumps)
        for owner, totals in self.totals.items():
            totals.clear()
            for _, arrays in dumps:
                totals.add_arrays({k.partition("|")[2]: v for k, v in arrays.items() if k.startswith(f"{owner}|")})


class PassProgress:
    """Turns rows that were run into sentences of the corpus.

    A sentence may be cut into many rows, and others are left out, so rows would never add up to the corpus. Rows are
    read ahead of being run; the share that was run of those read tells how much of what was read is done.

    Args:
        advance: called with the number of further sentences done; never back, and never beyond the end.
        counts: what has become of the sentences read so far.
    """

    def __init__(self, advance: Advance, counts: EncodingCounts) -> None:
        self._advance = advance
        self._counts = counts
        self._read = self._rows = self._reported = 0

    def reading(self, corpus: Iterable[Example]) -> Iterator[Example]:
        """Yields the same examples, counted as they are read."""
        for example in corpus:
            self._read += 1
            yield example

    def ran(self, rows: int) -> None:
        """Adds a number of rows that were run, and reports the sentences that are done with them."""
        self._rows += rows
        known = max(self._rows, self._counts.sentences - self._counts.unmaskable)
        done = self._read * self._rows // known
        if done > self._reported:
            self._advance(done - self._reported)
            self._reported = done


@contextmanager
def read_ahead(items: Iterator[Item]) -> Iterator[Iterator[Item]]:
    """Gives the same items (None ends them); while one is used, a thread makes the next, which ends with the block."""

    def taken() -> Iterator[Item]:
        following = thread.submit(next, items, None)
        while (item := following.result()) is not None:
            following = thread.submit(next, items, None)
            yield item

    with ThreadPoolExecutor(1, "headlens-read-ahead") as thread:
        yield taken()


def reads_ahead(device: torch.device) -> bool:
    """Whether sentences are encoded while a batch is computed: a device computes by itself, a processor would not."""
    return device.type != "cpu"


@dataclass(frozen=True)
class CorpusPass:
    """How a corpus goes through a model.

    Args:
        progress: called after every batch with the number of the corpus's sentences that are done with it, at last all.
        warn: called with what the user should know at once.
        checkpoint: where the sums are kept, so that an interrupted pass can go on; None keeps nothing.
        shard: the part of the corpus that is read here; None where others have read all of it.
        collect: called at the end with the sums of the shard, to which it adds those of the others or which it keeps
            for them; by default the processes of the shard exchange theirs.
    """

    progress: Advance = lambda _: None
    warn: Callable[[str], None] = warn_visibly
    checkpoint: Checkpoint | None = None
    shard: Processes | None = ALONE
    collect: Callable[[PassState], None] | None = None

    def run(
        self,
        reader: CorpusReader,
        corpus: Corpus,
        step: Step,
        state: PassState,
        batch_tokens: int | None = None,
        *,
        prepare: Prepare | None = None,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        """Adds a whole corpus up: the shard that is read here, then the shards of all.

        The batches, and with them the sums to the last bit, do not depend on interruptions. A signal to stop takes
        effect after the batch at hand. A batch that does not fit into memory is run in halves.

        Args:
            reader: the model, and the way of a corpus into it.
            corpus: all of it, whatever the number of processes.
            step: runs one batch, or what `prepare` made of it.
            state: its totals are those that `step` adds to; afterwards it holds the sums that were collected.
            batch_tokens: tokens of a batch, padding included; None for what suits the device.
            prepare: makes something else than batches of encoded examples, for the step, without using the device: for
                a device it is done while the batch before is computed.
            settle: called before sums are kept or handed on; raises an error if they are not to be.

        Raises:
            ModelError: if a single sentence does not fit into the memory of the device.
            OutputError: if what was kept belongs to something else, or cannot be written.
        """
        if self.checkpoint is not None:
            self.checkpoint.restore(state)
        if self.shard is not None and not state.complete:
            device, progress = reader.model.device, PassProgress(self.progress, state.encoding)
            examples = progress.reading(self.shard.shard(corpus))
            batches = reader.rows(examples, batch_tokens, state.encoding)
            # A resumed pass encodes the batches again that are in its sums, but does not run them.
            done, ready = state.batches, dict[int, Any]()

            def prepared() -> Iterator[tuple[Sequence[EncodedExample], Any]]:
                for number, rows in enumerate(batches):
                    yield rows, None if prepare is None or number < done else prepare(rows)

            def run_rows(rows: Sequence[EncodedExample]) -> AnnotationCounts:
                batch = ready.pop(id(rows), None)
                return step((prepare or reader.collate)(rows) if batch is None else batch)

            # What failed has been forgotten by all observers, so nothing counts twice.
            run = SplitWhenOutOfMemory(device, run_rows, add_counts, _tokens, self.warn, row="sentence")
            ahead = read_ahead(prepared()) if reads_ahead(device) else nullcontext(prepared())
            with DeferredSignals() as signals, ahead as read:
                for number, (rows, batch) in enumerate(read):
                    if number >= done:
                        ready[id(rows)] = batch
                        add_counts(state.annotation, run(rows))
                        ready.clear()
                        state.batches += 1
                    progress.ran(len(rows))
                    self._keep(state, signals, settle)
                state.complete = True
                settle()
                self._keep(state, signals, settle, always=True)
        if self.collect is not None:
            self.collect(state)
        elif self.shard is not None and self.shard.count > 1:
            state.fill(self.shard.gather(state.dump()))

    def _keep(
        self, state: PassState, signals: DeferredSignals, settle: Callable[[], None], *, always: bool = False
    ) -> None:
        if (
            self.checkpoint is not None
            and state.batches
            and (always or signals.noted is not None or self.checkpoint.due)
        ):
            settle()
            self.checkpoint.save(state)
        signals.obey()


def _tokens(rows: Sequence[EncodedExample]) -> int:
    """Tokens of a batch of these rows, padding included."""
    return len(rows) * max(row.length for row in rows)


# What parts may differ in: where they were computed and how, not what.
_APART = {"shard", "merge", "figures", "device", "batch_tokens", "offline"}


def parse_shard(text: str) -> Processes:
    """Reads which part of a corpus is meant: `2/5` is the second of five.

    Raises:
        OptionError: for anything else.
    """
    number, _, of = text.partition("/")
    if not (number.isdecimal() and of.isdecimal() and len(of) <= 6 and 1 <= int(number) <= int(of)):
        raise OptionError(
            f"--shard {text} is not a valid part of a corpus.", "Give one such as 2/5: the second of five."
        )
    return Processes(int(number) - 1, int(of))


def sums_file(name: str) -> str:
    """Returns the name of the file with the sums of a pass."""
    return f"sums-{name}.npz"


def part_folders(folders: Sequence[Path], command: str, arguments: Mapping[str, Any]) -> list[Path]:
    """Looks at the runs of parts, of which every one has to be there, and returns their folders in order of the parts.

    Args:
        folders: of the runs, in any order.
        command: that wrote them.
        arguments: that they have to have begun with, but for where and how they were computed.

    Raises:
        InputError: if one is no such run, was asked something else, or a part is missing or there twice.
    """
    folder_of_rank: dict[int, Path] = {}
    of: set[int] = set()
    for folder in folders:
        record = read_run(folder) or {}
        recorded = record.get("arguments") or {}
        if record.get("command") != command or not recorded.get("shard"):
            raise InputError(f"{folder} holds no run of headlens {command} --shard.", "Leave it out of --merge.")
        if record.get("status") != "finished":
            raise InputError(
                f"{folder}: this part has not finished.", f"headlens {command} --resume {folder}, then merge."
            )
        shared = arguments.keys() - _APART
        if differing := changes({name: recorded.get(name) for name in shared}, {n: arguments[n] for n in shared}):
            raise InputError(
                f"{folder} was run with different options: {differing}.",
                f"Give the options of the parts: headlens {command} --config {folder}/run.json --merge …",
            )
        part = parse_shard(str(recorded["shard"]))
        of.add(part.count)
        if part.rank in folder_of_rank:
            raise InputError(f"{folder} and {folder_of_rank[part.rank]} are the same part.", "Leave one of them out.")
        folder_of_rank[part.rank] = folder
    (count, *more) = sorted(of)
    missing = [f"{number + 1}/{count}" for number in range(count) if number not in folder_of_rank]
    if more or missing:
        problem = f"parts of {count} and of {more[0]}" if more else f"the part {missing[0]} is missing"
        raise InputError(f"--merge: {problem}.", "Name the runs of all parts of one corpus.")
    return [folder_of_rank[number] for number in range(count)]


def fill_from_parts(folders: Sequence[Path], state: PassState, name: str, identity: Mapping[str, str]) -> None:
    """Replaces a state by the sums of one pass, of all parts.

    Args:
        folders: of the runs of all parts, in the order of the parts.
        state: of the pass.
        name: of the pass.
        identity: what the sums depend on, in words fit for a message ("the corpus" -> its hash).

    Raises:
        InputError: if they are missing or damaged, or were computed from something else.
    """
    contents = []
    for folder in folders:
        path = folder / sums_file(name)
        with read_errors(path, "cannot be read", "Run this part again with --overwrite."):
            content = path.read_bytes()
            before = conform(unpacked(content)[0][IDENTITY], dict[str, str])
            state.fill([content])  # what is damaged is told with its file
        if changed := [what for what, value in identity.items() if before.get(what) != value]:
            raise InputError(
                f"{path}: {' and '.join(changed)} changed since this part was run.",
                "Merge with the same model and corpus files as the parts, or run the parts again.",
            )
        contents.append(content)
    with read_errors(folders[0], "does not fit the other parts", "Run all parts again with --overwrite."):
        state.fill(contents)

"""What every head of a model does: the recipe of `headlens classify`."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from headlens.attention.cuda_graphs import ReplayedPasses, padded_length
from headlens.attention.edits_and_observers import BatchTokens, Tokens
from headlens.attention.session import AttentionSession
from headlens.corpora.annotations import AnnotationCounts, Annotator
from headlens.corpora.batches import Batch, collate
from headlens.corpora.encoded_corpus import EncodingCounts
from headlens.corpora.encoding import EncodedExample, SentenceEncoder
from headlens.corpora.frequency import Frequency
from headlens.corpora.relations import frequent_relations, label_notes
from headlens.corpora.sentence import Corpus, CorpusSummary, summarise
from headlens.corpora.sources import first_example
from headlens.errors import CorpusError, OptionError, counted
from headlens.findings.result_notes import annotation_notes, encoding_notes, pair_notes
from headlens.heads import KEY_COLUMNS, HeadTable, Stack
from headlens.metrics.accumulator import Accumulator, Array
from headlens.metrics.batch_cache import copied_with_facts
from headlens.metrics.metric import MetricSettings, Statistics, call_metric
from headlens.metrics.metric_registry import refuse_collisions, registered_metrics
from headlens.metrics.similarity import HeadSimilarity
from headlens.metrics.syntax import Syntax, count_offsets, most_frequent_offsets
from headlens.models.loading import LoadedModel
from headlens.relevance_propagation.head_relevance import HeadRelevances, nothing_read
from headlens.roles.role_options import ClassifyOptions, Thresholds
from headlens.roles.role_rules import label, mark_syntactic, null_notes, role_scores, too_little_notes
from headlens.runs.corpus_pass import CorpusPass, CorpusReader, PassState

_SHORTEST_WINDOW = 16  # tokens, special ones included

_BETWEEN_WORDS = (
    "Measured between words (--data-args level=word): weights to a word are summed over its tokens, those from it "
    "averaged, and what sentences, tables and figures call a token is a word. Norms, similarity of heads and measures "
    "of pairs of texts are of tokens always."
)
# Sentences are drawn in so many groups, each of random ones: sums are kept for every group, not for every sentence.
GROUPS = 25


@dataclass(frozen=True)
class Frequencies:
    """Word frequencies of both sides; None leaves the rare-word metric out."""

    source: Frequency | None = None
    target: Frequency | None = None


@dataclass(frozen=True)
class Classification:
    """What `classify_heads` found: tables by the names of their CSV files, and how the corpus was read.

    Args:
        tables: `heads`, `positions`, and as far as the corpus allows `syntax`, `rare`, `similarity`; `relevance` where
            it was measured.
        encoding: sentences and words read, left out, not aligned.
        annotation: dependency instances read and lost.
        notes: what the user should know about these numbers.
        more: tables that are not about heads, such as `relation_offsets`.
        too_little: whether too few sentences or tokens were read to assign any roles.
        kernels: names of sites by how their attention was computed, see `AttentionSession.kernels`.
        resampled: gives the share of draws in which every head keeps its role, for a call after every draw; None where
            `stability` was not asked for.
    """

    tables: dict[str, HeadTable]
    encoding: EncodingCounts
    annotation: AnnotationCounts
    notes: list[str]
    more: dict[str, pd.DataFrame] = field(default_factory=dict)
    too_little: bool = False
    kernels: Mapping[str, list[str]] = field(default_factory=dict)
    resampled: Callable[[Callable[[int], None]], Array] | None = None

    def frames(self, model: str) -> dict[str, pd.DataFrame]:
        """The tables as they are written: with the model's name in front."""
        more = {name: table.assign(model=model)[["model", *table.columns]] for name, table in self.more.items()}
        return {name: table.with_model(model) for name, table in self.tables.items()} | more

    def record(self) -> dict[str, Any]:
        """Returns what run.json says of the measurement: how the corpus was read, and what computed attention."""
        return {
            "encoding": asdict(self.encoding),
            "annotation": asdict(self.annotation),
            "kernels": dict(self.kernels),
        }

    def with_stability(self, drawn: Callable[[int], None] = lambda _: None) -> Classification:
        """The result with the column `role_stability` of `heads`, if that was asked for and heads have roles.

        Args:
            drawn: called after every draw, with 1.
        """
        if self.resampled is None:
            return self
        if self.too_little:
            return replace(self, notes=[*self.notes, "No head has a role on so little text, so none has a stability."])
        heads = HeadTable(self.tables["heads"].rows.assign(role_stability=self.resampled(drawn)))
        return replace(self, tables={**self.tables, "heads": heads})

    def with_relevance(self, relevances: HeadRelevances) -> Classification:
        """The result with the relevance of heads in `heads` and in a table of its own."""
        heads = HeadTable(self.tables["heads"].rows.drop(columns="relevance")).join(relevances.of_heads())
        tables = {**self.tables, "heads": _ordered(heads), "relevance": relevances.table}
        return replace(self, tables=tables, notes=list(dict.fromkeys([*self.notes, *relevances.notes])))


def classify_heads(
    loaded: LoadedModel,
    corpus: Corpus,
    options: ClassifyOptions | None = None,
    frequencies: Frequencies | None = None,
    *,
    baseline_corpus: Corpus | None = None,
    summary: CorpusSummary | None = None,
    corpus_pass: CorpusPass | None = None,
) -> Classification:
    """Measure every head of a model over a corpus and name the roles of the heads.

    Memory does not grow with the corpus. The result does not depend on the size or order of batches, but for the last
    digits of sums.

    Args:
        loaded: an encoder, decoder or encoder-decoder with its tokenizer.
        corpus: sentences, with trees for the syntactic roles, in pairs for decoder and cross-attention.
        options: what is measured; without relations all that have enough instances.
        frequencies: for the rare-word roles.
        baseline_corpus: where the baseline's offsets are chosen; by default the corpus itself.
        summary: of the corpus; None reads it once more before, if relations are not named or long sentences are cut.
        corpus_pass: progress, what is kept for going on after an interruption, and with whom the corpus is shared.

    Raises:
        ModelError: if the model has no tokenizer.
        NoHeadsError: if no heads are left where the corpus goes.
        CorpusError: if nothing of the corpus can be used.
        OptionError: if a relation that was asked for never occurs in trees that are there.
    """
    options = options or ClassifyOptions()
    relations = options.relations
    windows = options.long_sentences == "window" and options.split_at is None
    if summary is None and (relations is None or windows):
        summary = summarise(corpus)
    if relations is None:
        assert summary is not None
        relations = common_relations(summary, options.thresholds.min_instances)
    frequencies = frequencies or Frequencies()
    reader, window_notes = _reader(loaded, corpus, options, summary if windows else None)
    pairs, sample = reader.encoder.pairing == "joined" or options.split_at is not None, options.similarity == "sample"
    sides = frequencies.source, frequencies.target
    annotator = Annotator(relations, *sides, words=True, pairs=pairs, sample=sample, seed=options.seed)
    baseline, baseline_notes = None, list[str]()
    if baseline_corpus is not None:
        baseline, other_labels = _baseline(reader, baseline_corpus, relations, options.batch_tokens)
        baseline_notes = [f"{baseline_corpus.name}: {note}" for note in label_notes(other_labels, relations)]
    settings = MetricSettings(relations, options.exclude_self, baseline)
    metrics = [call_metric(metric, "of", metric.of, settings) for metric in registered_metrics()] + list(
        options.metrics
    )
    refuse_collisions(metrics)
    statistics = Statistics(metrics, reader.sites, level=options.level)
    similarity = None if options.similarity == "off" else HeadSimilarity(reader.sites)
    groups = SentenceGroups() if options.stability else None
    state, kernels = _measure(
        reader, corpus, annotator, (statistics, similarity, groups), options, corpus_pass or CorpusPass()
    )
    encoding, annotation = state.encoding, state.annotation
    if not encoding.sentences:
        raise nothing_read(corpus, reader, encoding)
    if annotation.trees:
        check_relations(options.relations or (), annotation.arcs, corpus.name)
    thresholds = replace(options.thresholds, rare=math.inf) if annotation.rarity_is_vague else options.thresholds
    tables = _head_tables(statistics, similarity, thresholds)
    if too_little := too_little_notes(
        encoding.sentences, encoding.tokens, thresholds, may_cut=not windows and options.split_at is None
    ):
        tables["heads"] = HeadTable(tables["heads"].rows.assign(role="", roles="", roles_by_weight=""))
    scores = role_scores(tables["heads"], tables.get("syntax"), thresholds)
    scores = scores.assign(held=0) if too_little else scores
    notes = [
        *too_little,
        *[_BETWEEN_WORDS] * (options.level == "word"),
        *([] if too_little else null_notes(tables["heads"].rows, scores)),
        *encoding_notes(reader, encoding),
        *(window_notes if encoding.windowed else []),
        *annotation_notes(annotation, encoding.no_tree, relations, options.thresholds.min_instances),
        *statistics.notes(),
        *label_notes(annotation.labels, relations),
        *pair_notes(annotation, tables["heads"].rows, options.split_at),
        *baseline_notes,
    ]
    resampled, more = None, {**statistics.more_tables(), "roles": scores}
    if groups is not None:
        roles = partial(_roles, statistics, thresholds)
        resampled = partial(role_stability, groups, roles, options.stability, options.seed)
    return Classification(tables, encoding, annotation, notes, more, bool(too_little), kernels, resampled)


def _reader(
    loaded: LoadedModel, corpus: Corpus, options: ClassifyOptions, summary: CorpusSummary | None
) -> tuple[CorpusReader, list[str]]:
    """What reads a corpus, and a note on its windows, if it has few long texts; the summary is given where it is cut.

    Raises:
        ModelError, NoHeadsError, OptionError: see `classify_heads`.
    """
    first = first_example(corpus)
    reader = CorpusReader.of(loaded, first, options.long_sentences, options.split_at)
    if options.split_at is not None:
        check_split(corpus, options.split_at, paired=first.target is not None)
    reader.require_heads(loaded.name)
    if summary is None or first.target is not None:
        return reader, []
    return _with_enough_windows(reader, summary, options.thresholds)


def _with_enough_windows(
    reader: CorpusReader, summary: CorpusSummary, thresholds: Thresholds
) -> tuple[CorpusReader, list[str]]:
    """Cuts few long texts, such as a single document, into as many windows as roles need sentences, if they have words.

    Returns:
        What reads the corpus, and a note on its windows; none where they are as long as the model reads.
    """
    longest = summary.words // thresholds.min_sentences  # tokens: no word has less than one
    enough = longest * thresholds.min_sentences >= thresholds.min_tokens and longest >= _SHORTEST_WINDOW
    limit = reader.encoder.limit
    if summary.sentences >= thresholds.min_sentences or not enough or (limit is not None and longest >= limit):
        return reader, []
    verb = "is" if summary.sentences == 1 else "are"
    note = (
        f"There {verb} {counted(summary.sentences, 'sentence')}, fewer than the {thresholds.min_sentences} that roles "
        f"need: windows have at most {longest} tokens, so that there are enough."
    )
    return replace(reader, encoder=replace(reader.encoder, max_length=longest)), [note]


def _measure(
    reader: CorpusReader,
    corpus: Corpus,
    annotator: Annotator,
    sums_of: tuple[Statistics, HeadSimilarity | None, SentenceGroups | None],
    options: ClassifyOptions,
    corpus_pass: CorpusPass,
) -> tuple[PassState, dict[str, list[str]]]:
    """Passes a corpus through the model; for `stability` the sums of each group of sentences are kept, too.

    Returns:
        Sums and counts, and the kernels that computed attention.
    """
    statistics, similarity, groups = sums_of
    reader = reader if groups is None else replace(reader, group=group_of)
    graphs, eager = options.kernel == "graphs", options.kernel == "eager"
    if graphs:
        reader = replace(reader, padded_length=partial(_padded_length, reader.encoder))
    observers = [observer for observer in (statistics, similarity) if observer is not None]
    session = AttentionSession(reader.model, observers=observers, kernel="eager" if eager else "fast")
    replayed = ReplayedPasses(session, reader.arguments)
    sums = {"statistics": statistics.totals} if groups is None else groups.totals
    state = PassState(sums if similarity is None else {**sums, "similarity": similarity.totals})

    def prepare(rows: Sequence[EncodedExample]) -> tuple[Batch, BatchTokens, AnnotationCounts]:
        counts = AnnotationCounts()
        batch = collate(rows, pad_id=reader.pad_id, device="cpu", padded_length=reader.padded_length)
        tokens = annotator.annotate(batch, counts, decoder_only=reader.decoder_only)
        for observer in observers if reader.model.device.type != "cpu" else ():
            observer.look_ahead(tokens)
        return batch, tokens, counts

    def step(prepared: tuple[Batch, BatchTokens, AnnotationCounts]) -> AnnotationCounts:
        batch, host_tokens, counts = prepared
        if groups is not None:
            statistics.totals = groups.of(batch.examples)
        inputs, tokens = copied_with_facts(batch.inputs, host_tokens, reader.model.device)
        with session.batch(tokens):
            if graphs:
                replayed(inputs)
            else:
                reader.model(**inputs, **reader.arguments)
        return counts

    with session, torch.inference_mode():
        corpus_pass.run(reader, corpus, step, state, options.batch_tokens, prepare=prepare, settle=session.settle)
    if groups is not None:
        statistics.totals = groups.added()
    kernels = session.kernels() | ({} if similarity is None else similarity.kernels())
    return state, kernels | (replayed.kernels() if graphs else {})


def _padded_length(encoder: SentenceEncoder, length: int) -> int:
    """What a text is padded to, so that shapes come again; not more than the model can read."""
    return max(length, min(padded_length(length), *(n for n in (encoder.limit, encoder.target_limit) if n)))


def common_relations(summary: CorpusSummary, min_instances: int) -> tuple[str, ...]:
    """All relations that have enough instances in a corpus; in one too small for any, those of Voita et al. (2019)."""
    frequent = frequent_relations(summary.relations, min_instances)
    return frequent or tuple(name for name in ("nsubj", "obj", "amod", "advmod") if name in summary.relations)


def check_relations(relations: tuple[str, ...], counts: Mapping[str, int], corpus: str) -> None:
    """Refuse relations that occur nowhere.

    Raises:
        OptionError: naming them and the relations that do occur.
    """
    if not (missing := [r for r in relations if not counts.get(r)]):
        return
    present = [r for r, n in counts.items() if n]
    known = ", ".join(sorted(r for r in present if ":" not in r)) or "none"
    meant = ", ".join(dict.fromkeys(close for r in missing for close in get_close_matches(r, present, n=1)))
    raise OptionError(
        f"--relations: {', '.join(missing)} {'does' if len(missing) == 1 else 'do'} not occur in the trees of "
        f"{corpus}.",
        f"{f'Did you mean {meant}? ' if meant else ''}Relations that occur: {known}.",
    )


def check_split(corpus: Corpus, split_at: str, *, paired: bool) -> None:
    """Refuse `--data-args split-at` where it makes no pairs.

    Raises:
        OptionError: if the corpus has pairs, or what separates texts stands once in no sentence.
    """
    if paired:
        raise OptionError(f"--data-args split-at {split_at}: the corpus already consists of pairs.", "Leave it out.")
    if not any(example.source.text.count(split_at) == 1 for example in corpus):
        raise OptionError(
            f"--data-args split-at {split_at}: no sentence of {corpus.name} contains it exactly once.",
            "Give the separator exactly as it is written between the two texts.",
        )


def _baseline(
    reader: CorpusReader, corpus: Corpus, relations: tuple[str, ...], batch_tokens: int | None
) -> tuple[dict[Stack, Array], dict[str, int]]:
    """The most frequent offsets in units of another corpus, by stack, and its labels; no model is run for them."""
    annotator = Annotator(relations, sample=False)
    counts = AnnotationCounts()
    offsets: dict[Stack, Tensor] = {}
    for batch in reader.batches(corpus, batch_tokens):
        tokens = annotator.annotate(batch, counts, decoder_only=reader.decoder_only)
        sides: Sequence[tuple[Stack, Tokens | None]] = (("encoder", tokens.encoder), ("decoder", tokens.decoder))
        for stack, side in sides:
            if side is not None and side.arcs is not None:
                offsets[stack] = count_offsets(side.arcs, len(relations)) + offsets.get(stack, 0)
    if not counts.arcs:
        raise CorpusError("the baseline corpus has no instance of the relations.", "It needs trees.", path=corpus.name)
    return {stack: most_frequent_offsets(n.cpu().numpy()) for stack, n in offsets.items()}, counts.labels


def _head_tables(
    statistics: Statistics, similarity: HeadSimilarity | None, thresholds: Thresholds
) -> dict[str, HeadTable]:
    """Tables by the name of their CSV, `heads` first; those without any measurement are left out.

    Every metric's columns are in `heads`, and its own table, if it has one, is among the others.

    Args:
        statistics: measured over a corpus.
        similarity: measured over the same corpus; None if it was not asked for.
        thresholds: from where on a head holds a role.
    """
    measured = statistics.tables()
    tables = {m.name: measured[m.name] for m in statistics.metrics if m.own_table and m.name in measured}
    if "syntax" in tables:
        tables["syntax"] = mark_syntactic(tables["syntax"], thresholds)
    heads = _with_roles(statistics, tables.get("syntax"), thresholds)
    if similarity is not None and (pairs := similarity.table()) and (embedding := similarity.embedding()):
        tables["similarity"] = pairs
        heads = heads.join(embedding)
    return {"heads": _ordered(heads), **tables}


def _with_roles(statistics: Statistics, syntax: HeadTable | None, thresholds: Thresholds) -> HeadTable:
    first, *others = statistics.head_tables()
    return label(first.join(*others), syntax, thresholds)


def _roles(statistics: Statistics, thresholds: Thresholds, totals: Accumulator) -> list[str]:
    """Computes the roles of heads from other sums than those of all sentences."""
    of_group = Statistics(statistics.metrics, statistics.sites, level=statistics.level)
    of_group.totals = totals
    syntax = next((m.table(of_group.sums(m)) for m in of_group.metrics if isinstance(m, Syntax)), None)
    marked = None if syntax is None else mark_syntactic(syntax, thresholds)
    return _with_roles(of_group, marked, thresholds).rows["role"].tolist()


def head_columns() -> list[str]:
    """The columns that every heads.csv begins with, after those that name the head; others follow."""
    columns = [column.name for metric in registered_metrics() for column in metric.columns if column.contract]
    return [*columns, "relevance", "role", "roles"]


def _ordered(heads: HeadTable) -> HeadTable:
    """The columns of the contract first, empty where nothing was measured; others follow, last those of null heads."""
    first = [*KEY_COLUMNS, *head_columns()]
    others = sorted((c for c in heads.rows.columns if c not in first), key=lambda name: name.endswith("_null"))
    return HeadTable(heads.rows.reindex(columns=[*first, *others]))


def group_of(example: EncodedExample) -> int:
    """Returns the number of the group of a sentence, which depends on its text alone."""
    return zlib.crc32(example.key.encode()) % GROUPS


class SentenceGroups:
    """The sums of each group of sentences, by name."""

    def __init__(self) -> None:
        self.totals = {f"statistics-{number}": Accumulator() for number in range(GROUPS)}

    def of(self, examples: Sequence[EncodedExample]) -> Accumulator:
        """Returns the sums to which a batch adds, all of whose sentences are of one group."""
        return self.totals[f"statistics-{group_of(examples[0])}"]

    def added(self, times: Sequence[int] | Array = (1,) * GROUPS) -> Accumulator:
        """Returns the sums of all groups, each counted so many times; (groups,)."""
        accumulator = Accumulator()
        for totals, number in zip(self.totals.values(), times, strict=True):
            if number:
                accumulator.add_arrays({name: array * number for name, array in totals.arrays().items()})
        return accumulator


def role_stability(
    groups: SentenceGroups,
    roles: Callable[[Accumulator], Sequence[str]],
    resamples: int,
    seed: int,
    drawn: Callable[[int], None] = lambda _: None,
) -> Array:
    """Returns the share of resamples in which every head has the role that it has on all sentences; (heads,).

    Groups of sentences are drawn with replacement, as many as there are (bootstrap of clusters: sentences of a group
    are random ones, so that the spread is that of sentences).

    Args:
        groups: the sums of a corpus.
        roles: gives the roles of all heads from sums.
        resamples: how often groups are drawn.
        seed: of the draws.
        drawn: called after every one, with 1.
    """
    generator = np.random.default_rng(seed)
    held = np.array(roles(groups.added()), dtype=object)
    filled = np.array([bool(list(totals)) for totals in groups.totals.values()])
    same_role = np.zeros(len(held))
    for _ in range(resamples):
        # Of a small corpus some groups are empty, and never drawn.
        times = np.zeros(GROUPS, dtype=np.int64)
        times[filled] = generator.multinomial(filled.sum(), np.full(filled.sum(), 1 / filled.sum()))
        same_role += np.array(roles(groups.added(times)), dtype=object) == held
        drawn(1)
    share: Array = same_role / resamples
    return share

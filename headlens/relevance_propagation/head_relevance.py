"""What every head contributes: the recipe of `headlens relevance`, and of `classify --relevance`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
from torch import Tensor

from headlens.attention.sites import find_sites
from headlens.corpora.annotations import AnnotationCounts
from headlens.corpora.batches import Batch, batch_tokens_of, collate, token_budget_batches
from headlens.corpora.corpus_options import LongSentences
from headlens.corpora.encoded_corpus import EncodingCounts, Masking, encode_corpus, mask_examples
from headlens.corpora.encoding import EncodedExample, Pairing, SentenceEncoder
from headlens.corpora.sentence import Corpus, Example
from headlens.corpora.sources import first_example
from headlens.errors import CorpusError, OptionError, counted
from headlens.findings.result_notes import reading_notes, were
from headlens.heads import HeadTable
from headlens.models.checkpoint_weights import require_trained
from headlens.models.loading import LoadedModel, tokenizer_of
from headlens.relevance_propagation.aggregation import Conservation, RelevanceSums, raw_correlations, rule_correlations
from headlens.relevance_propagation.logit_attribution_rule import CURVATURE, HEADS, MLPS
from headlens.relevance_propagation.relevance_options import ReadingOptions, RelevanceOptions, Rule, check_rules
from headlens.relevance_propagation.relevance_session import CONSERVING, RelevanceSession
from headlens.relevance_propagation.shares import even_output, few_answers, mixed_signs, same_output
from headlens.relevance_propagation.targets import EveryPosition, MaskedTokenLogits, Target, choose_target, generated
from headlens.runs.corpus_pass import CorpusPass, CorpusReader, PassState
from headlens.statistics.bootstrap import FEWEST

_ONE_SIGN = (
    "alpha-beta: all heads have the sign of what relevance starts from, whatever they do: it tells how much passes "
    "through a head, not whether the head serves or opposes the target."
)
_TRAIN = (
    "Give a model that was trained for it, or train one with headlens train; or use the target embedding, which needs "
    "no head."
)
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
        """Returns the reader for examples like this one.

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
        model: Any = loaded.model
        if target.pooled:
            # Without its task head, and without a decoder, where embeddings are what is looked at.
            model = model.get_encoder() if model.config.is_encoder_decoder else model.base_model
        decodes = any(s.stack == "decoder" for s in find_sites(model))
        pairing: Pairing = "alone" if two_sided or not paired else "apart" if target.rows == 2 else "joined"
        start = loaded.decoder_start_id if two_sided else None  # also asks for the language that the model writes
        most, most_written = loaded.max_length, loaded.longest("target")
        if two_sided or target.pooled:
            most = loaded.longest("source")
        encoder = SentenceEncoder(
            tokenizer, most, start if paired else None, long, pairing, loaded.max_unknown, most_written
        )
        return cls(
            model=model,
            encoder=encoder,
            pad_id=loaded.pad_id,
            decoder_only=decodes and not two_sided,
            encoder_alone=False,
            arguments={},
            masking=Masking(target.mask_id, *masking) if isinstance(target, MaskedTokenLogits) else None,
            generates=two_sided and not paired,
        )

    def rows(
        self, corpus: Iterable[Example], batch_tokens: int | None = None, counts: EncodingCounts | None = None
    ) -> Iterator[list[EncodedExample]]:
        """See `CorpusReader.rows`; a pair of two rows costs the tokens of both."""
        counts = counts or EncodingCounts()
        encoded = encode_corpus(corpus, self.encoder, counts)
        masked = encoded if self.masking is None else mask_examples(encoded, self.masking, counts)
        size = batch_tokens or batch_tokens_of(self.model.device)
        return token_budget_batches(masked, max(1, size // 2) if self.encoder.pairing == "apart" else size)

    def collate(self, rows: Sequence[EncodedExample]) -> Batch:
        """A batch on the model's device; the sentences of a pair may be rows one after the other."""
        if self.encoder.pairing != "apart":
            return super().collate(rows)
        single = [EncodedExample(side) for row in rows for side in row.sides]
        return replace(collate(single, pad_id=self.pad_id, device=self.model.device), examples=rows)

    def inputs(self, batch: Batch) -> dict[str, Any]:
        """What the model takes, with the translations it writes itself where the corpus has none."""
        inputs: dict[str, Tensor] = dict(batch.inputs)
        if not self.generates:
            return inputs
        longest = self.encoder.max_target_length
        return generated(self.model, inputs, LONGEST if longest is None else min(LONGEST, longest - 1))


@dataclass(frozen=True)
class HeadRelevances:
    """What `head_relevance` found.

    Args:
        table: rows of `relevance.csv`: the rule asked for, then those it is compared with, for every head.
        correlations: rows of `correlations.csv`: how well the rules agree on the order of the heads; empty without
            comparison.
        target: where relevance started, in full.
        conservation: where relevance went, by rule; for rules that pass it back to the inputs.
        encoding: sentences and words read and left out.
        notes: what the user should know about these numbers.
    """

    table: HeadTable
    correlations: pd.DataFrame
    target: str
    conservation: dict[Rule, Conservation]
    encoding: EncodingCounts
    notes: list[str] = field(default_factory=list)

    def frames(self, model: str) -> dict[str, pd.DataFrame]:
        """The tables as they are written: with the model's name in front."""
        frames = {"relevance": self.table.with_model(model)}
        if len(self.correlations):
            frames["correlations"] = self.correlations.assign(model=model)[["model", *self.correlations.columns]]
        return frames

    def of_heads(self) -> HeadTable:
        """One row per head with the column `relevance`, of the rule asked for."""
        rows = self.table.rows
        return HeadTable(rows[rows["rule"] == rows["rule"].iloc[0]][["stack", "layer", "head", "relevance"]])


def head_relevance(
    loaded: LoadedModel,
    corpus: Corpus,
    options: RelevanceOptions | None = None,
    *,
    compare: tuple[Rule, ...] = (),
    reading: ReadingOptions | None = None,
    corpus_pass: CorpusPass | None = None,
) -> HeadRelevances:
    """Measure what every head of a model contributes to its output over a corpus.

    Memory does not grow with the corpus. The result does not depend on the size or order of batches, but for rounding.

    Args:
        loaded: an encoder, decoder or encoder-decoder with its tokenizer.
        corpus: sentences, or pairs: translations, or whatever the model was trained on.
        options: rule and target.
        compare: further rules, each with a forward and a backward pass of its own.
        reading: batches and seed.
        corpus_pass: progress, what is kept for --resume, and the processes that share the corpus.

    Raises:
        ModelError: if the model has no tokenizer.
        UnsupportedModelError: if a part of the model has no rule.
        OptionError: if model, corpus and target do not go together, or the target reads weights that are random.
        CorpusError: if nothing of the corpus can be used.
        SelfCheckError: if the numbers are not finite, all zero, or relevance got lost.
    """
    options, reading = options or RelevanceOptions(), reading or ReadingOptions()
    rules: tuple[Rule, ...] = tuple(dict.fromkeys((options.rule, *compare)))
    check_rules("--compare", rules)
    first = first_example(corpus)
    target = choose_target(options.relevance_target, loaded, paired=first.target is not None)
    if options.mask_share != RelevanceOptions.mask_share and not isinstance(target, MaskedTokenLogits):
        raise OptionError(
            f"mask-share: no tokens are masked for the target {target.label}.",
            "Leave it out, or use masked.",
        )
    masking = options.mask_share, reading.seed
    reader = RelevanceReader.starting_at(target, loaded, first, masking, reading.long_sentences)
    sessions = {rule: RelevanceSession(reader.model, target, rule) for rule in rules}
    sums = {r: RelevanceSums(reader.sites, replicates=options.replicates, seed=reading.seed) for r in rules}
    state = PassState({rule: rule_sums.totals for rule, rule_sums in sums.items()})

    def step(batch: Batch) -> AnnotationCounts:
        inputs, keys = reader.inputs(batch), [example.key for example in batch.examples]
        if loaded.untrained and not state.batches:
            started = target.parts(reader.model(**inputs), inputs)
            require_trained(loaded.model, loaded.untrained, started, f"--relevance-target {target.label}", _TRAIN)
        # A batch is added to the sums of all rules, or to none.
        try:
            for rule, session in sessions.items():
                with session:
                    relevance = session.relevance(inputs)
                sums[rule].hold(relevance, keys)
        except BaseException:
            for rule_sums in sums.values():
                rule_sums.totals.discard()
            raise
        for rule_sums in sums.values():
            rule_sums.totals.commit()
        return AnnotationCounts()

    (corpus_pass or CorpusPass()).run(reader, corpus, step, state, reading.batch_tokens)
    encoding = state.encoding
    if not state.batches:
        raise nothing_read(corpus, reader, encoding, f", {encoding.unmaskable} without any token that could be masked")
    tables = [rule_sums.table(rule, target.label) for rule, rule_sums in sums.items()]
    correlations = [
        compare(rules[0], sums[rules[0]].means(raw=raw), rule, sums[rule].means(raw=raw))
        for rule in rules[1:]
        for compare, raw in ((rule_correlations, False), (raw_correlations, True))
    ]
    flows = {rule: rule_sums.conservation for rule, rule_sums in sums.items() if rule in CONSERVING}
    conservation = {rule: flow for rule, flow in flows.items() if flow is not None}
    notes = _start_notes(sums[rules[0]]) + reading_notes(reader, encoding)
    mixed = bool(mixed_signs(*sums[rules[0]].below))
    notes += _relevance_notes(reader, encoding, tables[0], flows, mixed=mixed)
    return HeadRelevances(
        HeadTable(pd.concat([t.rows for t in tables], ignore_index=True)),
        pd.concat(correlations, ignore_index=True) if correlations else pd.DataFrame(),
        target.label,
        conservation,
        encoding,
        notes,
    )


def nothing_read(corpus: Corpus, reader: CorpusReader, counts: EncodingCounts, unmaskable: str = "") -> CorpusError:
    """Returns the error that a model can read no sentence of a corpus, with what became of the sentences."""
    return CorpusError(
        f"the model can read no sentence: {counts.too_long} longer than its {reader.encoder.limit} tokens, "
        f"{counts.empty} empty{unmaskable}.",
        "Cut long sentences with --data-args long-sentences=window, or use a model with a longer limit.",
        path=corpus.name,
    )


def _start_notes(sums: RelevanceSums) -> list[str]:
    """What the outputs are like that relevance starts from, where that matters for all numbers."""
    alike = same_output(sums.identical) if sums.identical else few_answers(sums.answers)
    return [note for note in (alike, even_output(sums.evenness), mixed_signs(*sums.below)) if note]


def _relevance_notes(
    reader: RelevanceReader,
    encoding: EncodingCounts,
    table: HeadTable,
    flows: Mapping[Rule, Conservation | None],
    *,
    mixed: bool,
) -> list[str]:
    """Where relevance started and went, and in which layers it cancels.

    Args:
        reader: what was run.
        encoding: what became of the sentences.
        table: of one rule, `RelevanceSums.table`.
        flows: where relevance went, by rule.
        mixed: whether what relevance started from has both signs, see `mixed_signs`.
    """
    notes = []
    if reader.generates:
        notes.append("The corpus has no target side: relevance starts at the model's own output (greedy search).")
    if reader.masking is not None:
        drawn = encoding.sentences - encoding.unmaskable - encoding.own_masks
        masked = f"{counted(encoding.masked, 'token')} of {counted(drawn, 'sentence')} {were(encoding.masked)} masked"
        contain = "contains" if encoding.own_masks == 1 else "contain"
        own_notes = (
            f"{counted(encoding.own_masks, 'sentence')} that {contain} mask tokens {were(encoding.own_masks)} not "
            "masked further"
        )
        notes.append("; ".join([masked] * bool(drawn) + [own_notes] * bool(encoding.own_masks)) + ".")
    for rule, flow in flows.items():
        if flow is None:
            notes.append(
                f"{rule}: the logits that relevance started from add up to 0, so no shares of them can be told."
            )
            continue
        lost = f"{flow.lost:.1%}" if abs(flow.lost) >= 5e-4 else f"{flow.lost:.0e}"
        if flow.others:
            notes.append(_parts_note(rule, flow, lost, mixed_start=mixed))
            continue
        both = "" if 0 <= flow.inputs <= 1 and not mixed else " (contributions of both signs, as shares of their sum)"
        notes.append(
            f"{rule}: of the initial relevance, {flow.inputs:.1%} arrived at embeddings, {flow.biases:.1%} stayed "
            f"in biases, {lost} was lost{both}."
        )
    if set(table.rows["rule"]) == {"alpha-beta"}:
        notes.append(_ONE_SIGN)
    given = table.rows[table.rows["raw"].notna()]
    if absent := [stack for stack in table.rows["stack"].unique() if stack not in set(given["stack"])]:
        notes.append(
            f"{table.rows['rule'].iloc[0]}: heads of the {' and '.join(absent)} write nothing into the residual stream "
            "that ends in the target, which they reach by way of other heads alone: they have no numbers."
        )
    layers = given.drop_duplicates(["stack", "layer"])
    texts = {
        "cancelled": "Where positive and negative relevance of a layer's heads all but cancel, an example has no "
        "shares and is left out of that layer's means",
        "negative": "In some examples with shares the heads of a layer together work against the target; a positive "
        "share there means contributing to that opposition. See `signed` and `raw` for the sign",
    }
    for column, text in texts.items():
        layer_texts = [f"{r['stack']} {r['layer']} ({r[column]})" for r in layers.to_dict("records") if r[column]]
        notes += [f"{text}: {', '.join(layer_texts)}."] if layer_texts else []
    if (layers["n"] < FEWEST).any():
        notes.append(f"Layers with fewer than {FEWEST} examples have no intervals.")
    return notes


def _parts_note(rule: str, flow: Conservation, lost: str, *, mixed_start: bool) -> str:
    """What the target is the sum of, for a rule by which heads give a part of it."""
    others = dict(flow.others)
    curvature = others.pop(CURVATURE, 0.0)
    tangent = (
        f", {curvature:.1%} what activation functions behind the last layer (a pooler's, those of the head of a masked "
        "language model) add to their tangents"
    )
    mixed = " These are shares of a mean of both signs, and depend on the mix of examples." * mixed_start
    return (
        f"{rule}: of the target, heads give {others[HEADS]:.1%} themselves. The remainder: {others.get(MLPS, 0.0):.1%} "
        f"MLPs, {flow.inputs:.1%} embeddings, {flow.biases:.1%} biases{tangent * bool(curvature)}; {lost} was "
        f"lost.{mixed}"
    )

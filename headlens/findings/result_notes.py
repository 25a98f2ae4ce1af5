"""What the reader of a table should know about its numbers, in plain words."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.corpora.annotations import AnnotationCounts
from headlens.corpora.encoded_corpus import EncodingCounts
from headlens.corpora.sentence import broken_note
from headlens.errors import counted
from headlens.options import DEMO
from headlens.runs.corpus_pass import CorpusReader
from headlens.statistics.bootstrap import FEWEST
from headlens.statistics.intervals import wilson
from headlens.statistics.non_inferiority import LEVEL
from headlens.tables.same_answers import same_answer_text
from headlens.tasks.classification import CorrelationTask
from headlens.tasks.example_sources import SourceCounts
from headlens.tasks.masked import Likelihood
from headlens.tasks.skill import Skill, skill_at_tokens, skill_of
from headlens.tasks.task import Floats, Task, length_preference
from headlens.tasks.task_options import FEW_EXAMPLES, guess_text
from headlens.tasks.translation import CUT

Chosen = npt.NDArray[np.bool_]
_TRAIN = ": train it further"
_MORE_TEXT = ", or evaluate it on more text, of the kind that it was trained on."


def encoding_notes(reader: CorpusReader, counts: EncodingCounts) -> list[str]:
    """What was left out, and what could not be aligned."""
    notes = ["The corpus has no target side: only the encoder was analysed."] if reader.encoder_alone else []
    notes += reading_notes(reader, counts)
    if counts.sentences_with_unaligned:
        words, sentences = counts.unaligned_words, counts.sentences_with_unaligned
        verb, whose = ("has", "its") if words == 1 else ("have", "their")
        named = f", such as {_named_form(next(iter(counts.unaligned_forms)))}" if counts.unaligned_forms else ""
        lost = f"; {whose} relations are not measured" if counts.unaligned_in_trees else ""
        notes.append(f"{counted(words, 'word')} in {counted(sentences, 'sentence')} {verb} no token{named}{lost}.")
    if counts.merged_words:
        share = "shares" if counts.merged_words == 1 else "share"
        merged = counted(counts.merged_words, "word")
        notes.append(f"{merged} {share} a token with another word; words that share a token are read as one unit.")
    return notes


def _named_form(form: str) -> str:
    """A word as a note names it: a single character that may not be seen, such as a byte order mark, by its name."""
    if len(form) == 1 and not form.isalnum():
        return f"U+{ord(form):04X} ({unicodedata.name(form, 'a character without a name').lower()})"
    return repr(form)


def few_example_notes(
    examples: int,
    pruned_on: Chosen | None = None,
    *,
    purpose: str = "which heads the task needs most",
    advice: str = "Give more --data.",
) -> list[str]:
    """Says that there are too few examples, or too few left for pruned models, to conclude anything from.

    Args:
        examples: number of all.
        pruned_on: which of them pruned models are evaluated on, (n,); None for all.
        purpose: what they are to tell.
        advice: how to have more.
    """
    left = examples if pruned_on is None else int(pruned_on.sum())
    for number, what in ((examples, ""), (left, " for pruned models")):
        if number < FEW_EXAMPLES:
            return [
                f"{counted(number, 'example')}{what}, fewer than {FEW_EXAMPLES}: too few to tell {purpose}. {advice}"
            ]
    return []


def record_notes(
    task: Task,
    records: Floats,
    pruned_on: Chosen | None = None,
    labels: Mapping[int, int] | None = None,
    pruned_labels: Mapping[int, int] | None = None,
) -> list[str]:
    """Notes on the records (n, k) of an unpruned model: what guessing gives, whether it guesses, what was cut.

    Args:
        task: whose records they are.
        records: of all examples.
        pruned_on: which of them pruned models are evaluated on, (n,): guesses are reported for these, too.
        labels: how often each token was to be predicted, of tasks that predict tokens.
        pruned_labels: the same of what pruned models are evaluated on.
    """
    notes = _token_notes(task, records, labels) if isinstance(task, Likelihood) and labels else []
    if notes and pruned_on is not None and pruned_labels and isinstance(task, Likelihood):
        loss = task.chance(records[pruned_on], "loss", pruned_labels)
        part = counted(int(pruned_on.sum()), "example")
        notes[0] += f" On the {part} that pruned models are evaluated on, it has a loss of {loss:.3f}."
    if isinstance(task, CorrelationTask):
        notes += _correlation_notes(task, records)
    elif (chance := task.chance(records)) is not None:
        metric = task.metrics[0]
        article = "an" if metric[0] in "aeiou" or metric == "f1" else "a"
        length = length_preference(task, records)
        guess = guess_text(among_candidates=not task.labels, length=length)
        where = "" if pruned_on is None else _on_both(chance, task.chance(records[pruned_on]), pruned_on)
        at_random = "; at random 0.500" if length else ""
        notes.append(f"{guess} has {article} {metric} of {chance:.3f} (chance level{at_random}){where}.")
        notes += _guess_notes(task, records, f"{guess[0].lower()}{guess[1:]}", chance)
    notes += _length_notes(task, records)
    if same := same_answer_text(task.answer_share(records)):
        answer = ""
        if task.labels:
            values, counts = np.unique(records[:, task.columns.index("predicted")], return_counts=True)
            answer = f": {task.labels[int(values[np.argmax(counts)])]!r}"
        notes.append(f"The model gives {same}{answer}.")
    if cut := cut_translations(task, records):
        notes.append(
            f"{counted(cut, 'translation')} {were(cut)} cut off at the length limit before the end-of-sentence token."
        )
    return notes


def _guess_notes(task: Task, records: Floats, guessing: str, chance: float) -> list[str]:
    """Whether a model is better than guesses of some kind, whose main metric is known; nothing if it is."""
    skill, right = skill_of(task, records), task.right(records, task.metrics[0])
    if skill.worse:
        # Wrong candidates are often chosen to mislead, and sums of log-probabilities favour short texts.
        why = ", as one that knows nothing may be where candidates differ in length or in words they share."
        return [f"The model is significantly worse than {guessing}{f'{_TRAIN}.' if task.labels else why}"]
    if skill.untested:
        return [_untested(guessing, len(records))]
    if not skill.lacking:
        return []
    why = f"{_TRAIN}{'.' if task.constant(records) else ', or evaluate it on more examples.'}"
    if right is not None and chance ** len(right) >= LEVEL / 2:  # all right by guessing
        why = f": of {counted(len(right), 'example')} no model could be. Evaluate it on more."
        if length_preference(task, records):
            why = ", and no model could be: the lengths of candidates tell. Use pairs of equal length."
    return [f"The model is not significantly better than {guessing}{why}"]


def _length_notes(task: Task, records: Floats) -> list[str]:
    """How many right choices there are by which candidate has more tokens, where sums of log-probabilities decide."""
    right = task.right(records, task.metrics[0])
    if "longer" not in task.columns or right is None:
        return []
    longer, parts = records[:, task.columns.index("longer")], []
    if not longer.any():
        return []
    for chosen, text in ((longer == 0, "as long as"), (longer < 0, "shorter than"), (longer > 0, "longer than")):
        if chosen.any():
            parts.append(f"{int(right[chosen].sum())} of {int(chosen.sum())} where it is {text} the other")
    low, high = wilson(right[longer == 0].sum(), np.asarray((longer == 0).sum())) if (longer == 0).any() else (0, 1)
    equal = f" Of equal length: {right[longer == 0].mean():.3f} [{low:.3f}, {high:.3f}]." if (longer == 0).any() else ""
    return [
        "A sum of log-probabilities is lower for more tokens, whatever the text. The right candidate is chosen in "
        f"{', '.join(parts)}.{equal}"
    ]


def _token_notes(task: Likelihood, records: Floats, labels: Mapping[int, int]) -> list[str]:
    """What the best constant prediction of tokens gives, and whether records (nll, tokens, …) are better than that."""
    loss, accuracy = (task.chance(records, metric, labels) for metric in ("loss", "accuracy"))
    assert loss is not None
    notes = [
        f"Predicting every token by its frequency among the {sum(labels.values()):,} evaluated ones, without reading, "
        f"has a loss of {loss:.3f} and an accuracy of {accuracy:.3f} (chance level: no other constant prediction is "
        "better; of few tokens it is lower than on other texts)."
    ]
    by_frequency, advice = "predicting by the frequencies of these very tokens", f"{_TRAIN}{_MORE_TEXT}"
    by_loss = _compared(loss_skill := skill_at_tokens(task, records, labels, "loss"))
    if task.metrics[0] != "accuracy":
        if loss_skill.untested:
            notes.append(_untested(by_frequency, len(records)))
        elif by_loss:
            notes.append(f"The loss of the model is {by_loss} than that of {by_frequency}{advice}")
        return notes
    skill, most_frequent = skill_of(task, records, labels), "always predicting the most frequent of these very tokens"
    if skill.untested:
        notes.append(_untested(most_frequent, len(records)))
    elif by_accuracy := _compared(skill):
        notes.append(f"The model is {by_accuracy} than {most_frequent}{advice}")
    elif by_loss:
        notes.append(f"By its loss, though not by its accuracy, the model is {by_loss} than {by_frequency}{advice}")
    return notes


def _compared(skill: Skill) -> str:
    """How a model compares with guesses; empty for one that is better, or not known to be no better."""
    return "significantly worse" if skill.worse else "not significantly better" if skill.lacking else ""


def _untested(than: str, examples: int) -> str:
    """Says that nothing is known of whether a model is better than guesses."""
    few = f"{counted(examples, 'example')}, fewer than {FEWEST}"
    return f"Whether the model is better than {than} is not tested: {few}. Evaluate it on more."


def _correlation_notes(task: CorrelationTask, records: Floats) -> list[str]:
    """What scores without reading give, and whether those of the model (gold, predicted) are better than that."""
    skill, metric = skill_of(task, records), task.metrics[0]
    notes = [f"Scores that have nothing to do with the texts have a {metric} correlation of 0 (chance level)."]
    if skill.worse:
        notes.append(f"The model is significantly worse than scoring without reading{_TRAIN}.")
    elif skill.untested:
        notes.append(_untested("scoring without reading", len(records)))
    elif skill.lacking:
        more = ", or evaluate it on more examples."
        notes.append(f"The model is not significantly better than scoring without reading{_TRAIN}{more}")
    return notes


def cluster_notes(keys: Sequence[str]) -> list[str]:
    """A note where examples share what makes them alike, such as a paragraph, and are no independent ones.

    Args:
        keys: of the examples, see `Draws.of`.
    """
    clusters = len(set(keys))
    if clusters == len(keys):
        return []
    few = f", too few for intervals and p-values (fewer than {FEWEST})" if clusters < FEWEST else ""
    return [
        f"{counted(len(keys), 'example')} share {counted(clusters, 'paragraph')} (or texts), which are resampled as a "
        f"whole: intervals and p-values are those of {counted(clusters, 'independent example')}{few}."
    ]


def without_advice(notes: Iterable[str]) -> list[str]:
    """Notes of a model that more training cannot help, without the advice to train it."""
    return [f"{text}." if advice else text for text, advice, _ in (note.partition(_TRAIN) for note in notes)]


def _on_both(chance: float, on_part: float | None, part: Chosen) -> str:
    """What guesses give of some examples, after what they give of all; nothing where that is the same."""
    if on_part is None or on_part == chance:
        return ""
    both = f" on all {len(part):,} examples, and of {on_part:.3f} on the {part.sum():,}"
    return f"{both} that pruned models are evaluated on"


def left_out_notes(data: SourceCounts, name: str, limit: str | None) -> list[str]:
    """What to know about rows of data that were not used: a note for each reason, none if all were.

    Args:
        data: counts of the source.
        name: of the data.
        limit: how much the model reads, as `Reader.limit_text` has it; None if any length.
    """
    notes = []
    if data.broken:
        notes.append(broken_note(data.broken, data.rows, data.first_broken))
    unread = "without text to score" if limit is None else f"too long for {limit} or without text to score"
    reasons = (
        (data.unlabelled, "without a label, an answer or text"),
        (data.too_short, "with fewer words than --data-args min-words"),
        (data.too_long, unread),
    )
    return notes + [f"Left out: {counted(n, 'example')} of {name}, {why}." for n, why in reasons if n]


def embedded_notes(corpus: str, sentences: int) -> list[str]:
    """The note on the default text that a model learns from; none where text was named.

    Args:
        corpus: as it was named.
        sentences: of it.
    """
    if corpus != DEMO:
        return []
    return [f"The training text is that of the bundled treebank, only {counted(sentences, 'sentence')}."]


def cut_translations(task: Task, records: Floats) -> int:
    """How many translations were scored without an end, see `Translation`; 0 for other tasks."""
    return int(records[:, task.columns.index(CUT)].sum()) if CUT in task.columns else 0


def reading_notes(reader: CorpusReader, counts: EncodingCounts) -> list[str]:
    """Returns notes on sentences of a corpus that were left out, cut or not understood, with their numbers."""
    notes = [note for side in counts.unknown for note in side.notes(reader.encoder.tokenizer)] + _long_sentences(
        reader, counts
    )
    if unnamed := reader.encoder.unnamed_tokens:
        one = len(unnamed) == 1
        notes.append(
            f"The tokenizer adds {', '.join(unnamed)} to every text, but its settings do not name "
            f"{'it' if one else 'them'} as cls_token, sep_token, bos_token or eos_token: "
            f"{'it counts' if one else 'they count'} as special, but neither as [CLS] nor as a separator."
        )
    if reader.encoder.pairing == "joined" and counts.sentences:
        notes.append(f"The two texts of {counted(counts.sentences, 'pair')} were read as one sequence each.")
    for number, lack in ((counts.empty, "words"), (counts.unmaskable, "a token to mask")):
        if number:
            notes.append(f"{counted(number, 'sentence')} without {lack} {were(number)} left out.")
    return notes


def _long_sentences(reader: CorpusReader, counts: EncodingCounts) -> list[str]:
    notes, longer, target_limit = [], f"longer than {reader.encoder.limit} tokens", reader.encoder.target_limit
    if target_limit != reader.encoder.limit:
        longer += f", or than {target_limit} as a target"
    if counts.too_long:
        advice = " --data-args long-sentences=window splits them instead." * (reader.encoder.long_sentences != "window")
        advice = " Pairs are not cut into windows." if reader.encoder.reads_pairs else advice
        notes.append(f"{counted(counts.too_long, 'sentence')} {longer} {were(counts.too_long)} left out.{advice}")
    if counts.windowed:
        notes.append(
            f"{counted(counts.windowed, 'sentence')} {longer} {were(counts.windowed)} cut into windows. Each window "
            "counts as a sentence; those of one text are not independent of each other, so that intervals may be too "
            "narrow, and relations between windows are lost."
        )
    if counts.words_too_long:
        words = counts.words_too_long
        alone = "it is" if words == 1 else "each is"
        notes.append(f"{counted(words, 'word')} {were(words)} left out of the windows: {alone} {longer} on its own.")
    return notes


def were(number: int) -> str:
    """The verb of a sentence about so many things."""
    return "was" if number == 1 else "were"


def pair_notes(counts: AnnotationCounts, heads: pd.DataFrame, split_at: str | None) -> list[str]:
    """What is known of the words of pairs, and what is not."""
    notes = []
    if counts.no_pair:
        reason = "hold two texts with tokens" + ("" if split_at is None else f", with {split_at} once between them")
        notes.append(
            f"{counted(counts.no_pair, 'sentence')} {'does' if counts.no_pair == 1 else 'do'} not {reason}; "
            f"measures of pairs do not count {'it' if counts.no_pair == 1 else 'them'}."
        )
    if counts.lost_links:
        notes.append(f"{counted(counts.lost_links, 'gold link')} not measured, because a word has no token.")
    if counts.pairs and not counts.links and not heads["equal_tokens"].any():
        notes.append(
            "No token of either text occurs in the other, so nothing shows which words correspond: "
            "--alignments gives a gold alignment."
        )
    return notes


def annotation_notes(
    counts: AnnotationCounts, no_tree: int, relations: tuple[str, ...], min_instances: int
) -> list[str]:
    """Which trees and relations are missing; `no_tree` sentences have no tree."""
    notes = []
    if counts.lost_arcs:
        notes.append(
            f"{counted(counts.lost_arcs, 'relation instance')} not measured: within one unit, across windows, or at a "
            "word without a token."
        )
    if counts.lost_mentions:
        notes.append(
            f"{counted(counts.lost_mentions, 'mention')} of entities not measured, because a word has no token."
        )
    if no_tree and relations:
        verb = "has" if no_tree == 1 else "have"
        notes.append(f"{counted(no_tree, 'sentence')} {verb} no dependency tree; --parser adds them.")
    if counts.rarity_is_vague:
        notes.append(
            f"In {counts.tied_sentences} of {counts.rare_sentences} sentences several words tie for the rarest, for "
            "instance because the frequency list lacks them: no head is called rare. --frequency wordfreq:LANG chooses "
            "the list; none is for text without words, such as code or molecules."
        )
    few = [f"{r} ({counts.arcs.get(r, 0)})" for r in relations if counts.arcs.get(r, 0) < min_instances]
    if few and counts.arcs:
        notes.append(f"Too few instances for a syntactic role (fewer than {min_instances}): {', '.join(few)}.")
    return notes


def notes_of_models(notes: Mapping[str, Sequence[str]], *, once: bool = False) -> list[str]:
    """The notes of the models of a run; of several models each begins with its name.

    Args:
        notes: by name of the model.
        once: whether those that all models have stand once and without a name, as for many checkpoints.
    """
    first = dict.fromkeys(next(iter(notes.values()), ()))
    common = [note for note in first if once and all(note in own for own in notes.values())]
    named = [f"{name}: {note}" for name, own in notes.items() for note in own if note not in common]
    return common + named if len(notes) > 1 else [note for own in notes.values() for note in own]

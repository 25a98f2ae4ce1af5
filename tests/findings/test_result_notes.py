"""What is told of the examples."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from headlens.corpora.encoded_corpus import EncodingCounts
from headlens.findings.result_notes import cluster_notes, few_example_notes, reading_notes, record_notes, without_advice
from headlens.findings.without_skill import skill_first
from headlens.runs.corpus_pass import CorpusReader
from headlens.statistics.bootstrap import Draws
from headlens.statistics.paired_tests import Comparison
from headlens.tasks.catalogue import CATALOGUE, find_task
from headlens.tasks.classification import ChoiceTask
from headlens.tasks.skill import skill_of
from headlens.tasks.task_options import CHOICES, LENGTH_TELLS, WRITTEN

MOST_FREQUENT = "Always giving the most frequent answer has"
NO_CORRELATION = "Scores that have nothing to do with the texts have a pearson correlation of 0 (chance level)."
NOT_BETTER = (
    "The model is not significantly better than always giving the most frequent answer: train it further, or evaluate "
    "it on more examples."
)
NOT_CORRELATED = (
    "The model is not significantly better than scoring without reading: train it further, or evaluate it on more "
    "examples."
)
UNTESTED = "Whether the model is better than {} is not tested: {} examples, fewer than 10. Evaluate it on more."
UNTESTED_SCORES = UNTESTED.format("scoring without reading", 4)
UNTESTED_CLASSES = UNTESTED.format("always giving the most frequent answer", 4)
TOO_FEW = (
    "The model is not significantly better than always giving the most frequent answer: of 4 examples no model could "
    "be. Evaluate it on more."
)
NO_BETTER = (
    "The model is not significantly better than always giving the most frequent answer: train it further, or evaluate "
    "it on more examples."
)
# Three of four by guessing: p = 0.051.
NO_BETTER_THAN_RANDOM = NO_BETTER.replace("always giving the most frequent answer", "choosing at random")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sst2", ["Always giving the most frequent answer has an accuracy of 0.750 (chance level).", TOO_FEW]),
        ("mrpc", ["Always giving the most frequent answer has an f1 of 0.857 (chance level)."]),
        ("cola", ["Always giving the most frequent answer has a matthews of 0.000 (chance level).", UNTESTED_CLASSES]),
        ("swag", ["Choosing at random has an accuracy of 0.250 (chance level).", NO_BETTER_THAN_RANDOM]),
        ("stsb", [NO_CORRELATION, UNTESTED_SCORES]),
    ],
)
def test_what_guessing_gives(name: str, expected: list[str]) -> None:
    records = np.array([[1.0, 1.0, 0.1], [1.0, 0.0, 2.0], [0.0, 0.0, 0.2], [1.0, 1.0, 0.3]])
    task = find_task(name).task
    assert record_notes(task, records[:, : len(task.columns)]) == expected


@pytest.mark.parametrize(("name", "told"), [("cola", NOT_BETTER), ("stsb", NOT_CORRELATED)])
def test_what_needs_a_test_has_none_of_few_examples(name: str, told: str) -> None:
    """Nine examples have no test, as they have no interval; ten have."""
    task = find_task(name).task
    records = np.resize(np.array([[1.0, 1.0, 0.1], [1.0, 0.0, 2.0], [0.0, 0.0, 0.2], [0.0, 1.0, 0.3]]), (10, 3))
    records = records[:, : len(task.columns)]
    assert told in record_notes(task, records)
    (untested,) = (note for note in record_notes(task, records[:9]) if "not tested: 9 examples" in note)
    assert skill_first([untested], ["m: a sentence."]) == [untested, "m: a sentence."]


@pytest.mark.parametrize(
    ("name", "than"),
    [
        ("mlm", "always predicting the most frequent of these very tokens"),
        ("causal-lm", "predicting by the frequencies of these very tokens"),
    ],
)
def test_tokens_of_nine_examples_are_not_tested(name: str, than: str) -> None:
    records = np.stack([np.linspace(20, 21, 10), np.full(10, 5.0), np.zeros(10)], axis=1)
    labels = {7: 48, 2: 24, 5: 12, 9: 12}
    assert "significantly worse" in record_notes(find_task(name).task, records, labels=labels)[1]
    told = record_notes(find_task(name).task, records[:9], labels=labels)[1]
    assert told == UNTESTED.format(than, 9)
    assert skill_of(find_task(name).task, records[:9], labels).lacking


def test_a_logit_difference_of_nine_prompts_is_not_tested() -> None:
    task = find_task("logit-difference").task
    records = np.ones((10, len(task.columns))) + np.linspace(0, 0.1, 10)[:, None]
    assert skill_of(task, records).better
    assert skill_of(task, records[:9]).untested


def test_the_chance_level_of_what_pruned_models_are_evaluated_on_stands_beside_that_of_all() -> None:
    records = np.stack([np.linspace(20, 21, 12), np.full(12, 5.0), np.zeros(12)], axis=1)
    part = np.arange(12) < 4
    first, *_ = record_notes(find_task("mlm").task, records, part, {7: 48, 2: 12}, {7: 10, 2: 10})
    assert " has a loss of 0.500 and " in first
    assert first.endswith(" On the 4 examples that pruned models are evaluated on, it has a loss of 0.693.")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "sst2",
            f"{MOST_FREQUENT} an accuracy of 0.750 (chance level) on all 4 examples, and of 0.500 on the 2 that",
        ),
        (
            "mrpc",
            f"{MOST_FREQUENT} an f1 of 0.857 (chance level) on all 4 examples, and of 0.667 on the 2 that",
        ),
        ("cola", "Always giving the most frequent answer has a matthews of 0.000 (chance level)."),
        ("swag", "Choosing at random has an accuracy of 0.250 (chance level)."),
    ],
)
def test_what_guessing_gives_of_the_part_that_pruned_models_are_evaluated_on(name: str, expected: str) -> None:
    records = np.array([[1.0, 1.0, 0.1], [1.0, 0.0, 2.0], [0.0, 0.0, 0.2], [1.0, 1.0, 0.3]])
    note = record_notes(find_task(name).task, records, np.array([False, True, True, False]))[0]
    assert note == (expected if expected.endswith(".") else f"{expected} pruned models are evaluated on.")


WORSE = "The model is significantly worse than always giving the most frequent answer: train it further."


def answers(changed: int) -> np.ndarray:
    """Records of a classifier of two classes that is wrong on so many of 100 examples, and never sure alike."""
    labels = np.arange(100) % 2
    predicted = np.where(np.arange(100) < changed, 1 - labels, labels)
    return np.stack([labels, predicted, np.random.default_rng(changed).random(100)], axis=1)


@pytest.mark.parametrize(("wrong", "told"), [(30, []), (45, [NO_BETTER]), (55, [NO_BETTER]), (70, [WORSE])])
def test_a_model_that_does_not_beat_guessing_is_told(wrong: int, told: list[str]) -> None:
    chance, *more = record_notes(find_task("sst2").task, answers(wrong))
    assert chance == "Always giving the most frequent answer has an accuracy of 0.500 (chance level)."
    assert more == told
    assert skill_first([chance, *more], ["m: a sentence."]) == [*more, "m: a sentence."]
    assert without_advice(more) == [note.partition(": train")[0] + "." for note in told]


@pytest.mark.parametrize("name", ["causal-lm", "translation-loss"])
@pytest.mark.parametrize(
    ("nll", "verdict"),
    [
        (0.9, ""),
        (
            1.0,
            "not significantly better than that of predicting by the frequencies of these very tokens: train it",
        ),
        (
            1.2,
            "significantly worse than that of predicting by the frequencies of these very tokens: train it further",
        ),
    ],
)
def test_a_loss_is_compared_with_the_best_constant_prediction(name: str, nll: float, verdict: str) -> None:
    """Of tokens with shares 1/2, 1/4, 1/8 and 1/8 the entropy is 1.75 bits, which are 1.213 nats."""
    tokens = np.tile([1.0, 2.0, 3.0], 16)
    noise = np.resize([0.01, -0.01], 48)
    records = np.stack([tokens * (nll * 1.75 * np.log(2) + noise), tokens, np.zeros(48)], axis=1)
    first, *more = record_notes(find_task(name).task, records, labels={7: 48, 2: 24, 5: 12, 9: 12})
    assert first == (
        "Predicting every token by its frequency among the 96 evaluated ones, without reading, has a loss of 1.213 and "
        "an accuracy of 0.500 (chance level: no other constant prediction is better; of few tokens it is lower than on "
        "other texts)."
    )
    assert len(more) == bool(verdict)
    assert all(note.startswith(f"The loss of the model is {verdict}") for note in more)
    assert skill_first([first, *more], ["m: a sentence."]) == [*more, "m: a sentence."]
    assert record_notes(find_task(name).task, records) == []


@pytest.mark.parametrize(
    ("correct", "loss", "expected"),
    [
        (0.6, 0.9, ""),
        (0.6, 1.1, "By its loss, though not by its accuracy, the model is significantly worse than predicting by the "),
        (0.5, 0.9, "The model is not significantly better than always predicting the most frequent of these very tok"),
        (0.4, 0.9, "The model is significantly worse than always predicting the most frequent of these very tokens: "),
    ],
)
def test_masked_tokens_are_judged_by_accuracy_as_verdicts_are(correct: float, loss: float, expected: str) -> None:
    """One whose loss was that of frequencies was said to guess, though it had far more tokens right than they have."""
    tokens, noise = np.full(40, 10.0), np.resize([1.0, -1.0], 40)
    records = np.stack([tokens * loss * 1.75 * np.log(2) + noise, tokens, tokens * correct + noise], axis=1)
    task, labels = find_task("mlm").task, {7: 200, 2: 100, 5: 50, 9: 50}
    _, *more = record_notes(task, records, labels=labels)
    assert len(more) == bool(expected)
    assert all(note.startswith(expected) and note.endswith(" of the kind that it was trained on.") for note in more)
    assert skill_of(task, records, labels).lacking == (correct <= 0.5)
    assert (skill_first(more, ["m: a sentence."]) != ["m: a sentence."]) == (correct <= 0.5)


@pytest.mark.parametrize(("frequent", "better"), [(0.6, True), (0.9, False)])
def test_masked_tokens_that_are_all_right_or_all_wrong_have_a_test(frequent: float, better: bool) -> None:
    task, labels = find_task("mlm").task, {7: round(100 * frequent), 2: round(100 - 100 * frequent)}
    right = np.ones((12, 3))
    assert skill_of(task, right, labels).better is better  # 0.9^12 = 0.28
    wrong = right * [1, 1, 0]
    assert (skill_of(task, wrong, labels).worse, skill_of(task, wrong, labels).better) == (True, False)


@pytest.mark.parametrize(("above", "told"), [(0.2, "not significantly better"), (0.6, "significantly worse")])
def test_frequencies_of_few_tokens_are_those_of_the_very_tokens(above: float, told: str) -> None:
    """Of 200 tokens of 100 kinds: on other texts these frequencies would lose about half a nat more."""
    labels = dict.fromkeys(range(1, 101), 2)
    noise = np.resize([0.01, -0.01], 40)
    records = np.stack([5 * (np.log(100) + above + noise), np.full(40, 5.0), np.zeros(40)], axis=1)
    assert f"The loss of the model is {told}" in record_notes(find_task("causal-lm").task, records, labels=labels)[1]


def test_the_most_frequent_answer_of_few_examples_is_compared_in_pairs() -> None:
    """Of ten answers 3 right are below the 7 of one class, which was found on the same ten examples."""
    labels = np.array([1.0] * 7 + [0.0] * 3)
    records = np.stack([labels, 1 - labels, np.linspace(0, 1, 10)], axis=1)
    records[:3, 1] = 1.0
    chance, told = record_notes(find_task("sst2").task, records)
    assert chance == f"{MOST_FREQUENT} an accuracy of 0.700 (chance level)."
    assert told == TOO_FEW.replace("4", "10"), "0.7 to the power of 10 is more than 2.5 %"


@pytest.mark.parametrize(
    ("right", "n", "better", "worse"),
    [(2, 11, False, False), (1, 11, False, True), (9, 11, False, False), (10, 11, True, False), (4, 4, False, False)],
)
def test_skill_of_few_choices_is_tested_exactly(right: int, n: int, better: bool, worse: bool) -> None:
    """Two tails of 2.5 % of a fair coin: P(X <= 2) of 11 is .033, P(X <= 1) is .006."""
    task = find_task("paraphrase").task
    records = np.zeros((n, len(task.columns)))
    records[:, 0] = np.arange(n) >= right  # the right candidate; the first is always chosen
    skill = skill_of(task, records)
    assert (skill.better, skill.worse) == (better, worse)


def test_a_model_that_chooses_worse_than_at_random_is_told() -> None:
    task = find_task("paraphrase").task
    records = np.zeros((100, len(task.columns)))
    records[:, 0] = np.arange(100) < 70  # the right candidate; the first is always chosen
    worse = (
        "The model is significantly worse than choosing at random, as one that knows nothing may be where candidates "
        "differ in length or in words they share."
    )
    assert record_notes(task, records)[1:] == [worse, "The model gives the same answer to all examples."]


@pytest.mark.parametrize(
    ("examples", "evaluated", "told"),
    [
        (29, None, "29 examples, fewer than 30"),
        (30, None, ""),
        (40, 12, "12 examples for pruned models, fewer than 30"),
    ],
)
def test_few_examples_are_told_also_where_few_are_left(examples: int, evaluated: int | None, told: str) -> None:
    part = None if evaluated is None else np.arange(examples) < evaluated
    notes = few_example_notes(examples, part)
    assert len(notes) == bool(told)
    assert all(note.startswith(told) for note in notes)
    assert all(note.endswith("too few to tell which heads the task needs most. Give more --data.") for note in notes)
    other = few_example_notes(examples, part, purpose="how long it takes", advice="Wait.")
    assert [note.endswith("too few to tell how long it takes. Wait.") for note in other] == [True] * len(notes)


def test_choices_are_counted_by_the_length_of_candidates() -> None:
    """A model that prefers fewer tokens is right wherever the right candidate has fewer, which is no knowledge."""
    task = find_task("minimal-pairs").task
    longer = np.repeat([-1, 0, 2], [20, 60, 20])
    records = np.zeros((100, len(task.columns)))
    records[:, task.columns.index("longer")] = longer
    records[:, 1] = np.where(longer == 0, np.arange(100) % 3 == 0, longer > 0)
    (note,) = [text for text in record_notes(task, records) if "log-probabilities" in text]
    assert note == (
        "A sum of log-probabilities is lower for more tokens, whatever the text. The right candidate is chosen in 40 "
        "of 60 where it is as long as the other, 20 of 20 where it is shorter than the other, 0 of 20 where it is "
        "longer than the other. Of equal length: 0.667 [0.541, 0.773]."
    )
    records[:, task.columns.index("longer")] = 0
    assert not any("log-probabilities" in text for text in record_notes(task, records))


@pytest.mark.parametrize("name", LENGTH_TELLS)
@pytest.mark.parametrize("sign", [-1, 1])
def test_choosing_by_length_is_no_skill(name: str, sign: int) -> None:
    """80 of 100 right candidates are shorter, or longer: a model that chooses by that knows nothing of the task."""
    task = find_task(name).task
    records = np.zeros((100, len(task.columns)))
    longer = sign * np.repeat([-1, 0, 2], [75, 10, 15])
    records[:, task.columns.index("longer")] = longer
    records[:, 1] = np.where(longer == 0, np.arange(100) % 2, sign * longer > 0)
    assert task.chance(records) == task.value(records) == pytest.approx(0.8)
    notes = record_notes(task, records)
    rule = f"lways choosing the candidate of {'fewer' if sign > 0 else 'more'} tokens"
    assert notes[0] == f"A{rule} has an accuracy of 0.800 (chance level; at random 0.500)."
    assert notes[1].startswith(f"The model is not significantly better than a{rule}: ")
    records[:, 1] = 0
    assert skill_of(task, records).better
    records[:, task.columns.index("longer")] = sign
    assert record_notes(task, records)[1].endswith(
        ", and no model could be: the lengths of candidates tell. Use pairs of equal length."
    )
    records[:, task.columns.index("longer")] = 0
    assert task.chance(records) == 0.5
    assert record_notes(task, records)[0].startswith("Choosing at random has an accuracy of 0.500")
    if name == "cloze":
        assert task.chance(records + longer[:, None], "acc_norm") == 0.5


@pytest.mark.parametrize("name", ["translation", "squad", "squad2"])
def test_one_text_for_everything_is_told(name: str) -> None:
    task = find_task(name).task
    records = np.ones((40, len(task.columns)))
    assert "The model gives the same answer to all examples." in record_notes(task, records)
    assert task.constant(records)
    records[:, task.columns.index("written")] = np.arange(40)
    assert not task.constant(records)


@pytest.mark.parametrize(("other", "share"), [(0, "all"), (1, "99 % of the"), (5, "95 % of the"), (6, "")])
def test_a_model_that_gives_nearly_all_examples_one_answer_is_told(other: int, share: str) -> None:
    records = answers(0)
    records[:, 1] = np.arange(100) >= other
    told = f"The model gives the same answer to {share} examples: 'positive'."
    assert [note for note in record_notes(find_task("sst2").task, records) if "same answer" in note] == [told] * bool(
        share
    )


def test_what_guesses_are_is_known_of_every_task() -> None:
    chosen = {name for name, entry in CATALOGUE.items() if isinstance(entry.task, ChoiceTask)}
    assert chosen == set(CHOICES)
    assert {name for name, entry in CATALOGUE.items() if "longer" in entry.task.columns} == set(LENGTH_TELLS)
    assert {name for name, entry in CATALOGUE.items() if "written" in entry.task.columns} == set(WRITTEN)


@pytest.mark.parametrize(("name", "constant"), [("translation", True), ("squad2", True), ("sst2", False)])
def test_nearly_one_text_for_everything_is_one_answer(name: str, constant: bool) -> None:
    """Texts share words by chance: a metric of them changes whatever is written; classes have a chance level."""
    task = find_task(name).task
    records = np.ones((100, len(task.columns)))
    column = task.columns.index("written" if "written" in task.columns else "predicted")
    records[:5, column] = np.arange(5) + 2
    assert task.constant(records) is constant
    records[5, column] = 0
    assert not task.constant(records)


@pytest.mark.slow
@pytest.mark.parametrize(("expected", "low", "high"), [(1, 0.35, 0.65), (2, 0.6, 0.85), (5, 0.85, 0.95), (10, 0.9, 1)])
def test_how_often_bootstrap_intervals_cover_where_few_examples_change(expected: int, low: float, high: float) -> None:
    task, rng, draws = find_task("mrpc").task, np.random.default_rng(expected), Draws.of([*map(str, range(222))], 400)
    for one_side in (True, False):
        # All that change were right, 85 % of the examples, or half of them were.
        chance = (expected / 222 / 0.85, 0.0) if one_side else (expected / 444 / 0.85, expected / 444 / 0.15)

        def sample(n: int, chance: tuple[float, float] = chance) -> tuple[np.ndarray, np.ndarray]:
            labels, right = rng.random(n) < 0.5, rng.random(n) < 0.85
            changed = rng.random(n) < np.where(right, *chance)
            pairs = [np.stack([labels, labels == kind, np.zeros(n)], 1) for kind in (right, right ^ changed)]
            return pairs[0].astype(float), pairs[1].astype(float)

        base, other = sample(2_000_000)
        true = task.value(other, metric="f1") - task.value(base, metric="f1")
        held = 0
        for _ in range(200):
            base, other = sample(222)
            compared = Comparison(base, lambda r, w: task.replicates(r, w, "f1"), draws).of(other)
            held += compared.low <= true <= compared.high
        assert low - 0.05 <= held / 200 <= high + 0.05


@pytest.mark.parametrize(
    ("unnamed", "told"),
    [
        ([], None),
        (["[CLS]"], "adds [CLS] to every text, but its settings do not name it as"),
        (["[CLS]", "[SEP]"], "adds [CLS], [SEP] to every text, but its settings do not name them as"),
    ],
)
def test_tokens_that_are_added_without_a_name_are_told(unnamed: list[str], told: str | None) -> None:
    encoder = SimpleNamespace(unnamed_tokens=unnamed, limit=128, target_limit=128, pairing="alone", tokenizer=None)
    notes = reading_notes(cast("CorpusReader", SimpleNamespace(encoder=encoder)), EncodingCounts())
    assert len(notes) == (told is not None)
    assert all(told is not None and told in note for note in notes)


@pytest.mark.parametrize(
    ("slope", "told"), [(1.0, ""), (-1.0, "significantly worse than scoring"), (0.0, "not significantly better than")]
)
def test_a_model_of_scores_is_compared_with_scores_without_reading(slope: float, told: str) -> None:
    random = np.random.default_rng(3)
    gold = random.uniform(0, 5, 80)
    records = np.column_stack([gold, slope * gold + random.normal(size=80)])
    for name in ("stsb", "similarity"):
        task = find_task(name).task
        chance, *more = record_notes(task, records)
        assert chance.endswith(f"{task.metrics[0]} correlation of 0 (chance level).")
        assert len(more) == bool(told)
        assert all(told in note for note in more)
        assert skill_first([chance, *more], ["m: a sentence."]) == [*more, "m: a sentence."]
        same = "m: the model gives the same answer to all 80 examples, so that nothing can be measured."
        assert skill_first([chance, *more], [same]) == [same], "which says enough"
        of_another = [f"other: {note}" for note in more]
        sentences = [same, "other: a sentence."]
        assert skill_first([*of_another, *(f"λ = 1: {note}" for note in more)], sentences) == [*of_another, *sentences]


def test_examples_of_one_paragraph_are_told_to_be_no_independent_ones() -> None:
    assert cluster_notes(["a", "b", "c"]) == []
    (few,) = cluster_notes(["a"] * 20 + ["b"] * 16)
    assert few == (
        "36 examples share 2 paragraphs (or texts), which are resampled as a whole: intervals and p-values are those "
        "of 2 independent examples, too few for intervals and p-values (fewer than 10)."
    )
    (many,) = cluster_notes([str(number // 2) for number in range(40)])
    assert many.endswith("those of 20 independent examples.")

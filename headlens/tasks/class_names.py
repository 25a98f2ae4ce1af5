"""Names of classes: which of a task's classes a model or a data set means, whatever the spelling and the order."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, product

from headlens.errors import ModelError, OptionError
from headlens.models.loading import LoadedModel

# Every line is one class; a word may stand in several, of which a task has one.
_SPELLINGS = (
    "negative neg n",
    "positive pos p",
    "neutral neut neu n",
    "entailment entail entails entailed ent e yes true",
    "contradiction contradict contradicts contradicted contradictory contra contr c",
    "acceptable accept accepted acc grammatical yes true",
    "equivalent equivalence equiv paraphrase paraphrases duplicate duplicates dup yes true",
)
_LEADING, _NEGATIONS = ("", "is", "label", "class"), ("not", "non", "no", "un")
_NUMBER = re.compile(r"\s*(?:(?:label|class)[\s_-]*)?([0-9]{1,5})\s*", re.IGNORECASE)
_Meanings = frozenset[tuple[str, bool]]


def _known_meanings() -> dict[str, _Meanings]:
    """Returns what every known spelling means: classes, and whether they are negated, as in `not_entailment`."""
    by_word: dict[str, set[tuple[str, bool]]] = defaultdict(set)
    for line in _SPELLINGS:
        words = line.split()
        for lead, word in product(_LEADING, words):
            by_word[lead + word].add((words[0], False))
            for negation in _NEGATIONS if len(word) > 1 else ():  # `none` is not `non-e`
                by_word[lead + negation + word].add((words[0], True))
    by_word["no"], by_word["false"] = by_word["notyes"], by_word["nottrue"]
    return {word: frozenset(meanings) for word, meanings in by_word.items()}


_KNOWN = _known_meanings()


def meanings(name: str) -> _Meanings:
    """Returns the classes that a name may stand for, each with whether it is negated, whatever its case and hyphens."""
    word = re.sub(r"[\s_./‐-]+", "", name.casefold())
    # The hyphen of -1 and the point of 1.0 do count.
    return _KNOWN.get(word, frozenset({(name if word.isdigit() else word, False)}))


def number_of(name: str) -> int | None:
    """Returns the number of a class without a name of its own, such as 1 of `LABEL_1`, `class 1` or `1`; else None."""
    match = _NUMBER.fullmatch(name)
    return None if match is None else int(match[1])


def class_places(names: Sequence[str], classes: Sequence[str]) -> tuple[int, ...] | None:
    """Finds the place of every class of a task in a list of names.

    Returns:
        One place per class, or None where the names are only numbers, each at its place, and the classes are not.

    Raises:
        ValueError: with the reason, if the names are not those of the classes, each once.
    """
    if sorted(names) == sorted(classes):
        return tuple(map(names.index, classes))
    if _is_numbered(enumerate(names)):
        return None
    if len(names) != len(classes):
        raise ValueError(f"they are {len(names)}, not {len(classes)}")
    places: dict[int, int] = {}
    for place, name in enumerate(names):
        meant = [number for number, meaning in enumerate(classes) if meanings(name) & meanings(meaning)]
        if len(meant) != 1:
            raise ValueError(f"{name!r} is not one of the task's classes")
        if (before := places.setdefault(meant[0], place)) != place:
            raise ValueError(f"{names[before]!r} and {name!r} are the same class")
    return tuple(places[number] for number in range(len(classes)))


def output_names(loaded: LoadedModel) -> list[str]:
    """Returns the names of a classifier's outputs in their order; `LABEL_0` and so on for those without names.

    They stand in `id2label`, in `label2id`, or in both.

    Raises:
        ValueError: with the reason, if the two contradict each other.
    """
    id2label, label2id = loaded.model.config.id2label or {}, loaded.model.config.label2id or {}
    by_number = [(int(number), str(name)) for number, name in id2label.items()]
    try:
        by_name = [(int(str(number)), str(name)) for name, number in label2id.items()]
    except ValueError as error:
        raise ValueError(f"label2id holds {list(label2id.values())}, not numbers") from error
    descriptive = [pairs for pairs in (by_number, by_name) if not _is_numbered(pairs)]
    names: dict[int, str] = {}
    for number, name in chain(*descriptive) if descriptive else by_number:
        if not meanings(names.setdefault(number, name)) & meanings(name):
            raise ValueError(f"id2label calls output {number} {names[number]!r}, and label2id {name!r}")
    if sorted(names) != list(range(len(by_number))):
        raise ValueError(f"these are the outputs {', '.join(map(str, sorted(names)))} of {len(by_number)}")
    return [names[number] for number in range(len(names))]


def _is_numbered(pairs: Iterable[tuple[int, str]]) -> bool:
    """Whether the names of numbers say nothing but the numbers, as `LABEL_0` of 0; so do no names at all."""
    return all(number_of(name) == number for number, name in pairs)


@dataclass(frozen=True)
class OutputOrder:
    """Which output of a model is which class of a task.

    Args:
        places: the output of every class; None for outputs without names, which are in the order of the classes.
        names: names of the outputs in their order: the model's own where they say which is which, or are more or fewer
            than the classes, which a task refuses as soon as it sees the outputs; else the task's.
        note: what the reader should know; empty for nothing.
    """

    places: tuple[int, ...] | None = None
    names: tuple[str, ...] = ()
    note: str = ""

    @classmethod
    def of(
        cls, loaded: LoadedModel, classes: Sequence[str], declared: Sequence[str] = (), *, by_place: bool = True
    ) -> OutputOrder:
        """Finds the order of a model's outputs.

        Args:
            loaded: the model.
            classes: names of the task's classes in the order of their numbers; without any, nothing is looked for.
            declared: the classes in the order of the outputs, where a user says so; goes before the model's own names.
            by_place: whether outputs without names are taken for the classes in their order.

        Raises:
            ModelError: if the model names its outputs, and not as these classes, or does not name them where that is
                not enough; unless `declared` says which is which.
        """
        if not classes:
            return cls()
        own_places, names, short = None, list[str](), loaded.short_name
        try:
            names = output_names(loaded)
            if len(names) != len(classes):
                return cls(names=tuple(names))
            own_places = class_places(names, classes)
            if own_places is None and not (by_place or _is_numbered(enumerate(classes))):
                raise ValueError("numbers do not show which class is which")
        except ValueError as error:
            if not declared:
                called = f"calls its outputs {', '.join(names)}" if names else "contradicts itself about its outputs"
                message = f"{loaded.name} {called}, and the task has the classes {', '.join(classes)}: {error}."
                raise ModelError(message, _ADVICE.format("model", "of the model's outputs")) from error
        if declared:
            places = class_places(declared, classes)
            note = f"{short} calls its outputs {', '.join(names)}; --labels says {', '.join(declared)}, which is used."
            return cls(places, tuple(declared), "" if own_places in (None, places) else note)
        if own_places is not None:
            return cls(own_places, tuple(names))
        note = (
            f"The outputs of {short} have no names ({', '.join(names)}); they are assumed to be "
            f"{', '.join(classes)}, in "
            "this order. --labels model=NAME,NAME gives another."
        )
        return cls(None, tuple(classes), note)


_ADVICE = "Say which is which with --labels {}=NAME,NAME: the task's classes, all of them, in the order {}."


def data_order(names: Sequence[str], classes: Sequence[str]) -> tuple[int, ...] | None:
    """Returns the class of every number of a data set that gives its numbers these names; None for no names.

    Raises:
        ValueError: with the message, if the names are not those of the classes.
    """
    try:
        places = class_places(names, classes)
    except ValueError as error:
        raise ValueError(
            f"its classes are {', '.join(names)}, and those of the task {', '.join(classes)}: {error}."
        ) from error
    return None if places is None else tuple(places.index(number) for number in range(len(places)))


DATA_ADVICE = _ADVICE.format("data", "of the data's numbers")


def parse_labels(given: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Reads the order of classes in the model and in the data: `model=positive,negative`, `data=negative,positive`.

    Raises:
        OptionError: if it is not written like this.
    """
    pairs = [text.partition("=") for text in given]
    labels = {whose.strip(): tuple(part.strip() for part in names.split(",")) for whose, _, names in pairs}
    if not labels.keys() <= {"model", "data"} or len(labels) < len(pairs) or not all(map(all, labels.values())):
        column = (
            f" The column of the labels is --label {given[0]}." if len(given) == 1 and given[0].isidentifier() else ""
        )
        raise OptionError(
            f"--labels {' --labels '.join(given)}: not understood.",
            f"Write --labels model=NAME,NAME or --labels data=NAME,NAME, each once.{column}",
        )
    return labels


def named_classes(names: Sequence[str], classes: Sequence[str]) -> tuple[str, ...]:
    """Returns the task's own names of classes that a user names in some order; none for none.

    Raises:
        OptionError: if they are not the task's classes, each once.
    """
    if not names:
        return ()
    advice = f"Name each of {', '.join(classes)} once." if classes else "The task has no classes: leave --labels out."
    try:
        order = data_order(names, classes)
    except ValueError as error:
        raise OptionError(f"--labels {','.join(names)}: {error}", advice) from error
    if order is None:
        raise OptionError(f"--labels {','.join(names)}: numbers do not show which class is which.", advice)
    return tuple(classes[number] for number in order)

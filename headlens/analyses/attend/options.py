"""The options of `headlens attend`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headlens.attention_masks.mask_options import MaskOptions
from headlens.errors import OptionError
from headlens.maps.selection import Selection
from headlens.models.model_options import ModelOptions
from headlens.option_values import names
from headlens.options import (
    CORPUS,
    DEMO,
    HEADS,
    MODEL,
    OUTPUT,
    CommandOptions,
    Given,
    Level,
    Option,
    build,
    option,
)
from headlens.shared_options import FIGURES, LEVEL, MODEL_NAME, OutputOptions

EXAMPLE = "The quick brown fox jumps over the lazy dog because it is bored."
_WORDS = "Sentences, each in quotation marks, and optionally a second model, shown next to the first."
_WITHOUT = "Heads to remove, comma-separated STACK.LAYER.HEAD; attention.html shows the unchanged model next to it."
_SOURCE = Option(
    "Hugging Face id, local folder, or 'demo'; or a run folder: the run's model as it was run there, and the "
    "sentences kept in that folder.",
    metavar="RUN|MODEL",
    argument=True,
)


@dataclass(frozen=True)
class AttendRequest:
    """What `headlens attend` is asked for: sentences and, for decoders and cross-attention, their translations.

    The selection says which heads are drawn; the maps of all are kept.
    """

    model: str = option(DEMO, MODEL_NAME)
    words: tuple[str, ...] = option((), _WORDS, metavar="[SECOND] [SENTENCE]...", shown="", argument=True)
    text: tuple[str, ...] = option((EXAMPLE,), "A sentence; can be repeated.", CORPUS, metavar="TEXT")
    target_text: tuple[str, ...] = option(
        (), "Translation of the sentence, for decoder and cross-attention.", CORPUS, metavar="TEXT"
    )
    second: str | None = option(
        None,
        "A second model to show side by side with the first.",
        MODEL,
        metavar="MODEL",
        shown="none",
        command_line=False,
    )
    without: tuple[str, ...] = option((), _WITHOUT, HEADS, metavar="HEADS", parse=names, shown="")
    selection: Selection = field(default_factory=Selection)
    level: Level = option("token", LEVEL)
    mask: MaskOptions = field(default_factory=MaskOptions)
    model_options: ModelOptions = field(default_factory=ModelOptions)
    figures: bool = option(True, FIGURES)
    place: OutputOptions = field(default_factory=OutputOptions)

    def __post_init__(self) -> None:
        if self.without and self.second is not None:
            raise OptionError(
                "--without removes heads from one model, but two were given.",
                "Leave out --without or the second model.",
            )


def is_sentence(word: str) -> bool:
    """Whether an argument is a sentence: it contains a space, and names neither a folder nor a model in memory."""
    if isinstance(word, Given) or len(word.split()) < 2:
        return False
    try:
        return not Path(word).exists()
    except OSError:  # it is too long to be the name of a file
        return True


def sorted_arguments(values: Mapping[str, Any]) -> AttendRequest:
    """Returns the request for values of options, of whose arguments those with a space are sentences.

    Raises:
        OptionError: if there are more than two models, or sentences both as arguments and by --text.
    """
    values = dict(values)
    first, more, sentences = values.get("model"), [*(values.pop("words", None) or ())], [*(values.get("text") or ())]
    if first is not None and is_sentence(first):
        more, values["model"] = [first, *more], None
    typed, models = [word for word in more if is_sentence(word)], [word for word in more if not is_sentence(word)]
    if values.get("model") is None and models:
        values["model"] = models.pop(0)
    if values.get("second") is not None:
        models.append(values["second"])
    if len(models) > 1:
        raise OptionError(
            f"{', '.join(map(repr, models))}: at most two models are shown side by side.",
            "Put every sentence in quotation marks; give a sentence of a single word with --text.",
        )
    if typed and sentences:
        raise OptionError(
            "Some sentences are given as arguments, others with --text or in a file.",
            "Give all sentences in the same way.",
        )
    values["text"], values["second"] = (typed or sentences or None), next(iter(models), None)
    return build(AttendRequest, values)


_FIRST = ("text", "target_text", "without", "mask", "stack", "layer", "head", "device")
COMMAND = CommandOptions("attend", (AttendRequest,), "run_attend", make=sorted_arguments, first=_FIRST)


@dataclass(frozen=True)
class ServeRequest:
    """What `headlens serve` is asked for: a model or the folder of a run, and the port of the page."""

    source: str = option(DEMO, _SOURCE)
    port: int = option(
        0, "Local port to serve on.", OUTPUT, metavar="N", shown="any free port", at_least=0, at_most=65535
    )
    mask: MaskOptions = field(default_factory=MaskOptions)
    model_options: ModelOptions = field(default_factory=ModelOptions)


# It writes no run, so that it is none of the commands that Python and recipes have.
SERVE = CommandOptions("serve", (ServeRequest,), "")

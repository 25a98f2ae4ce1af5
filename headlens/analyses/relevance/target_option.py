"""From what a user writes to where relevance starts."""

from __future__ import annotations

from collections.abc import Callable

from headlens.analyses.relevance.lrp.targets import (
    EveryPosition,
    GivenClass,
    MaskedTokenLogits,
    OwnEmbedding,
    PredictedClass,
    SimilarityTarget,
    Target,
)
from headlens.errors import OptionError
from headlens.models.loading import LoadedModel
from headlens.tasks.class_names import meanings, number_of, output_names

NAMES = ("predicted", "class:LABEL", "masked", "positions", "similarity", "embedding")
_OPTION = "--relevance-target"
_BY_CLASS = {
    "ForSequenceClassification": "predicted",
    "ForMaskedLM": "masked",
    "ForTokenClassification": "positions",
    "ForCausalLM": "positions",
    "LMHeadModel": "positions",
    "ForConditionalGeneration": "positions",
    "MTModel": "positions",  # MarianMTModel
}


def choose_target(asked: str, loaded: LoadedModel, *, paired: bool) -> Target:
    """Where relevance starts.

    Args:
        asked: one of `NAMES`, or `auto`: the largest logit of a classifier, at masked tokens of a masked language
            model, at every position of a translation or text; of a model without task head the similarity of pairs,
            or the embedding of single sentences.
        loaded: the model.
        paired: whether the corpus holds pairs.

    Raises:
        OptionError: if there is no such target, or the model or the corpus does not fit it.
    """
    name, _, label = (_default(loaded, paired=paired) if asked == "auto" else asked).partition(":")
    is_unknown = name not in {known.partition(":")[0] for known in NAMES} or bool(label and name != "class")
    kind, mask = type(loaded.model).__name__, getattr(loaded.tokenizer, "mask_token_id", None)
    classifies = kind.endswith("ForSequenceClassification")
    writes = bool(loaded.model.config.is_encoder_decoder) and not classifies
    refused = (
        (
            name == "similarity" and not paired,
            f"{_OPTION} similarity needs pairs of sentences.",
            "Name the second sentences with --target or --target-column, or use embedding for single sentences.",
        ),
        (
            name == "embedding" and paired,
            f"{_OPTION} embedding takes sentences one by one, but there are pairs.",
            "Use similarity, or leave out --target and --target-column.",
        ),
        (
            writes and name in ("predicted", "class", "masked"),
            f"{_OPTION} {name} is for classifiers and masked language models, but {loaded.name} generates text.",
            f"Use {_OPTION} positions.",
        ),
        (
            classifies and name in ("masked", "positions"),
            f"{_OPTION} {name}: {loaded.name} is a classifier of sentences and has one output for all tokens.",
            f"Use {_OPTION} predicted or class:LABEL.",
        ),
        (is_unknown, f"{_OPTION} {asked} is unknown.", f"Choose auto, {', '.join(NAMES)}."),
        (
            not classifies and name in ("predicted", "class"),
            f"{loaded.name} ({kind}) does not classify sentences.",
            f"Use {_OPTION} auto, or a model for sequence classification.",
        ),
        (
            name == "masked" and mask is None,
            f"{_OPTION} masked: the tokenizer of {loaded.name} has no mask token.",
            f"Use {_OPTION} embedding, or a masked language model.",
        ),
    )
    for is_refused, problem, advice in refused:
        if is_refused:
            raise OptionError(problem, advice)
    plain: tuple[Callable[[], Target], ...] = (PredictedClass, EveryPosition, SimilarityTarget, OwnEmbedding)
    if name == "class":
        return GivenClass(_class_number(label, loaded))
    if name == "masked" and mask is not None:
        return MaskedTokenLogits(int(mask))
    return next(target for target in (kind() for kind in plain) if target.name == name)


def _default(loaded: LoadedModel, *, paired: bool) -> str:
    kind = type(loaded.model).__name__
    for ending, name in _BY_CLASS.items():
        if kind.endswith(ending):
            return name
    if loaded.model.base_model is loaded.model:
        return "similarity" if paired else "embedding"
    raise OptionError(
        f"headlens does not know what the output of {kind} stands for.",
        f"Say where relevance starts: {_OPTION} embedding uses the model without its task head.",
    )


def _class_number(label: str, loaded: LoadedModel) -> int:
    """Returns the place of a class in the logits, by its name in any spelling or by its number.

    Raises:
        OptionError: if the model has no such class, more than one, or contradicts itself about its names.
    """
    outputs, number = range(loaded.model.config.num_labels or 0), number_of(label)
    by_number = {place for place in outputs if place == number}
    try:
        names = output_names(loaded)
    except ValueError as error:
        if by_number:
            return by_number.pop()
        advice = f"Give its number, from 0 to {outputs[-1]}."
        raise OptionError(
            f"{_OPTION} class:{label}: the model does not say which output that is: {error}.", advice
        ) from error
    spelled = {place for place in outputs if names[place].lower() == label.lower()}
    found = (spelled or {place for place in outputs if meanings(names[place]) & meanings(label)}) | by_number
    listed = ", ".join(f"{place} ({name})" for place, name in enumerate(names))
    if not found:
        raise OptionError(f"{_OPTION} class:{label}: the model has no such class.", f"Its classes: {listed}.")
    if len(found) > 1:
        advice = f"Write class:LABEL_0 for output 0 and so on. The model's classes: {listed}."
        raise OptionError(f"{_OPTION} class:{label} is more than one class of the model.", advice)
    return found.pop()

"""Puts the head that a task needs on a checkpoint."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from headlens.attention.model_normalizer import restore_attention
from headlens.attention.sites import is_decoder_only
from headlens.errors import ModelError, OptionError, listed
from headlens.interventions.compacting import heads_of_model
from headlens.models.checkpoint_weights import is_optional, model_part
from headlens.models.loading import LoadedModel, tokenizer_of
from headlens.tasks.class_names import OutputOrder, output_names
from headlens.tasks.classification import OwnClassification
from headlens.tasks.language_modeling import check_causal
from headlens.tasks.task import HeadKind, Task
from headlens.tasks.task_options import OWN_CLASSES
from headlens.weights.head_slicing import heads_left

_MAPPINGS: dict[str, Any] = {
    "sequence-classification": transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    "multiple-choice": transformers.MODEL_FOR_MULTIPLE_CHOICE_MAPPING,
    "question-answering": transformers.MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    "masked-lm": transformers.MODEL_FOR_MASKED_LM_MAPPING,
    "causal-lm": transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
    "pre-training": transformers.MODEL_FOR_PRETRAINING_MAPPING,
    "embedding": transformers.MODEL_MAPPING,
}
# What a head of a kind is made for.
_TASKS = {
    "sequence-classification": OWN_CLASSES,
    "multiple-choice": "swag",
    "question-answering": "squad",
    "causal-lm": "causal-lm",
    "masked-lm": "mlm",
    "pre-training": "mlm",
}
LANGUAGE_HEADS = ("masked-lm", "causal-lm", "language-model")
# Heads whose outputs another of them would be taken for.
_OUTPUTS: set[str] = {"sequence-classification", "multiple-choice", "question-answering"}
# Labels that models with a head for next sentences (BERT), or for the order of sentences (ALBERT), ask for.
_NEXT_LABELS = {"next_sentence_label", "sentence_order_label"}


@dataclass(frozen=True)
class ModelWithHead:
    """A model with a head.

    Args:
        model: the model, on the device and of the type that the checkpoint has.
        fresh: parts of the model that the task reads and the checkpoint has no weights for; they are random.
        notes: what to know about the classes of the checkpoint's own head.
    """

    model: PreTrainedModel
    fresh: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def with_task_head(loaded: LoadedModel, task: Task, seed: int) -> ModelWithHead:
    """Gives a checkpoint the head that a task needs, and the names of the task's classes.

    A head of the right kind is kept as it is, unless its classes are others than the task's, see `OutputOrder`;
    outputs without names of their own (`LABEL_0`) get the task's. An encoder-decoder whose encoder embeds sentences
    keeps its decoder.

    Args:
        loaded: the checkpoint; it may have lost heads. It must not be used any more.
        task: the task that needs the head.
        seed: seed of the weights that the checkpoint does not have.

    Raises:
        OptionError: if transformers has no such head for models of this kind, or the user names the outputs of a head
            that the checkpoint does not have.
        ModelError: if more would be random than the head.
    """
    old = loaded.model
    if task.head == "embedding" and old.config.is_encoder_decoder:
        return ModelWithHead(old)
    kind = _class(loaded, task.head, task.name)
    config = copy.deepcopy(old.config)
    keeps, notes = type(old) is kind, tuple[str, ...]()
    if task.head == "sequence-classification":
        order, notes = _own_order(loaded, task) if keeps else (None, ())
        keeps = order is not None
        if not task.labels:
            config.num_labels = 1
        else:
            config.id2label = dict(enumerate(task.labels if order is None else order.names))
            config.label2id = {name: number for number, name in config.id2label.items()}
        config.problem_type = "single_label_classification" if task.labels else "regression"
    elif not keeps:
        config.num_labels, config.problem_type = 2, None  # of questions: first and last token
    tokenizer = tokenizer_of(loaded)
    if tokenizer.pad_token_id is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    config.pad_token_id = loaded.pad_id  # decoders that classify look for the last token before the padding
    if keeps:
        old.config = config
        return _as_read(replace(_kept(loaded, seed), notes=notes), task)
    if task.outputs:
        raise OptionError(
            f"--labels model={','.join(task.outputs)}: {loaded.name} has no head with {len(task.labels)} outputs.",
            "Leave it out: a new head gets the names of the task.",
        )
    return _as_read(replace(_built(kind, config, loaded, seed), notes=notes), task)


def _as_read(loaded: ModelWithHead, task: Task) -> ModelWithHead:
    """Forgets a random pooler where embeddings are means of token states, which no pooler takes part in."""
    return replace(loaded, fresh=()) if task.head == "embedding" else loaded


def with_masked_head(loaded: LoadedModel, seed: int, *, next_sentence: bool = False) -> ModelWithHead:
    """Makes a checkpoint a masked language model; errors as in `with_task_head`.

    Args:
        loaded: the checkpoint.
        seed: seed of the weights that the checkpoint does not have.
        next_sentence: whether the model gets a head for next sentences, too.
    """
    kind = _kind(loaded.model, "pre-training") if next_sentence else _class(loaded, "masked-lm", "mlm")
    if kind is None or (next_sentence and not _NEXT_LABELS & set(inspect.signature(kind.forward).parameters)):
        raise OptionError(
            "--training-args next-sentence is for models with a next-sentence head; "
            f"{loaded.model.config.model_type} models such as {loaded.name} have no such head.",
            "Leave it out, or give BERT or ALBERT.",
        )
    if type(loaded.model) is kind:
        return _kept(loaded, seed)
    return _built(kind, copy.deepcopy(loaded.model.config), loaded, seed)


def check_head(loaded: LoadedModel, task: Task) -> None:
    """Checks that a model has the head that a task needs, where its outputs would not tell.

    An encoder-decoder without it cannot run on a text alone; a decoder's next tokens look like masked ones.

    Raises:
        OptionError: if the model does not have the head, or is no decoder for a task of decoders.
        ModelError: if its classes are not those of the task, see `OutputOrder.of`.
    """
    model = loaded.model
    if task.head == "causal-lm":
        check_causal(task.name, causal=is_decoder_only(model))
    kinds = {head for head in _MAPPINGS if type(model) is _kind(model, head)}
    if task.head in _OUTPUTS and kinds and kinds <= _OUTPUTS | {"masked-lm", "pre-training"} and task.head not in kinds:
        raise _without_head(loaded, task)
    if "sequence-classification" in kinds:
        _order_of(loaded, task)
    reads_one_way = task.head in LANGUAGE_HEADS and is_decoder_only(model)
    if (
        (model.config.is_encoder_decoder or reads_one_way)
        and task.head in {*_MAPPINGS, *LANGUAGE_HEADS} - {"embedding"}
        and not isinstance(model, _kind(model, task.head) or ())
    ):
        raise _without_head(loaded, task)


def task_of_head(model: PreTrainedModel) -> str | None:
    """Returns the task that a model was made for by its head, `translation` of an encoder-decoder; None without one."""
    head = next((head for head in _TASKS if type(model) is _kind(model, head)), None)
    if model.config.is_encoder_decoder and head not in _OUTPUTS:
        return "translation"
    if head == "sequence-classification" and model.config.num_labels == 1:
        return "stsb"  # scores
    return None if head is None else _TASKS[head]


def _without_head(loaded: LoadedModel, task: Task) -> OptionError:
    kind, advice = type(loaded.model).__name__, "Give a model that was trained for it"
    # No other than a model with such a class, and for masked words with a mask token, can be trained for the task.
    masks = task.head != "masked-lm" or getattr(loaded.tokenizer, "mask_token_id", None) is not None
    trainable = masks and _kind(loaded.model, task.head) is not None
    learned = "causal-lm" if is_decoder_only(loaded.model) and task.head in LANGUAGE_HEADS else task.name
    advice += f", or train it: headlens train {loaded.name} --task {learned}." if trainable else "."
    if not trainable:
        advice += f" {loaded.name} cannot be trained for it" + ("." if masks else ": its tokenizer has no mask token.")
    return OptionError(
        f"The task {task.name} needs a model with a {task.head} head; {loaded.name} is a {kind}.", advice
    )


def _kind(model: PreTrainedModel, head: str) -> type[PreTrainedModel] | None:
    """Returns the class of transformers with such a head for models of this kind; None if there is none."""
    if head == "language-model":
        head = "causal-lm" if is_decoder_only(model) else "masked-lm"
    kind: type[PreTrainedModel] | None = _MAPPINGS.get(head, {}).get(type(model.config), None)
    return kind


def _class(loaded: LoadedModel, head: HeadKind, task: str) -> type[PreTrainedModel]:
    if head == "causal-lm":
        check_causal(task, causal=is_decoder_only(loaded.model))
    if (kind := _kind(loaded.model, head)) is None:
        raise OptionError(
            f"--task {task} needs a {head} head, and transformers has none for {loaded.model.config.model_type} models "
            f"such as {loaded.name}.",
            "Give a decoder such as GPT-2." if head == "causal-lm" else "Give BERT, ALBERT, RoBERTa or the like.",
        )
    return kind


def classifier_names(loaded: LoadedModel) -> tuple[str, ...]:
    """Returns the names of a classifier's outputs; none for other models, and where they contradict each other."""
    with suppress(ValueError):
        if type(loaded.model) is _kind(loaded.model, "sequence-classification"):
            return tuple(output_names(loaded))
    return ()


def _order_of(loaded: LoadedModel, task: Task) -> OutputOrder:
    """Returns the order of a classifier's outputs; classes that the data names are not told by their place alone."""
    return OutputOrder.of(loaded, task.labels, task.outputs, by_place=not isinstance(task, OwnClassification))


def _own_order(loaded: LoadedModel, task: Task) -> tuple[OutputOrder | None, tuple[str, ...]]:
    """Returns the order of a classifier's outputs, None where they are not the task's classes, and what to know."""
    try:
        order = _order_of(loaded, task)
    except ModelError as error:
        return None, (f"The head of the checkpoint was replaced. {error.message} {error.advice}",)
    if loaded.model.config.num_labels != max(1, len(task.labels)):
        return None, ()
    return order, (order.note,) if order.note else ()


def _kept(loaded: LoadedModel, seed: int) -> ModelWithHead:
    """A checkpoint as it is, but for weights that it does not have, which are drawn with this seed."""
    model = loaded.model
    if loaded.untrained:
        torch.manual_seed(seed)
        drawn = type(model)(copy.deepcopy(model.config)).state_dict()
        with torch.no_grad():
            for name in loaded.untrained:
                model.get_parameter(name).copy_(drawn[name])
    return ModelWithHead(model, _parts(model, loaded.untrained))


def _built(kind: type[PreTrainedModel], config: PreTrainedConfig, loaded: LoadedModel, seed: int) -> ModelWithHead:
    """Builds a model of another class with the weights of a checkpoint."""
    old = loaded.model
    torch.manual_seed(seed)
    built: Any = kind(config)
    stack: Any = old.base_model
    if any(heads_left(m) is not None for m in old.modules()):
        heads_of_model(stack).apply(built.base_model)
    restore_attention(loaded.name, built)
    names = built.base_model.state_dict().keys()
    before = "" if stack is old else f"{old.base_model_prefix}."
    known_names = names - {name.removeprefix(before) for name in loaded.untrained}
    weights = {name: tensor for name, tensor in stack.state_dict().items() if name in known_names}
    built.base_model.load_state_dict(weights, strict=False)
    prefix = "" if built.base_model is built else f"{built.base_model_prefix}."
    known = {f"{prefix}{name}" for name in weights} | _load_masked_head(loaded, built)
    built.tie_weights()
    model: PreTrainedModel = built.to(device=old.device, dtype=old.dtype).eval()
    fresh = [name for name, _ in model.named_parameters() if name not in known]
    if lost := [name for name in fresh if not is_optional(model, name)]:
        raise ModelError(
            f"{loaded.name} has no weights for {listed(lost)}.",
            f"Its checkpoint is a {type(old).__name__}; give one of the same kind.",
        )
    return ModelWithHead(model, _parts(model, fresh))


def _parts(model: PreTrainedModel, names: Iterable[str]) -> tuple[str, ...]:
    """The modules under a model, or under its base, that weights belong to, in the order of the weights."""
    return tuple(dict.fromkeys(model_part(model, name) for name, _ in model.named_parameters() if name in set(names)))


def _load_masked_head(loaded: LoadedModel, built: PreTrainedModel) -> set[str]:
    """Loads the head for masked tokens where both classes have one, and returns the names of its weights."""
    old = loaded.model
    if not all(type(m) in (_kind(m, "masked-lm"), _kind(m, "pre-training")) for m in (old, built)):
        return set()
    shapes = {name: tensor.shape for name, tensor in built.state_dict().items() if name not in loaded.untrained}
    base = f"{built.base_model_prefix}."
    shared = {n: t for n, t in old.state_dict().items() if not n.startswith(base) and shapes.get(n) == t.shape}
    built.load_state_dict(shared, strict=False)
    return set(shared)

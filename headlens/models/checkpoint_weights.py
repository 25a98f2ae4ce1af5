"""What a checkpoint has weights for, and what a model has a place for: a mismatch is an error or a note."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING

from headlens.errors import ModelError, OptionError, counted, listed

# How attention modules and their parts are called in modeling files: attention, self_attn, attn, encoder_attn, attend.
_ATTENTION = re.compile(r"att(n|en)", re.IGNORECASE)
_LAYER = re.compile(r"^(.+?\.)(\d+)\.")
# Constants that older versions saved among the weights: positions, causal masks, frequencies of rotations, versions.
_CONSTANT = re.compile(
    r"(^|\.)(position_ids|token_type_ids|masked_bias|att(n|ention)\.bias|(original_)?inv_freq|"
    r"relative_position_index|num_batches_tracked|embed_positions\.weights|(en|de)coder\.version)$"
)
# What training wraps modules in, at any depth: torch.compile, FSDP, activation checkpointing.
_WRAPPERS = r"(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
_WRAPPED = 4  # so many times at most
# Kinds of heads in the order in which they are tried on weights that no class is named for.
_HEADS = (
    transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    transformers.MODEL_FOR_MULTIPLE_CHOICE_MAPPING,
    transformers.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    transformers.MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    transformers.MODEL_FOR_MASKED_LM_MAPPING,
    transformers.MODEL_FOR_PRETRAINING_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
)
_FITS_NOT = "The checkpoint does not fit its config.json."
MERGE = "Merge adapters into the weights (PEFT: merge_and_unload)"


# Reads a checkpoint with a class of transformers: further arguments of `from_pretrained` -> model and loading report.
Read = Callable[..., tuple[PreTrainedModel, dict[str, Any]]]


def read_weights(name: str, kind: Any, read: Read) -> tuple[PreTrainedModel, frozenset[str], frozenset[str], list[str]]:
    """Reads a checkpoint as what it is: prefixes of all names are taken off, heads that are not declared are found.

    Args:
        name: name of the model, for errors.
        kind: the class that config.json names, or `AutoModel`.
        read: loads the checkpoint with a class.

    Returns:
        The model; names of its weights that the checkpoint does not have, which are random; names of weights of the
        checkpoint that the model has no place for; and what the user should know about both.

    Raises:
        ModelError: if heads would be others than those that were trained, see `check_weights`.
    """
    model, report = read(kind)
    notes, renamed = [], {}
    if (prefix := _prefix(name, model, report)) is not None:
        # transformers takes off the first match of each pattern; empty groups make several of one.
        wrappers = {_WRAPPERS + "()" * n: "" for n in range(_WRAPPED)}
        renamed = {"key_mapping": {**wrappers, rf"^{re.escape(prefix)}": ""}}
        model, report = read(kind, **renamed)
        notes.append(f"The names of all weights begin with {prefix!r}, which was stripped." if prefix else "")
    left = _beside(model, report)
    if model.base_model is model and left:
        if (with_head := _with_head(model, partial(read, **renamed))) is not None:
            model, report = with_head
            notes.append(
                f"config.json names no head; judging by its weights, the model is a {type(model).__name__}. If it "
                'is another class, name it there ("architectures").'
            )
        else:
            notes.append(f"{_count(left)} left out, as part of a head that headlens does not know: {listed(left)}.")
    elif strange := _without_a_part(left, model):
        notes.append(
            f"{_count(strange)} left out because no transformers class for {model.config.model_type} models has such "
            f"a part: {listed(strange)}. If that part affects the model's computation, the numbers are not those of "
            "the original model."
        )
    elif others := [k for k in left if _ATTENTION.search(k)]:
        notes.append(f"{_count(others)} left out, as part of another model in the same checkpoint: {listed(others)}.")
    elif kind is transformers.AutoModel:
        notes.append(
            'config.json names no class of transformers ("architectures"): the model is read as '
            f"{type(model).__name__}, without a head."
        )
    check_weights(name, model, report)
    if ruled := without_place(model, report.get("ignored_keys", ())):
        notes.append(f"{_count(ruled)} left out by a rule of transformers for this model: {listed(ruled)}.")
    parameters = dict(model.named_parameters(remove_duplicate=False))
    missing = frozenset(k for k in report.get("missing_keys", ()) if k in parameters)
    unused = frozenset(k for k in report.get("unexpected_keys", ()) if not _CONSTANT.search(k))
    return model, missing, unused, [note for note in notes if note]


def _names_parts(rule: str, key: str) -> bool:
    """Whether a pattern fits whole parts of a name: `attn.bias` those of `h.0.attn.bias`, not of `h.0.my_attn.bias`."""
    dotted = f".{key}."
    return any(all("." in dotted[end : end + 2] for end in match.span()) for match in re.finditer(rule, key))


def whole_report(
    model: PreTrainedModel, report: Mapping[str, Any], names: Iterable[str], renamed: Mapping[str, str]
) -> dict[str, Any]:
    """Returns a loading report with the weights of the checkpoint that transformers leaves out of it.

    Every class has patterns of names that it ignores, such as `attn.bias` of GPT-2, which fits adapters as well. Names
    of which a pattern fits only a part are added to `unexpected_keys`; the others are `ignored_keys`.

    Args:
        model: the model as it was loaded.
        report: the second result of `from_pretrained` with `output_loading_info`.
        names: names of all weights of the checkpoint.
        renamed: patterns that are replaced in names, as `from_pretrained` was given them.
    """
    rules = model._keys_to_ignore_on_load_unexpected or ()
    base, known = f"{model.base_model_prefix}.", set(model.state_dict())
    unexpected, ignored = set(report.get("unexpected_keys", ())), set[str]()
    for name in names:
        for pattern, new in renamed.items():
            name = re.sub(pattern, new, name, count=1)  # noqa: PLW2901
        is_loaded = not known.isdisjoint({name, f"{base}{name}", name.removeprefix(base)})
        if not is_loaded and any(re.search(rule, name) for rule in rules):
            (ignored if any(_names_parts(rule, name) for rule in rules) else unexpected).add(name)
    return {**report, "unexpected_keys": unexpected, "ignored_keys": ignored}


def check_weights(name: str, model: PreTrainedModel, report: Mapping[str, Any]) -> None:
    """Refuses a checkpoint whose heads would not be those that were trained.

    Args:
        name: name of the model, for errors.
        model: the model as it was loaded.
        report: the second result of `from_pretrained` with `output_loading_info`.

    Raises:
        ModelError: if weights would be random or left out inside the model, if layers would be left out, or if there
            is NaN or infinity.
    """
    unexpected = report.get("unexpected_keys", ())
    if missing := sorted(k for k in report.get("missing_keys", ()) if not is_optional(model, k)):
        instead = f" It has others instead, such as {sorted(unexpected)[0]}." if unexpected else ""
        instead += f" {MERGE}." if any(".base_layer." in k for k in unexpected) else ""
        if getattr(model.config, "tie_encoder_decoder", False):
            instead += " It ties decoder and encoder (tie_encoder_decoder), which transformers 5 does not: save both."
        raise ModelError(
            f"{name}: {_count(missing)} missing from the checkpoint and would be random: {listed(missing)}.",
            f"{_FITS_NOT}{instead}",
        )
    if beyond := sorted(beyond_last_layer(model, unexpected)):
        raise ModelError(
            f"{name}: {_count(beyond)} of layers that the model of its config.json does not have: {listed(beyond)}.",
            f"{_FITS_NOT.removesuffix('.')}: heads would be left out.",
        )
    if homeless := without_place(model, unexpected):
        raise ModelError(
            f"{name}: {type(model).__name__} of transformers {transformers.__version__} cannot hold "
            f"{counted(len(homeless), 'weight')} of the checkpoint: {listed(homeless)}. Without "
            f"{'it' if len(homeless) == 1 else 'them'} it would be a different model.",
            f"{MERGE}; relative positions of BERT and the like are no longer computed by transformers.",
        )
    here = {k: p for k, p in model.state_dict().items() if p.is_floating_point() and not p.is_meta}
    broken = [k for k, p in here.items() if not torch.isfinite(p).all()]
    if broken:
        verb = "holds" if len(broken) == 1 else "hold"
        raise ModelError(
            f"{name}: {counted(len(broken), 'weight')} {verb} NaN or infinity, the first is {broken[0]}.",
            "The checkpoint is damaged, or was saved after training diverged.",
        )


def check_types(name: str, integers: Iterable[str]) -> None:
    """Refuses weights that are whole numbers: quantised ones, which are nothing without the scales they were made with.

    Args:
        name: name of the model, for errors.
        integers: names of the checkpoint's weights of such types; constants may be whole numbers.

    Raises:
        ModelError: naming them.
    """
    if quantised := [key for key in integers if not _CONSTANT.search(key)]:
        raise ModelError(
            f"{name}: the checkpoint has {counted(len(quantised), 'weight')} of whole numbers, and config.json does "
            f"not mention quantisation: {listed(quantised)}.",
            "Give the unquantised checkpoint, or one whose config.json has its quantization_config.",
        )


def is_optional(model: PreTrainedModel, key: str) -> bool:
    """Whether a weight may be random without any attention being so: one of a pooler, or of a head on top.

    Such weights lie outside of the base model, or in its pooler, in a part that has no attention of its own.
    """
    prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
    inside = key.startswith(prefix)
    part = f"{prefix if inside else ''}{key.removeprefix(prefix).split('.')[0]}"
    if inside and part != f"{prefix}pooler":
        return False
    return not any(_ATTENTION.search(k) for k in model.state_dict() if f"{k}.".startswith(f"{part}."))


def beyond_last_layer(model: PreTrainedModel, keys: Iterable[str]) -> list[str]:
    """The keys of weights whose layer is past the end of a list of layers that the model has."""
    known = {m.groups() for k in model.state_dict() if (m := _LAYER.match(k))}
    lists = {prefix for prefix, _ in known}
    return [k for k in keys if (m := _LAYER.match(k)) and m[1] in lists and m.groups() not in known]


def without_place(model: PreTrainedModel, keys: Iterable[str]) -> list[str]:
    """The keys of a checkpoint's weights that belong inside the base model or a layer of a head, but are not there.

    A pooler that the model does not have does not count, for no attention depends on it, and neither do constants.
    Sorted.
    """
    prefix = f"{model.base_model_prefix}."
    parts = {name for name, _ in model.base_model.named_children()}
    modules = model.named_modules()
    layers = tuple(f"{name}." for name, module in modules if name and [*module.parameters(recurse=False)])

    def is_inside(key: str) -> bool:
        first = key.removeprefix(prefix).split(".")[0]
        return key.startswith(layers) or (first != "pooler" and (first in parts or key.startswith(prefix)))

    return sorted(k for k in keys if not _CONSTANT.search(k) and is_inside(k))


def model_part(model: PreTrainedModel, key: str) -> str:
    """The part that a weight belongs to: the module under the base model (`bert.encoder`), or beside it (`cls`)."""
    base = f"{model.base_model_prefix}."
    inside = base if key.startswith(base) else ""
    return inside + key.removeprefix(inside).split(".")[0]


def require_trained(model: PreTrainedModel, untrained: frozenset[str], output: Tensor, what: str, advice: str) -> None:
    """Refuses an output that depends on weights which the checkpoint does not have: it would be another one each time.

    Args:
        model: the model.
        untrained: names of its weights that are random.
        output: what is read of the model, with the graph of its gradients.
        what: who reads it, for the error.
        advice: what to do.

    Raises:
        OptionError: naming the weights.
    """
    read = {id(p) for p in _leaves(output)}
    if names := sorted(name for name, p in model.named_parameters() if name in untrained and id(p) in read):
        raise OptionError(
            f"{what} depends on {counted(len(names), 'weight')} that the checkpoint does not have, so that "
            f"{'it is' if len(names) == 1 else 'they are'} random: {listed(names)}.",
            advice,
        )


def _leaves(output: Tensor) -> Iterator[Tensor]:
    """The parameters that a tensor was computed from."""
    steps, seen = [output.grad_fn], set()
    while steps:
        step = steps.pop()
        if step is None or step in seen:
            continue
        seen.add(step)
        if isinstance(variable := getattr(step, "variable", None), Tensor):
            yield variable
        steps += [before for before, _ in step.next_functions]


def _prefix(name: str, model: PreTrainedModel, report: Mapping[str, Any]) -> str | None:
    """What stands before the names of all weights (`module.`); empty for wrappers inside names, None for neither.

    Raises:
        ModelError: if several prefixes fit, as where a teacher and a student were saved together.
    """
    missing = {k for k in report.get("missing_keys", ()) if not is_optional(model, k)}
    base = f"{model.base_model_prefix}."
    keys = {re.sub(_WRAPPERS, "", k) for k in report.get("unexpected_keys", ())}
    ignored = model._keys_to_ignore_on_load_unexpected or ()  # transformers leaves these out of its report
    # By their first names alone: of weights that are tied a checkpoint has one.
    absent = (k for k, _ in model.named_parameters() if k in missing and not any(re.search(p, k) for p in ignored))
    if not (wanted := [k.removeprefix(base) for k in absent]):
        return None
    prefixes = {k.removesuffix(wanted[0]).removesuffix(base) for k in keys if f".{k}".endswith(f".{wanted[0]}")}
    fitting = sorted(p for p in prefixes if all(keys & {f"{p}{k}", f"{p}{base}{k}"} for k in wanted))
    if len(fitting) > 1:
        raise ModelError(
            f"{name}: the checkpoint holds several models, whose names begin with {' and '.join(map(repr, fitting))}.",
            "Save the one you want on its own.",
        )
    return next(iter(fitting), None)


def _beside(model: PreTrainedModel, report: Mapping[str, Any]) -> list[str]:
    """Names of the checkpoint's weights outside of the base model."""
    keys = [k for k in report.get("unexpected_keys", ()) if not _CONSTANT.search(k)]
    inside = {*without_place(model, keys), *beyond_last_layer(model, keys)}
    return sorted(k for k in keys if k not in inside and not k.split(".")[0].startswith("pooler"))


def _with_head(model: PreTrainedModel, read: Read) -> tuple[PreTrainedModel, dict[str, Any]] | None:
    """The model with the head that its checkpoint has weights for; None if no class of transformers fits."""
    counts: dict[Any, int] = {}
    for kind in _kinds(model):
        loaded = read(kind, ignore_mismatched_sizes=True)
        sizes = {shape[0] for _, shape, _ in loaded[1].get("mismatched_keys", ())}
        if not sizes and _fits(*loaded):
            return loaded
        if len(sizes) == 1:
            counts[kind] = sizes.pop()
    if not has_unnamed_classes(model.config):
        return None
    # Where config.json says nothing of classes, the checkpoint may have another number of them than is usual.
    others = (read(kind, ignore_mismatched_sizes=True, classes=count) for kind, count in counts.items())
    return next((loaded for loaded in others if not loaded[1].get("mismatched_keys") and _fits(*loaded)), None)


def _without_a_part(left: Sequence[str], model: PreTrainedModel) -> list[str]:
    """Weights left over that no class of transformers for models of this kind has a part for."""
    parts = _head_parts(model) if left else set()  # once: every class is built for it
    return [key for key in left if key.split(".")[0] not in parts]


def _head_parts(model: PreTrainedModel) -> set[str]:
    """Names of the parts beside the base model in all classes of transformers for models of this kind."""
    with torch.device("meta"):
        built = [kind(copy.deepcopy(model.config)) for kind in _kinds(model)]
    return {name for network in built for name, _ in network.named_children()}


def _kinds(model: PreTrainedModel) -> list[Any]:
    """The classes of transformers with a head for models of this kind."""
    kinds = dict.fromkeys(mapping.get(type(model.config), None) for mapping in _HEADS)
    return [kind for kind in kinds if isinstance(kind, type)]


def _fits(model: PreTrainedModel, report: Mapping[str, Any]) -> bool:
    """Whether a model has all weights of its checkpoint but poolers, and no others."""
    return not report.get("missing_keys") and not _beside(model, report)


def has_unnamed_classes(config: PreTrainedConfig) -> bool:
    """Whether a configuration says no more of its classes than their number (`LABEL_0`, `LABEL_1` …), or nothing."""
    return all(re.fullmatch(r"LABEL_\d+", str(name)) for name in (config.id2label or {}).values())


def _count(names: list[str]) -> str:
    return f"{counted(len(names), 'weight')} {'is' if len(names) == 1 else 'are'}"

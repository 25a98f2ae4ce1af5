"""What the files beside the weights say: which class, classes, start token; and what of it is not computed."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import transformers
from transformers import AutoModel, GenerationConfig, PreTrainedConfig, PreTrainedModel

from headlens.errors import ModelError
from headlens.heads import MOST_HEADS
from headlens.models.checkpoint_files import CheckpointFiles
from headlens.models.checkpoint_weights import has_unnamed_classes

# Settings of config.json that change what is computed, and the values that change nothing. Earlier versions of
# transformers, or packages around it, followed them; those of today may not.
_SETTINGS: Mapping[str, tuple[Any, ...]] = {
    "position_embedding_type": (None, "absolute"),
    "normalize_before": (None, False),
    "adapters": (None, {}),
    "adapter_config": (None, {}),
}
# Whole numbers that say how large a model is. Others may be negative, as `n_inner` or `max_relative_positions`.
_SIZE = re.compile(
    r"^(?:num|n|encoder|decoder)_(?!\w*_per_)(?:\w+_)?(layer|head|label)s?$|^(?:num_hidden_groups|inner_group_num)$"
    r"|(?:vocab|hidden|intermediate|embedding)_size$|^max_position_embeddings$"
)
# How sentence-transformers reads texts; earlier versions named the file by the family of the model.
_SENTENCE_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_FOLDER = re.compile(r"[\w-]+")
_SHARED_LAYERS, _MOST_LABELS = 256, 1_000_000
# What transformers itself computes attention and experts with, and what torch does.
_OUR_IMPLEMENTATIONS = ("None", "eager", "sdpa", "flex_attention", "batched_mm", "grouped_mm")
# Models that normalise before their layers whatever the setting says, as their own always does.
_BEFORE = ("mbart", "pegasus", "blenderbot", "m2m_100", "xglm", "plbart")


def check_sizes(name: str, written: Mapping[str, Any], tensors: int) -> None:
    """Refuses sizes that cannot be meant before anything is built: a model of 1e9 layers would be built for hours.

    Sizes of weights are left to transformers, which compares them with those of the checkpoint.

    Args:
        name: name of the model, for errors.
        written: what config.json holds.
        tensors: number of weights in the checkpoint, 0 where that is not known.

    Raises:
        ModelError: naming the setting.
    """
    # Every layer has weights of its own, but in models that share them: these have few.
    layers = max(tensors, _SHARED_LAYERS) if tensors else MOST_HEADS
    for key, value in written.items():
        if isinstance(value, Mapping):  # of the parts of a model
            check_sizes(name, value, tensors)
        if "drop" in key and isinstance(value, int | float) and not 0 <= value <= 1:  # read in every forward pass
            raise ModelError(f"{name}: {key} of its config.json is {value}.", "A dropout rate lies between 0 and 1.")
        if not (match := _SIZE.search(key)):
            continue
        if isinstance(value, bool | str) or (isinstance(value, float) and not value.is_integer()):
            shown = repr(value) if isinstance(value, str) else str(value).lower()
            raise ModelError(f"{name}: {key} of its config.json is {shown}.", "Write a whole number.")
        if type(value) is not int:  # nothing, or a list with a number for each layer
            continue
        kind = "group" if "group" in key else match[1]
        # A model may have no layers or classes, but nothing can be divided among no heads.
        least = 1 if kind == "head" or key in ("hidden_size", "vocab_size") else 0
        most = {"layer": layers, "head": MOST_HEADS, "group": layers, "label": _MOST_LABELS}.get(kind, sys.maxsize)
        if not least <= value <= most:
            bounds = f"{least} or more" if most == sys.maxsize else f"from {least} to {most:,}"
            raise ModelError(f"{name}: {key} of its config.json is {value:,}.", f"With these weights it is {bounds}.")


def class_of(config: Any) -> Any:
    """The class that the checkpoint was saved from, so that no weight is dropped or random.

    A class of another family than `model_type` would read the weights otherwise than they were trained.
    """
    classes = (getattr(transformers, n, None) for n in getattr(config, "architectures", None) or [])
    # A config.json comes from anywhere: whatever else of transformers it may name is no model.
    models = (c for c in classes if isinstance(c, type) and issubclass(c, PreTrainedModel))
    return next((c for c in models if isinstance(config, c.config_class or type(config))), AutoModel)


def set_class_names(config: PreTrainedConfig, written: Mapping[str, Any]) -> None:
    """Gives a configuration the classes that config.json names in `label2id`, where `id2label` does not name them.

    transformers puts `LABEL_0` and so on in the place of both, as many as `num_labels` says, or two. Numbers that are
    not those of so many classes stay in `label2id` alone: who asks for the names sees that the two do not agree.

    Args:
        config: the configuration, which is changed.
        written: what config.json holds.
    """
    if not (label2id := written.get("label2id")) or not has_unnamed_classes(config):
        return
    config.label2id = label2id
    names: dict[str, str] = {}
    for name, number in label2id.items():
        names.setdefault(str(number), name)
    count = (config.num_labels or 0) if written.get("id2label") or "num_labels" in written else len(names)
    if names.keys() == set(map(str, range(count))):
        config.id2label = {number: names[str(number)] for number in range(count)}


def set_form(config: PreTrainedConfig, written: Mapping[str, Any]) -> list[str]:
    """Takes from a configuration, and those of its parts, what says how outputs are handed over and computed.

    Attention is what headlens puts in the model's place, so that no file chooses a package, or code to fetch from the
    hub, for it; outputs have names.

    Args:
        config: the configuration, which is changed.
        written: what config.json holds.

    Returns:
        What to know where the file names an implementation of its own: one note, or none.
    """
    # Both setters reach the configurations of all parts.
    config._attn_implementation = config._experts_implementation = None
    for part in nested_configs(config):
        part.return_dict = True
    others = sorted({name for name in _implementations(written) if name not in _OUR_IMPLEMENTATIONS})
    if not others:
        return []
    return [
        f"config.json asks for {' and '.join(map(repr, others))} to compute with. It is neither loaded nor fetched: "
        "headlens takes the implementations of transformers."
    ]


def nested_configs(config: Any) -> Iterator[Any]:
    """Yields a configuration of transformers, and then the configurations of the parts of its model."""
    yield config
    for part in vars(config).values():
        if isinstance(part, PreTrainedConfig):
            yield from nested_configs(part)


def _implementations(written: Mapping[str, Any]) -> Iterator[str]:
    """The names that a config.json has for implementations of its attention or experts, also of its parts."""
    for key, value in written.items():
        if key.removeprefix("_").removesuffix("_internal") in ("attn_implementation", "experts_implementation"):
            yield from map(str, value.values() if isinstance(value, Mapping) else [value])
        elif isinstance(value, Mapping):
            yield from _implementations(value)


def set_start_token(name: str, model: PreTrainedModel, written: Mapping[str, Any], files: CheckpointFiles) -> list[str]:
    """Makes the configurations of an encoder-decoder agree on the token that its decoder starts with.

    That of generation_config.json goes before that of config.json, as `generate` has it; without either it is the
    token that begins sentences.

    Args:
        name: name of the model, for errors.
        model: the model, whose configurations are changed.
        written: what config.json holds.
        files: the checkpoint.

    Returns:
        What to know where the files contradict each other: one note, or none.

    Raises:
        ModelError: if a file names several tokens.
    """
    config, settings = model.config, getattr(model, "generation_config", None)
    if settings is None:  # classes that cannot generate have none
        with suppress(OSError):
            settings = GenerationConfig.from_pretrained(files.place, **files.arguments)
    generating, stated = (_token(name, part, "decoder_start_token_id") for part in (settings, config))
    begin, other = (_token(name, part, "bos_token_id") for part in (settings, config))
    start = next((token for token in (generating, stated, begin, other) if token is not None), None)
    for part in (config, settings):
        if part is not None and start is not None:
            part.decoder_start_token_id = start
    generated = begin if generating is None else generating
    # Where config.json says nothing, `stated` is what the class has by itself.
    if None in (stated, generated) or stated == generated or "decoder_start_token_id" not in written:
        return []
    note = f"The decoder starts with token {stated} by config.json, with {generated} by generation_config.json"
    return [f"{note}: {start} is used."]


def _token(name: str, config: Any, key: str) -> int | None:
    """A token of a configuration; a list of one counts as it."""
    tokens = getattr(config, key, None)
    tokens = tokens if isinstance(tokens, list) else [tokens]
    if len(set(tokens)) != 1:
        raise ModelError(f"{name}: {key} is {tokens}.", "A decoder starts with one token: write that there.")
    return None if tokens[0] is None else int(tokens[0])


def check_settings(name: str, model: PreTrainedModel) -> None:
    """Refuses a config.json that asks for what the installed transformers does not compute.

    A setting counts as computed if the source of one of the model's classes names it.

    Raises:
        ModelError: naming the setting and its value.
    """
    for setting, neutral in _SETTINGS.items():
        for part in {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}.values():
            value = getattr(part, setting, None)
            if value in neutral or (setting == "normalize_before" and part.model_type in _BEFORE):
                continue
            sources = {type(m).__module__ for m in model.modules()} & sys.modules.keys()
            if not any(setting in inspect.getsource(sys.modules[module]) for module in sources):
                raise ModelError(
                    f"{name}: its config.json asks for {setting} = {value!r}, which {type(model).__name__} of "
                    f"transformers {transformers.__version__} does not compute.",
                    "Its attention is only available in the version or package that it was trained with.",
                )


def settings_notes(config: Any) -> list[str]:
    """What config.json asks for and headlens does not do."""
    notes = []
    if (part := getattr(config, "auto_map", None)) and type(config).__module__.startswith("transformers."):
        notes.append(
            f"The checkpoint comes with its own code ({', '.join(sorted(part))}), which is not run: its model is "
            f"read as that of transformers for model_type {config.model_type}."
        )
    tasks = getattr(config, "task_specific_params", None) or {}
    prefixes = [str(part["prefix"]) for part in tasks.values() if isinstance(part, Mapping) and part.get("prefix")]
    if prefixes:
        notes.append(
            f"config.json names prefixes of texts by task, such as {prefixes[0]!r}. headlens does not add them: "
            "write them into the data where the model expects them."
        )
    return notes


def sentence_notes(files: CheckpointFiles, *, lowers: bool, longest: float) -> list[str]:
    """Notes on what sentence-transformers does to texts and embeddings and headlens does not.

    Args:
        files: the checkpoint.
        lowers: whether the tokenizer writes text in lower case by itself.
        longest: most tokens that headlens reads; with 0 there is no note on other limits.
    """
    modules = files.read_json("modules.json")
    listed = [m for m in modules if isinstance(m, Mapping)] if isinstance(modules, list) else []
    notes = _pooling_notes(files, listed)
    settings = _mapping(files.read_json("config_sentence_transformers.json"))
    prompts, name = _mapping(settings.get("prompts")), settings.get("default_prompt_name")
    nonempty = {key: str(prompt) for key, prompt in prompts.items() if prompt}
    where = "(config_sentence_transformers.json). headlens does not add it: write it into the data where the model"
    if name in nonempty:
        notes.append(f"sentence-transformers begins every text with the prompt {nonempty[name]!r} {where} expects it.")
    elif nonempty:
        shown = ", ".join(f"{key}: {prompt!r}" for key, prompt in list(nonempty.items())[:3])
        notes.append(
            f"sentence-transformers begins texts with a prompt where one is named, {shown} {where} expects it."
        )
    if (similarity := settings.get("similarity_fn_name")) not in (None, "cosine"):
        notes.append(
            f"sentence-transformers compares this model's embeddings by {similarity}; headlens takes the cosine."
        )
    # Files that are not there are asked for on the hub each time, so those of earlier versions where there may be any.
    reading = [_mapping(files.read_json(file)) for file in _SENTENCE_FILES[: None if listed else 1]]
    if not lowers and any(part.get("do_lower_case") for part in reading):
        notes.append(
            "sentence-transformers writes texts in lower case for this model (do_lower_case in "
            "sentence_bert_config.json); headlens does not: write the data in lower case."
        )
    limits = [limit for part in reading if isinstance(limit := part.get("max_seq_length"), int) and limit < longest]
    if limits:
        notes.append(
            f"sentence-transformers cuts texts off after {limits[0]} tokens (max_seq_length); headlens reads up to "
            f"{longest}."
        )
    return notes


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _pooling_notes(files: CheckpointFiles, modules: list[Mapping[str, Any]]) -> list[str]:
    """Notes on embeddings that sentence-transformers makes otherwise than headlens: not as the mean of all tokens."""
    kinds = [(str(m.get("path") or ""), str(m.get("type")).rpartition(".")[2]) for m in modules]
    others = [kind for _, kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]
    place = next((path for path, kind in kinds if kind == "Pooling" and _FOLDER.fullmatch(path)), "1_Pooling")
    pooling = _mapping(files.read_json(f"{place}/config.json"))
    # Older versions write a switch for every mode, newer ones the name of the mode.
    settings = {k: v for k, v in pooling.items() if k.startswith("pooling_mode")}
    ways = [k.removeprefix("pooling_mode_") if v is True else str(v) for k, v in settings.items() if v]
    if set(ways) - {"mean_tokens", "mean"}:
        others.insert(0, ", ".join(ways))
    if not others:
        return []
    return [
        f"sentence-transformers makes this model's embeddings with {' and '.join(others)}; headlens takes the mean "
        "over all tokens, so similarity tasks and the relevance of embeddings refer to a different embedding."
    ]

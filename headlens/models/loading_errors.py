"""Errors of transformers, the hub and safetensors as one error: why a model cannot be loaded, and what to do."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import transformers
from huggingface_hub import errors as hub_errors
from safetensors import SafetensorError

from headlens.attention.supported_models import FAMILIES
from headlens.errors import HeadlensError, ModelError, error_chain, reason_of
from headlens.files import full_disk
from headlens.hub_access import FULL_CACHE
from headlens.models.checkpoint_weights import MERGE
from headlens.models.model_options import ModelOptions
from headlens.nested_text import parse_json
from headlens.weights.head_map import FILE as HEAD_MAP

ADAPTER = "adapter_config.json"
_MOST_SHOWN, _MOST_FOUND = 8, 200
_Kinds = set[type[BaseException]]
_Says = Callable[[str], bool]
_DEMO_WORKS = "`headlens classify demo` works without a network."
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
# Weights that transformers does not read by themselves: files by their names, and what to do.
_CONVERT = "Convert it with transformers 4: from_pretrained(…, from_%s=True), then save_pretrained."
_ORIGINAL = "Give the checkpoint that it was made from."
_OTHER_WEIGHTS = {
    "*-of-*.safetensors": "Its index is missing: fetch model.safetensors.index.json as well.",
    "model.*.safetensors": "This is a variant of the weights: copy it to model.safetensors to use it.",
    "consolidated*": "This is the original authors' format: download the transformers version, or convert it.",
    "*.safetensors": "Rename it to model.safetensors, if its weights are named as transformers names them.",
    "*.h5": _CONVERT % "tf",
    "*.ckpt.index": _CONVERT % "tf",
    "*.msgpack": _CONVERT % "flax",
    "*.onnx": _ORIGINAL,
    "*.gguf": _ORIGINAL,
    "*.tflite": _ORIGINAL,
    "openvino_model.*": _ORIGINAL,
    "pytorch_model.*.bin": "This is a variant of the weights: copy it to pytorch_model.bin, and load it with "
    "--trust pickle.",
    **dict.fromkeys(("*.pt", "*.pth", "*.ckpt", "*.pkl", "*.bin"), "Save the model again, with save_pretrained."),
}


@contextmanager
def explained(name: str, options: ModelOptions) -> Iterator[None]:
    """Turns exceptions of the block into an error that says what to do.

    Raises:
        ModelError: for all exceptions of transformers, the hub and safetensors.
    """
    try:
        yield
    except HeadlensError:
        raise
    except Exception as error:
        # What a broken config.json raises is whatever the first line of code does that stumbles over it.
        raise explain(name, options, error) from error


def explain(name: str, options: ModelOptions, error: Exception) -> ModelError:
    """The error for a model that could not be loaded, by the exception that was raised."""
    if (full := full_disk(error)) is not None:
        return ModelError(f"{name} cannot be fetched: {full}.", FULL_CACHE)
    text, path = str(error), str(Path(name).expanduser())

    def says(phrase: str) -> bool:
        """Whether the message holds a phrase outside of the model's name, which may hold anything."""
        return phrase in (text.replace(path, "") if phrase in path else text)

    kinds = {type(e) for e in error_chain(error)}
    return (
        _hub_error(name, options, kinds, says) or _file_error(name, options, kinds, says, text) or _unknown(name, error)
    )


def _hub_error(name: str, options: ModelOptions, kinds: _Kinds, says: _Says) -> ModelError | None:
    if _any(kinds, hub_errors.GatedRepoError):
        return ModelError(f"{name} is a gated model.", "Ask for access on its page and log in with: hf auth login.")
    if _any(kinds, hub_errors.RevisionNotFoundError):
        return ModelError(f"{name} has no revision {options.revision!r}.", "Look at the branches and tags on its page.")
    if _any(kinds, hub_errors.RepositoryNotFoundError):
        return ModelError(
            f"The hub has no model {name!r} (or it is private).", "Check the spelling; log in if private."
        )
    if name.startswith("new:"):
        return ModelError(f"{name} would have random weights.", f"Train it first: headlens train {name}.")
    if _any(kinds, hub_errors.HFValidationError):
        return ModelError(
            f"{name!r} is neither a folder nor a hub id.",
            "A hub id is NAME or ORGANISATION/NAME, such as google-bert/bert-base-uncased.",
        )
    unreachable = (hub_errors.LocalEntryNotFoundError, hub_errors.OfflineModeIsEnabled, ConnectionError)
    if not Path(name).expanduser().is_dir() and (_any(kinds, *unreachable) or says("connect") or says("offline")):
        is_offline = options.offline or os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0")
        reason = "offline mode is on" if is_offline else "the hub cannot be reached"
        advice = "Leave out --offline, or unset HF_HUB_OFFLINE," if is_offline else "Check the network,"
        return ModelError(
            f"{name} is not a local folder and not in the local cache, and {reason}.",
            f"{advice} or give a folder; {_DEMO_WORKS}",
        )
    return None


def _file_error(name: str, options: ModelOptions, kinds: _Kinds, says: _Says, text: str) -> ModelError | None:
    if _any(kinds, SafetensorError):
        return ModelError(f"{name}: the weights cannot be read: {text}.", "The file is damaged; fetch it again.")
    if says("trust_remote_code"):
        return ModelError(f"{name} comes with its own code.", "If you trust it, add --trust remote-code.")
    if says("ignore_mismatched_sizes"):
        has_map = (Path(name).expanduser() / HEAD_MAP).is_file()
        files = f"config.json and {HEAD_MAP} say" if has_map else "config.json says"
        return ModelError(
            f"{name}: weights of the checkpoint have other shapes than its {files}.",
            "Give the folder that both come from.",
        )
    if says("safetensors") and not options.allow_pickle:
        folder = Path(name).expanduser()
        if folder.is_dir() and not any(next(folder.glob(pattern), None) for pattern in _PICKLES):
            return _without_weights(name)
        return ModelError(
            f"{name} has no weights in the safetensors format.",
            "If you trust its source, load the pickle checkpoint with --trust pickle (unpickling can run any code).",
        )
    if says("no file named"):
        return _without_weights(name)
    if says("weights_only") or says("Unpickling"):
        return ModelError(
            f"{name}: the pickle checkpoint contains more than weights, or is damaged.",
            "headlens only unpickles weights. Save the model again, as safetensors.",
        )
    if says("does not recognize this architecture") or says("Unrecognized model") or _is_no_object(name):
        return ModelError(
            f"{name}: its config.json names no model_type that transformers {transformers.__version__} knows.",
            f"Known to work: {', '.join(f.title for f in FAMILIES)}; `headlens models --all` lists every type.",
        )
    return None


def _is_no_object(name: str) -> bool:
    """Whether a folder's config.json is JSON without names; what transformers says of that depends on its version."""
    with suppress(OSError, ValueError):
        return not isinstance(parse_json((Path(name).expanduser() / "config.json").read_text(encoding="utf-8")), dict)
    return False


def _without_weights(name: str) -> ModelError:
    folder = Path(name).expanduser()
    other_files = (
        (path.name, advice) for pattern, advice in _OTHER_WEIGHTS.items() for path in sorted(folder.glob(pattern))
    )
    for file, advice in other_files:
        return ModelError(f"{name} has no weights that headlens reads; it has {file}.", advice)
    return ModelError(f"{name} has no weights.", "Save the model there with save_pretrained.")


def _unknown(name: str, error: Exception) -> ModelError:
    reason = first_line(error)
    if reason.endswith(":"):  # what is wrong stands on the lines that follow
        reason = reason_of(error)
    kind = "" if isinstance(error, (OSError, ValueError, RuntimeError)) and reason else f"{type(error).__name__}: "
    return ModelError(
        f"{name} cannot be loaded: {kind}{reason}",
        "Check its config.json and weights; --debug shows where it failed.",
    )


def without_config(name: str, folder: Path) -> ModelError:
    """The error for a folder without a config.json: where below it there are models, or what it holds instead."""
    if (folder / ADAPTER).is_file():
        base = _json(folder / ADAPTER).get("base_model_name_or_path")
        of = f" for {base}" if isinstance(base, str) and base else ""
        return ModelError(f"{name} is an adapter{of} ({ADAPTER}), without a model of its own.", f"{MERGE}.")
    below = [path.parent for path in _configs(folder)]
    if below:
        shown = ", ".join(str(Path(name) / path.relative_to(folder)) for path in below[:_MOST_SHOWN])
        more = f" … ({len(below)} in all)" if len(below) > _MOST_SHOWN else ""
        advice = (
            f"Give {shown}." if len(below) == 1 else f"Give one of the folders below it that have one: {shown}{more}."
        )
        return ModelError(f"{name}: the folder has no config.json.", advice)
    adapters = [path.parent for path in _below(folder, ADAPTER)]
    if adapters:
        problem = f"{name}: the folder has no config.json; {Path(name) / adapters[0].relative_to(folder)} is an adapter"
        return ModelError(f"{problem}.", f"{MERGE}.")
    return ModelError(f"{name}: the folder has no config.json.", "Give the folder of a saved Hugging Face model.")


def _configs(folder: Path) -> list[Path]:
    """The config.json of models in folders below one; those of the parts of sentence-transformers are none."""
    return [
        path
        for path in _below(folder, "config.json")
        if "model_type" in (settings := _json(path)) or "architectures" in settings
    ]


def _below(folder: Path, file: str) -> list[Path]:
    """Files of this name in the folders below one, at most three deep, in the order of the numbers in their names."""
    patterns = ("/".join(["*"] * depth) + f"/{file}" for depth in (1, 2, 3))
    paths: list[Path] = []
    with suppress(OSError):
        for pattern in patterns:
            paths += islice(folder.glob(pattern), _MOST_FOUND)
    order = {path: [int(n) if n.isdecimal() else n for n in re.split(r"(\d+)", str(path))] for path in paths}
    return sorted(paths, key=order.__getitem__)


def _json(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        content = parse_json(path.read_text(encoding="utf-8"))
        return content if isinstance(content, dict) else {}
    return {}


def first_line(error: Exception) -> str:
    """Returns the first line of an error's message, empty where there is none."""
    return next(iter(str(error).strip().splitlines()), "")


def _any(kinds: _Kinds, *classes: type[BaseException]) -> bool:
    return any(issubclass(k, classes) for k in kinds)

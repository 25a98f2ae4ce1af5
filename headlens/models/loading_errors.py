"""Why a model cannot be loaded, in words of its user: what transformers and the hub raise, made one clear error."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import transformers
from huggingface_hub import errors as hub_errors
from safetensors import SafetensorError

from headlens.attention.supported_models import FAMILIES
from headlens.errors import HeadlensError, ModelError
from headlens.weights.head_map_file import FILE as HEAD_MAP

_DEMO_WORKS = "`headlens classify demo` works without a network."
_PICKLES = ("*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True)
class LoadRequest:
    """What was asked for and allowed, as far as it decides on what to advise."""

    revision: str | None = None
    offline: bool = False
    allow_pickle: bool = False

    @property
    def unasked(self) -> bool:
        """Whether `offline` or the environment variable HF_HUB_OFFLINE forbade requests to the hub."""
        return self.offline or os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0")


@contextmanager
def explained(name: str, asked: LoadRequest) -> Iterator[None]:
    """Turn what goes wrong in the block into an error that says what to do.

    Raises:
        ModelError: for what transformers, the hub and safetensors raise.
    """
    try:
        yield
    except HeadlensError:
        raise
    except Exception as error:
        # What a broken config.json raises is whatever the first line of code does that stumbles over it.
        raise explain(name, asked, error) from error


def explain(name: str, asked: LoadRequest, error: Exception) -> ModelError:
    """The error for a model that could not be loaded, by what was raised."""
    kinds = {type(e) for e in _chain(error)}
    text = _Text(str(error), name)
    return _of_the_hub(name, asked, kinds, text) or _of_the_files(name, asked, kinds, text) or _unknown(name, error)


@dataclass(frozen=True)
class _Text:
    """What an error says; `sign in text` looks for the sign outside of the model's name, which may hold anything."""

    said: str
    name: str

    def __contains__(self, sign: str) -> bool:
        path = str(Path(self.name).expanduser())
        return sign in (self.said.replace(path, "") if sign in path else self.said)


def _of_the_hub(name: str, asked: LoadRequest, kinds: set[type[BaseException]], text: _Text) -> ModelError | None:
    if _any(kinds, hub_errors.GatedRepoError):
        return ModelError(f"{name} is a gated model.", "Ask for access on its page and log in with: hf auth login.")
    if _any(kinds, hub_errors.RevisionNotFoundError):
        return ModelError(f"{name} has no revision {asked.revision!r}.", "Look at the branches and tags on its page.")
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
    silent = (hub_errors.LocalEntryNotFoundError, hub_errors.OfflineModeIsEnabled, ConnectionError)
    if not Path(name).expanduser().is_dir() and (_any(kinds, *silent) or "connect" in text or "offline" in text):
        reason = "offline mode is on" if asked.unasked else "the hub cannot be reached"
        advice = "Leave out --offline, unset HF_HUB_OFFLINE," if asked.unasked else "Check the network,"
        return ModelError(
            f"{name} is not a local folder and not in the local cache, and {reason}.",
            f"{advice} or give a folder; {_DEMO_WORKS}",
        )
    return None


def _of_the_files(name: str, asked: LoadRequest, kinds: set[type[BaseException]], text: _Text) -> ModelError | None:
    if _any(kinds, SafetensorError):
        return ModelError(f"{name}: the weights cannot be read: {text.said}.", "The file is damaged; fetch it again.")
    if "trust_remote_code" in text:
        return ModelError(f"{name} brings code of its own.", "If you trust it, add --trust-remote-code.")
    if "ignore_mismatched_sizes" in text:
        has_map = (Path(name).expanduser() / HEAD_MAP).is_file()
        say = f"config.json and {HEAD_MAP} say" if has_map else "config.json says"
        return ModelError(
            f"{name}: weights of the checkpoint have other shapes than its {say}.", "Give the folder both come from."
        )
    if "safetensors" in text and not asked.allow_pickle:
        return _without_safe_weights(name)
    if "no file named" in text:
        return ModelError(f"{name} has no weights.", "Save the model there with save_pretrained.")
    if "weights_only" in text or "Unpickling" in text:
        return ModelError(
            f"{name}: the pickle checkpoint holds more than weights, or is damaged.",
            "headlens unpickles weights only. Save the model anew, as safetensors.",
        )
    if "does not recognize this architecture" in text or "Unrecognized model" in text or _no_object(name):
        return ModelError(
            f"{name}: its config.json names no model_type that transformers {transformers.__version__} knows.",
            f"Known to work: {', '.join(f.title for f in FAMILIES)}; `headlens models --all` lists every type.",
        )
    return None


def _no_object(name: str) -> bool:
    """Whether a folder's config.json is JSON without names; what transformers says of that depends on its version."""
    try:
        found = json.loads((Path(name).expanduser() / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return not isinstance(found, dict)


def _without_safe_weights(name: str) -> ModelError:
    folder = Path(name).expanduser()
    if folder.is_dir() and not any(next(folder.glob(pattern), None) for pattern in _PICKLES):
        return ModelError(f"{name} has no weights.", "Save the model there with save_pretrained.")
    return ModelError(
        f"{name} has no weights in the safetensors format.",
        "If you trust its source, load the pickle checkpoint with --allow-pickle (unpickling can run any code).",
    )


def _unknown(name: str, error: Exception) -> ModelError:
    reason = next(iter(str(error).strip().splitlines()), "")
    kind = "" if isinstance(error, (OSError, ValueError, RuntimeError)) and reason else f"{type(error).__name__}: "
    return ModelError(
        f"{name} cannot be loaded: {kind}{reason}",
        "Look at its config.json and weights; --debug shows where it failed.",
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _any(kinds: set[type[BaseException]], *wanted: type[BaseException]) -> bool:
    return any(issubclass(k, wanted) for k in kinds)

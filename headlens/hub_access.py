"""Whether the Hugging Face hub answers, and how its client is kept from asking."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from huggingface_hub import constants, get_session

FULL_CACHE = "Free some space, or download to a folder on another disk: HF_HOME=FOLDER headlens …"
PATIENCE = 4.0  # seconds
_CONFIGS = ("huggingface_hub.constants", "datasets.config")

# No telemetry: without this the hub's client asks what kind of program it is part
# of, and `datasets` tells a server of every file of this machine that it opens. The environment is for what is imported
# or started later.
os.environ |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_UPDATE_DOWNLOAD_COUNTS": "0"}
constants.HF_HUB_DISABLE_TELEMETRY = True
_imported: Any = sys.modules.get("datasets.config")
if _imported is not None:
    _imported.HF_UPDATE_DOWNLOAD_COUNTS = False


def hub_answers(patience: float = PATIENCE) -> bool:
    """Whether the hub answers anything at all; one request is quicker than the hub client's minute of retries.

    The client's own session is used, so that proxies and certificates count as they do for it. False also where
    HF_HUB_OFFLINE forbids requests.

    Args:
        patience: seconds after which a hub that is silent counts as not answering.
    """
    if constants.HF_HUB_OFFLINE:
        return False
    # The session's own timeout covers neither the look-up of the name nor the second address of a host.
    answers = SimpleQueue[bool]()
    Thread(target=lambda: answers.put(_answers(patience)), daemon=True).start()
    try:
        return answers.get(timeout=patience)
    except Empty:
        return False


@contextmanager
def only_cache(*, enabled: bool) -> Iterator[None]:
    """Keeps the hub's client, `datasets` and programs that are started from sending anything, if `enabled`.

    The argument `local_files_only` keeps the client from fetching files alone: it still asks the hub for what its own
    requests need. `datasets`, and what parsers load, have no argument at all.
    """
    if not enabled:
        yield
        return
    before = {name: os.environ.get(name) for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")}
    # What is imported within the block reads the environment, and shall not stay offline when the block is left.
    is_offline = (before["HF_DATASETS_OFFLINE"] or "").upper() in ("1", "ON", "YES", "TRUE")
    flags = {
        name: getattr(sys.modules.get(name), "HF_HUB_OFFLINE", constants.HF_HUB_OFFLINE or is_offline)
        for name in _CONFIGS
    }
    try:
        os.environ |= dict.fromkeys(before, "1")
        _set("HF_HUB_OFFLINE", dict.fromkeys(flags, True))
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        _set("HF_HUB_OFFLINE", flags)


def _set(flag: str, values: Mapping[str, bool]) -> None:
    """Sets a flag of those of the named modules that are imported."""
    for name, value in values.items():
        if name in sys.modules:
            setattr(sys.modules[name], flag, value)


def _answers(patience: float) -> bool:
    try:
        get_session().head(constants.ENDPOINT, timeout=patience)
    except Exception:  # whose errors these are depends on the version of the hub client
        return False
    return True

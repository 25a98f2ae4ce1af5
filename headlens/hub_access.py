"""Whether the Hugging Face hub answers, and how its client is kept from asking."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from threading import Thread

from huggingface_hub import constants, get_session

FULL_CACHE = "Free some space, or name a folder on another disk for what is fetched: HF_HOME=FOLDER headlens …"
PATIENCE = 4.0  # seconds


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
    """Keeps the hub's client and `datasets` from sending anything, if `enabled`.

    The argument `local_files_only` keeps the client from fetching files alone: it still asks the hub for what its own
    requests need. `datasets` has no argument at all.
    """
    configs = [constants, *([sys.modules["datasets"].config] if "datasets" in sys.modules else [])]
    before = [config.HF_HUB_OFFLINE for config in configs]
    try:
        for config, was_offline in zip(configs, before, strict=True):
            config.HF_HUB_OFFLINE = enabled or was_offline
        yield
    finally:
        for config, was_offline in zip(configs, before, strict=True):
            config.HF_HUB_OFFLINE = was_offline


def _answers(patience: float) -> bool:
    try:
        get_session().head(constants.ENDPOINT, timeout=patience)
    except Exception:  # whose errors these are depends on the version of the hub client
        return False
    return True

"""Check whether the Hugging Face hub answers."""

from __future__ import annotations

from queue import Empty, SimpleQueue
from threading import Thread

from huggingface_hub import constants, get_session

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


def _answers(patience: float) -> bool:
    try:
        get_session().head(constants.ENDPOINT, timeout=patience)
    except Exception:  # whose errors these are depends on the version of the hub client
        return False
    return True

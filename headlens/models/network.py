"""Whether the Hugging Face hub can be asked."""

from __future__ import annotations

import socket
import urllib.parse
import urllib.request
from queue import Empty, SimpleQueue
from threading import Thread

from huggingface_hub import constants

PATIENCE = 4.0  # seconds


def hub_answers(patience: float = PATIENCE) -> bool:
    """Whether the hub's host can be reached; asking once is quicker than the hub client's minute of retries.

    False also where HF_HUB_OFFLINE forbids to ask. With a proxy, which may reach what this machine cannot, True.

    Args:
        patience: seconds after which silence is a no.
    """
    if constants.HF_HUB_OFFLINE:
        return False
    if urllib.request.getproxies():
        return True
    # A socket's own timeout covers neither the look-up of the name nor the second address of a host.
    answers = SimpleQueue[bool]()
    Thread(target=lambda: answers.put(_connects(patience)), daemon=True).start()
    try:
        return answers.get(timeout=patience)
    except Empty:
        return False


def _connects(patience: float) -> bool:
    url = urllib.parse.urlsplit(constants.ENDPOINT)
    try:
        socket.create_connection((url.hostname or "", url.port or 443), timeout=patience).close()
    except OSError:
        return False
    return True

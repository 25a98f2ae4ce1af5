"""Asking the hub's host whether it is there."""

import socket
import time
import urllib.request
from typing import Any

import pytest
from huggingface_hub import constants

from headlens.models.network import hub_answers


@pytest.fixture(autouse=True)
def _no_proxy_and_not_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urllib.request, "getproxies", dict)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def stay_silent(*_: Any, **__: Any) -> None:
    time.sleep(0.5)
    raise TimeoutError


def refuse(*_: Any, **__: Any) -> None:
    raise socket.gaierror("Name or service not known")


def test_a_host_that_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert hub_answers()


def test_a_port_without_a_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setattr(constants, "ENDPOINT", f"https://127.0.0.1:{port}/mirror")
    assert not hub_answers()


def test_unknown_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "create_connection", refuse)
    start = time.monotonic()
    assert not hub_answers()
    assert time.monotonic() - start < 1


def test_silence_is_a_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "create_connection", stay_silent)
    start = time.monotonic()
    assert not hub_answers(patience=0.1)
    assert time.monotonic() - start < 0.4


def test_offline_mode_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("the network was asked"))
    assert not hub_answers()


def test_a_proxy_may_reach_what_we_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urllib.request, "getproxies", lambda: {"https": "http://proxy"})
    monkeypatch.setattr(socket, "create_connection", refuse)
    assert hub_answers()

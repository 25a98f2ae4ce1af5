"""Asking the hub whether it is there."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Event, Thread
from threading import enumerate as enumerate_threads
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
from huggingface_hub import close_session, constants, get_session
from huggingface_hub.errors import OfflineModeIsEnabled

from headlens.corpora.sources import HubCorpus
from headlens.errors import InputError, ModelError
from headlens.hub_access import hub_answers, only_cache
from headlens.models.loading_errors import explained
from headlens.models.model_options import ModelOptions
from headlens.planning import planned_sizes


class Answers(BaseHTTPRequestHandler):
    status = 200

    def do_HEAD(self) -> None:
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


class Forbids(Answers):
    status = 403


@contextmanager
def serving(handler: type[Answers]) -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every attempt to connect: one tells that nothing was tried again, however long a busy machine takes."""
    tried: list[Any] = []
    connect = socket.create_connection

    def noted(address: Any, *args: Any, **kwargs: Any) -> socket.socket:
        tried.append(address)
        return connect(address, *args, **kwargs)

    monkeypatch.setattr(socket, "create_connection", noted)
    return tried


@pytest.fixture(autouse=True)
def no_proxy_and_not_offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    close_session()  # a session keeps the proxies it was made with
    before = {*enumerate_threads()}
    yield
    for thread in {*enumerate_threads()} - before:  # one that was given up would make a session for the next test
        thread.join(60)
    close_session()


@pytest.mark.parametrize("handler", [Answers, Forbids])
def test_any_answer_is_one(monkeypatch: pytest.MonkeyPatch, handler: type[Answers]) -> None:
    with serving(handler) as url:
        monkeypatch.setattr(constants, "ENDPOINT", url)
        assert hub_answers(patience=60)


def test_a_port_without_a_listener(monkeypatch: pytest.MonkeyPatch, connections: list[Any]) -> None:
    port = unused_port()
    monkeypatch.setattr(constants, "ENDPOINT", f"https://127.0.0.1:{port}/mirror")
    assert not hub_answers(patience=60)
    assert connections == [("127.0.0.1", port)]


def test_unknown_host(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[Any] = []

    def refuse(host: str, *_: Any, **__: Any) -> None:
        looked_up.append(host)
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert not hub_answers(patience=60)
    assert len(looked_up) == 1


def test_a_host_that_listens_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert not hub_answers(patience=0.1)


def test_a_look_up_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    released, ended = Event(), Event()

    def hang(*_: Any, **__: Any) -> None:
        released.wait(60)
        ended.set()
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    assert not hub_answers(patience=0.1)
    assert not ended.is_set()
    released.set()
    assert ended.wait(60)  # its thread ends before what it uses is put back


def test_offline_mode_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("the network was asked"))
    assert not hub_answers(patience=60)


def test_a_proxy_may_reach_what_we_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.invalid")
    with serving(Answers) as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        assert hub_answers(patience=60)


def test_a_dead_proxy(monkeypatch: pytest.MonkeyPatch, connections: list[Any]) -> None:
    port = unused_port()
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
    assert not hub_answers(patience=60)
    assert connections == [("127.0.0.1", port)]


@pytest.mark.parametrize("was_offline", [False, True])
@pytest.mark.parametrize("enabled", [False, True])
def test_the_client_is_put_back_as_it_was(monkeypatch: pytest.MonkeyPatch, enabled: bool, was_offline: bool) -> None:
    configs = (constants, datasets.config)
    for config in configs:
        monkeypatch.setattr(config, "HF_HUB_OFFLINE", was_offline)
    inside: list[bool] = []

    def failing() -> None:
        with only_cache(enabled=enabled):
            inside.extend(config.HF_HUB_OFFLINE for config in configs)
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert inside == [enabled or was_offline] * 2
    assert [config.HF_HUB_OFFLINE for config in configs] == [was_offline] * 2


def test_the_clients_own_requests_are_not_sent_either(connections: list[Any]) -> None:
    """With `local_files_only` alone the client asks the hub which program it runs in."""
    with pytest.raises(OfflineModeIsEnabled), only_cache(enabled=True):
        get_session().get(f"{constants.ENDPOINT}/api")
    assert connections == []


@pytest.mark.usefixtures("no_connections")
def test_a_plan_without_the_hub_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned_sizes, "hub_answers", lambda: False)
    with pytest.raises(ModelError, match="nobody/albert-base-v2"):
        planned_sizes.planned_model("nobody/albert-base-v2", ModelOptions())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("what", ["model", "data set"])
def test_a_full_cache_is_told(number: int, wrapped: bool, what: str) -> None:
    """The libraries that fetch wrap the error of the system, or do not."""

    def fetch() -> None:
        with (
            explained("a/b", ModelOptions())
            if what == "model"
            else HubCorpus("a/b", "text")._datasets_errors("cannot be loaded")
        ):
            try:
                raise OSError(number, os.strerror(number))
            except OSError as error:
                if wrapped:
                    raise RuntimeError("the download failed") from error
                raise

    with pytest.raises(InputError, match=r"(?s)a/b.*cannot be (fetched|loaded).*Free some space.*HF_HOME=FOLDER"):
        fetch()


@pytest.mark.parametrize("asked", [None, "1"])
def test_what_is_imported_within_is_as_it_would_be(monkeypatch: pytest.MonkeyPatch, asked: str | None) -> None:
    if asked is not None:
        monkeypatch.setenv("HF_DATASETS_OFFLINE", asked)
    monkeypatch.delitem(sys.modules, "datasets.config")
    late = SimpleNamespace(HF_HUB_OFFLINE=True)
    with only_cache(enabled=True):
        monkeypatch.setitem(sys.modules, "datasets.config", late)
    assert late.HF_HUB_OFFLINE is (asked is not None)
    assert os.environ.get("HF_DATASETS_OFFLINE") == asked


def test_nobody_is_told_who_asks_and_nothing_is_counted() -> None:
    assert constants.HF_HUB_DISABLE_TELEMETRY
    assert not datasets.config.HF_UPDATE_DOWNLOAD_COUNTS
    assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"

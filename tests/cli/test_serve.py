"""`headlens serve` as a user runs it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headlens.analyses.attend.sentence_server import SentenceServer
from headlens.errors import Interrupted

Headlens = Callable[..., Any]


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Ends the server with a signal as soon as it waits for a browser."""

    def by(number: int) -> None:
        def wait(server: SentenceServer) -> None:
            raise Interrupted(number)

        monkeypatch.setattr(SentenceServer, "serve_forever", wait)

    return by


def test_it_names_its_address_and_ends_as_others(
    headlens: Headlens, tiny_bert: Path, ends: Callable[[int], None]
) -> None:
    ends(signal.SIGINT)
    done = headlens("serve", tiny_bert)
    assert (done.code, done.err) == (128 + signal.SIGINT, "Interrupted.\n")
    assert re.fullmatch(r"Open http://127\.0\.0\.1:\d+/[\w-]{32}/ \(press Ctrl-C to stop\)\n", done.out)
    assert headlens("serve", tiny_bert).out != done.out  # a word of its own each time
    assert not Path("runs").exists()


def test_another_signal_is_told_by_the_exit_code(
    headlens: Headlens, tiny_bert: Path, ends: Callable[[int], None]
) -> None:
    ends(signal.SIGTERM)
    assert headlens("serve", tiny_bert).code == 128 + signal.SIGTERM


def test_a_run_is_served_with_its_sentences(
    headlens: Headlens, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = []

    def wait(server: SentenceServer) -> None:
        pages.append(server.page.decode())
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr(SentenceServer, "serve_forever", wait)
    assert headlens("attend", tiny_bert, "Dogs bark here.", "--no-figures", "--out", "run").code == 0
    assert headlens("serve", "run").code == 130
    assert '"text":"Dogs bark here."' in pages[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "70000"], "less than or equal to 65535"),
        (["no-such-folder"], "no-such-folder"),
        (["--mask-rules", "layers=1"], "--mask-rules layers says where a mask applies"),
    ],
)
def test_bad_input(headlens: Headlens, arguments: list[str], message: str) -> None:
    done = headlens("serve", *arguments, "--offline")
    assert done.code == 2
    assert message in done.err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_sentences_are_measured(tiny_bert: Path, number: int) -> None:
    """Threads are in torch then: Python that is taken apart around them would abort."""
    command = [sys.executable, "-u", "-m", "headlens_cli", "serve", str(tiny_bert), "--offline"]
    environment = {**os.environ, "NO_PROXY": "*"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as run:
        assert run.stdout is not None
        address = run.stdout.readline().split()[1]
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        assert b"attention-view" in opener.open(address, timeout=300).read()
        body = json.dumps({"text": "a cat sees the house . " * 20, "translation": ""}).encode()
        asked = urllib.request.Request(f"{address}measure", body, {"Content-Type": "application/json"})
        answered = threading.Event()

        def measure() -> None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                while True:
                    opener.open(asked, timeout=300).read()
                    answered.set()

        browsers = [threading.Thread(target=measure) for _ in range(3)]
        for browser in browsers:
            browser.start()
        assert answered.wait(300)
        run.send_signal(number)
        out, err = run.communicate(timeout=300)
        for browser in browsers:
            browser.join()
    assert (run.returncode, out, err) == (128 + number, "", "Interrupted.\n")

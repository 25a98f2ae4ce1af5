"""The page of `headlens attend` for sentences that are typed in it: a server for the browser of this machine alone.

It listens on the loopback interface. Whoever opens the page must know a random word in its address, and other sites
reach it neither by their scripts nor by a name of theirs that leads to this machine: Host and Origin are checked.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from http import HTTPStatus
from http.client import HTTP_PORT
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import Any

from headlens.analyses.attend.options import COMMAND, AttendRequest, ServeRequest
from headlens.analyses.attend.states import AttentionState, attention_of_states, states_of, view_of
from headlens.attention_masks.mask_options import MaskOptions
from headlens.corpora.sentence import Example
from headlens.corpora.text import sentence_examples
from headlens.errors import HeadlensError, OptionError, OutputError
from headlens.models.loading import load
from headlens.nested_text import conform, parse_json
from headlens.pages.attention_page import LARGEST, AttentionView, attention_data, page_of_view
from headlens.pages.head_cards import SentenceMap
from headlens.runs.progress import Reporter
from headlens.runs.reading import RecordedRun, read_recorded
from headlens.runs.run_record import RUN_FILE

LONGEST_TEXT = 2_000  # letters
_MOST_BYTES = 50_000  # of a request: two such texts, whatever their letters
_PATIENCE = 20  # seconds in which a browser must have sent its request, or taken its answer
_HERE = "127.0.0.1"
_SAFETY = {"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer"}
_HEADERS = {"Cache-Control": "no-store", **_SAFETY}
# Options recorded by the run; device and trust are for whoever starts the server to choose.
_OF_THE_RUN = ("second", "without", "level", "stack", "revision", "dtype", "source_language", "target_language")


class SentenceServer(ThreadingHTTPServer):
    """Serves a page, and measures the sentences that are typed in it, one at a time.

    Args:
        states: the states in which sentences are run.
        request: their level and stack.
        recorded_maps: maps of sentences that the page shows at first.
        port: on this machine; 0 for a free one.

    Raises:
        OutputError: if the port is taken or may not be used.
    """

    daemon_threads = True

    def __init__(
        self, states: list[AttentionState], request: AttendRequest, recorded_maps: list[SentenceMap], port: int = 0
    ) -> None:
        self.states, self.request, self.recorded_maps = states, request, recorded_maps
        self.word = secrets.token_urlsafe(24)
        # One thread for all: what the system keeps for each new one in which torch runs would add up.
        self.measuring = ThreadPoolExecutor(1)
        try:
            super().__init__((_HERE, port), _Handler)
        except OSError as error:
            raise OutputError(
                f"--port {port} cannot be used: {error.strerror}.", "Give another one, or 0 for a free one."
            ) from error

    @property
    def address(self) -> str:
        """Address of the page, with the random word that nobody else knows."""
        return f"http://{_HERE}:{self.server_port}/{self.word}/"

    @cached_property
    def page(self) -> bytes:
        """HTML of the page, as it is sent to the browser."""
        view = view_of(self.states, self.recorded_maps)
        translated = all(state.loaded.model.config.is_encoder_decoder for state in self.states)
        title = f"Attention of {' and '.join(view.states)}"
        return page_of_view(title, view, {"limit": LONGEST_TEXT, "translated": translated}).encode()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs nothing about browsers that left before their answer."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def measure(self, text: str, translation: str = "") -> dict[str, Any]:
        """Returns what the page shows of a sentence.

        Raises:
            InputError: if it is too long, has no words, or a model cannot read it.
        """
        if max(len(text), len(translation)) > LONGEST_TEXT:
            raise OptionError(f"A sentence has more than {LONGEST_TEXT} characters.", "Type a shorter one.")
        if not text.strip():
            raise OptionError("There is no sentence.", "Type one.")
        examples = sentence_examples([text], [translation] if translation.strip() else [])
        return self.measuring.submit(self._measured, examples).result()

    def _measured(self, examples: list[Example]) -> dict[str, Any]:
        maps = attention_of_states(self.states, examples, self.request, lambda _: None)
        return attention_data(view_of(self.states, maps), LARGEST)

    def server_close(self) -> None:
        """Closes the port; a sentence that is being measured keeps nobody waiting."""
        super().server_close()
        self.measuring.shutdown(wait=False, cancel_futures=True)


class _InTime(RawIOBase):
    """What a connection sends, until the time for a whole request is over, in however small pieces it comes.

    Args:
        connection: of a browser.
        seconds: from now on.
    """

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self.connection, self.end = connection, time.monotonic() + seconds

    def readable(self) -> bool:
        """Returns True: BufferedReader may read it."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fills a buffer with what comes next, at most for the seconds that are left; TimeoutError after them."""
        self.connection.settimeout(max(self.end - time.monotonic(), 1e-6))
        return self.connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request of a browser, if it comes from the page itself."""

    server: SentenceServer
    server_version, sys_version = "headlens", ""

    def setup(self) -> None:
        """Sets up a connection whose whole request must come within a time."""
        super().setup()
        self.rfile.close()
        self.rfile = BufferedReader(_InTime(self.connection, _PATIENCE))

    def do_GET(self) -> None:
        """Sends the page to whoever knows its address."""
        if self._is_ours(""):
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)

    def do_POST(self) -> None:
        """Measures a sentence; what is wrong with it is part of the answer."""
        if not self._is_ours("measure"):
            return
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,20}", length):
            self._answer({"error": "Content-Length is not a number of bytes."}, HTTPStatus.BAD_REQUEST)
            return
        if int(length) > _MOST_BYTES:
            error = f"A request has at most {_MOST_BYTES} bytes."
            self._answer({"error": error}, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        try:
            typed = parse_json(self.rfile.read(int(length)))
            text, translation = (conform(typed[name], str, name) for name in ("text", "translation"))
            f"{text}{translation}".encode()
        except UnicodeEncodeError:
            error = "A sentence has half of a character, a surrogate without the other one. Type it anew."
            self._answer({"error": error}, HTTPStatus.BAD_REQUEST)
            return
        except (ValueError, TypeError, KeyError):
            error = "The request is not JSON with a text and a translation."
            self._answer({"error": error}, HTTPStatus.BAD_REQUEST)
            return
        try:
            answer = self.server.measure(text, translation)
        except HeadlensError as error:
            answer = {"error": str(error)}
        except Exception as error:  # the next sentence may do
            answer = {"error": f"Unexpected {type(error).__name__}: {error}"}
        self._answer(answer)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Logs nothing: sentences and the word in the address are nobody else's."""

    def _is_ours(self, name: str) -> bool:
        """Whether a request is one of the page itself; others are refused."""
        port = "" if self.server.server_port == HTTP_PORT else f":{self.server.server_port}"
        hosts = {f"{host}{port}" for host in (_HERE, "localhost")}
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if host not in hosts or origin not in (None, f"http://{host}"):
            self._refuse(HTTPStatus.FORBIDDEN)
        elif not hmac.compare_digest(self.path.encode(), f"/{self.server.word}/{name}".encode()):
            self._refuse(HTTPStatus.NOT_FOUND)
        elif name and self.headers.get_content_type() != "application/json":
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        else:
            return True
        return False

    def _answer(self, content: dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(status, "application/json", json.dumps(content, allow_nan=False).encode())

    def _refuse(self, status: HTTPStatus) -> None:
        self._send(status, "text/plain; charset=utf-8", status.phrase.encode())

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.connection.settimeout(_PATIENCE)
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **_HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


def open_server(
    request: ServeRequest,
    reporter: Reporter,
    tell: Callable[[str], None],
    attention: Callable[[RecordedRun], AttentionView | None] = lambda _: None,
) -> SentenceServer:
    """Loads the model of a request, or of the run that it names, and opens its server.

    Args:
        request: what `headlens serve` is asked for.
        reporter: shows what is loaded.
        tell: called with what the user should know of the model.
        attention: gives the sentences that a run keeps.

    Raises:
        InputError: whatever is wrong with what was asked for.
    """
    folder = Path(request.source).expanduser()
    is_run = (folder / RUN_FILE).is_file() and not (folder / "config.json").exists()
    run = read_recorded(folder, folder.name) if is_run else None
    attend_request = AttendRequest(request.source, mask=request.mask, model_options=request.model_options)
    attend_request = attend_request if run is None else _recorded_request(run, request)
    models = []
    for name in filter(None, (attend_request.model, attend_request.second)):
        with reporter.status(f"loading {name}"):
            models.append(load(name, attend_request.model_options))
        for note in models[-1].notes:
            tell(f"{models[-1].name}: {note}")
    view = None if run is None else attention(run)
    return SentenceServer(
        states_of(attend_request, models), attend_request, [] if view is None else [*view.maps], request.port
    )


def _recorded_request(run: RecordedRun, request: ServeRequest) -> AttendRequest:
    """What a run asked of its model, or of its first two models.

    Raises:
        OptionError: if a mask is given as well, or the run has no model.
    """
    if request.mask.given:
        raise OptionError(
            f"{run.folder} already records the mask under which its model ran.",
            "Leave the mask out, or name the model.",
        )
    models = run.argument("models", None) or [run.argument("model", None)]
    if not isinstance(models, list) or not isinstance(models[0], str):
        raise OptionError(f"{run.folder} is a run without a model.", "Name a model, or another run.")
    names = [*_OF_THE_RUN, *vars(MaskOptions())]
    values = {name: value for name in names if (value := run.argument(name, None)) is not None}
    second = {"second": models[1]} if len(models) > 1 else {}
    attend_request: AttendRequest = COMMAND.request({**values, "model": models[0], **second})
    arguments = vars(request.model_options)
    here = {name: arguments[name] for name in ("device", "offline", "allow_pickle", "trust_remote_code")}
    return replace(attend_request, model_options=replace(attend_request.model_options, **here))

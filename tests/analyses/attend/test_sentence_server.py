"""The server of `headlens serve`: what it answers, and whom it refuses."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from saved import build
from transformers import PreTrainedTokenizerBase

from headlens.analyses.attend.options import AttendRequest, ServeRequest
from headlens.analyses.attend.report import REPORT
from headlens.analyses.attend.sentence_server import LONGEST_TEXT, SentenceServer, open_server
from headlens.analyses.attend.states import attention_of_states, states_of
from headlens.attention_masks.mask_options import MaskOptions
from headlens.corpora.text import sentence_examples
from headlens.errors import InputError, OptionError, OutputError
from headlens.maps.stored_maps import write_maps
from headlens.models.loading import LoadedModel
from headlens.runs.folder import RunFolder
from headlens.runs.progress import Reporter

NO_LENGTHS = ("-5", "+5", "5_0", "five", "0x5", "5.0", "²", "5, 5", "9" * 5_000)
JSON = {"Content-Type": "application/json"}


def served(loaded: LoadedModel) -> Iterator[SentenceServer]:
    request = AttendRequest(loaded.name)
    with SentenceServer(states_of(request, [loaded]), request, []) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def server(wordpiece_tokenizer: PreTrainedTokenizerBase) -> Iterator[SentenceServer]:
    torch.manual_seed(0)
    yield from served(LoadedModel("tiny", build("BertModel", len(wordpiece_tokenizer)), wordpiece_tokenizer, None))


def ask(server: SentenceServer, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=300)
    given = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
    connection.request(method, path, given, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content, answer.headers


def measured(server: SentenceServer, text: str, translation: str = "") -> dict[str, Any]:
    body = {"text": text, "translation": translation}
    status, content, _ = ask(server, "POST", f"/{server.word}/measure", body, Content_Type="application/json")
    assert status == 200
    return json.loads(content)


def test_the_page_is_there_for_who_knows_its_address(server: SentenceServer) -> None:
    status, content, headers = ask(server, "GET", f"/{server.word}/")
    assert status == 200
    assert b"connect-src" in content
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert server.address == f"http://127.0.0.1:{server.server_port}/{server.word}/"
    local = f"localhost:{server.server_port}"
    assert ask(server, "GET", f"/{server.word}/", Host=local, Origin=f"http://{local}")[0] == 200
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", {}, 404),
        ("GET", "/{word}", {}, 404),
        ("GET", "/{word}/../etc/passwd", {}, 404),
        ("GET", "/{word}/measure", {}, 404),
        ("GET", "/{word}x/", {}, 404),
        ("GET", "/{word}/", {"Host": "evil.example:{port}"}, 403),
        ("GET", "/{word}/", {"Host": "127.0.0.1"}, 403),
        ("GET", "/{word}/", {"Origin": "http://evil.example"}, 403),
        ("GET", "/{word}/", {"Origin": "null"}, 403),
        ("POST", "/{word}/measure", {"Host": "rebound.example:{port}", **JSON}, 403),
        ("POST", "/{word}/measure", {"Origin": "https://evil.example", **JSON}, 403),
        ("POST", "/{word}/measure", {"Content-Type": "text/plain"}, 415),
        ("POST", "/{word}/measure", {"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ("POST", "/{word}/", JSON, 404),
        ("POST", "/measure", JSON, 404),
        ("PUT", "/{word}/measure", JSON, 501),
    ],
)
def test_others_are_refused(
    server: SentenceServer, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    facts = {"word": server.word, "port": server.server_port}
    asked = {name: value.format(**facts) for name, value in headers.items()}
    answer = ask(server, method, path.format(**facts), {"text": "a", "translation": ""}, **asked)
    assert answer[0] == status
    assert server.word.encode() not in answer[1]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[" * 5_000, 400),
        ({"text": "a \ud800", "translation": ""}, 400),
        ({"text": "a", "translation": "\udfff"}, 400),
        (b"\xff\xfe", 400),
        ([], 400),
        ({"text": "a"}, 400),
        ({"text": 1, "translation": ""}, 400),
        ({"text": "a", "translation": None}, 400),
        (b" " * 60_000, 413),
    ],
)
def test_requests_that_the_page_would_not_make(server: SentenceServer, body: Any, status: int) -> None:
    found, content, _ = ask(server, "POST", f"/{server.word}/measure", body, **JSON)
    assert found == status
    assert json.loads(content)["error"].endswith(".")
    assert "sentences" in measured(server, "Cats sleep.")


def test_a_request_must_say_how_long_it_is(server: SentenceServer) -> None:
    head = f"POST /{server.word}/measure HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n"
    for length in ("", "Content-Length:\r\n", *(f"Content-Length: {n}\r\n" for n in NO_LENGTHS)):
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=300) as one:
            one.sendall(f"{head}Content-Type: application/json\r\n{length}\r\n".encode("latin-1"))
            assert b" 400 " in one.recv(100), length[:40]


@pytest.mark.parametrize("part", ["first line", "headers", "body"])
def test_a_request_that_comes_byte_by_byte_is_given_up(
    server: SentenceServer, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr("headlens.analyses.attend.sentence_server._PATIENCE", 0.2)
    begun = "" if part == "first line" else f"POST /{server.word}/measure HTTP/1.1\r\n"
    if part == "body":
        host = f"Host: 127.0.0.1:{server.server_port}"
        begun += f"{host}\r\nContent-Type: application/json\r\nContent-Length: 40000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=0.02) as one:
        one.sendall(begun.encode())
        for _ in range(15_000):  # five minutes
            with contextlib.suppress(TimeoutError):
                one.sendall(b"a")
                if not one.recv(1):
                    break
        else:
            pytest.fail("it is still waited for")


def test_a_sentence_is_measured(server: SentenceServer) -> None:
    (found,) = measured(server, "</script> cats sleep.")["sentences"]
    assert found["text"] == "</script> cats sleep."
    (own,) = found["maps"]
    assert (own["stack"], own["layers"], own["heads"]) == ("encoder", 2, 2)
    assert own["keys"][-3:] == ["sleep", ".", "[SEP]"]
    assert own["key_groups"]["special"] == [True, *[False] * (len(own["keys"]) - 2), True]
    assert [(parts["layer"], parts["heads"]) for parts in own["scores"]] == [(0, [0, 1]), (1, [0, 1])]


@pytest.mark.parametrize(
    ("text", "translation", "message"),
    [
        (" \n", "", "There is no sentence"),
        ("x" * (LONGEST_TEXT + 1), "", f"more than {LONGEST_TEXT} characters"),
        ("a", "y" * (LONGEST_TEXT + 1), f"more than {LONGEST_TEXT} characters"),
        ("cats " * 60, "", "is longer than the model's"),
    ],
)
def test_what_is_wrong_with_a_sentence_is_told(
    server: SentenceServer, text: str, translation: str, message: str
) -> None:
    assert message in measured(server, text, translation)["error"]


def test_what_nobody_thought_of_is_told_too(server: SentenceServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(server, "measure", fails)
    assert measured(server, "cats")["error"] == "Unexpected RuntimeError: no memory"


def test_a_browser_that_is_silent_keeps_nobody_waiting(server: SentenceServer) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port)):
        assert ask(server, "GET", f"/{server.word}/")[0] == 200


def test_a_port_that_is_taken(server: SentenceServer) -> None:
    with pytest.raises(OutputError, match=rf"--port {server.server_port} cannot be used: .*\nGive another one"):
        SentenceServer(server.states, server.request, [], server.server_port)


def test_source_and_translation(marian_tokenizer: PreTrainedTokenizerBase) -> None:
    pad = marian_tokenizer.pad_token_id
    model = build("MarianMTModel", len(marian_tokenizer), pad_token_id=pad, decoder_start_token_id=pad)
    for server in served(LoadedModel("tiny", model, marian_tokenizer, None)):
        (found,) = measured(server, "A cat sold books.", "She cannot see it.")["sentences"]
        assert [own["stack"] for own in found["maps"]] == ["encoder", "decoder", "cross"]
        assert [own["stack"] for own in measured(server, "A cat.")["sentences"][0]["maps"]] == ["encoder"]
        assert b'"translated":true' in ask(server, "GET", f"/{server.word}/")[1]


def run_of(folder: Path, arguments: dict[str, Any], server: SentenceServer) -> Path:
    """A run of `attend` that keeps a sentence which the server measured."""
    request = server.request
    maps = attention_of_states(server.states, sentence_examples(["Dogs bark."]), request, print)
    with RunFolder.create(folder, command="attend", model="demo") as run:
        run.start({"arguments": arguments})
        write_maps(run, maps)
        run.finish({"states": ["tiny"], "models": [{"model": "tiny"}]})
    return folder


def test_a_run_is_gone_on_with(server: SentenceServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load(name: str, options: Any) -> LoadedModel:
        asked.append((name, options))
        return server.states[0].loaded

    monkeypatch.setattr("headlens.analyses.attend.sentence_server.load", load)
    arguments = {"model": "tiny", "without": ["encoder.0.1"], "mask": "window:3", "layers": "1", "level": "word"}
    folder = run_of(tmp_path / "a run", {**arguments, "allow_pickle": True, "device": "cuda"}, server)
    with open_server(ServeRequest(str(folder)), Reporter(), print, REPORT.attention) as opened:
        ((name, options),) = asked
        assert (name, options.allow_pickle, options.device) == ("tiny", False, "auto")
        assert (opened.request.level, opened.request.mask.mask, opened.request.mask.layers) == ("word", "window:3", "1")
        assert [len(state.without) for state in opened.states] == [1, 0]
        assert isinstance(opened.recorded_maps[0].text, str)
        assert b"Dogs bark." in opened.page
    with pytest.raises(OptionError, match="already records the mask under which its model ran"):
        open_server(ServeRequest(str(folder), mask=MaskOptions("star")), Reporter(), print)


def test_a_run_without_a_model(server: SentenceServer, tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run", {"paper": "x"}, server)
    with pytest.raises(OptionError, match="is a run without a model"):
        open_server(ServeRequest(str(folder)), Reporter(), print)


def test_no_such_model(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        open_server(ServeRequest(str(tmp_path / "nothing")), Reporter(), print)

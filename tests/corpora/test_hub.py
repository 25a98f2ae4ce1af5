"""Data sets through the `datasets` package, without any network."""

import json
import socket
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from headlens.corpora import sources
from headlens.corpora.sources import HubCorpus
from headlens.errors import CorpusError

datasets = pytest.importorskip("datasets")
ROWS = [
    {"sentence": "A b.", "t": {"en": "Yes", "de": "Ja"}, "n": 1},
    {"sentence": None, "t": {"en": "No", "de": ""}, "n": 2},
    {"sentence": "C", "t": {"en": "So", "de": "So"}, "n": 3},
]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a test asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_text("".join(json.dumps(r) + "\n" for r in ROWS), encoding="utf-8")
    return tmp_path / "set"


def texts(corpus: HubCorpus) -> list[tuple[str, str | None]]:
    return [(e.source.text, e.target and e.target.text) for e in corpus]


def test_a_folder_of_data_files(folder: Path) -> None:
    corpus = HubCorpus(str(folder), "sentence", "train")
    assert texts(corpus) == texts(corpus) == [("A b.", None), ("C", None)]
    assert corpus.name == f"{folder}:train"
    assert [e.source.id for e in corpus] == ["1", "3"]


def test_columns_in_columns_and_blank_sides(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert texts(HubCorpus(str(folder), "t.en", "train", "t.de")) == [("Yes", "Ja"), ("So", "So")]
    assert "skipped 1 pair " in caplog.text


@pytest.mark.parametrize("name", ["a[1].json", "a*.json", "a?.json", "a b#c%20.json"])
def test_a_name_is_no_pattern(tmp_path: Path, name: str) -> None:
    (tmp_path / "ab.json").write_text('{"s": "another"}\n')
    (tmp_path / name).write_text('{"s": "this"}\n')
    assert texts(HubCorpus(str(tmp_path / name), "s")) == [("this", None)]


def test_nothing_of_the_package_is_logged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.parquet").write_bytes(b"nope")
    before = datasets.logging.get_verbosity()
    with pytest.raises(CorpusError, match="damaged, or not of the kind that its name suggests"):
        list(HubCorpus(str(tmp_path / "x.parquet"), "s"))
    assert capsys.readouterr().err == ""
    assert datasets.logging.get_verbosity() == before


def test_single_files_have_any_split(tmp_path: Path, folder: Path) -> None:
    pd.DataFrame(ROWS).to_parquet(tmp_path / "x.parquet")
    pd.DataFrame(ROWS)[["sentence"]].to_csv(tmp_path / "x.csv")
    (tmp_path / "x.json").write_text(json.dumps(ROWS), encoding="utf-8")
    for path in (tmp_path / "x.parquet", tmp_path / "x.csv", tmp_path / "x.json", folder / "train.jsonl"):
        corpus = HubCorpus(str(path), "sentence")
        assert texts(corpus) == [("A b.", None), ("C", None)]
        assert corpus.name == path.stem


@pytest.mark.parametrize("kind", ["csv", "parquet", "json"])
def test_splits_of_a_folder(tmp_path: Path, kind: str) -> None:
    for split in ("train", "test"):
        frame = pd.DataFrame({"sentence": [f"{split} one", f"{split} two"]})
        if kind == "json":
            frame.to_json(tmp_path / f"{split}.json", orient="records", lines=True)
        else:
            getattr(frame, f"to_{kind}")(tmp_path / f"{split}.{kind}")
    assert texts(HubCorpus(str(tmp_path), "sentence")) == [("test one", None), ("test two", None)]
    assert texts(HubCorpus(str(tmp_path), "sentence", "train")) == [("train one", None), ("train two", None)]


def test_what_save_to_disk_wrote(tmp_path: Path) -> None:
    one = datasets.Dataset.from_dict({"sentence": ["a"]})
    datasets.disable_progress_bars()
    one.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"dev": one}).save_to_disk(tmp_path / "dict")
    assert texts(HubCorpus(str(tmp_path / "one"), "sentence")) == [("a", None)]
    assert texts(HubCorpus(str(tmp_path / "dict"), "sentence", "dev")) == [("a", None)]


@pytest.mark.parametrize(
    ("column", "split", "message"),
    [
        ("sentence", "test", r"set: there is no split 'test'\.\nChoose one with --data-args split: train\."),
        ("x", "train", r"set:1: there is no column 'x'\.\nColumns: sentence, t\.en, t\.de, n\."),
        ("n", "train", r"set:1: 'n' holds int, not text\."),
    ],
)
def test_what_is_not_there_is_listed(folder: Path, column: str, split: str, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        texts(HubCorpus(str(folder), column, split))


def test_broken_data_while_streaming(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"sentence": "a"}\n{"sentence":\n', encoding="utf-8")
    with pytest.raises(CorpusError, match=r"cannot be (loaded|read completely): "):
        texts(HubCorpus(str(tmp_path), "sentence", "train"))


def test_broken_file(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"no parquet")
    with pytest.raises(CorpusError, match=r"x\.parquet: cannot be (loaded|read completely): .*[Pp]arquet"):
        texts(HubCorpus(str(tmp_path / "x.parquet"), "sentence"))


def test_folder_without_data(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="cannot be loaded: "):
        texts(HubCorpus(str(tmp_path), "sentence"))


@pytest.mark.parametrize("name", ["./nowhere", "/no/where", "~/nowhere"])
def test_no_such_folder(name: str) -> None:
    with pytest.raises(CorpusError, match=rf"hub:{name}: no such file or folder\.\nCheck the spelling"):
        texts(HubCorpus(name, "sentence"))


@pytest.mark.parametrize(("is_offline", "reason"), [(False, "the hub cannot be reached"), (True, "offline mode is on")])
@pytest.mark.usefixtures("no_connections")
def test_no_network(monkeypatch: pytest.MonkeyPatch, is_offline: bool, reason: str) -> None:
    monkeypatch.setattr(sources, "hub_answers", lambda: False)
    with pytest.raises(CorpusError) as caught:
        texts(HubCorpus("no/such", "sentence", offline=is_offline))
    assert caught.value.message == f"hub:no/such: not in the local cache, and {reason}."
    assert "a folder with data files works offline" in caught.value.advice
    assert caught.value.advice.startswith("Leave out --offline") == is_offline
    assert not datasets.config.HF_HUB_OFFLINE


def test_offline_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)  # what HF_DATASETS_OFFLINE=1 sets
    monkeypatch.setattr(sources, "hub_answers", lambda: pytest.fail("the hub was asked"))
    with pytest.raises(CorpusError, match="offline mode is on"):
        texts(HubCorpus("no/such", "sentence"))
    assert datasets.config.HF_HUB_OFFLINE


@pytest.mark.parametrize("is_offline", [False, True])
def test_cached_data_set_needs_no_network(monkeypatch: pytest.MonkeyPatch, folder: Path, is_offline: bool) -> None:
    datasets.disable_progress_bars()
    datasets.load_dataset(str(folder))
    cache = Path(datasets.config.HF_DATASETS_CACHE)
    (info,) = cache.glob("*/*/*/*/dataset_info.json")
    content = json.loads(info.read_text()) | {"config_name": "default", "dataset_name": "name"}
    info.write_text(json.dumps(content))
    (arrow,) = info.parent.glob("*-train.arrow")
    arrow.rename(arrow.with_name("name-train.arrow"))
    place = cache / "owner___name" / "default" / "0.0.0" / "hash"
    place.parent.mkdir(parents=True)
    info.parent.rename(place)
    monkeypatch.setattr(sources, "hub_answers", lambda: False)
    for name in ("owner/name", "owner/name:default"):
        corpus = HubCorpus(name, "sentence", "train", offline=is_offline)
        assert texts(corpus) == [("A b.", None), ("C", None)]
        assert corpus.name == f"{name}:train"


@pytest.mark.parametrize(
    "error",
    [
        datasets.exceptions.DatasetNotFoundError("Dataset 'a/b' doesn't exist on the Hub"),
        ValueError("BuilderConfig 'x' not found. Available: ['sst2']\nmore"),
        RuntimeError(),
    ],
)
def test_what_the_hub_refuses(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    asked: list[Any] = []

    def refuse(*args: Any, **options: Any) -> None:
        asked.append((args, options))
        raise error

    monkeypatch.setattr(sources, "hub_answers", lambda: True)
    monkeypatch.setattr(datasets, "load_dataset", refuse)
    first_line = (str(error).splitlines() or ["RuntimeError"])[0]
    with pytest.raises(CorpusError) as caught:
        texts(HubCorpus("a/b:x", "sentence"))
    assert caught.value.message == f"hub:a/b:x: cannot be loaded: {first_line}"
    assert "network" in caught.value.advice
    assert asked == [(("a/b", "x"), {"streaming": True})]


def test_connection_lost_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows() -> Any:
        yield {"sentence": "a"}
        raise ConnectionResetError("the other side hung up")

    monkeypatch.setattr(sources, "hub_answers", lambda: True)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: {"test": rows()})
    read = []
    with pytest.raises(CorpusError, match="hub:a/b: cannot be read completely: the other side hung up"):
        read.extend(HubCorpus("a/b", "sentence"))
    assert [e.source.text for e in read] == ["a"]

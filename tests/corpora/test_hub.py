import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from headlens.corpora.hub import HubCorpus
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
    assert "skipped 1 pairs" in caplog.text


def test_single_files_have_any_split(tmp_path: Path, folder: Path) -> None:
    pd.DataFrame(ROWS).to_parquet(tmp_path / "x.parquet")
    (tmp_path / "x.json").write_text(json.dumps(ROWS), encoding="utf-8")
    for path in (tmp_path / "x.parquet", tmp_path / "x.json", folder / "train.jsonl"):
        assert texts(HubCorpus(str(path), "sentence")) == [("A b.", None), ("C", None)]


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
        ("sentence", "test", r"has no split 'test'\.\nSplits: train\."),
        ("x", "train", r"there is no column 'x'\.\nColumns: sentence, t\.en, t\.de, n\."),
        ("n", "train", r"'n' holds int, not text\."),
    ],
)
def test_what_is_not_there_is_listed(folder: Path, column: str, split: str, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        texts(HubCorpus(str(folder), column, split))


def test_broken_data_while_streaming(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"sentence": "a"}\n{"sentence":\n', encoding="utf-8")
    with pytest.raises(CorpusError, match="cannot be (loaded|read to its end)"):
        texts(HubCorpus(str(tmp_path), "sentence", "train"))


def test_no_such_folder() -> None:
    with pytest.raises(CorpusError, match=r"hub:\./nowhere cannot be loaded: no such file or folder"):
        texts(HubCorpus("./nowhere", "sentence"))


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("Couldn't reach 'a/b' on the Hub"),
        datasets.exceptions.DatasetNotFoundError("Dataset 'a/b' doesn't exist on the Hub"),
        ValueError("BuilderConfig 'x' not found. Available: ['sst2']\nmore"),
        RuntimeError(),
    ],
)
def test_no_network_and_no_such_data_set(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    asked: list[Any] = []

    def refuse(*args: Any, **options: Any) -> None:
        asked.append((args, options))
        raise error

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    first_line = (str(error).splitlines() or ["RuntimeError"])[0]
    with pytest.raises(CorpusError) as caught:
        texts(HubCorpus("a/b:x", "sentence"))
    assert caught.value.message == f"hub:a/b:x cannot be loaded: {first_line}"
    assert "network" in caught.value.advice
    assert asked == [(("a/b", "x"), {"streaming": True})]

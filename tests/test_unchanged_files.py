"""Files that somebody changes while a run reads them, or between an interruption and --resume."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from saved import build, save
from tiers import rest_slow
from transformers import PreTrainedTokenizerBase

from headlens.corpora.conllu import ConlluCorpus
from headlens.corpora.frequency import file_frequency
from headlens.corpora.sources import HubCorpus, demo_corpus
from headlens.corpora.table import TableCorpus
from headlens.corpora.text import ParallelCorpus, TextCorpus
from headlens.errors import InputError
from headlens.models import loading
from headlens.models.loading import load
from headlens.tasks.row_readers import FileRows, LineRows
from headlens.unchanged_files import file_hashes, one_state_of_files, unchanged

# More than a reader of tables looks at before it hands out the first row.
ROWS = 60
LINES = [f"the cat sees {n} houses" for n in range(ROWS)]
TREE = "1\tone\t_\t_\t_\t_\t0\troot\t_\t_\n\n"
READERS: dict[str, tuple[str, Callable[[Path], Iterable[object]]]] = {
    "lines.txt": ("\n".join(LINES), TextCorpus),
    "trees.conllu": (TREE * ROWS, ConlluCorpus),
    "table.tsv": ("text\n" + "\n".join(LINES), lambda path: TableCorpus(path, "text")),
    "table.csv": ("text,label\n" + "\n".join(f"{line},1" for line in LINES), lambda path: TableCorpus(path, "text")),
    "objects.jsonl": ("\n".join(f'{{"text": "{line}"}}' for line in LINES), lambda path: TableCorpus(path, "text")),
    "pairs.txt": ("\n".join(LINES), lambda path: ParallelCorpus(TextCorpus(path), TextCorpus(path))),
    "rows.tsv": ("sentence\tlabel\n" + "\n".join(f"{line}\t1" for line in LINES), FileRows),
    "sides.txt": ("\n".join(LINES), lambda path: LineRows((path, path))),
}


def later(path: Path) -> None:
    """A time of change that no clock is too coarse for."""
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("change", ["grows", "touched", "removed"])
def test_a_file_that_changes_under_its_reader_is_noticed(name: str, change: str, tmp_path: Path) -> None:
    content, reader = READERS[name]
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    assert len(list(reader(path))) == ROWS
    examples: Iterator[object] = iter(reader(path))
    next(examples)
    if change == "grows":
        with path.open("a", encoding="utf-8") as file:
            file.write("\n" * 2)
    elif change == "removed":
        path.unlink()
    else:
        later(path)
    with pytest.raises(InputError, match=rf"(?s){name} changed while it was read.*Start again when nothing writes"):
        list(examples)


@pytest.mark.parametrize("name", READERS)
def test_a_run_reads_the_same_every_time(name: str, tmp_path: Path) -> None:
    content, reader = READERS[name]
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with one_state_of_files():
        assert len(list(reader(path))) == len(list(reader(path))) == ROWS
        later(path)
        with pytest.raises(InputError, match="changed while it was read"):
            next(iter(reader(path)))
    # What Python reads outside of a run may be another file every time.
    assert len(list(reader(path))) == ROWS


def test_packed_files_data_sets_and_lists_are_watched_too(tmp_path: Path) -> None:
    packed, data, counts = (tmp_path / name for name in ("a.txt.gz", "a.json", "a.tsv"))
    packed.write_bytes(gzip.compress("\n".join(LINES).encode()))
    data.write_text('[{"text": "one"}, {"text": "two"}]', encoding="utf-8")
    counts.write_text("cat\t3\n", encoding="utf-8")
    with one_state_of_files():
        for path, read in (
            (packed, lambda: list(TextCorpus(packed))),
            (data, lambda: list(HubCorpus(str(data), "text"))),
            (counts, lambda: [file_frequency(counts)]),
        ):
            assert read()
            later(path)
            with pytest.raises(InputError, match=rf"{path.name} changed"):
                read()


@pytest.mark.parametrize("file", rest_slow(["model.safetensors", "config.json", "tokenizer.json", "new.bin"], 2))
def test_a_model_that_is_written_while_it_is_loaded(
    file: str, tmp_path: Path, wordpiece_tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that saves again: weights and tokenizer would be of two models."""
    model = save(build("BertModel", len(wordpiece_tokenizer)), tmp_path / "model", wordpiece_tokenizer)
    load(model)

    def tokenizer(files: object) -> PreTrainedTokenizerBase:
        path = tmp_path / "model" / file
        path.touch()
        later(path)
        return wordpiece_tokenizer

    monkeypatch.setattr(loading, "load_tokenizer", tokenizer)
    with pytest.raises(InputError, match=rf"model/{file} changed while it was read"):
        load(model)


def test_what_is_not_there_and_what_others_hold_is_no_change(tmp_path: Path) -> None:
    with unchanged(tmp_path / "nowhere"):
        (tmp_path / "elsewhere").touch()
    with unchanged(tmp_path):
        (tmp_path / "folder").mkdir()
    with one_state_of_files(), one_state_of_files():
        assert len(list(demo_corpus())) > 0


def test_hashes_are_those_of_the_files_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    found = file_hashes({"one": tmp_path / "a", "none": None, "word": "wordfreq:en"})
    assert found == {"one": "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"}
    (tmp_path / "a").write_bytes(b"y")
    assert file_hashes({"one": tmp_path / "a"}) != found

"""Whether a model is measured on what it was trained on, as the run.json beside it says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headlens.options import DEMO
from headlens.runs.run_record import RUN_FILE, read_run
from headlens.tasks.task_options import AUTO, DEFAULT_TASK

_TRAIN = ("train", "prune", "train-dam", "masks")
_BACK = 5  # runs that a model is followed through: trained, pruned, compacted


def training_data_notes(
    model: str, sources: Sequence[str], split: str | None, advice: str, sha256: str = ""
) -> list[str]:
    """A note where data is what a model was trained on; nothing where that is not known.

    Args:
        model: its folder, or its name.
        sources: files or data sets, as the user names them; the name of a task for its own data.
        split: of data sets.
        advice: what names other data.
        sha256: over the content of the examples, which tells them by whatever name.
    """
    measured = {_place(source, split, Path()) for source in sources}
    for folder, record in _runs_behind(model):
        learned = {_place(source, split_of_run, base) for source, split_of_run, base in _learned(record)}
        hashes = {record.get("depends_on", {}).get(name) for name in ("the data", "the corpus")}
        if learned & measured or (sha256 and sha256 in hashes):
            data = "The bundled data" if tuple(sources) == (DEFAULT_TASK,) else " and ".join(sources)
            verb = "are" if len(sources) > 1 else "is"
            return [
                f"{data} {verb} what the model was trained on ({folder / RUN_FILE}): what it achieves is optimistic, "
                f"and on other data other heads may be needed. {advice}"
            ]
    return []


def _runs_behind(model: str) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The runs that trained a model, the latest first, and their folders as the user may name them."""
    path = Path(model)
    for _ in range(_BACK):
        if not path.is_dir():
            return
        # compact writes into the folder of its run, train into `model`, others into folders of `models`.
        folders = (path, *list(path.parents)[:2])
        found = ((folder, record) for folder in folders if (record := read_run(folder)) and record.get("command"))
        folder, record = next(found, (path, {}))
        if record.get("command") in _TRAIN:
            yield folder, record
        elif record.get("command") != "compact":
            return
        if not isinstance(before := record.get("arguments", {}).get("model"), str):
            return
        path = _from_there(before, record)


def _learned(record: Mapping[str, Any]) -> Iterator[tuple[str, str | None, Path]]:
    """What a run learned from: sources, their split, and the folder that names of files start from."""
    arguments = record.get("arguments", {})
    base = _from_there("", record)
    examples = [source for source in arguments.get("data") or () if isinstance(source, str)]
    yield from ((source, arguments.get("data_split") or "train", base) for source in examples)
    corpus = arguments.get("corpus")
    if isinstance(corpus, str) and (corpus != DEMO or arguments.get("task") not in (AUTO, None)) and not examples:
        yield corpus, arguments.get("split") or "train", base
    if arguments.get("task") in (AUTO, DEFAULT_TASK) and not examples:
        yield DEFAULT_TASK, None, base


def _from_there(name: str, record: Mapping[str, Any]) -> Path:
    """Returns a path of a record, seen from the folder in which its run was started."""
    directory = record.get("directory")
    return Path(directory if isinstance(directory, str) else "", name)


def _place(source: str, split: str | None, base: Path) -> tuple[str, str | None]:
    """What tells data apart: the file, or the name of a data set with its split."""
    path = base / source
    return (str(path.resolve()), None) if path.is_file() else (source, split if source != DEFAULT_TASK else None)

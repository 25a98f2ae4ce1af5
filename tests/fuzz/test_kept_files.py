"""Files that headlens keeps to go on, or makes to be read again: damaged, they are refused, or hold what fits."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from built_commands import command_line
from corpora.test_graph_cache import book
from fuzz.damage import blows, damaged, damaged_json, edited, fuzzing, told
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from headlens.analyses.reproduce.claims import Claim
from headlens.analyses.reproduce.paper_recipe import _parsed, packaged, read_recipe, recipe_names
from headlens.analyses.reproduce.paper_tables import ComparedTable
from headlens.analyses.sparsefinder.fitting import FittedSite, load_fitted, save_fitted
from headlens.analyses.sparsefinder.predictors import QueryKeyProjections
from headlens.attention_masks.attention_mask import AttentionMask
from headlens.corpora.word_graphs import GraphCache
from headlens.errors import InputError, OptionError, read_errors
from headlens.learning.loop import TrainingState, restore_random, save_random
from headlens.maps.stored_maps import read_maps, write_maps
from headlens.pages.head_cards import SentenceMap, TokenGroups
from headlens.pages.score_parts import ScoreParts
from headlens.runs.checkpoint import Checkpoint
from headlens.runs.corpus_pass import PassState
from headlens.runs.folder import RunFolder
from headlens.runs.reading import read_recorded
from headlens_cli import command

GROUP: Any = command_line()
Read = Callable[[], object]


def mask_file(folder: Path) -> tuple[Path, Read]:
    path = AttentionMask(torch.rand(2, 3, 6, 6) > 0.5, name="m", layers=(0, 1)).save(folder / "mask.safetensors")
    return path, lambda: AttentionMask.load(path).block(4).shape


def graphs(folder: Path) -> tuple[Path, Read]:
    cache, texts = book([3, 5, 2])
    cache.save(folder / "graphs.npz")
    ids = torch.tensor([texts[0].ids])

    def read() -> object:
        found = GraphCache.load(folder / "graphs.npz")
        return (found.sparsity(), found.rows(ids, ids > 0)) if texts[0].ids in found else None

    return folder / "graphs.npz", read


def kept_sums(folder: Path) -> tuple[Path, Read]:
    checkpoint = Checkpoint(folder / "sums.npz", {"the corpus": "abc"})
    checkpoint.save(PassState({}, batches=3))
    return checkpoint.path, lambda: checkpoint.restore(PassState({}))


def training_state(folder: Path) -> tuple[Path, Read]:
    model = nn.Linear(3, 2)
    optimiser = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimiser.step()
    TrainingState(step=4, log=[{"loss": 1.5}], best=0.25).save(folder, model, optimiser)
    save_random(folder, 0)

    def read() -> object:
        TrainingState().restore(folder, model, optimiser)
        restore_random(folder, 0)
        return None

    return folder, read


def projections(folder: Path) -> tuple[Path, Read]:
    site = FittedSite(QueryKeyProjections(2, 4), [0.5, 0.25], {2: torch.rand(2, 2, 4)}, {2: torch.rand(2, 2, 4)})
    save_fitted(folder / "p.safetensors", {"encoder.0": site})
    return folder / "p.safetensors", lambda: load_fitted(folder / "p.safetensors")


def stored_maps(folder: Path) -> tuple[Path, Read]:
    groups = TokenGroups([0, 1], ["x", "y"], [False, True])
    weights = torch.rand(1, 2, 2, 2).numpy()
    with RunFolder.create(folder / "run", command="attend", model="demo") as run:
        run.start({})
        write_maps(run, [SentenceMap("a", "encoder", ["x", "y"], ["x", "y"], weights, "x y", 0, groups, groups)])
    return folder / "run" / "attention.safetensors", lambda: read_maps(read_recorded(folder / "run", ""), str)


def stored_scores(folder: Path) -> tuple[Path, Read]:
    parts = ScoreParts(0, [0, 1], 0.5, *torch.rand(2, 2, 2, 3).numpy())
    weights = torch.softmax(torch.rand(1, 2, 2, 2), -1).numpy()
    with RunFolder.create(folder / "run", command="attend", model="demo") as run:
        run.start({})
        write_maps(run, [SentenceMap("a", "encoder", "xy", "xy", weights, scores=[parts.fitted(weights[0])])])
    return folder / "run" / "queries_keys.safetensors", lambda: read_maps(read_recorded(folder / "run", ""), str)


MAKERS = [mask_file, graphs, kept_sums, training_state, projections, stored_maps, stored_scores]


@pytest.fixture(scope="module", params=MAKERS, ids=lambda make: make.__name__)
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Read]:
    found: tuple[Path, Read] = request.param(tmp_path_factory.mktemp("kept"))
    return found


def tried(path: Path, content: bytes, read: Read) -> None:
    whole = path.read_bytes()
    try:
        path.write_bytes(content)
        told(read)
        assert path.read_bytes() == content, "reading changes nothing"
    finally:
        path.write_bytes(whole)


def structured(content: bytes, strokes: Any) -> bytes:
    """A safetensors file with another header, an archive with another record, JSON with other values."""
    if content[:1] == b"{":
        return damaged_json(json.loads(content), strokes)
    if content[:2] == b"PK":
        with ZipFile(BytesIO(content)) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        name = sorted(files)[strokes[0][1] % len(files)]
        files[name] = damaged(files[name], strokes)
        with ZipFile(packed := BytesIO(), "w") as archive:
            for own, data in files.items():
                archive.writestr(own, data)
        return packed.getvalue()
    size = int.from_bytes(content[:8], "little")
    header = damaged_json(json.loads(content[8 : 8 + size]), strokes)
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


@fuzzing(25)
@given(blows(least=1), st.booleans())
def test_damaged_kept_files(kept: tuple[Path, Read], strokes: Any, anywhere: bool) -> None:
    place, read = kept
    files = sorted(path for path in place.iterdir() if path.is_file()) if place.is_dir() else [place]
    path = files[strokes[0][2] % len(files)]
    whole = path.read_bytes()
    tried(path, damaged(whole, strokes) if anywhere else structured(whole, strokes), read)
    assert sorted(p for p in place.iterdir() if p.is_file()) == files if place.is_dir() else path.is_file()


def test_files_of_maps_with_other_labels(tmp_path: Path) -> None:
    path, read = stored_maps(tmp_path)
    labels = path.with_name("labels.json")
    for content in (
        "[]",
        "{",
        '{"a": {"encoder": 3}}',
        '{"a": {"encoder": {"queries": ["x"], "keys": 4}}}',
    ):
        labels.write_text(content)
        assert isinstance(told(read), InputError)


RECIPES = {name: packaged(name) for name in recipe_names()}


@fuzzing(60)
@given(st.sampled_from(sorted(RECIPES)), blows(least=1))
def test_recipes_of_other_types(name: str, strokes: Any) -> None:
    content = edited(tomllib.loads(RECIPES[name].read_text()), strokes)  # type: ignore[union-attr]
    if "\\ud8" in json.dumps(content, default=str):  # half a character, which TOML cannot hold
        return

    def read() -> object:
        with read_errors(name, "is no recipe", "Look at it.", OptionError):
            recipe = _parsed(name, content)
        for step in recipe.at("small").steps:
            step.filled(dict.fromkeys((own.name for own in recipe.steps), "x"))
        judged = [Claim.of(claim).judged(Path("nowhere")) for claim in recipe.claims]
        return [*judged, *(ComparedTable.of(table).compared(Path("nowhere")) for table in recipe.at("small").tables)]

    told(read)


@fuzzing(30)
@given(st.sampled_from(sorted(RECIPES)), blows(least=1))
def test_damaged_recipes(tmp_path_factory: Any, name: str, strokes: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "own.toml"
    path.write_bytes(damaged(RECIPES[name].read_bytes(), strokes))  # type: ignore[union-attr]
    assert told(lambda: read_recipe(str(path)))


TOML = b'limit = 20\ncorpus = "demo"\nfigures = false\n[classify]\nrelations = ["nsubj", "obj"]\nmargin = "0.1"\n'
RECORD = {
    "command": "classify",
    "status": "finished",
    "arguments": {
        "models": ["demo"],
        "corpus": "demo",
        "limit": 5,
        "relations": ["nsubj"],
        "figures": False,
        "seed": 1,
    },
}


def planned(path: Path) -> Any:
    """What the command line makes of a file of options; errors of Typer are refusals, too."""
    try:
        return GROUP.main(["classify", "--config", str(path), "--dry-run"], standalone_mode=False)
    except InputError:
        raise
    except Exception as error:
        if getattr(error, "exit_code", 1) != 2:
            raise
    return None


@fuzzing(40)
@given(blows(least=1))
def test_damaged_files_of_options(tmp_path_factory: Any, strokes: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "show_plan", lambda *_: None)
        folder = tmp_path_factory.getbasetemp()
        for name, content in (("c.toml", damaged(TOML, strokes)), ("run.json", damaged_json(RECORD, strokes))):
            (folder / name).write_bytes(content)
            told(lambda path=folder / name: planned(path))

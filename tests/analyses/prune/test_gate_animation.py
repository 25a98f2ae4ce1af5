from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_gates import Made, gate_tables
from made_runs import HOSTILE
from matplotlib.colors import to_hex
from PIL import Image
from tiers import rest_slow

from headlens.analyses.prune.gate_figures import GATES, MOST_FRAMES, gate_films
from headlens.plots.export import Animation, write_animation

SMALL = Made(shapes={"encoder": (2, 2)}, penalties=(0.01, 0.1), steps=(0, 5, 10, 15), least=0.2)


def films(gates: pd.DataFrame) -> dict[str, Animation]:
    return {name: film for name, film in gate_films(gates) if film is not None}


def test_every_run_has_a_film_with_all_updates(tmp_path: Path) -> None:
    gates = gate_tables(SMALL)["gates"]
    found = films(gates)
    assert list(found) == ["closing_1", "closing_2"]
    path = write_animation(found["closing_2"], tmp_path / "film.gif")
    with Image.open(path) as image:
        assert image.n_frames == 4
        assert image.info["loop"] == 0
        sizes = []
        for number in range(4):
            image.seek(number)
            image.load()
            sizes.append((image.size, image.info["duration"]))
    # the last one halts
    assert len({size for size, _ in sizes}) == 1
    assert [lasting for _, lasting in sizes[:3]] == [250] * 3
    assert sizes[3][1] > 2000


def test_a_frame_shows_its_update() -> None:
    gates = gate_tables(SMALL)["gates"]
    film = films(gates)["closing_2"]
    axes = next(axes for axes in film.figure.axes if axes.get_xlabel() == "head")
    for number in (3, 0, 2, 1):
        film.draw(number)
        film.figure.canvas.draw()
        own = gates[(gates["penalty"] == 0.1) & (gates["step"] == 5 * number)].sort_values(["layer", "head"])
        words = f"step {5 * number}: {(own['gate'] > 0).sum()} of 4 heads open"
        assert film.figure.texts[0].get_text() == f"Gates of opus-mt-en-de, λ = 0.1\n{words}"
        (mesh,) = axes.collections
        mesh.update_scalarmappable()
        expected = [to_hex(GATES.mappable.to_rgba(gate)) for gate in own["gate"]]
        assert [to_hex(colour) for colour in mesh.get_facecolor()] == expected


def test_frames_hold_what_was_drawn(tmp_path: Path) -> None:
    """White cells become more from frame to frame, so the pictures become brighter."""
    gates = gate_tables(SMALL)["gates"]
    gates["gate"] = np.where(gates["head"] * 5 >= gates["step"], 1.0, 0.0)
    path = write_animation(films(gates)["closing_1"], tmp_path / "film.gif")
    with Image.open(path) as image:
        brightness = []
        for number in range(image.n_frames):
            image.seek(number)
            brightness.append(np.asarray(image.convert("L"), float).mean())
    assert brightness[0] < brightness[2]
    assert brightness == sorted(brightness)


@pytest.mark.slow
def test_the_same_table_gives_the_same_bytes(tmp_path: Path) -> None:
    gates = gate_tables(Made(shapes={"encoder": (2, 2)}, penalties=(0.01, 0.1), steps=(0, 5), least=0.2))["gates"]
    written = [write_animation(films(gates)["closing_1"], tmp_path / f"{n}.gif").read_bytes() for n in "ab"]
    assert written[0] == written[1]


def test_long_trainings_keep_their_ends() -> None:
    steps = tuple(range(0, 100_001, 500))
    made = Made(shapes={"encoder": (1, 2)}, penalties=(0.1,), steps=steps)
    (film,) = films(gate_tables(made)["gates"]).values()
    assert film.frames == MOST_FRAMES
    words = []
    for number in (0, film.frames - 1):
        film.draw(number)
        words.append(film.figure.texts[0].get_text().split("\n")[-1].split(":")[0])
    assert words == ["step 0", "step 100,000"]


def test_stacks_stand_side_by_side_and_a_single_run_needs_no_number() -> None:
    (name,) = found = films(gate_tables(Made(penalties=(0.1,), steps=(0, 1)))["gates"])
    assert name == "closing"
    titles = [axes.get_title(loc="left") for axes in found[name].figure.axes if axes.get_xlabel() == "head"]
    assert titles == ["encoder", "decoder", "cross"]


@pytest.mark.parametrize("words", rest_slow([*HOSTILE, "long name " * 20]))
def test_any_name_can_be_drawn(tmp_path: Path, words: str) -> None:
    gates = gate_tables(SMALL)["gates"].assign(model=words, run=words, penalty=np.nan)
    (film,) = films(gates.drop_duplicates(["step", "layer", "head"])).values()
    for number in range(2):
        film.draw(number)
        film.figure.canvas.draw()
        box = film.figure.texts[0].get_window_extent()
        assert box.x1 <= film.figure.bbox.x1
        assert box.y0 >= max(axes.get_tightbbox().y1 for axes in film.figure.axes) - 1
        assert "step" in film.figure.texts[0].get_text()


def test_a_run_without_numbers_has_no_film() -> None:
    gates = gate_tables(SMALL)["gates"]
    gates.loc[gates["penalty"] == 0.1, "gate"] = np.nan
    assert [(name, film is None) for name, film in gate_films(gates)] == [("closing_1", False), ("closing_2", True)]
    assert list(gate_films(gates.iloc[:0])) == []

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from headlens.analyses.report.page import picture
from headlens.plots.export import write_figure


@pytest.fixture
def png(tmp_path: Path) -> Path:
    return write_figure(Figure(figsize=(7, 2)), tmp_path / "figure")[0]


def test_a_picture_is_its_file_and_has_its_shape(png: Path) -> None:
    found = picture(png, "name", "run")
    assert found is not None
    assert (found.name, found.run) == ("name", "run")
    head, _, data = found.uri.partition(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(data) == png.read_bytes()
    assert (found.width, found.height) == (798, 228)


@pytest.mark.parametrize("part", [slice(0, 0), slice(0, 20), slice(0, -1), slice(1, None)])
def test_what_is_no_whole_png_is_no_picture(png: Path, part: slice) -> None:
    png.write_bytes(png.read_bytes()[part])
    assert picture(png, "name", "run") is None


def test_a_page_is_no_picture(png: Path) -> None:
    png.write_text("<svg onload='alert(1)'></svg>")
    assert picture(png, "name", "run") is None

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from headlens.analyses.report.page import picture
from headlens.plots.export import write_figure


@pytest.fixture
def png(tmp_path: Path) -> Path:
    return write_figure(Figure(figsize=(7, 2)), tmp_path / "figure")[0]


def test_a_picture_has_the_pixels_and_the_shape_of_its_file(png: Path) -> None:
    with Image.open(png) as image:
        Image.effect_noise(image.size, 80).save(png)
    found = picture(png, "name", "run")
    assert found is not None
    assert (found.name, found.run) == ("name", "run")
    head, _, data = found.uri.partition(",")
    assert head == "data:image/webp;base64"
    with Image.open(png) as drawn, Image.open(io.BytesIO(base64.b64decode(data))) as embedded:
        np.testing.assert_array_equal(embedded.convert("RGBA"), drawn.convert("RGBA"))
    assert (found.width, found.height) == (798, 228)


def test_a_picture_too_long_for_webp_stays_what_it_is(tmp_path: Path) -> None:
    Image.new("L", (1, 16_384)).save(tmp_path / "long.png")
    found = picture(tmp_path / "long.png", "name", "run")
    assert found is not None
    assert found.uri == "data:image/png;base64," + base64.b64encode((tmp_path / "long.png").read_bytes()).decode()


def test_a_picture_that_claims_to_be_huge_is_not_decoded(png: Path) -> None:
    data = bytearray(png.read_bytes())
    data[16:24] = (60_000).to_bytes(4, "big") * 2
    png.write_bytes(data)
    assert picture(png, "name", "run") is None


@pytest.mark.parametrize("part", [slice(0, 0), slice(0, 20), slice(0, -1), slice(1, None)])
def test_what_is_no_whole_png_is_no_picture(png: Path, part: slice) -> None:
    png.write_bytes(png.read_bytes()[part])
    assert picture(png, "name", "run") is None


def test_a_page_is_no_picture(png: Path) -> None:
    png.write_text("<svg onload='alert(1)'></svg>")
    assert picture(png, "name", "run") is None

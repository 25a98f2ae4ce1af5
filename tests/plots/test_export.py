import concurrent.futures
import pickle
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image
from tiers import rest_slow

from headlens.analyses.classify.metric_declarations import registered_declarations
from headlens.errors import OptionError, OutputError
from headlens.plots.export import write_figure
from headlens.plots.style import new_figure


def simple() -> Figure:
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([0, 1], clip_on=True)
    return figure


@pytest.mark.usefixtures("printed_resolution")
def test_png_has_200_dpi(tmp_path: Path) -> None:
    png, svg = write_figure(simple(), tmp_path / "figures" / "a.b")
    assert (png.name, svg.name) == ("a.b.png", "a.b.svg")
    with Image.open(png) as image:
        assert image.size == (400, 200)


@pytest.mark.usefixtures("laid_out")
def test_the_same_table_gives_the_same_bytes(tmp_path: Path, make_heads: Callable[..., pd.DataFrame]) -> None:
    contents = []
    entropy = next(d for d in registered_declarations() if d.name == "entropy")
    for name in "ab":
        figure = entropy.figure(make_heads(shapes={"encoder": [2]}))
        contents.append([path.read_bytes() for path in write_figure(figure, tmp_path / name)])
    assert contents[0] == contents[1]
    assert b"<dc:date>" not in contents[0][1]


def test_a_pdf_has_letters_and_the_same_bytes(tmp_path: Path) -> None:
    first, second = (write_figure(with_words(), tmp_path / name, ("pdf",)) for name in "ab")
    assert [path.name for path in first] == ["a.pdf"]
    content = first[0].read_bytes()
    assert content == second[0].read_bytes()
    assert b"/TrueType" in content or b"/CIDFontType2" in content
    assert b"/Type3" not in content


@pytest.mark.parametrize("ending", rest_slow(["pdf", "ps", "eps"]))
@pytest.mark.parametrize("user", [3, 42])
def test_a_figure_that_a_user_writes_has_true_type_letters(ending: str, user: int, tmp_path: Path) -> None:
    """And the settings of matplotlib stay the user's, for figures of others, too."""
    figure, settings = new_figure(2, 1), {"pdf.fonttype": user, "ps.fonttype": user}
    figure.subplots().set_title("Words")
    with mpl.rc_context(settings):  # type: ignore[arg-type]
        figure.savefig(tmp_path / f"a.{ending}")
        pickle.loads(pickle.dumps(figure)).savefig(tmp_path / f"b.{ending}")
        with_words().savefig(tmp_path / f"other.{ending}")
        assert [mpl.rcParams[name] for name in settings] == [user, user]
    contents = [(tmp_path / f"{name}.{ending}").read_bytes() for name in ("a", "b", "other")]
    type_3 = [b"/Type3" in content or b"/FontType 3" in content for content in contents]
    assert type_3 == [False, False, user == 3]


def with_words() -> Figure:
    figure = simple()
    figure.axes[0].set_title("Words")
    return figure


@pytest.mark.parametrize(("formats", "words"), [(("png", "eps"), "'eps' is not a format"), ((), "--format is empty")])
def test_formats_that_there_are_not(tmp_path: Path, formats: tuple[str, ...], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        write_figure(simple(), tmp_path / "a", formats)
    assert not list(tmp_path.iterdir())


def test_no_global_setting_changes_not_even_with_threads(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: write_figure(simple(), tmp_path / str(i)), range(8)))
    assert dict(mpl.rcParams) == before
    assert len({(tmp_path / f"{i}.svg").read_bytes() for i in range(8)}) == 1


def test_an_unwritable_place_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "figures").write_text("")
    with pytest.raises(OutputError, match=r"Cannot write .*a\.png"):
        write_figure(simple(), tmp_path / "figures" / "a")

"""Draws the pictures of the gallery again with the commands beside them: python docs/make_pictures.py [NAME ...].

All of them take about ten minutes of CPU time. Pictures of pages need Chromium and playwright, of the extra `dev`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

PICTURES = Path(__file__).resolve().parents[1] / ".github" / "readme"
SENTENCE = "The children who had lost their tricycles waited for the unbelievably slow bus."
# The command, and which of its figures it is.
FIGURES = {
    "functions": (["classify"], "functions"),
    "relevance": (["relevance"], "relevance"),
    "ablation": (["ablate"], "ablation"),
    "pruning": (["ablate", "--prune", "10,20,30,40,50", "--strategies", "ranked,importance,random"], "pruning"),
    "sparsefinder": (["sparsefinder"], "pareto"),
    # Without a GPU and a network, one step of it runs.
    "sparsebert": (["reproduce", "sparsebert2021"], "comparison_0"),
}


def headlens(*words: str, out: Path) -> None:
    """Runs a command into a folder."""
    subprocess.run([sys.executable, "-m", "headlens_cli", *words, "--out", str(out), "--quiet"], check=True)


@contextmanager
def opened(file: Path, height: int, scale: float) -> Iterator[Page]:
    """Opens a page in a window 1100 pixels wide; without Chromium the program ends with a message."""
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("Pictures of pages need Chromium.")
    with sync_playwright() as driver, driver.chromium.launch(executable_path=chromium) as browser:
        page = browser.new_page(viewport={"width": 1100, "height": height}, device_scale_factor=scale)
        page.goto(file.as_uri())
        yield page


def attention(folder: Path) -> None:
    """Draws the view of one sentence, with a word chosen in the head that finds what is possessed."""
    headlens("attend", SENTENCE, out=folder)
    with opened(folder / "attention.html", 798, 1.1) as page:
        page.get_by_role("button", name="Words", exact=True).click()
        page.locator("td[data-head='2 8']").click()
        page.locator("button", has_text="their").first.click()
        page.mouse.move(0, 0)
        page.screenshot(path=PICTURES / "attention.png")


def report(folder: Path) -> None:
    """Draws the grid of heads of a page, coloured by what relations add to offsets, with the card of one head."""
    headlens("classify", out=folder / "run")
    headlens("report", str(folder / "run"), out=folder / "page")
    with opened(folder / "page" / "report.html", 900, 1.3) as page:
        colours = page.locator("#heads select:visible").first
        colours.select_option(label="best relation, difference from the fixed offset")
        top = page.locator("h2", has_text="Heads").first.bounding_box()
        assert top is not None
        shown = {"x": 0.0, "y": top["y"] - 8, "width": 1100.0, "height": 820.0}
        page.screenshot(path=PICTURES / "report.png", full_page=True, clip=shown)


def main() -> None:
    """Draws the pictures that are named on the command line, or all of them."""
    names = sys.argv[1:] or [*FIGURES, "attention", "report"]
    for name in names:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "run"
            if name in FIGURES:
                words, figure = FIGURES[name]
                headlens(*words, out=folder)
                shutil.copy(folder / "figures" / f"{figure}.png", PICTURES / f"{name}.png")
            else:
                {"attention": attention, "report": report}[name](folder)


if __name__ == "__main__":
    main()

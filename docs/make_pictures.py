"""Draws the pictures of the gallery again with the commands beside them: python docs/make_pictures.py [NAME ...].

All of them take about half an hour of CPU time. Pictures of pages need Chromium and playwright, of the extra `dev`.
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

import pandas as pd

from headlens.plots import style

if TYPE_CHECKING:
    from playwright.sync_api import Page

PICTURES = Path(__file__).resolve().parents[1] / ".github" / "readme"
SENTENCE = "The children who had lost their tricycles waited for the unbelievably slow bus."
# The command, and which of the pictures in its folder it is.
FIGURES = {
    "functions": (["classify"], "figures/functions"),
    "relevance": (["relevance"], "figures/relevance"),
    "ablation": (["ablate"], "figures/ablation"),
    "pruning": (["ablate", "--prune", "10,20,30,40,50", "--strategies", "ranked,importance,random"], "figures/pruning"),
    "sparsefinder": (["sparsefinder", "--thorough"], "figures/pareto"),
    # Without a GPU and a network, one step of it runs.
    "sparsebert": (["reproduce", "sparsebert2021"], "figures/comparison_0"),
    "breaking_bert": (["reproduce", "breaking_bert2022", "--scale", "small"], "paraphrases-graphs/figures/layers"),
    "sparsefinder_small": (["reproduce", "sparsefinder2022", "--scale", "small"], "masked/figures/pareto"),
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
    """Draws the view of one sentence, with a word chosen in the head that finds what is possessed; then its scores."""
    headlens("attend", SENTENCE, out=folder)
    with opened(folder / "attention.html", 798, 1.1) as page:
        page.get_by_role("button", name="Words", exact=True).click()
        page.locator("td[data-head='2 8']").click()
        page.locator("button", has_text="their").first.click()
        page.mouse.move(0, 0)
        page.screenshot(path=PICTURES / "attention.png")
        page.get_by_role("button", name="Query × keys").click()
        page.locator("button", has_text="their").first.click()
        page.mouse.move(0, 0)
        shown = page.locator(".alone > :last-child").bounding_box()
        assert shown is not None
        page.screenshot(path=PICTURES / "attention_scores.png", full_page=True, clip=shown)


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


def voita(folder: Path) -> None:
    """Draws the best head of each relation beside the offset, as the paper prints both and as the small scale has them.

    Every setting has axes of its own, since their levels cannot be compared.
    """
    headlens("reproduce", "voita2019", "--scale", "small", out=folder)
    cells = pd.read_csv(folder / "comparison.csv")
    columns = ["published", "ours", "ci_low", "ci_high"]
    cells[columns] = cells[columns].apply(pd.to_numeric, errors="coerce")
    settings = {
        "Table 1, WMT": "paper: WMT",
        "Table 1, OpenSubtitles": "paper: OpenSubtitles",
        "Stand-in: the best head": "headlens: MiniLM",
    }
    figure = style.constrained_figure(
        style.FULL_WIDTH, 2.6, "voita2019: accuracy of the best head for each relation, per cent"
    )
    panels = figure.subplots(1, len(settings), sharey=True, sharex=True)
    for axes, (title, name) in zip(panels, settings.items(), strict=True):
        rows = cells[cells["table"].str.startswith(title)]
        numbers = rows.assign(number=rows["published"].fillna(rows["ours"])).set_index(["column", "row"])
        baseline, best = numbers.loc["baseline"], numbers.loc["best head"]
        places = range(len(best))
        axes.hlines(places, baseline["number"], best["number"], color=style.NO_ROLE, linewidth=4)
        axes.hlines(places, best["ci_low"], best["ci_high"], color=style.BLUE, linewidth=1.2)
        axes.scatter(
            baseline["number"], places, s=26, marker="|", color=style.INK, zorder=3, label="most frequent offset"
        )
        axes.scatter(
            best["number"], places, s=16, color=style.BLUE, zorder=3, label="best head; of headlens with 95 % interval"
        )
        style.dress(axes)
        style.heading(axes, name, style.FULL_WIDTH / 4)
    panels[0].set_yticks(places, best.index)
    panels[0].invert_yaxis()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", ncols=2, **style.legend_looks())
    figure.savefig(PICTURES / "voita.png", dpi=150)


def main() -> None:
    """Draws the pictures that are named on the command line, or all of them."""
    others = {"attention": attention, "report": report, "voita": voita}
    names = sys.argv[1:] or [*FIGURES, *others]
    for name in names:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "run"
            if name in FIGURES:
                words, figure = FIGURES[name]
                headlens(*words, out=folder)
                shutil.copy(folder / f"{figure}.png", PICTURES / f"{name}.png")
            else:
                others[name](folder)


if __name__ == "__main__":
    main()

"""The page as a reader has it: opened from a file in Chromium, without a network."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_gates import Made, write_prune
from made_runs import (
    HOSTILE,
    ablation_tables,
    change_record,
    classify_tables,
    write_ablation,
    write_classification,
    write_hostile,
    write_other,
    write_relevance,
)
from matplotlib import colormaps
from open_page import OpenPage
from tiers import rest_slow

from headlens.analyses.report.options import ReportRequest
from headlens.analyses.report.recipe import run_report
from headlens.files import read_csv, write_csv
from headlens.maps.stored_maps import write_maps
from headlens.pages.head_cards import SentenceMap
from headlens.pages.self_contained import visible
from headlens.runs.folder import RunFolder
from headlens.shared_options import OutputOptions

pytestmark = pytest.mark.slow
CALM = "() => document.querySelectorAll('details').forEach((d) => (d.open = true))"


class Opened(OpenPage):
    """The page of a report."""

    def column(self, table: str, name: str) -> list[str]:
        """The visible cells of a column, from top to bottom."""
        return self.page.evaluate(
            """([title, name]) => {
                const all = [...document.querySelectorAll("details")];
                const own = all.find((d) => d.querySelector("summary h3").textContent === title);
                const heads = [...own.querySelectorAll("th button")].map((b) => b.textContent);
                const rows = [...own.querySelectorAll("tbody tr")].filter((row) => row.offsetHeight > 0);
                return rows.map((row) => row.cells[heads.indexOf(name)].textContent);
            }""",
            [table, name],
        )

    def button(self, table: str, name: str) -> Any:
        """The heading of a column, which sorts."""
        return self.page.evaluate_handle(
            """([title, name]) => {
                const all = [...document.querySelectorAll("details")];
                const own = all.find((d) => d.querySelector("summary h3").textContent === title);
                return [...own.querySelectorAll("th button")].find((b) => b.textContent === name);
            }""",
            [table, name],
        ).as_element()

    def order(self, table: str, name: str) -> str:
        """What a column says about its order to those who do not see the arrow."""
        return self.button(table, name).evaluate("(b) => b.closest('th').getAttribute('aria-sort')")


@pytest.fixture
def visit(new_context: Callable[..., Any]) -> Callable[..., Opened]:
    def opened(file: Path, **how: object) -> Opened:
        found = Opened.at(file.as_uri(), new_context(**how))
        found.page.evaluate(CALM)
        return found

    return opened


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_classification(tmp_path_factory.mktemp("page") / "run")
    return run_report(ReportRequest((folder,))).page


def test_nothing_is_asked_for_and_every_picture_is_there(visit: Callable[..., Opened], report: Path) -> None:
    found = visit(report)
    widths = found.page.evaluate("() => [...document.images].map((i) => i.naturalWidth)")
    assert len(widths) == 14
    assert all(width > 60 for width in widths)  # an inch and a half, in the few pixels that tests draw
    assert [url for url in found.requests if not url.startswith("data:image/webp")] == [report.as_uri()]
    assert found.troubles == []


def test_a_click_sorts_by_number_and_a_second_one_the_other_way_round(
    visit: Callable[..., Opened], report: Path
) -> None:
    found = visit(report)
    written = classify_tables()["heads"]["confidence"]
    unsorted = found.column("heads.csv", "confidence")
    assert unsorted == [f"{v:.3f}" for v in written]
    found.button("heads.csv", "confidence").click()
    assert found.column("heads.csv", "confidence") == [f"{v:.3f}" for v in sorted(written)]
    assert found.order("heads.csv", "confidence") == "ascending"
    found.button("heads.csv", "confidence").click()
    assert found.column("heads.csv", "confidence") == [f"{v:.3f}" for v in sorted(written, reverse=True)]
    assert found.order("heads.csv", "confidence") == "descending"
    # rows stay whole
    pairs = zip(found.column("heads.csv", "layer"), found.column("heads.csv", "confidence"), strict=True)
    frame = classify_tables()["heads"]
    assert set(pairs) == {(str(r.layer), f"{r.confidence:.3f}") for r in frame.itertuples()}
    assert found.troubles == []


def test_numbers_are_no_words_and_tails_stand_at_the_ends(visit: Callable[..., Opened], report: Path) -> None:
    found = visit(report)
    found.button("positions.csv", "offset").click()
    shown = found.column("positions.csv", "offset")
    expected = ["<-8", *map(str, range(-8, 9)), ">8"]
    assert list(dict.fromkeys(shown)) == expected
    found.button("positions.csv", "offset").click()
    assert list(dict.fromkeys(found.column("positions.csv", "offset"))) == expected[::-1]
    found.button("syntax.csv", "n").click()
    assert list(dict.fromkeys(found.column("syntax.csv", "n"))) == ["12", "812"]


def test_empty_cells_are_last_both_ways_and_words_are_sorted_too(visit: Callable[..., Opened], report: Path) -> None:
    found = visit(report)
    for expected in (
        ["positional(-1)", "rare", "syntactic(nsubj dep->head)"],
        ["syntactic(nsubj dep->head)", "rare", "positional(-1)"],
    ):
        found.button("heads.csv", "role").click()
        assert found.column("heads.csv", "role") == [*expected, "", "", ""]
    # equal cells keep the order they had
    assert [int(c) for c in found.column("heads.csv", "layer")[3:]] == sorted(
        int(c) for c in found.column("heads.csv", "layer")[3:]
    )


def test_the_keyboard_sorts_and_one_column_at_a_time(visit: Callable[..., Opened], report: Path) -> None:
    found = visit(report)
    found.button("heads.csv", "head").focus()
    found.page.keyboard.press("Enter")
    assert found.column("heads.csv", "head") == ["0", "0", "1", "1", "2", "2"]
    found.page.keyboard.press("Tab")
    found.page.keyboard.press("Space")
    assert found.order("heads.csv", "head") == "none"
    assert found.order("heads.csv", "confidence") == "ascending"


def test_the_filter_hides_rows_and_counts(visit: Callable[..., Opened], report: Path) -> None:
    found = visit(report)
    own = found.page.locator("details", has=found.page.get_by_role("heading", name="syntax.csv", exact=True))
    own.get_by_role("searchbox").fill("NSUBJ dep->head")
    assert set(found.column("syntax.csv", "relation")) == {"nsubj"}
    assert set(found.column("syntax.csv", "direction")) == {"dep->head"}
    assert own.locator("output").text_content() == "6 of 24 rows"
    own.get_by_role("searchbox").fill("")
    assert len(found.column("syntax.csv", "relation")) == 24


@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_does_not_scroll_sideways(visit: Callable[..., Opened], report: Path, width: int) -> None:
    found = visit(report, viewport={"width": width, "height": 800})
    assert found.page.evaluate("() => document.documentElement.scrollWidth") == width


def test_text_can_be_read_by_day_and_by_night(visit: Callable[..., Opened], report: Path) -> None:
    grounds = {}
    for scheme in ("light", "dark"):
        found = visit(report, color_scheme=scheme)
        colours = found.page.evaluate(
            "() => ['backgroundColor', 'color'].map((n) => getComputedStyle(document.body)[n])"
        )
        ground, ink = ([int(v) for v in c.removeprefix("rgb(").removesuffix(")").split(",")] for c in colours)
        grounds[scheme] = ground
        assert abs(sum(ground) - sum(ink)) > 450
        plate = "() => getComputedStyle(document.images[0].parentElement)"
        assert found.page.evaluate(f"{plate}.backgroundColor") == "rgb(255, 255, 255)"
        assert found.page.evaluate(f"{plate}.filter") == ("none" if scheme == "light" else "brightness(0.8)")
    assert sum(grounds["dark"]) < 150 < sum(grounds["light"])


def test_paper_is_white_and_shows_whole_tables(visit: Callable[..., Opened], report: Path) -> None:
    found = visit(report, color_scheme="dark")
    found.page.emulate_media(media="print")
    assert found.page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    heights = found.page.evaluate(
        "() => [...document.querySelectorAll('.scroll')].map((s) => [s.clientHeight, s.scrollHeight])"
    )
    assert all(whole <= own + 1 for own, whole in heights)


def assert_harmless(found: Opened) -> None:
    assert found.troubles == []
    assert found.page.evaluate("() => [...document.scripts].filter((s) => s.id !== 'heads-data').length") == 1
    assert found.page.evaluate("() => document.querySelectorAll('#heads-data').length") <= 1
    inside = "script:not(#heads-data), iframe, object, embed, link, base, form, style"
    assert found.page.evaluate(f"() => document.body.querySelectorAll({inside!r}).length") == 1
    assert found.page.evaluate("() => [...document.images].every((i) => i.naturalWidth > 0)")
    assert not [url for url in found.requests if not url.startswith(("data:image/webp", "file:"))]


@pytest.mark.parametrize("words", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_words_stay_words(visit: Callable[..., Opened], tmp_path: Path, words: str) -> None:
    first = write_hostile(tmp_path / "first", words)
    change_record(first, {"command": words})  # an unknown command has nothing drawn, and its tables shown
    name = "".join(c for c in words if c not in "/\0") + "x"
    second = write_other(tmp_path / "second", name, notes=[words], model_name=words)
    found = visit(run_report(ReportRequest((first, second), OutputOptions(tmp_path / "out"))).page)
    assert_harmless(found)
    shown = visible(words)
    assert shown in found.page.evaluate("() => [...document.querySelectorAll('td')].map((c) => c.textContent)")
    assert any(shown in t for t in found.page.locator("aside.notes li").all_text_contents())
    assert found.page.evaluate("() => document.images[0].alt").startswith(visible(name).replace("_", " "))
    # sorting by a column whose name is hostile works like any other
    found.button("heads.csv of first", shown).click()
    assert found.order("heads.csv of first", shown) == "ascending"
    assert found.troubles == []


def test_hostile_words_in_everything_that_is_drawn(visit: Callable[..., Opened], tmp_path: Path) -> None:
    run = write_hostile(tmp_path / "run", "".join(HOSTILE))
    found = visit(run_report(ReportRequest((run,))).page)
    assert_harmless(found)
    assert found.page.evaluate("() => document.images.length") == 14
    assert visible("".join(HOSTILE)) in found.page.title()


@pytest.fixture(scope="module")
def ablations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ablations")
    runs = (write_ablation(folder / "bert"), write_ablation(folder / "albert", seed=1))
    return run_report(ReportRequest(runs, OutputOptions(folder / "both"))).page


def test_two_ablations_on_one_page(visit: Callable[..., Opened], ablations: Path) -> None:
    found = visit(ablations)
    widths = found.page.evaluate("() => [...document.images].map((i) => i.naturalWidth)")
    assert len(widths) == 6
    assert all(width > 60 for width in widths)  # an inch and a half, in the few pixels that tests draw
    table = "Largest losses without a head"
    every = [ablation_tables(seed=n)["ablation"] for n in (0, 1)]
    # heads without which the model is no worse are not listed
    first, second = (own[(own["mode"] == "zero") & (own["delta"] < 0)]["delta"] for own in every)
    assert len(first) > 1 < len(second)
    assert found.column(table, "run") == ["bert"] * len(first) + ["albert"] * len(second)
    assert [found.column(table, "head")[n] for n in (0, len(first))] == ["encoder.0.1"] * 2
    assert found.column(table, "significant") == [
        *["yes"],
        *["no"] * (len(first) - 1),
        *["yes"],
        *["no"] * (len(second) - 1),
    ]
    found.button(table, "change").click()
    expected = pd.concat([first, second]).sort_values()
    assert found.column(table, "change") == [f"{v + 0.0:.3f}" for v in expected]
    found.button("Pruned models", "value").click()
    assert found.column("Pruned models", "strategy")[-2:] == ["none", "none"]
    strategies = found.column("Pruned models", "strategy")
    assert strategies.count("random, mean of 2") == strategies.count("ranked") == 4
    ranges = [text.startswith("range ") for text in found.column("Pruned models", "95 % CI")]
    assert ranges == [name.startswith("random") for name in strategies]
    assert found.troubles == []


@pytest.mark.parametrize("width", [360, 1280])
def test_it_does_not_scroll_sideways_either(visit: Callable[..., Opened], ablations: Path, width: int) -> None:
    found = visit(ablations, viewport={"width": width, "height": 800})
    assert found.page.evaluate("() => document.documentElement.scrollWidth") == width


def test_hostile_words_in_an_ablation(visit: Callable[..., Opened], tmp_path: Path) -> None:
    words = "".join(HOSTILE)
    run = write_ablation(tmp_path / "run", words, metric=words, modes=(words, "keep-only"))
    found = visit(run_report(ReportRequest((run,))).page)
    assert_harmless(found)
    assert found.page.evaluate("() => document.images.length") == 3
    own = found.page.locator("details", has=found.page.get_by_role("heading", name="Pruned models", exact=True))
    same = dict(zip(*(own.locator(f".same {tag}").all_text_contents() for tag in ("b", "bdi")), strict=True))
    assert same["metric"] == visible(words)


class Heads:
    """The part of a page about single heads."""

    def __init__(self, found: Opened) -> None:
        self.found, self.page = found, found.page

    def cell(self, head: str) -> Any:
        """A cell by its head, `encoder.0.1`."""
        return self.page.locator(f'td[data-head="{head.replace(".", " ")}"]')

    def options(self, box: str) -> list[str]:
        """What can be chosen."""
        return self.page.locator(f"#heads-{box} option").all_text_contents()

    def choose(self, box: str, label: str) -> None:
        """Choose it."""
        self.page.select_option(f"#heads-{box}", label=label)

    @property
    def card(self) -> str:
        """What is shown of a head."""
        return self.page.locator("#heads-card").inner_text()

    def number(self, name: str) -> list[str]:
        """The cells of a row of the card."""
        title = self.page.get_by_role("rowheader", name=name, exact=True)
        return self.page.locator("#heads-card tr", has=title).locator("td").all_text_contents()


def two(value: float) -> str:
    return f"{value:.2f}".replace("0.", ".", 1)


def test_the_grid_is_coloured_by_any_metric(visit: Callable[..., Opened], report: Path) -> None:
    heads = Heads(visit(report))
    assert heads.options("series")[:3] == ["role", "confidence", "confidence with separators"]
    assert heads.cell("encoder.0.0").text_content() == "−1"
    assert heads.cell("encoder.0.1").text_content() == "nsubj↑"
    assert "syntactic" in heads.page.locator(".legend").inner_text()
    heads.choose("series", "confidence")
    frame = classify_tables()["heads"]
    for row in frame.to_dict("records"):
        assert heads.cell(f"encoder.{row['layer']}.{row['head']}").text_content() == two(row["confidence"])
    best = frame.loc[frame["confidence"].idxmax()]
    colour = heads.cell(f"encoder.{best['layer']}.{best['head']}").evaluate(
        "(c) => getComputedStyle(c).backgroundColor"
    )
    # Shares have the scale of the figure, from 0 to 1, whatever the largest of the run is.
    expected = [255 * c for c in colormaps["viridis"](best["confidence"])[:3]]
    assert list(map(int, re.findall(r"\d+", colour))) == pytest.approx(expected, abs=3)
    assert heads.page.locator("#heads .legend").inner_text().split() == ["0.000", "1.000"]
    assert heads.found.troubles == []
    assert all(url.startswith("data:") for url in heads.found.requests[1:])


def test_a_card_of_the_head_that_is_pointed_at_or_chosen(visit: Callable[..., Opened], report: Path) -> None:
    heads = Heads(visit(report))
    heads.cell("encoder.0.1").hover()
    told = "nsubj ↑ 80.0 % [79.0, 81.0] of 812 cases, a fixed offset 40.0 %"
    for part in ("encoder.0.1", "syntactic(nsubj dep->head)", told):
        assert part in heads.card
    heads.cell("encoder.1.2").click()
    heads.page.locator("#heads h2").hover()
    assert heads.card.startswith("encoder.1.2")
    bars = heads.page.locator("#heads-card svg.bars")
    assert bars.locator("rect").count() == 19
    assert "Position of the most attended token, special tokens left out" in (bars.get_attribute("aria-label") or "")
    row = classify_tables()["heads"].iloc[5]
    assert heads.number("confidence")[0] == f"{100 * row['confidence']:.1f} % of weight on one token"
    assert heads.number("points at the rarest word")[-1] == "chance level 8.0 %", "what a share is compared with"
    offset = f"{row['positional_offset']:+.0f}".replace("-", "−")
    assert (
        heads.number("most frequent non-zero offset")[0]
        == f"{offset} in {100 * row['positional_share']:.1f} % of tokens"
    )


def test_the_head_that_was_found_first_is_shown_at_first(visit: Callable[..., Opened], report: Path) -> None:
    heads = Heads(visit(report))
    finding = heads.page.locator("#findings li").first.inner_text()
    assert "encoder.0.1 finds the" in finding
    assert heads.card.startswith("encoder.0.1")
    assert heads.page.locator("td.chosen").get_attribute("data-head") == "encoder 0 1"
    heads.cell("encoder.0.0").hover()
    heads.page.locator("#heads h2").hover()
    assert heads.card.startswith("encoder.0.1")


def test_without_findings_the_head_with_the_largest_number_is(visit: Callable[..., Opened], tmp_path: Path) -> None:
    made = Made(shapes={"encoder": (2, 3)}, penalties=(0.1,), steps=(0, 5))
    heads = Heads(visit(run_report(ReportRequest((write_prune(tmp_path / "run", made),))).page))
    shown = heads.page.locator("td.chosen")
    values = [float(cell) for cell in heads.page.locator("td[data-head]").all_text_contents()]
    assert shown.count() == 1
    assert float(shown.text_content() or "") == max(values)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_all_heads_of_a_layer(visit: Callable[..., Opened], tmp_path: Path, scheme: str) -> None:
    rows = pd.concat([classify_tables()["heads"].assign(head=lambda r, n=n: r["head"] + 3 * n) for n in range(4)])
    run = write_classification(tmp_path / "run")
    write_csv(rows.assign(role="syntactic(nsubj:pass dep->head)"), run / "heads.csv")
    change_record(run, {"rows": None})
    found = visit(run_report(ReportRequest((run,))).page, viewport={"width": 390, "height": 844}, color_scheme=scheme)
    box = found.page.locator("#heads-grids .scroll")
    assert found.page.locator("#heads-grids tbody tr").first.locator("td").count() == 12
    assert box.evaluate("(b) => b.scrollWidth <= b.clientWidth")
    cut = "(cells) => cells.filter((c) => c.scrollWidth > c.clientWidth || c.scrollHeight > c.clientHeight).length"
    assert found.page.locator("#heads-grids td[data-head]").evaluate_all(cut) == 0


def test_edges_fade_where_there_is_more(visit: Callable[..., Opened], report: Path) -> None:
    found = visit(report, viewport={"width": 390, "height": 844})
    box = found.page.get_by_role("region", name="heads.csv", exact=True)
    assert box.evaluate("(b) => b.scrollWidth > b.clientWidth")
    marks = "(b) => ['left', 'right', 'below'].filter((side) => b.classList.contains(`more-${side}`))"
    wait = f"([box, sides]) => ({marks})(box).join() === sides.join()"
    found.page.wait_for_function(wait, arg=[box.element_handle(), ["right"]])
    assert "linear-gradient" in box.evaluate("(b) => getComputedStyle(b).maskImage")
    # the arrow keys scroll it
    box.focus()
    found.page.keyboard.press("ArrowRight")
    found.page.wait_for_function(wait, arg=[box.element_handle(), ["left", "right"]])
    box.evaluate("(b) => (b.scrollLeft = b.scrollWidth)")
    found.page.wait_for_function(wait, arg=[box.element_handle(), ["left"]])
    small = found.page.get_by_role("region", name="All that run.json records", exact=True)
    assert "below" in small.evaluate(marks)
    # a filter that leaves few rows leaves nothing below
    own = found.page.locator("details", has=small)
    own.get_by_role("searchbox").fill("no such fact")
    found.page.wait_for_function("(b) => !b.classList.contains('more-below')", arg=small.element_handle())


def test_heads_by_keyboard(visit: Callable[..., Opened], report: Path) -> None:
    heads = Heads(visit(report))
    heads.page.locator("#heads-series").focus()
    heads.page.keyboard.press("Tab")
    focused = "() => document.activeElement.dataset.head"
    while heads.page.evaluate(focused) is None:
        heads.page.keyboard.press("Tab")
    places = [heads.page.evaluate(focused)]
    for key in ("ArrowRight", "ArrowUp", "End", "PageDown", "Home", "ArrowLeft", "ArrowDown"):
        heads.page.keyboard.press(key)
        places.append(heads.page.evaluate(focused))
    first = places[0].split()
    assert first[0] == "encoder"
    assert places[-1] == "encoder 0 0"
    assert places[4] == "encoder 0 2"
    assert heads.page.locator("td[data-head][tabindex='0']").count() == 1
    label = heads.cell("encoder.0.0").get_attribute("aria-label")
    assert label == "encoder layer 0 head 0, role: positional −1"
    heads.page.keyboard.press("Enter")
    assert heads.page.evaluate("() => document.activeElement.id") == "heads-card"
    assert heads.page.locator("#heads-card").get_attribute("aria-label") == "Head encoder.0.0"
    heads.page.keyboard.press("Escape")
    assert heads.page.evaluate(focused) == "encoder 0 0"


def test_one_run_minus_another(visit: Callable[..., Opened], tmp_path: Path) -> None:
    runs = write_classification(tmp_path / "a"), write_classification(tmp_path / "b", seed=1)
    heads = Heads(visit(run_report(ReportRequest(runs, OutputOptions(tmp_path / "both"))).page))
    heads.choose("series", "entropy · b")
    assert heads.options("minus") == ["nothing", "a"]
    heads.choose("minus", "a")
    first, second = (classify_tables(seed=n)["heads"]["entropy_norm"] for n in (0, 1))
    shown = [heads.cell(f"encoder.{n // 3}.{n % 3}").text_content() for n in range(6)]
    assert shown == [two(v).replace("-0.", "-.") for v in second - first]
    heads.choose("series", "role · a")
    assert heads.options("minus") == ["nothing"]
    assert not heads.page.locator("#heads-minus").is_visible()


def test_a_pruned_model_beside_the_whole_one(visit: Callable[..., Opened], tmp_path: Path) -> None:
    runs = (
        write_classification(tmp_path / "a"),
        write_classification(tmp_path / "b", "small", 1, removed=[(0, 0), (1, 2)]),
    )
    heads = Heads(visit(run_report(ReportRequest(runs, OutputOptions(tmp_path / "both"))).page))
    chosen = heads.page.locator("#heads-model option:checked")
    assert chosen.text_content() == "small"
    gone, left = heads.cell("encoder.0.0"), heads.cell("encoder.0.1")
    assert [("removed" in (cell.get_attribute("class") or "")) for cell in (gone, left)] == [True, False]
    assert gone.get_attribute("aria-label") == "encoder layer 0 head 0, removed, role: positional −1"
    assert "removed (frame and text: value in demo)" in heads.page.locator("#heads-grids .legend").inner_text()
    gone.click()
    assert "Removed. Its values in demo:" in heads.card
    assert "positional(-1)" in heads.card
    left.click()
    assert "Removed" not in heads.card
    before, after = (classify_tables(seed=n)["heads"]["confidence"] for n in (0, 1))
    now, was = (f"{100 * values[1]:.1f} % of weight on one token" for values in (after, before))
    assert heads.number("confidence")[:3] == [now, "", was]
    heads.choose("series", "confidence")
    assert [gone.text_content(), left.text_content()] == [two(before[0]), two(after[1])]
    heads.choose("minus", "demo · a")
    assert [gone.text_content(), left.text_content()] == ["", two(after[1] - before[1]).replace("-0.", "-.")]
    heads.choose("minus", "nothing")
    heads.choose("model", "demo")
    assert "removed" not in heads.page.locator("#heads-grids").inner_html()
    assert heads.found.troubles == []


def test_maps_and_other_runs_of_the_model_are_on_its_card(visit: Callable[..., Opened], tmp_path: Path) -> None:
    folder = write_classification(tmp_path / "a")
    weights = np.full((2, 3, 2, 3), 0.25, np.float32)
    weights[1, 2, 0, 1] = 0.75
    other = SentenceMap("demo", "encoder", ["d"], ["d"], np.ones((2, 3, 1, 1), np.float32), "Another one.", sentence=1)
    with RunFolder.reopen(folder) as run:
        write_maps(run, [SentenceMap("demo", "encoder", ["a", "b"], ["a", "<b>", "c"], weights), other])
    runs = folder, write_ablation(tmp_path / "b"), write_relevance(tmp_path / "c")
    heads = Heads(visit(run_report(ReportRequest(runs, OutputOptions(tmp_path / "all"))).page))
    assert heads.options("model") == ["demo"]
    heads.cell("encoder.1.2").click()
    assert "Most: a → <b> 75 %" in heads.card
    assert heads.page.locator("svg.map rect").count() == 6
    sentences = heads.page.get_by_label("Sentence", exact=True).and_(heads.page.locator("#heads-card select"))
    assert sentences.locator("option").all_text_contents() == ["a b", "Another one."]
    sentences.select_option("Another one.")
    assert "Most: d → d 100 %" in heads.card
    # the next head shows the same sentence
    heads.cell("encoder.0.0").click()
    assert heads.page.locator("svg.map rect").count() == 1
    heads.cell("encoder.1.2").click()
    change = ablation_tables()["ablation"].query("mode == 'zero' and layer == 1 and head == 2")["delta"].item()
    assert f"{change:.3f}".replace("-", "−") in heads.card or f"{change:.3f}" in heads.card
    assert "relevance (taylor)" in heads.card
    assert heads.found.troubles == []


def test_tables_are_saved_as_they_are_shown(visit: Callable[..., Opened], report: Path, tmp_path: Path) -> None:
    found = visit(report, accept_downloads=True)
    own = found.page.locator("details", has=found.page.get_by_role("heading", name="syntax.csv", exact=True))
    own.get_by_role("searchbox").fill("nsubj dep->head")
    found.button("syntax.csv", "accuracy").click()
    with found.page.expect_download() as waiting:
        own.get_by_role("button", name="Save as CSV").click()
    assert waiting.value.suggested_filename == "syntax.csv"
    waiting.value.save_as(tmp_path / "saved.csv")
    saved = pd.read_csv(tmp_path / "saved.csv")
    written = classify_tables()["syntax"].query("relation == 'nsubj' and direction == 'dep->head'")
    written = written.sort_values("accuracy", kind="stable")
    assert saved["accuracy"].tolist() == written["accuracy"].tolist()
    assert saved["head"].tolist() == written["head"].tolist()
    # What stands above the table, since all of its rows have it, is saved and found, too.
    assert own.locator(".same b").first.text_content() == "model"
    assert saved["model"].tolist() == ["demo"] * len(saved)
    own.get_by_role("searchbox").fill("nsubj demo")
    assert own.locator("output").text_content() == "12 of 24 rows"
    assert found.troubles == []


@pytest.mark.parametrize("words", rest_slow(["=1+1", "-LRB-", "'@a"], 1))
def test_no_spreadsheet_runs_what_is_saved(visit: Callable[..., Opened], tmp_path: Path, words: str) -> None:
    run = write_hostile(tmp_path / "run", words)
    change_record(run, {"command": "other"})
    found = visit(run_report(ReportRequest((run,))).page, accept_downloads=True)
    own = found.page.locator("details", has=found.page.get_by_role("heading", name="heads.csv", exact=True))
    with found.page.expect_download() as waiting:
        own.get_by_role("button", name="Save as CSV").click()
    waiting.value.save_as(tmp_path / "saved.csv")
    assert f"'{words}" in (tmp_path / "saved.csv").read_text(encoding="utf-8")
    saved, written = read_csv(tmp_path / "saved.csv"), read_csv(run / "heads.csv")
    assert saved["model"].tolist() == written["model"].tolist() == [words] * len(saved)
    assert saved["positional_offset"].tolist() == [-1] * len(saved)
    assert found.troubles == []


def test_without_scripts_the_page_says_so(new_context: Callable[..., Any], report: Path) -> None:
    page = new_context(java_script_enabled=False).new_page()
    page.goto(report.as_uri())
    assert "needs JavaScript" in page.locator("#heads").inner_text()
    assert not page.locator("#heads-series").is_visible()

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest
from made_runs import HOSTILE, change_record, write_classification, write_hostile, write_other
from markupsafe import Markup
from tiers import rest_slow

from headlens.analyses.report.page import Picture, RunSection, render
from headlens.analyses.report.registry import reports
from headlens.pages.self_contained import visible
from headlens.runs.reading import read_recorded

VOID = {"meta", "img", "input", "line", "circle"}


class Elements(HTMLParser):
    """Elements of a page with their attributes, and the text of each, as a browser would read them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and data.strip():
            self.text.setdefault(self.open[-1], []).append(data)

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def shown(folder: Path, label: str = "run") -> RunSection:
    run = read_recorded(folder, label)
    picture = Picture("functions", run.label, "data:image/webp;base64,AAAA", 10, 10)
    return RunSection(run, [picture], [] if run.finished else ["It was interrupted."], ["entropy"])


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return render([shown(write_classification(tmp_path_factory.mktemp("page") / "run"))])


def test_the_page_says_what_it_is_about(page: str) -> None:
    found = Elements(page)
    assert found.open == []
    assert found.text["title"] == ["demo · headlens"]
    assert "demo: 258 sentences, 4,162 words, 258 trees" in "".join(found.text["bdi"])
    parts = ["Findings", "Notes", "Heads", "Summary", "Figures", "Tables", "How it was made"]
    assert found.text["h2"] == parts
    headings = ["Roles", "Best head for every relation", "Heads that have a role", "Roles of attention heads"]
    tables = ["heads.csv", "positions.csv", "syntax.csv", "similarity.csv", "All that run.json records"]
    assert [t for t in found.text["bdi"] if t in (*headings, *tables)] == [*headings, *tables]
    assert found.text["li"][-1] == "34 words share a token.", "behind what was found"
    assert "Nothing to draw, so no figure, for: Entropy." in found.text["p"]
    cells = found.text["td"]
    assert cells.count("encoder.0.1") == 1  # holding a role
    assert found.text["bdi"].count("encoder.0.1") == 1  # best of all four relations and directions
    assert "cd" * 32 in cells


def test_all_numbers_of_a_table_are_on_the_page(page: str, tmp_path: Path) -> None:
    heads = read_recorded(write_classification(tmp_path / "run"), "run").tables["heads"]
    keys = {attributes.get("data-v") for attributes in Elements(page).attributes("td")}
    assert {repr(v) for v in heads["confidence"]} <= keys


def test_nothing_is_fetched_and_only_our_script_and_style_are_allowed(page: str) -> None:
    found = Elements(page)
    (policy,) = [a["content"] for a in found.attributes("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    (script,), (style,) = (re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL) for tag in ("script", "style"))
    # The other one is data, which no browser runs.
    assert [a.get("type") for a in found.attributes("script")] == ["application/json", None]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules == {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": f"'sha256-{digest(style)}'",
        "script-src": f"'sha256-{digest(script)}'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    targets = [a.get(name) for _, a in found.found for name in ("src", "href", "srcset", "action", "data", "poster")]
    assert all(t is None or t.startswith(("data:image/webp", "#")) for t in targets)
    assert not re.search(r"https?:|@import|url\(", page)
    assert not [a for _, a in found.found if any(name.startswith("on") or name == "style" for name in a)]


def digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_links_within_the_page_lead_somewhere(page: str) -> None:
    found = Elements(page)
    anchors = {a["id"] for _, a in found.found if "id" in a}
    links = {str(a["href"])[1:] for a in found.attributes("a")}
    assert links
    assert links <= anchors


def test_tables_can_be_sorted_with_the_keyboard(page: str) -> None:
    found = Elements(page)
    tables = [a for a in found.attributes("table") if a.get("class") == "sortable"]
    heads = [a for a in found.attributes("th") if a.get("aria-sort") == "none"]
    assert len(tables) == 9
    buttons = found.attributes("button")
    assert len([a for a in buttons if a.get("class") == "save"]) == len(tables)
    assert len(heads) == len(buttons) - len(tables) > 50


def test_the_same_runs_give_the_same_page(page: str, tmp_path: Path) -> None:
    folder = write_classification(tmp_path / "run")
    assert render([shown(folder)]) == render([shown(folder)])


def test_an_unfinished_run_is_marked(tmp_path: Path) -> None:
    folder = write_classification(tmp_path / "run")
    change_record(folder, {"status": "interrupted"})
    (warning,) = [t for t in Elements(render([shown(folder)])).text["strong"] if "interrupted" in t]
    assert warning == "It was interrupted."


@pytest.mark.slow
def test_runs_stand_side_by_side(tmp_path: Path) -> None:
    first = write_classification(tmp_path / "first", "one")
    second = write_classification(tmp_path / "second", "two", notes=["Something."])
    other = write_other(tmp_path / "third")
    html = render([shown(first, "first"), shown(second, "second"), shown(other, "third")])
    found = Elements(html)
    assert found.text["title"] == ["Attention heads: first, second, third · headlens"]
    assert "What differs" in found.text["h2"]
    assert re.findall(r"<li><b><bdi>(.*?)</bdi></b>: (.*?)</li>", html) == [
        ("first", "34 words share a token."),
        ("second", "Something."),
    ]
    # figures of one name and command share a heading
    assert len(found.attributes("figure")) == 2
    assert [t for t in found.text["bdi"] if t.endswith("heads.csv of first")] == ["heads.csv of first"]
    roles = html[html.index("Roles") : html.index("Best head for every relation")]
    assert re.findall(r"<td>(first|second|third)</td>", roles) == ["first", "second"]


def test_a_model_with_and_without_a_mask_is_told_apart(tmp_path: Path) -> None:
    whole = write_classification(tmp_path / "whole")
    masked = write_classification(tmp_path / "masked", seed=1, mask={"name": "window:3"})
    html = render([shown(whole, "whole"), shown(masked, "masked")])
    assert "<h3><bdi>masked, mask window:3</bdi></h3>" in html
    assert set(re.findall(r'"run": ?"(.*?)"', html)) == {"whole", "masked, mask window:3"}
    roles = html[html.index("Roles") : html.index("Best head for every relation")]
    assert re.findall(r"<td>(whole|masked.*?)</td>", roles)[:2] == ["whole", "masked, mask window:3"]


def test_columns_in_notes_are_set_as_such(tmp_path: Path) -> None:
    folder = write_classification(tmp_path / "run", notes=["See `signed` and `<raw>` for it."])
    html = render([shown(folder)])
    assert "<li>See <code>signed</code> and <code>&lt;raw&gt;</code> for it.</li>" in html


@pytest.mark.parametrize("command", sorted(reports()))
def test_captions_show_no_backticks(tmp_path: Path, command: str) -> None:
    captions = reports()[command].captions
    folder = write_other(tmp_path / "run")
    change_record(folder, {"command": command})
    run = read_recorded(folder, "run")
    pictures = [Picture(name, "run", "data:image/webp;base64,AAAA", 10, 10) for name in captions]
    found = Elements(render([RunSection(run, pictures)]))
    told = "".join(found.text.get("figcaption", []))
    assert bool(captions) == bool(told)
    assert "`" not in told
    named = [name for caption in {*captions.values()} for name in caption.text.split("`")[1::2]]
    assert sorted(found.text.get("code", [])) == sorted(named)


# In the default tier: what ends a script, and what no page may hold.
@pytest.mark.parametrize("words", rest_slow(HOSTILE))
def test_nothing_from_a_run_becomes_an_element(tmp_path: Path, page: str, words: str) -> None:
    allowed = {tag for tag, _ in Elements(page).found}
    html = render([shown(write_hostile(tmp_path / "run", words), words)])
    found = Elements(html)
    assert {tag for tag, _ in found.found} <= allowed
    assert len(found.attributes("style")) == 1
    assert [a for a in found.attributes("script") if a != {"type": "application/json", "id": "heads-data"}] == [{}]
    names = {name for _, attributes in found.found for name in attributes}
    assert not [name for name in names if name.startswith("on")]
    assert found.text["title"] == [f"{visible(words)} · headlens"]
    shown_words = visible(words)
    assert shown_words in found.text["td"]
    assert shown_words in "".join(found.text["button"])
    assert shown_words in "".join(found.text["li"])
    assert "\0" not in html
    html.encode()


@pytest.mark.parametrize(
    ("text", "shown_text"),
    [
        ("a\0b", "a\\x00b"),
        ("\u202egnp", "\\u202egnp"),
        ("\ud800", "\\ud800"),
        ("\x85", "\\x85"),
        ("\uffff", "\\uffff"),
        ("שלום\n\té", "שלום\n\té"),
        (3, "3"),
    ],
)
def test_what_hides_is_spelled_out(text: object, shown_text: str) -> None:
    assert visible(text) == shown_text


def test_nothing_is_called_safe() -> None:
    template = (
        resources.files("headlens.analyses.report").joinpath("templates", "report.html").read_text(encoding="utf-8")
    )
    assert not re.search(r"\bsafe\b|autoescape|\braw\b", template)


def test_our_own_parts_are_left_as_they_are() -> None:
    assert visible(Markup("\0")) == Markup("\0")


@pytest.mark.parametrize("step", rest_slow([1, 11], [11]))
def test_what_is_printable_hides_nothing(step: int) -> None:
    # Text that Python calls printable is written as it is without a look at its characters.
    assert not [
        hex(n) for n in range(0, 0x110000, step) if chr(n).isprintable() and visible(f"{chr(n)}\n") != f"{chr(n)}\n"
    ]
    assert visible("a\u202eb") == "a\\u202eb"

"""The view of attention as a reader has it: in Chromium, without a network, by mouse, keys and on a phone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from open_page import OpenPage
from saved import build
from transformers import PreTrainedTokenizerBase

import headlens
from headlens.analyses.attend.options import AttendRequest
from headlens.analyses.attend.sentence_server import SentenceServer
from headlens.analyses.attend.states import states_of
from headlens.models.loading import LoadedModel
from headlens.pages.attention_page import AttentionView, page_of_view
from headlens.pages.head_cards import SentenceMap, TokenGroups
from headlens.pages.score_parts import ScoreParts

pytestmark = pytest.mark.slow
TOKENS = ["[CLS]", "tri", "##cycle", "rusts", "[SEP]"]
GROUPS = TokenGroups([0, 1, 1, 2, 3], ["[CLS]", "tricycle", "rusts", "[SEP]"], [True, False, False, False, True])
HOSTILE = ["</template><script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", "<b>bold</b>"]
# What "rusts" gives in head 1.2, and what the pieces of "tricycle" give in it.
RUSTS, TRI, CYCLE = [0.2, 0.1, 0.5, 0.1, 0.1], [0.0, 0.0, 0.0, 1.0, 0.0], [0.4, 0.0, 0.0, 0.6, 0.0]
# A pixel of the open head's thumbnail, where "tri" looks at "rusts"; the colour below everything.
PIXEL = """() => { const canvas = document.querySelector("[aria-selected=true] canvas");
    return [...canvas.getContext("2d").getImageData(3, 1, 1, 1).data]; }"""
GROUND = "() => getComputedStyle(document.body).backgroundColor"


def weights() -> np.ndarray:
    made = np.full((2, 3, 5, 5), 0.2, np.float32)
    made[1, 2, 1:4] = TRI, CYCLE, RUSTS
    return made


def view(states: int = 1, *, one_model: bool = True) -> AttentionView:
    second = weights()
    second[1, 2, 3] = [0, 0, 0, 1, 0]
    second[0, 1] = np.nan
    maps = []
    for state, own in enumerate([weights(), second][:states]):
        maps.append(SentenceMap("1", "encoder", TOKENS, TOKENS, own, "Tricycle rusts", state, GROUPS, GROUPS))
        cross = SentenceMap("2", "cross", ["x", "y"], TOKENS, own[:, :, :2], "Second", state)
        maps += [SentenceMap("2", "encoder", TOKENS, TOKENS, own, "Second", state), cross]
    return AttentionView(["whole", "changed"][:states], maps, one_model)


class Seen(OpenPage):
    """The view of attention in a page."""

    def token(self, side: str, label: str, state: int = 0) -> Any:
        own = self.page.locator(".state").nth(state).locator(f".{side} button")
        return own.get_by_text(label, exact=True)

    def head(self, layer: int, head: int, state: int = 0) -> Any:
        return self.page.locator(".state").nth(state).locator(f"td[data-head='{layer} {head}']")

    def told(self, state: int = 0) -> list[str]:
        return self.page.locator(".told").nth(state).locator("p").all_text_contents()

    def focused(self) -> str:
        return self.page.evaluate("() => document.activeElement.dataset.head ?? document.activeElement.textContent")


@pytest.fixture
def look(new_context: Callable[..., Any], tmp_path: Path) -> Callable[..., Seen]:
    def seen(shown: AttentionView | str, **how: Any) -> Seen:
        served = isinstance(shown, str)
        if not served:
            (tmp_path / "page.html").write_text(page_of_view("Attention", shown), encoding="utf-8")
        address = shown if served else (tmp_path / "page.html").as_uri()
        found = Seen.at(address, new_context(offline=not served, **how))
        found.page.wait_for_selector(".state, textarea")
        return found

    return seen


def test_nothing_is_asked_for_and_the_head_that_tells_most_is_open(look: Callable[..., Seen]) -> None:
    seen = look(view())
    assert [url for url in seen.requests if not url.startswith("file:")] == []
    assert seen.page.locator("[aria-selected=true]").get_attribute("data-head") == "1 2"
    assert seen.page.locator("td[data-head]").count() == 6
    # layer 0 is at the bottom
    assert seen.page.locator("tbody th").all_text_contents() == ["1", "0"]
    label = seen.head(1, 2).get_attribute("aria-label")
    assert label == "encoder.1.2; most: “tri” gives 100 % to “rusts”"
    assert seen.troubles == []


def test_a_token_that_is_pointed_at_says_where_it_looks_and_who_looks_at_it(look: Callable[..., Seen]) -> None:
    seen = look(view())
    seen.token("queries", "rusts").hover()
    assert seen.told() == [
        "“rusts” gives 50 % to “##cycle”, 20 % to “[CLS]”, 10 % to “tri”, 10 % to “rusts”, 10 % to “[SEP]”.",
        "“rusts” gets 100 % from “tri”, 60 % from “##cycle”, 20 % from “[CLS]”, 20 % from “[SEP]”, 10 % from “rusts”.",
    ]
    seen.token("keys", "[CLS]").hover()
    assert seen.told()[0].startswith("“[CLS]” gets 40 % from “##cycle”, 20 % from ")
    seen.page.mouse.move(1, 1)
    assert seen.told()[0].startswith("Point at a token")
    seen.token("queries", "tri").click()
    seen.page.mouse.move(1, 1)
    assert seen.told()[0] == "“tri” gives 100 % to “rusts”."
    # what a click keeps stays with the next head
    seen.head(0, 0).click()
    assert seen.told()[0].startswith("“tri” gives 20 % to “[CLS]”")
    seen.head(1, 2).click()
    seen.token("queries", "tri").click()
    seen.page.mouse.move(1, 1)
    assert seen.told()[0].startswith("Point at a token")


def test_words_and_special_tokens(look: Callable[..., Seen]) -> None:
    seen = look(view())
    seen.page.get_by_role("button", name="Words", exact=True).click()
    seen.token("queries", "rusts").hover()
    assert seen.told()[0] == "“rusts” gives 60 % to “tricycle”, 20 % to “[CLS]”, 10 % to “rusts”, 10 % to “[SEP]”."
    seen.token("queries", "tricycle").hover()
    assert seen.told()[0] == "“tricycle” gives 80 % to “rusts”, 20 % to “[CLS]”."
    seen.page.get_by_label("Special tokens").select_option("out")
    assert seen.page.locator(".keys button").all_text_contents() == ["tricycle", "rusts"]
    seen.token("queries", "rusts").hover()
    assert seen.told()[0] == "“rusts” gives 60 % to “tricycle”, 10 % to “rusts”; 30 % goes to tokens that are left out."
    seen.page.get_by_label("Special tokens").select_option("scaled")
    seen.token("queries", "rusts").hover()
    assert seen.told()[0] == "“rusts” gives 86 % to “tricycle”, 14 % to “rusts”; 30 % goes to tokens that are left out."
    assert "is rescaled to 100 %" in seen.page.locator(".attention-view > .about").text_content()
    seen.page.get_by_role("button", name="Subwords", exact=True).click()
    seen.token("queries", "rusts").hover()
    assert seen.told()[0].startswith("“rusts” gives 71 % to “##cycle”, 14 % to “tri”, 14 % to “rusts”; 30 %")
    assert seen.troubles == []


def test_very_little_is_not_scaled(look: Callable[..., Seen]) -> None:
    own = np.full((1, 1, 5, 5), 0.2, np.float32)
    own[0, 0, 3] = [0.99, 0.006, 0.004, 0, 0]
    groups = SentenceMap("1", "encoder", TOKENS, TOKENS, own, "T", 0, GROUPS, GROUPS)
    seen = look(AttentionView(["m"], [groups]))
    seen.page.get_by_label("Special tokens").select_option("scaled")
    seen.token("queries", "rusts").hover()
    told = "“rusts” gives 99 % to tokens that are left out: too little is left to rescale."
    assert seen.told()[0] == told
    seen.page.get_by_text("In words").click()
    assert told in seen.page.locator(".words li").all_text_contents()
    # nobody gets any of it
    seen.token("keys", "tri").hover()
    assert seen.told()[0] == "“tri” gets 33 % from “tri”, 33 % from “##cycle”."


def test_a_matrix_tells_of_the_cell_under_the_mouse(look: Callable[..., Seen]) -> None:
    seen = look(view())
    seen.page.get_by_role("button", name="Matrix").click()
    picture = seen.page.locator(".look canvas")
    box = picture.bounding_box()
    labels = seen.page.locator(".look .keys").bounding_box()
    assert abs(box["width"] - labels["width"]) < 2  # columns stand below their labels
    assert abs(box["height"] - seen.page.locator(".look .queries").bounding_box()["height"]) < 2
    picture.hover(position={"x": box["width"] * 0.5, "y": box["height"] * 0.7})
    assert seen.told()[0] == "“rusts” gives 50 % to “##cycle”."
    alpha = """([x, y]) => { const c = document.querySelector('.look canvas');
        return c.getContext('2d').getImageData(x * c.width, y * c.height, 1, 1).data[3] }"""
    seen.page.mouse.move(1, 1)
    assert seen.page.evaluate(alpha, [0.7, 0.3]) == 255  # "tri" gives all to "rusts"
    assert seen.page.evaluate(alpha, [0.1, 0.3]) == 0
    assert seen.page.evaluate(alpha, [0.5, 0.7]) == pytest.approx(255 * 0.5**0.5, abs=2)


def test_sentences_stacks_and_heads_are_switched_by_keys(look: Callable[..., Seen]) -> None:
    seen = look(view())
    seen.page.keyboard.press("Tab")
    assert seen.page.evaluate("() => document.activeElement.closest('label').className") == "sentence"
    seen.page.keyboard.press("ArrowDown")
    seen.page.wait_for_selector("text=Attention of >> visible=true")
    assert seen.page.evaluate("() => document.activeElement.closest('label').className") == "sentence"
    seen.page.get_by_label("Attention of").select_option("cross")
    seen.page.wait_for_selector(".queries button:text-is('y')")
    assert seen.page.locator(".queries button").all_text_contents() == ["x", "y"]
    assert seen.page.get_by_label("Special tokens").count() == 0  # nothing is known of them
    seen.head(1, 2).focus()
    for key, place in (
        ("ArrowDown", "0 2"), ("ArrowLeft", "0 1"), ("ArrowLeft", "0 0"), ("ArrowLeft", "0 0"), ("End", "0 2"),
        ("PageUp", "1 2"), ("Home", "1 0"), ("ArrowRight", "1 1"), ("ArrowUp", "1 1"), ("PageDown", "0 1"),
    ):  # fmt: skip
        seen.page.keyboard.press(key)
        assert seen.focused() == place, key
    assert seen.page.locator("h4").text_content() == "cross.0.1"
    assert seen.page.locator("td[tabindex='0']").count() == 1
    seen.page.keyboard.press("Enter")
    assert seen.focused() == "x"
    for key, token in (
        ("ArrowDown", "y"), ("ArrowRight", "[CLS]"), ("End", "[SEP]"), ("ArrowUp", "rusts"), ("ArrowLeft", "y"),
    ):  # fmt: skip
        seen.page.keyboard.press(key)
        assert seen.focused() == token, key
        assert seen.told()[0].startswith(f"“{token}” g")
    outline = seen.page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    seen.page.keyboard.press("Escape")
    assert seen.focused() == "0 1"
    assert seen.troubles == []


def test_all_is_told_in_words_too(look: Callable[..., Seen]) -> None:
    seen = look(view())
    seen.page.get_by_text("In words").click()
    lines = seen.page.locator(".words li").all_text_contents()
    assert len(lines) == 5
    assert lines[1] == "“tri” gives 100 % to “rusts”."
    names = [seen.page.locator(f"[aria-label='{name}']").count() for name in ("Attending tokens", "Attended tokens")]
    assert names == [1, 1]
    assert seen.page.locator("[role=grid]").get_attribute("aria-label") == "encoder: layers by heads"


def test_two_states_of_a_model_are_looked_at_together(look: Callable[..., Seen]) -> None:
    seen = look(view(2), viewport={"width": 1280, "height": 900})
    lefts = [own.bounding_box()["x"] for own in seen.page.locator(".state").all()]
    assert lefts[1] > lefts[0] + 300
    seen.token("queries", "rusts").hover()
    assert seen.told()[0].startswith("“rusts” gives 50 % to “##cycle”")
    assert seen.told(1)[0] == "“rusts” gives 100 % to “rusts”."
    seen.head(0, 1).click()
    assert seen.page.locator("h4").all_text_contents() == ["encoder.0.1", "encoder.0.1"]
    assert "This head has been removed in this model." in seen.page.locator(".state").nth(1).text_content()
    assert seen.head(0, 1, 1).get_attribute("aria-label") == "encoder.0.1, removed"


def test_two_models_have_heads_of_their_own(look: Callable[..., Seen]) -> None:
    seen = look(view(2, one_model=False))
    seen.head(0, 0).click()
    seen.head(0, 2, 1).click()
    assert seen.page.locator("h4").all_text_contents() == ["encoder.0.0", "encoder.0.2"]


@pytest.mark.parametrize("how", ["lines", "matrix"])
def test_a_phone_does_not_scroll_sideways(look: Callable[..., Seen], how: str) -> None:
    long = [*"abcdefghijklmnopqrst", "extraordinarilylongtoken" * 3]
    wide = np.full((12, 12, 21, 21), 1 / 21, np.float32)
    text = "A sentence that is long " * 10
    seen = look(
        AttentionView(["m"], [SentenceMap(name, "encoder", long, long, wide, text + name) for name in "12"]),
        viewport={"width": 390, "height": 844},
        has_touch=True,
    )
    seen.page.get_by_role("button", name=how.capitalize()).click()
    assert seen.page.evaluate("() => document.documentElement.scrollWidth") == 390
    assert all(own.bounding_box()["width"] >= 20 for own in seen.page.locator("td[data-head]").all()[:3])
    seen.token("queries", "c").tap()
    assert seen.told()[0].startswith("“c” gives 4.8 % to")


def test_shades_can_be_seen_by_day_and_by_night(look: Callable[..., Seen]) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        seen = look(view(), color_scheme=scheme)
        seen.token("queries", "tri").hover()
        colours[scheme] = seen.page.evaluate(PIXEL), seen.page.evaluate(GROUND)
    assert colours["light"][0] == [0, 0x63, 0xA0, 255]
    assert colours["dark"][0] == [0x6D, 0xB8, 0xF2, 255]
    assert colours["light"][1] == "rgb(255, 255, 255)" != colours["dark"][1]
    # the colours follow when night falls
    seen.page.emulate_media(color_scheme="light")
    for _ in range(3000):  # asked anew, as the policy of the page lets nothing in it evaluate a string
        if seen.page.evaluate(PIXEL) == colours["light"][0]:
            break
        seen.page.wait_for_timeout(20)
    assert seen.page.evaluate(PIXEL) == colours["light"][0]


@pytest.mark.parametrize("words", HOSTILE)
def test_hostile_tokens_stay_words(look: Callable[..., Seen], words: str) -> None:
    groups = TokenGroups([0], [words], [False])
    own = SentenceMap("1", "encoder", [words], [words], np.ones((1, 1, 1, 1)), words, 0, groups, groups)
    seen = look(AttentionView([words], [own]))
    seen.page.get_by_text("In words").click()
    seen.token("queries", words).hover()
    assert seen.told()[0] == f"“{words}” gives 100 % to “{words}”."
    assert seen.page.locator(".words li").text_content() == f"“{words}” gives 100 % to “{words}”."
    assert seen.page.locator("script, img, b").count() == 1
    assert seen.troubles == []


def test_it_works_in_the_frame_of_a_notebook(
    new_context: Callable[..., Any], wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    loaded = LoadedModel("tiny", build("BertModel", len(wordpiece_tokenizer)), wordpiece_tokenizer, None)
    page = new_context().new_page()
    troubles: list[str] = []
    page.on("console", lambda m: troubles.append(m.text))
    page.set_content(headlens.attend(loaded, "Cats </iframe> sleep.")._repr_html_())
    frame = page.frame_locator("iframe")
    frame.locator(".queries button").get_by_text("cats", exact=True).hover()
    assert frame.locator(".told p").first.text_content().startswith("“cats” gives ")
    assert troubles == []


def test_typed_sentences_are_measured_and_errors_shown(
    look: Callable[..., Seen], wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    loaded = LoadedModel("tiny", build("BertModel", len(wordpiece_tokenizer)), wordpiece_tokenizer, None)
    request = AttendRequest("tiny")
    with SentenceServer(states_of(request, [loaded]), request, []) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            seen = look(server.address)
            assert "No sentence yet: type one." in seen.page.locator(".attention-view").text_content()
            seen.page.get_by_label("A sentence").fill("<img src=x onerror=alert(1)> cats")
            seen.page.keyboard.press("Enter")
            seen.page.wait_for_selector(".queries button:text-is('cats')")
            seen.page.get_by_label("A sentence").fill("cats " * 100)
            seen.page.get_by_role("button", name="Look").click()
            seen.page.wait_for_selector("[role=alert]:has-text('is longer than the model')")
            seen.page.get_by_label("A sentence").fill("dogs")
            seen.page.get_by_role("button", name="Look").click()
            seen.page.wait_for_selector(".queries button:text-is('dogs')")
            assert seen.page.locator(".sentence option").count() == 2
            assert all(url.startswith(server.address) for url in seen.requests)
            assert seen.troubles == []
        finally:
            server.shutdown()
            thread.join()


def test_a_copied_address_shows_the_same(look: Callable[..., Seen], new_context: Callable[..., Any]) -> None:
    seen = look(view())
    seen.head(0, 1).click()
    seen.page.get_by_role("button", name="Matrix").click()
    seen.token("queries", "tri").click()
    address = seen.page.url
    assert "look=matrix" in address
    again = Seen.at(address, new_context(offline=True))
    again.page.wait_for_selector(".state")
    assert again.page.locator("[aria-selected=true]").get_attribute("data-head") == "0 1"
    assert again.page.get_by_role("button", name="Matrix").get_attribute("aria-pressed") == "true"
    assert again.told() == seen.told()
    assert again.told()[0].startswith("“tri” gives")
    # What an address from somewhere else holds is not trusted.
    odd = address.partition("#")[0] + "#sentence=99&stack=none&look=x&heads=7.9,-1.a,3&token=0.queries.999"
    other = Seen.at(odd, new_context(offline=True))
    other.page.wait_for_selector(".state")
    assert other.page.locator("[aria-selected=true]").get_attribute("data-head") == "1 2"
    assert (again.troubles, other.troubles) == ([], [])


def test_all_heads_of_a_layer_in_one_picture(look: Callable[..., Seen]) -> None:
    seen = look(view())
    picture = "() => document.querySelector('.look canvas').toDataURL()"
    seen.page.get_by_role("button", name="Whole layer").click()
    chips = seen.page.locator(".chips button")
    assert chips.all_text_contents() == ["0", "1", "2"]
    whole = seen.page.evaluate(picture)
    chips.nth(1).click()
    assert chips.nth(1).get_attribute("aria-pressed") == "false"
    seen.page.mouse.move(1, 1)
    without = seen.page.evaluate(picture)
    assert without != whole
    chips.nth(1).click()
    seen.page.mouse.move(1, 1)
    assert seen.page.evaluate(picture) == whole
    seen.page.get_by_role("button", name="Lines").click()
    assert seen.page.locator(".chips").count() == 0
    seen.page.get_by_role("button", name="Whole layer").click()
    assert seen.troubles == []


VECTORS = {
    "queries": np.array([[[1, 0], [0, 2], [1, 1], [2, -1], [0, 0]]], np.float32),
    "keys": np.array([[[1, 0], [0, 1], [-1, 0], [3, 1], [0.5, 0.5]]], np.float32),
}


def view_with_scores(change: Callable[[Any], Any] = lambda scores: scores, *, sink: float = 0.0) -> AttentionView:
    """A sentence of which head 1.2 has queries and keys of two dimensions, and perhaps something beside them."""
    scores = 0.5 * np.einsum("hqd,hkd->hqk", VECTORS["queries"], VECTORS["keys"]).astype(np.float64)
    raised = np.exp(change(scores))
    whole = weights()
    whole[1, 2] = (raised / (raised.sum(-1, keepdims=True) + sink))[0]
    parts = ScoreParts(1, [2], 0.5, VECTORS["queries"], VECTORS["keys"], shared_by=3).fitted(whole[1, 2:])
    own = SentenceMap("1", "encoder", TOKENS, TOKENS, whole, "Tricycle rusts", 0, GROUPS, GROUPS, scores=[parts])
    return AttentionView(["m"], [own])


def cells(seen: Seen, kind: str) -> list[str]:
    return seen.page.locator(f".keys .{kind}").all_text_contents()


def with_scores(look: Callable[..., Seen], shown: AttentionView, **how: Any) -> Seen:
    seen = look(shown, **how)
    seen.page.get_by_role("button", name="Query × keys").click()
    seen.head(1, 2).click()
    return seen


def test_a_weight_is_taken_apart_dimension_by_dimension(look: Callable[..., Seen]) -> None:
    seen = with_scores(look, view_with_scores())
    about = seen.page.locator(".state .about").first.text_content()
    assert about.startswith("A score is 0.5 times the sum of the 2 products of a query and a key.")
    assert "shares its keys with heads 0, 1." in about
    assert "products alone do not give" not in about
    # The query of "rusts" is (2, -1): products 2 0, 0 -1, -2 0, 6 -1, 1 -0.5.
    seen.token("queries", "rusts").hover()
    assert cells(seen, "score") == ["1.00", "−0.50", "−1.00", "2.50", "0.25"]
    raised = np.exp([1, -0.5, -1, 2.5, 0.25])
    shares = [f"{100 * share:.{0 if share >= 0.0995 else 1}f} %" for share in raised / raised.sum()]
    assert cells(seen, "weight") == shares
    assert seen.told()[0].startswith(f"“rusts” gives {shares[3]} to “rusts”, {shares[0]} to “[CLS]”, ")
    told = f"“rusts” and “rusts”: 5.00 × 0.5 = 2.50, weight {shares[3]}; "
    told += "largest products: dimensions 0 (+6.00), 1 (−1.00)."
    assert seen.told()[1] == told
    seen.page.get_by_text("In words").click()
    assert seen.page.locator(".words li").all_text_contents()[3] == told
    # pointing at a key keeps the query
    seen.token("keys", "tri").hover()
    assert seen.told()[1].startswith("“rusts” and “tri”: −1.00 × 0.5 = −0.50, weight ")
    strip = seen.page.locator(".keys canvas.product").nth(3)
    strip.hover(position={"x": strip.bounding_box()["width"] * 0.75, "y": 5})
    assert seen.told()[0] == "Dimension 1: −1.00 of “rusts” × 1.00 of “rusts” = −1.00."
    strip = seen.page.locator("canvas.query")
    strip.hover(position={"x": strip.bounding_box()["width"] * 0.25, "y": 5})
    assert seen.told()[0] == "Dimension 0 of “rusts”: 2.00."
    assert seen.page.get_by_label("Special tokens").is_hidden()
    assert seen.troubles == []


def test_strips_are_blue_above_zero_and_orange_below(look: Callable[..., Seen]) -> None:
    pixel = """([row, share]) => { const c = document.querySelectorAll(".keys canvas.product")[row];
        return [...c.getContext("2d").getImageData(share * c.width, c.height / 2, 1, 1).data]; }"""
    for scheme, above, below in (
        ("light", [0, 0x63, 0xA0], [0xA3, 0x3B, 0]), ("dark", [0x6D, 0xB8, 0xF2], [0xFF, 0x9F, 0x66]),
    ):  # fmt: skip
        seen = with_scores(look, view_with_scores(), color_scheme=scheme)
        seen.token("queries", "rusts").click()
        seen.page.mouse.move(1, 1)
        assert seen.page.evaluate(pixel, [3, 0.25]) == [*above, 255]  # 6, the largest
        faint = seen.page.evaluate(pixel, [1, 0.75])  # -1
        assert faint[3] == pytest.approx(255 * (1 / 6) ** 0.5, abs=2)
        assert faint[:3] == pytest.approx(below, abs=3)
        assert seen.page.evaluate(pixel, [1, 0.25])[3] == 0


def test_what_is_in_scores_beside_products_is_told(look: Callable[..., Seen]) -> None:
    place = np.arange(5)
    distance = np.abs(place[:, None] - place)
    seen = with_scores(look, view_with_scores(lambda scores: scores - 0.5 * distance))
    assert "the products alone do not give the weights" in seen.page.locator(".state .about").first.text_content()
    seen.token("queries", "##cycle").hover()
    assert cells(seen, "rest") == ["−1.00", "−0.50", "0.00", "−0.50", "−1.00"]
    assert cells(seen, "score") == ["0.50", "0.50", "−0.50", "2.00", "0.50"]
    raised = np.exp(np.array([0.5, 0.5, -0.5, 2, 0.5]) - 0.5 * distance[2])
    assert cells(seen, "weight")[3] == f"{100 * raised[3] / raised.sum():.0f} %"
    assert ", rest −0.50, weight" in seen.told()[1]


def test_masks_and_sinks_are_told(look: Callable[..., Seen]) -> None:
    masked = with_scores(look, view_with_scores(lambda scores: np.where(np.tri(5) > 0, scores, -np.inf)))
    masked.token("queries", "tri").hover()
    assert cells(masked, "weight")[2:] == ["–"] * 3
    assert masked.page.locator(".keys .rest").count() == 0
    about = masked.page.locator(".state .about").first.text_content()
    assert "A key without a weight is masked" in about
    sink = with_scores(look, view_with_scores(sink=5.0))
    sink.token("queries", "[SEP]").hover()  # all scores are 0: five keys and the sink, which counts five times
    assert cells(sink, "weight") == ["10 %"] * 5
    assert "beside that of a sink" in sink.page.locator(".state .about").first.text_content()
    assert sink.told()[0].endswith("; 50 % goes to no token, as with a learned sink.")


def test_scores_are_gone_through_by_keys(look: Callable[..., Seen]) -> None:
    seen = with_scores(look, view_with_scores())
    seen.page.keyboard.press("Enter")
    assert seen.focused() == "[CLS]"
    for key, token in (("ArrowRight", "tri"), ("End", "[SEP]"), ("ArrowLeft", "rusts"), ("ArrowDown", "[CLS]")):
        seen.page.keyboard.press(key)
        assert seen.focused() == token, key
    for key, told in (
        ("ArrowDown", "“rusts” gives"), ("ArrowRight", "Dimension 0: 2.00"), ("ArrowRight", "Dimension 1: −1.00"),
        ("ArrowRight", "Dimension 1: −1.00"), ("ArrowLeft", "Dimension 0: 2.00"), ("ArrowLeft", "“rusts” gives"),
    ):  # fmt: skip
        seen.page.keyboard.press(key)
        assert seen.told()[0].startswith(told), key
    assert seen.focused() == "tri"
    seen.page.keyboard.press("ArrowLeft")
    assert seen.focused() == "rusts"
    seen.page.keyboard.press("Escape")
    assert seen.focused() == "1 2"
    assert seen.troubles == []


def test_heads_without_queries_and_keys_say_so(look: Callable[..., Seen]) -> None:
    seen = with_scores(look, view_with_scores())
    seen.head(0, 0).click()
    told = "This page has no queries and keys of this head for this sentence. It has those of 1.2."
    assert seen.page.locator(".state .remark").text_content().startswith(told)
    seen.head(1, 2).click()
    assert seen.page.locator(".keys .score").count() == 5
    # A page of a sentence that was too long tells how to get some; one that was not asked for any offers none.
    own = replace(view().maps[0], scores=[])
    none = look(AttentionView(["m"], [own]))
    none.page.get_by_role("button", name="Query × keys").click()
    assert none.page.locator(".state .remark").text_content().endswith("chosen by --layer, --head or --heads.")
    assert look(view()).page.get_by_role("button", name="Query × keys").count() == 0


@pytest.mark.parametrize("width", [390, 1280])
def test_scores_fit_the_window(look: Callable[..., Seen], width: int) -> None:
    generator = np.random.default_rng(0)
    tokens = [*"abcdefghijk", "extraordinarilylongtoken" * 3]
    vectors = generator.standard_normal((2, 1, 12, 128)).astype(np.float32)
    scores = np.einsum("hqd,hkd->hqk", *vectors) - generator.random((1, 12, 12))
    one = (np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)).astype(np.float32)
    parts = ScoreParts(0, [0], 1.0, *vectors).fitted(one)
    own = SentenceMap("1", "encoder", tokens, tokens, one[None], "T", scores=[parts])
    seen = look(AttentionView(["m"], [own]), viewport={"width": width, "height": 844})
    seen.page.get_by_role("button", name="Query × keys").click()
    assert seen.page.evaluate("() => document.documentElement.scrollWidth") == width
    strips = [seen.page.locator(f".keys canvas.{kind}").first.bounding_box() for kind in ("key", "product")]
    assert all(strip["width"] >= 128 for strip in strips)
    assert strips[0]["y"] == strips[1]["y"]
    for kind in ("score", "rest", "weight"):
        cell = seen.page.locator(f".keys .{kind}").first
        assert cell.evaluate("own => own.scrollWidth <= own.clientWidth")
        box = cell.bounding_box()
        assert box["x"] + box["width"] <= width


@pytest.mark.parametrize("words", HOSTILE)
def test_hostile_tokens_stay_words_among_scores(look: Callable[..., Seen], words: str) -> None:
    vectors = np.ones((1, 1, 2), np.float32)
    parts = ScoreParts(0, [0], 1.0, vectors, vectors).fitted(np.ones((1, 1, 1), np.float32))
    own = SentenceMap("1", "encoder", [words], [words], np.ones((1, 1, 1, 1)), words, scores=[parts])
    seen = look(AttentionView([words], [own]))
    seen.page.get_by_role("button", name="Query × keys").click()
    assert seen.told()[0] == f"“{words}” gives 100 % to “{words}”."
    assert seen.page.locator("script, img").count() == 1
    assert seen.troubles == []


def test_scores_of_two_states_are_of_the_same_query(look: Callable[..., Seen]) -> None:
    first = view_with_scores().maps[0]
    other = view_with_scores(lambda scores: -scores).maps[0]
    seen = with_scores(look, AttentionView(["a", "b"], [first, replace(other, state=1)]))
    seen.token("queries", "rusts").hover()
    assert seen.told()[0].startswith("“rusts” gives 71 % to “rusts”")
    assert seen.told(1)[0].startswith("“rusts” gives 49 % to “##cycle”")


def paired() -> AttentionView:
    """Two texts: what the first three tokens give is 0.5, 0.25, 0.1, 0.1, 0.05, the others the same in reverse."""
    own = np.full((1, 1, 5, 5), 0.2, np.float32)
    own[0, 0, :3], own[0, 0, 3:] = [0.5, 0.25, 0.1, 0.1, 0.05], [0.05, 0.1, 0.1, 0.25, 0.5]
    texts = replace(GROUPS, texts=[0, 0, 0, 1, 1])
    return AttentionView(["m"], [SentenceMap("1", "encoder", TOKENS, TOKENS, own, "T", 0, texts, texts)])


def test_attention_from_one_text_to_the_other_alone(look: Callable[..., Seen]) -> None:
    seen = look(paired())

    def labels() -> list[list[str]]:
        return [seen.page.locator(f".{side} button").all_text_contents() for side in ("queries", "keys")]

    texts = seen.page.get_by_label("Texts")
    names = ["all", "first → second", "second → first", "within the first", "within the second"]
    assert texts.locator("option").all_text_contents() == names
    texts.select_option(label="first → second")
    assert labels() == [TOKENS[:3], TOKENS[3:]]
    seen.token("queries", "tri").hover()
    assert seen.told() == ["“tri” gives 10 % to “rusts”, 5.0 % to “[SEP]”; 85 % goes to tokens that are left out."]
    assert (
        "Only attention from the first to the second text is shown" in seen.page.locator(".about").first.text_content()
    )
    texts.select_option(label="second → first")
    assert labels() == [TOKENS[3:], TOKENS[:3]]
    texts.select_option(label="within the second")
    assert labels() == [TOKENS[3:], TOKENS[3:]]
    seen.token("queries", "rusts").hover()
    assert seen.told()[0] == "“rusts” gives 50 % to “[SEP]”, 25 % to “rusts”; 25 % goes to tokens that are left out."
    # together with what else can be left out
    seen.page.get_by_label("Special tokens").select_option("scaled")
    seen.page.get_by_role("button", name="Words", exact=True).click()
    texts.select_option(label="second → first")
    assert labels() == [["rusts"], ["tricycle"]]
    seen.token("queries", "rusts").hover()
    assert seen.told()[0] == "“rusts” gives 100 % to “tricycle”; 80 % goes to tokens that are left out."
    texts.select_option(label="all")
    seen.page.get_by_label("Special tokens").select_option("shown")
    assert labels()[0] == ["[CLS]", "tricycle", "rusts", "[SEP]"]
    assert look(view()).page.get_by_label("Texts").count() == 0
    assert seen.troubles == []


def test_a_head_of_another_layer_is_kept_and_all_can_be_switched_off(look: Callable[..., Seen]) -> None:
    seen = look(view())
    picture = "() => document.querySelector('.look canvas').toDataURL()"
    seen.page.get_by_role("button", name="Whole layer").click()
    seen.page.get_by_role("button", name="Keep 1.2").click()
    assert seen.page.get_by_role("button", name="Keep 1.2").get_attribute("aria-pressed") == "true"
    seen.head(0, 0).click()
    chips = seen.page.locator(".chips button")
    assert chips.all_text_contents() == ["0", "1", "2", "1.2"]
    seen.page.get_by_role("button", name="None").click()
    assert [chip.get_attribute("aria-pressed") for chip in chips.all()] == ["false"] * 3 + ["true"]
    seen.token("queries", "rusts").hover()
    assert seen.told()[-1] == "Most of each head: 1.2 “##cycle” 50 %."
    seen.page.mouse.move(1, 1)
    alone = seen.page.evaluate(picture)
    seen.page.get_by_role("button", name="All", exact=True).click()
    seen.page.mouse.move(1, 1)
    assert seen.page.evaluate(picture) != alone
    seen.token("queries", "rusts").hover()
    assert seen.told()[-1].startswith(
        "Most of each head: 0 “[CLS]” 20 %, 1 “[CLS]” 20 %, 2 “[CLS]” 20 %, 1.2 “##cycle” 50 %"
    )
    chips.nth(3).click()
    assert chips.count() == 3
    assert seen.troubles == []


def test_an_address_has_scores_texts_and_heads_that_are_kept(
    look: Callable[..., Seen], new_context: Callable[..., Any]
) -> None:
    def again(address: str) -> Seen:
        opened = Seen.at(address, new_context(offline=True))
        opened.page.wait_for_selector(".state")
        return opened

    seen = with_scores(look, view_with_scores())
    seen.token("queries", "rusts").click()
    copied = again(seen.page.url)
    assert copied.told() == seen.told()
    assert cells(copied, "score") == ["1.00", "−0.50", "−1.00", "2.50", "0.25"]
    # Another address of the same page is followed, too, as by the back button.
    copied.page.evaluate("() => { location.hash = 'look=layer&heads=0.1&hidden=0.2&added=1.2' }")
    copied.page.wait_for_selector(".chips")
    chips = copied.page.locator(".chips button")
    assert [(c.text_content(), c.get_attribute("aria-pressed")) for c in chips.all()] == [
        ("0", "false"), ("1", "true"), ("2", "false"), ("1.2", "true"),
    ]  # fmt: skip
    assert again(copied.page.url).page.locator(".chips button[aria-pressed=true]").all_text_contents() == ["1", "1.2"]
    pair = look(paired())
    pair.page.get_by_label("Texts").select_option("1-0")
    assert again(pair.page.url).page.locator(".queries button").all_text_contents() == TOKENS[3:]
    # What does not fit is ignored: texts of a page without two, heads and looks that are not there.
    page = look(view()).page.url.partition("#")[0]
    odd = again(f"{page}#pair=0-1&look=scores&added=9.9,x,1&hidden=a.-1.{'9' * 400}&token=9.queries.1&heads=%00&=&%")
    assert odd.page.locator(".queries button").all_text_contents() == TOKENS
    assert odd.page.get_by_role("button", name="Lines").get_attribute("aria-pressed") == "true"
    odd.page.get_by_role("button", name="Whole layer").click()
    assert odd.page.locator(".chips button").all_text_contents() == ["0", "1", "2"]
    assert [one.troubles for one in (seen, copied, pair, odd)] == [[]] * 4


def test_a_page_of_one_s_own_weights(
    look: Callable[..., Seen], new_context: Callable[..., Any], tmp_path: Path
) -> None:
    own = weights()
    own[0, 1] = np.nan
    own[0, 2] /= 2
    page = headlens.attention_page(TOKENS, own, second_text=3, title="Mine & <i>yours</i>")
    (tmp_path / "own.html").write_text(page, encoding="utf-8")
    seen = Seen.at((tmp_path / "own.html").as_uri(), new_context(offline=True))
    seen.page.wait_for_selector(".state")
    assert seen.page.locator(".warning").text_content().startswith("Weights of a token add up to between 0.5 and 1")
    assert seen.page.locator("h1").text_content() == "Mine & <i>yours</i>"
    assert seen.head(0, 1).get_attribute("aria-label") == "encoder.0.1, removed"
    seen.head(1, 2).click()
    seen.page.get_by_label("Texts").select_option("0-1")
    seen.token("queries", "tri").hover()
    assert seen.told() == ["“tri” gives 100 % to “rusts”; 0 % goes to tokens that are left out."]
    assert (seen.troubles, [url for url in seen.requests if not url.startswith("file:")]) == ([], [])

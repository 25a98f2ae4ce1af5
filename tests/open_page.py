"""Pages as a reader has them: in Chromium, without a network unless a test serves them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@dataclass
class OpenPage:
    """A page, and all that went wrong or out while it was open."""

    page: Page
    requests: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    @classmethod
    def at(cls, address: str, context: BrowserContext) -> Self:
        """Opens the page of an address."""
        opened = cls(context.new_page())
        opened.page.on("request", lambda r: opened.requests.append(r.url))
        opened.page.on("console", lambda m: opened.troubles.append(f"{m.type}: {m.text}"))
        opened.page.on("pageerror", lambda e: opened.troubles.append(str(e)))
        opened.page.on("dialog", lambda d: (opened.troubles.append(d.message), d.dismiss()))
        opened.page.goto(address)
        return opened


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium; without it, or without playwright, of the extra `dev`, the test is skipped."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra `dev`")
    if CHROMIUM is None:
        pytest.skip("needs Chromium (apt-get install chromium)")
    with playwright.sync_playwright() as driver:
        # root has no sandbox; it is not needed for pages of our own
        arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield opened
        opened.close()


@pytest.fixture
def new_context(browser: Browser) -> Iterator[Callable[..., BrowserContext]]:
    """Makes contexts of the browser, with the options of playwright, that are closed after the test."""
    contexts = []

    def made(*, offline: bool = True, **how: Any) -> BrowserContext:
        context = browser.new_context(offline=offline, **how)
        context.set_default_timeout(300_000)
        contexts.append(context)
        return context

    yield made
    for context in contexts:
        context.close()

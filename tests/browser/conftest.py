"""Tests of the trajectory report in a real browser, for `make test-browser`.

They are collected only when this folder is asked for by name; then Chromium must be there.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

T = TypeVar("T")

HERE = Path(__file__).parent
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 15
"""Seconds that a page has for anything."""
VARIABLE = "KVRESCUE_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome")

collect_ignore_glob = ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    asked = (Path(config.invocation_params.dir, arg.partition("::")[0]) for arg in config.args)
    if not any(path.resolve().is_relative_to(HERE) for path in asked):
        return
    collect_ignore_glob.clear()
    if not chromium():
        raise pytest.UsageError(
            "no Chromium: install it (Debian: apt-get install chromium), or name its executable "
            f"in {VARIABLE}"
        )
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        raise pytest.UsageError("no playwright: pip install 'kvrescue[browser]'") from None


def chromium() -> str | None:
    """The browser that is installed here; none is ever downloaded."""
    named = os.environ.get(VARIABLE)
    if named:
        return shutil.which(named)
    return next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The reports that are looked at, by name."""
    from tests.browser.report import write_pages

    return write_pages(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        yield opened
        opened.close()


class Reader:
    """Opens reports and looks at them as somebody with a browser would."""

    def __init__(self, page: Page, pages: dict[str, Path]) -> None:
        self.page = page
        self._pages = pages

    def open(self, name: str = "report", address: str = "") -> Page:
        self.page.goto("about:blank")
        self.page.goto(self._pages[name].as_uri() + address)
        self.page.wait_for_selector("body[data-ready]")
        # Steps that the address opens are filled a moment later.
        self.page.wait_for_function(
            "() => !document.querySelector('.round[open]:not(:has(.candidate))')"
        )
        return self.page

    def soon(self, look: Callable[[], T], seen: T) -> None:
        """Asserts that `look()` comes to be `seen`; pages follow clicks and addresses a moment
        later, as those of `expect` that come with playwright know, too."""
        deadline = time.monotonic() + PATIENCE
        while (found := look()) != seen and time.monotonic() < deadline:
            self.page.wait_for_timeout(20)
        assert found == seen

    def listed(self) -> list[str]:
        """Ids of the problems in the list."""
        return self.page.locator("#problems .id").all_text_contents()

    @property
    def address(self) -> dict[str, str]:
        """The parts of the address behind the #."""
        found: dict[str, str] = self.page.evaluate(
            "Object.fromEntries(new URLSearchParams(location.hash.slice(1)))"
        )
        return found


@pytest.fixture
def reader(browser: Browser, pages: dict[str, Path], request: pytest.FixtureRequest) -> Any:
    """A fresh page; errors, dialogs and requests to the outside fail the test."""
    options = getattr(request, "param", {})
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
    wrong: list[str] = []

    def asked(url: str) -> None:
        if not url.startswith(("file:", "data:,", "about:")):
            wrong.append(f"request: {url}")

    page = context.new_page()
    page.set_default_timeout(1000 * PATIENCE)
    page.on("console", lambda told: wrong.append(f"{told.type}: {told.text}"))
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda sent: asked(sent.url))
    yield Reader(page, pages)
    assert page.evaluate("window.broken") is None
    context.close()
    assert wrong == []

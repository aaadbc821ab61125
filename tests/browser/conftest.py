"""A real browser for the tests of pages: Debian's chromium, driven by Playwright."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright, expect

from tests.npm import NODE, require_clients

CHROMIUM = shutil.which("chromium")
FLAGS = ("--no-sandbox", "--disable-background-networking")
WAIT = 20.0  # seconds for anything that a page does
SECONDS = 100  # for a scenario
WIDE, NARROW = (1280, 900), (390, 844)
SHOTS = os.environ.get("SCREENSHOTS")  # a folder for screenshots
VIEWS = ((WIDE, False), (NARROW, True)) if SHOTS is None else tuple(product((WIDE, NARROW), (False, True)))
BROKEN = r"""[...document.querySelectorAll("td a")].filter(each => {
    const range = document.createRange();
    range.selectNodeContents(each);
    return /^(\d\d:\d\d:\d\d|\w{1,9})$/.test(each.textContent) && range.getClientRects().length > 1;
}).map(each => each.textContent)"""
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


class Visitors:
    """A browser, and the loop in which it and the scenario of a test run."""

    def __init__(self, runner: asyncio.Runner, browser: Browser) -> None:
        self._runner = runner
        self._browser = browser

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        """Play *scenario*."""

        async def play() -> None:
            await asyncio.wait_for(scenario(), SECONDS)

        self._runner.run(play())

    @asynccontextmanager
    async def visit(self, url: str, *expected: str) -> AsyncIterator[Page]:
        """A new visitor at *url*; whatever the browser's console says, unless it has one of *expected*, is an error."""
        context = await self._browser.new_context(
            viewport={"width": WIDE[0], "height": WIDE[1]},
            reduced_motion="reduce",  # colours change at once
        )
        context.set_default_timeout(WAIT * 1000)
        page = await context.new_page()
        said: list[str] = []

        def note(message: ConsoleMessage) -> None:
            if not any(each in message.text for each in expected):
                said.append(f"{message.type}: {message.text}")

        page.on("console", note)
        page.on("pageerror", lambda error: said.append(str(error)))
        try:
            await page.goto(url)
            yield page
            assert said == []
        finally:
            await context.close()


async def inspect(page: Page, name: str) -> None:
    """Look at *page*, wide and narrow, in the light and the dark: axe-core finds nothing, and nothing is cut off."""
    for (width, height), dark in VIEWS:
        await page.set_viewport_size({"width": width, "height": height})
        await page.emulate_media(color_scheme="dark" if dark else "light")
        assert (width, dark, await violations(page)) == (width, dark, [])
        assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert await page.evaluate(BROKEN) == [], "a time of day, or a short name, is on one line"
        await shoot(page, f"{name}-{width}-{'dark' if dark else 'light'}")


async def shoot(page: Page, name: str) -> None:
    """Save a screenshot, if somebody wants to look at it."""
    if SHOTS is not None:
        await page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)


async def violations(page: Page) -> list[Any]:
    """What axe-core finds wrong with *page*: contrast, labels, roles, landmarks."""
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(_axe())
    script = "rules => axe.run({ runOnly: rules, resultTypes: ['violations'] })"
    found = (await page.evaluate(script, list(RULES)))["violations"]
    return [(each["id"], [node["html"] for node in each["nodes"]]) for each in found]


@cache
def _axe() -> str:
    return (NODE / "node_modules/axe-core/axe.min.js").read_text()


@pytest.fixture(scope="session")
def visitors() -> Iterator[Visitors]:
    """The browser, started once."""
    if CHROMIUM is None:
        pytest.skip("this machine has no chromium")
    require_clients()
    expect.set_options(timeout=WAIT * 1000)
    with asyncio.Runner() as runner:
        playwright = runner.run(async_playwright().start())
        try:
            browser = runner.run(playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS)))
            yield Visitors(runner, browser)
            runner.run(browser.close())
        finally:
            with suppress(TimeoutError):  # its driver did not end once, long after all tests had passed
                runner.run(asyncio.wait_for(playwright.stop(), WAIT))

"""A real browser for tests: Debian's Chromium, driven by playwright. Without it, the tests that need it are skipped."""

import importlib.util
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.draws import drawing

PATHS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)
THEMES = ("light", "dark")
SIZES = {"phone": (320, 640), "desk": (1440, 900), "wall": (3840, 2160)}
MARKUP = "<img src=x onerror=document.title='owned'>"  # a hostile name or value
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"  # pixels; 0 if the page fits
PATIENCE = 120_000  # milliseconds that a page may take: other tests run at the same time


def chromium() -> str | None:
    """Return the path of Chromium: next to Python, where `.ci/run` installs it, or on the path; None if it is
    missing."""
    beside = Path(os.sys.executable).parent / "chromium-unpacked" / "chromium"  # type: ignore[attr-defined]
    return str(beside) if beside.exists() else next(filter(None, map(shutil.which, PATHS)), None)


def need_browser() -> None:
    """Skip the test if there is no browser."""
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("no playwright: uv pip install playwright")
    if chromium() is None:
        pytest.skip("no Chromium: apt-get install chromium")


@dataclass
class Seen:
    """The complaints of a browser, and the addresses that it loaded."""

    complaints: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def read(self, message: Any) -> None:
        """Keep a message of the browser's log, unless it is unimportant."""
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)


class Shared:
    """The browser that the tests of an event loop share. It starts with the first of them that needs it."""

    now: "Shared | None" = None

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._running: Any = None

    async def get(self) -> Any:
        if self._running is None or not self._running.is_connected():
            self._running = await self._stack.enter_async_context(started())
        return self._running

    async def __aenter__(self) -> None:
        Shared.now = self

    async def __aexit__(self, *_: object) -> None:
        Shared.now = None
        await self._stack.aclose()


@asynccontextmanager
async def browser() -> AsyncIterator[Any]:
    """A browser without pages: the shared one, if there is one. Starting another takes a second of processor time."""
    if Shared.now is None:
        async with started() as running:
            yield running
        return
    running = await Shared.now.get()
    try:
        yield running
    finally:
        for context in running.contexts:  # of a test that failed
            await context.close()


@asynccontextmanager
async def started() -> AsyncIterator[Any]:
    from playwright.async_api import async_playwright

    async with async_playwright() as driver:
        running = await driver.chromium.launch(
            executable_path=chromium(), headless=True, args=list(FLAGS), timeout=120_000
        )
        yield running
        await running.close()


@asynccontextmanager
async def opened(
    running: Any, *, theme: str = "light", size: str = "desk", seen: Seen | None = None
) -> AsyncIterator[Any]:
    """Open an empty page in a context of its own. `seen` collects the complaints of the browser."""
    width, height = SIZES[size]
    context = await running.new_context(color_scheme=theme, viewport={"width": width, "height": height})
    page = await context.new_page()
    page.set_default_timeout(PATIENCE)
    if seen is not None:
        page.on("console", seen.read)
        page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        page.on("request", lambda request: seen.loaded.append(request.url))
        await page.add_init_script(
            "document.addEventListener('securitypolicyviolation',"
            " (e) => console.error('policy: ' + e.violatedDirective + ' ' + e.blockedURI))"
        )
    yield page
    await context.close()


def in_each_look(test: Callable[..., Any]) -> Callable[..., Any]:
    """Run a test, with the arguments `theme` and `size`, in all sizes and in both themes. Each run draws which size has
    which theme."""
    first = drawing(f"theme of {test.__module__}.{test.__name__}").randrange(len(THEMES))
    looks = [(THEMES[(first + at) % len(THEMES)], size) for at, size in enumerate(SIZES)]
    drawn: Callable[..., Any] = pytest.mark.parametrize(("theme", "size"), looks)(test)
    return drawn


async def check_pages(running: Any, pages: Iterable[tuple[str, str]], *, theme: str, size: str) -> Seen:
    """Open pages one after another, each until it shows its sign, a selector. Check that they fit into the window, that
    hostile texts stay texts, and that the browser has no complaint."""
    seen = Seen()
    async with opened(running, theme=theme, size=size, seen=seen) as page:
        for address, sign in pages:
            await page.goto(address)
            await page.wait_for_selector(sign)
            await page.wait_for_selector(".loading", state="detached")
            await check_page(page)
    assert seen.complaints == []
    return seen


async def check_page(page: Any) -> None:
    """Check that a page fits into the window, and that hostile texts stay texts."""
    wide = await page.evaluate(WIDER)
    assert wide <= 0, f"{page.url} is {wide} pixels wider than the window"
    assert await page.locator("main img, main script").count() == 0
    assert await page.title() != "owned"

"""A real browser for tests: Debian's Chromium, driven by playwright. Without it, the tests that need it are skipped."""

import importlib.util
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

PATHS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)
SIZES = {"phone": (320, 640), "desk": (1440, 900), "wall": (3840, 2160)}


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


@asynccontextmanager
async def browser() -> AsyncIterator[Any]:
    from playwright.async_api import async_playwright

    async with async_playwright() as driver:
        running = await driver.chromium.launch(executable_path=chromium(), headless=True, args=list(FLAGS))
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
    page.set_default_timeout(30_000)
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

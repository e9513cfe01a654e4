"""Takes the pictures of the tutorial: `uv run python -m tests.docs.pictures [FOLDER]`.

Without a folder, it replaces those in `deploy/docs/pictures`. On an installation of its own, it does in a real browser
what `deploy/docs/tutorial.md` tells the reader to do, beginning with the commands of the page. Each picture is taken in
both themes, as WebP; the browser itself encodes them.
"""

import base64
import logging
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import structlog

from rebaser.testing import local_rebaser
from tests.docs.pages import DOCS, split
from tests.support.browser import browser
from tests.support.commands import rebaser
from tests.support.web_console import web_console

TUTORIAL = DOCS / "tutorial.md"
PICTURES = DOCS / "pictures"
WIDTH, HEIGHT, SCALE, QUALITY = 1000, 1200, 1.5, 0.82
MARGIN = 24  # pixels below the last thing that a picture shows
ENCODE = """async ([png, quality]) => {
  const image = new Image();
  image.src = "data:image/png;base64," + png;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height);
  canvas.getContext("2d").drawImage(image, 0, 0);
  const webp = await canvas.convertToBlob({ type: "image/webp", quality });
  const bytes = new Uint8Array(await webp.arrayBuffer());
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
}"""


def commands() -> list[list[str]]:
    """Return the arguments of the `rebaser` commands that the tutorial gives before it turns to the console."""
    texts = [block.text for block in split(TUTORIAL)[1] if (block.language, block.tag) == ("bash", "")]
    lines = "".join(texts).replace("\\\n", "").splitlines()
    return [shlex.split(line.removeprefix("uv run rebaser ")) for line in lines]


class Camera:
    """Takes pictures of `page` into `folder`. `encoder` is an empty page that encodes them."""

    def __init__(self, page: Any, encoder: Any, folder: Path) -> None:
        self._page, self._encoder, self._folder = page, encoder, folder

    async def take(self, name: str, last: Any) -> None:
        """Take a picture from the top of the page to the end of the element `last`, in both themes."""
        page = self._page
        await page.wait_for_selector(".loading", state="detached")
        box = await last.bounding_box()
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": min(box["y"] + box["height"] + MARGIN, HEIGHT)}
        for theme in ("light", "dark"):
            await page.emulate_media(color_scheme=theme)
            await page.wait_for_timeout(300)  # colours fade
            png = base64.b64encode(await page.screenshot(clip=clip)).decode()
            webp = base64.b64decode(await self._encoder.evaluate(ENCODE, [png, QUALITY]))
            await anyio.Path(self._folder / f"{name}-{theme}.webp").write_bytes(webp)


async def story(page: Any, camera: Camera, url: str) -> None:
    """Follow the tutorial, from the change set to the applied branch."""
    await page.goto(f"{url}/change-sets")
    await page.get_by_role("link", name="shop/main").click()
    await page.get_by_role("link", name="In error").click()
    await page.wait_for_selector("tr:has-text('subtotal')")
    await camera.take("errors", page.get_by_role("table"))
    await page.get_by_role("link", name="total", exact=True).click()
    await page.wait_for_selector("h2:has-text('total')")
    await camera.take("cause", page.locator("details", has_text="Edit this value"))
    await page.get_by_role("link", name="coffee", exact=True).first.click()
    await page.get_by_role("region", name="Inputs").get_by_role("link", name="coffee_price").click()
    await page.get_by_text("Edit this value").click()
    await page.get_by_label("Value, as JSON").fill("7.9")
    await page.get_by_label("On a new branch named").fill("fix-coffee")
    await page.get_by_label("Author").fill("ann")
    await page.get_by_label("Why").fill("the price is a number")
    await camera.take("edit", page.locator("details", has_text="Edit this value"))
    await page.get_by_role("button", name="Save").click()
    await page.wait_for_url("**/fix-coffee/changes?derived=yes")
    await page.wait_for_selector("h2:has-text('3 derived values')")
    await camera.take("changes", page.get_by_role("table").last)
    await page.get_by_role("button", name="Apply 1 change").click()
    await page.wait_for_selector("text=Applied to main in commit")
    await page.wait_for_selector("text=The branch is closed")
    await camera.take("applied", page.get_by_text("The branch is closed"))


async def take_all(url: str, folder: Path) -> None:
    """Take all pictures with the console of the installation at the NATS address `url`."""
    for arguments in commands():
        done = await rebaser(*arguments, nats_url=url)
        assert done.returncode == 0, done.stderr
    async with web_console(url, actions=True) as console, browser() as running:
        size = {"width": WIDTH, "height": HEIGHT}
        context = await running.new_context(viewport=size, device_scale_factor=SCALE, reduced_motion="reduce")
        page, encoder = await context.new_page(), await context.new_page()
        await page.bring_to_front()
        page.set_default_timeout(60_000)
        await story(page, Camera(page, encoder, folder), console.url)


def main(folder: Path) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    folder.mkdir(parents=True, exist_ok=True)
    with local_rebaser(quiescent_period=2) as installation:
        anyio.run(partial(take_all, installation.url, folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES)

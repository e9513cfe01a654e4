"""The live screen of `rebaser top`.

Invariant: when the command ends, for whatever reason, the terminal's previous content, cursor and echo are restored.
"""

import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import anyio
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rebaser.cli.output import console
from rebaser.cli.output.keyboard import keyboard, read_keys
from rebaser.cli.output.top_view import TopScreen, render
from rebaser_core.errors import RebaserError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rebaser_client import RebaserClient
    from rebaser_client.admin.explanations import Explanation
    from rebaser_client.admin.fleet import FleetView


class LiveTop:
    """A screen that is redrawn when there is a new view, after each key, and when the terminal is resized."""

    def __init__(self, client: "RebaserClient", workspace: str | None, interval: float, nats: str) -> None:
        self._client = client
        self._workspace = workspace
        self._interval = interval
        where = nats.rpartition("@")[2]  # without a user name and password
        self._title = f"rebaser top  {where}{'' if workspace is None else f'  {workspace}'}"
        self._screen = TopScreen()
        self._view: FleetView | None = None
        self._problem = ""
        self._over: RenderableType | None = None  # a view that replaces the table, such as an explanation
        self._asking: anyio.CancelScope | None = None
        self._soon = anyio.Event()
        self._live: Live

    async def run(self) -> None:
        """Show the screen until the user quits. Raise `RebaserError` if the first view cannot be read."""
        async with self._client.fleet(self._workspace) as fleet:
            # Read the first view before the screen opens, so that an error stays visible.
            self._view = await fleet.look()
            with ExitStack() as stack:
                descriptor = stack.enter_context(keyboard())
                self._live = stack.enter_context(
                    Live(console=console.out(), screen=True, auto_refresh=False, redirect_stderr=False)
                )
                async with anyio.create_task_group() as group:
                    group.start_soon(self._resized)
                    if descriptor is not None:
                        group.start_soon(self._keys, descriptor, group)
                    pause = min(1.0, self._interval)  # show the first rates soon; they need a second view
                    while True:
                        self._draw()
                        self._soon = anyio.Event()
                        with anyio.move_on_after(pause):
                            await self._soon.wait()
                        pause = self._interval
                        try:
                            self._view = await fleet.look(self._screen.selected)
                            self._problem = ""
                        except RebaserError as error:
                            self._problem = f"nothing newer since {_clock(self._view.at)}: {error.message}"

    async def _keys(self, descriptor: int, group: anyio.abc.TaskGroup) -> None:
        async for key in read_keys(descriptor):
            if self._over is not None and key not in ("q", "Q"):
                self._close()
                continue
            action = self._screen.press(key)
            if action == "quit":
                group.cancel_scope.cancel()
                return
            if action == "explain":
                group.start_soon(self._explain)
            elif action == "draw":
                if key in ("up", "down", "pageup", "pagedown"):
                    self._soon.set()  # ask the servers about the selected change set
                self._draw()

    def _close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
        self._over = None
        self._draw()

    async def _explain(self) -> None:
        key = self._screen.selected
        if key is None:
            return
        name = f"{key.workspace}/{key.change_set}"
        self._show(name, Text("asking NATS and the servers…", "dim"))
        with anyio.CancelScope() as self._asking:
            try:
                explanation = await self._client.explain(key.workspace, key.change_set)
            except RebaserError as error:
                self._show(name, Text(console.safe(error.message), "bold red"))
            else:
                self._show(name, _reasons(explanation))

    def _show(self, name: str, what: "RenderableType") -> None:
        hint = Text("any key: back   q quit", "dim")
        self._over = Group(Text(console.safe(f"why {name} waits"), "bold"), Text(), what, Text(), hint)
        self._draw()

    async def _resized(self) -> None:
        with anyio.open_signal_receiver(signal.SIGWINCH) as signals:
            async for _ in signals:
                self._draw()

    def _draw(self) -> None:
        if self._over is not None:
            self._live.update(self._over, refresh=True)
        elif self._view is not None:
            title = f"{self._title}  {_clock(self._view.at)}  every {self._interval:g} s"
            height = console.out().height
            shown = render(self._view, self._screen, title, self._problem, height)
            self._live.update(shown, refresh=True)


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def _reasons(explanation: "Explanation") -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 1, 0), header_style="bold dim")
    for title in ("REASON", "SITUATION", "WHAT TO DO"):
        grid.add_column(title, overflow="fold")
    for reason in explanation.reasons:
        grid.add_row(*(Text(console.safe(cell)) for cell in (reason.code, reason.text, reason.advice)))
    return grid

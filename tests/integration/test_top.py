"""`rebaser top`, and the watch behind it, on a real server: waiting, active and idle change sets; the screen, the
keys."""

import os
import pty
import select
import signal
import subprocess
import termios
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest
from anyio import to_thread

from rebaser_client import RebaserClient, Set
from rebaser_client.admin.fleet import ActiveChangeSet, FleetView
from rebaser_client.admin.fleet_watch import FleetWatch
from rebaser_client.jetstream import JetStream
from rebaser_core.streams.subjects import Subjects
from tests.support.commands import ROOT, command, environment, rebaser, rebaser_json
from tests.support.owners import DOUBLE, Engine, serving

pytestmark = [pytest.mark.anyio]

LONGEST = 120.0


@pytest.fixture
async def client(topology: object, nats_url: str, subjects: Subjects) -> AsyncIterator[RebaserClient]:
    async with RebaserClient.connect(nats_url, prefix=subjects.prefix) as client:
        yield client


async def until(fleet: FleetWatch, holds: Callable[[FleetView], bool]) -> FleetView:
    view: FleetView | None = None
    try:
        with anyio.fail_after(LONGEST):
            while True:
                view = await fleet.look()
                if holds(view):
                    return view
    except TimeoutError:
        raise AssertionError(view) from None


def row(view: FleetView, change_set: str) -> ActiveChangeSet | None:
    return next((one for one in view.change_sets if one.change_set == change_set), None)


def activity(view: FleetView, change_set: str) -> str:
    found = row(view, change_set)
    return "" if found is None else found.activity


async def test_an_early_look_shows_new_commits_and_the_next_look_counts_them(
    client: RebaserClient, js: JetStream, subjects: Subjects
) -> None:
    async with serving(js, subjects, Engine()), client.fleet() as fleet:
        assert await fleet.look_early(100) is None, "there was no look before it"
        await client.enqueue_updates_with_reply("ws", "old", [Set("a", 1)])
        await fleet.look()
        assert await fleet.look_early(100) is None
        for _ in range(3):
            await client.enqueue_updates_with_reply("ws", "new", [Set("a", 1)])
        assert await fleet.look_early(2) is None, "these are more than a few"
        early = await fleet.look_early(100)
        assert early is not None
        assert {one.change_set for one in fleet.change_sets()} == {"old", "new"}
        found = row(early, "new")
        assert found is not None
        assert found.commits_per_second > 0
        assert (early.total, activity(early, "new")) == (2, "busy")
        assert await fleet.look_early(100) is None
        view = await fleet.look()
        assert view.commits_per_second * view.seconds == pytest.approx(3)


async def test_it_follows_a_change_set_from_its_first_request_until_it_is_at_rest(
    client: RebaserClient, js: JetStream, subjects: Subjects
) -> None:
    engine = Engine()
    async with client.fleet() as fleet, client.fleet("other") as elsewhere:
        assert (await fleet.look()).total == 0
        await client.enqueue_updates("ws", "cs", [Set("a", 1), DOUBLE])
        rates: list[float] = []  # the queues are not counted at each refresh

        def waits(view: FleetView) -> bool:
            rates.append(view.requests_per_second)
            return activity(view, "cs") == "waiting"

        view = await until(fleet, waits)
        assert max(rates) > 0
        assert (view.requests, view.total, view.servers) == (1, 1, [])
        await until(fleet, lambda view: view.change_sets[0].waiting > 0 and view.oldest_request > 0)
        async with serving(js, subjects, engine, quiescent_period=1, sweep_interval=0.5):
            view = await until(fleet, lambda view: activity(view, "cs") == "due")
            found = row(view, "cs")
            assert found is not None
            assert (found.pending, found.has_task, found.last_commit > 0) == (0, True, True)
            assert (found.owner, found.errors) == ("test", 0)
            engine.go.set()
            await client.enqueue_updates_with_reply("ws", "cs", [Set("a", "no number")])
            await until(fleet, lambda view: (found := row(view, "cs")) is not None and found.errors == 1)
            assert [(info.owner, info.errors) for info in fleet.change_sets()] == [("test", 1)]
            overview = await client.status()
            assert [(one.owner, one.errors) for one in overview.change_sets] == [("test", 1)]
            for number in range(3):
                await client.enqueue_updates_with_reply("ws", "cs", [Set("a", number)])
            view = await until(fleet, lambda view: view.commits_per_second > 0)
            assert activity(view, "cs") in ("busy", "due")
            view = await until(fleet, lambda view: not view.change_sets)
        assert (view.total, view.requests, view.dead_letters) == (1, 0, 0)
        assert (await elsewhere.look()).total == 0


async def test_it_goes_on_after_the_streams_were_made_anew(
    client: RebaserClient, js: JetStream, subjects: Subjects
) -> None:
    async with client.fleet() as fleet:
        async with serving(js, subjects, Engine()):
            await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
        assert (await until(fleet, lambda view: view.total == 1)).total == 1
        config = (await js.stream_info(subjects.commits_stream)).config
        await js.delete_stream(subjects.commits_stream)
        with anyio.fail_after(LONGEST):
            while (await fleet.look()).total:
                pass
        await js.add_stream(config)
        async with serving(js, subjects, Engine()):
            await client.enqueue_updates_with_reply("ws", "new", [Set("a", 1)])
            await until(fleet, lambda view: view.total == 1)


@pytest.fixture
def where(nats_url: str, subjects: Subjects) -> dict[str, Any]:
    return {"nats_url": nats_url, "prefix": subjects.prefix}


async def test_programs_get_lines(client: RebaserClient, where: dict[str, Any]) -> None:
    await client.enqueue_updates("ws", "cs", [Set("a", 1)])
    ended = await rebaser("top", "--once", "--interval", "1", **where)
    assert ended.returncode == 0
    assert "1 of 1 change sets at work   1 wait" in ended.stdout
    rows = [line.split("\t")[:3] for line in ended.stdout.splitlines() if line.startswith("ws/")]
    assert rows == [["ws/cs", "waiting", "1"]]
    assert "no server answers" in ended.stderr
    [shown] = await rebaser_json("top", "ws", "--once", "--interval", "1", **where)
    assert [(one["changeSetId"], one["state"], one["pending"]) for one in shown["changeSets"]] == [("cs", "waiting", 1)]


async def test_without_nats_it_says_so() -> None:
    ended = await rebaser("top", nats_url="nats://127.0.0.1:1")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "no connection to NATS" in ended.stderr


class Terminal:
    """`rebaser top` on a pseudo terminal of 80 columns and 24 lines."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.master, self.terminal = pty.openpty()
        termios.tcsetwinsize(self.terminal, (24, 80))
        self.before = termios.tcgetattr(self.terminal)
        self.shown = b""
        self.process = subprocess.Popen(
            command("top", "--interval", "1"),
            stdin=self.terminal,
            stdout=self.terminal,
            stderr=self.terminal,
            cwd=ROOT,
            env=environment(**settings) | {"TERM": "xterm"},
            start_new_session=True,
        )

    def wait(self, words: bytes, after: int = 0) -> int:
        """Wait until `words` are shown after the first `after` bytes, and return the number of bytes shown by then."""
        end = time.monotonic() + LONGEST
        while words not in self.shown[after:]:
            assert time.monotonic() < end, self.shown[-4000:].decode(errors="replace")
            if select.select([self.master], [], [], 0.5)[0]:
                self.shown += os.read(self.master, 65_536)
        return len(self.shown)

    def press(self, keys: bytes) -> int:
        os.write(self.master, keys)
        return len(self.shown)

    def end(self) -> int:
        """End the command, check that the terminal is as before, and return the exit code."""
        end = time.monotonic() + LONGEST
        while self.process.poll() is None:
            assert time.monotonic() < end
            if select.select([self.master], [], [], 0.2)[0]:
                self.shown += os.read(self.master, 65_536)
        while select.select([self.master], [], [], 0.2)[0]:
            self.shown += os.read(self.master, 65_536)
        assert termios.tcgetattr(self.terminal) == self.before
        shown = self.shown
        assert shown.rfind(b"\x1b[?1049l") > shown.rfind(b"\x1b[?1049h") >= 0, "the alternate screen was left"
        assert shown.rfind(b"\x1b[?25h") > shown.rfind(b"\x1b[?25l") >= 0, "the cursor is shown"
        assert b"Traceback" not in shown
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.terminal)


def leave_by_keys(terminal: Terminal) -> int:
    terminal.wait(b"ws/cs")
    terminal.wait(b"sort: urgency")
    terminal.wait(b"sort: queue", terminal.press(b"s"))
    terminal.wait(b"w all", terminal.press(b"w"))
    terminal.wait(b"ws/cs: no server says that it owns it", terminal.press(b"\x1b[B"))
    terminal.wait(b"why ws/cs waits", terminal.press(b"\r"))
    terminal.wait(b"no_server", 0)
    terminal.wait(b"sort: queue", terminal.press(b"x"))
    terminal.press(b"q")
    return terminal.end()


def leave_by_signal(number: int) -> Callable[[Terminal], int]:
    def leave(terminal: Terminal) -> int:
        terminal.wait(b"ws/cs")
        terminal.press(b"\x1a")  # Ctrl-Z, which has no effect
        terminal.wait(b"rebaser top", len(terminal.shown))
        terminal.process.send_signal(number)
        return terminal.end()

    return leave


Leave = Callable[[Terminal], int]


@pytest.mark.parametrize(
    ("leave", "code"), [(leave_by_keys, 0), (leave_by_signal(signal.SIGINT), 0), (leave_by_signal(signal.SIGTERM), 143)]
)
async def test_the_terminal_is_as_it_was_before(
    client: RebaserClient, where: dict[str, str], leave: Leave, code: int
) -> None:
    await client.enqueue_updates("ws", "cs", [Set("a", 1)])
    terminal = Terminal(where)
    try:
        assert await to_thread.run_sync(leave, terminal) == code
    finally:
        terminal.close()

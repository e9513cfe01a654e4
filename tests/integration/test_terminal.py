"""The commands about history on a terminal: with and without a pager and colours, and their questions."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import anyio
import pytest
from anyio import from_thread, to_thread

from rebaser_client import DeadLetter, RebaserClient, Set
from rebaser_client.jetstream import JetStream
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

ROOT = Path(__file__).parents[2]
OnTerminal: TypeAlias = Callable[..., Awaitable[tuple[int, str]]]


@pytest.fixture
async def client(js: JetStream, subjects: Subjects, nats_url: str) -> AsyncIterator[RebaserClient]:
    async with serving(js, subjects, Engine()), RebaserClient.connect(nats_url, prefix=subjects.prefix) as client:
        for number in range(3):
            await client.enqueue_updates_with_reply("ws", "cs", [Set("price", number)], author="ann", message="why")
        yield client


Answer: TypeAlias = bytes | Callable[[], bytes] | None


def run_on_terminal(command: list[str], answer: Answer, environment: dict[str, str]) -> tuple[int, str]:
    """Run a command on a terminal, and return its exit code and its output. `answer` is typed at each question;
    with None, it gets a SIGINT then."""
    master, terminal = os.openpty()
    with subprocess.Popen(
        *(command,),
        **dict.fromkeys(("stdin", "stdout", "stderr"), terminal),  # type: ignore[call-overload] # descriptors
        cwd=ROOT,
        env=os.environ | environment,
    ) as process:
        os.close(terminal)
        shown, asked = b"", 0
        with suppress(OSError):  # raised when all processes that had the terminal open have ended
            while True:
                if not select.select([master], [], [], 1.0)[0]:
                    if asked and answer is None:  # Python misses a signal that comes just before it reads a line
                        process.send_signal(signal.SIGINT)
                    continue
                data = os.read(master, 65536)
                if not data:
                    break
                shown += data
                if shown.count(b"[y/N]") > asked:
                    asked += 1
                    if answer is None:
                        process.send_signal(signal.SIGINT)
                    else:
                        os.write(master, answer() if callable(answer) else answer)
        code = process.wait(240)
    os.close(master)
    return code, shown.decode()


@pytest.fixture
def on_terminal(nats_url: str, subjects: Subjects) -> OnTerminal:
    where = {"REBASER_NATS_URL": nats_url, "REBASER_PREFIX": subjects.prefix, "TERM": "xterm", "COLUMNS": "120"}

    async def run(*arguments: str, answer: Answer = b"", **environment: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "rebaser", *arguments]
        with anyio.fail_after(240):
            return await to_thread.run_sync(run_on_terminal, command, answer, where | environment)

    return run


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    "arguments", [("log", "ws", "cs"), ("show", "ws", "cs"), ("diff", "ws", "cs@1"), ("blame", "ws", "cs", "price")]
)
async def test_a_pager_shows_it_unless_nobody_wants_it(
    on_terminal: OnTerminal, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    pager = tmp_path / "pager"
    pager.write_text('#!/bin/sh\necho "paged with $LESS"\ncat\n')
    pager.chmod(0o700)
    code, plain = await on_terminal(*arguments, "--no-pager", PAGER=str(pager))
    assert (code, "paged" in plain, "\x1b[" in plain) == (0, False, True)
    code, paged = await on_terminal(*arguments, PAGER=str(pager))
    assert (code, paged) == (0, f"paged with FRX\r\n{plain}")
    # The code is the same for all commands.
    for none in ("", "cat", "no-such-program", "'") if arguments[0] == "log" else ():
        assert await on_terminal(*arguments, PAGER=none) == (0, plain)
    code, json = await on_terminal(*arguments, "--json", PAGER=str(pager))
    assert (code, json[0], "paged" in json, "\x1b" in json) == (0, "{", False, False)
    _, colourless = await on_terminal(*arguments, "--no-pager", NO_COLOR="1")
    assert not {f"\x1b[{number}m" for number in range(31, 37)} & set(colourless.split("m")), "no colours"
    assert "\x1b[3" not in colourless.replace("\x1b[3m", "")


@pytest.mark.usefixtures("client")
async def test_a_pager_shows_branches(on_terminal: OnTerminal, tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho paged\ncat\n")
    pager.chmod(0o700)
    code, plain = await on_terminal("branches", "ws", "--no-pager", PAGER=str(pager))
    assert (code, "paged" in plain, "last commit" in plain) == (0, False, True)
    code, paged = await on_terminal("branches", "ws", PAGER=str(pager))
    assert (code, paged.splitlines()[0], "last commit" in paged) == (0, "paged", True)


@pytest.mark.usefixtures("client")
async def test_a_pager_that_ends_early_is_no_failure(on_terminal: OnTerminal) -> None:
    assert await on_terminal("log", "ws", "cs", PAGER="true") == (0, "")


async def test_what_was_shown_is_applied_and_no_later_edit(client: RebaserClient, on_terminal: OnTerminal) -> None:
    await client.create_branch("ws", "fix", "cs")
    await client.enqueue_updates_with_reply("ws", "fix", [Set("price", 10)])

    async def edit() -> bytes:
        await client.enqueue_updates_with_reply("ws", "fix", [Set("price", 987654321)])
        return b"y\n"

    code, shown = await on_terminal("apply", "ws", "fix", answer=lambda: from_thread.run(edit), NO_COLOR="1")
    assert code == 0, shown
    assert "987654321" not in shown
    value = await client.value("ws", "cs", "price")
    assert value is not None
    assert value.value == 10


async def test_an_edit_elsewhere_in_the_target_needs_no_second_confirmation(
    client: RebaserClient, on_terminal: OnTerminal
) -> None:
    await client.create_branch("ws", "fix", "cs", follow="manual")
    await client.enqueue_updates_with_reply("ws", "fix", [Set("price", 10)])

    async def edit() -> bytes:
        await client.enqueue_updates_with_reply("ws", "cs", [Set("other", 1)])
        return b"y\n"

    code, shown = await on_terminal("apply", "ws", "fix", answer=lambda: from_thread.run(edit), NO_COLOR="1")
    assert (code, shown.count("[y/N]")) == (0, 1), shown
    assert "cs was edited meanwhile: rebasing fix again" in shown
    for id_, wanted in (("price", 10), ("other", 1)):
        value = await client.value("ws", "cs", id_)
        assert value is not None
        assert value.value == wanted


async def test_undo_shows_what_it_does_and_asks(client: RebaserClient, on_terminal: OnTerminal) -> None:
    undo = ("undo", "ws", "cs", "--author", "ann")
    code, shown = await on_terminal(*undo, answer=b"n\n", NO_COLOR="1")
    assert code == 1
    assert "by ann, commit 3" in shown
    assert "after the undo" in shown
    assert "not confirmed: nothing was reverted" in shown
    code, shown = await on_terminal(*undo, answer=None)
    assert code == 130
    assert "Traceback" not in shown
    code, shown = await on_terminal(*undo, answer=b"y\n")
    assert (code, "commit 4: 1 update" in shown) == (0, True)
    value = await client.value("ws", "cs", "price")
    assert value is not None
    assert value.value == 1


async def test_undo_in_a_closed_change_set_asks_nothing(client: RebaserClient, on_terminal: OnTerminal) -> None:
    await client.close_change_set("ws", "cs")
    code, shown = await on_terminal("undo", "ws", "cs", "--author", "ann", answer=b"y\n")
    assert (code, "revert this request?" in shown) == (1, False)
    assert "`rebaser reopen ws cs` opens it again" in shown


@pytest.mark.parametrize(("verb", "done"), [("redrive", "redriven"), ("drop", "dropped")])
async def test_dead_letters_are_kept_until_their_number_is_confirmed(
    client: RebaserClient, js: JetStream, subjects: Subjects, on_terminal: OnTerminal, verb: str, done: str
) -> None:
    for _ in range(2):
        await js.publish(subjects.requests(ChangeSetKey("ws", "cs")), b"no request", {})
    with anyio.fail_after(60):
        while len(await letters(client)) < 2:  # noqa: ASYNC110 - no event tells of them
            await anyio.sleep(0.05)
    code, shown = await on_terminal("dlq", verb, "ws", answer=b"n\n")
    assert (code, f"not confirmed: nothing was {done}" in shown) == (1, True)
    code, shown = await on_terminal("dlq", verb, "ws", answer=None)
    assert (code, "Traceback" in shown) == (130, False)
    assert len(await letters(client)) == 2
    code, shown = await on_terminal("dlq", verb, "ws", answer=b"y\n")
    assert (code, f"{done} 2" in shown) == (0, True)


async def letters(client: RebaserClient) -> list[DeadLetter]:
    return [letter async for letter in client.dead_letters.find("ws", "cs")]


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    "arguments",
    [
        ("log", "ws", "cs", "--all"),
        ("show", "ws", "cs"),
        ("diff", "ws", "cs@1"),
        ("blame", "ws", "cs", "price"),
        ("log", "ws", "cs", "--json"),
    ],
)
async def test_a_reader_that_goes_away_ends_it_quietly(
    nats_url: str, subjects: Subjects, arguments: tuple[str, ...]
) -> None:
    read, write = os.pipe()
    os.close(read)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rebaser", *arguments, "--nats", nats_url, "--prefix", subjects.prefix),
        stdout=write,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    os.close(write)
    _, err = await process.communicate()
    assert (process.returncode, err) == (1, b"")

"""Every code block of the guide runs, or says why it does not.

The words after the opening fence of a block say what it is:

| block | what is done with it |
|---|---|
| `bash` | run by a shell, beside a server |
| `bash server` | the server beside which the others run |
| `text output` | compared with the last output of the `bash` block before it |
| `python` | run; it may await |
| `json updates` | sent as a file of updates |
| `text request` | sent as a message: headers, an empty line, the body |
| `json answer` | compared with the answer to the request before it, except for the number of the commit |
| `text` | a drawing, which is not checked |
| `… not run: why` | not run |
"""

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio
import nats
import pytest
from anyio.to_thread import run_sync

from tests.docs.pages import GUIDE, ROOT, Block, split
from tests.support.commands import environment

pytestmark = pytest.mark.anyio

RUN = {"bash", "bash server", "text output", "python", "json updates", "text request", "json answer"}
URL = "nats://127.0.0.1:4222"


def blocks(*kinds: str) -> list[Block]:
    found = [block for page in GUIDE for block in split(page)[1]]
    return [block for block in found if f"{block.language} {block.tag}".strip() in kinds]


def name(block: Block) -> str:
    return block.name


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of the server for the guide. It computes in its own process, because no block needs Spark."""
    folder = tmp_path_factory.mktemp("dev")
    [block] = blocks("bash server")
    assert block.text == "uv run rebaser dev\n"
    server = [sys.executable, "-m", "tests.support.sparkless_server", "dev"]
    with subprocess.Popen(
        [*server, "--port", "0", "--data", str(folder), "--spark", "sc://127.0.0.1:1"],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            ready = ""
            for line in process.stdout:
                if line.startswith("ready nats="):
                    ready = line.partition("=")[2].strip()
                if line.startswith("warm"):
                    break
            assert ready
            yield ready
        finally:
            process.terminate()
            process.communicate()


def text_of(block: Block, url: str) -> str:
    """Return the text of a block, with the server's URL and a workspace that no other page uses."""
    mine = re.sub(r"\W", "-", str(block.page.relative_to(ROOT)))
    return re.sub(r"\bshop\b", f"shop-{mine}", block.text.replace(URL, url))


async def shell(text: str, url: str, folder: Path) -> str:
    """Run `text` in a shell in which `rebaser` is the tested version, and return its output."""
    rebaser = folder / "rebaser"
    rebaser.write_text(f'#!/bin/sh\nexec {sys.executable} -m rebaser "$@"\n')
    rebaser.chmod(0o755)
    env = environment(nats_url=url)
    env |= {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    with anyio.fail_after(240):
        done = await anyio.run_process(
            ["bash", "-euo", "pipefail", "-c", text.replace("uv run rebaser", "rebaser")],
            cwd=folder,
            env=env,
            check=False,
        )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_every_block_says_what_is_done_with_it() -> None:
    for page in GUIDE:
        for block in split(page)[1]:
            kind = f"{block.language} {block.tag}".strip()
            reason = re.fullmatch(r"[a-z]+ not run: \w.{8,}", kind)
            assert kind in RUN or kind == "text" or reason, f"{block.name}: {kind!r}"


@pytest.mark.parametrize("page", sorted({block.page for block in blocks("bash")}), ids=lambda page: page.name)
async def test_a_session_runs_and_prints_what_is_shown(page: Path, url: str, tmp_path: Path) -> None:
    printed = ""
    for block in split(page)[1]:
        if block.language == "bash" and not block.tag:
            printed = await shell(text_of(block, url), url, tmp_path)
        elif block.tag == "output":
            shown = [line.split() for line in block.text.splitlines()]
            assert [line.split() for line in printed.splitlines()][-len(shown) :] == shown, block.name


@pytest.mark.parametrize("block", blocks("python"), ids=name)
async def test_a_program_runs(block: Block, url: str) -> None:
    program = compile(text_of(block, url), block.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with anyio.fail_after(240):
        # A program without `await` may block, so it runs in a thread.
        run = partial(eval, program, {"__name__": "program"})
        await (run() if program.co_flags & inspect.CO_COROUTINE else run_sync(run))


@pytest.mark.parametrize("block", blocks("json updates"), ids=name)
async def test_updates_are_taken(block: Block, url: str, tmp_path: Path) -> None:
    (tmp_path / "updates.jsonl").write_text(block.text)
    await shell("rebaser enqueue json updates --file updates.jsonl --wait derived", url, tmp_path)


@pytest.mark.parametrize("block", blocks("text request"), ids=name)
async def test_a_message_is_answered(block: Block, url: str) -> None:
    head, _, body = text_of(block, url).partition("\n\n")
    headers = dict(line.split(": ", 1) for line in head.splitlines())
    workspace = re.findall(r'"workspaceId": "([\w-]+)"', body)[0]
    connection = await nats.connect(url)
    try:
        headers["X-Reply-Inbox"] = connection.new_inbox()
        replies = await connection.subscribe(headers["X-Reply-Inbox"])
        await connection.jetstream().publish(f"rebaser.requests.{workspace}.main", body.encode(), headers=headers)
        await connection.publish(f"rebaser.tasks.{workspace}.main.process", b"")
        answer = await replies.next_msg(timeout=240)
    finally:
        await connection.close()
    [shown] = [other for other in blocks("json answer") if other.page == block.page]
    expected, given = json.loads(text_of(shown, url)), json.loads(answer.data)
    expected["v1"]["status"]["success"]["commit"] = given["v1"]["status"]["success"]["commit"]
    assert given == expected

"""A nats-server with the accounts of deploy/accounts.conf, and the settings of each of its users."""

import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import pytest

from rebaser.cli.commands.running.init import _init
from rebaser.embedded.nats import DIE_WITH_PARENT, find_binary
from rebaser.runtime import context
from rebaser.serving import serve
from rebaser.settings import Settings, load_settings
from rebaser.testing.in_process import InProcessEngine

FILE = Path(__file__).parents[2] / "deploy" / "accounts.conf"
USERS = ("server", "operator", "app", "editor", "reader")
OUTSIDE = ("app", "editor", "reader")  # users that have accounts of their own
# Prefix of the name of an additional user of the same account, whom no permission restricts.
WITHOUT_PERMISSIONS = "loose_"
START = 60.0  # seconds; a bound against hanging


def password(user: str) -> str:
    return f"secret-of-{user}"


def settings_of(user: str, **more: str) -> dict[str, str]:
    """Return the settings of a user as environment variables, as the guide gives them, together with those in
    `more`."""
    role = user.removeprefix(WITHOUT_PERMISSIONS)
    given = more | {"nats_user": user, "nats_password": password(user)}
    if role == "server":
        return given | {"inbox_prefix": "_INBOX.server", "reply_prefix": "_INBOX.clients", "create_streams": "false"}
    given["inbox_prefix"] = f"_INBOX.clients.{role}"
    return given | ({"nats_domain": "rebaser"} if role in ("editor", "reader") else {})


def settings(user: str, url: str, **more: str) -> Settings:
    return load_settings(nats_url=url, **settings_of(user), **more)


def rights() -> dict[str, set[tuple[str, str]]]:
    """Return the rights of each user in the file, as pairs of "publish" or "subscribe" and a pattern."""
    found = {}
    for user, text in re.findall(r"user: (\w+), (.*?)(?=user: |\Z)", FILE.read_text(), re.DOTALL):
        found[user] = {
            (operation, pattern)
            for operation, patterns in re.findall(r"(publish|subscribe): \{ allow: \[(.*?)\]", text, re.DOTALL)
            for pattern in re.findall(r'"(.*?)"', patterns)
        }
    return found


@contextmanager
def nats_with_accounts(folder: Path, port: int) -> Iterator[str]:
    """Start a nats-server and yield its URL. Each account has one more user, without permissions."""
    folder.mkdir(parents=True, exist_ok=True)
    loose = re.sub(
        r"users: \[\s*\{\s*user: (\w+),",
        lambda found: found[0].replace(
            "[",
            f"[ {{ user: {WITHOUT_PERMISSIONS}{found[1]}, password: {password(WITHOUT_PERMISSIONS + found[1])} }}",
            1,
        ),
        FILE.read_text(),
    )
    (folder / "accounts.conf").write_text(loose)
    (folder / "nats.conf").write_text(
        f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{folder}/data" }}\n'
        "authorization { timeout: 60 }\n"  # otherwise, clients of a busy machine may be refused
        "include ./accounts.conf\n"
    )
    environment = {**os.environ, **{f"{user.upper()}_PASSWORD": password(user) for user in USERS}}
    command = [str(find_binary()), "--config", str(folder / "nats.conf")]
    if sys.platform == "linux":
        command = [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid()), *command]
    with (folder / "nats.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
    try:
        began = time.monotonic()
        while b"Server is ready" not in (folder / "nats.log").read_bytes():
            assert process.poll() is None, (folder / "nats.log").read_text()
            assert time.monotonic() < began + START
            time.sleep(0.02)
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(START)


@asynccontextmanager
async def installation_with_accounts(folder: Path, port: int, **more: str) -> AsyncIterator[str]:
    """Run NATS with the streams that an operator has created, and a server with the settings `more` that may create no
    streams. Yield the URL of NATS."""
    with pytest.MonkeyPatch.context() as patch, nats_with_accounts(folder, port) as url:
        patch.setattr(context, "_spark", lambda *_: InProcessEngine())
        await _init(settings("operator", url, sweep_interval="0.5"), check=False)
        ready = anyio.Event()

        async def run() -> None:
            quick = {"checkpoint_bytes": "1024", "sweep_interval": "0.5", "quiescent_period": "0.5"}
            await serve(settings("server", url, **(quick | more)), ready=ready.set)

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await ready.wait()
            yield url
            group.cancel_scope.cancel()

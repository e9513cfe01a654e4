"""The console behind a real nginx that asks for a password: with the configuration of the guide, and with mistakes.

Skipped without nginx; `.ci/run` gets it.
"""

import base64
import getpass
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import anyio
import pytest

from rebaser.console.access.rules import ProxyAccess, read_networks
from rebaser.testing import LocalRebaser
from rebaser_client import RebaserClient, Set
from tests.conftest import Events
from tests.support.web_console import WebConsole, web_console

PLACES = os.pathsep.join((os.environ.get("PATH", ""), str(Path(sys.executable).parent), "/usr/sbin"))
NGINX = shutil.which("nginx", path=PLACES)
GUIDE = Path(__file__).parents[2] / "deploy" / "docs" / "console.md"
LOGIN = {"authorization": "Basic " + base64.b64encode(b"ann:secret").decode()}
TRUSTED = ProxyAccess("X-Forwarded-User", read_networks(["127.0.0.0/8"]))
ELSEWHERE = ProxyAccess("X-Forwarded-User", read_networks(["192.0.2.0/24"]))

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(NGINX is None, reason="no nginx: .ci/run gets it")]


def example() -> str:
    """Return the configuration in the guide."""
    found = re.search(r"```nginx[^\n]*\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    return found.group(1)


@asynccontextmanager
async def nginx(folder: Path, text: str) -> AsyncIterator[None]:
    """Run nginx with the servers of `text`, until the block ends."""
    (folder / "users").write_text("ann:{PLAIN}secret\n")
    temporary = "".join(f"{name}_temp_path {folder}/{name};\n" for name in TEMPORARY)
    user = f"user {getpass.getuser()};" if os.geteuid() == 0 else ""
    config = folder / "nginx.conf"
    config.write_text(
        f"{user} daemon off; master_process on; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{ access_log off;\n{temporary}{text}\n}}\n"
    )
    assert NGINX is not None
    command = [NGINX, "-e", str(folder / "error.log"), "-p", str(folder), "-c", str(config)]
    async with await anyio.open_process(command, stdout=DEVNULL, stderr=DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()
            await process.wait()


TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@asynccontextmanager
async def proxied(
    installation: LocalRebaser, folder: Path, port: int, change: tuple[str, str] = ("", ""), **options: Any
) -> AsyncIterator[tuple[WebConsole, WebConsole]]:
    """Yield a console, and the same console through nginx at `port`, as the guide configures it after `change`."""
    text = example()
    for pattern, by in (
        (r" +ssl_.*\n", ""),
        (r"listen 443 ssl", f"listen 127.0.0.1:{port}"),
        (r"/etc/nginx/console\.users", f"{folder}/users"),
        change,
    ):
        assert not pattern or re.search(pattern, text), pattern
        text = re.sub(pattern, by, text) if pattern else text
    async with AsyncExitStack() as stack:
        names = [f"127.0.0.1:{port}"]
        console = await stack.enter_async_context(web_console(installation.url, names=names, **options))
        text = text.replace("127.0.0.1:8420", f"127.0.0.1:{console.port}")
        await stack.enter_async_context(nginx(folder, text))
        with anyio.fail_after(60):
            while True:
                try:
                    await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
                    break
                except OSError:
                    await anyio.sleep(0.02)
        yield console, WebConsole(port)


async def test_the_guide_leads_to_a_console_that_knows_its_users(
    installation: LocalRebaser, client: RebaserClient, ws: str, tmp_path: Path, unused_port: int, events: Events
) -> None:
    await client.enqueue_updates_with_reply(ws, "main", [Set(f"v/{at}", "x" * 400) for at in range(1000)])
    async with proxied(installation, tmp_path, unused_port, access=TRUSTED, actions=True) as (direct, front):
        assert (await front.ask("/")).status == 401
        assert (await front.ask("/", headers=LOGIN)).status == 200
        path, known = f"/api/v1/change-sets/{ws}/main/values.jsonl", {"x-forwarded-user": "ann"}
        whole = await front.ask(path, headers=LOGIN)
        assert len(whole.body) > 400_000
        assert whole.status == (await direct.ask(path, headers=known)).status == 200
        body = b'{"id": "v/1", "value": "5", "at": 1, "author": "ann"}'
        acting = LOGIN | {
            "content-type": "application/json",
            "x-rebaser-action": "1",
            "origin": f"http://127.0.0.1:{front.port}",
            "x-forwarded-user": "root",  # claimed by the browser; nginx replaces it
        }
        done = await front.ask(f"/api/v1/change-sets/{ws}/main/edit", method="POST", headers=acting, body=body)
        assert (done.status, done.json()["updates"]) == (200, 1)
        assert [event["user"] for event in events.named("console_action")] == ["ann"]


async def test_a_live_page_is_not_held_back(
    installation: LocalRebaser, client: RebaserClient, ws: str, tmp_path: Path, unused_port: int
) -> None:
    """nginx would collect several events until one of its buffers is full."""
    await client.enqueue_updates_with_reply(ws, "main", [Set("a", 1)])
    async with proxied(installation, tmp_path, unused_port, access=TRUSTED) as (_, front):
        async with await anyio.connect_tcp("127.0.0.1", front.port) as stream:
            lines = "".join(f"{name}: {value}\r\n" for name, value in LOGIN.items())
            host = f"host: 127.0.0.1:{front.port}"
            await stream.send(f"GET /api/v1/live?of=/change-sets/{ws}/main HTTP/1.1\r\n{host}\r\n{lines}\r\n".encode())
            found = b""
            with anyio.fail_after(90):
                while b"event: state" not in found:
                    found = await stream.receive()
        assert found.count(b"event: state") < 4


@pytest.mark.parametrize(
    ("change", "access", "code"),
    [
        ((r" +proxy_set_header X-Forwarded-User.*\n", ""), TRUSTED, "no_user"),
        (("", ""), ELSEWHERE, "not_from_proxy"),
        (("", ""), None, "forwarded"),
        ((r"(?m)^( +)(proxy_pass .*)$", r"\1\2\n\1proxy_http_version 1.1;"), None, "forwarded"),
    ],
)
async def test_a_mistake_opens_nothing(
    installation: LocalRebaser,
    tmp_path: Path,
    unused_port: int,
    change: tuple[str, str],
    access: ProxyAccess | None,
    code: str,
) -> None:
    """Without `access`, the console has no login."""
    options = {} if access is None else {"access": access}
    async with proxied(installation, tmp_path, unused_port, change, **options) as (_, front):
        for path in ("/", "/api/v1/overview"):
            reply = await front.ask(path, headers=LOGIN)
            assert (reply.status, reply.json()["error"]["code"]) == (403, code)


async def test_a_proxy_that_replaces_the_host_is_named_when_an_action_fails(
    installation: LocalRebaser, ws: str, tmp_path: Path, unused_port: int
) -> None:
    change = (r" +proxy_set_header Host.*\n", "")
    async with proxied(installation, tmp_path, unused_port, change, access=TRUSTED, actions=True) as (_, front):
        headers = LOGIN | {"content-type": "application/json", "x-rebaser-action": "1"}
        headers |= {"origin": f"http://127.0.0.1:{front.port}"}
        reply = await front.ask(f"/api/v1/change-sets/{ws}/main/edit", method="POST", headers=headers, body=b"{}")
        assert reply.status == 403
        assert "has to keep the header Host" in reply.json()["error"]["message"]

"""The private names of nats-py that Rebaser uses are listed, and exist in the installed release."""

import ast
import asyncio
import tomllib
from importlib import metadata
from pathlib import Path
from urllib.parse import urlparse

import pytest
from nats.aio.client import Client, Srv
from nats.aio.transport import TcpTransport
from nats.errors import ConnectionClosedError, MaxPayloadError
from packaging.requirements import Requirement

from rebaser_client.nats import nats_py
from rebaser_client.nats.nats_py import PRIVATE, NatsClient

ROOT = Path(__file__).parents[2]
MODULE = Path(nats_py.__file__)
# names of the module, and of named tuples
OWN = {
    "_held",
    "_replace",
    "_unquoted",
    "_write_now",
    "_write_pending",
    "_write_waiting",
    "_writing_soon",
}


def private_names(path: Path) -> set[str]:
    """Return names with one leading underscore that `path` reads, writes, defines or gets with `getattr`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            found.update(
                word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str)
            )
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def test_what_is_used_is_what_is_listed() -> None:
    listed = set().union(*PRIVATE.values())
    assert private_names(MODULE) - OWN == listed


@pytest.mark.parametrize("kind", PRIVATE)
def test_what_is_listed_is_there(kind: str) -> None:
    async def make() -> object:
        return {"Client": Client, "TcpTransport": TcpTransport}[kind]()  # type: ignore[no-untyped-call]

    made = asyncio.run(make())
    assert not {name for name in PRIVATE[kind] if not hasattr(made, name)}


def test_nobody_else_uses_a_private_name_of_nats_py() -> None:
    listed = set().union(*PRIVATE.values())
    for path in sorted((ROOT / "rebaser_client").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in listed and path != MODULE:
                own = isinstance(node.value, ast.Name) and node.value.id == "self"
                assert own, f"{path.relative_to(ROOT)} uses {node.attr}"


def test_the_minor_version_is_pinned_to_the_one_that_is_tested() -> None:
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    [pinned] = [one for one in map(Requirement, requirements) if one.name == "nats-py"]
    installed = metadata.version("nats-py")
    major, minor, _ = installed.split(".", 2)
    assert installed in pinned.specifier
    assert f"{major}.{int(minor) + 1}.0" not in pinned.specifier
    assert f"{int(major) + 1}.0.0" not in pinned.specifier


def test_servers_that_another_announced_are_used_with_its_login_and_its_scheme() -> None:
    async def run() -> dict[str, str | None]:
        client = NatsClient()
        client._current_server = Srv(urlparse("tls://me:secret@first:4222"))
        announced = Srv(urlparse("nats://second:4222"), discovered=True, tls_name="first")
        client._server_pool = [client._current_server, announced]
        return client.known_servers

    assert asyncio.run(run()) == {"tls://me:secret@first:4222": None, "tls://me:secret@second:4222": "first"}


def test_what_cannot_be_published_is_not_kept_for_later() -> None:
    async def run() -> None:
        client = NatsClient()
        with pytest.raises(ConnectionClosedError):
            client.publish_soon(b"PUB a 0\r\n\r\n", 0)
        client._status = Client.CONNECTED
        with pytest.raises(MaxPayloadError):
            client.publish_soon(b"PUB a 9999999\r\n", client.max_payload + 1)
        assert client.pending_data_size == 0

    asyncio.run(run())


def test_who_waits_for_a_flush_waits_no_longer_once_the_socket_is_dropped() -> None:
    async def run() -> None:
        client = NatsClient()
        client._flush_queue = asyncio.Queue()
        waiting = [asyncio.create_task(client.flushed()) for _ in range(2)]
        cancelled = asyncio.create_task(client.flushed())
        await asyncio.sleep(0)
        cancelled.cancel()
        client.abort()
        await asyncio.wait_for(asyncio.gather(*waiting), 30)

    asyncio.run(run())

"""Backups as the operator's guide describes them: everything is restored, and work continues."""

import shutil
from pathlib import Path

import nats
import pytest
from anyio import to_thread

from rebaser.embedded.nats import embedded_nats
from rebaser_client import Derive, RebaserClient, Set
from rebaser_client.errors import RequestRejected
from tests.support.commands import rebaser, rebaser_json
from tests.support.fleet import launched
from tests.support.stream_backup import back_up, restore

pytestmark = pytest.mark.anyio

SERVER = "tests.support.sparkless_server"
LARGE = [Set(f"v{number}", "x" * 100) for number in range(20_000)]  # a request and a commit that are in blobs
# The streams that the guide names.
STREAMS = ("REBASER_REQUESTS", "REBASER_COMMITS", "REBASER_DLQ", "OBJ_REBASER_BLOBS")


async def edit(url: str) -> None:
    """Use an installation: small and large commits, a derived value, a branch; and leave one request in the queue."""
    async with (
        launched(url, "first", module=SERVER) as server,
        RebaserClient.connect(url) as client,
    ):
        await server.wait_for("server_ready")
        await client.enqueue_updates_with_reply("shop", "large", LARGE, wait="derived")
        for number in range(20):
            edits: list[Set | Derive] = [Set("a", number), Derive("d", "sum", {"of": ["a"]})]
            await client.enqueue_updates_with_reply("shop", "main", edits, wait="derived", request_id=f"r{number}")
        await client.create_branch("shop", "branch", parent="main")
        assert await server.terminate() == 0
        await client.enqueue_updates("shop", "main", [Set("a", 100)], request_id="queued")


async def values(client: RebaserClient, change_set: str) -> dict[str, object]:
    return {id_: one.value for id_, one in (await client.values("shop", change_set)).items()}


async def check(url: str) -> None:
    """Check that everything is restored, that the queued request is decided once, and that new requests are decided."""
    async with (
        launched(url, "second", module=SERVER) as server,
        RebaserClient.connect(url) as client,
    ):
        await server.wait_for("server_ready")
        await client.enqueue_updates_with_reply("shop", "main", [Set("b", 1)], wait="derived")
        assert await values(client, "main") == {"a": 100, "b": 1, "d": 100}
        assert await values(client, "branch") == {"a": 19, "d": 19}
        assert len((await client.state("shop", "large")).cells) == len(LARGE)
        with pytest.raises(RequestRejected):  # its id has a recorded outcome, and its content differs
            await client.enqueue_updates_with_reply("shop", "main", [Set("a", 5)], request_id="r3")
        for change_set in ("main", "branch", "large"):
            done = await rebaser("doctor", "shop", change_set, nats_url=url)
            assert done.returncode == 0, done.stdout
        assert (await rebaser_json("status", nats_url=url))[0]["streams"]


async def test_a_copy_of_the_folder_of_a_stopped_nats_is_a_backup(tmp_path: Path) -> None:
    async with embedded_nats(tmp_path / "nats") as server:
        await edit(server.url)
    await to_thread.run_sync(shutil.copytree, tmp_path / "nats", tmp_path / "copy")
    async with embedded_nats(tmp_path / "copy") as server:
        await check(server.url)


async def test_streams_backed_up_while_no_server_runs_are_a_backup(tmp_path: Path) -> None:
    """The streams are restored to an empty NATS before the first server starts, which creates the streams of tasks and
    sweeps."""
    async with embedded_nats(tmp_path / "nats") as server:
        await edit(server.url)
        connection = await nats.connect(server.url)
        kept = [await back_up(connection, stream) for stream in STREAMS]
        await connection.close()
    async with embedded_nats(tmp_path / "other") as server:
        connection = await nats.connect(server.url)
        for backup in kept:
            await restore(connection, backup)
        await connection.close()
        await check(server.url)

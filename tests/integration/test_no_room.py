"""NATS has no room for messages of any stream, for instance because another program fills its disks."""

from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from rebaser.embedded.nats import embedded_nats
from rebaser.settings import Settings
from rebaser.sweeper.starting import make_sweeper
from rebaser_client import RebaserClient, Set
from rebaser_client.errors import QueueFull
from rebaser_client.jetstream import ApiError, JetStream
from rebaser_client.jetstream.errors import NO_RESOURCES, STORE_FAILED, TRY_AGAIN
from rebaser_client.nats.connection import Connection
from rebaser_core.streams.subjects import Subjects
from tests.conftest import Events
from tests.support.contexts import context_of

pytestmark = pytest.mark.anyio

ROOM = 8 * 2**20  # bytes
SIZES = (2**18, 2**12, 64)  # bytes of the messages that fill it


async def fill(js: JetStream) -> None:
    """Fill the storage of NATS with a stream of another program."""
    await js.call("STREAM.CREATE.OTHER", {"name": "OTHER", "subjects": ["other"], "storage": "file"})
    for size in SIZES:
        code = 0
        while code != NO_RESOURCES:
            try:
                await js.publish("other", bytes(size))
            except ApiError as error:
                code = error.err_code


class Listener:
    def streams_lost(self, streams: Any) -> None: ...

    def streams_recreated(self, streams: Any) -> None: ...


async def test_a_server_is_not_ready_while_nats_stores_nothing(tmp_path: Path, events: Events) -> None:
    """No request waits and no owner fails: it is the sweep message that shows it."""
    async with (
        embedded_nats(tmp_path / "nats", jetstream={"max_file_store": ROOM}) as nats,
        Connection.connect(nats.url, name="test") as connection,
        RebaserClient.connect(nats.url) as client,
        anyio.create_task_group() as group,
    ):
        js, subjects = JetStream(connection), Subjects()
        context = context_of(js, subjects, Settings(sweep_interval=0.5))
        streams = context.stream_watch
        await streams.ensure()
        group.start_soon(streams.run, cast("Any", Listener()))
        group.start_soon(make_sweeper(context).run)
        await fill(js)
        with anyio.fail_after(60):
            while not streams.problem:  # noqa: ASYNC110 - it is a plain attribute
                await anyio.sleep(0.05)
        assert streams.problem.startswith("NATS stores no messages: JetStream: insufficient resources")
        with pytest.raises(QueueFull, match="NATS has no room for more requests"):
            await client.enqueue_updates("ws", "cs", [Set("a", 1)])
        await js.call("STREAM.DELETE.OTHER")
        with anyio.fail_after(60):
            while streams.problem:  # noqa: ASYNC110 - it is a plain attribute
                await anyio.sleep(0.05)
        group.cancel_scope.cancel()
    assert [len(events.named(name)) for name in ("server_unready", "server_ready_again")] == [1, 1]


@pytest.mark.parametrize(
    ("status", "err_code", "description", "unready"),
    [
        (503, 10008, "JetStream system temporarily unavailable", False),
        (503, TRY_AGAIN, "expected last sequence cannot be checked", False),
        (503, NO_RESOURCES, "insufficient resources", True),
        (503, STORE_FAILED, "write 1.blk: no space left on device", True),
        (503, STORE_FAILED, "maximum messages per subject exceeded", False),
    ],
)
async def test_only_a_refusal_for_lack_of_room_makes_a_server_unready(
    js: JetStream,
    subjects: Subjects,
    events: Events,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    err_code: int,
    description: str,
    unready: bool,
) -> None:
    context = context_of(js, subjects, Settings(sweep_interval=60))
    sweeper, refused = make_sweeper(context), anyio.Event()

    async def refuse(*_: Any, **__: Any) -> Any:
        if refused.is_set():
            await anyio.sleep_forever()
        refused.set()
        raise ApiError(status, err_code, description)

    async def sleep(_: float) -> None:
        scope.cancel()
        await anyio.lowlevel.checkpoint()

    monkeypatch.setattr(js, "publish", refuse)
    monkeypatch.setattr("rebaser.sweeper.sweeper.anyio.sleep", sleep)
    with anyio.CancelScope() as scope:
        await sweeper._keep_message()
    monkeypatch.undo()
    assert any(context.stream_watch._refusals.values()) == unready
    logged = [one["code"] for one in events.named("sweep_message_failed")]
    assert logged == ([] if "per subject" in description else ["jetstream"])

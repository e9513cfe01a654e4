"""The metrics of updates, streams and sweeps of a server in this process, after real ones."""

from collections.abc import Callable

import anyio
import pytest

from rebaser.server import Server
from rebaser.telemetry.catalogue import read_all
from rebaser_client import RebaserClient, Set
from rebaser_client.jetstream import JetStream
from rebaser_core.streams.subjects import Subjects
from tests.support.owners import DOUBLE, Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


def figures(server: Server) -> dict[tuple[str, ...], float]:
    """By name and labels; of a histogram, the number of observations."""
    return {
        (family.name.removeprefix("rebaser_"), *sample.labels): sample.buckets[-1] if sample.buckets else sample.value
        for family in read_all(server.snapshot(), server.census())
        for sample in family.samples
    }


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not holds():  # noqa: ASYNC110 - a scrape polls
            await anyio.sleep(0.01)


async def test_an_update_shows_while_it_is_due_and_when_it_has_ended(
    js: JetStream, subjects: Subjects, nats_url: str
) -> None:
    engine = Engine()
    async with (
        serving(js, subjects, engine) as server,
        RebaserClient.connect(nats_url, prefix=subjects.prefix) as client,
    ):
        before = figures(server)
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1), DOUBLE])
        with anyio.fail_after(60):
            await engine.asked.wait()
        during = figures(server)
        assert during["change_sets_dvu", "running"] == during["change_sets_owned", "active"] == 1
        assert during["debt_age_seconds_max",] > 0
        assert during["dvu_seconds", "done"] == before["dvu_seconds", "done"]
        engine.go.set()
        await until(lambda: figures(server)["dvu_seconds", "done"] > before["dvu_seconds", "done"])
        after = figures(server)
    assert after["freshness_seconds",] == before["freshness_seconds",] + 1
    assert after["debt_age_seconds_max",] == 0
    assert after["append_seconds", "dvu"] == before["append_seconds", "dvu"] + 1


async def test_streams_show_as_last_checked(js: JetStream, subjects: Subjects) -> None:
    engine = Engine()
    async with serving(js, subjects, engine, sweep_interval=0.5) as server:
        await until(lambda: figures(server)["last_sweep_timestamp_seconds",] > 0)
        await js.publish(f"{subjects.root}.dlq.ws.cs", b"x")
        server._context.stream_watch.check_soon()
        await until(lambda: figures(server)["stream_messages", "dlq"] == 1)
        found = figures(server)
    assert found["stream_bytes", "dlq"] > 0
    assert found["sweeper",] == 1
    assert found["oldest_request_age_seconds",] == found["change_sets_waiting",] == found["change_sets_in_debt",] == 0

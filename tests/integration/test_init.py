"""Servers that create no streams report which one is missing; an operator creates streams with `rebaser init`."""

from dataclasses import replace

import anyio
import pytest
from anyio.lowlevel import checkpoint

from rebaser.cli.commands.running.init import _init, _outcome
from rebaser.pings import answer_pings
from rebaser.runtime.stream_watch import StreamWatch
from rebaser.settings import Settings
from rebaser_client.admin.servers import ping
from rebaser_client.jetstream import ApiError, JetStream
from rebaser_client.jetstream.errors import STREAM_NOT_FOUND
from rebaser_core.errors import ConfigError, TransientError
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import SEQUENCE_GAP, SWEEP_CONSUMER, TASKS_CONSUMER, TopologyOptions
from tests.integration.test_streams import Holder
from tests.support.contexts import context_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(nats_url: str, subjects: Subjects) -> Settings:
    return Settings(nats_url=nats_url, prefix=subjects.prefix, create_streams=False)


async def outcomes(settings: Settings, *, check: bool = False) -> dict[str, int]:
    found = [_outcome(part, check=check) for part in await _init(settings, check=check)]
    return {outcome: found.count(outcome) for outcome in found}


async def test_it_creates_what_is_missing_changes_what_differs_and_leaves_the_rest(
    js: JetStream, subjects: Subjects, settings: Settings
) -> None:
    assert await outcomes(settings, check=True) == {"missing": 8}
    with pytest.raises(ApiError) as missing:
        await js.stream_info(subjects.requests_stream)
    assert missing.value.err_code == STREAM_NOT_FOUND
    assert await outcomes(settings) == {"created": 8}
    before = replace(await js.stream_info(subjects.requests_stream), now="")
    assert await outcomes(settings) == {"unchanged": 8}
    assert replace(await js.stream_info(subjects.requests_stream), now="") == before
    more = settings.model_copy(update={"ack_wait": 9.0, "dlq_max_bytes": 10_000_000})
    [first, second] = [part for part in await _init(more, check=True) if part.differences]
    assert (str(first), first.differences) == (
        f"stream {subjects.dlq_stream}",
        ("max_bytes is -1, wanted 10000000",),
    )
    assert str(second) == f"consumer {TASKS_CONSUMER} of {subjects.tasks_stream}"
    assert await outcomes(more) == {"unchanged": 6, "changed": 2}
    assert (await js.consumer_info(subjects.tasks_stream, TASKS_CONSUMER)).config["ack_wait"] == 9 * 10**9
    await js.delete_consumer(subjects.sweep_stream, SWEEP_CONSUMER)
    assert await outcomes(more) == {"unchanged": 7, "created": 1}


async def test_a_server_that_may_not_create_streams_says_what_to_do(
    js: JetStream, subjects: Subjects, settings: Settings
) -> None:
    watch = StreamWatch(js, subjects, TopologyOptions(), create=False)
    with pytest.raises(TransientError, match=rf"missing in NATS: stream {subjects.requests_stream}.*`rebaser init`"):
        await watch.ensure()
    await _init(settings, check=False)
    await watch.ensure()
    other = StreamWatch(js, subjects, TopologyOptions(ack_wait=9), create=False)
    with pytest.raises(
        ConfigError, match=f"consumer {TASKS_CONSUMER} of .*: ack_wait is 6000000000, wanted 9000000000"
    ):
        await other.ensure()


async def test_a_stream_that_disappears_is_left_to_the_operator_and_begins_far_above_the_old_one(
    js: JetStream, subjects: Subjects, settings: Settings
) -> None:
    """Otherwise, an ack for a message of the old stream could affect a message of the new one."""
    await _init(settings, check=False)
    watch, holder = StreamWatch(js, subjects, TopologyOptions(), create=False), Holder()
    await watch.ensure()
    context = context_of(js, subjects, settings)
    async with anyio.create_task_group() as group:
        group.start_soon(watch.run, holder)
        group.start_soon(
            answer_pings, context, lambda: dict[str, object](id="test", version="", owned=0, slots=0, dvu="")
        )
        with anyio.fail_after(60):
            while not await ping(js.connection, subjects, 0.2):
                pass
            await js.delete_stream(subjects.tasks_stream)
            while "rebaser init" not in watch.problem:
                watch.check_soon()
                await checkpoint()
            assert holder.told == [("lost", frozenset([subjects.tasks_stream]))]
            await _init(settings, check=False)
            await holder.made.wait()
            while watch.problem:
                watch.check_soon()
                await checkpoint()
        group.cancel_scope.cancel()
    assert (await js.stream_info(subjects.tasks_stream)).first_sequence > 1000 * SEQUENCE_GAP
    assert (await js.stream_info(subjects.requests_stream)).first_sequence <= 1

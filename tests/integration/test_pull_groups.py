"""Priority groups (ADR-42): which of several pulling clients is served, and how a pin begins, ends and is taken
over."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from rebaser_client.jetstream import JetStream, PriorityGroupState, PullConsumer
from rebaser_core.errors import ConfigError
from rebaser_core.streams.subjects import Subjects

pytestmark = pytest.mark.anyio

GROUP = "jobs"
SECOND = 1_000_000_000


@pytest.fixture
async def stream(js: JetStream, subjects: Subjects) -> AsyncIterator[str]:
    """A stream on `<its name>.>`."""
    name = subjects.prefix
    await js.ensure_stream({"name": name, "subjects": [f"{name}.>"], "storage": "memory", "num_replicas": 1})
    yield name
    await js.call(f"STREAM.DELETE.{name}")


async def consumer(js: JetStream, stream: str, policy: str, **more: Any) -> str:
    config = {"name": "c", "durable_name": "c", "ack_policy": "explicit", "filter_subject": f"{stream}.>"}
    await js.ensure_consumer(stream, {**config, "priority_groups": [GROUP], "priority_policy": policy, **more})
    return "c"


async def add(js: JetStream, stream: str, *names: str) -> None:
    for name in names:
        await js.publish(f"{stream}.{name}", name.encode())


async def take(js: JetStream, pull: PullConsumer) -> str:
    message = await anext(pull)
    await js.ack_sync(message)
    return message.data.decode()


async def waiting(js: JetStream, stream: str, count: int) -> None:
    while (await js.consumer_info(stream, "c")).num_waiting != count:
        await anyio.lowlevel.checkpoint()


async def test_overflow_helps_only_when_enough_waits(js: JetStream, stream: str) -> None:
    await consumer(js, stream, "overflow")
    async with PullConsumer(js, stream, "c", group=GROUP, min_pending=3) as helper:
        helper.add_credit(5)
        await add(js, stream, "a", "b")
        await waiting(js, stream, 1)
        assert helper.outstanding == 5
        async with PullConsumer(js, stream, "c", group=GROUP) as first:
            first.add_credit(1)
            assert await take(js, first) == "a"
        await add(js, stream, "c", "d")
        assert await take(js, helper) == "b"  # three messages wait: b, c, d
        info = await js.consumer_info(stream, "c")
        assert info.num_pending == 2


async def test_overflow_helps_when_enough_is_unacknowledged(js: JetStream, stream: str) -> None:
    await consumer(js, stream, "overflow")
    async with (
        PullConsumer(js, stream, "c", group=GROUP, min_ack_pending=1) as helper,
        PullConsumer(js, stream, "c", group=GROUP) as first,
    ):
        helper.add_credit(5)
        first.add_credit(1)
        await add(js, stream, "a", "b")
        held = await anext(first)
        assert held.data == b"a"
        assert await take(js, helper) == "b"
        await js.ack(held)


async def test_the_lower_priority_number_is_served_first(js: JetStream, stream: str) -> None:
    await consumer(js, stream, "prioritized")
    async with (
        PullConsumer(js, stream, "c", group=GROUP, priority=5) as late,
        PullConsumer(js, stream, "c", group=GROUP, priority=1) as early,
    ):
        late.add_credit(2)
        await waiting(js, stream, 1)
        early.add_credit(2)
        await waiting(js, stream, 2)
        await add(js, stream, "a", "b", "c")
        assert [await take(js, early), await take(js, early), await take(js, late)] == ["a", "b", "c"]


async def test_one_is_pinned_until_an_operator_unpins_it(js: JetStream, stream: str) -> None:
    await consumer(js, stream, "pinned_client", priority_timeout=60 * SECOND)
    told: list[str] = []

    def puller(name: str) -> PullConsumer:
        return PullConsumer(
            js,
            stream,
            "c",
            group=GROUP,
            on_pinned=lambda _: told.append(f"{name} pinned"),
            on_unpinned=lambda: told.append(f"{name} unpinned"),
        )

    async with puller("one") as one, puller("two") as two:
        one.add_credit(3)
        await waiting(js, stream, 1)
        two.add_credit(2)
        await waiting(js, stream, 2)
        await add(js, stream, "a")
        assert await take(js, one) == "a"
        state = (await js.consumer_info(stream, "c")).priority_groups
        assert [group.group for group in state] == [GROUP]
        pin = state[0].pinned_client_id
        assert pin
        assert state[0].pinned_ts.startswith("20")
        one.add_credit(3)  # enough for another pull, which names the pin
        await waiting(js, stream, 3)
        await add(js, stream, "b", "c")
        assert [await take(js, one), await take(js, one)] == ["b", "c"]
        assert two.outstanding == 2
        await js.unpin(stream, "c", GROUP)
        await add(js, stream, "d", "e")
        assert [await take(js, two), await take(js, two)] == ["d", "e"]
        assert (await js.consumer_info(stream, "c")).priority_groups[0].pinned_client_id not in ("", pin)
        await waiting(js, stream, 1)  # it pulls again, without the pin that it lost
        assert sorted(told) == ["one pinned", "one unpinned", "two pinned"]
        await js.unpin(stream, "c", GROUP)
        await add(js, stream, "f")
        assert await take(js, one) == "f"
        assert told[-1] == "one pinned"


async def test_another_takes_over_from_a_pinned_client_that_is_gone(js: JetStream, stream: str) -> None:
    await consumer(js, stream, "pinned_client", priority_timeout=SECOND)
    async with PullConsumer(js, stream, "c", group=GROUP) as two:
        async with PullConsumer(js, stream, "c", group=GROUP) as one:
            one.add_credit(1)
            await add(js, stream, "a")
            assert await take(js, one) == "a"
            two.add_credit(1)
        await add(js, stream, "b")
        assert await take(js, two) == "b"


async def test_a_pin_that_a_publisher_made_up_stops_nobody(js: JetStream, stream: str) -> None:
    await consumer(js, stream, "overflow")
    async with PullConsumer(js, stream, "c", group=GROUP) as pull:
        await js.publish(f"{stream}.a", b"a", {"Nats-Pin-Id": "forged"})
        await add(js, stream, "b")
        for name in ("a", "b"):
            pull.add_credit(1)
            assert await take(js, pull) == name


async def test_a_pin_that_a_publisher_made_up_is_not_the_pin(js: JetStream, stream: str) -> None:
    await consumer(js, stream, "pinned_client")
    pins: list[str] = []
    async with PullConsumer(js, stream, "c", group=GROUP, on_pinned=pins.append) as pull:
        for _ in range(2):
            await js.publish(f"{stream}.a", b"a", {"Nats-Pin-Id": "forged"})
            pull.add_credit(1)
            await take(js, pull)
    assert pins == [(await js.consumer_info(stream, "c")).priority_groups[0].pinned_client_id]


@pytest.mark.parametrize("group", ["", "a b", "seventeen-letters"])
async def test_only_what_can_be_a_group_is_unpinned(js: JetStream, stream: str, group: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid group name"):
        await js.unpin(stream, "c", group)


async def test_a_pin_is_named_only_while_there_is_one(js: JetStream, stream: str) -> None:
    await consumer(js, stream, "pinned_client")
    assert (await js.consumer_info(stream, "c")).priority_groups == (PriorityGroupState(GROUP, "", ""),)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"group": ""}, "is not a valid group name"),
        ({"group": "a b"}, "is not a valid group name"),
        ({"group": "seventeen-letters"}, "is not a valid group name"),
        ({"min_pending": 3}, "a pull with `min_pending` must specify a priority group"),
        ({"group": GROUP, "min_pending": -1}, "must be 0 or more"),
        ({"group": GROUP, "priority": 10}, "must be from 0 to 9"),
    ],
)
async def test_what_no_server_takes_is_refused_at_once(js: JetStream, options: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        PullConsumer(js, "s", "c", **options)


GROUPED = {"name": "c", "ack_policy": "explicit", "priority_groups": [GROUP], "priority_policy": "overflow"}
PLAIN = {"name": "c", "ack_policy": "explicit"}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"ack_policy": "none"}, "require the `ack_policy` explicit, not none"),
        ({"ack_policy": "all"}, "require the `ack_policy` explicit, not all"),
        ({"ack_policy": None}, "require the `ack_policy` explicit, not none"),
        ({"priority_groups": [GROUP, "b"]}, "can have one priority group, not 2: jobs, b"),
        ({"priority_groups": []}, "both `priority_policy` and `priority_groups`"),
        ({"priority_groups": ["no name"]}, "is not a valid group name"),
        ({"priority_policy": "none"}, "both `priority_policy` and `priority_groups`"),
        ({"deliver_subject": "somewhere"}, "a push consumer"),
    ],
)
async def test_what_the_document_forbids_is_not_created(
    js: JetStream, stream: str, change: dict[str, Any], what: str
) -> None:
    wanted = GROUPED | change
    for make in (js.create_consumer, js.create_or_update_consumer, js.ensure_consumer):
        with pytest.raises(ConfigError, match=what):
            await make(stream, wanted)
    assert [info.name async for info in js.list_consumers(stream)] == []


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (PLAIN, GROUPED),
        (GROUPED, PLAIN),
        (GROUPED, GROUPED | {"priority_policy": "prioritized"}),
        (GROUPED, GROUPED | {"priority_policy": "pinned_client", "priority_timeout": SECOND}),
        (GROUPED, GROUPED | {"priority_groups": ["other"]}),
    ],
)
async def test_what_the_document_forbids_to_update_stays(
    js: JetStream, stream: str, found: dict[str, Any], wanted: dict[str, Any]
) -> None:
    before = (await js.create_consumer(stream, found)).cached_info.config
    for change in (js.update_consumer, js.create_or_update_consumer):
        with pytest.raises(ConfigError, match="priority policy and groups of a consumer cannot be changed"):
            await change(stream, wanted)
    if wanted is not PLAIN:  # other fields stay
        with pytest.raises(ConfigError, match="priority policy and groups of a consumer cannot be changed"):
            await js.ensure_consumer(stream, wanted)
    assert (await js.consumer_info(stream, "c")).config == before


async def test_the_timeout_of_a_pin_is_updated(js: JetStream, stream: str) -> None:
    pinned = GROUPED | {"priority_policy": "pinned_client", "priority_timeout": 5 * SECOND}
    await js.create_consumer(stream, pinned)
    changed = await js.update_consumer(stream, pinned | {"priority_timeout": 9 * SECOND})
    assert changed.cached_info.config["priority_timeout"] == 9 * SECOND

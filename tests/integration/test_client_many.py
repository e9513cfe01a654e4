"""Many requests in one call: each has its own outcome, whatever happens to the others, and the number in flight is
bounded."""

from collections.abc import AsyncIterator, Iterator

import anyio
import pytest
from anyio.lowlevel import checkpoint

from rebaser.embedded.nats import EmbeddedNats
from rebaser_client import (
    ConfigError,
    NotConnectedError,
    QueueFull,
    RebaserClient,
    Remove,
    Request,
    RequestConflicts,
    RequestIdReused,
    RequestOutcome,
    RequestTimeout,
    Set,
    Success,
    UnprocessableError,
)
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import JetStream
from rebaser_client.requests import sender
from rebaser_core.ids import ChangeSetKey
from rebaser_core.limits import DEFAULT_LIMITS
from rebaser_core.messages import EnqueueUpdatesRequest, decode
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from rebaser_core.updates import Recompute
from tests.simulation.left import nothing_left
from tests.support.nats_proxy import Frame, Proxy
from tests.support.owners import Engine, serving

pytestmark = pytest.mark.anyio

BOUND = 60  # seconds; a bound against hanging


@pytest.fixture
async def server(topology: TopologyOptions, js: JetStream, subjects: Subjects) -> AsyncIterator[None]:
    del topology
    async with serving(js, subjects, Engine()):
        yield


@pytest.fixture
async def client(nats_url: str, subjects: Subjects) -> AsyncIterator[RebaserClient]:
    """A client that is checked at the end: no call may leave anything behind."""
    async with RebaserClient.connect(nats_url, prefix=subjects.prefix, max_in_flight=8) as connected:
        yield connected
        await nothing_left(connected)
        assert connected._in_flight._free == connected._in_flight.limit
        assert not connected._in_flight._waiting


async def stored_ids(js: JetStream, subjects: Subjects, change_set: str) -> list[str]:
    """Return the ids of the requests in the queue of a change set, in order."""
    ids, sequence = [], 1
    while stored := await js.next(
        subjects.requests_stream, subjects.requests(ChangeSetKey("ws", change_set)), sequence
    ):
        ids.append(str(decode(stored.headers, stored.data, DEFAULT_LIMITS, expect=EnqueueUpdatesRequest).id))
        sequence = stored.sequence + 1
    return ids


@pytest.mark.usefixtures("server")
async def test_each_request_is_applied_in_the_order_of_its_change_set(client: RebaserClient) -> None:
    requests = [Request("ws", f"cs{n % 3}", [Set("a", n), Set(f"b{n}", n)]) for n in range(60)]
    told: list[RequestOutcome] = []
    with anyio.fail_after(BOUND):
        outcomes = await client.enqueue_many(iter(requests), on_outcome=told.append)
    assert [outcome.request for outcome in outcomes] == requests
    assert {outcome.id for outcome in told} == {outcome.id for outcome in outcomes}
    assert len({outcome.id for outcome in outcomes}) == 60
    for number in range(3):
        mine = [outcome for outcome in outcomes if outcome.request.change_set == f"cs{number}"]
        responses = [outcome.response for outcome in mine if outcome.response is not None]
        commits = [response.status.commit for response in responses if isinstance(response.status, Success)]
        assert len(commits) == 20
        assert commits == sorted(commits)
        state = await client.state("ws", f"cs{number}")
        assert state.values()["a"].value == 57 + number
        assert list(state.outcomes) == [outcome.id for outcome in mine]


@pytest.mark.usefixtures("server")
async def test_the_failure_of_a_request_is_its_outcome_and_nobody_elses(client: RebaserClient) -> None:
    await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 0)], request_id="used")
    requests = [
        Request("ws", "cs", [Set("a", 1)], request_id="first"),
        Request("ws", "cs", [Set("a", 2)], request_id="no id"),
        Request("ws", "cs", [Set("", 3)]),
        Request("w s", "cs", [Set("a", 4)]),
        Request("ws", "cs", [Set("a", 5)], request_id="used"),
        Request("ws", "cs", [Remove("x")], from_change_set="draft"),
        Request("ws", "cs", [Set("a", 6)], request_id="last"),
    ]
    outcomes = await client.enqueue_many(requests)
    assert [type(outcome.error) for outcome in outcomes] == [
        type(None),
        UnprocessableError,
        UnprocessableError,
        UnprocessableError,
        RequestIdReused,
        RequestConflicts,
        type(None),
    ]
    assert [outcome.response is not None for outcome in outcomes] == [True, False, False, False, True, True, True]
    assert "update 0" in str(outcomes[2].error)
    assert [outcomes[0].id, outcomes[1].id, outcomes[6].id] == ["first", "", "last"]
    assert (await client.values("ws", "cs"))["a"].value == 6


async def test_a_full_queue_concerns_its_change_set_only(
    client: RebaserClient, js: JetStream, subjects: Subjects
) -> None:
    await ensure_topology(js, subjects, TopologyOptions(max_requests_per_change_set=2))
    requests = [Request("ws", name, [Set("a", n)], f"{name}{n}") for n in range(4) for name in ("one", "two")]
    outcomes = await client.enqueue_many(requests[:6], wait="stored")
    assert [outcome.id for outcome in outcomes if isinstance(outcome.error, QueueFull)] == ["one2", "two2"]
    await js.purge(subjects.requests_stream, subjects.requests(ChangeSetKey("ws", "two")))
    outcomes = await client.enqueue_many(requests[6:], wait="stored")
    assert [type(outcome.error) for outcome in outcomes] == [QueueFull, type(None)]
    assert await stored_ids(js, subjects, "one") == ["one0", "one1"]
    assert await stored_ids(js, subjects, "two") == ["two3"]
    tasks = await js.subject_counts(subjects.tasks_stream, subjects.root + ".tasks.>")
    assert tasks == {subjects.task(ChangeSetKey("ws", name)): 1 for name in ("one", "two")}


@pytest.mark.usefixtures("topology")
async def test_the_order_is_kept_though_confirmations_are_lost_and_connections_break(
    proxy: Proxy, js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "PUBLISH_TIMEOUT", 0.2)
    lost = 0

    def lose(frame: Frame) -> bool:
        nonlocal lost
        lost += b'"seq"' in frame.payload
        return b'"seq"' in frame.payload and lost % 5 == 0

    monkeypatch.setattr(proxy, "lose", lose)
    requests = [Request("ws", f"cs{n % 2}", [Set("a", n)], f"r{n}") for n in range(30)]
    outcomes: list[RequestOutcome] = []
    reached = {5: anyio.Event(), 15: anyio.Event()}

    def count(outcome: RequestOutcome) -> None:
        outcomes.append(outcome)
        if len(outcomes) in reached:
            reached[len(outcomes)].set()

    async with RebaserClient.connect(proxy.url, prefix=subjects.prefix, max_in_flight=8) as client:
        monkeypatch.setattr(client._js, "_timeout", 0.2)
        with anyio.fail_after(BOUND):
            async with anyio.create_task_group() as group:

                async def cut() -> None:
                    for event in reached.values():
                        await event.wait()
                        await proxy.cut()

                group.start_soon(cut)
                await client.enqueue_many(requests, wait="stored", on_outcome=count)
        await nothing_left(client)
    assert [outcome.error for outcome in outcomes] == [None] * 30
    for number in range(2):
        ids = await stored_ids(js, subjects, f"cs{number}")
        assert ids == [f"r{n}" for n in range(number, 30, 2)]
    assert lost > 5


async def test_what_cannot_be_sent_while_nats_is_away_is_told_so_and_sent_when_it_is_back(
    own_nats: EmbeddedNats,
) -> None:
    async with RebaserClient.connect(own_nats.url, max_in_flight=4) as client:
        await ensure_topology(client._js, Subjects(""), TopologyOptions())
        requests = [Request("ws", f"cs{n % 2}", [Set("a", n)]) for n in range(10)]
        with anyio.fail_after(BOUND):
            await own_nats.kill()
            while client._connection.connected:
                await checkpoint()
            outcomes = await client.enqueue_many(requests, wait="stored", timeout=0.2)
            # Both deadlines are the same, and on a busy machine either may be noticed first.
            assert {type(outcome.error) for outcome in outcomes} <= {NotConnectedError, RequestTimeout}
            async with anyio.create_task_group() as group:

                async def send() -> None:
                    outcomes[:] = await client.enqueue_many(requests, wait="stored", timeout=BOUND)

                group.start_soon(send)
                await checkpoint()
                await own_nats.start()
        assert [outcome.error for outcome in outcomes] == [None] * 10
        await nothing_left(client)


@pytest.mark.usefixtures("topology")
async def test_what_is_not_answered_in_time_says_so_under_its_id(client: RebaserClient) -> None:
    outcomes = await client.enqueue_many([Request("ws", f"cs{n}", [Set("a", 1)]) for n in range(20)], timeout=0.1)
    for outcome in outcomes:
        assert isinstance(outcome.error, RequestTimeout)
        assert outcome.error.request_id == outcome.id


@pytest.mark.usefixtures("topology")
async def test_what_is_stored_by_a_second_attempt_and_not_answered_in_time_says_so(
    proxy: Proxy, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "PUBLISH_TIMEOUT", 0.1)
    lost = []

    def lose(frame: Frame) -> bool:
        if b'"seq"' in frame.payload:
            lost.append(frame)
        return lost[-1:] == [frame] and len(lost) == 1

    monkeypatch.setattr(proxy, "lose", lose)
    async with RebaserClient.connect(proxy.url, prefix=subjects.prefix) as client:
        with anyio.fail_after(BOUND):
            outcomes = await client.enqueue_many([Request("ws", "cs", [Set("a", 1)])], wait="applied", timeout=5)
    assert [type(outcome.error) for outcome in outcomes] == [RequestTimeout]
    assert len(lost) > 1


@pytest.mark.usefixtures("topology")
async def test_a_call_that_is_cancelled_leaves_nothing_behind(client: RebaserClient) -> None:
    """The fixture checks that."""
    with anyio.move_on_after(0.2) as scope:
        await client.enqueue_many([Request("ws", f"cs{n}", [Set("a", 1)]) for n in range(20)])
    assert scope.cancelled_caught


@pytest.mark.usefixtures("server")
async def test_what_the_caller_raises_ends_the_call(client: RebaserClient) -> None:
    def requests() -> Iterator[Request]:
        for number in range(20):
            if number == 13:
                raise ZeroDivisionError
            yield Request("ws", "cs", [Set("a", number)])

    def stop(_: RequestOutcome) -> None:
        raise KeyError

    with pytest.raises(ZeroDivisionError):
        await client.enqueue_many(requests())
    with pytest.raises(KeyError):
        await client.enqueue_many([Request("ws", "cs", [Set("a", 1)])] * 20, on_outcome=stop)
    with pytest.raises(UnprocessableError, match="must be a Request, not a tuple"):
        await client.enqueue_many([("ws", "cs", [])])  # type: ignore[list-item]
    with pytest.raises(UnprocessableError, match="'stored' or 'applied'"):
        await client.enqueue_many([], wait="derived")  # type: ignore[arg-type]
    assert await client.enqueue_many([]) == []


@pytest.mark.usefixtures("topology")
async def test_requests_are_taken_as_earlier_ones_complete(client: RebaserClient) -> None:
    taken = completed = most = 0

    def requests() -> Iterator[Request]:
        nonlocal taken, most
        for number in range(50):
            taken += 1
            most = max(most, taken - completed)
            yield Request("ws", f"cs{number}", [Set("a", 1)])

    def count(_: RequestOutcome) -> None:
        nonlocal completed
        completed += 1

    await client.enqueue_many(requests(), wait="stored", on_outcome=count)
    assert completed == 50
    assert most == 8


@pytest.mark.usefixtures("topology")
async def test_calls_beyond_the_bound_wait_in_their_order_and_within_their_time(
    proxy: Proxy, js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = True
    monkeypatch.setattr(proxy, "lose", lambda frame: silent and b'"seq"' in frame.payload)
    monkeypatch.setattr(sender, "PUBLISH_TIMEOUT", 0.2)
    async with RebaserClient.connect(proxy.url, prefix=subjects.prefix, max_in_flight=1) as client:
        with anyio.fail_after(BOUND):
            async with anyio.create_task_group() as group:
                for name in ("first", "second", "third"):

                    async def send(name: str = name) -> None:
                        await client.enqueue_updates("ws", "cs", [Set("a", 1)], request_id=name)

                    group.start_soon(send)
                    await checkpoint()
                with pytest.raises(RequestTimeout, match="late"):
                    await client.enqueue_updates("ws", "cs", [Set("a", 1)], request_id="late", timeout=0.1)
                silent = False
        assert await stored_ids(js, subjects, "cs") == ["first", "second", "third"]
        assert client._in_flight._free == 1


@pytest.mark.parametrize("limit", [0, -1, 1.5, "8", True])
async def test_a_bound_that_is_no_number_of_requests_is_refused(limit: object) -> None:
    with pytest.raises(ConfigError, match="max_in_flight must be an integer of 1 or more"):
        await RebaserClient.open("nats://127.0.0.1:1", max_in_flight=limit)  # type: ignore[arg-type]


@pytest.mark.usefixtures("topology")
async def test_all_that_a_request_says_is_sent(client: RebaserClient, js: JetStream, subjects: Subjects) -> None:
    given = Request("ws", "cs", [Set("a", 1)], "id", "draft", None, "ann", "why", 7)
    again = Request("ws", "cs", recompute=Recompute("sum"))
    await client.enqueue_many([given, again], wait="stored")
    sent: list[EnqueueUpdatesRequest] = []
    for sequence in (1, 2):
        stored = await js.get(subjects.requests_stream, sequence)
        assert stored is not None
        sent.append(decode(stored.headers, stored.data, DEFAULT_LIMITS, expect=EnqueueUpdatesRequest))
    one, two = sent
    assert (one.id, one.updates, one.from_change_set_id, one.recompute) == ("id", (Set("a", 1),), "draft", None)
    assert (one.author, one.message, one.expect_at) == ("ann", "why", 7)
    assert (two.updates, two.from_change_set_id, two.recompute) == ((), None, Recompute("sum"))

"""The sweeper's knowledge from headers: after each sweep, it equals the newest header of each log.

In random order, logs grow, are closed and reopened, and the stream is created anew or restored from a backup.
"""

import random
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rebaser.runtime.own_commits import OwnCommits
from rebaser.sweeper import closed as closed_module
from rebaser.sweeper import debts
from rebaser.sweeper.closed import ClosedChangeSets
from rebaser.sweeper.debts import ClosedSince, DebtTracker
from rebaser_client.jetstream import ApiError
from rebaser_client.nats.header_lines import encode_headers
from rebaser_client.nats.messages import parse_headers
from rebaser_core.commit import BranchStatus, BranchSummary, Commit, Kind
from rebaser_core.errors import RebaserError, TransientError
from rebaser_core.messages.headers.branches import branch_headers
from rebaser_core.messages.headers.sweep import sweep_headers
from rebaser_core.streams.subjects import Subjects
from tests.support.header_stream import Consumer, Header, Stream, use_consumers

pytestmark = pytest.mark.anyio

NAMES = ("ws.a", "ws.b", "ws.c", "other.a")


@pytest.fixture
def rng(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> random.Random:
    """A generator, for the consumers as well. A test may be parametrized with its `seed`."""
    chosen = random.Random(getattr(request.node, "callspec", SimpleNamespace(params={})).params.get("seed", 1))
    use_consumers(monkeypatch, chosen)
    return chosen


def commit_headers(rng: random.Random) -> dict[str, str]:
    status = rng.choice(list(BranchStatus))
    branch = BranchSummary("main", 1, status, 0, 0, "main", 1) if rng.random() < 0.6 else None
    debt, unknown = rng.choice((0, 0, 3)), rng.choice(((), (), (), ("sum",), ("nobody_has_this",)))
    commit = Commit("c", 1, Kind.MARK, 0, "o", None, None, debt=debt, unknown=unknown)
    commit = Commit(**{**commit_fields(commit), "branch": branch, "protected": rng.random() < 0.3, "edited": 1})
    return sweep_headers(commit) | branch_headers(commit)


def commit_fields(commit: Commit) -> dict[str, Any]:
    return {name: getattr(commit, name) for name in commit.__dataclass_fields__}


@pytest.mark.parametrize("seed", range(120))
async def test_what_the_sweeper_knows_is_what_the_newest_headers_say(
    seed: int, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, own = Stream(), OwnCommits()
    share = rng.choice((0.0, 0.5, 0.9, 1.0))  # of the commits that the sweeper's server writes
    own.begin()
    monkeypatch.setattr(debts, "CHUNK", rng.randint(1, 4))
    tracker = DebtTracker(cast("Any", stream), Subjects(""), own)
    clock = 10**18
    for _ in range(12):
        change = rng.random()
        if change < 0.1:  # created anew
            stream.created, stream.last, stream.messages = str(rng.random()), 0, []
        elif change < 0.2 and stream.messages:  # restored from a backup: the same stream without the newest commits
            stream.messages = stream.messages[: -rng.randint(1, len(stream.messages))]
            stream.last = stream.messages[-1].stream_sequence if stream.messages else 0
        for _ in range(rng.randint(0, 4) if not 0.1 <= change < 0.2 else 0):
            stream.last += rng.randint(1, 2)
            clock += rng.randint(-3, 5)  # a server's clock may go back
            headers = commit_headers(rng) if rng.random() < 0.9 else {"X-MESSAGE-TYPE": "foreign"}
            name = rng.choice(NAMES)
            if name not in stream.newest() and len(headers) == 1:
                continue  # ignored as the first message of a log
            stream.messages.append(Header(f"rebaser.commits.{name}", stream.last, clock, headers))
            if rng.random() < share and len(headers) > 1:
                own.add(stream.last, f"rebaser.commits.{name}", headers)
        await tracker.read_ahead(rng.choice((1, 2, 100)))
        found = await tracker.read()
        if not stream.messages:
            continue
        # A message that is not a commit has no information: the one before it counts, if it was read.
        commits: dict[str, Header] = {}
        for one in stream.messages:
            if len(one.headers) > 1:
                commits[one.subject.removeprefix("rebaser.commits.")] = one
        passed_over = {name for name, one in stream.newest().items() if len(one.headers) == 1}
        for name, one in commits.items():
            owes = one.headers["X-Debt"] != "0" or "sum" in one.headers.get("X-Unknown-Functions", "")
            branch = one.headers.get("X-Branch", "")
            expires = any(f" {status} " in branch for status in ("applied", "abandoned"))
            expires = expires and "X-Protected" not in one.headers
            since = ClosedSince(one.stream_sequence, one.timestamp_ns) if expires else None
            if name not in passed_over:
                assert (name in found, tracker.closed.get(name)) == (owes, since), name
            else:  # the one before was read earlier, or never
                assert (name in found, tracker.closed.get(name)) in ((owes, since), (False, None)), name
        assert {name for name in tracker.owing_since if name not in passed_over} == {
            name for name, one in commits.items() if name not in passed_over and one.headers["X-Debt"] != "0"
        }
        assert found <= commits.keys()
        assert tracker.closed.keys() <= commits.keys()
        if stream.messages[-1].stream_sequence == stream.last:
            assert tracker.newest_ns >= stream.messages[-1].timestamp_ns


@pytest.mark.usefixtures("rng")
async def test_an_update_is_due_since_the_first_edit_that_no_update_covers() -> None:
    stream = Stream()
    tracker = DebtTracker(cast("Any", stream), Subjects(""))

    async def since_after(debt: int, covers: str = "") -> int | None:
        stream.last += 1
        headers = {"X-Applied": "", "X-Debt": str(debt)} | ({"X-Covers": covers} if covers else {})
        stream.messages.append(Header("rebaser.commits.ws.a", stream.last, stream.last * 10, headers))
        await tracker.read()
        return tracker.owing_since.get("ws.a")

    assert await since_after(0) is None
    assert await since_after(2, covers="1") == 20
    assert await since_after(3, covers="1") == 20, "further edits do not make the debt younger"
    assert await since_after(1, covers="2") == 40, "an update has covered the first edit"
    assert await since_after(2, covers="2") == 40
    assert await since_after(0) is None
    assert await since_after(1, covers="6") == 70


@pytest.mark.usefixtures("rng")
async def test_reading_ends_though_further_commits_keep_coming() -> None:
    stream, headers = Stream(last=3), {"X-Applied": "", "X-Debt": "0"}
    stream.messages = [Header("rebaser.commits.ws.a", number, number, headers) for number in range(1, 100)]
    tracker = DebtTracker(cast("Any", stream), Subjects(""))
    tracker._created, tracker._read_up_to = stream.created, 1
    await tracker.read()
    assert 3 <= tracker._read_up_to < 99


@pytest.mark.usefixtures("rng")
async def test_needless_headers_are_not_recorded_and_not_read_again_after_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream, headers = Stream(last=99), {"X-Applied": "", "X-Debt": "0"}
    stream.messages = [Header("rebaser.commits.ws.a", number, number, headers) for number in range(1, 100)]
    tracker, recorded, waits = DebtTracker(cast("Any", stream), Subjects("")), list[int](), list[int]()
    tracker._created, tracker._read_up_to = stream.created, 1
    real = Consumer.wait

    async def wait(self: Consumer) -> None:
        await real(self)
        waits.append(self.delivered)
        if len(waits) == 3:
            raise TransientError("lost")

    monkeypatch.setattr(Consumer, "wait", wait)
    monkeypatch.setattr(tracker, "_record", lambda message: recorded.append(message.stream_sequence))
    with pytest.raises(TransientError):
        await tracker.read()
    assert tracker._read_up_to == waits[2]
    await tracker.read()
    assert tracker._read_up_to == 99
    assert waits == sorted(waits)
    assert recorded == [99]


@pytest.mark.usefixtures("rng")
async def test_the_time_of_the_newest_commit_does_not_go_back() -> None:
    """Otherwise, a server whose clock is behind would keep change sets that were closed long ago."""
    headers, stream = commit_headers(random.Random(1)), Stream(last=2)
    stream.messages = [
        Header("rebaser.commits.ws.a", 1, 2_000, headers),
        Header("rebaser.commits.ws.b", 2, 1_000, headers),
    ]
    tracker = DebtTracker(cast("Any", stream), Subjects(""))
    await tracker.read()
    assert tracker.newest_ns == 2_000
    stream.created, stream.messages = "another", stream.messages[1:]
    await tracker.read()
    assert tracker.newest_ns == 1_000


HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            ("X-Debt", " X-Debt", "X-Debt ", "X-Branch", "X-Unknown-Functions", "X-Protected", "X-Applied")
        ),
        st.sampled_from(("0", " 0", "00", "2", "", '["sum"]', "main@1 applied 0 0 main@1", "X-Debt: 0")),
    ),
    max_size=5,
)


@given(HEADERS, st.booleans(), st.booleans())
@example([("X-Debt", "0"), ("X-Debt", "2")], False, False)
@example([("X-Debt", "0"), (" X-Debt", "2")], False, False)
@example([("X-Debt", "0")], True, False)
@example([("X-Debt", "0")], False, True)
def test_what_is_needless_would_change_nothing(pairs: list[tuple[str, str]], owes: bool, closed: bool) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in [("X-Applied", ""), *pairs])
    raw = f"NATS/1.0\r\n{lines}\r\n".encode()
    tracker = DebtTracker(cast("Any", None), Subjects(""))
    if owes:
        tracker._names.add("ws.a")
        tracker.owing_since["ws.a"] = 5
    if closed:
        tracker.closed["ws.a"] = ClosedSince(3, 5)
    before = {*tracker._names}, {**tracker.owing_since}, {**tracker.closed}
    needless = tracker._is_needless("rebaser.commits.ws.a", raw)
    with suppress(RebaserError):
        tracker._record(cast("Any", Header("rebaser.commits.ws.a", 7, 9, parse_headers(raw))))
    if needless:
        assert (tracker._names, tracker.owing_since, tracker.closed) == before


async def test_the_headers_of_a_commit_without_debt_are_needless() -> None:
    tracker = DebtTracker(cast("Any", None), Subjects(""))
    plain = sweep_headers(Commit("c", 1, Kind.REBASE, 0, "o", None, None, debt=0))
    assert tracker._is_needless("rebaser.commits.ws.a", encode_headers(plain))


async def test_what_is_closed_again_is_deleted_though_a_deletion_was_asked_for_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The earlier request was refused, because the change set had been reopened in time."""
    asked: list[str] = []

    async def publish(_: object, __: object, request: Any, *___: object, **____: object) -> None:
        asked.append(f"{request.change_set_id} {request.id} {request.expect_at}")

    monkeypatch.setattr(closed_module, "publish_request", publish)
    closed = ClosedChangeSets(cast("Any", None), Subjects(""), 10.0)
    second = 1_000_000_000
    sweeps: list[tuple[dict[str, ClosedSince], int]] = [
        ({"ws.a": ClosedSince(5, 100 * second)}, 109 * second),  # not due yet
        ({"ws.a": ClosedSince(5, 100 * second)}, 110 * second),
        ({"ws.a": ClosedSince(5, 100 * second)}, 120 * second),  # already requested
        ({"ws.a": ClosedSince(8, 115 * second)}, 124 * second),  # closed again, and not due yet
        ({"ws.a": ClosedSince(8, 115 * second), "ws.b": ClosedSince(9, second)}, 130 * second),
        ({"ws.a": ClosedSince(8, 115 * second), "ws.b": ClosedSince(9, second)}, 140 * second),
        ({"ws.a": ClosedSince(12, 145 * second)}, 160 * second),  # closed again, and due when the sweeper sees it
    ]
    counts = [await closed.delete(found, now) for found, now in sweeps]
    assert counts == [0, 1, 0, 0, 2, 0, 1]
    assert asked[0] == "a closed-5 5"
    assert sorted(asked[1:3]) == ["a closed-8 8", "b closed-9 9"]
    assert asked[3:] == ["a closed-12 12"]


@pytest.mark.parametrize("error", [TransientError("no answer"), ApiError(503, 10077, "maximum messages exceeded")])
async def test_a_deletion_that_could_not_be_asked_for_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, error: RebaserError
) -> None:
    errors = [error]

    async def publish(*_: object, **__: object) -> None:
        if errors:
            raise errors.pop()

    monkeypatch.setattr(closed_module, "publish_request", publish)
    closed = ClosedChangeSets(cast("Any", None), Subjects(""), 10.0)
    found = {"ws.a": ClosedSince(5, 0)}
    with suppress(TransientError):
        await closed.delete(found, 10**12)
    assert [await closed.delete(found, 10**12) for _ in range(2)] == [1, 0]


async def test_a_deletion_whose_request_was_lost_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream of requests may have been deleted. While the request is only late, it is sent once."""
    asked: list[str] = []

    async def publish(_: object, __: object, request: Any) -> None:
        asked.append(request.id)

    monkeypatch.setattr(closed_module, "publish_request", publish)
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(closed_module, "anyio", SimpleNamespace(current_time=lambda: clock.now))
    closed = ClosedChangeSets(cast("Any", None), Subjects(""), 10.0)
    found = {"ws.a": ClosedSince(5, 0)}
    for _ in range(3):
        await closed.delete(found, 10**12)
        clock.now += closed_module.ASK_AGAIN / 2
    assert asked == ["closed-5", "closed-5"]

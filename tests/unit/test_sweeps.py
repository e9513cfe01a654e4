"""A sweep that fails does not end the server, and is not repeated at once."""

from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from rebaser.sweeper import sweeper as sweeper_module
from rebaser.sweeper.sweeper import Sweeper
from rebaser_client.jetstream import ApiError
from rebaser_core.errors import RebaserError, TransientError
from rebaser_core.streams.subjects import Subjects

pytestmark = pytest.mark.anyio

INTERVAL = 600.0
MESSAGE = cast("Any", SimpleNamespace())


class Stream:
    """Records the delays with which messages are given back. Publishing ends as `ends` says."""

    def __init__(self, *ends: RebaserError) -> None:
        self.delays: list[float] = []
        self.ends = [*ends]
        self.published = 0

    async def nak(self, _: object, delay: float) -> None:
        self.delays.append(delay)

    async def publish(self, *_: object) -> None:
        self.published += 1
        if self.ends:
            raise self.ends.pop(0)


def sweeper(stream: Stream, interval: float = INTERVAL) -> Sweeper:
    async def purge() -> int:
        return 0

    history = SimpleNamespace(purge=purge)
    made = Sweeper(cast("Any", stream), Subjects(""), interval, cast("Any", None), cast("Any", history))
    made._old_sweep_retired = True
    return made


@pytest.mark.parametrize("fails", [False, True])
async def test_the_next_sweep_follows_after_the_interval(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    stream = Stream()

    async def sweep(_: Sweeper) -> int:
        if fails:
            raise TransientError("no answer")
        return 0

    monkeypatch.setattr(Sweeper, "sweep", sweep)
    await sweeper(stream)._sweep_once(MESSAGE)
    assert stream.delays == [INTERVAL]


@pytest.mark.parametrize("fails", ["sweep", "purge", "delete"])
async def test_a_part_of_a_sweep_that_fails_each_time_does_not_keep_the_others_from_their_turn(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """While there is no room for dead letters, an unroutable request would otherwise prevent the purging of logs."""
    done: list[str] = []

    def part(name: str) -> Any:
        async def run(*_: object) -> int:
            done.append(name)
            if name == fails:
                raise TransientError("no room")
            return 0

        return run

    stream = Stream()
    made = sweeper(stream)
    monkeypatch.setattr(made, "sweep", part("sweep"))
    made._history = cast("Any", SimpleNamespace(purge=part("purge")))
    made._closed = cast("Any", SimpleNamespace(delete=part("delete")))
    await made._sweep_once(MESSAGE)
    assert (done, stream.delays) == (["sweep", "purge", "delete"], [INTERVAL])


async def test_a_sweep_that_is_cut_off_by_a_shutdown_is_left_to_another_server_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = Stream()
    with anyio.CancelScope() as scope:

        async def sweep(_: Sweeper) -> int:
            scope.cancel()
            await anyio.sleep_forever()
            return 0

        monkeypatch.setattr(Sweeper, "sweep", sweep)
        await sweeper(stream)._sweep_once(MESSAGE)
    assert scope.cancelled_caught
    assert stream.delays == [0.0]


async def test_a_message_that_cannot_be_published_now_is_published_later() -> None:
    refused = ApiError(503, 10023, "insufficient resources")
    stream = Stream(refused, TransientError("no answer"))
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(sweeper(stream, 0.001)._keep_message)
            while stream.published < 3:
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()


async def test_headers_are_read_between_sweeps_by_the_pinned_server_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made, delays, reads = sweeper(Stream(), 7.0), list[float](), list[int]()
    outcomes: list[bool | RebaserError] = [False, False, True, TransientError("no answer"), False, True]

    async def read_ahead(least: int) -> bool:
        reads.append(least)
        outcome = outcomes.pop(0)
        made.pinned = bool(outcomes)
        if isinstance(outcome, RebaserError):
            raise outcome
        return outcome

    async def sleep(delay: float) -> None:
        delays.append(delay)
        made.pinned = made.pinned or len(delays) == 3  # pinned after the second step
        if len(delays) == 11:
            raise ZeroDivisionError

    monkeypatch.setattr(made, "_debts", SimpleNamespace(read_ahead=read_ahead))
    monkeypatch.setattr(sweeper_module, "anyio", SimpleNamespace(sleep=sleep))
    with pytest.raises(ZeroDivisionError):
        await made._read_ahead()
    assert reads == [sweeper_module.READ_AHEAD_LEAST] * 6
    assert delays == [0.25, 0.5, 1.0, 2.0, 3.5, 0.25, 0.5, 1.0, 0.25, 0.5, 1.0]

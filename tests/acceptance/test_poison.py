"""A request that kills, hangs or breaks its owners becomes dead after some attempts; all other requests are applied."""

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from rebaser.embedded.nats import EmbeddedNats
from rebaser_client import DeadLetter, Derive, RebaserClient, RequestRejected, Set
from tests.support.fleet import NO_SPARK, ServerProcess, servers
from tests.support.history import check_history, commits_of

pytestmark = pytest.mark.anyio

DEFECTIVE: dict[str, Any] = {
    "module": "tests.support.poisoned_server", "spark": NO_SPARK, "ack_wait": 3, "quiescent_period": 600,
}  # fmt: skip


async def send(client: RebaserClient, change_set: str, *values: str) -> list[str]:
    """Store one request for each value, and return their ids."""
    return [await client.enqueue_updates("poison", change_set, [Set(value, value)]) for value in values]


async def letters(client: RebaserClient) -> list[DeadLetter]:
    return [letter async for letter in client.dead_letters.find()]


async def applied(client: RebaserClient, change_set: str, request_id: str) -> None:
    """Return when `request_id` is decided."""
    with anyio.fail_after(120):
        async for commit in client.watch("poison", change_set, after=0):
            if request_id in [decision.request_id for decision in commit.requests]:
                return


async def check(client: RebaserClient, change_set: str, request_ids: list[str], *values: str) -> None:
    """Check that all requests were decided once and in order, and that the change set has these values."""
    check_history(await commits_of(client, "poison", change_set), request_ids)
    assert set(await client.values("poison", change_set)) == set(values)


async def test_a_request_that_kills_its_owners_is_dead_and_its_neighbours_are_applied(own_nats: EmbeddedNats) -> None:
    """The first owner dies without having recorded an attempt. Two more die after recording one, and the fourth does
    not try the request."""
    async with (
        servers(own_nats.url, "a", "b", "c", "d", warm=False, max_deaths=2, **DEFECTIVE) as four,
        RebaserClient.connect(own_nats.url) as client,
    ):
        ids = await send(client, "main", "one", "two", "KILL", "three", "four")
        other = await send(client, "other", "one", "two")
        await applied(client, "main", ids[-1])
        await applied(client, "other", other[-1])
        survivor = await first_to_log("request_dead", four)
        assert await ends(four, survivor) in ([9, 9, 9], [9, 9])
        [letter] = await letters(client)
        assert (letter.request_id, letter.code, letter.attempts) == (ids[2], "poison", 2)
        assert letter.server == survivor.name
        with pytest.raises(RequestRejected, match="died, hung or failed"):  # its client sends the request again
            await client.enqueue_updates_with_reply("poison", "main", [Set("KILL", 1)], request_id=ids[2])
        # Repeated failures that do not end the server count as well.
        ids += await send(client, "main", "BREAK", "five")
        await applied(client, "main", ids[-1])
        await check(client, "main", ids, "one", "two", "three", "four", "five")
        await check(client, "other", other, "one", "two")
        commits = await commits_of(client, "poison", "main")
        dead = [one.request_id for commit in commits for one in commit.requests if one.code == "poison"]
        assert dead == [ids[2], ids[5]]


async def test_a_request_that_hangs_its_owners_is_dead_and_its_neighbours_are_applied(own_nats: EmbeddedNats) -> None:
    """A blocked event loop sends no progress acks, so its tasks go to another server, which sees the recorded
    attempts."""
    async with (
        servers(own_nats.url, "a", "b", "c", warm=False, max_deaths=1, **DEFECTIVE) as three,
        RebaserClient.connect(own_nats.url) as client,
    ):
        ids = await send(client, "main", "one", "HANG", "two")
        await applied(client, "main", ids[-1])
        survivor = await first_to_log("request_dead", three)
        [letter] = await letters(client)
        assert (letter.request_id, letter.code, letter.server) == (ids[1], "poison", survivor.name)
        await check(client, "main", ids, "one", "two")
        for server in three:
            if server is not survivor:
                await server.kill()


async def test_a_dvu_that_kills_its_owners_is_put_off_and_requests_are_applied(own_nats: EmbeddedNats) -> None:
    """The first owner dies without having recorded an attempt, the second after recording one; the third defers the
    update."""
    async with (
        servers(own_nats.url, "a", "b", "c", warm=False, max_deaths=1, **DEFECTIVE) as three,
        RebaserClient.connect(own_nats.url) as client,
    ):
        await client.enqueue_updates("poison", "main", [Set("DEADLY", 1), Derive("total", "sum", {"of": ["DEADLY"]})])
        survivor = await first_to_log("dvu_deferred", three)
        assert await ends(three, survivor) in ([9, 9], [9])
        with anyio.fail_after(120):
            told = "the update of poison.main is deferred: 1 of the servers that ran it died or hung"
            while (survivor.name, told) not in [(one.id, one.trouble) for one in (await client.status()).servers]:
                pass  # it did not answer soon
        await client.enqueue_updates_with_reply("poison", "main", [Set("one", 1)], timeout=120)


async def ends(servers: Sequence[ServerProcess], survivor: ServerProcess) -> list[int]:
    """Return how the other servers ended. One of them may live: a server that a busy machine stalls loses its change
    set to the next one, like a server that dies."""
    others = [server.process for server in servers if server is not survivor]
    with anyio.fail_after(120):
        while sum(one.returncode is not None for one in others) < len(others) - 1:  # noqa: ASYNC110 - any of them ends
            await anyio.sleep(0.05)
    return [one.returncode for one in others if one.returncode is not None]


async def first_to_log(event: str, servers: Sequence[ServerProcess]) -> ServerProcess:
    found: list[ServerProcess] = []

    async def listen(server: ServerProcess) -> None:
        await server.wait_for(event)
        found.append(server)
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for server in servers:
            group.start_soon(listen, server)
    return found[0]

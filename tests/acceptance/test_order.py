"""Many writers, several servers: requests of a change set are applied in the order of its stream, each of them once."""

import sys

import anyio
import pytest

from rebaser_client import RebaserClient, Set
from rebaser_core.messages import Success
from tests.support.fleet import ServerProcess
from tests.support.history import check_history, commit_of, commits_of

pytestmark = pytest.mark.anyio

CHANGE_SETS = ["a", "b", "c", "d", "e"]
WRITERS = {"w1": 667, "w2": 667, "w3": 666}


@pytest.mark.timeout(900)
async def test_three_client_processes_five_change_sets_two_servers(
    client: RebaserClient, fleet: tuple[ServerProcess, ServerProcess], fleet_url: str
) -> None:
    """There are 2,000 requests for each of five change sets. The order is kept, each request is applied once, and both
    servers take part."""

    async def write(name: str, count: int) -> None:
        command = [sys.executable, "-m", "tests.support.writer", fleet_url, "order", name, str(count), *CHANGE_SETS]
        await anyio.run_process(command, stdout=None, stderr=None)

    async with anyio.create_task_group() as group:
        for name, count in WRITERS.items():
            group.start_soon(write, name, count)
    owners: set[str] = set()
    for change_set in CHANGE_SETS:
        await client.enqueue_updates_with_reply("order", change_set, [Set("done", True)])
        commits = await commits_of(client, "order", change_set)
        check_history(commits)
        assert sum(len(commit.requests) for commit in commits) == 2001
        for name, count in WRITERS.items():
            numbers = [
                one.value
                for commit in commits
                for one in commit.delta
                if isinstance(one, Set) and one.id == f"writer/{name}"
            ]
            assert numbers == list(range(count))
        owners |= {commit.owner for commit in commits}
    # Neither server has slots for all five, and none of the five was idle, so the other server had to take some.
    assert owners == {server.name for server in fleet}


async def test_replies_come_in_order_and_say_which_commit(client: RebaserClient) -> None:
    replies = [
        await client.enqueue_updates_with_reply("order", "replies", [Set("n", number), Set("m", number)])
        for number in range(20)
    ]
    commits = [commit_of(reply) for reply in replies]
    assert commits == sorted(set(commits))
    assert {reply.status.performed for reply in replies if isinstance(reply.status, Success)} == {2}
    check_history(await commits_of(client, "order", "replies"), [reply.id for reply in replies])

"""A client process that sends numbered requests to several change sets at the same time, in order for each change set.

python -m tests.support.writer URL WORKSPACE NAME COUNT CHANGE_SET...
"""

import sys

import anyio

from rebaser_client import RebaserClient, Set


async def main(url: str, workspace: str, name: str, count: int, change_sets: list[str]) -> None:
    async with RebaserClient.connect(url) as client:

        async def write(change_set: str) -> None:
            for number in range(count):
                await client.enqueue_updates(workspace, change_set, [Set(f"writer/{name}", number)], timeout=400)

        async with anyio.create_task_group() as group:
            for change_set in change_sets:
                group.start_soon(write, change_set)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5:])

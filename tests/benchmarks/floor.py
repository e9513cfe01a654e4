"""The floor: a bare nats-py program that stores a request, commits with compare-and-set, replies, and deletes.

One process is the worker, one the client. There is no recovery, no lease, no retry and no value: only the messages that
every such system has to send. `python -m tests.benchmarks.floor serve URL` is the worker; `load` is called by the
benchmark.
"""

import asyncio
import json
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import nats
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg

BATCH = 64
READY = "floor.ready"


class Calls:
    """Requests and replies over one inbox subscription, with plain futures."""

    def __init__(self, nc: Client) -> None:
        self.nc = nc
        self.inbox = nc.new_inbox()
        self.waiting: dict[str, asyncio.Future[Msg]] = {}
        self.count = 0

    async def open(self) -> None:
        await self.nc.subscribe(self.inbox + ".*", cb=self.answered)

    async def answered(self, message: Msg) -> None:
        future = self.waiting.pop(message.subject[len(self.inbox) + 1 :], None)
        if future is not None and not future.done():
            future.set_result(message)

    def new(self) -> tuple[str, asyncio.Future[Msg]]:
        self.count += 1
        future = self.waiting[str(self.count)] = asyncio.get_running_loop().create_future()
        return f"{self.inbox}.{self.count}", future

    async def __call__(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> Msg:
        reply, future = self.new()
        await self.nc.publish(subject, data, reply, headers)
        return await future


async def create_streams(nc: Client) -> None:
    for name, subjects in (("FLOOR_TASKS", "ft.*"), ("FLOOR_COMMITS", "fc.*")):
        config = {"name": name, "subjects": [subjects], "retention": "limits", "storage": "file", "discard": "new"}
        config |= {"num_replicas": 1, "duplicate_window": 120_000_000_000, "max_msgs": -1, "max_bytes": -1}  # type: ignore[dict-item]
        config |= {"max_consumers": 100_000}  # type: ignore[dict-item] # one for each key; the default is 1000
        await nc.request(f"$JS.API.STREAM.CREATE.{name}", json.dumps(config).encode())


class Worker:
    """A worker with one ordered push consumer per key. All queued requests of a key go into one commit."""

    def __init__(self, nc: Client) -> None:
        self.nc = nc
        self.call = Calls(nc)
        self.keys: dict[str, dict[str, Any]] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    async def on_wake(self, message: Msg) -> None:
        key = message.subject.partition(".")[2]
        if key in self.keys:
            return
        self.keys[key] = {"state": 0, "revision": 0, "queue": deque(), "busy": False}
        config = {"name": f"f-{key}", "filter_subject": f"ft.{key}", "deliver_subject": "_floor", "ack_policy": "none"}
        config |= {"deliver_policy": "all", "max_deliver": 1, "mem_storage": True, "num_replicas": 1}  # type: ignore[dict-item]
        config |= {"flow_control": True, "idle_heartbeat": 5_000_000_000}  # type: ignore[dict-item]
        await self.call(
            f"$JS.API.CONSUMER.CREATE.FLOOR_TASKS.f-{key}.ft.{key}",
            json.dumps({"stream_name": "FLOOR_TASKS", "config": config}).encode(),
        )

    async def on_task(self, message: Msg) -> None:
        if message.headers and message.headers.get("Status"):
            if message.reply:
                await self.nc.publish(message.reply)
            return
        cell = self.keys[message.subject.partition(".")[2]]
        cell["queue"].append(message)
        if not cell["busy"]:
            cell["busy"] = True
            task = asyncio.ensure_future(self.run(message.subject.partition(".")[2], cell))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def run(self, key: str, cell: dict[str, Any]) -> None:
        queue = cell["queue"]
        while queue:
            batch = [queue.popleft() for _ in range(min(len(queue), BATCH))]
            state, answers = cell["state"], []
            for message in batch:
                state += int(message.data)
                answers.append(state)
            expected = {"Nats-Expected-Last-Subject-Sequence": str(cell["revision"])}
            ack = json.loads((await self.call(f"fc.{key}", b"%d" % state, expected)).data)
            cell["state"], cell["revision"] = state, ack["seq"]
            for message, answer in zip(batch, answers, strict=True):
                await self.nc.publish(message.headers["R"], b"%d" % answer)
                sequence = int(message.reply.split(".")[-4])
                await self.nc.publish("$JS.API.STREAM.MSG.DELETE.FLOOR_TASKS", b'{"seq":%d,"no_erase":true}' % sequence)
        cell["busy"] = False


async def serve(url: str) -> None:
    nc = await nats.connect(url)
    await create_streams(nc)
    worker = Worker(nc)
    await worker.call.open()
    await nc.subscribe("_floor", cb=worker.on_task, pending_msgs_limit=-1, pending_bytes_limit=-1)
    await nc.subscribe("fw.*", cb=worker.on_wake)

    async def answer(message: Msg) -> None:
        await message.respond(b"yes")

    await nc.subscribe(READY, cb=answer)
    await nc.flush()
    await asyncio.Event().wait()


async def load(url: str, drive: Callable[[Callable[[str], Awaitable[int]]], Awaitable[Any]]) -> Any:
    """Connect as a client, and let `drive` make calls: `await call(key)` returns the new counter of the key."""
    nc = await nats.connect(url)
    call, seen = Calls(nc), set[str]()
    await call.open()
    acks = call.inbox + ".ack"
    while True:
        try:
            await nc.request(READY, timeout=1)
            break
        except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
            await asyncio.sleep(0.05)

    async def one(key: str) -> int:
        reply, future = call.new()
        await nc.publish(f"ft.{key}", b"1", acks, {"Nats-Msg-Id": reply, "R": reply})
        if key not in seen:
            seen.add(key)
            await nc.publish(f"fw.{key}")
        return int((await future).data)

    try:
        return await drive(one)
    finally:
        await nc.close()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[2]))

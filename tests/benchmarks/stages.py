"""Measures the cost of each stage of a request in the server, beside its budget, with a NATS that answers in this
process.

    python -m tests.benchmarks.stages [--rounds 1000] [--keys 1000] [--json]

There are two loads: `keys` has bursts of 8 requests, each for another one of `--keys` change sets, so that each needs a
commit of its own; `many` has bursts of 32 requests for one change set, which share one commit. Figures are µs per
request. The budget is for `keys`, the most expensive load.

The time of a stage includes neither the stages inside it nor the stopwatch. `all` is the processor time of the same
load without a stopwatch, and `rest` the part of it that belongs to no stage: tasks, futures, coroutines, deletes, the
event loop. Sockets and their system calls are missing, and so is the memory traffic of other processes.

Each figure is the 10th percentile over the bursts, because slower bursts show what else the machine does.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import wraps
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from unittest import mock

import anyio
import structlog
import uvloop

from rebaser.change_set import processor, rounds
from rebaser.change_set.actor import Actor
from rebaser.change_set.lease import Task
from rebaser.change_set.lifecycle import Phase
from rebaser.change_set.log import commit_drafts, commit_log
from rebaser.change_set.owner import Owner
from rebaser.change_set.readers.request_reader import RequestReader
from rebaser.runtime.context import Context
from rebaser.runtime.dead_letters import DeadLetterPublisher
from rebaser.runtime.python_gc import short_collections
from rebaser.runtime.request_deleter import RequestDeleter
from rebaser.runtime.shared_info import SharedStreamInfo
from rebaser.settings import Settings
from rebaser_client.blobs import open_blobs
from rebaser_client.jetstream import Connection, JetStream, Message
from rebaser_client.jetstream import context as jetstream_context
from rebaser_client.jetstream.ordered.consumer import OrderedConsumer
from rebaser_client.log.reader import StateLoader
from rebaser_client.nats import nats_py
from rebaser_client.nats.link import Link
from rebaser_client.nats.parser import ProtocolParser
from rebaser_client.nats.replies import Replies
from rebaser_core.ids import ChangeSetKey, random_ulid
from rebaser_core.streams.subjects import Subjects
from tests.benchmarks.nats_here import NatsHere, Transport

BURST = {"keys": 8, "many": 32}
REST, ALL = "rest", "all"


class Stage(NamedTuple):
    """A part of the processing of a request: the functions in which it happens, each with the object that has it."""

    name: str
    budget: float
    functions: tuple[tuple[object, str], ...]


STAGES = (
    Stage("parse what NATS sends", 10, ((ProtocolParser, "_on_message"),)),
    Stage("ordered consumer", 5, ((OrderedConsumer, "_on_message"),)),
    Stage("lifecycle, wake the owner", 12, ((Actor, "post"),)),
    Stage("read the request", 16, ((RequestReader, "read"), (RequestReader, "read_plain"))),
    Stage("decide", 6, ((processor, "decide"), (rounds, "decide"))),
    Stage("draft the commit", 6, ((commit_drafts, "of_batch"),)),
    Stage("encode the commit", 12, ((commit_log, "encode_commit"),)),
    Stage("read the commit back", 8, ((commit_log, "check_commit"), (rounds, "check_commit"))),
    Stage("open and close a reply", 4, ((Replies, "open_request"), (Replies, "close"))),
    Stage("encode NATS commands", 9, ((Link, "publish"),)),
    Stage("read the PubAck", 2, ((jetstream_context, "pub_ack"),)),
    Stage("fold", 6, ((commit_log.CommitLog, "_fold"),)),
    Stage("build the answer", 5, ((processor, "plain_reply"),)),
)
REST_BUDGET = 20
BUDGETS = {**{stage.name: stage.budget for stage in STAGES}, REST: REST_BUDGET}
BUDGETS[ALL] = sum(BUDGETS.values())


class Stopwatch:
    """Measures seconds by stage. Stages nest, and the time of an inner stage is not part of the outer one.

    It reads the wall clock, because reading the processor time is a system call.
    """

    def __init__(self) -> None:
        self.used: dict[str, float] = defaultdict(float)
        self._inner = [0.0]
        self._within = self._around = 0.0  # the cost of the stopwatch, inside and outside of what it measures
        self._calibrate()

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` with its time measured. A coroutine function must not suspend."""
        inner, used, clock = self._inner, self.used, time.perf_counter

        def stop(began: float) -> None:
            whole = clock() - began
            used[stage] += whole - inner.pop() - self._within
            inner[-1] += whole + self._around

        @wraps(function)
        def call(*args: Any, **more: Any) -> Any:
            inner.append(0.0)
            began = clock()
            try:
                return function(*args, **more)
            finally:
                stop(began)

        @wraps(function)
        async def run(*args: Any, **more: Any) -> Any:
            inner.append(0.0)
            began = clock()
            try:
                return await function(*args, **more)
            finally:
                stop(began)

        return run if asyncio.iscoroutinefunction(function) else call

    def _calibrate(self, count: int = 200, tries: int = 20) -> None:
        """Measure the cost of the stopwatch with a function that does nothing."""

        def nothing() -> None:
            return None

        timed, found = self.timed("", nothing), []
        for _ in range(tries):
            self.used.clear()
            began = time.perf_counter()
            for _ in range(count):
                timed()
            within = self.used[""]
            found.append((within / count, (time.perf_counter() - began - within) / count))
        self._within, self._around = min(found, key=sum)
        self.used.clear()
        self._inner[:] = [0.0]


async def bursts(load: str, options: argparse.Namespace, stopwatch: Stopwatch) -> list[dict[str, float]]:
    """Return the µs per request of each burst, by stage."""
    settings = Settings(quiescent_period=86_400, checkpoint_bytes=2**40)
    nats, count, found = NatsHere(), BURST[load], []
    keys = [ChangeSetKey("bench", f"cs{number}") for number in range(options.keys if load == "keys" else 1)]
    async with anyio.create_task_group() as group:
        answering = anyio.CancelScope()
        group.start_soon(_respond_always, nats, answering)
        async with Connection.connect(settings.nats_url) as connection:
            await own(keys, make_context(settings, connection), group)
            answering.cancel()
            for _ in range(options.rounds):
                stopwatch.used.clear()
                wanted, used = nats.replies + count, 0.0
                chosen = random.sample(keys, count) if load == "keys" else keys * count
                nats.transport.receive(b"".join([nats.delivery(key) for key in chosen]))
                while nats.replies < wanted:
                    began = time.thread_time()
                    for _ in range(6):
                        await asyncio.sleep(0)
                    used += time.thread_time() - began
                    nats.respond()
                found.append({stage: 1e6 * spent / count for stage, spent in {**stopwatch.used, ALL: used}.items()})
            group.cancel_scope.cancel()
    return found


def make_context(settings: Settings, connection: Connection) -> Context:
    js, subjects = JetStream(connection), Subjects()
    blobs = open_blobs(None, js, subjects.blobs_bucket)
    return Context(
        settings=settings,
        connection=connection,
        js=js,
        stream_watch=cast("Any", SimpleNamespace(check_soon=lambda: None)),
        subjects=subjects,
        blobs=blobs,
        reader=StateLoader(js, subjects, blobs, share_ids=True),
        engine=cast("Any", None),
        deleter=RequestDeleter(js, subjects.requests_stream),
        requests_info=SharedStreamInfo(js, subjects.requests_stream),
        dead_letters=DeadLetterPublisher(js, subjects, blobs, settings.server_id),
        now=time.monotonic,
        now_ms=lambda: time.time_ns() // 1_000_000,
        new_id=lambda: random_ulid(time.time_ns() // 1_000_000, os.urandom(16)),
    )


async def _respond_always(nats: NatsHere, answering: anyio.CancelScope) -> None:
    with answering:
        while True:
            await asyncio.sleep(0.001)
            if hasattr(nats, "transport"):
                nats.respond()


async def own(keys: Sequence[ChangeSetKey], context: Context, group: anyio.abc.TaskGroup) -> list[Owner]:
    """Start an owner of each of `keys`, and return them when they wait for requests."""
    owners = []
    group.start_soon(context.deleter.run)
    for number, key in enumerate(keys, 1):
        task = Message("", f"$JS.ACK.tasks.tasks.1.{number}.{number}.1.0", b"", None)
        owner = Owner(context, Task(key, cast("Any", task), context.js), changed=lambda _: None)
        group.start_soon(owner.run)
        while owner.lifecycle.phase is not Phase.ACTIVE:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.001)
        owners.append(owner)
    return owners


def measure(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the stages, the rest and the total, in µs per request, by load."""
    found = {}
    for load in BURST:
        stopwatch = Stopwatch()
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(nats_py, "SafeTransport", Transport))
            # The stand-in sends no heartbeats. With a tick this short, none counts as missed.
            stack.enter_context(mock.patch("rebaser_client.jetstream.ordered.consumer.TICK", 1e-9))
            with short_collections():  # as in a server
                bare = uvloop.run(bursts(load, options, stopwatch))
            for stage in STAGES:
                for where, name in stage.functions:
                    timed = stopwatch.timed(stage.name, getattr(where, name))
                    stack.enter_context(mock.patch.object(where, name, timed))
            rows = uvloop.run(bursts(load, options, stopwatch))
        stages = {stage.name: _low([row.get(stage.name, 0.0) for row in rows]) for stage in STAGES}
        total = _low([row[ALL] for row in bare])
        found[load] = {**stages, REST: round(total - sum(stages.values()), 3), ALL: total}
    return found


def _low(figures: Sequence[float]) -> float:
    """Return the 10th percentile, without the first tenth of the bursts, in which caches fill."""
    return round(statistics.quantiles(figures[len(figures) // 10 :], n=10)[0], 3)


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--rounds", type=int, default=1000)
    out.add_argument("--keys", type=int, default=1000)
    out.add_argument("--json", action="store_true")
    return out


def main() -> None:
    options = parser().parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    found = measure(options)
    if options.json:
        print(json.dumps(found))
        return
    print(f"{'µs for each request':26} budget" + "".join(f" {load:>6}" for load in found))
    for stage, budget in BUDGETS.items():
        print(f"{stage:26} {budget:6}" + "".join(f" {row[stage]:6.1f}" for row in found.values()))


if __name__ == "__main__":
    main()

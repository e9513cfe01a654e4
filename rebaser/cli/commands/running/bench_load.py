"""Generates the load of `rebaser bench`, and checks afterwards that no request was lost, duplicated or reordered.

Every worker writes to its own counter. If the final value of the counter is correct, none of the worker's requests was
applied after its last one. The log shows whether each request was applied exactly once, and in order. No request is
sent after the time limit, and every wait has a timeout.
"""

import math
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio

from rebaser.cli.connect import connect_client
from rebaser_core.ids import ulid
from rebaser_core.messages import Success
from rebaser_core.updates import Derive, Set, Update
from rebaser_core.values import State

if TYPE_CHECKING:
    from rebaser_client import RebaserClient

Wait: TypeAlias = Literal["applied", "derived"]

REPLY_TIMEOUT = 60.0  # seconds


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The load to generate, in two phases.

    `requests` and `derived` are the total numbers of requests in the first and in the second phase. `in_flight` is the
    number of concurrent requests to each change set in the first phase; in the second phase, this number is 1. After
    `seconds` seconds, no more requests are sent.
    """

    workspace: str
    change_sets: int
    in_flight: int
    requests: int
    derived: int
    seconds: float


@dataclass(slots=True)
class LoadPhase:
    """The latencies of the requests in a phase, and the duration of the phase (`elapsed`), in seconds."""

    latencies: list[float] = field(default_factory=list)
    elapsed: float = 0.0

    @property
    def count(self) -> int:
        return len(self.latencies)

    @property
    def rate(self) -> float:
        """Return the number of requests per second."""
        return self.count / self.elapsed if self.elapsed else 0.0

    def percentile(self, share: float) -> float:
        """Return the latency that the fraction `share` of the requests did not exceed (nearest rank)."""
        ordered = sorted(self.latencies)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    def as_object(self) -> dict[str, Any] | None:
        if not self.latencies:
            return None
        milliseconds = {f"p{share * 100:.0f}Ms": round(self.percentile(share) * 1000, 3) for share in (0.5, 0.95, 0.99)}
        return {"requests": self.count, "requestsPerSecond": round(self.rate, 1), **milliseconds}


@dataclass(slots=True)
class LoadReport:
    """The result of a load plan. `checked` is the number of requests that were looked up in the logs. `wrong` contains
    a line for each failed check."""

    plan: LoadPlan
    names: str
    applied: LoadPhase = field(default_factory=LoadPhase)
    derived: LoadPhase = field(default_factory=LoadPhase)
    cut_short: bool = False
    checked: int = 0
    wrong: list[str] = field(default_factory=list)

    def as_object(self) -> dict[str, Any]:
        return {
            "changeSets": self.plan.change_sets,
            "inFlight": self.plan.in_flight,
            "names": self.names,
            "applied": self.applied.as_object(),
            "derived": self.derived.as_object(),
            "cutShort": self.cut_short,
            "checked": self.checked,
            "exact": not self.wrong,
            "wrong": self.wrong,
        }


@dataclass(slots=True)
class LoadedChangeSet:
    """One change set under load.

    `counters` maps each worker to the value of its counter, and `sent` maps each worker to the ids of its requests.
    `decided` contains, in log order, the ids of the requests in the log up to the log sequence `read`. `closing`
    becomes true after the last request. From then on, `complete` is set as soon as `read` reaches `last_commit`.
    """

    name: str
    last_commit: int = 0
    counters: dict[int, int] = field(default_factory=dict)
    sent: dict[int, list[str]] = field(default_factory=dict)
    decided: list[str] = field(default_factory=list)
    read: int = 0
    complete: anyio.Event = field(default_factory=anyio.Event)
    closing: bool = False

    def record_read(self, sequence: int) -> None:
        self.read = sequence
        if self.closing and self.read >= self.last_commit:
            self.complete.set()


async def run_load(nats: str, prefix: str, plan: LoadPlan, reports: list[LoadReport]) -> None:
    """Carry out `plan` and append the report to `reports`."""
    async with connect_client(nats, prefix) as client:
        reports.append(await LoadRun(client, plan).run())


class LoadRun:
    """Carries out a load plan once."""

    def __init__(self, client: "RebaserClient", plan: LoadPlan) -> None:
        self._client = client
        self._plan = plan
        run = ulid(time.time_ns() // 1_000_000, os.urandom(10))
        self._change_sets = [LoadedChangeSet(f"{run}-{number}") for number in range(plan.change_sets)]
        more = f" to -{plan.change_sets - 1}" if plan.change_sets > 1 else ""
        self._report = LoadReport(plan, f"{plan.workspace} {self._change_sets[0].name}{more}")

    async def run(self) -> LoadReport:
        """Prepare the change sets, apply the load, and verify the result."""
        plan, report = self._plan, self._report
        limiter = anyio.CapacityLimiter(64)
        async with anyio.create_task_group() as group:
            for change_set in self._change_sets:
                group.start_soon(self._prepare, change_set, limiter)
        async with anyio.create_task_group() as group:
            for change_set in self._change_sets:
                group.start_soon(self._follow, change_set, change_set.last_commit)
            deadline = time.perf_counter() + plan.seconds
            await self._phase(report.applied, plan.requests, deadline, in_flight=plan.in_flight)
            await self._phase(report.derived, plan.derived, deadline, in_flight=1)
            for change_set in self._change_sets:
                await self._verify(change_set)
            group.cancel_scope.cancel()
        return report

    async def _prepare(self, change_set: LoadedChangeSet, limiter: anyio.CapacityLimiter) -> None:
        """Set the counters to 0 and derive their total. When this function returns, the total has been computed, and
        Spark is warm."""
        ids = [f"counter/{worker}" for worker in range(self._plan.in_flight)]
        total = Derive("total", "sum", {"values": ids})
        change_set.counters = dict.fromkeys(range(self._plan.in_flight), 0)
        change_set.sent = {worker: [] for worker in change_set.counters}
        async with limiter:
            await self._send(change_set, [*(Set(id_, 0) for id_ in ids), total], "derived")

    async def _phase(self, phase: LoadPhase, requests: int, deadline: float, *, in_flight: int) -> None:
        """Send `requests` requests, spread over all change sets."""
        remaining = requests
        wait: Wait = "derived" if phase is self._report.derived else "applied"

        async def work(change_set: LoadedChangeSet, worker: int) -> None:
            nonlocal remaining
            while remaining > 0:
                if time.perf_counter() > deadline:
                    self._report.cut_short = True
                    return
                remaining -= 1
                count = change_set.counters[worker] + 1
                began = time.perf_counter()
                request_id = await self._send(change_set, [Set(f"counter/{worker}", count)], wait)
                phase.latencies.append(time.perf_counter() - began)
                change_set.counters[worker] = count
                change_set.sent[worker].append(request_id)

        started = time.perf_counter()
        async with anyio.create_task_group() as group:
            for worker in range(in_flight):
                for change_set in self._change_sets:
                    group.start_soon(work, change_set, worker)
        phase.elapsed = time.perf_counter() - started

    async def _send(self, change_set: LoadedChangeSet, updates: list[Update], wait: Wait) -> str:
        response = await self._client.enqueue_updates_with_reply(
            self._plan.workspace, change_set.name, updates, wait=wait, timeout=REPLY_TIMEOUT
        )
        if isinstance(response.status, Success):
            change_set.last_commit = max(change_set.last_commit, response.status.commit)
        else:
            self._report.wrong.append(f"{change_set.name}: request {response.id} was not applied")
        return response.id

    # -- the checks ----------------------------------------------------------------------------------------------------

    async def _follow(self, change_set: LoadedChangeSet, after: int) -> None:
        """Read the log while it grows, because commits before a checkpoint may be purged later."""
        async for commit in self._client.watch(self._plan.workspace, change_set.name, after=after):
            change_set.decided.extend(decision.request_id for decision in commit.requests)
            change_set.record_read(commit.sequence)

    async def _verify(self, change_set: LoadedChangeSet) -> None:
        """Compare the log and the values with the requests that were sent."""
        report, workspace = self._report, self._plan.workspace
        if any(change_set.sent.values()):
            change_set.closing = True
            change_set.record_read(change_set.read)
            with anyio.move_on_after(REPLY_TIMEOUT):
                await change_set.complete.wait()
        for worker, sent in change_set.sent.items():
            own = set(sent)
            decided = [request_id for request_id in change_set.decided if request_id in own]
            report.checked += len(sent)
            if decided != sent:
                counts = f"{len(sent)} requests were sent; the log has {len(decided)} of them"
                report.wrong.append(f"{change_set.name} worker {worker}: {counts}, or has them in another order")
        await self._client.wait_covered(workspace, change_set.name, change_set.last_commit, timeout=REPLY_TIMEOUT)
        values = await self._client.values(workspace, change_set.name)
        expected = {f"counter/{worker}": count for worker, count in change_set.counters.items()}
        expected["total"] = sum(change_set.counters.values())
        for id_, count in expected.items():
            value = values.get(id_)
            if value is None or value.value != count or value.state is not State.OK:
                report.wrong.append(f"{change_set.name} {id_}: {value}, should be {count}")

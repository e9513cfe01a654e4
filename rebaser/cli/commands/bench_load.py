"""The load of `rebaser bench`, and the proof afterwards that nothing was lost, doubled or reordered.

Every worker writes its own counter, so the last value of a counter tells whether the worker's requests were applied in
order; the log tells that each was applied once. Time-bounded: nothing is sent after the limit, and every wait ends.
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
    """What to do. `requests` and `derived` are totals over all change sets, `in_flight` is for each."""

    workspace: str
    change_sets: int
    in_flight: int
    requests: int
    derived: int
    seconds: float


@dataclass(slots=True)
class LoadPhase:
    """Latencies (seconds) of one kind of request, and how long all of it took."""

    latencies: list[float] = field(default_factory=list)
    elapsed: float = 0.0

    @property
    def count(self) -> int:
        return len(self.latencies)

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.count / self.elapsed if self.elapsed else 0.0

    def percentile(self, share: float) -> float:
        """The latency that `share` of the requests did not exceed (nearest rank)."""
        ordered = sorted(self.latencies)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    def as_object(self) -> dict[str, Any] | None:
        if not self.latencies:
            return None
        milliseconds = {f"p{share * 100:.0f}Ms": round(self.percentile(share) * 1000, 3) for share in (0.5, 0.95, 0.99)}
        return {"requests": self.count, "requestsPerSecond": round(self.rate, 1), **milliseconds}


@dataclass(slots=True)
class LoadReport:
    """What came of a plan. `wrong`: one line for each thing that is not exact."""

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
    """One change set under load: by worker its counter and the ids of its requests, and what the log decided."""

    name: str
    last_commit: int = 0
    counters: dict[int, int] = field(default_factory=dict)
    sent: dict[int, list[str]] = field(default_factory=dict)
    decided: list[str] = field(default_factory=list)  # request ids in the order of the log
    read: int = 0  # log sequence up to which `decided` is complete
    complete: anyio.Event = field(default_factory=anyio.Event)
    closing: bool = False

    def saw(self, sequence: int) -> None:
        self.read = sequence
        if self.closing and self.read >= self.last_commit:
            self.complete.set()


async def run_load(nats: str, prefix: str, plan: LoadPlan, found: list[LoadReport]) -> None:
    """Carry out `plan` and put the report into `found`."""
    async with connect_client(nats, prefix) as client:
        found.append(await LoadRun(client, plan).run())


class LoadRun:
    """One run of a plan."""

    def __init__(self, client: "RebaserClient", plan: LoadPlan) -> None:
        self._client = client
        self._plan = plan
        run = ulid(time.time_ns() // 1_000_000, os.urandom(10))
        self._branches = [LoadedChangeSet(f"{run}-{number}") for number in range(plan.change_sets)]
        more = f" to -{plan.change_sets - 1}" if plan.change_sets > 1 else ""
        self._report = LoadReport(plan, f"{plan.workspace} {self._branches[0].name}{more}")

    async def run(self) -> LoadReport:
        """Prepare, apply, derive, prove."""
        plan, report = self._plan, self._report
        limiter = anyio.CapacityLimiter(64)
        async with anyio.create_task_group() as group:
            for branch in self._branches:
                group.start_soon(self._prepare, branch, limiter)
        async with anyio.create_task_group() as group:
            for branch in self._branches:
                group.start_soon(self._follow, branch, branch.last_commit)
            deadline = time.perf_counter() + plan.seconds
            await self._phase(report.applied, plan.requests, deadline, in_flight=plan.in_flight)
            await self._phase(report.derived, plan.derived, deadline, in_flight=1)
            for branch in self._branches:
                await self._verify(branch)
            group.cancel_scope.cancel()
        return report

    async def _prepare(self, branch: LoadedChangeSet, limiter: anyio.CapacityLimiter) -> None:
        """Counters at 0 and their derived total; ends when that is true, so Spark is warm."""
        ids = [f"counter/{worker}" for worker in range(self._plan.in_flight)]
        total = Derive("total", "sum", {"values": ids})
        branch.counters = dict.fromkeys(range(self._plan.in_flight), 0)
        branch.sent = {worker: [] for worker in branch.counters}
        async with limiter:
            await self._send(branch, [*(Set(id_, 0) for id_ in ids), total], "derived")

    async def _phase(self, phase: LoadPhase, requests: int, deadline: float, *, in_flight: int) -> None:
        """Send `requests`, spread over all change sets."""
        left = requests
        wait: Wait = "derived" if phase is self._report.derived else "applied"

        async def work(branch: LoadedChangeSet, worker: int) -> None:
            nonlocal left
            while left > 0:
                if time.perf_counter() > deadline:
                    self._report.cut_short = True
                    return
                left -= 1
                count = branch.counters[worker] + 1
                began = time.perf_counter()
                request_id = await self._send(branch, [Set(f"counter/{worker}", count)], wait)
                phase.latencies.append(time.perf_counter() - began)
                branch.counters[worker] = count
                branch.sent[worker].append(request_id)

        started = time.perf_counter()
        async with anyio.create_task_group() as group:
            for worker in range(in_flight):
                for branch in self._branches:
                    group.start_soon(work, branch, worker)
        phase.elapsed = time.perf_counter() - started

    async def _send(self, branch: LoadedChangeSet, updates: list[Update], wait: Wait) -> str:
        response = await self._client.enqueue_updates_with_reply(
            self._plan.workspace, branch.name, updates, wait=wait, timeout=REPLY_TIMEOUT
        )
        if isinstance(response.status, Success):
            branch.last_commit = max(branch.last_commit, response.status.commit)
        else:
            self._report.wrong.append(f"{branch.name}: request {response.id} was not applied")
        return response.id

    # -- exactness -----------------------------------------------------------------------------------------------------

    async def _follow(self, branch: LoadedChangeSet, after: int) -> None:
        """Note what the log decides while it happens: later, what stands below a checkpoint may be purged."""
        async for commit in self._client.watch(self._plan.workspace, branch.name, after=after):
            branch.decided.extend(decision.request_id for decision in commit.requests)
            branch.saw(commit.sequence)

    async def _verify(self, branch: LoadedChangeSet) -> None:
        """Compare log and values with what was sent."""
        report, workspace = self._report, self._plan.workspace
        if any(branch.sent.values()):
            branch.closing = True
            branch.saw(branch.read)
            with anyio.move_on_after(REPLY_TIMEOUT):
                await branch.complete.wait()
        for worker, sent in branch.sent.items():
            mine = set(sent)
            seen = [request_id for request_id in branch.decided if request_id in mine]
            report.checked += len(sent)
            if seen != sent:
                report.wrong.append(f"{branch.name} worker {worker}: of {len(sent)} requests the log has {len(seen)}")
        await self._client.wait_covered(workspace, branch.name, branch.last_commit, timeout=REPLY_TIMEOUT)
        values = await self._client.values(workspace, branch.name)
        wanted = {f"counter/{worker}": count for worker, count in branch.counters.items()}
        wanted["total"] = sum(branch.counters.values())
        for id_, count in wanted.items():
            value = values.get(id_)
            if value is None or value.value != count or value.state is not State.OK:
                report.wrong.append(f"{branch.name} {id_}: {value}, should be {count}")

"""Simulates garbage collection over virtual days: owners that write logs, a client that sends requests, and two
collectors.

Each actor is disconnected most of the time. It connects, does a few things with the product's own code, and
disconnects. A process may be paused for up to three days at any message that it sends, while its connection is cut.
`needs` checks the invariants.
"""

import asyncio
import base64
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

from rebaser.change_set.log import checkpointer
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.gc.collector import Collector
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.blobs import open_collectable
from rebaser_client.blobs.freshness import Freshness
from rebaser_client.jetstream import Connection, JetStream
from rebaser_client.log.reader import StateLoader
from rebaser_client.requests.backpressure import Backpressure
from rebaser_client.requests.sender import RequestSender
from rebaser_core.blobs.garbage import GRACE
from rebaser_core.commit import BlobRef, Decision, Kind, Outcome
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.limits import DEFAULT_LIMITS
from rebaser_core.messages import EnqueueUpdatesRequest, decode, decode_updates_blob, read_blobs
from rebaser_core.messages.dead_letter import PAYLOAD_ADDRESS
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from rebaser_core.thresholds import Thresholds
from rebaser_core.updates import Set, Update
from tests.simulation.environment import replaced
from tests.simulation.history import Violation
from tests.simulation.loop import Livelock, Process, SimLoop
from tests.simulation.model.server import NatsModel
from tests.simulation.model.store import Headers
from tests.simulation.needs import Needs
from tests.simulation.network import NOBODY, SAFE, Fate, Network, jitter
from tests.simulation.trace import Trace
from tests.support.garbage import PlainTables, Rows

URL = "nats://model:4222"
DAYS = 12  # days of activity; after that, all garbage has to be erased
QUIET = 4  # runs, one grace period apart, until all garbage is erased
IN_BLOBS = Thresholds(inline_max_updates=0, inline_max_bytes=0, plan_on_loop_max_elements=0)
KEYS = [ChangeSetKey("w", name) for name in "abc"]
DROPPED = 60.0  # seconds after which NATS closes the connection of a paused process
HOUR = 3600.0


class Sleepy:
    """Faults that pause a process for up to three days before or after a message that it sends, and that lose
    answers."""

    def __init__(self, world: "Garbage", rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._rate = rng.choice((0.0, 0.01, 0.03))
        self.on = True
        self.counts: dict[str, int] = {}

    def sending(self, process: Process, subject: str, data: bytes) -> Fate:
        names_blobs = subject.startswith(("rebaser.commits.", "rebaser.requests."))
        if not self.on or self._rng.random() >= self._rate * (8 if names_blobs else 1):
            return SAFE
        kind = self._rng.choice(("before", "after", "lose answer", "late", "wait", "wait", "wait"))
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if kind == "lose answer":
            return Fate(lose_answer=True)
        if kind == "late":
            return Fate(late=self._rng.uniform(0.01, DROPPED))
        waits = kind == "wait"
        seconds = self._rng.uniform(1, DROPPED - 5) if waits else HOUR * 72 ** self._rng.uniform(-0.5, 1)

        def stand_still() -> None:
            self._world.stand_still(process, seconds)

        return Fate(after=stand_still) if kind == "after" else Fate(before=stand_still)

    def receiving(self, process: Process, subject: str, headers: Headers | None) -> Fate:
        return SAFE


class Watched(PlainTables):
    """A blob store that reports when it was listed."""

    def __init__(self, needs: Needs, who: str, *given: Any) -> None:
        super().__init__(*given)
        self._needs = needs
        self._who = who

    async def stored(self) -> Rows:
        found = await super().stored()
        self._needs.listed(self._who)
        return found


class Garbage:
    """One simulated installation without servers."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(f"garbage {seed}")
        self.loop = SimLoop(max_steps=4_000_000)
        self.loop.set_exception_handler(lambda _, __: None)
        self.trace = Trace(self.loop.time)
        self.subjects = Subjects()
        self.needs = Needs(self.subjects, self._blob, self.loop.time, self.trace)
        net = random.Random(f"network {seed}")
        self.model = NatsModel(self.loop, api_delay=jitter(net, 0.0, 0.003), watch=self.needs.watch)
        self.faults = Sleepy(self, random.Random(f"faults {seed}"))
        self.network = Network(self.loop, self.model, jitter(net, 0.0002, 0.01), self.faults)
        self.processes: list[Process] = []
        self.bursts: list[asyncio.Future[None]] = []
        self._ids = 0

    # -- the actors ------------------------------------------------------------------------------------------------

    async def visit(self, js: JetStream, rng: random.Random, name: str) -> None:
        """Act as an owner of the log `name`: edit, write checkpoints, name blobs of another log, or decide a
        request."""
        key = ChangeSetKey("w", name)
        blobs = open_collectable(None, js, self.subjects.blobs_bucket)
        reader = StateLoader(js, self.subjects, blobs)
        log = CommitLog(
            js,
            self.subjects,
            key,
            await reader.load(key),
            blobs=blobs,
            owner=name,
            inline_max=8192,
            retry_window=900,
            now_ms=lambda: int(self.loop.time() * 1000),
            new_id=self.new_id,
        )
        for _ in range(rng.randint(1, 4)):
            act = rng.random()
            if act < 0.4:
                async with log.append_lock():
                    delta = edits(rng)
                    await log.append(log.draft(Kind.REBASE, delta=delta, before=await log.before(delta)))
            elif act < 0.7:
                await checkpointer.store(blobs, log, full=rng.random() < 0.1)
                if rng.random() < 0.7 and len(log.state.marks) > 1:
                    below = log.state.marks[-2].sequence + 1
                    await js.purge(self.subjects.commits_stream, self.subjects.commits(key), sequence=below)
            elif act < 0.8:
                await self._take_over(js, log, ChangeSetKey("w", rng.choice("abc")))
            else:
                await self._decide(js, log)

    async def _take_over(self, js: JetStream, log: CommitLog, other: ChangeSetKey) -> None:
        """Name the checkpoint that the newest commit of `other` names, as a commit that creates a branch does."""
        freshness = Freshness()
        stored = await js.last(self.subjects.commits_stream, self.subjects.commits(other))
        named = read_blobs(stored.headers) if stored is not None else ()
        if named and not named[0].startswith("@"):
            async with log.append_lock():
                await log.append(log.draft(Kind.REBASE, blobs=named), freshness)

    async def _decide(self, js: JetStream, log: CommitLog) -> None:
        """Apply the oldest request, or declare it dead."""
        stream, subject = self.subjects.requests_stream, self.subjects.requests(log.key)
        stored = await js.next(stream, subject, 1)
        if stored is None:
            return
        address = decode(stored.headers, stored.data, expect=EnqueueUpdatesRequest).updates_address
        if address is None or stored.sequence % 5 == 0:
            headers = {PAYLOAD_ADDRESS: address} if address else {}
            await js.publish(self.subjects.dlq(log.key), stored.data, headers)
        else:
            data = await open_collectable(None, js, self.subjects.blobs_bucket).get(address)
            decision = Decision(stored.sequence, RequestId(f"r{stored.sequence}"), Outcome.SUCCESS)
            delta = decode_updates_blob(data)
            async with log.append_lock():
                before, blob = await log.before(delta), BlobRef(address, len(data))
                await log.append(
                    log.draft(Kind.REBASE, delta=delta, delta_blob=blob, before=before, requests=(decision,))
                )
        await js.delete_message(stream, stored.sequence)

    async def request(self, js: JetStream, rng: random.Random, _: str) -> None:
        """Act as a client that sends a few requests."""
        blobs = open_collectable(None, js, self.subjects.blobs_bucket)
        sender = RequestSender(js, self.subjects, blobs, DEFAULT_LIMITS, Backpressure(self.loop.time))
        for _number in range(rng.randint(1, 3)):
            deadline = self.loop.time() + 60
            request_id = RequestId(self.new_id())
            made = await sender.prepare(rng.choice(KEYS), request_id, edits(rng), deadline, from_change_set=None)
            await sender.store(made, deadline)

    async def collect(self, js: JetStream, _: random.Random, name: str) -> None:
        blobs = open_collectable(None, js, self.subjects.blobs_bucket)
        tables = Watched(self.needs, name, js, self.subjects, blobs)
        await Collector(js, self.subjects, blobs, tables, owner=name, new_id=self.new_id).run()

    # -- the run ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the simulation. Raises `Violation`."""
        with replaced(self.loop, self.network, self.seed, lambda *_: None, lambda *_: None, limits=IN_BLOBS):
            try:
                self.loop.run_until_complete(self._tell())
            except Livelock as problem:
                raise Violation(str(problem)) from problem
            finally:
                self.loop.close()

    async def _tell(self) -> None:
        await self._act("setup", lambda js, _, __: ensure_topology(js, self.subjects, TopologyOptions()), timeout=60)
        acts: list[tuple[str, Callable[..., Awaitable[None]], float]] = [
            (key.change_set, self.visit, 8.0) for key in KEYS
        ]
        acts += [("client", self.request, 8.0), ("gc1", self.collect, 24.0), ("gc2", self.collect, 40.0)]
        actors = [asyncio.ensure_future(self._live(*one)) for one in acts]
        while self.loop.time() < DAYS * 24 * HOUR and self.needs.violation is None:
            await asyncio.wait(actors, timeout=24 * HOUR, return_when=asyncio.FIRST_EXCEPTION)
            for actor in [one for one in actors if one.done()]:
                actor.result()
        self.faults.on = False
        for actor in actors:
            actor.cancel()
        for process in self.processes:
            process.kill()
            for link in self.network.links_of(process):
                link.cut()
        for _ in range(QUIET):
            if self.needs.violation is None:
                await asyncio.sleep(GRACE + 60)
                await self._act("gc", self.collect, timeout=HOUR)
        if self.needs.violation is not None:
            raise self.needs.violation
        if left := sorted(address for address in self.needs.blobs if not self.needs.needed.get(address)):
            raise Violation(f"{left} are still stored, although no message needs them")

    async def _live(self, name: str, act: Callable[..., Awaitable[None]], hours: float) -> None:
        rng = random.Random(f"{name} {self.seed}")
        number = 0
        while True:
            await asyncio.sleep(rng.uniform(0.1, 2 * hours) * HOUR)
            number += 1
            if act == self.collect:
                for key in KEYS:  # the actors of different logs act at the same time
                    self.bursts.append(
                        asyncio.ensure_future(
                            self._burst(key.change_set, random.Random(f"{key} {name} {number} {self.seed}"))
                        )
                    )
            await self._act(name, act, rng, number)

    async def _burst(self, name: str, rng: random.Random) -> None:
        for number in range(1, 4):
            await asyncio.sleep(rng.uniform(0, 30))
            await self._act(name, self.request if rng.random() < 0.5 else self.visit, rng, 1000 + number)

    async def _act(
        self,
        name: str,
        act: Callable[..., Awaitable[Any]],
        rng: random.Random | None = None,
        number: int = 0,
        timeout: float | None = None,  # noqa: ASYNC109 - virtual
    ) -> None:
        """Run one visit of an actor in a process of its own. It may take days."""
        process = Process(self.loop, f"{name}#{number}" if number else name)

        async def main() -> None:
            try:
                async with Connection.connect(URL, name=process.name) as connection:
                    await act(JetStream(connection), rng or self.rng, name)
            except (RebaserError, TimeoutError) as error:
                self.trace(process.name, f"{type(error).__name__}: {error}")

        self.processes.append(process)
        task = process.start(main())
        await asyncio.wait([task], timeout=timeout)
        if task.done() and not task.cancelled() and task.exception() is not None:
            raise Violation(f"{process.name} failed with {task.exception()!r}")

    def stand_still(self, process: Process, seconds: float) -> None:
        self.trace(process.name, f"stands still for {seconds / HOUR:.2f} h")
        process.pause()
        if seconds > DROPPED:
            for link in self.network.links_of(process):
                self.loop.call_later(DROPPED, link.cut, context=NOBODY)
        self.loop.call_later(seconds, process.resume, context=NOBODY)

    def new_id(self) -> str:
        self._ids += 1
        return f"id{self._ids}"

    def _blob(self, address: str) -> bytes:
        bucket = self.subjects.blobs_bucket
        stream = self.model.streams[f"OBJ_{bucket}"]
        name = base64.urlsafe_b64encode(address.encode()).decode()
        held = stream.subjects.get(f"$O.{bucket}.M.{name}")
        if not held:
            raise Violation(f"{address} is not stored")
        described = json.loads(stream.messages[next(reversed(held))].data)
        chunks = [one.data for one in stream.after(f"$O.{bucket}.C.{described['nuid']}", 1)]
        return b"".join(chunks[: described["chunks"]])


def edits(rng: random.Random) -> tuple[Update, ...]:
    """Draw one of a few sets of edits, so that the same content is stored several times."""
    number = rng.randrange(6)
    return tuple(Set(f"v{number}/{at}", number) for at in range(20))

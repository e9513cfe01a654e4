"""One simulated installation: servers and clients around a model of NATS, under faults, with the checker watching.

`simulate(seed)` is a run from start to rest: faults strike while the clients work, then they stop, the dead are started
again, and everything has to come to rest in time and be as promised.
"""

import asyncio
import base64
import hashlib
import json
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import anyio

from rebaser.dvu.evaluate import evaluate_packet
from rebaser.server import serve
from rebaser.settings import Settings
from rebaser_client import RebaserClient
from rebaser_client.client import Wait
from rebaser_core.errors import DvuError, RebaserError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import EnqueueUpdatesResponse, Success
from rebaser_core.subjects import Subjects
from tests.simulation.book import FAULT
from tests.simulation.checker import Checker, Violation, is_reply
from tests.simulation.clients import Programme, Told, draw_operations
from tests.simulation.environment import replaced
from tests.simulation.faults import Plan, SeededFaults
from tests.simulation.loop import PROCESS, Livelock, Process, SimLoop, State
from tests.simulation.model.server import NatsModel
from tests.simulation.network import Network, jitter
from tests.simulation.trace import Trace

URL = "nats://model:4222"
BROKEN = ("owner_failed", "ordered_failed", "nats_handler_failed", "dvu_broken", "request_unreadable")
TROUBLE = 30.0  # virtual seconds of faults, at most
REST = 120.0  # virtual seconds in which everything has to come to rest


@dataclass
class Setup:
    """The size of a world, drawn from its seed."""

    servers: int
    clients: int
    keys: list[ChangeSetKey]
    requests: int
    ack_wait: float
    quiescent_period: float
    concurrency: int
    batch: int
    checkpoint_bytes: int
    max_payload: int
    slow: float  # seconds, the longest latency
    gentle: bool
    garbage: bool

    @classmethod
    def draw(cls, rng: random.Random, *, gentle: bool) -> "Setup":
        small = rng.random() < 0.5
        return cls(
            servers=rng.choice((1, 2, 2, 3)),
            clients=rng.choice((1, 2)),
            keys=[ChangeSetKey("w", name) for name in "abc"[: rng.choice((1, 1, 2, 3))]],
            requests=rng.choice((4, 8, 12)),
            ack_wait=rng.choice((1.0, 2.0)),
            quiescent_period=rng.choice((0.05, 0.3, 1.0)),
            concurrency=rng.choice((1, 2, 100)),
            batch=rng.choice((1, 2, 32)),
            checkpoint_bytes=1024 if small else 1024 * 1024,
            max_payload=2048 if small else 1024 * 1024,
            slow=rng.choice((0.003, 0.003, 0.05)),
            gentle=gentle,
            garbage=rng.random() < 0.3,
        )


@dataclass
class Result:
    seed: int
    violation: Violation | None
    trace: Trace
    counts: dict[str, int]
    requests: int
    commits: int
    seconds: float  # virtual

    def report(self, last: int = 80) -> str:
        """What to print of a run that failed."""
        lines = "\n".join(self.trace.lines(last))
        return f"{lines}\n\nseed {self.seed}: {self.violation}\n  python -m tests.simulation --seed {self.seed}"


@dataclass
class Slot:
    """A server or client that is started again when it died."""

    name: str
    main: Callable[[], Any]
    incarnation: int = 0
    process: Process | None = None
    task: asyncio.Task[Any] | None = None
    processes: list[Process] = field(default_factory=list)


class World:
    def __init__(self, seed: int, *, gentle: bool = False) -> None:
        self.seed = seed
        self.rng = random.Random(f"world {seed}")
        self.setup = Setup.draw(self.rng, gentle=gentle)
        self.loop = SimLoop(max_steps=600_000)
        self.loop.set_exception_handler(self._unhandled)
        self.trace = Trace(self.loop.time)
        self.subjects = Subjects()
        self.checker = Checker(self.subjects, self._blob, self.trace)
        plan = Plan.draw(self.rng, self.setup.ack_wait, gentle=gentle)
        self.faults = SeededFaults(plan, self, random.Random(f"faults {seed}"), self.trace)
        net = random.Random(f"network {seed}")
        self.model = NatsModel(
            self.loop,
            api_delay=jitter(net, 0.0, 0.003),
            removal_delay=jitter(net, 0.0, 0.05) if net.random() < 0.5 else lambda: 0.0,
            watch=self.checker.watch,
        )
        latency = jitter(net, 0.0002, self.setup.slow)
        self.network = Network(
            self.loop, self.model, latency, self.faults, max_payload=self.setup.max_payload, tap=self._tap
        )
        self.slots: list[Slot] = []
        self.programmes: list[Programme] = []
        self._engine_rng = random.Random(f"engine {seed}")

    # -- the parts -------------------------------------------------------------------------------------------------

    def settings(self, name: str) -> Settings:
        setup = self.setup
        return Settings(
            nats_url=URL,
            server_id=name,
            concurrency=setup.concurrency,
            batch_max_requests=setup.batch,
            quiescent_period=setup.quiescent_period,
            turn=0.5,
            ack_wait=setup.ack_wait,
            sweep_interval=3600.0 if setup.gentle else 2.0,
            retry_for=5.0,
            shutdown_grace=5.0,
            checkpoint_bytes=setup.checkpoint_bytes,
        )

    def engine(self, *_: object) -> Any:
        """Stands in for Spark: evaluates in process, slowly, and fails now and then."""
        return Engine(self)

    def add_server(self, name: str) -> None:
        async def main() -> None:
            await serve(self.settings(name))

        self.slots.append(Slot(name, main))

    def add_client(self, programme: Programme) -> None:
        async def main() -> None:
            await programme.run(URL)

        self.programmes.append(programme)
        self.slots.append(Slot(programme.name, main))

    def start(self, slot: Slot) -> None:
        slot.incarnation += 1
        name = slot.name if slot.incarnation == 1 else f"{slot.name}#{slot.incarnation}"
        slot.process = process = Process(self.loop, name)
        slot.processes.append(process)
        self.trace(name, "starts")
        slot.task = process.start(slot.main())
        slot.task.add_done_callback(lambda task: self._ended(slot, process, task), context=process.context)

    def _ended(self, slot: Slot, process: Process, task: asyncio.Task[Any]) -> None:
        if process.state is State.REAPED:
            return
        error = None if task.cancelled() else task.exception()
        self.trace(process.name, f"ended: {error!r}" if error else "ended")
        leaves = list(_leaves(error)) if error is not None else []
        for leaf in leaves:
            if not isinstance(leaf, RebaserError):
                self.checker.broken(f"{process.name} fell over: {leaf!r}")
        programme = next((one for one in self.programmes if one.name == slot.name), None)
        if programme is None or leaves:
            self.loop.call_later(0.5, self._start_again, slot, process)

    def _start_again(self, slot: Slot, process: Process) -> None:
        if slot.process is process:
            self.start(slot)

    # -- what faults do --------------------------------------------------------------------------------------------

    def crash(self, process: Process) -> None:
        self.trace(process.name, "crashes")
        process.kill()
        # Its machine may be gone with it: then nobody tells NATS.
        delay = self.rng.choice((0.0, 0.0, self.setup.ack_wait, 4 * self.setup.ack_wait))
        for link in self.network.links_of(process):
            self.loop.call_later(delay, link.cut, context=_nobody())
        slot = next(one for one in self.slots if one.process is process)
        wait = self.rng.choice((0.1, self.setup.ack_wait / 2, 2 * self.setup.ack_wait))
        self.loop.call_later(wait, self._start_again, slot, process, context=_nobody())

    def pause(self, process: Process, seconds: float) -> None:
        self.trace(process.name, f"stands still for {seconds:.2f} s")
        process.pause()
        self.loop.call_later(seconds, process.resume, context=_nobody())

    # -- what is watched -------------------------------------------------------------------------------------------

    def _tap(self, who: str, subject: str, data: bytes, headers: dict[str, str] | None) -> None:
        if subject.startswith(("rebaser.", "$JS.ACK.")):
            short = data[:24] if subject.startswith("$JS.ACK.") else b""
            self.trace(who, f"-> {subject} {short.decode(errors='replace')}".rstrip())
        elif is_reply(headers):
            self.trace(who, f"-> reply {subject.rpartition('.')[2]}")
            self.checker.replied(who, data, headers or {})

    def _unhandled(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        process = PROCESS.get()
        if process is None or process.state is not State.REAPED:
            error = context.get("exception")
            self.checker.broken(f"{process}: {context['message']}: {error!r}")

    def _log(self, _: str, entry: dict[str, Any]) -> None:
        process = PROCESS.get()
        if process is None or process.state is State.REAPED:
            return
        event = entry.pop("event")
        level = entry.pop("exc_info", None)
        if event in BROKEN:
            import sys

            self.checker.broken(f"{process.name}: {event} {entry} {sys.exc_info()[1]!r}")
        fields = " ".join(f"{key}={value}" for key, value in entry.items() if key not in ("ms", "timestamp"))
        self.trace(process.name, f"   {event} {fields}{' !' if level else ''}")

    def check_answer(self, id_: str, response: EnqueueUpdatesResponse, wait: Wait) -> None:
        """A client was told this."""
        if response.id != id_:
            self.checker.broken(f"{id_} was given the answer to {response.id}")
        try:
            self.checker.check_reply(response)
        except Violation as violation:
            self.checker.broken(f"a client was told a lie: {violation}")
        if wait == "derived" and isinstance(response.status, Success):
            key = ChangeSetKey.of(response.workspace_id, response.change_set_id)
            if self.checker.history(key).covers < response.status.commit:
                self.checker.broken(f"{id_} is said to be derived, and is not")

    def _blob(self, address: str) -> bytes:
        """A blob's content, read from the model as ADR-20 lays it out."""
        bucket = self.subjects.blobs_bucket
        stream = self.model.streams[f"OBJ_{bucket}"]
        name = base64.urlsafe_b64encode(address.encode()).decode()
        held = stream.subjects.get(f"$O.{bucket}.M.{name}")
        if held:
            described = json.loads(stream.messages[next(reversed(held))].data)
            chunks = [one.data for one in stream.after(f"$O.{bucket}.C.{described['nuid']}", 1)]
            data = b"".join(chunks[: described["chunks"]])
            if address == f"sha256:{hashlib.sha256(data).hexdigest()}":
                return data
        raise Violation(f"blob {address} is named and is not there")

    # -- a run -----------------------------------------------------------------------------------------------------

    def draw_programmes(self) -> None:
        setup = self.setup
        for number in range(setup.clients):
            name = f"c{number + 1}"
            rng = random.Random(f"client {name} {self.seed}")
            lanes = [
                draw_operations(
                    rng,
                    f"{name}l{lane}",
                    setup.keys,
                    setup.requests,
                    garbage=setup.garbage,
                    large=setup.max_payload < 10_000,
                )
                for lane in range(rng.choice((1, 2)))
            ]
            stubborn = setup.gentle or rng.random() < 0.5
            self.add_client(Programme(name, lanes, stubborn, rng, self.check_answer, self.trace))
            self.checker.good |= {one.id for lane in lanes for one in lane if not one.garbage}

    def run(self) -> Result:
        with replaced(self.loop, self.network, self.seed, self.engine, self._log):
            try:
                for number in range(self.setup.servers):
                    self.add_server(f"s{number + 1}")
                self.draw_programmes()
                try:
                    self.loop.run_until_complete(self._story())
                except (Violation, Livelock) as problem:
                    self.checker.broken(str(problem))
                self._reap()
            finally:
                self.loop.close()
        commits = sum(history.commits for history in self.checker.histories.values())
        asked = sum(len(history.asked) for history in self.checker.histories.values())
        return Result(
            self.seed, self.checker.violation, self.trace, self.faults.counts, asked, commits, self.loop.time()
        )

    def _reap(self) -> None:
        self.faults.on = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # some of what is cancelled had not begun
            for slot in self.slots:
                for process in slot.processes:
                    self.loop.reap(process)

    async def _story(self) -> None:
        for slot in self.slots:
            self.start(slot)
            await self._sleep(self.rng.random() * 0.1)
        trouble = self.loop.create_task(self._trouble())
        began = self.loop.time()
        while self.loop.time() < began + TROUBLE and not self._all_told():
            await self._sleep(0.25)
        trouble.cancel()
        self._stop_faults()
        await self._rest()
        self._check_told()
        await self._check_reading()

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self.checker.violation is not None:
            raise self.checker.violation

    def _all_told(self) -> bool:
        return all(self._finished(slot) for slot in self.slots if slot.name.startswith("c"))

    def _finished(self, slot: Slot) -> bool:
        return (
            slot.task is not None
            and slot.task.done()
            and slot.process is not None
            and slot.process.state is State.RUNNING
        )

    async def _trouble(self) -> None:
        """Faults that strike no message but a whole: see `storms`."""
        from tests.simulation.storms import trouble

        await trouble(self)

    def _stop_faults(self) -> None:
        self.trace("world", "faults stop")
        self.faults.on = False
        self.network.down = False
        for stream in list(self.model.leaderless):
            self.model.elect(stream, forget_pushes=False)
        for stream_ in self.model.streams.values():
            stream_.full = False

    async def _rest(self) -> None:
        """Wait until nothing waits any more."""
        began = self.loop.time()
        while True:
            await self._sleep(0.5)
            waits = self._unsettled()
            if not waits:
                return
            if self.loop.time() > began + REST:
                raise Violation(f"no rest {REST:g} s after the last fault: {waits}")

    def _unsettled(self) -> str:
        if not self._all_told():
            left = [one.id for programme in self.programmes for one in programme.operations if one.told is Told.NOTHING]
            return f"clients wait for {left}"
        streams = self.model.streams
        return self.checker.unsettled(streams[self.subjects.requests_stream], streams[self.subjects.tasks_stream])

    def _check_told(self) -> None:
        """Whatever a client was told is stored, was decided."""
        for programme in self.programmes:
            for operation in programme.operations:
                if operation.told is Told.NOTHING or operation.garbage:
                    continue
                history = self.checker.history(operation.key)
                if operation.id not in history.outcomes:
                    raise Violation(f"{operation.id} was {operation.told.value} and is lost")

    async def _check_reading(self) -> None:
        """A new client reads what a recompute from scratch gives, and its requests are served: everybody rejoined."""
        process = Process(self.loop, "reader")
        self.slots.append(Slot("reader", lambda: None, process=process, processes=[process]))
        task = process.start(self._read())
        while not task.done():
            await self._sleep(0.5)
        await task

    async def _read(self) -> None:
        async with RebaserClient.connect(URL) as client:
            for key, history in self.checker.histories.items():
                state = await client.state(key.workspace, key.change_set)
                if state.last != history.last:
                    raise Violation(f"{key} is read at commit {state.last}, its last is {history.last}")
                found = {id_: FAULT if one.error else one.value for id_, one in state.values().items()}
                wanted = history.book.values()
                if found != wanted:
                    wrong = {id_: (found.get(id_), wanted.get(id_)) for id_ in {*found, *wanted}}
                    raise Violation(f"{key} is read wrong: { {k: v for k, v in wrong.items() if v[0] != v[1]} }")


class Engine:
    """Evaluates packets as Spark's workers would. `world.checker` counts how many updates run at once."""

    state = "ready"

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world._engine_rng
        self.ready = anyio.Event()

    async def __aenter__(self) -> Self:
        self.ready.set()
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def evaluate(self, packets: Any, *, label: str, timeout: float | None = None) -> list[list[bytes]]:  # noqa: ASYNC109
        process = PROCESS.get()
        assert process is not None
        checker, rng = self._world.checker, self._rng
        checker.dvu_began(process.name, label)
        try:
            await anyio.sleep(rng.choice((0.001, 0.05, 0.5)) if rng.random() < 0.9 else 3.0)
            if self._world.faults.on and rng.random() < 0.05:
                raise DvuError("the simulated engine fails", code="simulated")
            return [evaluate_packet(packet) for packet in packets]
        finally:
            checker.dvu_ended(process.name, label)


def _leaves(error: BaseException) -> Any:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def _nobody() -> Any:
    from tests.simulation.network import NOBODY

    return NOBODY


def simulate(seed: int, *, gentle: bool | None = None) -> Result:
    """One run. Every third seed is gentle: without what needs a sweeper, and without one."""
    return World(seed, gentle=seed % 3 == 0 if gentle is None else gentle).run()

"""One simulated installation: servers and clients around a model of NATS, with faults, and the checker that watches.

It holds the parts and carries out faults. `story` decides what happens in which order.
"""

import asyncio
import base64
import hashlib
import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rebaser.serving import serve
from rebaser.settings import Settings
from rebaser_client.client import Wait
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import EnqueueUpdatesResponse, Success
from rebaser_core.streams.subjects import Subjects
from tests.simulation.appends import Appends
from tests.simulation.checker import Checker, is_reply
from tests.simulation.clients import Programme
from tests.simulation.engine import Engine
from tests.simulation.faults import Plan, SeededFaults
from tests.simulation.history import Violation
from tests.simulation.left import Left
from tests.simulation.loop import PROCESS, Process, SimLoop, State
from tests.simulation.model.server import NatsModel
from tests.simulation.network import NOBODY, Network, jitter
from tests.simulation.operators import Operator, Poison
from tests.simulation.readers import Reader
from tests.simulation.setup import Mode, Setup
from tests.simulation.trace import Trace
from tests.simulation.tries import MAX_DEATHS

URL = "nats://model:4222"
LOGS_BOUND = 1 << 30  # bytes of all logs; no run reaches this
BROKEN = {"owner_failed", "ordered_failed", "nats_handler_failed", "dvu_broken", "request_unreadable"}
BROKEN |= {"branch_pull_broken"}
PULL_PUT_OFF = ("branch_pull_failed", "branch_pull_refused", "branch_pull_deferred")
CALM_WARNINGS = ("request_dead",)  # warnings that are expected even without faults


@dataclass
class Slot:
    """A server or client that is started again after its death."""

    name: str
    main: Callable[[], Any]
    client: bool = False
    incarnation: int = 0
    process: Process | None = None
    task: asyncio.Task[Any] | None = None
    processes: list[Process] = field(default_factory=list)


class World:
    def __init__(self, seed: int, mode: Mode, *, plain: bool = False) -> None:
        self.seed = seed
        self.rng = random.Random(f"world {seed}")
        self.setup = Setup.draw(self.rng, mode)
        self.setup.draw_history(random.Random(f"history {seed}"))
        if not plain:
            self.setup.draw_ways(random.Random(f"ways {seed}"))
        self.loop = SimLoop(max_steps=600_000)
        self.loop.set_exception_handler(self._unhandled)
        self.trace = Trace(self.loop.time)
        self.subjects = Subjects()
        self.checker = Checker(self.subjects, self._blob, self.loop.time, self.trace)
        plan = Plan.draw(self.rng, self.setup.ack_wait, mode)
        self.checker.forgetful = mode is Mode.FORGETFUL
        self.checker.history_for_ms = int(self.setup.history_for * 1000)
        self.checker.crowded_at = self.setup.crowded_at
        calm = mode is Mode.CALM
        self.faults = SeededFaults(plan, self, random.Random(f"faults {seed}"), self.trace, on=not calm)
        net = random.Random(f"network {seed}")
        self.model = NatsModel(
            self.loop,
            api_delay=jitter(net, 0.0, 0.003),
            removal_delay=jitter(net, 0.0, self.setup.removal),
            asks_deposed=lambda: net.random() < 0.5,
            watch=self.checker.watch,
        )
        self.checker.outdated = lambda: self.model.outdated
        latency = jitter(net, 0.0002, self.setup.slow)
        self.network = Network(
            self.loop, self.model, latency, self.faults, max_payload=self.setup.max_payload, tap=self._tap
        )
        if mode in (Mode.CALM, Mode.GENTLE):
            appends = Appends(self.subjects, self.model.streams, self.checker.broken)
            self.network.sent, self.network.heard = appends.sent, appends.heard
        self.left = Left()
        self.slots: list[Slot] = []
        self.programmes: list[Programme] = []
        self.poison = Poison(self._strike, kills=self.rng.random() < 0.7)
        self._engine_rng = random.Random(f"engine {seed}")
        self._workers_rng = random.Random(f"workers {seed}")

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
            sweep_interval=setup.sweep_interval,
            retry_for=5.0,
            retry_window=setup.retry_window,
            shutdown_grace=5.0,
            checkpoint_bytes=setup.checkpoint_bytes,
            history_for=setup.history_for,
            closed_for=setup.closed_for,
            commits_max_bytes=LOGS_BOUND if setup.crowded_at else None,
            max_deaths=MAX_DEATHS,
        )

    def engine(self, *_: object) -> Any:
        return Engine(self.checker, self.faults, self.setup.engine_fails, self._engine_rng, self._workers_rng)

    def add_server(self, name: str) -> None:
        async def main() -> None:
            await serve(self.settings(name))

        self.slots.append(Slot(name, main))

    def add_client(self, programme: Programme | Operator | Reader) -> None:
        """Start a client. It is started again only if it failed; a server always is."""

        async def main() -> None:
            await programme.run(URL)

        if isinstance(programme, Programme):
            self.programmes.append(programme)
        self.slots.append(Slot(programme.name, main, client=True))

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
            if isinstance(leaf, Violation):
                self.checker.broken(f"{process.name}: {leaf}")
            elif not isinstance(leaf, RebaserError):
                self.checker.broken(f"{process.name} failed with {leaf!r}")
        if leaves or not slot.client:
            self.loop.call_later(0.5, self._start_again, slot, process)

    def stop(self, slot: Slot) -> None:
        """Ask the process to end, and do not start it again."""
        self.trace(slot.name, "is asked to stop for good")
        slot.process = None
        if slot.task is not None:
            slot.task.cancel()

    def _start_again(self, slot: Slot, process: Process) -> None:
        if slot.process is process:
            self.start(slot)

    # -- how faults are carried out --------------------------------------------------------------------------------

    def crash(self, process: Process) -> None:
        self.trace(process.name, "crashes")
        slot = next(one for one in self.slots if one.process is process)
        self.checker.strikes.note(slot.name)
        process.kill()
        # Its machine may be gone with it; then NATS is not told that the connection is closed.
        delay = self.rng.choice((0.0, 0.0, self.setup.ack_wait, 4 * self.setup.ack_wait))
        for link in self.network.links_of(process):
            self.loop.call_later(delay, link.cut, context=NOBODY)
        wait = self.rng.choice((0.1, self.setup.ack_wait / 2, 2 * self.setup.ack_wait))
        self.loop.call_later(wait, self._start_again, slot, process, context=NOBODY)

    def pause(self, process: Process, seconds: float) -> None:
        self.trace(process.name, f"stands still for {seconds:.2f} s")
        if seconds > self.setup.ack_wait * 2 / 3:  # the least remaining time of a lease
            self.checker.strikes.note(server := process.name.partition("#")[0])
            # When the process continues, it may announce an attempt before it learns that it has lost its lease.
            self.loop.call_later(seconds, self.checker.strikes.note, server, context=NOBODY)
        process.pause()
        self.loop.call_later(seconds, process.resume, context=NOBODY)

    def _strike(self, request_id: str) -> None:
        """Let a poisonous request kill or hang the current process, which reads it."""
        process = PROCESS.get()
        assert process is not None
        if process.state is State.RUNNING:
            self.faults.note(process.name, f"poison: {request_id}")
            if self.poison.kills:
                self.crash(process)
            else:
                self.pause(process, 3 * self.setup.ack_wait)

    # -- observation -----------------------------------------------------------------------------------------------

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

    def log(self, level: str, entry: dict[str, Any]) -> None:
        process = PROCESS.get()
        if process is None or process.state is State.REAPED:
            return
        event = entry.pop("event")
        raised = entry.pop("exc_info", None)
        fields = " ".join(f"{key}={value}" for key, value in entry.items() if key not in ("ms", "timestamp"))
        self.trace(process.name, f"   {event} {fields}{' !' if raised else ''}")
        if event == "change_set_owned":
            key = ChangeSetKey.of(entry["workspace"], entry["change_set"])
            self.checker.history(key).owners.append(process.name)
            self.checker.history(key).loaded[process.name.partition("#")[0]] = self.loop.time()
        if event == "dead_letter_failed":
            self.left.unburied.add((process.name, ChangeSetKey.of(entry["workspace"], entry["change_set"])))
        if event in PULL_PUT_OFF:
            key = ChangeSetKey.of(entry["workspace"], entry["change_set"])
            self.checker.history(key).excused = self.loop.time()
        if self.setup.mode is Mode.GENTLE and entry.get("fenced"):
            self._check_rival(process, ChangeSetKey.of(entry["workspace"], entry["change_set"]))
        calm = self.setup.mode is Mode.CALM
        if event in BROKEN or (calm and level not in ("debug", "info") and event not in CALM_WARNINGS):
            self.checker.broken(f"{process.name}: {event} {fields} {sys.exc_info()[1]!r}")

    def _check_rival(self, process: Process, key: ChangeSetKey) -> None:
        """Check that a fenced `process` has a rival: another process that has written since, or that will be fenced as
        well."""
        writer = self.checker.history(key).writer
        if writer == process.name:
            self.checker.broken(f"{process.name} is fenced from {key}, although it wrote the last commit itself")

    def refused(self, id_: str, error: RebaserError) -> None:
        """Note that a client got an error and no answer. Without faults, that is a violation."""
        if self.setup.mode is Mode.CALM:
            self.checker.broken(f"{id_} failed in a run without faults: {type(error).__name__} {error.message}")

    def check_answer(self, id_: str, response: EnqueueUpdatesResponse, wait: Wait) -> None:
        """Check the answer that a client got."""
        if response.id != id_:
            self.checker.broken(f"{id_} was given the answer to {response.id}")
        try:
            self.checker.check_reply(response)
        except Violation as violation:
            self.checker.broken(f"a client got a wrong answer: {violation}")
        if wait == "derived" and isinstance(response.status, Success):
            key = ChangeSetKey.of(response.workspace_id, response.change_set_id)
            if self.checker.history(key).covers < response.status.commit:
                self.checker.broken(f"{id_} was answered as derived, but derived values are not up to date")

    def _blob(self, address: str) -> bytes:
        """Return the content of a blob, read from the model in the layout of ADR-20."""
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
        raise Violation(f"blob {address} is named, but not stored")


def _leaves(error: BaseException) -> Any:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error

"""One run, from the start until no work is left.

Faults strike while the clients work. Then the faults end, dead processes are started again, and everything has to be
done in time and as guaranteed.
"""

import asyncio
import random
import warnings
from dataclasses import dataclass

from rebaser_client import ChangeSetState, RebaserClient
from tests.simulation.book import FAULT
from tests.simulation.clients import Programme, Told
from tests.simulation.collecting import Garbage
from tests.simulation.drawing import (
    draw_applies,
    draw_contested,
    draw_forks,
    draw_history,
    draw_operations,
    draw_overtaken,
    draw_rebases,
    draw_statuses,
)
from tests.simulation.environment import prepare, replaced
from tests.simulation.history import History, Violation
from tests.simulation.left import LEFT_FOR, LOOK_AGAIN, nothing_left
from tests.simulation.loop import Livelock, Process, State
from tests.simulation.model.consumers import PushConsumer
from tests.simulation.operators import Operator
from tests.simulation.readers import Reader, position, read_at
from tests.simulation.rest import Rest
from tests.simulation.setup import Mode
from tests.simulation.storms import trouble
from tests.simulation.trace import Trace
from tests.simulation.world import LOGS_BOUND, URL, Slot, World

TROUBLE = 30.0  # longest time with faults, in virtual seconds
# Longest time, in virtual seconds, until a client that is slow or gets no answer has published a task: four consecutive
# answers may be lost, and each is awaited for 5 s.
STRANDED = 22.0
HISTORY_SHARE = 0.35  # share of the worlds whose clients use the history
FORK_SHARE = 0.2  # share of the worlds whose clients create change sets from others
READER_SHARE = 0.15  # share of the worlds in which a reader reads the past while others edit
POSITIONS = 4  # positions of each change set that are read at the end
APPLY_SHARE = 0.8  # share of the worlds with branches whose clients also apply branches and protect change sets
REBASE_SHARE = 0.6  # share of the worlds with applies whose clients also rebase branches
# Share of the worlds in which branches that follow their targets edit the same values as the targets.
CONTESTED_SHARE = 0.12
OVERTAKEN_SHARE = 0.06  # as before; branches also edit an id again after the position that is applied
STATUS_SHARE = 0.4  # share of the worlds with branches whose clients also close change sets
UPDATED_WITHIN = 30.0  # virtual seconds within which an update must be done that became due because of a late pull
REST = 120.0  # virtual seconds within which all work has to be done
# The last fault is over: dead processes were started, the links of lost machines were cut, and a new sweeper is pinned.
RECOVERED = 15.0


@dataclass
class Result:
    seed: int
    mode: Mode
    violation: Violation | None
    trace: Trace
    counts: dict[str, int]  # numbers of faults by kind
    requests: int
    commits: int
    seconds: float  # virtual seconds

    def report(self, last: int = 80) -> str:
        """Return the text to print about a run that failed, with the `last` lines of its trace."""
        lines = "\n".join(self.trace.lines(last))
        again = f"PYTHONHASHSEED=0 python -m tests.simulation --seed {self.seed} --mode {self.mode.value}"
        return f"{lines}\n\nseed {self.seed}, {self.mode.value}: {self.violation}\n  {again}"


def simulate(seed: int, mode: Mode | None = None, *, plain: bool = False) -> Result:
    """Run one seed, which also decides the mode if none is given. With `plain`, graphs are small, and thresholds have
    their defaults."""
    if mode is Mode.GARBAGE:
        return _simulate_garbage(seed)
    world = World(seed, mode or Mode.of(seed), plain=plain)
    prepare(world.setup.thresholds)
    return Story(world).run()


def _simulate_garbage(seed: int) -> Result:
    garbage = Garbage(seed)
    violation = None
    try:
        garbage.run()
    except Violation as found:
        violation = found
        garbage.trace("world", f"!!! {found}")
    counts, seconds = garbage.needs.counts, garbage.loop.time()
    return Result(
        seed, Mode.GARBAGE, violation, garbage.trace, garbage.faults.counts, counts["named"], counts["runs"], seconds
    )


class Story:
    def __init__(self, world: World) -> None:
        self._world = world
        self._setup = world.setup
        self._rest = Rest(world.checker, world.subjects, world.model.streams)
        self._calm = world.setup.mode is Mode.CALM
        self._forks = random.Random(f"forks {world.seed}").random() < FORK_SHARE
        self._applies = random.Random(f"applies {world.seed}").random() < APPLY_SHARE
        self._rebases = random.Random(f"rebases {world.seed}").random() < REBASE_SHARE
        contested = random.Random(f"contested {world.seed}").random()
        self._contested = contested < CONTESTED_SHARE + OVERTAKEN_SHARE
        self._overtaken = self._contested and contested >= CONTESTED_SHARE
        if self._contested:
            self._setup.history_for = random.Random(f"contested history {world.seed}").choice((0.5, 3.0, 86_400.0))
            world.checker.history_for_ms = int(self._setup.history_for * 1000)
            self._setup.requests = max(self._setup.requests, 12)
        self._statuses = random.Random(f"statuses {world.seed}").random() < STATUS_SHARE
        if self._forks and self._statuses:
            self._setup.closed_for = random.Random(f"closed {world.seed}").choice((0.0, 3.0))
            world.checker.closed_for = self._setup.closed_for

    def run(self) -> Result:
        world = self._world
        taste, limits = world.poison.taste, self._setup.thresholds
        crowded = self._setup.crowded_at / LOGS_BOUND or None
        with replaced(
            world.loop, world.network, world.seed, world.engine, world.log, taste, world.left, limits, crowded
        ):
            try:
                for number in range(self._setup.servers):
                    world.add_server(f"s{number + 1}")
                self._draw_programmes()
                try:
                    world.loop.run_until_complete(self._tell())
                except (Violation, Livelock) as problem:
                    world.checker.broken(str(problem))
                self._reap()
            finally:
                world.loop.close()
        histories = world.checker.histories.values()
        return Result(
            world.seed,
            self._setup.mode,
            world.checker.violation,
            world.trace,
            world.faults.counts,
            sum(len(history.asked) for history in histories),
            sum(history.commits for history in histories),
            world.loop.time(),
        )

    def _draw_programmes(self) -> None:
        world, setup = self._world, self._setup
        with_history = random.Random(f"history {world.seed}").random() < HISTORY_SHARE
        for number in range(setup.clients):
            name = f"c{number + 1}"
            once = setup.mode is Mode.FORGETFUL
            rng = random.Random(f"client {name} {world.seed}")
            lanes = [
                draw_operations(
                    rng,
                    f"{name}l{lane}",
                    setup.keys,
                    setup.requests,
                    garbage=setup.garbage,
                    newer=not self._calm,
                    large=setup.max_payload < 10_000,
                    quiet=min(setup.quiescent_period, 1.0) if setup.timed else None,
                    repeats=0.0 if once else 0.15,
                    size=setup.size,
                )
                for lane in range(rng.choice((1, 2)))
            ]
            if with_history:
                for lane in lanes:
                    draw_history(random.Random(f"history {name} {world.seed}"), lane)
            if self._forks:
                for lane in lanes:
                    draw_forks(random.Random(f"forks {name} {lane[0].id} {world.seed}"), lane)
                    if self._applies:
                        draw_applies(random.Random(f"applies {name} {lane[0].id} {world.seed}"), lane)
                    if self._applies and self._rebases:
                        draw_rebases(random.Random(f"rebases {name} {lane[0].id} {world.seed}"), lane)
                    if self._statuses:
                        draw_statuses(random.Random(f"statuses {name} {lane[0].id} {world.seed}"), lane)
            for lane in lanes if self._contested else ():
                rng_of_lane = random.Random(f"contested {name} {lane[0].id} {world.seed}")
                draw_contested(rng_of_lane, lane, setup.keys, setup.quiescent_period)
                if self._overtaken:
                    draw_overtaken(random.Random(f"overtaken {name} {lane[0].id} {world.seed}"), lane)
            stubborn = setup.mode is not Mode.HARSH or rng.random() < 0.5
            world.add_client(
                Programme(name, lanes, stubborn, once, rng, world.check_answer, world.refused, world.trace)
            )
            world.checker.good |= {one.id for lane in lanes for one in lane if not one.garbage}
        world.checker.sent = set(world.checker.good)
        if setup.poison:
            chosen = world.rng.choice(sorted(world.checker.good))
            world.poison.bites[chosen] = world.rng.choice((1, 2, 100, 100))
            world.checker.good.discard(chosen)
        if setup.poison or (setup.garbage and setup.mode is Mode.HARSH):
            world.add_client(Operator("op", random.Random(f"operator {world.seed}"), world.poison, world.trace))

        if random.Random(f"readers {world.seed}").random() < READER_SHARE:
            histories = world.checker.histories.values
            rng = random.Random(f"reader {world.seed}")
            world.add_client(Reader("r1", rng, histories, world.trace, lambda: world.model.outdated))

    def _reap(self) -> None:
        self._world.faults.on = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # Some cancelled coroutines never began.
            for slot in self._world.slots:
                for process in slot.processes:
                    self._world.loop.reap(process)

    # -- the course of a run ---------------------------------------------------------------------------------------

    async def _tell(self) -> None:
        world = self._world
        for slot in world.slots:
            if self._calm and slot.client and slot.incarnation == 0:
                await self._sleep(1.0)  # a client that starts before the streams exist gets an error
            world.start(slot)
            await self._sleep(world.rng.random() * 0.1)
        troubles = None if self._calm else world.loop.create_task(trouble(world))
        began = world.loop.time()
        while world.loop.time() < began + TROUBLE and not self._all_told():
            await self._sleep(0.25)
        if troubles is not None:
            troubles.cancel()
        self._stop_faults()
        await self._come_to_rest()
        self._check_told()
        if self._calm:
            await self._check_tidy()
        await self._check_reading()
        await self._check_left()

    async def _sleep(self, seconds: float) -> None:
        world = self._world
        await asyncio.sleep(seconds)
        if self._calm and world.subjects.requests_stream in world.model.streams:
            late = self._rest.late(world.loop.time())
            if late:
                raise Violation(late)
        if self._setup.mode is Mode.GENTLE and world.subjects.tasks_stream in world.model.streams:
            stranded = self._rest.stranded(world.loop.time(), STRANDED)
            if stranded:
                raise Violation(stranded)
        if world.checker.violation is not None:
            raise world.checker.violation
        if unexplained := self._rest.unexplained():
            raise Violation(unexplained)

    def _all_told(self) -> bool:
        return all(self._finished(slot) for slot in self._world.slots if slot.client)

    def _finished(self, slot: Slot) -> bool:
        return (
            slot.task is not None
            and slot.task.done()
            and slot.process is not None
            and slot.process.state is State.RUNNING
        )

    def _stop_faults(self) -> None:
        world = self._world
        world.trace("world", "faults stop")
        world.faults.on = False
        world.network.down = False
        for stream in list(world.model.leaderless):
            world.model.elect(stream, forget_pushes=False)
        for name, stream_ in world.model.streams.items():
            stream_.full = False
            world.model.catch_up(name)

    async def _come_to_rest(self) -> None:
        """Wait until all work is done."""
        loop = self._world.loop
        began = loop.time()
        while True:
            await self._sleep(0.5)
            waits = self._unsettled()
            if not waits:
                return
            if loop.time() > began + REST:
                raise Violation(f"{REST:g} s after the last fault, there is still work: {waits}")
            if self._setup.sweep_interval < REST and loop.time() > began + RECOVERED:
                # The guarantee is two intervals; the duration of the sweep itself is added.
                stranded = self._rest.stranded(loop.time(), 2 * self._setup.sweep_interval + 1.0)
                if stranded:
                    raise Violation(stranded)

    def _unsettled(self) -> str:
        if not self._all_told():
            programmes = self._world.programmes
            left = [one.id for programme in programmes for one in programme.operations if one.told is Told.NOTHING]
            return f"clients wait for {left}"
        return self._rest.waits()

    # -- the checks at the end -------------------------------------------------------------------------------------

    def _check_told(self) -> None:
        """Check that every request of which a client was told that it is stored was decided."""
        checker = self._world.checker
        for programme in self._world.programmes:
            for operation in programme.operations:
                if operation.told is Told.NOTHING or operation.garbage:
                    continue
                if operation.id not in checker.history(operation.key).outcomes:
                    raise Violation(f"{operation.id} was {operation.told.value}, but no commit decided it")

    async def _check_tidy(self) -> None:
        """Check that no request and no consumer is left over. If there were enough slots, a change set that was idle
        for long has one owner at most."""
        world, setup = self._world, self._setup
        await self._sleep(10.0)
        requests = world.subjects.requests_stream
        if world.model.streams[requests].messages:
            raise Violation("the queue is not empty at rest")
        for stream, consumers in world.model.consumers.items():
            left = [name for name, consumer in consumers.items() if isinstance(consumer, PushConsumer)]
            if left:
                raise Violation(f"consumers are left on {stream}: {left}")
        if setup.quiescent_period > 10 and setup.concurrency >= len(setup.keys):
            for history in world.checker.histories.values():
                if len(history.owners) > 1 + bool(history.birth) and not (self._forks or self._contested):
                    raise Violation(f"{history.key} was owned by {history.owners}, although no owner had to release it")

    async def _check_reading(self) -> None:
        """Check that a new client reads what a recompute from scratch gives, and that its requests are served: all
        servers work.

        Copies of requests may still be answered, with commits that change nothing, and a server that was paused may
        publish the task of a branch, which then pulls. So the client must not read a commit older than the last one at
        the start of the check. The values must be exactly those of the commit that it reads, once the update after such
        a pull is done.
        """
        world = self._world
        process = Process(world.loop, "reader")
        world.slots.append(Slot("reader", lambda: None, process=process, processes=[process]))
        task = process.start(self._read())
        while not task.done():
            await self._sleep(0.5)
        await task

    async def _settled(self, client: RebaserClient, history: History) -> ChangeSetState:
        """Read the state. If an update is due, read again, until the update must be done."""
        key, deadline = history.key, self._world.loop.time() + UPDATED_WITHIN
        while True:
            state = await client.state(key.workspace, key.change_set)
            if not state.owes or history.covers < history.birth or self._world.loop.time() > deadline:
                return state
            await asyncio.sleep(0.5)

    async def _read(self) -> None:
        async with RebaserClient.connect(URL) as client:
            for key, history in self._world.checker.histories.items():
                newest = history.last
                state = await self._settled(client, history)
                if not newest <= state.last <= history.last:
                    raise Violation(f"{key} is read at commit {state.last}, its last was {newest}, then {history.last}")
                found = {id_: FAULT if one.error else one.value for id_, one in state.values().items()}
                wanted = history.book.values(state.last)
                # No request has used it, so it still has the stale values of its parent.
                if history.covers < history.birth:
                    for id_ in [id_ for id_, one in state.values().items() if one.state == "stale"]:
                        found[id_] = wanted.get(id_)
                if found != wanted:
                    wrong = {id_: (found.get(id_), wanted.get(id_)) for id_ in {*found, *wanted}}
                    raise Violation(f"{key} is read wrong: { {k: v for k, v in wrong.items() if v[0] != v[1]} }")
                rng = random.Random(f"positions {key} {self._world.seed}")
                for _ in range(POSITIONS if newest else 0):
                    await read_at(client, history, position(rng, history))
            await nothing_left(client)

    async def _check_left(self) -> None:
        """Check that nothing remains in idle servers, nor in stopped ones."""
        world = self._world
        until = world.loop.time() + LEFT_FOR
        left = set(world.left.in_servers())
        while left and world.loop.time() < until:
            await self._sleep(LOOK_AGAIN)
            left &= set(world.left.in_servers())
        if left:
            raise Violation("; ".join(sorted(left)))
        world.left.resting = True
        # A process that died and was not restarted yet hears nothing.
        running = [slot for slot in world.slots if slot.process is not None and slot.process.state is not State.DEAD]
        servers = [slot for slot in running if not slot.client and slot.task is not None]
        for slot in servers:
            world.stop(slot)
        while not all(slot.task is None or slot.task.done() for slot in servers):
            if world.loop.time() > until + LEFT_FOR:
                raise Violation(f"{[slot.name for slot in servers]} do not stop")
            await self._sleep(LOOK_AGAIN)
        if closed := world.left.when_closed():
            raise Violation("; ".join(closed))

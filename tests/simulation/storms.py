"""Faults that do not concern a single message: lost leaders and connections, restarts of nats-server, wrong clocks,
full disks, deployments."""

import asyncio
from typing import TYPE_CHECKING

from tests.simulation.loop import State
from tests.simulation.setup import Mode

if TYPE_CHECKING:
    from tests.simulation.world import World

KINDS = {
    Mode.CALM: (),
    Mode.GENTLE: ("slow leader",),
    Mode.HARSH: ("task gone", "leader", "slow leader", "cut", "restart", "clock", "full", "deploy", "pause", "crash"),
    Mode.FORGETFUL: ("cut", "deploy", "crash"),
}


async def trouble(world: "World") -> None:
    """Cause faults at random times until cancelled. `World` ends those that last."""
    rng = world.rng
    kinds = [kind for kind in KINDS[world.setup.mode] if rng.random() < 0.4]
    every = rng.choice((2.0, 5.0, 15.0))
    while kinds:
        await asyncio.sleep(rng.random() * 2 * every)
        await strike(world, rng.choice(kinds))


async def strike(world: "World", kind: str) -> None:
    rng, model = world.rng, world.model
    seconds = world.setup.ack_wait * rng.choice((0.1, 0.7, 2.0))
    slots = [slot for slot in world.slots if slot.process is not None and slot.process.state is State.RUNNING]
    slot = rng.choice(slots) if slots else None
    stream = rng.choice(sorted(model.streams)) if model.streams else None
    if kind in ("leader", "slow leader") and stream is not None and stream not in model.leaderless:
        told = kind == "leader" and rng.random() < 0.5
        world.faults.note("nats", f"leader lost: of {stream} for {seconds:.2f} s")
        model.lose_leader(stream, told=told)
        await asyncio.sleep(seconds)
        model.elect(stream, forget_pushes=rng.random() < 0.5, deposed=kind == "leader" and rng.random() < 0.5)
        await asyncio.sleep(seconds)
        model.catch_up(stream)
    elif kind == "full" and stream is not None:
        world.faults.note("nats", f"disk full: {stream} for {seconds:.2f} s")
        model.streams[stream].full = True
        await asyncio.sleep(seconds)
        model.streams[stream].full = False
    elif kind == "task gone":
        tasks = model.streams.get(world.subjects.tasks_stream)
        subjects = [] if tasks is None else list(tasks.subjects)
        if tasks is not None and subjects:
            subject = rng.choice(subjects)
            world.faults.note("nats", f"task gone: {subject}")
            tasks.purge(subject, None, None)
            if slot is not None and slot.process is not None and not slot.client and rng.random() < 0.7:
                world.faults.note(slot.process.name, "crash: after a task was gone")
                world.crash(slot.process)
    elif kind == "restart":
        world.faults.note("nats", f"restart: away for {seconds:.2f} s")
        world.network.down = True
        for link in list(world.network.links):
            link.cut()
        model.restart()
        await asyncio.sleep(seconds)
        world.network.down = False
    elif slot is not None and slot.process is not None:
        process = slot.process
        if kind == "cut":
            world.faults.note(process.name, "cut: its connection")
            for link in world.network.links_of(process):
                link.cut()
        elif kind == "clock":
            process.clock += rng.choice((-3_600_000, -5000, 5000, 600_000))
            world.faults.note(process.name, f"clock: off by {process.clock} ms")
        elif kind == "pause":
            world.faults.note(process.name, "pause: at any time")
            world.pause(process, seconds)
        elif kind == "crash":
            world.faults.note(process.name, "crash: at any time")
            world.crash(process)
        elif kind == "deploy" and not slot.client and slot.task is not None:
            world.faults.note(process.name, "deploy: it is asked to stop")
            slot.task.cancel()

"""Stands in for Spark: it computes packets in this process with the code of workers, after a delay, and fails at
random."""

import random
from collections.abc import Sequence
from typing import Any, Self

import anyio

from rebaser.dvu.wire.structure import Structure
from rebaser.dvu.worker.evaluate import evaluate_packet
from rebaser.dvu.worker.structure_cache import StructureCache
from rebaser_core.errors import DvuError
from tests.simulation.checker import Checker
from tests.simulation.faults import SeededFaults
from tests.simulation.loop import PROCESS


class Engine:
    """The engine of one server. `workers` draws when simulated workers restart and how they order results; `checker`
    counts the concurrent updates.

    `fails` is the chance that a call fails.
    """

    state = "ready"
    load = ((0, 0), (0, 0))
    functions: dict[str, str] = {}  # noqa: RUF012 - nothing is added
    tags: dict[str, str] = {}  # noqa: RUF012 - nothing is added

    def __init__(
        self, checker: Checker, faults: SeededFaults, fails: float, rng: random.Random, workers: random.Random
    ) -> None:
        self._checker = checker
        self._faults = faults
        self._fails = fails
        self._rng = rng
        self._workers = workers
        self.ready = anyio.Event()
        self._kept = StructureCache(None)  # the structures that the simulated workers have cached

    async def __aenter__(self) -> Self:
        self.ready.set()
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def available(self) -> None:
        if self._faults.on and self._workers.random() < self._fails:
            raise DvuError("the simulated Spark is away", code="simulated")

    async def evaluate(self, packets: Any, *, label: str, **_: object) -> list[list[bytes]]:
        process = PROCESS.get()
        assert process is not None
        rng = self._rng
        self._checker.dvu_began(process.name, label)
        try:
            await anyio.sleep(rng.choice((0.001, 0.05, 0.5)) if rng.random() < 0.9 else 3.0)
            if self._faults.on and rng.random() < self._fails:
                raise DvuError("the simulated engine fails", code="simulated")
            if self._workers.random() < 0.1:
                self._kept = StructureCache(None)  # the simulated workers were restarted
            return [self._parts(packet) for packet in packets]  # type: ignore[misc]
        finally:
            self._checker.dvu_ended(process.name, label)

    async def share(self, structure: Structure) -> str | None:
        """Share a structure: workers may find it, may not find it where it was put, or there may be no place for it."""
        where = self._workers.choice(("", "nowhere", None))
        if where == "":
            self._kept.put(structure.address, bytes(structure.data))
        return where

    def _parts(self, packet: bytes) -> Sequence[bytes]:
        parts = evaluate_packet(packet, structures=self._kept)
        self._workers.shuffle(parts)
        return parts

"""Stands in for Spark: evaluates packets as its workers would, in process, slowly, and fails now and then."""

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
    """One server's. `workers` is what they forget by, and shuffle; `checker` counts how many updates run at once.

    `fails` is a chance.
    """

    state = "ready"
    load = ((0, 0), (0, 0))

    def __init__(
        self, checker: Checker, faults: SeededFaults, fails: float, rng: random.Random, workers: random.Random
    ) -> None:
        self._checker = checker
        self._faults = faults
        self._fails = fails
        self._rng = rng
        self._workers = workers
        self.ready = anyio.Event()
        self._kept = StructureCache(None)  # what its workers have

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
                self._kept = StructureCache(None)  # they were started anew
            return [self._parts(packet) for packet in packets]  # type: ignore[misc]
        finally:
            self._checker.dvu_ended(process.name, label)

    async def share(self, structure: Structure) -> str | None:
        """Workers may find it, or not where they are told to look, or there is no place for it."""
        where = self._workers.choice(("", "nowhere", None))
        if where == "":
            self._kept.put(structure.address, bytes(structure.data))
        return where

    def _parts(self, packet: bytes) -> Sequence[bytes]:
        parts = evaluate_packet(packet, structures=self._kept)
        self._workers.shuffle(parts)
        return parts

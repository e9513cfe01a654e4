"""Decides how many change sets a server may own at once: a fixed number, or as many as a share of its memory holds."""

import os
from collections.abc import Iterator
from pathlib import Path

KIB, MIB = 1024, 1024 * 1024
SHARE = 3  # owned change sets may take a third of the memory; the rest is for Spark, NATS, requests and reserves
OWNER_BYTES = 48 * KIB  # memory of an owner without the values of its change set: 30 KiB measured, and a margin
MIN_SLOTS = 16  # even if there is little memory, a few large change sets must not block all others
MAX_SLOTS = 100_000
UNKNOWN_MEMORY = 2 * 1024 * MIB  # the memory that is assumed if the system does not report its memory
UNLIMITED = 2**60  # cgroup v1 reports a number above this one if there is no limit


class SlotCount:
    """The number of slots of a server: `fixed`, or as many as `memory` (bytes) allows if `fixed` is None.

    `state_bytes` is the memory of all owned states, which the server sets. It does not include `OWNER_BYTES` for each
    owner.
    """

    def __init__(self, fixed: int | None, memory: int) -> None:
        self._fixed = fixed
        self._budget = memory // SHARE
        self.state_bytes = 0

    def total(self, without_slot: int) -> int:
        """Return the number of slots. `without_slot` is the number of owners that need memory but hold no slot."""
        if self._fixed is not None:
            return self._fixed
        fitting = (self._budget - self.state_bytes) // OWNER_BYTES - without_slot
        return min(max(fitting, MIN_SLOTS), MAX_SLOTS)


def memory_limit(root: Path = Path("/")) -> int:
    """Return how many bytes of memory this process may use: the limit of its container, or all memory of the machine.

    `root` is the folder in which `proc` and `sys` are mounted.
    """
    limits = [*_cgroup_limits(root)]
    try:
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError):  # `sysconf` does not know these names on this system
        limits.append(UNKNOWN_MEMORY)
    return min(limits)


def _cgroup_limits(root: Path) -> Iterator[int]:
    """Yield the limits of the control groups (v1 and v2) that this process belongs to."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0":
            base, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # A process is also subject to the limits of all parents of its group. In a container, `path` may be a path of
        # the host that does not exist in the container. In that case, the directory `base` has the container's limit.
        group = base / path.strip("/")
        while True:
            limit = _read_limit(group / name)
            if limit is not None:
                yield limit
            if group == base or base not in group.parents:
                break
            group = group.parent


def _read_limit(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() and int(text) < UNLIMITED else None

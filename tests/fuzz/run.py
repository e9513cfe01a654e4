"""Runs a target on generated inputs, and reports each defect with the input that shows it."""

import hashlib
import random
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.mutate import MAX_BYTES, Mutator
from tests.fuzz.targets import TARGETS, Target

CORPUS = Path(__file__).parent / "corpus"
SLOW = 5.0  # seconds of processor time for one input of at most about 200 kB
GROWTH = 1024 * 1024  # KiB of memory that a run may need beyond the peak before it
MINIMISE = 2000  # attempts to make a failing input smaller


class Found(Exception):  # noqa: N818 - what a run is for
    """An input that shows a defect."""

    def __init__(self, target: str, data: bytes, error: BaseException) -> None:
        super().__init__(f"{target}: {type(error).__name__}: {str(error)[:300]}\ninput: {data[:4096].hex()}")
        self.target = target
        self.data = data
        self.error = error


@dataclass
class Stats:
    executions: int = 0
    slowest: float = 0.0


def check(name: str, data: bytes) -> float:
    """Check one input, and return its processor time. Raises `Found` for a defect."""
    began = time.thread_time()
    try:
        TARGETS[name].check(data)
    except Exception as error:
        raise Found(name, data, error) from error
    used = time.thread_time() - began
    if used > SLOW:
        raise Found(name, data, TimeoutError(f"it took {used:.1f} s"))
    return used


def made(target: Target, name: str, seed: int, start: int = 0) -> Iterator[bytes]:
    """Yield inputs without end. Each depends only on the seed and its number."""
    number = start
    while True:
        yield target.make(Mutator(random.Random(f"{seed} {name} {number}")))[:MAX_BYTES]
        number += 1


def run(name: str, seed: int, *, count: int | None = None, seconds: float | None = None) -> Stats:
    """Check `count` inputs, or as many as `seconds` allow. Raises `Found` with the smallest failing input."""
    stats = Stats()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    end = None if seconds is None else time.monotonic() + seconds
    for data in made(TARGETS[name], name, seed):
        if stats.executions == count or (end is not None and time.monotonic() >= end):
            break
        try:
            stats.slowest = max(stats.slowest, check(name, data))
        except Found as found:
            raise minimised(found) from found.error
        stats.executions += 1
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before > GROWTH:
            raise Found(name, data, MemoryError(f"after {stats.executions} inputs"))
    return stats


def minimised(found: Found) -> Found:
    """Return the same defect with fewer bytes: pieces are removed as long as the same kind of error is raised."""
    best, tries = found, 0
    size = max(len(best.data) // 2, 1)
    while size and tries < MINIMISE and not isinstance(found.error, (TimeoutError, MemoryError)):
        at, shorter = 0, False
        while at < len(best.data) and tries < MINIMISE:
            tries += 1
            try:
                check(best.target, best.data[:at] + best.data[at + size :])
            except Found as smaller:
                if type(smaller.error) is type(found.error):
                    best, shorter = smaller, True
                    continue
            at += size
        if not shorter:
            size //= 2
    return best


def corpus() -> list[tuple[str, Path]]:
    """Return the inputs that failed once, in files `TARGET-what.hex`."""
    return [(path.name.partition("-")[0], path) for path in sorted(CORPUS.glob("*.hex"))]


def keep(found: Found) -> Path:
    """Write an input into the corpus, and return its path."""
    CORPUS.mkdir(exist_ok=True)
    path = CORPUS / f"{found.target}-{hashlib.sha256(found.data).hexdigest()[:10]}.hex"
    path.write_text(found.data.hex() + "\n")
    return path

"""What others take for the same edits of the same graphs: each cell in a process of its own, stopped where it takes too
long or too much, and every value it comes to checked against the bare loop.

Only setting the values and bringing all up to date is timed; loading the graph and computing it once is told apart.
`bare` is no product but the limit: compiled loops over arrays. It and `pydict` compute only what an edit reaches, and
so do the sheets; Dask and the joins compute all, whatever the edit, and are asked for `all` only.
"""

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

PEERS = ("bare", "bare-sweep", "pydict", "dask", "formualizer", "hyperformula", "pyspark-joins")
WHOLE = ("bare-sweep", "dask", "pyspark-joins")  # compute everything, whatever the edit

TICK = "tick\n"  # said at the end of a step that is nobody's result
SECONDS = 60.0  # for one step
LOADING = 3  # times as long to load the graph: some start a JVM for it
BYTES = 8 * 2**30  # of a peer's processes together


def missing(peer: str) -> str | None:
    """How to get a peer that is not there."""
    if peer in ("dask", "formualizer"):
        return None if find_spec(peer) else f"not installed: uv sync --group peers, or pip install {peer}"
    if peer == "hyperformula":
        if shutil.which("node") is None:
            return "not installed: it needs Node.js"
        found = subprocess.run(
            ["node", "-e", "require.resolve('hyperformula')"], check=False, capture_output=True, env=node_environment()
        )
        if found.returncode:
            return "not installed: npm install --global hyperformula (GPL-3.0; for this benchmark only)"
    return None


def node_environment() -> dict[str, str]:
    """Where Node finds what was installed with `--global`, or under `NODE_PATH`."""
    environment = dict(os.environ)
    if "NODE_PATH" not in environment and (npm := shutil.which("npm")):
        found = subprocess.run([npm, "root", "--global"], check=False, capture_output=True, text=True)
        environment["NODE_PATH"] = found.stdout.strip()
    return environment


def measure(
    peer: str, shape: str, size: int, *, edits: Sequence[str], runs: int, seconds: float = SECONDS
) -> list[dict[str, Any]]:
    """Lines of a peer: one for each edit, the last one with `why` where it did not get to its end."""
    about = {"part": "peers", "peer": peer, "shape": shape, "size": size}
    if why := missing(peer):
        return [about | {"why": why}]
    wanted = [one for one in edits if one != "same" and (one == "all" or peer not in WHOLE)]
    command = [sys.executable, "-m", "tests.benchmarks.dvu.peers", peer, shape, str(size), ",".join(wanted), str(runs)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=node_environment() if peer == "hyperformula" else None,
        process_group=0,
    ) as child:
        said: queue.Queue[str | None] = queue.Queue()
        errors: list[str | None] = []
        hears = ((child.stdout, said.put), (child.stderr, errors.append))
        threads = [threading.Thread(target=_listen, args=one) for one in hears]
        for thread in threads:
            thread.start()
        try:
            found, why = _watched(child, said, seconds)
        finally:
            with suppress(ProcessLookupError):  # with all that it started: its group is its own
                os.killpg(child.pid, signal.SIGKILL)
            for thread in threads:
                thread.join()
    if why is None and child.returncode:
        why = "failed: " + " ".join("".join(one for one in errors if one).split()[-30:])[:200]
    lines = [about | one for one in found]
    return lines if why is None else [*lines, about | {"why": why}]


def _listen(stream: Any, take: Callable[[str | None], None]) -> None:
    for line in stream:
        take(line)
    take(None)


def _watched(
    child: subprocess.Popen[str], said: "queue.Queue[str | None]", seconds: float
) -> tuple[list[dict[str, Any]], str | None]:
    """What it said until its end, or until it had to be ended, and why that was."""
    found: list[dict[str, Any]] = []
    steps, last = 0, time.monotonic()
    while True:
        try:
            line = said.get(timeout=0.2)
        except queue.Empty:
            line = ""
        if line is None:
            child.wait()
            return found, None
        if line:
            steps, last = steps + 1, time.monotonic()
        if line.startswith("{"):
            found.append(json.loads(line))
        allowed = seconds * (LOADING if steps < 2 else 1)
        if time.monotonic() - last > allowed:
            return found, f"> {allowed:g} s"
        if _bytes_of(child.pid) > BYTES:
            return found, f"> {BYTES >> 30} GB"


def _bytes_of(pid: int) -> int:
    """Resident memory of a process and those it started (Linux)."""
    try:
        with open(f"/proc/{pid}/statm") as file:  # noqa: PTH123 - a few hundred times a second
            own = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return own + sum(map(_bytes_of, _children(pid)))
    except OSError:
        return 0


def _children(pid: int) -> Iterator[int]:
    for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - the same
        with open(f"/proc/{pid}/task/{task}/children") as file:  # noqa: PTH123 - the same
            yield from map(int, file.read().split())

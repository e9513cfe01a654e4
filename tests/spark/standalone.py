"""A Spark of several processes on loopback, all from PySpark's package: a master, workers and a Connect server."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import sleep

import pyspark

ROOT = Path(__file__).parents[2]
SPARK = Path(pyspark.__file__).parent
NEW_PORT = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")


class Program:
    """One of its JVMs; its executors are in its process group."""

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
        """Wait until it logs what matches `pattern`; returns its first group."""
        while (found := re.search(pattern, self._log.read_text(errors="replace"))) is None:
            assert self._process.poll() is None, self._log.read_text(errors="replace")[-2000:]
            sleep(0.05)
        return found[1]

    def kill(self) -> None:
        """End it, and what it started, at once."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Standalone:
    """`url` is where its Connect server listens."""

    def __init__(self, workers: list[Program], url: str) -> None:
        self.workers = workers
        self.url = url


@contextmanager
def standalone(folder: Path, workers: int = 2) -> Iterator[Standalone]:
    """One with so many workers, each with one core."""
    with ExitStack() as stack:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SPARK_")},
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "640m",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
        }

        def start(name: str, program: str, *arguments: str) -> Program:
            home = folder / name
            home.mkdir()
            started = Program(home / "log", [str(SPARK / "bin" / program), *arguments], environment)
            stack.callback(started.kill)
            return started

        master = start("master", "spark-class", "org.apache.spark.deploy.master.Master", *NEW_PORT)
        where = master.says(r"Starting Spark master at (spark://\S+)")
        given = ("--cores", "1", "--memory", "1g", "--work-dir")
        running = [
            start(
                name,
                "spark-class",
                "org.apache.spark.deploy.worker.Worker",
                *NEW_PORT,
                *given,
                f"{folder / name}",
                where,
            )
            for name in (f"worker{number}" for number in range(workers))
        ]
        for worker in running:
            worker.says(r"(Successfully registered) with master")
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "640m",
            "spark.executorEnv.PYTHONPATH": str(ROOT),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.ui.enabled": "false",
        }
        options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        service = "org.apache.spark.sql.connect.service.SparkConnectServer"
        connect = start("connect", "spark-submit", "--class", service, "--master", where, *options, "spark-internal")
        port = connect.says(r"Spark Connect server started at: \S*:(\d+)")
        yield Standalone(running, f"sc://127.0.0.1:{port}")

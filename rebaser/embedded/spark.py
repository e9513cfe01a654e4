"""The embedded Spark: a JVM that runs a Spark Connect server on a loopback port, as a child process.

Invariant: the JVM never outlives this process, even if this process is killed, because the JVM exits when a pipe from
this process breaks. Servers on one machine share nothing: the operating system chooses the port, and each start uses a
new folder and a new token.

This module starts the JVM in the same way as PySpark (`pyspark/java_gateway.py` and
`SparkSession._start_connect_server` of 4.3), but without touching PySpark's process-wide state. This makes it possible
to restart the JVM after it has died, and keeps the JVM from writing to this process's stderr.
"""

import contextlib
import fcntl
import logging
import os
import re
import secrets
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
from concurrent import futures
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rebaser.embedded import MAX_CONCURRENT_JOBS
from rebaser.embedded.priority import run_when_idle
from rebaser_core.errors import ConfigError, DvuError

_JAVA = 17
_VERSION = re.compile(r'version "(\d+)')
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # exit codes
_START_SECONDS = 90.0
_STOP_SECONDS = 5.0
_SOCKET_FOLDER_BYTES = 60
_PREFIX = "rebaser-spark-"
_LOCAL_SLOTS = re.compile(r"local(?:\[(\d+)\])?")
# `FOLDER_VARIABLE` of `rebaser.dvu.worker.structure_cache`, repeated because importing that module would load Arrow.
_STRUCTURES_VARIABLE = "REBASER_STRUCTURES"
_LOCK = "lock"  # the name of a file in the JVM's folder, locked while the server that owns the folder is alive
_INSTALL_HINT = (
    f"install a Java runtime, {_JAVA} or newer (Debian: apt install openjdk-17-jre-headless, macOS: brew install "
    "openjdk@17), or use a Spark Connect server (sc://host:port)"
)


def check_java() -> None:
    """Raise `ConfigError` if Spark is not installed, or would not find a usable Java. The message is one line, and says
    what to install."""
    home = os.environ.get("JAVA_HOME")  # takes precedence over PATH, as in Spark's own scripts
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    where = f"JAVA_HOME={home}" if home else "PATH"
    if java is None or not os.access(java, os.X_OK):
        raise ConfigError(f"Spark needs Java, and there is none in {where}: {_INSTALL_HINT}", code="no_java")
    try:
        process = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(
            f"Java in {where} does not run ({type(error).__name__}): {_INSTALL_HINT}", code="no_java"
        ) from None
    match = _VERSION.search(process.stderr + process.stdout)
    if match is None or int(match[1]) < _JAVA:
        version = match[1] if match else "an unknown version"
        raise ConfigError(
            f"Spark needs Java {_JAVA} or newer, and {where} has {version}: {_INSTALL_HINT}", code="no_java"
        )
    if not _script().exists():  # only the package pyspark-client is installed, which contains no Spark
        raise ConfigError(
            "Spark is not installed: pip install 'rebaser[spark]', or use a Spark Connect server (sc://host:port)"
        )


def default_parallelism() -> int:
    """Return the default maximum number of tasks of a job."""
    return min(os.cpu_count() or 1, 8)


def spark_master(remote: str, tasks: int) -> str:
    """Return the Spark master to use for the setting `remote`.

    For `local[*]`, the master has a task slot for every task that the engine's concurrent jobs may have, so that a slow
    job does not block other jobs. Slots are threads, and share the CPUs.
    """
    return f"local[{MAX_CONCURRENT_JOBS * tasks}]" if remote == "local[*]" else remote


class Jvm:
    """One JVM with a Connect server.

    `start` and `stop` block. `start_in_background` does not: a later `start` waits until the JVM is up. `kill` may be
    called from any thread, even during `start`, which then fails.
    """

    def __init__(self, master: str, *, memory: str, scratch: Path | None, token: str | None = None) -> None:
        self._master = master
        self._token = token  # the token that clients must present; None if it is to be created
        self._memory = memory
        self._scratch = scratch
        self._folder: Path | None = None
        self._sockets: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.RLock()  # a signal handler may call `stop` in a thread that is in `stop` already
        self._lock_file = -1  # descriptor of the folder's lock
        self._stopped = False
        self._starting: futures.Future[None] | None = None
        self.url = ""  # contains the token, so do not log it

    @property
    def structures(self) -> Path | None:
        """The folder from which workers read structures; None before the JVM is started."""
        return _structures(self._folder) if self._folder is not None else None

    @property
    def mailboxes(self) -> Path | None:
        """The folder for large messages between the owner and workers; None before the JVM is started."""
        return self._folder / "mailboxes" if self._folder is not None else None

    @property
    def task_slots(self) -> int | None:
        """The number of tasks that the JVM runs at once; None if its master does not specify this number."""
        match = _LOCAL_SLOTS.fullmatch(self._master)
        return int(match[1] or 1) if match is not None else None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start_in_background(self) -> None:
        """Start the JVM in a new thread. A later `start` waits for this thread, and raises its error."""
        threads = futures.ThreadPoolExecutor(1, "start-spark")
        self._starting = threads.submit(self._start)
        threads.shutdown(wait=False)

    def start(self) -> None:
        """Start the JVM, and wait until the Connect server listens.

        Raise `DvuError` with an excerpt of the JVM's log if it does not start.
        """
        if self._starting is not None:
            self._starting.result()
        else:
            self._start()

    def _start(self) -> None:
        if self._scratch is not None:
            self._scratch.mkdir(parents=True, exist_ok=True)
        self._folder = folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._scratch))
        self._lock_file = _lock(folder)
        _remove_abandoned(folder.parent)
        self._sockets = _socket_folder(folder)
        token = self._token or secrets.token_urlsafe(32)
        gateway_info = folder / "gateway"
        with (folder / "log").open("wb") as log, self._lock:
            if self._stopped:
                raise DvuError("Spark was stopped while it started")
            self._process = subprocess.Popen(  # noqa: S603 - a fixed program; the operator sets memory and master
                _command(self._master, self._memory, folder, self._sockets),
                stdin=subprocess.PIPE,  # the JVM exits when this pipe breaks
                stdout=log,
                stderr=log,
                cwd=folder,
                env=_environment(gateway_info, token),
                start_new_session=True,  # Ctrl-C must reach this process only
            )
        try:
            client = _load_client()
            self._await_gateway(gateway_info)
            self.url = f"sc://localhost:{_start_server(gateway_info)}/;token={token}"
            client.join()
        except Exception as error:  # noqa: BLE001 - PySpark, Py4J and the system raise different types of errors
            killed = not self._stopped and self._process.poll() in _KILLED
            self.kill()
            why = "something killed Java; is there enough memory?" if killed else self._log_excerpt() or error
            raise DvuError(f"the embedded Spark does not start: {why}") from None

    def stop(self) -> None:
        """End the JVM, even if it is dead or hung, and remove its folder."""
        with self._lock:
            self._stopped = True
            process = self._process
        if process is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr] # stdin is a pipe
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_STOP_SECONDS)
        if self._starting is not None:
            futures.wait([self._starting], _STOP_SECONDS)  # `_stopped` makes a start in progress fail
        for folder in (self._folder, self._sockets):
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1

    def run_when_idle(self) -> None:
        """Let all other processes take precedence over the JVM, which must be up, and over what it will start."""
        assert self._process is not None  # noqa: S101 - it is up
        run_when_idle(self._process.pid)

    def kill(self) -> None:
        """Kill the JVM."""
        with self._lock:
            self._stopped = True
            if self._process is not None and self._process.poll() is None:
                # Kill the whole group: the process may still be the script that starts Java as a child.
                with contextlib.suppress(OSError):  # the process may end between the check and this call
                    os.killpg(self._process.pid, signal.SIGKILL)

    def _await_gateway(self, info: Path) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not info.exists():  # Java renames the file into place, so the file is complete once it exists
            if not self.alive:
                raise DvuError("Java ended before Spark was ready")
            if time.monotonic() > deadline:
                raise DvuError(f"Java did not start within {_START_SECONDS:.0f} s")
            time.sleep(0.02)

    def _log_excerpt(self) -> str:
        if self._folder is None:
            return ""
        with contextlib.suppress(OSError):
            lines = (self._folder / "log").read_text(errors="replace").splitlines()
            errors = [line.strip() for line in lines if "rror" in line or "xception" in line or "nvalid" in line]
            lines = errors or [line for line in lines if not line.startswith("WARNING")]  # Java prints some each time
            return "; ".join(lines[:3])[:300]
        return ""


def _lock(folder: Path) -> int:
    """Lock `folder`. Return the lock's descriptor. The folder stays locked until the descriptor is closed or this
    process ends."""
    unlocked = folder / f"{_LOCK}.new"  # created under another name, so that no process finds the file unlocked
    descriptor = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    unlocked.rename(folder / _LOCK)
    return descriptor


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders in `parent` whose servers were killed. These folders may contain gigabytes."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # the folder belongs to another user, is in use, or has just been removed
            if folder.lstat().st_uid != os.geteuid():
                continue
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def _socket_folder(folder: Path) -> Path | None:
    """Return the folder for the sockets of Python workers: `folder`, or one with a shorter path. On some systems the
    path of a socket has at most 104 bytes, of which Spark takes 42. Return None if no path is short enough."""
    if len(os.fsencode(folder)) <= _SOCKET_FOLDER_BYTES:
        return folder
    short = Path(tempfile.mkdtemp(prefix="rebaser-", dir="/tmp" if Path("/tmp").is_dir() else None))  # noqa: S108
    if len(os.fsencode(short)) <= _SOCKET_FOLDER_BYTES:
        return short
    short.rmdir()
    return None


def _script() -> Path:
    pyspark = find_spec("pyspark")
    assert pyspark is not None  # noqa: S101 - `SessionManager.check` has checked that it is installed
    assert pyspark.origin is not None  # noqa: S101 - pyspark is a package
    return Path(pyspark.origin).parent / "bin" / "spark-submit"


def _command(master: str, memory: str, folder: Path, sockets: Path | None) -> list[str]:
    settings = {
        "spark.master": master,
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.sql.artifact.isolation.enabled": "true",
        "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
        "spark.scheduler.mode": "FAIR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        # Use Unix domain sockets. Over TCP, each job would wait 40 ms for a delayed ack.
        "spark.python.unix.domain.socket.enabled": "true" if sockets else "false",
        "spark.python.unix.domain.socket.dir": str(sockets or folder),
        "spark.python.daemon.module": "rebaser.dvu.worker.daemon",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    # This JVM does little work, so optimizing its code costs more than it saves: without optimization, the JVM starts
    # in a third less time. Its objects are short-lived, so a large young generation keeps garbage collection cheap
    # while the JVM receives large results.
    settings["spark.driver.extraJavaOptions"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:NewRatio=1"
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    return [str(_script()), *options, "pyspark-shell"]


def _structures(folder: Path) -> Path:
    return folder / "structures"


def _environment(gateway_info: Path, token: str) -> dict[str, str]:
    """Return the environment of the JVM and its workers. The token is passed in the environment, because a command-line
    argument would be visible to all users of the machine."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("SPARK_REMOTE", "SPARK_HOME", "SPARK_CONF_DIR", "SPARK_TESTING", "PYSPARK_SUBMIT_ARGS")
    }
    root = Path(__file__).parent.parent.parent
    paths = [inherited["PYTHONPATH"]] if inherited.get("PYTHONPATH") else []
    if str(root) not in site.getsitepackages():  # a source checkout, in which workers would not find this code
        paths.insert(0, str(root))
    return inherited | {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Workers keep the memory of a large packet for the next packet, because allocating new pages takes longer than
        # the computation.
        "MALLOC_MMAP_THRESHOLD_": str(256 * 1024 * 1024),
        "MALLOC_TRIM_THRESHOLD_": str(256 * 1024 * 1024),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONNECT_MODE": "0",
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(gateway_info),
        _STRUCTURES_VARIABLE: str(_structures(gateway_info.parent)),
    }


def _load_client() -> threading.Thread:
    """Import the modules for Spark sessions in a new thread while Java starts, because both take about the same time.
    Return the thread.

    First import the modules that the calling thread needs itself, because two threads that import the same package at
    once may each see it half initialized.
    """
    import pyspark.serializers  # noqa: F401, PLC0415

    loading = threading.Thread(target=_import_session, name="load-spark-client", daemon=True)
    loading.start()
    return loading


def _import_session() -> None:
    with contextlib.suppress(Exception):  # `Session` raises the same error later
        import pyspark.sql.connect.functions  # noqa: PLC0415
        import pyspark.sql.connect.session  # noqa: F401, PLC0415


def _start_server(gateway_info: Path) -> int:
    """Start Spark with its Connect server in the JVM of the gateway. Return the port of the Connect server."""
    from py4j.clientserver import (  # type: ignore[import-untyped] # noqa: PLC0415 - only the embedded Spark needs it
        ClientServer,
        JavaParameters,
        PythonParameters,
    )
    from pyspark.serializers import UTF8Deserializer, read_int  # noqa: PLC0415

    with gateway_info.open("rb") as info:
        port = read_int(info)
        secret = UTF8Deserializer().loads(info)
    gateway: Any = ClientServer(
        java_parameters=JavaParameters(port=port, auth_token=secret, auto_convert=True),
        python_parameters=PythonParameters(port=0, eager_load=False),
    )
    root = logging.getLogger()
    root.addFilter(_not_of_py4j)
    try:
        gateway.jvm.org.apache.spark.sql.classic.SparkSession.builder().getOrCreate()
        service = getattr(gateway.jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
        return int(getattr(service, "MODULE$").localPort())
    finally:
        root.removeFilter(_not_of_py4j)
        gateway.close()


def _not_of_py4j(record: logging.LogRecord) -> bool:
    """Return whether a log record is not from Py4J. Py4J logs each error that it raises, although this module handles
    these errors."""
    return "py4j" not in record.pathname

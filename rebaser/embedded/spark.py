"""The embedded Spark: a JVM of our own that runs a Spark Connect server on a loopback port.

Invariant: the JVM never outlives this process, however that ends (it reads its end of a pipe and exits with it), and
servers on one machine share nothing: the port is the system's choice, the folder and the token are new each time.

It is started as PySpark starts it (`pyspark/java_gateway.py` and `SparkSession._start_connect_server` of 4.3), but
outside PySpark's process-wide state, so that it can be started again after it died, and says nothing on our stderr.
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
from rebaser_core.errors import ConfigError, DvuError

_JAVA = 17
_VERSION = re.compile(r'version "(\d+)')
_START_SECONDS = 90.0
_STOP_SECONDS = 5.0
_SOCKET_FOLDER_BYTES = 60
_PREFIX = "rebaser-spark-"
_PLACES = re.compile(r"local(?:\[(\d+)\])?")
_STRUCTURES = "REBASER_STRUCTURES"  # as `rebaser.dvu.worker.structure_cache`, which takes Arrow to load, has it
_LOCK = "lock"  # in the folder: who has it locked is alive
_HOW = (
    f"install a Java runtime, {_JAVA} or newer (Debian: apt install openjdk-17-jre-headless, macOS: brew install "
    "openjdk@17), or use a Spark Connect server (sc://host:port)"
)


def check_java() -> None:
    """Raise `ConfigError`, one line that says what to install, unless Spark will find a Java that it can use."""
    home = os.environ.get("JAVA_HOME")  # wins over PATH, as in Spark's own scripts
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    where = f"JAVA_HOME={home}" if home else "PATH"
    if java is None or not os.access(java, os.X_OK):
        raise ConfigError(f"Spark needs Java and there is none in {where}: {_HOW}", code="no_java")
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"Java in {where} does not run ({type(error).__name__}): {_HOW}", code="no_java") from None
    found = _VERSION.search(done.stderr + done.stdout)
    if found is None or int(found[1]) < _JAVA:
        version = found[1] if found else "an unknown version"
        raise ConfigError(f"Spark needs Java {_JAVA} or newer and {where} has {version}: {_HOW}", code="no_java")
    if not _script().exists():  # the package pyspark-client
        raise ConfigError(
            "there is no Spark here: pip install 'rebaser[spark]', or use a Spark Connect server (sc://host:port)"
        )


def default_parallelism() -> int:
    """How many tasks a job may have, unless a setting says so."""
    return min(os.cpu_count() or 1, 8)


def spark_master(remote: str, tasks: int) -> str:
    """Spark's master for `local[*]` and the like, with a place for every task that the engine's jobs may have: whoever
    is slow takes nobody's. Places are threads; what computes is shared by the operating system."""
    return f"local[{MAX_CONCURRENT_JOBS * tasks}]" if remote == "local[*]" else remote


class Jvm:
    """One JVM with a Connect server. `start` and `stop` block; `kill` may be called from any thread, also during
    `start`, which then fails. `begin` does not block: it begins what `start` then waits for."""

    def __init__(self, master: str, *, memory: str, scratch: Path | None, token: str | None = None) -> None:
        self._master = master
        self._token = token  # what clients have to show; None: a new one
        self._memory = memory
        self._scratch = scratch
        self._folder: Path | None = None
        self._sockets: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.RLock()  # a signal may have one thread stop it while it stops it
        self._held = -1  # the lock of the folder
        self._ended = False
        self._begun: futures.Future[None] | None = None
        self.url = ""  # holds the token: not for logs

    @property
    def structures(self) -> Path | None:
        """The folder where workers look for structures."""
        return _structures(self._folder) if self._folder is not None else None

    @property
    def parcels(self) -> Path | None:
        """The folder where owner and workers leave each other what is large."""
        return self._folder / "parcels" if self._folder is not None else None

    @property
    def places(self) -> int | None:
        """How many tasks it runs at once, where its master says so in the usual way."""
        found = _PLACES.fullmatch(self._master)
        return int(found[1] or 1) if found is not None else None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def begin(self) -> None:
        """Start in a thread of its own; whether that went well, `start` tells."""
        threads = futures.ThreadPoolExecutor(1, "start-spark")
        self._begun = threads.submit(self._start)
        threads.shutdown(wait=False)

    def start(self) -> None:
        """Start and wait until the Connect server listens. Raises `DvuError` with the JVM's last words."""
        if self._begun is not None:
            self._begun.result()
        else:
            self._start()

    def _start(self) -> None:
        if self._scratch is not None:
            self._scratch.mkdir(parents=True, exist_ok=True)
        self._folder = folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._scratch))
        self._held = _hold(folder)
        _remove_left(folder.parent)
        self._sockets = _socket_folder(folder)
        token = self._token or secrets.token_urlsafe(32)
        where = folder / "gateway"
        with (folder / "log").open("wb") as log, self._lock:
            if self._ended:
                raise DvuError("Spark was stopped while it started")
            self._process = subprocess.Popen(  # noqa: S603 - a fixed program; memory and master are the operator's
                _command(self._master, self._memory, folder, self._sockets),
                stdin=subprocess.PIPE,  # the JVM exits when this pipe breaks
                stdout=log,
                stderr=log,
                cwd=folder,
                env=_environment(where, token),
                start_new_session=True,  # Ctrl-C is ours to handle
            )
        try:
            client = _load_client()
            self._await(where)
            self.url = f"sc://localhost:{_start_server(where)}/;token={token}"
            client.join()
        except Exception as error:  # noqa: BLE001 - PySpark, Py4J and the system each have their own
            self.kill()
            raise DvuError(f"the embedded Spark does not start: {self._last_words() or error}") from None

    def stop(self) -> None:
        """End the JVM and remove its folder. Never raises for a JVM that is dead or hung."""
        with self._lock:
            self._ended = True
            process = self._process
        if process is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr] # it is a pipe
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_STOP_SECONDS)
        if self._begun is not None:
            futures.wait([self._begun], _STOP_SECONDS)  # it fails, the process being gone
        for folder in (self._folder, self._sockets):
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def kill(self) -> None:
        """End the JVM at once."""
        with self._lock:
            self._ended = True
            if self._process is not None and self._process.poll() is None:
                # It may still be the script that starts Java, with children.
                with contextlib.suppress(OSError):  # it has just ended
                    os.killpg(self._process.pid, signal.SIGKILL)

    def _await(self, where: Path) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not where.exists():  # written under another name first, so it is complete
            if not self.alive:
                raise DvuError("Java ended")
            if time.monotonic() > deadline:
                raise DvuError(f"Java is not up after {_START_SECONDS:.0f} s")
            time.sleep(0.02)

    def _last_words(self) -> str:
        if self._folder is None:
            return ""
        with contextlib.suppress(OSError):
            lines = (self._folder / "log").read_text(errors="replace").splitlines()
            telling = [line.strip() for line in lines if "rror" in line or "xception" in line or "nvalid" in line]
            return "; ".join((telling or lines)[:3])[:300]
        return ""


def _hold(folder: Path) -> int:
    """Lock `folder` as long as this process lives, or the descriptor is open."""
    made = folder / f"{_LOCK}.new"  # nobody may find one that is not locked yet
    descriptor = os.open(made, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    made.rename(folder / _LOCK)
    return descriptor


def _remove_left(parent: Path) -> None:
    """Remove the folders in `parent` whose servers were killed: they may hold gigabytes."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # it is of somebody else, or in use, or has just gone
            if folder.lstat().st_uid != os.geteuid():
                continue
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def _socket_folder(folder: Path) -> Path | None:
    """Where Python workers listen: `folder`, or one with a shorter name, since the path of a socket has 104 bytes on
    some systems and Spark takes 42 of them. None if there is no such place."""
    if len(os.fsencode(folder)) <= _SOCKET_FOLDER_BYTES:
        return folder
    short = Path(tempfile.mkdtemp(prefix="rebaser-", dir="/tmp" if Path("/tmp").is_dir() else None))  # noqa: S108
    if len(os.fsencode(short)) <= _SOCKET_FOLDER_BYTES:
        return short
    short.rmdir()
    return None


def _script() -> Path:
    found = find_spec("pyspark")
    assert found is not None  # noqa: S101 - `SessionManager.check` looked
    assert found.origin is not None  # noqa: S101 - it is a package
    return Path(found.origin).parent / "bin" / "spark-submit"


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
        # Over TCP each job waits 40 ms for a delayed ack.
        "spark.python.unix.domain.socket.enabled": "true" if sockets else "false",
        "spark.python.unix.domain.socket.dir": str(sockets or folder),
        "spark.python.daemon.module": "rebaser.dvu.worker.daemon",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    # What this JVM does is short: compiling it well takes more than it saves, and starting up a third less without. And
    # what it holds is short-lived: large results die young if there is room.
    settings["spark.driver.extraJavaOptions"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:NewRatio=1"
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    return [str(_script()), *options, "pyspark-shell"]


def _structures(folder: Path) -> Path:
    return folder / "structures"


def _environment(where: Path, token: str) -> dict[str, str]:
    """What the JVM and its Python workers get. The token is here and not among the arguments, which anybody sees."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("SPARK_REMOTE", "SPARK_HOME", "SPARK_CONF_DIR", "SPARK_TESTING", "PYSPARK_SUBMIT_ARGS")
    }
    root = Path(__file__).parent.parent.parent
    paths = [inherited["PYTHONPATH"]] if inherited.get("PYTHONPATH") else []
    if str(root) not in site.getsitepackages():  # a checkout: the workers must find this very code
        paths.insert(0, str(root))
    return inherited | {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Workers keep the memory of one large packet for the next: getting pages anew takes longer than the computing.
        "MALLOC_MMAP_THRESHOLD_": str(256 * 1024 * 1024),
        "MALLOC_TRIM_THRESHOLD_": str(256 * 1024 * 1024),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONNECT_MODE": "0",
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(where),
        _STRUCTURES: str(_structures(where.parent)),
    }


def _load_client() -> threading.Thread:
    """Load what sessions will need while Java starts, which takes as long. What this thread needs itself it loads
    first: two threads that load modules of one package may each see half of it."""
    import pyspark.serializers  # noqa: F401, PLC0415

    loading = threading.Thread(target=_import_session, name="load-spark-client", daemon=True)
    loading.start()
    return loading


def _import_session() -> None:
    with contextlib.suppress(Exception):  # `Session` meets it again, and says so
        import pyspark.sql.connect.functions  # noqa: PLC0415
        import pyspark.sql.connect.session  # noqa: F401, PLC0415


def _start_server(where: Path) -> int:
    """Make the JVM behind the gateway start Spark, which starts the Connect server; returns its port."""
    from py4j.clientserver import (  # type: ignore[import-untyped] # noqa: PLC0415 - as above
        ClientServer,
        JavaParameters,
        PythonParameters,
    )
    from pyspark.serializers import UTF8Deserializer, read_int  # noqa: PLC0415

    with where.open("rb") as info:
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
    """It logs, with a stack, what it raises as well: a JVM that was stopped while it started is no news."""
    return "py4j" not in record.pathname

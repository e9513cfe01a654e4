"""Keeps a Spark session open: opens it, gives it to callers, and replaces it when it is lost. A session is also
replaced when it has received a lot of data, because the server keeps that data until the session ends.

A session that runs no job is checked now and then. Otherwise, nothing would notice that Spark has ended until the next
update, which would then wait until Spark is back.

Invariant: callers get a session only after a job has succeeded on it. A session that is replaced gets no more jobs, and
is closed when its running jobs have ended.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import anyio
import anyio.lowlevel
import numpy as np
import structlog
from anyio import to_thread

from rebaser.dvu import fingerprint
from rebaser.dvu.compiled import loader
from rebaser.dvu.functions.registry import registry
from rebaser.dvu.planning import loop_loader
from rebaser.dvu.spark import requirements
from rebaser.dvu.spark.blocking import DeadlineExceeded, run_interruptible, run_shielded
from rebaser.dvu.spark.bundle import bundle
from rebaser.dvu.spark.session import Session, SessionError
from rebaser.dvu.wire.column import Column
from rebaser.dvu.wire.packet import NEVER_COMPUTED, DefinitionTemplate, PacketBuilder, Results
from rebaser.dvu.wire.structure import Structure, StructurePacket
from rebaser.embedded.spark import Jvm, check_java, default_parallelism, spark_master
from rebaser_client.backoff import Backoff
from rebaser_client.blobs import BlobStore
from rebaser_core.errors import ConfigError, DvuError, RebaserError

_log = structlog.get_logger(__name__)

_CHECK = 15.0  # seconds between two checks of a session
_CHECK_TIMEOUT = 30.0  # seconds that Spark may take to answer a check
_GRACE = 5.0  # seconds that a server may take to end a session
_HINT = "install the plug-in for the Python that Spark's workers run; until then, updates that use it fail"
_NO_STORE = (
    "give the workers access to the blob store (package obstore, credentials, the folder); until then, the structure "
    "of a large change set is sent with each of its updates"
)
_SUM = DefinitionTemplate("sum", (("values", 2),), {})
_PROBE_STRUCTURE = Structure.make(2, [_SUM], np.zeros(1, np.int32), np.arange(2, dtype=np.int32))
_RETRY, _RETRY_MAX = 0.5, 30.0  # initial and maximum seconds between attempts to open a session


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The settings of an `Engine`. Times are in seconds, sizes in bytes.

    `scratch` is the folder for the files of an embedded Spark (default: the system's temporary folder). `parallelism`
    is the maximum number of tasks of a job. `blobs` is the blob store, and `blobs_url` the URL at which the workers of
    a remote Spark can read it; empty if they cannot. `jvm` is an embedded Spark that was started before the engine; the
    engine uses that Spark until it ends.
    """

    driver_memory: str = "1g"
    scratch: Path | None = None
    job_timeout: float = 600.0
    start_timeout: float = 120.0
    job_bytes: int = 32 * 1024 * 1024
    renew_after_bytes: int = 256 * 1024 * 1024
    blobs: BlobStore | None = None
    blobs_url: str = ""
    parallelism: int = field(default_factory=default_parallelism)
    jvm: Jvm | None = None


@dataclass(slots=True, eq=False)
class ActiveSession:
    """A session that callers use or have used. `running_jobs` is the number of its running jobs."""

    session: Session
    retired: anyio.Event = field(default_factory=anyio.Event)  # set once the session gets no more jobs
    job_ended: anyio.Event = field(default_factory=anyio.Event)  # set each time a job ends
    running_jobs: int = 0
    lost: bool = False

    def mark_lost(self) -> None:
        """Mark the session as no longer usable."""
        self.lost = True
        self.retired.set()


class SessionManager:
    """Keeps a Spark session open: `run` opens and replaces it, and `session` returns it.

    `on_down` is called with the reason each time a session cannot be opened. `ready` is set once a job has succeeded on
    the first session. `state` is the state of Spark as shown to users.
    """

    def __init__(self, remote: str, settings: EngineSettings, on_down: Callable[[str], None]) -> None:
        if not remote.startswith(("local", "sc://")):
            raise ConfigError(f"the setting spark must be local[*] or sc://host:port, not {remote[:80]!r}")
        self.ready = anyio.Event()
        self.state = "starting"
        self._remote = remote
        self._settings = settings
        self._on_down = on_down
        self._embedded = remote.startswith("local")
        self._jvm: Jvm | None = None
        self._starting_jvm = settings.jvm
        self._active: ActiveSession | None = None
        self._available = anyio.Event()

    @property
    def structures(self) -> Path | None:
        """The folder from which the workers of an embedded Spark read structures; None if Spark is not embedded."""
        return self._jvm.structures if self._jvm is not None else None

    @property
    def url(self) -> str:
        """The URL of the Spark Connect server; empty while an embedded Spark starts."""
        if not self._embedded:
            return self._remote
        return self._jvm.url if self._jvm is not None and self.ready.is_set() else ""

    async def check(self) -> None:
        """Raise `ConfigError` if Spark can never be available: if Java or PySpark is missing, or the URL is invalid."""
        if find_spec("pyspark") is None:
            raise ConfigError(
                "PySpark is not installed: pip install 'rebaser[spark]' ('rebaser[spark-client]' for a remote Spark)"
            )
        await to_thread.run_sync(check_java if self._embedded else lambda: Session(self._remote).disconnect())

    async def session(self) -> ActiveSession:
        """Wait until there is a usable session, and return it."""
        while True:
            await self._available.wait()
            if self._active is not None and not self._active.retired.is_set():
                return self._active

    async def run(self) -> None:
        """Keep a session open until cancelled: open it, and replace it once it is retired."""
        backoff, why = Backoff(_RETRY, _RETRY_MAX), "first"
        while True:
            try:
                active = ActiveSession(await self._open())
            except Exception as error:  # noqa: BLE001 - the server serves without Spark until an attempt succeeds
                await anyio.lowlevel.checkpoint_if_cancelled()  # a cancellation is not an outage of Spark
                reason = self._reason(error)
                self.state = f"down: {reason}"
                self._on_down(reason)
                delay = backoff.next_delay()
                _log.warning("spark_down", reason=reason, retry_seconds=round(delay, 2))
                await anyio.sleep(delay)
                continue
            backoff.reset()
            self._active = active
            self.state = "ready"
            self.ready.set()
            self._available.set()
            _log.info("spark_ready", embedded=self._embedded, session=why)
            await self._watch(active)
            why = "lost" if active.lost else "renewed"
            self._available = anyio.Event()
            if active.lost:
                self.state = "restarting"
                await run_shielded(active.session.disconnect)
            while active.running_jobs:
                active.job_ended = anyio.Event()
                await active.job_ended.wait()
            self._active = None
            await self._end(active)

    async def _watch(self, active: ActiveSession) -> None:
        """Return once the session is retired. Retire it if Spark does not answer while no job runs."""
        while not active.retired.is_set():
            with anyio.move_on_after(_CHECK):
                await active.retired.wait()
            if active.running_jobs or active.retired.is_set():
                continue

            async def disconnect(_: anyio.Event) -> None:
                await run_shielded(active.session.disconnect)

            try:
                await run_interruptible(active.session.check, disconnect, seconds=_CHECK_TIMEOUT)
            except (SessionError, DeadlineExceeded) as error:
                late = f"Spark has not answered for {_CHECK_TIMEOUT:g} s"
                _log.warning("spark_lost", reason=error.message if isinstance(error, SessionError) else late)
                active.mark_lost()

    async def compile(self) -> None:
        """Compile the kernel and the loops of planning for this machine, unless they are cached. Then load the loops if
        a graph was planned without them in the meantime.

        Compiling begins only when Spark is ready, because it would delay the start of Spark. For a remote Spark, this
        method does nothing: its workers compile the kernel when they first need it.
        """
        if not self._embedded:
            return
        with loop_loader.deferred_loading() as missed:
            await self.ready.wait()
            if not await to_thread.run_sync(loader.is_cached):
                process = await anyio.run_process(
                    [sys.executable, "-m", "rebaser.dvu.planning.warm_up"], check=False, stderr=None
                )
                _log.info("code_compiled", ok=process.returncode == 0)
            if missed():
                await to_thread.run_sync(loop_loader.load)

    async def close(self) -> None:
        """End the session and the embedded Spark, in bounded time. Shield this call from cancellation."""
        self.state = "stopped"
        if self._active is not None:
            await self._end(self._active)
        if self._jvm is not None:
            await to_thread.run_sync(self._jvm.stop)

    def _reason(self, error: Exception) -> str:
        if isinstance(error, RebaserError):
            return error.message
        if isinstance(error, DeadlineExceeded):
            return f"not up after {self._settings.start_timeout:g} s"
        return f"{type(error).__name__}: {error}"[:300]

    async def _open(self) -> Session:
        seconds = self._settings.start_timeout
        if self._embedded and (self._jvm is None or not self._jvm.alive):
            if self._jvm is not None:
                await to_thread.run_sync(self._jvm.stop)
            jvm = self._jvm = self._next_jvm()

            async def kill(_: anyio.Event) -> None:
                jvm.kill()

            await run_interruptible(jvm.start, kill, seconds=seconds)
        url = self._jvm.url if self._jvm else self._remote
        mailboxes, task_slots = (self._jvm.mailboxes, self._jvm.task_slots) if self._jvm else (None, None)
        session = await to_thread.run_sync(lambda: Session(url, mailboxes=mailboxes, task_slots=task_slots))
        tasks, store = self._settings.parallelism, self._settings.blobs_url

        async def disconnect(_: anyio.Event) -> None:
            await run_shielded(session.disconnect)

        try:
            if not self._embedded:  # an embedded Spark runs the code that is installed here
                await run_interruptible(
                    lambda: _prepare_workers(session, tasks, store=bool(store)), disconnect, seconds=seconds
                )
            await run_interruptible(lambda: _run_first_job(session, tasks), disconnect, seconds=seconds)
            if not self._embedded:
                await run_interruptible(lambda: _warn_of_missing_plugins(session), disconnect, seconds=seconds)
                if await self._stored(_PROBE_STRUCTURE) and not await run_interruptible(
                    lambda: _workers_read_store(session, store, tasks), disconnect, seconds=seconds
                ):
                    _log.warning("dvu_store_not_on_workers", hint=_NO_STORE)
        except BaseException:
            await run_shielded(session.disconnect)
            if self._jvm is not None:  # the next attempt starts a new JVM, because this one may be broken
                self._jvm.kill()
            raise
        return session

    async def _stored(self, structure: Structure) -> bool:
        """Store `structure` in the blob store that workers can read. Return False if that is not possible."""
        if self._settings.blobs is None or not self._settings.blobs_url:
            return False
        try:
            await self._settings.blobs.put(bytes(structure.data))
        except RebaserError as error:
            _log.warning("dvu_structure_not_stored", reason=error.message)
            return False
        return True

    def _next_jvm(self) -> Jvm:
        settings = self._settings
        starting, self._starting_jvm = self._starting_jvm, None
        master = spark_master(self._remote, settings.parallelism)
        return starting or Jvm(master, memory=settings.driver_memory, scratch=settings.scratch)

    async def _end(self, active: ActiveSession) -> None:
        with anyio.move_on_after(_GRACE):
            await to_thread.run_sync(active.session.close, abandon_on_cancel=True)
        await run_shielded(active.session.disconnect)  # this also ends `close` if it still waits for a dead server


def _prepare_workers(session: Session, tasks: int, *, store: bool) -> None:
    """Send the code of Rebaser and of its plug-ins to the workers, and check that the workers have the packages that
    cannot be sent.

    If packages are missing that every update needs, raise a `DvuError` that lists them. If optional packages are
    missing, only log a warning.
    """
    session.open()
    code = bundle()
    required, optional = requirements.required(store=store)
    optional += requirements.plugin_requirements(code)
    probe = requirements.probe({requirement.name for requirement in required + optional})
    workers = [requirements.parse_reply(reply) for reply in session.call_workers(probe, tasks=tasks)]
    if lacks := requirements.missing(workers, required):
        raise DvuError(f"Spark's workers lack packages ({lacks}): {requirements.INSTALL_HINT}", code="other_code")
    if lacks := requirements.missing(workers, optional):
        _log.warning("spark_workers_lack", packages=lacks, hint=requirements.INSTALL_HINT)
    session.send_bundle(code)


def _run_first_job(session: Session, tasks: int) -> None:
    """Connect, and run a job that makes every worker load its modules, so that no caller has to wait for that."""
    session.open()
    for result in session.run([_warm_up()] * tasks, tag="rebaser-warm-up", tasks=tasks):
        if Results.decode(result[0], 1).values.tolist() != [3]:
            raise DvuError("a Spark worker computed a wrong result for the test packet: check its installation")


def _warn_of_missing_plugins(session: Session) -> None:
    """Log a warning for each plug-in of this process that workers lack, or have in another release."""
    for name, function in registry().functions.items():
        if function.fingerprint:
            try:
                session.run([_warm_up({name: function.fingerprint})], tag="rebaser-plug-ins", tasks=1)
            except SessionError:
                raise
            except DvuError as error:
                _log.warning("dvu_plugin_not_on_workers", plugin=name, reason=error.message, hint=_HINT)


def _workers_read_store(session: Session, store: str, tasks: int) -> bool:
    """Return whether workers can read the blob store at the URL `store`, which contains `_PROBE_STRUCTURE`."""
    packet = StructurePacket(
        0, fingerprint.code(), {"sum": ""}, _PROBE_STRUCTURE.address, None, None, Column.from_items([1, 2]), store=store
    )
    results = session.run([packet.encode()] * tasks, tag="rebaser-store", tasks=tasks)
    return not any(Results.decode(result[0], 1).missing for result in results)


def _warm_up(plugin: Mapping[str, str] = MappingProxyType({})) -> bytes:
    """Return a packet that adds 1 and 2. A worker refuses it unless the functions in `plugin` are installed: `plugin`
    maps their names to their fingerprints."""
    packet = PacketBuilder(0, fingerprint.code(), {"sum": "", **plugin}, [_SUM], [1, 2])
    packet.template, packet.refs, packet.dirty, packet.old = [0], [~0, ~1], bytearray(b"\x01"), [NEVER_COMPUTED]
    return packet.encode()

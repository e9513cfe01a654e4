"""Has a Spark session ready, always: opens it, hands it out, and replaces it when it is lost or has been sent enough.

Invariant: a session that is handed out has carried a job; one that is replaced takes no more jobs and is closed when
those that run on it are over.
"""

import random
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
from rebaser.dvu.spark.blocking import DeadlineExceeded, run_interruptible
from rebaser.dvu.spark.bundle import bundle
from rebaser.dvu.spark.session import Session, SessionError
from rebaser.dvu.wire.column import Column
from rebaser.dvu.wire.packet import NEVER_COMPUTED, PacketBuilder, Results, Template
from rebaser.dvu.wire.structure import Structure, StructurePacket
from rebaser.embedded.spark import Jvm, check_java, default_parallelism, spark_master
from rebaser_client.blobs import BlobStore
from rebaser_core.errors import ConfigError, DvuError, RebaserError

_log = structlog.get_logger(__name__)

_GRACE = 5.0  # seconds a server has to let a session go
_HINT = "install the plug-in for the Python that Spark's workers run; until then change sets that use it wait"
_NO_STORE = (
    "let them read the blob store (package obstore, credentials, the folder); until then what large change sets are "
    "made of has to travel with updates"
)
_SUM = Template("sum", (("values", 2),), {})
_TRIED = Structure.make(2, [_SUM], np.zeros(1, np.int32), np.arange(2, dtype=np.int32))
_FIRST_BACKOFF, _LAST_BACKOFF = 0.5, 30.0


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Times are seconds, sizes bytes. `scratch` is where an embedded Spark keeps its files (default: the system's
    temporary folder); `parallelism` how many tasks a job may have. `blobs` is a store that the workers of a Spark
    elsewhere can reach as well, at `blobs_url`. `jvm`: an embedded Spark that was begun before, to be used first."""

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
    """A session in use, and what happens to it."""

    session: Session
    over: anyio.Event = field(default_factory=anyio.Event)  # takes no more jobs
    idle: anyio.Event = field(default_factory=anyio.Event)  # set whenever its last job ends
    running: int = 0
    lost: bool = False

    def lose(self) -> None:
        """The session is no longer good."""
        self.lost = True
        self.over.set()


class SessionManager:
    """`run` keeps `held` filled; `down` is told the reason each time Spark could not be had.

    `ready` is set when the first session has carried a job, `state` says in words how things stand.
    """

    def __init__(self, remote: str, settings: EngineSettings, down: Callable[[str], None]) -> None:
        if not remote.startswith(("local", "sc://")):
            raise ConfigError(f"Spark is local[*] or sc://host:port, not {remote[:80]!r}")
        self.ready = anyio.Event()
        self.state = "starting"
        self._remote = remote
        self._settings = settings
        self._down = down
        self._embedded = remote.startswith("local")
        self._jvm: Jvm | None = None
        self._begun = settings.jvm
        self._held: ActiveSession | None = None
        self._available = anyio.Event()

    @property
    def structures(self) -> Path | None:
        """The folder where the workers of an embedded Spark look for structures."""
        return self._jvm.structures if self._jvm is not None else None

    async def check(self) -> None:
        """Raise `ConfigError` if Spark cannot ever be had: no usable Java, no PySpark, or a URL that is none."""
        if find_spec("pyspark") is None:
            raise ConfigError("there is no PySpark: pip install 'rebaser[spark]' (spark-client, if Spark is elsewhere)")
        await to_thread.run_sync(check_java if self._embedded else lambda: Session(self._remote).cut())

    async def held(self) -> ActiveSession:
        """The session to use now; waits until there is one."""
        while True:
            await self._available.wait()
            if self._held is not None and not self._held.over.is_set():
                return self._held

    async def run(self) -> None:
        """Until cancelled."""
        backoff = _FIRST_BACKOFF
        while True:
            try:
                held = ActiveSession(await self._open())
            except Exception as error:  # noqa: BLE001 - whatever it is, requests are applied meanwhile; try again
                await anyio.lowlevel.checkpoint_if_cancelled()  # then it was ended, and is not down
                reason = self._reason(error)
                self.state = f"down: {reason}"
                self._down(reason)
                _log.warning("spark_down", reason=reason, retry_seconds=backoff)
                await anyio.sleep(backoff * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
                backoff = min(backoff * 2, _LAST_BACKOFF)
                continue
            backoff = _FIRST_BACKOFF
            self._held = held
            self.state = "ready"
            self.ready.set()
            self._available.set()
            _log.info("spark_ready", embedded=self._embedded)
            await held.over.wait()
            self._available = anyio.Event()
            if held.lost:
                self.state = "restarting"
                held.session.cut()
            while held.running:
                held.idle = anyio.Event()
                await held.idle.wait()
            self._held = None
            await self._end(held)

    async def compile(self) -> None:
        """Have numbers' compiled code made for this machine, if nobody has yet, and that for planning loaded: once
        Spark is up, which it would hold up. The workers of a Spark elsewhere compile when they first need it."""
        if not self._embedded:
            return
        with loop_loader.deferred_loading() as missed:
            await self.ready.wait()
            if not await to_thread.run_sync(loader.is_cached):
                done = await anyio.run_process(
                    [sys.executable, "-m", "rebaser.dvu.planning.warm_up"], check=False, stderr=None
                )
                _log.info("compiled", ok=done.returncode == 0)
            if missed():
                await to_thread.run_sync(loop_loader.load)

    async def close(self) -> None:
        """End the session and the embedded Spark; bounded, and to be shielded."""
        self.state = "stopped"
        if self._held is not None:
            await self._end(self._held)
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
        near, places = (self._jvm.parcels, self._jvm.places) if self._jvm else (None, None)
        session = await to_thread.run_sync(lambda: Session(url, near=near, places=places))
        tasks, store = self._settings.parallelism, self._settings.blobs_url

        async def cut(_: anyio.Event) -> None:
            session.cut()

        try:
            if not self._embedded:  # the embedded one runs what is installed here
                await run_interruptible(lambda: _equip(session, tasks, store=bool(store)), cut, seconds=seconds)
            await run_interruptible(lambda: _try_out(session, tasks), cut, seconds=seconds)
            if not self._embedded:
                await run_interruptible(lambda: _name_missing(session), cut, seconds=seconds)
                if await self._stored(_TRIED) and not await run_interruptible(
                    lambda: _reaches(session, store, tasks), cut, seconds=seconds
                ):
                    _log.warning("dvu_store_not_on_workers", hint=_NO_STORE)
        except BaseException:
            session.cut()
            if self._jvm is not None:  # whatever it has, a new one has not
                self._jvm.kill()
            raise
        return session

    async def _stored(self, structure: Structure) -> bool:
        """Whether there is a store that workers may reach, and it has `structure` now."""
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
        begun, self._begun = self._begun, None
        master = spark_master(self._remote, settings.parallelism)
        return begun or Jvm(master, memory=settings.driver_memory, scratch=settings.scratch)

    async def _end(self, held: ActiveSession) -> None:
        with anyio.move_on_after(_GRACE):
            await to_thread.run_sync(held.session.close, abandon_on_cancel=True)
        held.session.cut()  # if `close` still waits for a server that is gone, this ends it


def _equip(session: Session, tasks: int, *, store: bool) -> None:
    """Send the workers our code and plug-ins, and name all that cannot be sent and is not there: what no update can do
    without as a `DvuError`, the rest in a warning."""
    session.open()
    packed = bundle()
    needed, useful = requirements.required(store=store)
    useful += requirements.plugin_requirements(packed)
    names = {one.name for one in needed + useful}
    found = [requirements.parse_reply(said) for said in session.ask(requirements.probe(names), tasks=tasks)]
    if lacks := requirements.missing(found, needed):
        raise DvuError(f"Spark's workers lack packages ({lacks}): {requirements.INSTALL_HINT}", code="other_code")
    if lacks := requirements.missing(found, useful):
        _log.warning("spark_workers_lack", packages=lacks, hint=requirements.INSTALL_HINT)
    session.ship(packed)


def _try_out(session: Session, tasks: int) -> None:
    """Reach the server and let every worker load its modules, so that the first caller need not wait for that."""
    session.open()
    for result in session.run([_warm_up()] * tasks, tag="rebaser-warm-up", tasks=tasks):
        if Results.decode(result[0], 1).values.tolist() != [3]:
            raise DvuError("the workers do not count as this server does")


def _name_missing(session: Session) -> None:
    """Log each plug-in of this process that the workers have not, or have another release of."""
    for name, function in registry().functions.items():
        if function.fingerprint:
            try:
                session.run([_warm_up({name: function.fingerprint})], tag="rebaser-plug-ins", tasks=1)
            except SessionError:
                raise
            except DvuError as error:
                _log.warning("dvu_plugin_not_on_workers", plugin=name, reason=error.message, hint=_HINT)


def _reaches(session: Session, store: str, tasks: int) -> bool:
    """Whether the workers read the store: they have `_TRIED` then."""
    packet = StructurePacket(
        0, fingerprint.code(), {"sum": ""}, _TRIED.address, None, None, Column.of([1, 2]), store=store
    )
    found = session.run([packet.encode()] * tasks, tag="rebaser-store", tasks=tasks)
    return not any(Results.decode(result[0], 1).missing for result in found)


def _warm_up(plugin: Mapping[str, str] = MappingProxyType({})) -> bytes:
    """A packet that adds 1 and 2, and wants `plugin` (name and fingerprint) to be there."""
    packet = PacketBuilder(0, fingerprint.code(), {"sum": "", **plugin}, [_SUM], [1, 2])
    packet.template, packet.refs, packet.dirty, packet.old = [0], [~0, ~1], bytearray(b"\x01"), [NEVER_COMPUTED]
    return packet.encode()

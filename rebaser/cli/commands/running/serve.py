"""`rebaser serve` and `rebaser dev`: run a server, either alone or together with NATS and Spark.

Invariant: if an option is not given, its setting comes from the environment or, failing that, from the defaults in
`rebaser.settings`.
"""

import errno
import os
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rebaser.cli.errors import CommandFailed
from rebaser.cli.options import ACCESS_VALUES, DEFAULT_NATS
from rebaser.cli.output import console

if TYPE_CHECKING:
    from rebaser.embedded.spark import Jvm
    from rebaser.settings import Settings

LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"] | None,
    typer.Option(envvar="REBASER_LOG_LEVEL", help="Lowest level that is logged.", show_default="info"),
]
LogFormat = Annotated[
    Literal["auto", "console", "json"] | None,
    typer.Option(
        envvar="REBASER_LOG_FORMAT",
        help="Format of log events. auto: console on a terminal, json elsewhere.",
        show_default="auto",
    ),
]
Spark = Annotated[
    str | None,
    typer.Option(
        envvar="REBASER_SPARK",
        metavar="URL",
        help="local[*] for the embedded Spark, or a Spark Connect server: sc://host:port.",
        show_default="local[*]",
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        envvar="REBASER_SPARK_DRIVER_MEMORY", help="Heap size of the embedded Spark's JVM.", show_default="1g"
    ),
]
Concurrency = Annotated[
    int | None,
    typer.Option(
        envvar="REBASER_CONCURRENCY",
        help="Maximum number of change sets that the server owns at once.",
        show_default="as many as a third of the memory holds",
    ),
]
Quiescent = Annotated[
    float | None,
    typer.Option(
        envvar="REBASER_QUIESCENT_PERIOD",
        metavar="SECONDS",
        help="Release a change set that has been idle for this long.",
        show_default="60",
    ),
]
NatsServers = Annotated[
    str | None,
    typer.Option(
        "--nats",
        envvar="REBASER_NATS_URL",
        metavar="URL",
        help="NATS server; several are separated by commas.",
        show_default="nats://127.0.0.1:4222",
    ),
]
Prefix = Annotated[str | None, typer.Option(envvar="REBASER_PREFIX", help="Prefix of all stream and subject names.")]
ServerId = Annotated[
    str | None,
    typer.Option(envvar="REBASER_SERVER_ID", help="Name of this server.", show_default="host name and process"),
]
Scratch = Annotated[Path | None, typer.Option(envvar="REBASER_SCRATCH", help="Folder for Spark's temporary files.")]
Blobs = Annotated[
    str | None,
    typer.Option(
        envvar="REBASER_BLOBS",
        metavar="URL",
        help="Blob store: file://, s3://, gs:// or az://.",
        show_default="in NATS",
    ),
]
AckWait = Annotated[
    float | None,
    typer.Option(
        envvar="REBASER_ACK_WAIT",
        metavar="SECONDS",
        help="Give the change sets of a server to other servers once it has been silent for this long.",
        show_default="6",
    ),
]
OverflowPending = Annotated[
    int | None,
    typer.Option(
        envvar="REBASER_OVERFLOW_PENDING",
        metavar="N",
        min=1,
        help="Act as a spare server: take change sets only while at least N of them wait for a server.",
        show_default="always",
    ),
]
OverflowAckPending = Annotated[
    int | None,
    typer.Option(
        envvar="REBASER_OVERFLOW_ACK_PENDING",
        metavar="N",
        min=1,
        help="Act as a spare server: take change sets only while all servers together own at least N.",
        show_default="always",
    ),
]
SweepInterval = Annotated[
    float | None,
    typer.Option(
        envvar="REBASER_SWEEP_INTERVAL",
        metavar="SECONDS",
        help="Interval at which servers search for change sets that have work but no server.",
        show_default="10",
    ),
]
Replicas = Annotated[
    int | None,
    typer.Option(
        envvar="REBASER_REPLICAS", help="Number of copies of each stream.", show_default="as durability needs"
    ),
]
Durability = Annotated[
    Literal["memory", "fast", "safe"] | None,
    typer.Option(
        envvar="REBASER_DURABILITY",
        help="What the data survives. memory: crashes of servers. fast: crashes of any process. safe: also power loss.",
        show_default="fast for new streams",
    ),
]
Http = Annotated[
    str | None,
    typer.Option(
        envvar="REBASER_HTTP",
        metavar="HOST:PORT",
        help="Serve probes and metrics over HTTP here: /livez, /readyz and /metrics. HOST defaults to 127.0.0.1.",
        show_default="off",
    ),
]
WaitForNats = Annotated[
    float | None,
    typer.Option(
        envvar="REBASER_WAIT_FOR_NATS",
        metavar="SECONDS",
        help="At the start, wait this long for NATS before giving up.",
        show_default="0",
    ),
]
CreateStreams = Annotated[
    bool | None,
    typer.Option(
        "--create-streams/--no-create-streams",
        envvar="REBASER_CREATE_STREAMS",
        help="Create missing streams and update existing ones, or leave that to `rebaser init`.",
        show_default="--create-streams",
    ),
]


def serve(
    *,
    nats: NatsServers = None,
    prefix: Prefix = None,
    server_id: ServerId = None,
    spark: Spark = None,
    spark_driver_memory: Memory = None,
    scratch: Scratch = None,
    blobs: Blobs = None,
    concurrency: Concurrency = None,
    quiescent_period: Quiescent = None,
    ack_wait: AckWait = None,
    durability: Durability = None,
    overflow_pending: OverflowPending = None,
    overflow_ack_pending: OverflowAckPending = None,
    sweep_interval: SweepInterval = None,
    replicas: Replicas = None,
    create_streams: CreateStreams = None,
    http: Http = None,
    wait_for_nats: WaitForNats = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> int:
    """Run a server.

    A server owns change sets, applies their requests and keeps their derived values up to date. Any number of servers
    can share the work. On SIGTERM or Ctrl-C, a server immediately gives its change sets to the others.

    Some settings have no option, only an environment variable: see deploy/docs/reference/settings.md.
    """
    from rebaser.cli import logs
    from rebaser.cli.spark_prestart import prestarted_spark
    from rebaser.settings import load_settings

    settings = load_settings(
        **ACCESS_VALUES.get(),
        nats_url=nats,
        prefix=prefix,
        server_id=server_id,
        spark=spark,
        spark_driver_memory=spark_driver_memory,
        scratch=scratch,
        blobs=blobs,
        concurrency=concurrency,
        quiescent_period=quiescent_period,
        ack_wait=ack_wait,
        durability=durability,
        overflow_pending=overflow_pending,
        overflow_ack_pending=overflow_ack_pending,
        sweep_interval=sweep_interval,
        replicas=replicas,
        create_streams=create_streams,
        http=http,
        wait_for_nats=wait_for_nats,
        log_level=log_level,
        log_format=log_format,
    )
    logs.configure(settings.log_level, settings.log_format, counted=settings.http is not None)
    with prestarted_spark(settings) as jvm:
        from rebaser.cli.runner import run_async

        return run_async(partial(_serve, settings, jvm), daemon=True)


async def _serve(settings: "Settings", jvm: "Jvm | None") -> None:
    from rebaser.serving import serve as run_server

    await run_server(settings, jvm=jvm)


def dev(
    *,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the NATS server on 127.0.0.1; 0 is any free port.")
    ] = 4222,
    data: Annotated[Path, typer.Option(metavar="DIR", help="Folder for all data.")] = Path(".rebaser"),
    console_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port of the web console on 127.0.0.1; 0 is any free port.",
            show_default="8420, or a free port if that is in use",
        ),
    ] = None,
    spark: Spark = None,
    spark_driver_memory: Memory = None,
    concurrency: Concurrency = None,
    quiescent_period: Quiescent = None,
    durability: Durability = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option(envvar="REBASER_LOG_LEVEL", help="Lowest level that is logged."),
    ] = "warning",
    log_format: LogFormat = None,
) -> int:
    """Run NATS, a server, Spark and the web console on this machine.

    Ctrl-C stops all of them. The data in the folder --data is kept for the next run.

    It prints `ready nats=URL` when it accepts requests, `console URL` for the browser, and `warm spark=…` when Spark
    has started. Derived values are not computed before that.
    """
    from rebaser.cli import logs
    from rebaser.cli.spark_prestart import prestarted_spark
    from rebaser.settings import load_settings

    logs.configure(log_level, log_format or "auto")
    _check_port(port)
    options: dict[str, object] = {
        "spark": spark,
        "spark_driver_memory": spark_driver_memory,
        "concurrency": concurrency,
        "quiescent_period": quiescent_period,
        "durability": durability,
        "log_level": log_level,
        "log_format": log_format,
    }
    # Garbage collection is off, because `rebaser dev` rarely runs for days, and data of a trial should not disappear.
    gc_every = os.environ.get("REBASER_GC_EVERY", "0")
    settings = load_settings(**(options | {"scratch": data / "spark", "gc_every": gc_every}))
    with prestarted_spark(settings) as jvm:
        from rebaser.cli.runner import run_async

        return run_async(partial(_dev, data, port or None, console_port, settings, jvm), daemon=True)


def _check_port(port: int) -> None:
    """Raise `CommandFailed` with advice if the port is in use. The error from nats-server would not contain any
    advice."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT counts as free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise CommandFailed(
                    f"port {port} cannot be used: {error.strerror}; choose another with --port"
                ) from None
            raise CommandFailed(
                f"port {port} is in use, perhaps by another `rebaser dev`; choose another with --port (0: any free one)"
            ) from None


def _tell_ready(url: str, console_url: str, data: Path) -> None:
    console.write_line(f"ready nats={url}")
    console.write_line(f"console {console_url}")
    if console.is_terminal():
        server = "" if url == DEFAULT_NATS else f"REBASER_NATS_URL={url} "
        console.note(f"in another terminal: {server}rebaser enqueue shop main --set price=9.5")
        console.note(f"Ctrl-C stops NATS, the server and Spark; their data stays in {data}")


async def _dev(data: Path, port: int | None, console_port: int | None, settings: "Settings", jvm: "Jvm | None") -> None:
    from rebaser.cli.commands.observing.console import DEFAULT_PORT, open_console
    from rebaser.embedded.nats import embedded_nats
    from rebaser.serving import serve as run_server

    sync_interval = "always" if settings.durability == "safe" else None
    address = f"127.0.0.1:{DEFAULT_PORT if console_port is None else console_port}"
    async with embedded_nats(data / "nats", port, sync_interval=sync_interval) as nats:
        embedded = settings.embedded(nats.url)
        async with open_console(
            embedded, address, actions=True, playground=True, fall_back=console_port is None
        ) as console_url:
            await run_server(
                embedded,
                ready=partial(_tell_ready, nats.url, console_url, data),
                warm=lambda: console.write_line(f"warm spark={settings.spark_shown()}"),
                jvm=jvm,
            )

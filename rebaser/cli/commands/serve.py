"""`rebaser serve` and `rebaser dev`: the daemon, alone or with everything it needs around it.

Invariant: an option that is not given leaves the environment and then the default of `rebaser.settings` in force.
"""

import errno
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rebaser.cli import console
from rebaser.cli.errors import CommandFailed
from rebaser.cli.options import ACCESS_VALUES

if TYPE_CHECKING:
    from rebaser.embedded.spark import Jvm
    from rebaser.settings import Settings

LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"] | None,
    typer.Option(envvar="REBASER_LOG_LEVEL", help="Least important event to log.", show_default="info"),
]
LogFormat = Annotated[
    Literal["auto", "console", "json"] | None,
    typer.Option(envvar="REBASER_LOG_FORMAT", help="auto: lines on a terminal, else JSON.", show_default="auto"),
]
Spark = Annotated[
    str | None,
    typer.Option(
        envvar="REBASER_SPARK",
        metavar="URL",
        help="local[*], or a Spark Connect server: sc://host:port.",
        show_default="local[*]",
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(envvar="REBASER_SPARK_DRIVER_MEMORY", help="Memory of the embedded Spark's JVM.", show_default="1g"),
]
Concurrency = Annotated[
    int | None,
    typer.Option(envvar="REBASER_CONCURRENCY", help="Change sets worked on at once.", show_default="1000"),
]
Quiescent = Annotated[
    float | None,
    typer.Option(
        envvar="REBASER_QUIESCENT_PERIOD",
        metavar="SECONDS",
        help="Let an idle change set go after this long.",
        show_default="10",
    ),
]
NatsServers = Annotated[
    str | None,
    typer.Option(
        "--nats",
        envvar="REBASER_NATS_URL",
        metavar="URL",
        help="NATS server, or several separated by commas.",
        show_default="nats://127.0.0.1:4222",
    ),
]
Prefix = Annotated[str | None, typer.Option(envvar="REBASER_PREFIX", help="In front of every stream and subject name.")]
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
        help="Tasks of a server silent for this long go to another.",
        show_default="6",
    ),
]
OverflowPending = Annotated[
    int | None,
    typer.Option(
        envvar="REBASER_OVERFLOW_PENDING",
        metavar="N",
        min=1,
        help="Help only while N change sets or more wait for a server.",
        show_default="always",
    ),
]
OverflowAckPending = Annotated[
    int | None,
    typer.Option(
        envvar="REBASER_OVERFLOW_ACK_PENDING",
        metavar="N",
        min=1,
        help="Help only while servers hold N change sets or more.",
        show_default="always",
    ),
]
SweepInterval = Annotated[
    float | None,
    typer.Option(
        envvar="REBASER_SWEEP_INTERVAL",
        metavar="SECONDS",
        help="Find what nobody owns within this.",
        show_default="10",
    ),
]
Replicas = Annotated[
    int | None,
    typer.Option(envvar="REBASER_REPLICAS", help="Copies of each stream.", show_default="as durability needs"),
]
Durability = Annotated[
    Literal["memory", "fast", "safe"] | None,
    typer.Option(
        envvar="REBASER_DURABILITY",
        help="What data outlives: memory (NATS running), fast (a crash), safe (power loss too).",
        show_default="fast for new streams",
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
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> int:
    """Run a server.

    It owns change sets, applies their requests and keeps derived values true. Run as many as you like; they share the
    work. SIGTERM or Ctrl-C gives every change set to the others at once. Settings without an option of their own are
    read from the environment as well: see rebaser/settings.py.
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
        log_level=log_level,
        log_format=log_format,
    )
    logs.configure(settings.log_level, settings.log_format)
    with prestarted_spark(settings) as jvm:
        from rebaser.cli.runner import run_async

        return run_async(partial(_serve, settings, jvm), daemon=True)


async def _serve(settings: "Settings", jvm: "Jvm | None") -> None:
    from rebaser.server import serve as run_server

    await run_server(settings, jvm=jvm)


def dev(
    *,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the NATS server on 127.0.0.1; 0: any free one.")
    ] = 4222,
    data: Annotated[Path, typer.Option(metavar="DIR", help="Folder that keeps everything.")] = Path(".rebaser"),
    spark: Spark = None,
    spark_driver_memory: Memory = None,
    concurrency: Concurrency = None,
    quiescent_period: Quiescent = None,
    durability: Durability = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option(envvar="REBASER_LOG_LEVEL", help="Least important event to log."),
    ] = "warning",
    log_format: LogFormat = None,
) -> int:
    """Run everything here: NATS, a server and Spark.

    Ctrl-C ends all of it.

    Prints a line `ready nats=URL` when it takes requests, and `warm spark=…` when the first derived values will not
    have to wait for Spark. What it stored is there again the next time, with the same --data.
    """
    from rebaser.cli import logs
    from rebaser.cli.spark_prestart import prestarted_spark
    from rebaser.settings import load_settings

    logs.configure(log_level, log_format or "auto")
    _check_port(port)
    given: dict[str, object] = {
        "spark": spark,
        "spark_driver_memory": spark_driver_memory,
        "concurrency": concurrency,
        "quiescent_period": quiescent_period,
        "durability": durability,
        "log_level": log_level,
        "log_format": log_format,
    }
    settings = load_settings(**(given | {"scratch": data / "spark"}))
    with prestarted_spark(settings) as jvm:
        from rebaser.cli.runner import run_async

        return run_async(partial(_dev, data, port or None, settings, jvm), daemon=True)


def _check_port(port: int) -> None:
    """Say what to do about a taken port; nats-server would only say that it is."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was in use a minute ago is free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise CommandFailed(f"port {port} cannot be used: {error.strerror}; choose one with --port") from None
            raise CommandFailed(
                f"port {port} is taken, perhaps by another `rebaser dev`; choose one with --port (0: any free one)"
            ) from None


async def _dev(data: Path, port: int | None, settings: "Settings", jvm: "Jvm | None") -> None:
    from rebaser.embedded.nats import embedded_nats
    from rebaser.server import serve as run_server

    sync_interval = "always" if settings.durability == "safe" else None
    async with embedded_nats(data / "nats", port, sync_interval=sync_interval) as nats:
        await run_server(
            settings.embedded(nats.url),
            ready=lambda: console.write_line(f"ready nats={nats.url}"),
            warm=lambda: console.write_line(f"warm spark={settings.spark}"),
            jvm=jvm,
        )

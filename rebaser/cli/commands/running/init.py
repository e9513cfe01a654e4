"""`rebaser init`: creates and updates the streams, so that servers do not need the permission to do this."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rebaser.cli.commands.running.serve import AckWait, Durability, Replicas, SweepInterval
from rebaser.cli.errors import CommandFailed
from rebaser.cli.options import ACCESS_VALUES, DEFAULT_NATS, Json, Nats, Prefix
from rebaser.cli.output import console

if TYPE_CHECKING:
    from rebaser.settings import Settings
    from rebaser_client.admin.provisioning import Part


def init(
    *,
    check: Annotated[bool, typer.Option("--check", help="Only show what would be created or changed.")] = False,
    durability: Durability = None,
    replicas: Replicas = None,
    ack_wait: AckWait = None,
    sweep_interval: SweepInterval = None,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Create the streams and their consumers, or update them, and end.

    Use this command in installations whose servers do not have the permission to do this, and run with
    --no-create-streams. Run it with the same settings as the servers: before the first server starts, before each
    upgrade, and after each change to a stream setting. Streams and consumers that match the settings stay unchanged.
    With --check, the exit code is 1 if there is anything to do.
    """
    from rebaser.cli import logs
    from rebaser.cli.runner import run_async
    from rebaser.settings import load_settings

    logs.configure("error", "auto")
    settings = load_settings(
        nats_url=nats,
        prefix=prefix,
        durability=durability,
        replicas=replicas,
        ack_wait=ack_wait,
        sweep_interval=sweep_interval,
        **ACCESS_VALUES.get(),
    )
    parts: list[Part] = []

    async def run() -> None:
        parts.extend(await _init(settings, check=check))

    code = run_async(run)
    if code:
        return code
    for part in parts:
        if json:
            console.write_json(_part_object(part, check=check))
        else:
            console.write_line(_line(part, check=check))
    to_do = [part for part in parts if not part.exists or part.differences]
    if check and to_do:
        raise CommandFailed(
            f"{len(to_do)} of {len(parts)} streams and consumers are missing or differ from the settings; "
            "run `rebaser init` without --check"
        )
    return 0


async def _init(settings: "Settings", *, check: bool) -> "list[Part]":
    """Create or update all streams and consumers, unless `check` is true. Return the state in which each of them was
    before."""
    import time

    from rebaser_client.admin.provisioning import ensure_topology, examine_topology
    from rebaser_client.admin.servers import ping
    from rebaser_client.jetstream import Connection, JetStream
    from rebaser_core.streams.subjects import Subjects

    subjects, options = Subjects(settings.prefix), settings.topology()
    async with Connection.connect(
        settings.nats_url, name="rebaser-init", inbox_prefix=settings.inbox_prefix, **settings.access()
    ) as connection:
        js = JetStream(connection)
        parts = await examine_topology(js, subjects, options)
        missing = [part.stream for part in parts if not part.exists and not part.consumer]
        if check:
            return parts
        # A server that is running although a stream is missing has used the stream before, and may still send acks and
        # deletions for its messages. The stream's last sequence is unknown here, so the new stream starts at a sequence
        # that no stream can have reached.
        replaced = missing if missing and await ping(connection, subjects) else []
        ends = dict.fromkeys(replaced, time.time_ns() // 1_000_000)
        await ensure_topology(js, subjects, options, ends)
        return parts


def _outcome(part: "Part", *, check: bool) -> str:
    done = "missing" if check else "created"
    changed = "different" if check else "changed"
    return done if not part.exists else changed if part.differences else "unchanged"


def _line(part: "Part", *, check: bool) -> str:
    return f"{part}: {_outcome(part, check=check)}" + "".join(f"; {text}" for text in part.differences)


def _part_object(part: "Part", *, check: bool) -> dict[str, Any]:
    return {
        "stream": part.stream,
        "consumer": part.consumer or None,
        "outcome": _outcome(part, check=check),
        "differences": list(part.differences),
    }

"""`rebaser gc`: deletes the blobs that are no longer needed."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rebaser.cli.errors import usage_error
from rebaser.cli.options import ACCESS_VALUES, DEFAULT_NATS, Json, Nats, Prefix
from rebaser.cli.output import console

if TYPE_CHECKING:
    from rebaser.gc.collector import Run
    from rebaser.settings import Settings

Spark = Annotated[
    str | None,
    typer.Option(
        envvar="REBASER_SPARK",
        metavar="URL",
        help="local[*] for an embedded Spark, or a Spark Connect server: sc://host:port.",
        show_default="local[*]",
    ),
]


def gc(
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
    grace: Annotated[
        str,
        typer.Option(
            metavar="AGE",
            help="How long an unneeded blob stays in the store, and then in the trash (90m, 24h, 7d). At least 1h.",
        ),
    ] = "24h",
    urgent: Annotated[
        bool, typer.Option("--urgent", help="Take processor time from other programs instead of waiting for idle CPUs.")
    ] = False,
    spark: Spark = None,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Delete the blobs that are no longer needed.

    A blob is needed if a commit, a queued request or a dead letter refers to it. The first run that finds a blob
    unneeded only records this. A run that still finds the blob unneeded after --grace moves it to the trash, and a run
    after another --grace erases it. Until it is erased, the blob is restored if it is read or needed again.

    On the machine where it runs, all other programs take precedence over a run. If all processors are always busy, a
    run hardly gets on; use --urgent, or another machine.
    """
    from rebaser.cli import logs
    from rebaser.cli.runner import run_async
    from rebaser.settings import load_settings
    from rebaser_core.blobs.garbage import MIN_GRACE

    logs.configure("warning", "auto")
    seconds = _seconds(grace)
    if seconds < MIN_GRACE:
        raise usage_error(
            f"must be at least {MIN_GRACE / 3600:g}h; otherwise, a blob that is about to be used could be erased",
            "--grace",
        )
    settings = load_settings(nats_url=nats, prefix=prefix, spark=spark, **ACCESS_VALUES.get())
    runs: list[Run] = []

    async def run() -> None:
        runs.append(await _run(settings, seconds, dry_run=dry_run, urgent=urgent))

    code = run_async(run)
    if code:
        return code
    if json:
        console.write_json(_run_object(runs[0]))
    else:
        _show(runs[0])
    return 0


def _seconds(text: str) -> float:
    """Return the number of seconds in an age such as `90m`."""
    from datetime import UTC, datetime

    from rebaser_client.log.positions import parse_time

    now = datetime.now(UTC)
    then = parse_time(text, now) if text and text[-1] in "smhdw" else None
    if then is None:
        raise usage_error(f"{text[:40]!r} is not an age: write 90m, 24h or 7d", "--grace")
    return (now - then).total_seconds()


async def _run(settings: "Settings", grace: float, *, dry_run: bool, urgent: bool) -> "Run":
    from rebaser.gc.manual import collect_once, use_half_of_the_cpus

    if not urgent:
        use_half_of_the_cpus()
    return await collect_once(settings, grace, dry=dry_run, urgent=urgent)


def _run_object(run: "Run") -> dict[str, Any]:
    collection = run.collection
    return {
        "commit": run.sequence or None,
        "blobs": run.found.blobs,
        "bytes": run.found.size,
        "candidates": collection.candidates,
        "trashed": run.trashed,
        "trashedBytes": collection.trash_bytes,
        "erased": run.erased,
        "erasedBytes": collection.erase_bytes,
        "restored": run.restored,
        "graceSeconds": collection.grace_ms / 1000,
    }


def _show(run: "Run") -> None:
    collection, size = run.collection, console.size_text
    dry = not run.sequence
    found = f"{run.found.blobs:,} blobs ({size(run.found.size)}) are stored"
    console.write_line(f"{found}; nothing needs {collection.candidates:,} of them")
    moved, erased = ("would be moved", "would be erased") if dry else ("moved", "erased")
    console.write_line(f"{moved} to the trash: {run.trashed:,} ({size(collection.trash_bytes)})")
    console.write_line(f"{erased} from the trash: {run.erased:,} ({size(collection.erase_bytes)})")
    if run.restored:
        console.write_line(f"{'would be brought' if dry else 'brought'} back from the trash: {run.restored:,}")
    if not dry:
        console.write_line(f"recorded as commit {run.sequence}")

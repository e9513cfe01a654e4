"""`rebaser status`: shows servers, change sets, tasks and streams."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rebaser.cli.completion import complete_workspace
from rebaser.cli.errors import CommandFailed
from rebaser.cli.options import DEFAULT_NATS, Json, Nats, Prefix, checked_key, optional_change_set, optional_workspace
from rebaser.cli.output import console
from rebaser.cli.output.wording import progress_text, tally_text
from rebaser_core.shell import command

if TYPE_CHECKING:
    from rebaser_client import RebaserClient
    from rebaser_client.admin.ack_stats import TaskAcks
    from rebaser_client.admin.servers import ServerInfo, UpdateInfo
    from rebaser_client.admin.status import ChangeSetStatus, Overview
    from rebaser_client.admin.stream_usage import DurabilityStatus, StreamStatus, TasksStatus
    from rebaser_core.state.tally import Tally

DEFAULT_LIMIT = 100  # default maximum number of change sets in a table
NEARLY_FULL = 90.0  # percentage of a stream's size limit from which `status` warns


def status(
    ws: Annotated[str | None, optional_workspace("Show only change sets of this workspace.")] = None,
    cs: Annotated[str | None, optional_change_set("Show only this change set.")] = None,
    workspace: Annotated[
        str | None, typer.Option(metavar="WS", help="Same as the argument WS.", autocompletion=complete_workspace)
    ] = None,
    acks: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.1,
            help="Also watch the acks of tasks for this long. Servers must run with REBASER_ACK_SAMPLE.",
        ),
    ] = None,
    *,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Maximum number of change sets. Default: 100; with --json, all."),
    ] = None,
    after: Annotated[
        str, typer.Option(metavar="WS/CS", help="Show only change sets after this one, in the order of their names.")
    ] = "",
    values: Annotated[
        bool,
        typer.Option(
            "--values",
            help="Also count the values in each state. This loads every change set that is shown.",
        ),
    ] = False,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Show servers, change sets, tasks, streams and their durability.

    With a workspace and a change set, show only that change set: the size of its log, its oldest readable position, and
    its newest checkpoint; whether it is open or protected; its target, whether it is behind, and its conflicts; and the
    branches that were applied to it.

    Sizes of streams are for one copy. The size of a message includes its payload, headers and subject, and the overhead
    of the store.
    """
    from rebaser.cli.runner import run_async

    if ws is not None and cs is not None:
        from rebaser.cli.commands.observing.status_history import show_history

        return show_history(checked_key(ws, cs), json, nats, prefix)
    workspace = ws or workspace
    if limit is None and not json:
        limit = DEFAULT_LIMIT
    query = StatusQuery(ChangeSetPage(after, limit), values)
    code = run_async(partial(query.load, nats, prefix, workspace, acks))
    if code:
        return code
    overview, watched = query.overview, query.acks
    if watched is not None and not watched.percent:
        raise CommandFailed("NATS reports no acks: start the servers with REBASER_ACK_SAMPLE=100 (percent)")
    if json:
        console.write_json(
            overview_object(overview, query.values)
            | ({} if watched is None else {"taskAcks": _camel_case(asdict(watched))})
        )
        return 0
    _show(overview, query)
    if watched is not None:
        console.write_line(_acks_line(watched))
    return 0


@dataclass(frozen=True, slots=True)
class ChangeSetPage:
    """Selects the change sets to show: at most `limit`, whose names come after `after` (`WS/CS`)."""

    after: str
    limit: int | None

    def select(self, change_sets: list["ChangeSetStatus"]) -> list["ChangeSetStatus"]:
        after = tuple(self.after.split("/", 1)) if self.after else ()
        return [status for status in change_sets if (status.workspace, status.change_set) > after][: self.limit]


@dataclass(slots=True)
class StatusQuery:
    """Collects the data that `status` shows.

    `total` is the number of all change sets, including those that are not shown. `values` contains a tally for each
    change set that is shown.
    """

    page: ChangeSetPage
    count_values: bool
    total: int = 0
    acks: "TaskAcks | None" = None
    values: dict[tuple[str, str], "Tally"] = field(default_factory=dict)
    _overview: "Overview | None" = None

    @property
    def overview(self) -> "Overview":
        assert self._overview is not None  # noqa: S101 - `load` sets it
        return self._overview

    async def load(self, nats: str, prefix: str, workspace: str | None, acks: float | None) -> None:
        from rebaser.cli.connect import connect_client

        async with connect_client(nats, prefix) as client:
            self.acks = None if acks is None else await client.task_acks(acks)
            overview = await client.status(workspace)
            self.total = len(overview.change_sets)
            self._overview = replace(overview, change_sets=self.page.select(overview.change_sets))
            if self.count_values:
                await self._count(client)

    async def _count(self, client: "RebaserClient") -> None:
        from anyio import to_thread

        from rebaser_core.state.tally import tally

        for status in self.overview.change_sets:
            if not status.problem:
                key = status.workspace, status.change_set
                self.values[key] = await to_thread.run_sync(tally, await client.state(*key))

    def remainder(self) -> str:
        """Return a hint on how to see the other change sets, or an empty text if all are shown."""
        shown = self.overview.change_sets
        if len(shown) == self.total:
            return ""
        more = shown and len(shown) == self.page.limit
        hint = f"; for more: --after {shown[-1].workspace}/{shown[-1].change_set}" if more else ""
        return f"{len(shown):,} of {self.total:,} change sets{hint}"


def overview_object(overview: "Overview", values: Mapping[tuple[str, str], "Tally"]) -> dict[str, Any]:
    return {
        "servers": [server_object(server) for server in overview.servers],
        "changeSets": [
            {
                "workspaceId": status.workspace,
                "changeSetId": status.change_set,
                "pending": status.pending,
                "hasTask": status.has_task,
                "owner": status.owner or None,
                "errors": status.errors,
                "lastCommit": status.last_commit,
                "covers": status.covers,
                "debt": status.debt,
                "update": _update_object(status.update),
                "problem": status.problem,
            }
            | _values_object(values.get((status.workspace, status.change_set)))
            for status in overview.change_sets
        ],
        "streams": [_camel_case(asdict(stream)) for stream in overview.streams],
        "durability": None if overview.durability is None else _camel_case(asdict(overview.durability)),
        "tasks": None if overview.tasks is None else _camel_case(asdict(overview.tasks)),
    }


def _values_object(tally: "Tally | None") -> dict[str, Any]:
    return {} if tally is None else {"values": {state.value: count for state, count in tally.counts.items()}}


def server_object(server: "ServerInfo") -> dict[str, Any]:
    """Return a server as a JSON object, without its updates, its functions, and its report on a change set.

    The updates are shown with their change sets, and the functions by `rebaser functions --servers`.
    """
    apart = ("updates", "functions", "signatures", "about")
    return {name: value for name, value in _camel_case(asdict(server)).items() if name not in apart}


def _update_object(update: "UpdateInfo | None") -> dict[str, Any] | None:
    apart = ("workspace", "changeSet")
    return {name: value for name, value in _camel_case(asdict(update)).items() if name not in apart} if update else None


def _camel_case(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with camelCase names, as in all JSON of Rebaser."""
    words = {name: name.split("_") for name in fields}
    return {first + "".join(word.title() for word in rest): fields[name] for name, (first, *rest) in words.items()}


def _show(overview: "Overview", query: StatusQuery) -> None:
    show_servers(overview.servers, headings=True)
    values = ("values",) if query.count_values else ()
    console.table(
        ("workspace", "change set", "pending", "task", "last commit", "covers", "DVU due", "progress", *values),
        [
            (
                status.workspace,
                status.change_set,
                str(status.pending),
                "yes" if status.has_task else "no",
                str(status.last_commit),
                str(status.covers),
                "yes" if status.debt else "no",
                _progress(status.update),
                *[tally_text(tally) for tally in [query.values.get((status.workspace, status.change_set))] if tally],
            )
            for status in overview.change_sets
        ],
        right=(2, 4, 5),
        title=f"Change sets: {query.total:,}",
        headings=True,
    )
    _show_stores(overview)
    if line := query.remainder():
        console.note(line)
    _note_problems(overview)


def _progress(update: "UpdateInfo | None") -> str:
    return "" if update is None else progress_text(update.done, update.total, update.seconds)


def _show_stores(overview: "Overview") -> None:
    if overview.tasks is not None:
        _show_tasks(overview.tasks)
    _show_streams(overview.streams)
    _show_limits(overview.streams)
    if overview.durability is not None:
        console.write_line(_durability_line(overview.durability))


def _note_problems(overview: "Overview") -> None:
    if not overview.servers:
        console.note("no server answers; requests wait until one runs (`rebaser serve`)")
    for server in overview.servers:
        if not server.ready:
            console.note(f"server {server.id} is not ready: {server.trouble}")
        elif server.trouble:
            console.note(f"server {server.id} has a problem: {server.trouble}")
    for loss in dict.fromkeys(loss for server in overview.servers for loss in server.losses):
        console.note(loss)
    for status in overview.change_sets:
        if status.problem:
            name = f"{status.workspace}/{status.change_set}"
            doctor = command("doctor", status.workspace, status.change_set)
            console.note(f"the log of {name} cannot be read: {status.problem}; see `{doctor}`")
    for stream in overview.streams:
        if stream.percent_full is not None and stream.percent_full >= NEARLY_FULL:
            console.note(
                f"stream {stream.name} is {stream.percent_full:g} % full; when it is full, messages are refused"
            )


def _show_streams(streams: list["StreamStatus"]) -> None:
    """Show the streams as a table. `newest (payload)` has the sizes of the newest message and of its payload."""
    console.table(
        ("stream", "storage", "messages", "size", "limit", "full", "average", "newest (payload)"),
        [
            (
                stream.name,
                _copies(stream),
                f"{stream.messages:,}",
                console.size_text(stream.bytes),
                _limit(stream),
                "" if stream.percent_full is None else f"{stream.percent_full:g} %",
                "" if stream.bytes_per_message is None else console.size_text(stream.bytes_per_message),
                _newest(stream),
            )
            for stream in streams
        ],
        right=(2, 3, 4, 5, 6, 7),
        title="Streams",
        headings=True,
    )


def _newest(stream: "StreamStatus") -> str:
    newest = stream.newest
    return "" if newest is None else f"{console.size_text(newest.stored)} ({console.size_text(newest.payload)})"


def _show_limits(streams: list["StreamStatus"]) -> None:
    """Show the limits of streams under their NATS names. An empty cell means that there is no limit."""
    console.table(
        ("stream", "retention", "discard", "max age", "limit", "per subject", "max message", "duplicate window"),
        [
            (
                stream.name,
                stream.retention,
                stream.discard,
                _lasting(stream.max_age),
                _limit(stream),
                f"{stream.max_messages_per_subject:,}" if stream.max_messages_per_subject > 0 else "",
                console.size_text(stream.max_message_size) if stream.max_message_size > 0 else "",
                _lasting(stream.duplicate_window),
            )
            for stream in streams
        ],
        right=(3, 4, 5, 6, 7),
        title="Limits",
        headings=True,
    )


def _lasting(seconds: float) -> str:
    """Return a configured duration in the largest unit that divides it, or an empty text for 0."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s" if seconds else ""


def _show_tasks(tasks: "TasksStatus") -> None:
    """Show the numbers of pending tasks, which wait for an owner, and of tasks in flight, which have an owner."""
    console.table(
        ("pending", "in flight", "redelivered", "done up to", "waiting pulls", "ack wait"),
        [
            (
                f"{tasks.pending:,}",
                f"{tasks.in_flight:,}",
                f"{tasks.redelivered:,}",
                str(tasks.ack_floor),
                f"{tasks.waiting_pulls:,}",
                _lasting(tasks.ack_wait),
            )
        ],
        right=(0, 1, 2, 3, 4, 5),
        title="Tasks",
        headings=True,
    )


def _copies(stream: "StreamStatus") -> str:
    behind = f" ({stream.copies_behind} behind)" if stream.copies_behind else ""
    return f"{stream.storage} x{stream.copies}{behind}"


def _limit(stream: "StreamStatus") -> str:
    limits = [console.size_text(stream.max_bytes)] if stream.max_bytes > 0 else []
    if stream.max_messages > 0:
        limits.append(f"{stream.max_messages:,} messages")
    return " or ".join(limits)


def _durability_line(durability: "DurabilityStatus") -> str:
    """Return a line that says how durable the least durable stream is.

    The durability of a single copy on disk also depends on the settings of nats-server.
    """
    line = (
        f"durability: {durability.at_least} (storage {durability.storage}, copies of each stream: {durability.copies}"
    )
    if durability.at_least == "fast":
        line += "; safe if nats-server has sync_interval: always, which clients cannot see"
    return line + ")"


def _acks_line(acks: "TaskAcks") -> str:
    line = f"task acks in {acks.seconds:g} s, {acks.percent} % sampled: {acks.samples:,}"
    if acks.latency_p50 is None or acks.latency_max is None:
        return f"{line} (a task is acked when its change set is released)"
    return (
        f"{line}, {acks.redelivered:,} delivered more than once (at most {acks.most_deliveries} times); "
        f"from the last progress to the ack: p50 {console.duration_text(acks.latency_p50)}, "
        f"max {console.duration_text(acks.latency_max)}, ack wait {acks.ack_wait:g} s"
    )


def show_servers(servers: list["ServerInfo"], *, headings: bool = False) -> None:
    console.table(
        ("server", "version", "owned", "slots", "DVU"),
        [(info.id, info.version, str(info.owned), str(info.slots), info.dvu) for info in servers],
        right=(2, 3),
        title=f"Servers: {len(servers)}",
        headings=headings,
    )

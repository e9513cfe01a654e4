"""`rebaser status` and `rebaser ping`: what runs, and what waits."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rebaser.cli import console
from rebaser.cli.errors import CommandFailed
from rebaser.cli.options import DEFAULT_NATS, Json, Nats, Prefix
from rebaser.cli.sending.outcome import tally_text
from rebaser.cli.wording import progress_text

if TYPE_CHECKING:
    from rebaser_client import RebaserClient
    from rebaser_client.admin.ack_stats import TaskAcks
    from rebaser_client.admin.status import ChangeSetStatus, Overview, ServerInfo, UpdateInfo
    from rebaser_client.admin.stream_usage import DurabilityStatus, StreamStatus, TasksStatus
    from rebaser_core.state.tally import Tally

PAGE = 100  # change sets of a table
NEARLY_FULL = 90.0  # percent, from which on a stream's limit is worth a word


def status(
    workspace: Annotated[str | None, typer.Option(metavar="WS", help="Only change sets of this workspace.")] = None,
    acks: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.1,
            help="Also watch, for so long, the acks of tasks that servers finish; needs REBASER_ACK_SAMPLE.",
        ),
    ] = None,
    *,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Change sets at most; default: 100, with --json all.")
    ] = None,
    after: Annotated[str, typer.Option(metavar="WS/CS", help="Only change sets behind this one, in order.")] = "",
    values: Annotated[
        bool,
        typer.Option(
            "--values",
            help="Also count values by state, errors too. Nobody keeps count: all of each change set that is shown is "
            "read.",
        ),
    ] = False,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Show servers, change sets, streams and what they outlive.

    Sizes of streams are of one copy. What a message costs is its payload, headers and subject, and what the store adds.
    """
    from rebaser.cli.runner import run_async

    if limit is None and not json:
        limit = PAGE
    report = StatusQuery(ChangeSetPage(after, limit), values)
    code = run_async(partial(report.load, nats, prefix, workspace, acks))
    if code:
        return code
    overview, watched = report.overview, report.acks
    if watched is not None and not watched.percent:
        raise CommandFailed("NATS tells of no acks: start the servers with REBASER_ACK_SAMPLE=100 (percent)")
    if json:
        console.write_json(
            _object(overview, report.values) | ({} if watched is None else {"taskAcks": _camel(asdict(watched))})
        )
        return 0
    _show(overview, report)
    if watched is not None:
        console.write_line(_acks_line(watched))
    return 0


@dataclass(frozen=True, slots=True)
class ChangeSetPage:
    """Which change sets are shown: those behind `after` (`WS/CS`), and at most `limit`."""

    after: str
    limit: int | None

    def of(self, found: list["ChangeSetStatus"]) -> list["ChangeSetStatus"]:
        first = tuple(self.after.split("/", 1)) if self.after else ()
        return [one for one in found if (one.workspace, one.change_set) > first][: self.limit]


@dataclass(slots=True)
class StatusQuery:
    """What is asked for, and what was found. `values`: by change set, the values of those shown, if asked for."""

    page: ChangeSetPage
    count_values: bool
    all: int = 0  # change sets, on any page
    acks: "TaskAcks | None" = None
    values: dict[tuple[str, str], "Tally"] = field(default_factory=dict)
    _overview: "Overview | None" = None

    @property
    def overview(self) -> "Overview":
        assert self._overview is not None  # noqa: S101 - `load` came first
        return self._overview

    async def load(self, nats: str, prefix: str, workspace: str | None, acks: float | None) -> None:
        from rebaser.cli.connect import connect_client

        async with connect_client(nats, prefix) as client:
            self.acks = None if acks is None else await client.task_acks(acks)
            found = await client.status(workspace)
            self.all = len(found.change_sets)
            self._overview = replace(found, change_sets=self.page.of(found.change_sets))
            if self.count_values:
                await self._count(client)

    async def _count(self, client: "RebaserClient") -> None:
        from anyio import to_thread

        from rebaser_core.state.tally import tally

        for one in self.overview.change_sets:
            if not one.problem:
                key = one.workspace, one.change_set
                self.values[key] = await to_thread.run_sync(tally, await client.state(*key))

    def more(self) -> str:
        """How to see the rest, if this is not all."""
        shown = self.overview.change_sets
        if len(shown) == self.all:
            return ""
        line = f"{len(shown):,} of {self.all:,} change sets"
        if shown and len(shown) == self.page.limit:
            line += f"; those behind with --after {shown[-1].workspace}/{shown[-1].change_set}"
        return line


def _object(overview: "Overview", values: Mapping[tuple[str, str], "Tally"]) -> dict[str, Any]:
    return {
        "servers": [_server(one) for one in overview.servers],
        "changeSets": [
            {
                "workspaceId": one.workspace,
                "changeSetId": one.change_set,
                "pending": one.pending,
                "hasTask": one.has_task,
                "lastCommit": one.last_commit,
                "covers": one.covers,
                "debt": one.debt,
                "update": None if one.update is None else _update(one.update),
                "problem": one.problem,
            }
            | _values_object(values.get((one.workspace, one.change_set)))
            for one in overview.change_sets
        ],
        "streams": [_camel(asdict(one)) for one in overview.streams],
        "durability": None if overview.durability is None else _camel(asdict(overview.durability)),
        "tasks": None if overview.tasks is None else _camel(asdict(overview.tasks)),
    }


def _values_object(found: "Tally | None") -> dict[str, Any]:
    return {} if found is None else {"values": {state.value: count for state, count in found.counts.items()}}


def _server(server: "ServerInfo") -> dict[str, Any]:
    """Its updates are told with their change sets, its functions by `rebaser functions --servers`."""
    return {
        name: told
        for name, told in _camel(asdict(server)).items()
        if name not in ("updates", "functions", "signatures")
    }


def _update(update: "UpdateInfo") -> dict[str, Any]:
    return {"done": update.done, "total": update.total, "seconds": update.seconds}


def _camel(fields: dict[str, Any]) -> dict[str, Any]:
    """Names as they are in messages and everywhere else."""
    words = {name: name.split("_") for name in fields}
    return {first + "".join(word.title() for word in rest): fields[name] for name, (first, *rest) in words.items()}


def _show(overview: "Overview", report: StatusQuery) -> None:
    _show_servers(overview.servers, headings=True)
    values = ("values",) if report.count_values else ()
    console.table(
        ("workspace", "change set", "pending", "task", "last commit", "covers", "DVU due", "at work", *values),
        [
            (
                one.workspace,
                one.change_set,
                str(one.pending),
                "yes" if one.has_task else "no",
                str(one.last_commit),
                str(one.covers),
                "yes" if one.debt else "no",
                "" if one.update is None else progress_text(one.update.done, one.update.total, one.update.seconds),
                *[tally_text(found) for found in [report.values.get((one.workspace, one.change_set))] if found],
            )
            for one in overview.change_sets
        ],
        right=(2, 4, 5),
        title=f"Change sets: {report.all:,}",
        headings=True,
    )
    _show_stores(overview)
    if more := report.more():
        console.note(more)
    _tell_trouble(overview)


def _show_stores(overview: "Overview") -> None:
    if overview.tasks is not None:
        _show_tasks(overview.tasks)
    _show_streams(overview.streams)
    _show_limits(overview.streams)
    if overview.durability is not None:
        console.write_line(_durability_line(overview.durability))


def _tell_trouble(overview: "Overview") -> None:
    if not overview.servers:
        console.note("no server answers; requests wait until one runs (`rebaser serve`)")
    for server in overview.servers:
        if not server.ready:
            console.note(f"server {server.id} is not ready: {server.trouble}")
        elif server.trouble:
            console.note(f"server {server.id} met trouble: {server.trouble}")
    for loss in dict.fromkeys(loss for server in overview.servers for loss in server.losses):
        console.note(loss)
    for one in overview.change_sets:
        if one.problem:
            advice = f"see `rebaser doctor {one.workspace} {one.change_set}`"
            console.note(f"the log of {one.workspace}/{one.change_set} cannot be read: {one.problem}; {advice}")
    for stream in overview.streams:
        if stream.percent_full is not None and stream.percent_full >= NEARLY_FULL:
            console.note(f"stream {stream.name} is {stream.percent_full:g} % full; what does not fit is refused")


def _show_streams(streams: list["StreamStatus"]) -> None:
    """Sizes are of one copy. `a message`: the average; `newest: payload`: all of the newest one, and its payload."""
    console.table(
        ("stream", "storage", "messages", "size", "limit", "full", "a message", "newest: payload"),
        [
            (
                one.name,
                _copies(one),
                f"{one.messages:,}",
                console.size_text(one.bytes),
                _limit(one),
                "" if one.percent_full is None else f"{one.percent_full:g} %",
                "" if one.bytes_per_message is None else console.size_text(one.bytes_per_message),
                ""
                if one.newest is None
                else f"{console.size_text(one.newest.stored)}: {console.size_text(one.newest.payload)}",
            )
            for one in streams
        ],
        right=(2, 3, 4, 5, 6, 7),
        title="Streams",
        headings=True,
    )


def _show_limits(streams: list["StreamStatus"]) -> None:
    """Empty: no limit. `when full`: what is discarded then; `once within`: the duplicate window."""
    console.table(
        ("stream", "retention", "when full", "kept", "in all", "a subject", "one message", "once within"),
        [
            (
                one.name,
                one.retention,
                one.discard,
                _lasting(one.max_age),
                _limit(one),
                f"{one.max_messages_per_subject:,}" if one.max_messages_per_subject > 0 else "",
                console.size_text(one.max_message_size) if one.max_message_size > 0 else "",
                _lasting(one.duplicate_window),
            )
            for one in streams
        ],
        right=(3, 4, 5, 6, 7),
        title="Limits",
        headings=True,
    )


def _lasting(seconds: float) -> str:
    """A time that somebody chose, in the unit that he may have used; empty for none."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s" if seconds else ""


def _show_tasks(tasks: "TasksStatus") -> None:
    """Of change sets that want an owner, or have one."""
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


def _durability_line(found: "DurabilityStatus") -> str:
    """What the streams outlive; one copy on disk leaves a question that only nats-server's configuration answers."""
    what = f"durability: {found.at_least} (storage {found.storage}, {found.copies} of each stream"
    if found.at_least == "fast":
        what += "; safe if nats-server has sync_interval: always, which clients cannot see"
    return what + ")"


def _acks_line(acks: "TaskAcks") -> str:
    line = f"task acks in {acks.seconds:g} s, {acks.percent} % sampled: {acks.samples:,}"
    if acks.latency_p50 is None or acks.latency_max is None:
        return f"{line} (a task is acked when its change set is let go)"
    return (
        f"{line}, {acks.redelivered:,} delivered more than once (at most {acks.most_deliveries} times); "
        f"from the last progress to the ack: p50 {console.duration_text(acks.latency_p50)}, "
        f"max {console.duration_text(acks.latency_max)}, ack wait {acks.ack_wait:g} s"
    )


def _show_servers(servers: list["ServerInfo"], *, headings: bool = False) -> None:
    console.table(
        ("server", "version", "owned", "slots", "DVU"),
        [(one.id, one.version, str(one.owned), str(one.slots), one.dvu) for one in servers],
        right=(2, 3),
        title=f"Servers: {len(servers)}",
        headings=headings,
    )


def ping(
    server: Annotated[
        str | None, typer.Option(metavar="ID", help="Only this server has to answer; see `rebaser status`.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, max=60, help="Seconds to wait for answers.")] = 2.0,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Ask the servers whether they live and are ready. Exit code 1 if none is: made for health checks."""
    from rebaser.cli.runner import run_async

    found: list[ServerInfo] = []
    code = run_async(partial(_ping, nats, prefix, server, timeout, found))
    if code:
        return code
    if not found:
        who = "no server answered" if server is None else f"server {server} did not answer"
        raise CommandFailed(f"{who} within {timeout:g} s")
    if json:
        for one in found:
            console.write_json(_server(one))
    else:
        _show_servers(found)
    if not any(one.ready for one in found):
        raise CommandFailed("; ".join(f"server {one.id} is not ready: {one.trouble}" for one in found))
    return 0


async def _ping(nats: str, prefix: str, server: str | None, timeout: float, found: list["ServerInfo"]) -> None:  # noqa: ASYNC109 - see ping_servers
    from rebaser.cli.connect import ping_servers

    found += await ping_servers(nats, prefix, server, timeout)

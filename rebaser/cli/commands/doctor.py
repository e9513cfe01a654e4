"""`rebaser doctor`: what is wrong with the log of a change set, and a way out of it.

Invariant: nothing is changed without --repair and --yes, and what that loses is shown before and after.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rebaser.cli import console
from rebaser.cli.errors import CommandFailed, usage
from rebaser.cli.options import DEFAULT_NATS, GIVEN, Json, Nats, Prefix, checked_key

if TYPE_CHECKING:
    from rebaser.doctor.entries import Told
    from rebaser.doctor.examination import Examination
    from rebaser.doctor.history import Finding
    from rebaser_core.commit import Decision
    from rebaser_core.ids import ChangeSetKey

SHOWN = 20  # requests, or ids, of one finding; with --json all


def doctor(
    workspace: Annotated[str | None, typer.Argument(metavar="WS", help="Workspace.", show_default=False)] = None,
    change_set: Annotated[str | None, typer.Argument(metavar="CS", help="Change set.", show_default=False)] = None,
    *,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Show what a repair does and loses; with --yes, do it.", allow_from_autoenv=False
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do repair.", allow_from_autoenv=False)] = False,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write damaged messages to files, headers and payload.", file_okay=False),
    ] = None,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Check the installation, or the log of a change set: whether it can be read, what is wrong with it; repair it.

    Without WS and CS it looks at Python, versions, Java, disk, Spark, NATS, the clock, streams, servers, rights; exit
    code 1 if one of them fails. It names the rights of clients and of servers that the user lacks (what only servers
    need is no failure), but those it would have to use: to purge, take tasks, unpin and tell progress.

    With them it looks at a log; exit code 1 if it is damaged. A repair keeps what can be read: it goes on from the
    newest checkpoint that can be, carries commits behind the damage over, and has what is derived computed anew. What
    is lost is listed. It may run beside servers: if somebody writes to the log meanwhile nothing is changed, and it can
    be run again.
    """
    from rebaser.cli.runner import run_async

    if workspace is None and not (repair or yes or save):
        from rebaser.cli.commands.doctor_installation import examine

        return examine(nats, prefix, as_json=json)
    if workspace is None or change_set is None:
        raise usage("name a change set: rebaser doctor WS CS")
    if yes and not repair:
        raise usage("--yes goes with --repair")
    visit = Visit(checked_key(workspace, change_set), repair, yes, save)
    code = run_async(partial(visit.run, nats, prefix))
    if code:
        return code
    if json:
        console.write_json(visit.to_object())
    else:
        visit.show()
    return visit.end()


@dataclass(slots=True)
class Visit:
    """One run of the command. `repaired`: the log sequence of the commit that repaired it, 0 for none."""

    key: "ChangeSetKey"
    repair: bool
    yes: bool
    save: Path | None
    found: "Examination | None" = None
    blobs: str | None = None
    saved: list[Path] | None = None
    repaired: int = 0

    async def run(self, nats: str, prefix: str) -> None:
        from rebaser.cli.connect import stores_of
        from rebaser.doctor.examination import examine
        from rebaser.settings import load_settings
        from rebaser_core.errors import FencedError

        settings = load_settings(nats_url=nats, prefix=prefix, **GIVEN.get())
        self.blobs = settings.blobs
        async with stores_of(settings) as stores:
            self.found = found = await examine(stores, self.key)
            if self.save is not None:
                self.saved = _write_messages(found, self.save)
            if self.yes and found.damaged:
                from rebaser.doctor.repair import repair  # takes long to load

                try:
                    self.repaired = await repair(stores, found, f"doctor {settings.server_id}")
                except FencedError as error:
                    raise CommandFailed(f"{error.message}: nothing was changed; run it again") from error

    @property
    def examination(self) -> "Examination":
        assert self.found is not None  # noqa: S101 - `run` came first
        return self.found

    def end(self) -> int:
        found, name = self.examination, f"{self.key.workspace} {self.key.change_set}"
        if found.newer:
            raise CommandFailed(f"{found.newer}: this is no damage; use the doctor of the newest server")
        if not found.damaged or self.repaired or self.repair:
            return 0
        raise CommandFailed(f"the log is damaged; see `rebaser doctor {name} --repair`")

    # -- for people ------------------------------------------------------------------------------------------------

    def show(self) -> None:
        found, write = self.examination, console.write_line
        place = f"{self.key.workspace}/{self.key.change_set}"
        if found.messages:
            base = f", checkpoint of commit {found.base}" if found.base else ""
            write(f"{place}: {found.messages:,} messages, {found.first} to {found.last}{base}")
        for note in found.notes:
            write(f"note: {console.safe(note)}")
        if found.newer:
            return
        if not found.damaged:
            write(f"{place}: all is well")
            return
        well = f"; nothing is wrong up to commit {found.whole_until}"
        write(f"{place}: damaged{well if found.findings[0].sequence > found.whole_until else ''}")
        for finding in found.findings:
            _show_finding(finding)
        self._show_repair()

    def _show_repair(self) -> None:
        found, write, done = self.examination, console.write_line, bool(self.repaired)
        for one in found.queued[:SHOWN]:
            goes = "goes" if done else "would go"
            write(
                f"request {one.request_id} ({one.sequence}) is still in the queue: it {goes} to the dead letters as "
                f"skipped, from where `rebaser dlq redrive {self.key.workspace} {self.key.change_set} --code skipped` "
                "sends it again"
            )
        _more(len(found.queued), "requests in the queue")
        if any("blob" in finding.problem for finding in found.findings):
            where = "in NATS" if self.blobs is None else f"in {self.blobs.partition('?')[0]}"
            write(f"blobs were looked for {where}; if servers keep theirs elsewhere, set REBASER_BLOBS as they do")
        for path in self.saved or ():
            write(f"saved {console.safe(str(path))}")
        kept = f"keeps {len(found.state.cells):,} values; {found.carried:,} commits behind the damage are carried over"
        again = "; all that is derived is computed anew" if found.state.recompute else ""
        if done:
            write(f"repaired by commit {self.repaired}, which {kept}{again}")
        else:
            what = "a repair loses what is listed" if found.loses else "a repair loses nothing"
            write(f"{what}; it {kept}{again}")
            if self.repair:
                write("nothing was changed: --repair --yes does it")

    # -- for machines ----------------------------------------------------------------------------------------------

    def to_object(self) -> dict[str, Any]:
        found = self.examination
        return {
            "workspaceId": self.key.workspace,
            "changeSetId": self.key.change_set,
            "messages": found.messages,
            "first": found.first,
            "last": found.last,
            "checkpoint": found.base,
            "damaged": found.damaged,
            "newer": found.newer,
            "wholeUntil": found.whole_until,
            "findings": [_object(one) for one in found.findings],
            "notes": found.notes,
            "carried": found.carried,
            "values": len(found.state.cells),
            "loses": found.loses,
            "queued": [{"sequence": one.sequence, "requestId": one.request_id} for one in found.queued],
            "saved": [str(path) for path in self.saved or ()],
            "repairedBy": self.repaired or None,
        }


def _write_messages(found: "Examination", folder: Path) -> list[Path]:
    """Write what cannot be read to `folder`; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for entry in found.unreadable:
        for suffix, content in (("json", console.json_text(dict(entry.headers)).encode()), ("payload", entry.data)):
            files.append(folder / f"{found.key}-{entry.sequence}.{suffix}")
            files[-1].write_bytes(content)
    return files


_COSTS = {
    "nothing": "nothing is lost",
    "edits": "LOST: the edits that it made",
    "unknown": "PERHAPS LOST: edits, if it made any",
}


def _show_finding(finding: "Finding") -> None:
    told, write = finding.told, console.write_line
    about = "" if told is None else _about(finding, told)
    write(f"  {finding.sequence}  {console.safe(finding.problem)}{about}; {_COSTS[finding.cost.value]}")
    if told is None or finding.cost.value == "nothing":
        return
    for one in told.decisions[:SHOWN]:
        write(f"      request {console.safe(_decision(one))}")
    _more(len(told.decisions), "requests")
    if told.ids:
        write(f"      values {console.safe(', '.join(told.ids[:SHOWN]))}")
        _more(max(told.changes or 0, len(told.ids)), "values")


def _about(finding: "Finding", told: "Told") -> str:
    kind = "" if told.kind is None else told.kind.value
    at = _time(told.at_ms if told.at_ms is not None else finding.time_ns // 1_000_000)
    words = [word for word in (kind, at, f"by {told.owner}" if told.owner else "") if word]
    return console.safe(f" ({', '.join(words)})")


def _decision(one: "Decision") -> str:
    return f"{one.request_id} ({one.sequence}): {one.outcome.value}, {one.performed:,} updates"


def _more(count: int, what: str) -> None:
    if count > SHOWN:
        console.write_line(f"      and {count - SHOWN:,} more {what}; see --json")


def _object(finding: "Finding") -> dict[str, Any]:
    told = finding.told
    return {
        "sequence": finding.sequence,
        "problem": finding.problem,
        "lost": finding.cost.value,
        "time": _time(finding.time_ns // 1_000_000) if finding.time_ns else None,
        "kind": told.kind.value if told and told.kind else None,
        "owner": told.owner if told else "",
        "changes": told.changes if told else None,
        "ids": list(told.ids) if told else [],
        "requests": [
            {
                "sequence": one.sequence,
                "requestId": one.request_id,
                "outcome": one.outcome.value,
                "performed": one.performed,
            }
            for one in (told.decisions if told else ())
        ],
    }


def _time(ms: int) -> str:
    return datetime.fromtimestamp(min(ms, 253_402_300_799_999) / 1000, UTC).isoformat(timespec="milliseconds")

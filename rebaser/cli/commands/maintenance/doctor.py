"""`rebaser doctor`: checks the installation, or checks and repairs the log of one change set.

Invariant: the command changes nothing without --repair and --yes. It shows what a repair loses, both before and after
the repair.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rebaser.cli.errors import CommandFailed, usage_error
from rebaser.cli.options import (
    ACCESS_VALUES,
    DEFAULT_NATS,
    Json,
    Nats,
    Prefix,
    checked_key,
    optional_change_set,
    optional_workspace,
)
from rebaser.cli.output import console
from rebaser_core.shell import command

if TYPE_CHECKING:
    from rebaser.doctor.examination import Examination
    from rebaser.doctor.history import Finding
    from rebaser.doctor.log_message import CommitSummary
    from rebaser_core.commit import Decision
    from rebaser_core.ids import ChangeSetKey

SHOWN = 20  # maximum number of requests, or of values, that are shown for a finding; --json shows all


def doctor(
    workspace: Annotated[str | None, optional_workspace("Workspace.")] = None,
    change_set: Annotated[str | None, optional_change_set("Change set.")] = None,
    *,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Show what a repair does and loses. With --yes, repair.", allow_from_autoenv=False
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Carry out the repair.", allow_from_autoenv=False)] = False,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Save headers and payloads of damaged messages as files.", file_okay=False),
    ] = None,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Check the installation, or the log of a change set.

    Without WS and CS, check Python, package versions, disk, Java, Spark, NATS, the clock, streams, servers and
    permissions. The exit code is 1 if a check fails. Missing permissions are listed for clients and for servers; a
    missing permission that only servers need is a warning. Permissions to purge, take tasks, unpin and publish progress
    are not checked, because checking them would mean carrying out these operations.

    With WS and CS, check the log of that change set. Without --repair, the exit code is 1 if the log is damaged. With
    --repair, show what a repair would do and lose; with --repair --yes, repair it. A repair starts from the newest
    readable checkpoint, carries over the readable commits after the damage, and asks servers to compute all derived
    values again. Servers may keep running: if a server writes to the log during the repair, nothing is changed, and the
    command can be run again.
    """
    from rebaser.cli import logs
    from rebaser.cli.runner import run_async

    logs.configure("error", "console")  # the repair runs server code, which logs through structlog
    if workspace is None and not (repair or yes or save):
        from rebaser.cli.commands.maintenance.doctor_installation import check_installation

        return check_installation(nats, prefix, as_json=json)
    if workspace is None or change_set is None:
        raise usage_error("give a workspace and a change set: rebaser doctor WS CS")
    if yes and not repair:
        raise usage_error("--yes needs --repair")
    visit = DoctorRun(checked_key(workspace, change_set), repair, yes, save)
    code = run_async(partial(visit.run, nats, prefix))
    if code:
        return code
    if json:
        console.write_json(visit.to_object())
    else:
        visit.show()
    return visit.end()


@dataclass(slots=True)
class DoctorRun:
    """One run of the command on one change set.

    `blobs` is the URL of the blob store, or None if NATS is the blob store. `saved` contains the paths of the files
    that were written. `repaired` is the log sequence of the repair commit, or 0 if nothing was repaired.
    """

    key: "ChangeSetKey"
    repair: bool
    yes: bool
    save: Path | None
    _examination: "Examination | None" = None
    blobs: str | None = None
    saved: list[Path] | None = None
    repaired: int = 0

    async def run(self, nats: str, prefix: str) -> None:
        from rebaser.cli.connect import open_stores
        from rebaser.doctor.examination import examine
        from rebaser.settings import load_settings
        from rebaser_core.errors import FencedError

        settings = load_settings(nats_url=nats, prefix=prefix, **ACCESS_VALUES.get())
        self.blobs = settings.blobs
        async with open_stores(settings) as stores:
            self._examination = examination = await examine(stores, self.key)
            if self.save is not None:
                self.saved = _write_messages(examination, self.save)
            if self.yes and examination.damaged:
                from rebaser.doctor.repair import repair  # slow to import

                try:
                    history = settings.history_for > 0
                    self.repaired = await repair(stores, examination, f"doctor {settings.server_id}", history=history)
                except FencedError as error:
                    raise CommandFailed(f"{error.message}: nothing was changed; run the command again") from error

    @property
    def examination(self) -> "Examination":
        assert self._examination is not None  # noqa: S101 - `run` sets it
        return self._examination

    def end(self) -> int:
        """Return the exit code. Raise `CommandFailed` if the log is damaged, or if only a newer version can read it."""
        examination = self.examination
        if examination.newer:
            raise CommandFailed(
                f"this log is not damaged, but only a newer version of Rebaser can read it ({examination.newer}); "
                "run `rebaser doctor` of the newest version"
            )
        if not examination.damaged or self.repaired or self.repair:
            return 0
        repair = command("doctor", self.key.workspace, self.key.change_set, options=("--repair",))
        raise CommandFailed(f"the log is damaged; to see what a repair does, run `{repair}`")

    # -- for people ------------------------------------------------------------------------------------------------

    def show(self) -> None:
        examination, write = self.examination, console.write_line
        place = f"{self.key.workspace}/{self.key.change_set}"
        if examination.messages:
            base = f", checkpoint of commit {examination.base}" if examination.base else ""
            write(f"{place}: {examination.messages:,} messages, {examination.first} to {examination.last}{base}")
        for note in examination.notes:
            write(f"note: {console.safe(note)}")
        if examination.newer:
            return
        if not examination.damaged:
            write(f"{place}: the log is intact")
            return
        intact = f"; intact up to commit {examination.intact_until}"
        write(f"{place}: damaged{intact if examination.findings[0].sequence > examination.intact_until else ''}")
        for finding in examination.findings:
            _show_finding(finding)
        self._show_repair()

    def _show_repair(self) -> None:
        examination, write, done = self.examination, console.write_line, bool(self.repaired)
        again = command("dlq redrive", self.key.workspace, self.key.change_set, options=("--code", "skipped"))
        for request in examination.queued[:SHOWN]:
            goes = "goes" if done else "would go"
            write(
                f"request {request.request_id} ({request.sequence}) is still in the queue; it {goes} to the dead "
                "letters with the code skipped; to send it again: "
                f"`{again}`"
            )
        _more(len(examination.queued), "requests in the queue")
        if any("blob" in finding.problem for finding in examination.findings):
            store = "NATS" if self.blobs is None else self.blobs.partition("?")[0]
            write(f"blobs were read from {store}; if servers use another store, set REBASER_BLOBS to it")
        for path in self.saved or ():
            write(f"saved {console.safe(str(path))}")
        kept = (
            f"keeps {len(examination.state.cells):,} values and carries over {examination.carried:,} commits "
            "after the damage"
        )
        again = "; all derived values are computed again" if examination.state.recompute else ""
        if done:
            write(f"repaired by commit {self.repaired}, which {kept}{again}")
        else:
            loss = "loses the edits listed above" if examination.loses_edits else "loses nothing"
            write(f"a repair {loss}; it {kept}{again}")
            if self.repair:
                write("nothing was changed; to repair, add --yes")

    # -- for machines ----------------------------------------------------------------------------------------------

    def to_object(self) -> dict[str, Any]:
        examination = self.examination
        return {
            "workspaceId": self.key.workspace,
            "changeSetId": self.key.change_set,
            "messages": examination.messages,
            "first": examination.first,
            "last": examination.last,
            "checkpoint": examination.base,
            "damaged": examination.damaged,
            "newer": examination.newer,
            "wholeUntil": examination.intact_until,
            "findings": [_finding_object(finding) for finding in examination.findings],
            "notes": examination.notes,
            "carried": examination.carried,
            "values": len(examination.state.cells),
            "loses": examination.loses_edits,
            "queued": [
                {"sequence": request.sequence, "requestId": request.request_id} for request in examination.queued
            ],
            "saved": [str(path) for path in self.saved or ()],
            "repairedBy": self.repaired or None,
        }


def _write_messages(examination: "Examination", folder: Path) -> list[Path]:
    """Write the unreadable messages to `folder`, and return the paths of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for message in examination.unreadable:
        headers = console.json_text(dict(message.headers)).encode()
        for suffix, content in (("json", headers), ("payload", message.data)):
            files.append(folder / f"{examination.key}-{message.sequence}.{suffix}")
            files[-1].write_bytes(content)
    return files


_COSTS = {
    "nothing": "nothing is lost",
    "edits": "LOST: the edits of this commit",
    "unknown": "POSSIBLY LOST: the edits of this commit, if it had any",
}


def _show_finding(finding: "Finding") -> None:
    summary, write = finding.summary, console.write_line
    about = "" if summary is None else _about(finding, summary)
    write(f"  {finding.sequence}  {console.safe(finding.problem)}{about}; {_COSTS[finding.cost.value]}")
    if summary is None or finding.cost.value == "nothing":
        return
    for decision in summary.decisions[:SHOWN]:
        write(f"      request {console.safe(_decision(decision))}")
    _more(len(summary.decisions), "requests")
    if summary.ids:
        write(f"      values {console.safe(', '.join(summary.ids[:SHOWN]))}")
        _more(max(summary.changes or 0, len(summary.ids)), "values")


def _about(finding: "Finding", summary: "CommitSummary") -> str:
    kind = "" if summary.kind is None else summary.kind.value
    time = _time(summary.at_ms if summary.at_ms is not None else finding.time_ns // 1_000_000)
    words = [word for word in (kind, time, f"by {summary.owner}" if summary.owner else "") if word]
    return console.safe(f" ({', '.join(words)})")


def _decision(decision: "Decision") -> str:
    return f"{decision.request_id} ({decision.sequence}): {decision.outcome.value}, {decision.performed:,} updates"


def _more(count: int, what: str) -> None:
    if count > SHOWN:
        console.write_line(f"      and {count - SHOWN:,} more {what}; see --json")


def _finding_object(finding: "Finding") -> dict[str, Any]:
    summary = finding.summary
    return {
        "sequence": finding.sequence,
        "problem": finding.problem,
        "lost": finding.cost.value,
        "time": _time(finding.time_ns // 1_000_000) if finding.time_ns else None,
        "kind": summary.kind.value if summary and summary.kind else None,
        "owner": summary.owner if summary else "",
        "changes": summary.changes if summary else None,
        "ids": list(summary.ids) if summary else [],
        "requests": [
            {
                "sequence": decision.sequence,
                "requestId": decision.request_id,
                "outcome": decision.outcome.value,
                "performed": decision.performed,
            }
            for decision in (summary.decisions if summary else ())
        ],
    }


def _time(ms: int) -> str:
    return datetime.fromtimestamp(min(ms, 253_402_300_799_999) / 1000, UTC).isoformat(timespec="milliseconds")

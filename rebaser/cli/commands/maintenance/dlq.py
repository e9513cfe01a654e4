"""`rebaser dlq`: lists dead letters, shows them, sends them again (redrives them) or drops them.

Invariant: without --yes, `redrive` and `drop` ask for confirmation if they apply to more than one dead letter. Both
print the number of dead letters that they have processed.
"""

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from rebaser.cli.errors import CommandFailed, usage_error
from rebaser.cli.options import (
    DEFAULT_NATS,
    Json,
    Nats,
    Prefix,
    checked_key,
    examples,
    optional_change_set,
    optional_workspace,
    with_access,
)
from rebaser.cli.output import console

if TYPE_CHECKING:
    from rebaser_client import DeadLetter, DeadLetterBox

    Act: TypeAlias = Callable[[DeadLetterBox, DeadLetter], Awaitable[bool]]

FULL_TRIES = 20  # maximum number of times that a redrive waits for room in a full queue
PREVIEW = 2000  # maximum number of characters of a payload that are shown

dlq = typer.Typer(
    name="dlq",
    help="List, show, redrive or drop dead letters.\n\nA dead letter is a request that could not be processed.",
    rich_markup_mode=None,
    epilog=examples(
        "rebaser dlq list",
        "rebaser dlq show shop draft --id 01K0V3R9J2",
        "rebaser dlq redrive shop draft --code unsupported_version",
    ),
)

Workspace = Annotated[str | None, optional_workspace("Only dead letters of this workspace.")]
ChangeSet = Annotated[str | None, optional_change_set("Only dead letters of this change set.")]
Code = Annotated[
    str | None, typer.Option(metavar="CODE", help="Only dead letters with this reason code.", allow_from_autoenv=False)
]
Id = Annotated[
    str | None,
    typer.Option(
        "--id", metavar="ID", help="Only the dead letter of the request with this id.", allow_from_autoenv=False
    ),
]
All = Annotated[bool, typer.Option("--all", help="Apply the command to all dead letters.", allow_from_autoenv=False)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.", allow_from_autoenv=False)]


@dataclass(frozen=True, slots=True)
class LetterSelection:
    """Selects the dead letters to which a command applies. A field that is None matches all dead letters."""

    workspace: str | None
    change_set: str | None
    code: str | None
    request_id: str | None

    def check(self) -> None:
        if self.workspace is not None:
            checked_key(self.workspace, self.change_set or "any", reserved=True)

    @property
    def is_everything(self) -> bool:
        return self.workspace is None and self.code is None and self.request_id is None

    async def find(self, box: "DeadLetterBox") -> list["DeadLetter"]:
        letters = box.find(self.workspace, self.change_set, code=self.code, request_id=self.request_id)
        return [letter async for letter in letters]


def _run(nats: str, prefix: str, work: Callable[["DeadLetterBox"], Awaitable[None]]) -> int:
    from rebaser.cli.connect import connect_client
    from rebaser.cli.runner import run_async

    async def connect_and_work() -> None:
        async with connect_client(nats, prefix) as client:
            await work(client.dead_letters)

    return run_async(connect_and_work)


@dlq.command(
    "list",
    epilog=examples("rebaser dlq list", "rebaser dlq list shop --json | jq -r .code | sort | uniq -c"),
)
@with_access
def list_(
    workspace: Workspace = None,
    change_set: ChangeSet = None,
    *,
    code: Code = None,
    id_: Id = None,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """List dead letters, oldest first."""
    selection = LetterSelection(workspace, change_set, code, id_)
    selection.check()
    letters: list[DeadLetter] = []

    async def work(box: "DeadLetterBox") -> None:
        letters.extend(await selection.find(box))

    exit_code = _run(nats, prefix, work)
    if exit_code:
        return exit_code
    if json:
        for letter in letters:
            console.write_json(_object(letter))
        return exit_code
    if console.is_terminal():
        titles, rows = ("died (UTC)", "request", "reason"), [_terminal_row(letter) for letter in letters]
        console.table(titles, rows, title=f"Dead letters: {len(letters):,}")
    else:
        for letter in letters:
            console.write_row(
                _time(letter.dead_at_ms),
                letter.key.workspace,
                letter.key.change_set,
                letter.request_id,
                letter.code,
                str(letter.attempts),
                str(letter.redrive),
                letter.server,
                letter.reason,
            )
    return exit_code


def _terminal_row(letter: "DeadLetter") -> tuple[tuple[str, ...], ...]:
    """Return a row of three cells, each with two lines, so that the table fits into 80 columns."""
    date, _, time = _time(letter.dead_at_ms).partition("T")
    attempts = "1 attempt" if letter.attempts == 1 else f"{letter.attempts:,} attempts"
    redriven = f", redriven {letter.redrive:,}x" if letter.redrive else ""
    return (
        (date, time[:8]),
        (f"{letter.key.workspace}/{letter.key.change_set}", letter.request_id),
        (f"{letter.code} ({attempts}{redriven})", letter.reason),
    )


@dlq.command(
    epilog=examples("rebaser dlq show shop draft", "rebaser dlq show --id 01K0V3R9J2 --json | jq .request"),
)
@with_access
def show(
    workspace: Workspace = None,
    change_set: ChangeSet = None,
    *,
    code: Code = None,
    id_: Id = None,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Show dead letters in full.

    It prints the reason, the headers, and the readable part of the request.
    """
    selection = LetterSelection(workspace, change_set, code, id_)
    selection.check()
    shown = 0

    async def work(box: "DeadLetterBox") -> None:
        nonlocal shown
        for letter in await selection.find(box):
            payload = await box.payload(letter)
            if payload is not None:
                shown += 1
                _show(letter, payload, json)

    return _run(nats, prefix, work) or _require_matches(shown)


def _require_matches(count: int) -> int:
    if not count:
        raise CommandFailed("no dead letter matches; `rebaser dlq list` shows all")
    return 0


def _show(letter: "DeadLetter", payload: bytes, json: bool) -> None:
    from rebaser_core.messages.dead_letter import readable_request

    request = readable_request(letter, payload)
    if json:
        content = {"request": request} if request is not None else {"payload": payload.hex()}
        console.write_json(_object(letter) | {"headers": letter.headers} | content)
        return
    for name, value in _object(letter).items():
        console.write_line(f"{name}: {'' if value is None else console.safe(str(value))}")
    for name, value in letter.headers.items():
        console.write_line(f"header {console.safe(name)}: {console.safe(value)}")
    text = repr(payload[:PREVIEW]) if request is None else console.json_text(request)
    more = f" … ({len(payload):,} bytes)" if len(text) > PREVIEW or len(payload) > PREVIEW else ""
    console.write_line(f"request: {console.safe(text[:PREVIEW])}{more}")
    console.write_line()


@dlq.command(
    epilog=examples(
        "rebaser dlq redrive --id 01K0V3R9J2",
        "rebaser dlq redrive shop --code blob_missing --yes",
        "rebaser dlq redrive --all --yes",
        "rebaser dlq show --id cart-7 --json | jq -c '.request.v2.updates[]' | rebaser enqueue shop draft --file -",
    ),
)
@with_access
def redrive(
    workspace: Workspace = None,
    change_set: ChangeSet = None,
    *,
    code: Code = None,
    id_: Id = None,
    all_: All = False,
    yes: Yes = False,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Send dead requests again.

    Each request keeps its id and goes to the end of the queue of its change set. A request that fails again becomes a
    dead letter again, with a higher redrive count.

    A request with the code request_id_reused fails again as long as its id is remembered. To apply its updates
    immediately, send them with a new id and drop the dead letter.
    """
    action = BulkAction("redrive", "redriven", LetterSelection(workspace, change_set, code, id_), yes, json)
    action.check(all_)
    return action.run(nats, prefix, _redrive)


@dlq.command(
    epilog=examples("rebaser dlq drop --id 01K0V3R9J2", "rebaser dlq drop shop draft --code malformed --yes"),
)
@with_access
def drop(
    workspace: Workspace = None,
    change_set: ChangeSet = None,
    *,
    code: Code = None,
    id_: Id = None,
    all_: All = False,
    yes: Yes = False,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Delete dead letters. This cannot be undone."""
    action = BulkAction("drop", "dropped", LetterSelection(workspace, change_set, code, id_), yes, json)
    action.check(all_)
    return action.run(nats, prefix, _drop)


async def _redrive(box: "DeadLetterBox", letter: "DeadLetter") -> bool:
    import anyio

    from rebaser_client import QueueFull

    for _ in range(FULL_TRIES):
        try:
            return await box.redrive(letter)
        except QueueFull as full:
            await anyio.sleep(full.retry_after)
    return await box.redrive(letter)


async def _drop(box: "DeadLetterBox", letter: "DeadLetter") -> bool:
    await box.drop(letter)
    return True


@dataclass(slots=True)
class BulkAction:
    """Performs an action on the selected dead letters, one after the other, and stops at the first failure."""

    verb: str  # such as "drop"
    done_verb: str  # such as "dropped"
    selection: LetterSelection
    yes: bool
    json: bool
    letters: "list[DeadLetter]" = field(default_factory=list)
    done: int = 0
    failure: str = ""

    def check(self, everything: bool) -> None:
        self.selection.check()
        if self.selection.is_everything is not everything:
            message = "choose dead letters with WS, CS, --code or --id, or give --all"
            raise usage_error(message if not everything else "--all cannot be combined with WS, CS, --code or --id")

    @property
    def matched(self) -> int:
        return len(self.letters)

    def run(self, nats: str, prefix: str, act: "Act") -> int:
        """Find the dead letters, ask for confirmation, perform `act` on each, and print the result."""
        code = _run(nats, prefix, self._find)
        if not code and self.matched > 1 and not self.yes:
            self._confirm()
        if not code and self.letters:
            code = _run(nats, prefix, partial(self._act, act))
        return code or self.end()

    async def _find(self, box: "DeadLetterBox") -> None:
        self.letters = await self.selection.find(box)

    def _confirm(self) -> None:
        """Ask for confirmation. No event loop may be running. Otherwise, the prompt would need a thread, in which
        Ctrl-C cannot end it."""
        if not sys.stdin.isatty():
            raise usage_error(f"{self.matched:,} dead letters match; add --yes to {self.verb} all of them")
        if not typer.confirm(f"{self.verb} {self.matched:,} dead letters?", err=True):
            raise CommandFailed(f"not confirmed: nothing was {self.done_verb}")

    async def _act(self, act: "Act", box: "DeadLetterBox") -> None:
        from rebaser_core.errors import RebaserError

        with console.progress(self.verb, self.matched, counted=True) as bar:
            for letter in self.letters:
                try:
                    self.done += await act(box, letter)
                except RebaserError as error:
                    self.failure = f"request {letter.request_id} of {letter.key}: {error.message}"
                    return
                bar.advance(bar.task_ids[0])

    def end(self) -> int:
        if self.json:
            console.write_json({self.done_verb: self.done, "matched": self.matched})
        if self.failure:
            raise CommandFailed(f"{self.failure}; {self.done:,} of {self.matched:,} were {self.done_verb}")
        _require_matches(self.matched)
        if not self.json:
            console.write_line(f"{self.done_verb} {self.done:,}")
        return 0


def _object(letter: "DeadLetter") -> dict[str, Any]:
    return {
        "diedAt": _time(letter.dead_at_ms),
        "workspaceId": letter.key.workspace,
        "changeSetId": letter.key.change_set,
        "requestId": letter.request_id,
        "code": letter.code,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "redrive": letter.redrive,
        "server": letter.server,
        "requestSequence": letter.request_sequence,
        "sequence": letter.sequence,
        "bytes": letter.size,
        "payloadAddress": letter.payload_address,
    }


def _time(ms: int) -> str:
    return datetime.fromtimestamp(min(ms, 253_402_300_799_999) / 1000, UTC).isoformat(timespec="milliseconds")

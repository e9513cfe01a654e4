"""`rebaser dlq`: look through the dead letters, send them again, drop them.

Invariant: what cannot be undone asks first where it concerns more than one dead letter, and says what it did.
"""

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rebaser.cli import console
from rebaser.cli.errors import CommandFailed, usage_error
from rebaser.cli.options import DEFAULT_NATS, Json, Nats, Prefix, checked_key, examples, with_access

if TYPE_CHECKING:
    from rebaser_client import DeadLetter, DeadLetterBox

FULL_TRIES = 20  # waits for a full queue, each as long as the queue says
PREVIEW = 2000  # characters of a payload

dlq = typer.Typer(
    name="dlq",
    help="Requests that could not be processed: list, show, redrive, drop.",
    rich_markup_mode=None,
    epilog=examples(
        "rebaser dlq list",
        "rebaser dlq show shop draft --id 01K0V3R9J2",
        "rebaser dlq redrive shop draft --code unsupported_version",
    ),
)

Workspace = Annotated[str | None, typer.Argument(metavar="WS", help="Only of this workspace.", show_default=False)]
ChangeSet = Annotated[str | None, typer.Argument(metavar="CS", help="Only of this change set.", show_default=False)]
Code = Annotated[str | None, typer.Option(metavar="CODE", help="Only with this reason code.", allow_from_autoenv=False)]
Id = Annotated[str | None, typer.Option("--id", metavar="ID", help="Only of this request.", allow_from_autoenv=False)]
All = Annotated[bool, typer.Option("--all", help="Every dead letter there is.", allow_from_autoenv=False)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.", allow_from_autoenv=False)]


@dataclass(frozen=True, slots=True)
class LetterSelection:
    """Which dead letters a command is about; what is None matches all."""

    workspace: str | None
    change_set: str | None
    code: str | None
    request_id: str | None

    def check(self) -> None:
        if self.workspace is not None:
            checked_key(self.workspace, self.change_set or "any")

    @property
    def is_everything(self) -> bool:
        return self.workspace is None and self.code is None and self.request_id is None

    async def find(self, box: "DeadLetterBox") -> list["DeadLetter"]:
        found = box.find(self.workspace, self.change_set, code=self.code, request_id=self.request_id)
        return [letter async for letter in found]


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
    found: list[DeadLetter] = []

    async def work(box: "DeadLetterBox") -> None:
        found.extend(await selection.find(box))

    code_ = _run(nats, prefix, work)
    if code_:
        return code_
    if json:
        for letter in found:
            console.write_json(_object(letter))
        return code_
    console.table(
        ("died", "workspace", "change set", "request", "code", "tries", "redriven", "server", "reason"),
        [
            (
                _time(one.dead_at_ms),
                one.key.workspace,
                one.key.change_set,
                one.request_id,
                one.code,
                str(one.attempts),
                str(one.redrive),
                one.server,
                one.reason,
            )
            for one in found
        ],
        right=(5, 6),
        title=f"Dead letters: {len(found):,}",
    )
    return code_


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
    """Show dead letters whole: the reason, the headers, and what was asked for, as far as it can be read."""
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

    return _run(nats, prefix, work) or _some(shown)


def _some(count: int) -> int:
    if not count:
        raise CommandFailed("no dead letter matches")
    return 0


def _show(letter: "DeadLetter", payload: bytes, json: bool) -> None:
    request = _readable(letter, payload)
    if json:
        given = {"request": request} if request is not None else {"payload": payload.hex()}
        console.write_json(_object(letter) | {"headers": letter.headers} | given)
        return
    for name, value in _object(letter).items():
        console.write_line(f"{name}: {console.safe(str(value))}")
    for name, value in letter.headers.items():
        console.write_line(f"header {console.safe(name)}: {console.safe(value)}")
    text = repr(payload[:PREVIEW]) if request is None else console.json_text(request)
    more = f" … ({len(payload):,} bytes)" if len(text) > PREVIEW or len(payload) > PREVIEW else ""
    console.write_line(f"request: {console.safe(text[:PREVIEW])}{more}")
    console.write_line()


def _readable(letter: "DeadLetter", payload: bytes) -> Any:
    """The payload as it would stand in JSON; None if it cannot be read."""
    from rebaser_core.encoding.envelope import ContentType, loads
    from rebaser_core.errors import RebaserError

    try:
        content = loads(ContentType(letter.headers.get("X-CONTENT-TYPE", "")), payload)
        console.json_text(content)
    except (RebaserError, ValueError, TypeError, RecursionError):
        return None
    else:
        return content


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
    """Send dead requests again, each to the end of its change set's queue.

    A request keeps its id. One that is no better than before comes back, with the count of its redrives.

    One that was refused with request_id_reused comes back for as long as its id is remembered. To have it applied at
    once, send its updates under a new id, and drop it.
    """
    batch = BulkAction("redrive", "redriven", LetterSelection(workspace, change_set, code, id_), yes, json)
    batch.check(all_)
    return _run(nats, prefix, partial(batch.run, _redrive)) or batch.end()


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
    """Delete dead letters for good."""
    batch = BulkAction("drop", "dropped", LetterSelection(workspace, change_set, code, id_), yes, json)
    batch.check(all_)
    return _run(nats, prefix, partial(batch.run, _drop)) or batch.end()


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
    """What is done to each dead letter of a selection, one after the other, up to the first failure."""

    verb: str
    done_verb: str
    selection: LetterSelection
    yes: bool
    json: bool
    found: int = 0
    done: int = 0
    failure: str = ""

    def check(self, everything: bool) -> None:
        self.selection.check()
        if self.selection.is_everything is not everything:
            wrong = "say which ones (WS, CS, --code, --id), or --all"
            raise usage_error(wrong if not everything else "--all goes with no other choice")

    async def run(self, act: Callable[["DeadLetterBox", "DeadLetter"], Awaitable[bool]], box: "DeadLetterBox") -> None:
        from rebaser_core.errors import RebaserError

        letters = await self.selection.find(box)
        self.found = len(letters)
        if self.found > 1 and not self.yes:
            await self._confirm()
        with console.progress(self.verb, self.found, counted=True) as bar:
            for letter in letters:
                try:
                    self.done += await act(box, letter)
                except RebaserError as error:
                    self.failure = f"request {letter.request_id} of {letter.key}: {error.message}"
                    return
                bar.advance(bar.task_ids[0])

    async def _confirm(self) -> None:
        from anyio import to_thread

        if not sys.stdin.isatty():
            raise usage_error(f"{self.found:,} dead letters match: add --yes to {self.verb} all of them")
        ask = partial(typer.confirm, f"{self.verb} {self.found:,} dead letters?", err=True)
        if not await to_thread.run_sync(ask, abandon_on_cancel=True):
            raise CommandFailed(f"nothing was {self.done_verb}")

    def end(self) -> int:
        if self.json:
            console.write_json({self.done_verb: self.done, "matched": self.found})
        if self.failure:
            raise CommandFailed(f"{self.failure}; {self.done:,} of {self.found:,} were {self.done_verb}")
        _some(self.found)
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

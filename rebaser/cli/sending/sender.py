"""Sends the edits of `rebaser enqueue` and the request of `rebaser recompute`, and reports the result.

Invariant: requests are sent strictly one after the other, each only after the previous request was accepted. If a
request fails, the error message contains the numbers of its lines and of the lines that were sent before, and no later
line is sent.

If the queue is full while a file is being sent, the next batch waits for room for at most `--timeout` seconds.
"""

import time
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from rebaser.cli.errors import CommandFailed, with_advice
from rebaser.cli.output import console
from rebaser.cli.output.wording import recompute_text, tally_text
from rebaser.cli.sending.outcome import failure_lines, tally_object, unknown_input_warnings
from rebaser.cli.sending.source import UpdateSource
from rebaser_core.errors import RebaserError, TransientError, UnprocessableError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.shell import command
from rebaser_core.updates import Derive, Recompute, Remove, Unset, Update

if TYPE_CHECKING:
    from rich.progress import Progress

    from rebaser.cli.sending.batches import EncodedBatch
    from rebaser_client import RebaserClient
    from rebaser_core.messages import EncodedUpdates
    from rebaser_core.state.change_set import ChangeSetState
    from rebaser_core.state.tally import Tally


class WaitUntil(StrEnum):
    """The event that the command waits for before it ends."""

    NONE = "none"
    APPLIED = "applied"
    DERIVED = "derived"


@dataclass(slots=True)
class EditSender:
    """Sends the edits of one command and records the result.

    `timeout` is the number of seconds to wait for each answer. `batch` is the maximum number of updates of a file in
    one request. `recompute` is a request to recompute values, which is sent instead of edits. `request_id` is the id of
    the only request; if it is None, each request gets a new id. If `fail_on_error` is true, the command fails if any
    value of the change set is in error. `author` and `message` apply to all requests.
    """

    key: ChangeSetKey
    wait: WaitUntil
    timeout: float
    batch: int = 1
    recompute: Recompute | None = None
    content_type: str = "application/cbor"
    request_id: str | None = None
    fail_on_error: bool = False
    author: str = ""
    message: str = ""
    requests: int = 0  # number of accepted requests
    updates: int = 0  # number of updates in these requests
    performed: int = 0  # number of updates that were applied
    commit: int | None = None  # log sequence of the commit that decided the last request
    last_request: str | None = None  # id of the last request
    waited: float = 0.0  # seconds spent waiting for room in a full queue
    applied_after: float = 0.0  # seconds until all requests were applied
    derived_after: float | None = None  # seconds until the derived values were up to date
    error: RebaserError | None = None
    tally: "Tally | None" = None  # counts the values of the change set, once they are derived
    warnings: list[str] = field(default_factory=list)
    _location: str = ""  # the beginning of an error message, which says where in the input the error is
    _last_line: int = 0  # number of the last line of the file that was accepted
    _in_flight: str = ""  # the lines of the file that were sent but not yet accepted
    _started: float = field(default_factory=time.perf_counter)

    async def run(self, nats: str, prefix: str, edits: list[Update], source: UpdateSource | None) -> None:
        """Send all edits. An expected failure is stored in `error`, and the counts then include only the requests
        before it."""
        from rebaser.cli.connect import connect_client

        async with connect_client(nats, prefix, content_type=self.content_type) as client:
            self._started = time.perf_counter()
            try:
                if self.recompute is not None:
                    await self._check_exists(client)
                if edits or self.recompute is not None:
                    missing = await self._missing_ids(client, edits)
                    await self._send(client, edits)
                    self.warnings += missing
                if source is not None:
                    await self._send_source(client, source)
                self.applied_after = time.perf_counter() - self._started
                if self.wait is WaitUntil.DERIVED and self.commit is not None:
                    await self._wait_derived(client, self.commit)
                    await self._count_values(await self._load_state(client, edits))
                elif self.wait is WaitUntil.APPLIED and any(isinstance(edit, Derive) for edit in edits):
                    # The edits have been applied, so if this read fails, only warnings are missing.
                    with suppress(RebaserError):
                        await self._load_state(client, edits)
            except RebaserError as error:
                self.error = error
                self.last_request = getattr(error, "request_id", self.last_request)

    async def _check_exists(self, client: "RebaserClient") -> None:
        if not await client.exists(self.key.workspace, self.key.change_set):
            raise UnprocessableError(
                f"there is no change set {self.key.change_set} in workspace {self.key.workspace}; "
                f"`{command('list', self.key.workspace)}` shows all change sets"
            )

    async def _missing_ids(self, client: "RebaserClient", edits: list[Update]) -> list[str]:
        """Return a warning for each id that `edits` unset or remove although it does not exist."""
        ids = [edit.id for edit in edits if isinstance(edit, (Unset, Remove))]
        if not ids:
            return []
        state = await client.state(self.key.workspace, self.key.change_set)
        return [f"{id_} did not exist" for id_ in ids if id_ not in state.cells]

    async def _load_state(self, client: "RebaserClient", edits: list[Update]) -> "ChangeSetState":
        """Return the current state. Add a warning for each formula in `edits` that uses unknown ids."""
        state = await client.state(self.key.workspace, self.key.change_set)
        self.warnings += unknown_input_warnings(edits, state)
        return state

    async def _count_values(self, state: "ChangeSetState") -> None:
        from anyio import to_thread

        from rebaser_core.state.tally import tally

        self.tally = await to_thread.run_sync(tally, state)

    async def _wait_derived(self, client: "RebaserClient", commit: int) -> None:
        from rebaser.cli.runner import best_effort

        try:
            async with best_effort(partial(_show_progress, client, self.key)):
                await client.wait_covered(self.key.workspace, self.key.change_set, commit, timeout=self.timeout)
        except TimeoutError:
            raise TransientError(
                f"applied as commit {commit}, but the derived values are not up to date after {self.timeout:g} s; "
                "`rebaser status` shows whether a server is computing them",
                code="timeout",
            ) from None
        self.derived_after = time.perf_counter() - self._started

    async def _send(self, client: "RebaserClient", updates: "list[Update] | EncodedUpdates") -> None:
        ws, cs, recompute = self.key.workspace, self.key.change_set, self.recompute
        if self.wait is WaitUntil.NONE:
            self.last_request = await client.enqueue_updates(
                *(ws, cs, updates),
                recompute=recompute,
                request_id=self.request_id,
                author=self.author,
                message=self.message,
            )
        else:
            response = await client.enqueue_updates_with_reply(
                *(ws, cs, updates),
                wait="applied",
                timeout=self.timeout,
                recompute=recompute,
                request_id=self.request_id,
                author=self.author,
                message=self.message,
            )
            self.last_request = response.id
            self._count(response.status)
        self.requests += 1
        self.updates += len(updates)

    def _count(self, status: Any) -> None:
        self.performed += status.performed
        self.commit = status.commit

    async def _send_source(self, client: "RebaserClient", source: UpdateSource) -> None:
        self._location = f"{source.name}, "
        with console.progress("sending", source.size) as bar:
            async with aclosing(source.batches(self.batch)) as batches:
                async for batch in batches:
                    await self._send_batch(client, source, batch, bar)
                    bar.advance(bar.task_ids[0], batch.size)
        self._location = ""

    async def _send_batch(
        self, client: "RebaserClient", source: UpdateSource, batch: "EncodedBatch", bar: "Progress"
    ) -> None:
        self._location = f"{source.name}, lines {batch.first_line} to {batch.last_line}: "
        self._in_flight = f"lines {batch.first_line} to {batch.last_line}"
        await self._send_when_there_is_room(client, batch.updates, bar)
        self._in_flight = ""
        self._last_line = batch.last_line
        self._location = f"{source.name}, "

    async def _send_when_there_is_room(
        self, client: "RebaserClient", updates: "EncodedUpdates", bar: "Progress"
    ) -> None:
        import anyio

        from rebaser_client import QueueFull

        deadline = time.perf_counter() + self.timeout
        while True:
            try:
                await self._send(client, updates)
            except QueueFull as full:
                remaining = deadline - time.perf_counter()
                if remaining <= 0:
                    raise
                if not self.waited and bar.disable:
                    queue = full.key if full.scope == "change set" else "all requests"
                    console.note(f"the queue of {queue} is full; waiting for room")
                bar.update(bar.task_ids[0], description="waiting for room")
                pause = min(full.retry_after, remaining)
                await anyio.sleep(pause)
                self.waited += pause
            else:
                bar.update(bar.task_ids[0], description="sending")
                return

    # -- the result ------------------------------------------------------------------------------------------------

    @property
    def _verb(self) -> str:
        return "sent" if self.wait is WaitUntil.NONE else "applied"

    def show_result(self, *, json: bool) -> None:
        """Print the result. Raise `CommandFailed` if the command failed."""
        if json:
            console.write_json(self.to_object())
        if self.error is not None:
            raise CommandFailed(self.error_line())
        if not json:
            console.write_line(self.summary())
        for line in self.warnings:
            console.note(f"warning: {line}")
        if self.tally is not None and not json:
            for line in failure_lines(self.tally):
                console.note(line)
        if self.fail_on_error and self.tally is not None and self.tally.errors:
            count = self.tally.errors
            raise CommandFailed(f"{count:,} value{' is' if count == 1 else 's are'} in error")

    def error_line(self) -> str:
        """Return a message that contains the error, where it is in the input, and which lines were sent before it."""
        assert self.error is not None  # noqa: S101 - called only after a failure
        line = self._location + self.error.message
        if self._last_line:
            line += f"; lines 1 to {self._last_line} were {self._verb}"
        elif self.requests and self._location:
            line += f"; the edits of the options were {self._verb}"
        return with_advice(f"{line}; nothing after that was sent" if self._location else line, self.error)

    def interrupted_line(self) -> str:
        """Return a message that says which lines of the file were sent, or may have been sent, before the interruption.
        Return an empty text if no lines were sent."""
        parts = [f"lines 1 to {self._last_line} were {self._verb}"] if self._last_line else []
        if self._in_flight:
            parts.append(f"{self._in_flight} may have been {self._verb}")
        return f"interrupted; {', '.join(parts)}" if parts else ""

    def summary(self) -> str:
        """Return the result as one line for people."""
        if not self.requests:
            return "no updates: nothing sent"
        what = f"{self.updates:,} update{'' if self.updates == 1 else 's'}"
        if self.recompute is not None:
            what = f"the request to recompute {recompute_text(self.recompute.function)}"
        if self.requests > 1:
            what += f" in {self.requests:,} requests"
        if self.waited:
            what += f" (waited {console.duration_text(self.waited)} for room)"
        if self.wait is WaitUntil.NONE:
            return f"sent {what}, last request {self.last_request}"
        line = f"applied {what}, commit {self.commit}, {console.duration_text(self.applied_after)}"
        if self.derived_after is None:
            return line
        line += f"; derived values up to date after {console.duration_text(self.derived_after)}"
        return line if self.tally is None else f"{line}: {tally_text(self.tally)}"

    def to_object(self) -> dict[str, Any]:
        """Return the result as an object for `--json`."""
        out: dict[str, Any] = {
            "workspaceId": self.key.workspace,
            "changeSetId": self.key.change_set,
            "status": "success" if self.error is None else "error",
            "requests": self.requests,
            "updates": self.updates,
            "performed": self.performed,
            "commit": self.commit,
            "lastRequestId": self.last_request,
            "recompute": None if self.recompute is None else self.recompute.to_wire(),
            "derived": self.derived_after is not None,
            "waitedSeconds": round(self.waited, 6),
            "seconds": round(self.derived_after or self.applied_after, 6),
        }
        if self.tally is not None:
            out |= tally_object(self.tally)
        if self.warnings:
            out["warnings"] = self.warnings
        if self.error is not None:
            out["error"] = {"code": self.error.code, "message": self.error.message}
        return out


async def _show_progress(client: "RebaserClient", key: ChangeSetKey) -> None:
    """On a terminal, show the progress of the update as a bar. Short updates report no progress."""
    with console.progress("computing", None, counted=True) as bar:
        async with aclosing(client.watch_progress(key.workspace, key.change_set)) as reports:
            async for progress in reports:
                bar.update(bar.task_ids[0], completed=progress.done, total=progress.total)

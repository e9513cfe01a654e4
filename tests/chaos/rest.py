"""Waits until all work is done, and then collects the evidence for the checker."""

from collections.abc import Sequence

import anyio

from rebaser_client.admin.dead_letters import DeadLetterBox
from rebaser_client.blobs import open_blobs
from rebaser_client.jetstream import JetStream
from rebaser_client.log.reader import StateLoader
from rebaser_core.commit import Commit
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey
from tests.chaos.checker import Evidence, Violation
from tests.chaos.system import SUBJECTS, System

NAP = 0.5  # seconds
NAPS = 480


async def at_rest(
    system: System, keys: Sequence[ChangeSetKey], *, owned: bool = False
) -> tuple[list[Evidence], list[Violation]]:
    """Return evidence about every change set that has a log, and violations for those whose work does not end. With
    `owned`, owners keep idle change sets, so there may be tasks."""
    complaints: list[Violation] = []
    async with system.jetstream() as js, system.client() as client:
        reader = StateLoader(js, SUBJECTS, open_blobs(None, js, SUBJECTS.blobs_bucket))
        waiting: dict[ChangeSetKey, str] = {}
        for _ in range(NAPS):
            waiting = {key: why for key in keys if (why := await _why_not_quiet(js, reader, key, owned))}
            if not waiting:
                break
            await anyio.sleep(NAP)
        complaints += [Violation(10, key.change_set, f"no rest: {why}") for key, why in waiting.items()]
        evidence: list[Evidence] = []
        for key in keys:
            try:
                evidence.append(await _evidence(js, reader, client.dead_letters, key))
            except RebaserError as error:
                complaints.append(Violation(1, key.change_set, f"it cannot be loaded: {error.message}"))
    return [one for one in evidence if one.log], complaints


async def _why_not_quiet(js: JetStream, reader: StateLoader, key: ChangeSetKey, owned: bool) -> str:
    """Return what `key` still waits for; empty if nothing."""
    try:
        last = await reader.last(key)
        applied = last.applied.sequence if last is not None and last.applied is not None else 0
        left = await js.next(SUBJECTS.requests_stream, SUBJECTS.requests(key), applied + 1)
        if left is not None:
            return f"request {left.sequence} is undecided, `applied` is {applied}"
        if last is not None and last.covers is not None and last.debt:
            return f"commit {last.sequence} owes a DVU for {last.debt} roots"
        if not owned and await js.last(SUBJECTS.tasks_stream, SUBJECTS.task(key)) is not None:
            return "it has a task"
    except RebaserError as error:
        return f"cannot look: {error.message}"
    return ""


async def _evidence(js: JetStream, reader: StateLoader, box: DeadLetterBox, key: ChangeSetKey) -> Evidence:
    shown = (await reader.load(key)).state
    log: list[Commit] = []
    while shown.last > (log[-1].sequence if log else 0):
        async for commit in reader.follow(key, log[-1].sequence if log else 0):
            log.append(await reader.with_delta(commit))
            if commit.sequence >= shown.last:
                break
    queued: list[int] = []
    while message := await js.next(SUBJECTS.requests_stream, SUBJECTS.requests(key), (queued or [0])[-1] + 1):
        queued.append(message.sequence)
    letters = [(one.request_id, one.request_sequence) async for one in box.find(key.workspace, key.change_set)]
    return Evidence(key.change_set, log, shown, queued, letters)

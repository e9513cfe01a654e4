"""Gathers the facts with which `rebaser_core.explain` explains why a change set waits.

Invariant: facts that cannot be read are left out or reported as a problem; they are never guessed.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from time import perf_counter, time

import anyio

from rebaser_client.admin.servers import PATIENCE, ServerInfo, ping
from rebaser_client.admin.stream_usage import read_streams
from rebaser_client.blobs import BlobStore
from rebaser_client.jetstream import ApiError, JetStream, StoredMessage
from rebaser_client.jetstream.errors import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND
from rebaser_client.log.blame import Blame
from rebaser_client.log.branches import BranchInfo
from rebaser_client.log.commits import CommitReader
from rebaser_client.nats.errors import NotAllowed
from rebaser_client.nats.messages import as_int
from rebaser_client.notebook import MAX_ROWS, definition_text, html_table, value_text
from rebaser_client.task_groups import flat_task_group
from rebaser_core.commit import DVU_ATTEMPT, PULL_ATTEMPT, Attempt, Commit
from rebaser_core.errors import RebaserError, TransientError, UnsupportedVersion
from rebaser_core.explain.facts import (
    AttemptFacts,
    BranchCondition,
    ChangeSetFacts,
    DeadFacts,
    LogFacts,
    QueueFacts,
    ServerFacts,
    StreamFacts,
    TaskFacts,
)
from rebaser_core.explain.reason import WaitReason
from rebaser_core.explain.reasons import explain
from rebaser_core.explain.values import ValueExplanation
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import read_summary
from rebaser_core.messages.dead_letter import read_letter
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import NANOS, TASKS_CONSUMER

# The codes of reasons that may be false alarms, because a server started or stopped owning the change set while the
# facts were gathered. If one of these reasons is found, the facts are gathered a second time.
# LATE are those that may also be false because the answer of a server is late: then, servers get more time to answer.
LATE = ("lease_running_out", "no_server")
UNSURE = (*LATE, "working", "not_published", "task_not_taken")
CONFIRM = 0.3  # seconds until the facts are gathered a second time


@dataclass(frozen=True, slots=True)
class Explanation:
    """The reasons why a change set waits, the most likely first, and the facts from which they follow."""

    facts: ChangeSetFacts
    reasons: tuple[WaitReason, ...]

    @property
    def waits(self) -> bool:
        """Whether requests or derived values of the change set are waiting to be processed."""
        return any(reason.waits for reason in self.reasons)

    def _repr_html_(self) -> str:
        rows = ((reason.code, reason.text, reason.advice) for reason in self.reasons)
        caption = "waits" if self.waits else "nothing waits"
        return html_table(caption, ("reason", "what is the case", "what to do"), rows, len(self.reasons))


@dataclass(frozen=True, slots=True)
class ExplainedValue:
    """The explanation of a value. `blame` says who last defined the value.

    If the value is stale or an error because of another value that exists, `origin` says who last defined that other
    value.
    """

    value: ValueExplanation
    blame: Blame | None
    origin: Blame | None = None

    def _repr_html_(self) -> str:
        one = self.value
        rows = [
            ("state", one.value.state.value),
            ("value", value_text(one.value)),
            ("definition", definition_text(one.definition)),
            ("why", one.why),
            ("what to do", one.advice),
            ("path", " → ".join(one.path[:MAX_ROWS])),
            *((f"input {each.name}", each.id if each.value is None else value_text(each.value)) for each in one.inputs),
        ]
        rows = [row for row in rows if row[1]]
        return html_table(one.id, ("", ""), rows, len(rows))


class Explainer:
    """Explains why change sets of one installation wait. `branch` reads the `BranchInfo` of a change set."""

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        reader: CommitReader,
        blobs: BlobStore,
        branch: Callable[[ChangeSetKey], Awaitable[BranchInfo | None]],
    ) -> None:
        self._connection = js.connection
        self._js = js
        self._subjects = subjects
        self._reader = reader
        self._blobs = blobs
        self._branch = branch

    async def explain(self, key: ChangeSetKey) -> Explanation:
        """Explain why the change set `key` waits.

        Raise `ApiError` if the streams do not exist, and `NotAllowed` if NATS refuses a call.
        """
        facts = await self.facts(key)
        reasons = explain(facts)
        if reasons[0].code in UNSURE:
            await anyio.sleep(CONFIRM)
            facts = await self.facts(key, PATIENCE if reasons[0].code in LATE else 0.0)
            reasons = explain(facts)
        return Explanation(facts, reasons)

    async def facts(self, key: ChangeSetKey, patience: float = 0.0) -> ChangeSetFacts:
        """Gather the facts about `key`. Wait at most `patience` seconds for the answer of the server that owns it.

        Raise the errors of `explain`.
        """
        servers: list[ServerInfo] = []

        async def ask() -> None:
            with suppress(TransientError):  # without a connection, what `_stored` finds says so
                servers.extend(
                    await ping(self._connection, self._subjects, key=key, patience=patience, enough=_has_owner)
                )

        found: list[ChangeSetFacts] = []
        async with flat_task_group() as group:
            group.start_soon(ask)
            try:
                found.append(await self._stored(key))
            except NotAllowed:
                raise
            except ApiError as error:
                if error.err_code == STREAM_NOT_FOUND:
                    raise
                found.append(ChangeSetFacts(key.workspace, key.change_set, nats_problem=error.message))
            except TransientError as error:
                found.append(ChangeSetFacts(key.workspace, key.change_set, nats_problem=error.message))
        rtt = round(self._connection.away_and_rtt()[1], 3)
        return replace(found[0], servers=tuple(map(_server, servers)), rtt=rtt)

    async def _stored(self, key: ChangeSetKey) -> ChangeSetFacts:
        """Gather the facts that are stored in NATS."""
        js, subjects = self._js, self._subjects
        asked, began = time(), perf_counter()
        requests = await js.stream_info(subjects.requests_stream)
        api_seconds = round(perf_counter() - began, 3)
        now = datetime.fromisoformat(requests.now).timestamp()
        first = await js.next(subjects.requests_stream, subjects.requests(key), 1)
        waiting = (await js.subject_counts(subjects.requests_stream, subjects.requests(key))).get(
            subjects.requests(key), 0
        )
        message = await self._reader.newest_message(key)
        log = None if message is None else await self._log(key, message, now)
        info = None if message is None else await self._branch(key)
        return ChangeSetFacts(
            key.workspace,
            key.change_set,
            queue=QueueFacts(
                waiting if first is not None else 0,
                0.0 if first is None else _age(first, now),
                max(as_int(requests.config.get("max_msgs_per_subject")), 0),
            ),
            task=await self._task(key, now),
            log=log,
            branch=BranchCondition()
            if info is None
            else BranchCondition(info.status, info.protected, info.target or "", info.behind, info.conflicts),
            dead=await self._dead(key, now),
            streams=await self._streams(),
            api_seconds=api_seconds,
            skew=_ahead(now, asked, asked + api_seconds),
        )

    async def _task(self, key: ChangeSetKey, now: float) -> TaskFacts | None:
        js, subjects = self._js, self._subjects
        stored = await js.last(subjects.tasks_stream, subjects.task(key))
        if stored is None:
            return None
        try:
            info = await js.consumer_info(subjects.tasks_stream, TASKS_CONSUMER)
        except ApiError as error:
            if error.err_code != CONSUMER_NOT_FOUND:
                raise
            return TaskFacts(_age(stored, now), delivered=False)  # no server has run yet
        delivered = stored.sequence <= info.delivered_stream
        ahead = max(min(info.num_pending - 1, stored.sequence - info.delivered_stream - 1), 0)
        ack_wait = as_int(info.config.get("ack_wait")) / NANOS
        return TaskFacts(
            _age(stored, now), delivered, 0 if delivered else ahead, ack_wait, info.paused, info.num_waiting
        )

    async def _log(self, key: ChangeSetKey, message: StoredMessage, now: float) -> LogFacts:
        sequence, stored = message.sequence, datetime.fromisoformat(message.time).timestamp()
        try:
            commit = self._reader.decode(sequence, message.headers, message.data) or await self._reader.last(key)
        except (TransientError, UnsupportedVersion) as error:
            return LogFacts(sequence, _since(stored, now), problem=error.message)
        if commit is None:
            return LogFacts(sequence, _since(stored, now), covers=sequence)
        return LogFacts(
            sequence,
            _since(stored, now),
            commit.kind.value,
            commit.owner,
            commit.sequence if commit.covers is None else commit.covers,
            commit.debt,
            commit.unknown,
            None if commit.attempt is None else _attempt(commit.attempt, now),
            checkpoint_problem=await self._checkpoint_problem(commit),
            skew=round(commit.at_ms / 1000 - stored, 3),
            errors=read_summary(message.headers)[1] or 0,
        )

    async def _checkpoint_problem(self, commit: Commit) -> str:
        """Return why the checkpoint that `commit` refers to cannot be read, or an empty string if its blob exists.

        The content of the checkpoint is not read.
        """
        if commit.checkpoint is None:
            return ""
        try:
            there = await self._blobs.has(commit.checkpoint.address)
        except NotAllowed:
            return ""
        except RebaserError as error:
            return error.message
        return "" if there else f"there is no blob {commit.checkpoint.address}"

    async def _dead(self, key: ChangeSetKey, now: float) -> DeadFacts | None:
        js, stream, subject = self._js, self._subjects.dlq_stream, self._subjects.dlq(key)
        stored = await js.last(stream, subject)
        if stored is None:
            return None
        count = (await js.subject_counts(stream, subject)).get(subject, 0)
        letter = read_letter(stored.sequence, key, stored.headers, len(stored.data))
        return DeadFacts(count, letter.code, letter.reason, letter.request_id, _age(stored, now))

    async def _streams(self) -> tuple[StreamFacts, ...]:
        subjects = self._subjects
        roles = {
            subjects.requests_stream: "requests",
            subjects.tasks_stream: "tasks",
            subjects.commits_stream: "commits",
            subjects.dlq_stream: "dlq",
            f"OBJ_{subjects.blobs_bucket}": "blobs",
        }
        return tuple(
            StreamFacts(roles[one.name], one.name, one.percent_full, one.copies, one.copies_behind)
            for one in await read_streams(self._js, subjects)
            if one.name in roles
        )


def _ahead(now: float, asked: float, answered: float) -> float:
    """Return by how many seconds a clock, which showed `asked` and `answered` at both ends of a request, is ahead of
    the clock that answered `now`. A difference that the duration of the request may explain does not count."""
    return round(asked - now if asked > now else min(answered - now, 0.0), 3)


def _has_owner(servers: list[ServerInfo]) -> bool:
    return any(server.about is not None and server.about.phase is not None for server in servers)


def _server(info: ServerInfo) -> ServerFacts:
    return ServerFacts(
        info.id, info.ready, info.trouble, info.dvu, info.owned, info.slots, frozenset(info.functions), info.about
    )


def _attempt(attempt: Attempt, now: float) -> AttemptFacts:
    what = {DVU_ATTEMPT: "update", PULL_ATTEMPT: "pull"}.get(attempt.sequence, "request")
    return AttemptFacts(what, attempt.count, attempt.deaths, _since(attempt.first_ms / 1000, now))


def _age(message: StoredMessage, now: float) -> float:
    return _since(datetime.fromisoformat(message.time).timestamp(), now)


def _since(then: float, now: float) -> float:
    return round(max(now - then, 0.0), 3)

"""The promises, checked at every step: at each message that is stored or removed, and at each reply.

Invariant: what it says of a run rests on what the server stored, never on what the product believes of itself. It
decodes messages with the product's codec (which has tests of its own), and folds nothing with the product's code.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from rebaser_core.branches.branch import Apply, Create, Rebase
from rebaser_core.checkpoint import open_checkpoint, read_checkpoint
from rebaser_core.commit import Applied, BranchStatus, CheckpointRef, Commit, Decision, Kind, Marking, Outcome, Reverts
from rebaser_core.encoding.envelope import REDRIVE
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.limits import DEFAULT_LIMITS
from rebaser_core.messages import (
    Conflicts,
    EnqueueUpdatesRequest,
    EnqueueUpdatesResponse,
    Failure,
    Success,
    decode,
    decode_addresses,
    decode_changes,
    decode_commit,
    decode_delta,
    decode_replay,
    decode_tail,
    decode_updates_blob,
    peek,
    read_blobs,
    read_row,
)
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Derive, Remove, Update
from tests.simulation.applies import (
    protected_wrongly,
    wrong_apply,
    wrong_apply_headers,
    wrong_apply_refusal,
    wrong_apply_state,
    wrong_as_deleted,
    wrong_deletion,
    wrong_mark,
)
from tests.simulation.book import Book, as_null
from tests.simulation.forks import (
    Deleted,
    action_of,
    begin,
    closed_wrongly,
    replaces,
    unlawful,
    wrong_create,
    wrong_headers,
    wrong_refusal,
)
from tests.simulation.model.store import Stored, Stream
from tests.simulation.rebases import (
    SETTLES,
    Disputed,
    wrong_asked,
    wrong_disputes,
    wrong_pull,
    wrong_rebase_refusal,
    wrong_replay,
    wrong_settled,
)
from tests.simulation.tries import MAX_DEATHS, Strikes, Tries

CROWDED_FOR = 10.0  # virtual seconds from when logs were too large until history that gave way is gone, at most
OUTCOMES = {Outcome.SUCCESS: Success, Outcome.CONFLICTS: Conflicts, Outcome.DEAD: Failure, Outcome.ERROR: Failure}


class Violation(Exception):  # noqa: N818 - what it is
    """A promise was broken."""


@dataclass
class Asked:
    """A request as it was stored. `request_id` is empty if nobody could read it."""

    sequence: int
    request_id: str
    message: EnqueueUpdatesRequest | None
    at: float  # virtual seconds
    redrive: int = 0
    dead_at_ms: int = 0  # when it died, if it was redriven
    outdated: Callable[[], float] = lambda: -math.inf  # when a deposed leader answered a read last

    @property
    def knows(self) -> float:
        """Whoever decides it knows what was stored by then, in other logs, too."""
        return self.at if self.outdated() < self.at else -math.inf


@dataclass
class History:
    """One change set: what was asked, and what its log says became of it."""

    key: ChangeSetKey
    asked: dict[int, Asked] = field(default_factory=dict)
    decided: dict[int, tuple[Decision, int]] = field(default_factory=dict)
    outcomes: dict[str, tuple[Decision, int]] = field(default_factory=dict)  # the newest of each id
    answers: dict[str, list[tuple[Decision, int]]] = field(default_factory=dict)  # all of each id
    dead: set[int] = field(default_factory=set)  # sequences of which a dead letter is stored
    skipped: set[int] = field(default_factory=set)  # sequences declared dead after they were decided and forgotten
    owners: list[str] = field(default_factory=list)  # who owned it, in order
    last: int = 0
    applied: Applied | None = None
    covers: int = 0
    debt: int = 0
    checkpoint: int = 0
    named: list[tuple[int, int]] = field(default_factory=list)  # checkpoints: log sequence, when named (Unix ms)
    reads_from: dict[int, int] = field(default_factory=dict)  # by commit: the checkpoint that it names, 0 for none
    times: dict[int, float] = field(default_factory=dict)  # by log sequence, virtual seconds
    book: Book = field(default_factory=Book)
    deltas: dict[int, tuple[int, list[Update]]] = field(default_factory=dict)  # with the commit in front of it
    purged: int = 0  # the newest commit that was removed
    last_edit: int = 0
    commits: int = 0
    writer: str = ""
    birth: int = 0  # the commit that created it
    statuses: list[tuple[int, BranchStatus]] = field(default_factory=list)  # commits that gave it a status
    targets: list[tuple[int, tuple[str, int]]] = field(default_factory=list)  # commits that gave it a target and a base
    own: int = 0  # the newest commit with edits of its own
    disputes: dict[str, Disputed] = field(default_factory=dict)  # conflicts with the target
    disputed_at: dict[int, dict[str, Disputed]] = field(default_factory=dict)  # by commit
    patches: dict[int, tuple[set[str], set[str]]] = field(default_factory=dict)  # by position: ids changed, ids taken
    replays: set[int] = field(default_factory=set)  # commits that took over what the target did
    lineage: list[int] = field(default_factory=list)  # the commits that make it up, of its origins as well
    # Commits that applied a branch, with its name, its position, and whether it stays open.
    takes: list[tuple[int, str, int, bool]] = field(default_factory=list)
    all_takes: list[tuple[int, str, int, bool]] = field(default_factory=list)  # also before it was deleted
    born_ms: int = 0  # when it was created
    restored: int = 0  # the newest commit that brought it back
    deleted: "Deleted | None" = None  # what it was
    follows: bool = False  # whether it follows its target
    loaded: dict[str, float] = field(default_factory=dict)  # when servers had loaded it last, in virtual seconds
    excused: float = 0.0  # when a server last said that it cannot bring it up to date
    edits_at: list[int] = field(default_factory=list)  # all commits that edited it
    marks: list[tuple[int, bool]] = field(default_factory=list)  # commits that protected it, or did so no longer
    tries: Tries = field(kw_only=True)

    @property
    def protected(self) -> bool:
        return self.marks[-1:] != [] and self.marks[-1][1]

    @property
    def status(self) -> BranchStatus:
        return self.statuses[-1][1] if self.statuses else BranchStatus.OPEN

    def status_at(self, position: int) -> BranchStatus:
        return ([BranchStatus.OPEN] + [status for at, status in self.statuses if at <= position])[-1]

    @property
    def gone(self) -> bool:
        return self.status is BranchStatus.DELETED

    @property
    def closed(self) -> bool:
        return self.status is not BranchStatus.OPEN

    def taken_at(self, *, base: int, name: str) -> bool:
        """Whether the branch `name` was applied after `base`."""
        return any(at > base and one == name for at, one, _, _ in self.takes)

    @property
    def target(self) -> tuple[str, int]:
        """What it branches from, and the base."""
        return self.targets[-1][1] if self.targets else ("", 0)

    def target_at(self, sequence: int) -> tuple[str, int]:
        """The same as of one of its commits."""
        return next((target for at, target in reversed(self.targets) if at <= sequence), ("", 0))

    def closed_at(self, time: float) -> bool:
        """Whether it was closed at that time."""
        known = [status for at, status in self.statuses if self.times[at] <= time]
        return known[-1:] != [] and known[-1] is not BranchStatus.OPEN


class Checker:
    """`blob` gives a blob's bytes by address, `now` virtual seconds. `tell` is called with a line about each commit."""

    def __init__(
        self,
        subjects: Subjects,
        blob: Callable[[str], bytes],
        now: Callable[[], float],
        tell: Callable[[str, str], None],
    ) -> None:
        self._subjects = subjects
        self._blob = blob
        self._now = now
        self._tell = tell
        self.histories: dict[ChangeSetKey, History] = {}
        self.violation: Violation | None = None
        self.strikes = Strikes(now)
        self.dvus: dict[tuple[str, str], int] = {}
        self._born_ms = 0
        self.outdated: Callable[[], float] = lambda: -math.inf  # when a deposed leader answered a read last
        self.forgetful = False  # outcomes may be forgotten while the request is still in the queue
        self.history_for_ms = 0
        self.closed_for = 0.0  # virtual seconds until what is closed is deleted; 0: never
        self.crowded_at = 0  # bytes of all logs from which on history gives way; 0: never
        self._replaced: dict[
            str, int
        ] = {}  # by checkpoint: the commit whose state it has, 0 if it is that at its sequence
        self._crowded = -math.inf  # when they had as many
        self._newest = 0.0  # when the newest commit of all was stored
        self.sent: set[str] = set()  # ids of requests
        self.good: set[str] = set()  # those that nothing is wrong with
        self._seen: set[str] = set()  # ids that a commit edits for who saw what stood there

    def history(self, key: ChangeSetKey) -> History:
        if key not in self.histories:
            self.histories[key] = History(key, tries=Tries(self.strikes))
        return self.histories[key]

    def broken(self, text: str) -> None:
        if self.violation is None:
            self.violation = Violation(text)
            self._tell("!!!", text)

    # -- what happens ----------------------------------------------------------------------------------------------

    def watch(self, stream: Stream, stored: Stored, removed: bool) -> None:
        """The model's hook."""
        if self.violation is not None or stored.subject.startswith("$O.") or stored.subject == self._subjects.sweep:
            return
        kind, key = self._subjects.parse(stored.subject)
        history = self.history(key)
        try:
            if kind == "requests":
                (self._request_removed if removed else self._asked)(history, stored)
            elif kind == "commits":
                if 0 < self.crowded_at < stream.bytes + (stored.size if removed else 0):
                    self._crowded = self._now()
                (self._commit_removed if removed else self._committed)(history, stored)
            elif kind == "dlq":
                (self._letter_removed if removed else self._buried)(history, stored)
        except Violation as violation:
            self.broken(f"{key}: {violation}")

    def replied(self, who: str, data: bytes, headers: dict[str, str]) -> None:
        """`who` sent an answer to a request."""
        if self.violation is not None:
            return
        try:
            response = decode(headers, data, DEFAULT_LIMITS, expect=EnqueueUpdatesResponse)
        except RebaserError:
            return
        try:
            self.check_reply(response)
        except Violation as violation:
            self.broken(f"{who} lies: {violation}")

    def check_reply(self, response: EnqueueUpdatesResponse) -> None:
        history = self.history(ChangeSetKey.of(response.workspace_id, response.change_set_id))
        status, request_id = response.status, response.id
        if not request_id:
            decided = [one for one, commit in history.decided.values() if commit == status.commit and _nameless(one)]
            that(bool(decided), "an answer to nothing that was asked")
            copied = any(one.sequence in history.dead for one in decided)
            that(copied, f"what nobody can read is answered in {history.key} before its copy was stored")
            return
        that(request_id in history.outcomes, f"{request_id} is answered {status}, and no commit holds it")
        if self.forgetful and isinstance(status, Failure) and status.code == "skipped":
            return
        for decision, commit in history.answers[request_id]:
            if type(status) is OUTCOMES[decision.outcome] and status.commit == commit:
                self._check_settling(history, decision, commit)
                dead = decision.outcome is Outcome.DEAD
                that(
                    not dead or decision.sequence in history.dead,
                    f"{request_id} is answered as dead before its copy was stored",
                )
                return
        raise Violation(f"{request_id} is answered {status}, and was decided {history.answers[request_id]}")

    def _check_settling(self, history: History, decision: Decision, commit: int) -> None:
        """Before it is answered that a branch was applied, the branch is asked to go on from there."""
        asked = history.asked[decision.sequence]
        apply = action_of(asked, Apply)
        if apply is not None and decision.outcome is Outcome.SUCCESS:
            branch = self.history(ChangeSetKey(history.key.workspace, apply.source))
            told = any(one.request_id == f"{SETTLES}{commit}" for one in branch.asked.values())
            that(told, f"{decision.request_id} is answered before {branch.key} is asked to take over {commit}")

    def dvu_began(self, who: str, label: str) -> None:
        running = self.dvus[who, label] = self.dvus.get((who, label), 0) + 1
        if running > 1:
            self.broken(f"{who} runs two updates of {label} at once")

    def dvu_ended(self, who: str, label: str) -> None:
        self.dvus[who, label] -= 1

    # -- requests --------------------------------------------------------------------------------------------------

    def _asked(self, history: History, stored: Stored) -> None:
        redrive = int(stored.headers.get(REDRIVE, "0"))
        died = int(stored.headers.get("X-Dead-At-Ms", "0"))
        asked = Asked(stored.sequence, "", None, self._now(), redrive, died, self.outdated)
        try:
            asked.message = decode(stored.headers, stored.data, DEFAULT_LIMITS, expect=EnqueueUpdatesRequest)
            asked.request_id = asked.message.id
        except RebaserError:
            pass  # nobody could read it
        history.asked[stored.sequence] = asked
        by_sweeper = self.closed_for > 0 and asked.request_id.startswith("closed-")
        known = not asked.request_id or asked.request_id in self.sent or by_sweeper
        if not known and asked.request_id.startswith(SETTLES):
            wrong = wrong_asked(self.histories, history, asked)
            that(not wrong, f"request {stored.sequence} of {history.key} is {asked.request_id}: {wrong}")
            return
        that(known, f"request {stored.sequence} is {asked.request_id}, which nobody sent")

    def _request_removed(self, history: History, stored: Stored) -> None:
        asked = history.asked[stored.sequence]
        decided = history.decided.get(stored.sequence)
        if decided is None:
            that(asked.request_id in history.outcomes, f"request {stored.sequence} is deleted and nowhere decided")
        elif decided[0].outcome is Outcome.DEAD:
            that(stored.sequence in history.dead, f"dead request {stored.sequence} is deleted before it was copied")

    def _buried(self, history: History, stored: Stored) -> None:
        sequence = int(stored.headers["X-Original-Sequence"])
        decided = history.decided.get(sequence)
        that(
            sequence in history.skipped or (decided is not None and decided[0].outcome is Outcome.DEAD),
            f"a dead letter of request {sequence} is stored, which no commit declares dead",
        )
        history.dead.add(sequence)

    def _letter_removed(self, history: History, stored: Stored) -> None:
        sequence, redrive = int(stored.headers["X-Original-Sequence"]), int(stored.headers.get(REDRIVE, "0"))
        again = any(one.sequence > sequence and one.redrive == redrive + 1 for one in history.asked.values())
        that(again, f"the dead letter of {sequence} is dropped, and its request is nowhere")

    def updates_of(self, request: EnqueueUpdatesRequest) -> tuple[Update, ...]:
        if request.updates is not None:
            return request.updates
        return decode_updates_blob(self._blob(request.updates_address or ""))

    # -- commits ---------------------------------------------------------------------------------------------------

    def _committed(self, history: History, stored: Stored) -> None:
        commit = decode_commit(stored.headers, stored.data)
        delta = commit.delta
        if commit.delta_blob is not None:
            delta = decode_delta(commit.kind, self._blob(commit.delta_blob.address))
        if commit.before_blob is not None:
            before: Any = decode_delta(commit.kind, self._blob(commit.before_blob.address))
            commit = replace(commit, before=before)
        if commit.replay is not None and commit.replay.blob is not None:
            data = self._blob(commit.replay.blob.address)
            commit = replace(commit, replay=decode_replay(data, commit.replay.strategy))
        if commit.kind is Kind.REPLAY:
            commit = replace(commit, delta=delta)
        decisions = [f"{one.sequence}:{one.request_id}:{one.outcome}" for one in commit.requests]
        self._tell(
            commit.owner,
            f"commit {stored.sequence} of {history.key}: {commit.kind} after {commit.previous} covers {commit.covers}"
            f" debt {commit.debt} {' '.join(decisions)} delta {len(delta)}",
        )
        history.commits += 1
        history.writer = commit.owner
        history.times[stored.sequence] = self._newest = self._now()
        that(
            commit.previous == history.last,
            f"two writers: commit {stored.sequence} of {commit.owner} follows {commit.previous}, not {history.last}",
        )
        history.tries.note(commit)
        self._born_ms = history.born_ms  # before this commit, which may create it anew
        if commit.kind is Kind.CREATE:
            self._create(history, commit, stored.sequence)
        that(commit.begin == self._begin(history, commit), f"commit {stored.sequence} says it begins at {commit.begin}")
        self._decide(history, commit, stored.sequence, tuple(delta))
        replaced = replaces(history, commit, stored.sequence)
        history.last = stored.sequence
        history.lineage.append(stored.sequence)
        self._check_needed(stored, commit)
        if self.history_for_ms:
            wrong = wrong_headers(history, stored.headers, stored.sequence)
            wrong = wrong or wrong_apply_headers(history, commit, stored.headers)
            that(not wrong, f"the headers of commit {stored.sequence} are wrong: {wrong}")
        history.book.close(stored.sequence)
        history.disputed_at[stored.sequence] = dict(history.disputes)
        if replaced:
            named = commit.checkpoint is not None and commit.checkpoint.sequence == commit.previous
            that(named, f"commit {stored.sequence} makes another state of it, and names {commit.checkpoint}")
        if commit.checkpoint is not None and (replaced or commit.checkpoint.sequence != history.checkpoint):
            that(commit.checkpoint.sequence < stored.sequence, "a checkpoint of what is not yet written")
            self._check_checkpoint(history, commit.checkpoint, stored.sequence if replaced else 0)
            history.checkpoint = commit.checkpoint.sequence
            if commit.checkpoint.sequence >= history.birth:
                history.named.append((commit.checkpoint.sequence, commit.at_ms))
        begin = commit.created_by or (stored.sequence if commit.kind is Kind.CREATE else 0)
        history.reads_from[stored.sequence] = begin - 1 if begin else history.checkpoint
        self._check_values(history, commit, stored)

    def _create(self, history: History, commit: Commit, sequence: int) -> None:
        """A change set begins as its parent was, but has nothing of its parent's queue."""
        that(len(commit.requests) == 1, f"commit {sequence} creates a change set for {len(commit.requests)} requests")
        origin = commit.origin
        parent = None
        if origin is not None:
            parent = self.histories.get(ChangeSetKey(history.key.workspace, origin.change_set))
        asked = history.asked[commit.requests[0].sequence]
        wrong = wrong_create(history, parent, asked, commit, self._blob)
        that(not wrong, f"commit {sequence} creates {history.key}: {wrong}")
        carried = {one.decision.request_id: one.decision for one in commit.carried}
        if not self.forgetful:
            recorded = {id_: decision for id_, (decision, _) in history.outcomes.items()}
            that(
                carried == recorded, f"commit {sequence} carries {sorted(carried)}, and {sorted(recorded)} are decided"
            )
        begin(history, parent, commit, sequence)

    def _begin(self, history: History, commit: Commit) -> int:
        """The commit from which a loader has to start, unless it starts from a checkpoint of the change set."""
        own = commit.checkpoint is not None and commit.checkpoint.sequence >= history.birth
        return 0 if own or commit.kind is Kind.CREATE or not self.history_for_ms else history.birth

    def _check_needed(self, stored: Stored, commit: Commit) -> None:
        """Every blob that the message adds to those that the log needs is named in its header."""
        if not self.history_for_ms:
            return
        named = set(read_blobs(stored.headers))
        for address in [one for one in named if one.startswith("@")]:
            named = {address[1:], *decode_addresses(self._blob(address[1:]))}
        blobs = [commit.delta_blob, commit.before_blob, commit.origin.tail_blob if commit.origin else None]
        blobs += [decision.result for decision in commit.requests]
        blobs += [commit.replay.blob] if commit.replay is not None else []
        needed = {blob.address for blob in blobs if blob is not None}
        if commit.kind in (Kind.CHECKPOINT, Kind.CREATE) and commit.checkpoint is not None:
            newest = commit.checkpoint
            needed |= {newest.address, *(part.address for part in open_checkpoint(self._blob(newest.address)).before)}
            needed |= set() if newest.changes is None else {newest.changes.address}
        if commit.origin is not None:
            tail = commit.origin.tail
            if commit.origin.tail_blob is not None:
                tail = decode_tail(self._blob(commit.origin.tail_blob.address))
            for copied in filter(None, map(read_row, tail)):
                parts = (copied.delta_blob, copied.before_blob, copied.replay.blob if copied.replay else None)
                needed |= {blob.address for blob in parts if blob is not None}
        that(needed <= named, f"commit {stored.sequence} needs {needed - named}, and does not say so")

    def _check_checkpoint(self, history: History, checkpoint: CheckpointRef, instead: int = 0) -> None:
        """`instead`: the commit whose state it has, if that is not the one that it names."""
        at = self._replaced.setdefault(checkpoint.address, instead) or checkpoint.sequence
        newest = self._blob(checkpoint.address)
        try:
            parts = open_checkpoint(newest).before
            state = read_checkpoint(newest, [self._blob(part.address) for part in parts])
        except RebaserError as error:
            raise Violation(f"the checkpoint at {checkpoint.sequence} cannot be read: {error.message}") from error
        wrong = history.book.differs(at, state.cells, tracked=self.history_for_ms > 0)
        that(not wrong, f"the checkpoint at {checkpoint.sequence} ({len(parts) + 1} parts) has other {wrong}")
        size = len(newest) + sum(part.size for part in parts)
        size += 0 if checkpoint.changes is None else checkpoint.changes.size
        that((state.last, size) == (checkpoint.sequence, checkpoint.size), "a checkpoint is misnamed")
        foreign = ({*state.outcomes, *state.redriven} & self.sent) - history.outcomes.keys()
        own = checkpoint.sequence >= history.birth
        that(not foreign or not own, f"the checkpoint at {checkpoint.sequence} knows requests of others: {foreign}")
        wrong = wrong_apply_state(history, state, at) if own else ""
        that(not wrong, f"the checkpoint at {checkpoint.sequence} is wrong: {wrong}")
        if own and not self.forgetful:
            recorded = [one.decision for one in (*state.outcomes.values(), *state.redriven.values())]
            known = {one.request_id for one in recorded if not _nameless(one)}
            decided = {id_ for id_, all_ in history.answers.items() if all_[0][1] <= checkpoint.sequence}
            that(known == decided, f"the checkpoint at {checkpoint.sequence} knows {known}, and {decided} are decided")
        name, base = history.target_at(at)
        if own and name and not history.gone:
            that(checkpoint.changes is not None, "the checkpoint of a branch has no changes")
            assert checkpoint.changes is not None
            target = self.histories[ChangeSetKey(history.key.workspace, name)]
            changes = decode_changes(self._blob(checkpoint.changes.address))
            wrong = unlawful(history, target.book, at, base, changes)
            wrong = wrong or wrong_disputes(history, at, changes)
            that(not wrong, f"the changes at {checkpoint.sequence} are wrong: {wrong}")

    def _decide(self, history: History, commit: Commit, sequence: int, delta: tuple[Any, ...]) -> None:
        if commit.kind is Kind.DVU:
            covers = commit.previous if commit.covers is None else commit.covers
            for item in delta:
                edited = history.book.touched.get(item.id, 0)
                that(
                    edited <= covers,
                    f"commit {sequence} has a result for {item.id}, which commit {edited} edited meanwhile",
                )
                derived = isinstance(history.book.definitions.get(item.id), Derive)
                that(derived, f"commit {sequence} has a result for {item.id}, which is not derived any more")
                history.book.note(item)
            return
        expected: list[Update] = []
        self._seen = set()
        for decision in commit.requests:
            self._decide_one(history, decision, sequence, expected, commit)
        if commit.kind is Kind.REPLAY and not commit.requests:
            expected.extend(self._check_pull(history, commit, sequence))
        self._check_said(history, commit)
        wrong = wrong_settled(history, commit, self._seen)
        that(not wrong, f"commit {sequence} is wrong: {wrong}")
        done = list(delta) if commit.reverts is None else [as_null(update) for update in delta]
        if commit.source is not None:
            done = sorted([as_null(update) for update in delta], key=lambda update: update.id)
        if commit.source is not None and commit.kind is Kind.REBASE:
            source = commit.source
            history.takes.append((sequence, source.change_set, source.sequence, source.keep))
            history.all_takes.append(history.takes[-1])
        that(done == expected, f"commit {sequence} does not do what its requests ask for")
        if not self.history_for_ms:
            that(commit.before is None, f"commit {sequence} says what stood before, and no history is kept")
        elif commit.kind in (Kind.REBASE, Kind.REPLAY):
            wrong = history.book.stood_otherwise({update.id for update in expected}, commit.before)
            that(not wrong, f"commit {sequence} does not say what stood before: {wrong}")
        for update in expected:
            history.book.edit(update, sequence)
        if expected:
            history.deltas[sequence] = commit.previous, expected
            history.edits_at.append(sequence)
            history.last_edit = sequence
        if commit.kind is Kind.REPLAY:
            history.replays.add(sequence)
        elif expected:
            history.own = sequence
        self._check_applied(history, commit)

    def _decide_one(
        self, history: History, decision: Decision, sequence: int, expected: list[Update], commit: Commit
    ) -> None:
        asked = history.asked.get(decision.sequence)
        that(asked is not None, f"commit {sequence} decides {decision.sequence}, which nobody stored")
        assert asked is not None
        if decision.code == "skipped" and self.forgetful and decision.sequence in history.decided:
            history.skipped.add(decision.sequence)
            return
        that(decision.sequence not in history.decided, f"request {decision.sequence} is decided twice")
        highest = max(history.decided, default=0)
        that(decision.sequence > highest, f"request {decision.sequence} is decided after {highest}")
        if asked.request_id:
            that(
                decision.request_id == asked.request_id,
                f"request {decision.sequence} is {asked.request_id}, decided as {decision.request_id}",
            )
            before = history.outcomes.get(asked.request_id)
            that(
                before is None or (before[0].outcome is Outcome.DEAD and asked.redrive > before[0].redrive),
                f"{asked.request_id} is decided again: {decision.sequence} after {before and before[0].sequence}",
            )
        older = asked.redrive > 0 and asked.dead_at_ms < self._born_ms
        if decision.outcome is not Outcome.DEAD or (decision.code == "deleted" and not older):
            what = "applied though it is older than its change set" if older else "refused as older, and is not"
            that(not older and decision.outcome is not Outcome.DEAD, f"{decision.request_id} is {what}")
        if decision.outcome is Outcome.DEAD and asked.request_id in self.good and not older:
            # Whoever tries it may be struck by chance, again and again: nobody can know that it was not its doing.
            unlucky = decision.code == "poison" and history.tries.ended[decision.sequence] >= MAX_DEATHS
            that(unlucky, f"good request {asked.request_id} is declared dead: {decision.code} {decision.message}")
        if asked.message is not None and decision.outcome is not Outcome.DEAD:
            self._check_moved(history, asked.message, decision, expected)
        create, reverts = action_of(asked, Create), action_of(asked, Reverts)
        if asked.message is not None:
            edits = bool(asked.message.updates or asked.message.updates_address or reverts)
            edits |= isinstance(asked.message.action, Rebase)
            marking = action_of(asked, Marking)
            deletes = marking is not None and marking.deletes
            wrong = closed_wrongly(history, decision, edits) or protected_wrongly(history, decision, edits, deletes)
            that(not wrong, wrong)
        if history.gone and decision.outcome is not Outcome.DEAD:
            wrong = wrong_as_deleted(history, asked, decision)
            that(not wrong, f"{decision.request_id}: {wrong}")
        if decision.code == "deleted" and history.gone:
            pass
        elif create is not None:
            self._check_created(history, create, decision, sequence)
        elif action_of(asked, Apply) or action_of(asked, Marking) or action_of(asked, Rebase):
            that(not expected, f"{decision.request_id} shares its commit")
            expected.extend(self._check_action(history, asked, decision, commit, sequence))
        elif reverts is not None:
            that(not expected, f"the revert {decision.request_id} shares its commit")
            if self.history_for_ms:
                expected.extend(reverted(history, reverts, decision))
            elif decision.outcome is not Outcome.DEAD:
                that(decision.code == "unsupported", f"{decision.request_id} is reverted without history")
        elif decision.outcome is Outcome.SUCCESS:
            assert asked.message is not None
            expected.extend(self.updates_of(asked.message))
            if asked.message.expect_at is not None:
                self._seen |= {update.id for update in self.updates_of(asked.message)}
        history.decided[decision.sequence] = decision, sequence
        if asked.request_id:
            history.outcomes[asked.request_id] = decision, sequence
            history.answers.setdefault(asked.request_id, []).append((decision, sequence))

    def _check_action(
        self, history: History, asked: Asked, decision: Decision, commit: Commit, sequence: int
    ) -> list[Update]:
        """Check the decision on an apply or a mark; return the edits that it must have made."""
        apply, marking, success = (
            action_of(asked, Apply),
            action_of(asked, Marking),
            decision.outcome is Outcome.SUCCESS,
        )
        if decision.outcome is Outcome.DEAD:
            return []
        if not self.history_for_ms:
            told = "no_such_change_set" if marking else "not_a_branch" if action_of(asked, Rebase) else "unsupported"
            refused = decision.code in ("unsupported", told)
            that(refused, f"{decision.request_id} needs history: {decision.outcome}")
            return []
        if marking is not None:
            wrong = wrong_mark(history, marking, decision) or wrong_deletion(history, asked, decision, self.closed_for)
            that(not wrong, f"{decision.request_id}: {wrong}")
            that(commit.marking == (marking if success else None), f"commit {sequence} marks {commit.marking}")
            if success and marking.protected is not None:
                history.marks.append((sequence, marking.protected))
            if success and marking.status is not None:
                history.statuses.append((sequence, marking.status))
        if apply is None:
            return self._check_rebase(history, asked, decision, commit, sequence)
        source = self.histories.get(ChangeSetKey(history.key.workspace, apply.source))
        if success:
            wrong, edits = wrong_apply(history, source, apply, asked, commit)
            that(not wrong, f"commit {sequence} applies {apply.source}: {wrong}")
            return edits
        wrong = wrong_apply_refusal(history, source, apply, asked, decision)
        that(not wrong, f"{decision.request_id} is refused as {decision.code}: {wrong}")
        return []

    def _check_rebase(
        self, history: History, asked: Asked, decision: Decision, commit: Commit, sequence: int
    ) -> list[Update]:
        """Check the decision on a rebase, if it is one; return the edits that it must have made."""
        rebase = action_of(asked, Rebase)
        if rebase is None:
            return []
        if decision.outcome is not Outcome.SUCCESS:
            source = self.histories.get(ChangeSetKey(history.key.workspace, history.target[0]))
            wrong = wrong_rebase_refusal(history, source, rebase, decision)
            that(not wrong, f"{decision.request_id} is refused as {decision.code}: {wrong}")
            return []
        wrong, edits = wrong_replay(self.histories, history, rebase, asked.knows, commit, sequence)
        that(not wrong, f"commit {sequence} rebases {history.key}: {wrong}")
        count = len(history.disputes)
        that(
            decision.unresolved == count, f"{decision.request_id} tells of {decision.unresolved} conflicts, not {count}"
        )
        return edits

    def _check_pull(self, history: History, commit: Commit, sequence: int) -> list[Update]:
        """Check what brings a branch up to date without a request; return the edits that it must have made."""
        wrong = wrong_pull(self.histories, history, commit, self._now())
        that(not wrong, f"commit {sequence} brings {history.key} up to date: {wrong}")
        loaded = history.loaded.get(commit.owner, 0.0)
        known = loaded if self.outdated() < loaded else -math.inf
        wrong, edits = wrong_replay(self.histories, history, Rebase(), known, commit, sequence)
        that(not wrong, f"commit {sequence} brings {history.key} up to date: {wrong}")
        return edits

    def _check_created(self, history: History, create: Create, decision: Decision, sequence: int) -> None:
        if decision.outcome is Outcome.SUCCESS:
            that(history.birth == sequence, f"{decision.request_id} created nothing")
        elif decision.outcome is Outcome.ERROR:
            if not self.history_for_ms:
                that(decision.code == "unsupported", f"{decision.request_id} is refused as {decision.code}")
                return
            parent = None
            if create.parent is not None:
                parent = self.histories.get(ChangeSetKey(history.key.workspace, create.parent))
            wrong = wrong_refusal(history, parent, create, decision.code, sequence)
            that(not wrong, f"{decision.request_id} is refused as {decision.code}: {wrong}")

    def _check_moved(
        self, history: History, request: EnqueueUpdatesRequest, decision: Decision, expected: list[Update]
    ) -> None:
        """It is refused exactly if one of its ids was edited behind what its author saw, or by this commit."""
        if request.expect_at is None or request.action is not None:
            that(request.action is not None or decision.code != "moved", f"{request.id} expects nothing, and it moved")
            return
        if decision.code in ("protected", "closed", "deleted"):
            return
        book, ids = history.book, {update.id for update in self.updates_of(request)}
        newest = [book.touched[id_] if id_ in book.definitions else history.last_edit for id_ in ids]
        newest += [history.birth, *(history.disputes[id_].told for id_ in ids & history.disputes.keys())]
        moved = max(newest, default=0) > request.expect_at or not ids.isdisjoint(update.id for update in expected)
        refused = decision.code == "moved"
        # Without history, checkpoints do not say when a value was defined, and it may be refused needlessly.
        right = refused == moved or (refused and not self.history_for_ms)
        that(right, f"{request.id} is {decision.code or 'applied'}, and moved: {moved}")

    def _check_said(self, history: History, commit: Commit) -> None:
        """The commit names the authors of its requests, and what it reverts."""
        asked = [history.asked[decision.sequence] for decision in commit.requests]
        authors = [one.message.author if one.message is not None and self.history_for_ms else "" for one in asked]
        told = [one.author for one in commit.authors] or [""] * len(authors)
        if not any(decision.outcome is Outcome.DEAD for decision in commit.requests):
            that(told == authors, f"a commit names {told}, and {authors} sent its requests")
        done = [reverts for one in asked if (reverts := action_of(one, Reverts)) is not None]
        success = len(commit.requests) == 1 and commit.requests[0].outcome is Outcome.SUCCESS
        action = asked[0].message.action if len(asked) == 1 and success and asked[0].message is not None else None
        if commit.requests or commit.kind is not Kind.REPLAY:
            that(
                (commit.source is not None) == isinstance(action, (Apply, Rebase)), f"a commit applies {commit.source}"
            )
            that((commit.kind is Kind.REPLAY) == isinstance(action, Rebase), f"{action} is decided by a {commit.kind}")
        that(
            commit.reverts == (done[0] if done and success else None), f"a commit reverts {commit.reverts}, not {done}"
        )

    def _check_applied(self, history: History, commit: Commit) -> None:
        applied, before = commit.applied, history.applied
        if applied is None:
            that(before is None, "`applied` is forgotten")
            return
        if before is not None:
            that(applied.stream == before.stream, "`applied` names another stream")
            that(
                applied.sequence >= before.sequence, f"`applied` goes back from {before.sequence} to {applied.sequence}"
            )
        highest = max(history.decided, default=0)
        that(applied.sequence >= highest, f"`applied` is {applied.sequence}, and {highest} is decided")
        for sequence, asked in history.asked.items():
            if sequence <= applied.sequence and sequence not in history.decided:
                that(asked.request_id in history.outcomes, f"request {sequence} was passed over")
        history.applied = applied

    def _check_values(self, history: History, commit: Commit, stored: Stored) -> None:
        covers = stored.sequence if commit.covers is None else commit.covers
        that(covers >= history.covers, f"`covers` goes back from {history.covers} to {covers}")
        that(covers in history.book.as_of, f"`covers` is {covers}, which is no commit")
        history.covers = covers
        history.debt = int(stored.headers.get("X-Debt", "0"))
        inherited = history.birth > covers  # such debt is not told to the sweeper
        wrong = history.book.wrong(stored.sequence if history.debt == 0 and not inherited else covers)
        that(not wrong, f"commit {stored.sequence} (covers {covers}, debt {history.debt}): {wrong}")

    def _commit_removed(self, history: History, stored: Stored) -> None:
        history.purged = max(history.purged, stored.sequence)
        needs = history.reads_from[history.last]
        that(stored.sequence <= needs, f"commit {stored.sequence} is gone, and no checkpoint holds it")
        older = history.named[:-1]  # who reads from the newest but one still finds what follows it
        bound = before = max((sequence for sequence, _ in older), default=0)
        if history.gone or (history.birth and len(history.named) == 1):  # nobody reads from before it began
            bound = before = needs
        if self.history_for_ms and self._now() - self._crowded > CROWDED_FOR:
            # The owner goes by when its newest checkpoint was named, the sweeper by when any commit was stored.
            begin_ms = max((at_ms for _, at_ms in history.named), default=0) - self.history_for_ms
            begin = self._newest - self.history_for_ms / 1000
            then = [at for at in history.reads_from if history.times[at] <= begin]
            read_then = max((history.reads_from[at] for at in then), default=0)
            by_owner = max((sequence for sequence, at_ms in older if at_ms <= begin_ms), default=0)
            bound = max(by_owner, min(before, read_then))
        bound = max(bound, history.birth - 1)  # nobody reads what is older than the change set, however new that is
        that(stored.sequence <= bound, f"commit {stored.sequence} is gone, and history reaches back to {bound}")


def reverted(history: History, reverts: Reverts, decision: Decision) -> list[Update]:
    """The edits that `decision` on a revert must have made; raises `Violation` if it must have been another."""
    found = {at: delta for at, delta in history.deltas.items() if reverts.first <= at <= reverts.last}
    found = {at: delta for at, delta in found.items() if at not in history.replays}
    ids = list({update.id: None for _, delta in found.values() for update in delta})
    if reverts.first <= history.birth:
        right = decision.code in ("before_creation", "closed", "protected") or decision.outcome is Outcome.DEAD
        that(right, f"{decision.request_id} takes back what is older than its change set: {decision.outcome}")
        return []
    if decision.code in ("closed", "protected"):
        return []
    if decision.code == "purged":
        that(reverts.first <= history.purged, f"{decision.request_id} is refused as purged, and nothing is")
        return []
    if decision.code == "no_such_position":
        there = [at for at in history.times if reverts.first <= at <= reverts.last]
        that(not there, f"{decision.request_id} is refused, and there are {there}")
        return []
    as_of, here = history.book.as_of, history.book.definitions
    touching = {id_: [at for at, (_, delta) in found.items() if any(one.id == id_ for one in delta)] for id_ in ids}
    stood = {id_: as_of[found[min(at)][0]].get(id_) for id_, at in touching.items()}
    left = {id_: as_of[max(at)].get(id_) for id_, at in touching.items()}
    moved = [id_ for id_ in ids if repr(stood.get(id_)) != repr(left.get(id_))]
    moved = [id_ for id_ in moved if repr(here.get(id_)) != repr(stood.get(id_))]
    conflicts = [id_ for id_ in moved if repr(here.get(id_)) != repr(left.get(id_))]
    if decision.outcome is Outcome.DEAD:
        return []
    wanted = Outcome.CONFLICTS if conflicts else Outcome.SUCCESS
    that(decision.outcome is wanted, f"{decision.request_id} is {decision.outcome}, with {conflicts} edited since")
    return [] if conflicts else [stood.get(id_) or Remove(id_) for id_ in moved]


def _nameless(decision: Decision) -> bool:
    return decision.request_id.startswith("@")


def is_reply(headers: dict[str, str] | None) -> bool:
    try:
        return headers is not None and peek(headers).type == "EnqueueUpdatesResponse"
    except RebaserError:
        return False


def that(true: bool, otherwise: str) -> None:
    if not true:
        raise Violation(otherwise)

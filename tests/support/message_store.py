"""Change sets as their owners write and read them, from messages alone: the content of NATS in memory, without I/O."""

from dataclasses import dataclass, field, replace
from typing import Any

from rebaser_core.blobs.address import address_of
from rebaser_core.branches.branch import Apply, Fork, Rebase, differing
from rebaser_core.branches.merge import Merged
from rebaser_core.checkpoint import Chain, open_checkpoint
from rebaser_core.checkpoint.writer import CheckpointDraft
from rebaser_core.commit import (
    Applied,
    BlobRef,
    BranchStatus,
    BranchSummary,
    CheckpointRef,
    Commit,
    Kind,
    Origin,
    Outcome,
    Source,
    TailRow,
)
from rebaser_core.decisions.apply import Offer, check_source
from rebaser_core.decisions.decide import decide
from rebaser_core.decisions.queued_request import QueuedRequest
from rebaser_core.decisions.replay import Replayed, TargetCommits, Theirs, check_moves, refuse_rebase
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import RequestId
from rebaser_core.messages import (
    check_commit,
    check_tail,
    copy_row,
    decode_changes,
    decode_commit,
    decode_replay,
    decode_tail,
    encode_commit,
    encode_replay,
    encode_tail,
    read_row,
)
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.state.comparison import definitions_that_differ
from rebaser_core.updates import Remove, Set, Update
from tests.support.branch_books import Definitions


@dataclass
class Message:
    sequence: int
    headers: dict[str, str]
    data: bytes


@dataclass
class Store:
    """The content of NATS, and the states of owners that never die."""

    logs: dict[str, list[Message]] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    live: dict[str, ChangeSetState] = field(default_factory=dict)
    chains: dict[str, Chain] = field(default_factory=dict)
    inline: bool = True

    def put(self, data: bytes) -> BlobRef:
        self.blobs[address_of(data)] = data
        return BlobRef(address_of(data), len(data))

    def append(self, name: str, sequence: int, commit: Commit) -> Commit:
        headers, data = encode_commit(commit)
        check_commit(commit, headers, data)
        self.logs.setdefault(name, []).append(Message(sequence, headers, data))
        return decode_commit(headers, data)

    def draft(self, name: str, kind: Kind, **fields: object) -> Commit:
        state = self.live[name]
        begin = 0
        if state.branch is not None and (state.checkpoint is None or state.checkpoint.sequence < state.branch.birth):
            begin = state.branch.birth
        covers = state.covers if state.owes else None
        known = {"checkpoint": state.checkpoint, "begin": begin, "covers": covers, "applied": None}
        return Commit("c", state.last, kind, 0, "o", **(known | fields))  # type: ignore[arg-type]

    def edit(self, name: str, sequence: int, delta: Definitions, at: int | None = None) -> str:
        """Return the code of the refusal; empty if the edit is applied."""
        self.live.setdefault(name, ChangeSetState())
        updates: list[Update] = [Remove(id_) if one is None else Set(id_, one) for id_, one in delta.items()]
        return self.decide(name, sequence, QueuedRequest(1, RequestId("r"), tuple(updates), expect_at=at))

    def decide(self, name: str, sequence: int, request: QueuedRequest) -> str:
        """Decide a request as the owner does. Return the code of the refusal, empty if there is none."""
        state, merged = self.live[name], Merged()
        merged.add(state.cells.edit_of, request.patch)
        request = replace(request, merged=merged if request.offer is not None else None)
        if request.theirs is not None and isinstance(request.action, Rebase):
            assert state.branch is not None
            replayed = Replayed(state.branch, request.theirs, request.action.strategy)
            assert all(True for _ in replayed.compare(state.cells.edit_of, 2))
            request = replace(request, replayed=replayed)
        decided = decide(state, Applied("s", 0), [request])
        (decision,) = decided.decisions
        if decision.outcome is not Outcome.SUCCESS:
            return decision.code
        more: dict[str, Any]
        before = [stood for update in decided.delta if (stood := state.cells.edit_of(update.id)) is not None]
        if decided.marking is not None:
            commit = self.draft(name, Kind.MARK, marking=decided.marking)
        elif decided.replayed is not None:
            found = decided.replayed
            more = {"replay": found.content(), "status": found.status, "source": found.source, "before": tuple(before)}
            commit = self.draft(name, Kind.REPLAY, delta=decided.delta, branch=found.summary(), **more)
            commit = self.in_blob(commit)
        else:
            more = {"before": tuple(before), "source": decided.source, "settled": decided.settled}
            if state.branch is not None:
                more["branch"] = state.branch.summary(decided.delta, decided.settled)
            commit = self.draft(name, Kind.REBASE, delta=decided.delta, **more)
        appended = self.append(name, sequence, commit)
        state.fold(sequence, self.whole(appended))
        if commit.branch is not None:
            assert state.branch is not None
            assert state.branch.summary() == commit.branch
            assert state.branch.conflicts.keys() <= state.branch.changes.keys()
        return ""

    def in_blob(self, commit: Commit) -> Commit:
        if self.inline or commit.replay is None or not commit.replay.bases:
            return commit
        return replace(commit, replay=replace(commit.replay, blob=self.put(encode_replay(commit.replay))))

    def whole(self, commit: Commit) -> Commit:
        """Return the commit with everything that folding needs."""
        replay = commit.replay
        if replay is None or replay.blob is None:
            return commit
        return replace(commit, replay=decode_replay(self.blobs[replay.blob.address], replay.strategy))

    def rebase(self, name: str, sequence: int, asked: Rebase) -> str:
        """Rebase as the owner of the branch does. Return the code of the refusal; empty if there is none."""
        try:
            theirs = self.theirs(name, asked)
        except UnprocessableError as error:
            return error.code
        return self.decide(name, sequence, QueuedRequest(1, RequestId("r"), action=asked, theirs=theirs))

    def theirs(self, name: str, asked: Rebase) -> Theirs:
        """Read what a rebase needs, as the owner of the branch does, from the log or the state of the target."""
        state = self.live[name]
        refusal = refuse_rebase(state)
        if refusal is not None:
            raise refusal
        assert state.branch is not None
        target = asked.onto or state.branch.target
        log = [one for one in self.logs[target] if asked.upto is None or one.sequence <= asked.upto]
        source = Source(target, log[-1].sequence)
        load = self.load(target, source.sequence)[0]
        if asked.onto is None:
            check_moves(state.branch, 0 if load.branch is None else load.branch.birth, source)
        commits = [self.whole(decode_commit(one.headers, one.data)) for one in log if one.sequence > state.branch.base]
        folded = TargetCommits(name, state.branch.birth)
        for each in commits:
            folded.add(each)
            folded.add_updates(each.delta if each.has_edits else ())  # type: ignore[arg-type] # has updates
        agreed: dict[str, Any] = {}
        if folded.applied is not None:
            then = self.load(name, folded.applied.sequence)[0]
            assert then.branch is not None
            agreed = {one.id: one.theirs for one in differing(then.branch.changes.items(), then.cells.edit_of)}
        definitions = folded.definitions
        if asked.onto is not None or self.inline:
            definitions = {}
            for some in definitions_that_differ(state, state.branch.changes, load, 3):
                definitions |= some
            assert asked.onto or definitions.items() <= folded.definitions.items()
        applied = None if asked.onto else folded.applied
        return Theirs(source, state.branch.base, definitions, applied, agreed if applied else {})

    def apply(self, name: str, sequence: int, asked: Apply) -> str:
        """Apply as the owner of the target does. Return the code of the refusal; empty if there is none."""
        if not any(asked.at is None or one.sequence <= asked.at for one in self.logs[asked.source]):
            return "no_such_change_set"
        try:
            offer = self.offer(name, asked)
        except UnprocessableError as error:
            return error.code
        request = QueuedRequest(1, RequestId("r"), action=asked, offer=offer, patch=offer.patch)
        return self.decide(name, sequence, request)

    def offer(self, name: str, asked: Apply) -> Offer:
        """Read a branch that is to be applied to `name`, without the state in the memory of the branch's owner."""
        log = [one for one in self.logs[asked.source] if asked.at is None or one.sequence <= asked.at]
        source = Source(asked.source, log[-1].sequence)
        now, then = self.live[asked.source].branch, self.load(asked.source, asked.at)[0]
        summary = None if then.branch is None else then.branch.summary()
        check_source(name, source, None if now is None else now.summary(), summary)
        assert then.branch is not None
        return Offer(source, then.branch.base, tuple(differing(then.branch.changes.items(), then.cells.edit_of)))

    def checkpoint(self, name: str, sequence: int) -> None:
        state = self.live[name]
        with state.view() as view:
            draft = CheckpointDraft(state, view, self.chains.get(name, Chain()))
            draft.copy()
        made = draft.write()
        for part in made.parts:
            self.put(part)
        self.chains[name] = chain = made.chain
        changes = None if made.changes is None else self.put(made.changes)
        reference = CheckpointRef(chain.newest.address, chain.last, chain.size, changes)
        commit = self.draft(name, Kind.CHECKPOINT, checkpoint=reference, begin=0)
        state.fold(sequence, self.append(name, sequence, commit))

    def create(self, name: str, sequence: int, parent: str, at: int, *, sibling: bool) -> None:
        """Create as the owner of the new change set does, without any state."""
        fork = self.fork(parent, at, sibling=sibling)
        created = Commit(
            *("c", 0, Kind.CREATE, 0, "o", None, fork.covers), checkpoint=fork.checkpoint, origin=fork.origin
        )
        self.append(name, sequence, created)
        self.live[name], self.chains[name] = self.load(name)

    def fork(self, parent: str, at: int, *, sibling: bool) -> Fork:
        """Read what a new change set begins with."""
        log = [one for one in self.logs[parent] if one.sequence <= at]
        newest = decode_commit(log[-1].headers, log[-1].data)
        rows: tuple[TailRow, ...] = ()
        checkpoint = newest.checkpoint
        start = newest.begin or (0 if checkpoint is None else checkpoint.sequence + 1)
        for message in log[-1:] if newest.kind is Kind.CREATE else [one for one in log if one.sequence >= start]:
            commit = decode_commit(message.headers, message.data)
            if commit.kind is Kind.CREATE:
                rows = self.tail_of(commit)
            rows += (copy_row(message.sequence, message.headers, message.data),)
        check_tail(rows, 0 if checkpoint is None else checkpoint.sequence, log[-1].sequence)
        target, base = parent, log[-1].sequence
        branch = self.load(parent, at)[0].branch
        if sibling:
            assert branch is not None
            target, base = branch.target, branch.base
        blob = None if self.inline else self.put(encode_tail(rows))
        origin = Origin(parent, log[-1].sequence, target, base, rows, blob)
        summary = BranchSummary(target, base, BranchStatus.OPEN, 0, 0, parent, origin.sequence)
        return Fork(summary, origin, checkpoint, newest.covers)

    def tail_of(self, commit: Commit) -> tuple[TailRow, ...]:
        if commit.origin is None:  # it begins empty
            return ()
        blob = commit.origin.tail_blob
        return commit.origin.tail if blob is None else decode_tail(self.blobs[blob.address])

    def load(self, name: str, at: int | None = None) -> tuple[ChangeSetState, Chain]:
        log = [one for one in self.logs[name] if at is None or one.sequence <= at]
        newest = decode_commit(log[-1].headers, log[-1].data)
        state, chain = self.read(newest.checkpoint)
        start = state.last + 1
        if newest.begin or newest.kind is Kind.CREATE:
            start = newest.begin or log[-1].sequence
            (first,) = [one for one in log if one.sequence == start]
            for row in self.tail_of(decode_commit(first.headers, first.data)):
                commit = read_row(row)
                assert commit is not None
                state.fold(row.sequence, self.whole(commit))
        for message in log:
            if message.sequence >= start:
                state.fold(message.sequence, self.whole(decode_commit(message.headers, message.data)))
        return state, chain

    def read(self, checkpoint: CheckpointRef | None) -> tuple[ChangeSetState, Chain]:
        if checkpoint is None:
            return ChangeSetState(), Chain()
        reader = open_checkpoint(self.blobs[checkpoint.address], checkpoint.address)
        for part in reader.before:
            reader.add(self.blobs[part.address])
        reader.add(self.blobs[checkpoint.address])
        state, chain = reader.finish()
        if checkpoint.changes is not None:
            assert state.branch is not None
            state.branch.set_changes(decode_changes(self.blobs[checkpoint.changes.address]))
        return state, chain

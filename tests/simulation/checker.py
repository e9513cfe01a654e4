"""Checks the guarantees at every step: whenever a message is stored or removed, and at each reply.

Invariant: each verdict rests on what the NATS server stored, and never on what the product reports about itself.
Messages are decoded with the product's codec, which has tests of its own; nothing is folded with the product's code.
"""

from dataclasses import replace
from typing import Any

from rebaser_core.branches.branch import Apply
from rebaser_core.checkpoint import open_checkpoint, read_checkpoint
from rebaser_core.commit import CheckpointRef, Commit, Decision, Kind, Outcome
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
    peek,
    read_blobs,
    read_row,
)
from tests.simulation.applies import wrong_apply_headers, wrong_apply_state
from tests.simulation.decisions import DecisionChecker
from tests.simulation.forks import action_of, begin, replaces, unlawful, wrong_create, wrong_headers
from tests.simulation.history import Asked, History, Violation, that
from tests.simulation.model.store import Stored, Stream
from tests.simulation.rebases import SETTLES, wrong_asked, wrong_disputes

# Longest time, in virtual seconds, from when the logs were too large until the surplus history is purged.
CROWDED_FOR = 10.0
OUTCOMES = {Outcome.SUCCESS: Success, Outcome.CONFLICTS: Conflicts, Outcome.DEAD: Failure, Outcome.ERROR: Failure}


class Checker(DecisionChecker):
    """Checks each stored or removed message and each reply, and keeps the first violation."""

    # -- what happens ----------------------------------------------------------------------------------------------

    def watch(self, stream: Stream, stored: Stored, removed: bool) -> None:
        """Check a message that was stored or removed; the model of NATS calls this."""
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
        """Check that `who` was allowed to send this answer to a request."""
        if self.violation is not None:
            return
        try:
            response = decode(headers, data, DEFAULT_LIMITS, expect=EnqueueUpdatesResponse)
        except RebaserError:
            return
        try:
            self.check_reply(response)
        except Violation as violation:
            self.broken(f"{who} sent a wrong answer: {violation}")

    def check_reply(self, response: EnqueueUpdatesResponse) -> None:
        history = self.history(ChangeSetKey.of(response.workspace_id, response.change_set_id))
        status, request_id = response.status, response.id
        if not request_id:
            decided = [one for one, commit in history.decided.values() if commit == status.commit and _nameless(one)]
            that(bool(decided), "an answer does not belong to any request")
            copied = any(one.sequence in history.dead for one in decided)
            that(copied, f"an unreadable request is answered in {history.key} before its dead letter is stored")
            return
        that(request_id in history.outcomes, f"{request_id} is answered {status}, but no commit has this outcome")
        if self.forgetful and isinstance(status, Failure) and status.code == "skipped":
            return
        for decision, commit in history.answers[request_id]:
            if type(status) is OUTCOMES[decision.outcome] and status.commit == commit:
                self._check_settling(history, decision, commit)
                dead = decision.outcome is Outcome.DEAD
                that(
                    not dead or decision.sequence in history.dead,
                    f"{request_id} is answered as dead before its dead letter is stored",
                )
                return
        raise Violation(f"{request_id} is answered {status}, but was decided as {history.answers[request_id]}")

    def _check_settling(self, history: History, decision: Decision, commit: int) -> None:
        """Check that the request that settles the branch is stored before an apply is answered."""
        asked = history.asked[decision.sequence]
        apply = action_of(asked, Apply)
        if apply is not None and decision.outcome is Outcome.SUCCESS:
            branch = self.history(ChangeSetKey(history.key.workspace, apply.source))
            told = any(one.request_id == f"{SETTLES}{commit}" for one in branch.asked.values())
            that(
                told,
                f"{decision.request_id} is answered before the request to {branch.key} to replay {commit} is stored",
            )

    def dvu_began(self, who: str, label: str) -> None:
        running = self.dvus[who, label] = self.dvus.get((who, label), 0) + 1
        if running > 1:
            self.broken(f"{who} runs two updates of {label} at the same time")

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
            pass  # an unreadable request has no id
        history.asked[stored.sequence] = asked
        by_sweeper = self.closed_for > 0 and asked.request_id.startswith("closed-")
        known = not asked.request_id or asked.request_id in self.sent or by_sweeper
        if not known and asked.request_id.startswith(SETTLES):
            wrong = wrong_asked(self.histories, history, asked)
            that(not wrong, f"request {stored.sequence} of {history.key} is {asked.request_id}: {wrong}")
            return
        that(known, f"request {stored.sequence} is {asked.request_id}, which no client sent")

    def _request_removed(self, history: History, stored: Stored) -> None:
        asked = history.asked[stored.sequence]
        decided = history.decided.get(stored.sequence)
        if decided is None:
            that(
                asked.request_id in history.outcomes, f"request {stored.sequence} is deleted, but no commit decided it"
            )
        elif decided[0].outcome is Outcome.DEAD:
            that(
                stored.sequence in history.dead,
                f"dead request {stored.sequence} is deleted before its dead letter is stored",
            )

    def _buried(self, history: History, stored: Stored) -> None:
        sequence = int(stored.headers["X-Original-Sequence"])
        decided = history.decided.get(sequence)
        that(
            sequence in history.skipped or (decided is not None and decided[0].outcome is Outcome.DEAD),
            f"a dead letter of request {sequence} is stored, but no commit declares the request dead",
        )
        history.dead.add(sequence)

    def _letter_removed(self, history: History, stored: Stored) -> None:
        sequence, redrive = int(stored.headers["X-Original-Sequence"]), int(stored.headers.get(REDRIVE, "0"))
        again = any(one.sequence > sequence and one.redrive == redrive + 1 for one in history.asked.values())
        that(again, f"the dead letter of {sequence} is deleted, but its request is not in the queue")

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
        self._born_ms = history.born_ms  # The time is that of before this commit, which may create the change set anew.
        if commit.kind is Kind.CREATE:
            self._create(history, commit, stored.sequence)
        that(
            commit.begin == self._begin(history, commit),
            f"commit {stored.sequence} has the wrong `begin` {commit.begin}",
        )
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
            that(named, f"commit {stored.sequence} replaces the state, but names the checkpoint {commit.checkpoint}")
        if commit.checkpoint is not None and (replaced or commit.checkpoint.sequence != history.checkpoint):
            that(commit.checkpoint.sequence < stored.sequence, "a checkpoint names a commit that is not stored yet")
            self._check_checkpoint(history, commit.checkpoint, stored.sequence if replaced else 0)
            history.checkpoint = commit.checkpoint.sequence
            if commit.checkpoint.sequence >= history.birth:
                history.named.append((commit.checkpoint.sequence, commit.at_ms))
        begin = commit.created_by or (stored.sequence if commit.kind is Kind.CREATE else 0)
        history.reads_from[stored.sequence] = begin - 1 if begin else history.checkpoint
        self._check_values(history, commit, stored)

    def _create(self, history: History, commit: Commit, sequence: int) -> None:
        """Check that a change set begins with the values of its parent, and with nothing of its parent's queue."""
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
                carried == recorded, f"commit {sequence} carries {sorted(carried)}, but {sorted(recorded)} are decided"
            )
        begin(history, parent, commit, sequence)

    def _begin(self, history: History, commit: Commit) -> int:
        """Return the commit at which a loader has to begin, unless it begins at a checkpoint of the change set."""
        own = commit.checkpoint is not None and commit.checkpoint.sequence >= history.birth
        return 0 if own or commit.kind is Kind.CREATE or not self.history_for_ms else history.birth

    def _check_needed(self, stored: Stored, commit: Commit) -> None:
        """Check that the header of the message names every blob that the log needs from this message on."""
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
        """Check a checkpoint. It has the state after the commit that it names, or after the commit `instead`, if
        given."""
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
            recorded = [one.decision for one in (*state.outcomes.unpacked(), *state.redriven.unpacked())]
            known = {one.request_id for one in recorded if not _nameless(one)}
            decided = {id_ for id_, all_ in history.answers.items() if all_[0][1] <= checkpoint.sequence}
            that(known == decided, f"the checkpoint at {checkpoint.sequence} has {known}, but {decided} are decided")
        name, base = history.target_at(at)
        if own and name and not history.gone:
            that(checkpoint.changes is not None, "the checkpoint of a branch has no changes")
            assert checkpoint.changes is not None
            target = self.histories[ChangeSetKey(history.key.workspace, name)]
            changes = decode_changes(self._blob(checkpoint.changes.address))
            wrong = unlawful(history, target.book, at, base, changes)
            wrong = wrong or wrong_disputes(history, at, changes)
            that(not wrong, f"the changes at {checkpoint.sequence} are wrong: {wrong}")

    def _check_values(self, history: History, commit: Commit, stored: Stored) -> None:
        covers = stored.sequence if commit.covers is None else commit.covers
        that(covers >= history.covers, f"`covers` decreases from {history.covers} to {covers}")
        that(covers in history.book.as_of, f"`covers` is {covers}, which is not the sequence of a commit")
        history.covers = covers
        history.debt = int(stored.headers.get("X-Debt", "0"))
        inherited = history.birth > covers  # no header reports such debt to the sweeper
        wrong = history.book.wrong(stored.sequence if history.debt == 0 and not inherited else covers)
        that(not wrong, f"commit {stored.sequence} (covers {covers}, debt {history.debt}): {wrong}")

    def _commit_removed(self, history: History, stored: Stored) -> None:
        history.purged = max(history.purged, stored.sequence)
        needs = history.reads_from[history.last]
        that(stored.sequence <= needs, f"commit {stored.sequence} was purged, but no checkpoint contains it")
        older = history.named[:-1]  # a reader that begins at the newest checkpoint but one still finds the log after it
        bound = before = max((sequence for sequence, _ in older), default=0)
        if history.gone or (history.birth and len(history.named) == 1):  # no reader begins before the creation
            bound = before = needs
        if self.history_for_ms and self._now() - self._crowded > CROWDED_FOR:
            # The owner compares with the time at which its newest checkpoint was named, the sweeper with that of the
            # newest commit of all.
            begin_ms = max((at_ms for _, at_ms in history.named), default=0) - self.history_for_ms
            begin = self._newest - self.history_for_ms / 1000
            then = [at for at in history.reads_from if history.times[at] <= begin]
            read_then = max((history.reads_from[at] for at in then), default=0)
            by_owner = max((sequence for sequence, at_ms in older if at_ms <= begin_ms), default=0)
            bound = max(by_owner, min(before, read_then))
        # No reader needs commits from before the creation, however young they are.
        bound = max(bound, history.birth - 1)
        that(stored.sequence <= bound, f"commit {stored.sequence} was purged, but history is kept from {bound} on")


def _nameless(decision: Decision) -> bool:
    return decision.request_id.startswith("@")


def is_reply(headers: dict[str, str] | None) -> bool:
    try:
        return headers is not None and peek(headers).type == "EnqueueUpdatesResponse"
    except RebaserError:
        return False

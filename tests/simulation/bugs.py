"""Known bugs, planted one by one; the simulation must find each: `PYTHONHASHSEED=0 python -m tests.simulation.bugs`.

What a bug breaks may heal by itself: the sweeper finds it, or the next owner. So each is looked for in the mode that
leaves it nobody to heal it. A seed finds what it finds only while nothing else changes; therefore others are tried when
the first finds nothing.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.simulation.planting import Change, planted

COMMIT_LOG = "rebaser.change_set.log.commit_log"
LIFECYCLE = "rebaser.change_set.lifecycle"
OWNER = "rebaser.change_set.owner"
PROCESSOR = "rebaser.change_set.processor"
POISON = "rebaser.change_set.attempts.poison"
DVU = "rebaser.change_set.serial_dvu"
DECIDE = "rebaser_core.decisions.decide"
LEASE = "rebaser.change_set.lease"
ORIGIN = "rebaser.change_set.readers.origin_reader"
REPLAY = "rebaser_core.decisions.replay"
PULLER = "rebaser.change_set.puller"
DRAFTS = "rebaser.change_set.log.commit_drafts"
OFFER = "rebaser.change_set.readers.offer_reader"
TAIL = "rebaser.change_set.readers.tail_reader"
SWEEPER = "rebaser.sweeper.sweeper"
OLD_HISTORY = "rebaser.sweeper.old_history"
SERVER = "rebaser.server"
GARBAGE = "rebaser_core.blobs.garbage"
FINDING = "rebaser.gc.finding"
CLIENT = "rebaser_client.client"
STATE = "rebaser_core.state.change_set"
COMMITS = "rebaser_client.log.commits"
BRANCH = "rebaser_core.branches.branch"
SEEDS = 400  # tried for each bug, at most: a change of the protocol may shift what a seed does


@dataclass(frozen=True)
class Bug:
    """`seed` finds it in `mode`."""

    name: str
    mode: str
    seed: int
    changes: tuple[Change, ...]


def bug(name: str, mode: str, seed: int, module: str, old: str, new: str, *more: Change) -> Bug:
    return Bug(name, mode, seed, ((module, old, new), *more))


DIRECT_GET = """        if not stream.startswith("OBJ_"):
            import json
            found = await self.connection.request(
                f"{self.prefix}DIRECT.GET.{stream}", json.dumps(body).encode(), {}, timeout=self._timeout
            )
            named = found.headers
            if "Nats-Sequence" not in named:
                return None
            return StoredMessage(named["Nats-Subject"], int(named["Nats-Sequence"]), named, found.data, "")
        try:
            stored ="""

BUGS = (
    # -- the log ---------------------------------------------------------------------------------------------------
    bug(
        "the log is appended to without an expected sequence",
        "harsh",
        3,
        COMMIT_LOG,
        "expected_last_subject_sequence=self.state.last,",
        "expected_last_subject_sequence=None,",
    ),
    bug(
        "an append that is not answered counts as landed",
        "harsh",
        9,
        COMMIT_LOG,
        """                may_have_landed = True
""",
        """                return self.state.last + 1
""",
    ),
    bug(
        "an append that is not answered counts as lost",
        "gentle",
        7,
        COMMIT_LOG,
        """                may_have_landed = True
""",
        """                raise TransientError("not answered", code="lost") from error
""",
    ),
    bug(
        "whatever stands behind the expected sequence counts as our own",
        "harsh",
        10,
        COMMIT_LOG,
        "if decode_commit(stored.headers, stored.data).id == commit_id:",
        "if decode_commit(stored.headers, stored.data).id:",
    ),
    bug(
        "our own commit, landed before its answer was lost, counts as foreign",
        "gentle",
        10,
        COMMIT_LOG,
        "                    return stored.sequence",
        "                    pass",
    ),
    bug(
        "the log is purged up to the checkpoint that a commit is about to name",
        "gentle",
        6,
        "rebaser.change_set.log.checkpointer",
        """        async with commits.append_lock():
""",
        """        await commits._js.purge(commits._stream, commits._subject, sequence=chain.last + 1)
        async with commits.append_lock():
""",
    ),
    bug(
        "the log is purged one checkpoint further than its history reaches",
        "gentle",
        10,
        "rebaser_core.history",
        "            place = number\n",
        "            place = min(number + 1, last)\n",
    ),
    bug(
        "the sweeper purges up to the newest checkpoint",
        "harsh",
        6,
        OLD_HISTORY,
        "covered = self._commit(key, await self._js.get(self._subjects.commits_stream, after)) if after else None",
        "covered = newest",
    ),
    bug(
        "the sweeper keeps what the first commit of the history needs, not the state before it",
        "harsh",
        6,
        OLD_HISTORY,
        "await self._js.get(stream, first.previous)",
        "following",
    ),
    bug(
        "the sweeper purges the commit that created a change set",
        "harsh",
        2,
        "rebaser_core.history",
        "        return begin - 1\n",
        "        return begin\n",
    ),
    bug(
        "the sweeper purges what the history needs",
        "harsh",
        91,
        OLD_HISTORY,
        "            through = min(through, await self._needed_since(key, begin))\n",
        "            pass\n",
    ),
    bug(
        "the sweeper takes the stream for crowded when it is not",
        "harsh",
        12,
        OLD_HISTORY,
        "crowded = is_crowded(info)",
        "crowded = True",
    ),
    bug(
        "what an update computed is not in the next delta of a checkpoint",
        "gentle",
        85,
        "rebaser_core.state.value_columns",
        "        self._touched[row] = 1\n        if fault is not None:",
        "        if fault is not None:",
    ),
    bug(
        "what was removed is not in the next delta of a checkpoint",
        "gentle",
        27,
        "rebaser_core.state.columns",
        "            self.gone.add(id_)\n",
        "",
    ),
    bug(
        "a decision reads from any replica",
        "calm",
        2,
        "rebaser_client.jetstream.api",
        """        try:
            stored =""",
        DIRECT_GET,
    ),
    bug(
        "what stood before a commit is read after it",
        "calm",
        1,
        PROCESSOR,
        "before=await commits.before(decided.delta),",
        "before=decided.delta,",
    ),
    bug(
        "what stood before a commit is not looked up while an update runs",
        "gentle",
        1,
        "rebaser_core.state.overlay",
        """            cell = self._overlay[id_]
            if cell is None:
                return None
            return cell.definition or""",
        """            cell = self.base_cell(id_)
            if cell is None:
                return None
            return cell.definition or""",
    ),
    bug(
        "who defined a value is forgotten when the overlay is merged",
        "gentle",
        10,
        "rebaser_core.state.overlay",
        "columns.state[row], columns.edited[row] = STATE_CODES[cell.state], cell.edited",
        "columns.state[row] = STATE_CODES[cell.state]",
    ),
    bug(
        "a revert takes back what was edited again",
        "gentle",
        9,
        "rebaser_core.branches.merge",
        "            if same_definition(ours, entry.base):\n",
        "            if True:\n",
    ),
    # -- requests --------------------------------------------------------------------------------------------------
    bug(
        "the applied check is forgotten",
        "forgetful",
        1,
        DECIDE,
        "if request.sequence <= applied.sequence:",
        "if False:",
    ),
    bug("recorded outcomes are forgotten", "harsh", 2, DECIDE, "    return recorded\n", "    return None\n"),
    bug(
        "`applied` does not move",
        "gentle",
        1,
        DECIDE,
        "            highest = max(highest, request.sequence)\n",
        "",
    ),
    bug(
        "the reply is sent before the commit",
        "harsh",
        1,
        PROCESSOR,
        """                sequence = await commits.append(commit, self._freshness)
                self.applied = decided.applied
                if decided.skipped:
""",
        """                await self._answer_all(messages, decided.answers, sequence + 1)
                sequence = await commits.append(commit, self._freshness)
                self.applied = decided.applied
                if decided.skipped:
""",
    ),
    bug(
        "requests are deleted before the commit",
        "harsh",
        2,
        PROCESSOR,
        """                sequence = await commits.append(commit, self._freshness)
                self.applied = decided.applied
                if decided.skipped:
""",
        """                self._context.deleter.add([message.stream_sequence for message in messages])
                sequence = await commits.append(commit, self._freshness)
                self.applied = decided.applied
                if decided.skipped:
""",
    ),
    bug(
        "requests are never deleted",
        "calm",
        1,
        PROCESSOR,
        "        self._context.deleter.add(done)\n",
        "",
    ),
    bug(
        "a range is deleted",
        "gentle",
        2,
        "rebaser.runtime.request_deleter",
        "                await self._js.delete_many(self._stream, group)\n",
        "                await self._js.purge(self._stream, sequence=max(group) + 1)\n",
    ),
    bug(
        "a dead request is not copied",
        "gentle",
        4,
        PROCESSOR,
        "        await context.dead_letters.publish(self._key, pending.message, decision, context.now_ms())\n",
        "",
    ),
    bug(
        "a dead request is answered before it is copied",
        "gentle",
        4,
        PROCESSOR,
        "        await context.dead_letters.publish(self._key, pending.message, decision, context.now_ms())\n",
        """        self.answer(pending.message, decision, pending.commit)
        await context.dead_letters.publish(self._key, pending.message, decision, context.now_ms())
""",
    ),
    bug(
        "a dead request is answered before it is copied, when it was sent twice",
        "harsh",
        42,
        PROCESSOR,
        "                original.duplicates.append(message)\n",
        "                self.answer(message, decision, commit)\n",
    ),
    bug(
        "what an owner has not yet decided is forgotten when a commit is full",
        "gentle",
        4,
        OWNER,
        "            self._rest = processed.rest\n",
        "",
    ),
    bug(
        "a try of a request that waits is not recorded",
        "harsh",
        30,
        PROCESSOR,
        "            await commits.append(commits.draft(Kind.ATTEMPT, attempt=attempt,",
        "            (commits.draft(Kind.ATTEMPT, attempt=attempt,",
    ),
    bug(
        "a try of a request that may be poison is not recorded",
        "harsh",
        9,
        POISON,
        "    await _write(commits, replace(before, deaths=before.deaths + 1))\n",
        "",
    ),
    bug(
        "a request that hangs its only server is never given up",
        "harsh",
        501765,
        POISON,
        "        if not hung():\n",
        "        if True:\n",
    ),
    bug(
        "a request is given up when one server died of it",
        "harsh",
        3,
        POISON,
        "if before.deaths >= self._context.settings.max_deaths:",
        "if before.deaths:",
    ),
    bug(
        "a message that was lost on its way from the queue is not missed",
        "harsh",
        57,
        "rebaser_client.jetstream.ordered.consumer",
        "if message.consumer_sequence != generation.sequence + 1:",
        "if False:",
    ),
    bug(
        "an edit is applied although what it expects has moved",
        "gentle",
        2,
        DECIDE,
        "    elif request.expect_at is not None and (moved :=",
        "    elif False and (moved :=",
    ),
    bug(
        "an edit is not seen by those behind it in the same commit",
        "gentle",
        50,
        DECIDE,
        "if id_ in self._present or id_ in moved]",
        "if id_ in moved]",
    ),
    # -- derived values --------------------------------------------------------------------------------------------
    bug("the update is not notified", "calm", 4, LIFECYCLE, "queued=more, owes=owes, active_at=now", "queued=more"),
    bug(
        "two updates at a time",
        "harsh",
        1,
        LIFECYCLE,
        "if state.owes and (state.dvu is Dvu.IDLE or (state.dvu is Dvu.WAITING and now >= state.retry_at)):",
        "if state.owes and (state.dvu is not Dvu.WAITING or now >= state.retry_at):",
    ),
    bug(
        "an update covers the log up to its end",
        "gentle",
        1,
        DVU,
        "covers = view.sequence if debt else None\n",
        "covers = None\n",
    ),
    bug("results for what was edited meanwhile", "gentle", 1, DVU, "delta=valid,", "delta=computed,"),
    bug(
        "an update clears roots that came after it was planned",
        "gentle",
        4,
        STATE,
        "for id_, touched in self.roots.items() if touched > commit.covers}",
        "for id_, touched in self.roots.items() if False}",
    ),
    bug(
        "a rebase that wakes something covers the log",
        "gentle",
        1,
        PROCESSOR,
        "if owes else None,",
        "if False else None,",
    ),
    bug(
        "edits that wake nothing pay what is owed",
        "gentle",
        1,
        PROCESSOR,
        "owes = state.owes or await wakes(state, decided.delta)",
        "owes = await wakes(state, decided.delta)",
    ),
    bug("an update that failed is not tried again", "gentle", 9, LIFECYCLE, "return self.retry_at\n", "return None\n"),
    # -- tasks -----------------------------------------------------------------------------------------------------
    bug(
        "no last look",
        "gentle",
        3,
        OWNER,
        "                left = await work_left(self._context, self._commits, self._processor, self._puller)\n",
        "                left = False\n",
    ),
    bug(
        "the last look comes before the ack",
        "gentle",
        3,
        LIFECYCLE,
        "return replace(state, phase=Phase.RECHECKING), (Command.RECHECK,)",
        "return replace(state, phase=Phase.DONE), ()",
    ),
    bug(
        "the last look does not wait until the task is gone",
        "gentle",
        3,
        LEASE,
        "if stored is None or stored.sequence != self.task.sequence:",
        "if True:",
    ),
    bug(
        "the task is acked when it comes",
        "calm",
        4,
        OWNER,
        """                stream = await context.requests_info.read()
""",
        """                await self.lease.release()
                stream = await context.requests_info.read()
""",
    ),
    bug(
        "no progress is told",
        "calm",
        4,
        SERVER,
        "                await owner.lease.task.progress()\n",
        "                pass\n",
    ),
    bug(
        "tasks have a message id",
        "gentle",
        2,
        "rebaser_client.requests.task_publisher",
        'await js.publish(subjects.task(key), b"")',
        'await js.publish(subjects.task(key), b"", {"Nats-Msg-Id": str(key)})',
    ),
    bug(
        "the client publishes the task before the request",
        "gentle",
        1,
        CLIENT,
        """            await self._sender.store(request, deadline)
        except""",
        """            await self._task_publisher.publish(key)
            await self._sender.store(request, deadline)
        except""",
    ),
    bug(
        "the client sends again under a new id",
        "harsh",
        9,
        "rebaser_client.requests.sender",
        """            except TransientError:
                maybe_stored = True
""",
        """            except TransientError:
                from dataclasses import replace
                from rebaser_core.messages import decode
                sent = decode(request.headers, request.payload, self._limits, expect=EnqueueUpdatesRequest)
                _, request.payload = encode(replace(sent, id=sent.id + "x"))
                request.headers[MESSAGE_ID] += "x"
""",
    ),
    # -- change sets from others -----------------------------------------------------------------------------------
    bug(
        "a change set remembers the requests of its parent",
        "harsh",
        6,
        STATE,
        "        self.outcomes, self.redriven, self.attempts = {}, {}, {}\n",
        "        self.attempts = {}\n",
    ),
    bug(
        "the newest commit of the parent is not copied",
        "gentle",
        6,
        TAIL,
        "rows, named = await self._rows(messages)",
        "rows, named = await self._rows(messages[:-1])",
        (TAIL, "check_tail, added, after, until)", "check_tail, added, after, added[-1].sequence if added else after)"),
    ),
    bug(
        "a second edit replaces what stood at the base",
        "gentle",
        316,
        BRANCH,
        "        if self.target and id_ not in self.changes:\n",
        "        if self.target:\n",
    ),
    bug(
        "blobs of copied commits are not named",
        "gentle",
        6,
        TAIL,
        "            needed |= dict.fromkeys(await self._named(headers))\n",
        "",
        (TAIL, "needed = tuple(dict.fromkeys([*tail.needed, *named, *parts]))", "needed = tail.needed + named"),
        (ORIGIN, "await self._all_needed(checkpoint, tail.needed)", "tail.needed"),
    ),
    bug(
        "a closed change set is edited",
        "gentle",
        3,
        DECIDE,
        "        if self._closed and (",
        "        if False and (",
    ),
    bug(
        "a change set is created where there is one",
        "gentle",
        3,
        ORIGIN,
        "    if branch is not None or state.edited:\n",
        "    if False:\n",
        (ORIGIN, "    if branch is not None and branch.origin:\n", "    if False:\n"),
    ),
    bug(
        "an owner goes on with a change set that it created",
        "gentle",
        5,
        COMMIT_LOG,
        "            self._hand_over(sequence, encoded.commit)\n            return sequence\n",
        "            self.state.last = sequence\n            return sequence\n",
    ),
    bug(
        "an apply takes what the branch is now, whatever it names",
        "gentle",
        5,
        OFFER,
        "named = newest if apply.at is None else await reader.newest_commit(branch, apply.at)",
        "named = newest",
    ),
    bug(
        "an apply overwrites what the branch has not seen",
        "gentle",
        150,
        "rebaser_core.branches.merge",
        "            if same_definition(ours, entry.base):\n",
        "            if True:\n",
    ),
    bug(
        "a target forgets which branches it took",
        "gentle",
        6,
        STATE,
        "            self.taken[commit.source.change_set] = sequence\n",
        "            pass\n",
    ),
    bug(
        "a checkpoint forgets which branches were applied",
        "gentle",
        6,
        "rebaser_core.checkpoint.writer",
        'self._branch |= {"taken": dict(state.taken)} if state.taken else {}',
        "self._branch |= {}",
    ),
    bug(
        "a protected change set is edited",
        "gentle",
        5,
        DECIDE,
        "        if state.protected and request.edits:\n",
        "        if False:\n",
    ),
    bug(
        "the header of a mark has the status from before it",
        "gentle",
        60,
        "rebaser.change_set.log.branch_fields",
        "        branch = replace(branch or Branch(0), status=marking.status)\n",
        "        branch = branch or Branch(0)\n",
    ),
    bug(
        "a deleted change set takes requests",
        "gentle",
        60,
        DECIDE,
        "        if self._status is BranchStatus.DELETED:\n",
        "        if False:\n",
    ),
    bug(
        "what is brought back lacks the last commit before its deletion",
        "gentle",
        91,
        "rebaser.change_set.log.tombstones",
        "            loaded = await reader.load(key, commit.previous)\n",
        "            loaded = await reader.load(key, commit.previous - 1)\n",
    ),
    bug(
        "who deleted a change set goes on with what it was",
        "gentle",
        276,
        COMMIT_LOG,
        "        if self.state.replaced_by(encoded.commit):\n",
        "        if encoded.commit.kind is Kind.CREATE:\n",
    ),
    bug(
        "a create is refused because of what was deleted",
        "gentle",
        1167,
        ORIGIN,
        "    if state.status is BranchStatus.DELETED:\n        branch = None\n",
        "",
    ),
    bug(
        "a deleted change set forgets what was decided",
        "gentle",
        6,
        STATE,
        "        empty._take_queue(self)\n",
        "        empty.last = empty.covers = self.last\n        empty.applied = self.applied\n",
    ),
    bug(
        "what is brought back forgets what was decided since",
        "gentle",
        60,
        STATE,
        "        self._take_queue(deleted)\n",
        "        self.last, self.applied = deleted.last, deleted.applied\n"
        "        self.covers = self.covers if self.owes else self.last\n",
    ),
    bug(
        "a protected change set is deleted",
        "gentle",
        149,
        DECIDE,
        "            if state.protected and action.deletes:\n",
        "            if False:\n",
    ),
    bug(
        "a branch is applied again before it took over its last apply",
        "gentle",
        61,
        "rebaser_core.decisions.apply",
        "    if taken > base:\n",
        "    if False:\n",
    ),
    bug(
        "a strict apply does not look at the target",
        "gentle",
        40,
        "rebaser_core.decisions.apply",
        "    if apply.strict and state.edited > base:\n",
        "    if False:\n",
    ),
    bug(
        "a branch whose derived values are not up to date is applied",
        "gentle",
        69,
        OFFER,
        "    if covered < edited and not apply.allow_stale:\n",
        "    if False:\n",
    ),
    # -- rebases ----------------------------------------------------------------------------------------------------
    bug(
        "a branch moves its base and does not take what its target did",
        "gentle",
        2,
        REPLAY,
        "        self.delta.append(_update(id_, their))\n",
        "",
    ),
    bug(
        "a branch takes what its target did and does not move its base",
        "gentle",
        5,
        BRANCH,
        "        self.target, self.base = commit.source.change_set, commit.source.sequence\n",
        "        self.target = commit.source.change_set\n",
    ),
    bug(
        "a rebase takes what the branch has edited",
        "gentle",
        45,
        REPLAY,
        "        elif same_definition(ours, left) or (",
        "        elif same_definition(ours, left) or True or (",
    ),
    bug(
        "a branch is closed though it has edits that were not applied",
        "gentle",
        5,
        REPLAY,
        "not applied.keep and branch.own <= applied.sequence",
        "not applied.keep",
    ),
    bug(
        "a branch that was to stay open is closed",
        "gentle",
        22,
        REPLAY,
        "not applied.keep and branch.own <= applied.sequence",
        "branch.own <= applied.sequence",
    ),
    bug(
        "an apply is answered before its branch is asked to go on",
        "gentle",
        5,
        PROCESSOR,
        "        await self._settle(requests[0], *decided.answers[0], sequence)\n",
        "",
    ),
    bug(
        "the target's first commit after the base is not read",
        "gentle",
        5,
        "rebaser.change_set.readers.target_reader",
        "                await self._add(commits, commit)\n",
        "                if after != self._branch.base:\n                    await self._add(commits, commit)\n",
    ),
    bug(
        "a second replay forgets what both sides had left",
        "gentle",
        32,
        REPLAY,
        "        left = base if known is None else known.left\n",
        "        left = base\n",
    ),
    bug(
        "a blind edit settles a conflict",
        "gentle",
        22,
        DECIDE,
        "                if request.expect_at is not None and request.action is None:\n",
        "                if request.action is None:\n",
    ),
    bug(
        "an edit that did not see the conflict settles it",
        "gentle",
        50,
        DECIDE,
        " or (id_ in conflicts and conflicts[id_].told > at)",
        "",
    ),
    bug(
        "what a branch applied conflicts with itself",
        "gentle",
        118,
        REPLAY,
        "branch, strategy, agreed = self._branch, self._strategy, id_ in self._theirs.agreed",
        "branch, strategy, agreed = self._branch, self._strategy, False",
    ),
    bug(
        "what a branch edited back to its base is in conflict",
        "gentle",
        10,
        REPLAY,
        "        elif same_definition(ours, left) or (",
        "        elif (id_ not in branch.changes if known is None else same_definition(ours, left)) or (",
    ),
    bug(
        "a conflict stays although the target went back",
        "gentle",
        202,
        REPLAY,
        "in_conflict = not same_definition(their, left)",
        "in_conflict = True",
    ),
    bug(
        "a strategy leaves older conflicts as they are",
        "harsh",
        296,
        REPLAY,
        "strategy is Strategy.THEIRS and (moved or known is not None)",
        "strategy is Strategy.THEIRS and moved",
    ),
    bug(
        "what a strategy decided is no edit of the branch",
        "gentle",
        5,
        BRANCH,
        "        if replay.strategy is not Strategy.RECORD:\n            self.own = sequence\n",
        "",
    ),
    bug(
        "what a branch takes over stays changed",
        "gentle",
        10,
        BRANCH,
        "        self.changes.pop(id_, None)\n        self.conflicts.pop(id_, None)\n",
        "        self.conflicts.pop(id_, None)\n",
    ),
    bug(
        "what a branch takes over stays in conflict",
        "gentle",
        32,
        BRANCH,
        "        self.changes.pop(id_, None)\n        self.conflicts.pop(id_, None)\n",
        "        self.changes.pop(id_, None)\n",
    ),
    bug(
        "a branch with conflicts is applied",
        "gentle",
        334,
        "rebaser_core.decisions.apply",
        "    if then.conflicts:\n",
        "    if False:\n",
    ),
    bug(
        "a checkpoint forgets conflicts",
        "gentle",
        137,
        "rebaser_core.checkpoint.writer",
        "self._conflicts = {} if branch is None else dict(branch.conflicts)",
        "self._conflicts = {}",
    ),
    # -- pulls ------------------------------------------------------------------------------------------------------
    bug(
        "a pull comes in front of what is queued",
        "gentle",
        308,
        PULLER,
        "        until = 0 if newest is None else newest.sequence\n",
        "        until = 0\n",
    ),
    bug(
        "a pull moves the base without what its target did",
        "gentle",
        2,
        DRAFTS,
        "        delta=delta,\n        covers=state.covers if owes else None,\n",
        "        delta=(),\n        covers=state.covers if owes else None,\n",
    ),
    bug(
        "a pull brings what its target did and leaves the base",
        "gentle",
        2,
        DRAFTS,
        "        source=replayed.source,\n",
        "        source=replace(replayed.source, sequence=state.branch.base),\n",
        (DRAFTS, "from typing import Any\n", "from dataclasses import replace\nfrom typing import Any\n"),
    ),
    bug(
        "a closed branch is brought up to date",
        "gentle",
        2,
        PULLER,
        "return branch if follows and refuse_rebase(state) is None and not",
        "return branch if follows and not",
    ),
    bug(
        "a failed pull fails its owner",
        "gentle",
        118,
        PULLER,
        "        except RebaserError as error:\n            self._failed(error)\n",
        "        except RebaserError:\n            raise\n",
    ),
    bug(
        "a rebase does not notice that a pull came first",
        "gentle",
        306,
        PROCESSOR,
        "        if not theirs.fits(branch):\n",
        "        if False:\n",
        (PULLER, "self._processor.rebasing or not", "not"),
    ),
    # -- the sweeper -----------------------------------------------------------------------------------------------
    bug(
        "the sweeper passes over requests",
        "harsh",
        33,
        SWEEPER,
        'waiting = await self._names(subjects.requests_stream, f"{subjects.root}.requests.", "")',
        "waiting: set[str] = set()",
    ),
    # -- dead letters ----------------------------------------------------------------------------------------------
    bug(
        "a request that was redriven is answered as dead",
        "harsh",
        19,
        DECIDE,
        "return decision.outcome is Outcome.DEAD and redrive > decision.redrive and sequence > applied.sequence",
        "return decision.outcome is Outcome.DEAD",
    ),
    # -- what is left behind ---------------------------------------------------------------------------------------
    bug(
        "an ordered consumer that was closed keeps its hooks",
        "calm",
        1,
        "rebaser_client.jetstream.ordered.consumer",
        """        for remove in self._hooks:
            remove()
        self._hooks = []
""",
        "",
    ),
    bug(
        "an ordered consumer that was closed still listens",
        "calm",
        1,
        "rebaser_client.jetstream.ordered.requests",
        """            await subscription.close()
        backoff""",
        """            pass
        backoff""",
    ),
    bug(
        "an answer that came is still awaited",
        "calm",
        1,
        CLIENT,
        "            self._connection.close_reply(inbox)\n",
        "",
    ),
    bug(
        "a dead request is kept after it was buried",
        "calm",
        4,
        PROCESSOR,
        "self._pending_dead.pop(decision.sequence, None)",
        "pass",
    ),
    bug(
        "a task that has to wait for the owner before it costs a slot",
        "gentle",
        5,
        SERVER,
        "            self._successor_tasks[key] = task\n",
        "            self._successor_tasks[key] = task\n            self._tasks_requested += 1\n",
    ),
    # -- the past --------------------------------------------------------------------------------------------------
    bug(
        "a position behind a commit is read at the next one",
        "harsh",
        2,
        COMMITS,
        "        previous = await self._previous(key, following)\n        if previous == 0:",
        "        previous = following.sequence\n        if previous == 0:",
    ),
    bug(
        "the oldest position is one whose checkpoint is gone",
        "harsh",
        16,
        COMMITS,
        "                    if readable(commit.checkpoint, begins_after, commit.created_by):",
        "                    if begins_after is not None:",
    ),
    # -- garbage ---------------------------------------------------------------------------------------------------
    bug(
        "garbage goes to the trash in the first run that finds it",
        "garbage",
        1,
        GARBAGE,
        "        if now_ms - since >= grace_ms and now_ms - blob.stored_ms >= grace_ms:",
        "        if now_ms - blob.stored_ms >= grace_ms:",
    ),
    bug(
        "a put renews nothing",
        "garbage",
        1,
        "rebaser_client.blobs.nats",
        "        if time.time() - description.stored <= garbage.FRESH_FOR:",
        "        if True:",
    ),
    bug(
        "the store is listed after the messages were read",
        "garbage",
        14,
        FINDING,
        """    stored = await tables.stored()
""",
        "",
        (
            FINDING,
            """    added = await tables.commits(newest, split=False)
""",
            """    added = await tables.commits(newest, split=False)
    stored = await tables.stored()
""",
        ),
    ),
    bug(
        "only the newest part of a checkpoint is named",
        "garbage",
        1,
        "rebaser.change_set.log.checkpointer",
        "needed = [part.address for part in chain.base + chain.deltas]",
        "needed = [chain.newest.address]",
    ),
    bug(
        "of the lists of addresses only their own address counts",
        "garbage",
        1,
        "rebaser_client.garbage.references",
        "            found |= set(decode_addresses(await self._blobs.get(address)))",
        "            pass",
        ("rebaser.change_set.log.needed_blobs", "if len(addresses) > min(", "if len(addresses) > 0 * min("),
    ),
    bug(
        "dead letters keep nothing",
        "garbage",
        1,
        "rebaser_client.garbage.references",
        "            found.add(payload)",
        "            pass",
        (
            "rebaser_client.garbage.references",
            "        found = _find(message.data)\n",
            "        found = set()\n",
        ),
    ),
    bug(
        "a commit is appended however long ago its blobs were put",
        "garbage",
        2,
        COMMIT_LOG,
        "        if encoded.freshness is None or encoded.freshness.lasts:",
        "        if True:",
    ),
)


def seeds(first: int) -> Iterator[int]:
    return itertools.chain((first,), (seed for seed in range(1, SEEDS) if seed != first))


def find(one: Bug, tries: Sequence[int] | None = None) -> tuple[int, str]:
    """The seed that finds it (0: none does) and what it says."""
    with planted(one.changes) as story:
        for seed in tries or seeds(one.seed):
            result = story.simulate(seed, story.Mode(one.mode))
            if result.violation is not None:
                return seed, f"{result.violation}"
    return 0, ""


def plant(one: Bug, seed: int) -> Any:
    """The `Result` of one seed with it."""
    with planted(one.changes) as story:
        return story.simulate(seed, story.Mode(one.mode), plain=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.bugs", description=__doc__)
    parser.add_argument("--part", default="1/1", help="2/3: the second third")
    parser.add_argument("--only", default="", help="bugs that have this in their names")
    given = parser.parse_args()
    missed = 0
    part, parts = (int(number) for number in given.part.split("/"))
    for one in BUGS[part - 1 :: parts]:
        if given.only in one.name:
            began = time.process_time()
            seed, text = find(one)
            took = time.process_time() - began
            missed += not seed
            told = f"seed {seed}: {text[:150]}" if seed else "NOT FOUND"
            print(f"{one.name} ({one.mode}, {took:.1f} s): {told}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

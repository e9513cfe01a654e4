"""Brings a branch up to date with its target without a request, if the branch follows its target.

A pull is a rebase without a request. The owner of a branch reads the newest commit of the target, whose headers say
whether the target was edited after the base of the branch. The owner does so when it has loaded the branch and after it
has decided requests, at most once a second. For a branch without an owner, no server reads the target. When the branch
is loaded again, one commit brings in all edits that were made to the target in the meantime.

Invariants:

- A pull is committed after every request that was in the queue when the pull began. So an edit is never decided against
  values that its author could not have seen, and a pull never overtakes a request to rebase.
- A pull is committed only if the base of the branch has not moved since the target was read. If a request moved the
  base, or is about to do so, nothing is committed, and the pull begins again after that request.
- When the target has applied the branch, the target's owner sends the branch a request to take over that commit (see
  `settling`). A pull does not take over that commit itself. Otherwise, it could close the branch before the edits that
  are queued ahead of that request are decided.
- A failed pull does not stop the owner: requests and updates continue. The pull is retried after a delay, as long as
  the branch is loaded.
"""

import asyncio
import math
from collections.abc import Callable
from contextlib import AsyncExitStack

import anyio

from rebaser.change_set.attempts.counted_attempts import CountedAttempts
from rebaser.change_set.lifecycle import Event, Failed, JobEnded, JobStarted, Pulled, Reason
from rebaser.change_set.log.commit_drafts import compared, pulled
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.change_set.processor import Processor
from rebaser.change_set.readers.target_reader import read_theirs
from rebaser.change_set.settling import settle_id
from rebaser.runtime.context import Context
from rebaser_core.backoff import exponential_delay
from rebaser_core.branches.branch import Branch, Rebase
from rebaser_core.commit import PULL_ATTEMPT, Strategy
from rebaser_core.decisions.replay import Theirs, refuse_rebase
from rebaser_core.errors import FencedError, RebaserError, TransientError, UnprocessableError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import read_edited

LOOK_EVERY = 1.0  # minimum seconds between two checks of the target
RETRY = 0.5  # seconds until a pull that failed is retried; doubled each time
RETRY_MAX = 30.0  # maximum seconds until a pull that failed is retried
SETTLED_IN = 60.0  # seconds after the branch was applied during which a pull waits for the request of `settling`


class BranchPuller:
    """Pulls changes from the target into the branch whose log is `commits`, one pull at a time.

    `processor` decides the requests of the branch.

    `redelivered` and `hung` have the same meaning as in `CountedAttempts`. `owed` tells whether a check of the target
    is still due. If it is still due when the owner ends, the owner publishes its task again.
    """

    def __init__(
        self,
        context: Context,
        commits: CommitLog,
        processor: Processor,
        *,
        redelivered: bool,
        hung: Callable[[], bool],
    ) -> None:
        self._context = context
        self._commits = commits
        self._processor = processor
        self._log = commits.logger
        self._attempts = CountedAttempts(
            context, commits, PULL_ATTEMPT, "branch_pull", redelivered=redelivered, hung=hung
        )
        self._due = True
        self._not_before = -math.inf
        self._skipped = False  # whether the last check was skipped, because the branch was closed or protected
        self._failures = 0
        self._looked = 0  # the base of the branch at the last check
        self._refused = 0  # the log sequence of the target at which the last pull was refused
        self._changed = asyncio.Event()
        self._active: Callable[[], bool] = lambda: True
        deferral = self._attempts.deferral() if self.branch is not None else 0.0
        if deferral:
            self._not_before = context.now() + deferral
        self.owed = self.branch is not None and not deferral

    @property
    def branch(self) -> Branch | None:
        """The branch, if it may be brought up to date now; None if it does not follow its target, or is not open."""
        state = self._commits.state
        branch = state.branch
        follows = branch is not None and branch.follows and self._context.settings.history_for > 0
        return branch if follows and refuse_rebase(state) is None and not self._commits.handed_over else None

    def wake(self) -> None:
        """Make `run` check the target, no earlier than a second after the last check. If the owner is ending, `run`
        ends.

        Call this after requests have been decided, and when the owner ends. If the requests opened the branch, or ended
        its protection, `run` checks the target at once, because the owner may end within that second.
        """
        if self._skipped and self.branch is not None:
            self._skipped, self.owed, self._not_before = False, True, -math.inf
        self._due = True
        self._changed.set()

    async def run(
        self, post: Callable[[Event], None], active: Callable[[], bool], appended: Callable[[], None]
    ) -> None:
        """Pull each time a pull is due. Return once `active` returns False, because the owner is ending.

        `post` posts an event to the owner's lifecycle. `appended` is called after each check during which the log grew.
        """
        self._active = active
        while True:
            await self._wait()
            if not active():
                return
            post(JobStarted())  # the owner does not release its task while a job runs
            try:
                if await self.pull():
                    post(Pulled(self._commits.state.owes))
                    appended()
            except FencedError:
                if not self._commits.handed_over:  # otherwise, this owner ends anyway and acks its task
                    post(Failed(Reason.FENCED))
                return
            finally:
                post(JobEnded())

    async def _wait(self) -> None:
        """Wait until it is time to check the target."""
        while True:
            self._changed.clear()
            delay = self._not_before - self._context.now()
            if self._due and delay <= 0:
                return
            with anyio.move_on_after(delay if self._due else math.inf):
                await self._changed.wait()

    async def pull(self) -> bool:
        """Check the target, and pull if it was edited after the base. Return whether the branch's log grew meanwhile.

        Log a failure instead of raising it, except that `FencedError` is raised if another owner has taken over.
        """
        context, before = self._context, self._commits.state.last
        self._due = False
        if self.branch is None:  # when a request opens the branch, `wake` makes another check due
            self._skipped, self.owed = True, False
            return False
        self._not_before = context.now() + LOOK_EVERY
        newest = 0
        try:
            while newest := await self._look():
                if not await self._behind_queue():
                    return False  # the next owner checks the target
                newest = await self._look()  # the requests decided meanwhile may have moved the base
                if not newest or await self._try():
                    break
            self._failures = 0
        except FencedError:
            raise
        except UnprocessableError as error:  # another pull would be refused too, until the target changes
            self._refused = 0 if self.branch is None else newest
            self._log.info("branch_pull_refused", target_sequence=newest, code=error.code, reason=error.message)
        except RebaserError as error:
            self._failed(error)
        except Exception as error:  # noqa: BLE001 - a bug of a pull must not end its owner
            self._log.exception("branch_pull_broken")
            self._failed(
                RebaserError(
                    f"the pull failed unexpectedly: {type(error).__name__}; see the log event branch_pull_broken",
                    code="internal",
                )
            )
        self._skipped, self.owed = self.branch is None, False
        return self._commits.state.last > before

    def _failed(self, error: RebaserError) -> None:
        context = self._context
        delay = exponential_delay(self._failures, RETRY, RETRY_MAX)
        self._failures += 1
        self._due, self._not_before = True, context.now() + delay
        context.health.record(context.now(), error, key=self._commits.key)
        context.stream_watch.check_soon()
        self._log.warning("branch_pull_failed", attempt=self._failures, code=error.code, reason=error.message)

    async def _look(self) -> int:
        """Return the newest log sequence of the target; 0 if there is nothing to pull."""
        branch = self.branch
        if branch is None:
            return 0
        base = self._looked = branch.base
        target = ChangeSetKey.of(self._commits.key.workspace, branch.target)
        message = await self._context.reader.newest_message(target)
        if message is None or message.sequence == self._refused:
            return 0
        return message.sequence if read_edited(message.headers, message.sequence) > base else 0

    async def _behind_queue(self) -> bool:
        """Wait until all requests that are now in the queue are decided. Return False if the owner ends before that."""
        context, processor = self._context, self._processor
        stream, subject = context.subjects.requests_stream, context.subjects.requests(self._commits.key)
        newest = await context.js.last(stream, subject)
        until = 0 if newest is None else newest.sequence
        while (done := max(processor.applied.sequence, processor.answered)) < until:
            if not self._active():
                return False
            self._changed.clear()
            with anyio.move_on_after(LOOK_EVERY):
                await self._changed.wait()
                continue
            following = await context.js.next(stream, subject, done + 1)  # a request may be deleted before its decision
            until = until if following is not None and following.sequence <= until else 0
        return True

    async def _try(self) -> bool:
        """Read the target, and append the commit. Return False if a request has moved the base in the meantime, or is
        about to move it."""
        async with AsyncExitStack() as stack:
            if self._attempts.recording:
                await stack.enter_async_context(self._attempts.recorded())
            done = await self._pull()
        self._attempts.recording &= not done
        return done

    async def _pull(self) -> bool:
        theirs = await self._read()
        if theirs is None or theirs.source.sequence <= theirs.base:
            return True
        if theirs.base != self._looked:
            return False  # check again: the target may not have been edited after the new base
        commits = self._commits
        recent = theirs.applied is not None and self._context.now_ms() - theirs.applied_ms < SETTLED_IN * 1000
        if recent and commits.state.recorded(settle_id(theirs.applied_in)) is None:
            self._not_before = -math.inf  # check again as soon as the request of `settling` is decided
            return True
        async with commits.append_lock():
            branch = self.branch
            if branch is None or self._processor.rebasing or not theirs.fits(branch):
                return False
            replayed = await compared(commits.state, branch, theirs, Strategy.RECORD)
            sequence = await commits.append(await pulled(commits, replayed))
        updates, conflicts = len(replayed.delta), len(replayed.conflicts)
        self._log.info(
            "branch_pulled", seq=sequence, target=str(theirs.source.change_set), base=theirs.source.sequence,
            updates=updates, conflicts=conflicts,
        )  # fmt: skip
        return True

    async def _read(self) -> Theirs | None:
        context, commits, seconds = self._context, self._commits, self._context.settings.apply_timeout
        if self.branch is None:
            return None
        try:
            with anyio.fail_after(seconds):
                return await read_theirs(context, commits, Rebase())
        except TimeoutError:
            text = f"reading the target of {commits.key} took longer than {seconds:g} s; the pull will be retried"
            raise TransientError(text, code="too_slow") from None

"""Bugs in the sweeper, dead letters, deletion, history and garbage collection."""

from tests.simulation.bugs.bug import bug

COMMIT_LOG = "rebaser.change_set.log.commit_log"
PROCESSOR = "rebaser.change_set.processor"
DECIDE = "rebaser_core.decisions.decide"
SWEEPER = "rebaser.sweeper.sweeper"
SERVER = "rebaser.server"
GARBAGE = "rebaser_core.blobs.garbage"
FINDING = "rebaser.gc.finding"
CLIENT = "rebaser_client.client"
COMMITS = "rebaser_client.log.commits"

BUGS = (
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
        4,
        DECIDE,
        "return decision.outcome is _DEAD and redrive > decision.redrive and sequence > applied.sequence",
        "return decision.outcome is _DEAD",
    ),
    # -- memory that is not released -------------------------------------------------------------------------------
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
        "rebaser_client.nats.replies",
        """        future = self._take(subject)
""",
        """        pending = self._waiting.get(subject)
        future = None if pending is None else pending.future
""",
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
    # -- history ---------------------------------------------------------------------------------------------------
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
        9,
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
        23,
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
        "        if freshness.is_fresh:",
        "        if True:",
    ),
)

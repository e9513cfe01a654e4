"""Bugs in requests: their order, their outcomes, their replies."""

from tests.simulation.bugs.bug import bug

OWNER = "rebaser.change_set.owner"
PROCESSOR = "rebaser.change_set.processor"
POISON = "rebaser.change_set.attempts.poison"
DECIDE = "rebaser_core.decisions.decide"

BUGS = (
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
        "                highest = request.sequence\n",
        "                pass\n",
    ),
    bug(
        "the reply is sent before the commit",
        "harsh",
        1,
        PROCESSOR,
        """                sequence = await commits.publish(encoded)
                self.applied = decided.applied
                if decided.skipped:
""",
        """                await self._answer_all(messages, decided, sequence + 1)
                sequence = await commits.publish(encoded)
                self.applied = decided.applied
                if decided.skipped:
""",
    ),
    bug(
        "requests are deleted before the commit",
        "harsh",
        9,
        PROCESSOR,
        """                sequence = await commits.publish(encoded)
                self.applied = decided.applied
                if decided.skipped:
""",
        """                deleted = [message.stream_sequence for message in messages]
                self._context.deleter.add(deleted, self.applied.stream)
                sequence = await commits.publish(encoded)
                self.applied = decided.applied
                if decided.skipped:
""",
    ),
    bug(
        "requests are never deleted",
        "calm",
        1,
        PROCESSOR,
        "        self._context.deleter.add(done, self.applied.stream)\n",
        "",
    ),
    bug(
        "a purge of requests goes on after one that is not decided",
        "gentle",
        3,
        "rebaser.runtime.request_deleter",
        "            while end in added:\n                end += 1\n",
        "            end = max(added) + 1\n",
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
        9,
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
        "rebaser.change_set.attempts.held_requests",
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
        5,
        POISON,
        "if before.deaths >= self._context.settings.max_deaths:",
        "if before.deaths:",
    ),
    bug(
        "a message that was lost on its way from the queue is not missed",
        "harsh",
        41,
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
)

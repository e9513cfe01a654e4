"""Bugs in the log: appends, fences, checkpoints, purges."""

from tests.simulation.bugs.bug import bug

COMMIT_LOG = "rebaser.change_set.log.commit_log"
OLD_HISTORY = "rebaser.sweeper.old_history"

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
        14,
        COMMIT_LOG,
        """                may_have_landed = True
""",
        """                return self.state.last + 1
""",
    ),
    bug(
        "an append that is not answered counts as lost",
        "gentle",
        2,
        COMMIT_LOG,
        """                may_have_landed = True
""",
        """                raise TransientError("not answered", code="lost") from error
""",
    ),
    bug(
        "whatever stands behind the expected sequence counts as our own",
        "harsh",
        7,
        COMMIT_LOG,
        "if decode_commit(stored.headers, stored.data).id == commit_id:",
        "if decode_commit(stored.headers, stored.data).id:",
    ),
    bug(
        "our own commit, landed before its answer was lost, counts as foreign",
        "gentle",
        2,
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
        9,
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
        91,
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
        10,
        "rebaser_core.state.value_columns",
        "        self._touched[row] = 1\n        if fault is not None:",
        "        if fault is not None:",
    ),
    bug(
        "what was removed is not in the next delta of a checkpoint",
        "gentle",
        62,
        "rebaser_core.state.columns",
        "            self.gone.add(id_)\n",
        "",
    ),
    bug(
        "a decision reads from any replica",
        "calm",
        5,
        "rebaser_client.jetstream.api",
        """        try:
            stored =""",
        DIRECT_GET,
    ),
    bug(
        "what stood before a commit is read after it",
        "calm",
        1,
        "rebaser.change_set.log.commit_drafts",
        "before=commits.before_now(decided.delta)",
        "before=decided.delta",
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
        9,
        "rebaser_core.state.overlay",
        "columns.state[row], columns.edited[row] = STATE_CODES[cell.state], cell.edited",
        "columns.state[row] = STATE_CODES[cell.state]",
    ),
    bug(
        "a revert takes back what was edited again",
        "gentle",
        20,
        "rebaser_core.branches.merge",
        "            if same_definition(ours, entry.base):\n",
        "            if True:\n",
    ),
)

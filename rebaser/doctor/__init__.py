"""Diagnosis and repair of the log of one change set, and the check of NATS permissions: the work of `rebaser doctor`.

Only the command line imports this package; servers do not. It may import `rebaser.change_set`, `rebaser_client` and
`rebaser_core`. `log_message` and `history` are pure: they classify single messages and fold a damaged log.
`examination`, `repair` and `rights` do the I/O.

A log that cannot be read stops its change set: readers fail, and owners give its task back again and again. A repair
appends one commit that names a new checkpoint with everything that can still be read. From then on, no reader needs the
messages before that commit. The damaged messages stay where they are until the checkpoint after the next one purges
them, as it purges all old messages.

How the repaired state is built, and why:

- It starts from the newest readable checkpoint, or from an empty state if the log goes back to its first commit.
- A damaged `dvu`, `attempt` or `checkpoint` commit loses nothing: its values are computed again.
- A damaged `rebase` commit loses all edits of the requests it decided. Its payload has no checksum, so even the parts
  that still decode may be wrong. What it changed is listed as far as it can be read.
- Commits behind the damage are carried over. An edit is complete in itself (a value, a definition, or a removal) and
  succeeds on any state, so leaving out later acknowledged edits would only lose more. A commit that is a copy of an
  earlier one is left out, and so is one that applies requests which were decided before: nothing is applied twice.
- Derived values may rest on edits that were lost, so all of them are due to be computed again.
- The header `X-Applied` of an unreadable commit, or the commit behind it, tells whether it decided any request: if the
  highest decided request is the same before and after, it decided none.

Exactly once: `applied` never goes back. The outcomes recorded in a lost commit are forgotten, though, except those of
requests for which nothing was applied. A request that the lost commit decided and that is still in the queue is
therefore dead-lettered as `skipped` by the next owner: it is neither dropped nor applied out of order, and it can be
redriven. A request that its client sends again is applied once.

The fence: the repair commit is appended by compare-and-set on the last message of the log. If another writer appended
meanwhile, the repair is refused and nothing has changed. An owner that holds the change set is fenced at its next
append and loads the repaired log.

A commit, checkpoint or delta of a newer version is not damage, because a newer server reads it. Such a log is not
repaired.
"""

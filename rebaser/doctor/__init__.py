"""Diagnoses and repairs the log of one change set, and checks NATS permissions, for `rebaser doctor`.

Only the command line imports this package; servers do not. It may import `rebaser.change_set`, `rebaser_client` and
`rebaser_core`. `log_message` and `history` do no I/O: they classify single messages and fold a damaged log.
`examination`, `repair` and `rights` do the I/O.

A log that cannot be read stops its change set: readers fail, and owners return its task again and again. A repair
appends one commit that refers to a new checkpoint with everything that can still be read. From then on, no reader needs
the messages before that commit. The damaged messages remain in the log until a later checkpoint causes a purge up to
the repair. If they belong to the history that is kept, they remain until that history expires.

How the repaired state is built, and why:

- It starts from the newest readable checkpoint, or from an empty state if the log goes back to its first commit.
- If a `dvu`, `attempt` or `checkpoint` commit is damaged, nothing is lost, because all derived values are computed
  again.
- If a `rebase` commit is damaged, all edits of the requests it decided are lost. Its payload has no checksum, so even
  parts that still decode may be wrong. The doctor lists the values that the commit changed as far as it can read them.
- If a `create` commit is damaged and no later checkpoint contains it, all values that the change set took over from its
  parent are lost.
- Commits after the damage are carried over. An edit sets a value, sets a definition, or removes a value. Since each of
  these succeeds on any state, omitting later edits would only lose more. Two kinds of commits are omitted, so that
  nothing is applied twice: copies of earlier commits, and commits that apply requests which were decided before.
- Derived values may depend on edits that were lost, so all of them are computed again.
- The header `X-Applied` of an unreadable commit, or the commit after it, shows whether the unreadable commit decided
  any request: if the highest decided request is the same before and after, it decided none.

What remains of "exactly once": `applied`, the highest sequence of a decided request, never decreases. However, the
outcomes recorded in a lost commit are forgotten, except outcomes of requests for which nothing was applied. If a
request that the lost commit decided is still in the queue, the next owner moves it to the dead letters with the code
`skipped`: it is neither dropped nor applied out of order, and it can be redriven. If a client sends such a request
again, it is applied once.

How other writers are fenced: the repair commit is appended by compare-and-set on the last message of the log. If
another writer appended meanwhile, the repair is refused and changes nothing. An owner that holds the change set is
fenced at its next append and loads the repaired log.

A commit, checkpoint or delta of a newer version is not damage, because a newer server reads it. Such a log is not
repaired.
"""

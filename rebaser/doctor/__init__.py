"""`rebaser doctor`: what is wrong with the log of a change set, and a way out.

A log that cannot be read stops its change set: readers fail, and an owner gives its task back again and again. A repair
makes it readable by a commit at its end, which names a checkpoint that stands for all that can be read. Everything
before that commit is then in nobody's way. The damaged messages stay where they are; the checkpoint after the next
purges them, as it purges whatever is old.

What the repaired state is, and why:

- It begins at the newest checkpoint that can be read, or at nothing where the log goes back to its first commit.
- A damaged `dvu`, `attempt` or `checkpoint` commit loses nothing: what it computed is computed again.
- A damaged `rebase` commit loses the edits of the requests that it decided, all of them. Its payload has no checksum,
  so that what still decodes of it may be wrong too. What was touched is listed as far as it can be read.
- Commits behind the damage are carried over. An edit is complete in itself (a value, a definition, or their removal)
  and succeeds on any state, so leaving out later edits that were acknowledged would only lose more. A commit that was
  there before is a copy and is left out, and so is one that applies what was decided before: nothing is applied twice.
- What was derived rests on edits that may be gone: all of it is owed again.
- Whether a commit that cannot be read decided anything is told by its header `X-Applied`, or by the commit behind it:
  if the highest decided request is the same before and after, nothing was.

Exactly once: `applied` never goes back. What a lost commit decided is not remembered, though, unless nothing was
applied for it. So a request that it decided and that still stands in the queue is dead-lettered as `skipped` by the
next owner, neither dropped nor applied out of order, and can be redriven; and one that its client sends again is
applied, once.

The fence: the commit is appended by compare-and-set on the last message of the log. If somebody wrote meanwhile nothing
has changed; an owner that holds the change set is fenced at its next append, and loads what the repair left.

A commit, checkpoint or delta of a newer version is not damage: a newer server reads it. Nothing is repaired then.

`entries` and `history` are pure: what a message says, and what a log adds up to. `examination` and `repair` do the I/O.
"""

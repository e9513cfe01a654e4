"""Runs dependent values updates (DVUs): finds, computes and compares the derived values that an edit affects.

`rebaser.change_set` calls `update.update`. `planning` and `spark` run on the owner of a change set; `worker`,
`compiled`, `cel` and `functions` run on Spark's executors (`planning` also uses the last three); `wire` defines the
messages between owner and executors. This package may import `rebaser_core`, `rebaser_client` and `rebaser.embedded`.

Invariant: a value that cannot be computed gets the state `error`. If the whole update fails, `DvuError` is raised.
"""

"""The garbage collection: deletes blobs that stored messages no longer need.

`collector` makes a run: it finds garbage (`finding`), lets `rebaser_core.blobs.garbage.plan` decide what to delete,
records the run in the log of `GC_KEY`, and deletes the blobs. `spark_tables` finds garbage on Spark. `schedule` starts
runs on the sweeper.

The server and the command line use this package. It imports `rebaser.dvu.spark`, `rebaser.embedded`, `rebaser.runtime`,
`rebaser.settings`, `rebaser_client` and `rebaser_core`.
"""

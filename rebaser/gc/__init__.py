"""The garbage collection: deletes blobs that stored messages no longer need.

`collector` makes a run: it finds garbage (`finding`), calls `rebaser_core.garbage.plan`, which decides, records the run
in the log of `GC_KEY`, and deletes. `spark_tables` finds garbage on Spark. `schedule` starts runs on the sweeper.

For the server and the command line. This package imports `rebaser.dvu.spark`, `rebaser.embedded`, `rebaser.runtime`,
`rebaser.settings`, `rebaser_client` and `rebaser_core`.
"""

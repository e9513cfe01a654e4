"""The garbage collection: deletes blobs that no stored message needs any more.

`collector` makes a run: it finds garbage (`finding`), has `rebaser_core.garbage.plan` decide, records the run in the
log of `GC_KEY`, and deletes. `spark_tables` finds garbage on Spark. `schedule` starts runs on the server that sweeps.

For the server and the command line. This package imports `rebaser.dvu.spark`, `rebaser.embedded`, `rebaser.runtime`,
`rebaser.settings`, `rebaser_client` and `rebaser_core`.
"""

"""Collects garbage: deletes the blobs that no stored message needs any more.

`collector` carries out a run: it finds garbage (`finding`), lets `rebaser_core.blobs.garbage.plan` decide what to
delete, records the run in the log of the reserved change set `GC_KEY`, and deletes the blobs. `spark_tables` finds
garbage on Spark. `schedule` starts runs on the sweeper, `manual` makes a single run for `rebaser gc`, and
`installations` checks that no other installation uses the blob store.

The server and the command line use this package. It imports `rebaser.dvu.spark`, `rebaser.embedded`, `rebaser.runtime`,
`rebaser.settings`, `rebaser_client` and `rebaser_core`.
"""

"""Computes the nodes of packets on Spark's executors, and returns the nodes that changed.

`rebaser.dvu.spark` imports this package to run it on the workers. It also uses `structure_cache` on the owner, because
the owner shares a folder with the workers of an embedded Spark. `rebaser.dvu.planning` imports the limit on the inputs
of a value and, for `warm_up`, `evaluate_packet`. This package imports `rebaser.dvu.wire`, `functions`, `compiled` and
`rebaser_core`. Importing this package must stay fast, because each worker process imports it.
"""
